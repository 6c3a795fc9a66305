//! Replies on the control connection (RFC 959 section 4.2).

mod parser;

use std::fmt;

use bstr::{BStr, BString, ByteSlice};
pub use parser::{ParserLimits, ReplyError, ReplyParser};

/// One reply: a code and one or more lines of text.
///
/// The lines have neither the code nor a line end. CR and LF in a text (a file name may contain
/// them) are replaced with `?`, so that a file name cannot forge a reply.
#[derive(Clone, PartialEq, Eq)]
pub struct Reply {
    code: u16,
    style: Style,
    /// Never empty.
    lines: Vec<BString>,
}

/// The prefix of the lines between the first and the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// `ddd-`.
    Coded,
    /// One space: FEAT, HELP, MLST, markers.
    Indented,
    /// `ddd-`, also for the last line: another reply with this code ends it.
    Begun,
}

/// The meaning of the first digit of a code (RFC 959 section 4.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyClass {
    /// 1yz: more replies follow.
    Preliminary,
    /// 2yz: the command is complete.
    Completion,
    /// 3yz: another command has to follow.
    Intermediate,
    /// 4yz: the command failed, but may succeed later.
    TransientFailure,
    /// 5yz: the command failed.
    PermanentFailure,
    /// 6yz: a protected reply (RFC 2228 section 5).
    Protected,
}

fn clean(mut line: BString) -> BString {
    if line.find_byteset(b"\r\n").is_some() {
        for b in line.iter_mut() {
            if matches!(b, b'\r' | b'\n') {
                *b = b'?';
            }
        }
    }
    line
}

impl Reply {
    /// A reply of one line: `ddd text`.
    pub fn new(code: u16, text: impl Into<BString>) -> Self {
        Self { code, style: Style::Coded, lines: vec![clean(text.into())] }
    }

    /// Lines `ddd-text`, and `ddd text` for the last one. If `lines` is empty, the reply has one
    /// empty line.
    pub fn coded<T: Into<BString>>(code: u16, lines: impl IntoIterator<Item = T>) -> Self {
        Self::with_lines(code, Style::Coded, lines.into_iter().map(|l| clean(l.into())).collect())
    }

    /// `ddd-first`, the lines of `body` each after one space, and `ddd last`.
    pub fn indented<T: Into<BString>>(
        code: u16,
        first: impl Into<BString>,
        body: impl IntoIterator<Item = T>,
        last: impl Into<BString>,
    ) -> Self {
        let mut lines = vec![clean(first.into())];
        lines.extend(body.into_iter().map(|l| clean(l.into())));
        lines.push(clean(last.into()));
        Self::with_lines(code, Style::Indented, lines)
    }

    /// The first line of a reply, or one in between: `ddd-text`. A later reply of one line with the
    /// same code ends the reply.
    pub fn begin(code: u16, text: impl Into<BString>) -> Self {
        Self { code, style: Style::Begun, lines: vec![clean(text.into())] }
    }

    fn with_lines(code: u16, style: Style, mut lines: Vec<BString>) -> Self {
        if lines.is_empty() {
            lines.push(BString::default());
        }
        // Without lines in between the style makes no difference, and equal replies should be
        // equal.
        let style = if lines.len() > 2 { style } else { Style::Coded };
        Self { code, style, lines }
    }

    pub fn code(&self) -> u16 {
        self.code
    }

    pub fn class(&self) -> ReplyClass {
        match self.code / 100 {
            1 => ReplyClass::Preliminary,
            2 => ReplyClass::Completion,
            3 => ReplyClass::Intermediate,
            4 => ReplyClass::TransientFailure,
            6 => ReplyClass::Protected,
            _ => ReplyClass::PermanentFailure,
        }
    }

    /// Whether more replies to the same command follow.
    pub fn is_preliminary(&self) -> bool {
        self.class() == ReplyClass::Preliminary
    }

    /// Whether the code is 2yz.
    pub fn is_success(&self) -> bool {
        self.class() == ReplyClass::Completion
    }

    /// Whether the code is 4yz or 5yz.
    pub fn is_failure(&self) -> bool {
        matches!(self.class(), ReplyClass::TransientFailure | ReplyClass::PermanentFailure)
    }

