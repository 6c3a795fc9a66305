//! The options of a caller. Each has a default that suits an unknown path.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bstr::{BStr, BString};
use ropewalk_protocol::command::Password;
use ropewalk_protocol::url::Url;
use ropewalk_storage::DirectIo;
use ropewalk_storage::checksum::Algorithm;
use ropewalk_tls::Fingerprint;
use ropewalk_tuning::tuner::{CongestionControl, Fairness, Kind, Options as TunerOptions};
use zeroize::Zeroizing;

use crate::Location;

/// A value that the program determines unless it is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auto<T> {
    #[default]
    Auto,
    Set(T),
}

/// How the destination is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChecksumPolicy {
    /// The best algorithm of both sides. If the peer supports none, sizes are compared and the
    /// summary says so.
    #[default]
    Default,
    None,
    /// This algorithm, or the file fails.
    Require(Algorithm),
}

/// MODE of data channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataMode {
    /// MODE E if both sides support it, MODE S otherwise.
    #[default]
    Auto,
    Stream,
    Extended,
}

/// Protection of bytes on authenticated data connections (PROT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndOptions {
    /// As [`Options::credential`].
    pub credential: Option<PathBuf>,
    /// As [`Options::server_subject`].
    pub server_subject: Option<String>,
}

/// Passphrases of encrypted keys, by the names of their files.
#[derive(Clone, Default)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FsyncPolicy {
    #[default]
    None,
    /// Once, before a file gets its final name.
    AtEnd,
    /// Also every second while data arrives: a crash of the machine costs a download at most that.
    EachMarker,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preserve {
    pub times: bool,
    pub modes: bool,
    /// Copy symbolic links as links; otherwise they are followed.
    pub links: bool,
}

/// A transfer slower than `bytes_per_second` for `time` is cancelled and retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallLimit {
    pub bytes_per_second: u64,
    pub time: Duration,
}

/// A range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub offset: u64,
    /// `None`: to the end.
    pub length: Option<u64>,
}

/// How much of a source is copied.
pub type Amount = Option<Window>;

/// One source and its destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    pub source: Location,
    pub destination: Location,
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

impl std::fmt::Debug for Confirm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Confirm")
    }
}

/// Selects files by their size in bytes and by the time since their last change. A value that a
/// server does not report excludes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub min_size: Option<u64>,
    pub max_size: Option<u64>,
    pub min_age: Option<Duration>,
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

