//! The error of the crate's public functions.
//!
//! Inside the crate, [`RemoteError`] distinguishes every situation that a transfer reacts to.
//! Callers get this type: a kind that stays as it is when situations are added, the place of the
//! failure, and the cause with its text. It can be written as JSON and read again.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize, Serializer};

use super::RemoteError;
use crate::FailureKind;

/// A failed operation at a server or on local data, or a copy that could not begin.
///
/// The text includes peer, path and reason. Failures of single files of a copy are in its
/// [`Summary`](crate::Summary).
#[derive(Debug, Deserialize)]
#[serde(from = "Written")]
pub struct Error {
    kind: ErrorKind,
    failure: FailureKind,
    transient: bool,
    context: ErrorContext,
    source: Cause,
}

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The log-in was refused, or needs something that was not given.
    Authentication,
    Cancelled,
    /// The source has changed while it was copied.
    Changed,
    /// A connection could not be made, or broke.
    Connection,
    /// The data that arrived is not the data that was sent.
    Corrupt,
    /// A local file or a resource of this host.
    Local,
    /// The peer sent something invalid or incomplete.
    Malformed,
    /// The caller's output could not be written.
    Output,
    /// The server refused a command.
    Refused,
    /// The peer or the connection is not as secure as required.
    Security,
    /// The peer was silent for too long, or too slow.
    TimedOut,
    /// The peer does not have this ability.
    Unsupported,
    /// The request is invalid.
    Usage,
    Other,
}

/// The place of an [`Error`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ErrorContext {
    /// The server, as `HOST:PORT` or under the name that the user gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The command of the control connection, with its arguments as far as they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

#[derive(Debug)]
enum Cause {
    Here(Box<RemoteError>),
    /// It happened in another process.
    Written(String),
}

impl Error {
    /// The request is invalid for this reason.
    pub fn usage(reason: impl Into<String>) -> Self {
        RemoteError::Usage(reason.into()).into()
    }

    /// The caller's output could not be written.
    pub fn output(error: io::Error) -> Self {
        RemoteError::Output(error).into()
    }

    pub fn cancelled() -> Self {
        RemoteError::Cancelled.into()
    }

    /// A failure of this kind that was found by the caller.
    pub fn found(kind: FailureKind, reason: impl Into<String>) -> Self {
        RemoteError::Lost { kind, reason: reason.into() }.into()
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The kind of failure, which determines the exit code of the program.
    pub fn failure_kind(&self) -> FailureKind {
        self.failure
    }

    pub fn context(&self) -> &ErrorContext {
        &self.context
    }

    /// Whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        self.transient
    }

    /// The situation, if it was found in this process.
    pub(crate) fn into_remote(self) -> Option<RemoteError> {
        match self.source {
            Cause::Here(error) => Some(*error),
            Cause::Written(_) => None,
        }
    }

    /// The error of the caller's output, if that could not be written.
    pub fn output_error(&self) -> Option<&io::Error> {
        match &self.source {
            Cause::Here(error) => match &**error {
                RemoteError::Output(error) => Some(error),
                _ => None,
            },
            Cause::Written(_) => None,
        }
    }
}

impl From<RemoteError> for Error {
    fn from(error: RemoteError) -> Self {
        Self {
            kind: error.public_kind(),
            failure: error.kind(),
            transient: error.is_transient(),
            context: error.context(),
            source: Cause::Here(Box::new(error)),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Cause::Here(error) => error.fmt(f),
            Cause::Written(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.source {
            Cause::Here(error) => error.source(),
            Cause::Written(_) => None,
        }
    }
}

/// An [`Error`] as JSON.
#[derive(Serialize, Deserialize)]
struct Written {
    kind: ErrorKind,
    failure: FailureKind,
    transient: bool,
    #[serde(default)]
    context: ErrorContext,
    error: String,
}

impl From<Written> for Error {
    fn from(written: Written) -> Self {
        let Written { kind, failure, transient, context, error } = written;
        Self { kind, failure, transient, context, source: Cause::Written(error) }
    }
}

impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let &Self { kind, failure, transient, ref context, .. } = self;
        Written { kind, failure, transient, context: context.clone(), error: self.to_string() }
            .serialize(serializer)
    }
}

