//! The options of a caller. Each has a default that suits an unknown path.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bstr::BStr;
use ropewalk_protocol::command::Password;
use ropewalk_protocol::stack::StackSpec;
use ropewalk_protocol::url::Url;
use ropewalk_storage::checksum::Algorithm;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::Location;
use crate::model::as_text;

/// A value that the program determines unless it is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Auto<T> {
    #[default]
    Auto,
    Set(T),
}

/// How the destination is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChecksumPolicy {
    /// The best algorithm of both sides. If the peer supports none, sizes are compared and the
    /// summary says so.
    #[default]
    Default,
    None,
    /// This algorithm, or the file fails.
    Require(#[serde(with = "as_text")] Algorithm),
}

/// MODE of data channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DataMode {
    /// MODE E if both sides support it, MODE S otherwise.
    #[default]
    Auto,
    Stream,
    Extended,
}

/// Protection of bytes on authenticated data connections (PROT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DataProtection {
    /// Clear with gsiftp://, private with TLS.
    #[default]
    Auto,
    /// No protection.
    Clear,
    /// Changes are detected (GCT encrypts as well).
    Safe,
    /// Encrypted.
    Private,
}

/// The credential for log-ins of gsiftp://.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Authentication {
    /// A certificate, or a Kerberos ticket if there is no certificate.
    #[default]
    Auto,
    /// A certificate.
    Gsi,
    /// A Kerberos ticket; for ftp:// too.
    Kerberos,
}

/// The credential with which data connections of gsiftp:// are authenticated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DataCredential {
    /// The credential of the log-in. If the log-ins of two servers differ, DCSC reconciles them (or
    /// DCAU S, if they do not support it).
    #[default]
    Usual,
    /// A credential that is made for this run, and that the servers get by DCSC.
    Fresh,
    /// A proxy of the credential in this file (certificate, key, chain), which the servers get by
    /// DCSC.
    File(PathBuf),
}

/// Options of the log-in at one end of a copy; an unset one is as at the other end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct EndOptions {
    /// As [`super::LoginOptions::credential`].
    pub credential: Option<PathBuf>,
    /// As [`super::TrustOptions::server_subject`].
    pub server_subject: Option<String>,
    /// As [`super::DataOptions::stack`].
    #[serde(with = "as_text::optional")]
    pub stack: Option<StackSpec>,
    /// As [`super::DataOptions::disk_stack`].
    #[serde(with = "as_text::optional")]
    pub disk_stack: Option<StackSpec>,
    /// The reservation at the server that uploads draw on (SITE SPACE); only of the destination.
    pub space_token: Option<String>,
    /// The reservation at the server that transfers use (SITE SLOTS).
    pub slots_token: Option<String>,
}

impl EndOptions {
    /// Whether a program of the server stands for each file of a transfer.
    pub(crate) fn runs_program(&self) -> bool {
        self.disk_stack.as_ref().is_some_and(|stack| stack.has("popen"))
    }
}

/// Passphrases of encrypted keys, by the names of their files.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Passphrases(Arc<HashMap<String, Zeroizing<String>>>);

impl Passphrases {
    pub(crate) fn of(&self, place: &str) -> Option<Zeroizing<String>> {
        self.0.get(place).cloned()
    }
}

impl FromIterator<(String, Zeroizing<String>)> for Passphrases {
    fn from_iter<I: IntoIterator<Item = (String, Zeroizing<String>)>>(known: I) -> Self {
        Self(Arc::new(known.into_iter().collect()))
    }
}

impl std::fmt::Debug for Passphrases {
    /// Omits the passphrases.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Passphrases").field("known", &self.0.len()).finish_non_exhaustive()
    }
}

/// Which files of a tree are skipped because the destination has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncLevel {
    /// The destination exists.
    Exists,
    /// Same size.
    Size,
    /// Same size, and destination not older.
    Time,
    /// Same size and checksum.
    Checksum,
}

/// When data is forced to stable storage at a local destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FsyncPolicy {
    #[default]
    None,
    /// Once, before a file gets its final name.
    AtEnd,
    /// Also every second while data arrives: a crash of the machine costs a download at most that.
    EachMarker,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Preserve {
    pub times: bool,
    pub modes: bool,
    /// Copy symbolic links as links; otherwise they are followed.
    pub links: bool,
}

