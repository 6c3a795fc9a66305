//! The two queues between an application and the thread of its worker.
//!
//! The thread sends from a queue of whole frames as far as the peer's credit goes; a full queue
//! stops the application until half of it is sent. The other queue never has more bytes than this
//! end has given as credit.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use parking_lot::{Condvar, Mutex, MutexGuard};
use ropewalk_transport::{Interest, Readiness, Signal};
use ropewalk_udp::Waker;

use crate::frame::{self, HEADER, MOST_DATA};

/// The most bytes that wait to be sent.
pub(crate) const QUEUE: usize = 4 << 20;

/// Why a connection has ended, for each call that comes after it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    kind: io::ErrorKind,
    text: Arc<str>,
}

impl Failure {
    pub(crate) fn new(kind: io::ErrorKind, text: &str) -> Self {
        Self { kind, text: text.into() }
    }
}

impl From<&io::Error> for Failure {
    fn from(error: &io::Error) -> Self {
        Self::new(error.kind(), &error.to_string())
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        Self::new(failure.kind, failure.text.as_ref())
    }
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

pub(crate) struct Link {
    state: Mutex<State>,
    changed: Condvar,
    connected: Signal,
    readable: Signal,
    writable: Signal,
    waker: Arc<Waker>,
    /// How many bytes of data the peer may send before the application reads.
    pub(crate) window: u32,
}

#[derive(Default)]
pub(crate) struct State {
    /// The addresses of this end and of the other one, once the connection is open.
    pub(crate) addresses: Option<(SocketAddr, SocketAddr)>,
    incoming: VecDeque<Bytes>,
    incoming_bytes: usize,
    /// Bytes that were read and not yet given to the peer as credit.
    pub(crate) read: u32,
    /// Data frames.
    outgoing: VecDeque<Bytes>,
    pub(crate) outgoing_bytes: usize,
    /// The application waits until the queue is half empty.
    is_full: bool,
    /// The peer has sent its last byte.
    pub(crate) peer_finished: bool,
    /// The peer reads no more.
    pub(crate) peer_stopped: bool,
    pub(crate) failure: Option<Failure>,
    pub(crate) wish: Wish,
}

/// The result of a call, and whether the thread must look at the connection.
type Outcome = (Option<Result<usize, Failure>>, bool);

impl State {
    fn read(&mut self, window: u32, buffer: &mut [u8]) -> Outcome {
        if self.incoming_bytes == 0 {
            let failure = || self.failure.clone().map(Err);
            return (if self.peer_finished { Some(Ok(0)) } else { failure() }, false);
        }
        let mut copied = 0;
        while copied < buffer.len()
            && let Some(chunk) = self.incoming.front_mut()
        {
            let count = chunk.len().min(buffer.len() - copied);
            chunk.copy_to_slice(&mut buffer[copied..copied + count]);
            copied += count;
            if chunk.is_empty() {
                self.incoming.pop_front();
            }
        }
        self.incoming_bytes -= copied;
        let before = self.owes(window);
        // No more than the window was received.
        self.read += copied as u32;
        (Some(Ok(copied)), !before && self.owes(window))
    }

    /// Whether so much was read that the peer is to learn of it.
    pub(crate) fn owes(&self, window: u32) -> bool {
        self.read >= window / 4 && !self.peer_finished
    }

