//! Exit codes, and the code of each error.

use std::fmt;
use std::io;
use std::process::ExitCode;

use ropewalk_client::{Error, ErrorKind, FailureKind, LocationError, Summary};

/// How the program ends. The numbers are part of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    Authentication = 3,
    NotFound = 4,
    Permission = 5,
    ChecksumMismatch = 6,
    NoSpace = 7,
    Stalled = 8,
    Unreachable = 9,
    Interrupted = 130,
}

/// The text in `--help`.
pub const HELP: &str = "\
Exit codes:
    0  done
    1  failed for several reasons, or for one that is not listed here (a directory without
       -r, a port in use)
    2  usage error, or an error in a configuration file
  If all failures have the same reason:
    3  authentication          6  checksum mismatch     9  server out of reach
    4  not found               7  no space
    5  permission denied       8  stalled
  130  interrupted";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<FailureKind> for Exit {
    fn from(kind: FailureKind) -> Self {
        match kind {
            FailureKind::Authentication => Self::Authentication,
            FailureKind::ChecksumMismatch => Self::ChecksumMismatch,
            FailureKind::Interrupted => Self::Interrupted,
            FailureKind::NoSpace => Self::NoSpace,
            FailureKind::NotFound => Self::NotFound,
            FailureKind::Permission => Self::Permission,
            FailureKind::Stalled => Self::Stalled,
            FailureKind::Unreachable => Self::Unreachable,
            FailureKind::Other => Self::Failed,
        }
    }
}

impl Exit {
    /// The common code of several failures, if they agree.
    pub fn of_kinds(kinds: impl IntoIterator<Item = Self>) -> Self {
        kinds.into_iter().reduce(|a, b| if a == b { a } else { Self::Failed }).unwrap_or(Self::Done)
    }

    pub fn of_summary(summary: &Summary) -> Self {
        if summary.interrupted {
            return Self::Interrupted;
        }
        if summary.files_failed == 0 {
            return Self::Done;
        }
        summary.failed_for.map_or(Self::Failed, Self::from)
    }

    pub fn of_error(error: &anyhow::Error) -> Self {
        for cause in error.chain() {
            if cause.is::<Usage>() || cause.is::<LocationError>() {
                return Self::Usage;
            }
            if let Some(error) = cause.downcast_ref::<Error>() {
                return match error.kind() {
                    ErrorKind::Usage => Self::Usage,
                    _ => error.failure_kind().into(),
                };
            }
            if let Some(error) = cause.downcast_ref::<io::Error>() {
                return Self::of_io(error);
            }
        }
        Self::Failed
    }

    pub(crate) fn of_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::NotFound,
            io::ErrorKind::PermissionDenied => Self::Permission,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::Failed,
        }
    }
}

/// An invalid request: a flag, a configuration file, or a combination.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// An error with exit code 2.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    Usage(message.into()).into()
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn failures_of_one_kind_keep_its_code() {
        assert_eq!(Exit::of_kinds([]), Exit::Done);
        assert_eq!(Exit::of_kinds([Exit::NotFound, Exit::NotFound]), Exit::NotFound);
        assert_eq!(Exit::of_kinds([Exit::NotFound, Exit::Permission]), Exit::Failed);
    }

    #[test]
    fn exit_code_follows_the_cause() {
        assert_eq!(Exit::of_error(&usage("x").context("outer")), Exit::Usage);
        let full = Err::<(), _>(io::Error::from(io::ErrorKind::StorageFull)).context("writing").err();
        assert_eq!(full.map(|error| Exit::of_error(&error)), Some(Exit::NoSpace));
        assert_eq!(Exit::of_error(&anyhow::anyhow!("x")), Exit::Failed);
    }
}
