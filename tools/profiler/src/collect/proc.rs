//! Samples processors, memory, disks and network from proc(5). sysstat reads the same files; this
//! collector serves hosts without it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::facts::{is_disk, kibibytes};
use super::files::Root;
use super::sampler::Sampler;
use super::{Collector, Unavailable};
use crate::profile::{
    CollectorName, DiskUse, HostProfile, InterfaceUse, MemoryUse, Processor, SystemSample, TcpUse,
};

/// Limit on processors, disks and interfaces that are kept.
pub(super) const MOST: usize = 1024;
/// Limit on samples: more than a day at one sample a second.
pub(super) const MOST_SAMPLES: usize = 90_000;

/// Reads the kernel's counters once an interval.
pub(super) struct Proc {
    root: Root,
    interval: Duration,
    sampler: Option<Sampler<State>>,
}

struct State {
    root: Root,
    zero: Instant,
    last: Snapshot,
    samples: Vec<SystemSample>,
}

impl Proc {
    pub(super) fn new(root: Root, interval: Duration) -> Self {
        Self { root, interval, sampler: None }
    }
}

impl Collector for Proc {
    fn name(&self) -> CollectorName {
        CollectorName::Proc
    }

    fn start(&mut self) -> Result<(), Unavailable> {
        let failed = |error| Unavailable::of("/proc/stat", &error);
        self.root.read("proc/stat").map_err(failed)?;
        let last = Snapshot::take(&self.root);
        let state = State { root: self.root.clone(), zero: last.when, last, samples: Vec::new() };
        let sampler = Sampler::start("profile-proc", self.interval, state, |state| {
            let now = Snapshot::take(&state.root);
            if state.samples.len() < MOST_SAMPLES {
                state.samples.extend(now.since(&state.last, state.zero));
            }
            state.last = now;
        });
        self.sampler = Some(sampler.map_err(|error| Unavailable::of("a thread", &error))?);
        Ok(())
    }

    fn stop(&mut self) {
        self.sampler.iter_mut().for_each(Sampler::stop);
    }

    fn finish(self: Box<Self>, profile: &mut HostProfile) -> Result<String, Unavailable> {
        let state = self.sampler.and_then(Sampler::finish);
        let state = state.ok_or_else(|| Unavailable::Failed("the thread that reads /proc died".into()))?;
        profile.system = state.samples;
        Ok(format!("{} samples", profile.system.len()))
    }
}

/// All counters at a moment. Counters that cannot be read are empty.
struct Snapshot {
    when: Instant,
    /// user with nice, system, iowait, irq, softirq, steal, idle; in ticks.
    processors: BTreeMap<Order, [u64; 7]>,
    memory: MemoryUse,
    /// The numbers of a line of /proc/diskstats, by device.
    disks: BTreeMap<String, Vec<u64>>,
    /// The numbers of a line of /proc/net/dev, by interface.
    interfaces: BTreeMap<String, Vec<u64>>,
    /// Segments received, sent, retransmitted.
    tcp: [u64; 3],
    switches: u64,
    interrupts: u64,
}

/// All processors together, or one of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    All,
    One(u32),
}

impl Snapshot {
    fn take(root: &Root) -> Self {
        let stat = root.read("proc/stat").unwrap_or_default();
        let single = |name: &str| {
            let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or(0)
        };
        let disks = root.names("sys/block");
        Self {
            when: Instant::now(),
            processors: stat.lines().filter_map(processor).take(MOST).collect(),
            memory: memory(&root.read("proc/meminfo").unwrap_or_default()),
            disks: root
                .read("proc/diskstats")
                .unwrap_or_default()
                .lines()
                .filter_map(|line| {
                    let mut words = line.split_whitespace().skip(2);
                    // Partitions are left out: their counts are contained in those of their disks.
                    let name = words.next().filter(|name| is_disk(name))?;
                    disks.iter().find(|disk| disk == &name)?;
                    Some((name.to_owned(), words.filter_map(|word| word.parse().ok()).collect()))
                })
                .take(MOST)
                .collect(),
            interfaces: root
                .read("proc/net/dev")
                .unwrap_or_default()
                .lines()
                .filter_map(|line| {
                    let (name, numbers) = line.split_once(':')?;
                    let numbers = numbers.split_whitespace().filter_map(|word| word.parse().ok());
                    Some((name.trim().to_owned(), numbers.collect()))
                })
                .take(MOST)
                .collect(),
            tcp: tcp(&root.read("proc/net/snmp").unwrap_or_default()),
            switches: single("ctxt"),
            interrupts: single("intr"),
        }
    }

