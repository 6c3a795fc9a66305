//! Measures the processor time of the programs that move the data, and how long they had to wait
//! for a processor.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::files::Root;
use super::sampler::Sampler;
use super::{Collector, Unavailable};
use crate::profile::{CollectorName, HostProfile, Program};

const INTERVAL: Duration = Duration::from_secs(1);
/// Limits on programs, and on threads of each program.
const MOST: usize = 64;
const THREADS: usize = 10_000;

pub(super) struct Programs {
    root: Root,
    pids: Vec<u32>,
    sampler: Option<Sampler<State>>,
}

struct State {
    root: Root,
    zero: Instant,
    programs: Vec<Watched>,
}

pub(super) struct Watched {
    pid: u32,
    name: String,
    processors: Option<u32>,
    first: [f64; 2],
    last: [f64; 2],
    /// Nanoseconds that each thread waited for a processor, at the first and at the last sample.
    waits: HashMap<u32, (u64, u64)>,
    seconds: f64,
}

impl Programs {
    pub(super) fn new(root: Root, pids: &[u32]) -> Self {
        Self { root, pids: pids.iter().copied().take(MOST).collect(), sampler: None }
    }
}

impl Collector for Programs {
    fn name(&self) -> CollectorName {
        CollectorName::Programs
    }

