//! The memory and the processors of the host, for which new transfers wait.
//!
//! [`Load`] reads `/proc` and the control groups of the process (cgroup v2) when a transfer is
//! about to begin, at most twice a second, and keeps the reading. A file that is missing or means
//! nothing is no shortage. The host owns it; any thread may ask.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config::Limits;

/// A reading is used for this time.
const FRESH: Duration = Duration::from_millis(500);

pub(crate) struct Load {
    sources: Sources,
    last: Mutex<Option<(Instant, Reading)>>,
}

/// One look at the host.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    /// The bytes that programs can get: those of the host, or what the control groups leave.
    pub(crate) memory: Option<u64>,
    /// The share of the last ten seconds in which a thread waited for a processor, in percent.
    pub(crate) pressure: Option<f64>,
}

/// The buffers of all transfers in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    pub(crate) used: u64,
    pub(crate) total: u64,
}

/// The resource of which there is too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    Memory,
    Buffers,
    Processors,
}

/// The files that are read.
struct Sources {
    proc: PathBuf,
    /// The control group of the process, and those above it but the root.
    groups: Vec<PathBuf>,
}

impl Load {
    pub(crate) fn of_host() -> Self {
        Self::beneath(Path::new("/"))
    }

    /// Reads the files beneath `root` in place of those of the host.
    fn beneath(root: &Path) -> Self {
        Self { sources: Sources::beneath(root), last: Mutex::default() }
    }

    /// Why a transfer should not begin now.
    pub(crate) fn shortage(&self, limits: &Limits, buffers: Buffers) -> Option<Shortage> {
        if limits.wait_for_buffers && buffers.used >= buffers.total {
            return Some(Shortage::Buffers);
        }
        if limits.free_memory == 0 && limits.cpu_pressure == 0.0 {
            return None;
        }
        let now = self.reading();
        if limits.free_memory > 0 && now.memory.is_some_and(|bytes| bytes < limits.free_memory) {
            return Some(Shortage::Memory);
        }
        let is_pressed = now.pressure.is_some_and(|percent| percent > limits.cpu_pressure);
        (limits.cpu_pressure > 0.0 && is_pressed).then_some(Shortage::Processors)
    }

    /// The present reading.
    pub(crate) fn reading(&self) -> Reading {
        let mut last = self.last.lock();
        match *last {
            Some((at, reading)) if at.elapsed() < FRESH => reading,
            _ => {
                let reading = self.sources.read();
                *last = Some((Instant::now(), reading));
                reading
            }
        }
    }
}

impl Sources {
    fn beneath(root: &Path) -> Self {
        let proc = root.join("proc");
        let own = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let within = Path::new(own).ancestors().filter(|group| !group.as_os_str().is_empty());
        let groups = within.map(|group| root.join("sys/fs/cgroup").join(group)).collect();
        Self { proc, groups }
    }

    fn read(&self) -> Reading {
        let of_groups = self.groups.iter().filter_map(|group| group_memory(group));
        let memory = self.host_memory().into_iter().chain(of_groups).min();
        let own = self.groups.first().and_then(|group| pressure(&group.join("cpu.pressure")));
        Reading { memory, pressure: own.or_else(|| pressure(&self.proc.join("pressure/cpu"))) }
    }

    fn host_memory(&self) -> Option<u64> {
        let text = fs::read_to_string(self.proc.join("meminfo")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    }
}

/// The bytes that a control group leaves; `None`: it has no limit. The page cache of files can be
/// taken back, so that it counts as free.
fn group_memory(group: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    // Above `high` the kernel slows the processes down.
    let most = [number("memory.max"), number("memory.high")].into_iter().flatten().min()?;
    let statistics = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cache = statistics.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        matches!(name, "inactive_file" | "active_file").then(|| bytes.parse::<u64>().ok())?
    });
    let used = number("memory.current")?.saturating_sub(cache.fold(0, u64::saturating_add));
    Some(most.saturating_sub(used))
}

