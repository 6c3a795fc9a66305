//! How bytes travel: stacks of transport drivers.
//!
//! A *driver* makes connections (TCP here; others come beside it); a *layer* wraps a connection in another one.
//! The engine knows only [`Connection`], and asks it for a plain descriptor where it may move bytes without copying.

mod ceilings;
pub mod congestion;
mod tcp;
#[allow(unsafe_code)]
mod tcp_info;
pub mod testing;

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use ceilings::{BufferLimits, Ceilings, CeilingsError, least_buffers};
use rustix::event::{PollFd, PollFlags, Timespec};
pub use tcp::Tcp;
pub use tcp_info::TcpInfo;

/// A connected data stream. Blocking, but no call blocks longer than its time limit: it then fails with `WouldBlock`.
pub trait Connection: Read + Write + Send {
    /// The descriptor whose bytes are exactly this stream's bytes, where there is one: `sendfile` and `splice` may use it.
    fn plain_fd(&self) -> Option<BorrowedFd<'_>>;
    /// A descriptor to wait on with `poll`. Data may also be buffered above it, see [`Connection::buffered`].
    fn poll_fd(&self) -> BorrowedFd<'_>;
    /// Bytes received and decoded but not read yet, which `poll` does not see. 0 for plain TCP.
    fn buffered(&self) -> usize {
        0
    }
    /// No single read or write blocks longer than this.
    ///
    /// # Errors
    /// As of setsockopt(2).
    fn set_time_limit(&mut self, limit: Duration) -> io::Result<()>;
    /// Non-blocking: a call that would have to wait fails with `WouldBlock` at once instead.
    ///
    /// # Errors
    /// As of ioctl(2).
    fn set_nonblocking(&mut self, on: bool) -> io::Result<()>;
    /// Sets socket buffers (bytes) on the connection as it stands; `None` leaves one alone. A hint: drivers
    /// without such buffers ignore it.
    ///
    /// # Errors
    /// As of setsockopt(2). A size beyond the kernel's ceiling is no error.
    fn set_buffers(&mut self, send: Option<usize>, receive: Option<usize>) -> io::Result<()> {
        let _ = (send, receive);
        Ok(())
    }
    /// Has the connection use this congestion control from now on. A hint, as in [`SocketOptions::congestion`].
    fn set_congestion(&mut self, name: &str) {
        let _ = name;
    }
    /// Bounds the bytes that wait unsent in the kernel: a write waits while more than this are there (tcp(7),
    /// TCP_NOTSENT_LOWAT). Bytes in flight do not count. A hint: drivers without such a bound ignore it.
    fn set_unsent_limit(&mut self, bytes: u32) {
        let _ = bytes;
    }
    /// Everything written is on its way and no more will come: what ends a file in MODE S.
    ///
    /// # Errors
    /// The connection is broken, or what a layer still holds cannot be sent.
    fn finish(&mut self) -> io::Result<()>;
    /// When the connection is dropped from now on, the peer must not take it for an orderly end: TCP sends RST.
    ///
    /// # Errors
    /// As of setsockopt(2).
    fn reset_on_drop(&mut self) -> io::Result<()>;
    /// A handle by which another thread breaks this connection off. It does not keep the connection open.
    ///
    /// # Errors
    /// The driver has no means to do so; TCP always has.
    fn breaker(&self) -> io::Result<Breaker>;
    /// The address of this end.
    ///
    /// # Errors
    /// As of getsockname(2).
    fn local_addr(&self) -> io::Result<SocketAddr>;
    /// The address of the other end.
    ///
    /// # Errors
    /// As of getpeername(2): `NotConnected` once the connection is broken.
    fn peer_addr(&self) -> io::Result<SocketAddr>;
    /// Time spent so far on protecting and opening what went through it. 0 for plain TCP.
    fn sealing(&self) -> Duration {
        Duration::ZERO
    }
    /// The kernel's view of the connection, where it is TCP.
    fn info(&self) -> Option<TcpInfo>;
}

/// Breaks a connection or listener off from another thread; whoever is blocked in it gets an error at once.
#[derive(Clone)]
pub struct Breaker(Arc<dyn Fn() + Send + Sync>);

impl Breaker {
    pub fn new(f: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(f))
    }

    pub fn break_off(&self) {
        (self.0)();
    }
}

impl std::fmt::Debug for Breaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Breaker")
    }
}

/// More than a kernel keeps waiting at a port.
const TURNED_AWAY: usize = 8192;
/// More than an upload has streams, as a rule.
const TURNED_AWAY_TOGETHER: usize = 64;

