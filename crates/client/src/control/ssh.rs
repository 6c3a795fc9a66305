//! Control connections through ssh.

use std::sync::Arc;

use super::{Control, GREETING};
use crate::link::Link;
use crate::model::error::NO_GREETING;
use crate::place::Endpoint;
use crate::{Cancel, EventSink, Options, RemoteError};

impl Control {
    /// The same as [`Control::connect`], through ssh.
    pub(crate) fn through_ssh(
        endpoint: &Endpoint,
        options: &Options,
        events: &Arc<dyn EventSink>,
        cancel: &Cancel,
    ) -> Result<Self, RemoteError> {
        let peer = endpoint.name.strip_prefix("sshftp://").unwrap_or(&endpoint.name).to_owned();
        let (tunnel, addresses) = endpoint.ssh.open(&endpoint.url, &peer, options, cancel)?;
        Ok(Self::over(Link::Ssh(tunnel), peer, addresses, options, events, cancel))
    }

    /// Whether the connection uses ssh.
    pub(crate) fn is_ssh(&self) -> bool {
        matches!(self.stream, Link::Ssh(_))
    }

    /// The connection has ended; with ssh the reason is known.
    pub(super) fn ended(&mut self) -> RemoteError {
        let peer = self.peer.clone();
        match self.stream.last_words() {
            Some(_) if self.cancel.is_cancelled() => RemoteError::Cancelled,
            Some(reason) => RemoteError::Ssh { peer, reason },
            None if self.is_ssh() && self.awaited().is_some_and(|asked| asked.name == GREETING) => {
                RemoteError::Ssh { peer, reason: NO_GREETING.to_owned() }
            }
            None => match self.machine.closing() {
                Some(reply) => RemoteError::Dismissed { peer, reply: reply.clone() },
                None => RemoteError::Closed { peer, command: self.due() },
            },
        }
    }
}
