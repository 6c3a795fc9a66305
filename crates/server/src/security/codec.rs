//! The encoding of lines on the control connection: clear, protected line by line (RFC 2228), or
//! within TLS (RFC 4217).
//!
//! A codec belongs to one control connection and only transforms bytes. It does not read or write
//! the socket. An error of `decode` ends the connection.

use std::borrow::Cow;
use std::io;

use ropewalk_protocol::line::{Ending, LineDecoder, strip_telnet};
use ropewalk_protocol::reply::Reply;
use ropewalk_tls::{Handshake, HandshakeError, RECORD, Records, X509};
use zeroize::{Zeroize as _, Zeroizing};

/// The encoding between a session and its control connection.
pub(crate) trait ControlCodec: Send {
    /// Appends the bytes to send for a reply.
    fn encode(&mut self, reply: &Reply, out: &mut Vec<u8>);
    /// Returns the bytes of command lines in the received bytes. Records of the security mechanism
    /// itself are appended to `out`, even before an error, which ends the connection.
    fn decode<'a>(&mut self, received: &'a [u8], out: &mut Vec<u8>) -> io::Result<Cow<'a, [u8]>>;
    /// Nothing will be sent after this.
    fn finish(&mut self, out: &mut Vec<u8>) {
        let _ = out;
    }
    /// Whether a handshake is in progress, so that input costs CPU time.
    fn in_handshake(&self) -> bool {
        false
    }
    /// Returns the result of a handshake, once.
    fn take_secured(&mut self) -> Option<Secured> {
        None
    }
}

/// The result of a handshake.
pub(crate) struct Secured {
    pub(crate) version: &'static str,
    pub(crate) cipher: &'static str,
    /// The client's certificate, if it presented one that is trusted.
    pub(crate) certificate: Option<X509>,
    /// The session, if the server remembers it
    /// ([`Established::remembered_session`](ropewalk_tls::Established::remembered_session)).
    pub(crate) session: Option<Zeroizing<Vec<u8>>>,
}

/// The clear encoding.
pub(crate) struct ClearText;

impl ControlCodec for ClearText {
    fn encode(&mut self, reply: &Reply, out: &mut Vec<u8>) {
        reply.encode(out);
    }

    fn decode<'a>(&mut self, received: &'a [u8], _: &mut Vec<u8>) -> io::Result<Cow<'a, [u8]>> {
        Ok(Cow::Borrowed(received))
    }
}

/// A security context (RFC 2228).
pub(crate) trait Seal: Send {
    fn seal_reply(&mut self, reply: &[u8], out: &mut Vec<u8>) -> Result<(), String>;
    fn open_command(&mut self, line: &[u8]) -> Result<Vec<u8>, String>;
    /// Releases memory that is not needed while the client is silent.
    fn shrink(&mut self) {}
}

impl Seal for ropewalk_gsi::Session {
    fn seal_reply(&mut self, reply: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        Self::seal_reply(self, reply, out).map_err(|e| e.to_string())
    }

    fn open_command(&mut self, line: &[u8]) -> Result<Vec<u8>, String> {
        Self::open_command(self, line).map_err(|e| e.to_string())
    }

    fn shrink(&mut self) {
        Self::shrink(self);
    }
}

impl Seal for ropewalk_kerberos::Session {
    fn seal_reply(&mut self, reply: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        Self::seal_reply(self, reply, out).map_err(|e| e.to_string())
    }

    fn open_command(&mut self, line: &[u8]) -> Result<Vec<u8>, String> {
        Self::open_command(self, line).map_err(|e| e.to_string())
    }
}

/// Each command and each line of a reply is protected by itself (MIC, ENC, CONF; 631 to 633).
pub(crate) struct Sealed {
    session: Box<dyn Seal>,
    lines: LineDecoder,
}

impl Sealed {
    /// `longest` is the length of a command line before protection.
    pub(crate) fn new(session: Box<dyn Seal>, longest: usize) -> Self {
        // Base64, the overhead of the record, and the word before it.
        Self { session, lines: LineDecoder::new(Ending::Lf, longest / 3 * 4 + 1024) }
    }
}

impl ControlCodec for Sealed {
    fn encode(&mut self, reply: &Reply, out: &mut Vec<u8>) {
        let mut plain = Vec::new();
        reply.encode(&mut plain);
        if let Err(error) = self.session.seal_reply(&plain, out) {
            tracing::error!(%error, "a reply cannot be protected and is not sent");
        }
    }

