//! Output of layers: a buffer for bytes that the inner connection does not take at once, and the
//! methods of `Connection` that are forwarded to the inner connection. A connection's final bytes
//! are sent with a time limit on each pause of the peer, because the caller does not call again for
//! them.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_transport::{Connection, ConnectionHandle, Interest, PathStats, Tuning, timespec};
use rustix::event::PollFd;
use rustix::io::Errno;

/// How long the final bytes of a connection wait for a peer that reads nothing.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes to send, and how many of them were sent.
#[derive(Default)]
pub(crate) struct Outgoing {
    pub(crate) bytes: Vec<u8>,
    sent: usize,
}

impl Outgoing {
    /// Sends the buffered bytes. Returns `false` if the connection takes no more now.
    pub(crate) fn send(&mut self, connection: &mut dyn Connection) -> io::Result<bool> {
        while self.sent < self.bytes.len() {
            match connection.write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Like [`Outgoing::send`], but fails with `WouldBlock` if bytes are left.
    pub(crate) fn drain(&mut self, connection: &mut dyn Connection) -> io::Result<()> {
        if self.send(connection)? { Ok(()) } else { Err(ErrorKind::WouldBlock.into()) }
    }

    /// Sends all bytes and waits if necessary, because they are the final bytes of the connection.
    pub(crate) fn send_last(&mut self, connection: &mut dyn Connection) -> io::Result<()> {
        let mut patience = LastWord::new();
        while !self.send(connection)? {
            patience.wait(connection)?;
        }
        Ok(())
    }
}

/// Waits until a connection takes its final bytes. Unlike for data, the caller does not call again
/// for them.
pub(crate) struct LastWord {
    patience: Duration,
    /// The end of the current wait, and how many bytes the peer had acknowledged at its start.
    waits: Option<(Instant, Option<u64>)>,
}

impl LastWord {
    pub(crate) fn new() -> Self {
        Self { patience: PATIENCE, waits: None }
    }

    /// Waits for room after a write had none. The caller must then try to write. Fails with
    /// `TimedOut` if the peer has acknowledged nothing for too long.
    pub(crate) fn wait(&mut self, connection: &dyn Connection) -> io::Result<()> {
        let taken = || connection.stats().and_then(|stats| stats.delivered);
        loop {
            let (until, before) =
                *self.waits.get_or_insert_with(|| (Instant::now() + self.patience, taken()));
            let left = until.saturating_duration_since(Instant::now());
            let (fd, events) = connection.readiness(Interest::Write);
            let mut fds = [PollFd::from_borrowed_fd(fd, events)];
            match rustix::event::poll(&mut fds, Some(&timespec(left))) {
                Ok(0) => {}
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            // Even if the peer reads, the kernel reports room only after a large part of its buffer
            // was sent, which takes time on a slow path.
            if taken() == before {
                let text = "the peer has taken nothing for too long, and the data connection cannot be ended";
                return Err(io::Error::new(ErrorKind::TimedOut, text));
            }
            self.waits = None;
        }
    }
}

/// Plain bytes that are protected and then sent.
#[derive(Default)]
pub(crate) struct Sealed {
    pub(crate) out: Outgoing,
    /// The number of plain bytes in the buffered output. A write completes only when all of it was
    /// sent; until then the caller repeats it with the same bytes.
    plain: usize,
}

impl Sealed {
    /// Implements a write. `seal` appends protected bytes and returns how many plain bytes it took.
    pub(crate) fn write(
        &mut self,
        connection: &mut dyn Connection,
        seal: impl FnOnce(&mut Vec<u8>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.plain == 0 {
            self.out.drain(connection)?;
            self.plain = seal(&mut self.out.bytes)?;
        }
        self.out.drain(connection)?;
        Ok(std::mem::take(&mut self.plain))
    }
}

/// The handle of a protected connection. Its peer can use the bytes of a record only if it has the
/// whole record, so the number of acknowledged bytes does not tell which bytes the peer has.
pub(crate) struct SealedHandle(pub(crate) Arc<dyn ConnectionHandle>);

impl ConnectionHandle for SealedHandle {
    fn stats(&self) -> Option<PathStats> {
        Some(PathStats { unacknowledged: None, ..self.0.stats()? })
    }

    fn tune(&self, tuning: &Tuning) {
        self.0.tune(tuning);
    }
}

/// The methods that a protected connection forwards to its field `inner`.
macro_rules! leave_to_inner {
    () => {
        fn readiness(&self, interest: Interest) -> Readiness<'_> {
            self.inner.readiness(interest)
        }

        fn peer_closed(&self) -> bool {
            self.inner.peer_closed()
        }

        fn set_time_limit(&mut self, limit: Duration) -> io::Result<()> {
            self.inner.set_time_limit(limit)
        }

        fn set_nonblocking(&mut self, on: bool) -> io::Result<()> {
            self.inner.set_nonblocking(on)
        }

        fn breaker(&self) -> io::Result<Breaker> {
            self.inner.breaker()
        }

        fn handle(&self) -> Arc<dyn ConnectionHandle> {
            std::sync::Arc::new($crate::outgoing::SealedHandle(self.inner.handle()))
        }
    };
}

pub(crate) use leave_to_inner;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read;
    use std::net::{SocketAddr, TcpStream};

    use ropewalk_transport::{Driver, Options, Tcp, Tuning};

    use super::*;

    /// A connection that takes no more bytes until its other end reads, and the number of bytes it
    /// has taken.
    fn full() -> (Box<dyn Connection>, TcpStream, usize) {
        let listener = std::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let tuning = Tuning { send_buffer: Some(4096), ..Tuning::default() };
        let options = Options { tuning, ..Options::default() };
        let limit = Duration::from_secs(20);
        let mut near = Tcp.connect(listener.local_addr().unwrap().into(), &options, limit).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        let (mut taken, mut waited) = (0, false);
        loop {
            match near.write(&[1; 4096]) {
                Ok(n) => (taken, waited) = (taken + n, false),
                Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
                Err(_) if waited => return (near, far, taken),
                Err(_) => {
                    // The kernel may still be moving bytes to the other end.
                    let (fd, events) = near.readiness(Interest::Write);
                    let mut fds = [PollFd::from_borrowed_fd(fd, events)];
                    rustix::event::poll(&mut fds, Some(&timespec(Duration::from_millis(100)))).unwrap();
                    waited = true;
                }
            }
        }
    }

    #[test]
    fn send_last_waits_for_room() {
        let (mut near, mut far, taken) = full();
        far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut out = Outgoing { bytes: b"end".to_vec(), sent: 0 };
        assert!(!out.send(near.as_mut()).unwrap());
        std::thread::scope(|scope| {
            let read = scope.spawn(move || {
                let mut all = Vec::new();
                far.read_to_end(&mut all).map(|_| all)
            });
            out.send_last(near.as_mut()).unwrap();
            near.finish().unwrap();
            let all = read.join().unwrap().unwrap();
            assert_eq!(all.len(), taken + 3);
            assert!(all.ends_with(b"end"));
        });
    }

    #[test]
    fn last_word_without_progress_times_out() {
        let (near, _far, _) = full();
        let mut word = LastWord { patience: Duration::from_millis(5), waits: None };
        assert_eq!(word.wait(near.as_ref()).unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
