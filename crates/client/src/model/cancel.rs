//! A request to stop a copy.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, Timespec, eventfd};

/// Stops the operations that were started with it, from any thread (a Ctrl-C handler). Clones are
/// the same request.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    cancelled: AtomicBool,
    /// Readable once cancelled, permanently: control connections wait for it beside their socket.
    /// `None` if the process has no descriptors left; then only the flag is checked.
    signal: Option<OwnedFd>,
}

impl Cancel {
    pub fn new() -> Self {
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        Self(Arc::new(Inner { cancelled: AtomicBool::new(false), signal }))
    }

    /// Requests the stop. Files in flight are cancelled; their partial files are kept for a later
    /// resume.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Release);
        if let Some(signal) = &self.0.signal {
            // The counter is far from its maximum: this cannot block, and after a failure the flag
            // is still set.
            let _ = rustix::io::write(signal, &1u64.to_ne_bytes());
        }
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// A descriptor that becomes readable at [`Cancel::cancel`] and stays so.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.signal.as_ref().map(AsFd::as_fd)
    }

    /// Longest wait between checks of the flag if there is no descriptor.
    pub(crate) fn longest_wait(&self) -> Option<Timespec> {
        self.0.signal.is_none().then_some(Timespec { tv_sec: 0, tv_nsec: 100_000_000 })
    }

    /// The error of a cancelled operation.
    pub(crate) fn error() -> io::Error {
        io::Error::new(io::ErrorKind::Interrupted, "cancelled")
    }
}

impl Default for Cancel {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn wakes_whoever_waits_for_it() {
        let cancel = Cancel::new();
        let waiter = cancel.clone();
        let thread = std::thread::spawn(move || {
            let fd = waiter.descriptor().unwrap();
            let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap()
        });
        cancel.cancel();
        assert_eq!(thread.join().unwrap(), 1);
        assert!(cancel.is_cancelled());
    }
}