/// A transfer slower than `bytes_per_second` for `time` is cancelled and retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StallLimit {
    pub bytes_per_second: u64,
    #[serde(with = "as_text::seconds")]
    pub time: Duration,
}

/// A range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    pub offset: u64,
    /// `None`: to the end.
    pub length: Option<u64>,
}

/// How much of a source is copied.
pub type Amount = Option<Window>;

/// One source and its destination.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    pub source: Location,
    pub destination: Location,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Amount,
}

/// A yes-or-no question to the user.
#[derive(Clone)]
pub struct Confirm(Arc<dyn Fn(&str) -> bool + Send + Sync>);

impl Confirm {
    pub fn new(ask: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }

    pub(crate) fn ask(&self, question: &str) -> bool {
        (self.0)(question)
    }
}

/// The same function, not one like it.
impl PartialEq for Confirm {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for Confirm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Confirm")
    }
}

/// Selects files by their size in bytes and by the time since their last change. A value that a
/// server does not report excludes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    pub min_size: Option<u64>,
    pub max_size: Option<u64>,
    #[serde(with = "as_text::optional_seconds")]
    pub min_age: Option<Duration>,
    #[serde(with = "as_text::optional_seconds")]
    pub max_age: Option<Duration>,
}

type Ask = dyn Fn(&Url, &BStr) -> io::Result<Password> + Send + Sync;

/// Asks the user for the password of an account at a server. It is called once for each session,
/// from any thread: the caller stores the answer.
#[derive(Clone)]
pub struct PasswordPrompt(Arc<Ask>);

impl PasswordPrompt {
    /// `ask` gets the URL of the server, and the user.
    pub fn new(ask: impl Fn(&Url, &BStr) -> io::Result<Password> + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }

    pub(crate) fn ask(&self, url: &Url, user: &BStr) -> io::Result<Password> {
        (self.0)(url, user)
    }
}

/// The same function, not one like it.
impl PartialEq for PasswordPrompt {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for PasswordPrompt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PasswordPrompt")
    }
}

/// Held while another program (ssh) may ask at the terminal.
pub(crate) type TerminalHold = Box<dyn Any + Send>;

/// The caller's terminal, at which another program may have to ask.
#[derive(Clone)]
pub struct Terminal(Arc<dyn Fn() -> TerminalHold + Send + Sync>);

impl Terminal {
    /// `hold` is called before a program starts that may ask; the caller does not write to the
    /// terminal until the returned value is dropped.
    pub fn new<H: Send + 'static>(hold: impl Fn() -> H + Send + Sync + 'static) -> Self {
        Self(Arc::new(move || Box::new(hold())))
    }

    pub(crate) fn hold(&self) -> TerminalHold {
        (self.0)()
    }
}

impl std::fmt::Debug for Terminal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Terminal")
    }
}

/// How sshftp:// connects.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SshOptions {
    /// The program with its arguments; empty: `ssh`. A program named `ssh` is taken to be OpenSSH.
    #[serde(with = "as_text::words")]
    pub program: Vec<OsString>,
    /// The command for the user's shell on the server's host; `None`: the value of
    /// `GLOBUS_REMOTE_SSHFTP`, or the script `sshftp` of the user or the host, or `ropewalk serve
    /// --ssh`.
    pub remote_command: Option<String>,
    /// It may ask at the terminal for passwords, and whether to trust an unknown host.
    pub interactive: bool,
    /// Control connections to one server share a log-in (ControlMaster); otherwise each logs in by
    /// itself.
    pub share: bool,
}

impl Default for SshOptions {
    fn default() -> Self {
        Self { program: Vec::new(), remote_command: None, interactive: false, share: true }
    }
}

/// The source of a bearer token for log-ins. It is read at each log-in, so that a renewed token is
/// used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenSource {
    /// No token.
    #[default]
    None,
    /// `BEARER_TOKEN`, the file in `BEARER_TOKEN_FILE`, `$XDG_RUNTIME_DIR/bt_uUID` or
    /// `/tmp/bt_uUID` (WLCG Bearer Token Discovery); it is an error if there is none.
    Discover,
    /// In this file, which no other user may read.
    File(PathBuf),
}
