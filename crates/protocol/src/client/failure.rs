use bstr::ByteSlice;

use crate::error_class::ErrorClass;
use crate::reply::{Reply, ReplyClass};

/// What a failure is about, as far as the reply tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// Not logged in, log-in refused, or a protection was asked for that is missing.
    Auth,
    /// Too many users or transfers, or the server is going down: another time it may work.
    Busy,
    ChecksumMismatch,
    /// The data connection could not be made, or it broke.
    DataConnection,
    Exists,
    NoSpace,
    NotFound,
    Permission,
    /// The server does not know the command, or not with such arguments.
    Unsupported,
    Other,
}

/// A command that the server answered with an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{command}: the server answered {reply}")]
pub struct CommandFailure {
    /// The verb.
    pub command: &'static str,
    pub reply: Reply,
    pub kind: FailureKind,
}

impl CommandFailure {
    /// `reply` is an error, or none that `command` may have.
    pub fn new(command: &'static str, reply: Reply) -> Self {
        Self { command, kind: FailureKind::of(&reply), reply }
    }

    /// `Ok` where the reply says that the command is done (2yz).
    pub fn check(command: &'static str, reply: Reply) -> Result<Reply, Self> {
        if reply.is_success() { Ok(reply) } else { Err(Self::new(command, reply)) }
    }

    /// The same command may work later (RFC 959 section 4.2.1: 4yz), or on another connection.
    pub fn is_transient(&self) -> bool {
        self.reply.class() == ReplyClass::TransientFailure
            || matches!(self.kind, FailureKind::Busy | FailureKind::DataConnection)
    }
}

impl FailureKind {
    /// Structured errors say it; otherwise the text decides where the code leaves room, then the code.
    pub fn of(reply: &Reply) -> Self {
        if let Some(kind) = ErrorClass::of(reply).and_then(Self::of_class) {
            return kind;
        }
        let by_text = || Self::of_text(reply);
        match reply.code() {
            331 | 332 | 430 | 530 | 532..=537 => Self::Auth,
            421 | 422 | 434 => Self::Busy,
            425 | 426 => Self::DataConnection,
            452 | 552 => Self::NoSpace,
            450 | 451 => by_text().unwrap_or(Self::Busy),
            // GCT answers 500 to anything, other servers mean it.
            500 => {
                by_text().unwrap_or(if reply.lines().len() == 1 { Self::Unsupported } else { Self::Other })
            }
            501..=504 | 522 => by_text().unwrap_or(Self::Unsupported),
            _ => by_text().unwrap_or(Self::Other),
        }
    }

    fn of_class(class: ErrorClass) -> Option<Self> {
        use ErrorClass as Class;
        Some(match class {
            Class::CrlError | Class::LoginDenied => Self::Auth,
            Class::DataChannelAuthenticationFailure | Class::DataChannelCommunicationFailure => {
                Self::DataConnection
            }
            Class::IncorrectChecksum => Self::ChecksumMismatch,
            Class::NoSpaceLeft | Class::QuotaExceeded => Self::NoSpace,
            Class::NotImplemented | Class::AppendNotSupported => Self::Unsupported,
            Class::PathExists => Self::Exists,
            Class::MultiPartUploadNotFound | Class::PathNotFound => Self::NotFound,
            Class::PermissionDenied => Self::Permission,
            Class::TooBusy => Self::Busy,
            Class::IsADirectory | Class::NotADirectory | Class::AmbiguousPath | Class::InvalidPathName => {
                Self::Other
            }
            // It stands for errors without a class of their own (EPERM, EROFS): the text says more.
            Class::ConfigurationError | Class::InternalError => return None,
        })
    }

