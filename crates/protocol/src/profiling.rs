//! `SITE PROFILE`, an extension of ours: the server measures its host while a client's transfers run.
//!
//! `START [seconds]` begins, for so long at most; `CLOCK` tells the server's time, by which samples of two hosts are brought
//! together; `STOP` ends; `FETCH` sends what was found over a data channel, as a listing is sent. All replies are final
//! and 250, but for those to `FETCH`, which are those to a transfer.

use bstr::ByteSlice;

use crate::command::arguments::{Arguments, number32};
use crate::reply::Reply;

/// What follows `SITE PROFILE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileCommand {
    /// `None`: for as long as the server allows.
    Start {
        seconds: Option<u32>,
    },
    Clock,
    Stop,
    Fetch,
}

/// What the host answers to all but `FETCH`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ProfileAnswer {
    /// It ends by itself after so many seconds.
    Started { seconds: u32 },
    /// Seconds since 1970.
    Clock(f64),
    /// So many bytes are there to be fetched.
    Stopped { bytes: u64 },
}

impl ProfileCommand {
    pub(crate) fn parse(mut args: Arguments<'_>) -> Option<Self> {
        let word = args.word().ok()?.to_ascii_uppercase();
        let command = match word.as_slice() {
            b"START" if !args.is_empty() => {
                let seconds = number32(args.word().ok()?).filter(|seconds| *seconds > 0)?;
                Self::Start { seconds: Some(seconds) }
            }
            b"START" => Self::Start { seconds: None },
            b"CLOCK" => Self::Clock,
            b"STOP" => Self::Stop,
            b"FETCH" => Self::Fetch,
            _ => return None,
        };
        args.is_empty().then_some(command)
    }

    pub(crate) fn print(self) -> String {
        match self {
            Self::Start { seconds: Some(seconds) } => format!("START {seconds}"),
            Self::Start { seconds: None } => "START".to_owned(),
            Self::Clock => "CLOCK".to_owned(),
            Self::Stop => "STOP".to_owned(),
            Self::Fetch => "FETCH".to_owned(),
        }
    }
}

impl ProfileAnswer {
    const CODE: u16 = 250;

    pub fn to_reply(&self) -> Reply {
        let text = match self {
            Self::Started { seconds } => format!("Profiling {seconds} seconds at most."),
            Self::Clock(time) => format!("Clock {time:.6}"),
            Self::Stopped { bytes } => format!("Profile {bytes} bytes."),
        };
        Reply::new(Self::CODE, text)
    }

    /// `None` where the reply is no such answer.
    pub fn from_reply(reply: &Reply) -> Option<Self> {
        if reply.code() != Self::CODE {
            return None;
        }
        let text = reply.text().to_str().ok()?.trim();
        let (word, rest) = text.split_once(' ')?;
        let number = rest.split(' ').next()?;
        match word {
            "Profiling" => Some(Self::Started { seconds: number.parse().ok()? }),
            "Clock" => Some(Self::Clock(number.parse().ok().filter(|time: &f64| time.is_finite())?)),
            "Profile" => Some(Self::Stopped { bytes: number.parse().ok()? }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands() {
        let read = |text: &[u8]| ProfileCommand::parse(Arguments::new(text));
        assert_eq!(read(b"start 30"), Some(ProfileCommand::Start { seconds: Some(30) }));
        assert_eq!(read(b"START"), Some(ProfileCommand::Start { seconds: None }));
        assert_eq!(read(b"clock"), Some(ProfileCommand::Clock));
        for wrong in [&b""[..], b"START 0", b"START x", b"START 1 2", b"STOP 1", b"START 99999999999", b"GO"]
        {
            assert_eq!(read(wrong), None, "{}", wrong.as_bstr());
        }
    }

    #[test]
    fn answers_come_back() {
        for answer in [
            ProfileAnswer::Started { seconds: 30 },
            ProfileAnswer::Clock(1_732_263_165.25),
            ProfileAnswer::Stopped { bytes: 12 },
        ] {
            assert_eq!(ProfileAnswer::from_reply(&answer.to_reply()), Some(answer));
        }
        for wrong in ["", "Clock", "Clock nan", "Clock inf", "Profile -1", "Profiling x seconds", "OK."] {
            assert_eq!(ProfileAnswer::from_reply(&Reply::new(250, wrong)), None, "{wrong}");
        }
        assert_eq!(ProfileAnswer::from_reply(&Reply::new(550, "Clock 1")), None);
    }
}
