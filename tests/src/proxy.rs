//! A proxy for FTP sessions that can slow, stall, and cut them.
//!
//! It forwards control connections and replaces the addresses in `PASV`, `EPSV`, `SPAS`, `PORT`,
//! `EPRT`, and `SPOR` with its own, so data connections in both directions pass through it. It
//! supports only clear text over loopback.

mod relay;
mod rewrite;

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec};

/// Bytes that a data connection forwards at a time, and so the most that is between the proxy and
/// the receiver.
pub const CHUNK: usize = 32 << 10;

/// Size of the socket buffers of data connections: small, so that a sender cannot run far ahead of
/// the forwarded bytes.
const BUFFER: usize = 64 << 10;

/// A running proxy. Dropping it closes every connection.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: Mutex<SocketAddr>,
    /// Nanoseconds per byte of data, and the time at which the next byte may pass.
    pace: Mutex<Option<(f64, Instant)>>,
    /// Bytes forwarded over data connections.
    moved: AtomicU64,
    cut_at: AtomicU64,
    /// Bytes between two cuts; 0: no repeated cuts.
    cut_every: AtomicU64,
    stalled: Mutex<bool>,
    changed: Condvar,
    open: Mutex<Vec<Arc<TcpStream>>>,
    data_connections: AtomicU64,
    control_connections: AtomicU64,
    /// Delay of each line of control connections, in microseconds.
    line_delay: AtomicU64,
    /// The beginning of a command, and how many further commands with it cut all connections.
    cut_on: Mutex<(String, u32)>,
    over: AtomicBool,
}

