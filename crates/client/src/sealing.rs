//! The lines of a protected control connection: one by one (RFC 2228), or all in TLS (RFC 4217).

use ropewalk_protocol::client;
use ropewalk_protocol::line::{Ending, LineDecoder};
use ropewalk_tls::{Established, Ticket};

/// A sealed reply line, at most.
const LONGEST: usize = 2 << 20;

/// What stands between a session and its control connection.
pub(crate) trait Security: Send {
    /// Hands the replies in what came to `machine`. What the security itself has to say is appended to `out`.
    fn open(&mut self, bytes: &[u8], machine: &mut client::Session, out: &mut Vec<u8>) -> Result<(), String>;
    /// Seals command lines.
    fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String>;
    /// By which data connections resume the session.
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
    fn open(&mut self, bytes: &[u8], machine: &mut client::Session, _: &mut Vec<u8>) -> Result<(), String> {
        self.lines.push(bytes);
        while let Some(line) = self.lines.next_line().map_err(|e| e.to_string())? {
            let plain = self.session.open_reply(line)?;
            let line = plain.strip_suffix(b"\n").unwrap_or(&plain);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            machine.line(line).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        let mut rest = plain;
        while !rest.is_empty() {
            // A lone LF may stand in a path.
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
    fn open(&mut self, bytes: &[u8], machine: &mut client::Session, out: &mut Vec<u8>) -> Result<(), String> {
        let records = &mut self.0.records;
        let mut plain = Vec::new();
        // After the end of TLS comes that of the connection.
        let opened = records.open(bytes, &mut plain);
        out.append(&mut records.take_output());
        records.shrink();
        // What came before something that is wrong was right.
        machine.input(&plain).map_err(|e| e.to_string())?;
        opened.map(drop).map_err(|e| e.to_string())
    }

    fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        self.0.records.seal(plain, out).map_err(|e| e.to_string())
    }

    fn ticket(&self) -> Option<Ticket> {
        self.0.ticket()
    }
}
