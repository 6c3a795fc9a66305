//! Static settings on every scenario of the library: the numbers to beat. The study runs GCT with
//! its defaults and with several numbers of streams, and ropewalk with its defaults. The section of
//! `docs/lab.md` has a table with one row per scenario.

use std::fmt::Write;
use std::time::Duration;

use super::Section;
use crate::library::{Call, Direction, SCENARIOS, Workload};
use crate::report::{Table, capacity, digits};
use crate::sweep::{Design, Group, Record, SweepError, Trial, groups, trials};

const DEFAULTS: &str = "globus-url-copy";
const OURS: &str = "ropewalk";

/// The trials: GCT with its defaults and with each number of streams, and ropewalk with its
/// defaults, on each scenario that `wanted` names (on all if it is empty). A trial is stopped after
/// `seconds`.
///
/// # Errors
/// A built-in scenario or program is invalid, which tests exclude.
pub fn library_trials(
    wanted: &[String],
    streams: &[u32],
    seconds: u32,
    repetitions: u32,
) -> Result<Vec<Trial>, SweepError> {
    let mut calls = vec![Call::parse(DEFAULTS)?];
    for count in streams {
        calls.push(Call::parse(&format!("{DEFAULTS} -p {count}"))?);
    }
    calls.push(Call::parse(OURS)?);
    let workload = Workload { limit: Some(Duration::from_secs(seconds.into())), ..Workload::default() };
    let design = Design { programs: calls, workload, vary: vec![], repetitions };
    let mut all = Vec::new();
    for entry in
        SCENARIOS.iter().filter(|entry| wanted.is_empty() || wanted.iter().any(|name| name == entry.name))
    {
        all.extend(trials(entry.name, &entry.document()?, &design)?);
    }
    all.sort_by_key(|trial| trial.id.repetition);
    Ok(all)
}

/// The section of `docs/lab.md`.
pub fn library_section(records: &[Record]) -> Section {
    let all = groups(records);
    let mut table = Table::new([
        "scenario",
        "capacity Mbit/s",
        "GCT as it comes",
        "GCT's best -p",
        "which",
        "ropewalk as it comes",
    ]);
    let mut doubtful = 0;
    for entry in SCENARIOS {
        let own: Vec<&Group> =
            all.iter().filter(|group| group.scenario == entry.name && group.goodput.count > 0).collect();
        let Ok(scenario) = entry.document().and_then(|document| document.scenario()) else { continue };
        if own.is_empty() {
            continue;
        }
        doubtful += own.iter().map(|group| group.doubtful).sum::<usize>();
        let best = |group: &Group| capacity(&scenario, Direction::Get, group.seconds, group.segment);
        let share = |group: &&Group| group.goodput.median / best(group);
        let percent = |group: Option<&Group>| {
            group.map_or_else(String::new, |group| format!("{:.1} %", share(&group) * 100.0))
        };
        let of = |program: &str| own.iter().find(|group| group.program == program).copied();
        let set = own.iter().filter(|group| group.program.starts_with(DEFAULTS) && group.program != DEFAULTS);
        let fastest = set.max_by(|a, b| share(a).total_cmp(&share(b))).copied();
        table.row([
            format!("`{}`", entry.name),
            own.first().map_or_else(String::new, |group| digits(best(group) / 1e6)),
            percent(of(DEFAULTS)),
            percent(fastest),
            fastest.map_or_else(String::new, |group| group.program[DEFAULTS.len()..].trim().to_owned()),
            percent(of(OURS)),
        ]);
    }
    let mut text = String::new();
    if !table.is_empty() {
        text = table.markdown();
        if doubtful > 0 {
            let _ = writeln!(
                text,
                "\n{doubtful} of the runs have warnings in their results (a busy machine, packets delivered late)."
            );
        }
    }
    Section { name: "library", text, charts: vec![] }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sweep::{Measurement, Outcome};

    #[test]
    fn library_section_with_records_has_shares_and_the_best_setting() {
        let all = library_trials(&["metro".into(), "bufferbloat".into()], &[2, 8], 30, 1).unwrap();
        assert_eq!(all.len(), 2 * 4);
        let record = |trial: &Trial| {
            let goodput = match trial.id.program.as_str() {
                "globus-url-copy" => 24e6,
                "globus-url-copy -p 8" => 36e6,
                "ropewalk" => 48e6,
                _ => 30e6,
            };
            let measurement = Measurement { goodput, seconds: 30.0, segment: 1448, ..Measurement::default() };
            Record::new(trial, Outcome::Measured(measurement))
        };
        let records: Vec<Record> = all.iter().map(record).collect();
        let text = library_section(&records).text;
        assert!(text.contains("| `bufferbloat` | 48.3 | 49.7 % | 74.6 % | -p 8 | 99.4 % |"), "{text}");
        assert_eq!(library_trials(&[], &[1], 10, 1).unwrap().len(), SCENARIOS.len() * 3);
    }
}
