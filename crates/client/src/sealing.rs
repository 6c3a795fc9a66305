//! Protection of a control connection: line by line (RFC 2228), or everything in TLS (RFC 4217).

use ropewalk_protocol::client;
use ropewalk_protocol::line::{Ending, LineDecoder};
use ropewalk_tls::{Established, RecordError, Ticket};

use crate::RemoteError;

/// The maximum length of a protected reply line.
const LONGEST: usize = 2 << 20;

/// Why received bytes cannot be used.
#[derive(Debug)]
pub(crate) enum Unopened {
    Nonsense(String),
    /// The server does not accept how this end has proved who it is.
    Refused(String),
}

impl Unopened {
    pub(crate) fn nonsense(error: impl std::fmt::Display) -> Self {
        Self::Nonsense(error.to_string())
    }

    pub(crate) fn of(self, peer: &str) -> RemoteError {
        let peer = peer.to_owned();
        match self {
            Self::Nonsense(reason) => RemoteError::Nonsense { peer, reason },
            Self::Refused(reason) => RemoteError::Security { peer, reason },
        }
    }
}

/// The protection between a session and its control connection.
pub(crate) trait Security: Send {
    /// Passes the received replies to `machine`. Output of the protection itself is appended to
    /// `out`.
    fn open(
        &mut self,
        bytes: &[u8],
        machine: &mut client::Session,
        out: &mut Vec<u8>,
    ) -> Result<(), Unopened>;
    /// Protects command lines.
    fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String>;
    /// The ticket with which data connections resume the TLS session.
    fn ticket(&self) -> Option<Ticket> {
        None
    }
}

/// A security context (RFC 2228).
pub(crate) trait Seal: Send {
    fn open_reply(&mut self, line: &[u8]) -> Result<Vec<u8>, String>;
    fn seal_command(&mut self, line: &[u8], out: &mut Vec<u8>) -> Result<(), String>;
}

impl Seal for ropewalk_gsi::Session {
    fn open_reply(&mut self, line: &[u8]) -> Result<Vec<u8>, String> {
        Self::open_reply(self, line).map_err(|e| e.to_string())
    }

    fn seal_command(&mut self, line: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        Self::seal_command(self, line, out).map_err(|e| e.to_string())
    }
}

impl Seal for ropewalk_kerberos::Session {
    fn open_reply(&mut self, line: &[u8]) -> Result<Vec<u8>, String> {
        Self::open_reply(self, line).map_err(|e| e.to_string())
    }

    fn seal_command(&mut self, line: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        Self::seal_command(self, line, out).map_err(|e| e.to_string())
    }
}

pub(crate) struct Sealing {
    session: Box<dyn Seal>,
    lines: LineDecoder,
}

impl Sealing {
    pub(crate) fn new(session: Box<dyn Seal>) -> Self {
        Self { session, lines: LineDecoder::new(Ending::Lf, LONGEST) }
    }
}

impl Security for Sealing {
    fn open(&mut self, bytes: &[u8], machine: &mut client::Session, _: &mut Vec<u8>) -> Result<(), Unopened> {
        self.lines.push(bytes);
        while let Some(line) = self.lines.next_line().map_err(Unopened::nonsense)? {
            let plain = self.session.open_reply(line).map_err(Unopened::Nonsense)?;
            let line = plain.strip_suffix(b"\n").unwrap_or(&plain);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            machine.line(line).map_err(Unopened::nonsense)?;
        }
        Ok(())
    }

    fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        let mut rest = plain;
        while !rest.is_empty() {
            // A path may have a single LF in it.
            let end = rest.windows(2).position(|pair| pair == b"\r\n").map_or(rest.len(), |at| at + 2);
            let (line, more) = rest.split_at(end);
            self.session.seal_command(line, out)?;
            rest = more;
        }
        Ok(())
    }
}

/// All bytes in TLS.
pub(crate) struct OverTls(Box<Established>);

impl OverTls {
    pub(crate) fn new(established: Box<Established>) -> Self {
        Self(established)
    }
}

impl Security for OverTls {
    fn open(
        &mut self,
        bytes: &[u8],
        machine: &mut client::Session,
        out: &mut Vec<u8>,
    ) -> Result<(), Unopened> {
        let records = &mut self.0.records;
        let mut plain = Vec::new();
        // The end of TLS is followed by the end of the connection.
        let opened = records.open(bytes, &mut plain);
        out.append(&mut records.take_output());
        records.shrink();
        // Plain text that precedes an invalid record is valid.
        machine.input(&plain).map_err(Unopened::nonsense)?;
        opened.map(drop).map_err(|error| match error {
            RecordError::CertificateRefused(_) => Unopened::Refused(error.to_string()),
            RecordError::Wrong(_) | RecordError::Alert(_) => Unopened::nonsense(error),
        })
    }

    fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        self.0.records.seal(plain, out).map_err(|e| e.to_string())
    }

    fn ticket(&self) -> Option<Ticket> {
        self.0.ticket()
    }
}
