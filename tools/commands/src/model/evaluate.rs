//! `ropewalk model evaluate`: tuners on the simulator's scenarios.

use std::io::{self, Write};

use clap::Args;
use ropewalk_models::sim::{Candidate, EVALUATION_SEED, Family, Report, Setup, evaluate};
use serde_json::{Value, json};

use super::refused;
use crate::exit::Exit;

/// Compare tuners on simulated scenarios. Regret is 1 - delivered / best possible. Times are
/// seconds until the streams in use carry 95 % of the best rate; streams are relative to the fewest
/// that carry 99 % of it. docs/evaluation/tuning.md explains the scenarios.
#[derive(Debug, Args)]
pub(super) struct Evaluate {
    /// Tuners to compare: fixed-N, apt, apt-golden, apt-long, climb, track, pilot, each also with
    /// -window (window unknown), +kept (connections stay open), +hint (capacity given, 30 % wrong)
    /// or +memory (of an earlier transfer)
    #[arg(value_parser = candidate, default_values = ["fixed-16", "apt", "apt-long", "track", "pilot", "pilot+kept"])]
    tuners: Vec<Candidate>,
    /// Number of scenarios drawn from each family
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    draws: u32,
    /// The first seed
    #[arg(long, default_value_t = EVALUATION_SEED, value_name = "SEED")]
    seed: u64,
    /// Noise of a ten-second rate
    #[arg(long, value_delimiter = ',', default_value = "0,0.05,0.1", value_name = "SIGMA")]
    noise: Vec<f64>,
    /// One JSON object on a line instead of tables
    #[arg(long)]
    json: bool,
}

fn candidate(name: &str) -> Result<Candidate, String> {
    Candidate::from_name(name).ok_or_else(|| format!("no tuner is called {name:?}"))
}

impl Evaluate {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let families = [&Family::NETWORK[..], &Family::APART].concat();
        for &noise in &self.noise {
            if !(0.0..=1.0).contains(&noise) {
                return Err(refused(format!("noise is {noise}: expected 0 to 1")));
            }
            let setup = Setup {
                families: families.clone(),
                first_seed: self.seed,
                draws: u64::from(self.draws),
                noise,
            };
            let reports = evaluate(&setup, &self.tuners).map_err(refused)?;
            let mut out = io::stdout().lock();
            if self.json {
                for report in &reports {
                    writeln!(out, "{}", as_json(report, &setup))?;
                }
            } else {
                out.write_all(table(&reports, noise).as_bytes())?;
            }
        }
        Ok(Exit::Done)
    }
}

fn as_json(report: &Report, setup: &Setup) -> Value {
    let families: Vec<Value> = report
        .rows
        .iter()
        .map(|row| {
            json!({
                "family": row.family.name(), "regret": row.regret, "regret_p90": row.regret_p90,
                "seconds_to_95": row.seconds_to_95, "settled_badly": row.badly, "streams": row.streams,
            })
        })
        .collect();
    json!({
        "tuner": report.name, "noise": setup.noise, "seed": setup.first_seed, "draws": setup.draws,
        "regret": report.regret(), "families": families,
    })
}

fn table(reports: &[Report], noise: f64) -> String {
    const WIDTH: usize = 30;
    let mut text = String::new();
    let mut cells = |head: &str, cells: Vec<String>| {
        let row: String = cells.iter().map(|cell| format!("{cell:>WIDTH$}")).collect();
        text += &format!("{head:<16}{row}\n");
    };
    cells(&format!("noise {noise}"), reports.iter().map(|report| report.name.clone()).collect());
    cells("", reports.iter().map(|_| "regret/p90  95%  bad streams".into()).collect());
    let families = reports.first().map_or(0, |report| report.rows.len());
    for index in 0..families {
        let rows = || reports.iter().map(|report| &report.rows[index]);
        let head = rows().next().map_or("", |row| row.family.name());
        let figures = |row: &ropewalk_models::sim::Row| {
            format!(
                "{:.3}/{:.3} {:3.0}s {:3.0}% {:5.2}",
                row.regret,
                row.regret_p90,
                row.seconds_to_95,
                100.0 * row.badly,
                row.streams
            )
        };
        cells(head, rows().map(figures).collect());
    }
    cells(
        "mean of network",
        reports.iter().map(|report| format!("{:.4}{:20}", report.regret(), "")).collect(),
    );
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidate_suffixes_are_parsed() {
        for name in ["fixed-16", "apt", "pilot+kept", "pilot-window+kept", "track+hint", "pilot+memory"] {
            assert_eq!(candidate(name).map(|candidate| candidate.name), Ok(name.to_owned()));
        }
        for name in ["fixed-0", "fixed-x", "best", "+kept"] {
            assert!(candidate(name).is_err(), "{name}");
        }
    }
}
