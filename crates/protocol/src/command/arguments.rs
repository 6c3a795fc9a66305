//! Splits the arguments of a command.

use bstr::{BString, ByteSlice};

use super::error::CommandError;

/// The rest of a line after the verb and one space.
///
/// Several spaces may precede a single word. A path is everything that follows one space, so that
/// file names may begin and end with spaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments<'a>(&'a [u8]);

impl<'a> Arguments<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self(rest)
    }

    /// Takes the next word, and the space after it.
    pub(crate) fn word(&mut self) -> Result<&'a [u8], CommandError> {
        let rest = self.0.trim_start_with(|c| c == ' ');
        if rest.is_empty() {
            return Err(CommandError::Syntax);
        }
        let (word, rest) = rest.split_once_str(" ").unwrap_or((rest, b""));
        self.0 = rest;
        Ok(word)
    }

    /// Takes the next word, or a text in double quotes, in which two quotes stand for one. The
    /// space after it is taken too.
    pub(crate) fn quoted(&mut self) -> Result<BString, CommandError> {
        let rest = self.0.trim_start_with(|c| c == ' ');
        let Some(mut left) = rest.strip_prefix(b"\"") else { return self.word().map(Into::into) };
        let mut text = BString::default();
        while let Some(at) = left.find_byte(b'"') {
            text.extend_from_slice(&left[..at]);
            left = &left[at + 1..];
            if let Some(more) = left.strip_prefix(b"\"") {
                text.push(b'"');
                left = more;
            } else if let Some(behind) = left.strip_prefix(b" ") {
                self.0 = behind;
                return Ok(text);
            } else {
                break;
            }
        }
        // The closing quote is missing, so this is a plain word that begins with a quote.
        self.word().map(Into::into)
    }

    /// Takes the only word that is left.
    pub(crate) fn last_word(mut self) -> Result<&'a [u8], CommandError> {
        let word = self.word()?;
        if self.is_empty() { Ok(word) } else { Err(CommandError::Syntax) }
    }

    /// Takes everything that is left, unchanged.
    pub(crate) fn path(self) -> Result<BString, CommandError> {
        self.optional_path().ok_or(CommandError::Syntax)
    }

    /// Takes everything that is left, unchanged; `None` if nothing is left.
    pub(crate) fn optional_path(self) -> Option<BString> {
        (!self.0.is_empty()).then(|| self.0.into())
    }

    /// Takes everything that is left, without leading spaces.
    pub(crate) fn text(self) -> Result<BString, CommandError> {
        self.optional_text().ok_or(CommandError::Syntax)
    }

    pub(crate) fn optional_text(self) -> Option<BString> {
        let text = self.0.trim_start_with(|c| c == ' ');
        (!text.is_empty()).then(|| text.into())
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0.iter().all(|b| *b == b' ')
    }
}

/// Parses a decimal number that consists of digits only.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |n, d| {
        let digit = d.is_ascii_digit().then(|| u64::from(d - b'0'))?;
        n.checked_mul(10)?.checked_add(digit)
    })
}

/// Parses a decimal number that fits into 32 bits.
pub(crate) fn number32(digits: &[u8]) -> Option<u32> {
    number(digits).and_then(|n| u32::try_from(n).ok())
}
