//! TCP_INFO. The struct has grown with the kernel; a field that an older kernel does not have is
//! `None`.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::{Limits, PathStats};

/// The kernel's statistics of one connection (tcp(7), TCP_INFO; RFC 4898 defines the fields that it
/// names).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time, and its variance.
    pub rtt: Duration,
    pub rtt_variance: Duration,
    pub min_rtt: Option<Duration>,
    /// The receiver's estimate of the round-trip time; zero if there is none.
    pub receiver_rtt: Duration,
    /// In segments of `mss` bytes.
    pub congestion_window: u32,
    pub slow_start_threshold: u32,
    /// The size of sent segments in bytes.
    pub mss: u32,
    pub path_mtu: u32,
    /// Segments in flight, and those of them that are considered lost.
    pub unacknowledged: u32,
    pub lost: u32,
    /// Retransmitted segments since the connection was made.
    pub retransmitted: u32,
    /// Segments sent and received since the connection was made, including those without data; then
    /// only those with data.
    pub segments_sent: Option<u32>,
    pub segments_received: Option<u32>,
    pub data_segments_sent: Option<u32>,
    pub data_segments_received: Option<u32>,
    /// Bytes per second; `u64::MAX` means no limit.
    pub pacing_rate: Option<u64>,
    /// Bytes per second as last measured by the sender. `application_limited` says whether the
    /// application limited that rate by too little data.
    pub delivery_rate: Option<u64>,
    pub application_limited: bool,
    /// Bytes since the connection was made.
    pub bytes_sent: Option<u64>,
    pub bytes_acknowledged: Option<u64>,
    pub bytes_received: Option<u64>,
    pub bytes_retransmitted: Option<u64>,
    /// Bytes in the send buffer that have not been sent yet.
    pub not_sent: Option<u32>,
    /// The time with data to send, and the parts of it in which the peer's window or this side's
    /// send buffer limited the rate.
    pub busy: Option<Duration>,
    pub receive_window_limited: Option<Duration>,
    pub send_buffer_limited: Option<Duration>,
    /// The peer's and this side's window, in bytes.
    pub send_window: Option<u32>,
    pub receive_window: Option<u32>,
    /// The receive buffer that autotuning considers necessary, in bytes.
    pub receive_space: u32,
    /// Segments that arrived out of order.
    pub out_of_order: Option<u32>,
    /// Reordering events that the sender detected.
    pub reordered: Option<u32>,
}

/// `struct tcp_info` of linux/tcp.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Raw {
    state: u8,
    ca_state: u8,
    retransmits: u8,
    probes: u8,
    backoff: u8,
    options: u8,
    window_scales: u8,
    flags: u8,
    rto: u32,
    ato: u32,
    snd_mss: u32,
    rcv_mss: u32,
    unacked: u32,
    sacked: u32,
    lost: u32,
    retrans: u32,
    fackets: u32,
    last_data_sent: u32,
    last_ack_sent: u32,
    last_data_recv: u32,
    last_ack_recv: u32,
    pmtu: u32,
    rcv_ssthresh: u32,
    rtt: u32,
    rttvar: u32,
    snd_ssthresh: u32,
    snd_cwnd: u32,
    advmss: u32,
    reordering: u32,
    rcv_rtt: u32,
    rcv_space: u32,
    total_retrans: u32,
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    segs_out: u32,
    segs_in: u32,
    notsent_bytes: u32,
    min_rtt: u32,
    data_segs_in: u32,
    data_segs_out: u32,
    delivery_rate: u64,
    busy_time: u64,
    rwnd_limited: u64,
    sndbuf_limited: u64,
    delivered: u32,
    delivered_ce: u32,
    bytes_sent: u64,
    bytes_retrans: u64,
    dsack_dups: u32,
    reord_seen: u32,
    rcv_ooopack: u32,
    snd_wnd: u32,
    rcv_wnd: u32,
    rehash: u32,
}

impl TcpInfo {
    /// Decodes a `struct tcp_info` from another source, such as sock_diag(7). It may be shorter
    /// than the current struct. Fields that even the oldest kernels have are 0 if `bytes` is too
    /// short for them.
    pub fn read(bytes: &[u8]) -> Self {
        let mut raw = Raw::default();
        let length = bytes.len().min(size_of::<Raw>());
        // SAFETY: `length` bytes can be read and written, and `Raw` is made of plain integers.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut raw).cast::<u8>(), length) };
        raw.told(length)
    }

    /// Queries the kernel; returns `None` if `socket` is not a TCP socket.
    pub fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        let mut raw = Raw::default();
        let mut length = size_of::<Raw>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `raw`, which is that long and made of
        // plain integers.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut raw).cast(),
                &raw mut length,
            )
        };
        (result == 0).then(|| raw.told(length as usize))
    }
}

