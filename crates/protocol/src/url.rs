//! URLs of files and directories: `gsiftp://user:password@host:port/path` (RFC 1738, RFC 3986, RFC
//! 6874) and `file:`.

mod parse;
mod print;

use std::fmt;

use bstr::{BStr, BString, ByteSlice};

use crate::command::Password;

/// A supported scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    Ftp,
    /// FTP with AUTH TLS (explicit TLS, RFC 4217).
    Ftpes,
    /// FTP over TLS from the beginning (implicit TLS).
    Ftps,
    Gsiftp,
    /// FTP through ssh.
    Sshftp,
}

impl Scheme {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ftp => "ftp",
            Self::Ftpes => "ftpes",
            Self::Ftps => "ftps",
            Self::Gsiftp => "gsiftp",
            Self::Sshftp => "sshftp",
        }
    }

    /// The port if the URL has none; 0 if another program determines it: ssh has its own
    /// configuration.
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Ftp | Self::Ftpes => 21,
            Self::Ftps => 990,
            Self::Gsiftp => 2811,
            Self::Sshftp => 0,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A file or directory on a server.
///
/// `Debug` hides the password and `Display` omits it, so both are safe for logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    pub scheme: Scheme,
    pub user: Option<BString>,
    pub password: Option<Password>,
    /// A name in lower case, an IPv4 address, or an IPv6 address without brackets (a zone may
    /// follow: `fe80::1%eth0`).
    pub host: String,
    pub port: u16,
    /// The decoded path in raw bytes. It always begins with `/`, and never contains NUL.
    pub path: BString,
}

/// The file that a URL refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The path of a `file:` URL: absolute, in raw bytes.
    File(BString),
    Remote(Url),
}

/// The reason for which a text is not a supported URL. `at` is an offset in bytes, from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("no scheme: expected gsiftp://, ftp://, ftpes://, ftps://, sshftp:// or file:")]
    NoScheme,
    #[error("unknown scheme {scheme:?}: expected gsiftp, ftp, ftpes, ftps, sshftp or file")]
    UnknownScheme { scheme: String },
    #[error("a file: URL names no server: expected gsiftp://, sshftp:// or ftp://")]
    FileNotRemote,
    #[error("expected // after {scheme}:")]
    NoAuthority { scheme: Scheme },
    #[error("no host")]
    NoHost,
    #[error(
        "the host contains {byte:?} at byte {at}: expected letters, digits, '.', '-' and '_', or [IPv6 address]"
    )]
    BadHost { byte: char, at: usize },
    #[error("{address:?} in brackets is no IPv6 address")]
    BadIpv6 { address: String },
    #[error("the bracket of an IPv6 address is not closed")]
    OpenBracket,
    #[error("{text:?} after the host is no port: expected a number from 1 to 65535")]
    BadPort { text: String },
    #[error("% at byte {at} is not followed by two hexadecimal digits")]
    BadEscape { at: usize },
    #[error("NUL byte at byte {at}")]
    Nul { at: usize },
    #[error("there is a line end in what begins at byte {at}, which cannot be sent")]
    LineEnd { at: usize },
    #[error("a file: URL must name this host (or none), not {host:?}")]
    ForeignFile { host: String },
    #[error("the path of a file: URL must be absolute")]
    RelativeFile,
}

impl Url {
    /// The path relative to the log-in directory, without its first `/` (a following `%2F` makes it
    /// absolute, RFC 1738 section 3.2.2). Empty for the log-in directory itself.
    pub fn login_relative(&self) -> &BStr {
        self.path.strip_prefix(b"/").unwrap_or(&self.path).as_bstr()
    }

    /// The URL of another path on the same server. If `path` does not begin with `/`, one is
    /// prepended.
    pub fn with_path(&self, path: &[u8]) -> Self {
        let mut absolute = BString::from(if path.starts_with(b"/") { "" } else { "/" });
        absolute.extend_from_slice(path);
        Self { path: absolute, ..self.clone() }
    }

    /// Whether the URL ends with `/`, so that it refers to a directory.
    pub fn is_directory(&self) -> bool {
        self.path.ends_with(b"/")
    }
}
