//! The link between a connection and the thread that serves it: queues of bytes, and the state of
//! the connection.
//!
//! A [`Link`] belongs to both. The driver brings the [`Queues`]: a full queue stops its writer.
//! Each call holds the lock of the link only while it moves bytes; the thread is woken without it.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use ropewalk_transport::{Interest, PathStats, Readiness, Signal, Tuning};

use crate::Waker;

/// The queues between an application and the thread, and what else a driver keeps beside them.
pub trait Queues: Send + 'static {
    /// The name of the protocol in messages, such as `QUIC`.
    const NAME: &'static str;
    /// Whether received bytes wait for the application.
    fn has_data(&self) -> bool;
    /// Whether bytes of the application can be taken.
    fn has_room(&self) -> bool;
    /// Moves received bytes into `buffer`. Returns their number, and whether the thread must look
    /// at the connection.
    fn read(&mut self, buffer: &mut [u8]) -> (usize, bool);
    /// As [`Queues::read`], from the application to the thread.
    fn write(&mut self, data: &[IoSlice<'_>]) -> (usize, bool);
    /// Forgets the bytes that were not sent.
    fn drop_outgoing(&mut self);
    fn stats(&self) -> PathStats;
    /// Changes what can be changed while data moves. Returns whether the thread must look at the
    /// connection.
    fn tune(&mut self, _tuning: &Tuning) -> bool {
        false
    }
    /// See [`ropewalk_transport::Connection::channel_binding`].
    fn channel_binding(&self) -> Option<[u8; 32]> {
        None
    }
}

/// Why a connection has ended, for each call that comes after it.
#[derive(Clone, Debug)]
pub struct Failure {
    kind: io::ErrorKind,
    text: Arc<str>,
}

impl Failure {
    pub fn new(kind: io::ErrorKind, text: impl Into<Arc<str>>) -> Self {
        Self { kind, text: text.into() }
    }
}

impl From<&io::Error> for Failure {
    fn from(error: &io::Error) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        Self::new(failure.kind, failure.text.as_ref())
    }
}

/// How much of a connection the application still wants. Each wish includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    #[default]
    Everything,
    /// To read, and to have delivered what was written.
    Finish,
    /// To have delivered what was written.
    Close,
    Abort,
}

/// The state of a connection.
pub struct State<Q> {
    pub queues: Q,
    /// The addresses of this end and of the other one, once they are known.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// The application may use the connection.
    pub is_connected: bool,
    /// The peer has sent its last byte, behind those that wait.
    pub peer_finished: bool,
    /// The peer reads no more.
    pub peer_stopped: bool,
    pub failure: Option<Failure>,
    pub wish: Wish,
}

/// The result of a call, and whether the thread must look at the connection.
type Outcome = (Option<Result<usize, Failure>>, bool);

impl<Q: Queues> State<Q> {
    pub fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.queues.drop_outgoing();
    }

    /// Reads into `buffer`; `None` means that there is nothing yet.
    fn read(&mut self, buffer: &mut [u8]) -> Outcome {
        if self.queues.has_data() {
            let (count, touches) = self.queues.read(buffer);
            return (Some(Ok(count)), touches);
        }
        let failure = || self.failure.clone().map(Err);
        (if self.peer_finished { Some(Ok(0)) } else { failure() }, false)
    }

    fn write(&mut self, data: &[IoSlice<'_>]) -> Outcome {
        if let Some(failure) = &self.failure {
            return (Some(Err(failure.clone())), false);
        }
        if self.peer_stopped || self.wish >= Wish::Finish {
            let text = format!("the {} connection is closed", Q::NAME);
            return (Some(Err(Failure::new(io::ErrorKind::BrokenPipe, text))), false);
        }
        let (count, touches) = self.queues.write(data);
        ((count > 0).then_some(Ok(count)), touches)
    }

    fn can_read(&self) -> bool {
        self.queues.has_data() || self.peer_finished || self.failure.is_some()
    }

    fn can_write(&self) -> bool {
        self.queues.has_room() || self.peer_stopped || self.failure.is_some()
    }
}

/// See the description of the module.
pub struct Link<Q> {
    state: Mutex<State<Q>>,
    changed: Condvar,
    connected: Signal,
    readable: Signal,
    writable: Signal,
    /// The application has changed something that the thread must look at.
    touched: AtomicBool,
    waker: Arc<Waker>,
}

impl<Q: Queues> Link<Q> {
    /// # Errors
    /// No descriptor is left.
    pub fn new(
        waker: Arc<Waker>,
        queues: Q,
        addresses: Option<(SocketAddr, SocketAddr)>,
    ) -> io::Result<Arc<Self>> {
        let writable = Signal::new()?;
        writable.set(true);
        let state = State {
            queues,
            addresses,
            is_connected: false,
            peer_finished: false,
            peer_stopped: false,
            failure: None,
            wish: Wish::default(),
        };
        Ok(Arc::new(Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            connected: Signal::new()?,
            readable: Signal::new()?,
            writable,
            touched: AtomicBool::new(true),
            waker,
        }))
    }

    /// For the thread: whether the application has changed something since the last call.
    pub fn take_touched(&self) -> bool {
        self.touched.swap(false, Ordering::SeqCst)
    }

    /// For the thread: changes the state, and shows it to the application.
    pub fn serve<T>(&self, change: impl FnOnce(&mut State<Q>) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        self.show(&state);
        result
    }

    /// Reads the state.
    pub fn look<T>(&self, read: impl FnOnce(&State<Q>) -> T) -> T {
        read(&self.state.lock())
    }

    /// For the application: changes the state. The thread looks at it if `change` returns true.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State<Q>) -> bool) {
        if self.serve(change) {
            self.touch();
        }
    }

    pub(crate) fn readiness(&self, interest: Interest) -> Readiness<'_> {
        match interest {
            Interest::Read => self.readable.readiness(),
            Interest::Write => self.writable.readiness(),
        }
    }

    /// Returns what to wait for until the connection is connected or has failed.
    pub(crate) fn connected(&self) -> Readiness<'_> {
        self.connected.readiness()
    }

    pub(crate) fn read(&self, limit: Option<Duration>, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait(limit, |state| state.read(buffer))
    }

    pub(crate) fn write(&self, limit: Option<Duration>, data: &[IoSlice<'_>]) -> io::Result<usize> {
        self.wait(limit, |state| state.write(data))
    }

    fn touch(&self) {
        self.touched.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    /// Repeats `action` until it returns a result. `None` is not to wait at all.
    fn wait(
        &self,
        limit: Option<Duration>,
        mut action: impl FnMut(&mut State<Q>) -> Outcome,
    ) -> io::Result<usize> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut state = self.state.lock();
        let mut is_late = limit.is_none();
        loop {
            let (result, touches) = action(&mut state);
            self.show(&state);
            if touches {
                MutexGuard::unlocked(&mut state, || self.touch());
            }
            if let Some(result) = result {
                return result.map_err(io::Error::from);
            }
            if is_late {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            match deadline {
                None => self.changed.wait(&mut state),
                Some(deadline) => is_late = self.changed.wait_until(&mut state, deadline).timed_out(),
            }
        }
    }

    fn show(&self, state: &State<Q>) {
        let (readable, writable) = (state.can_read(), state.can_write());
        self.connected.set(state.is_connected || state.failure.is_some());
        self.readable.set(readable);
        self.writable.set(writable);
        if readable || writable {
            self.changed.notify_all();
        }
    }
}
