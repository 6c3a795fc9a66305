//! Ropewalk's own tuner.
//!
//! It climbs in few short chunks, computes where the rise meets the ceiling instead of searching for it, then
//! stays and watches. What one stream carries alone (its window over the round trip, or what loss leaves of it)
//! and what all carry together say, without any trial, whether more streams can help; where they do not say it,
//! small trials do. `docs/reference/tuning.md` has the rules, `docs/evaluation/tuning.md` the measurements.

mod ascent;
mod ask;
mod back;
mod congestion;
mod crowd;
mod hold;
mod limits;
mod plan;
mod polite;
mod ramp;
mod share;
mod soft;
mod start;
mod surface;
mod watch;

use super::decision::{CongestionControl, Decision, Reason};
use super::meter::{Estimate, Meter};
use super::options::{Fairness, Options};
use super::sample::{Chunk, Progress, Work};
use super::{Tuner, first_bytes};

/// So many times what a first chunk is taken to move is no end of it.
const UNENDING: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Looking for the ceiling.
    Ramp(ramp::Ramp),
    /// Staying.
    Hold,
    /// Trying another number.
    Probe,
    /// Measuring the slope beside the place to stay.
    Dither,
    /// Whether others share a path that is full.
    Ask,
    /// Whether they are still there.
    Check,
    /// Looking at fewer once more.
    Back(back::Back),
}

/// How the path answers to streams, as the climb saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// Streams add up until the path is full, as windows make them. `window`: what one carries, bytes a round trip.
    Sharp { window: f64 },
    /// Each gains less than the one before, or it is not known why they stop gaining.
    Soft,
}

#[derive(Debug)]
pub(super) struct Pilot {
    options: Options,
    meter: Meter,
    phase: Phase,
    shape: Shape,
    /// Streams of the chunk that runs.
    n: u32,
    /// How long it should take.
    target: f64,
    /// Streams to stay at.
    base: u32,
    /// Streams that would be used if politeness allowed.
    wanted: u32,
    hold: hold::Hold,
    ascent: ascent::Ascent,
    cliff: back::Cliff,
    /// Streams of the last chunk and its rate, the start-up counted.
    whole: Option<(u32, f64)>,
    /// Logarithm of the rate that was reached last, here or on the climb.
    level: Option<f64>,
    up: Estimate,
    surface: surface::Surface,
    /// Points of the climb: streams and rate.
    points: Vec<(u32, f64)>,
    limits: limits::Limits,
    start: start::Start,
    congestion: Option<CongestionControl>,
    work: Option<Work>,
    /// Of what was measured so far.
    dice: u64,
    others: ask::Others,
}

impl Pilot {
    pub(super) fn new(options: &Options) -> Self {
        let start = start::start(options);
        let rtt = options.rtt.unwrap_or(0.0);
        Self {
            meter: Meter::new(options),
            phase: Phase::Ramp(ramp::Ramp::default()),
            shape: Shape::Soft,
            n: start.streams,
            target: options.chunk_seconds,
            base: start.streams,
            wanted: 0,
            hold: hold::Hold::default(),
            ascent: ascent::Ascent::default(),
            cliff: back::Cliff::default(),
            whole: None,
            level: None,
            up: Estimate::default(),
            surface: surface::Surface::default(),
            points: Vec::new(),
            limits: limits::Limits::new(options),
            congestion: congestion::choose(&options.congestion, None, options.fairness, options.loss, rtt),
            start,
            work: None,
            dice: 0,
            others: ask::Others::default(),
            options: options.clone(),
        }
    }

    /// The most streams that may be used now.
    fn most(&self) -> u32 {
        self.limits.most()
    }

    /// The fewest that are tried where nothing forces it.
    fn least(&self) -> u32 {
        self.options.least_streams.min(self.most())
    }

    fn within(&self, n: u32) -> u32 {
        n.clamp(self.least(), self.most())
    }

    /// No more than were too many lately.
    fn below_cliff(&self, n: u32) -> u32 {
        self.cliff.most().map_or(n, |most| n.min(most.max(self.base)))
    }

    /// The most that are tried.
    fn most_to_try(&self) -> u32 {
        self.below_cliff(self.most())
    }

    /// What a stream more must gain, as an elasticity. Where others share the path stream for stream, it is
    /// their share of it.
    fn worth(&self) -> f64 {
        match self.options.fairness {
            Fairness::Share(share) => 1.0 - share,
            Fairness::Polite => 0.1,
        }
    }

    fn send(&mut self, n: u32, seconds: f64, reason: Reason) -> Decision {
        self.send_expecting(n, seconds, 0.0, reason)
    }