    fn decode<'a>(&mut self, received: &'a [u8], _: &mut Vec<u8>) -> io::Result<Cow<'a, [u8]>> {
        let wrong = |e: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidData, e.to_string());
        self.lines.push(received);
        // The buffer does not grow: protected text is longer.
        let mut plain = Vec::with_capacity(received.len() + self.lines.buffered());
        while let Some(line) = self.lines.next_line().map_err(|e| wrong(&e))? {
            let line = strip_telnet(line);
            if line.is_empty() {
                continue;
            }
            let mut command = self.session.open_command(line).map_err(|e| {
                tracing::warn!(error = %e, "the control connection ends");
                wrong(&e)
            })?;
            if !command.ends_with(b"\r\n") {
                command.extend_from_slice(b"\r\n");
            }
            plain.extend_from_slice(&command);
            command.zeroize();
        }
        self.session.shrink();
        Ok(Cow::Owned(plain))
    }
}

/// All bytes are within TLS (RFC 4217), from the handshake on.
pub(crate) struct Tls {
    state: State,
    /// Replies that were made before the handshake was complete.
    waiting: Vec<u8>,
    /// A data connection has resumed the session since the last ticket.
    used: bool,
    secured: Option<Secured>,
}

enum State {
    Handshaking(Box<Handshake>),
    Open(Box<Records>),
    /// The client has ended TLS, or the handshake failed.
    Over,
}

impl Tls {
    pub(crate) fn new(handshake: Handshake) -> Self {
        Self {
            state: State::Handshaking(Box::new(handshake)),
            waiting: Vec::new(),
            used: false,
            secured: None,
        }
    }

    fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        match &mut self.state {
            State::Handshaking(_) => self.waiting.extend_from_slice(plain),
            State::Open(records) => {
                if let Err(error) = records.seal(plain, out) {
                    tracing::error!(%error, "a reply cannot be protected and is not sent");
                }
            }
            State::Over => {}
        }
    }
}

impl ControlCodec for Tls {
    fn encode(&mut self, reply: &Reply, out: &mut Vec<u8>) {
        let mut plain = Vec::new();
        reply.encode(&mut plain);
        let code = reply.code();
        if let State::Open(records) = &mut self.state {
            self.used |= matches!(code, 125 | 150);
            if self.used && code >= 200 {
                self.used = false;
                records.renew_ticket();
            }
        }
        self.seal(&plain, out);
    }

    fn decode<'a>(&mut self, received: &'a [u8], out: &mut Vec<u8>) -> io::Result<Cow<'a, [u8]>> {
        let wrong = |e: &dyn std::fmt::Display| {
            tracing::warn!(error = %e, "the control connection ends");
            io::Error::new(io::ErrorKind::InvalidData, e.to_string())
        };
        let mut fresh = received;
        if let State::Handshaking(handshake) = &mut self.state {
            match handshake.step(received, out) {
                Ok(None) => return Ok(Cow::Borrowed(&[])),
                Ok(Some(established)) => {
                    let certificate = established.certificate();
                    let session = established.remembered_session();
                    let records = established.records;
                    let (version, cipher) = (records.version(), records.cipher());
                    self.secured = Some(Secured { version, cipher, certificate, session });
                    self.state = State::Open(Box::new(records));
                    let waiting = std::mem::take(&mut self.waiting);
                    self.seal(&waiting, out);
                    fresh = &[];
                }
                Err(error) => {
                    self.state = State::Over;
                    let refused = matches!(error, HandshakeError::Certificate(_));
                    let error = wrong(&error);
                    // A refused certificate is distinguished from a broken connection.
                    return Err(if refused {
                        io::Error::new(io::ErrorKind::PermissionDenied, error)
                    } else {
                        error
                    });
                }
            }
        }
        let State::Open(records) = &mut self.state else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        // Room for the result of one read, so that the buffer is not copied to grow, which would
        // leave plain text behind.
        let mut plain = Vec::with_capacity(2 * RECORD);
        let open = records.open(fresh, &mut plain);
        out.append(&mut records.take_output());
        records.shrink();
        match open {
            Ok(true) => Ok(Cow::Owned(plain)),
            // Commands before the end count, as on a clear connection.
            Ok(false) if !plain.is_empty() => Ok(Cow::Owned(plain)),
            Ok(false) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(wrong(&error)),
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        if let State::Open(records) = &mut self.state {
            // This only fails if the connection can no longer be used.
            let _ = records.close(out);
        }
    }

    fn in_handshake(&self) -> bool {
        matches!(self.state, State::Handshaking(_))
    }

    fn take_secured(&mut self) -> Option<Secured> {
        self.secured.take()
    }
}