    fn write(&mut self, data: &[IoSlice<'_>]) -> Outcome {
        if let Some(failure) = &self.failure {
            return (Some(Err(failure.clone())), false);
        }
        if self.peer_stopped || self.wish >= Wish::Finish {
            let closed = Failure::new(io::ErrorKind::BrokenPipe, "the UCX connection is closed");
            return (Some(Err(closed)), false);
        }
        let was_empty = self.outgoing.is_empty();
        let mut parts = data.iter().map(|part| &part[..]).filter(|part| !part.is_empty()).peekable();
        let mut rest: &[u8] = &[];
        let mut written = 0;
        while self.room() > 0 && (!rest.is_empty() || parts.peek().is_some()) {
            let mut left = self.room().min(MOST_DATA);
            let mut frame = Vec::new();
            while left > 0 {
                if rest.is_empty() {
                    let Some(part) = parts.next() else { break };
                    rest = part;
                }
                let (now, later) = rest.split_at(rest.len().min(left));
                left -= now.len();
                frame.push(now);
                rest = later;
            }
            let frame = frame::data(&frame);
            let bytes = frame.len() - HEADER;
            written += bytes;
            self.outgoing_bytes += bytes;
            self.is_full |= self.outgoing_bytes >= QUEUE;
            self.outgoing.push_back(frame);
        }
        ((written > 0).then_some(Ok(written)), written > 0 && was_empty)
    }

    fn room(&self) -> usize {
        if self.is_full { 0 } else { QUEUE - self.outgoing_bytes }
    }

    /// For the thread: takes the next frame if the credit is enough for it, and lowers the credit.
    pub(crate) fn next_frame(&mut self, credit: &mut u64) -> Option<Bytes> {
        let bytes = self.outgoing.front()?.len() - HEADER;
        *credit = credit.checked_sub(bytes as u64)?;
        self.outgoing_bytes -= bytes;
        self.is_full &= self.outgoing_bytes > QUEUE / 2;
        self.outgoing.pop_front()
    }

    pub(crate) fn push(&mut self, bytes: Bytes) {
        // After that the application reads no more.
        if self.wish < Wish::Close {
            self.incoming_bytes += bytes.len();
            self.incoming.push_back(bytes);
        }
    }

    /// Whether all data was given to UCX.
    pub(crate) fn is_sent(&self) -> bool {
        self.outgoing.is_empty()
    }

    pub(crate) fn drop_outgoing(&mut self) {
        self.outgoing.clear();
        self.outgoing_bytes = 0;
        self.is_full = false;
    }

    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.drop_outgoing();
    }

    fn can_read(&self) -> bool {
        self.incoming_bytes > 0 || self.peer_finished || self.failure.is_some()
    }

    fn can_write(&self) -> bool {
        self.room() > 0 || self.peer_stopped || self.failure.is_some()
    }
}

impl Link {
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new(waker: Arc<Waker>, window: u32) -> io::Result<Arc<Self>> {
        let writable = Signal::new()?;
        writable.set(true);
        Ok(Arc::new(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            connected: Signal::new()?,
            readable: Signal::new()?,
            writable,
            waker,
            window,
        }))
    }

    pub(crate) fn readiness(&self, interest: Interest) -> Readiness<'_> {
        match interest {
            Interest::Read => self.readable.readiness(),
            Interest::Write => self.writable.readiness(),
        }
    }

    /// Returns what to wait for until the connection is open or has failed.
    pub(crate) fn connected(&self) -> Readiness<'_> {
        self.connected.readiness()
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
        self.waker.wake();
    }

    pub(crate) fn read(&self, limit: Option<Duration>, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait(limit, |state| state.read(self.window, buffer))
    }

    pub(crate) fn write(&self, limit: Option<Duration>, data: &[IoSlice<'_>]) -> io::Result<usize> {
        self.wait(limit, |state| state.write(data))
    }

    /// Repeats `action` until it returns a result. `None` is not to wait at all.
    fn wait(
        &self,
        limit: Option<Duration>,
        mut action: impl FnMut(&mut State) -> Outcome,
    ) -> io::Result<usize> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut state = self.state.lock();
        let mut is_late = limit.is_none();
        loop {
            let (result, wakes) = action(&mut state);
            self.show(&state);
            if wakes {
                MutexGuard::unlocked(&mut state, || self.waker.wake());
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
        self.connected.set(state.addresses.is_some() || state.failure.is_some());
        self.readable.set(readable);
        self.writable.set(writable);
        if readable || writable {
            self.changed.notify_all();
        }
    }
}
