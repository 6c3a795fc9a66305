//! Runs tuners on a scenario in virtual time. Time advances in steps that end when a rate changes,
//! a chunk ends or a progress report is due.

use super::families::{MOST, Scenario};
use super::landscape::{PACKET, Path};
use super::rng::Rng;
use ropewalk_tuning::tuner::{Chunk, Connections, Decision, Pressure, Progress, Reason, Tuner};

/// Seconds between progress reports.
const MARK: f64 = 1.5;
/// Below this fraction of the path's rate there is no queue.
const FILLING: f64 = 0.8;
/// Minimum duration of a step, so that time advances with any chunk size.
const LEAST_STEP: f64 = 1e-6;

/// Properties of the simulated world.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct World {
    /// Standard deviation of the logarithm of the mean rate over ten seconds. The noise is white,
    /// with one value per second.
    pub noise: f64,
    pub seed: u64,
    pub connections: Connections,
    /// Whether the tuner gets the window.
    pub window_known: bool,
}

/// A chunk that was transferred.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub start: f64,
    pub seconds: f64,
    pub streams: u32,
    pub bytes: f64,
    pub reason: Reason,
}

/// The course of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub delivered: f64,
    pub steps: Vec<Step>,
}

/// A transfer among those that share a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rival {
    /// Start time, in seconds.
    pub start: f64,
    /// Round-trip time as a multiple of the path's. All streams have the same windows, so that one
    /// with a longer round-trip time carries less.
    pub rtt: f64,
    /// The part of the round-trip time that is a queue; the smallest round-trip time is without it.
    pub queue: f64,
}

impl Rival {
    /// A transfer with the path's own round-trip time and no queue.
    pub fn from(start: f64) -> Self {
        Self { start, rtt: 1.0, queue: 0.0 }
    }
}

/// The state of one transfer among those that share the path.
struct Actor<'a> {
    tuner: &'a mut dyn Tuner,
    decision: Decision,
    start: f64,
    /// Round-trip time as a multiple of the path's.
    rtt: f64,
    queue: f64,
    /// Noise: factor between its actual share and the share that its streams should have.
    luck: f64,
    left: f64,
    sent: f64,
    /// Bytes that the path could have carried in the same time.
    could: f64,
    /// If connections are kept: number of streams when the chunk started, and packets in flight of
    /// each.
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

/// Runs several tuners on one path. Streams share it evenly except for noise, which affects the
/// path and each transfer.
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

    /// The weight of this transfer when the path is divided.
    fn claim(&self) -> f64 {
        f64::from(self.streams()) * self.luck / self.rtt
    }

    /// The current rate, if `full` is its share of the path, and until when this rate is constant.
    fn rate(&self, path: &Path, time: f64, full: f64, connections: Connections) -> (f64, f64) {
        let rtt = self.rtt * path.rtt;
        let streams = f64::from(self.streams());
        let age = time - self.start + 1e-9;
        let kept = self.before.filter(|_| connections == Connections::Kept);
        // One round-trip time for the request, one for the handshake.
        let setup = 2.0 * rtt;
        if age < setup && kept.is_none() {
            return (0.0, self.start + setup);
        }
        // Slow start begins with two packets; it carries almost nothing until the last round trips.
        let slow_start = rtt * (0.5 * full / streams / PACKET * rtt).max(1.0).log2();
        let Some((before, window)) = kept else {
            let begun = self.start + setup + slow_start;
            return if time + 1e-9 < begun { (0.0, begun) } else { (full, f64::INFINITY) };
        };
        // Streams that are kept grow by one packet per round-trip time into the capacity that
        // closed streams left. New ones join after a handshake and slow start.
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

    /// Advances the transfer to `time`. `total` is the number of streams of all transfers on the
    /// path.
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
        // A transfer that does not fill the path causes no queue.
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

/// The number of bytes that the best number of streams at every time would deliver, without
/// start-up or noise.
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
    use ropewalk_tuning::tuner::{Kind, Knobs, Options};

    fn deliver(connections: Connections, noise: f64) -> Outcome {
        let options = Options { first_streams: 20, connections, rtt: Some(0.1), ..Options::default() };
        let mut tuner = Kind::Fixed.build(&options).unwrap();
        let world = World { noise, seed: 3, connections, window_known: true };
        run(&Family::Paper100.draw(0), world, tuner.as_mut())
    }

    #[test]
    fn run_with_fresh_connections_loses_their_start_up() {
        let best = oracle(&Family::Paper100.draw(0));
        // 2 + log2(41.7 / 2) = 6.4 round-trip times of 0.1 s in about every 10.6 s.
        let fresh = 1.0 - deliver(Connections::Fresh, 0.0).delivered / best;
        assert!((0.05..0.07).contains(&fresh), "{fresh}");
        let kept = 1.0 - deliver(Connections::Kept, 0.0).delivered / best;
        assert!((0.0..0.003).contains(&kept), "{kept}");
    }

    #[test]
    fn run_with_same_seed_is_identical() {
        assert_eq!(deliver(Connections::Fresh, 0.1), deliver(Connections::Fresh, 0.1));
        assert_ne!(deliver(Connections::Fresh, 0.1).delivered, deliver(Connections::Fresh, 0.0).delivered);
    }

    #[test]
    fn run_with_chunks_of_one_byte_ends() {
        #[derive(Debug)]
        struct Bytes;
        impl Tuner for Bytes {
            fn first(&mut self) -> Decision {
                let knobs = Knobs::streams(1);
                Decision { knobs, bytes: 1, congestion: None, reason: Reason::Fixed }
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
