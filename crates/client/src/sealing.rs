//! The lines of a protected control connection (RFC 2228).

use ropewalk_gsi::Session;
use ropewalk_protocol::client;
use ropewalk_protocol::line::{Ending, LineDecoder};

/// A sealed reply line, at most.
const LONGEST: usize = 2 << 20;

pub(crate) struct Sealing {
    session: Box<Session>,
    lines: LineDecoder,
}

impl Sealing {
    pub(crate) fn new(session: Box<Session>) -> Self {
        Self { session, lines: LineDecoder::new(Ending::Lf, LONGEST) }
    }

    /// Hands the replies in what came to `machine`.
    pub(crate) fn open(&mut self, bytes: &[u8], machine: &mut client::Session) -> Result<(), String> {
        self.lines.push(bytes);
        while let Some(line) = self.lines.next_line().map_err(|e| e.to_string())? {
            let plain = self.session.open_reply(line).map_err(|e| e.to_string())?;
            for line in plain.split_inclusive(|byte| *byte == b'\n') {
                let line = line.strip_suffix(b"\n").unwrap_or(line);
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                machine.line(line).map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    }

    /// Seals each of the command lines in `plain`.
    pub(crate) fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        let mut rest = plain;
        while !rest.is_empty() {
            // A lone LF may stand in a path.
            let end = rest.windows(2).position(|pair| pair == b"\r\n").map_or(rest.len(), |at| at + 2);
            let (line, more) = rest.split_at(end);
            self.session.seal_command(line, out).map_err(|e| e.to_string())?;
            rest = more;
        }
        Ok(())
    }
}
