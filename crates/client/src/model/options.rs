//! What a caller can ask for. Everything has a default that suits an unknown path.

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

/// A knob that is found by the program unless it is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auto<T> {
    #[default]
    Auto,
    Set(T),
}

/// How the destination is proved to be right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChecksumPolicy {
    /// The best that both sides can do; where the peer can do none, sizes are compared and the summary says so.
    #[default]
    Default,
    None,
    /// This algorithm, or the file fails.
    Require(Algorithm),
}

/// MODE of data channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataMode {
    /// MODE E where both sides can, MODE S otherwise.
    #[default]
    Auto,
    Stream,
    Extended,
}

/// What happens to the bytes on data connections that are authenticated (PROT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataProtection {
    /// Clear with gsiftp://, private with TLS.
    #[default]
    Auto,
    /// They travel as they are.
    Clear,
    /// Nobody can change them unnoticed (GCT encrypts them too).
    Safe,
    /// Nobody can read them.
    Private,
}

/// What sessions of gsiftp:// log in with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Authentication {
    /// A certificate, or a Kerberos ticket where there is no certificate.
    #[default]
    Auto,
    /// A certificate.
    Gsi,
    /// A Kerberos ticket; ftp:// too.
    Kerberos,
}

/// What data connections of gsiftp:// are authenticated with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DataCredential {
    /// The credential of the log-in. Where the log-ins of two servers differ, they are brought together by DCSC (or by DCAU
    /// S, where they do not know it).
    #[default]
    Usual,
    /// One made for this run, that the servers get by DCSC.
    Fresh,
    /// A proxy of the one in this file (certificate, key, chain), that the servers get by DCSC.
    File(PathBuf),
}

/// What holds for the log-in at one end of a copy; what is left out is as at the other.
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
    /// Without them.
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
    /// Also every second while data arrives: a crash of the machine costs a download no more than that.
    EachMarker,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preserve {
    pub times: bool,
    pub modes: bool,
    /// Copy symbolic links as links; otherwise they are followed.
    pub links: bool,
}

/// A transfer slower than `bytes_per_second` for `time` is broken off and tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallLimit {
    pub bytes_per_second: u64,
    pub time: Duration,
}

/// A part of a file.
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

/// A question to a person, which yes answers.
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

/// Files that take part, by their size in bytes and by the time since they were last changed. What a server does not tell of a file
/// leaves nothing out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub min_size: Option<u64>,
    pub max_size: Option<u64>,
    pub min_age: Option<Duration>,
    pub max_age: Option<Duration>,
}

type Ask = dyn Fn(&Url, &BStr) -> io::Result<Password> + Send + Sync;

/// Asks a person for the password of a user of a server. It is called once a session, from any thread: the caller keeps the answer.
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

/// The terminal that the caller writes to: another program is about to ask there.
#[derive(Clone)]
pub struct Terminal(Arc<dyn Fn() -> TerminalHold + Send + Sync>);

