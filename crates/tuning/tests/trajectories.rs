//! What tuners do on simulated paths, step by step. `UPDATE_SNAPSHOTS=1` writes the files anew.

#![allow(clippy::unwrap_used)]
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use ropewalk_tuning::sim::{Family, World, oracle, run};
use ropewalk_tuning::tuner::{Connections, Kind, Options};

fn trajectory(kind: Kind, family: Family, noise: f64, connections: Connections) -> String {
    let seed = 1;
    let scenario = family.draw(seed);
    let options = Options { rtt: Some(scenario.phases[0].1.rtt), connections, ..Options::default() };
    let mut tuner = kind.build(&options).unwrap();
    let outcome = run(&scenario, World { noise, seed, connections, window_known: true }, tuner.as_mut());
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
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "{} differs; now it is\n{text}", path.display());
}

#[test]
fn apt() {
    check("apt-paper100.txt", &trajectory(Kind::Apt, Family::Paper100, 0.0, Connections::Fresh));
    check("apt-steps.txt", &trajectory(Kind::Apt, Family::Steps, 0.05, Connections::Fresh));
}

#[test]
fn track() {
    check("track-paper100.txt", &trajectory(Kind::Track, Family::Paper100, 0.0, Connections::Fresh));
}

#[test]
fn pilot() {
    for family in
        [Family::Paper100, Family::Ns2Long, Family::Lossy, Family::FairShare, Family::Steps, Family::Cross]
    {
        let name = format!("pilot-{}.txt", family.name());
        check(&name, &trajectory(Kind::Pilot, family, 0.05, Connections::Fresh));
    }
    check("pilot-kept-paper100.txt", &trajectory(Kind::Pilot, Family::Paper100, 0.0, Connections::Kept));
    check("pilot-slow-disk.txt", &trajectory(Kind::Pilot, Family::SlowDisk, 0.0, Connections::Fresh));
}
