//! The messages on a link. Each is one frame of JSON.
//!
//! A node starts with a [`Greeting`]. On the connection of its membership it then sends [`Lease`]s,
//! and the front end sends [`Notice`]s after its [`Welcome`]. On a connection for a session, the
//! front end sends [`Order`]s, and the node [`Report`]s. A change of a message changes
//! [`PROTOCOL`].

use std::net::{IpAddr, SocketAddr};

use ropewalk_limits::{Grant, Spent};
use serde::{Deserialize, Serialize};

use crate::registry::{Announcement, JoinError};
use crate::secret::Secret;

/// The version of these messages. Front end and nodes need the same one.
pub(crate) const PROTOCOL: u32 = 6;

/// The version of a program of version `program`, with that of the messages.
pub(crate) fn version(program: &str) -> String {
    format!("{program} (messages {PROTOCOL})")
}

/// The first message of a node on a connection.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Greeting {
    Join(Announcement),
    /// The connection waits for the orders of a session. The number is the one of
    /// [`Welcome::Joined`].
    Ready(u64),
}

/// The answer to [`Greeting::Join`].
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Welcome {
    /// The node is a member. The number is known to it alone, and is never 0.
    Joined(u64),
    Refused(JoinError),
}

/// A message of a member about its membership.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Lease {
    Renew {
        /// The number of sessions of other front ends that the node serves.
        elsewhere: u32,
    },
    /// The node accepts no new channels, and leaves when its present ones are closed.
    Drain,
    /// The bytes that channels have spent of their grants, by the numbers of their accounts.
    Spent(Vec<(u64, Spent)>),
}

/// The message of the front end to a member.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Notice {
    /// The answer to [`Lease::Renew`]: the node is still a member.
    Renewed,
    /// Grants by the numbers of accounts.
    Grants(Vec<(u64, Grant)>),
    /// There are no such accounts any more.
    Closed(Vec<u64>),
}

/// An order of the front end.
#[derive(Debug, Deserialize, Serialize)]
pub enum Order {
    /// Listen at this address. The answer is [`Report::Listening`].
    Listen {
        address: IpAddr,
        channel: Box<ChannelOrder>,
    },
    /// The addresses to connect to when the first transfer starts. The answer is [`Report::Done`].
    Connect {
        addresses: Vec<SocketAddr>,
        channel: Box<ChannelOrder>,
    },
    /// Close cached connections. The answer is [`Report::Done`].
    Discard,
    Send(SendOrder),
    /// Send bytes that arrive in frames of data; the node requests each with [`Report::More`].
    SendBytes(MoveOrder),
    Receive(ReceiveOrder),
    /// The last frame of data has been sent. If `complete` is set, these were all bytes of the
    /// file.
    BytesEnd {
        complete: bool,
    },
    /// The running transfer uses this number of streams from now on.
    Streams(u32),
    /// Abort the running transfer. The transfer is still answered by [`Report::Ended`].
    Abort,
}

/// The properties of a data channel. A node refuses an order with a property that it does not know,
/// because the property could be one that protects the data.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelOrder {
    /// The number of the account that pays for its bytes.
    pub account: u64,
    pub extended_block: bool,
    pub parallelism: u32,
    pub max_streams: u32,
    pub block_size: usize,
    pub send_buffer: Option<usize>,
    pub receive_buffer: Option<usize>,
    pub congestion: Option<String>,
    pub connect_timeout_ms: u64,
    /// 0 means no timeout.
    pub stall_timeout_ms: u64,
    /// The only address from which data connections are accepted.
    pub only_from: Option<IpAddr>,
    /// The expected peer.
    pub peer: IpAddr,
    /// The stack string that the client has chosen, and the drivers that it may choose.
    pub stack: Option<String>,
    pub drivers: Vec<String>,
    /// The number and the secret of the data key.
    pub key: Option<(u64, [u8; 32])>,
    /// The protection of the data connections; `None`: they have none but the data key.
    pub security: Option<SecurityOrder>,
}

/// The secrets of a session for its data connections, which a node has until the channel closes.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub enum SecurityOrder {
    Gsi(GsiOrder),
    Tls(TlsOrder),
}

/// The credential of a session for data connections with GSI.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct GsiOrder {
    /// The credential with its key, in the form of `DCSC P`.
    pub credential: Secret,
    /// The subject that the peer must have.
    pub expected: String,
    /// The data is protected, not only the handshake.
    pub protected: bool,
    /// The authorities in the credential itself are trusted as well (DCSC).
    pub own_authorities: bool,
    /// The certificates that the front end trusts besides its directory, as PEM text
    /// (`GLOBUS_GFS_EXTRA_CA_CERTS`).
    pub further_authorities: String,
}

/// The secrets with which a node serves data connections with TLS (RFC 4217 section 7) like the
/// front end.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TlsOrder {
    /// `None`: clients are accepted only if they resume the session of the control connection.
    pub identity: Option<TlsIdentity>,
    /// The keys with which the front end encrypts session tickets.
    pub ticket_keys: Secret,
    /// TLS 1.2 is not accepted.
    pub only_tls13: bool,
    /// Binds sessions to the control connection: 32 bytes.
    pub binding: Secret,
    /// The session of the control connection in OpenSSL's encoding, if the front end remembers it:
    /// clients with TLS 1.2 may resume it without a ticket.
    pub session: Option<Secret>,
    pub proof: TlsProof,
    /// The certificate that the client has presented on the control connection, in PEM.
    pub client_certificate: Option<String>,
}

