//! How evenly two tuned transfers share a path, in virtual time. `bench/fair` measures the same in the lab.

#![allow(clippy::unwrap_used)]
use std::cell::Cell;

use ropewalk_tuning::sim::{Duel, Outcome, Rng, mean};
use ropewalk_tuning::tuner::{Connections, Fairness, Kind, Options};

const DUEL: Duel = Duel {
    capacity: 12.5e6,
    rtt: 0.05,
    second_rtt: 1.0,
    queue: 0.5,
    delay: 0.0,
    together: 90.0,
    noise: 0.0,
    seed: 0,
    connections: Connections::Kept,
};
const DELAYS: [f64; 4] = [0.0, 10.0, 30.0, 200.0];
const ROUND_TRIPS: [f64; 4] = [0.02, 0.05, 0.09, 0.15];

/// The slower's rate as a share of the faster's, 50 to 80 s after the second came.
fn evenness(duel: Duel) -> f64 {
    duel.run(|options| Kind::Pilot.build(options)).unwrap().evenness(50.0, 80.0)
}

#[test]
fn two_come_within_a_tenth_in_a_minute() {
    for rtt in ROUND_TRIPS {
        for delay in DELAYS {
            let even = evenness(Duel { rtt, delay, ..DUEL });
            assert!(even > 0.9, "{rtt} s, {delay} s: {even}");
        }
    }
}

/// Of 200 pairs whose beginnings, round trips, queues and noise are drawn, sorted.
fn drawn(first_seed: u64, delay: impl Fn(&mut Rng) -> f64) -> Vec<f64> {
    let mut all: Vec<f64> = (first_seed..first_seed + 200)
        .map(|seed| {
            let mut rng = Rng::new(seed);
            let (base, queue) = (rng.log_uniform(0.02, 0.12), rng.uniform(0.3, 1.5));
            let delay = delay(&mut rng);
            let noise = rng.uniform(0.01, 0.05);
            let rtt = base * (1.0 + queue);
            evenness(Duel { rtt, queue: queue / (1.0 + queue), delay, noise, seed, ..DUEL })
        })
        .collect();
    all.sort_by(f64::total_cmp);
    all
}

/// Each one's trials may fall into the other's.
#[test]
fn two_that_begin_at_once_become_alike() {
    let all = drawn(1, |rng| rng.uniform(0.0, 0.5));
    let (median, tenth, worst) = (all[100], all[20], all[0]);
    assert!(
        median > 0.94 && tenth > 0.8 && worst > 0.5,
        "median {median}, one in ten under {tenth}, worst {worst}"
    );
}

#[test]
fn two_become_alike_whenever_the_second_comes() {
    let all = drawn(1000, |rng| rng.uniform(2.0, 60.0));
    let (median, tenth, worst) = (all[100], all[20], all[0]);
    assert!(
        median > 0.94 && tenth > 0.8 && worst > 0.5,
        "median {median}, one in ten under {tenth}, worst {worst}"
    );
}

/// Noise of the path and, as much again, of each: streams that never change would have 96 and 93 %.
#[test]
fn noise_does_not_part_them() {
    for (noise, least, tenth) in [(0.05, 0.88, 0.7), (0.1, 0.84, 0.6)] {
        let mut all = Vec::new();
        for (rtt, delay) in ROUND_TRIPS.into_iter().flat_map(|rtt| DELAYS.map(|delay| (rtt, delay))) {
            all.extend((0..5).map(|seed| evenness(Duel { rtt, delay, noise, seed, ..DUEL })));
        }
        all.sort_by(f64::total_cmp);
        let (mean, low) = (mean(all.iter().copied()), all[all.len() / 10]);
        assert!(mean > least && low > tenth, "{noise}: {mean}, one in ten under {low}");
    }
}

/// With twice the round trip the same streams carry half as much.
#[test]
fn a_longer_round_trip_is_not_starved() {
    for rtt in ROUND_TRIPS {
        let even = evenness(Duel { rtt, second_rtt: 2.0, delay: 10.0, ..DUEL });
        assert!(even > 0.35, "{rtt} s: {even}");
    }
}

/// What a tuner with a stated share has of a path on which others always have `others` streams, in the second half of its time.
fn taken(share: f64, others: u32, duel: Duel) -> f64 {
    let first = Cell::new(true);
    let fought = duel.run(|options| {
        if first.replace(false) {
            return Kind::Fixed.build(&Options { first_streams: others, ..options.clone() });
        }
        let fairness = Fairness::Share(share);
        Kind::Pilot.build(&Options { fairness, least_streams: 1, ..options.clone() })
    });
    let late = |outcome: &Outcome| -> f64 {
        let steps = outcome.steps.iter().filter(|step| step.start >= duel.delay + duel.together / 2.0);
        let (bytes, time) = steps.fold((0.0, 0.0), |(b, t), step| (b + step.bytes, t + step.seconds));
        bytes / time
    };
    let fought = fought.unwrap();
    let [theirs, ours] = fought.outcomes();
    late(ours) / (late(theirs) + late(ours))
}

#[test]
fn a_stated_share_is_what_is_taken() {
    let mut far = Vec::new();
    for (noise, more) in [(0.0, 0.05), (0.03, 0.1)] {
        for (others, rtt) in [(10, 0.05), (20, 0.02), (40, 0.05), (40, 0.15), (64, 0.09)] {
            for share in [0.2, 0.3, 0.5, 0.7] {
                let duel = Duel { rtt, noise, delay: 10.0, together: 200.0, ..DUEL };
                let shares: Vec<f64> =
                    (0..3).map(|seed| taken(share, others, Duel { seed, ..duel })).collect();
                let mean = mean(shares.iter().copied());
                // A crowded path carries less the more streams it has, which is not worth while as early.
                if !(share - 0.17..share + more).contains(&mean) {
                    far.push(format!("{share} of {others}, {rtt} s, noise {noise}: {shares:.3?}"));
                }
            }
        }
    }
    assert!(far.is_empty(), "{far:#?}");
}
