//! Structured errors in the form of GCT: `GlobusError: v=1 c=CLASS`, and lines `GridFTP-Key:
//! value`.

use std::io;

use crate::reply::Reply;

/// The machine-readable class of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    AmbiguousPath,
    AppendNotSupported,
    ConfigurationError,
    CrlError,
    DataChannelAuthenticationFailure,
    DataChannelCommunicationFailure,
    IncorrectChecksum,
    InternalError,
    InvalidPathName,
    IsADirectory,
    LoginDenied,
    MultiPartUploadNotFound,
    NoSpaceLeft,
    NotADirectory,
    NotImplemented,
    PathExists,
    PathNotFound,
    PermissionDenied,
    QuotaExceeded,
    TooBusy,
}

impl ErrorClass {
    pub const ALL: [Self; 20] = [
        Self::AmbiguousPath,
        Self::AppendNotSupported,
        Self::ConfigurationError,
        Self::CrlError,
        Self::DataChannelAuthenticationFailure,
        Self::DataChannelCommunicationFailure,
        Self::IncorrectChecksum,
        Self::InternalError,
        Self::InvalidPathName,
        Self::IsADirectory,
        Self::LoginDenied,
        Self::MultiPartUploadNotFound,
        Self::NoSpaceLeft,
        Self::NotADirectory,
        Self::NotImplemented,
        Self::PathExists,
        Self::PathNotFound,
        Self::PermissionDenied,
        Self::QuotaExceeded,
        Self::TooBusy,
    ];

    /// The name after `c=` in a reply.
    pub fn name(self) -> &'static str {
        match self {
            Self::AmbiguousPath => "AMBIGUOUS_PATH",
            Self::AppendNotSupported => "APPEND_NOT_SUPPORTED",
            Self::ConfigurationError => "CONFIGURATION_ERROR",
            Self::CrlError => "CRL_ERROR",
            Self::DataChannelAuthenticationFailure => "DATA_CHANNEL_AUTHENTICATION_FAILURE",
            Self::DataChannelCommunicationFailure => "DATA_CHANNEL_COMMUNICATION_FAILURE",
            Self::IncorrectChecksum => "INCORRECT_CHECKSUM",
            Self::InternalError => "INTERNAL_ERROR",
            Self::InvalidPathName => "INVALID_PATH_NAME",
            Self::IsADirectory => "IS_A_DIRECTORY",
            Self::LoginDenied => "LOGIN_DENIED",
            Self::MultiPartUploadNotFound => "MULTI_PART_UPLOAD_NOT_FOUND",
            Self::NoSpaceLeft => "NO_SPACE_LEFT",
            Self::NotADirectory => "NOT_A_DIRECTORY",
            // GCT spells it this way.
            Self::NotImplemented => "NOT_IMPLEMETED",
            Self::PathExists => "PATH_EXISTS",
            Self::PathNotFound => "PATH_NOT_FOUND",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::QuotaExceeded => "QUOTA_EXCEEDED",
            Self::TooBusy => "TOO_BUSY",
        }
    }

    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name().as_bytes() == name)
    }

    /// The reply code for an error of this class that has no errno.
    pub fn code(self) -> u16 {
        match self {
            Self::DataChannelAuthenticationFailure => 425,
            Self::DataChannelCommunicationFailure => 426,
            Self::NoSpaceLeft | Self::QuotaExceeded | Self::TooBusy => 451,
            Self::ConfigurationError | Self::InternalError | Self::NotImplemented => 500,
            Self::CrlError | Self::LoginDenied => 530,
            Self::IncorrectChecksum | Self::PathNotFound | Self::PermissionDenied => 550,
            Self::AmbiguousPath
            | Self::AppendNotSupported
            | Self::InvalidPathName
            | Self::IsADirectory
            | Self::MultiPartUploadNotFound
            | Self::NotADirectory
            | Self::PathExists => 553,
        }
    }

    /// Returns the class of the structured error in a reply, if there is one.
    pub fn of(reply: &Reply) -> Option<Self> {
        const MARK: &[u8] = b"GlobusError: v=1 c=";
        reply.lines().find_map(|line| {
            let at = line.windows(MARK.len()).position(|w| w == MARK)?;
            let name = line[at + MARK.len()..].split(|b| *b == b' ').next()?;
            Self::from_name(name)
        })
    }
}

