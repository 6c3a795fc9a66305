//! Two tuned transfers on one path, to measure how evenly they share it.

use super::families::{Family, Scenario};
use super::landscape::{Curve, PACKET, Path};
use super::run::{Outcome, Rival, World, run_shared};
use ropewalk_tuning::tuner::{Connections, Options, OptionsError, Tuner};

/// Two transfers of the same program over a link that one stream could fill.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Duel {
    /// Capacity of the link, in bytes per second.
    pub capacity: f64,
    /// Round-trip time of the first transfer including the queue that they cause, in seconds.
    pub rtt: f64,
    /// Round-trip time of the second transfer, as a multiple of the first one's.
    pub second_rtt: f64,
    /// The part of the round-trip times that is the queue.
    pub queue: f64,
    /// Start time of the second transfer, in seconds.
    pub delay: f64,
    /// Time during which both run, in seconds.
    pub together: f64,
    /// As in [`World`]: noise of the path, and the same amount in how the path is shared.
    pub noise: f64,
    pub seed: u64,
    pub connections: Connections,
}

/// The part of the queue that varies in the measurements of a second transfer that starts late.
const LATE: f64 = 0.3;

/// The data that each of the two transferred.
#[derive(Clone, Debug, PartialEq)]
pub struct Shares {
    delay: f64,
    outcomes: [Outcome; 2],
}

impl Duel {
    /// Runs the simulation. `build` makes the tuners.
    ///
    /// # Errors
    /// The options are not valid.
    pub fn run(
        &self,
        build: impl Fn(&Options) -> Result<Box<dyn Tuner>, OptionsError>,
    ) -> Result<Shares, OptionsError> {
        let curve = Curve::Ito { capacity: self.capacity / PACKET, loss: 0.0 };
        let path = Path { curve, rtt: self.rtt, window: 1e5, ends: None };
        let seconds = (self.delay + self.together).ceil() as usize;
        let scenario = Scenario { family: Family::Random, phases: vec![(0, path)], seconds };
        let options = |rtt| Options {
            // The client uses these numbers on such paths.
            first_streams: 8,
            least_streams: 8,
            rtt: Some(rtt),
            connections: self.connections,
            ..Options::default()
        };
        let mut first = build(&options(self.rtt))?;
        let mut second = build(&options(self.rtt * self.second_rtt))?;
        let world =
            World { noise: self.noise, seed: self.seed, connections: self.connections, window_known: false };
        // A transfer that starts late never sees the path without a queue. A queue takes a second
        // to grow.
        let seen = if self.delay > 1.0 { LATE } else { 1.0 };
        let rivals = [
            Rival { queue: self.queue, ..Rival::from(0.0) },
            Rival { start: self.delay, rtt: self.second_rtt, queue: seen * self.queue },
        ];
        let mut outcomes = run_shared(&scenario, world, &mut [first.as_mut(), second.as_mut()], &rivals);
        let nothing = || Outcome { delivered: 0.0, steps: Vec::new() };
        let second = outcomes.pop().unwrap_or_else(nothing);
        let first = outcomes.pop().unwrap_or_else(nothing);
        Ok(Shares { delay: self.delay, outcomes: [first, second] })
    }
}

impl Shares {
    /// The course of each transfer.
    pub fn outcomes(&self) -> &[Outcome; 2] {
        &self.outcomes
    }

    /// The rate of the slower transfer divided by that of the faster one, between `from` and `to`
    /// seconds after the start of the second.
    pub fn evenness(&self, from: f64, to: f64) -> f64 {
        let [a, b] = &self.outcomes;
        let [a, b] = [a, b].map(|outcome| carried(outcome, self.delay + from, self.delay + to));
        if a.max(b) > 0.0 { a.min(b) / a.max(b) } else { 0.0 }
    }
}

/// Bytes transferred between two times, assuming a constant rate within each step.
fn carried(outcome: &Outcome, from: f64, to: f64) -> f64 {
    let part = |step: &super::run::Step| {
        let inside = (step.start + step.seconds).min(to) - step.start.max(from);
        step.bytes * (inside / step.seconds.max(1e-9)).max(0.0)
    };
    outcome.steps.iter().map(part).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use ropewalk_tuning::tuner::Kind;

    const DUEL: Duel = Duel {
        capacity: 12.5e6,
        rtt: 0.05,
        second_rtt: 1.0,
        queue: 0.5,
        delay: 10.0,
        together: 50.0,
        noise: 0.0,
        seed: 0,
        connections: Connections::Kept,
    };

    fn fixed(duel: Duel) -> f64 {
        duel.run(|options| Kind::Fixed.build(options)).unwrap().evenness(20.0, 50.0)
    }

    #[test]
    fn evenness_of_equal_streams_is_one() {
        assert!(fixed(DUEL) > 0.99);
        let noisy = fixed(Duel { noise: 0.05, ..DUEL });
        assert!((0.9..0.9999).contains(&noisy), "{noisy}");
    }

    #[test]
    fn evenness_with_doubled_rtt_is_half() {
        let half = fixed(Duel { second_rtt: 2.0, ..DUEL });
        assert!((half - 0.5).abs() < 0.02, "{half}");
    }
}
