//! The tuner on every scenario, compared with static settings: with ropewalk's servers and with
//! GCT's, for downloads, uploads and third-party transfers between two servers.

mod plan;
mod tally;

pub use plan::{LiveStudy, live_cases};

use std::fmt::Write;

use ropewalk_plot::{Axis, Chart, Panel, Series, Unit};

use self::plan::{CASES, GCT, OLD, OURS, seconds_of, way};
use self::tally::Tally;
use super::Section;
use crate::library::{Direction, SCENARIOS};
use crate::report::{Table, capacity, digits};
use crate::scenario::Scenario;
use crate::sweep::{Group, Record, SPAN, groups};

/// The section of `docs/evaluation/tuning.md`. A cell states its length if that differs from the
/// usual `seconds`.
pub fn live_section(records: &[Record], seconds: u32) -> Section {
    let all = groups(records);
    let mut shares = Table::new(
        ["scenario", "Mbit/s", "GCT as it comes", "best static", "untuned"]
            .into_iter()
            .chain(CASES.iter().map(|case| case.heading)),
    );
    let mut curves = Vec::new();
    let (mut doubtful, mut tally) = (0, Tally::default());
    for entry in SCENARIOS {
        let Ok(scenario) = entry.document().and_then(|document| document.scenario()) else { continue };
        let own = Row::of(&all, entry.name, &scenario);
        if own.groups.is_empty() {
            continue;
        }
        let fixed: Vec<&Group> =
            own.groups.iter().copied().filter(|group| group.program.starts_with(STATIC)).collect();
        let longest = fixed.iter().map(|group| seconds_of(group)).max();
        let best = fixed.into_iter().filter(|group| Some(seconds_of(group)) == longest);
        let best = best.max_by(|a, b| a.goodput.median.total_cmp(&b.goodput.median));
        let plain = own.find(GCT, Direction::Get);
        // The untuned download.
        let untuned = own.find(&CASES[0].untuned(), Direction::Get);
        let cell = |group: Option<&Group>, direction| {
            group.map_or_else(String::new, |group| own.cell(group, direction, seconds))
        };
        let name = best.map_or_else(String::new, |group| {
            let streams = group.program.rsplit(' ').next().unwrap_or_default();
            format!("{} -p {streams}", own.cell(group, Direction::Get, seconds))
        });
        let most = own.groups.iter().map(|group| own.capacity(group, Direction::Get)).fold(0.0, f64::max);
        let mut row = vec![
            format!("`{}`", entry.name),
            digits(most / 1e6),
            cell(plain, Direction::Get),
            name,
            cell(untuned, Direction::Get),
        ];
        let mut shown: Vec<&Group> = [plain, best, untuned].into_iter().flatten().collect();
        for case in &CASES {
            let found = own.find(case.program, case.direction);
            row.push(cell(found, case.direction));
            let Some(found) = found else { continue };
            if let Some(untuned) = own.find(&case.untuned(), case.direction) {
                let [found, untuned] = [found, untuned].map(|group| own.share(group, case.direction));
                tally.untuned(entry.name, case.heading, found, untuned);
            }
            let Some(best) = best else { continue };
            shown.push(found);
            let share = |group| own.share(group, Direction::Get);
            let old = seconds_of(found) == OLD;
            tally.add(entry.name, case.heading, own.share(found, case.direction), share(best), old);
            if case.program == OURS && case.direction == Direction::Get {
                tally.gct(entry.name, share(found), plain.map(share), share(best));
                curves.extend(curve(entry.name, records, found, best));
                if round_trip(&scenario) == HUNDRED {
                    let seconds =
                        rates(records, found).and_then(|of| reached(&of, 0.9 * best.goodput.median));
                    tally.start(entry.name, seconds);
                }
            }
        }
        doubtful += shown.iter().filter(|group| group.doubtful > 0).count();
        shares.row(row);
    }
    let mut text = String::new();
    let mut charts = Vec::new();
    if !shares.is_empty() {
        text = shares.markdown();
        text += &tally.sentences();
        if doubtful > 0 {
            let _ = writeln!(
                text,
                "\n{doubtful} of the cells have warnings in their results (a busy machine, packets delivered late)."
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

/// The beginning of the labels of static settings.
const STATIC: &str = "ropewalk --streams";
/// The round trip time in milliseconds of the scenarios whose start phase is reported.
const HUNDRED: u64 = 100;

/// The groups of one scenario.
struct Row<'a> {
    scenario: &'a Scenario,
    groups: Vec<&'a Group>,
}

impl<'a> Row<'a> {
    fn of(all: &'a [Group], name: &str, scenario: &'a Scenario) -> Self {
        let own = all.iter().filter(|group| group.scenario == name && group.goodput.count > 0);
        Self { scenario, groups: own.collect() }
    }

    /// The group of the longest transfers of a program in a direction.
    fn find(&self, program: &str, direction: Direction) -> Option<&'a Group> {
        let own = self.groups.iter().copied().filter(|group| group.program == program);
        own.filter(|group| group.values.first() == Some(&way(direction)))
            .max_by_key(|group| seconds_of(group))
    }

    fn capacity(&self, group: &Group, direction: Direction) -> f64 {
        capacity(self.scenario, direction, group.seconds, group.segment)
    }

    /// Goodput as a share of the capacity, which may differ between the directions of a path.
    fn share(&self, group: &Group, direction: Direction) -> f64 {
        group.goodput.median / self.capacity(group, direction)
    }

    fn cell(&self, group: &Group, direction: Direction, usual: u32) -> String {
        let mut text = format!("{:.1} %", 100.0 * self.share(group, direction));
        match seconds_of(group) {
            OLD => text += " (old)",
            seconds if seconds != usual => {
                let _ = write!(text, " ({seconds} s)");
            }
            _ => {}
        }
        if group.goodput.count > 1 {
            let _ = write!(text, " ×{}", group.goodput.count);
        }
        text
    }
}

/// The initial round trip time of the path, in milliseconds.
fn round_trip(scenario: &Scenario) -> u64 {
    scenario.links.first().map_or(0, |link| {
        let both = link.path.forward.delay + link.path.backward.delay;
        (both.as_secs_f64() * 1e3).round() as u64
    })
}

/// The time at which the rate first reached `target`: the end of the span with that rate.
fn reached(rates: &[f64], target: f64) -> Option<f64> {
    rates.iter().position(|rate| *rate >= target).map(|at| (at + 1) as f64 * SPAN)
}

/// The rates over time in the last round.
fn rates(records: &[Record], group: &Group) -> Option<Vec<f64>> {
    let of = |record: &&Record| {
        record.id.scenario == group.scenario
            && record.id.program == group.program
            && record.id.values == group.values
    };
    Some(records.iter().rev().filter(of).find_map(Record::measurement)?.rates.clone())
}

/// A panel with the rates of the tuned transfer and of the best static one over time.
fn curve(name: &str, records: &[Record], tuned: &Group, best: &Group) -> Option<Panel> {
    let line = |group: &Group| {
        let at = |n: usize| (n as f64 + 0.5) * SPAN;
        let rates = rates(records, group)?;
        Some(rates.iter().enumerate().map(|(n, rate)| (at(n), *rate)).collect::<Vec<_>>())
    };
    let panel = Panel::new(Axis::linear(name, Unit::BitsPerSecond));
    Some(panel.series(Series::line("tuned", line(tuned)?)).series(Series::line("best static", line(best)?)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sweep::{Measurement, Outcome, Trial};

    fn study() -> LiveStudy {
        LiveStudy {
            scenarios: vec!["bufferbloat".into()],
            cases: vec![],
            streams: vec![2, 4, 8],
            seconds: 120,
            coarse: 30,
            repetitions: 1,
        }
    }

    fn record(trial: &Trial) -> Record {
        let goodput = match (trial.id.program.as_str(), trial.id.values[0].1.as_str()) {
            ("globus-url-copy", _) => 10e6,
            ("ropewalk --streams 4", _) => 35e6,
            ("ropewalk --streams 8", _) => 40e6,
            ("ropewalk", "get") => 39e6,
            ("ropewalk", "put") => 36e6,
            ("ropewalk --tuner fixed", "get") => 41e6,
            ("ropewalk --tuner fixed", _) => 36e6,
            _ => 30e6,
        };
        let measurement = Measurement {
            goodput,
            rates: vec![goodput; 3],
            seconds: trial.id.values[1].1.parse().unwrap(),
            segment: 1448,
            ..Measurement::default()
        };
        Record::new(trial, Outcome::Measured(measurement))
    }

    #[test]
    fn finals_when_the_sweep_has_run_are_its_two_best_settings() {
        let study = study();
        let records: Vec<Record> = study.trials().unwrap().iter().map(record).collect();
        let again = study.finals(&records).unwrap();
        let mut names: Vec<&str> = again.iter().map(|trial| trial.id.program.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["ropewalk --streams 4", "ropewalk --streams 8"]);
        assert!(again.iter().all(|trial| trial.id.values[1].1 == "120"));
        let only = LiveStudy { cases: vec!["put-gct".into()], ..study };
        assert_eq!(only.trials().unwrap().len(), 1);
        assert!(only.finals(&records).unwrap().is_empty());
    }

    #[test]
    fn live_section_with_records_compares_with_the_best_static_setting() {
        let study = study();
        let trials = study.trials().unwrap();
        assert_eq!(trials.len(), 1 + 2 * CASES.len() + 3);
        let mut records: Vec<Record> = trials.iter().map(record).collect();
        let text = live_section(&records, 120).text;
        assert!(text.contains("| 82.9 % (30 s) -p 8 | 84.9 % | 80.8 % | 74.6 % |"), "{text}");
        records.extend(study.finals(&records.clone()).unwrap().iter().map(record));
        let section = live_section(&records, 120);
        let text = &section.text;
        assert!(text.contains("| 82.9 % -p 8 | 84.9 % | 80.8 % | 74.6 % |"), "{text}");
        assert!(text.contains("1 of 6 tuned") && text.contains("`bufferbloat` put 0.90"), "{text}");
        assert!(
            text.contains("5 of 6 tuned transfers are") && text.contains("`bufferbloat` get 0.95"),
            "{text}"
        );
        assert!(
            text.contains("`bufferbloat` put 74.6 % (74.6 %), `bufferbloat` third-party 62.2 %"),
            "{text}"
        );
        assert!(text.contains("`bufferbloat` 3.9"), "{text}");
        assert_eq!(section.charts.len(), 1);
    }

    #[test]
    fn reached_when_the_rate_is_high_enough_is_the_end_of_its_span() {
        assert_eq!(reached(&[1.0, 5.0, 9.0], 5.0), Some(2.0 * SPAN));
        assert_eq!(reached(&[1.0], 5.0), None);
    }
}
