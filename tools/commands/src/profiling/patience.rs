//! Time limits of waiting for another host, which may have stopped answering.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_client::Cancel;

/// Interval of checks for the user's wish to stop.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// A time limit, which is replaced by a shorter one once the user wants to stop.
#[derive(Clone, Debug)]
pub(super) struct Patience {
    limit: Duration,
    stop: Cancel,
    grace: Duration,
}

/// An operation in progress.
pub(super) struct Tried<'p> {
    patience: &'p Patience,
    deadline: Instant,
    stopped: bool,
}

impl Patience {
    pub(super) fn new(limit: Duration, stop: &Cancel, grace: Duration) -> Self {
        Self { limit, stop: stop.clone(), grace }
    }

    pub(super) fn begin(&self) -> Tried<'_> {
        Tried { patience: self, deadline: Instant::now() + self.limit, stopped: false }
    }

    /// Runs `work`, which `own` cancels, and cancels it at the time limit.
    pub(super) fn within<T>(&self, own: &Cancel, work: impl FnOnce() -> T) -> T {
        thread::scope(|scope| {
            let (done, ended) = mpsc::channel::<()>();
            scope.spawn(move || {
                let mut tried = self.begin();
                while !tried.is_over() {
                    if ended.recv_timeout(tried.step()) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
                own.cancel();
            });
            let result = work();
            drop(done);
            result
        })
    }

    /// The message after the time limit.
    pub(super) fn words(&self) -> String {
        if self.stop.is_cancelled() {
            "cancelled: it did not answer in time".to_owned()
        } else {
            format!("it did not answer within {} seconds", self.limit.as_secs_f64())
        }
    }
}

impl Tried<'_> {
    /// How long to wait until the next check.
    pub(super) fn step(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now()).min(LOOK)
    }

    pub(super) fn is_over(&mut self) -> bool {
        let now = Instant::now();
        if !self.stopped && self.patience.stop.is_cancelled() {
            self.stopped = true;
            self.deadline = self.deadline.min(now + self.patience.grace);
        }
        now >= self.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(1000);

    #[test]
    fn limit_is_shortened_by_a_request_to_stop() {
        let stop = Cancel::new();
        assert!(!Patience::new(LONG, &stop, Duration::ZERO).begin().is_over());
        assert!(Patience::new(Duration::ZERO, &stop, LONG).begin().is_over());
        stop.cancel();
        assert!(Patience::new(LONG, &stop, Duration::ZERO).begin().is_over());
        let graceful = Patience::new(LONG, &stop, LONG);
        assert!(!graceful.begin().is_over());
    }

    #[test]
    fn work_within_the_limit_is_not_cancelled() {
        let (own, stop) = (Cancel::new(), Cancel::new());
        assert_eq!(Patience::new(LONG, &stop, LONG).within(&own, || 7), 7);
        assert!(!own.is_cancelled());
        // It waits only for its cancellation.
        stop.cancel();
        Patience::new(LONG, &stop, Duration::ZERO).within(&own, || {
            while !own.is_cancelled() {
                thread::yield_now();
            }
        });
    }
}
