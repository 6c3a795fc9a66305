//! A connection whose bytes travel in TLS records.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use ropewalk_tls::{DataRecords, Opened, RECORD, RecordError, Records};
use ropewalk_transport::{Breaker, Connection, TcpInfo};

use crate::outgoing::{LastWord, leave_to_inner};

/// Bytes that are read from the network at once.
const READ: usize = 128 << 10;
/// Plain bytes that are sealed at once.
const WRITE: usize = 128 << 10;

/// How long a client waits for the server to close a connection, too.
const LINGER: Duration = Duration::from_secs(10);

/// What the end of a connection without the end of its records (close_notify) is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// As good an end as another: GCT's programs have no other.
    Ends,
    /// Cut off: somebody on the way could have done it. We end with a word, too.
    Breaks,
    /// As `Breaks`; we are TLS's client, to which servers send tickets whenever they like. Closing a connection in which
    /// something was not read yet would reset it, and what the kernel has not sent would be lost.
    BreaksLingering,
}

pub(crate) struct Protected {
    inner: Box<dyn Connection>,
    session: DataRecords,
    silence: Silence,
    finished: bool,
    /// Ours and the peer's, as they were: the system forgets the peer's when it has gone, though all that it has sent is there.
    addresses: Option<(SocketAddr, SocketAddr)>,
    /// Plain bytes in what is to be sent. A write is not done before all of it is: the caller comes again with the same bytes.
    plain: usize,
    /// Opened where the caller's buffer was full: `start..`.
    stash: Vec<u8>,
    start: usize,
    ended: bool,
    /// Time in the records' cryptography.
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

    /// With the addresses that the connection had.
    pub(crate) fn between(self, addresses: Option<(SocketAddr, SocketAddr)>) -> Box<Self> {
        let mut protected = Box::new(self);
        protected.addresses = addresses;
        protected
    }

    /// Sends what is sealed; `WouldBlock` when not all of it could be.
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

    /// Sends all that is sealed, for which there may be no room yet.
    fn drain_last(&mut self) -> io::Result<()> {
        let mut patience = LastWord::new();
        loop {
            match self.drain() {
                Err(e) if e.kind() == ErrorKind::WouldBlock => patience.wait(&*self.inner)?,
                result => return result,
            }
        }
    }

    /// Opens records that are there into `buffer`.
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

    /// What was opened before, as far as it fits.
    fn unstash(&mut self, buffer: &mut [u8]) -> usize {
        let count = buffer.len().min(self.stash.len() - self.start);
        buffer[..count].copy_from_slice(&self.stash[self.start..self.start + count]);
        self.start += count;
        count
    }

    /// Opens one more record, so that [`Connection::buffered`] knows whether there is any.
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

    /// The peer has ended its direction, and may wait for the end of ours (RFC 5246 section 7.2.1). Whether it arrives makes
    /// no difference.
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
                // An answer to a key update, or why the peer is not believed any more. It leaves with the next write if it
                // cannot now.
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
        // The end counts: the socket need not tell of it.
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

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.addresses.map_or_else(|| self.inner.local_addr(), |(local, _)| Ok(local))
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.addresses.map_or_else(|| self.inner.peer_addr(), |(_, peer)| Ok(peer))
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

/// Reads to the end, for `limit` at most, all reads together. Tickets are short: who sends more is not waited for.
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
    fn who_goes_on_with_a_little_is_not_waited_for() {
        let limit = Duration::from_millis(20);
        let (mut reads, mut last) = (0, limit);
        // Each byte comes when most of what is left is over.
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
