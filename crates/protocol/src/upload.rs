//! `SITE UPLOAD`, a Ropewalk extension: a client begins the upload of a file, sends the file in any
//! number of transfers, and ends the upload by one command.
//!
//! The client chooses the ID of an upload. Several sessions that begin an upload of one ID to one
//! path share it, and a later session resumes it. `ESTO U offset ID` sends data. Nothing here needs
//! the reply to an earlier command, so a client can send all commands of a file at once.

use std::fmt;

use bstr::{BString, ByteSlice};

use crate::command::arguments::{Arguments, number};
use crate::command::{ChecksumAlgorithm, CommandError, parse};
use crate::date::{self, Stamp};
use crate::facts;
use crate::path::VirtualPath;
use crate::site::octal;

/// The name that a client gives to an upload: 1 to 64 letters, digits, `.`, `_` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UploadId(String);

impl UploadId {
    const LONGEST: usize = 64;

    /// `None` if a character is not allowed, or there are too many or none.
    pub fn new(id: &[u8]) -> Option<Self> {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        let valid = (1..=Self::LONGEST).contains(&id.len()) && id.iter().all(plain);
        valid.then(|| Self(String::from_utf8_lossy(id).into_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<u128> for UploadId {
    /// 32 hexadecimal digits.
    fn from(number: u128) -> Self {
        Self(format!("{number:032x}"))
    }
}

impl fmt::Display for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The arguments of `SITE UPLOAD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UploadCommand {
    /// `BEGIN id parameters path`
    Begin { id: UploadId, parameters: UploadParameters, path: BString },
    /// `RANGES id`
    Ranges(UploadId),
    /// `COMMIT id [parameters]`
    Commit { id: UploadId, parameters: UploadParameters },
    /// `SUSPEND id`
    Suspend(UploadId),
    /// `DISCARD id`
    Discard(UploadId),
}

/// The properties of the file, as the client states them with BEGIN or COMMIT. Those of COMMIT take
/// precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadParameters {
    /// `size`: of the whole file, in bytes.
    pub size: Option<u64>,
    /// `modify`: the modification time to set, in seconds since 1970.
    pub modified: Option<i64>,
    /// `UNIX.mode`: the permission bits to set, at most 0o777.
    pub mode: Option<u32>,
    /// `checksum.ALGORITHM`: the expected checksum, as the client wrote it.
    pub checksum: Option<(ChecksumAlgorithm, BString)>,
    /// `resume=1`: keep what an interrupted upload of this ID has left.
    pub resume: bool,
    /// `holes=1`: ranges that were not sent are zeros.
    pub holes: bool,
}

/// A `SITE UPLOAD` command for the host, on an upload of this session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadRequest {
    pub id: UploadId,
    pub path: VirtualPath,
    pub step: UploadStep,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UploadStep {
    Begin(UploadParameters),
    Ranges,
    Commit(UploadParameters),
    Suspend,
    Discard,
}

impl UploadCommand {
    pub(crate) fn parse(mut args: Arguments<'_>) -> Result<Self, CommandError> {
        let verb = args.word()?.to_ascii_uppercase();
        let id = UploadId::new(args.word()?).ok_or(CommandError::InvalidArguments)?;
        Ok(match verb.as_slice() {
            b"BEGIN" => {
                let parameters = UploadParameters::parse(args.word()?)?;
                Self::Begin { id, parameters, path: args.path()? }
            }
            b"COMMIT" if args.is_empty() => Self::Commit { id, parameters: UploadParameters::default() },
            b"COMMIT" => Self::Commit { id, parameters: UploadParameters::parse(args.last_word()?)? },
            _ if !args.is_empty() => return Err(CommandError::InvalidArguments),
            b"RANGES" => Self::Ranges(id),
            b"SUSPEND" => Self::Suspend(id),
            b"DISCARD" => Self::Discard(id),
            _ => return Err(CommandError::InvalidArguments),
        })
    }

    pub(crate) fn print(&self) -> BString {
        let (verb, id, parameters) = match self {
            Self::Begin { id, parameters, .. } => ("BEGIN", id, Some(parameters)),
            Self::Ranges(id) => ("RANGES", id, None),
            Self::Commit { id, parameters } => ("COMMIT", id, Some(parameters)),
            Self::Suspend(id) => ("SUSPEND", id, None),
            Self::Discard(id) => ("DISCARD", id, None),
        };
        let mut line = BString::from(format!("{verb} {id}"));
        if let Some(parameters) = parameters {
            line.push(b' ');
            parameters.print(&mut line);
        }
        if let Self::Begin { path, .. } = self {
            line.push(b' ');
            line.extend_from_slice(path);
        }
        line
    }
}

impl UploadParameters {
    /// These parameters, completed by those of `earlier`.
    #[must_use]
    pub fn or(self, earlier: &Self) -> Self {
        Self {
            size: self.size.or(earlier.size),
            modified: self.modified.or(earlier.modified),
            mode: self.mode.or(earlier.mode),
            checksum: self.checksum.or_else(|| earlier.checksum.clone()),
            resume: self.resume || earlier.resume,
            holes: self.holes || earlier.holes,
        }
    }

    fn parse(text: &[u8]) -> Result<Self, CommandError> {
        const INVALID: CommandError = CommandError::InvalidArguments;
        let mut parameters = Self::default();
        for assignment in text.split_str(";").filter(|assignment| !assignment.is_empty()) {
            let (key, value) = assignment.split_once_str("=").ok_or(INVALID)?;
            let flag = || match value {
                b"0" => Ok(false),
                b"1" => Ok(true),
                _ => Err(INVALID),
            };
            match key.to_ascii_lowercase().as_slice() {
                b"size" => parameters.size = Some(number(value).ok_or(INVALID)?),
                b"modify" => parameters.modified = Some(date::parse(value).map_err(|_| INVALID)?),
                b"unix.mode" => {
                    let mode = octal(value).filter(|mode| *mode <= 0o777);
                    parameters.mode = Some(mode.ok_or(INVALID)?);
                }
                b"resume" => parameters.resume = flag()?,
                b"holes" => parameters.holes = flag()?,
                key => {
                    if let Some(name) = key.strip_prefix(b"checksum.") {
                        parameters.checksum = Some((parse::algorithm(name)?, facts::decode(value)));
                    }
                    // Other parameters are those of later versions.
                }
            }
        }
        Ok(parameters)
    }

    fn print(&self, line: &mut BString) {
        let start = line.len();
        let mut add = |key: &str, value: &[u8]| {
            line.extend_from_slice(key.as_bytes());
            line.push(b'=');
            line.extend_from_slice(value);
            line.push(b';');
        };
        if let Some(size) = self.size {
            add("size", size.to_string().as_bytes());
        }
        if let Some(modified) = self.modified {
            add("modify", Stamp(modified).to_string().as_bytes());
        }
        if let Some(mode) = self.mode {
            add("UNIX.mode", format!("{mode:04o}").as_bytes());
        }
        if let Some((algorithm, value)) = &self.checksum {
            let key = format!("checksum.{}", algorithm.name().to_ascii_lowercase());
            add(&key, facts::encode(value).as_bytes());
        }
        if self.resume {
            add("resume", b"1");
        }
        if self.holes {
            add("holes", b"1");
        }
        if line.len() == start {
            line.push(b';');
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn parse(line: &str) -> Result<UploadCommand, CommandError> {
        UploadCommand::parse(Arguments::new(line.as_bytes()))
    }

    #[test]
    fn command_that_was_printed_is_read_back() {
        for line in [
            "BEGIN a.1_- ; a b",
            "BEGIN a size=5;modify=20010203040506;UNIX.mode=0644;checksum.crc32c=0a0b0c0d;resume=1;holes=1; /d/f",
            "RANGES a",
            "COMMIT a ;",
            "COMMIT a size=5;",
            "SUSPEND a",
            "DISCARD a",
        ] {
            assert_eq!(parse(line).unwrap().print(), line);
        }
        assert_eq!(parse("COMMIT a").unwrap(), parse("commit a ;").unwrap());
        assert_eq!(parse("COMMIT a later=x;").unwrap(), parse("COMMIT a ;").unwrap());
    }

    #[test]
    fn command_with_invalid_arguments_is_refused() {
        let long = format!("RANGES {}", "a".repeat(65));
        for line in [
            "BEGIN a",
            "BEGIN a ;",
            "BEGIN a/b ; f",
            "RANGES",
            "RANGES a b",
            "COMMIT a x",
            "COMMIT a size=x;",
            "COMMIT a holes=2;",
            "COMMIT a UNIX.mode=4755;",
            "COMMIT a checksum.foo=1;",
            "OTHER a",
            "",
            &long,
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn parameters_of_commit_take_precedence() {
        let parameters = |text: &str| UploadParameters::parse(text.as_bytes()).unwrap();
        let both = parameters("size=1;holes=1;").or(&parameters("size=2;modify=20010203040506;"));
        assert_eq!(both, parameters("size=1;modify=20010203040506;holes=1;"));
    }
}
