//! Cross traffic: TCP flows between hosts. Each flow has a thread of this process on the network of
//! the sending host, and each received connection has a thread that discards its data. The first
//! error of an entry is kept and becomes a warning of the result.

use super::RunError;
use crate::{
    emulator,
    netns::Spaces,
    scenario::{self, ByteRate},
};
use rustix::net::{
    self, AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, recv, shutdown, sockopt,
};
use std::{
    io::{self, ErrorKind, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// First port at which cross traffic arrives; each entry of the scenario has its own port.
pub(super) const FIRST_PORT: u16 = 19_001;

/// A running entry of the scenario.
pub(super) struct Traffic {
    pub(super) name: String,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// The start and the stop of the entry.
    span: (Instant, Option<Instant>),
}

#[derive(Default)]
struct Shared {
    bytes: AtomicU64,
    flows: AtomicU32,
    state: Mutex<State>,
    changed: Condvar,
    error: Mutex<Option<String>>,
}

#[derive(Default)]
struct State {
    stopped: bool,
    /// Sockets to shut down at the end, so that no thread waits for them. The threads close them if
    /// they end earlier.
    open: Vec<Weak<dyn AsFd + Send + Sync>>,
}

impl Traffic {
    /// Starts an entry; its flows wait for their start time.
    pub(super) fn start(
        entry: &scenario::Traffic,
        port: u16,
        address: Ipv4Addr,
        spaces: (&Arc<Spaces>, &Arc<Spaces>),
        zero: Instant,
        seed: u64,
    ) -> Result<Self, RunError> {
        let failed =
            |error| RunError::Build { what: format!("start the cross traffic {}", entry.name), error };
        let (from, to) = spaces;
        if let Some(congestion) = &entry.congestion {
            // Flows may start late, so an unavailable congestion control is reported before the
            // measurement starts.
            let tried = from.on_network(|| {
                let flags = SocketFlags::CLOEXEC;
                let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
                Ok(sockopt::set_tcp_congestion(&socket, congestion)?)
            });
            tried.map_err(|error| RunError::Unsupported {
                host: entry.from.clone(),
                message: format!("cross traffic {}: congestion control {congestion}: {error}", entry.name),
            })?;
        }
        let shared = Arc::new(Shared::default());
        let target = SocketAddr::new(IpAddr::V4(address), port);
        let listener = to.on_network(|| TcpListener::bind(target)).map_err(failed)?;
        let listener = Arc::new(listener);
        shared.keep(&listener);
        let span = (zero + entry.start.0, entry.stop.map(|stop| zero + stop.0));
        let mut own = Self { name: entry.name.clone(), shared: shared.clone(), threads: Vec::new(), span };
        let accept = shared.clone();
        own.spawn(move || accept.accept(&listener)).map_err(failed)?;
        for flow in 0..entry.flows {
            let flow = Flow {
                shared: shared.clone(),
                spaces: from.clone(),
                target,
                entry: entry.clone(),
                span,
                random: fastrand::Rng::with_seed(seed ^ u64::from(flow) << 32 | u64::from(port)),
            };
            own.spawn(move || flow.run()).map_err(failed)?;
        }
        Ok(own)
    }

    fn spawn(&mut self, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let builder = thread::Builder::new().name("lab-traffic".into()).stack_size(256 << 10);
        self.threads.push(builder.spawn(run)?);
        Ok(())
    }

    /// Ends all flows.
    pub(super) fn stop(&mut self) {
        let mut state = self.shared.state.lock();
        state.stopped = true;
        for open in state.open.drain(..).filter_map(|open| open.upgrade()) {
            // An error means that the socket is not connected, so no thread waits for it.
            let _ = shutdown(&open, Shutdown::Both);
        }
        drop(state);
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // The panic message of this thread has been printed already.
            let _ = thread.join();
        }
    }

    /// Bytes received, and number of connections.
    pub(super) fn counted(&self) -> (u64, u32) {
        (self.shared.bytes.load(Ordering::Relaxed), self.shared.flows.load(Ordering::Relaxed))
    }

    /// The time before `end` for which the scenario lets it run.
    pub(super) fn lasted(&self, end: Instant) -> Duration {
        self.span.1.map_or(end, |stop| stop.min(end)).saturating_duration_since(self.span.0)
    }

    /// The first error, if there was one.
    pub(super) fn error(&self) -> Option<String> {
        self.shared.error.lock().clone()
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// Registers a socket that has to be shut down at the end. Returns false if the end has come.
    fn keep<T: AsFd + Send + Sync + 'static>(&self, socket: &Arc<T>) -> bool {
        let mut state = self.state.lock();
        state.open.retain(|open| open.strong_count() > 0);
        if !state.stopped {
            let weak: Weak<T> = Arc::downgrade(socket);
            state.open.push(weak);
        }
        !state.stopped
    }

    /// Waits until `time` or until the end. Returns false if the end has come.
    fn sleep_until(&self, time: Instant) -> bool {
        let mut state = self.state.lock();
        loop {
            let left = time.saturating_duration_since(Instant::now());
            if state.stopped || left.is_zero() {
                return !state.stopped;
            }
            self.changed.wait_for(&mut state, left);
        }
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => Arc::new(stream),
                Err(error) => {
                    // At the end the listener is shut down.
                    if !self.state.lock().stopped {
                        self.fail(format!("cannot accept more flows: {error}"));
                    }
                    return;
                }
            };
            if !self.keep(&stream) {
                return;
            }
            let own = self.clone();
            let discard = move || own.discard(&stream);
            if thread::Builder::new().name("lab-traffic".into()).stack_size(256 << 10).spawn(discard).is_err()
            {
                self.fail("too many threads for all flows".into());
            }
        }
    }

    fn discard(&self, stream: &TcpStream) {
        let mut buffer = vec![0; 256 << 10];
        loop {
            // With TRUNC the kernel counts and discards the data (tcp(7)) without copying it.
            match recv(stream, buffer.as_mut_slice(), RecvFlags::TRUNC) {
                Ok((_, length)) if length > 0 => {
                    self.bytes.fetch_add(length as u64, Ordering::Relaxed);
                }
                Err(rustix::io::Errno::INTR) => {}
                // The sender resets the connection at the end of a busy period.
                _ => return,
            }
        }
    }

    fn fail(&self, message: String) {
        self.error.lock().get_or_insert(message);
    }
}

