//! Data connections to the control port (`SITE ONEPORT`, an extension of Ropewalk).
//!
//! `SITE ONEPORT` makes a data channel and returns its token. A data connection goes to the control
//! port and sends [`Token::line`] as its first line. The server answers `225`, behind its greeting
//! if it has sent one, and the bytes after that line belong to the data channel. A token only
//! selects the channel: who may use the channel is decided by the data key, TLS, GSI or address
//! that the channel requires of every connection. Channels over QUIC share one UDP port, which the
//! reply names, and the token is in the first packet of QUIC.

use std::fmt;
use std::str;

use bstr::ByteSlice as _;

use crate::reply::{ParserLimits, Reply, ReplyError, ReplyParser};

const TOKEN: usize = 16;
/// Precedes the number of the port in the reply to `SITE ONEPORT`.
const UDP_PORT: &[u8] = b"UDP port ";
/// The verb of the first line of a data connection, with the space after it.
const VERB: &[u8] = b"ONEPORT ";
/// Length of the first line with its CR LF.
const LINE: usize = VERB.len() + 2 * TOKEN + 2;
/// Bytes of the greeting and the answer together; a greeting can have many lines.
const MOST: usize = 64 << 10;

/// The reply to a data connection that the server takes (RFC 959 section 4.2).
pub const TAKEN: u16 = 225;

/// Names one data channel of a server. It consists of random bytes and cannot be guessed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; TOKEN]);

impl Token {
    /// `bytes` have to be random.
    pub fn new(bytes: [u8; TOKEN]) -> Self {
        Self(bytes)
    }

    /// Parses 32 hexadecimal digits.
    pub fn parse(digits: &[u8]) -> Option<Self> {
        if digits.len() != 2 * TOKEN {
            return None;
        }
        let mut bytes = [0; TOKEN];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            for digit in pair {
                *byte = *byte << 4 | char::from(*digit).to_digit(16)? as u8;
            }
        }
        Some(Self(bytes))
    }

    pub fn bytes(&self) -> [u8; TOKEN] {
        self.0
    }

    /// The first line of a data connection of the channel.
    pub fn line(&self) -> String {
        format!("ONEPORT {self}\r\n")
    }
}

/// The channel that `SITE ONEPORT` has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnePort {
    pub token: Token,
    /// The port that channels over UDP share. `None`: the control port.
    pub udp_port: Option<u16>,
}

impl OnePort {
    /// Reads the reply to `SITE ONEPORT`: the token is the last word.
    pub fn of_reply(reply: &Reply) -> Option<Self> {
        let mut words = reply.text().rsplit(|byte| *byte == b' ');
        let token = Token::parse(words.next()?)?;
        let parts = reply.text().split_str(", ");
        let number = parts.filter_map(|part| part.strip_prefix(UDP_PORT)).next();
        let udp_port = match number {
            Some(digits) => Some(str::from_utf8(digits).ok()?.parse().ok().filter(|port| *port > 0)?),
            None => None,
        };
        Some(Self { token, udp_port })
    }
}

/// The text of the reply to `SITE ONEPORT`.
impl fmt::Display for OnePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("One port, ")?;
        if let Some(port) = self.udp_port {
            write!(f, "UDP port {port}, ")?;
        }
        write!(f, "token {}", self.token)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(***)")
    }
}

/// The kind of a connection to the control port, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstLine {
    /// A control connection.
    Control,
    /// The beginning of the line of a data connection.
    Incomplete,
    /// A line of `length` bytes that begins as that of a data connection does, and has no token.
    Malformed { length: usize },
    /// A data connection. Its data begins after `length` bytes.
    Data { token: Token, length: usize },
}

impl FirstLine {
    /// How many bytes have to be examined at most.
    pub const LONGEST: usize = LINE;

    pub fn of(bytes: &[u8]) -> Self {
        let bytes = &bytes[..bytes.len().min(LINE)];
        let begins = |byte: &u8, verb: &u8| byte.eq_ignore_ascii_case(verb);
        if bytes.is_empty() || !bytes.iter().zip(VERB).all(|(byte, verb)| begins(byte, verb)) {
            return Self::Control;
        }
        let end = bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        match end {
            None if bytes.len() < LINE => Self::Incomplete,
            None => Self::Malformed { length: bytes.len() },
            Some(length) => {
                let line = bytes[..length].strip_suffix(b"\r\n");
                let token = line.and_then(|line| line.get(VERB.len()..)).and_then(Token::parse);
                match token {
                    Some(token) => Self::Data { token, length },
                    None => Self::Malformed { length },
                }
            }
        }
    }
}

/// The server has not taken a data connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    #[error("the server refused the data connection at its control port: {0}")]
    Refused(String),
    #[error("the server did not answer the data connection at its control port within {MOST} bytes")]
    TooLong,
    #[error(transparent)]
    Reply(#[from] ReplyError),
}

/// Waits for the server's answer to the line of a data connection, at the connecting side.
#[derive(Debug)]
pub struct Answer {
    parser: ReplyParser,
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
    consumed: usize,
}

impl Default for Answer {
    fn default() -> Self {
        let limits = ParserLimits { bytes: MOST, stray: 0, ..ParserLimits::default() };
        Self { parser: ReplyParser::new(limits), line: Vec::new(), consumed: 0 }
    }
}

