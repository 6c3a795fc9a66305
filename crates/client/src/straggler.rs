//! Detects a session that delays the end of a file.
//!
//! Sessions with servers that cannot change the streams of a running transfer (GCT's) move ranges
//! of a big file side by side. Near the end one of them may need many seconds for its range, while
//! the others have no work left. No command takes a part of a range back from a session, so the
//! session is closed, and the others move the missing data. The module has no clock: the caller
//! passes the time, and the number of idle sessions.

use std::time::{Duration, Instant};

/// The rate of a session is measured over this time, and over at least this many round trips.
const SPAN: Duration = Duration::from_secs(1);
const SPAN_ROUND_TRIPS: u32 = 4;
/// The number of round trips until another session moves the range: a command, and connections that
/// have to grow again.
const START_ROUND_TRIPS: u32 = 8;
/// The session must need this many times as long as other sessions would, because data that is in
/// flight is sent again.
const GAIN: f64 = 1.5;
/// The sessions that take over divide the missing data into chunks of at least this many bytes.
const LEAST_PART: f64 = 524_288.0;
/// A session that needs no longer than this, in seconds, is left to finish.
const SHORT: f64 = 1.5;

/// Sessions that have no work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    pub sessions: usize,
    /// Bytes per second of each.
    pub rate: f64,
}

/// Follows one transfer of a range.
#[derive(Debug)]
pub(crate) struct Straggler {
    /// The number of bytes that the session has to move when the transfer starts.
    left: u64,
    rtt: Duration,
    since: Instant,
    bytes: u64,
}

impl Straggler {
    /// Observes a transfer in which the session has to move `left` bytes from `now` on.
    pub(crate) fn new(left: u64, rtt: Duration, now: Instant) -> Self {
        Self { left, rtt, since: now, bytes: 0 }
    }

    /// Whether other sessions should take over the missing data. `bytes` have arrived in this
    /// transfer. `idle` is called only if the session may be slow; it returns `None` if nothing is
    /// known of other sessions.
    pub(crate) fn should_yield(
        &mut self,
        now: Instant,
        bytes: u64,
        idle: impl FnOnce() -> Option<Idle>,
    ) -> bool {
        let span = now.saturating_duration_since(self.since);
        if span < SPAN.max(SPAN_ROUND_TRIPS * self.rtt) {
            return false;
        }
        let rate = bytes.saturating_sub(self.bytes) as f64 / span.as_secs_f64();
        (self.since, self.bytes) = (now, bytes);
        let left = self.left.saturating_sub(bytes) as f64;
        let here = left / rate;
        let start = (START_ROUND_TRIPS * self.rtt).as_secs_f64();
        // There may be no missing data, or no data may have arrived.
        if left <= 0.0 || here <= SHORT.max(GAIN * start) {
            return false;
        }
        let Some(Idle { sessions, rate }) = idle() else { return false };
        let sessions = (sessions as f64).min((left / LEAST_PART).ceil());
        here > GAIN * (start + left / (rate * sessions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(50);

    /// A session with 10 MB to move, of which `arrived` bytes have arrived after two seconds,
    /// beside others with 1 MB/s.
    fn yields(arrived: u64, sessions: usize) -> bool {
        let start = Instant::now();
        let mut straggler = Straggler::new(10_000_000, RTT, start);
        let idle = |sessions| Some(Idle { sessions, rate: 1e6 });
        assert!(!straggler.should_yield(start + Duration::from_millis(900), 1, || idle(100)));
        straggler.should_yield(start + Duration::from_secs(2), arrived, || idle(sessions))
    }

    #[test]
    fn slow_session_beside_idle_ones_yields() {
        assert!(yields(200_000, 1) && !yields(200_000, 0));
        // No data has arrived.
        assert!(yields(0, 1));
    }

    #[test]
    fn session_as_fast_as_one_other_yields_to_several() {
        assert!(!yields(2_000_000, 1) && !yields(2_000_000, 0));
        assert!(yields(2_000_000, 5));
    }

    #[test]
    fn session_that_ends_soon_stays() {
        assert!(!yields(9_990_000, 9) && !yields(10_000_000, 9) && !yields(u64::MAX, 9));
    }

    #[test]
    fn unknown_rate_of_others_is_no_reason_to_yield() {
        let at = |idle: Option<Idle>| {
            let start = Instant::now();
            let mut straggler = Straggler::new(10_000_000, RTT, start);
            straggler.should_yield(start + Duration::from_secs(2), 5, || idle)
        };
        assert!(!at(None) && !at(Some(Idle { sessions: 9, rate: 0.0 })));
    }
}
