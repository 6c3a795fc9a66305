//! The errors of transfers.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use ropewalk_protocol::mode_e::{ReceiveError, SendError};
use ropewalk_transport::{Endpoint, TurnedDown};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a transfer did not succeed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("cannot connect to {address}: {source}")]
    Connect { address: Endpoint, source: io::Error },
    /// The peer was to connect and did not, or not often enough.
    #[error(
        "{made} of {wanted} data connections came within {} s{}{}", (waited.as_secs_f32() * 10.0).round() / 10.0,
        turned_down.as_ref().map(|it| format!("; one from {} was closed: {}", it.peer.host(), it.reason)).unwrap_or_default(),
        refused.as_ref().map(|(peer, only)| format!("; one from {} was closed, since data connections of this session are taken from \
        {only} alone (third-party transfers are not permitted)", peer.host())).unwrap_or_default()
    )]
    NoConnection {
        made: u32,
        wanted: u32,
        waited: Duration,
        /// The last peer that came from another address and was not accepted, and the only address
        /// that is accepted.
        refused: Option<(Endpoint, IpAddr)>,
        /// The last peer that failed the handshake, and the reason.
        turned_down: Option<Box<TurnedDown>>,
    },
    #[error("cannot accept data connections: {0}")]
    Accept(io::Error),
    /// The connection ended in the middle. `bytes` of payload had come over it in this transfer,
    /// `left` were outstanding of the block that was cut off.
    #[error("{peer} closed stream {stream} early, after {bytes} bytes ({left} outstanding in its block)")]
    PeerClosed { peer: Endpoint, stream: u32, bytes: u64, left: u64 },
    #[error("{peer} broke the protocol on stream {stream}: {source}")]
    Protocol { peer: Endpoint, stream: u32, source: ReceiveError },
    /// More bytes came than were asked for (MODE S).
    #[error("{peer} sent more than the {expected} bytes that were expected")]
    TooMuch { peer: Endpoint, expected: u64 },
    #[error("{peer} opened more than {limit} data connections")]
    TooManyStreams { peer: Endpoint, limit: u32 },
    /// EOF announced fewer streams than brought something.
    #[error("EOF announced {announced} streams, but there were more{}", peer.as_ref().map(|p| format!(", one from {p}")).unwrap_or_default())]
    ExtraStream { peer: Option<Endpoint>, announced: u64 },
    /// The ranges to send do not fit the channel.
    #[error(transparent)]
    Send(#[from] SendError),
    #[error(transparent)]
    Store(#[from] ropewalk_storage::Error),
    /// The reader of `send_reader` failed.
    #[error("cannot read the data to send: {0}")]
    Reader(io::Error),
    /// The writer of `receive_writer` failed.
    #[error("cannot write the data received: {0}")]
    Writer(io::Error),
    /// Blocks came too far out of order for a destination that takes them in order only.
    #[error("blocks came out of order: {held} bytes had to wait for those at offset {missing}")]
    OutOfOrder { missing: u64, held: u64 },
    /// Streams ended although bytes that the sender had announced are missing.
    #[error("only {stored} of {total} bytes could be stored")]
    Incomplete { stored: u64, total: u64 },
    /// The received blocks have more gaps than are recorded.
    #[error("the blocks that came leave too many gaps between them: {count}")]
    Scattered { count: usize },
    /// The same, of all transfers at the moment; alone it had few enough.
    #[error(
        "all transfers together have too many gaps between the blocks that came (this one {count}): try again later"
    )]
    Crowded { count: usize },
    #[error("broken off")]
    Aborted,
    #[error("no byte moved for {} s", after.as_secs_f32())]
    Stalled { after: Duration },
    /// The file became shorter or longer while it was sent: what was sent is not one state of it.
    #[error("the source changed while it was sent: {found} bytes where {expected} were expected")]
    SourceChanged { expected: u64, found: u64 },
    #[error("data connection with {peer}: {source}")]
    Io { peer: Endpoint, source: io::Error },
    /// The attendant could not continue (the control connection broke, for example).
    #[error("cannot begin the transfer: {0}")]
    Attendant(io::Error),
    /// The system refused something that has nothing to do with the peer.
    #[error("{action}: {source}")]
    System { action: &'static str, source: io::Error },
}

impl Error {
    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }

    pub(crate) fn io(peer: &Endpoint) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { peer: peer.clone(), source }
    }

    /// True where the peer or the path to it is the cause, so that trying again may help.
    pub fn is_network(&self) -> bool {
        matches!(
            self,
            Self::Connect { .. }
                | Self::NoConnection { .. }
                | Self::PeerClosed { .. }
                | Self::Incomplete { .. }
                | Self::Stalled { .. }
                | Self::Io { .. }
        )
    }
}
