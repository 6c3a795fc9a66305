//! Tries of a file. Sessions that work on its ranges fail together when a server goes: that is one
//! try, not one for each. A try that made progress is no failure of the file: count and pause
//! restart after it.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::model::backoff::least;

/// A try that moved at least this many bytes is followed by the next one at once. Otherwise there
/// is a pause: a server that closes connections after a few bytes must not be asked for a large
/// file as fast as it answers.
const WORTH: u64 = 256 << 10;

/// The tries of a file so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tried {
    /// All failed tries.
    pub total: u32,
    /// Failed tries since the last progress.
    pub failed: u32,
    /// When the first of these failed.
    pub first: Option<Instant>,
    /// The most bytes that its destination had: bytes that come a second time are no progress.
    reached: u64,
    /// The last try moved enough to be followed by the next one at once.
    pub at_once: bool,
}

impl Tried {
    /// Counts a failure, when `present` bytes are at the destination.
    pub(crate) fn count(&mut self, now: Instant, present: u64) {
        self.reaches(present);
        self.total = self.total.saturating_add(1);
        self.failed = self.failed.saturating_add(1);
        self.first.get_or_insert(now);
    }

    fn reaches(&mut self, present: u64) {
        let brought = present.saturating_sub(self.reached);
        self.at_once = brought >= WORTH;
        if brought > 0 {
            self.reached = present;
            (self.failed, self.first) = (0, None);
        }
    }

    /// When the first counted try failed.
    pub(crate) fn first(&self) -> Instant {
        self.first.unwrap_or_else(Instant::now)
    }
}

#[derive(Debug)]
pub(crate) struct Tries(Mutex<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    tried: Tried,
    /// Nothing is retried until then.
    pause: Option<Instant>,
}

impl Tries {
    /// After the tries in `tried`, with `present` bytes at the destination.
    pub(crate) fn new(tried: Tried, present: u64) -> Self {
        let tried = Tried { reached: tried.reached.max(present), ..tried };
        Self(Mutex::new(State { tried, pause: None }))
    }

    /// All failed tries.
    pub(crate) fn total(&self) -> u32 {
        self.0.lock().tried.total
    }

    /// Counts the failure of a range, when `present` bytes of the file were at the destination.
    /// `first`: the pause after the first failure.
    pub(crate) fn count(&self, first: Duration, present: u64) -> Tried {
        self.count_at(Instant::now(), first, present)
    }

    fn count_at(&self, now: Instant, first: Duration, present: u64) -> Tried {
        let mut state = self.0.lock();
        if state.pause.is_none_or(|until| now >= until) {
            state.tried.count(now, present);
            state.pause = now.checked_add(least(first, state.tried.failed));
        } else {
            state.tried.reaches(present);
            // The failure that was counted already is the first one again.
            if state.tried.failed == 0 {
                (state.tried.failed, state.tried.first) = (1, Some(now));
            }
        }
        state.tried
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_together_is_one_try() {
        let tries = Tries::new(Tried::default(), 0);
        let began = Instant::now();
        let fail =
            |ms| tries.count_at(began + Duration::from_millis(ms), Duration::from_millis(200), 0).failed;
        assert_eq!([fail(0), fail(1), fail(99)], [1, 1, 1]);
        // After the shortest pause it is another try, of any range.
        assert_eq!([fail(100), fail(110), fail(299), fail(300)], [2, 2, 2, 3]);
        assert_eq!(tries.total(), 3);
        // Without a pause, each counts.
        let later = began + Duration::from_secs(9);
        assert_eq!([(); 3].map(|()| tries.count_at(later, Duration::ZERO, 0).failed), [4, 5, 6]);
    }

    #[test]
    fn a_try_that_brought_the_file_on_starts_count_and_time_anew() {
        let tries = Tries::new(Tried::default(), 10);
        let began = Instant::now();
        let fail = |s, present| {
            let tried = tries.count_at(began + Duration::from_secs(s), Duration::from_secs(1), present);
            (tried.failed, tried.at_once, tried.first.map(|first| first.duration_since(began).as_secs()))
        };
        assert_eq!(fail(0, 10), (1, false, Some(0)));
        assert_eq!(fail(10, 10), (2, false, Some(0)));
        assert_eq!(fail(20, 11), (1, false, Some(20)));
        assert_eq!(fail(30, 11 + WORTH), (1, true, Some(30)));
        assert_eq!(fail(40, 11 + WORTH), (2, false, Some(30)));
        // Bytes that were lost and came again are no progress.
        assert_eq!(fail(60, 0), (3, false, Some(30)));
        assert_eq!(fail(80, 11 + WORTH), (4, false, Some(30)));
        assert_eq!(tries.total(), 7);
        // Another range fails at the same time, and had made progress.
        assert_eq!(fail(80, 12 + WORTH), (1, false, Some(80)));
        assert_eq!(tries.total(), 7);
    }

    #[test]
    fn a_file_that_begins_anew_has_to_get_further_than_before() {
        let began = Instant::now();
        let first = Tries::new(Tried::default(), 0);
        let tried = first.count_at(began, Duration::ZERO, 5 * WORTH);
        let second = Tries::new(tried, 0);
        assert_eq!(second.count_at(began, Duration::ZERO, 5 * WORTH).failed, 2);
        assert_eq!(second.count_at(began, Duration::ZERO, 5 * WORTH + 1).failed, 1);
    }
}
