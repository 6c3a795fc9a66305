//! How the lines of the control connection look on the wire: clear, or protected (RFC 2228).

use std::borrow::Cow;
use std::io;

use ropewalk_gsi::Session;
use ropewalk_protocol::line::{Ending, LineDecoder, strip_telnet};
use ropewalk_protocol::reply::Reply;

/// Stands between a session and its control connection.
pub(crate) trait ControlCodec: Send {
    /// Appends what is sent for a reply.
    fn encode(&mut self, reply: &Reply, out: &mut Vec<u8>);
    /// The bytes of command lines in what was received. An error ends the connection.
    fn decode<'a>(&mut self, received: &'a [u8]) -> io::Result<Cow<'a, [u8]>>;
}

/// Everything as it is.
pub(crate) struct ClearText;

impl ControlCodec for ClearText {
    fn encode(&mut self, reply: &Reply, out: &mut Vec<u8>) {
        reply.encode(out);
    }

    fn decode<'a>(&mut self, received: &'a [u8]) -> io::Result<Cow<'a, [u8]>> {
        Ok(Cow::Borrowed(received))
    }
}

/// Each command and each line of a reply sealed by itself (MIC, ENC, CONF; 631 to 633).
pub(crate) struct Sealed {
    session: Box<Session>,
    lines: LineDecoder,
}

impl Sealed {
    /// `longest`: of a command line before it is sealed.
    pub(crate) fn new(session: Box<Session>, longest: usize) -> Self {
        // Base64, the record's own bytes, and the word before it.
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

    fn decode<'a>(&mut self, received: &'a [u8]) -> io::Result<Cow<'a, [u8]>> {
        let wrong = |e: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidData, e.to_string());
        self.lines.push(received);
        let mut plain = Vec::new();
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
            plain.append(&mut command);
        }
        self.session.shrink();
        Ok(Cow::Owned(plain))
    }
}
