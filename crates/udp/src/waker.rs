//! Wakes the thread of a socket when an application has changed something.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ropewalk_transport::timespec;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// Wakes the thread of a socket.
pub struct Waker {
    pending: AtomicBool,
    fd: OwnedFd,
}

impl Waker {
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Arc<Self>> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { pending: AtomicBool::new(false), fd }))
    }

    pub fn wake(&self) {
        if !self.pending.swap(true, Ordering::SeqCst) {
            // The counter is at most 1, so the write cannot fail.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    /// For the thread: waits until the socket (or another descriptor) is readable, or until it is
    /// woken, or until `next`. A change that comes after this call wakes the thread again.
    pub fn wait(&self, socket: &impl AsFd, next: Option<Instant>) {
        let wait = next.map(|next| timespec(next.saturating_duration_since(Instant::now())));
        let mut fds = [PollFd::new(socket, PollFlags::IN), PollFd::new(&self.fd, PollFlags::IN)];
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, wait.as_ref());
        // The flag alone does not say that the descriptor is readable yet, and a descriptor that is
        // left readable would end each wait at once.
        if !fds[1].revents().is_empty() {
            let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
            self.pending.store(false, Ordering::SeqCst);
        }
    }
}
