//! The part of a connection that its application and the thread of its worker share.
//!
//! The application reads from the ring of this end, into which the peer or the thread writes, and
//! writes to another ring: that of the peer, or one of this end from which the thread puts. It
//! moves the bytes itself, and sleeps until the other side of a ring wakes it; the thread has
//! nothing to do for that. An application that does not wait in a call arranges for a message
//! instead, and the thread then sets a [`Signal`] for it.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_transport::{Interest, PathStats, Readiness, Signal};
use ropewalk_udp::{Failure, Waker, Wish};

use crate::sys::{Consumer, Memory, Producer, Ring, Role, Waiting};

/// A peer that breaks the rules can keep a thread from being woken, but not longer than this.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// See the description of the module.
pub(crate) struct Link {
    /// Locked while the application reads and waits for data. `None` until the peer has opened the
    /// connection.
    incoming: Mutex<Option<Consumer>>,
    /// Locked while the application writes and waits for room. `None` before the connection is
    /// open and after the thread has let go of it.
    outgoing: Mutex<Option<Producer>>,
    state: Mutex<State>,
    /// The ring of this end, and that to which the application writes.
    own_ring: OnceLock<Ring>,
    other_ring: Mutex<Option<Ring>>,
    written: AtomicU64,
    /// The peer waits for a message: there is more that it can read, or more room.
    more_data: AtomicBool,
    more_room: AtomicBool,
    connected: Signal,
    readable: Signal,
    writable: Signal,
    /// Locked while a signal is changed.
    signals: Mutex<()>,
    waker: Arc<Waker>,
}

/// The state of a connection.
#[derive(Default)]
pub(crate) struct State {
    /// The addresses of this end and of the other one, once they are known.
    pub(crate) addresses: Option<(SocketAddr, SocketAddr)>,
    /// The application may use the connection.
    pub(crate) is_connected: bool,
    /// The position at which the data of the peer ends.
    pub(crate) end: Option<u64>,
    /// The peer reads no more.
    pub(crate) peer_stopped: bool,
    pub(crate) failure: Option<Failure>,
    pub(crate) wish: Wish,
}

impl State {
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    fn check_failure(&self) -> io::Result<()> {
        self.failure.clone().map_or(Ok(()), |failure| Err(failure.into()))
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the UCX connection is closed")
}

impl Link {
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new(waker: Arc<Waker>) -> io::Result<Arc<Self>> {
        let (readable, writable) = (Signal::new()?, Signal::new()?);
        readable.set(true);
        writable.set(true);
        Ok(Arc::new(Self {
            incoming: Mutex::new(None),
            outgoing: Mutex::new(None),
            state: Mutex::default(),
            own_ring: OnceLock::new(),
            other_ring: Mutex::new(None),
            written: AtomicU64::new(0),
            more_data: AtomicBool::new(false),
            more_room: AtomicBool::new(false),
            connected: Signal::new()?,
            readable,
            writable,
            signals: Mutex::new(()),
            waker,
        }))
    }

    /// For the thread: the application reads from the ring in this memory.
    pub(crate) fn use_memory(&self, memory: &Arc<Memory>) {
        let ring = self.own_ring.get_or_init(|| Ring::own(memory));
        self.incoming.lock().get_or_insert_with(|| Consumer::new(ring.clone()));
    }

    /// The ring of this end, once there is one.
    pub(crate) fn own_ring(&self) -> Option<&Ring> {
        self.own_ring.get()
    }

    /// How many bytes the application has written, ever.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    /// For the thread: whether the other side waits for a message about data, and about room. It
    /// is reported only once.
    pub(crate) fn take_messages(&self) -> (bool, bool) {
        (self.more_data.swap(false, Ordering::SeqCst), self.more_room.swap(false, Ordering::SeqCst))
    }

    /// The peer has sent a message about data or room: it has ended the wait for one of them.
    pub(crate) fn look_at_rings(&self) {
        if self.own_ring().is_some_and(|ring| !ring.waits(Role::Reader)) {
            self.signal(Interest::Read);
        }
        if self.other_ring.lock().as_ref().is_some_and(|ring| !ring.waits(Role::Writer)) {
            self.signal(Interest::Write);
        }
    }

