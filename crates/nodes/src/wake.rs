//! Wakes the thread of a membership, from any thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

pub(crate) struct Wake {
    fd: OwnedFd,
    set: AtomicBool,
}

impl Wake {
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, set: AtomicBool::new(false) })
    }

    pub(crate) fn wake(&self) {
        if !self.set.swap(true, Ordering::SeqCst) {
            // It fails only if the counter is at its maximum: then it is readable anyway.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    /// The thread has woken up. Later calls of [`Self::wake`] wake it again.
    pub(crate) fn clear(&self) {
        self.set.store(false, Ordering::SeqCst);
        // It fails if there is nothing to read.
        let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