/// Waits for connections.
pub trait Listener: Send + Sync {
    /// Where it listens.
    ///
    /// # Errors
    /// As of getsockname(2).
    fn local_addr(&self) -> io::Result<SocketAddr>;
    /// The next connection; `Ok(None)` when `deadline` passed (a deadline in the past: do not wait at all).
    /// Fails with `ConnectionAborted` once the listener is broken off.
    ///
    /// # Errors
    /// As said, or of the system, which has no descriptor left, say. A peer that is gone again is no error.
    fn accept(&self, deadline: Instant) -> io::Result<Option<Box<dyn Connection>>>;
    /// The connections that wait to be accepted, for somebody to close them. Those whose handshake is not through are closed,
    /// and so are those of a peer that makes very many: they must not cost as many descriptors, nor keep us here.
    fn turn_away(&self) -> Vec<Box<dyn Connection>> {
        let now = Instant::now();
        let mut waiting = Vec::new();
        for connection in (0..TURNED_AWAY).map_while(|_| self.accept(now).ok().flatten()) {
            if waiting.len() < TURNED_AWAY_TOGETHER {
                waiting.push(connection);
            }
        }
        waiting
    }
    /// Who came last and was closed, since the handshake of the connection failed.
    fn turned_down(&self) -> Option<TurnedDown> {
        None
    }
    fn poll_fd(&self) -> BorrowedFd<'_>;
    /// A handle by which another thread breaks the listener off.
    ///
    /// # Errors
    /// The driver has no means to do so; TCP always has.
    fn breaker(&self) -> io::Result<Breaker>;
}

/// A connection that was closed before it could be given to anybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnedDown {
    pub peer: SocketAddr,
    pub reason: String,
    /// It came from where those come from that are meant, so that hardly another one will.
    pub meant: bool,
}

/// Socket options that must be set before a connection is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// SO_SNDBUF in bytes; `None` leaves the kernel's autotuning on.
    pub send_buffer: Option<usize>,
    /// SO_RCVBUF in bytes; `None` leaves the kernel's autotuning on.
    pub receive_buffer: Option<usize>,
    /// TCP_CONGESTION. One that the host does not have or does not allow is told in a warning, and the connection has
    /// the host's own; see [`congestion`]. `None` is the host's own, and Reno for connections to this host and for
    /// listeners on loopback addresses.
    pub congestion: Option<String>,
    /// Local ports to choose from, inclusive; `None` is any.
    pub ports: Option<(u16, u16)>,
    /// Local address to bind to.
    pub bind: Option<IpAddr>,
}

/// How a driver waits while it makes a connection, so that its caller can wait for other things too.
pub trait Wait {
    /// Returns true when `fd` has one of `events` (or an error), false when `deadline` has passed.
    /// An error breaks off what is waited for.
    ///
    /// # Errors
    /// Whoever waits wants it broken off, or poll(2) fails.
    fn wait(&mut self, fd: BorrowedFd<'_>, events: PollFlags, deadline: Instant) -> io::Result<bool>;
}

/// Waits for nothing else.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitAlone;

impl Wait for WaitAlone {
    fn wait(&mut self, fd: BorrowedFd<'_>, events: PollFlags, deadline: Instant) -> io::Result<bool> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::from_borrowed_fd(fd, events)];
            match rustix::event::poll(&mut fds, Some(&timespec(left))) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// A duration as `poll` wants it.
pub fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// The address of this host from which `remote` is reached. Nothing is sent. Fails where there is no way.
///
/// # Errors
/// There is no way to `remote`, or no socket to be had.
pub fn local_address(remote: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr =
        if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}

/// Makes connections.
pub trait Driver: Send + Sync {
    /// The name in a stack string (`tcp`).
    fn name(&self) -> &'static str;
    /// Listen at `address` (port 0: any, within `options.ports`).
    ///
    /// # Errors
    /// No port that may be taken is free, `address` is not one of this host, or the system gives no socket.
    fn listen(&self, address: SocketAddr, options: &SocketOptions) -> io::Result<Box<dyn Listener>>;
    /// Connects to `address`. `timeout` is for the connection, and again for the handshake of each layer.
    ///
    /// # Errors
    /// The peer refuses or cannot be reached, the time is over (`TimedOut`), a layer's handshake fails, or no local
    /// port that may be taken is free.
    fn connect(
        &self,
        address: SocketAddr,
        options: &SocketOptions,
        timeout: Duration,
    ) -> io::Result<Box<dyn Connection>> {
        self.connect_waiting(address, options, timeout, &mut WaitAlone)
    }
    /// Like [`Driver::connect`], but all waiting is done by `wait`.
    ///
    /// # Errors
    /// As [`Driver::connect`], or the error of `wait`.
    fn connect_waiting(
        &self,
        address: SocketAddr,
        options: &SocketOptions,
        timeout: Duration,
        wait: &mut dyn Wait,
    ) -> io::Result<Box<dyn Connection>>;
}