#[derive(Clone, Debug)]
pub struct Options {
    /// Data connections of a file (`-p`).
    pub streams: Auto<u32>,
    /// Files in flight: control sessions (pairs of them, third-party) that work at the same time
    /// (`--files`).
    pub files: Auto<u32>,
    /// Transfer commands in flight on one control connection (`--pipeline`).
    pub pipeline: Auto<u32>,
    /// The tuner of the number of streams while data moves, unless `streams` is set (`--tuner`);
    /// [`Kind::Fixed`] keeps the number that the round trip suggests.
    pub tuner: Kind,
    /// Most data connections of a path that the tuner may use.
    pub max_streams: u32,
    /// How the tuner treats other traffic of the path.
    pub fairness: Fairness,
    /// The capacity of the path in bits per second, if known: a hint for the tuner's start.
    pub capacity: Option<u64>,
    /// Congestion controls that the tuner may choose from, by the kernel's names; none: the
    /// kernel's own. Without tuning the first one is used.
    pub congestion: Vec<String>,
    pub mode: DataMode,
    /// TYPE A.
    pub ascii: bool,
    /// Payload bytes of a MODE E block.
    pub block_size: usize,
    /// Socket buffers in bytes; `None` leaves them to the kernel.
    pub tcp_buffer: Option<u64>,
    /// Payload bytes per second over all data connections of this process, in both directions
    /// together; `None`: unlimited. Copies between two servers need `through_here` with it.
    pub bandwidth: Option<u64>,
    pub recursive: bool,
    /// Make missing directories of the destination; otherwise only those within a tree.
    pub create_directories: bool,
    /// Follow symbolic links that stand for directories of a local destination and lead out of it.
    pub keep_dirlinks: bool,
    /// A file whose destination is an existing directory goes into it under its own name, as with
    /// `cp`; otherwise that is an error, as with GCT's program. A destination that ends with `/` is
    /// a directory in any case.
    pub into_directories: bool,
    pub sync: Option<SyncLevel>,
    /// With `sync` and `recursive`: remove entries that the source does not have.
    pub delete: bool,
    /// Globs on paths relative to the source; the last match decides; `include` is `true`.
    pub filters: Vec<(bool, String)>,
    /// Sizes and ages of the files that are copied.
    pub limits: Limits,
    /// Restricts trees to these paths relative to the source, and to everything beneath them. A
    /// missing one is a failure. Not with `delete`.
    pub listed: Option<Vec<BString>>,
    pub dry_run: bool,
    pub preserve: Preserve,
    pub sparse: bool,
    pub checksum: ChecksumPolicy,
    pub fsync: FsyncPolicy,
    /// When local files are written past the page cache.
    pub direct_io: DirectIo,
    /// Resume a transfer of an earlier run.
    pub resume: bool,
    /// Retries of a file; a try that made progress restarts the count.
    pub retries: u32,
    /// First pause between tries; it grows up to a minute while tries make no progress, with
    /// jitter.
    pub retry_pause: Duration,
    /// Time after the first failure in which a connection, or a file without progress, is retried.
    /// `None`: only `retries` counts.
    pub retry_limit: Option<Duration>,
    pub stall: Option<StallLimit>,
    pub connect_timeout: Duration,
    /// Longest silence of a control connection on which a reply is due; for a checksum one more
    /// second for each 8 MiB of the file.
    pub reply_timeout: Duration,
    /// Idle time of a control connection after which NOOP is sent.
    pub keepalive: Duration,
    /// Stop at the first file that failed permanently.
    pub stop_on_failure: bool,
    pub delayed_passive: bool,
    /// Between two servers in MODE E: the source gets all addresses of the destination (SPAS,
    /// SPOR).
    pub striped: bool,
    /// How a source of several addresses distributes a file: blocks of this size in turn, or, if 0,
    /// one range for each. `None`: the server's own layout.
    pub stripe_block: Option<u64>,
    /// Files at servers are written under their own names, for servers that permit no renaming. An
    /// interrupted file stays under its name, incomplete, and is not resumed. If the server does
    /// not report its size, the size is not verified either.
    pub in_place: bool,
    /// Skip dangling symbolic links that are to be followed; otherwise each is a failure.
    pub skip_dangling: bool,
    /// Data between two servers passes through this program, for servers that may not send to each
    /// other. Slower: one stream for each file, and no restart within a file.
    pub through_here: bool,
    /// The user if the URL names none.
    pub user: Option<String>,
    pub password: Option<Password>,
    /// Log in with a bearer token if the URL names no user.
    pub token: TokenSource,
    /// ftp:// logs in over TLS (AUTH TLS), as ftpes:// does.
    pub tls: bool,
    /// SHA-256 of the certificate that a server with TLS must have; authorities and remembered
    /// servers do not count.
    pub fingerprint: Option<Fingerprint>,
    /// Accept and remember servers with TLS, on the first contact, whose certificate is from no
    /// trusted authority.
    pub accept_new: bool,
    /// Asks the user whether such a server is to be accepted; `None`: there is no user.
    pub confirm: Option<Confirm>,
    /// Asks the user for a password that neither the URL nor [`Options::password`] has, once the
    /// server is trusted and requires it; `None`: there is no user.
    pub ask_password: Option<PasswordPrompt>,
    /// Where ssh may ask; `None`: no other output uses the terminal.
    pub terminal: Option<Terminal>,
    /// gsiftp:// logs in without certificates, in clear, as ftp:// does.
    pub insecure: bool,
    pub authentication: Authentication,
    /// The services of a server's Kerberos principal, tried in this order; empty: `host`, then
    /// `ftp`.
    pub kerberos_services: Vec<String>,
    /// The credential for gsiftp://, a file with certificate, key and chain; `None`: in the places
    /// of GCT's programs.
    pub credential: Option<PathBuf>,
    /// Trusted authorities; `None`: in the places of GCT's programs.
    pub authorities: Option<PathBuf>,
    /// For TLS: a file or hashed directory with lists of revoked certificates; `None`: those in a
    /// directory that [`Options::authorities`] names.
    pub revocations: Option<PathBuf>,
    /// The one-line subject of the servers' certificate (with Kerberos: the server's principal);
    /// `None`: the certificate is for the host in the URL.
    pub server_subject: Option<String>,
    /// Options that differ between source and destination.
    pub source: EndOptions,
    pub destination: EndOptions,
    /// The credential for data connections.
    pub data_credential: DataCredential,
    /// Of encrypted keys; no question is asked later.
    pub passphrases: Passphrases,
    /// Give servers a limited proxy, without which they cannot authenticate data connections.
    pub delegate: bool,
    /// DCAU A; otherwise none.
    pub data_authentication: bool,
    /// Require that data connections are authenticated, protected or bound to their session.
    pub require_data_authentication: bool,
    pub data_protection: DataProtection,
    /// How sshftp:// connects.
    pub ssh: SshOptions,
    /// Local ports for listening data connections.
    pub data_ports: Option<(u16, u16)>,
    /// Bytes of memory for data buffers, for all transfers together.
    pub buffer_memory: usize,
    /// Paths of remote URLs are relative to the log-in directory (GCT's `-rp`).
    pub relative_paths: bool,
    /// Directory for the journals of uploads and third-party transfers; `None` is
    /// `$XDG_STATE_HOME/ropewalk`, and without that variable `~/.local/state/ropewalk`.
    pub state_directory: Option<PathBuf>,
    /// Report the control dialogue as `Event::Dialogue`.
    pub trace_control: bool,
}

