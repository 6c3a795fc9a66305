//! Compares the decisions of tuners on simulated paths with snapshots. `UPDATE_SNAPSHOTS=1`
//! rewrites the snapshots.

#![allow(clippy::unwrap_used)]
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use ropewalk_models::sim::{Family, MOST, Outcome, World, oracle, run};
use ropewalk_plot::{Axis, Chart, Panel, Series, Unit};
use ropewalk_tuning::tuner::{Connections, Kind, Options};

const SEED: u64 = 1;

fn tuned(kind: Kind, family: Family, noise: f64, connections: Connections) -> Outcome {
    let scenario = family.draw(SEED);
    let options = Options { rtt: Some(scenario.phases[0].1.rtt), connections, ..Options::default() };
    let mut tuner = kind.build(&options).unwrap();
    run(&scenario, World { noise, seed: SEED, connections, window_known: true }, tuner.as_mut())
}

fn trajectory(kind: Kind, family: Family, noise: f64, connections: Connections) -> String {
    let scenario = family.draw(SEED);
    let outcome = tuned(kind, family, noise, connections);
    let mut text = format!(
        "{} on {}, noise {noise}, connections {connections:?}: regret {:.3}\n",
        kind.name(),
        family.name(),
        1.0 - outcome.delivered / oracle(&scenario)
    );
    for step in &outcome.steps {
        let middle = (step.start + 0.5 * step.seconds) as usize;
        let path = &scenario.phases[scenario.phase(middle)].1;
        let share = path.goodput(step.streams) / path.best(128).1;
        let bar = "#".repeat((30.0 * share).round() as usize);
        writeln!(text, "{:5.0} s {:3} streams |{bar:<30}| {}", step.start, step.streams, step.reason.name())
            .unwrap();
    }
    text
}

fn check(name: &str, text: &str) {
    compare(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name), text);
}

fn compare(path: &Path, text: &str) {
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(path, text).unwrap();
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    assert!(text == expected, "{} differs; now it is\n{text}", path.display());
}

#[test]
fn apt_trajectories_match_snapshots() {
    check("apt-paper100.txt", &trajectory(Kind::Apt, Family::Paper100, 0.0, Connections::Fresh));
    check("apt-steps.txt", &trajectory(Kind::Apt, Family::Steps, 0.05, Connections::Fresh));
}

#[test]
fn track_trajectory_matches_snapshot() {
    check("track-paper100.txt", &trajectory(Kind::Track, Family::Paper100, 0.0, Connections::Fresh));
}

#[test]
fn pilot_trajectories_match_snapshots() {
    for family in
        [Family::Paper100, Family::Ns2Long, Family::Lossy, Family::FairShare, Family::Steps, Family::Cross]
    {
        let name = format!("pilot-{}.txt", family.name());
        check(&name, &trajectory(Kind::Pilot, family, 0.05, Connections::Fresh));
    }
    check("pilot-kept-paper100.txt", &trajectory(Kind::Pilot, Family::Paper100, 0.0, Connections::Kept));
    check("pilot-slow-disk.txt", &trajectory(Kind::Pilot, Family::SlowDisk, 0.0, Connections::Fresh));
}

/// Streams over time, as corners of a staircase.
fn staircase(outcome: &Outcome) -> Vec<(f64, f64)> {
    let corners = |step: &ropewalk_models::sim::Step| {
        [step.start, step.start + step.seconds].map(|time| (time, f64::from(step.streams)))
    };
    outcome.steps.iter().flat_map(corners).collect()
}

/// The plot of docs/evaluation/tuning.md.
#[test]
fn trajectories_match_plot() {
    let mut chart = Chart::new("Streams over time in the simulator", Axis::time()).note("noise 0.05, seed 1");
    for family in [Family::Paper100, Family::Lossy, Family::FairShare, Family::Steps, Family::Cross] {
        let scenario = family.draw(SEED);
        let ends = scenario.phases.iter().skip(1).map(|phase| phase.0).chain([scenario.seconds]);
        let best: Vec<(f64, f64)> = scenario
            .phases
            .iter()
            .zip(ends)
            .flat_map(|((start, path), end)| {
                let best = f64::from(path.best(MOST).0);
                [(*start as f64, best), (end as f64, best)]
            })
            .collect();
        let mut panel = Panel::new(Axis::linear(format!("streams, {}", family.name()), Unit::Plain))
            .series(Series::line("best", best).colour(0).dashed());
        let tuners = [
            ("GridFTP-APT", Kind::Apt, Connections::Fresh),
            ("pilot", Kind::Pilot, Connections::Fresh),
            ("pilot, kept", Kind::Pilot, Connections::Kept),
        ];
        for (colour, (name, kind, connections)) in tuners.into_iter().enumerate() {
            let line = staircase(&tuned(kind, family, 0.05, connections));
            panel = panel.series(Series::line(name, line).colour(colour + 1));
        }
        chart = chart.panel(panel);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plots/trajectories.svg");
    compare(&path, &chart.to_svg().unwrap());
}
