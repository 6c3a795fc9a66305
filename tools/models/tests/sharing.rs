//! Measures how evenly two tuned transfers share a path, in virtual time. `bench/fair` measures the
//! same in the lab.

#![allow(clippy::unwrap_used)]
use std::cell::Cell;

use ropewalk_models::sim::{Duel, Outcome, Rng, mean};
use ropewalk_tuning::tuner::{
    Chunk, Connections, Decision, Fairness, Kind, Options, Progress, Reason, Tuner,
};

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

/// The rate of the slower transfer divided by that of the faster one, 50 to 80 s after the start of
/// the second.
fn evenness(duel: Duel) -> f64 {
    duel.run(|options| Kind::Pilot.build(options)).unwrap().evenness(50.0, 80.0)
}

#[test]
fn pilots_share_within_a_tenth_in_a_minute() {
    for rtt in ROUND_TRIPS {
        for delay in DELAYS {
            let even = evenness(Duel { rtt, delay, ..DUEL });
            assert!(even > 0.9, "{rtt} s, {delay} s: {even}");
        }
    }
}

/// The sorted evenness of 200 pairs with random start times, round-trip times, queues and noise.
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

/// The trials of each transfer may coincide with those of the other.
#[test]
fn pilots_that_start_together_share_evenly() {
    let all = drawn(1, |rng| rng.uniform(0.0, 0.5));
    let (median, tenth, worst) = (all[100], all[20], all[0]);
    assert!(
        median > 0.94 && tenth > 0.8 && worst > 0.5,
        "median {median}, one in ten under {tenth}, worst {worst}"
    );
}

#[test]
fn pilots_with_any_delay_share_evenly() {
    let all = drawn(1000, |rng| rng.uniform(2.0, 60.0));
    let (median, tenth, worst) = (all[100], all[20], all[0]);
    assert!(
        median > 0.94 && tenth > 0.8 && worst > 0.5,
        "median {median}, one in ten under {tenth}, worst {worst}"
    );
}

/// Noise of the path and, in the same amount, of each transfer: with constant numbers of streams
/// the results would be 96 and 93 %.
#[test]
fn pilots_with_noise_share_evenly() {
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

/// With twice the round-trip time, the same streams carry half as much.
#[test]
fn pilot_with_longer_rtt_is_not_starved() {
    for rtt in ROUND_TRIPS {
        let even = evenness(Duel { rtt, second_rtt: 2.0, delay: 10.0, ..DUEL });
        assert!(even > 0.35, "{rtt} s: {even}");
    }
}

/// The share of a tuner with a stated share on a path with a constant number of `others` streams,
/// in the second half of its time.
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

/// The share that a crowded path leaves room for beside other streams: twelve streams per packet of
/// the window that all streams then have.
fn room(others: u32, packets: f64) -> f64 {
    let others = f64::from(others);
    let ours = ((others * others + 48.0 * packets).sqrt() - others) / 2.0;
    ours / (ours + others)
}

#[test]
fn pilot_with_stated_share_takes_it() {
    let mut far = Vec::new();
    let paths = [
        (10, 0.05, 12.5e6),
        (20, 0.02, 12.5e6),
        (40, 0.05, 12.5e6),
        (40, 0.15, 12.5e6),
        (64, 0.09, 12.5e6),
        (40, 0.05, 125e6),
        (40, 0.05, 1.25e9),
    ];
    for (noise, more) in [(0.0, 0.05), (0.03, 0.1)] {
        for (others, rtt, capacity) in paths {
            for share in [0.05, 0.2, 0.3, 0.5, 0.7] {
                let duel = Duel { rtt, noise, capacity, delay: 10.0, together: 200.0, ..DUEL };
                let shares: Vec<f64> =
                    (0..3).map(|seed| taken(share, others, Duel { seed, ..duel })).collect();
                let mean = mean(shares.iter().copied());
                // On a crowded path more streams reduce the total rate, so that adding them stops
                // earlier; and one stream is the minimum.
                let least = share.min(room(others, capacity * rtt / 1500.0));
                let most = share.max(1.0 / f64::from(others + 1));
                if !((0.5 * least).max(least - 0.17)..most + more).contains(&mean) {
                    far.push(format!(
                        "{share} of {others}, {rtt} s, {capacity}, noise {noise}: {shares:.3?}"
                    ));
                }
            }
        }
    }
    assert!(far.is_empty(), "{far:#?}");
}

/// Each transfer counts the other's streams as those to have a share beside: without a limit, both
/// would add streams for ever.
#[test]
fn pilots_with_stated_shares_limit_their_streams() {
    for share in [0.3, 0.5, 0.9] {
        let duel = Duel { delay: 10.0, together: 200.0, ..DUEL };
        let fought = duel.run(|options| {
            let fairness = Fairness::Share(share);
            Kind::Pilot.build(&Options { fairness, least_streams: 1, ..options.clone() })
        });
        let fought = fought.unwrap();
        for outcome in fought.outcomes() {
            let last = outcome.steps.last().unwrap().streams;
            assert!(last <= 80, "{share}: {last} streams");
        }
        let even = fought.evenness(100.0, 200.0);
        assert!(even > 0.4, "{share}: {even}");
    }
}

/// A transfer with forty streams, and with ten after some time.
#[derive(Debug)]
struct Leaving(f64);

impl Tuner for Leaving {
    fn first(&mut self) -> Decision {
        let streams = if self.0 < 150.0 { 40 } else { 10 };
        let fixed = Options { first_streams: streams, ..Options::default() };
        Decision { bytes: 1 << 40, ..Kind::Fixed.build(&fixed).unwrap().first() }
    }

    fn chunk(&mut self, chunk: &Chunk) -> Decision {
        self.0 += chunk.seconds;
        self.first()
    }

    fn progress(&mut self, progress: &Progress) -> Option<Reason> {
        (progress.elapsed > 10.0).then_some(Reason::KnowsEnough)
    }
}

#[test]
fn pilot_with_stated_share_adapts_when_others_end() {
    let first = Cell::new(true);
    let duel = Duel { together: 300.0, noise: 0.01, ..DUEL };
    let fought = duel.run(|options| {
        if first.replace(false) {
            return Ok(Box::new(Leaving(0.0)));
        }
        let fairness = Fairness::Share(0.3);
        Kind::Pilot.build(&Options { fairness, least_streams: 1, ..options.clone() })
    });
    let steps = &fought.unwrap().outcomes()[1].steps.clone();
    let streams = |at: f64| steps.iter().rfind(|step| step.start < at).unwrap().streams;
    let (before, after) = (streams(140.0), streams(290.0));
    assert!((9..=26).contains(&before), "{before} beside 40");
    assert!((2..=8).contains(&after), "{after} beside 10");
}
