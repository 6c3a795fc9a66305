//! One end of a transfer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::untrusted::{self, Check, ProfileError, ascending};
use super::{Clock, Connection, Facts, ProfilerShares, Stages, SystemSample};

/// What was measured at one host. A server sends this to who profiles it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostProfile {
    /// [`SCHEMA`](super::SCHEMA).
    pub schema: u32,
    pub role: Role,
    /// Time zero of its samples, in seconds since 1970, by its own clock.
    pub started: f64,
    /// Set by who fetched it.
    #[serde(default)]
    pub clock: Clock,
    #[serde(default)]
    pub facts: Facts,
    /// What was used, and what could not be.
    #[serde(default)]
    pub collectors: Vec<CollectorReport>,
    #[serde(default)]
    pub system: Vec<SystemSample>,
    #[serde(default)]
    pub connections: Vec<Connection>,
    /// Connections that were there but got no series, since there were too many.
    #[serde(default)]
    pub connections_left_out: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiler: Option<ProfilerShares>,
    /// Where our own engine's time went; absent for other programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<Stages>,
    /// The programs that moved the data.
    #[serde(default)]
    pub programs: Vec<Program>,
}

/// What a host did in the transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    #[default]
    Source,
    Destination,
    /// Source and destination are the same machine.
    Both,
}

/// A program over the whole transfer. Times in seconds, summed over its threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Program {
    pub name: String,
    pub pid: u32,
    pub seconds: f64,
    pub user: f64,
    pub system: f64,
    /// Ready to run, but another had the processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_for_processor: Option<f64>,
    /// Processors that it may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<u32>,
}

/// A way to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CollectorName {
    /// `sar` and `sadf` of sysstat.
    Sysstat,
    /// proc(5), for the same figures.
    Proc,
    Perf,
    /// TCP_INFO.
    Tcp,
    Facts,
    Programs,
}

/// How a collector fared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CollectorReport {
    pub name: CollectorName,
    pub state: CollectorState,
    /// Version, or what was wrong and what to do about it.
    #[serde(default)]
    pub detail: String,
}

/// See [`CollectorReport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CollectorState {
    Used,
    /// The program or the kernel's interface is not there.
    Missing,
    /// It is there, but we may not use it.
    Denied,
    /// It broke, or said nonsense. What it had said until then counts.
    Failed,
}

impl Role {
    pub fn sends(self) -> bool {
        self != Self::Destination
    }

    pub fn receives(self) -> bool {
        self != Self::Source
    }
}

impl HostProfile {
    /// Reads and checks what a server sent.
    ///
    /// # Errors
    /// As [`Profile::from_json`](super::Profile::from_json).
    pub fn from_json(bytes: &[u8]) -> Result<Self, ProfileError> {
        untrusted::read(bytes)
    }

    /// A time of its samples, in seconds since time zero of a profile that began at `started` by the writer's clock.
    pub fn aligned(&self, time: f64, started: f64) -> f64 {
        self.clock.align(self.started + time) - started
    }
}

impl Check for HostProfile {
    fn check(&self) -> Result<(), ProfileError> {
        untrusted::schema(self.schema)?;
        ascending("system samples", self.system.iter().map(|sample| sample.time))?;
        self.system.iter().try_for_each(Check::check)?;
        self.connections.iter().try_for_each(Check::check)?;
        self.profiler.iter().try_for_each(Check::check)
    }
}
