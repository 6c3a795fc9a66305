//! The groups of [`super::Options`], each with the defaults of `ropewalk cp`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bstr::BString;
use ropewalk_limits::Timetable;
use ropewalk_protocol::command::Password;
use ropewalk_protocol::hop_login::ServerAddress;
use ropewalk_protocol::stack::StackSpec;
use ropewalk_protocol::url::Url;
use ropewalk_scitags::{Collector, SciTag};
use ropewalk_storage::DirectIo;
use ropewalk_tls::Fingerprint;
use ropewalk_transport::NetManager;
use ropewalk_tuning::tuner::{Fairness, Kind, Options as TunerOptions};
use serde::{Deserialize, Serialize};

use super::values::{
    Authentication, Auto, ChecksumPolicy, Confirm, DataCredential, DataMode, DataProtection, EndOptions,
    FsyncPolicy, Limits, Passphrases, PasswordPrompt, StallLimit, SyncLevel, Terminal, TokenSource,
};
use crate::model::as_text;

/// How much of the path and of this host a copy uses.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TuningOptions {
    /// Data connections of a file (`-p`).
    pub streams: Auto<u32>,
    /// Files in flight: control sessions (pairs of them, third-party) that work at the same time
    /// (`--files`).
    pub files: Auto<u32>,
    /// Transfer commands in flight on one control connection (`--pipeline`).
    pub pipeline: Auto<u32>,
    /// The tuner of the number of streams while data moves, unless `streams` is set (`--tuner`);
    /// [`Kind::Fixed`] keeps the number that the round trip suggests.
    #[serde(with = "as_text::TunerName")]
    pub tuner: Kind,
    /// Most data connections of a path that the tuner may use.
    pub max_streams: u32,
    /// How the tuner treats other traffic of the path.
    #[serde(with = "as_text::FairnessForm")]
    pub fairness: Fairness,
    /// The capacity of the path in bits per second, if known: a hint for the tuner's start.
    pub capacity: Option<u64>,
    /// Congestion controls that the tuner may choose from, by the kernel's names; none: the
    /// kernel's own. Without tuning the first one is used.
    pub congestion: Vec<String>,
    /// The tuner may move data over another driver than TCP if TCP cannot fill the path and both
    /// ends have the driver (`--stack auto`, the default). A stack that is set has precedence.
    pub choose_stack: bool,
    /// Socket buffers in bytes; `None` leaves them to the kernel.
    pub tcp_buffer: Option<u64>,
    /// Payload rate over all data connections of this process, in both directions together; `None`:
    /// unlimited. Copies between two servers need `through_here` with it.
    #[serde(with = "as_text::optional_rate")]
    pub bandwidth: Option<Timetable>,
    /// Bytes of memory for data buffers, for all transfers together.
    pub buffer_memory: usize,
}

impl Default for TuningOptions {
    fn default() -> Self {
        Self {
            streams: Auto::Auto,
            files: Auto::Auto,
            pipeline: Auto::Auto,
            tuner: Kind::default(),
            max_streams: 128,
            fairness: TunerOptions::default().fairness,
            capacity: None,
            congestion: Vec::new(),
            choose_stack: true,
            tcp_buffer: None,
            bandwidth: None,
            buffer_memory: 64 << 20,
        }
    }
}

/// Data connections and the way the data takes.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DataOptions {
    pub mode: DataMode,
    /// TYPE A.
    pub ascii: bool,
    /// Payload bytes of a MODE E block.
    pub block_size: usize,
    pub delayed_passive: bool,
    /// In MODE E, use several addresses of a striped server (SPAS, SPOR): so many for a download,
    /// and all that the destination has for an upload and between two servers, unless it is 1.
    /// `Auto` uses as many as the server has. `None`: one address.
    pub stripes: Option<Auto<u32>>,
    /// How a source of several addresses distributes a file: blocks of this size in turn, or, if 0,
    /// one range for each. `None`: the server's own layout.
    pub stripe_block: Option<u64>,
    /// Local ports for listening data connections.
    pub ports: Option<(u16, u16)>,
    /// Data between two servers passes through this program, for servers that may not send to each
    /// other. Slower: one stream for each file, and no restart within a file.
    pub through_here: bool,
    /// Data connections go to the control port of each server. A server that does not offer that
    /// is an error.
    pub one_port: bool,
    /// The drivers of data connections, here and at the servers (SITE SETNETSTACK). `None` leaves
    /// them to the servers, and is TCP here. Authentication and protection hold with any stack.
    #[serde(with = "as_text::optional")]
    pub stack: Option<StackSpec>,
    /// The experiment and activity that the transfers serve: marks data connections here and at
    /// the servers (SITE SCITAG).
    #[serde(with = "as_text::optional")]
    pub scitag: Option<SciTag>,
    /// The name of the task that the transfers serve, for the network managers and logs of both
    /// servers (SITE TASKID) and for the manager of this side: a word of visible ASCII.
    pub task: Option<String>,
    /// Destinations of UDP messages about data connections that have a SciTag.
    #[serde(with = "as_text::list")]
    pub fireflies: Vec<Collector>,
    /// The drivers of files at the servers (SITE SETDISKSTACK): `popen` puts a program of the
    /// server in place of each file. `None` leaves them to the servers.
    #[serde(with = "as_text::optional")]
    pub disk_stack: Option<StackSpec>,
}

