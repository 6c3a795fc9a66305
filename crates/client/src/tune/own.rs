//! The rate of one session.

use std::time::{Duration, Instant};

/// Weight of the last measurement.
const NEW: f64 = 0.5;

/// A running mean of a session's rate, including pauses.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// Bytes per second; `None` before the first measurement.
    pub(super) rate: Option<f64>,
    since: Option<Instant>,
    bytes: u64,
}

impl Own {
    /// Adds bytes that have arrived; updates the rate once `shortest` has passed.
    pub(super) fn add(&mut self, now: Instant, bytes: u64, shortest: Duration) {
        let Some(since) = self.since else {
            // The bytes before the first call came in an unknown time.
            self.since = Some(now);
            return;
        };
        self.bytes = self.bytes.saturating_add(bytes);
        let time = now.saturating_duration_since(since);
        if time < shortest {
            return;
        }
        let seen = self.bytes as f64 / time.as_secs_f64().max(1e-3);
        self.rate = Some(self.rate.map_or(seen, |rate| rate + NEW * (seen - rate)));
        (self.since, self.bytes) = (Some(now), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_known_after_a_while_and_follows() {
        let (began, shortest) = (Instant::now(), Duration::from_secs(2));
        let at = |ms| began + Duration::from_millis(ms);
        let mut own = Own::default();
        own.add(at(0), 1 << 30, shortest);
        own.add(at(1000), 1_000_000, shortest);
        assert_eq!(own.rate, None);
        own.add(at(2000), 1_000_000, shortest);
        assert_eq!(own.rate, Some(1e6));
        // A pause counts.
        own.add(at(12_000), 5_000_000, shortest);
        assert_eq!(own.rate, Some(0.75e6));
        // Also if the clock does not advance.
        own.add(at(12_000), 1, Duration::ZERO);
        assert!(own.rate.is_some_and(f64::is_finite));
    }
}
