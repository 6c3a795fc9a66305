//! Protection of the control connection after authentication: each command and each line of a reply
//! is one GSS token, sent as base64 (RFC 2228 sections 3, 4 and 8.1).

use base64::Engine;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::STANDARD;

use crate::session::{Protection, Session};
use crate::{KerberosError, SessionError};

const BASE64: GeneralPurpose = STANDARD;

/// Encodes a token as the argument of `ADAT`, or as the text after `ADAT=` in a reply.
pub fn encode_token(token: &[u8]) -> String {
    BASE64.encode(token)
}

/// Decodes the token in the argument of `ADAT`, or in a reply to it (a leading `ADAT=` is ignored).
///
/// # Errors
/// The text is not base64.
pub fn decode_token(text: &str) -> Result<Vec<u8>, KerberosError> {
    let text = text.trim_end_matches(['\r', '\n', ' ']);
    let text = text.strip_prefix("ADAT=").unwrap_or(text);
    BASE64.decode(text).map_err(|_| KerberosError::Framing("it is not base64"))
}

/// Which bytes end a line. Commands may contain a lone LF in a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    CrLf,
    CrOrLf,
}

/// Checks that the text is a single line. Data connections are protected by the same context, so
/// that an attacker between client and server could present a part of a file as a command or reply:
/// its first line would be invalid, but the next one would be executed. Zero bytes are refused
/// because they occur in the header of a MODE E block.
fn alone(plain: Vec<u8>, ends: Ends) -> Result<Vec<u8>, SessionError> {
    let line = plain.strip_suffix(b"\n").unwrap_or(&plain);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let several = match ends {
        Ends::CrLf => line.windows(2).any(|pair| pair == b"\r\n"),
        Ends::CrOrLf => line.iter().any(|byte| matches!(byte, b'\r' | b'\n')),
    };
    if several || line.contains(&0) {
        return Err(SessionError::Line("there is more than one line in what is protected"));
    }
    Ok(plain)
}

impl Session {
    /// Appends `ENC <base64>` for a command line to `out`. The command line includes its CR LF.
    ///
    /// # Errors
    /// As [`Session::wrap`].
    pub fn seal_command(&mut self, line: &[u8], out: &mut Vec<u8>) -> Result<(), SessionError> {
        self.seal_line("ENC ", line, out)
    }

    /// Decrypts the command line in `MIC|ENC|CONF <base64>`.
    ///
    /// # Errors
    /// As [`Session::unwrap`]; the line is not protected, or is protected less than its keyword
    /// claims.
    pub fn open_command(&mut self, line: &[u8]) -> Result<Vec<u8>, SessionError> {
        let bare = SessionError::Line("a command came in clear after authentication");
        let line = line.trim_ascii_end();
        let split = line.iter().position(|&byte| byte == b' ');
        let Some((word, text)) = split.map(|at| (&line[..at], &line[at + 1..])) else { return Err(bare) };
        let is = |known: &[u8]| word.eq_ignore_ascii_case(known);
        if !is(b"MIC") && !is(b"ENC") && !is(b"CONF") {
            return Err(bare);
        }
        let (plain, protection) = self.open_text(text)?;
        if !is(b"MIC") && protection != Protection::Confidential {
            return Err(SessionError::NotEncrypted);
        }
        alone(plain, Ends::CrLf)
    }

    /// Appends each line of a reply to `out`: `632-` before all lines but the last, `632 ` before
    /// the last.
    ///
    /// # Errors
    /// As [`Session::wrap`].
    pub fn seal_reply(&mut self, reply: &[u8], out: &mut Vec<u8>) -> Result<(), SessionError> {
        let mut lines = reply.split_inclusive(|&byte| byte == b'\n').peekable();
        while let Some(line) = lines.next() {
            let last = lines.peek().is_none();
            self.seal_line(if last { "632 " } else { "632-" }, line, out)?;
        }
        Ok(())
    }

    /// Decrypts the reply line in `631`, `632` or `633`. The result has its own reply code and CR
    /// LF.
    ///
    /// # Errors
    /// As [`Session::unwrap`]; the line is not protected.
    pub fn open_reply(&mut self, line: &[u8]) -> Result<Vec<u8>, SessionError> {
        let line = line.trim_ascii_end();
        match line {
            [b'6', b'3', b'1' | b'2' | b'3', b' ' | b'-', text @ ..] => {
                alone(self.open_text(text)?.0, Ends::CrOrLf)
            }
            _ => Err(SessionError::Line("a reply came in clear after authentication")),
        }
    }

    fn seal_line(&mut self, head: &str, line: &[u8], out: &mut Vec<u8>) -> Result<(), SessionError> {
        let mut token = Vec::with_capacity(line.len() + 64);
        self.wrap(line, Protection::Confidential, &mut token)?;
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(BASE64.encode(&token).as_bytes());
        out.extend_from_slice(b"\r\n");
        Ok(())
    }

    fn open_text(&mut self, text: &[u8]) -> Result<(Vec<u8>, Protection), SessionError> {
        let mut token = BASE64
            .decode(text.trim_ascii())
            .map_err(|_| SessionError::Line("what is protected is not base64"))?;
        let mut plain = Vec::new();
        let protection = self.unwrap(&mut token, &mut plain)?;
        Ok((plain, protection))
    }
}
