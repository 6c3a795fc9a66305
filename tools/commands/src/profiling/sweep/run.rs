//! The runs: round by round, each round in an order of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ropewalk_client::{Cancel, EventSink, Location, Options, Pair, Remote};
use ropewalk_profiler::profile::{Outcome, Profile};
use ropewalk_profiler::sweep::{CurveRun, EndLoad, Sweeps};

use super::plan::Plan;
use crate::units;

/// A point that has failed this often is not tried again.
const FAILURES: usize = 2;
/// After this many consecutive failures, of any points, the sweep stops.
const IN_A_ROW: usize = 4;

/// Makes all runs, and reports after each. If it ends early, the results so far are reported.
pub(crate) fn run(
    plan: Plan,
    started: f64,
    transfer: &dyn Fn(&Pair, &Options) -> anyhow::Result<Profile>,
    cancel: &Cancel,
    tell: &dyn Fn(String),
) -> Sweeps {
    let Plan { mut sweeps, trials } = plan;
    sweeps.seed = seed();
    let mut random = fastrand::Rng::with_seed(sweeps.seed.into());
    // The load of each end in each run, by point.
    let mut loads: Vec<Vec<Vec<Vec<EndLoad>>>> =
        sweeps.curves.iter().map(|curve| vec![Vec::new(); curve.points.len()]).collect();
    let (mut made, mut in_a_row) = (0, 0);
    'rounds: for round in 1..=sweeps.rounds {
        let mut order: Vec<usize> = (0..trials.len()).collect();
        random.shuffle(&mut order);
        for at in order {
            let trial = &trials[at];
            if cancel.is_cancelled() {
                sweeps.broken_off = Some(broken_off("interrupted", made, &sweeps));
                break 'rounds;
            }
            let curve = &sweeps.curves[trial.curve];
            if curve.points[trial.point].failures().count() >= FAILURES {
                continue;
            }
            let result = transfer(&trial.pair, &trial.options);
            if cancel.is_cancelled() {
                // The run was interrupted.
                continue;
            }
            let (run, ends) = result_of(result, started, round);
            made += 1;
            let name = format!("{}={}", curve.knob.name(), curve.points[trial.point].name);
            let back = if curve.way == ropewalk_profiler::sweep::Way::Back { " back" } else { "" };
            let came = match &run.failed {
                Some(why) => format!("failed: {why}"),
                None => units::link_rate(run.bytes_per_second),
            };
            tell(format!("run {made} of {}, round {round}, {name}{back}: {came}", sweeps.runs_wanted));
            in_a_row = if run.failed.is_some() { in_a_row + 1 } else { 0 };
            sweeps.curves[trial.curve].points[trial.point].runs.push(run);
            loads[trial.curve][trial.point].push(ends);
            if in_a_row >= IN_A_ROW {
                sweeps.broken_off = Some(broken_off("one run after the other failed", made, &sweeps));
                break 'rounds;
            }
        }
    }
    if cancel.is_cancelled() && sweeps.broken_off.is_none() {
        sweeps.broken_off = Some(broken_off("interrupted", made, &sweeps));
    }
    for (curve, loads) in sweeps.curves.iter_mut().zip(&loads) {
        for (point, loads) in curve.points.iter_mut().zip(loads) {
            point.sum_up(loads);
        }
    }
    sweeps
}

fn result_of(result: anyhow::Result<Profile>, started: f64, round: u32) -> (CurveRun, Vec<EndLoad>) {
    let failed = |why: String| Some(why.chars().take(1000).collect());
    match result {
        Err(error) => {
            let failed = failed(crate::message(&error));
            let time = (crate::profiling::now() - started).max(0.0);
            (CurveRun { time, round, failed, ..CurveRun::default() }, Vec::new())
        }
        Ok(profile) => {
            let workload = &profile.workload;
            let failed = match &workload.outcome {
                Outcome::Failed(why) => failed(why.clone()),
                Outcome::Done if workload.bytes == 0 => failed("nothing was moved".to_owned()),
                Outcome::Done => None,
            };
            let run = CurveRun {
                time: profile.started - started,
                round,
                bytes: workload.bytes,
                seconds: workload.seconds,
                bytes_per_second: workload.rate(),
                outlier: false,
                failed,
            };
            (run, EndLoad::of(&profile))
        }
    }
}

fn broken_off(why: &str, made: usize, sweeps: &Sweeps) -> String {
    format!("{why} after {made} of {} runs", sweeps.runs_wanted)
}

/// The buffer sizes that a server refuses. If the server cannot be asked, its runs will fail.
pub(crate) fn refusals(
    pair: &Pair,
    sizes: &[u64],
    options: &Options,
    events: &Arc<dyn EventSink>,
    cancel: &Cancel,
) -> BTreeMap<u64, String> {
    let options = options.clone().with(|o| o.tuning.tcp_buffer = None);
    let mut refused = BTreeMap::new();
    for location in [&pair.source, &pair.destination] {
        let Location::Remote(url) = location else { continue };
        let Ok(mut remote) = Remote::connect_with(url, &options, events, cancel) else { continue };
        for &size in sizes {
            if let Err(error) = remote.set_buffer(size) {
                refused.entry(size).or_insert_with(|| error.to_string().chars().take(1000).collect());
            }
        }
        remote.quit();
    }
    refused
}