/// Returns the reply code and the class of a failed system call.
pub fn of_errno(errno: i32) -> (u16, ErrorClass) {
    use io::ErrorKind as Kind;
    match io::Error::from_raw_os_error(errno).kind() {
        Kind::NotFound => (550, ErrorClass::PathNotFound),
        Kind::PermissionDenied if is_access(errno) => (550, ErrorClass::PermissionDenied),
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem | Kind::NotSeekable => {
            (550, ErrorClass::InternalError)
        }
        Kind::NotADirectory => (550, ErrorClass::NotADirectory),
        Kind::IsADirectory => (550, ErrorClass::IsADirectory),
        Kind::StorageFull => (552, ErrorClass::NoSpaceLeft),
        Kind::QuotaExceeded => (552, ErrorClass::QuotaExceeded),
        Kind::FileTooLarge => (552, ErrorClass::InternalError),
        Kind::AlreadyExists => (553, ErrorClass::PathExists),
        Kind::ConnectionRefused => (425, ErrorClass::DataChannelCommunicationFailure),
        Kind::ConnectionReset | Kind::ConnectionAborted => (426, ErrorClass::DataChannelCommunicationFailure),
        Kind::ExecutableFileBusy => (450, ErrorClass::InternalError),
        _ => (451, ErrorClass::InternalError),
    }
}

/// Whether this is EACCES, which has the same number on every platform. EPERM has the same
/// `ErrorKind`.
fn is_access(errno: i32) -> bool {
    const EACCES: i32 = 13;
    errno == EACCES
}

/// Returns the text of an errno, such as `No such file or directory`.
pub fn errno_text(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    match text.rfind(" (os error ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

/// Returns the lines of a structured error: the class, `details`, and `End.`
pub fn class_lines<T: AsRef<str>>(class: ErrorClass, details: &[T]) -> Vec<String> {
    let first = format!("GlobusError: v=1 c={}", class.name());
    let mut lines = vec![first];
    lines.extend(details.iter().map(|d| d.as_ref().to_owned()));
    lines.push("End.".to_owned());
    lines
}

/// Returns the lines for a failed system call; `action` is the name of the call, such as `mkdir`.
pub fn system_lines(errno: i32, action: &str) -> Vec<String> {
    let (_, class) = of_errno(errno);
    class_lines(
        class,
        &[
            format!("GridFTP-Errno: {errno}"),
            format!("GridFTP-Reason: System error in {action}"),
            format!("GridFTP-Error-String: {}", errno_text(errno)),
        ],
    )
}

/// Returns the reply to a failed system call.
pub fn system_reply(errno: i32, action: &str) -> Reply {
    Reply::coded(of_errno(errno).0, system_lines(errno, action))
}

/// Returns the end of an error chain in GCT's older form: the system call and its error text.
pub fn chain_lines(errno: i32, action: &str) -> [String; 3] {
    let text = errno_text(errno);
    [
        format!("globus_xio: System error in {action}: {text}"),
        format!("globus_xio: A system call failed: {text}"),
        "End.".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_class_names_are_parsed_back() {
        for class in ErrorClass::ALL {
            assert_eq!(ErrorClass::from_name(class.name().as_bytes()), Some(class));
            assert!((400..600).contains(&class.code()));
        }
        assert_eq!(ErrorClass::from_name(b"NOPE"), None);
    }

    #[test]
    fn errno_maps_to_code_and_class() {
        assert_eq!(
            system_reply(17, "mkdir").to_string(),
            "553-GlobusError: v=1 c=PATH_EXISTS|553-GridFTP-Errno: 17|553-GridFTP-Reason: System error in mkdir|\
             553-GridFTP-Error-String: File exists|553 End."
        );
        let expected = [
            (2, 550, ErrorClass::PathNotFound),
            (13, 550, ErrorClass::PermissionDenied),
            (1, 550, ErrorClass::InternalError),
            (30, 550, ErrorClass::InternalError),
            (29, 550, ErrorClass::InternalError),
            (20, 550, ErrorClass::NotADirectory),
            (21, 550, ErrorClass::IsADirectory),
            (28, 552, ErrorClass::NoSpaceLeft),
            (27, 552, ErrorClass::InternalError),
            (26, 450, ErrorClass::InternalError),
            (5, 451, ErrorClass::InternalError),
            (0, 451, ErrorClass::InternalError),
            (-1, 451, ErrorClass::InternalError),
        ];
        for (errno, code, class) in expected {
            assert_eq!(of_errno(errno), (code, class), "errno {errno}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn errno_of_linux_maps_to_code_and_class() {
        assert_eq!(of_errno(122), (552, ErrorClass::QuotaExceeded));
        assert_eq!(of_errno(111), (425, ErrorClass::DataChannelCommunicationFailure));
        assert_eq!(of_errno(104), (426, ErrorClass::DataChannelCommunicationFailure));
        assert_eq!(of_errno(103), (426, ErrorClass::DataChannelCommunicationFailure));
    }

    #[test]
    fn error_class_of_a_reply_is_found() {
        assert_eq!(ErrorClass::of(&system_reply(2, "stat")), Some(ErrorClass::PathNotFound));
        let cwd = Reply::coded(
            550,
            ["/p: Could not change directory. : GlobusError: v=1 c=NOT_A_DIRECTORY", "End."],
        );
        assert_eq!(ErrorClass::of(&cwd), Some(ErrorClass::NotADirectory));
        assert_eq!(ErrorClass::of(&Reply::new(500, "Command failed")), None);
    }
}
