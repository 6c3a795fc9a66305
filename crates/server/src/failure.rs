//! Errors of storage and engine as failures of the session.

use std::io;

use ropewalk_engine::Error as EngineError;
use ropewalk_protocol::error_class::{ErrorClass, of_errno};
use ropewalk_protocol::server::Failure;
use ropewalk_storage::{Error, ErrorKind};

/// The failure for an error of a file operation.
pub(crate) fn failure(error: Error) -> Failure {
    match (error.kind(), error.errno(), error.detail()) {
        (ErrorKind::Outside | ErrorKind::NotAllowed, ..) => Failure::NotAllowed,
        (ErrorKind::Interrupted, ..) => Failure::Aborted,
        (ErrorKind::Busy, _, detail) => Failure::Class {
            class: ErrorClass::TooBusy,
            lines: vec![format!("GridFTP-Reason: {}", detail.unwrap_or("The file is in use."))],
        },
        // The error number would neither name the obstacle nor say that it is permanent.
        (ErrorKind::Unsupported, _, Some(detail)) => Failure::Class {
            class: ErrorClass::NotImplemented,
            lines: vec![format!("GridFTP-Reason: {detail}")],
        },
        // The detail says what is free.
        (ErrorKind::QuotaExceeded, _, Some(detail)) => Failure::Refused {
            code: 552,
            text: format!(
                "GlobusError: v=1 c={}\nGridFTP-Reason: {detail}",
                ErrorClass::QuotaExceeded.name()
            ),
        },
        // The words of a server behind a relay.
        (ErrorKind::PermissionDenied | ErrorKind::Io | ErrorKind::Other(_), Some(errno), Some(detail)) => {
            let lines = detail.lines().map(|line| format!("GridFTP-Reason: {line}"));
            let number = format!("GridFTP-Errno: {errno}");
            Failure::Class { class: of_errno(errno).1, lines: [number].into_iter().chain(lines).collect() }
        }
        (ErrorKind::Program, _, detail) => {
            let program = String::from_utf8_lossy(error.path());
            let text =
                format!("Command failed. : the program {program} failed: {}", detail.unwrap_or_default());
            Failure::Refused { code: 500, text }
        }
        (_, Some(errno), _) => Failure::System { errno, action: error.action().to_owned() },
        (_, None, _) => Failure::Class {
            class: ErrorClass::InternalError,
            lines: vec![format!("GridFTP-Reason: {error}")],
        },
    }
}

/// The failure for an error of a transfer.
pub(crate) fn transfer_failure(error: EngineError) -> Failure {
    match error {
        EngineError::Store(error) => failure(error),
        EngineError::Aborted => Failure::Aborted,
        EngineError::Connect { .. } | EngineError::NoConnection { .. } | EngineError::Accept(_) => {
            Failure::DataConnection(error.to_string())
        }
        EngineError::Reader(error) | EngineError::Writer(error) => io_failure(error),
        other => Failure::DataBroken(other.to_string()),
    }
}

pub(crate) fn io_failure(error: io::Error) -> Failure {
    match error.downcast::<Error>() {
        Ok(error) => failure(error),
        Err(error) => match error.raw_os_error() {
            Some(errno) => Failure::System { errno, action: "read".into() },
            None => Failure::DataBroken(error.to_string()),
        },
    }
}
