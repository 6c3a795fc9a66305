//! Pauses between tries: exponential, with jitter, so that many clients do not return at once.

use std::time::Duration;

const LONGEST: Duration = Duration::from_secs(60);

/// The pause before try `number` (the first one after a failure is 1): `first` doubled each time,
/// at most a minute (unless the first one is longer), minus a random part of up to half of it.
pub(crate) fn pause(first: Duration, number: u32) -> Duration {
    pause_with(first, number, fastrand::u64(..))
}

/// The shortest pause that [`pause`] returns.
pub(crate) fn least(first: Duration, number: u32) -> Duration {
    pause_with(first, number, u64::MAX)
}

fn pause_with(first: Duration, number: u32, chance: u64) -> Duration {
    let full = first.saturating_mul(1 << number.saturating_sub(1).min(16)).min(LONGEST.max(first));
    full.mul_f64(1.0 - (chance as f64 / u64::MAX as f64) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_a_minute() {
        let first = Duration::from_secs(1);
        assert_eq!(pause_with(first, 1, 0), first);
        assert_eq!(pause_with(first, 4, 0), Duration::from_secs(8));
        assert_eq!(pause_with(first, 40, 0), LONGEST);
        assert_eq!(pause_with(first, 40, u64::MAX), LONGEST / 2);
        let long = Duration::from_secs(600);
        assert_eq!((pause_with(long, 1, 0), pause_with(long, 9, 0)), (long, long));
    }

    #[test]
    fn stays_within_half_and_whole() {
        for number in 1..10 {
            let whole = pause_with(Duration::from_millis(100), number, 0);
            let p = pause(Duration::from_millis(100), number);
            assert!(p <= whole && p >= whole / 2, "{p:?}");
            assert_eq!(least(Duration::from_millis(100), number), whole / 2);
        }
    }
}
