//! Kerberos: data connections protected with the security context of the control connection (RFC
//! 2228 section 3, PROT).
//!
//! Each buffer is sent as its length in four bytes, big-endian, and a token of `gss_wrap`. An empty
//! buffer marks the end. There is no handshake: without the key of the context, a peer cannot send
//! data that verifies, and cannot read data with PROT P.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_kerberos::{Handle, Protection, SessionError, Stream};
use ropewalk_transport::{Breaker, Connection, ConnectionHandle, Endpoint, Interest, Readiness};

use crate::layer::Ready;
use crate::outgoing::{Sealed, leave_to_inner};
use crate::{Assurance, Handshake, Layer};

/// How many bytes are read from the network at once.
const READ: usize = 128 << 10;
/// How many plain bytes are protected at once, if the peer's buffer is large enough.
const WRITE: usize = 128 << 10;
/// How many bytes a token may exceed the buffer size by, because some clients count plain bytes.
const SLACK: usize = 1024;
const LENGTH: usize = 4;

/// Data connections that share the security context of a session.
#[derive(Clone, Debug)]
pub struct KerberosLayer {
    context: Handle,
    protection: Protection,
    buffer: u32,
}

impl KerberosLayer {
    /// Makes the layer. Call this before the peer can send data. `buffer` is PBSZ: the longest
    /// token, in bytes.
    pub fn new(context: Handle, protection: Protection, buffer: u32) -> Self {
        context.expect_streams();
        Self { context, protection, buffer }
    }
}

impl Layer for KerberosLayer {
    fn name(&self) -> &'static str {
        "kerberos"
    }

    /// With PROT S, a client that connects first has proved nothing, and can read the data.
    fn assurance(&self) -> Assurance {
        Assurance { bound: self.protection == Protection::Confidential, protected: true }
    }

    fn begin(&self, mut connection: Box<dyn Connection>, _initiates: bool) -> io::Result<Box<dyn Handshake>> {
        connection.set_nonblocking(true)?;
        let mut stream = self.context.stream(self.protection);
        let most = stream.plain_limit(self.buffer).map_err(broken)? as usize;
        if most == 0 {
            let text = format!("nothing fits into a protection buffer of {} bytes", self.buffer);
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        Ok(Box::new(Ready::new(Wrapped::new(connection, stream, most, self.buffer as usize))))
    }
}

struct Wrapped {
    inner: Box<dyn Connection>,
    stream: Stream,
    /// The maximum number of plain bytes in a token.
    most: usize,
    /// The maximum number of bytes in a token of the peer.
    longest: usize,
    /// Received bytes; those from `begin` on were not unwrapped yet.
    input: Vec<u8>,
    begin: usize,
    /// Unwrapped bytes; those from `start` on were not read yet.
    stash: Vec<u8>,
    start: usize,
    ended: bool,
    outgoing: Sealed,
    plain: Vec<u8>,
    /// The end marker is in the outgoing bytes.
    closing: bool,
    /// Time spent on the cryptography of tokens.
    sealing: Duration,
}

impl Wrapped {
    fn new(inner: Box<dyn Connection>, stream: Stream, most: usize, buffer: usize) -> Self {
        Self {
            inner,
            stream,
            most: most.min(WRITE),
            longest: buffer + SLACK,
            input: Vec::new(),
            begin: 0,
            stash: Vec::new(),
            start: 0,
            ended: false,
            outgoing: Sealed::default(),
            plain: Vec::new(),
            closing: false,
            sealing: Duration::ZERO,
        }
    }

    /// Unwraps the next message if it is complete and the previous one was read, so that
    /// [`Connection::buffered`] reports data that `poll` does not see.
    fn open(&mut self) -> io::Result<()> {
        while self.start == self.stash.len() && !self.ended {
            let waiting = &mut self.input[self.begin..];
            let Some(length) = waiting.first_chunk::<LENGTH>() else { break };
            let length = u32::from_be_bytes(*length) as usize;
            if length > self.longest {
                let text = format!(
                    "a protected message of {length} bytes on a data connection; {} were agreed on",
                    self.longest - SLACK
                );
                return Err(io::Error::new(ErrorKind::InvalidData, text));
            }
            let Some(token) = waiting.get_mut(LENGTH..LENGTH + length) else { break };
            self.stash.clear();
            self.start = 0;
            let began = Instant::now();
            self.stream.unwrap(token, &mut self.stash).map_err(broken)?;
            self.sealing += began.elapsed();
            self.begin += LENGTH + length;
            self.ended = self.stash.is_empty();
        }
        if self.begin == self.input.len() {
            self.input.clear();
            self.begin = 0;
        }
        Ok(())
    }

    /// Reads from the network once. Returns `false` at the end of the stream.
    fn fill(&mut self) -> io::Result<bool> {
        if self.begin > 0 {
            self.input.drain(..self.begin);
            self.begin = 0;
        }
        let had = self.input.len();
        self.input.resize(had + READ, 0);
        let result = self.inner.read(&mut self.input[had..]);
        self.input.truncate(had + *result.as_ref().unwrap_or(&0));
        Ok(result? > 0)
    }
}

/// Appends `plain` as a message.
fn seal(stream: &mut Stream, plain: &[u8], out: &mut Vec<u8>, sealing: &mut Duration) -> io::Result<()> {
    let at = out.len();
    out.extend_from_slice(&[0; LENGTH]);
    let began = Instant::now();
    stream.wrap(plain, out).map_err(broken)?;
    *sealing += began.elapsed();
    let length = u32::try_from(out.len() - at - LENGTH).map_err(io::Error::other)?;
    out[at..at + LENGTH].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

fn broken(error: SessionError) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("protected data connection: {error}"))
}

impl Read for Wrapped {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            self.open()?;
            if self.start < self.stash.len() {
                let count = buffer.len().min(self.stash.len() - self.start);
                buffer[..count].copy_from_slice(&self.stash[self.start..self.start + count]);
                self.start += count;
                self.open()?;
                return Ok(count);
            }
            if self.ended {
                return Ok(0);
            }
            if !self.fill()? {
                let text =
                    "the data connection ended without its protected end: somebody may have cut it off";
                return Err(io::Error::new(ErrorKind::UnexpectedEof, text));
            }
        }
    }
}

impl Write for Wrapped {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(data)])
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        let Self { inner, stream, most, outgoing, plain, sealing, .. } = self;
        outgoing.write(inner.as_mut(), |out| {
            // One message for a header and the data after it.
            plain.clear();
            for part in data {
                let left = *most - plain.len();
                plain.extend_from_slice(&part[..part.len().min(left)]);
            }
            if !plain.is_empty() {
                seal(stream, plain, out, sealing)?;
            }
            Ok(plain.len())
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Connection for Wrapped {
    leave_to_inner!();

    fn buffered(&self) -> usize {
        self.stash.len() - self.start
    }

    fn finish(&mut self) -> io::Result<()> {
        let Self { inner, stream, outgoing: Sealed { out, .. }, sealing, .. } = self;
        if !self.closing {
            seal(stream, &[], &mut out.bytes, sealing)?;
            self.closing = true;
        }
        out.send_last(inner.as_mut())?;
        inner.finish()
    }

    fn reset_on_drop(&mut self) -> io::Result<()> {
        self.inner.reset_on_drop()
    }

    fn local_addr(&self) -> io::Result<Endpoint> {
        self.inner.local_addr()
    }

    fn peer_addr(&self) -> io::Result<Endpoint> {
        self.inner.peer_addr()
    }

    fn sealing(&self) -> Duration {
        self.sealing
    }
}
