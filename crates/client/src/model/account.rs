//! Counts the bytes of one file that its destination has.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The bytes of one file that count as present at its destination, since its last start. After a
/// restart from the beginning they no longer count, even if a worker still adds to them.
#[derive(Debug, Default)]
pub(crate) struct Account {
    balance: Mutex<Balance>,
    /// Bytes that count in the plan: the file's size may become known, or invalid, later.
    planned: AtomicU64,
    /// This is a retry.
    again: bool,
}

#[derive(Debug, Default)]
struct Balance {
    bytes: i64,
    closed: bool,
}

impl Account {
    /// A new account for a restart of the file, with the same plan; `again`: this is a retry.
    pub(crate) fn anew(&self, again: bool) -> Self {
        Self { again, planned: self.planned().into(), ..Self::default() }
    }

    /// Bytes that count in the plan.
    pub(crate) fn planned(&self) -> u64 {
        self.planned.load(Ordering::Relaxed)
    }

    /// Whether this is a retry.
    pub(crate) fn is_again(&self) -> bool {
        self.again
    }

    /// Sets the bytes that count in the plan.
    pub(crate) fn plan(&self, bytes: u64) {
        self.planned.store(bytes, Ordering::Relaxed);
    }

    /// Closes the account; returns its balance.
    pub(crate) fn close(&self) -> i64 {
        let mut balance = self.balance.lock();
        balance.closed = true;
        std::mem::take(&mut balance.bytes)
    }

    /// Adds bytes; returns `false` if the account is closed.
    pub(crate) fn add(&self, bytes: i64) -> bool {
        let mut balance = self.balance.lock();
        balance.bytes = balance.bytes.saturating_add(if balance.closed { 0 } else { bytes });
        !balance.closed
    }
}
