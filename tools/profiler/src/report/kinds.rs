//! Compares transfers with memory or disk at either end, as shares of the rate from memory to
//! memory. This shows the part of the disks.

use super::say;
use super::summary::kind;
use crate::profile::{Baselines, HostProfile, KindShare, Profile};

/// A table for the terminal; empty if nothing was measured.
pub fn kinds(baselines: &Baselines) -> String {
    let shares = baselines.kind_shares();
    if shares.is_empty() {
        return String::new();
    }
    let mut lines =
        format!("\n{:<18}{:>14}{:>18}{:>18}\n", "kind", "rate", "of memory-memory", "of slowest part");
    for share in shares {
        let [name, rate, memory, slowest] = row(&share);
        lines += &format!("{name:<18}{rate:>14}{memory:>18}{slowest:>18}\n");
    }
    lines
}

/// Name, rate and percentages of a row.
pub(super) fn row(share: &KindShare) -> [String; 4] {
    let percent = |share: Option<f64>| share.map_or_else(|| "–".to_owned(), say::percent);
    [
        kind(share.rate.kind).to_owned(),
        say::rate(share.rate.bytes_per_second),
        percent(share.of_memory),
        percent(share.of_slowest),
    ]
}

/// The hosts whose measurement ended before the transfer, with the number of seconds that were not
/// measured.
pub(super) fn cut_short(profile: &Profile) -> impl Iterator<Item = (&HostProfile, f64)> {
    /// Clocks, and the end of a transfer, are not known more precisely.
    const SLACK: f64 = 2.0;
    profile.hosts.iter().filter_map(|host| {
        let end = host.aligned(host.measured?, profile.started);
        let missing = profile.workload.seconds - end.max(0.0);
        (missing > SLACK + host.clock.error_seconds).then_some((host, missing))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{KindRate, Workload, WorkloadKind};

    #[test]
    fn kinds_shows_shares_of_memory_to_memory() {
        let rate = |kind, bytes_per_second| KindRate { kind, bytes_per_second };
        let mut baselines = Baselines {
            kinds: vec![
                rate(WorkloadKind::DiskToDisk, 60e6),
                rate(WorkloadKind::MemoryToMemory, 112e6),
                rate(WorkloadKind::MemoryToDisk, 50e6),
            ],
            path: Some(120e6),
            destination_disk: Some(100e6),
            ..Baselines::default()
        };
        let rows: Vec<[String; 4]> = baselines.kind_shares().iter().map(row).collect();
        let percents: Vec<[&str; 2]> = rows.iter().map(|row| [row[2].as_str(), row[3].as_str()]).collect();
        assert_eq!(percents, [["100 %", "93 %"], ["45 %", "50 %"], ["54 %", "60 %"]]);
        assert!(kinds(&baselines).lines().all(|line| line.chars().count() <= 80));
        // Without a transfer from memory to memory, the path's own rate is used.
        baselines.kinds.retain(|rate| rate.kind == WorkloadKind::DiskToDisk);
        assert_eq!(row(&baselines.kind_shares()[0])[2], "50 %");
        baselines.path = None;
        assert_eq!(row(&baselines.kind_shares()[0])[2], "–");
        assert_eq!(kinds(&Baselines::default()), "");
    }

    #[test]
    fn cut_short_finds_profiles_that_ended_early() {
        let host = |measured| HostProfile { started: 99.0, measured, ..HostProfile::default() };
        let mut profile = Profile { started: 100.0, ..Profile::default() };
        profile.workload = Workload { seconds: 60.0, ..Workload::default() };
        profile.hosts = vec![host(Some(11.0)), host(Some(61.5)), host(None)];
        let found: Vec<f64> = cut_short(&profile).map(|(_, missing)| missing).collect();
        assert_eq!(found, [50.0]);
    }
}
