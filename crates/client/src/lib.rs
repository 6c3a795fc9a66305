//! The GridFTP client as a library: what to copy goes in, events and a summary come out.
//!
//! [`copy`] is the whole of it: a plan walks the sources and puts files into a queue while workers, each with one control
//! session (or a pair of them, between two servers), take them out. Small files are pipelined over one cached data
//! connection, big ones are cut up into ranges that several sessions move at once. What is under way has the name
//! `.NAME.ropewalk-part`; it gets its own name when it is whole and its checksum was compared. [`Remote`] has the small
//! operations on one server, [`walk`], [`list`] and [`du`] look into trees of either kind.
//!
//! Everything blocks; a [`Cancel`] stops it from another thread. Servers need nothing but RFC 959: what they can do
//! beyond is taken from FEAT. MODE E, ERET, ESTO, MLSR and CKSM are used where they are (GFD.20 and GCT), and our own
//! extensions with our own server.

#![forbid(unsafe_code)]

mod ahead;
mod auto;
mod backoff;
mod binding;
mod borrowed_events;
mod cancel;
mod context;
mod control;
mod copy;
mod credential;
mod cutting;
mod data_trust;
mod dial;
mod download;
mod entry;
mod error;
mod event;
mod filter;
mod finished;
mod get;
mod glob;
mod in_clear;
mod kerberos;
mod known_hosts;
mod landing;
mod link;
mod listing;
mod local_copy;
mod location;
mod opening;
mod ops;
mod options;
mod place;
mod plan;
mod profile;
mod put;
mod queue;
mod random;
mod ready;
mod relay;
mod remote;
mod report;
mod sealing;
mod security;
mod session;
mod setup;
mod side;
mod slowest;
mod source;
mod spelling;
mod ssh;
mod state;
mod straggler;
mod summary;
mod sync;
mod task;
mod third_party;
mod threads;
mod through;
mod tls;
mod token;
mod told;
mod tries;
mod tune;
mod upload;
mod verify;
mod walk;
mod watch;
mod worker;

pub use cancel::Cancel;
pub use copy::{CopyError, copy};
pub use entry::{DANGLING, Entry};
pub use error::RemoteError;
pub use event::{Event, EventSink, FileId, no_events};
pub use filter::PatternError;
pub use known_hosts::{Known, KnownHostsError, forget_server, known_servers};
pub use location::{Location, LocationError, parse_location};
pub use options::{
    Amount, Authentication, Auto, ChecksumPolicy, Confirm, DataCredential, DataMode, DataProtection,
    EndOptions, FsyncPolicy, Limits, Options, Pair, Passphrases, PasswordPrompt, Preserve, StallLimit,
    SyncLevel, Terminal, Window,
};
pub use profile::{ClockReading, PathProbe};
pub use remote::Remote;
pub use ropewalk_storage::DirectIo;
pub use ropewalk_tls::{Fingerprint, NoFingerprint};
pub use ropewalk_tuning::tuner::{Fairness, Kind as TunerKind};
pub use ssh::SshOptions;
pub use summary::{FailureKind, FileFailure, SlowestPart, StageTimes, Summary, TunedPath};
pub use token::TokenSource;
pub use walk::{Usage, du, list, matching, walk};
