//! A connection between a front end and a node, on which both have proved that they have the join
//! token.
//!
//! It carries frames: messages in JSON, and bytes. One thread uses a link at a time. After an error
//! the link can only be closed.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use ropewalk_tls::{Handshake, HandshakeError, Records};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::{Zeroize as _, Zeroizing};

use crate::token::JoinToken;

/// The timeout of a peer that does not accept or send the next bytes of a handshake or a frame.
const PATIENCE: Duration = Duration::from_secs(10);
/// The maximum length of a frame: some hundred thousand ranges.
const LONGEST: usize = 32 << 20;
const HEAD: usize = 5;
/// Messages with secrets are usually shorter. A buffer of this size is not moved for them, and so
/// leaves no copy that is not cleared; a longer message, with a long chain of certificates, may.
const LONG: usize = 32 << 10;
/// The longest description of a message that is not understood, in characters.
const MOST_TEXT: usize = 200;

/// The reason why a link cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the other side does not have the same join token, or is no ropewalk front end or node ({0})")]
    Token(String),
    #[error("the other side has closed the connection")]
    Closed,
    #[error("TLS: {0}")]
    Tls(String),
    #[error("the other side has sent a message that this version does not understand: {0}")]
    Message(String),
    #[error("it has sent a report that cannot be true: {0}")]
    False(String),
}

/// One unit of transfer on a link. Messages may contain secrets of sessions, and are cleared.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    Message(Zeroizing<Vec<u8>>),
    Bytes(Vec<u8>),
}

impl Frame {
    /// The content of a message.
    ///
    /// # Errors
    /// The frame is no message, or is another one.
    pub fn message<T: DeserializeOwned>(&self) -> Result<T, LinkError> {
        match self {
            Self::Message(text) => {
                // The text of the error may have words of the message in it, of any length.
                serde_json::from_slice(text)
                    .map_err(|error| LinkError::Message(error.to_string().chars().take(MOST_TEXT).collect()))
            }
            Self::Bytes(_) => Err(LinkError::Message("bytes out of turn".into())),
        }
    }
}

/// A connection on which both sides have proved the token.
pub struct Link {
    stream: TcpStream,
    peer: SocketAddr,
    records: Records,
    /// Data that was received and not yet returned as a frame.
    plain: Vec<u8>,
}

