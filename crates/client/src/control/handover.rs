//! The handover of a connection from one job of a client to the next.

use super::*;

/// A server answers NOOP at once. One that does not is gone, and a new connection finds out why.
const CHECK: Duration = Duration::from_secs(5);

impl Control {
    /// Whether nothing is under way: each command has its reply, and nothing waits to be written.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.asked.is_empty() && self.out.is_empty()
    }

    /// Reports to these events from now on, and ends its waits at this [`Cancel`].
    pub(crate) fn hand_over(&mut self, options: &Options, events: &Arc<dyn EventSink>, cancel: &Cancel) {
        self.reply_timeout = options.timeouts.reply;
        self.events = options.trace_control.then(|| events.clone());
        self.cancel = cancel.clone();
        self.granted = None;
        self.waited = Duration::ZERO;
    }

    /// Whether the server still answers.
    ///
    /// # Errors
    /// It is cancelled. Other errors only mean that the connection is of no use.
    pub(crate) fn answers(&mut self) -> Result<bool, RemoteError> {
        self.send(&Command::Noop)?;
        match self.answer_until(Instant::now() + CHECK)? {
            // Servers without NOOP are there as well.
            Some(Answer::Final(reply)) => Ok(reply.is_success() || reply.is_unknown_command()),
            _ => Ok(false),
        }
    }
}
