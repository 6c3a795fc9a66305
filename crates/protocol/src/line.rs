//! Lines of the control connection (RFC 959 section 2.3; RFC 854 for the Telnet signals).

use bstr::ByteSlice;
use zeroize::Zeroize;

/// The line end that a decoder accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// CR LF only: for commands. A lone CR or LF is part of the line, because a path may contain
    /// it.
    CrLf,
    /// LF, with or without a preceding CR: for replies.
    Lf,
}

/// A line exceeds the limit. The rest of the stream cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line of more than {limit} bytes")]
pub struct LineTooLong {
    pub limit: usize,
}

/// Splits a stream of bytes into lines.
///
/// Push the bytes of each read, then take lines until none is left. The decoder buffers bytes until
/// they are taken, and then clears them from memory, because a line may have been a password.
#[derive(Debug)]
pub struct LineDecoder {
    ending: Ending,
    limit: usize,
    buffer: Vec<u8>,
    /// Number of bytes at the front of `buffer` that were taken.
    taken: usize,
    /// Number of bytes at the front of `buffer` that contain no further line end.
    scanned: usize,
}

impl LineDecoder {
    /// `limit` is the longest line in bytes, without its line end.
    pub fn new(ending: Ending, limit: usize) -> Self {
        Self { ending, limit, buffer: Vec::new(), taken: 0, scanned: 0 }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        let needed = self.buffer.len() + bytes.len();
        if needed > self.buffer.capacity() {
            // `Vec` would reallocate without clearing the old memory, so the buffer is replaced
            // here.
            let mut larger = Vec::with_capacity(needed.max(2 * self.buffer.len()));
            larger.extend_from_slice(&self.buffer);
            self.buffer.zeroize();
            self.buffer = larger;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Number of bytes that were pushed and not taken.
    pub fn buffered(&self) -> usize {
        self.buffer.len() - self.taken
    }

    /// Returns the next complete line without its line end, or `None` if there is none yet.
    ///
    /// # Errors
    /// A line, complete or not, exceeds the limit.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, LineTooLong> {
        let too_long = LineTooLong { limit: self.limit };
        loop {
            let Some(at) = self.buffer[self.scanned..].find_byte(b'\n') else {
                self.scanned = self.buffer.len();
                self.compact();
                // A CR at the end may be the first half of a line end.
                return if self.buffered() > self.limit + 1 { Err(too_long) } else { Ok(None) };
            };
            let newline = self.scanned + at;
            self.scanned = newline + 1;
            let line = &self.buffer[self.taken..newline];
            let (end, ended) = match line.strip_suffix(b"\r") {
                Some(line) => (line.len(), true),
                None => (line.len(), self.ending == Ending::Lf),
            };
            if end > self.limit {
                return Err(too_long);
            }
            if ended {
                let start = std::mem::replace(&mut self.taken, newline + 1);
                return Ok(Some(&self.buffer[start..start + end]));
            }
        }
    }

    fn compact(&mut self) {
        if self.taken > 0 {
            let left = self.buffer.len() - self.taken;
            self.buffer.copy_within(self.taken.., 0);
            self.buffer[left..].zeroize();
            self.buffer.truncate(left);
            self.scanned -= self.taken;
            self.taken = 0;
        }
        // Ten thousand idle connections should not each keep the buffer that their longest line
        // needed.
        if self.buffer.is_empty() && self.buffer.capacity() > 4096 {
            self.buffer = Vec::new();
        }
    }
}

impl Drop for LineDecoder {
    fn drop(&mut self) {
        self.buffer.zeroize();
    }
}

const IAC: u8 = 0xff;
const DATA_MARK: u8 = 0xf2;
const INTERRUPT: u8 = 0xf4;

/// Removes the Telnet signals (`IAC IP IAC DM`) that clients send before ABOR (RFC 959 section
/// 4.1.3).
///
/// A part of the signals may be missing: clients send some of the bytes as urgent data, which the
/// socket options may keep out of the stream.
pub fn strip_telnet(mut line: &[u8]) -> &[u8] {
    loop {
        line = match line {
            [IAC, 0xfb..=0xfe, _, rest @ ..] | [IAC, 0xf0..=0xff, rest @ ..] => rest,
            [IAC | DATA_MARK | INTERRUPT, rest @ ..] => rest,
            _ => return line,
        };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn lines(decoder: &mut LineDecoder) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        while let Some(line) = decoder.next_line().unwrap() {
            lines.push(line.to_vec());
        }
        lines
    }

    #[test]
    fn line_decoder_for_commands_ends_lines_at_crlf_only() {
        let mut decoder = LineDecoder::new(Ending::CrLf, 100);
        decoder.push(b"NOOP\nNOOP\r");
        assert!(lines(&mut decoder).is_empty());
        decoder.push(b"\r\nCWD a\rb\r\n\r\nPW");
        assert_eq!(lines(&mut decoder), [&b"NOOP\nNOOP\r"[..], b"CWD a\rb", b""]);
        decoder.push(b"D\r");
        assert!(lines(&mut decoder).is_empty());
        decoder.push(b"\n");
        assert_eq!(lines(&mut decoder), [b"PWD"]);
        assert_eq!(decoder.buffered(), 0);
    }

    #[test]
    fn line_decoder_clears_taken_bytes() {
        let mut decoder = LineDecoder::new(Ending::CrLf, 100);
        decoder.push(b"PASS secret\r\nNO");
        assert_eq!(lines(&mut decoder), [b"PASS secret"]);
        assert_eq!(decoder.buffer, b"NO");
        decoder.buffer.resize(10, 0);
        assert_eq!(decoder.buffer, b"NO\0\0\0\0\0\0\0\0");
    }

    #[test]
    fn line_decoder_for_replies_ends_lines_at_lf() {
        let mut decoder = LineDecoder::new(Ending::Lf, 100);
        decoder.push(b"220 a\n221 b\r\n\n");
        assert_eq!(lines(&mut decoder), [&b"220 a"[..], b"221 b", b""]);
    }

    #[test]
    fn line_decoder_when_line_exceeds_limit_fails() {
        let mut decoder = LineDecoder::new(Ending::CrLf, 4);
        decoder.push(b"NOOP\r\nNOOP\r");
        assert_eq!(lines(&mut decoder), [b"NOOP"]);
        decoder.push(b"\nNOOPS\r\n");
        assert_eq!(decoder.next_line().unwrap(), Some(&b"NOOP"[..]));
        assert_eq!(decoder.next_line(), Err(LineTooLong { limit: 4 }));

        let mut decoder = LineDecoder::new(Ending::CrLf, 4);
        decoder.push(b"NOOPSS");
        assert_eq!(decoder.next_line(), Err(LineTooLong { limit: 4 }));
        let mut decoder = LineDecoder::new(Ending::CrLf, 4);
        decoder.push(b"N\nN\nN\nN\n");
        assert_eq!(decoder.next_line(), Err(LineTooLong { limit: 4 }));
    }

    #[test]
    fn strip_telnet_removes_all_signals() {
        for signals in [&b"\xff\xf4\xff\xf2"[..], b"\xff\xf4\xf2", b"\xf2", b"\xff\xfb\x01", b"\xff", b""] {
            assert_eq!(strip_telnet(&[signals, b"ABOR"].concat()), b"ABOR");
        }
    }

    proptest! {
        #[test]
        fn line_decoder_with_any_fragmentation_returns_same_lines(
            bytes in prop::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), any::<u8>()], 0..200),
            cuts in prop::collection::vec(0usize..200, 0..10),
            lf in any::<bool>(),
        ) {
            let ending = if lf { Ending::Lf } else { Ending::CrLf };
            let mut whole = LineDecoder::new(ending, 1000);
            whole.push(&bytes);
            let expected = lines(&mut whole);

            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut decoder = LineDecoder::new(ending, 1000);
            let mut got = Vec::new();
            for pair in cuts.windows(2) {
                decoder.push(&bytes[pair[0]..pair[1]]);
                got.extend(lines(&mut decoder));
            }
            prop_assert_eq!(got, expected);
            prop_assert_eq!(decoder.buffered(), whole.buffered());
        }
    }
}