impl RemoteError {
    fn public_kind(&self) -> ErrorKind {
        match self {
            Self::Cancelled => ErrorKind::Cancelled,
            Self::Grew { .. } | Self::SourceChanged { .. } => ErrorKind::Changed,
            Self::ChecksumMismatch { .. }
            | Self::Incomplete { .. }
            | Self::PartVanished { .. }
            | Self::SizeMismatch { .. } => ErrorKind::Corrupt,
            Self::Closed { .. }
            | Self::Connect { .. }
            | Self::Control { .. }
            | Self::Data { .. }
            | Self::Dismissed { .. }
            | Self::OtherServer { .. }
            | Self::Desynchronized
            | Self::Resolve { .. }
            | Self::Ssh { .. } => ErrorKind::Connection,
            Self::Crowded { source, .. } | Self::Spent { source } => source.public_kind(),
            Self::Local { .. } | Self::Pipe(_) | Self::Threads(_) | Self::Unresumable { .. } => {
                ErrorKind::Local
            }
            Self::Login { .. } | Self::Nameless { .. } | Self::NoPassword { .. } => ErrorKind::Authentication,
            Self::CutOff { .. }
            | Self::Listing { .. }
            | Self::Mistold { .. }
            | Self::Nonsense { .. }
            | Self::Unlisted { .. } => ErrorKind::Malformed,
            Self::NoDataConnection { .. } | Self::Silent { .. } | Self::Stalled { .. } => ErrorKind::TimedOut,
            Self::NoThirdParty { .. } | Self::Refused { .. } => ErrorKind::Refused,
            Self::CannotTravel { .. } | Self::NotAscii { .. } | Self::Unsupported { .. } => {
                ErrorKind::Unsupported
            }
            Self::Output(_) => ErrorKind::Output,
            Self::Security { .. } => ErrorKind::Security,
            Self::Usage(_) => ErrorKind::Usage,
            Self::Lost { .. } => ErrorKind::Other,
        }
    }

    fn context(&self) -> ErrorContext {
        let at =
            |peer: Option<&String>, path: Option<&bstr::BString>, command: Option<&String>| ErrorContext {
                peer: peer.cloned(),
                path: path.map(ToString::to_string),
                command: command.cloned(),
            };
        match self {
            Self::Closed { peer, command }
            | Self::Refused { peer, command, .. }
            | Self::Silent { peer, command, .. } => at(Some(peer), None, Some(command)),
            Self::Connect { peer, .. }
            | Self::Control { peer, .. }
            | Self::CutOff { peer, .. }
            | Self::Dismissed { peer, .. }
            | Self::Listing { peer, .. }
            | Self::Login { peer, .. }
            | Self::Nameless { peer, .. }
            | Self::NoDataConnection { peer, .. }
            | Self::NoPassword { peer, .. }
            | Self::NoThirdParty { peer, .. }
            | Self::Nonsense { peer, .. }
            | Self::NotAscii { peer, .. }
            | Self::OtherServer { peer, .. }
            | Self::Resolve { host: peer, .. }
            | Self::Security { peer, .. }
            | Self::Ssh { peer, .. }
            | Self::Unsupported { peer, .. } => at(Some(peer), None, None),
            Self::Data { peer, path, .. }
            | Self::Grew { peer, path }
            | Self::PartVanished { peer, path, .. } => at(Some(peer), Some(path), None),
            Self::CannotTravel { path }
            | Self::ChecksumMismatch { path, .. }
            | Self::Incomplete { path, .. }
            | Self::Local { path, .. }
            | Self::Mistold { path, .. }
            | Self::SizeMismatch { path, .. }
            | Self::SourceChanged { path }
            | Self::Stalled { path, .. }
            | Self::Unlisted { path, .. } => at(None, Some(path), None),
            Self::Crowded { source, peer } => ErrorContext { peer: Some(peer.clone()), ..source.context() },
            Self::Spent { source } => source.context(),
            Self::Cancelled
            | Self::Lost { .. }
            | Self::Desynchronized
            | Self::Output(_)
            | Self::Pipe(_)
            | Self::Threads(_)
            | Self::Unresumable { .. }
            | Self::Usage(_) => ErrorContext::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn error_written_as_json_is_read_again() {
        let silent = RemoteError::Silent {
            peer: "host:2811".to_owned(),
            command: "CKSM".to_owned(),
            limit: std::time::Duration::from_secs(7),
        };
        let error = Error::from(silent);
        let text = error.to_string();
        let json = serde_json::to_string(&error).unwrap();
        let read: Error = serde_json::from_str(&json).unwrap();
        assert_eq!((read.kind(), read.failure_kind()), (ErrorKind::TimedOut, FailureKind::Unreachable));
        assert_eq!((read.context(), read.is_transient()), (error.context(), true));
        assert_eq!(read.context().command.as_deref(), Some("CKSM"));
        assert_eq!(read.to_string(), text);
    }

    #[test]
    fn invalid_pattern_is_a_usage_error() {
        let filter = crate::Options::default().with(|o| o.selection.filters = vec![(true, "[".to_owned())]);
        let error =
            crate::copy(Vec::new(), &filter, &|_: crate::Event| {}, &crate::Cancel::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
}