impl Options {
    /// Whether a tuner may change how paths are used.
    pub(crate) fn is_tuned(&self) -> bool {
        self.tuner != Kind::Fixed && self.streams == Auto::Auto
    }

    /// The congestion control of data connections without tuning: the first one in the list.
    /// `None`: the sending host's own.
    pub(crate) fn fixed_congestion(&self) -> Option<&'static str> {
        let first = self.congestion.first().filter(|_| !self.is_tuned())?;
        CongestionControl::from_name(first).map(CongestionControl::name)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            streams: Auto::Auto,
            files: Auto::Auto,
            pipeline: Auto::Auto,
            tuner: Kind::default(),
            max_streams: 128,
            fairness: TunerOptions::default().fairness,
            capacity: None,
            bandwidth: None,
            congestion: Vec::new(),
            mode: DataMode::Auto,
            ascii: false,
            block_size: 1 << 20,
            tcp_buffer: None,
            recursive: false,
            create_directories: true,
            keep_dirlinks: false,
            into_directories: true,
            sync: None,
            delete: false,
            filters: Vec::new(),
            limits: Limits::default(),
            listed: None,
            dry_run: false,
            preserve: Preserve::default(),
            sparse: true,
            checksum: ChecksumPolicy::Default,
            fsync: FsyncPolicy::None,
            direct_io: DirectIo::Auto,
            resume: true,
            retries: 5,
            retry_pause: Duration::from_secs(1),
            retry_limit: None,
            stall: Some(StallLimit { bytes_per_second: 1, time: Duration::from_secs(120) }),
            connect_timeout: Duration::from_secs(20),
            reply_timeout: Duration::from_secs(120),
            keepalive: Duration::from_secs(60),
            stop_on_failure: false,
            delayed_passive: false,
            striped: false,
            stripe_block: None,
            in_place: false,
            skip_dangling: false,
            through_here: false,
            user: None,
            password: None,
            token: TokenSource::None,
            tls: false,
            fingerprint: None,
            accept_new: false,
            confirm: None,
            ask_password: None,
            terminal: None,
            insecure: false,
            authentication: Authentication::Auto,
            kerberos_services: Vec::new(),
            credential: None,
            authorities: None,
            revocations: None,
            server_subject: None,
            source: EndOptions::default(),
            destination: EndOptions::default(),
            data_credential: DataCredential::Usual,
            passphrases: Passphrases::default(),
            delegate: true,
            data_authentication: true,
            require_data_authentication: false,
            data_protection: DataProtection::Auto,
            ssh: SshOptions::default(),
            data_ports: None,
            buffer_memory: 64 << 20,
            relative_paths: false,
            state_directory: None,
            trace_control: false,
        }
    }
}

/// How sshftp:// connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshOptions {
    /// The program with its arguments; empty: `ssh`. A program named `ssh` is taken to be OpenSSH.
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_congestion_control_is_used_where_nothing_is_tuned() {
        let tuned = Options { congestion: vec!["bbr".into(), "cubic".into()], ..Options::default() };
        assert_eq!(tuned.fixed_congestion(), None);
        let one = Options { streams: Auto::Set(8), ..tuned.clone() };
        assert_eq!(one.fixed_congestion(), Some("bbr"));
        let untuned = Options { tuner: Kind::Fixed, ..tuned };
        assert_eq!(untuned.fixed_congestion(), Some("bbr"));
        assert_eq!(Options { congestion: Vec::new(), ..untuned }.fixed_congestion(), None);
    }
}
