//! The 115 markers with which a sender reports the path.

use std::time::{Duration, Instant};

use ropewalk_engine::{Flows, PathSample};
use ropewalk_protocol::marker::{LimitedBy, PathMarker};

/// The connections of a transfer that is being sent.
pub(super) struct PathWatch {
    flows: Flows,
    /// The values at the start of the transfer: the connections may have served other transfers
    /// before.
    base: PathSample,
    /// The values of the last marker.
    last: PathSample,
    at: Instant,
}

impl PathWatch {
    pub(super) fn new(flows: Flows) -> Self {
        let base = flows.path();
        Self { flows, last: base.clone(), base, at: Instant::now() }
    }

    /// The marker that is due now; `None` if there is no TCP connection.
    pub(super) fn marker(&mut self) -> Option<PathMarker> {
        let (now, sample) = (Instant::now(), self.flows.path());
        let marker = marker(&self.base, &self.last, &sample, now.duration_since(self.at));
        (self.last, self.at) = (sample, now);
        marker
    }
}

fn marker(base: &PathSample, last: &PathSample, now: &PathSample, elapsed: Duration) -> Option<PathMarker> {
    let rtt = now.rtt?;
    Some(PathMarker {
        rtt,
        min_rtt: now.min_rtt.map_or(rtt, |least| least.min(rtt)),
        retransmitted: now.retransmitted.saturating_sub(base.retransmitted),
        sent: now.segments_sent.saturating_sub(base.segments_sent),
        congestion_window: now.congestion_window,
        streams: now.streams,
        limited: limited(last, now, elapsed),
    })
}

/// The limit that took most of the time of all connections.
fn limited(last: &PathSample, now: &PathSample, elapsed: Duration) -> LimitedBy {
    let busy = now.busy.saturating_sub(last.busy);
    let receive_window = now.receive_window_limited.saturating_sub(last.receive_window_limited);
    let send_buffer = now.send_buffer_limited.saturating_sub(last.send_buffer_limited);
    let idle = elapsed.saturating_mul(now.streams).saturating_sub(busy);
    let congestion_window = busy.saturating_sub(receive_window).saturating_sub(send_buffer);
    // If times are equal, the order of what can be changed decides.
    let times = [
        (idle, LimitedBy::Application),
        (congestion_window, LimitedBy::CongestionWindow),
        (receive_window, LimitedBy::ReceiveWindow),
        (send_buffer, LimitedBy::SendBuffer),
    ];
    times.into_iter().max_by_key(|(time, _)| *time).map_or(LimitedBy::Application, |(_, limit)| limit)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn marker_reports_longest_limit() {
        let seconds = Duration::from_secs;
        let last =
            PathSample { busy: seconds(5), receive_window_limited: seconds(4), ..PathSample::default() };
        let limit = |busy: u64, receive_window: u64, send_buffer: u64| {
            let now = PathSample {
                streams: 2,
                busy: seconds(5 + busy),
                receive_window_limited: seconds(4 + receive_window),
                send_buffer_limited: seconds(send_buffer),
                ..PathSample::default()
            };
            limited(&last, &now, seconds(5))
        };
        assert_eq!(limit(10, 0, 0), LimitedBy::CongestionWindow);
        assert_eq!(limit(10, 6, 0), LimitedBy::ReceiveWindow);
        assert_eq!(limit(10, 1, 6), LimitedBy::SendBuffer);
        assert_eq!(limit(4, 0, 0), LimitedBy::Application);
    }

    #[test]
    fn marker_counts_from_start_of_transfer() {
        let base = PathSample { retransmitted: 3, segments_sent: 100, ..PathSample::default() };
        assert_eq!(marker(&base, &base, &base, Duration::ZERO), None);
        let now = PathSample {
            streams: 4,
            rtt: Some(Duration::from_millis(50)),
            min_rtt: Some(Duration::from_millis(40)),
            retransmitted: 5,
            segments_sent: 1100,
            congestion_window: 123,
            ..PathSample::default()
        };
        let told = marker(&base, &base, &now, Duration::from_secs(1)).unwrap();
        assert_eq!((told.retransmitted, told.sent, told.streams), (2, 1000, 4));
        assert_eq!((told.rtt.as_millis(), told.min_rtt.as_millis(), told.congestion_window), (50, 40, 123));
    }
}
