//! A driver without sockets: connections through the memory of this process.
//!
//! A connection is two pipes, one for each direction, which both ends share. Its addresses mean
//! something to this driver alone. A pipe has one eventfd that is readable while a read would not
//! wait, and another one that is readable while a write would not: no caller waits for POLLOUT.
//! There is no fast path. The end of a connection that is closed with unread bytes resets it.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice, Read, Write};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::{
    Breaker, Connection, ConnectionHandle, Driver, Endpoint, Interest, Listener, Options, PathStats,
    Readiness, Signal, Tuning, Wait,
};

/// The part of a pipe's capacity in bytes that each end adds to it, if it names no buffer size.
const BUFFER: usize = 512 << 10;
/// The first port that is chosen for port 0.
const FIRST_PORT: u16 = 49152;

/// The driver. Its clones reach each other's listeners.
#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<Network>>);

#[derive(Default)]
struct Network {
    listeners: BTreeMap<Endpoint, Arc<Queue>>,
    /// How many ports were chosen.
    chosen: u16,
}

impl Network {
    fn choose_port(&mut self) -> u16 {
        self.chosen = self.chosen.wrapping_add(1);
        FIRST_PORT + self.chosen % (u16::MAX - FIRST_PORT)
    }
}

impl Driver for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn listen(&self, address: Endpoint, options: &Options) -> io::Result<Box<dyn Listener>> {
        let mut network = self.0.lock();
        let endpoint = match address {
            Endpoint::Socket(address) if address.port() == 0 => {
                Endpoint::from((address.ip(), network.choose_port()))
            }
            other => other,
        };
        let queue = Arc::new(Queue {
            state: Mutex::default(),
            changed: Condvar::new(),
            filled: Signal::new()?,
            tuning: options.tuning.clone(),
            address: endpoint.clone(),
        });
        if network.listeners.contains_key(&endpoint) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        network.listeners.insert(endpoint.clone(), Arc::clone(&queue));
        Ok(Box::new(MemoryListener { network: Arc::clone(&self.0), endpoint, queue }))
    }

    fn connect_waiting(
        &self,
        address: Endpoint,
        options: &Options,
        _: Duration,
        _: &mut dyn Wait,
    ) -> io::Result<Box<dyn Connection>> {
        let mut network = self.0.lock();
        let refused = io::ErrorKind::ConnectionRefused;
        let queue = network.listeners.get(&address).map(Arc::clone).ok_or(refused)?;
        let port = network.choose_port();
        let local = match &queue.address {
            Endpoint::Socket(listening) => (options.bind.unwrap_or(listening.ip()), port).into(),
            Endpoint::Opaque(name) => {
                let name = [name, &b"#"[..], port.to_string().as_bytes()].concat();
                Endpoint::Opaque(name.into())
            }
        };
        drop(network);
        let there = Pipe::new(&options.tuning, &queue.tuning)?;
        let back = Pipe::new(&queue.tuning, &options.tuning)?;
        let far = End::new((&there, &back), (queue.address.clone(), local.clone()));
        let near = End::new((&back, &there), (local, queue.address.clone()));
        let mut state = queue.state.lock();
        if state.broken {
            return Err(refused.into());
        }
        state.waiting.push_back(far);
        queue.filled.set(true);
        queue.changed.notify_all();
        Ok(Box::new(near))
    }
}

/// The connections that wait to be accepted.
struct Queue {
    state: Mutex<Waiting>,
    changed: Condvar,
    filled: Signal,
    tuning: Tuning,
    /// The address that its connections report.
    address: Endpoint,
}

#[derive(Default)]
struct Waiting {
    waiting: VecDeque<End>,
    broken: bool,
}

impl Queue {
    fn break_off(&self) {
        let mut state = self.state.lock();
        state.broken = true;
        // They look closed to their peers.
        state.waiting.clear();
        self.filled.set(true);
        self.changed.notify_all();
    }
}

struct MemoryListener {
    network: Arc<Mutex<Network>>,
    endpoint: Endpoint,
    queue: Arc<Queue>,
}

impl Listener for MemoryListener {
    fn local_addr(&self) -> io::Result<Endpoint> {
        Ok(self.endpoint.clone())
    }

