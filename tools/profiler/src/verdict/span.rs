//! The time in which data moved. Of a transfer that failed, only this time is evaluated.

use super::evidence::moving;
use crate::profile::{Connection, ConnectionSample, HostProfile, Profile};

/// The start and the end, in seconds since the beginning of the transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Span {
    pub(super) from: f64,
    pub(super) to: f64,
}

/// Interval in which connections are sampled, in seconds.
const STEP: f64 = 0.1;
/// Connections that moved fewer bytes carry no data: they are control connections.
const CARRIES: u64 = 128 << 10;
/// Data below this share of a connection's mean rate is a trickle, and does not count as moving.
const TRICKLE: f64 = 0.01;
/// Samples that are farther apart do not show what happened between them.
const GAP: f64 = 1.0;
/// Sums over the whole transfer are kept only if data moved in at least this share of its time.
const MOST: f64 = 0.8;

impl Span {
    /// Computes the time from TCP's counters at either end, and from the rates that the program
    /// reported. Returns `None` if no data moved, as far as is known.
    pub(super) fn of(profile: &Profile) -> Option<Self> {
        let seconds = profile.workload.seconds;
        let ends = [(profile.source(), true), (profile.destination(), false)];
        let counted = ends.into_iter().filter_map(|(host, sends)| host.map(|host| (host, sends)));
        let counted = counted.flat_map(|(host, sends)| {
            let connections = moving(&host.connections, sends).into_iter();
            let times = connections.flat_map(move |connection| grown(connection, sends));
            times.map(|(from, to)| (host.aligned(from, profile.started), host.aligned(to, profile.started)))
        });
        let rates = &profile.workload.rates;
        let told =
            rates.iter().enumerate().filter(|(_, rate)| rate.bytes_per_second > 0.0).map(|(at, rate)| {
                let before = at.checked_sub(1).and_then(|at| rates.get(at));
                (before.map_or(0.0, |before| before.time), rate.time)
            });
        let whole = counted
            .chain(told)
            .map(|(from, to)| (from.clamp(0.0, seconds.max(0.0)), to.clamp(0.0, seconds.max(0.0))))
            .filter(|(from, to)| to > from)
            .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        // The result of the transfer may be the only sign that data moved.
        let whole = whole.or((profile.workload.bytes > 0 && seconds > 0.0).then_some((0.0, seconds)));
        whole.map(|(from, to)| Self { from, to })
    }

    pub(super) fn seconds(&self) -> f64 {
        self.to - self.from
    }

    /// Reduces a profile to the samples of this time. Sums over the whole transfer are dropped if
    /// the transfer took much longer: a program that waited for an answer for a minute would hide
    /// what it did before.
    pub(super) fn cut(&self, profile: &Profile) -> Profile {
        let whole = self.seconds() >= MOST * profile.workload.seconds;
        let host = |host: &HostProfile| {
            let time = |time: f64| host.aligned(time, profile.started);
            let inside =
                |sample: &&ConnectionSample| (self.from - STEP..=self.to + STEP).contains(&time(sample.time));
            let connection = |connection: &Connection| Connection {
                local: connection.local.clone(),
                remote: connection.remote.clone(),
                congestion: connection.congestion.clone(),
                samples: connection.samples.iter().filter(inside).copied().collect(),
            };
            let system = host.system.iter().filter(|sample| {
                let end = time(sample.time);
                end > self.from && end - sample.seconds < self.to
            });
            HostProfile {
                schema: host.schema,
                role: host.role,
                started: host.started,
                clock: host.clock,
                facts: host.facts.clone(),
                system: system.cloned().collect(),
                connections: host.connections.iter().map(connection).collect(),
                profiler: host.profiler.clone().filter(|_| whole),
                stages: host.stages.filter(|_| whole),
                programs: if whole { host.programs.clone() } else { Vec::new() },
                doing: host.doing.filter(|_| whole),
                ..HostProfile::default()
            }
        };
        let mut workload = profile.workload.clone();
        workload.rates.retain(|rate| rate.time > self.from && rate.time <= self.to + STEP);
        Profile {
            schema: profile.schema,
            started: profile.started,
            workload,
            baselines: profile.baselines.clone(),
            hosts: profile.hosts.iter().map(host).collect(),
            sweeps: None,
        }
    }
}