impl Default for DataOptions {
    fn default() -> Self {
        Self {
            mode: DataMode::Auto,
            ascii: false,
            block_size: 1 << 20,
            delayed_passive: false,
            stripes: None,
            stripe_block: None,
            ports: None,
            through_here: false,
            one_port: false,
            stack: None,
            scitag: None,
            task: None,
            fireflies: Vec::new(),
            disk_stack: None,
        }
    }
}

/// The files that a copy moves.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SelectionOptions {
    pub recursive: bool,
    pub sync: Option<SyncLevel>,
    /// With `sync` and `recursive`: remove entries that the source does not have.
    pub delete: bool,
    /// Globs on paths relative to the source; the last match decides; `include` is `true`.
    pub filters: Vec<(bool, String)>,
    /// Sizes and ages of the files that are copied.
    pub limits: Limits,
    /// Restricts trees to these paths relative to the source, and to everything beneath them. A
    /// missing one is a failure. Not with `delete`.
    #[serde(with = "as_text::optional_names")]
    pub listed: Option<Vec<BString>>,
    /// Skip dangling symbolic links that are to be followed; otherwise each is a failure.
    pub skip_dangling: bool,
}

/// The way files and directories are written.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct StorageOptions {
    /// Make missing directories of the destination; otherwise only those within a tree.
    pub create_directories: bool,
    /// Follow symbolic links that stand for directories of a local destination and lead out of it.
    pub keep_dirlinks: bool,
    /// A file whose destination is an existing directory goes into it under its own name, as with
    /// `cp`; otherwise that is an error, as with GCT's program. A destination that ends with `/` is
    /// a directory in any case.
    pub into_directories: bool,
    /// Files at servers are written under their own names, for servers that permit no renaming. An
    /// interrupted file stays under its name, incomplete, and is not resumed. If the server does
    /// not report its size, the size is not verified either.
    pub in_place: bool,
    pub sparse: bool,
    /// When local files are written past the page cache.
    #[serde(with = "as_text::DirectIoName")]
    pub direct_io: DirectIo,
}

impl Default for StorageOptions {
    fn default() -> Self {
        Self {
            create_directories: true,
            keep_dirlinks: false,
            into_directories: true,
            in_place: false,
            sparse: true,
            direct_io: DirectIo::Auto,
        }
    }
}

/// The proof that the destination is right, and that it lasts.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct IntegrityOptions {
    pub checksum: ChecksumPolicy,
    pub fsync: FsyncPolicy,
}

/// The consequences of a failure, and of an earlier run.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RecoveryOptions {
    /// Resume a transfer of an earlier run.
    pub resume: bool,
    /// Retries of a file; a try that made progress restarts the count.
    pub retries: u32,
    /// First pause between tries; it grows up to a minute while tries make no progress, with
    /// jitter.
    #[serde(with = "as_text::seconds")]
    pub retry_pause: Duration,
    /// Time after the first failure in which a connection, or a file without progress, is retried.
    /// `None`: only `retries` counts.
    #[serde(with = "as_text::optional_seconds")]
    pub retry_limit: Option<Duration>,
    /// Stop at the first file that failed permanently.
    pub stop_on_failure: bool,
}

impl Default for RecoveryOptions {
    fn default() -> Self {
        Self {
            resume: true,
            retries: 5,
            retry_pause: Duration::from_secs(1),
            retry_limit: None,
            stop_on_failure: false,
        }
    }
}

/// Times after which a connection or a transfer counts as lost.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TimeoutOptions {
    #[serde(with = "as_text::seconds")]
    pub connect: Duration,
    /// Longest silence of a control connection on which a reply is due; for a checksum one more
    /// second for each 8 MiB of the file.
    #[serde(with = "as_text::seconds")]
    pub reply: Duration,
    /// Idle time of a control connection after which NOOP is sent.
    #[serde(with = "as_text::seconds")]
    pub keepalive: Duration,
    pub stall: Option<StallLimit>,
}

impl Default for TimeoutOptions {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(20),
            reply: Duration::from_secs(120),
            keepalive: Duration::from_secs(60),
            stall: Some(StallLimit { bytes_per_second: 1, time: Duration::from_secs(120) }),
        }
    }
}

