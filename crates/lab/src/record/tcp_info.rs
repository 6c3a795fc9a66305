//! `struct tcp_info` of linux/tcp.h. It has grown over time: what a kernel does not tell is 0.

use crate::results::TcpSample;

pub(super) fn parse(info: &[u8]) -> TcpSample {
    let u32_at = |at: usize| {
        info.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
    };
    let u64_at = |at: usize| {
        info.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
    };
    let micros = |value: u64| value as f64 / 1e6;
    let min_rtt = u32_at(148);
    let pacing = u64_at(104);
    TcpSample {
        rtt: micros(u32_at(68).into()),
        rtt_var: micros(u32_at(72).into()),
        // All ones: not measured yet.
        rtt_min: if min_rtt == u32::MAX { 0.0 } else { micros(min_rtt.into()) },
        cwnd: u32_at(80),
        ssthresh: u32_at(76),
        mss: u32_at(16),
        retransmitted: u32_at(100),
        lost: u32_at(32),
        unacked: u32_at(24),
        acked: u64_at(120),
        received: u64_at(128),
        sent: u64_at(200),
        delivery_rate: u64_at(160) as f64 * 8.0,
        pacing_rate: if pacing == u64::MAX { 0.0 } else { pacing as f64 * 8.0 },
        busy: micros(u64_at(168)),
        limited_receiver: micros(u64_at(176)),
        limited_sender: micros(u64_at(184)),
        unsent: u32_at(144).into(),
        send_window: u32_at(228),
        receive_space: u32_at(96),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_answers_of_older_kernels_are_read_as_far_as_they_go() {
        let mut info = vec![0; 104];
        info[68..72].copy_from_slice(&100_500u32.to_ne_bytes());
        info[80..84].copy_from_slice(&10u32.to_ne_bytes());
        let sample = parse(&info);
        assert_eq!((sample.rtt, sample.cwnd, sample.sent), (0.1005, 10, 0));
        assert_eq!(parse(&[]), TcpSample::default());
    }
}
