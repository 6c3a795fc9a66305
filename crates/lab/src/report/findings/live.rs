//! What tuning reaches on every scenario, beside static settings: with ropewalk's servers and with GCT's, to here, from here
//! and between two servers.

use std::fmt::Write;
use std::time::Duration;

use ropewalk_plot::{Axis, Chart, Panel, Series, Unit};

use super::Section;
use crate::library::{Call, Direction, SCENARIOS, Workload};
use crate::report::{Table, capacity, digits};
use crate::sweep::{Design, Group, Record, SPAN, SweepError, Trial, groups, trials};

/// A file is no larger: it is kept in memory, twice.
const LARGEST: f64 = 3.0 * (1_u64 << 30) as f64;
const GCT: &str = "globus-url-copy";
const OURS: &str = "ropewalk";
const UNTUNED: &str = "ropewalk --tuner fixed";

/// The tuned transfers: program, direction, heading.
const CASES: [(&str, Direction, &str); 6] = [
    (OURS, Direction::Get, "get"),
    (OURS, Direction::Put, "put"),
    ("ropewalk-third", Direction::Get, "third-party"),
    ("ropewalk-gct", Direction::Get, "get, GCT"),
    ("ropewalk-gct", Direction::Put, "put, GCT"),
    ("ropewalk-third-gct", Direction::Get, "third-party, GCT"),
];

fn way(direction: Direction) -> (String, String) {
    let name = if direction == Direction::Put { "put" } else { "get" };
    ("way".to_owned(), name.to_owned())
}

/// Each tuned case, GCT as it comes, ropewalk untuned and with each number of streams, on each scenario that `wanted`
/// names (on all if empty). A trial is stopped after `seconds`, or ends earlier where that would be too much data.
///
/// # Errors
/// None that a test would not have shown.
pub fn live_trials(
    wanted: &[String],
    streams: &[u32],
    seconds: u32,
    repetitions: u32,
) -> Result<Vec<Trial>, SweepError> {
    let mut calls = vec![(GCT.to_owned(), Direction::Get), (UNTUNED.to_owned(), Direction::Get)];
    calls.extend(streams.iter().map(|count| (format!("{OURS} --streams {count}"), Direction::Get)));
    calls.extend(CASES.iter().map(|(program, direction, _)| ((*program).to_owned(), *direction)));
    let mut all = Vec::new();
    for entry in
        SCENARIOS.iter().filter(|entry| wanted.is_empty() || wanted.iter().any(|name| name == entry.name))
    {
        let document = entry.document()?;
        let scenario = document.scenario()?;
        for (call, direction) in &calls {
            let most = capacity(&scenario, *direction, seconds.into(), 1448) / 8.0;
            let workload = Workload {
                direction: *direction,
                // The cast saturates.
                size: Some((1.05 * most * f64::from(seconds)).min(LARGEST) as u64),
                files: None,
                limit: Some(Duration::from_secs(seconds.into())),
            };
            let design = Design { programs: vec![Call::parse(call)?], workload, vary: vec![], repetitions };
            for mut trial in trials(entry.name, &document, &design)? {
                trial.id.values.push(way(*direction));
                all.push(((trial.id.repetition, place_of(&calls, call, *direction)), trial));
            }
        }
    }
    // Case by case: what a study that is broken off has, it has of every scenario.
    all.sort_by_key(|(order, _)| *order);
    Ok(all.into_iter().map(|(_, trial)| trial).collect())
}

/// The place of a call among all.
fn place_of(calls: &[(String, Direction)], call: &str, direction: Direction) -> Option<usize> {
    calls.iter().position(|other| other.0 == call && other.1 == direction)
}

/// The section of `docs/tuning.md`.
pub fn live_section(records: &[Record]) -> Section {
    let all = groups(records);
    let mut shares = Table::new(
        ["scenario", "Mbit/s", "GCT as it comes", "best static", "untuned"]
            .into_iter()
            .chain(CASES.iter().map(|case| case.2)),
    );
    let mut curves = Vec::new();
    let (mut doubtful, mut tally) = (0, Tally::default());
    for entry in SCENARIOS {
        let own: Vec<&Group> =
            all.iter().filter(|group| group.scenario == entry.name && group.goodput.count > 0).collect();
        let Ok(scenario) = entry.document().and_then(|document| document.scenario()) else { continue };
        if own.is_empty() {
            continue;
        }
        doubtful += own.iter().map(|group| group.doubtful).sum::<usize>();
        let of = |program: &str, direction: Direction| {
            own.iter().copied().find(|group| group.program == program && group.values == [way(direction)])
        };
        let fixed = |group: &&&Group| group.program.starts_with(&format!("{OURS} --streams"));
        let best =
            own.iter().filter(fixed).max_by(|a, b| a.goodput.median.total_cmp(&b.goodput.median)).copied();
        let most = own.iter().map(|group| capacity(&scenario, Direction::Get, group.seconds, group.segment));
        // The ways are not alike on every path.
        let share = |group: &Group, direction| {
            group.goodput.median / capacity(&scenario, direction, group.seconds, group.segment)
        };
        let percent = |group: Option<&Group>, direction| {
            group.map_or_else(String::new, |group| format!("{:.1} %", 100.0 * share(group, direction)))
        };
        let (plain, untuned) = (of(GCT, Direction::Get), of(UNTUNED, Direction::Get));
        let name = best.map_or_else(String::new, |group| {
            let streams = group.program.rsplit(' ').next().unwrap_or_default();
            format!("{} ({streams})", percent(Some(group), Direction::Get))
        });
        let mut row = vec![
            format!("`{}`", entry.name),
            digits(most.fold(0.0, f64::max) / 1e6),
            percent(plain, Direction::Get),
            name,
            percent(untuned, Direction::Get),
        ];
        for (program, direction, heading) in CASES {
            let found = of(program, direction);
            row.push(percent(found, direction));
            if let (Some(found), Some(best)) = (found, best) {
                let untuned = untuned.map(|untuned| share(untuned, Direction::Get));
                tally.add(entry.name, heading, share(found, direction), share(best, Direction::Get), untuned);
            }
        }
        shares.row(row);
        if let (Some(tuned), Some(best)) = (of(OURS, Direction::Get), best)
            && let Some(curve) = curve(entry.name, records, tuned, best)
        {
            curves.push(curve);
        }
    }
    let mut text = String::new();
    let mut charts = Vec::new();
    if !shares.is_empty() {
        text = shares.markdown();
        text += &tally.sentences();
        if doubtful > 0 {
            let _ = writeln!(
                text,
                "\n{doubtful} of the runs have warnings in their results (a busy machine, packets delivered late)."
            );
        }
        for (number, some) in curves.chunks(6).enumerate() {
            let file = format!("live-{}.svg", number + 1);
            let _ =
                writeln!(text, "\n![Rates over time, tuned and with the best static setting](plots/{file})");
            let mut chart = Chart::new("Rate over time: tuned, and the best static setting", Axis::time());
            for panel in some {
                chart = chart.panel(panel.clone());
            }
            charts.push((file, chart));
        }
    }
    Section { name: "live", text, charts }
}

