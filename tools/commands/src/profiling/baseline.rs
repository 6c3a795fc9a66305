//! Measures the parts of a transfer by themselves.

mod disks;
mod elsewhere;
mod ours;
mod path;

use clap::ValueEnum;
pub(crate) use elsewhere::tell;
use ropewalk_client::{Cancel, EventSink, Location, Options, Pair};
use ropewalk_profiler::baseline as here;
use ropewalk_profiler::profile::{Baselines, EndRates, Role, Workload};

use self::elsewhere::Elsewhere;
use crate::output::say;

/// The parts that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Memory to memory over the same path, both ways (by iperf3 if both ends have it), and the
    /// idle path's round trip
    Path,
    /// Reading the source, writing beside the destination, past the page cache
    Disk,
    /// Checksums and encryption on one processor of each end
    Cpu,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Disk => "disk",
            Self::Cpu => "cpu",
        }
    }
}

/// The parts to measure, and the means.
pub(crate) struct Wanted<'a> {
    pub(crate) parts: &'a [Part],
    pub(crate) pair: &'a Pair,
    pub(crate) options: &'a Options,
    /// Hosts of source and destination that ssh reaches, with the command to run there.
    pub(crate) ssh: [Option<(&'a str, &'a str)>; 2],
    pub(crate) events: &'a dyn EventSink,
    pub(crate) cancel: &'a Cancel,
}

impl Wanted<'_> {
    fn location(&self, role: Role) -> &Location {
        if role == Role::Source { &self.pair.source } else { &self.pair.destination }
    }

    /// The means to reach the other end; `None`: it is this host.
    fn elsewhere(&self, role: Role) -> Option<Elsewhere<'_>> {
        let Location::Remote(url) = self.location(role) else { return None };
        let ssh = self.ssh[usize::from(role != Role::Source)];
        Some(Elsewhere { url, role, ssh, options: self.options, cancel: self.cancel })
    }
}

const ENDS: [Role; 2] = [Role::Source, Role::Destination];

/// Reports a failed measurement, and omits it.
fn told<T>(what: &str, result: anyhow::Result<T>) -> Option<T> {
    result.map_err(|error| say(format_args!("ropewalk: baseline of {what}: {}", crate::message(&error)))).ok()
}

/// Measures the requested parts. Failures are reported and omitted.
pub(crate) fn measure(wanted: &Wanted<'_>) -> Baselines {
    let mut found = Baselines::default();
    if wanted.parts.contains(&Part::Path) {
        path::measure(wanted, &mut found);
    }
    let goes_on = || !wanted.cancel.is_cancelled();
    if wanted.parts.contains(&Part::Disk) {
        found.source_disk = goes_on().then(|| disk(wanted, Role::Source, "the source's disk")).flatten();
        found.destination_disk =
            goes_on().then(|| disk(wanted, Role::Destination, "the destination's disk")).flatten();
    }
    if wanted.parts.contains(&Part::Cpu) && goes_on() {
        processors(wanted, &mut found);
    }
    found
}

fn disk(wanted: &Wanted<'_>, role: Role, what: &str) -> Option<f64> {
    match (wanted.location(role), wanted.elsewhere(role)) {
        (_, Some(elsewhere)) => told(what, elsewhere.disk()).filter(|rate| *rate > 0.0),
        (Location::Local(path), None) if role == Role::Source => told(what, disks::read(path)),
        (Location::Local(path), None) => told(what, disks::write(path)),
        _ => None,
    }
}

fn processors(wanted: &Wanted<'_>, found: &mut Baselines) {
    let mut own = None;
    for role in ENDS {
        let rates = match wanted.elsewhere(role) {
            Some(elsewhere) => told(&format!("{}'s processor", elsewhere.name()), elsewhere.processor()),
            // Measured once if both ends are the same.
            None => own
                .get_or_insert_with(|| told("this processor", here::processor().map_err(Into::into)))
                .to_owned(),
        };
        found.processors.extend(rates.map(|rates| EndRates { role, rates }));
    }
    let least = |of: fn(&EndRates) -> f64| found.processors.iter().map(of).min_by(f64::total_cmp);
    let (checksum, encryption) = (least(|end| end.rates.checksum), least(|end| end.rates.encryption));
    (found.checksum, found.encryption) = (checksum, encryption);
}

/// The share of the rate that the slowest part reaches by itself, among the measured parts that
/// took part.
pub(crate) fn share(workload: &Workload, baselines: &Baselines) -> Option<f64> {
    Some(workload.rate() / baselines.slowest(workload.kind)?)
}

#[cfg(test)]
mod tests {
    use ropewalk_profiler::profile::WorkloadKind;

    use super::*;

    #[test]
    fn share_is_relative_to_the_slowest_part_used() {
        let baselines = Baselines {
            path: Some(100.0),
            source_disk: Some(50.0),
            destination_disk: Some(200.0),
            ..Baselines::default()
        };
        let workload = |kind| Workload { kind, bytes: 400, seconds: 10.0, ..Workload::default() };
        for (kind, is) in [
            (WorkloadKind::MemoryToMemory, 0.4),
            (WorkloadKind::MemoryToDisk, 0.4),
            (WorkloadKind::DiskToDisk, 0.8),
        ] {
            assert_eq!(share(&workload(kind), &baselines), Some(is), "{kind:?}");
        }
        assert_eq!(share(&workload(WorkloadKind::DiskToDisk), &Baselines::default()), None);
    }
}
