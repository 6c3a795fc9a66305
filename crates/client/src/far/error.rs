//! Converts errors of a far server to errors of a store.

use ropewalk_storage::{Error, ErrorKind};
use rustix::io::Errno;

use crate::{FailureKind, RemoteError};

/// Phrases in replies of servers, in lower case, in the order in which they are searched.
const WORDS: [(&str, ErrorKind); 14] = [
    ("no such file or directory", ErrorKind::NotFound),
    ("not found", ErrorKind::NotFound),
    ("not a directory", ErrorKind::NotDirectory),
    ("is a directory", ErrorKind::IsDirectory),
    ("not empty", ErrorKind::NotEmpty),
    ("exists", ErrorKind::AlreadyExists),
    ("permission denied", ErrorKind::PermissionDenied),
    ("not allowed", ErrorKind::PermissionDenied),
    ("name too long", ErrorKind::NameTooLong),
    ("quota", ErrorKind::QuotaExceeded),
    ("no space", ErrorKind::NoSpace),
    ("read-only", ErrorKind::ReadOnly),
    ("path_not_found", ErrorKind::NotFound),
    ("too_busy", ErrorKind::Busy),
];

impl crate::Error {
    /// Converts to the error of a store's operation on `path`, with the text of this error.
    pub fn into_storage(self, action: &'static str, path: &[u8]) -> Error {
        let text = self.to_string();
        match self.into_remote() {
            Some(error) => convert(error, action, path),
            None => Error::new(ErrorKind::Io, action, path).with_detail(text),
        }
    }
}

fn convert(error: RemoteError, action: &'static str, path: &[u8]) -> Error {
    let text = error.to_string();
    let of = |kind| Error::new(kind, action, path).with_detail(text.clone());
    match error {
        RemoteError::Local { source, .. } => source,
        RemoteError::Cancelled => Error::new(ErrorKind::Interrupted, action, path),
        RemoteError::CannotTravel { .. } | RemoteError::NotAscii { .. } => of(ErrorKind::Invalid),
        RemoteError::Refused { ref reply, .. } => {
            let said = reply.to_string();
            let number = said.split_once("GridFTP-Errno: ").map(|(_, rest)| rest);
            let digits = number.map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or(""));
            if let Some(errno) = digits.and_then(|digits| digits.parse().ok()) {
                return Error::from_errno(errno, action, path).with_detail(text);
            }
            let said = said.to_lowercase();
            match WORDS.iter().find(|(word, _)| said.contains(word)) {
                Some((_, kind)) => of(*kind),
                None => of(of_kind(error.kind())),
            }
        }
        // Error codes by which a client sees that another try may succeed.
        RemoteError::Connect { .. } | RemoteError::Resolve { .. } => {
            Error::from_errno(Errno::CONNREFUSED.raw_os_error(), action, path).with_detail(text)
        }
        RemoteError::Login { .. }
        | RemoteError::Nameless { .. }
        | RemoteError::NoPassword { .. }
        | RemoteError::Security { .. } => of(ErrorKind::PermissionDenied),
        RemoteError::Unsupported { .. } => of(ErrorKind::Unsupported),
        other => match other.kind() {
            FailureKind::Unreachable | FailureKind::Stalled => {
                Error::from_errno(Errno::CONNRESET.raw_os_error(), action, path).with_detail(text)
            }
            kind => of(of_kind(kind)),
        },
    }
}

fn of_kind(kind: FailureKind) -> ErrorKind {
    match kind {
        FailureKind::NotFound => ErrorKind::NotFound,
        FailureKind::Permission | FailureKind::Authentication => ErrorKind::PermissionDenied,
        FailureKind::NoSpace => ErrorKind::NoSpace,
        FailureKind::Interrupted => ErrorKind::Interrupted,
        _ => ErrorKind::Io,
    }
}
