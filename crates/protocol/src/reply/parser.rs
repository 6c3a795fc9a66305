//! Parses replies from lines, for the client.

use bstr::{BString, ByteSlice};

use super::{Reply, Style};

/// Limits of the replies that a server may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParserLimits {
    /// Most lines in one reply.
    pub lines: usize,
    /// Most bytes in all lines of one reply.
    pub bytes: usize,
    /// Most consecutive lines that belong to no reply.
    pub stray: usize,
}

impl Default for ParserLimits {
    fn default() -> Self {
        Self { lines: 100_000, bytes: 16 << 20, stray: 100 }
    }
}

/// The server does not follow the protocol, or it exceeds the limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    #[error("a reply of more than {limit} lines (code {code})")]
    TooManyLines { code: u16, limit: usize },
    #[error("a reply of more than {limit} bytes (code {code})")]
    TooLong { code: u16, limit: usize },
    #[error("expected a reply with a three-digit code, got {line:?}")]
    NotAReply { line: BString },
}

/// Assembles replies from lines.
///
/// Some replies of GCT are malformed: it quotes a refused TYPE or LANG with its CR LF, which makes
/// a second line without a code. The parser skips such lines, up to a limit.
#[derive(Debug, Default)]
pub struct ReplyParser {
    limits: ParserLimits,
    open: Option<Open>,
    stray: usize,
}

/// A reply whose last line has not come.
#[derive(Debug)]
struct Open {
    code: u16,
    style: Style,
    lines: Vec<BString>,
    bytes: usize,
}

/// Splits a line into the code, the separator and the text.
fn split_code(line: &[u8]) -> Option<(u16, u8, &[u8])> {
    let (digits, rest) = line.split_at_checked(3)?;
    if !digits.iter().all(u8::is_ascii_digit) || !(b'1'..=b'6').contains(&digits[0]) {
        return None;
    }
    let code = digits.iter().fold(0, |n, d| n * 10 + u16::from(d - b'0'));
    match rest.split_first() {
        None => Some((code, b' ', rest)),
        Some((&separator @ (b' ' | b'-'), text)) => Some((code, separator, text)),
        Some(_) => None,
    }
}

impl ReplyParser {
    pub fn new(limits: ParserLimits) -> Self {
        Self { limits, open: None, stray: 0 }
    }

    /// Whether a reply has begun whose last line has not come.
    pub fn is_within_reply(&self) -> bool {
        self.open.is_some()
    }

    /// Takes one line, without its line end. Returns the reply if this is its last line.
    ///
    /// # Errors
    /// A limit is exceeded. The connection can no longer be used.
    pub fn line(&mut self, line: &[u8]) -> Result<Option<Reply>, ReplyError> {
        let Some(mut open) = self.open.take() else {
            return self.first(line);
        };
        if let Some((code, b' ', text)) = split_code(line)
            && code == open.code
        {
            open.lines.push(text.into());
            return Ok(Some(Reply::with_lines(code, open.style, open.lines)));
        }
        let text = match split_code(line) {
            Some((code, b'-', text)) if code == open.code => text,
            _ => {
                open.style = Style::Indented;
                line.strip_prefix(b" ").unwrap_or(line)
            }
        };
        open.bytes += text.len();
        if open.bytes > self.limits.bytes {
            return Err(ReplyError::TooLong { code: open.code, limit: self.limits.bytes });
        }
        // Space for the last line is reserved.
        if open.lines.len() + 2 > self.limits.lines {
            return Err(ReplyError::TooManyLines { code: open.code, limit: self.limits.lines });
        }
        open.lines.push(text.into());
        self.open = Some(open);
        Ok(None)
    }

    fn first(&mut self, line: &[u8]) -> Result<Option<Reply>, ReplyError> {
        match split_code(line) {
            Some((code, b'-', text)) => {
                self.stray = 0;
                self.open =
                    Some(Open { code, style: Style::Coded, lines: vec![text.into()], bytes: text.len() });
                Ok(None)
            }
            Some((code, _, text)) => {
                self.stray = 0;
                Ok(Some(Reply::new(code, text)))
            }
            None => {
                self.stray += 1;
                if self.stray > self.limits.stray {
                    let line = line[..line.len().min(200)].as_bstr().to_owned();
                    return Err(ReplyError::NotAReply { line });
                }
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn parse(wire: &[u8]) -> Vec<Reply> {
        let mut parser = ReplyParser::default();
        wire.lines().filter_map(|line| parser.line(line).unwrap()).collect()
    }

    #[test]
    fn parser_reads_single_and_multi_line_replies() {
        let replies = parse(
            b"220 vm ready.\r\n211-Extensions supported\r\n MDTM\r\n 220 no end\r\n211 End.\r\n\
              500-a\r\n500-b\r\n500 End.\r\n200\r\n",
        );
        assert_eq!(
            replies,
            [
                Reply::new(220, "vm ready."),
                Reply::indented(211, "Extensions supported", ["MDTM", "220 no end"], "End."),
                Reply::coded(500, ["a", "b", "End."]),
                Reply::new(200, ""),
            ]
        );
    }

    #[test]
    fn parser_on_line_with_another_code_continues_reply() {
        let replies = parse(b"250-x\r\n226 y\r\n250-z\r\n250 End.\r\n");
        assert_eq!(replies.len(), 1);
        assert_eq!(replies[0].body().collect::<Vec<_>>(), ["226 y", "z"]);
    }

    #[test]
    fn parser_after_malformed_reply_of_gct_resyncs() {
        let replies = parse(b"501 'TYPE L 8\r\n' unrecognized type.\r\n200 Type set to I.\r\n");
        assert_eq!(replies, [Reply::new(501, "'TYPE L 8"), Reply::new(200, "Type set to I.")]);
    }

    #[test]
    fn parser_when_limits_are_exceeded_fails() {
        let mut parser = ReplyParser::new(ParserLimits { lines: 3, bytes: 10, stray: 2 });
        assert_eq!(parser.line(b"211-a"), Ok(None));
        assert_eq!(parser.line(b" b"), Ok(None));
        assert_eq!(parser.line(b" c"), Err(ReplyError::TooManyLines { code: 211, limit: 3 }));

        let mut parser = ReplyParser::new(ParserLimits { lines: 9, bytes: 10, stray: 2 });
        assert_eq!(parser.line(b"211-123456"), Ok(None));
        assert_eq!(parser.line(b" 12345"), Err(ReplyError::TooLong { code: 211, limit: 10 }));

        let mut parser = ReplyParser::new(ParserLimits { lines: 9, bytes: 10, stray: 2 });
        assert_eq!(parser.line(b"hello"), Ok(None));
        assert_eq!(parser.line(b"999 hello"), Ok(None));
        assert_eq!(parser.line(b"2000 x"), Err(ReplyError::NotAReply { line: "2000 x".into() }));
    }

    proptest! {
        #[test]
        fn parser_reads_encoded_replies_back(
            code in 100u16..660,
            style in prop_oneof![Just(Style::Coded), Just(Style::Indented)],
            lines in prop::collection::vec("[ -~]{0,12}", 1..6),
        ) {
            let reply = if let [first, body @ .., last] = &lines[..] && style == Style::Indented {
                Reply::indented(code, first.as_str(), body.iter().map(String::as_str), last.as_str())
            } else {
                Reply::coded(code, lines)
            };
            prop_assert_eq!(parse(&reply.to_bytes()), vec![reply]);
        }

        #[test]
        fn parser_on_any_bytes_does_not_panic(lines in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..50)) {
            let mut parser = ReplyParser::default();
            for line in lines {
                let _ = parser.line(&line);
            }
        }
    }
}
