//! All events of a running copy: the progress bar, `--json`, logs and tests read the same events.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Summary;

/// Numbers the files of a run, from 0.
pub type FileId = u64;

/// The version of the serialised form of [`Event`] and [`Summary`]. It grows if a field changes its
/// meaning or goes; new fields and events do not change it.
pub const EVENT_SCHEMA: u32 = 1;

/// One event. Serialised with a tag `event`; byte counts are plain numbers, times are in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// A session with a server is being opened: connection, log-in, and questions to the user.
    Connecting {
        /// Host and port; for sshftp:// as in the URL.
        peer: String,
    },
    /// A session with a server is open.
    Connected {
        peer: String,
    },
    /// A session with a server could not be opened, and another try follows.
    ConnectFailed {
        peer: String,
        error: String,
        /// Seconds until the next try.
        retry_in: f64,
    },
    /// More or fewer files are to be copied: those that are present already leave the plan. Totals
    /// so far; `complete` when the walk has ended.
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
    /// A server has the transfer of a file in a queue; nothing moves until its turn comes.
    Queued {
        id: FileId,
        /// `source` or `destination`.
        server: Cow<'static, str>,
        /// From 1.
        position: u32,
        /// All transfers in the queue.
        waiting: u32,
    },
    /// All data of an upload was sent, and a relay still passes it on: the last server has `stored`
    /// of the `size` bytes.
    Forwarding {
        id: FileId,
        stored: u64,
        size: u64,
    },
    /// Bytes that the destination has, or a relay on the way to it, of all files; `streams` and
    /// `files` are those in use now.
    Progress {
        bytes: u64,
        files_done: u64,
        files_active: u32,
        streams: u32,
    },
    /// Relays were compared, and this is the way that the data takes from now on.
    Route {
        /// The source, the relays and the destination: URLs without a path, or `here`.
        path: Vec<String>,
        /// The path that the copy leaves while data moves; `None` before a copy.
        instead_of: Option<Vec<String>>,
        /// The likely rate of the narrowest hop; `None` if it is unknown.
        bits_per_second: Option<f64>,
        why: String,
    },
    /// The tuner has decided how a path is used from now on.
    Tuned {
        /// Source and destination.
        path: String,
        /// Data connections of all files together.
        streams: u32,
        /// Files in flight.
        files: u32,
        /// Pipelined commands on each control connection, to cover a round trip.
        pipeline: u32,
        /// Of new connections; `None` is the host's own.
        congestion_control: Option<Cow<'static, str>>,
        /// The rate of the last span.
        bits_per_second: f64,
        /// A fixed name, and the same in words.
        reason: Cow<'static, str>,
        why: String,
    },
    /// The tuner has moved a path to another driver of data connections, or back
    /// ([`TuningOptions::choose_stack`](crate::TuningOptions::choose_stack)).
    Stack {
        /// Source and destination.
        path: String,
        /// The driver of data connections from now on.
        stack: String,
        /// The rate on which this is based; 0 if the driver does not work.
        bits_per_second: f64,
        /// A fixed name, and the same in words.
        reason: Cow<'static, str>,
        why: String,
    },
    /// The network path of the copy has changed.
    Path {
        /// The reservation, as `ropewalk reservations` names it.
        id: String,
        /// `reserved`, `up`, `extended`, `not-extended`, `down`, `released`, `left` (the provider
        /// has not confirmed the release) or `failed` (there is no path).
        state: Cow<'static, str>,
        /// Why, in words, of `not-extended`, `down` and `failed`.
        reason: Option<String>,
        /// The end of the reserved time, in seconds since 1970.
        until: u64,
        /// Bits per second, of `up`, if the provider gives a rate.
        capacity: Option<u64>,
    },
    FileDone {
        id: FileId,
        bytes: u64,
        seconds: f64,
        checksum: Option<String>,
    },
    /// The file is not copied: `sync` found no difference, or a filter excluded it.
    FileSkipped {
        source: String,
        reason: String,
    },
    FileFailed {
        id: FileId,
        /// For an entry that is only made or removed at the destination: the destination.
        source: String,
        error: String,
        retry_in: Option<f64>,
    },
    /// A copy that a dry run omits.
    WouldCopy {
        source: String,
        destination: String,
        size: Option<u64>,
        /// Seconds since 1970, if known.
        modified: Option<i64>,
        /// Permission bits, if known.
        mode: Option<u32>,
        /// With `sync`: the destination has an entry of that name.
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
    /// An entry that the source does not have was removed from the destination: a file, a link, or
    /// a directory with its contents.
    Removed {
        path: String,
    },
    /// A message for the user, once.
    Warning {
        message: String,
    },
    /// A line of a control connection: `>` sent, `<` received; passwords are omitted.
    Dialogue {
        peer: String,
        direction: char,
        line: String,
    },
    Finished(Box<Summary>),
}

