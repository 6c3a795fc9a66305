//! The result of a copy.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why a file failed; determines the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    Authentication,
    ChecksumMismatch,
    Interrupted,
    NoSpace,
    NotFound,
    Permission,
    Stalled,
    /// Could not connect, or the connection broke more often than retries allow.
    Unreachable,
    Other,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileFailure {
    pub source: String,
    pub destination: String,
    pub kind: FailureKind,
    pub error: String,
}

/// The slowest visible part, with its share of the streams' time, 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "part")]
pub enum SlowestPart {
    SourceRead {
        share: f64,
    },
    Network {
        share: f64,
    },
    DestinationWrite {
        share: f64,
    },
    Checksum {
        share: f64,
    },
    Encryption {
        share: f64,
    },
    /// Streams waited for the configured limit
    /// ([`bandwidth`](crate::TuningOptions::bandwidth)).
    Bandwidth {
        share: f64,
    },
    /// Our CPUs were busy for this share of the time.
    Cpu {
        share: f64,
    },
    /// Most time was spent waiting for control replies.
    RoundTrips {
        share: f64,
    },
    /// The data went from one server to another, where it cannot be observed.
    NotVisible,
    Unknown,
}

/// The time of our data connections by stage, in seconds summed over them; without data between two
/// servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageTimes {
    /// Lifetime of the connections, of which the others are parts.
    pub streams: f64,
    pub source: f64,
    pub checksum: f64,
    pub encryption: f64,
    /// Waiting for sockets, and time in socket calls; with `sendfile`, which reads and sends at
    /// once, its whole time.
    pub network: f64,
    pub destination: f64,
}

impl StageTimes {
    pub(crate) fn new(stages: [Duration; 5], streams: Duration) -> Self {
        let [source, network, destination, checksum, encryption] = stages.map(|time| time.as_secs_f64());
        Self { streams: streams.as_secs_f64(), source, checksum, encryption, network, destination }
    }
}

/// The tuner's result for a path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunedPath {
    /// Source and destination.
    pub path: String,
    /// Data connections of the last decision.
    pub streams: u32,
    /// Half of the bytes moved over at most this many data connections.
    pub usual: u32,
    /// The most data connections.
    pub most: u32,
    /// Their rate at the last measurement.
    pub bits_per_second: f64,
    pub decisions: u32,
    /// The reason for the number, in words.
    pub reason: String,
    /// The last change of the driver of data connections by the tuner, and why; absent if there was
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    /// The treatment of socket buffers of new connections at this host, and why; absent between two
    /// servers, and if a size was set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffers: Option<String>,
    /// The kernel's autotuning is not sufficient for the path.
    pub buffers_matter: bool,
}

/// The drivers and layers of the data connections of a server that the run used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedStack {
    pub peer: String,
    /// As in the options: `quic`, `tcp,gsi`.
    pub stack: String,
    pub reason: StackReason,
    /// Why data connections went to the control port, or to the UDP port that channels over QUIC
    /// share; `None` if they did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_port: Option<OnePortReason>,
}

/// Why data connections of a server go to one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnePortReason {
    /// [`DataOptions::one_port`](crate::DataOptions::one_port).
    Chosen,
    /// A port that the server announced could not be reached.
    Fallback,
    /// As for `Fallback`, in an earlier run less than a day ago.
    Remembered,
    /// Channels over QUIC share a UDP port of the server in any case.
    Shared,
}

/// Why data connections have their stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StackReason {
    /// The options name none.
    Default,
    /// [`DataOptions::stack`](crate::DataOptions::stack).
    Chosen,
    /// [`EndOptions::stack`](crate::EndOptions::stack).
    ChosenForEnd,
    /// The tuner has changed it, perhaps back to TCP.
    Tuned,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub files_done: u64,
    pub files_skipped: u64,
    pub files_failed: u64,
    pub directories: u64,
    pub removed: u64,
    /// Payload bytes moved in this run.
    pub bytes: u64,
    /// Bytes that an earlier run had left at the destination and that were not moved again.
    pub bytes_resumed: u64,
    pub seconds: f64,
    /// Bytes of completed files; retransmitted bytes count once.
    pub bytes_done: u64,
    /// Bytes whose checksums were compared at both ends.
    pub bytes_verified: u64,
    /// Most data connections in use at once.
    pub streams: u32,
    /// Most files in flight at once.
    pub files_in_flight: u32,
    pub retries: u64,
    /// Paths whose streams were tuned.
    pub tuned: Vec<TunedPath>,
    /// The stacks of the data connections, by server.
    #[serde(default)]
    pub stacks: Vec<UsedStack>,
    pub cpu_seconds: f64,
    pub slowest: SlowestPart,
    pub stages: StageTimes,
    /// Stopped before the end, by [`Cancel`](crate::Cancel).
    pub interrupted: bool,
    /// Completed files of trees that the same command would send again, because they could not be
    /// recorded.
    #[serde(skip)]
    pub unrecorded: u64,
    /// The first failures, at most 100; `files_failed` counts all.
    pub failures: Vec<FileFailure>,
    /// The common kind of all failures, including those that are not listed; `None` if they differ,
    /// or there are none.
    pub failed_for: Option<FailureKind>,
}

impl Summary {
    /// The summary of a job whose run `next` went through the same pairs as this one, which was
    /// interrupted or moved to another path. Failures are those of the last run, which has tried
    /// all files again.
    #[must_use]
    pub fn and(self, next: Self) -> Self {
        Self {
            files_done: self.files_done + next.files_done,
            directories: self.directories + next.directories,
            removed: self.removed + next.removed,
            bytes: self.bytes + next.bytes,
            seconds: self.seconds + next.seconds,
            bytes_done: self.bytes_done + next.bytes_done,
            bytes_verified: self.bytes_verified + next.bytes_verified,
            streams: self.streams.max(next.streams),
            files_in_flight: self.files_in_flight.max(next.files_in_flight),
            retries: self.retries + next.retries,
            cpu_seconds: self.cpu_seconds + next.cpu_seconds,
            unrecorded: self.unrecorded + next.unrecorded,
            stages: self.stages + next.stages,
            ..next
        }
    }
}

impl std::ops::Add for StageTimes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            streams: self.streams + other.streams,
            source: self.source + other.source,
            checksum: self.checksum + other.checksum,
            encryption: self.encryption + other.encryption,
            network: self.network + other.network,
            destination: self.destination + other.destination,
        }
    }
}