    /// For the thread: the application writes to this ring from now on.
    pub(crate) fn open(&self, producer: Producer, addresses: (SocketAddr, SocketAddr)) {
        *self.other_ring.lock() = Some(producer.ring().clone());
        *self.outgoing.lock() = Some(producer);
        self.change(|state| {
            state.addresses = Some(addresses);
            state.is_connected = true;
        });
    }

    /// For the thread: the application writes no more. Its state must say why.
    pub(crate) fn shut(&self) {
        self.wake();
        self.outgoing.lock().take();
        self.other_ring.lock().take();
    }

    /// Changes the state, and wakes the application.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        let is_known = state.is_connected || state.failure.is_some();
        drop(state);
        if is_known {
            let _signals = self.signals.lock();
            self.connected.set(true);
        }
        self.wake();
        result
    }

    /// For the application: changes the state, and has the thread look at it.
    pub(crate) fn ask(&self, change: impl FnOnce(&mut State)) {
        self.change(change);
        self.waker.wake();
    }

    /// Reads the state.
    pub(crate) fn look<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state.lock())
    }

    /// The application may have something to read or to write.
    pub(crate) fn wake(&self) {
        if let Some(ring) = self.own_ring() {
            ring.wake(Role::Reader);
        }
        if let Some(ring) = &*self.other_ring.lock() {
            ring.wake(Role::Writer);
        }
        // After that: an application that was woken by a signal may already wait for a message
        // again, and waking the rings ends that wait.
        self.signal(Interest::Read);
        self.signal(Interest::Write);
    }

    /// The application may have something to do, if it waits by a signal.
    pub(crate) fn signal(&self, interest: Interest) {
        let _signals = self.signals.lock();
        self.signal_of(interest).set(true);
    }

    fn signal_of(&self, interest: Interest) -> &Signal {
        match interest {
            Interest::Read => &self.readable,
            Interest::Write => &self.writable,
        }
    }

    pub(crate) fn readiness(&self, interest: Interest) -> Readiness<'_> {
        self.signal_of(interest).readiness()
    }

    /// Returns what to wait for until the connection is connected or has failed.
    pub(crate) fn connected(&self) -> Readiness<'_> {
        self.connected.readiness()
    }

    /// If the other side of a ring waits for a message, has the thread send one.
    fn tell(&self, waiting: Option<Waiting>, about: &AtomicBool) {
        if waiting == Some(Waiting::Message) {
            about.store(true, Ordering::SeqCst);
            self.waker.wake();
        }
    }

    /// For the application: reads, and waits for data up to `limit`; `None` is not to wait at all.
    pub(crate) fn read(&self, limit: Option<Duration>, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if parts.iter().all(|part| part.is_empty()) {
            return Ok(0);
        }
        let pause = Pause::new(limit);
        let mut incoming = self.incoming.lock();
        loop {
            // All data arrives before the end is known.
            let (end, failure) = self.look(|state| (state.end, state.check_failure()));
            let Some(incoming) = &mut *incoming else {
                failure?;
                return Err(io::ErrorKind::NotConnected.into());
            };
            let (count, waiting) = incoming.read(parts)?;
            if count > 0 {
                self.tell(waiting, &self.more_room);
                return Ok(count);
            }
            match end {
                Some(end) if end == incoming.position() => return Ok(0),
                Some(end) => {
                    let text = format!(
                        "the data of a UCX connection ends at {end}, but has come until {}",
                        incoming.position()
                    );
                    return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                }
                None => failure?,
            }
            let wanted = incoming.position() + 1;
            let is_ready =
                || incoming.has_data() || self.look(|state| state.end.is_some() || state.failure.is_some());
            self.wait(&pause, (incoming.ring(), Role::Reader), wanted, is_ready)?;
        }
    }

    /// For the application: writes, and waits for room as [`Link::read`] waits for data.
    pub(crate) fn write(&self, limit: Option<Duration>, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let pause = Pause::new(limit);
        let mut outgoing = self.outgoing.lock();
        let is_over = |state: &State| state.peer_stopped || state.wish >= Wish::Finish;
        loop {
            self.look(|state| {
                state.check_failure()?;
                if is_over(state) { Err(closed()) } else { Ok(()) }
            })?;
            let producer = outgoing.as_mut().ok_or_else(closed)?;
            let (count, waiting) = producer.write(parts)?;
            if count > 0 {
                self.written.store(producer.written(), Ordering::SeqCst);
                self.tell(waiting, &self.more_data);
                return Ok(count);
            }
            // Half of the ring at once, so that both sides do not take turns for each byte.
            let wanted = producer.half();
            let is_ready = || {
                producer.ring().position(Role::Reader) >= wanted
                    || self.look(|state| is_over(state) || state.failure.is_some())
            };
            self.wait(&pause, (producer.ring(), Role::Writer), wanted, is_ready)?;
        }
    }

    /// Waits until the other side of `ring` has got to `wanted` or the state has changed, or for a
    /// while.
    fn wait(
        &self,
        pause: &Pause,
        (ring, role): (&Ring, Role),
        wanted: u64,
        is_ready: impl Fn() -> bool,
    ) -> io::Result<()> {
        let interest = match role {
            Role::Reader => Interest::Read,
            Role::Writer => Interest::Write,
        };
        match pause.left() {
            Some(left) => {
                // The signal is not kept up meanwhile.
                self.signal(interest);
                ring.announce(role, Waiting::Thread, wanted);
                if !is_ready() {
                    ring.sleep(role, left.min(LONGEST_SLEEP));
                }
                ring.go_on(role);
                Ok(())
            }
            None => {
                let signals = self.signals.lock();
                self.signal_of(interest).set(false);
                drop(signals);
                ring.announce(role, Waiting::Message, wanted);
                if is_ready() {
                    self.signal(interest);
                    ring.go_on(role);
                    return Ok(());
                }
                Err(io::ErrorKind::WouldBlock.into())
            }
        }
    }

    /// Statistics of UCX do not exist: it has its own congestion control.
    pub(crate) fn stats(&self) -> PathStats {
        let ring = self.other_ring.lock();
        let read = ring.as_ref().map_or(0, |ring| ring.position(Role::Reader));
        PathStats {
            not_sent: self.written().saturating_sub(read),
            send_buffer: ring.as_ref().map(Ring::length),
            receive_buffer: self.own_ring().map(Ring::length),
            ..PathStats::default()
        }
    }
}