impl Proxy {
    /// Starts a proxy in front of the server at `target`.
    pub fn start(target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((target.ip(), 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            pace: Mutex::new(None),
            moved: AtomicU64::new(0),
            cut_at: AtomicU64::new(u64::MAX),
            cut_every: AtomicU64::new(0),
            stalled: Mutex::new(false),
            changed: Condvar::new(),
            open: Mutex::new(Vec::new()),
            data_connections: AtomicU64::new(0),
            control_connections: AtomicU64::new(0),
            line_delay: AtomicU64::new(0),
            cut_on: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        thread::spawn(move || {
            while let Some(client) = accepting.accept(&listener) {
                let target = *accepting.target.lock();
                // The server is down: close the client's connection.
                let Ok(server) = TcpStream::connect(target) else { continue };
                accepting.control_connections.fetch_add(1, Ordering::SeqCst);
                rewrite::session(&accepting, client, server);
            }
        });
        Ok(Self { address, shared })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the server of new sessions.
    pub fn set_target(&self, target: SocketAddr) {
        *self.shared.target.lock() = target;
    }

    /// Limits the total rate of all data connections; `None` removes the limit.
    pub fn set_rate(&self, bytes_per_second: Option<u64>) {
        *self.shared.pace.lock() = bytes_per_second.map(|rate| (1e9 / rate.max(1) as f64, Instant::now()));
    }

    /// Delays each following line of control connections by `delay`.
    pub fn delay_lines(&self, delay: Duration) {
        self.shared.line_delay.store(delay.as_micros() as u64, Ordering::SeqCst);
    }

    /// Stops or resumes forwarding on data connections.
    pub fn stall(&self, stalled: bool) {
        *self.shared.stalled.lock() = stalled;
        self.shared.changed.notify_all();
    }

    /// Returns the bytes forwarded over data connections so far, in both directions.
    pub fn moved(&self) -> u64 {
        self.shared.moved.load(Ordering::SeqCst)
    }

    /// Returns the number of data connections so far.
    pub fn data_connections(&self) -> u64 {
        self.shared.data_connections.load(Ordering::SeqCst)
    }

    /// Returns the number of control connections so far.
    pub fn control_connections(&self) -> u64 {
        self.shared.control_connections.load(Ordering::SeqCst)
    }

    /// Waits until `bytes` in total have been forwarded.
    pub fn wait_for(&self, bytes: u64, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        while self.moved() < bytes {
            ensure!(Instant::now() < end, "only {} of {bytes} bytes moved within {limit:?}", self.moved());
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Cuts every connection, including control connections.
    pub fn cut(&self) {
        self.shared.cut();
    }

    /// Cuts every connection once, as soon as `bytes` in total have been forwarded.
    pub fn cut_after(&self, bytes: u64) {
        self.shared.cut_at.store(bytes, Ordering::SeqCst);
    }

    /// Cuts every connection each time another `bytes` have been forwarded; 0 stops this.
    pub fn cut_every(&self, bytes: u64) {
        self.shared.cut_every.store(bytes, Ordering::SeqCst);
        self.cut_after(if bytes == 0 { u64::MAX } else { self.moved().saturating_add(bytes) });
    }

    /// Cuts every connection when a command arrives that begins with `command` (in capitals), up to
    /// `times` times. The command is not forwarded.
    pub fn cut_on(&self, command: &str, times: u32) {
        *self.shared.cut_on.lock() = (command.to_owned(), times);
    }

    /// Returns how many cuts of [`Self::cut_on`] are pending.
    pub fn cuts_due(&self) -> u32 {
        self.shared.cut_on.lock().1
    }

    /// Returns true until the cut of [`Self::cut_after`] has happened.
    pub fn cut_is_due(&self) -> bool {
        self.shared.cut_at.load(Ordering::SeqCst) != u64::MAX
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.stall(false);
        self.set_rate(None);
        self.shared.cut();
    }
}

impl Shared {
    /// Accepts the next connection; returns `None` after the proxy was dropped.
    fn accept(&self, listener: &TcpListener) -> Option<TcpStream> {
        let tick = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        loop {
            if self.over.load(Ordering::SeqCst) {
                return None;
            }
            let mut fds = [PollFd::new(listener, PollFlags::IN)];
            if matches!(rustix::event::poll(&mut fds, Some(&tick)), Ok(1..)) {
                return listener.accept().ok().map(|(stream, _)| stream);
            }
        }
    }

    /// Registers a connection so that it can be cut.
    fn register(&self, stream: TcpStream) -> Arc<TcpStream> {
        let stream = Arc::new(stream);
        let mut open = self.open.lock();
        open.retain(|other| Arc::strong_count(other) > 1);
        open.push(stream.clone());
        stream
    }

    /// Cuts connections with a reset: SO_LINGER 0 makes closing discard unsent data.
    fn cut(&self) {
        let broken = std::mem::take(&mut *self.open.lock());
        for stream in &broken {
            let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
            let _ = stream.shutdown(Shutdown::Read);
        }
        self.changed.notify_all();
        thread::spawn(move || {
            // A relay thread that still blocks in a write ends only when the socket is shut down
            // for writing too.
            thread::sleep(Duration::from_millis(50));
            for stream in broken {
                if Arc::strong_count(&stream) > 1 {
                    let _ = stream.shutdown(Shutdown::Both);
                }
            }
        });
    }

    fn cut_if_wanted(&self, command: &str) {
        let mut cut_on = self.cut_on.lock();
        if cut_on.1 > 0 && command.to_ascii_uppercase().starts_with(&cut_on.0) {
            cut_on.1 -= 1;
            self.cut();
        }
    }

    fn was_cut(&self, stream: &Arc<TcpStream>) -> bool {
        !self.open.lock().iter().any(|other| Arc::ptr_eq(other, stream))
    }

    /// Waits until `count` bytes may pass.
    fn pace(&self, count: usize) {
        let wait = {
            let mut pace = self.pace.lock();
            let Some((nanoseconds, next)) = pace.as_mut() else { return };
            let now = Instant::now();
            let begin = now.max(*next);
            *next = begin + Duration::from_nanos((*nanoseconds * count as f64) as u64);
            begin - now
        };
        thread::sleep(wait);
    }

    fn wait_while_stalled(&self) {
        let mut stalled = self.stalled.lock();
        while *stalled && !self.over.load(Ordering::SeqCst) {
            self.changed.wait_for(&mut stalled, Duration::from_millis(100));
        }
    }
}
