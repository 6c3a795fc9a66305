//! The listener of a driver whose connections are made by the thread of a socket.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use ropewalk_transport::{Breaker, Connection, Endpoint, Listener, Readiness, Signal};

use crate::Waker;

/// The most connections that wait to be accepted. A parallel transfer has fewer streams.
const BACKLOG: usize = 128;

/// The connections that the thread of the socket has made and the application has not accepted.
pub struct Queue {
    state: Mutex<Waiting>,
    changed: Condvar,
    filled: Signal,
}

#[derive(Default)]
struct Waiting {
    connections: VecDeque<Box<dyn Connection>>,
    broken: bool,
}

impl Queue {
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { state: Mutex::default(), changed: Condvar::new(), filled: Signal::new()? }))
    }

    /// Whether the queue takes another connection besides `coming` ones.
    pub fn has_room(&self, coming: usize) -> bool {
        let state = self.state.lock();
        !state.broken && state.connections.len() + coming < BACKLOG
    }

    /// A connection that no one accepts any more is closed.
    pub fn push(&self, connection: Box<dyn Connection>) {
        let mut state = self.state.lock();
        if state.broken {
            // A connection may have a lock of its own, so it is closed without this one.
            drop(state);
            return drop(connection);
        }
        state.connections.push_back(connection);
        self.filled.set(true);
        self.changed.notify_all();
    }

    /// Whether the listener accepts no more connections.
    pub fn is_broken(&self) -> bool {
        self.state.lock().broken
    }

    fn break_off(&self) {
        let mut state = self.state.lock();
        state.broken = true;
        let waiting = std::mem::take(&mut state.connections);
        self.filled.set(true);
        self.changed.notify_all();
        // A connection may have a lock of its own, so it is closed without this one.
        drop(state);
        drop(waiting);
    }
}

/// Accepts the connections of a queue. The thread of the socket ends when the listener is dropped
/// and the last connection has ended.
pub struct QueueListener {
    queue: Arc<Queue>,
    waker: Arc<Waker>,
    address: SocketAddr,
}

impl QueueListener {
    /// Makes the listener of a socket with this address, whose thread has this queue and waker.
    pub fn new(queue: Arc<Queue>, waker: Arc<Waker>, address: SocketAddr) -> Self {
        Self { queue, waker, address }
    }
}

impl Listener for QueueListener {
    fn local_addr(&self) -> io::Result<Endpoint> {
        Ok(self.address.into())
    }

    fn accept(&self, deadline: Instant) -> io::Result<Option<Box<dyn Connection>>> {
        let mut state = self.queue.state.lock();
        loop {
            if state.broken {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if let Some(connection) = state.connections.pop_front() {
                self.queue.filled.set(!state.connections.is_empty());
                return Ok(Some(connection));
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

impl Drop for QueueListener {
    fn drop(&mut self) {
        self.queue.break_off();
        self.waker.wake();
    }
}
