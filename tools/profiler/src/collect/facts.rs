//! Equipment and settings of a host, read from the kernel's files, and with `ethtool` and `tc` if
//! these are installed.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::child;
pub use super::files::Root;
use crate::profile::{Disk, Facts, FileSystem, Interface, Rings};

/// Settings that are recorded in addition to all of `net.ipv4.tcp_*`.
const SYSCTLS: [&str; 20] = [
    "kernel.perf_event_paranoid",
    "net.core.busy_poll",
    "net.core.default_qdisc",
    "net.core.netdev_budget",
    "net.core.netdev_budget_usecs",
    "net.core.netdev_max_backlog",
    "net.core.optmem_max",
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.rps_sock_flow_entries",
    "net.core.somaxconn",
    "net.core.wmem_default",
    "net.core.wmem_max",
    "vm.dirty_background_bytes",
    "vm.dirty_background_ratio",
    "vm.dirty_bytes",
    "vm.dirty_ratio",
    "vm.nr_hugepages",
    "vm.swappiness",
    "vm.zone_reclaim_mode",
];

/// Limit on listed interfaces and disks. Hosts that run containers have thousands of interfaces.
const MOST: usize = 64;
/// The tools answer at once, but drivers may hang.
const TOOL: Duration = Duration::from_secs(5);

/// Gathers the facts that can be found out and leaves out the rest. `paths` are those whose file
/// systems matter.
pub fn gather(root: &Root, paths: &[PathBuf]) -> Facts {
    let cpuinfo = root.read("proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let meminfo = root.read("proc/meminfo").unwrap_or_default();
    Facts {
        name: root.word("proc/sys/kernel/hostname").unwrap_or_default(),
        kernel: root.word("proc/sys/kernel/osrelease").unwrap_or_default(),
        processors: cpuinfo.lines().filter(|line| line.starts_with("processor")).count() as u32,
        processor_model: model.map(|(_, name)| name.to_owned()).unwrap_or_default(),
        numa_nodes: numbered(root, "sys/devices/system/node", "node").len() as u32,
        governors: governors(root),
        memory: kibibytes(&meminfo, "MemTotal").unwrap_or(0),
        sysctls: sysctls(root),
        interfaces: interfaces(root),
        disks: disks(root),
        file_systems: paths.iter().take(MOST).filter_map(|path| file_system(root, path)).collect(),
        open_files: rustix::process::getrlimit(rustix::process::Resource::Nofile).current,
        iommu_passthrough: passthrough(root),
    }
}

/// The path of a setting's file beneath the root. Names come only from Ropewalk's own lists and
/// saved files.
pub(crate) fn sysctl_path(name: &str) -> String {
    format!("proc/sys/{}", name.replace('.', "/"))
}

/// The value of a line of /proc/meminfo, in bytes.
pub(super) fn kibibytes(meminfo: &str, name: &str) -> Option<u64> {
    let line =
        meminfo.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':')))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

fn sysctls(root: &Root) -> BTreeMap<String, String> {
    let tcp = root.names("proc/sys/net/ipv4").into_iter().filter(|name| name.starts_with("tcp_"));
    // Keys of TCP Fast Open are secrets.
    let tcp = tcp.filter(|name| !name.contains("key")).take(200).map(|name| format!("net.ipv4.{name}"));
    let names = tcp.chain(SYSCTLS.iter().map(|&name| name.to_owned()));
    names
        .filter_map(|name| {
            let value = root.word(&sysctl_path(&name))?;
            let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
            (value.len() <= 512).then_some((name, value))
        })
        .collect()
}

/// Names of directories that consist of `prefix` and a number.
fn numbered(root: &Root, path: &str, prefix: &str) -> Vec<String> {
    let mut names = root.names(path);
    names.retain(|name| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    });
    names
}

fn governors(root: &Root) -> Vec<String> {
    let base = "sys/devices/system/cpu";
    let all: BTreeSet<String> = numbered(root, base, "cpu")
        .iter()
        .filter_map(|name| root.word(&format!("{base}/{name}/cpufreq/scaling_governor")))
        .collect();
    all.into_iter().take(MOST).collect()
}

fn passthrough(root: &Root) -> Option<bool> {
    let line = root.word("proc/cmdline")?;
    if line.split_whitespace().any(|word| word == "iommu=pt" || word == "iommu.passthrough=1") {
        return Some(true);
    }
    line.contains("iommu").then_some(false)
}

fn interfaces(root: &Root) -> Vec<Interface> {
    let default = default_routes(root);
    let mut names = root.names("sys/class/net");
    // The interfaces of default routes come first, so that the limit cuts off less important ones.
    names.sort_by_key(|name| !default.contains(name));
    names
        .into_iter()
        .filter(|name| name != "lo")
        .take(MOST)
        .map(|name| interface(root, name, &default))
        .collect()
}

