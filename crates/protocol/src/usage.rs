//! `SITE USAGE`: the bytes of a directory that are used and free, in the form of OSG's servers.
//!
//! `SITE USAGE [TOKEN token] path`. OSG's tokens name areas of a site's storage; those of a
//! Ropewalk server are the names of its quotas.

use std::fmt;

use bstr::BString;

use crate::command::CommandError;
use crate::command::arguments::{Arguments, number};

/// The arguments of `SITE USAGE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageCommand {
    pub token: Option<BString>,
    pub path: BString,
}

/// Bytes of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub used: u64,
    pub free: u64,
    pub total: u64,
}

impl UsageCommand {
    pub(crate) fn parse(args: Arguments<'_>) -> Result<Self, CommandError> {
        let mut rest = args;
        // A path may be the word alone.
        if rest.word()?.eq_ignore_ascii_case(b"TOKEN") && !rest.is_empty() {
            let token = Some(rest.word()?.into());
            return Ok(Self { token, path: rest.path()? });
        }
        Ok(Self { token: None, path: args.path()? })
    }

    pub(crate) fn print(&self) -> BString {
        let mut line = BString::default();
        if let Some(token) = &self.token {
            line.extend_from_slice(b"TOKEN ");
            line.extend_from_slice(token);
            line.push(b' ');
        }
        line.extend_from_slice(&self.path);
        line
    }
}

impl Usage {
    /// Reads the text of a reply; `None`: it is something else. A site that does not know the total
    /// reports a negative one; then it is what is used and free, as gfal2 has it.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
        let [b"USAGE", used, b"FREE", free, b"TOTAL", total] = words.as_slice() else { return None };
        let (used, free) = (number(used)?, number(free)?);
        let total = match total.strip_prefix(b"-") {
            Some(negative) => number(negative).map(|_| used.saturating_add(free)),
            None => number(total),
        };
        Some(Self { used, free, total: total? })
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { used, free, total } = self;
        write!(f, "USAGE {used} FREE {free} TOTAL {total}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_usage_is_parsed_to_the_same() {
        let usage = Usage { used: 0, free: u64::MAX, total: 7 };
        assert_eq!(Usage::parse(usage.to_string().as_bytes()), Some(usage));
        let unknown = Usage { used: 5, free: 2, total: 7 };
        assert_eq!(Usage::parse(b"USAGE 5 FREE 2 TOTAL -1"), Some(unknown));
        for line in [
            "",
            "USAGE 1 FREE 2",
            "USAGE 1 FREE 2 TOTAL x",
            "USAGE 1 FREE 2 TOTAL -",
            "USAGE 1 FREE 2 TOTAL --1",
            "USAGE -1 FREE 2 TOTAL 3",
            "Usage 1 FREE 2 TOTAL 3",
        ] {
            assert_eq!(Usage::parse(line.as_bytes()), None, "{line}");
        }
    }
}
