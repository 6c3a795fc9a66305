//! The size of the ranges into which a file is divided.

use std::sync::atomic::{AtomicU64, Ordering};

/// The size of the range that was split off last; 0 before the file is known to be divided.
#[derive(Debug, Default)]
pub(crate) struct Piece(AtomicU64);

impl Piece {
    /// Whether the file is divided. Otherwise no range of it is queued.
    pub(crate) fn is_cut(&self) -> bool {
        self.size() > 0
    }

    /// The size of the range that was split off last; 0 before the first.
    pub(crate) fn size(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the size of the range that was split off.
    pub(crate) fn set_size(&self, size: u64) {
        self.0.store(size, Ordering::Relaxed);
    }
}
