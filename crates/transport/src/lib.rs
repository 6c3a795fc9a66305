//! Transport of bytes: stacks of transport drivers.
//!
//! A *driver* makes connections (TCP here; other crates have others). A *layer* wraps a connection
//! in another one. The engine uses only the trait [`Connection`]. It asks a connection for a plain
//! descriptor, over which it can move bytes without copying them.

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

/// A connected data stream. It is blocking, but no call blocks longer than the time limit: the call
/// then fails with `WouldBlock`.
pub trait Connection: Read + Write + Send {
    /// The descriptor whose bytes are exactly the bytes of this stream, if there is one. `sendfile`
    /// and `splice` may use it.
    fn plain_fd(&self) -> Option<BorrowedFd<'_>>;
    /// A descriptor to wait on with `poll`. More data may be buffered in the stream, see
    /// [`Connection::buffered`].
    fn poll_fd(&self) -> BorrowedFd<'_>;
    /// The number of bytes that were received and decoded but not read yet, which `poll` does not
    /// see. 0 for plain TCP.
    fn buffered(&self) -> usize {
        0
    }
    /// Sets the time limit of each read and write.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    fn set_time_limit(&mut self, limit: Duration) -> io::Result<()>;
    /// Sets non-blocking mode: a call that would have to wait fails with `WouldBlock` at once.
    ///
    /// # Errors
    /// Those of ioctl(2).
    fn set_nonblocking(&mut self, on: bool) -> io::Result<()>;
    /// Sets socket buffers (bytes) of the open connection; `None` does not change a buffer. This is
    /// a hint: drivers without such buffers ignore it.
    ///
    /// # Errors
    /// Those of setsockopt(2). A size beyond the kernel's limit is not an error.
    fn set_buffers(&mut self, send: Option<usize>, receive: Option<usize>) -> io::Result<()> {
        let _ = (send, receive);
        Ok(())
    }
    /// Makes the connection use this congestion control from now on. This is a hint, as
    /// [`SocketOptions::congestion`] is.
    fn set_congestion(&mut self, name: &str) {
        let _ = name;
    }
    /// Limits the bytes that wait unsent in the kernel: a write waits while there are more (tcp(7),
    /// TCP_NOTSENT_LOWAT). Bytes in flight do not count. This is a hint: drivers without such a
    /// limit ignore it.
    fn set_unsent_limit(&mut self, bytes: u32) {
        let _ = bytes;
    }
    /// Sends all written data and closes the sending direction. In MODE S this marks the end of the
    /// file.
    ///
    /// # Errors
    /// The connection has failed, or data that a layer has buffered cannot be sent.
    fn finish(&mut self) -> io::Result<()>;
    /// From now on, dropping the connection must not look like an orderly end to the peer: TCP
    /// sends RST.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    fn reset_on_drop(&mut self) -> io::Result<()>;
    /// Returns a handle with which another thread can abort this connection. The handle does not
    /// keep the connection open.
    ///
    /// # Errors
    /// The driver cannot abort connections; TCP always can.
    fn breaker(&self) -> io::Result<Breaker>;
    /// The local address.
    ///
    /// # Errors
    /// Those of getsockname(2).
    fn local_addr(&self) -> io::Result<SocketAddr>;
    /// The address of the peer.
    ///
    /// # Errors
    /// Those of getpeername(2): `NotConnected` after the connection has failed.
    fn peer_addr(&self) -> io::Result<SocketAddr>;
    /// The time spent so far on the protection of the connection's data. 0 for plain TCP.
    fn sealing(&self) -> Duration {
        Duration::ZERO
    }
    /// The kernel's statistics of the connection, if it is TCP.
    fn info(&self) -> Option<TcpInfo>;
}

/// Aborts a connection or listener from another thread. A call that blocks in it fails at once.
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

/// More connections than a kernel queues at a port.
const TURNED_AWAY: usize = 8192;
/// More streams than an upload usually has.
const TURNED_AWAY_TOGETHER: usize = 64;

/// Waits for connections.
pub trait Listener: Send + Sync {
    /// The address of the listener.
    ///
    /// # Errors
    /// Those of getsockname(2).
    fn local_addr(&self) -> io::Result<SocketAddr>;
    /// Returns the next connection, or `Ok(None)` after `deadline` (a deadline in the past: do not
    /// wait at all). Fails with `ConnectionAborted` after the listener was aborted.
    ///
    /// # Errors
    /// `ConnectionAborted`, or an error of the system, such as that no descriptor is left. A
    /// connection that the peer has closed meanwhile is not an error.
    fn accept(&self, deadline: Instant) -> io::Result<Option<Box<dyn Connection>>>;
    /// Returns the connections that wait to be accepted, so that the caller can close them.
    /// Connections whose handshake is not complete are closed here. So are those beyond a limit,
    /// because a peer that makes very many connections must not use up descriptors or keep the
    /// caller busy.
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
    /// The last connection that was closed because its handshake failed.
    fn turned_down(&self) -> Option<TurnedDown> {
        None
    }
    fn poll_fd(&self) -> BorrowedFd<'_>;
    /// Returns a handle with which another thread can abort the listener.
    ///
    /// # Errors
    /// The driver cannot abort listeners; TCP always can.
    fn breaker(&self) -> io::Result<Breaker>;
}

/// A connection that was closed before it was handed over, because its handshake failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnedDown {
    pub peer: SocketAddr,
    pub reason: String,
    /// Whether it came from the expected peer, so that another connection is unlikely.
    pub meant: bool,
}

/// Socket options that must be set before a connection is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// SO_SNDBUF in bytes; `None` leaves the kernel's autotuning on.
    pub send_buffer: Option<usize>,
    /// SO_RCVBUF in bytes; `None` leaves the kernel's autotuning on.
    pub receive_buffer: Option<usize>,
    /// TCP_CONGESTION. If the host does not have or does not allow this congestion control, a
    /// warning is logged and the connection uses the host's default; see [`congestion`]. `None` is
    /// the host's default, but Reno for connections to this host and for listeners on loopback
    /// addresses.
    pub congestion: Option<String>,
    /// The range of local ports to choose from, inclusive; `None` for any port.
    pub ports: Option<(u16, u16)>,
    /// The local address to bind to.
    pub bind: Option<IpAddr>,
}

/// How a driver waits while it makes a connection, so that its caller can wait for other events
/// too.
pub trait Wait {
    /// Returns true when `fd` has one of `events` (or an error), false when `deadline` has passed.
    /// An error aborts the operation that waits.
    ///
    /// # Errors
    /// The caller wants to abort the operation, or poll(2) fails.
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

/// Converts a duration for `poll`.
pub fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// Returns the address of this host from which `remote` is reached. No packet is sent.
///
/// # Errors
/// There is no route to `remote`, or no socket can be made.
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
    /// Listens at `address` (port 0: any port, within `options.ports`).
    ///
    /// # Errors
    /// No permitted port is free, `address` is not an address of this host, or the system cannot
    /// make a socket.
    fn listen(&self, address: SocketAddr, options: &SocketOptions) -> io::Result<Box<dyn Listener>>;
    /// Connects to `address`. `timeout` applies to the connection, and again to the handshake of
    /// each layer.
    ///
    /// # Errors
    /// The peer refuses or cannot be reached, the time is over (`TimedOut`), a layer's handshake
    /// fails, or no permitted local port is free.
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
    /// The same errors as [`Driver::connect`], or the error of `wait`.
    fn connect_waiting(
        &self,
        address: SocketAddr,
        options: &SocketOptions,
        timeout: Duration,
        wait: &mut dyn Wait,
    ) -> io::Result<Box<dyn Connection>>;
}