/// The log-in at servers. Passwords and passphrases are not serialised.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct LoginOptions {
    /// The user if the URL names none.
    pub user: Option<String>,
    #[serde(skip)]
    pub password: Option<Password>,
    /// Log-ins at servers behind relays.
    #[serde(skip)]
    pub hops: Vec<RelayedLogin>,
    /// Log in with a bearer token if the URL names no user.
    pub token: TokenSource,
    pub authentication: Authentication,
    /// ftp:// logs in over TLS (AUTH TLS), as ftpes:// does.
    pub tls: bool,
    /// gsiftp:// logs in without certificates, in clear, as ftp:// does.
    pub insecure: bool,
    /// The services of a server's Kerberos principal, tried in this order; empty: `host`, then
    /// `ftp`.
    pub kerberos_services: Vec<String>,
    /// The credential for gsiftp://, a file with certificate, key and chain; `None`: in the places
    /// of GCT's programs.
    pub credential: Option<PathBuf>,
    /// Of encrypted keys; no question is asked later.
    #[serde(skip)]
    pub passphrases: Passphrases,
    /// Give servers a limited proxy, without which they cannot authenticate data connections.
    pub delegate: bool,
    /// Options that differ between source and destination.
    pub source: EndOptions,
    pub destination: EndOptions,
}

impl Default for LoginOptions {
    fn default() -> Self {
        Self {
            user: None,
            password: None,
            hops: Vec::new(),
            token: TokenSource::None,
            authentication: Authentication::Auto,
            tls: false,
            insecure: false,
            kerberos_services: Vec::new(),
            credential: None,
            passphrases: Passphrases::default(),
            delegate: true,
            source: EndOptions::default(),
            destination: EndOptions::default(),
        }
    }
}

/// A log-in that a relay gets for a server behind it (SITE HOPLOGIN). It is sent over a protected
/// control connection only, and to no other relay.
#[derive(Clone, Debug, PartialEq)]
pub struct RelayedLogin {
    /// The relay that this program connects to.
    pub relay: ServerAddress,
    /// The server. If there is a user but no password, [`Prompts::password`] is asked, except for
    /// anonymous users. Without a user, the server gets the bearer token ([`LoginOptions::token`]),
    /// if there is one, unless the scheme is `ftp`.
    pub server: Url,
}

/// The servers that are believed.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TrustOptions {
    /// Trusted authorities; `None`: in the places of GCT's programs.
    pub authorities: Option<PathBuf>,
    /// For TLS: a file or hashed directory with lists of revoked certificates; `None`: those in a
    /// directory that [`TrustOptions::authorities`] names.
    pub revocations: Option<PathBuf>,
    /// SHA-256 of the certificate that a server with TLS must have; authorities and remembered
    /// servers do not count.
    #[serde(with = "as_text::optional")]
    pub fingerprint: Option<Fingerprint>,
    /// Accept and remember servers with TLS, on the first contact, whose certificate is from no
    /// trusted authority.
    pub accept_new: bool,
    /// The one-line subject of the servers' certificate (with Kerberos: the server's principal);
    /// `None`: the certificate is for the host in the URL.
    pub server_subject: Option<String>,
}

/// Authentication and protection of data connections.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DataSecurityOptions {
    /// The credential for data connections.
    pub credential: DataCredential,
    /// DCAU A; otherwise none.
    pub authentication: bool,
    /// Require that data connections are authenticated, protected or bound to their session.
    pub require_authentication: bool,
    pub protection: DataProtection,
}

impl Default for DataSecurityOptions {
    fn default() -> Self {
        Self {
            credential: DataCredential::Usual,
            authentication: true,
            require_authentication: false,
            protection: DataProtection::Auto,
        }
    }
}

/// The network path that was reserved for a run. It is not serialised: a path belongs to the
/// program that has reserved it.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct PathOptions {
    /// The local address of data connections.
    pub address: Option<IpAddr>,
    /// The local interface of data connections.
    pub interface: Option<String>,
    /// Sees each step of data connections, and may change it.
    pub manager: Option<Arc<dyn NetManager>>,
}

impl std::fmt::Debug for PathOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { address, interface, manager } = self;
        let mut text = f.debug_struct("PathOptions");
        text.field("address", address).field("interface", interface);
        text.field("manager", &manager.is_some()).finish()
    }
}

/// Functions that ask a person. They are not serialised.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Prompts {
    /// Asks the user whether such a server is to be accepted; `None`: there is no user.
    pub confirm: Option<Confirm>,
    /// Asks the user for a password that neither the URL nor [`LoginOptions::password`] has, once
    /// the server is trusted and requires it; `None`: there is no user.
    pub password: Option<PasswordPrompt>,
    /// Where ssh may ask; `None`: no other output uses the terminal.
    pub terminal: Option<Terminal>,
}