    /// Whether the command itself, not what it was about, was refused (RFC 959 section 4.2).
    /// Servers use code 500 for both; their words tell.
    pub fn is_unknown_command(&self) -> bool {
        const WORDS: [&str; 6] = [
            "not supported",
            "unknown command",
            "not understood",
            "invalid command",
            "unrecognized",
            "opts failed",
        ];
        match self.code() {
            501 | 502 | 504 => true,
            500 => self.lines().any(|line| {
                let said = line.to_string().to_ascii_lowercase();
                WORDS.iter().any(|words| said.contains(words))
            }),
            _ => false,
        }
    }

    pub fn style(&self) -> Style {
        self.style
    }

    /// The text of the first line.
    pub fn text(&self) -> &BStr {
        self.lines[0].as_bstr()
    }

    /// All lines, including the first and the last; never empty.
    pub fn lines(&self) -> impl DoubleEndedIterator<Item = &BStr> + ExactSizeIterator {
        self.lines.iter().map(|l| l.as_bstr())
    }

    /// The lines between the first and the last.
    pub fn body(&self) -> impl DoubleEndedIterator<Item = &BStr> + ExactSizeIterator {
        let end = self.lines.len().saturating_sub(1).max(1);
        self.lines[1..end].iter().map(|l| l.as_bstr())
    }

    /// Appends the lines of the reply to `out`, each with CR LF.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let code = format!("{:03}", self.code);
        let last = self.lines.len() - 1;
        for (i, line) in self.lines.iter().enumerate() {
            if i == last && self.style != Style::Begun {
                out.extend_from_slice(code.as_bytes());
                out.push(b' ');
            } else if i == 0 || self.style != Style::Indented {
                out.extend_from_slice(code.as_bytes());
                out.push(b'-');
            } else {
                out.push(b' ');
            }
            out.extend_from_slice(line);
            out.extend_from_slice(b"\r\n");
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }
}

/// The form on the wire, with `|` between lines.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.to_bytes();
        for (i, line) in bytes.trim_end_with(|c| c == '\r' || c == '\n').lines().enumerate() {
            let bar = if i == 0 { "" } else { "|" };
            write!(f, "{bar}{}", line.as_bstr())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(reply: &Reply) -> String {
        String::from_utf8_lossy(&reply.to_bytes()).into_owned()
    }

    #[test]
    fn reply_of_each_style_is_encoded() {
        assert_eq!(wire(&Reply::new(221, "Goodbye.")), "221 Goodbye.\r\n");
        assert_eq!(wire(&Reply::new(220, "")), "220 \r\n");
        assert_eq!(
            wire(&Reply::coded(553, ["GlobusError: v=1 c=PATH_EXISTS", "End."])),
            "553-GlobusError: v=1 c=PATH_EXISTS\r\n553 End.\r\n"
        );
        assert_eq!(wire(&Reply::coded(230, ["a", "b", "End."])), "230-a\r\n230-b\r\n230 End.\r\n");
        assert_eq!(
            wire(&Reply::indented(229, "Entering Striped Passive Mode.", ["127,0,0,1,168,209"], "End")),
            "229-Entering Striped Passive Mode.\r\n 127,0,0,1,168,209\r\n229 End\r\n"
        );
        assert_eq!(wire(&Reply::coded(500, Vec::<String>::new())), "500 \r\n");
    }

    #[test]
    fn reply_with_line_ends_in_text_replaces_them() {
        let reply = Reply::indented(250, "Contents of x", ["Type=file; a\r\n226 Transfer Complete."], "End.");
        assert_eq!(
            wire(&reply),
            "250-Contents of x\r\n Type=file; a??226 Transfer Complete.\r\n250 End.\r\n"
        );
    }

    #[test]
    fn reply_parts_are_returned() {
        let reply = Reply::indented(211, "Extensions supported", ["MDTM", "SIZE"], "End.");
        assert_eq!(reply.text(), "Extensions supported");
        assert_eq!(reply.body().collect::<Vec<_>>(), ["MDTM", "SIZE"]);
        assert_eq!(Reply::new(200, "x").body().len(), 0);
        assert_eq!(Reply::coded(200, ["x", "y"]).body().len(), 0);
        assert_eq!(reply.to_string(), "211-Extensions supported| MDTM| SIZE|211 End.");
        assert!(reply.is_success() && !reply.is_failure() && !reply.is_preliminary());
        assert!(
            Reply::new(502, "x").is_unknown_command()
                && Reply::new(500, "Unknown command X").is_unknown_command()
        );
        assert!(!Reply::new(500, "No such file").is_unknown_command());
        assert_eq!(Reply::new(350, "").class(), ReplyClass::Intermediate);
        assert!(Reply::new(421, "").is_failure());
    }
}