    fn start(&mut self) -> Result<(), Unavailable> {
        let programs: Vec<Watched> =
            self.pids.iter().filter_map(|&pid| Watched::new(&self.root, pid)).collect();
        if programs.len() < self.pids.len() {
            return Err(Unavailable::Missing(format!("one of the processes {:?} is not there", self.pids)));
        }
        let state = State { root: self.root.clone(), zero: Instant::now(), programs };
        let sampler = Sampler::start("profile-programs", INTERVAL, state, |state| {
            let elapsed = state.zero.elapsed().as_secs_f64();
            state.programs.iter_mut().for_each(|program| program.look(&state.root, elapsed));
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
        profile.programs = state.programs.into_iter().map(Watched::into_program).collect();
        Ok(format!("{} programs", profile.programs.len()))
    }
}

impl Watched {
    pub(super) fn new(root: &Root, pid: u32) -> Option<Self> {
        let now = times(&root.read(&format!("proc/{pid}/stat")).ok()?)?;
        let status = root.read(&format!("proc/{pid}/status")).unwrap_or_default();
        let mut watched = Self {
            pid,
            name: root.word(&format!("proc/{pid}/comm")).unwrap_or_default(),
            processors: processors(root, pid, &status),
            first: now,
            last: now,
            waits: HashMap::new(),
            seconds: 0.0,
        };
        watched.threads(root, true);
        Some(watched)
    }

    pub(super) fn look(&mut self, root: &Root, elapsed: f64) {
        // After the program has ended, its last sample counts.
        let Some(now) = root.read(&format!("proc/{}/stat", self.pid)).ok().and_then(|stat| times(&stat))
        else {
            return;
        };
        (self.last, self.seconds) = (now, elapsed);
        self.threads(root, false);
    }

    /// proc(5) lists three numbers for each thread in `schedstat`: nanoseconds running, nanoseconds
    /// ready but waiting, and how often the thread ran.
    fn threads(&mut self, root: &Root, first: bool) {
        let base = format!("proc/{}/task", self.pid);
        for thread in root.names(&base).iter().filter_map(|name| name.parse::<u32>().ok()) {
            let Ok(text) = root.read(&format!("{base}/{thread}/schedstat")) else { continue };
            let Some(waited) = text.split_whitespace().nth(1).and_then(|word| word.parse().ok()) else {
                continue;
            };
            if self.waits.len() < THREADS || self.waits.contains_key(&thread) {
                // A thread that started later counts with all of its waiting time.
                let entry = self.waits.entry(thread).or_insert((if first { waited } else { 0 }, waited));
                entry.1 = waited;
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn into_program(self) -> Program {
        let waited: u64 = self.waits.values().map(|(first, last)| last.saturating_sub(*first)).sum();
        Program {
            name: self.name,
            pid: self.pid,
            seconds: self.seconds,
            user: (self.last[0] - self.first[0]).max(0.0),
            system: (self.last[1] - self.first[1]).max(0.0),
            waited_for_processor: (!self.waits.is_empty()).then(|| waited as f64 / 1e9),
            processors: self.processors,
        }
    }
}

/// User and system time of /proc/PID/stat, in seconds.
fn times(stat: &str) -> Option<[f64; 2]> {
    // The name, in parentheses, may contain any characters. utime is field 14; the state, which is
    // first after the name, is field 3.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let seconds = |at: usize| Some(fields.get(at)?.parse::<u64>().ok()? as f64 / ticks);
    Some([seconds(11)?, seconds(12)?])
}

/// How many processors a program may use. Only processors that are online count (the kernel's list
/// also has those that might be added later), and no more than the quota of the control group
/// allows.
fn processors(root: &Root, pid: u32, status: &str) -> Option<u32> {
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).and_then(ranges)?;
    let online = root.word("sys/devices/system/cpu/online").and_then(|list| ranges(&list));
    let allowed = online.map_or_else(|| count(&allowed), |online| common(&allowed, &online));
    Some(quota(root, pid).map_or(allowed, |quota| allowed.min(quota)))
}

/// The processor time that `cpu.max` leaves the program, in processors, rounded up: the minimum
/// over its control group and the groups above it.
fn quota(root: &Root, pid: u32) -> Option<u32> {
    let groups = root.read(&format!("proc/{pid}/cgroup")).ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    if group.split('/').any(|part| part == "..") {
        return None;
    }
    let groups = std::path::Path::new(group).ancestors();
    groups
        .filter_map(|group| {
            let most = root.word(&format!("sys/fs/cgroup/{}/cpu.max", group.display()))?;
            let (quota, period) = most.split_once(' ')?;
            let (quota, period): (u32, u32) = (quota.parse().ok()?, period.trim().parse().ok()?);
            (period > 0).then(|| quota.div_ceil(period).max(1))
        })
        .min()
}

/// Parses a list like `0-3,8`.
fn ranges(list: &str) -> Option<Vec<(u32, u32)>> {
    let range = |range: &str| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        (from <= to).then_some((from, to))
    };
    list.trim().split(',').map(range).collect()
}

/// How many numbers the ranges contain.
fn count(ranges: &[(u32, u32)]) -> u32 {
    ranges.iter().fold(0, |sum, (from, to)| sum.saturating_add(to - from).saturating_add(1))
}

/// How many numbers both lists contain.
fn common(some: &[(u32, u32)], others: &[(u32, u32)]) -> u32 {
    let pairs = some.iter().flat_map(|a| others.iter().map(move |b| (a.0.max(b.0), a.1.min(b.1))));
    count(&pairs.filter(|(from, to)| from <= to).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ranges_when_parsed_are_counted() {
        let counted = |list: &str| ranges(list).map(|ranges| count(&ranges));
        assert_eq!((counted("\t0-3,8"), counted("5")), (Some(5), Some(1)));
        assert_eq!((counted("3-1"), counted("x")), (None, None));
        assert_eq!(common(&[(0, 127)], &[(0, 1), (4, 5)]), 4);
        assert_eq!(common(&[(0, 3), (8, 9)], &[(3, 8)]), 2);
    }

    #[test]
    fn processors_counts_those_online_and_allowed() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        let write = |path: &str, text: &str| {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let status = "Name:\tx\nCpus_allowed_list:\t0-127\n";
        assert_eq!(processors(&root, 7, status), Some(128));
        write("sys/devices/system/cpu/online", "0-3\n");
        assert_eq!(processors(&root, 7, status), Some(4));
        write("proc/7/cgroup", "0::/a/b\n");
        write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
        write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
        assert_eq!(processors(&root, 7, status), Some(2));
        assert_eq!(processors(&root, 7, "Name:\tx\n"), None);
    }

    #[test]
    fn programs_when_busy_measure_processor_time() {
        let pid = std::process::id();
        let mut programs = Programs::new(Root::default(), &[pid]);
        programs.start().unwrap();
        // On a busy machine, wall-clock time also passes while this thread does not run.
        let taken = || {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        let begin = taken();
        while taken() - begin < Duration::from_millis(60) {
            std::hint::spin_loop();
        }
        let mut profile = HostProfile::default();
        Box::new(programs).finish(&mut profile).unwrap();
        let [program] = profile.programs.as_slice() else { panic!("{:?}", profile.programs) };
        assert_eq!(program.pid, pid);
        assert!(program.user + program.system > 0.0 && program.seconds >= 0.06, "{program:?}");
        assert!(program.waited_for_processor.is_some() && program.processors.unwrap() > 0, "{program:?}");
    }

    #[test]
    fn programs_after_stop_count_no_more_time() {
        let mut programs = Programs::new(Root::default(), &[std::process::id()]);
        let begin = Instant::now();
        programs.start().unwrap();
        programs.stop();
        let watched = begin.elapsed().as_secs_f64();
        // Stands for the time in which other collectors evaluate their results.
        while begin.elapsed().as_secs_f64() < watched + 0.02 {
            std::hint::spin_loop();
        }
        let mut profile = HostProfile::default();
        Box::new(programs).finish(&mut profile).unwrap();
        assert!(profile.programs[0].seconds <= watched, "{:?}, {watched}", profile.programs);
    }

    #[test]
    fn programs_when_a_process_is_missing_fail() {
        let mut programs = Programs::new(Root::default(), &[u32::MAX]);
        assert!(matches!(programs.start(), Err(Unavailable::Missing(_))));
    }
}
