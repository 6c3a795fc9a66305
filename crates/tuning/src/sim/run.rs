//! Runs tuners over a scenario in virtual time.

use super::families::{MOST, Scenario};
use super::landscape::{PACKET, Path};
use super::rng::Rng;
use crate::tuner::{Chunk, Connections, Decision, Pressure, Progress, Reason, Tuner};

/// Seconds between progress reports.
const MARK: f64 = 1.5;
/// Less than this share of what the path carries leaves no queue.
const FILLING: f64 = 0.8;
/// Nothing lasts shorter than this, so that no chunk size can hold up time.
const LEAST_STEP: f64 = 1e-6;

/// How the simulated world behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct World {
    /// Standard deviation of the logarithm of a ten-second mean rate; white, second by second.
    pub noise: f64,
    pub seed: u64,
    pub connections: Connections,
    /// Whether the tuner is told the window.
    pub window_known: bool,
}

/// A chunk as it went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub start: f64,
    pub seconds: f64,
    pub streams: u32,
    pub bytes: f64,
    pub reason: Reason,
}

/// How a run went.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub delivered: f64,
    pub steps: Vec<Step>,
}

/// A transfer among those that share a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rival {
    /// When it begins, in seconds.
    pub start: f64,
    /// Its round trip, in those of the path. Windows are the same on all streams, so that a longer one carries less.
    pub rtt: f64,
    /// Part of the round trip that is a queue: the least one is without.
    pub queue: f64,
}

impl Rival {
    /// On the path itself.
    pub fn from(start: f64) -> Self {
        Self { start, rtt: 1.0, queue: 0.0 }
    }
}

/// One transfer among those that share the path.
struct Actor<'a> {
    tuner: &'a mut dyn Tuner,
    decision: Decision,
    start: f64,
    /// In round trips of the path.
    rtt: f64,
    queue: f64,
    /// How its share is off what its streams would have.
    luck: f64,
    left: f64,
    sent: f64,
    /// What the path would have carried meanwhile.
    could: f64,
    /// Streams and packets in flight of each when the chunk began, where they are kept.
    before: Option<(u32, f64)>,
    mark_at: f64,
    mark_bytes: f64,
    loss: f64,
    outcome: Outcome,
}

/// Runs one tuner.
pub fn run(scenario: &Scenario, world: World, tuner: &mut dyn Tuner) -> Outcome {
    let mut outcomes = run_shared(scenario, world, &mut [tuner], &[Rival::from(0.0)]);
    outcomes.pop().unwrap_or(Outcome { delivered: 0.0, steps: Vec::new() })
}

/// Runs several over one path; streams share it evenly but for the noise, which is of the path and of each.
pub fn run_shared(
    scenario: &Scenario,
    world: World,
    tuners: &mut [&mut dyn Tuner],
    rivals: &[Rival],
) -> Vec<Outcome> {
    let end = scenario.seconds as f64;
    let mut rng = Rng::new(world.seed ^ 0x5eed_0000_0000);
    let sigma = world.noise * 10f64.sqrt();
    let mut actors: Vec<Actor<'_>> =
        tuners.iter_mut().zip(rivals).map(|(tuner, &rival)| Actor::new(&mut **tuner, rival)).collect();
    let mut shares = Rng::new(world.seed ^ 0x5eed_0000_0001);
    let mut time = 0.0;
    let (mut second, mut noise) = (usize::MAX, 1.0);
    while time < end {
        let now = (time + 1e-9) as usize;
        if now != second {
            second = now;
            noise = if sigma > 0.0 { rng.lognormal(sigma) } else { 1.0 };
            for actor in actors.iter_mut().filter(|_| sigma > 0.0) {
                actor.luck = shares.lognormal(sigma);
            }
        }
        let path = &scenario.phases[scenario.phase(second)].1;
        let total: u32 = actors.iter().filter(|actor| actor.start <= time).map(|actor| actor.streams()).sum();
        let goodput = if total > 0 { path.goodput(total) } else { 0.0 };
        let claims: f64 = actors.iter().filter(|actor| actor.start <= time).map(Actor::claim).sum();
        let mut step = (second as f64 + 1.0 - time).min(end - time);
        let mut rates = [(0.0, 0.0); 8];
        for (actor, (rate, could)) in actors.iter().zip(&mut rates) {
            if actor.start > time {
                step = step.min(actor.start - time);
                continue;
            }
            let full = noise * goodput * actor.claim() / claims;
            let (now, until) = actor.rate(path, time, full, world.connections);
            (*rate, *could) = (now, full);
            step = step.min(until - time).min(actor.mark_at - time);
            if now > 0.0 {
                step = step.min(actor.left / now);
            }
        }
        let step = step.max(LEAST_STEP);
        time += step;
        for (actor, (rate, could)) in actors.iter_mut().zip(rates) {
            if actor.start < time {
                actor.could += step * could;
                actor.advance(path, world, time, step * rate, total);
            }
        }
    }
    actors.into_iter().map(|actor| actor.finish(end)).collect()
}

