//! Commands on their way, and what their answers are to whoever sent them.

use std::sync::Arc;
use std::time::Instant;

use ropewalk_protocol::marker::Marker;
use ropewalk_protocol::reply::Reply;

use crate::RemoteError;
use crate::model::told::Told;

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
    /// Bytes of a file that the peer has to read before it can answer.
    pub(super) reads: Option<u64>,
}

/// What the answer to a command is to whoever sent it.
pub(super) enum Due {
    /// It is waited for.
    Awaited,
    /// It makes no difference.
    Dropped,
    /// Nobody waits for it, but it has to be a success, as it was where these were learned.
    Expected(Arc<Told>),
    /// Nobody waits for it, but it has to tell of these.
    Features(Arc<Told>),
}

impl Asked {
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self.answer, Due::Awaited)
    }
}

impl Due {
    /// What an answer that nobody waited for means.
    pub(super) fn judge(&self, peer: &str, command: &str, reply: Reply) -> Result<(), RemoteError> {
        let other = |reason: String| Err(RemoteError::OtherServer { peer: peer.to_owned(), reason });
        match self {
            // It says why it ends the session.
            Self::Expected(_) | Self::Features(_) if reply.code() == 421 => {
                Err(RemoteError::Refused { peer: peer.to_owned(), command: command.to_owned(), reply })
            }
            Self::Expected(features) if reply.is_failure() => {
                features.hold_no_more();
                other(format!("it refused {command} ({})", reply.code()))
            }
            Self::Features(features) if !features.are_those_of(&reply) => {
                other("its features (FEAT) are others".to_owned())
            }
            Self::Awaited | Self::Dropped | Self::Expected(_) | Self::Features(_) => Ok(()),
        }
    }
}