    fn of_text(reply: &Reply) -> Option<Self> {
        const WORDS: [(&str, FailureKind); 36] = [
            ("no such file", FailureKind::NotFound),
            ("not found", FailureKind::NotFound),
            ("does not exist", FailureKind::NotFound),
            ("doesn't exist", FailureKind::NotFound),
            ("no such", FailureKind::NotFound),
            ("permission denied", FailureKind::Permission),
            ("access denied", FailureKind::Permission),
            ("not permitted", FailureKind::Permission),
            ("path not allowed", FailureKind::Permission),
            ("not allowed", FailureKind::Permission),
            ("read-only", FailureKind::Permission),
            ("forbidden", FailureKind::Permission),
            ("no space left", FailureKind::NoSpace),
            ("disk full", FailureKind::NoSpace),
            ("disk quota", FailureKind::NoSpace),
            ("quota exceeded", FailureKind::NoSpace),
            ("not enough space", FailureKind::NoSpace),
            ("insufficient", FailureKind::NoSpace),
            ("file exists", FailureKind::Exists),
            ("already exists", FailureKind::Exists),
            ("incorrect_checksum", FailureKind::ChecksumMismatch),
            ("connection limit", FailureKind::Busy),
            ("too many", FailureKind::Busy),
            ("busy", FailureKind::Busy),
            ("try again", FailureKind::Busy),
            ("connection reset", FailureKind::DataConnection),
            ("connection refused", FailureKind::DataConnection),
            ("broken pipe", FailureKind::DataConnection),
            ("end-of-file was reached", FailureKind::DataConnection),
            ("timed out", FailureKind::DataConnection),
            ("not supported", FailureKind::Unsupported),
            ("not implemented", FailureKind::Unsupported),
            ("not understood", FailureKind::Unsupported),
            ("unknown command", FailureKind::Unsupported),
            // vsftpd hides the reason; a missing file is the usual one.
            ("failed to open file", FailureKind::NotFound),
            ("could not get file", FailureKind::NotFound),
        ];
        let text: Vec<u8> = bstr::join("\n", reply.lines()).to_ascii_lowercase();
        WORDS.iter().find(|(words, _)| text.contains_str(words)).map(|(_, kind)| *kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error_class::{class_lines, system_reply};

    fn of(code: u16, text: &str) -> FailureKind {
        FailureKind::of(&Reply::coded(code, text.split('|')))
    }

    #[test]
    fn structured_errors() {
        for (class, kind) in [
            (ErrorClass::PathNotFound, FailureKind::NotFound),
            (ErrorClass::QuotaExceeded, FailureKind::NoSpace),
            (ErrorClass::TooBusy, FailureKind::Busy),
            (ErrorClass::LoginDenied, FailureKind::Auth),
            (ErrorClass::IncorrectChecksum, FailureKind::ChecksumMismatch),
            (ErrorClass::NotADirectory, FailureKind::Other),
        ] {
            let reply = Reply::coded(500, class_lines::<&str>(class, &[]));
            assert_eq!(FailureKind::of(&reply), kind, "{reply}");
        }
        assert_eq!(FailureKind::of(&system_reply(17, "mkdir")), FailureKind::Exists);
        assert_eq!(FailureKind::of(&system_reply(30, "mkdir")), FailureKind::Permission);
        assert_eq!(FailureKind::of(&system_reply(1, "chmod")), FailureKind::Permission);
    }

    /// Replies of globus-gridftp-server 13.24 and vsftpd.
    #[test]
    fn replies_seen() {
        for (code, text, kind) in [
            (
                500,
                "Command failed. : globus_l_gfs_file_open failed.|globus_xio: Unable to open file /nope|globus_xio: \
                 System error in open: No such file or directory|End.",
                FailureKind::NotFound,
            ),
            (500, "Path not allowed.", FailureKind::Permission),
            (550, "/etc: Could not change directory. : Path not allowed.", FailureKind::Permission),
            (500, "Command not supported.", FailureKind::Unsupported),
            (500, "Invalid command.", FailureKind::Unsupported),
            (
                500,
                "Command failed. : callback failed.|an end-of-file was reached|End.",
                FailureKind::DataConnection,
            ),
            (500, "Command failed. : callback failed.|something|End.", FailureKind::Other),
            (421, "Service busy: Connection limit exceeded. Please try again later.", FailureKind::Busy),
            (422, "Service temporarily offline. Closing control connection.", FailureKind::Busy),
            (530, "Login incorrect. : Access denied by configuration.", FailureKind::Auth),
            (530, "Please login with USER and PASS.", FailureKind::Auth),
            (550, "Failed to open file.", FailureKind::NotFound),
            (550, "Permission denied.", FailureKind::Permission),
            (550, "Whatever", FailureKind::Other),
            (552, "x", FailureKind::NoSpace),
            (451, "No space left on device", FailureKind::NoSpace),
            (451, "x", FailureKind::Busy),
            (426, "x", FailureKind::DataConnection),
            (504, "Bad MODE.", FailureKind::Unsupported),
            (553, "Could not create file.", FailureKind::Other),
        ] {
            assert_eq!(of(code, text), kind, "{code} {text}");
        }
    }

    #[test]
    fn check() {
        assert!(CommandFailure::check("SIZE", Reply::new(213, "5")).is_ok());
        let failure = CommandFailure::new("SIZE", Reply::new(450, "busy"));
        assert!(failure.is_transient());
        assert_eq!(failure.to_string(), "SIZE: the server answered 450 busy");
        assert!(!CommandFailure::new("SIZE", Reply::new(550, "no such file")).is_transient());
    }
}
