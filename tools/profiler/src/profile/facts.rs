//! Equipment and settings of a host.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A host's equipment and settings. Values that could not be found out are absent.
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
    /// Memory of the host, in bytes.
    pub memory: u64,
    /// Settings that transfers depend on, by name (`net.ipv4.tcp_rmem`), as the kernel prints them.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
    #[serde(default)]
    pub interfaces: Vec<Interface>,
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// The file systems of the paths that the transfer reads or writes.
    #[serde(default)]
    pub file_systems: Vec<FileSystem>,
    /// Number of files that a process may have open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Whether devices access memory directly (`iommu=pt`); absent if the kernel's command line
    /// does not show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommu_passthrough: Option<bool>,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Interface {
    pub name: String,
    /// Whether packets without a more specific route use this interface.
    #[serde(default)]
    pub default_route: bool,
    /// Bits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Length of the transmit queue, in packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_length: Option<u32>,
    /// Queueing discipline at the root of the interface; if that is `mq`, the discipline of its
    /// queues.
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

/// Ring sizes of a network card, in descriptors: current and maximum.
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
    /// Size, in bytes.
    pub size: u64,
    #[serde(default)]
    pub model: String,
    /// Whether it is a disk with rotating platters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
    #[serde(default)]
    pub scheduler: String,
}

/// The file system of a path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileSystem {
    /// The requested path, and the mount point of its file system.
    pub path: String,
    pub mounted: String,
    /// As in proc_pid_mountinfo(5).
    pub kind: String,
    pub device: String,
    #[serde(default)]
    pub options: String,
}

impl Facts {
    /// All numbers in the value of a setting.
    pub fn numbers(&self, sysctl: &str) -> Option<Vec<u64>> {
        self.sysctls.get(sysctl)?.split_whitespace().map(|word| word.parse().ok()).collect()
    }

    /// The size up to which autotuning grows send buffers, in bytes as the kernel counts.
    pub fn send_ceiling(&self) -> Option<u64> {
        self.numbers("net.ipv4.tcp_wmem")?.get(2).copied()
    }

    /// The size up to which autotuning grows receive buffers, in bytes as the kernel counts.
    pub fn receive_ceiling(&self) -> Option<u64> {
        self.numbers("net.ipv4.tcp_rmem")?.get(2).copied()
    }
}
