//! Errors of stores. An [`Error`] names the operation, the path and the offset; its [`ErrorKind`]
//! does not depend on the store. Error numbers of the system are kept.

use std::fmt;
use std::io;

use bstr::BString;
use rustix::io::Errno;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, independent of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    #[error("no such file or directory")]
    NotFound,
    #[error("permission denied")]
    PermissionDenied,
    #[error("it exists already")]
    AlreadyExists,
    #[error("it is a directory")]
    IsDirectory,
    #[error("it is not a directory")]
    NotDirectory,
    #[error("the directory is not empty")]
    NotEmpty,
    #[error("no space left")]
    NoSpace,
    #[error("quota exceeded")]
    QuotaExceeded,
    #[error("the name is too long")]
    NameTooLong,
    #[error("the file system is read-only")]
    ReadOnly,
    #[error("too many symbolic links")]
    TooManyLinks,
    /// In use, or locked by another transfer.
    #[error("in use")]
    Busy,
    #[error("invalid argument")]
    Invalid,
    /// `rename` between two file systems.
    #[error("on another file system")]
    CrossDevice,
    #[error("too large")]
    TooLarge,
    #[error("too many open files")]
    TooManyOpen,
    #[error("input/output error")]
    Io,
    /// The store does not support this operation.
    #[error("not supported")]
    Unsupported,
    /// The path leads out of the store.
    #[error("outside of the store")]
    Outside,
    /// Refused by a [`crate::Guard`].
    #[error("not allowed")]
    NotAllowed,
    /// Some bytes of the file are missing.
    #[error("incomplete")]
    Incomplete,
    /// A callback has stopped the operation.
    #[error("interrupted")]
    Interrupted,
    /// A program in place of a file ([`crate::Program`]) has failed.
    #[error("the program has failed")]
    Program,
    /// Any other error of the system, by its number.
    #[error("{}", Errno::from_raw_os_error(*.0))]
    Other(i32),
}

impl ErrorKind {
    fn from_errno(errno: Errno) -> Self {
        match errno {
            Errno::NOENT => Self::NotFound,
            Errno::ACCESS | Errno::PERM => Self::PermissionDenied,
            Errno::EXIST => Self::AlreadyExists,
            Errno::ISDIR => Self::IsDirectory,
            Errno::NOTDIR => Self::NotDirectory,
            Errno::NOTEMPTY => Self::NotEmpty,
            Errno::NOSPC => Self::NoSpace,
            Errno::DQUOT => Self::QuotaExceeded,
            Errno::NAMETOOLONG => Self::NameTooLong,
            Errno::ROFS => Self::ReadOnly,
            Errno::LOOP => Self::TooManyLinks,
            Errno::BUSY | Errno::TXTBSY | Errno::WOULDBLOCK => Self::Busy,
            Errno::INVAL => Self::Invalid,
            Errno::XDEV => Self::CrossDevice,
            Errno::FBIG | Errno::OVERFLOW => Self::TooLarge,
            Errno::MFILE | Errno::NFILE => Self::TooManyOpen,
            Errno::IO => Self::Io,
            Errno::NOSYS | Errno::OPNOTSUPP => Self::Unsupported,
            other => Self::Other(other.raw_os_error()),
        }
    }

    /// The error number of this kind, if the error did not come from the system.
    fn errno(self) -> Option<Errno> {
        Some(match self {
            Self::NotFound => Errno::NOENT,
            Self::PermissionDenied => Errno::ACCESS,
            Self::AlreadyExists => Errno::EXIST,
            Self::IsDirectory => Errno::ISDIR,
            Self::NotDirectory => Errno::NOTDIR,
            Self::NotEmpty => Errno::NOTEMPTY,
            Self::NoSpace => Errno::NOSPC,
            Self::QuotaExceeded => Errno::DQUOT,
            Self::NameTooLong => Errno::NAMETOOLONG,
            Self::ReadOnly => Errno::ROFS,
            Self::TooManyLinks => Errno::LOOP,
            Self::Busy => Errno::BUSY,
            Self::Invalid => Errno::INVAL,
            Self::CrossDevice => Errno::XDEV,
            Self::TooLarge => Errno::FBIG,
            Self::TooManyOpen => Errno::MFILE,
            Self::Io => Errno::IO,
            Self::Unsupported => Errno::OPNOTSUPP,
            Self::Other(raw) => Errno::from_raw_os_error(raw),
            Self::Outside | Self::NotAllowed | Self::Incomplete | Self::Interrupted | Self::Program => {
                return None;
            }
        })
    }

