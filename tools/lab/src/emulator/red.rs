//! Random Early Detection: S. Floyd, V. Jacobson, "Random Early Detection Gateways for Congestion
//! Avoidance", 1993. It decides about each packet that arrives, from a moving average of the queue
//! length. The state belongs to one link; times are virtual.

use fastrand::Rng;

use super::config::Red;
use super::link::Nanos;

/// The decision about a packet that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Keep,
    Mark,
    Drop,
}

/// The average queue length and the number of packets since the last drop.
#[derive(Debug, Clone, Default)]
pub(super) struct RedState {
    average: f64,
    /// Packets that passed since the last drop or mark; `None` while the average is below `min`.
    passed: Option<u64>,
}

impl RedState {
    pub(super) fn average(&self) -> f64 {
        self.average
    }

    /// Decides about a packet that arrives when `waiting` packets are in the queue. The link has
    /// been idle for `idle` (0 if it is busy); `slot` is the time that the link takes for such a
    /// packet.
    pub(super) fn arrive(
        &mut self,
        red: &Red,
        waiting: usize,
        idle: Nanos,
        slot: Nanos,
        ecn: bool,
        rng: &mut Rng,
    ) -> Verdict {
        if idle > 0 {
            // The average decays as if `missed` packets had arrived at an empty queue.
            let missed = idle as f64 / slot.max(1) as f64;
            self.average *= (1.0 - red.weight).powf(missed);
        }
        self.average += red.weight * (waiting as f64 - self.average);

        let top = if red.gentle { 2.0 * red.max } else { red.max };
        if self.average < red.min {
            self.passed = None;
            return Verdict::Keep;
        }
        if self.average >= top {
            self.passed = Some(0);
            return Verdict::Drop;
        }
        let base = if self.average < red.max {
            red.max_p * (self.average - red.min) / (red.max - red.min)
        } else {
            red.max_p + (1.0 - red.max_p) * (self.average - red.max) / red.max
        };
        let passed = self.passed.map_or(0, |passed| passed + 1);
        self.passed = Some(passed);
        if rng.f64() >= spread(base, passed as f64, red.wait) {
            return Verdict::Keep;
        }
        self.passed = Some(0);
        // RFC 3168 section 7: above the upper threshold packets are dropped even if they are
        // ECN-capable.
        if red.ecn && ecn && self.average < red.max { Verdict::Mark } else { Verdict::Drop }
    }
}

/// Spaces drops evenly: for the base probability p the gap between two drops is uniform in 1 to 1/p
/// packets, or with `wait` in 1/p to 2/p.
fn spread(p: f64, passed: f64, wait: bool) -> f64 {
    let done = passed * p;
    match wait {
        false if done < 1.0 => p / (1.0 - done),
        true if done < 1.0 => 0.0,
        true if done < 2.0 => p / (2.0 - done),
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RED: Red = Red {
        min: 25.0,
        max: 75.0,
        max_p: 0.1,
        weight: 0.002,
        gentle: true,
        wait: false,
        ecn: false,
        limit: 200,
    };

    fn settle(red: &Red, waiting: usize) -> (RedState, Rng) {
        let mut state = RedState { average: waiting as f64, passed: None };
        let mut rng = Rng::with_seed(3);
        for _ in 0..100 {
            state.arrive(red, waiting, 0, 1, false, &mut rng);
        }
        (state, rng)
    }

    fn gaps(red: &Red, waiting: usize) -> Vec<u64> {
        let (mut state, mut rng) = settle(red, waiting);
        let (mut gaps, mut gap) = (Vec::new(), 0);
        for _ in 0..200_000 {
            gap += 1;
            if state.arrive(red, waiting, 0, 1, false, &mut rng) == Verdict::Drop {
                gaps.push(gap);
                gap = 0;
            }
        }
        gaps
    }

    #[test]
    fn red_average_follows_the_queue_with_its_weight() {
        let (mut state, mut rng) = (RedState::default(), Rng::with_seed(1));
        for n in 1..=2000 {
            state.arrive(&RED, 20, 0, 1, false, &mut rng);
            let expected = 20.0 * (1.0 - (1.0 - RED.weight).powi(n));
            assert!((state.average - expected).abs() < 1e-9);
        }
        // An idle time of 500 slots has the weight of 500 packets that arrived at an empty queue.
        let before = state.average;
        state.arrive(&RED, 0, 500_000, 1000, false, &mut rng);
        assert!((state.average - before * (1.0 - RED.weight).powi(501)).abs() < 1e-9);
    }

    #[test]
    fn red_below_min_drops_none_and_above_the_top_all() {
        assert!(gaps(&RED, 24).is_empty());
        assert!(gaps(&RED, 151).iter().all(|gap| *gap == 1));
        assert!(gaps(&Red { gentle: false, ..RED }, 76).iter().all(|gap| *gap == 1));
    }

    #[test]
    fn red_between_min_and_max_has_uniform_gaps_between_drops() {
        // At half way between `min` and `max` the base probability is 0.05, so gaps are 1..=20, and
        // with `wait` 20..=40.
        for (wait, low, high, mean) in [(false, 1, 20, 10.5), (true, 20, 40, 30.5)] {
            let gaps = gaps(&Red { wait, ..RED }, 50);
            assert!(gaps[1..].iter().all(|gap| (low..=high + 1).contains(gap)), "{:?}", &gaps[..20]);
            let found = gaps.iter().sum::<u64>() as f64 / gaps.len() as f64;
            assert!((found - mean).abs() < 1.0, "{wait}: {found}");
        }
        // With `gentle`, an average of 112.5 is half way from 0.1 to 1.
        let gentle = gaps(&RED, 112);
        let rate = 200_000.0 / gentle.len() as f64;
        assert!(rate < 2.0, "{rate}");
    }

    #[test]
    fn red_with_ecn_marks_only_below_max() {
        let red = Red { ecn: true, ..RED };
        for (waiting, ecn, expected) in
            [(50, true, Verdict::Mark), (50, false, Verdict::Drop), (100, true, Verdict::Drop)]
        {
            let (mut state, mut rng) = settle(&red, waiting);
            let verdicts: Vec<Verdict> =
                (0..1000).map(|_| state.arrive(&red, waiting, 0, 1, ecn, &mut rng)).collect();
            assert!(verdicts.contains(&expected), "{waiting} {ecn}");
            assert!(verdicts.iter().all(|v| [Verdict::Keep, expected].contains(v)), "{waiting} {ecn}");
        }
    }
}