/// Rates of the tuned transfer and of the best static one over time, beside each other.
fn curve(name: &str, records: &[Record], tuned: &Group, best: &Group) -> Option<Panel> {
    let rates = |group: &Group| {
        let of = |record: &&Record| {
            record.id.scenario == group.scenario
                && record.id.program == group.program
                && record.id.values == group.values
        };
        let rates = &records.iter().rev().filter(of).find_map(Record::measurement)?.rates;
        let points = rates.iter().enumerate();
        let at = |n: usize| (n as f64 + 0.5) * SPAN;
        Some(points.map(|(n, rate)| (at(n), *rate)).collect::<Vec<_>>())
    };
    let panel = Panel::new(Axis::linear(name, Unit::BitsPerSecond));
    Some(panel.series(Series::line("tuned", rates(tuned)?)).series(Series::line("best static", rates(best)?)))
}

/// Against the bounds that tuning is to keep.
#[derive(Default)]
struct Tally {
    cases: u32,
    /// At least 95 % of the best static setting; otherwise listed.
    near: u32,
    far: Vec<String>,
    /// At least 97 % of what the program does untuned.
    not_worse: u32,
    compared: u32,
    worse: Vec<String>,
}

impl Tally {
    /// Shares of the capacity.
    fn add(&mut self, scenario: &str, heading: &str, found: f64, best: f64, untuned: Option<f64>) {
        let ratio = found / best;
        self.cases += 1;
        if ratio >= 0.95 {
            self.near += 1;
        } else {
            self.far.push(format!("`{scenario}` {heading} {ratio:.2}"));
        }
        let Some(untuned) = untuned.filter(|_| heading == CASES[0].2) else { return };
        let ratio = found / untuned;
        self.compared += 1;
        if ratio >= 0.97 {
            self.not_worse += 1;
        } else {
            self.worse.push(format!("`{scenario}` {ratio:.2}"));
        }
    }

    fn sentences(&self) -> String {
        let mut text = format!(
            "\n{} of {} tuned transfers reach at least 95 % of the best static setting",
            self.near, self.cases
        );
        let list = |items: &[String]| {
            if items.is_empty() { String::new() } else { format!("; the others: {}", items.join(", ")) }
        };
        let _ = writeln!(text, "{}.", list(&self.far));
        let _ = writeln!(
            text,
            "\n{} of {} downloads are at least as fast as 97 % of the same without tuning{}.",
            self.not_worse,
            self.compared,
            list(&self.worse)
        );
        text
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sweep::{Measurement, Outcome};

    #[test]
    fn compares_with_the_best_static_setting_and_names_the_losers() {
        let all = live_trials(&["bufferbloat".into()], &[2, 8], 30, 1).unwrap();
        assert_eq!(all.len(), 2 + CASES.len() + 2);
        let record = |trial: &Trial| {
            let goodput = match (trial.id.program.as_str(), trial.id.values[0].1.as_str()) {
                ("globus-url-copy", _) => 10e6,
                ("ropewalk --streams 8", _) => 40e6,
                ("ropewalk", "get") => 39e6,
                ("ropewalk", "put") => 36e6,
                (UNTUNED, _) => 41e6,
                _ => 39.9e6,
            };
            let rates = vec![goodput; 3];
            let measurement =
                Measurement { goodput, rates, seconds: 30.0, segment: 1448, ..Measurement::default() };
            Record::new(trial, Outcome::Measured(measurement))
        };
        let records: Vec<Record> = all.iter().map(record).collect();
        let section = live_section(&records);
        assert!(section.text.contains("(8) | 84.9 % | 80.8 % | 74.6 % |"), "{}", section.text);
        assert!(
            section.text.contains("5 of 6 tuned") && section.text.contains("`bufferbloat` put 0.90"),
            "{}",
            section.text
        );
        assert!(
            section.text.contains("0 of 1 downloads") && section.text.contains("`bufferbloat` 0.95"),
            "{}",
            section.text
        );
        assert_eq!(section.charts.len(), 1);
    }
}
