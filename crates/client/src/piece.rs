//! How much of a file is cut off at a time.

use std::sync::atomic::{AtomicU64, Ordering};

/// The size of what was cut off last; none before it is known that the file is cut up at all.
#[derive(Debug, Default)]
pub(crate) struct Piece(AtomicU64);

impl Piece {
    /// Otherwise nothing of the file waits.
    pub(crate) fn is_cut(&self) -> bool {
        self.size() > 0
    }

    /// The size of what was cut off last; 0 before anything was.
    pub(crate) fn size(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// So much was cut off.
    pub(crate) fn set_size(&self, size: u64) {
        self.0.store(size, Ordering::Relaxed);
    }
}
