//! Bytes of one file that its destination has.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The bytes of one file that count as being at its destination, through one beginning of it: when it begins anew,
/// they do not count any more, whoever is still busy with them.
#[derive(Debug, Default)]
pub(crate) struct Account {
    balance: Mutex<Balance>,
    /// Bytes that count in the plan: the file's size may be learnt, or lose its meaning, later.
    planned: AtomicU64,
    /// Of another try than the first.
    again: bool,
}

#[derive(Debug, Default)]
struct Balance {
    bytes: i64,
    closed: bool,
}

impl Account {
    /// As it was planned, for another beginning of the file; `again`: this is not the first try.
    pub(crate) fn anew(&self, again: bool) -> Self {
        Self { again, planned: self.planned().into(), ..Self::default() }
    }

    /// Bytes that count in the plan.
    pub(crate) fn planned(&self) -> u64 {
        self.planned.load(Ordering::Relaxed)
    }

    /// Whether this is another try than the first.
    pub(crate) fn is_again(&self) -> bool {
        self.again
    }

    /// So many bytes count in the plan.
    pub(crate) fn plan(&self, bytes: u64) {
        self.planned.store(bytes, Ordering::Relaxed);
    }

    /// Closes it; gives what was in it.
    pub(crate) fn close(&self) -> i64 {
        let mut balance = self.balance.lock();
        balance.closed = true;
        std::mem::take(&mut balance.bytes)
    }

    /// `false` where it is closed.
    pub(crate) fn add(&self, bytes: i64) -> bool {
        let mut balance = self.balance.lock();
        balance.bytes = balance.bytes.saturating_add(if balance.closed { 0 } else { bytes });
        !balance.closed
    }
}
