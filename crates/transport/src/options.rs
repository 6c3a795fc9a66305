//! The options of a driver, and those of them that can change while a connection is open.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::FlowLabel;

/// Options for the connections that a driver makes or accepts. A driver ignores those that do not
/// apply to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub tuning: Tuning,
    /// The range of local ports to choose from, inclusive; `None` for any port.
    pub ports: Option<(u16, u16)>,
    /// The local address to bind to.
    pub bind: Option<IpAddr>,
    /// The flow label of IPv6 connections that this end makes; `None` leaves it to the kernel.
    pub flow_label: Option<FlowLabel>,
    /// The local interface to bind to (socket(7), SO_BINDTODEVICE).
    pub interface: Option<String>,
    /// The largest packet in bytes, as the protocol of the driver counts it (`mss` of UDT).
    pub packet_size: Option<u32>,
    /// The most packets that the peer may have in flight (`fc` of UDT).
    pub packet_window: Option<u32>,
    /// The channel at a port that several channels share. Only drivers with
    /// [`Driver::shares_port`](crate::Driver::shares_port) look at it.
    pub token: Option<ChannelToken>,
    /// The task that the connection belongs to (SITE TASKID), for a manager of connections.
    pub task: Option<Arc<str>>,
}

/// Names one channel at a port that several channels share. It selects the channel, and proves
/// nothing: others can read it on the network.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChannelToken(pub [u8; Self::LENGTH]);

impl ChannelToken {
    /// In bytes.
    pub const LENGTH: usize = 16;
}

impl fmt::Debug for ChannelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChannelToken(***)")
    }
}

/// Hints for the speed of a connection, which can also change while it is open. `None` leaves a
/// setting to the driver, or as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// The buffers in bytes: SO_SNDBUF and SO_RCVBUF. `None` leaves the kernel's autotuning on, but
    /// connections within this host have [`LOCAL_BUFFER`](crate::LOCAL_BUFFER) if both are `None`.
    pub send_buffer: Option<usize>,
    pub receive_buffer: Option<usize>,
    /// TCP_CONGESTION. If the host does not have or does not allow this congestion control, a
    /// warning is logged and the connection uses the host's default; see
    /// [`congestion`](crate::congestion). `None` is the host's default, but Reno for connections to
    /// this host and for listeners on loopback addresses.
    pub congestion: Option<String>,
    /// The most bytes that wait unsent in the kernel: a write waits while there are more (tcp(7),
    /// TCP_NOTSENT_LOWAT). Bytes in flight do not count.
    pub unsent_limit: Option<u32>,
    /// The most bytes per second that the connection sends, repeated ones included; `u64::MAX` for
    /// no bound. Only drivers with a congestion control of their own keep to it.
    pub most_rate: Option<u64>,
}

impl Tuning {
    /// Reads the options `sndbuf` and `rcvbuf` of a stack string, which are buffer sizes in bytes;
    /// 0 stands for the driver's default. Returns whether this was one of them, with a valid size.
    pub fn read_option(&mut self, key: &str, value: &[u8]) -> bool {
        let Some(bytes) = str::from_utf8(value).ok().and_then(|text| text.parse().ok()) else { return false };
        let size = Some(bytes).filter(|bytes| *bytes > 0);
        match key {
            "sndbuf" => self.send_buffer = size,
            "rcvbuf" => self.receive_buffer = size,
            _ => return false,
        }
        true
    }
}
