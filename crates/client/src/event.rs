//! Everything that a copy tells while it runs: the progress bar, `--json`, logs and tests read the same events.

use std::sync::Arc;

use serde::Serialize;

use crate::Summary;

/// Numbers the files of a run, from 0.
pub type FileId = u64;

/// One event. Serialised with a tag `event`; byte counts are plain numbers, times are in seconds.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A session with a server is begun: connecting, log-in, and what people are asked for it.
    Connecting {
        /// Host and port; of sshftp:// as the URL has it.
        peer: String,
    },
    /// A session with a server has come about.
    Connected {
        peer: String,
    },
    /// More was found to be copied, or less: what turns out to be there already leaves the plan. Totals so far; `complete` when
    /// the walk has ended.
    Planned {
        files: u64,
        bytes: u64,
        complete: bool,
    },
    FileStarted {
        id: FileId,
        source: String,
        destination: String,
        size: Option<u64>,
        resumed_from: u64,
    },
    /// Bytes that the destination has, of all files; `streams` and `files` are in use now.
    Progress {
        bytes: u64,
        files_done: u64,
        files_active: u32,
        streams: u32,
    },
    /// The tuner has decided how a path is used from now on.
    Tuned {
        /// Source and destination.
        path: String,
        /// Data connections, all files together.
        streams: u32,
        /// Files in flight.
        files: u32,
        /// Commands ahead on each control connection, to cover a round trip.
        pipeline: u32,
        /// Of new connections; `None` is the host's own.
        congestion_control: Option<&'static str>,
        /// What the last span reached.
        bits_per_second: f64,
        /// A fixed name, and the same in words.
        reason: &'static str,
        why: String,
    },
    FileDone {
        id: FileId,
        bytes: u64,
        seconds: f64,
        checksum: Option<String>,
    },
    /// Nothing to do: `sync` found it the same, or a filter left it out.
    FileSkipped {
        source: String,
        reason: String,
    },
    FileFailed {
        id: FileId,
        /// Of what is only made or removed at the destination: that.
        source: String,
        error: String,
        retry_in: Option<f64>,
    },
    /// What a dry run would do.
    WouldCopy {
        source: String,
        destination: String,
        size: Option<u64>,
        /// Seconds since 1970, where known.
        modified: Option<i64>,
        /// Permission bits, where known.
        mode: Option<u32>,
        /// With `sync`: the destination has something by that name.
        replaces: bool,
    },
    /// A directory of a tree that a dry run found; it may exist.
    WouldMake {
        source: String,
        destination: String,
        modified: Option<i64>,
        mode: Option<u32>,
    },
    WouldRemove {
        path: String,
    },
    /// What the source had not is gone from the destination: a file, a link, or a directory with all in it.
    Removed {
        path: String,
    },
    /// Something a person should know, once.
    Warning {
        message: String,
    },
    /// A line of a control connection: `>` sent, `<` received; passwords are left out.
    Dialogue {
        peer: String,
        direction: char,
        line: String,
    },
    Finished(Box<Summary>),
}

/// Takes events, from any thread. Must be quick.
pub trait EventSink: Send + Sync {
    fn event(&self, event: Event);
}

/// A sink that drops all events.
pub fn no_events() -> Arc<dyn EventSink> {
    Arc::new(|_: Event| {})
}

impl<F: Fn(Event) + Send + Sync> EventSink for F {
    fn event(&self, event: Event) {
        self(event);
    }
}
