//! What the analyzer says.

use std::net::{IpAddr, SocketAddr};

use ropewalk_transport::Ceilings;
use serde::Serialize;

/// Version of the JSON that [`Snapshot`] becomes. It grows when a field changes its meaning or goes, not when one is added.
pub const SCHEMA: u32 = 1;

/// Where most of a connection's data goes, and so which of its buffers matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Away from this host: the send buffer.
    Out,
    /// To this host: the receive buffer.
    In,
}

/// What kept a sender from sending more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitedBy {
    /// Its send buffer, for at least a tenth of the time.
    Buffer,
    /// The peer's window, for at least a tenth of the time.
    Peer,
    /// The program had nothing to send.
    Application,
    /// The congestion window.
    Network,
    /// A receiver cannot tell, and who moves nothing is not limited.
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

    /// The other one.
    pub(crate) fn opposite(self) -> Self {
        match self {
            Self::Out => Self::In,
            Self::In => Self::Out,
        }
    }
}

impl LimitedBy {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Buffer, Self::Peer, Self::Application, Self::Network, Self::Unknown];

    /// As in JSON.
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

/// Who has a socket open. If there are several, the one that was found first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Owner {
    pub pid: u32,
    /// Its file descriptor there.
    pub descriptor: i32,
    /// Name of the program file.
    pub program: String,
}

/// A connection and its buffer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flow {
    /// The kernel's number of the socket, which no later socket gets.
    pub cookie: u64,
    pub inode: u32,
    pub direction: Direction,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// `None` if nobody has it open, or that may not be known.
    pub owner: Option<Owner>,
    /// Whether it belongs to a ropewalk program.
    pub own: bool,
    pub congestion: String,
    /// Payload, in `direction`.
    pub bytes_per_second: f64,
    /// Smoothed round trip time.
    pub rtt_seconds: f64,
    /// The congestion window, or what a receiver takes in a round trip.
    pub window_bytes: u64,
    /// Size of the buffer, as the kernel counts.
    pub kernel_buffer_bytes: u64,
    /// What is in it, as the kernel counts.
    pub kernel_queued_bytes: u64,
    pub limited_by: LimitedBy,
    /// Buffer that it could use, payload. 0 if it moves nothing.
    pub demand_bytes: u64,
    /// What is left after this look of what it asked for when it was given less, payload.
    #[serde(skip)]
    pub past_demand_bytes: Option<u64>,
}

/// All connections at a moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Snapshot {
    /// Unix time.
    pub time_seconds: f64,
    /// Over which rates were measured. Absent at the first look: rates are then the kernel's estimates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_seconds: Option<f64>,
    #[serde(skip)]
    pub ceilings: Ceilings,
    /// Whether all connections are here: the list did not change while the kernel made it.
    #[serde(skip)]
    pub whole: bool,
    pub connections: Vec<Flow>,
}

impl Snapshot {
    /// Keeps the connections that `filter` admits.
    pub fn retain(&mut self, filter: &Filter) {
        self.connections.retain(|flow| filter.admits(flow));
    }
}

/// Which connections count. Those that match every criterion that is given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// Names of program files.
    pub programs: Vec<String>,
    pub pids: Vec<u32>,
    /// On either side.
    pub ports: Vec<u16>,
    pub peers: Vec<IpAddr>,
    pub direction: Option<Direction>,
    /// Bytes a second.
    pub least_rate: f64,
    /// Of ropewalk programs only.
    pub own: bool,
}

impl Filter {
    /// Whether it counts.
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
