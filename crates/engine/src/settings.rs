//! The settings of a data channel.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_protocol::server::{Mode, RepresentationType};
use ropewalk_transport::Options;

use crate::{Bandwidth, GrantedRate};

/// The settings of every transfer over a data channel.
#[derive(Clone, Debug)]
pub struct ChannelSettings {
    pub mode: Mode,
    pub representation: RepresentationType,
    /// The number of streams in MODE E at the start; at least 1. See
    /// [`DataChannel::parallelism`](crate::DataChannel::parallelism). If the receiver connects,
    /// both ends must have agreed on it: the first transfer fails if fewer connections come.
    pub parallelism: u32,
    /// Payload bytes of each MODE E block that this end sends.
    pub block_size: usize,
    /// The options of the driver for connections that this end makes.
    pub options: Options,
    /// The time limit of the first connection, made or accepted.
    pub connect_timeout: Duration,
    /// A transfer fails after this time without a moved byte.
    pub stall_timeout: Option<Duration>,
    /// The maximum number of streams that a receiver reads at a time from each sender. Further
    /// connections, up to 128 in all from each, wait until one of those streams has ended. More
    /// connections end the transfer with an error.
    pub max_streams: u32,
    /// The only address from which data connections are accepted. Others are closed at once, and do
    /// not affect the transfer.
    pub only_from: Option<IpAddr>,
    /// The limit on the rate of this channel together with all others that share it.
    pub bandwidth: Option<Arc<Bandwidth>>,
    /// The bytes that another process has granted to this channel.
    pub granted: Option<Arc<GrantedRate>>,
}
