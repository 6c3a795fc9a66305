//! Tests the reaction to changes of a path, and that surplus streams after an increase are closed
//! gradually.

#![allow(clippy::unwrap_used)]
use ropewalk_models::sim::{Curve, Family, Outcome, Path, Scenario, World, run};
use ropewalk_tuning::tuner::{Chunk, Connections, Kind, Options, Reason, Work};

const KEPT: Connections = Connections::Kept;

fn path(bits: f64, rtt: f64) -> Path {
    Path { curve: Curve::Ito { capacity: bits / 8.0 / 1500.0, loss: 0.0 }, rtt, window: 200.0, ends: None }
}

fn tuned(scenario: &Scenario, noise: f64, seed: u64) -> Outcome {
    let options = Options { first_streams: 8, least_streams: 8, connections: KEPT, ..Options::default() };
    let mut tuner = Kind::Pilot.build(&options).unwrap();
    run(scenario, World { noise, seed, connections: KEPT, window_known: false }, tuner.as_mut())
}

fn is_change(reason: Reason) -> bool {
    matches!(reason, Reason::Changed { .. })
}

/// Time in seconds until the tuner reports a change, if the rate of the path halves at `at`.
fn noticed(at: usize, noise: f64, seed: u64) -> f64 {
    let phases = vec![(0, path(2e8, 0.05)), (at, path(1e8, 0.05))];
    let outcome = tuned(&Scenario { family: Family::Steps, phases, seconds: at + 100 }, noise, seed);
    let after = outcome.steps.iter().find(|step| step.start >= at as f64 && is_change(step.reason));
    after.map_or(f64::INFINITY, |step| step.start - at as f64)
}

/// The simulator reports every 1.5 s: the change must be noticed with the second report after the
/// one in which it happens.
#[test]
fn pilot_when_rate_halves_reports_change_soon() {
    for at in [60, 120, 200] {
        assert!(noticed(at, 0.0, 1) <= 5.0, "{at}: {}", noticed(at, 0.0, 1));
    }
    let mut all: Vec<f64> = (0..20).map(|seed| noticed(150, 0.05, seed)).collect();
    all.sort_by(f64::total_cmp);
    assert!(all[10] <= 6.0 && all[16] <= 9.0, "{all:?}");
}

#[test]
fn pilot_with_noise_seldom_reports_change() {
    let mut told = 0;
    for family in [Family::Paper100, Family::Random, Family::Lossy, Family::FairShare] {
        for seed in 0..10 {
            let steps = tuned(&family.draw(seed), 0.1, seed).steps;
            told += steps.iter().filter(|step| is_change(step.reason)).count();
        }
    }
    // Forty runs of ten minutes.
    assert!(told <= 20, "{told}");
}

#[test]
fn pilot_after_increase_closes_surplus_streams_gradually() {
    let scenario = Scenario { family: Family::Steps, phases: vec![(0, path(2e8, 0.04))], seconds: 60 };
    let steps = tuned(&scenario, 0.0, 1).steps;
    let top = steps.iter().position(|step| step.streams == 24).unwrap();
    let after = &steps[top..];
    let settled = after.iter().position(|step| step.streams < 12).unwrap();
    assert!(settled >= 2, "{after:?}");
    for pair in after[..=settled].windows(2) {
        assert!(f64::from(pair[1].streams) > 0.5 * f64::from(pair[0].streams), "{pair:?}");
        assert!(pair[1].seconds > 3.0, "{pair:?}");
    }
    // The reduction costs no rate.
    let least = after[..=settled].iter().map(|step| step.bytes / step.seconds).fold(f64::INFINITY, f64::min);
    assert!(least > 0.93 * 2.5e7, "{least}");
}

/// Number of decisions for which other flows on the path are the reason, and of all decisions, in a
/// few runs.
fn blamed(family: Family, noise: f64) -> (usize, usize) {
    let steps = (0..6).flat_map(|seed| tuned(&family.draw(seed), noise, seed).steps);
    steps.fold((0, 0), |(blamed, all), step| {
        (blamed + usize::from(matches!(step.reason, Reason::FairShare { .. })), all + 1)
    })
}

#[test]
fn pilot_on_empty_path_seldom_blames_other_flows() {
    for family in [Family::Paper100, Family::Paper20, Family::Random, Family::Ns2LongDeep, Family::SlowDisk] {
        for noise in [0.0, 0.05] {
            let (blamed, all) = blamed(family, noise);
            assert!(20 * blamed <= all, "{}, {noise}: {blamed} of {all}", family.name());
        }
    }
}

/// If more sessions carry less and files are small, the sessions' own cost is the reason. If files
/// are large, fewer sessions are tried once more: if these carry less as well, other flows have
/// started.
#[test]
fn pilot_when_more_sessions_carry_less_reduces_them() {
    let fourth = |size: u64, again: u64| {
        let options = Options { first_streams: 8, max_files: 128, connections: KEPT, ..Options::default() };
        let mut tuner = Kind::Pilot.build(&options).unwrap();
        tuner.first();
        let work = Some(Work { files: 10_000, bytes: 10_000 * size });
        let mut chunk = |streams, bytes| {
            let chunk = Chunk { rtt: Some(0.1), min_rtt: Some(0.1), work, ..Chunk::new(streams, bytes, 5.0) };
            tuner.chunk(&chunk).knobs.connections()
        };
        let second = chunk(8, 80_000_000);
        assert!(second > 8, "{second}");
        let third = chunk(second, 40_000_000);
        (second, third, chunk(third, again))
    };
    let (second, third, _) = fourth(8 << 10, 80_000_000);
    assert!(third <= second, "{second} {third}");
    let (second, third, next) = fourth(64 << 20, 15_000_000);
    assert!(third == 8 && next > second, "{second} {third} {next}");
    let (second, third, next) = fourth(64 << 20, 80_000_000);
    assert!(third == 8 && next < second, "{second} {third} {next}");
}
