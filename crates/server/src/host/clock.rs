//! The clock of reservations, which begin and end at whole seconds since 1970.
//!
//! A second counts from its beginning ([`now`]). A time from now ends with the first whole second
//! that is not before it ([`after`]), so that no reservation ends before its time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ropewalk_protocol::slots::whole_seconds;

/// The time since 1970.
pub(crate) fn clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Whole seconds since 1970 that have begun.
pub(crate) fn now() -> u64 {
    clock().as_secs()
}

/// The first whole second since 1970 that is not before so many seconds after `clock`. The begun
/// second would be up to one second before that.
pub(crate) fn after(clock: Duration, seconds: u64) -> u64 {
    whole_seconds(clock).saturating_add(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_from_now_is_never_over_early() {
        for (ms, end) in [(10_000, 15), (10_001, 16), (10_999, 16), (11_000, 16)] {
            assert_eq!(after(Duration::from_millis(ms), 5), end, "{ms} ms");
        }
        assert_eq!(after(Duration::from_millis(1), u64::MAX), u64::MAX);
    }
}