impl Terminal {
    /// `hold` is called before a program starts that may ask; the caller leaves the terminal alone until what it gives is dropped.
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
    /// Files in flight: control sessions (pairs of them, third-party) that work at the same time (`--files`).
    pub files: Auto<u32>,
    /// Transfer commands outstanding on one control connection (`--pipeline`).
    pub pipeline: Auto<u32>,
    /// What finds the number of streams while data moves, where `streams` is not set (`--tuner`); [`Kind::Fixed`]
    /// keeps to those that the round trip suggests.
    pub tuner: Kind,
    /// Data connections of a path that the tuner may use, at most.
    pub max_streams: u32,
    /// How the tuner treats other traffic of the path.
    pub fairness: Fairness,
    /// What the path may carry, in bits a second, where it is known: a hint for the tuner's beginning.
    pub capacity: Option<u64>,
    /// Congestion controls that this site allows the tuner to choose from, by the kernel's names; none: the kernel's own.
    /// Where nothing is tuned the first one is used.
    pub congestion: Vec<String>,
    pub mode: DataMode,
    /// TYPE A.
    pub ascii: bool,
    /// Payload bytes of a MODE E block.
    pub block_size: usize,
    /// Socket buffers in bytes; `None` leaves them to the kernel.
    pub tcp_buffer: Option<u64>,
    /// Payload bytes a second over all data connections of this process, in both directions together; `None`: as many as
    /// the path carries. Copies between two servers need `through_here` with it.
    pub bandwidth: Option<u64>,
    pub recursive: bool,
    /// Make missing directories of the destination; otherwise only those that a tree has itself.
    pub create_directories: bool,
    /// Go through symbolic links that stand for directories of a local destination and lead out of it.
    pub keep_dirlinks: bool,
    /// A file whose destination is an existing directory goes into it under its own name, as with `cp`; otherwise that is an
    /// error, as with GCT's program. A destination that ends with `/` is a directory in any case.
    pub into_directories: bool,
    pub sync: Option<SyncLevel>,
    /// With `sync` and `recursive`: remove what the source does not have.
    pub delete: bool,
    /// Globs on paths relative to the source; the last one that matches decides; `include` is `true`.
    pub filters: Vec<(bool, String)>,
    /// Sizes and ages of the files that take part.
    pub limits: Limits,
    /// Of trees only these take part: paths relative to the source, of directories all that is beneath them. One that is not there is
    /// a failure. Not with `delete`.
    pub listed: Option<Vec<BString>>,
    pub dry_run: bool,
    pub preserve: Preserve,
    pub sparse: bool,
    pub checksum: ChecksumPolicy,
    pub fsync: FsyncPolicy,
    /// When local files are written past the page cache.
    pub direct_io: DirectIo,
    /// Go on with a transfer that an earlier run began.
    pub resume: bool,
    /// Tries of a file after the first; one that brought the file on starts the count anew.
    pub retries: u32,
    /// First pause between tries; it grows to a minute while tries bring nothing, with jitter.
    pub retry_pause: Duration,
    /// No try of a connection, or of a file that no try brings on, so long after the first one failed. `None`: as many as `retries` says.
    pub retry_limit: Option<Duration>,
    pub stall: Option<StallLimit>,
    pub connect_timeout: Duration,
    /// Longest silence of a control connection on which an answer is due; a second more for each 8 MiB of a file of which it
    /// is the checksum.
    pub reply_timeout: Duration,
    /// NOOP after so long an idle time of a control connection.
    pub keepalive: Duration,
    /// Stop at the first file that failed for good.
    pub stop_on_failure: bool,
    pub delayed_passive: bool,
    /// From server to server in MODE E, the source is given all addresses that the destination has (SPAS, SPOR).
    pub striped: bool,
    /// How a source of several addresses shares out a file: blocks of so many bytes by turns, or, if 0, one part for each.
    /// `None`: as the server has it.
    pub stripe_block: Option<u64>,
    /// Files at servers are written under their own names, for servers that let nobody rename. What is broken off there has its
    /// name, is not whole, and is not gone on with; nor is the size of what arrived asked for where the server does not tell it.
    pub in_place: bool,
    /// Symbolic links that are to be followed and lead to nothing are left out; otherwise each is a failure.
    pub skip_dangling: bool,
    /// Data between two servers comes through this program, for servers that may not send to each other. Slower: one stream a
    /// file, and no restart in the middle of one.
    pub through_here: bool,
    /// Log in with these where the URL names none.
    pub user: Option<String>,
    pub password: Option<Password>,
    /// Log in with a bearer token where the URL names no user.
    pub token: TokenSource,
    /// ftp:// logs in over TLS (AUTH TLS), as ftpes:// does.
    pub tls: bool,
    /// SHA-256 of the certificate that a server with TLS has to have; authorities and what is remembered do not count.
    pub fingerprint: Option<Fingerprint>,
    /// Servers with TLS that nobody vouches for are accepted when they are first met, and remembered.
    pub accept_new: bool,
    /// Asks a person whether such a server is to be accepted; `None`: nobody is there.
    pub confirm: Option<Confirm>,
    /// Asks a person for a password that neither the URL nor [`Options::password`] has, once the server is believed and wants it;
    /// `None`: nobody is there.
    pub ask_password: Option<PasswordPrompt>,
    /// Where ssh may ask; `None`: nobody else writes there.
    pub terminal: Option<Terminal>,
    /// gsiftp:// logs in without certificates, in clear, as ftp:// does.
    pub insecure: bool,
    pub authentication: Authentication,
    /// The services of a server's Kerberos principal, tried in this order; nothing: `host`, then `ftp`.
    pub kerberos_services: Vec<String>,
    /// The credential for gsiftp://, a file with certificate, key and chain; `None`: where GCT's programs look for it.
    pub credential: Option<PathBuf>,
    /// Trusted authorities; `None`: where GCT's programs look for them.
    pub authorities: Option<PathBuf>,
    /// For TLS: a file or hashed directory with lists of revoked certificates; `None`: those in a directory that
    /// [`Options::authorities`] names.
    pub revocations: Option<PathBuf>,
    /// The servers' certificate has this one-line subject (with Kerberos: the server is this principal); `None`: it is for
    /// the host of the URL.
    pub server_subject: Option<String>,
    /// What differs at the source and at the destination.
    pub source: EndOptions,
    pub destination: EndOptions,
    /// What data connections are authenticated with.
    pub data_credential: DataCredential,
    /// Of encrypted keys; nobody is asked later.
    pub passphrases: Passphrases,
    /// Give servers a limited proxy, without which they cannot authenticate data connections.
    pub delegate: bool,
    /// DCAU A; otherwise none.
    pub data_authentication: bool,
    /// Nothing goes over data connections that could be anybody's: they are authenticated, protected or bound to their session.
    pub require_data_authentication: bool,
    pub data_protection: DataProtection,
    /// How sshftp:// connects.
    pub ssh: SshOptions,
    /// Local ports for listening data connections.
    pub data_ports: Option<(u16, u16)>,
    /// Bytes of memory for data buffers, for all transfers together.
    pub buffer_memory: usize,
    /// Paths of `file:`-relative remote URLs count from the log-in directory (GCT's `-rp`).
    pub relative_paths: bool,
    /// Where journals of uploads and third-party transfers are kept; `None` is `$XDG_STATE_HOME/ropewalk`, and
    /// without that variable `~/.local/state/ropewalk`.
    pub state_directory: Option<PathBuf>,
    /// Control dialogue goes to the events as `Event::Dialogue`.
    pub trace_control: bool,
}

