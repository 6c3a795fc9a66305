//! `struct tcp_info` of linux/tcp.h. It has grown over time: what a kernel does not tell is 0.

use crate::netlink::{u32_at, u64_at};

/// What the kernel counts for a connection. Times are in microseconds, amounts in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TcpInfo {
    /// The sender had less to send than it could have sent, when the rate was last measured.
    pub(crate) application_limited: bool,
    pub(crate) mss: u32,
    /// Segments that are not acknowledged.
    pub(crate) unacked: u32,
    pub(crate) rtt: u32,
    /// Congestion window in segments.
    pub(crate) cwnd: u32,
    /// The receiver's estimate of the round trip; 0 if it has none.
    pub(crate) receive_rtt: u32,
    /// What the receiving program took in a round trip, as autotuning measures it.
    pub(crate) receive_space: u32,
    pub(crate) acked: u64,
    pub(crate) received: u64,
    pub(crate) unsent: u32,
    pub(crate) delivery_rate: u64,
    /// Time in which the peer's window held the sender up.
    pub(crate) limited_by_peer: u64,
    /// Time in which the send buffer held the sender up.
    pub(crate) limited_by_buffer: u64,
    /// The window that the peer grants.
    pub(crate) peer_window: u32,
}

impl TcpInfo {
    pub(crate) fn read(info: &[u8]) -> Self {
        Self {
            application_limited: info.get(7).is_some_and(|bits| bits & 1 != 0),
            mss: u32_at(info, 16),
            unacked: u32_at(info, 24),
            rtt: u32_at(info, 68),
            cwnd: u32_at(info, 80),
            receive_rtt: u32_at(info, 92),
            receive_space: u32_at(info, 96),
            acked: u64_at(info, 120),
            received: u64_at(info, 128),
            unsent: u32_at(info, 144),
            delivery_rate: u64_at(info, 160),
            limited_by_peer: u64_at(info, 176),
            limited_by_buffer: u64_at(info, 184),
            peer_window: u32_at(info, 228),
        }
    }
}
