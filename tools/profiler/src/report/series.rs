//! Computes series over the time of the transfer, with the samples of both hosts on one clock.

use std::collections::BTreeMap;

use crate::profile::{Connection, ConnectionSample, HostProfile, Profile};
use crate::verdict::moving;

/// Values over time, in order.
pub(super) type Values = Vec<(f64, f64)>;

/// Number of columns into which values are grouped if there are many series.
const COLUMNS: usize = 300;

/// Start and end of the time that is shown, in seconds of the writer's clock: the transfer and a
/// little around it. Clocks that are wrong by days must not squeeze the transfer to a line.
pub(super) fn span(profile: &Profile) -> (f64, f64) {
    let seconds = profile.workload.seconds;
    let rates = profile.workload.rates.last().map(|sample| sample.time);
    let samples = || {
        profile.hosts.iter().flat_map(|host| {
            let system = host.system.iter().map(|sample| sample.time);
            let tcp =
                host.connections.iter().flat_map(|connection| &connection.samples).map(|sample| sample.time);
            system.chain(tcp).map(|time| host.aligned(time, profile.started)).filter(|time| time.is_finite())
        })
    };
    let length = if seconds > 0.0 && seconds <= 1e12 {
        seconds
    } else {
        rates.into_iter().chain(samples()).fold(0.0, f64::max).clamp(1.0, 1e12)
    };
    let margin = (length * 0.05).max(0.2);
    let first = samples().filter(|&time| time >= -margin).fold(0.0, f64::min);
    let last = samples().filter(|&time| time <= length + margin).fold(length, f64::max);
    (first, last)
}

/// Payload per second: the rates that the program reported, or else those of the sender's (or the
/// receiver's) connections.
pub(super) fn rates(profile: &Profile) -> Values {
    if !profile.workload.rates.is_empty() {
        return profile.workload.rates.iter().map(|sample| (sample.time, sample.bytes_per_second)).collect();
    }
    let sent = profile.source().map(|host| growth(host, profile, true, |sample| sample.acknowledged));
    sent.filter(|values| !values.is_empty())
        .or_else(|| profile.destination().map(|host| growth(host, profile, false, |sample| sample.received)))
        .unwrap_or_default()
}

/// Growth of the counters of all connections together, per second.
pub(super) fn growth(
    host: &HostProfile,
    profile: &Profile,
    sends: bool,
    of: impl Fn(&ConnectionSample) -> Option<u64>,
) -> Values {
    let (from, to) = span(profile);
    // The bins have equal length, about a second: a shorter one at the end would show a false peak.
    let count = (to - from).round().clamp(1.0, COLUMNS as f64);
    let width = (to - from) / count;
    let mut bins: BTreeMap<u32, f64> = BTreeMap::new();
    for connection in moving(&host.connections, sends) {
        for pair in connection.samples.windows(2) {
            let [before, after] = pair else { continue };
            let time = host.aligned(after.time, profile.started);
            if !(from..=to).contains(&time) {
                continue;
            }
            if let Some(grown) = of(after).zip(of(before)).map(|(after, before)| after.saturating_sub(before))
            {
                // A sample at the end of an interval counts for that interval.
                let bin = ((time - from) / width - 1e-9).floor().clamp(0.0, count - 1.0) as u32;
                *bins.entry(bin).or_default() += grown as f64;
            }
        }
    }
    bins.into_iter().map(|(bin, grown)| (from + f64::from(bin + 1) * width, grown / width)).collect()
}

/// Number of connections that carried data, at each moment.
pub(super) fn streams(host: &HostProfile, profile: &Profile, sends: bool) -> Values {
    let mut changes: Vec<(f64, i64)> = Vec::new();
    for connection in moving(&host.connections, sends) {
        if let (Some(first), Some(last)) = (connection.samples.first(), connection.samples.last()) {
            changes.push((host.aligned(first.time, profile.started), 1));
            changes.push((host.aligned(last.time, profile.started), -1));
        }
    }
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    let mut now = 0;
    changes
        .iter()
        .map(|&(time, change)| {
            now += change;
            (time, now as f64)
        })
        .collect()
}

/// One value of one connection over time.
pub(super) fn connection(
    host: &HostProfile,
    profile: &Profile,
    connection: &Connection,
    of: impl Fn(&ConnectionSample) -> Option<f64>,
) -> Values {
    let samples = connection.samples.iter();
    samples
        .filter_map(|sample| Some((host.aligned(sample.time, profile.started), of(sample)?)))
        .filter(|(time, value)| time.is_finite() && value.is_finite())
        .collect()
}