    fn io_kind(self) -> io::ErrorKind {
        match self {
            Self::Outside | Self::NotAllowed => io::ErrorKind::PermissionDenied,
            Self::Incomplete => io::ErrorKind::UnexpectedEof,
            Self::Interrupted | Self::Program => io::ErrorKind::Other,
            kind => kind.errno().map_or(io::ErrorKind::Other, |errno| errno.kind()),
        }
    }
}

/// A failed operation on a store: the operation, the path, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Error {
    kind: ErrorKind,
    /// The error number of the system (several numbers can have the same kind).
    errno: Option<i32>,
    action: &'static str,
    path: BString,
    offset: Option<u64>,
    detail: Option<Box<str>>,
}

impl Error {
    /// Makes an error. `action` is a verb such as `open` or `mkdir`.
    pub fn new(kind: ErrorKind, action: &'static str, path: impl AsRef<[u8]>) -> Self {
        Self { kind, errno: None, action, path: path.as_ref().into(), offset: None, detail: None }
    }

    /// Makes an error from an error number of the system; an invalid number becomes
    /// [`ErrorKind::Io`].
    pub fn from_errno(errno: i32, action: &'static str, path: impl AsRef<[u8]>) -> Self {
        if !(1..4096).contains(&errno) {
            return Self::new(ErrorKind::Io, action, path);
        }
        let kind = ErrorKind::from_errno(Errno::from_raw_os_error(errno));
        Self { errno: Some(errno), ..Self::new(kind, action, path) }
    }

    pub fn from_io(error: &io::Error, action: &'static str, path: impl AsRef<[u8]>) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::from_errno(errno, action, path),
            None => Self::new(ErrorKind::Io, action, path).with_detail(error.to_string()),
        }
    }

    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into().into_boxed_str());
        self
    }

    /// Sets the offset in the file at which the error occurred.
    #[must_use]
    pub fn at(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The error number; `None` if there is none for this kind (such as [`ErrorKind::Outside`]).
    pub fn errno(&self) -> Option<i32> {
        self.errno.or_else(|| self.kind.errno().map(Errno::raw_os_error))
    }

    pub fn action(&self) -> &'static str {
        self.action
    }

    /// The path within the store, or a description in place of one.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    pub fn offset(&self) -> Option<u64> {
        self.offset
    }

    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    pub fn is_not_found(&self) -> bool {
        self.kind == ErrorKind::NotFound
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.action, self.path)?;
        if let Some(offset) = self.offset {
            write!(f, " at offset {offset}")?;
        }
        write!(f, ": {}", self.kind)?;
        match &self.detail {
            Some(detail) => write!(f, " ({detail})"),
            None => Ok(()),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind.io_kind(), error)
    }
}

/// Adds action and path to an error number of the system.
pub(crate) trait Context<T> {
    fn context(self, action: &'static str, path: impl AsRef<[u8]>) -> Result<T>;
}

impl<T> Context<T> for Result<T, Errno> {
    fn context(self, action: &'static str, path: impl AsRef<[u8]>) -> Result<T> {
        self.map_err(|errno| Error::from_errno(errno.raw_os_error(), action, path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_shows_action_path_offset_and_reason() {
        let error = Error::from_errno(Errno::NOSPC.raw_os_error(), "write", "/a/b").at(4096);
        assert_eq!(error.to_string(), "write /a/b at offset 4096: no space left");
        let error = Error::new(ErrorKind::Busy, "open", "/p").with_detail("another transfer writes it");
        assert_eq!(error.to_string(), "open /p: in use (another transfer writes it)");
    }

    #[test]
    fn from_errno_keeps_the_number() {
        let error = Error::from_errno(Errno::PERM.raw_os_error(), "chmod", "/a");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert_eq!(error.errno(), Some(Errno::PERM.raw_os_error()));
    }

    #[test]
    fn errno_of_each_kind_maps_back_to_it() {
        for raw in 1..134 {
            let kind = ErrorKind::from_errno(Errno::from_raw_os_error(raw));
            let back = ErrorKind::from_errno(kind.errno().unwrap_or(Errno::NOENT));
            assert_eq!(back, kind, "errno {raw}");
        }
        assert_eq!(Error::new(ErrorKind::Outside, "open", "/x").errno(), None);
        for no_number in [0, -1, 4096, i32::MIN] {
            assert_eq!(Error::from_errno(no_number, "open", "/x").kind(), ErrorKind::Io);
        }
    }

    #[test]
    fn io_error_has_the_same_kind_and_text() {
        let error = io::Error::from(Error::new(ErrorKind::NotFound, "open", "/x"));
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(error.to_string(), "open /x: no such file or directory");
    }
}
