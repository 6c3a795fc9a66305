//! The number of a SciTag (scitags.org), and `SITE SCITAG`, a Ropewalk extension: the client names
//! the experiment and the activity that its data connections serve.
//!
//! The number holds for the data connections that the session makes afterwards. `SITE SCITAG 147`
//! sets it, `SITE SCITAG 0` removes it, and `SITE SCITAG` asks for it.

use std::fmt;
use std::str::FromStr;

use bstr::ByteSlice as _;

use crate::command::arguments::{Arguments, number};
use crate::reply::Reply;

/// `experiment << 6 | activity`: 65 to 65535.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SciTag(u16);

/// The text is no number of a SciTag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a SciTag: a number from 65 to 65535, which is 64 * experiment + activity")]
pub struct InvalidSciTag;

impl SciTag {
    const LEAST: u16 = 65;

    /// # Errors
    /// The number is below 65.
    pub fn new(number: u16) -> Result<Self, InvalidSciTag> {
        if number < Self::LEAST { Err(InvalidSciTag) } else { Ok(Self(number)) }
    }

    /// # Errors
    /// The experiment is not in 1..=1023, or the activity not in 0..=63.
    pub fn of(experiment: u16, activity: u16) -> Result<Self, InvalidSciTag> {
        if experiment > 1023 || activity > 63 {
            return Err(InvalidSciTag);
        }
        Self::new(experiment << 6 | activity)
    }

    pub fn number(self) -> u16 {
        self.0
    }

    pub fn experiment(self) -> u16 {
        self.0 >> 6
    }

    pub fn activity(self) -> u16 {
        self.0 & 63
    }
}

impl fmt::Display for SciTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for SciTag {
    type Err = InvalidSciTag;

    fn from_str(text: &str) -> Result<Self, InvalidSciTag> {
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(InvalidSciTag);
        }
        Self::new(text.parse().map_err(|_| InvalidSciTag)?)
    }
}

/// Precedes the number of a tag at the end of a URL or a path, as in XRootD and dCache.
const FLOW: &[u8] = b"?scitag.flow=";

/// Splits a URL or a path with `?scitag.flow=147` at its end. Anything but digits there belongs to
/// the name of the file.
///
/// # Errors
/// The number cannot be a tag.
pub fn split_flow(text: &[u8]) -> Result<(&[u8], Option<SciTag>), InvalidSciTag> {
    let Some(at) = text.rfind(FLOW) else { return Ok((text, None)) };
    let number = &text[at + FLOW.len()..];
    if number.is_empty() || !number.iter().all(u8::is_ascii_digit) {
        return Ok((text, None));
    }
    let number = std::str::from_utf8(number).map_err(|_| InvalidSciTag)?;
    Ok((&text[..at], Some(number.parse()?)))
}

/// The argument of SITE SCITAG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SciTagCommand {
    Ask,
    Remove,
    Set(SciTag),
}

impl SciTagCommand {
    /// Returns `None` for anything but one number in range.
    pub(crate) fn parse(args: Arguments<'_>) -> Option<Self> {
        if args.is_empty() {
            return Some(Self::Ask);
        }
        match number(args.last_word().ok()?)? {
            0 => Some(Self::Remove),
            n => SciTag::new(u16::try_from(n).ok()?).ok().map(Self::Set),
        }
    }

    pub(crate) fn print(self) -> Option<String> {
        match self {
            Self::Ask => None,
            Self::Remove => Some("0".to_owned()),
            Self::Set(tag) => Some(tag.to_string()),
        }
    }

    /// The reply if `tag` is effective after the command.
    pub(crate) fn reply(self, tag: Option<SciTag>) -> Reply {
        let text = match (tag, self) {
            (Some(tag), _) => format!("SciTag {tag}."),
            (None, Self::Remove) => "SciTag off.".to_owned(),
            (None, _) => "No SciTag.".to_owned(),
        };
        Reply::new(250, text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn number_is_experiment_and_activity() {
        let tag: SciTag = "147".parse().unwrap();
        assert_eq!((tag.experiment(), tag.activity(), tag.to_string()), (2, 19, "147".to_owned()));
        assert_eq!(SciTag::of(2, 19), Ok(tag));
    }

    #[test]
    fn flow_at_the_end_of_a_url_is_a_tag() {
        let split = |text: &'static str| {
            let split = split_flow(text.as_bytes());
            split.map(|(rest, tag)| (str::from_utf8(rest).unwrap(), tag.map(SciTag::number)))
        };
        assert_eq!(split("gsiftp://h/f?scitag.flow=147"), Ok(("gsiftp://h/f", Some(147))));
        assert_eq!(split("/f?a=1?scitag.flow=65"), Ok(("/f?a=1", Some(65))));
        for name in
            ["", "/f", "/f?scitag.flow=", "/f?scitag.flow=1x", "/f?scitag.flow=147/g", "/f&scitag.flow=147"]
        {
            assert_eq!(split(name), Ok((name, None)));
        }
        for wrong in ["?scitag.flow=64", "/f?scitag.flow=65536", "/f?scitag.flow=99999999999999999999"] {
            assert_eq!(split(wrong), Err(InvalidSciTag), "{wrong}");
        }
    }

    #[test]
    fn number_out_of_range_is_refused() {
        for wrong in ["", "64", "0", "65536", "-1", "+147", "1e3", "147 ", "99999999999999999999"] {
            assert!(wrong.parse::<SciTag>().is_err(), "{wrong:?}");
        }
        assert!(SciTag::of(1024, 1).is_err() && SciTag::of(2, 64).is_err() && SciTag::of(0, 9).is_err());
    }
}
