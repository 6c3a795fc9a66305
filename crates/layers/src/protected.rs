//! A connection whose data travels in TLS records. It wraps another connection, has no plain
//! descriptor, and is used by one thread at a time. If a read fills the caller's buffer, one more
//! record is decrypted, so that `buffered` is correct. A record that does not verify fails the
//! connection, and the peer gets an alert. How an end without close_notify is treated depends on
//! [`Silence`].

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_tls::{DataRecords, Opened, RECORD, RecordError, Records};
use ropewalk_transport::{Breaker, Connection, ConnectionHandle, Endpoint, Interest, Readiness};

use crate::outgoing::{LastWord, leave_to_inner};

/// How many bytes are read from the network at once.
const READ: usize = 128 << 10;
/// How many plain bytes are protected at once.
const WRITE: usize = 128 << 10;

/// How long a client waits until the server closes the connection, too.
const LINGER: Duration = Duration::from_secs(10);

/// How to treat a connection that ends without close_notify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// As an orderly end, because GCT's programs send no close_notify.
    Ends,
    /// As a truncated stream, because an attacker can cause such an end. This side sends
    /// close_notify, too.
    Breaks,
    /// As `Breaks`, on the client's side. Servers send tickets at any time, and closing a
    /// connection with unread input would reset it and discard data that the kernel has not sent
    /// yet. So the client reads to the end before it closes.
    BreaksLingering,
}

pub(crate) struct Protected {
    inner: Box<dyn Connection>,
    session: DataRecords,
    silence: Silence,
    finished: bool,
    /// The local and the peer's address at the start. The system forgets the peer's address when
    /// the peer has closed, although all its data may have arrived.
    addresses: Option<(Endpoint, Endpoint)>,
    /// The number of plain bytes in the buffered output. A write completes only when all of it was
    /// sent; until then the caller repeats it with the same bytes.
    plain: usize,
    /// Decrypted data that did not fit into the caller's buffer; `start..` is unread.
    stash: Vec<u8>,
    start: usize,
    ended: bool,
    /// Time spent on the cryptography of records.
    sealing: Duration,
}

impl Protected {
    pub(crate) fn new(inner: Box<dyn Connection>, session: Records, silence: Silence) -> Self {
        Self {
            inner,
            session: DataRecords::new(session),
            silence,
            addresses: None,
            finished: false,
            plain: 0,
            stash: Vec::new(),
            start: 0,
            ended: false,
            sealing: Duration::ZERO,
        }
    }

    /// Sets the addresses of the connection.
    pub(crate) fn between(self, addresses: Option<(Endpoint, Endpoint)>) -> Box<Self> {
        let mut protected = Box::new(self);
        protected.addresses = addresses;
        protected
    }

    /// Sends the protected bytes; fails with `WouldBlock` if some are left.
    fn drain(&mut self) -> io::Result<()> {
        while !self.session.output().is_empty() {
            match self.inner.write(self.session.output()) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.session.sent(n),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Sends all protected bytes and waits for room if necessary.
    fn drain_last(&mut self) -> io::Result<()> {
        let mut patience = LastWord::new();
        loop {
            match self.drain() {
                Err(e) if e.kind() == ErrorKind::WouldBlock => patience.wait(&*self.inner)?,
                result => return result,
            }
        }
    }

    /// Decrypts the received records into `buffer`.
    fn open(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() && !self.ended {
            match self.session.read(&mut buffer[filled..]).map_err(broken)? {
                Opened::Bytes(n) => filled += n,
                Opened::Nothing => break,
                Opened::End => self.answer_end(),
            }
        }
        Ok(filled)
    }

    /// Copies data from the stash, as much as fits.
    fn unstash(&mut self, buffer: &mut [u8]) -> usize {
        let count = buffer.len().min(self.stash.len() - self.start);
        buffer[..count].copy_from_slice(&self.stash[self.start..self.start + count]);
        self.start += count;
        count
    }

    /// Decrypts one more record, so that [`Connection::buffered`] knows whether there is more data.
    fn look_further(&mut self) -> io::Result<()> {
        let mut stash = std::mem::take(&mut self.stash);
        stash.resize(RECORD, 0);
        let found = self.open_one(&mut stash);
        stash.truncate(*found.as_ref().unwrap_or(&0));
        self.stash = stash;
        self.start = 0;
        found.map(drop)
    }

    fn open_one(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.session.read(buffer).map_err(broken)? {
            Opened::Bytes(n) => Ok(n),
            Opened::Nothing => Ok(0),
            Opened::End => {
                self.answer_end();
                Ok(0)
            }
        }
    }

    /// The peer has closed its direction and may wait for the end of this one (RFC 5246 section
    /// 7.2.1). The result is ignored, because it makes no difference whether close_notify arrives.
    fn answer_end(&mut self) {
        self.ended = true;
        if self.silence != Silence::Ends && self.plain == 0 && self.session.close().is_ok() {
            let _ = self.drain();
        }
    }
}

fn broken(error: RecordError) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error.to_string())
}

