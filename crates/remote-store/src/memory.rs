//! The memory for the windows of all open files, divided equally among them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The minimum size of a window in bytes, so that every file makes progress.
const LEAST: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Memory {
    bytes: usize,
    windows: AtomicUsize,
}

/// The share of one window.
pub(crate) struct Share(Arc<Memory>);

impl Memory {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { bytes, windows: AtomicUsize::new(0) })
    }

    pub(crate) fn share(self: &Arc<Self>) -> Share {
        self.windows.fetch_add(1, Ordering::Relaxed);
        Share(self.clone())
    }
}

impl Share {
    /// The number of bytes that the window may hold at present.
    pub(crate) fn limit(&self) -> usize {
        (self.0.bytes / self.0.windows.load(Ordering::Relaxed).max(1)).max(LEAST)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.windows.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_when_windows_come_and_go_follows_their_number() {
        let memory = Memory::new(8 << 20);
        let first = memory.share();
        assert_eq!(first.limit(), 8 << 20);
        let others: Vec<Share> = (0..3).map(|_| memory.share()).collect();
        assert_eq!(first.limit(), 2 << 20);
        drop(others);
        assert_eq!(first.limit(), 8 << 20);
        let _many: Vec<Share> = (0..1000).map(|_| memory.share()).collect();
        assert_eq!(first.limit(), LEAST);
    }
}
