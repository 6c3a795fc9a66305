//! TCP connections of a host of the lab, from the kernel's socket diagnostics (netlink).
//! Connections that end between two samples are reported with their final counters, so that no
//! bytes are missed.

use crate::results::TcpSample;
use ropewalk_netlink::{Connections, Destroyed, List, States};
use ropewalk_transport::TcpInfo;
use std::{io, net::SocketAddr, time::Duration};

/// Lists the sockets of one network namespace.
pub(crate) struct Diagnostics {
    connections: Connections,
    destroyed: Destroyed,
}

/// The state of a connection at one time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    /// The kernel's identifier of the socket, which differs for a later socket with the same
    /// addresses.
    pub(crate) cookie: u64,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) congestion: String,
    pub(crate) sample: TcpSample,
}

impl Diagnostics {
    /// Opens the sockets for the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { connections: Connections::open()?, destroyed: Destroyed::open()? })
    }

    /// Whether a socket listens at a port.
    pub(crate) fn listens(&mut self, port: u16) -> io::Result<bool> {
        self.connections.listens(port)
    }

    /// Calls `each` for every connection.
    pub(crate) fn connections(&mut self, mut each: impl FnMut(Seen)) -> io::Result<()> {
        self.connections.list(States::CONNECTED, |seen| each(seen.into())).map(drop)
    }

    /// Calls `each` for the connections that have ended since the last call, with their final
    /// state. Returns `Interrupted` if some were missed.
    pub(crate) fn gone(&mut self, mut each: impl FnMut(Seen)) -> io::Result<List> {
        self.destroyed.drain(|seen| each(seen.into()))
    }
}

impl From<ropewalk_netlink::Seen> for Seen {
    fn from(seen: ropewalk_netlink::Seen) -> Self {
        let sample = sample(&seen.info);
        Self {
            cookie: seen.cookie,
            local: seen.local,
            remote: seen.remote,
            congestion: seen.congestion,
            sample,
        }
    }
}

/// Values that the kernel does not report are 0.
fn sample(info: &TcpInfo) -> TcpSample {
    let time = |time: Option<Duration>| time.unwrap_or_default().as_secs_f64();
    let bits = |rate: Option<u64>| rate.unwrap_or(0) as f64 * 8.0;
    TcpSample {
        rtt: info.rtt.as_secs_f64(),
        rtt_var: info.rtt_variance.as_secs_f64(),
        rtt_min: time(info.min_rtt),
        cwnd: info.congestion_window,
        ssthresh: info.slow_start_threshold,
        mss: info.mss,
        retransmitted: info.retransmitted,
        lost: info.lost,
        unacked: info.unacknowledged,
        acked: info.bytes_acknowledged.unwrap_or(0),
        received: info.bytes_received.unwrap_or(0),
        sent: info.bytes_sent.unwrap_or(0),
        delivery_rate: bits(info.delivery_rate),
        pacing_rate: bits(info.pacing_rate.filter(|&rate| rate != u64::MAX)),
        busy: time(info.busy),
        limited_receiver: time(info.receive_window_limited),
        limited_sender: time(info.send_buffer_limited),
        unsent: info.not_sent.unwrap_or(0).into(),
        send_window: info.send_window.unwrap_or(0),
        receive_space: info.receive_space,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_info_of_older_kernels_is_read_as_far_as_it_goes() {
        let mut info = vec![0; 104];
        info[68..72].copy_from_slice(&100_500u32.to_ne_bytes());
        info[80..84].copy_from_slice(&10u32.to_ne_bytes());
        let told = sample(&TcpInfo::read(&info));
        assert_eq!((told.rtt, told.cwnd, told.sent), (0.1005, 10, 0));
        assert_eq!(sample(&TcpInfo::read(&[])), TcpSample::default());
    }
}
