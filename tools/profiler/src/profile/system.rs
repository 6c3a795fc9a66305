//! Samples of a host over time (processors, memory, disks, network), and the profiler's shares of
//! processor time.

use serde::{Deserialize, Serialize};

use super::untrusted::{Check, ProfileError, share};

/// A host in one interval. Rates are per second of the interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SystemSample {
    /// The end of the interval, in seconds since the host's time zero.
    pub time: f64,
    /// The length of the interval.
    pub seconds: f64,
    /// All processors together (`"all"`), then each.
    #[serde(default)]
    pub processors: Vec<Processor>,
    #[serde(default)]
    pub memory: MemoryUse,
    #[serde(default)]
    pub disks: Vec<DiskUse>,
    #[serde(default)]
    pub interfaces: Vec<InterfaceUse>,
    #[serde(default)]
    pub tcp: TcpUse,
    #[serde(default)]
    pub context_switches: f64,
    #[serde(default)]
    pub interrupts: f64,
}

/// Shares of a processor's time by kind. `idle` and `iowait` are not work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Processor {
    /// `"all"`, or the number of the processor.
    pub name: String,
    /// In programs, including niced ones.
    pub user: f64,
    /// In the kernel, on behalf of programs.
    pub system: f64,
    pub iowait: f64,
    /// Serving interrupts.
    pub irq: f64,
    pub softirq: f64,
    /// Taken by other guests of the same machine.
    pub steal: f64,
    pub idle: f64,
}

/// Memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryUse {
    pub total: u64,
    /// Memory that programs could get without swapping.
    pub available: u64,
    pub cached: u64,
    /// Memory that has to be written to disks.
    pub dirty: u64,
    pub swap_total: u64,
    pub swap_used: u64,
}

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiskUse {
    pub name: String,
    /// Requests per second.
    pub transfers: f64,
    /// Bytes per second.
    pub read: f64,
    pub written: f64,
    /// Mean number of requests waiting or being served.
    pub queue: f64,
    /// Mean time of a request, in seconds.
    pub wait: f64,
    /// Share of the time in which the disk was busy. Disks that serve many requests at once may
    /// still have capacity left at 1.
    pub utilisation: f64,
}

/// A network interface; all values are per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InterfaceUse {
    pub name: String,
    pub received_packets: f64,
    pub sent_packets: f64,
    pub received_bytes: f64,
    pub sent_bytes: f64,
    pub errors: f64,
    pub dropped: f64,
}

/// All TCP connections of a host; segments per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TcpUse {
    pub received: f64,
    pub sent: f64,
    pub retransmitted: f64,
}

impl Processor {
    /// Share of the time in which the processor worked.
    pub fn busy(&self) -> f64 {
        self.user + self.system + self.irq + self.softirq + self.steal
    }
}

impl Check for SystemSample {
    fn check(&self) -> Result<(), ProfileError> {
        for processor in &self.processors {
            share("a processor's time", processor.busy() + processor.idle + processor.iowait)?;
        }
        // The tolerance is larger because the times from which utilisation is computed are not read
        // at one moment.
        self.disks.iter().try_for_each(|disk| share("a disk's utilisation", disk.utilisation / 1.5))
    }
}

/// Shares of processor time, sampled over the whole host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProfilerShares {
    /// The sampled event: `cycles`, or `cpu-clock` without hardware counters.
    pub event: String,
    /// Number of samples, without idle ones. A share of `1/samples` is one sample.
    pub samples: u64,
    /// Samples that the profiler lost.
    #[serde(default)]
    pub lost: u64,
    /// By the location of the code. The sum is 1.
    #[serde(default)]
    pub shares: Vec<Share>,
    /// The functions with the largest shares, in descending order.
    #[serde(default)]
    pub functions: Vec<FunctionShare>,
}

/// A part of the system, and its share of the work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Share {
    pub kind: ShareKind,
    /// The name of the module, library or program.
    pub name: String,
    pub share: f64,
}

/// The location of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ShareKind {
    /// The kernel itself.
    Kernel,
    /// A module of the kernel that drives no device.
    Module,
    /// A module that drives a device.
    Driver,
    /// The kernel's serving of interrupts.
    Interrupt,
    Library,
    Program,
}

/// A function, and its share of the work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FunctionShare {
    pub function: String,
    /// The kernel, module, library or program file that contains the function.
    pub object: String,
    /// The program on whose behalf it ran.
    pub program: String,
    pub share: f64,
}

impl Check for ProfilerShares {
    fn check(&self) -> Result<(), ProfileError> {
        self.shares.iter().try_for_each(|part| share("a share", part.share))?;
        share("the sum of shares", self.shares.iter().map(|part| part.share).sum())?;
        self.functions.iter().try_for_each(|part| share("a function's share", part.share))
    }
}