    fn accept(&self, deadline: Instant) -> io::Result<Option<Box<dyn Connection>>> {
        let mut state = self.queue.state.lock();
        loop {
            if state.broken {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if let Some(end) = state.waiting.pop_front() {
                self.queue.filled.set(!state.waiting.is_empty());
                return Ok(Some(Box::new(end)));
            }
            if self.queue.changed.wait_until(&mut state, deadline).timed_out() && state.waiting.is_empty() {
                return Ok(None);
            }
        }
    }

    fn readiness(&self) -> Readiness<'_> {
        self.queue.filled.readiness()
    }

    fn breaker(&self) -> io::Result<Breaker> {
        let queue = Arc::downgrade(&self.queue);
        Ok(Breaker::new(move || {
            if let Some(queue) = Weak::upgrade(&queue) {
                queue.break_off();
            }
        }))
    }
}

impl Drop for MemoryListener {
    fn drop(&mut self) {
        self.network.lock().listeners.remove(&self.endpoint);
        self.queue.break_off();
    }
}

/// One direction of a connection.
struct Pipe {
    state: Mutex<Flow>,
    changed: Condvar,
    /// Readable while a read would not wait, and while a write would not.
    readable: Signal,
    writable: Signal,
    capacity: usize,
}

#[derive(Default)]
struct Flow {
    bytes: VecDeque<u8>,
    /// Nothing more is written: the reader gets what is left, and then the end.
    ended: bool,
    /// The writer is gone without an end.
    reset: bool,
    /// Nothing more is read.
    unread: bool,
    written: u64,
}

impl Pipe {
    fn new(from: &Tuning, to: &Tuning) -> io::Result<Arc<Self>> {
        let capacity = from.send_buffer.unwrap_or(BUFFER) + to.receive_buffer.unwrap_or(BUFFER);
        let (readable, writable) = (Signal::new()?, Signal::new()?);
        writable.set(true);
        let (state, changed) = (Mutex::default(), Condvar::new());
        Ok(Arc::new(Self { state, changed, readable, writable, capacity }))
    }

    /// Changes the state, and wakes all that wait for it.
    fn change<T>(&self, flow: &mut Flow, change: impl FnOnce(&mut Flow) -> T) -> T {
        let result = change(flow);
        self.readable.set(flow.unread || flow.ended || flow.reset || !flow.bytes.is_empty());
        self.writable.set(flow.unread || flow.ended || flow.reset || flow.bytes.len() < self.capacity);
        self.changed.notify_all();
        result
    }

    /// `None` where the reader has to wait.
    fn read(&self, flow: &mut Flow, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        if flow.unread {
            return Some(Ok(0));
        }
        if flow.bytes.is_empty() {
            return match flow {
                Flow { reset: true, .. } => Some(Err(io::ErrorKind::ConnectionReset.into())),
                Flow { ended: true, .. } => Some(Ok(0)),
                _ => None,
            };
        }
        // Reading from a VecDeque cannot fail.
        Some(self.change(flow, |flow| flow.bytes.read(buffer)))
    }