impl Read for Protected {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let mut filled = self.unstash(buffer);
        loop {
            if filled < buffer.len() {
                let began = Instant::now();
                let opened = self.open(&mut buffer[filled..]);
                self.sealing += began.elapsed();
                // The output is an answer to a key update, or an alert that says why the connection
                // failed. If it cannot be sent now, the next write sends it.
                let drained = if self.ended { Ok(()) } else { self.drain() };
                filled += opened?;
                match drained {
                    Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e),
                    _ => {}
                }
            }
            if filled > 0 {
                if filled == buffer.len() && self.start == self.stash.len() {
                    self.look_further()?;
                }
                return Ok(filled);
            }
            if self.ended {
                return Ok(0);
            }
            let room = self.session.room(READ);
            let most = room.len().min(READ);
            let count = self.inner.read(&mut room[..most])?;
            if count == 0 {
                if self.session.is_torn() {
                    let text = "the TLS connection ended within a record: what came is cut off";
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, text));
                }
                if self.silence != Silence::Ends {
                    let text = "the TLS connection ended without close_notify: what came may be cut off";
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, text));
                }
                self.ended = true;
                return Ok(0);
            }
            self.session.received(count);
        }
    }
}

impl Write for Protected {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(data)])
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.plain == 0 {
            self.drain()?;
            let began = Instant::now();
            self.plain = self.session.seal(data, WRITE).map_err(broken)?;
            self.sealing += began.elapsed();
        }
        self.drain()?;
        Ok(std::mem::take(&mut self.plain))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Connection for Protected {
    leave_to_inner!();

    fn buffered(&self) -> usize {
        // The end counts as buffered data, because the socket may not report it.
        (self.stash.len() - self.start).max(usize::from(self.ended))
    }

    fn finish(&mut self) -> io::Result<()> {
        if self.silence == Silence::Ends {
            self.drain_last()?;
            return self.inner.finish();
        }
        self.session.close().map_err(broken)?;
        self.drain_last()?;
        self.finished = true;
        self.inner.finish()
    }

    fn reset_on_drop(&mut self) -> io::Result<()> {
        self.finished = false;
        self.inner.reset_on_drop()
    }

    fn local_addr(&self) -> io::Result<Endpoint> {
        self.addresses.as_ref().map_or_else(|| self.inner.local_addr(), |(local, _)| Ok(local.clone()))
    }

    fn peer_addr(&self) -> io::Result<Endpoint> {
        self.addresses.as_ref().map_or_else(|| self.inner.peer_addr(), |(_, peer)| Ok(peer.clone()))
    }

    fn sealing(&self) -> Duration {
        self.sealing
    }
}

impl Drop for Protected {
    fn drop(&mut self) {
        if self.silence != Silence::BreaksLingering || !self.finished {
            return;
        }
        if self.inner.set_nonblocking(false).is_ok() {
            let mut rest = [0; 4096];
            drain(LINGER, |left| {
                self.inner.set_time_limit(left)?;
                self.inner.read(&mut rest)
            });
        }
    }
}

/// Reads to the end of the stream, for at most `limit` in total. Tickets are short, so a peer that
/// sends more is not waited for.
fn drain(limit: Duration, mut read: impl FnMut(Duration) -> io::Result<usize>) {
    let end = Instant::now() + limit;
    for _ in 0..16 {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || !matches!(read(left), Ok(1..)) {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_of_a_slow_peer_respects_the_total_limit() {
        let limit = Duration::from_millis(20);
        let (mut reads, mut last) = (0, limit);
        // Each byte comes after more than half of the remaining time.
        drain(limit, |left| {
            assert!(left <= last);
            (reads, last) = (reads + 1, left);
            let until = Instant::now() + limit.mul_f64(0.6);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            Ok(1)
        });
        assert!(reads <= 2, "{reads}");
        drain(LINGER, |_| Ok(0));
    }
}
