//! The interface of a connection: a stream of bytes that a driver has made.

use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;

use crate::{Endpoint, PathStats, Tuning};

/// A direction of a connection that a caller wants to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    Read,
    Write,
}

/// A descriptor, and the events to wait for on it with `poll`.
pub type Readiness<'a> = (BorrowedFd<'a>, PollFlags);

/// How bytes can be moved without a copy in this process.
#[derive(Clone, Copy, Debug)]
pub enum FastPath<'a> {
    /// Only by the methods of the connection.
    None,
    /// Through a socket whose bytes are exactly the bytes of the stream: `sendfile`, `splice` and
    /// `send` may use it.
    Socket(BorrowedFd<'a>),
}

impl<'a> FastPath<'a> {
    /// The socket, if the path is one.
    pub fn socket(self) -> Option<BorrowedFd<'a>> {
        match self {
            Self::None => None,
            Self::Socket(socket) => Some(socket),
        }
    }
}

/// A connected data stream. It is blocking, but no call blocks longer than the time limit: the call
/// then fails with `WouldBlock`.
pub trait Connection: Read + Write + Send {
    /// Returns what to wait for until the connection can be read or written. The events need not be
    /// those of the interest: a driver may signal room for a write by a descriptor that becomes
    /// readable. More data may be buffered in the stream, see [`Connection::buffered`].
    fn readiness(&self, interest: Interest) -> Readiness<'_>;
    /// Whether the peer has closed the connection, as far as is known here. Data may be left to
    /// read.
    fn peer_closed(&self) -> bool;
    /// Returns a way past the connection's buffers, if there is one.
    fn fast_path(&self) -> FastPath<'_> {
        FastPath::None
    }
    /// Drops up to `most` received bytes without looking at them, and returns their number; 0 is
    /// the end of the stream. Returns `None` if the driver cannot do that; the caller then reads.
    ///
    /// # Errors
    /// As for a read.
    fn discard(&mut self, most: usize) -> io::Result<Option<usize>> {
        let _ = most;
        Ok(None)
    }
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
    fn local_addr(&self) -> io::Result<Endpoint>;
    /// The address of the peer.
    ///
    /// # Errors
    /// Those of getpeername(2): `NotConnected` after the connection has failed.
    fn peer_addr(&self) -> io::Result<Endpoint>;
    /// A secret value that only the two ends of this connection have, if its driver encrypts: two
    /// connections, such as those of a man in the middle, have different values. `None` if the
    /// driver does not encrypt.
    fn channel_binding(&self) -> Option<[u8; 32]> {
        None
    }
    /// The time spent so far on the protection of the connection's data. 0 for plain TCP.
    fn sealing(&self) -> Duration {
        Duration::ZERO
    }
    /// Returns a handle for other threads, which does not keep the connection open.
    fn handle(&self) -> Arc<dyn ConnectionHandle>;
    /// The statistics of the connection, if the driver has any.
    fn stats(&self) -> Option<PathStats> {
        self.handle().stats()
    }
    /// Changes the settings that are not `None`.
    fn tune(&self, tuning: &Tuning) {
        self.handle().tune(tuning);
    }
}

/// A connection as other threads see it.
pub trait ConnectionHandle: Send + Sync {
    /// The statistics of the connection. `None` if the connection is closed, or if the driver has
    /// no statistics.
    fn stats(&self) -> Option<PathStats>;
    /// Changes the settings that are not `None`, as far as the driver has them. A setting that
    /// cannot be changed is logged, and the connection keeps the old one.
    fn tune(&self, tuning: &Tuning);
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
