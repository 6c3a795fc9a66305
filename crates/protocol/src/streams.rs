//! `SITE STREAMS n`, an extension of ours: another number of streams, also for the transfer under way.
//!
//! The command travels out of band, as ABOR does (RFC 959 section 4.1.3): a server acts on it when it reads it, whatever it
//! is doing and whatever commands wait, and answers 114 alone. A preliminary reply leaves the final replies to other
//! commands where they are.

use bstr::ByteSlice;

use crate::command::arguments::{Arguments, number32};
use crate::reply::Reply;

/// Most streams that can be asked for.
pub const MAX_STREAMS: u32 = 1024;

/// The answer to `SITE STREAMS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamsAnswer {
    /// So many streams hold from now on: what was asked for, or as many as the server allows.
    Set(u32),
    /// Nothing has changed, for this reason.
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

    /// `None` where the reply is no such answer.
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

/// The number in `SITE STREAMS n`.
pub(crate) fn number(mut args: Arguments<'_>) -> Option<u32> {
    let n = number32(args.word().ok()?).filter(|n| (1..=MAX_STREAMS).contains(n))?;
    args.is_empty().then_some(n)
}

/// Whether a line is `SITE STREAMS`, with what follows it: right or wrong.
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
    fn answers() {
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
    fn numbers() {
        let read = |text: &[u8]| number(Arguments::new(text));
        assert_eq!((read(b"1"), read(b" 1024 ")), (Some(1), Some(1024)));
        for wrong in [&b""[..], b"0", b"1025", b"-1", b"4x", b"4 5", b"99999999999999999999"] {
            assert_eq!(read(wrong), None, "{}", wrong.as_bstr());
        }
    }

    proptest! {
        #[test]
        fn answers_come_back(n: u32, reason in "[!-~]([ -~]{0,20}[!-~])?") {
            for answer in [StreamsAnswer::Set(n), StreamsAnswer::Refused(reason)] {
                prop_assert_eq!(StreamsAnswer::from_reply(&answer.to_reply()), Some(answer));
            }
        }
    }
}