/// Lowest, middle and highest value in each column of time.
pub(super) fn spread(all: &[Values], (from, to): (f64, f64)) -> Vec<(f64, [f64; 3])> {
    let width = (to - from) / COLUMNS as f64;
    let mut columns: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for (time, value) in all.iter().flatten().filter(|(time, _)| (from..=to).contains(time)) {
        columns.entry(((time - from) / width) as usize).or_default().push(*value);
    }
    columns
        .into_iter()
        .filter_map(|(column, mut values)| {
            values.sort_by(f64::total_cmp);
            let middle = *values.get(values.len() / 2)?;
            Some((from + (column as f64 + 0.5) * width, [*values.first()?, middle, *values.last()?]))
        })
        .collect()
}

/// Draws a curve as a line of blocks, each the mean of its time; blank after the last value.
pub(super) fn bars(values: &Values, (from, to): (f64, f64), width: usize) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let mut cells = vec![(0.0, 0_u32); width];
    for (time, value) in values.iter().filter(|(_, value)| value.is_finite()) {
        let place = (time - from) / (to - from) * width as f64;
        // A value stands for the time before it.
        if let Some(cell) = cells.get_mut((place.ceil() as usize).saturating_sub(1)).filter(|_| place >= 0.0)
        {
            *cell = (cell.0 + value, cell.1 + 1);
        }
    }
    // If there are fewer values than cells, each value also fills the empty cells before it.
    let mut next = None;
    let mut means: Vec<Option<f64>> = cells
        .iter()
        .rev()
        .map(|&(sum, count)| {
            if count > 0 {
                next = Some(sum / f64::from(count));
            }
            next
        })
        .collect();
    means.reverse();
    let most = means.iter().flatten().copied().fold(0.0, f64::max);
    means
        .iter()
        .map(|mean| match mean {
            Some(mean) if most > 0.0 => {
                BLOCKS[((mean / most * 8.0).ceil() as usize).saturating_sub(1).min(BLOCKS.len() - 1)]
            }
            Some(_) => BLOCKS[0],
            None => ' ',
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Clock, RateSample, Role, Workload};

    #[test]
    fn bars_draw_a_curve() {
        let values = vec![(1.0, 1.0), (2.0, 8.0), (3.0, f64::NAN), (4.0, 4.0)];
        assert_eq!(bars(&values, (0.0, 5.0), 5), "▁█▄▄ ");
        assert_eq!(bars(&vec![(2.0, 1.0)], (0.0, 4.0), 4), "██  ");
        assert_eq!(
            (bars(&vec![], (0.0, 1.0), 3).trim(), bars(&vec![(1.0, 0.0)], (0.0, 1.0), 2).as_str()),
            ("", "▁▁")
        );
    }

    fn profile() -> Profile {
        let samples = (0..=20_u32)
            .map(|tenth| ConnectionSample {
                time: 5.0 + f64::from(tenth) / 10.0,
                acknowledged: Some(u64::from(tenth) * 100),
                received: Some(0),
                ..ConnectionSample::default()
            })
            .collect();
        let host = HostProfile {
            role: Role::Source,
            started: 995.0,
            clock: Clock { offset_seconds: -0.0, error_seconds: 0.0 },
            connections: vec![Connection { samples, ..Connection::default() }],
            ..HostProfile::default()
        };
        Profile {
            started: 1000.0,
            workload: Workload { seconds: 2.0, bytes: 2000, ..Workload::default() },
            hosts: vec![host],
            ..Profile::default()
        }
    }

    #[test]
    fn series_when_clocks_differ_are_aligned() {
        let mut profile = profile();
        assert_eq!(span(&profile), (0.0, 2.0));
        let rates = rates(&profile);
        assert_eq!(rates, [(1.0, 1000.0), (2.0, 1000.0)]);
        assert_eq!(streams(&profile.hosts[0], &profile, true), [(0.0, 1.0), (2.0, 0.0)]);
        // The same samples by a clock that is an hour ahead.
        profile.hosts[0].started += 3600.0;
        profile.hosts[0].clock.offset_seconds = 3600.0;
        assert_eq!(span(&profile), (0.0, 2.0));
        // A clock that is wrong by a year does not stretch the time that is shown.
        profile.hosts[0].clock.offset_seconds = 3e7;
        assert_eq!(span(&profile), (0.0, 2.0));
        profile.workload.rates = vec![RateSample { time: 1.0, bytes_per_second: 3.0 }];
        assert_eq!(super::rates(&profile), [(1.0, 3.0)]);
    }

    #[test]
    fn spread_groups_many_lines_into_a_band() {
        let all: Vec<Values> = (0..9).map(|n| vec![(0.5, f64::from(n)), (99.0, 1e9)]).collect();
        let spread = spread(&all, (0.0, 1.0));
        assert_eq!(spread.iter().map(|(_, values)| *values).collect::<Vec<_>>(), [[0.0, 4.0, 8.0]]);
    }
}
