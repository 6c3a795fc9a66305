//! A connection that its application and the thread of its socket share.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use ropewalk_transport::{Interest, Readiness, Signal};
use ropewalk_udp::{Route, Waker};
use ropewalk_udt::{Connection, Error};

pub(crate) struct Link {
    state: Mutex<State>,
    changed: Condvar,
    readable: Signal,
    writable: Signal,
    /// The application has changed something that the thread must look at.
    touched: AtomicBool,
    waker: Arc<Waker>,
    pub(crate) route: Route,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

pub(crate) struct State {
    pub(crate) connection: Connection,
    /// When the thread looks at the connection again.
    planned: Option<Instant>,
}

impl Link {
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new(
        connection: Connection,
        waker: Arc<Waker>,
        route: Route,
        local: SocketAddr,
    ) -> io::Result<Arc<Self>> {
        let writable = Signal::new()?;
        writable.set(true);
        let peer = SocketAddr::new(route.peer.ip().to_canonical(), route.peer.port());
        Ok(Arc::new(Self {
            state: Mutex::new(State { connection, planned: None }),
            changed: Condvar::new(),
            readable: Signal::new()?,
            writable,
            touched: AtomicBool::new(true),
            waker,
            route,
            local: SocketAddr::new(local.ip().to_canonical(), local.port()),
            peer,
        }))
    }

    pub(crate) fn readiness(&self, interest: Interest) -> Readiness<'_> {
        match interest {
            Interest::Read => self.readable.readiness(),
            Interest::Write => self.writable.readiness(),
        }
    }

    /// Whether the application has changed something since the last call.
    pub(crate) fn take_touched(&self) -> bool {
        self.touched.swap(false, Ordering::SeqCst)
    }

    /// For the thread: passes datagrams to the connection. [`Link::serve`] must follow; until then
    /// the application is not woken.
    pub(crate) fn receive(&self, change: impl FnOnce(&mut Connection)) {
        change(&mut self.state.lock().connection);
    }

    /// For the thread: changes the connection, reports the new state to the application, and
    /// returns when to look again.
    pub(crate) fn serve(&self, now: Instant, change: impl FnOnce(&mut Connection)) -> Option<Instant> {
        let mut state = self.state.lock();
        change(&mut state.connection);
        state.planned = state.connection.timeout(now);
        self.show(&state);
        state.planned
    }

    /// For the application: changes the connection, and wakes the thread if it has to act sooner
    /// than planned.
    pub(crate) fn act<T>(&self, change: impl FnOnce(&mut Connection, Instant) -> T) -> T {
        let mut state = self.state.lock();
        self.act_locked(&mut state, change)
    }

    /// Repeats `action` until it need not wait any more. `None` means that it has to wait; without
    /// a deadline it does so for as long as it takes.
    pub(crate) fn wait<T>(
        &self,
        limit: Option<Duration>,
        mut action: impl FnMut(&mut Connection, Instant) -> Option<Result<T, Error>>,
    ) -> io::Result<T> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut state = self.state.lock();
        loop {
            if let Some(result) = self.act_locked(&mut state, &mut action) {
                return result.map_err(io_error);
            }
            match deadline {
                None if limit.is_none() => return Err(io::ErrorKind::WouldBlock.into()),
                None => self.changed.wait(&mut state),
                Some(deadline) => {
                    if self.changed.wait_until(&mut state, deadline).timed_out() {
                        let last = self.act_locked(&mut state, &mut action);
                        return last.map_or(Err(io::ErrorKind::WouldBlock.into()), |result| {
                            result.map_err(io_error)
                        });
                    }
                }
            }
        }
    }

    fn act_locked<T>(
        &self,
        state: &mut MutexGuard<'_, State>,
        change: impl FnOnce(&mut Connection, Instant) -> T,
    ) -> T {
        let now = Instant::now();
        let result = change(&mut state.connection, now);
        self.show(state);
        let next = state.connection.timeout(now);
        if next.is_some_and(|next| state.planned.is_none_or(|planned| next < planned)) {
            state.planned = next;
            self.touched.store(true, Ordering::SeqCst);
            self.waker.wake();
        }
        result
    }

    fn show(&self, state: &State) {
        let (readable, writable) = (state.connection.can_read(), state.connection.can_write());
        self.readable.set(readable);
        self.writable.set(writable);
        if readable || writable {
            self.changed.notify_all();
        }
    }
}

fn io_error(error: Error) -> io::Error {
    let kind = match error {
        Error::Closed | Error::PeerClosed => io::ErrorKind::BrokenPipe,
        Error::Reset => io::ErrorKind::ConnectionReset,
        Error::Silent => io::ErrorKind::TimedOut,
    };
    io::Error::new(kind, error.to_string())
}