impl Link {
    /// Connects to a front end, and proves the token.
    ///
    /// # Errors
    /// The front end cannot be reached, or does not have the token.
    pub fn connect(address: SocketAddr, token: &JoinToken) -> Result<Self, LinkError> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        let handshake = token.key().connect().map_err(|error| LinkError::Tls(error.to_string()))?;
        Self::secured(stream, handshake)
    }

    pub(crate) fn accept(stream: TcpStream, token: &JoinToken) -> Result<Self, LinkError> {
        let handshake = token.key().accept().map_err(|error| LinkError::Tls(error.to_string()))?;
        Self::secured(stream, handshake)
    }

    fn secured(mut stream: TcpStream, mut handshake: Handshake) -> Result<Self, LinkError> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let peer = stream.peer_addr()?;
        let until = Instant::now() + PATIENCE;
        let (mut input, mut out) = (vec![0; 4096], Vec::new());
        let mut count = 0;
        let established = loop {
            let step = handshake.step(&input[..count], &mut out);
            // After an error, `out` has the alert for the other side.
            let written = stream.write_all(&out);
            out.clear();
            match step {
                Ok(Some(established)) => {
                    written?;
                    break established;
                }
                Ok(None) => written?,
                Err(HandshakeError::Closed) => return Err(LinkError::Token("it has closed".into())),
                Err(error) => return Err(LinkError::Token(error.to_string())),
            }
            if Instant::now() >= until {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            count = stream.read(&mut input)?;
            if count == 0 {
                return Err(LinkError::Token("it has closed".into()));
            }
        };
        // Without this check, a peer with a certificate of its own might be accepted without the
        // token.
        if !established.resumed {
            return Err(LinkError::Token("it has not used the token".into()));
        }
        let plain = Vec::with_capacity(2 * LONG);
        let mut link = Self { stream, peer, records: established.records, plain };
        link.feed(&[])?;
        Ok(link)
    }

    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The local address of the connection.
    ///
    /// # Errors
    /// The system no longer knows the socket.
    pub fn local(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The connection is broken, or the peer does not read.
    pub fn send(&mut self, message: &impl Serialize) -> Result<(), LinkError> {
        let mut text = Zeroizing::new(Vec::with_capacity(LONG));
        serde_json::to_writer(&mut *text, message).map_err(|error| LinkError::Message(error.to_string()))?;
        self.write(b'M', &text)
    }

    /// Sends a frame of bytes.
    ///
    /// # Errors
    /// Those of [`Self::send`].
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        self.write(b'B', bytes)
    }

    fn write(&mut self, kind: u8, payload: &[u8]) -> Result<(), LinkError> {
        let length = u32::try_from(payload.len()).ok().filter(|length| *length as usize <= LONGEST);
        let length = length.ok_or_else(|| LinkError::Message("it is too long".into()))?;
        let [a, b, c, d] = length.to_be_bytes();
        let mut sealed = Vec::with_capacity(payload.len() + 256);
        let records = &mut self.records;
        let tls = |error: ropewalk_tls::RecordError| LinkError::Tls(error.to_string());
        records.seal(&[a, b, c, d, kind], &mut sealed).map_err(tls)?;
        records.seal(payload, &mut sealed).map_err(tls)?;
        Ok(self.stream.write_all(&sealed)?)
    }

    /// Returns a frame that has already arrived, without waiting.
    ///
    /// # Errors
    /// The connection is closed or broken.
    pub fn ready(&mut self) -> Result<Option<Frame>, LinkError> {
        self.receive(Duration::ZERO)
    }

    /// Waits for a frame. Returns `None` if none arrives within this time.
    ///
    /// # Errors
    /// The connection is closed or broken.
    pub fn receive(&mut self, timeout: Duration) -> Result<Option<Frame>, LinkError> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(frame) = self.parse()? {
                return Ok(Some(frame));
            }
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
            let mut buffer = vec![0; 64 << 10];
            match self.stream.read(&mut buffer)? {
                0 => return Err(LinkError::Closed),
                count => self.feed(&buffer[..count])?,
            }
        }
    }

    /// Waits until there is input here or at `other`, when no frame is [`Self::ready`].
    ///
    /// # Errors
    /// The system does not wait.
    pub(crate) fn wait_with(&self, other: BorrowedFd<'_>, timeout: Duration) -> Result<(), LinkError> {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let mut fds =
            [PollFd::new(&self.stream, PollFlags::IN), PollFd::from_borrowed_fd(other, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }

    /// Waits for a frame that has to arrive.
    ///
    /// # Errors
    /// It does not arrive in time, or the connection is closed or broken.
    pub fn expect(&mut self, timeout: Duration) -> Result<Frame, LinkError> {
        self.receive(timeout)?.ok_or_else(|| io::Error::from(io::ErrorKind::TimedOut).into())
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        let open = self.records.open(bytes, &mut self.plain);
        let more = self.records.take_output();
        if !more.is_empty() {
            self.stream.write_all(&more)?;
        }
        match open {
            Ok(true) => Ok(()),
            // Frames before the end are still returned; after them, the closed socket reports the
            // end.
            Ok(false) if self.plain.len() >= HEAD => Ok(()),
            Ok(false) => Err(LinkError::Closed),
            Err(error) => Err(LinkError::Tls(error.to_string())),
        }
    }

    fn parse(&mut self) -> Result<Option<Frame>, LinkError> {
        let Some((head, rest)) = self.plain.split_first_chunk::<HEAD>() else { return Ok(None) };
        let [a, b, c, d, kind] = *head;
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > LONGEST {
            return Err(LinkError::Message(format!("a frame of {length} bytes")));
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let payload = payload.to_vec();
        if kind == b'M' {
            self.plain[..HEAD + length].zeroize();
        }
        self.plain.drain(..HEAD + length);
        match kind {
            b'M' => Ok(Some(Frame::Message(payload.into()))),
            b'B' => Ok(Some(Frame::Bytes(payload))),
            kind => Err(LinkError::Message(format!("a frame of kind {kind}"))),
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::message::Order;

    fn token(secret: &str) -> JoinToken {
        JoinToken::new(secret.as_bytes()).unwrap()
    }

    fn pair(here: &str, there: &str) -> (Result<Link, LinkError>, Result<Link, LinkError>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::scope(|scope| {
            let accepting = scope.spawn(|| Link::accept(listener.accept().unwrap().0, &token(there)));
            let connected = Link::connect(address, &token(here));
            (connected, accepting.join().unwrap())
        })
    }

    #[test]
    fn frames_arrive_whole_and_in_order() {
        let (here, there) = pair("one", "one");
        let (mut here, mut there) = (here.unwrap(), there.unwrap());
        assert!(there.ready().unwrap().is_none());
        let bytes: Vec<u8> = (0..300_000_u32).map(|at| at as u8).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                here.send(&Order::Streams(7)).unwrap();
                here.send_bytes(&bytes).unwrap();
                here.send(&Order::Abort).unwrap();
            });
            let first: Order = there.expect(PATIENCE).unwrap().message().unwrap();
            assert!(matches!(first, Order::Streams(7)));
            assert_eq!(there.expect(PATIENCE).unwrap(), Frame::Bytes(bytes.clone()));
            let last: Order = there.expect(PATIENCE).unwrap().message().unwrap();
            assert!(matches!(last, Order::Abort));
        });
        drop(here);
        assert!(matches!(there.receive(PATIENCE), Err(LinkError::Closed)));
    }

    #[test]
    fn other_token_is_refused_by_both_sides() {
        let (here, there) = pair("one", "two");
        assert!(matches!(here, Err(LinkError::Token(_))), "{:?}", here.err());
        assert!(matches!(there, Err(LinkError::Token(_))), "{:?}", there.err());
    }

    #[test]
    fn false_front_end_in_clear_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| listener.accept().unwrap().0.write_all(b"220 ready\r\n").unwrap());
            assert!(matches!(Link::connect(address, &token("one")), Err(LinkError::Token(_))));
        });
    }
}
