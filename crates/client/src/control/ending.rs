//! The end of a transfer that failed, and of a session: ABOR, the last replies, QUIT.
//!
//! Each wait has a limit, because the server may be gone or may wait for data that will not come.

use super::*;

/// After a failed transfer the server may still report the reason. An abandoned session gets the
/// same time to end.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(2);
/// A transfer of an abandoned session that is silent for this long waits for data that will not
/// come.
const STANDS: Duration = Duration::from_millis(100);
const TRANSFERS: [&str; 5] = ["STOR", "ESTO", "APPE", "RETR", "ERET"];

impl Control {
    /// Makes the server end this session, and waits until it has closed the connection, at most for
    /// `limit`. `true`: it has. Then the server holds no file that another connection may want to
    /// write, and executes no further command of this session.
    ///
    /// With `abort`, for a server that answers every ABOR, ABOR cancels a transfer. Otherwise
    /// closing our side of the connection makes servers cancel a transfer that waits for data.
    pub(crate) fn leave(&mut self, limit: Duration, abort: bool) -> bool {
        let deadline = Instant::now() + limit;
        if abort {
            self.break_off();
        }
        // A server that is closing the connection does not accept the command, and closes it all
        // the same.
        let _ = self.send(&Command::Quit);
        if !abort {
            let patience = STANDS + 2 * self.rtt();
            loop {
                let transfers = self.asked.front().is_some_and(|asked| TRANSFERS.contains(&asked.name));
                let until = if transfers { deadline.min(Instant::now() + patience) } else { deadline };
                match self.answer_until(until) {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(e) => return is_gone(&e),
                }
            }
            self.stream.end();
        }
        loop {
            match self.answer_until(deadline) {
                Ok(Some(_)) => {}
                Ok(None) => return false,
                Err(e) => return is_gone(&e),
            }
        }
    }

    /// Sends ABOR, unless the server has announced that it closes the connection.
    pub(crate) fn break_off(&mut self) {
        if self.machine.abort().is_ok() {
            // Later commands must not take its reply for theirs.
            self.asked.push_back(Asked {
                name: "ABOR",
                at: Instant::now(),
                answer: Due::Dropped,
                reads: None,
            });
            if let Err(error) = self.transmit() {
                tracing::debug!(%error, "a transfer cannot be cancelled");
            }
            self.tell();
        }
    }

    /// Waits a limited time for all replies that are not awaited.
    pub(crate) fn hear_out(&mut self) -> Result<(), RemoteError> {
        let deadline = Instant::now() + LAST_WORDS;
        while !self.asked.is_empty() && Instant::now() < deadline {
            if self.try_answer()?.is_none() && !self.asked.is_empty() {
                self.wait(deadline)?;
            }
        }
        Ok(())
    }

    /// Passes on the peer's messages about a failed transfer until `heard` (called once before the
    /// first) returns true; for a limited time.
    pub(crate) fn last_words(&mut self, heard: &mut dyn FnMut(Option<Answer>) -> bool) {
        let deadline = Instant::now() + LAST_WORDS;
        let mut enough = heard(None);
        while !enough && let Ok(Some(answer)) = self.answer_until(deadline) {
            enough = heard(Some(answer));
        }
    }
}

/// Whether the peer has closed the connection, perhaps without reading all commands.
fn is_gone(error: &RemoteError) -> bool {
    match error {
        RemoteError::Closed { .. } | RemoteError::Dismissed { .. } => true,
        RemoteError::Control { source, .. } => source.kind() == io::ErrorKind::ConnectionReset,
        _ => false,
    }
}