    /// `None` where the writer has to wait.
    fn write(&self, flow: &mut Flow, data: &[IoSlice<'_>]) -> Option<io::Result<usize>> {
        if flow.unread || flow.ended || flow.reset {
            return Some(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let mut room = self.capacity.saturating_sub(flow.bytes.len());
        if room == 0 && data.iter().any(|part| !part.is_empty()) {
            return None;
        }
        let written = self.change(flow, |flow| {
            let before = room;
            for part in data {
                let n = part.len().min(room);
                flow.bytes.extend(&part[..n]);
                room -= n;
            }
            flow.written += (before - room) as u64;
            before - room
        });
        Some(Ok(written))
    }
}

/// The state of an end that breakers and handles share with its owner.
struct Shared {
    incoming: Arc<Pipe>,
    outgoing: Arc<Pipe>,
}

impl Shared {
    /// Ends both directions, without a reset.
    fn shut_down(&self) {
        self.outgoing.change(&mut self.outgoing.state.lock(), |flow| flow.ended = true);
        self.incoming.change(&mut self.incoming.state.lock(), |flow| flow.unread = true);
    }
}

/// One end of a connection.
struct End {
    shared: Arc<Shared>,
    local: Endpoint,
    peer: Endpoint,
    time_limit: Option<Duration>,
    nonblocking: bool,
    resets: bool,
}

impl End {
    fn new((incoming, outgoing): (&Arc<Pipe>, &Arc<Pipe>), (local, peer): (Endpoint, Endpoint)) -> Self {
        let shared = Shared { incoming: Arc::clone(incoming), outgoing: Arc::clone(outgoing) };
        let (time_limit, nonblocking, resets) = (None, false, false);
        Self { shared: Arc::new(shared), local, peer, time_limit, nonblocking, resets }
    }

    /// Repeats `action` until it need not wait any more, as the mode of the connection has it.
    fn wait(
        &self,
        pipe: &Pipe,
        mut action: impl FnMut(&mut Flow) -> Option<io::Result<usize>>,
    ) -> io::Result<usize> {
        let deadline = self.time_limit.map(|limit| Instant::now() + limit);
        let mut flow = pipe.state.lock();
        loop {
            if let Some(result) = action(&mut flow) {
                return result;
            }
            let late = match deadline {
                _ if self.nonblocking => true,
                None => {
                    pipe.changed.wait(&mut flow);
                    false
                }
                Some(deadline) => pipe.changed.wait_until(&mut flow, deadline).timed_out(),
            };
            if late {
                return action(&mut flow).unwrap_or(Err(io::ErrorKind::WouldBlock.into()));
            }
        }
    }
}

impl Read for End {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let pipe = &*self.shared.incoming;
        self.wait(pipe, |flow| pipe.read(flow, buffer))
    }
}

impl Write for End {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(data)])
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        let pipe = &*self.shared.outgoing;
        self.wait(pipe, |flow| pipe.write(flow, data))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Connection for End {
    fn readiness(&self, interest: Interest) -> Readiness<'_> {
        match interest {
            Interest::Read => self.shared.incoming.readable.readiness(),
            Interest::Write => self.shared.outgoing.writable.readiness(),
        }
    }

    fn peer_closed(&self) -> bool {
        let incoming = self.shared.incoming.state.lock();
        incoming.ended || incoming.reset
    }

    fn set_time_limit(&mut self, limit: Duration) -> io::Result<()> {
        self.time_limit = Some(limit);
        Ok(())
    }

    fn set_nonblocking(&mut self, on: bool) -> io::Result<()> {
        self.nonblocking = on;
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        let outgoing = &self.shared.outgoing;
        outgoing.change(&mut outgoing.state.lock(), |flow| flow.ended = true);
        Ok(())
    }

    fn reset_on_drop(&mut self) -> io::Result<()> {
        self.resets = true;
        Ok(())
    }

    fn breaker(&self) -> io::Result<Breaker> {
        let shared = Arc::downgrade(&self.shared);
        Ok(Breaker::new(move || {
            if let Some(shared) = Weak::upgrade(&shared) {
                shared.shut_down();
            }
        }))
    }

    fn local_addr(&self) -> io::Result<Endpoint> {
        Ok(self.local.clone())
    }

    fn peer_addr(&self) -> io::Result<Endpoint> {
        Ok(self.peer.clone())
    }

    fn handle(&self) -> Arc<dyn ConnectionHandle> {
        Arc::new(MemoryHandle(Arc::downgrade(&self.shared)))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let Shared { incoming, outgoing } = &*self.shared;
        // As TCP does it (RFC 2525 section 2.17): an end with unread bytes is no orderly one.
        let lost = incoming.change(&mut incoming.state.lock(), |flow| {
            let lost = !flow.unread && !flow.bytes.is_empty();
            flow.unread = true;
            flow.bytes.clear();
            lost
        });
        let resets = self.resets || lost;
        outgoing.change(&mut outgoing.state.lock(), |flow| {
            if resets {
                flow.reset = true;
            } else {
                flow.ended = true;
            }
        });
    }
}

struct MemoryHandle(Weak<Shared>);

impl ConnectionHandle for MemoryHandle {
    fn stats(&self) -> Option<PathStats> {
        let shared = self.0.upgrade()?;
        let (written, waiting) = {
            let flow = shared.outgoing.state.lock();
            (flow.written, flow.bytes.len() as u64)
        };
        let buffer = |pipe: &Pipe| Some(pipe.capacity);
        Some(PathStats {
            delivered: Some(written - waiting),
            not_sent: waiting,
            unacknowledged: Some(waiting),
            send_buffer: buffer(&shared.outgoing),
            receive_buffer: buffer(&shared.incoming),
            ..PathStats::default()
        })
    }

    /// The capacity is fixed, and there is no congestion.
    fn tune(&self, _: &Tuning) {}
}