/// The certificate of the front end.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TlsIdentity {
    /// The certificate and its chain, in PEM.
    pub certificates: String,
    /// The key, in PEM.
    pub key: Secret,
}

/// The proof that a client needs on a data connection if it does not resume the session of the
/// control connection. The certificate of the control connection is always one.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum TlsProof {
    Certificate,
    /// This address.
    Address(IpAddr),
    Nothing,
}

/// Omits the data key, which must not get into a log.
impl std::fmt::Debug for ChannelOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChannelOrder").field("stack", &self.stack).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for GsiOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GsiOrder").field("expected", &self.expected).finish_non_exhaustive()
    }
}

/// The file of a transfer, which the front end has open.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct FileOrder {
    /// The path within the shared file system, without symbolic links.
    pub path: Vec<u8>,
    /// The inode number of the file, so that both ends certainly mean the same file.
    pub inode: u64,
    /// The user as which to open the file; `None` means the node's own user.
    pub owner: Option<Owner>,
}

/// A user of the file system.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// The settings of the channel that a transfer changes.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct MoveOrder {
    pub parallelism: u32,
    pub ascii: bool,
    pub congestion: Option<String>,
    /// The sender may send blocks again on another stream, because both ends have agreed on it.
    pub resend: bool,
    /// The first grant of the channel's account.
    pub grant: Grant,
    /// The marks of connections that are made from now on; `None` for none.
    pub marks: Option<MarkOrder>,
}

/// The SciTag of data connections (docs/scitags.md), and how they are marked with it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct MarkOrder {
    /// The number of the tag.
    pub tag: u16,
    /// Set the flow label of IPv6 connections that the node makes.
    pub flow_label: bool,
    /// The packets are those of UDP.
    pub udp: bool,
    /// The destinations of fireflies, as in the settings of the front end: `peer`, `HOST:PORT`.
    pub fireflies: Vec<String>,
    /// Milliseconds between fireflies about an open connection; 0 for none.
    pub interval_ms: u64,
}

#[derive(Debug, Deserialize, Serialize)]
pub struct SendOrder {
    pub file: FileOrder,
    pub moves: MoveOrder,
    pub ranges: Vec<(u64, u64)>,
    pub origin: u64,
    /// The name of the algorithm of the checksum to compute.
    pub checksum: Option<String>,
}

#[derive(Debug, Deserialize, Serialize)]
pub struct ReceiveOrder {
    pub file: FileOrder,
    pub moves: MoveOrder,
    pub accept: Vec<(u64, u64)>,
    pub origin: u64,
    pub checksum: Option<String>,
    pub sparse: bool,
    /// Force data to stable storage before it is reported, or once at the end.
    pub sync_each: bool,
    pub sync_end: bool,
}

/// A range of a file, and its checksum if one was computed.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Sum {
    pub start: u64,
    pub end: u64,
    pub sum: Option<u32>,
}

/// A message of a node about its channel.
#[derive(Debug, Deserialize, Serialize)]
pub enum Report {
    Listening(SocketAddr),
    Done,
    /// The order cannot be carried out.
    Failed(MoveFailure),
    /// The data connections are open.
    Begun {
        reused: bool,
    },
    /// The bytes that have been moved so far. A running transfer reports at least once a second.
    Moved {
        bytes: u64,
        streams: u32,
        waiting_ns: [u64; 5],
        stored: Vec<Sum>,
    },
    /// The node requests the next bytes of [`Order::SendBytes`].
    More,
    /// The transfer has ended. Everything that was stored has been reported.
    Ended(Result<Transferred, MoveFailure>),
    /// The node has drained and closes the link. It has carried out all orders before this message,
    /// and no later ones.
    Left,
}

impl Report {
    /// The name of the message, for texts.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Listening(_) => "Listening",
            Self::Done => "Done",
            Self::Failed(_) => "Failed",
            Self::Begun { .. } => "Begun",
            Self::Moved { .. } => "Moved",
            Self::More => "More",
            Self::Ended(_) => "Ended",
            Self::Left => "Left",
        }
    }
}

#[derive(Debug, Deserialize, Serialize)]
pub struct Transferred {
    pub bytes: u64,
    pub streams: u32,
    /// The number of connections that are kept for the next transfer.
    pub cached: usize,
    /// For a sender, the ranges with their checksums.
    pub sums: Vec<Sum>,
}

/// The reason why a node could not carry out an order.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum MoveFailure {
    System {
        errno: i32,
        action: String,
    },
    /// No data connection could be established.
    Connection(String),
    /// A data connection broke.
    Broken(String),
    Refused(String),
    Aborted,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Instant;

    use super::*;
    use crate::registry::Registry;

    #[test]
    fn node_and_front_end_with_other_messages_refuse_each_other() {
        let announcement = |version: String| Announcement {
            name: "a".into(),
            version,
            addresses: vec![[192, 0, 2, 1].into()],
            capacity: 1,
        };
        let join = |front_end: &str, node: &str| {
            let mut registry = Registry::new(front_end);
            registry.join(announcement(node.into()), ([192, 0, 2, 1], 4000).into(), Instant::now())
        };
        // Programs announced the version alone before the messages had one.
        let (before, now) = ("1.0", version("1.0"));
        for (front_end, node) in [(before, &*now), (&now, before)] {
            let refused = join(front_end, node).unwrap_err().to_string();
            let expected = format!("the node runs ropewalk {node}, and the front end {front_end}: both");
            assert!(refused.starts_with(&expected), "{refused}");
        }
        join(&now, &now).unwrap();
    }
}
