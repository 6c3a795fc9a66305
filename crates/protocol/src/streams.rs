//! `SITE STREAMS n`, a Ropewalk extension: changes the number of streams, also of the transfer in
//! progress.
//!
//! Like ABOR (RFC 959 section 4.1.3), the command is out of band: the server executes it when it
//! reads it, regardless of the transfer in progress and of pending commands, and replies with one
//! 114. A preliminary reply does not disturb the order of the final replies to other commands.

use bstr::ByteSlice;

use crate::command::arguments::{Arguments, number32};
use crate::reply::Reply;

/// The highest number of streams that can be requested.
pub const MAX_STREAMS: u32 = 1024;

/// The answer to `SITE STREAMS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamsAnswer {
    /// The number of streams from now on: the requested number, or the highest that the server
    /// allows.
    Set(u32),
    /// The number was not changed, for this reason.
    Refused(String),
}

impl StreamsAnswer {
    pub const CODE: u16 = 114;

    pub fn to_reply(&self) -> Reply {
        let text = match self {
            Self::Set(n) => format!("Streams {n}"),
            Self::Refused(reason) => format!("Streams refused: {reason}"),
        };
        Reply::new(Self::CODE, text)
    }

    /// Returns `None` if the reply is not such an answer.
    pub fn from_reply(reply: &Reply) -> Option<Self> {
        if reply.code() != Self::CODE {
            return None;
        }
        let text = reply.text().strip_prefix(b"Streams ")?;
        if let Some(reason) = text.strip_prefix(b"refused:") {
            return Some(Self::Refused(reason.trim().to_str_lossy().into_owned()));
        }
        number32(text.trim()).map(Self::Set)
    }
}

/// Parses the number in `SITE STREAMS n`.
pub(crate) fn number(mut args: Arguments<'_>) -> Option<u32> {
    let n = number32(args.word().ok()?).filter(|n| (1..=MAX_STREAMS).contains(n))?;
    args.is_empty().then_some(n)
}

/// If the line is `SITE STREAMS`, returns its arguments, valid or not.
pub(crate) fn recognize<'a>(verb: &str, rest: &'a [u8]) -> Option<Arguments<'a>> {
    let mut args = Arguments::new(rest);
    let streams = verb == "SITE" && args.word().is_ok_and(|word| word.eq_ignore_ascii_case(b"STREAMS"));
    streams.then_some(args)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn streams_answer_accepts_only_valid_replies() {
        let read = |code, text: &str| StreamsAnswer::from_reply(&Reply::new(code, text));
        assert_eq!(read(114, "Streams 8"), Some(StreamsAnswer::Set(8)));
        assert_eq!(
            read(114, "Streams refused: log in first."),
            Some(StreamsAnswer::Refused("log in first.".into()))
        );
        assert_eq!(
            (read(114, "Streams x"), read(114, "Something"), read(150, "Streams 8")),
            (None, None, None)
        );
    }

    #[test]
    fn streams_number_out_of_range_is_refused() {
        let read = |text: &[u8]| number(Arguments::new(text));
        assert_eq!((read(b"1"), read(b" 1024 ")), (Some(1), Some(1024)));
        for wrong in [&b""[..], b"0", b"1025", b"-1", b"4x", b"4 5", b"99999999999999999999"] {
            assert_eq!(read(wrong), None, "{}", wrong.as_bstr());
        }
    }

    proptest! {
        #[test]
        fn streams_answer_printed_is_parsed_back(n: u32, reason in "[!-~]([ -~]{0,20}[!-~])?") {
            for answer in [StreamsAnswer::Set(n), StreamsAnswer::Refused(reason)] {
                prop_assert_eq!(StreamsAnswer::from_reply(&answer.to_reply()), Some(answer));
            }
        }
    }
}