impl<'a> Actor<'a> {
    fn new(tuner: &'a mut dyn Tuner, Rival { start, rtt, queue }: Rival) -> Self {
        let decision = tuner.first();
        let outcome = Outcome { delivered: 0.0, steps: Vec::new() };
        Self {
            tuner,
            decision,
            start,
            rtt,
            queue,
            luck: 1.0,
            left: decision.bytes as f64,
            sent: 0.0,
            could: 0.0,
            before: None,
            mark_at: start + MARK,
            mark_bytes: 0.0,
            loss: 0.0,
            outcome,
        }
    }

    fn streams(&self) -> u32 {
        self.decision.knobs.connections()
    }

    /// What it has of the path, beside the others.
    fn claim(&self) -> f64 {
        f64::from(self.streams()) * self.luck / self.rtt
    }

    /// Its rate now, when the path would give it `full`, and until when that holds.
    fn rate(&self, path: &Path, time: f64, full: f64, connections: Connections) -> (f64, f64) {
        let rtt = self.rtt * path.rtt;
        let streams = f64::from(self.streams());
        let age = time - self.start + 1e-9;
        let kept = self.before.filter(|_| connections == Connections::Kept);
        // One round trip for the request, one for the handshake.
        let setup = 2.0 * rtt;
        if age < setup && kept.is_none() {
            return (0.0, self.start + setup);
        }
        // Slow start from two packets, which carry next to nothing until the last round trips.
        let slow_start = rtt * (0.5 * full / streams / PACKET * rtt).max(1.0).log2();
        let Some((before, window)) = kept else {
            let begun = self.start + setup + slow_start;
            return if time + 1e-9 < begun { (0.0, begun) } else { (full, f64::INFINITY) };
        };
        // Streams that stay grow by a packet a round trip into what those that left gave up; new ones come in
        // after a handshake and slow start.
        let old = f64::from(before.min(self.streams()));
        let joined = self.start + rtt + slow_start;
        let fresh = if time + 1e-9 < joined { 0.0 } else { full * (streams - old) / streams };
        let round = (age / rtt).floor();
        let limit = fresh + old * (window + round) * PACKET / rtt;
        if limit >= full && fresh > 0.0 || limit > 4.0 * full {
            return (full.min(limit), f64::INFINITY);
        }
        (
            full.min(limit),
            (self.start + (round + 1.0) * rtt).min(if time < joined { joined } else { f64::INFINITY }),
        )
    }

    /// `total`: streams of all on the path.
    fn advance(&mut self, path: &Path, world: World, time: f64, bytes: f64, total: u32) {
        self.sent += bytes;
        self.left -= bytes;
        self.mark_bytes += bytes;
        self.outcome.delivered += bytes;
        self.loss = path.loss(total.max(1));
        let done = self.left <= 0.5;
        let mut stop = false;
        if !done && time + 1e-9 >= self.mark_at {
            let progress = Progress { elapsed: time - self.start, rate: self.mark_bytes / MARK };
            self.mark_bytes = 0.0;
            self.mark_at = time + MARK;
            stop = self.tuner.progress(&progress).is_some();
        }
        if done || stop {
            self.next(path, world, time);
        }
    }

