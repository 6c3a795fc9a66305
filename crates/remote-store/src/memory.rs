//! The memory for the windows of all open files, divided equally among them, and the spool that
//! they share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::spool::Spool;

/// The minimum size of a window in bytes, so that every file makes progress.
const LEAST: usize = 1 << 20;

/// The memory for each stream of a file: a block that waits for the other side, and one that is on
/// its way.
const STREAM: usize = 512 << 10;

#[derive(Debug)]
pub(crate) struct Memory {
    bytes: usize,
    windows: AtomicUsize,
    spool: Option<Arc<Spool>>,
}

/// The share of one window.
pub(crate) struct Share(Arc<Memory>);

impl Memory {
    pub(crate) fn new(bytes: usize, spool: Option<Arc<Spool>>) -> Arc<Self> {
        Arc::new(Self { bytes, windows: AtomicUsize::new(0), spool })
    }

    /// The number of streams for which there is memory, of all files together.
    pub(crate) fn streams(&self) -> u32 {
        streams(self.bytes)
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

    /// The place for data for which there is no memory.
    pub(crate) fn spool(&self) -> Option<&Arc<Spool>> {
        self.0.spool.as_ref()
    }

    /// The number of streams for which the window has room at present.
    pub(crate) fn streams(&self) -> u32 {
        streams(self.limit())
    }
}

fn streams(bytes: usize) -> u32 {
    u32::try_from(bytes / STREAM).unwrap_or(u32::MAX).max(1)
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
        let memory = Memory::new(8 << 20, None);
        let first = memory.share();
        assert_eq!((first.limit(), first.streams(), memory.streams()), (8 << 20, 16, 16));
        let others: Vec<Share> = (0..3).map(|_| memory.share()).collect();
        assert_eq!(first.limit(), 2 << 20);
        drop(others);
        assert_eq!(first.limit(), 8 << 20);
        let _many: Vec<Share> = (0..1000).map(|_| memory.share()).collect();
        assert_eq!((first.limit(), first.streams(), memory.streams()), (LEAST, 2, 16));
    }
}
