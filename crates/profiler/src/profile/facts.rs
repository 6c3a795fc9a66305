//! What a host is, and how it is set up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A host's equipment and settings. What could not be found out is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Facts {
    pub name: String,
    /// Release of the kernel.
    pub kernel: String,
    pub processors: u32,
    #[serde(default)]
    pub processor_model: String,
    #[serde(default)]
    pub numa_nodes: u32,
    /// Frequency governors of the processors, each once.
    #[serde(default)]
    pub governors: Vec<String>,
    /// Bytes.
    pub memory: u64,
    /// Settings that transfers depend on, by name (`net.ipv4.tcp_rmem`), as the kernel prints them.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
    #[serde(default)]
    pub interfaces: Vec<Interface>,
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// Of the paths that the transfer reads or writes.
    #[serde(default)]
    pub file_systems: Vec<FileSystem>,
    /// How many files a process may have open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Whether devices reach memory directly (`iommu=pt`); absent where the kernel's command line does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommu_passthrough: Option<bool>,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Interface {
    pub name: String,
    /// Whether packets without a better route leave by it.
    #[serde(default)]
    pub default_route: bool,
    /// Bits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Packets that wait in front of it at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_length: Option<u32>,
    /// Queueing discipline at its root; below `mq`, that of its queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qdisc: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rings: Option<Rings>,
    /// By ethtool's names (`tcp-segmentation-offload`).
    #[serde(default)]
    pub offloads: BTreeMap<String, bool>,
}

/// Descriptors of a network card, now and at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rings {
    pub receive: u32,
    pub receive_most: u32,
    pub send: u32,
    pub send_most: u32,
}

/// A block device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Disk {
    pub name: String,
    /// Bytes.
    pub size: u64,
    #[serde(default)]
    pub model: String,
    /// Has platters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
    #[serde(default)]
    pub scheduler: String,
}

/// The file system of a path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileSystem {
    /// The path that was asked about, and where its file system is mounted.
    pub path: String,
    pub mounted: String,
    /// As in proc_pid_mountinfo(5).
    pub kind: String,
    pub device: String,
    #[serde(default)]
    pub options: String,
}

impl Facts {
    /// A setting's numbers, as many as there are.
    pub fn numbers(&self, sysctl: &str) -> Option<Vec<u64>> {
        self.sysctls.get(sysctl)?.split_whitespace().map(|word| word.parse().ok()).collect()
    }

    /// To where autotuning lets send buffers grow, in bytes of the kernel.
    pub fn send_ceiling(&self) -> Option<u64> {
        self.numbers("net.ipv4.tcp_wmem")?.get(2).copied()
    }

    /// The same of receive buffers.
    pub fn receive_ceiling(&self) -> Option<u64> {
        self.numbers("net.ipv4.tcp_rmem")?.get(2).copied()
    }
}
