//! Decides whether a transfer is broken off because a data node has joined the server.
//!
//! A session whose server reports a new node replaces its data channel. It does so between two
//! files if the transfers that it has requested end soon. Otherwise it breaks the transfer off, and
//! another session moves the missing data over a channel of its own: that costs a log-in, the
//! growth of new connections, and the data in flight. The module has no clock: the caller passes
//! the time.

use std::time::{Duration, Instant};

/// The rate of a transfer is not known before.
const SPAN: Duration = Duration::from_millis(500);
/// Transfers that take no longer than this, or than so many round trips, are left to finish.
const SOON: Duration = Duration::from_secs(2);
const SOON_ROUND_TRIPS: u32 = 20;

/// Follows one transfer.
#[derive(Debug)]
pub(crate) struct Renewal {
    /// The number of bytes that the session has to move when the transfer starts, for this file and
    /// for those behind it.
    left: u64,
    soon: Duration,
    since: Instant,
}

impl Renewal {
    /// Observes a session that has to move `left` bytes from `now` on.
    pub(crate) fn new(left: u64, rtt: Duration, now: Instant) -> Self {
        Self { left, soon: SOON.max(SOON_ROUND_TRIPS * rtt), since: now }
    }

    /// Whether the missing data takes so long that the transfer is to be broken off. `arrived`
    /// bytes have moved in it.
    pub(crate) fn is_due(&self, now: Instant, arrived: u64) -> bool {
        let span = now.saturating_duration_since(self.since);
        let left = self.left.saturating_sub(arrived);
        // left / (arrived / span) > soon, also if nothing has arrived.
        let time = left as f64 * span.as_secs_f64();
        span >= SPAN && time > self.soon.as_secs_f64() * arrived as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(40);

    /// After a second, of 10 MB.
    fn due(arrived: u64, rtt: Duration) -> bool {
        let start = Instant::now();
        let renewal = Renewal::new(10_000_000, rtt, start);
        assert!(!renewal.is_due(start + Duration::from_millis(400), 1));
        renewal.is_due(start + Duration::from_secs(1), arrived)
    }

    #[test]
    fn transfer_that_takes_long_is_broken_off_and_one_that_ends_soon_is_not() {
        assert!(due(3_000_000, RTT) && !due(4_000_000, RTT));
        assert!(due(0, RTT) && !due(10_000_000, RTT) && !due(u64::MAX, RTT));
    }

    #[test]
    fn transfer_over_a_long_path_gets_more_time_because_a_new_session_needs_it() {
        assert!(!due(3_000_000, Duration::from_millis(300)));
        assert!(due(1_000_000, Duration::from_millis(300)));
    }
}
