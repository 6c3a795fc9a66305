//! The listener of the transport interface.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use ropewalk_transport::{Breaker, Connection, Endpoint, Listener, Readiness, Signal};

use crate::connection::UdtConnection;
use crate::link::{Link, Waker};

/// The most connections that wait to be accepted. A parallel transfer has fewer streams.
const BACKLOG: usize = 128;

/// The connections that the thread of the socket has made and the application has not accepted.
pub(crate) struct Queue {
    state: Mutex<Waiting>,
    changed: Condvar,
    filled: Signal,
}

#[derive(Default)]
struct Waiting {
    links: VecDeque<Arc<Link>>,
    broken: bool,
}

impl Queue {
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { state: Mutex::default(), changed: Condvar::new(), filled: Signal::new()? }))
    }

    pub(crate) fn has_room(&self) -> bool {
        let state = self.state.lock();
        !state.broken && state.links.len() < BACKLOG
    }

    pub(crate) fn push(&self, link: Arc<Link>) {
        let mut state = self.state.lock();
        state.links.push_back(link);
        self.filled.set(true);
        self.changed.notify_all();
    }

    /// Whether the listener accepts no more connections.
    pub(crate) fn is_broken(&self) -> bool {
        self.state.lock().broken
    }

    fn break_off(&self) {
        let mut state = self.state.lock();
        state.broken = true;
        let waiting = std::mem::take(&mut state.links);
        self.filled.set(true);
        self.changed.notify_all();
        drop(state);
        for link in waiting {
            drop(UdtConnection::new(link));
        }
    }
}

pub(crate) struct UdtListener {
    pub(crate) queue: Arc<Queue>,
    pub(crate) waker: Arc<Waker>,
    pub(crate) address: SocketAddr,
}

impl Listener for UdtListener {
    fn local_addr(&self) -> io::Result<Endpoint> {
        Ok(self.address.into())
    }

    fn accept(&self, deadline: Instant) -> io::Result<Option<Box<dyn Connection>>> {
        let mut state = self.queue.state.lock();
        loop {
            if state.broken {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if let Some(link) = state.links.pop_front() {
                self.queue.filled.set(!state.links.is_empty());
                return Ok(Some(Box::new(UdtConnection::new(link))));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            self.queue.changed.wait_until(&mut state, deadline);
        }
    }

    fn readiness(&self) -> Readiness<'_> {
        self.queue.filled.readiness()
    }

    fn breaker(&self) -> io::Result<Breaker> {
        let queue = Arc::clone(&self.queue);
        Ok(Breaker::new(move || queue.break_off()))
    }
}

impl Drop for UdtListener {
    fn drop(&mut self) {
        self.queue.break_off();
        self.waker.wake();
    }
}
