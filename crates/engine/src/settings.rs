//! The settings of a data channel.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_protocol::server::{Mode, RepresentationType};
use ropewalk_transport::Options;

use crate::Bandwidth;

/// What holds for every transfer over a data channel.
#[derive(Clone, Debug)]
pub struct ChannelSettings {
    pub mode: Mode,
    pub representation: RepresentationType,
    /// Streams in MODE E at first, see [`DataChannel::parallelism`]; at least 1. Where the receiver connects, both ends
    /// must have agreed on it: the first transfer fails where fewer connections come.
    pub parallelism: u32,
    /// Payload bytes of a MODE E block that we send.
    pub block_size: usize,
    pub options: Options,
    /// How long to wait for the first connection, made or accepted.
    pub connect_timeout: Duration,
    /// Break off when no byte moved for so long.
    pub stall_timeout: Option<Duration>,
    /// Most streams that a receiver takes data from at a time. Others, up to 128 connections in all, wait until one of those
    /// has ended; more end the transfer with an error.
    pub max_streams: u32,
    /// Accept data connections only from this address; others are closed at once and do no harm.
    pub only_from: Option<IpAddr>,
    /// What this channel and all others that share it keep to.
    pub bandwidth: Option<Arc<Bandwidth>>,
}
