//! CPU time of processes and of the machine, from proc(5). Values that cannot be read are `None`.

use std::fs;

/// CPU time, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cpu {
    pub(crate) user: f64,
    pub(crate) system: f64,
}

impl Cpu {
    pub(crate) fn total(self) -> f64 {
        self.user + self.system
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { user: self.user + other.user, system: self.system + other.system }
    }

    /// The difference, with negative values replaced by 0.
    pub(super) fn minus(self, other: Self) -> Self {
        Self { user: (self.user - other.user).max(0.0), system: (self.system - other.system).max(0.0) }
    }
}

/// CPU time of a process and of the children that it has waited for. `None` if there is no such
/// process.
pub(crate) fn of_process(pid: u32) -> Option<Cpu> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// CPU time of a process, of the children that it has waited for, and of all running descendants.
pub(crate) fn of_tree(pid: u32) -> Option<Cpu> {
    let mut total = of_process(pid)?;
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            total = total.plus(of_tree(child).unwrap_or_default());
        }
    }
    Some(total)
}

fn parse_stat(stat: &str) -> Option<Cpu> {
    // The name, in parentheses, may contain any characters.
    let fields: Vec<_> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    let seconds = |at: usize| Some(ticks(at)? as f64 / rustix::param::clock_ticks_per_second() as f64);
    // The state is field 3 of proc(5) and the first one here; utime is field 14, stime 15, cutime
    // 16, cstime 17.
    Some(Cpu { user: seconds(11)? + seconds(13)?, system: seconds(12)? + seconds(14)? })
}

/// The machine's load average over one minute.
pub(crate) fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// Ticks for which the machine's CPUs were busy, without those of `nice` programs, and all ticks.
pub(crate) fn of_machine() -> Option<(u64, u64)> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<u64> = stat
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|field| field.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal
    let all: u64 = fields.iter().sum();
    let idle: u64 = [1, 3, 4].iter().filter_map(|&field| fields.get(field)).sum();
    Some((all - idle, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_parentheses_in_the_name_is_parsed() {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 100 200 300 400 20 0 1 0 5 6 7";
        assert_eq!(parse_stat(stat), Some(Cpu { user: 400.0 / ticks, system: 600.0 / ticks }));
        assert_eq!(parse_stat("nonsense"), None);
    }

    #[test]
    fn cpu_time_of_this_process_and_machine_is_read() {
        assert!(of_tree(std::process::id()).is_some());
        assert!(of_machine().is_some_and(|(busy, all)| busy <= all));
    }
}