/// Receives events, from any thread. Must be fast.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{FailureKind, FileFailure, SlowestPart, StackReason, StageTimes, TunedPath, UsedStack};

    fn summary() -> Summary {
        let tuned = TunedPath {
            path: "here -> there".into(),
            streams: 8,
            usual: 8,
            most: 16,
            bits_per_second: 1e9,
            decisions: 3,
            reason: "best between 4 and 16".into(),
            buffers: None,
            stack: Some("over udt: 450 Mbit/s over udt, 70 Mbit/s over TCP".into()),
            buffers_matter: true,
        };
        let stack = UsedStack {
            peer: "a".into(),
            stack: "quic".into(),
            reason: StackReason::ChosenForEnd,
            one_port: None,
        };
        let failure = FileFailure {
            source: "a".into(),
            destination: "b".into(),
            kind: FailureKind::NoSpace,
            error: "no space".into(),
        };
        Summary {
            files_done: 1,
            files_skipped: 2,
            files_failed: 3,
            directories: 4,
            removed: 5,
            bytes: u64::MAX,
            bytes_resumed: 6,
            seconds: 0.5,
            bytes_done: 7,
            bytes_verified: 8,
            streams: 9,
            files_in_flight: 10,
            retries: 11,
            tuned: vec![tuned],
            stacks: vec![stack],
            cpu_seconds: 0.25,
            slowest: SlowestPart::SourceRead { share: 0.5 },
            stages: StageTimes { streams: 1.0, ..StageTimes::default() },
            interrupted: true,
            unrecorded: 0,
            failures: vec![failure],
            failed_for: Some(FailureKind::NoSpace),
        }
    }

    #[test]
    fn events_survive_serialisation() {
        let text = || "x \u{1F600} \"y\"".to_owned();
        let events = [
            Event::Connecting { peer: text() },
            Event::ConnectFailed { peer: text(), error: text(), retry_in: 0.5 },
            Event::Planned { files: 1, bytes: 2, complete: true },
            Event::Queued { id: 1, server: "source".into(), position: 3, waiting: 7 },
            Event::Forwarding { id: 1, stored: 2, size: 3 },
            Event::FileStarted { id: 1, source: text(), destination: text(), size: None, resumed_from: 3 },
            Event::Tuned {
                path: text(),
                streams: 8,
                files: 1,
                pipeline: 1,
                congestion_control: Some("bbr".into()),
                bits_per_second: 2.5e8,
                reason: "growing".into(),
                why: text(),
            },
            Event::FileFailed { id: 1, source: text(), error: text(), retry_in: Some(0.5) },
            Event::Dialogue { peer: text(), direction: '>', line: text() },
            Event::Finished(Box::new(summary())),
        ];
        for event in events {
            let text = serde_json::to_string(&event).unwrap();
            let read: Event = serde_json::from_str(&text).unwrap();
            assert_eq!(read, event, "{text}");
        }
    }

    #[test]
    fn unknown_fields_of_a_newer_program_are_ignored() {
        let text = r#"{"schema":1,"event":"connecting","peer":"a","new":[1]}"#;
        let event: Event = serde_json::from_str(text).unwrap();
        assert_eq!(event, Event::Connecting { peer: "a".into() });
    }
}