impl Options {
    /// Whether a tuner may change how paths are used.
    pub(crate) fn is_tuned(&self) -> bool {
        self.tuner != Kind::Fixed && self.streams == Auto::Auto
    }

    /// The congestion control of data connections where no tuner chooses it: the first that is named. `None`: the
    /// sending host's own.
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
    /// The program with its arguments; none: `ssh`. Its file name `ssh` says that it is OpenSSH.
    pub program: Vec<OsString>,
    /// The command for the user's shell on the server's host; `None`: what `GLOBUS_REMOTE_SSHFTP` says, or the script `sshftp` of the
    /// user or the host, or `ropewalk serve --ssh`.
    pub remote_command: Option<String>,
    /// It may ask the person at the terminal for passwords, and whether an unknown host is the right one.
    pub interactive: bool,
    /// Control connections to one server share a log-in (ControlMaster); otherwise each logs in by itself.
    pub share: bool,
}

impl Default for SshOptions {
    fn default() -> Self {
        Self { program: Vec::new(), remote_command: None, interactive: false, share: true }
    }
}

/// Where a bearer token for log-ins comes from. It is looked for at each log-in, so that one that was renewed meanwhile is
/// used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TokenSource {
    /// No token.
    #[default]
    None,
    /// `BEARER_TOKEN`, the file in `BEARER_TOKEN_FILE`, `$XDG_RUNTIME_DIR/bt_uUID` or `/tmp/bt_uUID` (WLCG Bearer Token
    /// Discovery); none there is an error.
    Discover,
    /// In this file, which nobody else may read.
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
