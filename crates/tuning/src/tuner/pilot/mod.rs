//! Ropewalk's own tuner.
//!
//! It increases the streams in few short chunks, computes the intersection of the rise with the
//! ceiling instead of searching for it, then keeps this number and watches the rate. The rate that
//! one stream could carry alone (its window over the round-trip time, or the window that loss
//! permits) and the rate of all together show, without a trial, whether more streams can help; if
//! they do not, small trials do. `docs/reference/tuning.md` has the rules,
//! `docs/evaluation/tuning.md` the measurements.

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

/// The first chunk may move up to this multiple of its expected size, so that it ends by time and
/// not by size.
const UNENDING: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Increasing the streams to find the ceiling.
    Ramp(ramp::Ramp),
    /// Keeping the number of streams.
    Hold,
    /// Trying another number.
    Probe,
    /// Measuring the slope with a number beside `base`.
    Dither,
    /// Testing whether other flows share a full path.
    Ask,
    /// Testing whether these flows are still there.
    Check,
    /// Measuring fewer streams once more.
    Back(back::Back),
}

/// How the rate depends on the number of streams, from the measurements of the increase.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// Streams add up until the path is full, because windows limit them. `window`: bytes per
    /// round-trip time of one stream.
    Sharp { window: f64 },
    /// Each stream gains less than the one before, or it is unknown why more streams gain nothing.
    Soft,
}

#[derive(Debug)]
pub(super) struct Pilot {
    options: Options,
    meter: Meter,
    phase: Phase,
    shape: Shape,
    /// Streams of the current chunk.
    n: u32,
    /// Target duration of the current chunk, in seconds.
    target: f64,
    /// The number of streams to keep.
    base: u32,
    /// The number of streams that would be used without politeness.
    wanted: u32,
    hold: hold::Hold,
    ascent: ascent::Ascent,
    cliff: back::Cliff,
    /// Streams of the last chunk and its rate, including the start-up.
    whole: Option<(u32, f64)>,
    /// Logarithm of the last rate at this number of streams, or of the highest rate of the
    /// increase.
    level: Option<f64>,
    up: Estimate,
    surface: surface::Surface,
    /// Measurements of the increase: streams and rate.
    points: Vec<(u32, f64)>,
    limits: limits::Limits,
    start: start::Start,
    congestion: Option<CongestionControl>,
    work: Option<Work>,
    /// State of the random sequence, made from the measurements so far.
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

    /// The maximum number of streams now.
    fn most(&self) -> u32 {
        self.limits.most()
    }

    /// The minimum number of streams that is tried unless a limit requires fewer.
    fn least(&self) -> u32 {
        self.options.least_streams.min(self.most())
    }

    fn within(&self, n: u32) -> u32 {
        n.clamp(self.least(), self.most())
    }

    /// Limits `n` to a number below the one that was recently too many.
    fn below_cliff(&self, n: u32) -> u32 {
        self.cliff.most().map_or(n, |most| n.min(most.max(self.base)))
    }

    /// The maximum number of streams to try.
    fn most_to_try(&self) -> u32 {
        self.below_cliff(self.most())
    }

    /// The minimum gain of an additional stream, as an elasticity. If other flows share the path in
    /// proportion to the number of streams, it equals their share of the path.
    fn worth(&self) -> f64 {
        match self.options.fairness {
            Fairness::Share(share) => 1.0 - share,
            Fairness::Polite => 0.1,
        }
    }

    fn send(&mut self, n: u32, seconds: f64, reason: Reason) -> Decision {
        self.send_expecting(n, seconds, 0.0, reason)
    }

    /// Sends for about `seconds` if additional streams gain with elasticity `gain`.
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

    /// Bytes per round-trip time of one stream that is limited only by its window or the path's own
    /// loss.
    fn stream_window(&self) -> Option<f64> {
        match self.shape {
            Shape::Sharp { window } => Some(window),
            Shape::Soft => None,
        }
    }

    /// The rate as a fraction of what the streams could carry on a path that is not full.
    fn load(&self, n: u32, rate: f64) -> Option<f64> {
        Some(rate * self.meter.base_rtt() / (f64::from(n) * self.stream_window()?))
    }
}

/// The next number of a pseudo-random sequence (that of SplitMix64).
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
        // The chunk should end by time, not after an estimated size.
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
            // The size was estimated, so end the chunk by time.
            Phase::Back(back) if self.tells(back) => Some(Reason::KnowsEnough),
            Phase::Ramp(_) | Phase::Ask | Phase::Check | Phase::Back(_) => {
                (progress.elapsed > 1.5 * self.target).then_some(Reason::KnowsEnough)
            }
            Phase::Probe | Phase::Dither => {
                let enough = (progress.elapsed > 1.5 * self.target).then_some(Reason::KnowsEnough);
                enough.or_else(|| self.fall())
            }
            // Other flows have started, or the path became slower: the rest of the chunk may take
            // very long.
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