/// The times in which a connection's counter grew.
fn grown(connection: &Connection, sends: bool) -> Vec<(f64, f64)> {
    let count =
        |sample: &ConnectionSample| if sends { sample.acknowledged } else { sample.received }.unwrap_or(0);
    let Some((first, last)) = connection.samples.first().zip(connection.samples.last()) else {
        return Vec::new();
    };
    if count(last) < CARRIES {
        return Vec::new();
    }
    let mean = count(last).saturating_sub(count(first)) as f64 / (last.time - first.time).max(STEP);
    let pairs = connection.samples.windows(2).filter_map(|pair| {
        let [before, after] = pair else { return None };
        let more = count(after).saturating_sub(count(before)) as f64;
        let time = after.time - before.time;
        // If Ropewalk was stopped together with the transfer, there are no samples of that time.
        // Assume then that the data moved at its usual rate, and that nothing moved in the rest.
        let moved = if time > GAP { (more / mean).clamp(STEP, time) } else { time };
        (more > 0.0 && more >= TRICKLE * mean * moved).then_some((before.time, before.time + moved))
    });
    // Data that had already been counted in the first sample had moved just before.
    let before = (count(first) > 0).then_some((first.time - STEP, first.time));
    before.into_iter().chain(pairs).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::profile::{RateSample, Role, Stages, SystemSample, Workload};

    /// Data from 2 to 4 s of 20, as the source's TCP and the host's samples show it.
    fn profile() -> Profile {
        let samples = (0..200_u32).map(|tenth| ConnectionSample {
            time: f64::from(tenth) / 10.0,
            acknowledged: Some(u64::from(tenth.clamp(20, 40) - 20) * 100_000),
            received: Some(0),
            ..ConnectionSample::default()
        });
        let host = HostProfile {
            role: Role::Source,
            connections: vec![Connection { samples: samples.collect(), ..Connection::default() }],
            system: (1..=20)
                .map(|second| SystemSample {
                    time: f64::from(second),
                    seconds: 1.0,
                    ..SystemSample::default()
                })
                .collect(),
            stages: Some(Stages::default()),
            ..HostProfile::default()
        };
        let workload = Workload { bytes: 2_000_000, seconds: 20.0, ..Workload::default() };
        Profile { workload, hosts: vec![host], ..Profile::default() }
    }

    #[test]
    fn cut_keeps_only_samples_in_which_data_moved() {
        let profile = profile();
        let span = Span::of(&profile).unwrap();
        assert!((span.from - 2.0).abs() < 0.01 && (span.to - 4.0).abs() < 0.01, "{span:?}");
        let cut = span.cut(&profile);
        let times: Vec<f64> = cut.hosts[0].system.iter().map(|sample| sample.time).collect();
        assert_eq!((times, cut.hosts[0].stages), (vec![3.0, 4.0], None));
        let samples = &cut.hosts[0].connections[0].samples;
        assert!((20..=24).contains(&samples.len()), "{}", samples.len());
    }

    #[test]
    fn cut_when_span_is_most_of_the_time_keeps_sums() {
        let mut profile = profile();
        profile.workload.seconds = 2.2;
        profile.hosts[0].started = -2.0;
        let span = Span::of(&profile).unwrap();
        assert!(span.cut(&profile).hosts[0].stages.is_some(), "{span:?}");
    }

    #[test]
    fn span_without_connections_uses_rates_or_result() {
        let mut profile = profile();
        profile.hosts[0].connections.clear();
        assert_eq!(Span::of(&profile), Some(Span { from: 0.0, to: 20.0 }));
        profile.workload.rates = [(1.0, 0.0), (1.5, 9.0), (9.0, 0.0)]
            .map(|(time, bytes_per_second)| RateSample { time, bytes_per_second })
            .into();
        assert_eq!(Span::of(&profile), Some(Span { from: 1.0, to: 1.5 }));
        (profile.workload.rates, profile.workload.bytes) = (Vec::new(), 0);
        assert_eq!(Span::of(&profile), None);
        assert_eq!(Span::of(&Profile::default()), None);
    }

    #[test]
    fn span_when_samples_are_missing_assumes_the_usual_rate() {
        let mut profile = profile();
        profile.hosts[0].connections[0].samples.retain(|sample| !(3.0..19.0).contains(&sample.time));
        let span = Span::of(&profile).unwrap();
        assert!((2.0..2.3).contains(&span.from) && (3.0..15.0).contains(&span.to), "{span:?}");
    }

    #[test]
    fn span_when_only_control_connections_exist_is_none() {
        let mut profile = profile();
        profile.workload.bytes = 0;
        for sample in &mut profile.hosts[0].connections[0].samples {
            sample.acknowledged = sample.acknowledged.map(|bytes| bytes / 1000);
        }
        assert_eq!(Span::of(&profile), None);
    }

    #[test]
    fn span_when_times_are_absurd_stays_within_the_transfer() {
        let mut profile = profile();
        let samples = &mut profile.hosts[0].connections[0].samples;
        (samples[0].time, samples[0].acknowledged) = (-1e19, Some(1));
        samples[199].time = 1e19;
        let span = Span::of(&profile).unwrap();
        assert!(span.from >= 0.0 && span.to <= 20.0 && span.seconds() > 0.0, "{span:?}");
        profile.workload.seconds = f64::NAN;
        assert!(Span::of(&profile).is_none_or(|span| span.seconds() >= 0.0));
    }
}
