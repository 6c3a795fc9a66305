//! Protection of the control connection after authentication. Each command and each line of a reply
//! is protected by itself and travels as base64 (RFC 2228 sections 3 and 4), in the form that GCT
//! uses.

use base64::Engine;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::STANDARD;

use crate::session::{Protection, Session, SessionError};

const BASE64: GeneralPurpose = STANDARD;

/// Encodes a token as the argument of `ADAT`, or as the text after `ADAT=` in a reply.
pub fn encode_token(token: &[u8]) -> String {
    BASE64.encode(token)
}

/// Decodes the token in the argument of `ADAT` or in the reply to it (the prefix `ADAT=` is
/// skipped).
///
/// # Errors
/// The text is not base64.
pub fn decode_token(text: &str) -> Result<Vec<u8>, SessionError> {
    let text = text.trim_end_matches(['\r', '\n', ' ']);
    let text = text.strip_prefix("ADAT=").unwrap_or(text);
    BASE64.decode(text).map_err(|_| SessionError::Line("the token is not base64"))
}

impl Session {
    /// Appends `ENC <base64>` (`MIC` without encryption) for a command line to `out`. The line
    /// includes its CR LF.
    ///
    /// # Errors
    /// The same errors as [`Session::seal`].
    pub fn seal_command(&mut self, line: &[u8], out: &mut Vec<u8>) -> Result<(), SessionError> {
        let word = match self.protection() {
            Protection::Confidential => "ENC ",
            Protection::Integrity => "MIC ",
        };
        self.seal_line(word, line, out)
    }

    /// Returns the command line in `MIC|ENC|CONF <base64>`. The word makes no difference.
    ///
    /// # Errors
    /// The command came in clear, is not base64, is not authentic or is truncated, or the peer has
    /// closed the secured connection.
    pub fn open_command(&mut self, line: &[u8]) -> Result<Vec<u8>, SessionError> {
        let bare = SessionError::Line("a command came in clear after authentication");
        let line = line.trim_ascii_end();
        let split = line.iter().position(|&byte| byte == b' ');
        let Some((word, text)) = split.map(|at| (&line[..at], &line[at + 1..])) else { return Err(bare) };
        if ![&b"MIC"[..], b"ENC", b"CONF"].iter().any(|known| word.eq_ignore_ascii_case(known)) {
            return Err(bare);
        }
        self.open_text(text)
    }

    /// Appends each line of a reply, protected, to `out`. The last line gets the code `632 `, the
    /// lines before it `632-` (631 without encryption).
    ///
    /// # Errors
    /// The same errors as [`Session::seal`]; the lines before the failed one are in `out` then.
    pub fn seal_reply(&mut self, reply: &[u8], out: &mut Vec<u8>) -> Result<(), SessionError> {
        let code = match self.protection() {
            Protection::Confidential => "632",
            Protection::Integrity => "631",
        };
        let mut lines = reply.split_inclusive(|&byte| byte == b'\n').peekable();
        while let Some(line) = lines.next() {
            let last = lines.peek().is_none();
            self.seal_line(&format!("{code}{}", if last { ' ' } else { '-' }), line, out)?;
        }
        Ok(())
    }

    /// Returns the reply line in a `631`, `632` or `633` reply, with its own code and CR LF.
    ///
    /// # Errors
    /// The same errors as [`Session::open_command`].
    pub fn open_reply(&mut self, line: &[u8]) -> Result<Vec<u8>, SessionError> {
        let line = line.trim_ascii_end();
        match line {
            [b'6', b'3', b'1' | b'2' | b'3', b' ' | b'-', text @ ..] => self.open_text(text),
            _ => Err(SessionError::Line("a reply came in clear after authentication")),
        }
    }

    fn seal_line(&mut self, head: &str, line: &[u8], out: &mut Vec<u8>) -> Result<(), SessionError> {
        let mut sealed = Vec::with_capacity(line.len() + 64);
        self.seal(line, &mut sealed)?;
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(BASE64.encode(&sealed).as_bytes());
        out.extend_from_slice(b"\r\n");
        Ok(())
    }

    fn open_text(&mut self, text: &[u8]) -> Result<Vec<u8>, SessionError> {
        let sealed = BASE64
            .decode(text.trim_ascii())
            .map_err(|_| SessionError::Line("what is protected is not base64"))?;
        let mut plain = Vec::new();
        if !self.open(&sealed, &mut plain)? {
            return Err(SessionError::Closed);
        }
        // A line is protected as a whole, so an incomplete record means a truncated line.
        if plain.is_empty() { Err(SessionError::Incomplete) } else { Ok(plain) }
    }
}