/// Interfaces of default routes (proc(5): /proc/net/route and ipv6_route).
fn default_routes(root: &Root) -> BTreeSet<String> {
    let v4 = root.read("proc/net/route").unwrap_or_default();
    let v4 = v4.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(1) == Some(&"00000000") && fields.get(7) == Some(&"00000000"))
            .then(|| fields[0].to_owned())
    });
    let v6 = root.read("proc/net/ipv6_route").unwrap_or_default();
    let v6 = v6.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let all = fields.first()?.bytes().all(|byte| byte == b'0') && fields.get(1) == Some(&"00");
        // Unreachable routes are on `lo`.
        fields.get(9).filter(|&&name| all && name != "lo").map(|&name| name.to_owned())
    });
    v4.chain(v6).collect()
}

fn interface(root: &Root, name: String, default: &BTreeSet<String>) -> Interface {
    let base = format!("sys/class/net/{name}");
    let link = |path: &str| {
        let target = std::fs::read_link(root.path(&format!("{base}/{path}"))).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    };
    let tool = |program: &str, arguments: &[&str]| {
        // `plain`, below, makes sure that the name is not taken for an option.
        let mut command = Command::new(program);
        command.args(arguments).arg(&name);
        let output = child::run(command, TOOL, 1 << 20).ok()?;
        output.status.success().then_some(output.text)
    };
    let plain = !name.starts_with('-');
    Interface {
        default_route: default.contains(&name),
        // Virtual interfaces report -1, and interfaces without a link report 0.
        speed: root
            .number::<i64>(&format!("{base}/speed"))
            .and_then(|megabits| u64::try_from(megabits).ok())
            .filter(|&megabits| megabits > 0)
            .map(|megabits| megabits.saturating_mul(1_000_000)),
        mtu: root.number(&format!("{base}/mtu")),
        queue_length: root.number(&format!("{base}/tx_queue_len")),
        qdisc: plain.then(|| tool("tc", &["qdisc", "show", "dev"])).flatten().and_then(|text| qdisc(&text)),
        driver: link("device/driver"),
        numa_node: root
            .number::<i64>(&format!("{base}/device/numa_node"))
            .and_then(|node| u32::try_from(node).ok()),
        rings: plain.then(|| tool("ethtool", &["-g"])).flatten().and_then(|text| rings(&text)),
        offloads: plain
            .then(|| tool("ethtool", &["-k"]))
            .flatten()
            .map(|text| offloads(&text))
            .unwrap_or_default(),
        name,
    }
}

/// Parses `tc qdisc show dev X`: the root's discipline, or that of the queues if the root is `mq`.
fn qdisc(text: &str) -> Option<String> {
    let mut kinds = text.lines().filter_map(|line| line.strip_prefix("qdisc ")?.split_whitespace().next());
    let first = kinds.next()?;
    Some(if first == "mq" { kinds.next().unwrap_or(first) } else { first }.to_owned())
}

/// Parses `ethtool -g X`, which prints the possible values first, then the current ones.
fn rings(text: &str) -> Option<Rings> {
    let (most, now) = text.split_once("Current hardware settings")?;
    let number = |text: &str, name: &str| -> Option<u32> {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok())
    };
    Some(Rings {
        receive: number(now, "RX")?,
        receive_most: number(most, "RX")?,
        send: number(now, "TX")?,
        send_most: number(most, "TX")?,
    })
}

/// Parses `ethtool -k X`, which prints `name: on [fixed]`.
fn offloads(text: &str) -> BTreeMap<String, bool> {
    let wanted = [
        "generic-receive-offload",
        "generic-segmentation-offload",
        "large-receive-offload",
        "rx-checksumming",
        "scatter-gather",
        "tcp-segmentation-offload",
        "tx-checksumming",
    ];
    text.lines()
        .filter_map(|line| line.trim().split_once(": "))
        .filter(|(name, _)| wanted.contains(name))
        .map(|(name, state)| (name.to_owned(), state.starts_with("on")))
        .collect()
}

fn disks(root: &Root) -> Vec<Disk> {
    let names = root.names("sys/block");
    let real = names.into_iter().filter(|name| is_disk(name)).take(MOST);
    real.map(|name| {
        let base = format!("sys/block/{name}");
        // The kernel writes `none [mq-deadline]`, with the current scheduler in brackets.
        let schedulers = root.word(&format!("{base}/queue/scheduler")).unwrap_or_default();
        let used = schedulers.split(['[', ']']).nth(1).unwrap_or(&schedulers).to_owned();
        Disk {
            size: root.number::<u64>(&format!("{base}/size")).unwrap_or(0).saturating_mul(512),
            model: root.word(&format!("{base}/device/model")).unwrap_or_default(),
            rotational: root.number::<u8>(&format!("{base}/queue/rotational")).map(|number| number != 0),
            scheduler: used,
            name,
        }
    })
    .collect()
}

