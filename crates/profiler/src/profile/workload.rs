//! What was moved, where the engine's time went, and what the parts reach by themselves.

use serde::{Deserialize, Serialize};

use super::untrusted::{Check, ProfileError, ascending};
use super::{FailureKind, Role};
use crate::baseline::ProcessorRates;

/// The transfer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Workload {
    pub kind: WorkloadKind,
    /// For people: what was copied where.
    #[serde(default)]
    pub description: String,
    /// Payload.
    pub bytes: u64,
    pub seconds: f64,
    pub files: u64,
    /// Connections per file, and files at the same time.
    pub streams: u32,
    pub files_in_flight: u32,
    /// Bytes; absent where the program chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u64>,
    /// Socket buffers that were asked for, in bytes; absent where the kernel tuned them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_buffer: Option<u64>,
    #[serde(default)]
    pub outcome: Outcome,
    /// In a word, where the program that moved the data knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureKind>,
    /// Payload that was to be moved in all; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned: Option<u64>,
    /// Payload over time.
    #[serde(default)]
    pub rates: Vec<RateSample>,
}

/// From what to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WorkloadKind {
    MemoryToMemory,
    MemoryToDisk,
    DiskToMemory,
    #[default]
    DiskToDisk,
}

/// How it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    #[default]
    Done,
    /// With this error; what there is was measured before.
    Failed(String),
}

/// Payload per second in the interval that ends at `time`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RateSample {
    pub time: f64,
    pub bytes_per_second: f64,
}

/// Where the time of an end's streams went, in seconds summed over the streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stages {
    /// How long there were streams, summed over them: what the shares are of.
    pub stream_seconds: f64,
    /// Reading the source.
    #[serde(default)]
    pub source: StageTime,
    #[serde(default)]
    pub checksum: StageTime,
    #[serde(default)]
    pub encryption: StageTime,
    /// Sending or receiving.
    #[serde(default)]
    pub socket: StageTime,
    /// Writing the destination.
    #[serde(default)]
    pub destination: StageTime,
}

/// Time in one stage. What is not known to be waiting counts as work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StageTime {
    pub busy: f64,
    pub waited: f64,
}

/// What the parts reach by themselves, in bytes per second. Absent where not measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Baselines {
    /// Memory to memory over the path: the way of the transfer, and the other way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_back: Option<f64>,
    /// What moved the data of these two: `ropewalk`, or iperf3 with its version.
    #[serde(default)]
    pub path_by: String,
    /// Connections that moved them, and segments that these sent again on the way of the transfer; absent where that is
    /// not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_streams: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_retransmitted: Option<u64>,
    /// Round trip of the idle path, in seconds, and share of its packets that are lost, of so many that were sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_disk: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination_disk: Option<f64>,
    /// On one processor of the slower end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<f64>,
    /// The same of each end.
    #[serde(default)]
    pub processors: Vec<EndRates>,
    /// What transfers of each kind reached that were profiled together: with memory or disk at either end.
    #[serde(default)]
    pub kinds: Vec<KindRate>,
    /// Rate of the transfer as a share of what the slowest part reaches that took part in it and was measured: path,
    /// source disk, destination disk. More than 1 where it was faster than they were before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<f64>,
    /// The same transfer with other numbers of streams for each file.
    #[serde(default)]
    pub streams: Vec<SweepPoint>,
}

/// Rates of one processor of an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EndRates {
    pub role: Role,
    pub rates: ProcessorRates,
}

/// Rate of a transfer of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KindRate {
    pub kind: WorkloadKind,
    pub bytes_per_second: f64,
}

/// One point of a sweep over streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SweepPoint {
    /// Connections per file, as in the workload.
    pub streams: u32,
    pub bytes_per_second: f64,
    /// Standard error of the mean of the repetitions; 0 for one.
    #[serde(default)]
    pub error: f64,
    /// Share of the busier end's processors that the kernel took.
    #[serde(default)]
    pub kernel_load: f64,
}

impl Workload {
    /// Payload per second over all of it; 0 where nothing was moved.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 / self.seconds } else { 0.0 }
    }
}

impl WorkloadKind {
    /// In the order of the tables of rates.
    pub const ALL: [Self; 4] =
        [Self::MemoryToMemory, Self::MemoryToDisk, Self::DiskToMemory, Self::DiskToDisk];

    pub fn reads_disk(self) -> bool {
        matches!(self, Self::DiskToMemory | Self::DiskToDisk)
    }

    pub fn writes_disk(self) -> bool {
        matches!(self, Self::MemoryToDisk | Self::DiskToDisk)
    }
}

/// A kind's rate, and what percentage it is of others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KindShare {
    pub rate: KindRate,
    /// Share of memory to memory, as far as that is known: of the same transfers, or the path's own rate.
    pub of_memory: Option<f64>,
    /// Share of what the slowest part that takes part in it reaches by itself.
    pub of_slowest: Option<f64>,
}

impl Baselines {
    /// The path's rate, where it says what the path carries. A single connection that lost data says what losses let
    /// through, since each slows it down: others, or the same without them, may move many times as much.
    pub fn path_whole(&self) -> Option<f64> {
        let slowed =
            self.path_streams == Some(1) && self.path_retransmitted.is_some_and(|segments| segments > 0);
        self.path.filter(|&rate| rate > 0.0 && !slowed)
    }

    /// The least of what the parts reach that take part in transfers of this kind, as far as they were measured.
    pub fn slowest(&self, kind: WorkloadKind) -> Option<f64> {
        let parts = [
            self.path_whole(),
            self.source_disk.filter(|_| kind.reads_disk()),
            self.destination_disk.filter(|_| kind.writes_disk()),
        ];
        parts.into_iter().flatten().min_by(f64::total_cmp).filter(|rate| *rate > 0.0)
    }

    /// All kinds that were measured, memory to memory first.
    pub fn kind_shares(&self) -> Vec<KindShare> {
        let of = |kind| self.kinds.iter().find(|rate| rate.kind == kind);
        let memory = of(WorkloadKind::MemoryToMemory).map(|rate| rate.bytes_per_second).or(self.path);
        let memory = memory.filter(|rate| *rate > 0.0);
        WorkloadKind::ALL
            .into_iter()
            .filter_map(of)
            .map(|rate| KindShare {
                rate: *rate,
                of_memory: memory.map(|memory| rate.bytes_per_second / memory),
                of_slowest: self.slowest(rate.kind).map(|slowest| rate.bytes_per_second / slowest),
            })
            .collect()
    }
}

impl StageTime {
    /// Busy or waiting.
    pub fn spent(&self) -> f64 {
        self.busy + self.waited
    }
}

impl Check for Workload {
    fn check(&self) -> Result<(), ProfileError> {
        ascending("rates", self.rates.iter().map(|sample| sample.time))
    }
}
