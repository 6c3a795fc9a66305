//! The transfer, the time that the engine spent in each stage, and the baselines: the rates that
//! the disks, the path and the processors reach without the transfer.

use serde::{Deserialize, Serialize};

use super::untrusted::{Check, ProfileError, ascending};
use super::{FailureKind, Role};
use crate::baseline::ProcessorRates;

/// The transfer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Workload {
    pub kind: WorkloadKind,
    /// A description for people: source and destination.
    #[serde(default)]
    pub description: String,
    /// Bytes of payload.
    pub bytes: u64,
    pub seconds: f64,
    pub files: u64,
    /// Connections per file, and number of files in flight at the same time.
    pub streams: u32,
    pub files_in_flight: u32,
    /// Bytes; absent if the program chose the size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u64>,
    /// Requested size of socket buffers, in bytes; absent if the kernel tuned them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_buffer: Option<u64>,
    #[serde(default)]
    pub outcome: Outcome,
    /// The reason in one word, if the program that moved the data knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureKind>,
    /// Bytes of payload that were to be moved in total; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned: Option<u64>,
    /// Payload over time.
    #[serde(default)]
    pub rates: Vec<RateSample>,
}

/// The kind of source and destination.
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

/// The outcome of the transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    #[default]
    Done,
    /// The transfer failed with this error; the measurements are from before the failure.
    Failed(String),
}

/// Payload per second in the interval that ends at `time`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RateSample {
    pub time: f64,
    pub bytes_per_second: f64,
}

/// How the streams of an end spent their time, in seconds summed over the streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stages {
    /// Duration of the streams, summed over them. The shares are relative to this.
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

/// Time in one stage. Time that is not known to be waiting counts as work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StageTime {
    pub busy: f64,
    pub waited: f64,
}

/// Rates that the disks, the path and the processors reach without the transfer, in bytes per
/// second. Values that were not measured are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Baselines {
    /// From memory to memory over the path: in the direction of the transfer, and in the other
    /// direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_back: Option<f64>,
    /// The program that measured these two: `ropewalk`, or iperf3 with its version.
    #[serde(default)]
    pub path_by: String,
    /// Number of connections in this measurement, and segments that they retransmitted in the
    /// direction of the transfer; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_streams: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_retransmitted: Option<u64>,
    /// Round trip of the idle path, in seconds; share of its packets that are lost; and number of
    /// packets that were sent for this.
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
    /// The rates of one processor, for each end.
    #[serde(default)]
    pub processors: Vec<EndRates>,
    /// Rates of transfers that were profiled together, one for each kind: with memory or disk at
    /// either end.
    #[serde(default)]
    pub kinds: Vec<KindRate>,
    /// Rate of the transfer as a share of the rate of its slowest measured part: path, source disk
    /// or destination disk. Larger than 1 if the transfer was faster than that part was before.
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
    /// Share of the busier end's processors that the kernel used.
    #[serde(default)]
    pub kernel_load: f64,
}

impl Workload {
    /// Payload per second over the whole transfer; 0 if nothing was moved.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 / self.seconds } else { 0.0 }
    }
}

impl WorkloadKind {
    /// All kinds, in the order of the tables of rates.
    pub const ALL: [Self; 4] =
        [Self::MemoryToMemory, Self::MemoryToDisk, Self::DiskToMemory, Self::DiskToDisk];

    pub fn reads_disk(self) -> bool {
        matches!(self, Self::DiskToMemory | Self::DiskToDisk)
    }

    pub fn writes_disk(self) -> bool {
        matches!(self, Self::MemoryToDisk | Self::DiskToDisk)
    }
}

/// The rate of a kind, and its shares of other rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KindShare {
    pub rate: KindRate,
    /// Share of the rate from memory to memory, if that is known: of transfers of that kind, or
    /// else the path's own rate.
    pub of_memory: Option<f64>,
    /// Share of the rate that the slowest part of the transfer reaches by itself.
    pub of_slowest: Option<f64>,
}

impl Baselines {
    /// The rate of the path, if it shows how much the path can carry. A single connection that lost
    /// data only shows how much gets through with losses, because each loss slows it down: several
    /// connections, or one without losses, may move many times as much.
    pub fn path_whole(&self) -> Option<f64> {
        let slowed =
            self.path_streams == Some(1) && self.path_retransmitted.is_some_and(|segments| segments > 0);
        self.path.filter(|&rate| rate > 0.0 && !slowed)
    }

    /// The rate of the slowest measured part that takes part in transfers of this kind.
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
