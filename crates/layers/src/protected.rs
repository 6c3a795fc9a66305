//! A connection whose bytes travel in TLS records.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use ropewalk_gsi::{Opened, RECORD, Session, SessionError};
use ropewalk_transport::{Breaker, Connection, TcpInfo};

/// Bytes that are read from the network at once.
const READ: usize = 128 << 10;
/// Plain bytes that are sealed at once.
const WRITE: usize = 128 << 10;

pub(crate) struct Protected {
    inner: Box<dyn Connection>,
    session: Box<Session>,
    /// Records to be sent, how much of them was, and the plain bytes in them. A write is not done before all of it is: the
    /// caller comes again with the same bytes.
    out: Vec<u8>,
    sent: usize,
    sealed: usize,
    /// Opened where the caller's buffer was full: `start..`.
    stash: Vec<u8>,
    start: usize,
    ended: bool,
}

impl Protected {
    pub(crate) fn new(inner: Box<dyn Connection>, session: Box<Session>) -> Self {
        Self {
            inner,
            session,
            out: Vec::new(),
            sent: 0,
            sealed: 0,
            stash: Vec::new(),
            start: 0,
            ended: false,
        }
    }

    /// Sends what is sealed; `WouldBlock` when not all of it could be.
    fn drain(&mut self) -> io::Result<()> {
        while self.sent < self.out.len() {
            match self.inner.write(&self.out[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    /// Opens records that are there into `buffer`.
    fn open(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() && !self.ended {
            match self.session.read(&mut buffer[filled..]).map_err(broken)? {
                Opened::Bytes(n) => filled += n,
                Opened::Nothing => break,
                Opened::End => self.ended = true,
            }
        }
        Ok(filled)
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
                self.ended = true;
                Ok(0)
            }
        }
    }
}

fn broken(error: SessionError) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error.to_string())
}

impl Read for Protected {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if self.start < self.stash.len() {
            let count = buffer.len().min(self.stash.len() - self.start);
            buffer[..count].copy_from_slice(&self.stash[self.start..self.start + count]);
            self.start += count;
            if self.start == self.stash.len() {
                self.look_further()?;
            }
            return Ok(count);
        }
        loop {
            if self.ended {
                return Ok(0);
            }
            let room = self.session.room(READ);
            let most = room.len().min(READ);
            let count = self.inner.read(&mut room[..most])?;
            if count == 0 {
                // GCT ends without a word, too.
                self.ended = true;
                return Ok(0);
            }
            self.session.received(count);
            let filled = self.open(buffer)?;
            let answer = self.session.take_output();
            if !answer.is_empty() {
                // To a key update. It leaves with the next write if it cannot now.
                self.out.extend(answer);
                match self.drain() {
                    Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e),
                    _ => {}
                }
            }
            if filled == buffer.len() {
                self.look_further()?;
            }
            if filled > 0 {
                return Ok(filled);
            }
        }
    }
}

impl Write for Protected {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(data)])
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.sealed == 0 {
            self.drain()?;
            let mut left = WRITE;
            for part in data {
                let part = &part[..part.len().min(left)];
                if !part.is_empty() {
                    self.session.seal(part, &mut self.out).map_err(broken)?;
                }
                left -= part.len();
            }
            self.sealed = WRITE - left;
        }
        self.drain()?;
        Ok(std::mem::take(&mut self.sealed))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Connection for Protected {
    fn plain_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.inner.poll_fd()
    }

    fn buffered(&self) -> usize {
        self.stash.len() - self.start
    }

    fn set_time_limit(&mut self, limit: Duration) -> io::Result<()> {
        self.inner.set_time_limit(limit)
    }

    fn set_nonblocking(&mut self, on: bool) -> io::Result<()> {
        self.inner.set_nonblocking(on)
    }

    fn set_buffers(&mut self, send: Option<usize>, receive: Option<usize>) -> io::Result<()> {
        self.inner.set_buffers(send, receive)
    }

    fn set_congestion(&mut self, name: &str) {
        self.inner.set_congestion(name);
    }

    fn finish(&mut self) -> io::Result<()> {
        self.drain()?;
        self.inner.finish()
    }

    fn reset_on_drop(&mut self) -> io::Result<()> {
        self.inner.reset_on_drop()
    }

    fn breaker(&self) -> io::Result<Breaker> {
        self.inner.breaker()
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.peer_addr()
    }

    fn info(&self) -> Option<TcpInfo> {
        self.inner.info()
    }
}