/// Whether a block device may be a disk: it is neither in memory nor a file of another disk.
pub(super) fn is_disk(name: &str) -> bool {
    !["loop", "ram", "zram", "fd", "sr"].iter().any(|prefix| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

/// Finds the file system by the device number of the path, or of the nearest existing directory
/// above it.
fn file_system(root: &Root, path: &Path) -> Option<FileSystem> {
    let device = path.ancestors().find_map(|path| std::fs::metadata(path).ok())?.dev();
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = root.read("proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| mount(line, &number, path))
}

/// Parses a line of proc_pid_mountinfo(5), if it belongs to this device.
fn mount(line: &str, number: &str, path: &Path) -> Option<FileSystem> {
    let (mount, system) = line.split_once(" - ")?;
    let mount: Vec<&str> = mount.split(' ').collect();
    let mut system = system.split(' ');
    let shortened = |text: &str| text.chars().take(1000).collect::<String>();
    (mount.get(2) == Some(&number)).then(|| FileSystem {
        path: shortened(&path.to_string_lossy()),
        mounted: shortened(mount.get(4).unwrap_or(&"")),
        kind: shortened(system.next().unwrap_or("")),
        device: shortened(system.next().unwrap_or("")),
        options: shortened(mount.get(5).unwrap_or(&"")),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn gather_on_this_host_finds_facts() {
        let here = std::env::current_dir().unwrap();
        let facts = gather(&Root::default(), &[here, "/proc/nowhere/at/all".into()]);
        assert!(facts.processors > 0 && facts.memory > 1 << 20 && !facts.kernel.is_empty());
        assert!(facts.send_ceiling().unwrap() > 4096 && facts.receive_ceiling().unwrap() > 4096);
        assert!(!facts.file_systems[0].kind.is_empty());
        assert_eq!(facts.file_systems[1].kind, "proc");
        assert!(facts.open_files.unwrap() > 0);
        assert!(facts.sysctls.keys().all(|name| !name.contains("key")));
    }

    #[test]
    fn parsers_when_given_tool_output_extract_values() {
        let text =
            "qdisc mq 0: root \nqdisc fq_codel 0: parent :2 limit 10240p\nqdisc fq_codel 0: parent :1\n";
        assert_eq!(qdisc(text).as_deref(), Some("fq_codel"));
        assert_eq!(qdisc("qdisc noqueue 0: root refcnt 2\n").as_deref(), Some("noqueue"));
        assert_eq!(qdisc(""), None);
        let text = "Ring parameters for eth0:\nPre-set maximums:\nRX:\t\t8192\nRX Mini:\t0\nTX:\t\t4096\n\
                    Current hardware settings:\nRX:\t\t1024\nRX Mini:\tn/a\nTX:\t\t512\n";
        let found = Rings { receive: 1024, receive_most: 8192, send: 512, send_most: 4096 };
        assert_eq!(rings(text), Some(found));
        assert_eq!(rings("nonsense"), None);
        let text = "Features for eth0:\nrx-checksumming: on [fixed]\n\ttx-checksum-ipv4: on\ngeneric-receive-offload: off\n";
        let found: BTreeMap<String, bool> =
            [("rx-checksumming".into(), true), ("generic-receive-offload".into(), false)].into();
        assert_eq!(offloads(text), found);
    }

    #[test]
    fn gather_when_root_is_a_fixture_finds_routes_and_disks() {
        let directory = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "proc/net/route",
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\nens1\t00000000\t0100A8C0\t3\t0\t0\t0\t00000000\n\
             ens2\t0000A8C0\t0\t1\t0\t0\t0\t00FFFFFF\n",
        );
        for name in ["ens1", "ens2", "lo"] {
            write(&format!("sys/class/net/{name}/mtu"), "9000\n");
        }
        write("sys/class/net/ens1/speed", "25000\n");
        write("sys/class/net/ens2/speed", "-1\n");
        write("sys/block/nvme0n1/size", "2048\n");
        write("sys/block/nvme0n1/queue/scheduler", "[none] mq-deadline\n");
        write("sys/block/loop0/size", "8\n");
        write("proc/cmdline", "root=/dev/sda intel_iommu=on iommu=pt\n");
        let facts = gather(&Root::at(directory.path()), &[]);
        let [first, second] = facts.interfaces.as_slice() else { panic!("{:?}", facts.interfaces) };
        assert_eq!(
            (first.name.as_str(), first.default_route, first.speed),
            ("ens1", true, Some(25_000_000_000))
        );
        assert_eq!((second.default_route, second.speed, second.mtu), (false, None, Some(9000)));
        let [disk] = facts.disks.as_slice() else { panic!("{:?}", facts.disks) };
        assert_eq!((disk.size, disk.scheduler.as_str()), (1 << 20, "none"));
        assert_eq!(facts.iommu_passthrough, Some(true));
    }
}
