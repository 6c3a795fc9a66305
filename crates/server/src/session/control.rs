//! A control connection: replies out, bytes of commands in.
//!
//! No method waits for the client, except [`Control::make_room`]. The thread that runs the session
//! owns the connection. After an error of reading or writing it can only be closed.

use std::borrow::Cow;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use ropewalk_protocol::reply::Reply;
use ropewalk_transport::timespec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::security::codec::{ControlCodec, Secured};

/// If more bytes of replies are unread, the client has to read before it gets more.
pub(crate) const HIGH_WATER: usize = 64 << 10;

/// The transport of a control connection: TCP, or standard input and output.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

pub(crate) struct Control {
    stream: Stream,
    codec: Box<dyn ControlCodec>,
    out: Vec<u8>,
    sent: usize,
    written: u64,
    registered: bool,
    has_received: bool,
    /// The client has closed its side, or the connection is broken.
    ended: bool,
    /// The connection is closed when everything is written.
    closing: bool,
}

/// With less bytes than this, replies may wait while the session carries out its next operation, to
/// be sent together.
pub(crate) const FEW: usize = 1 << 10;

/// The result of reading from the client.
pub(crate) enum Received<'a> {
    Bytes(Cow<'a, [u8]>),
    Nothing,
    End,
}

impl Control {
    pub(crate) fn new(stream: Stream, codec: Box<dyn ControlCodec>) -> Self {
        Self {
            stream,
            codec,
            out: Vec::new(),
            sent: 0,
            written: 0,
            registered: false,
            has_received: false,
            ended: false,
            closing: false,
        }
    }

    /// Changes the encoding of replies and commands. Bytes that wait to be written stay as they
    /// are.
    pub(crate) fn set_codec(&mut self, codec: Box<dyn ControlCodec>) {
        self.codec = codec;
    }

    /// Queues a reply.
    pub(crate) fn push(&mut self, reply: &Reply) {
        self.codec.encode(reply, &mut self.out);
    }

    /// Whether the next input is a step of a handshake, which takes CPU time.
    pub(crate) fn in_handshake(&self) -> bool {
        self.codec.in_handshake()
    }

    /// Returns the result of a handshake that is complete, once.
    pub(crate) fn take_secured(&mut self) -> Option<Secured> {
        self.codec.take_secured()
    }

    /// Bytes that wait to be written.
    pub(crate) fn pending(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Bytes that were written to the connection.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Writes as much as the connection takes. Returns true if nothing is left.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.sent += n;
                    self.written += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.ended = true;
                    return Err(e);
                }
            }
        }
        self.sent = 0;
        // An idle session keeps no buffer.
        self.out = Vec::new();
        Ok(true)
    }

    /// Writes until less than [`HIGH_WATER`] is left, for at most `patience`.
    pub(crate) fn make_room(&mut self, patience: Duration) -> io::Result<()> {
        let deadline = Instant::now() + patience;
        while !self.flush()? && self.pending() >= HIGH_WATER {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match poll(&mut [PollFd::new(&self.stream, PollFlags::OUT)], Some(&timespec(left))) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Copies what the client has sent into `buffer`, to be received later. Returns the number of
    /// bytes; `None` if that is not a TCP connection that waits for its first input.
    pub(crate) fn peek(&self, buffer: &mut [u8]) -> Option<usize> {
        match &self.stream {
            Stream::Tcp(stream) if !self.has_received => stream.peek(buffer).ok(),
            _ => None,
        }
    }

    /// Drops so many bytes of input that [`Self::peek`] has returned.
    pub(crate) fn skip(&mut self, bytes: usize) {
        // If they cannot be read, the connection is lost, and the next read finds out.
        let _ = self.stream.read_exact(&mut vec![0; bytes]);
    }

    /// Takes the socket out of the poller, for data. Input beyond `consumed` bytes, and output that
    /// waits, is left to the caller.
    pub(crate) fn release(mut self, registry: &Registry, consumed: usize) -> io::Result<std::net::TcpStream> {
        self.skip(consumed);
        if self.registered {
            registry.deregister(self.stream.source())?;
        }
        match self.stream {
            Stream::Tcp(stream) => Ok(OwnedFd::from(stream).into()),
            Stream::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Reads what the client has sent, without waiting.
    pub(crate) fn receive<'a>(&mut self, buffer: &'a mut [u8]) -> io::Result<Received<'a>> {
        if self.ended {
            return Ok(Received::End);
        }
        loop {
            match self.stream.read(buffer) {
                Ok(0) => {
                    self.ended = true;
                    return Ok(Received::End);
                }
                Ok(n) => {
                    self.has_received = true;
                    return Ok(Received::Bytes(self.codec.decode(&buffer[..n], &mut self.out)?));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Received::Nothing),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.ended = true;
                    return Err(e);
                }
            }
        }
    }

    /// From now on the connection is only used for the replies that wait to be written.
    pub(crate) fn close_after_output(&mut self) {
        self.closing = true;
    }

    pub(crate) fn closing(&self) -> bool {
        self.closing
    }

    /// Whether the client has sent something or closed its side since the last read.
    pub(crate) fn has_news(&self) -> bool {
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN | PollFlags::RDHUP)];
        !self.ended && poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Whether no more input will come.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// Ends the connection so that the last reply arrives: the system would reset the connection if
    /// there were unread input.
    pub(crate) fn close(mut self) {
        self.codec.finish(&mut self.out);
        // The client may be gone already.
        let _ = self.flush();
        let _ = self.stream.end_output();
        let mut rest = [0; 4096];
        for _ in 0..16 {
            match self.stream.read(&mut rest) {
                Ok(n) if n > 0 => {}
                _ => break,
            }
        }
    }

    /// Registers the connection with the poller, which reports once, when there is input, or
    /// (`output`) room for output.
    pub(crate) fn register(&mut self, registry: &Registry, token: Token, output: bool) -> io::Result<()> {
        let interest = if output { Interest::WRITABLE } else { Interest::READABLE };
        let source = self.stream.source();
        if self.registered {
            registry.reregister(source, token, interest)
        } else {
            self.registered = true;
            registry.register(source, token, interest)
        }
    }
}

impl Stream {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.read_exact(buffer),
            Self::Unix(stream) => stream.read_exact(buffer),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn end_output(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
