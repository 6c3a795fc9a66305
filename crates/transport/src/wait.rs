//! Waiting for descriptors. A driver waits through [`Wait`], so that its caller decides what else
//! ends the wait.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

/// How a driver waits while it makes a connection, so that its caller can wait for other events
/// too.
pub trait Wait {
    /// Returns true when `fd` has one of `events` (or an error), false when `deadline` has passed.
    /// An error aborts the operation that waits.
    ///
    /// # Errors
    /// The caller wants to abort the operation, or poll(2) fails.
    fn wait(&mut self, fd: BorrowedFd<'_>, events: PollFlags, deadline: Instant) -> io::Result<bool>;
}

/// Waits for nothing else.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitAlone;

impl Wait for WaitAlone {
    fn wait(&mut self, fd: BorrowedFd<'_>, events: PollFlags, deadline: Instant) -> io::Result<bool> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::from_borrowed_fd(fd, events)];
            match rustix::event::poll(&mut fds, Some(&timespec(left))) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Converts a duration for `poll`.
pub fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
