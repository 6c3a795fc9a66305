//! Refused data connections in the log of the process.
//!
//! A port scan makes thousands of them. Each is logged at the level of debugging. The first is a
//! warning, and then there is at most one warning a minute, with the number of all since the last
//! one. Any thread may report a refusal.

use std::fmt::Display;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The least time between two warnings.
const PAUSE: Duration = Duration::from_secs(60);

static REFUSALS: Mutex<Refusals> = Mutex::new(Refusals::new());

/// Logs that a data connection was closed because its peer is not the expected one, or has not
/// proved to be.
pub fn refused(peer: impl Display, reason: impl Display) {
    tracing::debug!(%peer, %reason, "refused a data connection");
    if let Some(count) = REFUSALS.lock().add(Instant::now()) {
        tracing::warn!(count, last = %peer, %reason, "refused data connections");
    }
}

/// Logs those that are not in a warning yet, if it is time for the next one. Transfers call this
/// several times a second, so that the end of a scan is logged, too.
pub fn log_refused() {
    if let Some(count) = REFUSALS.lock().due(Instant::now()) {
        tracing::warn!(count, "refused further data connections");
    }
}

struct Refusals {
    /// The time of the last warning.
    warned: Option<Instant>,
    /// Those since then.
    count: u64,
}

impl Refusals {
    const fn new() -> Self {
        Self { warned: None, count: 0 }
    }

    /// Counts one. Returns the number for a warning, if one is due.
    fn add(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        self.due(now)
    }

    fn due(&mut self, now: Instant) -> Option<u64> {
        let rests = self.warned.is_some_and(|warned| now.saturating_duration_since(warned) < PAUSE);
        if rests || self.count == 0 {
            return None;
        }
        self.warned = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_a_scan_are_warned_of_once_a_minute_with_their_number() {
        let (mut refusals, start) = (Refusals::new(), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!(refusals.due(start), None);
        assert_eq!(refusals.add(start), Some(1));
        for at in 1..=1000 {
            assert_eq!(refusals.add(start + second * at / 20), None);
        }
        assert_eq!(refusals.due(start + second * 59), None);
        // The scan is over, and the number is logged all the same.
        assert_eq!(refusals.due(start + second * 60), Some(1000));
        assert_eq!(refusals.due(start + second * 120), None);
        assert_eq!(refusals.add(start + second * 121), Some(1));
    }
}