/// The bytes in the send queue that the peer has not acknowledged (tcp(7), SIOCOUTQ). `None` if
/// `socket` is not a connected TCP socket.
pub(crate) fn unacknowledged_bytes(socket: BorrowedFd<'_>) -> Option<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one int to `bytes`. TIOCOUTQ is the number of SIOCOUTQ.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { u64::try_from(bytes).ok() } else { None }
}

impl From<&TcpInfo> for PathStats {
    /// Without the sizes of the buffers and the bytes in the send queue, which TCP_INFO does not
    /// have.
    fn from(info: &TcpInfo) -> Self {
        let some = |time: Duration| Some(time).filter(|time| !time.is_zero());
        Self {
            rtt: some(info.rtt),
            min_rtt: info.min_rtt,
            receiver_rtt: some(info.receiver_rtt),
            congestion_window: u64::from(info.congestion_window) * u64::from(info.mss),
            sent: info.data_segments_sent.unwrap_or(0).into(),
            retransmitted: info.retransmitted.into(),
            received: info.data_segments_received.unwrap_or(0).into(),
            out_of_order: info.out_of_order.unwrap_or(0).into(),
            delivered: info.bytes_acknowledged,
            delivery_rate: info.delivery_rate,
            in_flight: u64::from(info.unacknowledged) * u64::from(info.mss),
            not_sent: info.not_sent.unwrap_or(0).into(),
            unacknowledged: None,
            limits: Limits {
                busy: info.busy.unwrap_or_default(),
                receive_window: info.receive_window_limited.unwrap_or_default(),
                send_buffer: info.send_buffer_limited.unwrap_or_default(),
            },
            send_window: info.send_window,
            receive_window: info.receive_window,
            send_buffer: None,
            receive_buffer: None,
        }
    }
}

impl Raw {
    /// Converts the first `length` bytes.
    fn told(&self, length: usize) -> TcpInfo {
        macro_rules! newer {
            ($field:ident) => {
                (length >= std::mem::offset_of!(Raw, $field) + size_of_val(&self.$field))
                    .then_some(self.$field)
            };
        }
        let micros = |n: u32| Duration::from_micros(n.into());
        TcpInfo {
            rtt: micros(self.rtt),
            rtt_variance: micros(self.rttvar),
            // The largest value means that there is no measurement yet.
            min_rtt: newer!(min_rtt).filter(|&rtt| rtt != u32::MAX).map(micros),
            receiver_rtt: micros(self.rcv_rtt),
            congestion_window: self.snd_cwnd,
            slow_start_threshold: self.snd_ssthresh,
            mss: self.snd_mss,
            path_mtu: self.pmtu,
            unacknowledged: self.unacked,
            lost: self.lost,
            retransmitted: self.total_retrans,
            segments_sent: newer!(segs_out),
            segments_received: newer!(segs_in),
            data_segments_sent: newer!(data_segs_out),
            data_segments_received: newer!(data_segs_in),
            pacing_rate: newer!(pacing_rate),
            delivery_rate: newer!(delivery_rate),
            application_limited: self.flags & 1 != 0,
            bytes_sent: newer!(bytes_sent),
            bytes_acknowledged: newer!(bytes_acked),
            bytes_received: newer!(bytes_received),
            bytes_retransmitted: newer!(bytes_retrans),
            not_sent: newer!(notsent_bytes),
            busy: newer!(busy_time).map(Duration::from_micros),
            receive_window_limited: newer!(rwnd_limited).map(Duration::from_micros),
            send_buffer_limited: newer!(sndbuf_limited).map(Duration::from_micros),
            send_window: newer!(snd_wnd),
            receive_window: newer!(rcv_wnd),
            receive_space: self.rcv_space,
            out_of_order: newer!(rcv_ooopack),
            reordered: newer!(reord_seen),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_has_the_layout_of_the_kernel() {
        assert_eq!(std::mem::offset_of!(Raw, total_retrans), 100);
        assert_eq!(std::mem::offset_of!(Raw, delivery_rate), 160);
        assert_eq!(std::mem::offset_of!(Raw, bytes_sent), 200);
        assert_eq!(size_of::<Raw>(), 240);
    }

    #[test]
    fn told_with_short_struct_leaves_later_fields_none() {
        let raw = Raw { rtt: 1500, min_rtt: 7, ..Raw::default() };
        let info = raw.told(148);
        assert_eq!(info.rtt, Duration::from_micros(1500));
        assert_eq!(info.min_rtt, None);
        assert_eq!(info.not_sent, Some(0));
        assert_eq!(raw.told(240).min_rtt, Some(Duration::from_micros(7)));
    }
}
