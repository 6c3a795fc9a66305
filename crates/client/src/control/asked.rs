//! Commands on their way, and what their answers are to whoever sent them.

use std::sync::Arc;
use std::time::Instant;

use ropewalk_protocol::marker::Marker;
use ropewalk_protocol::reply::Reply;

use crate::RemoteError;
use crate::features::Features;

/// What came for the oldest command that waits for something.
#[derive(Debug)]
pub(crate) enum Answer {
    Preliminary(Reply),
    Marker(Marker),
    /// The last one, of any class but 1yz.
    Final(Reply),
}

/// A command that was sent and not answered for good.
pub(super) struct Asked {
    pub(super) name: &'static str,
    pub(super) at: Instant,
    pub(super) answer: Due,
}

/// What the answer to a command is to whoever sent it.
pub(super) enum Due {
    /// It is waited for.
    Awaited,
    /// It makes no difference.
    Dropped,
    /// Nobody waits for it, but it has to be a success.
    Expected,
    /// Nobody waits for it, but it has to tell of these.
    Features(Arc<Features>),
}

impl Asked {
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self.answer, Due::Awaited)
    }
}

impl Due {
    /// What an answer that nobody waited for means.
    pub(super) fn judge(&self, peer: &str, command: &str, reply: Reply) -> Result<(), RemoteError> {
        match self {
            Self::Expected if reply.is_failure() => {
                Err(RemoteError::Refused { peer: peer.to_owned(), command: command.to_owned(), reply })
            }
            Self::Features(features) if !features.are_those_of(&reply) => {
                let reason = "its features (FEAT) are others than before".to_owned();
                Err(RemoteError::Nonsense { peer: peer.to_owned(), reason })
            }
            Self::Awaited | Self::Dropped | Self::Expected | Self::Features(_) => Ok(()),
        }
    }
}