struct Flow {
    shared: Arc<Shared>,
    spaces: Arc<Spaces>,
    target: SocketAddr,
    entry: scenario::Traffic,
    span: (Instant, Option<Instant>),
    random: fastrand::Rng,
}

impl Flow {
    fn run(mut self) {
        if let Err(error) = self.spaces.enter_network().and_then(|()| self.flow()) {
            self.shared.fail(format!("a flow failed: {error}"));
        }
    }

    fn flow(&mut self) -> io::Result<()> {
        let mut begin = self.span.0;
        while self.shared.sleep_until(begin) && self.span.1.is_none_or(|stop| Instant::now() < stop) {
            let end = self.entry.on.map(|on| Instant::now() + self.length(on.0));
            let end = end.into_iter().chain(self.span.1).min();
            self.busy(end)?;
            let Some(off) = self.entry.off else { break };
            begin = Instant::now() + self.length(off.0);
            if self.span.1.is_some_and(|stop| begin >= stop) {
                break;
            }
        }
        Ok(())
    }

    /// The length of a period with the given mean.
    fn length(&mut self, mean: Duration) -> Duration {
        if self.entry.random { mean.mul_f64(-(1.0 - self.random.f64()).ln()) } else { mean }
    }

    /// Sends over a new connection until `end` or until the traffic is stopped.
    fn busy(&self, end: Option<Instant>) -> io::Result<()> {
        let socket =
            Arc::new(net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?);
        if !self.shared.keep(&socket) || self.connect(&socket, end).is_err() {
            // The time is up, or the traffic was stopped. A failure on a path that loses all
            // packets is not an error either.
            return Ok(());
        }
        let stream = TcpStream::from(socket.try_clone()?);
        // Data in the send buffer is dropped at the end; otherwise it would be sent for some more
        // seconds.
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
        if let Some(congestion) = &self.entry.congestion {
            sockopt::set_tcp_congestion(&stream, congestion)?;
        }
        if let Some(rate) = self.entry.rate {
            emulator::set_pacing(socket.as_fd(), (rate.0 as f64 * SPREAD) as u64)?;
        }
        self.shared.flows.fetch_add(1, Ordering::Relaxed);
        let chunk = vec![0x5a; self.entry.rate.map_or(256 << 10, chunk_of)];
        let mut due = Instant::now();
        loop {
            if let Some(end) = end {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(());
                }
                stream.set_write_timeout(Some(left))?;
            }
            if let Some(rate) = self.entry.rate {
                due += Duration::from_secs_f64(chunk.len() as f64 / rate.0 as f64);
                if !self.shared.sleep_until(due) {
                    return Ok(());
                }
            }
            match (&stream).write(&chunk) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The time is up, or the traffic was stopped.
                Err(_) => return Ok(()),
            }
        }
    }

    fn connect(&self, socket: &OwnedFd, end: Option<Instant>) -> io::Result<()> {
        if let Some(end) = end {
            // connect(2) observes the send timeout; 0 would mean no timeout.
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, Some(left))?;
        }
        Ok(net::connect(socket, &self.target)?)
    }
}

/// Factor of the pacing rate. Chunks are written at the flow's rate, and the kernel spreads each
/// over almost the time until the next one. At the flow's rate itself the kernel would fall behind,
/// because headers count too.
const SPREAD: f64 = 1.1;

/// Bytes of a hundredth of a second.
fn chunk_of(rate: ByteRate) -> usize {
    (rate.0 / 100).clamp(1, 256 << 10) as usize
}
