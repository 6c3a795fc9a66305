//! Two tuned transfers on one path: how evenly they share it.

use super::families::{Family, Scenario};
use super::landscape::{Curve, PACKET, Path};
use super::run::{Outcome, Rival, World, run_shared};
use crate::tuner::{Connections, Options, OptionsError, Tuner};

/// Two transfers of the same program over a link that one stream would fill.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Duel {
    /// Of the link, in bytes a second.
    pub capacity: f64,
    /// Round trip of the first with the queue that they make, in seconds.
    pub rtt: f64,
    /// Round trip of the second, in those of the first.
    pub second_rtt: f64,
    /// Part of these that is the queue.
    pub queue: f64,
    /// When the second comes, in seconds.
    pub delay: f64,
    /// How long both run, in seconds.
    pub together: f64,
    /// As of [`World`]; the path's, and as much again of how it is shared.
    pub noise: f64,
    pub seed: u64,
    pub connections: Connections,
}

/// Of the queue, what a late second sees come and go.
const LATE: f64 = 0.3;

/// What each of the two carried.
#[derive(Clone, Debug, PartialEq)]
pub struct Shares {
    delay: f64,
    outcomes: [Outcome; 2],
}

impl Duel {
    /// Runs it. `build` makes the tuners.
    ///
    /// # Errors
    /// When the options make no sense to the tuner.
    pub fn run(
        &self,
        build: impl Fn(&Options) -> Result<Box<dyn Tuner>, OptionsError>,
    ) -> Result<Shares, OptionsError> {
        let curve = Curve::Ito { capacity: self.capacity / PACKET, loss: 0.0 };
        let path = Path { curve, rtt: self.rtt, window: 1e5, ends: None };
        let seconds = (self.delay + self.together).ceil() as usize;
        let scenario = Scenario { family: Family::Random, phases: vec![(0, path)], seconds };
        let options = |rtt| Options {
            // As the client does over such paths.
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
        // Who comes late never sees the path without a queue; it takes a second to grow.
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
    /// What each did.
    pub fn outcomes(&self) -> &[Outcome; 2] {
        &self.outcomes
    }

    /// The rate of the slower as a share of the faster's, from so many seconds after the second came to so many.
    pub fn evenness(&self, from: f64, to: f64) -> f64 {
        let [a, b] = &self.outcomes;
        let [a, b] = [a, b].map(|outcome| carried(outcome, self.delay + from, self.delay + to));
        if a.max(b) > 0.0 { a.min(b) / a.max(b) } else { 0.0 }
    }
}

/// Bytes between two times, each step taken as even.
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
    use crate::tuner::Kind;

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
    fn equal_streams_share_evenly() {
        assert!(fixed(DUEL) > 0.99);
        let noisy = fixed(Duel { noise: 0.05, ..DUEL });
        assert!((0.9..0.9999).contains(&noisy), "{noisy}");
    }

    #[test]
    fn a_longer_round_trip_carries_less() {
        let half = fixed(Duel { second_rtt: 2.0, ..DUEL });
        assert!((half - 0.5).abs() < 0.02, "{half}");
    }
}