/// A seed from the clock: no order is better than another, but each sweep should have another one.
fn seed() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.subsec_nanos() ^ time.as_secs() as u32)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::{Cell, RefCell};

    use anyhow::anyhow;
    use ropewalk_client::parse_location;
    use ropewalk_profiler::profile::{Baselines, Workload};

    use super::super::{Design, Vary};
    use super::*;

    fn plan(given: &str, rounds: u32) -> Plan {
        let place = |text: &str| parse_location(text).unwrap();
        let pair = Pair { source: place("zero:1M"), destination: place("null:"), window: None };
        let knobs = Vary::expand(&[given.parse().unwrap()]).unwrap();
        let options = Options::default();
        let design = Design {
            knobs: &knobs,
            rounds,
            both: false,
            pair: &pair,
            kind: None,
            size: 1,
            options: &options,
        };
        Plan::new(&design, &Profile::default(), &Baselines::default(), &|_| BTreeMap::new())
    }

    fn moved(streams: f64) -> Profile {
        let workload = Workload { bytes: (streams * 1e6) as u64, seconds: 1.0, ..Workload::default() };
        Profile { workload, started: 5.0, ..Profile::default() }
    }

    fn streams(options: &Options) -> f64 {
        match options.tuning.streams {
            ropewalk_client::Auto::Set(streams) => streams.into(),
            ropewalk_client::Auto::Auto => 0.0,
        }
    }

    #[test]
    fn rounds_have_each_point_once_in_random_order() {
        let order = RefCell::new(Vec::new());
        let transfer = |_: &Pair, options: &Options| {
            order.borrow_mut().push(streams(options) as u32);
            Ok(moved(streams(options)))
        };
        let said = RefCell::new(Vec::new());
        let values: Vec<String> = (1..=8).map(|n| n.to_string()).collect();
        let sweeps =
            run(plan(&format!("streams={}", values.join(",")), 5), 2.0, &transfer, &Cancel::new(), &|text| {
                said.borrow_mut().push(text);
            });
        let order = order.into_inner();
        let mut rounds: Vec<Vec<u32>> = order.chunks(8).map(<[u32]>::to_vec).collect();
        // The same order of 40320 five times is no coincidence.
        assert!(rounds.windows(2).any(|two| two[0] != two[1]));
        for round in &mut rounds {
            round.sort_unstable();
            assert_eq!(*round, [1, 2, 3, 4, 5, 6, 7, 8]);
        }
        assert_eq!((sweeps.runs_made(), sweeps.runs_wanted, &sweeps.broken_off), (40, 40, &None));
        let points = &sweeps.curves[0].points;
        assert!(points.iter().all(|point| point.rate.runs == 5 && point.runs[4].round == 5));
        assert_eq!((points[2].rate.mean, points[2].runs[0].time), (3e6, 3.0));
        assert!(said.borrow()[39].starts_with("run 40 of 40, round 5, streams="), "{:?}", said.borrow());
    }

    #[test]
    fn point_that_fails_twice_is_skipped() {
        let transfer = |_: &Pair, options: &Options| {
            if streams(options) > 1.5 { Err(anyhow!("too many")) } else { Ok(moved(1.0)) }
        };
        let sweeps = run(plan("streams=1,2", 5), 0.0, &transfer, &Cancel::new(), &|_| ());
        let points = &sweeps.curves[0].points;
        assert_eq!((points[0].rate.runs, points[1].rate.runs, points[1].runs.len()), (5, 0, 2));
        assert_eq!((points[1].runs[0].failed.as_deref(), &sweeps.broken_off), (Some("too many"), &None));
    }

    #[test]
    fn interrupted_sweep_reports_its_results() {
        let transfer = |_: &Pair, _: &Options| Err(anyhow!("gone"));
        let gone = run(plan("streams=1,2,4,8,16", 9), 0.0, &transfer, &Cancel::new(), &|_| ());
        assert_eq!(gone.runs_made(), 4);
        assert!(gone.broken_off.unwrap().contains("failed after 4 of 45 runs"));

        let (cancel, made) = (Cancel::new(), Cell::new(0));
        let transfer = |_: &Pair, options: &Options| {
            made.set(made.get() + 1);
            if made.get() == 4 {
                cancel.cancel();
            }
            Ok(moved(streams(options)))
        };
        let stopped = run(plan("streams=1,2", 9), 0.0, &transfer, &cancel, &|_| ());
        // The interrupted run does not count.
        assert_eq!((stopped.runs_made(), made.get()), (3, 4));
        assert_eq!(stopped.broken_off.as_deref(), Some("interrupted after 3 of 18 runs"));
        assert!(stopped.curves[0].points.iter().any(|point| point.rate.runs > 0));
    }
}