    /// Sends for about so many seconds if further streams gain with this elasticity.
    fn send_expecting(&mut self, n: u32, seconds: f64, gain: f64, reason: Reason) -> Decision {
        self.n = self.within(n);
        self.target = seconds;
        let rate = self.meter.expected(self.n, gain).or(self.start.rate);
        let bytes = match rate {
            Some(rate) => rate * (seconds - 0.7 * self.meter.restart(self.n, rate)).max(0.5 * seconds),
            None => first_bytes(&self.options, self.n, seconds),
        };
        let (rate, rtt) = (rate.unwrap_or(0.0), self.meter.rtt());
        let reason = if n > self.n { self.limits.reason(rate, rtt) } else { reason };
        self.meter.begin(self.n);
        Decision {
            knobs: plan::plan(self.n, self.work, self.meter.carried(rate), rtt, &self.options),
            congestion: self.congestion,
            ..Decision::streams(self.n, bytes, reason)
        }
    }

    /// Bytes a round trip of one stream that nothing but its window or the path's own loss holds back.
    fn stream_window(&self) -> Option<f64> {
        match self.shape {
            Shape::Sharp { window } => Some(window),
            Shape::Soft => None,
        }
    }

    /// Share of what the streams could carry if the path were not full.
    fn load(&self, n: u32, rate: f64) -> Option<f64> {
        Some(rate * self.meter.base_rtt() / (f64::from(n) * self.stream_window()?))
    }
}

/// The next of a sequence without a pattern (SplitMix64's).
fn roll(dice: u64) -> u64 {
    let mut z = dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Tuner for Pilot {
    fn first(&mut self) -> Decision {
        let seconds = self.ramp_seconds();
        let decision = self.send(self.start.streams, seconds, self.start.reason);
        // Time is what ends it, not a guess of how much that is.
        let times = if share::stated(&self.options).is_some() { UNENDING } else { 1 };
        Decision { bytes: decision.bytes.saturating_mul(times), ..decision }
    }

    fn chunk(&mut self, chunk: &Chunk) -> Decision {
        self.meter.learn(chunk);
        self.dice = roll(self.dice ^ chunk.bytes ^ chunk.seconds.to_bits());
        let (corrected, seconds) = self.meter.corrected(chunk);
        let (rate, seconds) = match self.phase {
            _ if share::stated(&self.options).is_some() => {
                self.meter.late(chunk).unwrap_or((corrected, seconds))
            }
            Phase::Ramp(ramp) if !ramp.again => (corrected, seconds),
            _ => self.meter.steady(chunk).unwrap_or((corrected, seconds)),
        };
        self.meter.record(chunk.streams, rate);
        let place = self.phase != Phase::Check;
        self.limits.learn(chunk, self.n, rate, self.sd(seconds), place);
        self.n = chunk.streams;
        self.work = chunk.work.or(self.work);
        let (allowed, rtt) = (&self.options.congestion, self.meter.rtt());
        self.congestion =
            congestion::choose(allowed, self.congestion, self.options.fairness, chunk.loss, rtt);
        if self.phase != Phase::Hold && self.meter.utilisation(self.n, rate).is_some_and(|u| u < 0.75) {
            self.limits.infer(chunk);
        }
        let before = self.whole.replace((chunk.streams, chunk.rate()));
        match self.phase {
            Phase::Ramp(ramp) => self.climbed(ramp, rate, before),
            Phase::Hold => self.held(rate, seconds),
            Phase::Probe | Phase::Dither if self.broken(rate, seconds) => {
                let level = self.expected().unwrap_or_default();
                if self.n > self.base && self.goes_back(level) {
                    return self.go_back(self.base, level, rate, None);
                }
                self.changed(rate, (rate.ln() - level).exp())
            }
            Phase::Probe | Phase::Dither => {
                self.judge(rate, seconds);
                match self.phase {
                    Phase::Probe => self.probed(rate, seconds),
                    _ => self.dithered(rate, seconds),
                }
            }
            Phase::Ask => self.asked(rate, seconds),
            Phase::Check => self.checked(rate),
            Phase::Back(back) => self.returned(back, rate),
        }
    }

    fn progress(&mut self, progress: &Progress) -> Option<Reason> {
        self.meter.mark(progress);
        match self.phase {
            // The size was a guess; time is what matters.
            Phase::Back(back) if self.tells(back) => Some(Reason::KnowsEnough),
            Phase::Ramp(_) | Phase::Ask | Phase::Check | Phase::Back(_) => {
                (progress.elapsed > 1.5 * self.target).then_some(Reason::KnowsEnough)
            }
            Phase::Probe | Phase::Dither => {
                let enough = (progress.elapsed > 1.5 * self.target).then_some(Reason::KnowsEnough);
                enough.or_else(|| self.fall())
            }
            // Others have come, or the path got narrower: what is left of the chunk may take for ever.
            Phase::Hold if self.hold.reference.is_none() || progress.elapsed > 3.0 * self.target => {
                (progress.elapsed > 1.5 * self.target).then_some(Reason::KnowsEnough).or_else(|| self.watch())
            }
            Phase::Hold => self.watch(),
        }
    }

    fn lost(&mut self) {
        self.meter.begin(self.n);
    }
}