    /// The rates since `earlier`; `None` if no time has passed.
    fn since(&self, earlier: &Self, zero: Instant) -> Option<SystemSample> {
        let seconds = self.when.saturating_duration_since(earlier.when).as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let mut sample = SystemSample {
            time: self.when.saturating_duration_since(zero).as_secs_f64(),
            seconds,
            memory: self.memory,
            tcp: TcpUse {
                received: rate(self.tcp[0], earlier.tcp[0]),
                sent: rate(self.tcp[1], earlier.tcp[1]),
                retransmitted: rate(self.tcp[2], earlier.tcp[2]),
            },
            context_switches: rate(self.switches, earlier.switches),
            interrupts: rate(self.interrupts, earlier.interrupts),
            ..SystemSample::default()
        };
        // A device that did not exist in the earlier snapshot has no rates yet.
        for (order, now) in &self.processors {
            sample
                .processors
                .extend(earlier.processors.get(order).and_then(|before| shares(*order, now, before)));
        }
        for (name, now) in &self.disks {
            sample.disks.extend(earlier.disks.get(name).and_then(|before| disk(name, now, before, seconds)));
        }
        for (name, now) in &self.interfaces {
            let before = earlier.interfaces.get(name);
            sample.interfaces.extend(before.and_then(|before| interface(name, now, before, seconds)));
        }
        Some(sample)
    }
}

/// Parses a line of /proc/stat: user nice system idle iowait irq softirq steal (user contains the
/// time of guests).
fn processor(line: &str) -> Option<(Order, [u64; 7])> {
    let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
    let order = if line.starts_with("cpu ") { Order::All } else { Order::One(words.next()?.parse().ok()?) };
    let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
    let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = *numbers.as_slice() else {
        return None;
    };
    Some((order, [user.saturating_add(nice), system, iowait, irq, softirq, steal, idle]))
}

fn shares(order: Order, now: &[u64; 7], before: &[u64; 7]) -> Option<Processor> {
    // The counters of iowait and idle may decrease a little.
    let parts: Vec<f64> =
        now.iter().zip(before).map(|(now, before)| now.saturating_sub(*before) as f64).collect();
    let all: f64 = parts.iter().sum();
    let [user, system, iowait, irq, softirq, steal, idle] = *parts.as_slice() else { return None };
    let name = match order {
        Order::All => "all".to_owned(),
        Order::One(number) => number.to_string(),
    };
    (all > 0.0).then(|| Processor {
        name,
        user: user / all,
        system: system / all,
        iowait: iowait / all,
        irq: irq / all,
        softirq: softirq / all,
        steal: steal / all,
        idle: idle / all,
    })
}

pub(super) fn memory(meminfo: &str) -> MemoryUse {
    let bytes = |name| kibibytes(meminfo, name).unwrap_or(0);
    MemoryUse {
        total: bytes("MemTotal"),
        available: bytes("MemAvailable"),
        cached: bytes("Cached"),
        dirty: bytes("Dirty"),
        swap_total: bytes("SwapTotal"),
        swap_used: bytes("SwapTotal").saturating_sub(bytes("SwapFree")),
    }
}

/// The numbers are those of the kernel's Documentation/admin-guide/iostats.rst, counted from 0.
fn disk(name: &str, now: &[u64], before: &[u64], seconds: f64) -> Option<DiskUse> {
    let grown = |at: usize| Some(now.get(at)?.saturating_sub(*before.get(at)?) as f64);
    let requests = grown(0)? + grown(4)?;
    let milliseconds = grown(3)? + grown(7)?;
    Some(DiskUse {
        name: name.to_owned(),
        transfers: requests / seconds,
        read: grown(2)? * 512.0 / seconds,
        written: grown(6)? * 512.0 / seconds,
        queue: grown(10)? / 1000.0 / seconds,
        wait: if requests > 0.0 { milliseconds / 1000.0 / requests } else { 0.0 },
        utilisation: (grown(9)? / 1000.0 / seconds).min(1.0),
    })
}

fn interface(name: &str, now: &[u64], before: &[u64], seconds: f64) -> Option<InterfaceUse> {
    let rate = |at: usize| Some(now.get(at)?.saturating_sub(*before.get(at)?) as f64 / seconds);
    Some(InterfaceUse {
        name: name.to_owned(),
        received_bytes: rate(0)?,
        received_packets: rate(1)?,
        sent_bytes: rate(8)?,
        sent_packets: rate(9)?,
        errors: rate(2)? + rate(10)?,
        dropped: rate(3)? + rate(11)?,
    })
}

