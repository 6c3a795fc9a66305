//! Tries of a file. Sessions that work on ranges of it break together when a server goes: that is one try, not one for each.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::backoff::least;

#[derive(Debug)]
pub(crate) struct Tries(Mutex<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    failed: u32,
    /// Until then nothing was tried since the last one failed.
    pause: Option<Instant>,
}

impl Tries {
    /// So many have failed.
    pub(crate) fn new(failed: u32) -> Self {
        Self(Mutex::new(State { failed, pause: None }))
    }

    pub(crate) fn failed(&self) -> u32 {
        self.with(|state| state.failed)
    }

    /// A range failed; how many tries of the file have by now. `first`: the pause after the first of them.
    pub(crate) fn count(&self, first: Duration) -> u32 {
        self.count_at(Instant::now(), first)
    }

    fn count_at(&self, now: Instant, first: Duration) -> u32 {
        self.with(|state| {
            if state.pause.is_none_or(|until| now >= until) {
                state.failed += 1;
                state.pause = now.checked_add(least(first, state.failed));
            }
            state.failed
        })
    }

    fn with<T>(&self, take: impl FnOnce(&mut State) -> T) -> T {
        take(&mut self.0.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_together_is_one_try() {
        let tries = Tries::new(0);
        let began = Instant::now();
        let fail = |ms| tries.count_at(began + Duration::from_millis(ms), Duration::from_millis(200));
        assert_eq!([fail(0), fail(1), fail(99)], [1, 1, 1]);
        // After the shortest pause it is another one, whichever range it is of.
        assert_eq!([fail(100), fail(110), fail(299), fail(300)], [2, 2, 2, 3]);
        assert_eq!(tries.failed(), 3);
        // Where there is no pause, each counts.
        assert_eq!(
            [(); 3].map(|()| tries.count_at(began + Duration::from_secs(9), Duration::ZERO)),
            [4, 5, 6]
        );
    }
}