    fn next(&mut self, path: &Path, world: World, time: f64) {
        let seconds = time - self.start;
        self.record(seconds);
        let streams = self.streams();
        let rtt = self.rtt * path.rtt;
        let window = path.window.min(self.sent / seconds / PACKET * rtt / f64::from(streams));
        self.before = Some((streams, window));
        let disk = path.ends.map(|ends| (path.goodput(streams) / ends.rate).min(1.0));
        // What does not fill the path makes no queue.
        let full = ((self.sent / self.could.max(1.0) - FILLING) / (1.0 - FILLING)).clamp(0.0, 1.0);
        let missing = self.queue * (1.0 - full);
        let chunk = Chunk {
            rtt: Some((1.0 - missing) * rtt),
            min_rtt: Some((1.0 - self.queue) * rtt),
            loss: Some(self.loss),
            window: world.window_known.then_some(path.window * PACKET),
            pressure: Pressure { disk, ..Pressure::default() },
            ..Chunk::new(streams, self.sent.round() as u64, seconds)
        };
        self.decision = self.tuner.chunk(&chunk);
        self.start = time;
        self.left = self.decision.bytes as f64;
        (self.sent, self.could) = (0.0, 0.0);
        self.mark_at = time + MARK;
        self.mark_bytes = 0.0;
    }

    fn record(&mut self, seconds: f64) {
        self.outcome.steps.push(Step {
            start: self.start,
            seconds,
            streams: self.streams(),
            bytes: self.sent,
            reason: self.decision.reason,
        });
    }

    fn finish(mut self, end: f64) -> Outcome {
        if end > self.start {
            self.record(end - self.start);
        }
        self.outcome
    }
}

/// What the best number of streams at every instant would deliver, without start-up or noise.
pub fn oracle(scenario: &Scenario) -> f64 {
    let ends = scenario.phases.iter().skip(1).map(|phase| phase.0).chain([scenario.seconds]);
    let best = |path: &Path| path.best(MOST).1;
    scenario.phases.iter().zip(ends).map(|((start, path), end)| (end - start) as f64 * best(path)).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Family;
    use super::*;
    use crate::tuner::{Kind, Options};

    fn deliver(connections: Connections, noise: f64) -> Outcome {
        let options = Options { first_streams: 20, connections, rtt: Some(0.1), ..Options::default() };
        let mut tuner = Kind::Fixed.build(&options).unwrap();
        let world = World { noise, seed: 3, connections, window_known: true };
        run(&Family::Paper100.draw(0), world, tuner.as_mut())
    }

    #[test]
    fn fresh_connections_cost_their_start() {
        let best = oracle(&Family::Paper100.draw(0));
        // 2 + log2(41.7 / 2) = 6.4 round trips of 0.1 s in every 10.6 s or so.
        let fresh = 1.0 - deliver(Connections::Fresh, 0.0).delivered / best;
        assert!((0.05..0.07).contains(&fresh), "{fresh}");
        let kept = 1.0 - deliver(Connections::Kept, 0.0).delivered / best;
        assert!((0.0..0.003).contains(&kept), "{kept}");
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        assert_eq!(deliver(Connections::Fresh, 0.1), deliver(Connections::Fresh, 0.1));
        assert_ne!(deliver(Connections::Fresh, 0.1).delivered, deliver(Connections::Fresh, 0.0).delivered);
    }

    #[test]
    fn chunks_of_a_byte_do_not_stop_time() {
        #[derive(Debug)]
        struct Bytes;
        impl Tuner for Bytes {
            fn first(&mut self) -> Decision {
                Decision::streams(1, 1.0, Reason::Fixed)
            }
            fn chunk(&mut self, _: &Chunk) -> Decision {
                self.first()
            }
            fn progress(&mut self, _: &Progress) -> Option<Reason> {
                None
            }
        }
        let world = World { noise: 0.0, seed: 0, connections: Connections::Fresh, window_known: true };
        assert!(run(&Family::Paper100.draw(0), world, &mut Bytes).steps.len() > 500);
    }
}