impl Answer {
    /// Takes bytes that have come. Returns how many of them belong to the greeting and the answer,
    /// and whether the answer is complete; the next bytes are data. If it is not complete, all of
    /// them belong to it.
    ///
    /// # Errors
    /// The server refuses the connection, or does not answer as it should.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<(usize, bool), NotTaken> {
        let mut at = 0;
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            at += part.len();
            self.consumed += part.len();
            if self.consumed > MOST {
                return Err(NotTaken::TooLong);
            }
            self.line.extend_from_slice(part);
            let Some(line) = self.line.strip_suffix(b"\n") else { break };
            let reply = self.parser.line(line.strip_suffix(b"\r").unwrap_or(line))?;
            self.line.clear();
            match reply {
                Some(reply) if reply.code() == TAKEN => return Ok((at, true)),
                // The greeting; 120 may precede it.
                Some(reply) if reply.code() < 400 => {}
                Some(reply) => {
                    return Err(NotTaken::Refused(format!("{} {}", reply.code(), reply.text())));
                }
                None => {}
            }
        }
        Ok((at, false))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "000102030405060708090a0b0c0d0eff";

    fn token() -> Token {
        Token::parse(TEXT.as_bytes()).unwrap()
    }

    #[test]
    fn token_accepts_only_the_exact_form() {
        assert_eq!(token().to_string(), TEXT);
        assert_eq!(Token::parse(TEXT.to_uppercase().as_bytes()), Some(token()));
        for wrong in
            ["", &TEXT[1..], &format!("{TEXT}0"), &format!("{}g", &TEXT[1..]), &format!("+{}", &TEXT[1..])]
        {
            assert_eq!(Token::parse(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(format!("{:?}", token()), "Token(***)");
    }

    #[test]
    fn reply_has_the_token_as_its_last_word_and_perhaps_a_udp_port() {
        let of = |text: String| OnePort::of_reply(&Reply::new(250, text));
        for (text, udp_port) in [("One port, token", None), ("One port, UDP port 2811, token", Some(2811))] {
            let expected = OnePort { token: token(), udp_port };
            assert_eq!(of(format!("{text} {TEXT}")), Some(expected));
            assert_eq!(expected.to_string(), format!("{text} {TEXT}"));
        }
        for wrong in ["0", "65536", "-1", "", "x"] {
            assert_eq!(of(format!("One port, UDP port {wrong}, token {TEXT}")), None, "{wrong}");
        }
        assert_eq!(of("OK.".to_owned()), None);
    }

    #[test]
    fn first_line_of_a_control_connection_is_recognized_early() {
        for line in ["USER", "OPTS UTF8 ON\r\n", "\x16\x03\x01", "ONEPORX", "\r\n", "ONES", " ONEPORT"] {
            assert_eq!(FirstLine::of(line.as_bytes()), FirstLine::Control, "{line:?}");
        }
        assert_eq!(FirstLine::of(b""), FirstLine::Control);
    }

    #[test]
    fn first_line_of_a_data_connection_ends_where_data_begins() {
        let line = token().line();
        for length in 1..line.len() {
            assert_eq!(FirstLine::of(&line.as_bytes()[..length]), FirstLine::Incomplete, "{length}");
        }
        let whole = FirstLine::Data { token: token(), length: line.len() };
        assert_eq!(FirstLine::of(line.as_bytes()), whole);
        assert_eq!(FirstLine::of(format!("{line}RWDK\n").as_bytes()), whole);
        assert_eq!(FirstLine::LONGEST, line.len());
    }

    #[test]
    fn first_line_without_a_token_is_malformed() {
        let long = format!("ONEPORT {TEXT}{TEXT}");
        for line in [
            "ONEPORT \r\n",
            "ONEPORT x\r\n",
            &format!("ONEPORT {TEXT}\n"),
            &format!("ONEPORT {TEXT} \r\n"),
            &long,
        ] {
            assert!(matches!(FirstLine::of(line.as_bytes()), FirstLine::Malformed { .. }), "{line:?}");
        }
    }

    #[test]
    fn answer_behind_a_greeting_leaves_the_data() {
        let greeting = "220-Welcome\r\n225 is a number\r\n220 ready\r\n";
        let wire = format!("{greeting}225 Data connection open.\r\nDATA");
        let end = wire.len() - 4;
        assert_eq!(Answer::default().advance(wire.as_bytes()), Ok((end, true)));
        // Without a greeting, as on a port with implicit TLS.
        let bare = &wire.as_bytes()[greeting.len()..];
        assert_eq!(Answer::default().advance(bare), Ok((bare.len() - 4, true)));
        // In any pieces.
        let mut answer = Answer::default();
        let (mut at, mut taken) = (0, false);
        for seen in 1..=wire.len() {
            if !taken {
                let (n, complete) = answer.advance(&wire.as_bytes()[at..seen]).unwrap();
                (at, taken) = (at + n, complete);
            }
        }
        assert_eq!((at, taken), (end, true));
    }

    #[test]
    fn answer_that_refuses_is_an_error() {
        let refused = Answer::default().advance(b"220 ready\r\n425 No such data channel.\r\n");
        assert_eq!(refused, Err(NotTaken::Refused("425 No such data channel.".into())));
        let busy = Answer::default().advance(b"421 Service busy.\r\n");
        assert!(matches!(busy, Err(NotTaken::Refused(_))));
        let endless = Answer::default().advance(&vec![b'2'; MOST + 1]);
        assert_eq!(endless, Err(NotTaken::TooLong));
    }

    proptest! {
        #[test]
        fn one_port_on_any_input_does_not_panic(bytes: Vec<u8>) {
            let _ = FirstLine::of(&bytes);
            let _ = Token::parse(&bytes);
            let _ = Answer::default().advance(&bytes);
        }

        #[test]
        fn token_printed_is_parsed_back(bytes: [u8; TOKEN]) {
            let token = Token::new(bytes);
            prop_assert_eq!(Token::parse(token.to_string().as_bytes()), Some(token));
        }
    }
}
