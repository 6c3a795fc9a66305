//! The results of the analyzer: connections, snapshots and filters.

use std::net::{IpAddr, SocketAddr};

use ropewalk_transport::Ceilings;
use serde::Serialize;

/// Version of the JSON form of [`Snapshot`]. It is incremented when a field is removed or changes
/// its meaning, not when a field is added.
pub const SCHEMA: u32 = 1;

/// The direction of most of a connection's data, which determines the relevant buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Away from this host: the send buffer is relevant.
    Out,
    /// To this host: the receive buffer is relevant.
    In,
}

/// The reason for which a sender did not send more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitedBy {
    /// Its send buffer, for at least a tenth of the time.
    Buffer,
    /// The receive window of the peer, for at least a tenth of the time.
    Peer,
    /// The program had no data to send.
    Application,
    /// The congestion window.
    Network,
    /// Unknown: the connection receives, or it moves no data.
    Unknown,
}

impl Direction {
    /// `out` or `in`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::In => "in",
        }
    }

    /// The opposite direction.
    pub(crate) fn opposite(self) -> Self {
        match self {
            Self::Out => Self::In,
            Self::In => Self::Out,
        }
    }
}

impl LimitedBy {
    /// All reasons.
    pub const ALL: [Self; 5] = [Self::Buffer, Self::Peer, Self::Application, Self::Network, Self::Unknown];

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Buffer => "buffer",
            Self::Peer => "peer",
            Self::Application => "application",
            Self::Network => "network",
            Self::Unknown => "unknown",
        }
    }
}

/// The process that has a socket open. If there are several, it is the first one that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Owner {
    pub pid: u32,
    /// The file descriptor in this process.
    pub descriptor: i32,
    /// Name of the program file.
    pub program: String,
}

/// A connection and the buffer of its direction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flow {
    /// The kernel's identifier of the socket, which is never used again for another socket.
    pub cookie: u64,
    pub inode: u32,
    pub direction: Direction,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// `None` if no process has the socket open, or if the owner may not be looked up.
    pub owner: Option<Owner>,
    /// Whether the connection belongs to a ropewalk program.
    pub own: bool,
    pub congestion: String,
    /// Payload in `direction`.
    pub bytes_per_second: f64,
    /// Smoothed round-trip time.
    pub rtt_seconds: f64,
    /// The congestion window; for a receiver the data that it receives in a round trip.
    pub window_bytes: u64,
    /// Size of the buffer, as the kernel counts.
    pub kernel_buffer_bytes: u64,
    /// Data in the buffer, as the kernel counts.
    pub kernel_queued_bytes: u64,
    pub limited_by: LimitedBy,
    /// The buffer size that the connection could use, in payload; 0 if it moves no data.
    pub demand_bytes: u64,
    /// The past demand, when the connection was granted less, as far as it still counts after this
    /// look; payload.
    #[serde(skip)]
    pub past_demand_bytes: Option<u64>,
}

/// All connections at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Snapshot {
    /// Unix time.
    pub time_seconds: f64,
    /// The interval over which rates were measured. Absent at the first look, whose rates are the
    /// kernel's estimates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_seconds: Option<f64>,
    #[serde(skip)]
    pub ceilings: Ceilings,
    /// Whether the list is complete: it did not change while the kernel produced it.
    #[serde(skip)]
    pub whole: bool,
    pub connections: Vec<Flow>,
}

impl Snapshot {
    /// Keeps only the connections that `filter` accepts.
    pub fn retain(&mut self, filter: &Filter) {
        self.connections.retain(|flow| filter.admits(flow));
    }
}

/// A filter for connections. It accepts those that match all criteria that are set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// Names of program files.
    pub programs: Vec<String>,
    pub pids: Vec<u32>,
    /// Ports on either side.
    pub ports: Vec<u16>,
    pub peers: Vec<IpAddr>,
    pub direction: Option<Direction>,
    /// Bytes per second.
    pub least_rate: f64,
    /// Only connections of ropewalk programs.
    pub own: bool,
}

impl Filter {
    /// Whether the filter accepts this connection.
    pub fn admits(&self, flow: &Flow) -> bool {
        fn any<T>(wanted: &[T], is: impl Fn(&T) -> bool) -> bool {
            wanted.is_empty() || wanted.iter().any(is)
        }
        let owner = flow.owner.as_ref();
        any(&self.programs, |name| owner.is_some_and(|owner| owner.program == *name))
            && any(&self.pids, |&pid| owner.is_some_and(|owner| owner.pid == pid))
            && any(&self.ports, |&port| [flow.local.port(), flow.remote.port()].contains(&port))
            && any(&self.peers, |peer| flow.remote.ip() == *peer)
            && self.direction.is_none_or(|direction| flow.direction == direction)
            && (!self.own || flow.own)
            && flow.bytes_per_second >= self.least_rate
    }
}
