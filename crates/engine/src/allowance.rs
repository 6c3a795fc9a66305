//! The bytes that another process grants to a data channel.
//!
//! A [`GrantedRate`] has the lock around an [`Allowance`]. Streams take bytes before they move
//! them, and wait for a grant if none are left. The thread that has the connection to the payer
//! brings grants, and takes the reports; streams wake it when a report is due.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use ropewalk_limits::{Allowance, Grant, Spent};

/// A waiting stream looks after this time whether the transfer has stopped.
const LOOK: Duration = Duration::from_millis(50);

/// See the module.
pub struct GrantedRate {
    allowance: Mutex<Allowance>,
    granted: Condvar,
    /// There will be no more grants.
    ended: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl GrantedRate {
    /// Nothing may be moved before the first grant. `wake` is called by streams when
    /// [`Self::report`] has a report.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            allowance: Mutex::new(Allowance::new()),
            granted: Condvar::new(),
            ended: AtomicBool::new(false),
            wake: Box::new(wake),
        }
    }

    /// Takes a grant of the payer.
    pub fn grant(&self, grant: &Grant) {
        self.allowance.lock().grant(grant);
        self.granted.notify_all();
    }

    /// The report that is due.
    pub fn report(&self) -> Option<Spent> {
        self.allowance.lock().report()
    }

    /// See [`Allowance::look`].
    pub fn look(&self) -> Option<Spent> {
        self.allowance.lock().look()
    }

    /// A transfer has ended. Returns the report with which the bytes that are left are returned.
    pub fn end_transfer(&self) -> Option<Spent> {
        self.allowance.lock().end()
    }

    /// The payer is gone. If a limit holds, the transfer fails.
    pub fn close(&self) {
        if self.allowance.lock().is_limited() {
            self.ended.store(true, Ordering::Relaxed);
        }
        self.granted.notify_all();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Takes up to `most` bytes, and waits for them until the transfer is `stopping`. Returns how
    /// long that took, too.
    pub(crate) fn take(&self, most: u64, stopping: impl Fn() -> bool) -> Option<(u64, Duration)> {
        let mut allowance = self.allowance.lock();
        let mut began = None;
        loop {
            let taken = allowance.take(most);
            if allowance.is_report_due() {
                (self.wake)();
            }
            if let Some(taken) = taken {
                return Some((taken, began.map_or(Duration::ZERO, |began: Instant| began.elapsed())));
            }
            if stopping() {
                return None;
            }
            began.get_or_insert_with(Instant::now);
            self.granted.wait_for(&mut allowance, LOOK);
        }
    }

    /// Of `taken` bytes, `moved` were moved.
    pub(crate) fn moved(&self, taken: u64, moved: u64) {
        self.allowance.lock().moved(taken, moved);
    }
}

impl fmt::Debug for GrantedRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.allowance.lock().fmt(f)
    }
}