/// Parses the two `Tcp:` lines of /proc/net/snmp: names, then numbers.
fn tcp(snmp: &str) -> [u64; 3] {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, numbers) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
    let of = |wanted: &str| {
        let at = names.split(' ').position(|name| name == wanted);
        at.and_then(|at| numbers.split(' ').nth(at)?.parse().ok()).unwrap_or(0)
    };
    [of("InSegs"), of("OutSegs"), of("RetransSegs")]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn snapshots_when_counters_grow_yield_rates() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        let write = |path: &str, text: &str| {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        std::fs::create_dir_all(directory.path().join("sys/block/sda")).unwrap();
        write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 500 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\n");
        write(
            "proc/stat",
            "cpu  10 0 10 100 0 0 0 0 0 0\ncpu1 5 0 5 50 0 0 0 0 0 0\nintr 100 1 2\nctxt 50\n",
        );
        write("proc/diskstats", "8 0 sda 10 0 800 5 20 0 1600 10 0 100 15\n8 1 sda1 9 0 9 9 9 9 9 9 9 9 9\n");
        write("proc/net/dev", "h|h\n eth0: 1000 10 0 0 0 0 0 0 2000 20 0 0 0 0 0 0\n");
        write("proc/net/snmp", "Tcp: InSegs OutSegs RetransSegs\nTcp: 10 20 1\n");
        let first = Snapshot::take(&root);
        write(
            "proc/stat",
            "cpu  60 0 30 120 5 0 5 0 0 0\ncpu1 5 0 5 90 0 0 0 0 0 0\nintr 300 1 2\nctxt 150\n",
        );
        write("proc/diskstats", "8 0 sda 30 0 2800 45 20 0 1600 10 0 1100 1015\n");
        write("proc/net/dev", "h|h\n eth0: 3000 30 1 1 0 0 0 0 2000 20 1 0 0 0 0 0\n");
        write("proc/net/snmp", "Tcp: InSegs OutSegs RetransSegs\nTcp: 30 20 5\n");
        let mut second = Snapshot::take(&root);
        second.when = first.when + Duration::from_secs(2);
        let sample = second.since(&first, first.when).unwrap();
        let all = &sample.processors[0];
        assert_eq!((all.name.as_str(), all.user, all.system), ("all", 0.5, 0.2));
        assert_eq!((all.softirq, all.iowait, all.busy()), (0.05, 0.05, 0.75));
        assert_eq!((sample.processors[1].name.as_str(), sample.processors[1].idle), ("1", 1.0));
        let [disk] = sample.disks.as_slice() else { panic!("{:?}", sample.disks) };
        assert_eq!((disk.transfers, disk.read, disk.wait, disk.utilisation), (10.0, 512_000.0, 0.002, 0.5));
        let eth0 = &sample.interfaces[0];
        assert_eq!(
            (eth0.received_bytes, eth0.received_packets, eth0.errors, eth0.dropped),
            (1000.0, 10.0, 1.0, 0.5)
        );
        assert_eq!((sample.tcp.received, sample.tcp.retransmitted), (10.0, 2.0));
        assert_eq!((sample.interrupts, sample.context_switches), (100.0, 50.0));
        assert_eq!((sample.memory.available, sample.memory.swap_used), (512_000, 6144));
        // Counters that restarted from zero, and an interval without length.
        assert!(first.since(&second, first.when).is_none());
    }

    #[test]
    fn nonsense_is_nothing() {
        assert!(processor("cpu7 1 2").is_none() && processor("cpux 1 2 3 4 5 6 7 8").is_none());
        assert_eq!(tcp("Tcp: InSegs"), [0; 3]);
        assert!(disk("sda", &[1, 2], &[1, 2], 1.0).is_none());
    }

    #[test]
    fn proc_on_this_host_measures_and_when_missing_fails() {
        let mut proc = Proc::new(Root::default(), Duration::from_secs(1000));
        proc.start().unwrap();
        // The last sample is taken at the end, when some ticks have passed.
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        let mut profile = HostProfile::default();
        Box::new(proc).finish(&mut profile).unwrap();
        let [sample] = profile.system.as_slice() else { panic!("{:?}", profile.system) };
        assert!(sample.memory.total > 0 && sample.seconds >= 0.05);
        assert!(sample.interfaces.iter().any(|interface| interface.name == "lo"));
        let missing = Proc::new(Root::at("/nowhere"), Duration::from_secs(1)).start();
        assert!(matches!(missing, Err(Unavailable::Missing(_))));
    }
}
