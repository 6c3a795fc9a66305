//! A host over time: processors, memory, disks, network; and where its processors' time went.

use serde::{Deserialize, Serialize};

use super::untrusted::{Check, ProfileError, share};

/// A host in one interval. Rates are per second of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SystemSample {
    /// The interval's end since the host's time zero, in seconds.
    pub time: f64,
    /// Its length.
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
    /// `"all"`, or its number.
    pub name: String,
    /// In programs, niced ones included.
    pub user: f64,
    /// In the kernel for programs.
    pub system: f64,
    pub iowait: f64,
    /// Serving interrupts.
    pub irq: f64,
    pub softirq: f64,
    /// Taken by other guests of the same machine.
    pub steal: f64,
    pub idle: f64,
}

/// Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryUse {
    pub total: u64,
    /// What programs could get without swapping.
    pub available: u64,
    pub cached: u64,
    /// To be written to disks.
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
    /// Mean number of requests waiting or served.
    pub queue: f64,
    /// Mean time of a request, in seconds.
    pub wait: f64,
    /// Share of time in which it had something to do. Disks that serve many requests at once can do more at 1.
    pub utilisation: f64,
}

/// A network interface; per second.
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

/// All of a host's TCP; segments per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TcpUse {
    pub received: f64,
    pub sent: f64,
    pub retransmitted: f64,
}

impl Processor {
    /// Share in which it worked.
    pub fn busy(&self) -> f64 {
        self.user + self.system + self.irq + self.softirq + self.steal
    }
}

impl Check for SystemSample {
    fn check(&self) -> Result<(), ProfileError> {
        for processor in &self.processors {
            share("a processor's time", processor.busy() + processor.idle + processor.iowait)?;
        }
        // Utilisation is computed from times that are not read at one moment.
        self.disks.iter().try_for_each(|disk| share("a disk's utilisation", disk.utilisation / 1.5))
    }
}

/// Where the processors' time went, sampled over all of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProfilerShares {
    /// What was counted: `cycles`, or `cpu-clock` without hardware counters.
    pub event: String,
    /// Samples that were taken, idle ones left out. A share of `1/samples` is one sample.
    pub samples: u64,
    /// Samples that the profiler lost.
    #[serde(default)]
    pub lost: u64,
    /// By where the code is. Sum to 1.
    #[serde(default)]
    pub shares: Vec<Share>,
    /// The functions with most, in falling order.
    #[serde(default)]
    pub functions: Vec<FunctionShare>,
}

/// A part of the system, and its share of the work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Share {
    pub kind: ShareKind,
    /// Of the module, library or program.
    pub name: String,
    pub share: f64,
}

/// Where code is.
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
    /// Where it is: kernel, module, library or program file.
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