/// The share of ten seconds in which at least one thread waited, in percent.
fn pressure(file: &Path) -> Option<f64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split(' ').find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MIB: u64 = 1 << 20;
    const NO_BUFFERS: Buffers = Buffers { used: 0, total: 1 };

    /// A host with these files.
    struct FakeHost(tempfile::TempDir);

    impl FakeHost {
        fn new(files: &[(&str, &str)]) -> Self {
            let host = Self(tempfile::tempdir().unwrap());
            files.iter().for_each(|(name, text)| host.write(name, text));
            host
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn reading(&self) -> Reading {
            Sources::beneath(self.0.path()).read()
        }

        fn shortage(&self, limits: &Limits) -> Option<Shortage> {
            Load::beneath(self.0.path()).shortage(limits, NO_BUFFERS)
        }
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 4096000 kB\nMemAvailable:    2048 kB\n");
    const PRESSURE: (&str, &str) =
        ("proc/pressure/cpu", "some avg10=12.50 avg60=1.00 avg300=0.00 total=7\nfull avg10=0.00\n");

    #[test]
    fn reading_of_a_host_without_groups_is_that_of_proc() {
        let host = FakeHost::new(&[MEMINFO, PRESSURE, ("proc/self/cgroup", "4:memory:/a\n0::/\n")]);
        assert_eq!(host.reading(), Reading { memory: Some(2 * MIB), pressure: Some(12.5) });
        let host = FakeHost::new(&[("proc/meminfo", "MemAvailable: lots\n"), ("proc/pressure/cpu", "none")]);
        assert_eq!(host.reading(), Reading::default());
    }

    #[test]
    fn reading_is_that_of_the_tightest_group() {
        let host = FakeHost::new(&[
            ("proc/meminfo", "MemAvailable: 900000 kB\n"),
            PRESSURE,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "3145728\n"),
            ("sys/fs/cgroup/a/memory.current", "4194304\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 1048576\nactive_file 1048576\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/cpu.pressure", "some avg10=40.00 avg60=0.00 avg300=0.00 total=1\n"),
        ]);
        assert_eq!(host.reading(), Reading { memory: Some(MIB), pressure: Some(40.0) });
        host.write("sys/fs/cgroup/a/b/memory.high", "4096");
        host.write("sys/fs/cgroup/a/b/memory.current", "8192");
        assert_eq!(host.reading().memory, Some(0));
    }

    #[test]
    fn shortage_is_of_the_resource_whose_limit_is_passed() {
        let host = FakeHost::new(&[MEMINFO, PRESSURE]);
        let limits = |free_memory, cpu_pressure| Limits { free_memory, cpu_pressure, ..Limits::default() };
        assert_eq!(host.shortage(&limits(2 * MIB, 12.5)), None);
        assert_eq!(host.shortage(&limits(2 * MIB + 1, 0.0)), Some(Shortage::Memory));
        assert_eq!(host.shortage(&limits(0, 12.0)), Some(Shortage::Processors));
        assert_eq!(host.shortage(&limits(0, 0.0)), None);
        let nothing = FakeHost::new(&[]);
        assert_eq!(nothing.shortage(&limits(u64::MAX, 0.001)), None);
        let full = Buffers { used: 10, total: 10 };
        let waits = Limits { wait_for_buffers: true, ..limits(0, 0.0) };
        let load = Load::beneath(nothing.0.path());
        assert_eq!(load.shortage(&waits, full), Some(Shortage::Buffers));
        assert_eq!(load.shortage(&waits, Buffers { used: 9, ..full }), None);
        assert_eq!(load.shortage(&limits(0, 0.0), full), None);
    }

    #[test]
    fn reading_is_kept_for_a_moment() {
        let host = FakeHost::new(&[MEMINFO]);
        let load = Load::beneath(host.0.path());
        let first = load.reading();
        host.write(MEMINFO.0, "MemAvailable: 1 kB\n");
        if load.last.lock().is_some_and(|(at, _)| at.elapsed() < FRESH / 2) {
            assert_eq!(load.reading(), first);
        }
        *load.last.lock() = None;
        assert_eq!(load.reading().memory, Some(1024));
    }
}