/// How long a call still waits.
struct Pause {
    /// `None` is for ever.
    until: Option<Instant>,
    waits: bool,
}

impl Pause {
    fn new(limit: Option<Duration>) -> Self {
        Self { until: limit.and_then(|limit| Instant::now().checked_add(limit)), waits: limit.is_some() }
    }

    /// `None`: it waits no more.
    fn left(&self) -> Option<Duration> {
        if !self.waits {
            return None;
        }
        let Some(until) = self.until else { return Some(Duration::MAX) };
        Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Barrier;
    use std::thread;

    use super::*;

    /// The thread of the worker changes the state while the application begins to wait.
    #[test]
    fn data_after_a_change_of_the_state_wakes_an_application_that_waits_by_a_signal() {
        const ROUNDS: usize = 20_000;
        let link = Link::new(Waker::new().unwrap()).unwrap();
        let ring = Ring::in_process(100);
        *link.incoming.lock() = Some(Consumer::new(ring.clone()));
        let ring = link.own_ring.get_or_init(|| ring);
        let (mut producer, turn, mut lost) = (Producer::new(ring.clone()), Barrier::new(2), 0);
        let read = || link.read(None, &mut [IoSliceMut::new(&mut [0; 10])]);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    turn.wait();
                    link.change(|_| ());
                    turn.wait();
                }
            });
            for _ in 0..ROUNDS {
                turn.wait();
                let nothing = read();
                turn.wait();
                let (_, waiting) = producer.write(&[IoSlice::new(b"more")]).unwrap();
                let wakes = waiting == Some(Waiting::Message) || link.readable.is_set();
                // A panic here would leave the other thread at the barrier.
                lost += u32::from(!wakes || nothing.is_ok() || read().ok() != Some(4));
            }
        });
        assert_eq!(lost, 0);
    }
}
