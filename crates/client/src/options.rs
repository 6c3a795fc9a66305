//! What a caller can ask for. Everything has a default that suits an unknown path.

use std::path::PathBuf;
use std::time::Duration;

use ropewalk_storage::DirectIo;
use ropewalk_storage::checksum::Algorithm;
use ropewalk_tuning::tuner::{Fairness, Kind};

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

/// What happens to the bytes on authenticated data connections of gsiftp:// (PROT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataProtection {
    /// They travel as they are.
    #[default]
    Clear,
    /// Nobody can change them unnoticed (GCT encrypts them too).
    Safe,
    /// Nobody can read them.
    Private,
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
    pub congestion: Vec<String>,
    pub mode: DataMode,
    /// TYPE A.
    pub ascii: bool,
    /// Payload bytes of a MODE E block.
    pub block_size: usize,
    /// Socket buffers in bytes; `None` leaves them to the kernel.
    pub tcp_buffer: Option<u64>,
    pub recursive: bool,
    /// Make missing directories of the destination; otherwise only those that a tree has itself.
    pub create_directories: bool,
    /// A file whose destination is an existing directory goes into it under its own name, as with `cp`; otherwise that is an
    /// error, as with GCT's program. A destination that ends with `/` is a directory in any case.
    pub into_directories: bool,
    pub sync: Option<SyncLevel>,
    /// With `sync` and `recursive`: remove what the source does not have.
    pub delete: bool,
    /// Globs on paths relative to the source; the last one that matches decides; `include` is `true`.
    pub filters: Vec<(bool, String)>,
    pub dry_run: bool,
    pub preserve: Preserve,
    pub sparse: bool,
    pub checksum: ChecksumPolicy,
    pub fsync: FsyncPolicy,
    /// When local files are written past the page cache.
    pub direct_io: DirectIo,
    /// Go on with a transfer that an earlier run began.
    pub resume: bool,
    /// Tries of a file after the first.
    pub retries: u32,
    /// First pause between tries; it grows to a minute, with jitter.
    pub retry_pause: Duration,
    pub stall: Option<StallLimit>,
    pub connect_timeout: Duration,
    /// Longest silence of a control connection on which an answer is due.
    pub reply_timeout: Duration,
    /// NOOP after so long an idle time of a control connection.
    pub keepalive: Duration,
    /// Stop at the first file that failed for good.
    pub stop_on_failure: bool,
    pub delayed_passive: bool,
    /// Data between two servers comes through this program, for servers that may not send to each other. Slower: one stream a
    /// file, and no restart in the middle of one.
    pub through_here: bool,
    /// Log in with these where the URL names none.
    pub user: Option<String>,
    pub password: Option<String>,
    /// gsiftp:// logs in without certificates, in clear, as ftp:// does.
    pub insecure: bool,
    /// The credential for gsiftp://, a file with certificate, key and chain; `None`: where GCT's programs look for it.
    pub credential: Option<PathBuf>,
    /// Trusted authorities; `None`: where GCT's programs look for them.
    pub authorities: Option<PathBuf>,
    /// The servers' certificate has this one-line subject; `None`: it is for the host of the URL.
    pub server_subject: Option<String>,
    /// Give servers a limited proxy, without which they cannot authenticate data connections.
    pub delegate: bool,
    /// DCAU A; otherwise none.
    pub data_authentication: bool,
    pub data_protection: DataProtection,
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

impl Default for Options {
    fn default() -> Self {
        Self {
            streams: Auto::Auto,
            files: Auto::Auto,
            pipeline: Auto::Auto,
            tuner: Kind::default(),
            max_streams: 128,
            fairness: crate::tune::default_fairness(),
            capacity: None,
            congestion: Vec::new(),
            mode: DataMode::Auto,
            ascii: false,
            block_size: 1 << 20,
            tcp_buffer: None,
            recursive: false,
            create_directories: true,
            into_directories: true,
            sync: None,
            delete: false,
            filters: Vec::new(),
            dry_run: false,
            preserve: Preserve::default(),
            sparse: true,
            checksum: ChecksumPolicy::Default,
            fsync: FsyncPolicy::None,
            direct_io: DirectIo::Auto,
            resume: true,
            retries: 5,
            retry_pause: Duration::from_secs(1),
            stall: Some(StallLimit { bytes_per_second: 1, time: Duration::from_secs(120) }),
            connect_timeout: Duration::from_secs(20),
            reply_timeout: Duration::from_secs(120),
            keepalive: Duration::from_secs(60),
            stop_on_failure: false,
            delayed_passive: false,
            through_here: false,
            user: None,
            password: None,
            insecure: false,
            credential: None,
            authorities: None,
            server_subject: None,
            delegate: true,
            data_authentication: true,
            data_protection: DataProtection::Clear,
            data_ports: None,
            buffer_memory: 64 << 20,
            relative_paths: false,
            state_directory: None,
            trace_control: false,
        }
    }
}
