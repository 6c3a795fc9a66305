//! `SITE SPACE` (Ropewalk extension): bytes that are reserved for later uploads of a user.

use std::fmt;

use bstr::BString;

use crate::command::CommandError;
use crate::command::arguments::{Arguments, number};
use crate::date::Stamp;

/// Longer words are no tokens.
const LONGEST_TOKEN: usize = 64;

/// The arguments of `SITE SPACE`. `P` is the path as the client sent it, or a resolved one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpaceCommand<P> {
    /// Reserves bytes for files in the directory.
    Reserve {
        bytes: u64,
        /// The time after which the reservation ends by itself.
        seconds: u64,
        path: P,
    },
    /// Moves the end of a reservation to so many seconds from now.
    Extend { token: String, seconds: u64 },
    /// Ends a reservation.
    Release(String),
    /// Later uploads of the session draw on this reservation, or on none.
    Use(Option<String>),
    /// Reports the reservations of the user.
    List,
}

/// A reservation in a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedSpace {
    pub token: String,
    pub bytes: u64,
    /// The bytes that no file has drawn.
    pub left: u64,
    /// In seconds since 1970.
    pub end: u64,
}

impl SpaceCommand<Option<BString>> {
    pub(crate) fn parse(mut args: Arguments<'_>) -> Result<Self, CommandError> {
        let verb = args.word()?.to_ascii_uppercase();
        match verb.as_slice() {
            b"RESERVE" => {
                let mut amount =
                    || args.word().and_then(|word| number(word).ok_or(CommandError::InvalidArguments));
                let (bytes, seconds) = (amount()?, amount()?);
                if bytes == 0 || seconds == 0 {
                    return Err(CommandError::InvalidArguments);
                }
                Ok(Self::Reserve { bytes, seconds, path: args.optional_path() })
            }
            b"EXTEND" => {
                let token = parse_token(args.word()?)?;
                let seconds = number(args.last_word()?).filter(|seconds| *seconds > 0);
                Ok(Self::Extend { token, seconds: seconds.ok_or(CommandError::InvalidArguments)? })
            }
            b"RELEASE" => Ok(Self::Release(parse_token(args.last_word()?)?)),
            b"USE" => match args.last_word()? {
                none if none.eq_ignore_ascii_case(b"NONE") => Ok(Self::Use(None)),
                word => Ok(Self::Use(Some(parse_token(word)?))),
            },
            b"LIST" if args.is_empty() => Ok(Self::List),
            _ => Err(CommandError::InvalidArguments),
        }
    }

    pub(crate) fn print(&self) -> BString {
        match self {
            Self::Reserve { bytes, seconds, path } => {
                let mut line = BString::from(format!("RESERVE {bytes} {seconds}"));
                if let Some(path) = path {
                    line.push(b' ');
                    line.extend_from_slice(path);
                }
                line
            }
            Self::Extend { token, seconds } => format!("EXTEND {token} {seconds}").into(),
            Self::Release(token) => format!("RELEASE {token}").into(),
            Self::Use(None) => "USE NONE".into(),
            Self::Use(Some(token)) => format!("USE {token}").into(),
            Self::List => "LIST".into(),
        }
    }
}

/// Whether a word has the form of a token.
pub fn is_token(word: &[u8]) -> bool {
    (1..=LONGEST_TOKEN).contains(&word.len()) && word.iter().all(u8::is_ascii_graphic)
}

pub(crate) fn parse_token(word: &[u8]) -> Result<String, CommandError> {
    let valid = is_token(word).then(|| String::from_utf8_lossy(word).into_owned());
    valid.ok_or(CommandError::InvalidArguments)
}

impl fmt::Display for ReservedSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, bytes, left, end } = self;
        let end = Stamp(i64::try_from(*end).unwrap_or(i64::MAX));
        write!(f, "SPACE {token} BYTES {bytes} LEFT {left} UNTIL {end}")
    }
}

impl ReservedSpace {
    /// Reads a line of a reply; `None`: it is something else.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
        let [b"SPACE", token, b"BYTES", bytes, b"LEFT", left, b"UNTIL", end] = words.as_slice() else {
            return None;
        };
        let token = is_token(token).then(|| String::from_utf8_lossy(token).into_owned())?;
        let end = u64::try_from(crate::date::parse(end).ok()?).ok()?;
        Some(Self { token, bytes: number(bytes)?, left: number(left)?, end })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn printed_reservation_is_parsed_to_the_same(
            token in "[!-~]{1,64}", bytes: u64, left: u64, end in 0u64..4_000_000_000,
        ) {
            let space = ReservedSpace { token, bytes, left, end };
            prop_assert_eq!(ReservedSpace::parse(space.to_string().as_bytes()), Some(space));
        }

        #[test]
        fn any_line_is_parsed_without_panic(line: Vec<u8>) {
            let _ = ReservedSpace::parse(&line);
        }
    }

    #[test]
    fn line_that_is_no_reservation_is_not_parsed() {
        for line in [
            "",
            "Reservations",
            "SPACE t BYTES 1 LEFT 1",
            "SPACE t BYTES 1 LEFT -1 UNTIL 20261130012000",
            "SPACE t BYTES 1 LEFT 1 UNTIL never",
            "SPACE t BYTES 99999999999999999999 LEFT 1 UNTIL 20261130012000",
        ] {
            assert_eq!(ReservedSpace::parse(line.as_bytes()), None, "{line}");
        }
    }
}
