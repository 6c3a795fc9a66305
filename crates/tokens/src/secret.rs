//! The type of a bearer token, which keeps it secret.

use std::fmt;

use zeroize::Zeroizing;

/// Maximum length of a token, in bytes. Real tokens have 500 to 4000.
pub const LONGEST_TOKEN: usize = 16 << 10;

/// A bearer token. `Debug` does not show it, it has no `Display`, and its memory is cleared on
/// drop.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Zeroizing<Vec<u8>>);

/// Why a text is not a token. The message does not quote the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidToken {
    #[error("there is nothing in it")]
    Empty,
    #[error("it is longer than {LONGEST_TOKEN} bytes")]
    Long,
    #[error("it has other characters than a bearer token may have (RFC 6750 section 2.1)")]
    Characters,
}

impl Token {
    /// Takes the token in `text`, which may have white space around it.
    ///
    /// # Errors
    /// The text is empty, too long, or has characters that are not allowed in a token. An end of
    /// line, for example, would turn the command with the token into two commands.
    pub fn new(text: &[u8]) -> Result<Self, InvalidToken> {
        let text = trim(text);
        if text.is_empty() {
            return Err(InvalidToken::Empty);
        }
        if text.len() > LONGEST_TOKEN {
            return Err(InvalidToken::Long);
        }
        let fits = |b: &u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(b);
        if !text.iter().all(fits) {
            return Err(InvalidToken::Characters);
        }
        Ok(Self(Zeroizing::new(text.to_vec())))
    }

    /// The token itself. Use it only to send or verify the token.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

/// Removes white space around the text: the characters of C99's `isspace` (WLCG Bearer Token
/// Discovery), which include the vertical tab.
fn trim(text: &[u8]) -> &[u8] {
    let is_space = |b: &u8| b.is_ascii_whitespace() || *b == 0x0b;
    let Some(first) = text.iter().position(|b| !is_space(b)) else { return &[] };
    let last = text.iter().rposition(|b| !is_space(b)).unwrap_or(first);
    &text[first..=last]
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(***)")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn new_text_with_other_characters_fails() {
        let token = Token::new(b" eyJh.eyJz.c2ln\n").unwrap();
        assert_eq!(token.expose(), b"eyJh.eyJz.c2ln");
        assert_eq!(format!("{token:?}"), "Token(***)");
        assert_eq!(Token::new(b" \n"), Err(InvalidToken::Empty));
        assert_eq!(Token::new(b""), Err(InvalidToken::Empty));
        assert_eq!(Token::new(b"\x0b\x0c\r\n\t abc\t\x0b").unwrap().expose(), b"abc");
        assert_eq!(Token::new(b"a\r\nDELE x"), Err(InvalidToken::Characters));
        assert_eq!(Token::new(&[b'a'; LONGEST_TOKEN + 1]), Err(InvalidToken::Long));
    }
}
