//! A flag that `poll` can wait for, for drivers whose state is in this process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, PollFlags, eventfd};

use crate::Readiness;

/// A flag with an eventfd that is readable while it is set. It must be changed under the lock of
/// the state that it shows.
pub struct Signal {
    set: AtomicBool,
    fd: OwnedFd,
}

impl Signal {
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { set: AtomicBool::new(false), fd })
    }

    /// Sets or clears the flag. An eventfd whose counter is 0 or 1 takes a write, and gives a read,
    /// without waiting.
    pub fn set(&self, on: bool) {
        if self.set.swap(on, Ordering::SeqCst) == on {
            return;
        }
        let _ = if on {
            rustix::io::write(&self.fd, &1_u64.to_ne_bytes())
        } else {
            rustix::io::read(&self.fd, &mut [0_u8; 8])
        };
    }

    /// Whether the flag is set.
    pub fn is_set(&self) -> bool {
        self.set.load(Ordering::SeqCst)
    }

    /// Returns what to wait for until the flag is set.
    pub fn readiness(&self) -> Readiness<'_> {
        (self.fd.as_fd(), PollFlags::IN)
    }
}
