//! Cutting the arguments of a command apart.

use bstr::{BString, ByteSlice};

use super::error::CommandError;

/// What follows a verb and its space.
///
/// Single words may have more than one space before them. A path is everything that is left after one space, so that
/// names may begin and end with spaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments<'a>(&'a [u8]);

impl<'a> Arguments<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self(rest)
    }

    /// The next word; the space after it is taken too.
    pub(crate) fn word(&mut self) -> Result<&'a [u8], CommandError> {
        let rest = self.0.trim_start_with(|c| c == ' ');
        if rest.is_empty() {
            return Err(CommandError::Syntax);
        }
        let (word, rest) = rest.split_once_str(" ").unwrap_or((rest, b""));
        self.0 = rest;
        Ok(word)
    }

    /// The next word, or what is in double quotes, in which two of them stand for one; the space after it is taken too.
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
        // It is a word that begins with one.
        self.word().map(Into::into)
    }

    /// The one word that is left.
    pub(crate) fn last_word(mut self) -> Result<&'a [u8], CommandError> {
        let word = self.word()?;
        if self.is_empty() { Ok(word) } else { Err(CommandError::Syntax) }
    }

    /// Everything that is left, exactly.
    pub(crate) fn path(self) -> Result<BString, CommandError> {
        self.optional_path().ok_or(CommandError::Syntax)
    }

    /// Everything that is left, exactly; `None` where nothing is.
    pub(crate) fn optional_path(self) -> Option<BString> {
        (!self.0.is_empty()).then(|| self.0.into())
    }

    /// Everything that is left, without the spaces before it.
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

/// A decimal number: digits only.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |n, d| {
        let digit = d.is_ascii_digit().then(|| u64::from(d - b'0'))?;
        n.checked_mul(10)?.checked_add(digit)
    })
}

/// A decimal number of 32 bits.
pub(crate) fn number32(digits: &[u8]) -> Option<u32> {
    number(digits).and_then(|n| u32::try_from(n).ok())
}
