//! The two queues between an application and the thread of its socket.
//!
//! A full queue stops its writer: the application waits until half of the queue is sent, and the
//! thread leaves received bytes in the QUIC connection, whose window then stops the peer.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use parking_lot::{Condvar, Mutex, MutexGuard};
use ropewalk_transport::{Interest, PathStats, Readiness, Signal};
use ropewalk_udp::Waker;

use crate::failure::Failure;

/// The most bytes in each of the two queues.
const QUEUE: usize = 4 << 20;

pub(crate) struct Link {
    state: Mutex<State>,
    changed: Condvar,
    connected: Signal,
    readable: Signal,
    writable: Signal,
    /// The application has changed something that the thread must look at.
    touched: AtomicBool,
    waker: Arc<Waker>,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) incoming: Pipe,
    pub(crate) outgoing: Pipe,
    /// The value that identifies the connection, once it is connected.
    pub(crate) binding: Option<[u8; 32]>,
    /// The thread has sent all of `outgoing`, and must be woken for more.
    pub(crate) is_idle: bool,
    /// The peer has sent the end of its stream, behind the bytes of `incoming`.
    pub(crate) peer_finished: bool,
    /// The peer reads no more.
    pub(crate) peer_stopped: bool,
    pub(crate) failure: Option<Failure>,
    pub(crate) wish: Wish,
    /// New sizes of the windows: for sending and for receiving.
    pub(crate) windows: (Option<usize>, Option<usize>),
    pub(crate) stats: PathStats,
}

/// How much of a connection the application still wants. Each wish includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wish {
    #[default]
    Everything,
    /// To read, and to have delivered what was written.
    Finish,
    /// To have delivered what was written.
    Close,
    Abort,
}

/// Bytes on their way between the application and the thread.
#[derive(Default)]
pub(crate) struct Pipe {
    chunks: VecDeque<Bytes>,
    bytes: usize,
    /// The writer waits until the pipe is half empty.
    is_full: bool,
}

impl Pipe {
    pub(crate) fn push(&mut self, chunk: Bytes) {
        self.bytes += chunk.len();
        self.chunks.push_back(chunk);
        self.is_full |= self.bytes >= QUEUE;
    }

    /// How many bytes the pipe takes.
    pub(crate) fn room(&self) -> usize {
        if self.is_full { 0 } else { QUEUE - self.bytes }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// The chunks, for a reader that takes some of their bytes away and reports them by
    /// [`Pipe::taken`].
    pub(crate) fn chunks(&mut self) -> &mut [Bytes] {
        self.chunks.make_contiguous()
    }

    /// Returns whether the writer can continue after it had to wait.
    pub(crate) fn taken(&mut self, bytes: usize) -> bool {
        while self.chunks.pop_front_if(|chunk| chunk.is_empty()).is_some() {}
        self.bytes -= bytes;
        let reopens = self.is_full && self.bytes <= QUEUE / 2;
        self.is_full &= !reopens;
        reopens
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl State {
    /// Reads into `buffer`; `None` means that there is nothing yet. The thread must look at the
    /// connection if the second value is true.
    fn read(&mut self, buffer: &mut [u8]) -> (Option<Result<usize, Failure>>, bool) {
        if self.incoming.len() == 0 {
            let result = match &self.failure {
                _ if self.peer_finished => Some(Ok(0)),
                Some(failure) => Some(Err(failure.clone())),
                None => None,
            };
            return (result, false);
        }
        let mut copied = 0;
        for chunk in self.incoming.chunks() {
            let count = chunk.len().min(buffer.len() - copied);
            chunk.copy_to_slice(&mut buffer[copied..copied + count]);
            copied += count;
            if copied == buffer.len() {
                break;
            }
        }
        (Some(Ok(copied)), self.incoming.taken(copied))
    }

    /// Like [`State::read`], for writing.
    fn write(&mut self, data: &[IoSlice<'_>]) -> (Option<Result<usize, Failure>>, bool) {
        if let Some(failure) = &self.failure {
            return (Some(Err(failure.clone())), false);
        }
        if self.peer_stopped || self.wish >= Wish::Finish {
            return (Some(Err(Failure::closed())), false);
        }
        let before = self.outgoing.len();
        for part in data.iter().filter(|part| !part.is_empty()) {
            let count = part.len().min(self.outgoing.room());
            if count == 0 {
                break;
            }
            self.outgoing.push(Bytes::copy_from_slice(&part[..count]));
        }
        let written = self.outgoing.len() - before;
        let wakes = written > 0 && std::mem::take(&mut self.is_idle);
        ((written > 0).then_some(Ok(written)), wakes)
    }

    fn can_read(&self) -> bool {
        self.incoming.len() > 0 || self.peer_finished || self.failure.is_some()
    }

    fn can_write(&self) -> bool {
        self.outgoing.room() > 0 || self.peer_stopped || self.failure.is_some()
    }

    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.outgoing.clear();
    }
}

impl Link {
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new(waker: Arc<Waker>, local: SocketAddr, peer: SocketAddr) -> io::Result<Arc<Self>> {
        let writable = Signal::new()?;
        writable.set(true);
        Ok(Arc::new(Self {
            state: Mutex::new(State { is_idle: true, ..State::default() }),
            changed: Condvar::new(),
            connected: Signal::new()?,
            readable: Signal::new()?,
            writable,
            touched: AtomicBool::new(true),
            waker,
            local,
            peer,
        }))
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

    /// For the thread: whether the application has changed something since the last call.
    pub(crate) fn take_touched(&self) -> bool {
        self.touched.swap(false, Ordering::SeqCst)
    }

    /// For the thread: changes the state, and shows it to the application.
    pub(crate) fn serve<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        self.show(&state);
        result
    }

    /// For the application: reads the state.
    pub(crate) fn look<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state.lock())
    }

    /// For the application: changes the state, which the thread then looks at.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        self.serve(change);
        self.touch();
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
        mut action: impl FnMut(&mut State) -> (Option<Result<usize, Failure>>, bool),
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

    fn show(&self, state: &State) {
        let (readable, writable) = (state.can_read(), state.can_write());
        self.connected.set(state.binding.is_some() || state.failure.is_some());
        self.readable.set(readable);
        self.writable.set(writable);
        if readable || writable {
            self.changed.notify_all();
        }
    }
}
