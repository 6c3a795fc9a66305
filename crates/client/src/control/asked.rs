//! Commands in flight, and the meaning of their replies to the sender.

use std::sync::Arc;
use std::time::Instant;

use ropewalk_protocol::marker::Marker;
use ropewalk_protocol::queue::QueuePlace;
use ropewalk_protocol::reply::Reply;

use crate::RemoteError;
use crate::model::features_reply::FeaturesReply;

/// An event for the oldest awaited command.
#[derive(Debug)]
pub(crate) enum Answer {
    Preliminary(Reply),
    Marker(Marker),
    /// The transfer has this place in the queue of the server.
    Queued(QueuePlace),
    /// The final reply, of any class but 1yz.
    Final(Reply),
}

/// A command without a final reply.
pub(super) struct Asked {
    pub(super) name: &'static str,
    pub(super) at: Instant,
    pub(super) answer: Due,
    /// Bytes of a file that the peer must read before it can reply.
    pub(super) reads: Option<u64>,
}

/// The meaning of a command's reply.
pub(super) enum Due {
    /// The caller waits for it.
    Awaited,
    /// It is ignored.
    Dropped,
    /// It is not awaited, but must be a success, as in the session where these features were
    /// learned.
    Expected(Arc<FeaturesReply>),
    /// It is not awaited, but must contain these features.
    Features(Arc<FeaturesReply>),
}

impl Asked {
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self.answer, Due::Awaited)
    }
}

impl Due {
    /// Evaluates a reply that is not awaited.
    pub(super) fn judge(&self, peer: &str, command: &str, reply: Reply) -> Result<(), RemoteError> {
        let other = |reason: String| Err(RemoteError::OtherServer { peer: peer.to_owned(), reason });
        match self {
            // The server says why it ends the session.
            Self::Expected(_) | Self::Features(_) if reply.code() == 421 => {
                Err(RemoteError::Refused { peer: peer.to_owned(), command: command.to_owned(), reply })
            }
            Self::Expected(features) if reply.is_failure() => {
                features.mark_outdated();
                other(format!("it refused {command} ({})", reply.code()))
            }
            Self::Features(features) if !features.is_same_as(&reply) => {
                other("its features (FEAT) differ".to_owned())
            }
            Self::Awaited | Self::Dropped | Self::Expected(_) | Self::Features(_) => Ok(()),
        }
    }
}
