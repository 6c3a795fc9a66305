//! The GridFTP client as a library: pairs of places to copy go in, events and a summary come out.
//!
//! [`copy`] runs one copy and returns its [`Summary`]. A [`Client`] lives as long as its program
//! and runs jobs side by side, which reuse each other's idle sessions. [`Remote`] has the small
//! operations on one server; [`walk`], [`list`] and [`du`] read trees at a server or on this host.
//! All calls block; a [`Cancel`] stops them from another thread.
//!
//! A plan walks the sources and puts files into a queue. Workers, each with one control session (or
//! two, between two servers), take them out. Small files are pipelined over one cached data
//! connection; big ones are divided into ranges that several sessions move at the same time. During
//! its transfer a file has the name `.NAME.ropewalk-part`; it gets its own name when it is complete
//! and its checksum has been compared. Servers need nothing but RFC 959; further features (MODE E,
//! ERET, ESTO, MLSR, CKSM, and the extensions of a Ropewalk server) are used if FEAT announces
//! them.
//!
//! # Examples
//!
//! Download a file:
//!
//! ```no_run
//! use ropewalk_client::{Cancel, Event, Options, Pair, copy, parse_location};
//!
//! let source = parse_location("ftp://data.example.org/run1.h5")?;
//! let pair = Pair { source, destination: parse_location("./")?, window: None };
//! let events = |event: Event| println!("{event:?}");
//! let summary = copy(vec![pair], &Options::default(), &events, &Cancel::new())?;
//! println!("{} bytes in {:.1} s", summary.bytes, summary.seconds);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Copy a tree between two servers, and leave out the files that are there already:
//!
//! ```no_run
//! use ropewalk_client::{Cancel, Event, Options, Pair, SyncLevel, copy, parse_location};
//!
//! let options = Options::default().with(|o| {
//!     o.selection.recursive = true;
//!     o.selection.sync = Some(SyncLevel::Time);
//! });
//! let source = parse_location("gsiftp://a.example.org/data/")?;
//! let destination = parse_location("gsiftp://b.example.org/mirror/")?;
//! let pair = Pair { source, destination, window: None };
//! let summary = copy(vec![pair], &options, &|_: Event| {}, &Cancel::new())?;
//! assert_eq!(summary.files_failed, 0, "{:?}", summary.failures);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Run a job beside others, follow its events, and limit the rate of all of them:
//!
//! ```no_run
//! use ropewalk_client::{Client, ClientLimits, Event, JobSpec, Pair, parse_location};
//!
//! let mut limits = ClientLimits::default();
//! limits.bandwidth = Some(100_000_000.into());
//! let client = Client::new(&limits);
//! let source = parse_location("./run1.h5")?;
//! let destination = parse_location("ftp://data.example.org/in/")?;
//! let pair = Pair { source, destination, window: None };
//! let mut job = client.submit(JobSpec::new(vec![pair]))?;
//! for event in job.events().into_iter().flatten() {
//!     if let Event::Progress { bytes, .. } = event {
//!         println!("{bytes} bytes");
//!     }
//! }
//! let summary = job.join()?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Pause a job and resume it:
//!
//! ```no_run
//! # use ropewalk_client::{Client, ClientLimits, JobSpec};
//! # let job = Client::new(&ClientLimits::default()).submit(JobSpec::new(Vec::new()))?;
//! let control = job.control();
//! std::thread::spawn(move || {
//!     control.pause();
//!     std::thread::sleep(std::time::Duration::from_secs(60));
//!     control.resume();
//! });
//! let summary = job.join()?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Write a job as JSON (docs/reference/jobs.md), and run what was read:
//!
//! ```no_run
//! # use ropewalk_client::{Client, ClientLimits, JobSpec};
//! let text = serde_json::to_string(&JobSpec::new(Vec::new()))?;
//! let job: JobSpec = serde_json::from_str(&text)?;
//! let summary = Client::new(&ClientLimits::default()).submit(job)?.join()?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! List a directory:
//!
//! ```no_run
//! use ropewalk_client::{Cancel, Options, list, no_events, parse_location};
//!
//! let directory = parse_location("ftp://data.example.org/pub/")?;
//! for entry in list(&directory, &Options::default(), &no_events(), &Cancel::new())? {
//!     println!("{} {:?}", entry.name, entry.size);
//! }
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod ahead;
mod behind_relays;
mod between;
mod borrowed_events;
mod client_state;
mod context;
mod control;
mod copy;
mod credential;
mod cutting;
mod dial;
mod dispatch;
mod done_files;
mod download;
pub mod far;
mod finished;
mod flow;
mod get;
mod idle;
mod in_flight;
mod job;
mod known_hosts;
mod lent;
mod link;
mod listing;
mod local_copy;
mod model;
mod opening;
mod part;
mod path_defaults;
mod piece;
mod place;
mod plan;
mod profile;
mod put;
mod queue;
mod ready;
mod relay;
mod remote;
mod remote_upload;
mod renewal;
mod report;
mod route;
mod sealing;
mod session;
mod setup;
mod side;
mod source;
mod spelling;
mod ssh;
mod staging;
mod state;
mod straggler;
mod sync;
mod task;
mod third_party;
mod through;
mod tls;
mod tune;
mod tuning;
mod upload;
mod verify;
mod walk;
mod watch;
mod work;
mod worker;

pub use copy::{copy, copy_with};
pub use done_files::EarlierRuns;
pub use job::{Client, JobControl, JobHandle};
pub use known_hosts::{Known, KnownHostsError, forget_server, known_servers};
pub use model::cancel::Cancel;
pub use model::client_limits::ClientLimits;
pub use model::entry::{DANGLING, Entry};
pub(crate) use model::error::RemoteError;
pub use model::error::{Error, ErrorContext, ErrorKind};
pub use model::event::{EVENT_SCHEMA, Event, EventSink, FileId, no_events};
pub use model::filter::PatternError;
pub use model::job_spec::{JOB_SCHEMA, JobSpec};
pub use model::location::{Location, LocationError, parse_location};
pub use model::options::{
    Amount, Authentication, Auto, ChecksumPolicy, Confirm, DataCredential, DataMode, DataOptions,
    DataProtection, DataSecurityOptions, EndOptions, FsyncPolicy, IntegrityOptions, Limits, LoginOptions,
    Options, Pair, Passphrases, PasswordPrompt, PathOptions, Preserve, Prompts, RecoveryOptions,
    RelayedLogin, SelectionOptions, SshOptions, StallLimit, StorageOptions, SyncLevel, Terminal,
    TimeoutOptions, TokenSource, TrustOptions, TuningOptions, Window,
};
pub use model::summary::{
    FailureKind, FileFailure, OnePortReason, SlowestPart, StackReason, StageTimes, Summary, TunedPath,
    UsedStack,
};
pub use model::xdg::state_directory;
pub use profile::{ClockReading, PathProbe};
pub use remote::Remote;
pub use ropewalk_limits::{LocalTime, Timetable};
pub use ropewalk_protocol::slots::{ReservedSlots, SlotsRequest};
pub use ropewalk_protocol::space::ReservedSpace;
pub use ropewalk_storage::DirectIo;
pub use ropewalk_tls::{Fingerprint, NoFingerprint};
pub use ropewalk_tuning::tuner::{Fairness, Kind as TunerKind};
pub use route::{estimate_by_model, estimate_by_past_transfer};
pub use walk::{Usage, du, list, matching, walk};
