//! The increase: few short chunks until more streams gain too little, then the knee is computed.

use super::super::decision::{Bottleneck, Decision, Reason, whole_bytes};
use super::super::meter::{elasticity, knee};
use super::super::options::Connections;
use super::share::stated;
use super::{Phase, Pilot, Shape};

/// Maximum elasticity of a step that counts as flat.
const FLAT: f64 = 0.12;
/// Elasticity from which on streams simply add up.
const LINEAR: f64 = 0.8;
/// After full windows, an elasticity below this means that the ceiling is reached.
const BENT: f64 = 0.7;
/// If an elasticity could be higher by this, because the start-up may have been overestimated, it
/// is not conclusive.
const UNCLEAR: f64 = 0.6;
/// If an elasticity is this far below zero, the streams cost some rate.
const LOST: f64 = 0.2;
/// Load of the windows from which on they are the limit.
const FULL: f64 = 0.88;
/// Sufficient error of an elasticity.
const ERROR: f64 = 0.13;
/// The knee is placed at this multiple of the intersection of rise and ceiling.
pub(super) const MARGIN: f64 = 1.1;
/// Fraction of the best rate that counts as all of it.
const PROVEN: f64 = 0.97;
/// A fall below this fraction of the rate is not caused by added streams.
const FALL: f64 = 0.75;
const FALL_DEVIATIONS: f64 = 6.0;
const DISTURBED_MOST: u32 = 3;
/// After a fall, an elasticity from which on other flows are the reason: if the path had become
/// slower, more streams would gain nothing.
const SHARED: f64 = 0.3;
/// Minimum duration of a chunk of an increase, in seconds and in round-trip times.
const LEAST_SECONDS: f64 = 2.0;
const LEAST_ROUND_TRIPS: f64 = 25.0;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Ramp {
    down: bool,
    /// A step that gained little was followed by another for confirmation.
    looked_further: bool,
    /// The current chunk repeats the previous one with a longer duration.
    pub(super) again: bool,
    rtt: Option<f64>,
    /// A step with an unclear gain was followed by another.
    unclear: bool,
    /// The increase began because the rate fell.
    fallen: bool,
    /// Number of steps during which the path changed.
    disturbed: u32,
    /// Number of steps that gained something, but less than independent streams would.
    soft: u32,
}

impl Pilot {
    /// A duration in which the effect of three times the streams is visible despite noise.
    pub(super) fn ramp_seconds(&self) -> f64 {
        let noise = 20.0 * self.meter.variance() / (ERROR * 3f64.ln()).powi(2);
        let least = LEAST_SECONDS.max(LEAST_ROUND_TRIPS * self.meter.rtt());
        match stated(&self.options) {
            // It takes many round-trip times until streams have the share that other flows leave
            // them.
            Some(_) => self.options.chunk_seconds,
            None => noise.max(least).min(self.options.chunk_seconds),
        }
    }

    /// Starts an increase at a point that is already measured.
    pub(super) fn climb_from(&mut self, n: u32, rate: f64, factor: f64, reason: Reason) -> Decision {
        self.points.clear();
        self.points.push((n, rate));
        let fall = FALL.ln().min(-FALL_DEVIATIONS * self.sd(self.ramp_seconds()));
        let fallen = matches!(reason, Reason::Changed { factor } if factor.ln() < fall);
        self.phase = Phase::Ramp(Ramp { rtt: Some(self.meter.base_rtt()), fallen, ..Ramp::default() });
        if n >= self.most() {
            return self.bend();
        }
        self.step(factor, 1.0, reason)
    }

    fn step(&mut self, factor: f64, gain: f64, reason: Reason) -> Decision {
        let seconds = self.ramp_seconds();
        let from = self.points.last().map_or(self.n, |point| point.0);
        let factor = self.within_share(from, factor);
        self.send_expecting((f64::from(from) * factor).ceil() as u32, seconds, gain, reason)
    }

    /// Evaluates a chunk of the increase. `whole`: streams and rate of the previous chunk,
    /// including the start-up.
    pub(super) fn climbed(&mut self, mut ramp: Ramp, rate: f64, whole: Option<(u32, f64)>) -> Decision {
        let n = self.n;
        // After a change of the round-trip time, the earlier points belong to another path.
        let rtt = self.meter.base_rtt();
        if (rtt / ramp.rtt.unwrap_or(rtt)).ln().abs() > 0.1 {
            self.points.clear();
        }
        ramp.rtt = Some(rtt);
        self.phase = Phase::Ramp(ramp);
        let before = self.points.last().copied();
        // The correction for start-up may be too large: the rate was at least this.
        let least = before.map(|before| match whole {
            Some(whole) if whole.0 == before.0 => (before.0, before.1.min(whole.1)),
            _ => before,
        });
        if let Some((from, was)) = least
            && from < n
            && !ramp.down
            && ramp.disturbed < DISTURBED_MOST
            && (self.options.connections == Connections::Kept || self.goes_back(was.ln()))
            && !self.has_small_files(n, rate)
            && (rate / was).ln() < FALL.ln().min(-FALL_DEVIATIONS * self.sd(self.target))
        {
            if self.goes_back(was.ln()) {
                return self.go_back(from, was.ln(), rate, Some(ramp));
            }
            // Other flows started meanwhile, so the earlier points belong to another path.
            self.points.clear();
            return self.climb_after_fall(ramp, rate);
        }
        self.climb_on(ramp, rate, least)
    }

    /// Continues the increase after other flows started during it.
    pub(super) fn climb_after_fall(&mut self, mut ramp: Ramp, rate: f64) -> Decision {
        ramp.fallen = true;
        ramp.disturbed += 1;
        self.meter.forget_noise();
        let least = self.points.last().copied();
        self.climb_on(ramp, rate, least)
    }

    /// Chooses the next step. `least`: the minimum rate of the previous chunk.
    fn climb_on(&mut self, mut ramp: Ramp, rate: f64, least: Option<(u32, f64)>) -> Decision {
        let n = self.n;
        let before = self.points.last().copied();
        let e = before.map(|before| elasticity(before, (n, rate)));
        if let Some(decision) = self.again(ramp, before.zip(e)) {
            return decision;
        }
        ramp.again = false;
        self.cliff.stood(n, rate.max(1.0).ln());
        self.phase = Phase::Ramp(ramp);
        self.points.push((n, rate));
        let doubt = 2.0 * self.sd(self.target);
        ramp.soft += u32::from(e.is_some_and(|e| e > FLAT.max(doubt) && e < LINEAR));
        self.phase = Phase::Ramp(ramp);
        if ramp.soft > 1 {
            self.limits.share();
        }
        if ramp.fallen
            && e.is_some_and(|e| e > SHARED.max(doubt))
            && let Some(decision) = self.share_path()
        {
            return decision;
        }
        if ramp.down {
            let e = e.unwrap_or(1.0);
            if e < FLAT && n / 2 >= self.least() {
                return self.step(0.5, 0.0, Reason::LookingDown { elasticity: e });
            }
            return self.bend();
        }
        if let Some(decision) = self.has_share() {
            return decision;
        }
        let first = self.points.first().map_or(n, |point| point.0);
        if self.level.is_none()
            && e.is_some_and(|e| e < -LOST.max(1.5 * doubt))
            && self.points.len() == 2
            && first / 2 >= self.least()
            && first < n
        {
            // In the first increase, the best number may be below its start.
            return self.look_down(ramp, first, e.unwrap_or_default());
        }
        if n >= self.most() {
            return self.bend();
        }
        if self.points.len() == 1
            && let Some(decision) = self.as_expected(n, rate)
        {
            return decision;
        }
        if self.limits.bottleneck() == Some(Bottleneck::Limit) {
            // The limit was set by the user, so that no second point is needed to prove it.
            return self.bend_within(n);
        }
        if self.limits.bottleneck().is_some() && e.is_some_and(|e| e < LINEAR) {
            return self.bend();
        }
        let utilisation = self.meter.utilisation(n, rate);
        if let Some(utilisation) = utilisation.filter(|&u| u > FULL) {
            return self.step(3.0, 1.0, Reason::WindowLimited { utilisation });
        }
        let Some(e) = e else {
            return self.step(3.0, 1.0, Reason::Growing { elasticity: 1.0 });
        };
        let reason = Reason::Growing { elasticity: e };
        if e > LINEAR {
            return self.step(3.0, 1.0, reason);
        }
        let most = least.map_or(e, |least| elasticity(least, (n, rate)));
        if e < BENT && most - e > UNCLEAR && !ramp.unclear {
            // It is unknown whether this step gained much or nothing: measure the next one, which
            // starts when all streams have started.
            ramp.unclear = true;
            self.phase = Phase::Ramp(ramp);
            return self.step(2.0, most.clamp(0.0, 1.0), Reason::Growing { elasticity: most });
        }
        if e < BENT && self.limits.at_peer() {
            // With small windows, streams would add up; and data that fills the buffers of new
            // streams looks like a gain.
            self.limits.conclude();
            return self.bend();
        }
        if e < BENT && self.windows_bind() {
            return self.bend();
        }
        // If other flows have started, they may have taken the gain of this step.
        let enough = self.points.len() > if ramp.fallen { 1 } else { 2 };
        let further = !ramp.looked_further && enough && !self.windows_bind();
        if e > FLAT || further {
            ramp.looked_further |= e <= FLAT;
            self.phase = Phase::Ramp(ramp);
            return self.step(2.0, e.clamp(0.0, 1.0), reason);
        }
        if self.points.len() == 2
            && first / 2 >= self.least()
            && self.meter.utilisation(first, rate).is_none_or(|u| u < FULL)
        {
            return self.look_down(ramp, first, e);
        }
        self.bend()
    }

    fn look_down(&mut self, mut ramp: Ramp, first: u32, elasticity: f64) -> Decision {
        ramp.down = true;
        self.phase = Phase::Ramp(ramp);
        let seconds = self.ramp_seconds();
        self.send(first / 2, seconds, Reason::LookingDown { elasticity })
    }

    /// Whether the remaining files fit into the window of a stream: each costs the end hosts more
    /// than its bytes cost the path, so that more sessions may carry less.
    fn has_small_files(&self, n: u32, rate: f64) -> bool {
        let window = rate * self.meter.rtt() / f64::from(n);
        self.work.is_some_and(|work| work.files > 1 && (work.bytes as f64) < window * work.files as f64)
    }

    /// New connections that overrun a short queue in slow start take seconds to recover. If a step
    /// beyond full windows gained little and lost packets, measure the same streams in a longer
    /// chunk first.
    fn again(&mut self, mut ramp: Ramp, step: Option<((u32, f64), f64)>) -> Option<Decision> {
        let loss = self.meter.overrun()?;
        let (before, e) = step?;
        let full = self.meter.utilisation(before.0, before.1).is_none_or(|load| load > FULL);
        if ramp.again || ramp.down || !full || e > BENT {
            return None;
        }
        ramp.again = true;
        self.phase = Phase::Ramp(ramp);
        let seconds = self.options.chunk_seconds;
        let decision = self.send(self.n, seconds, Reason::SlowStart { loss });
        // Send enough for the rate with full windows: the chunk must not end while the windows grow
        // again.
        let most = seconds * before.1 / f64::from(before.0) * f64::from(self.n);
        Some(Decision { bytes: decision.bytes.max(whole_bytes(most)), ..decision })
    }

    /// After a start from known values: checks whether the first chunk confirms them.
    fn as_expected(&mut self, n: u32, rate: f64) -> Option<Decision> {
        let expected = self.start.rate.take()?;
        let reason = self.start.reason;
        let load = self.meter.utilisation(n, rate);
        if let (Some(load), Some(window)) = (load, self.meter.window())
            && (0.5..FULL).contains(&load)
        {
            self.shape = Shape::Sharp { window };
            self.base = ((MARGIN * load * f64::from(n)).ceil() as u32).clamp(self.least(), self.most());
            return Some(self.settle(reason));
        }
        let as_before = matches!(reason, Reason::Remembered { .. }) && (rate / expected).ln().abs() < 0.25;
        (as_before && load.is_none_or(|load| load < FULL)).then(|| {
            self.shape = Shape::Soft;
            self.base = n;
            self.settle(reason)
        })
    }

    /// Whether windows are the limit below the knee: this is known from their size or, if that is
    /// unknown, from streams that added up over a whole step.
    fn windows_bind(&self) -> bool {
        let mut points = self.points.clone();
        points.sort_by_key(|point| point.0);
        let (Some(&first), Some(&last)) = (points.first(), points.last()) else { return false };
        match self.meter.utilisation(first.0, first.1) {
            // One or two streams fill the path: then the window shows what one stream could carry.
            Some(_) if first.0 <= 2 && elasticity(first, last) < FLAT => true,
            Some(_) => {
                points.iter().any(|point| self.meter.utilisation(point.0, point.1).is_some_and(|u| u > FULL))
            }
            None => points.get(1).is_some_and(|&second| points.len() > 2 && elasticity(first, second) > 0.9),
        }
    }

    /// The smallest number of streams that reached the ceiling in a measurement. If connections are
    /// kept, surplus streams cost nothing, and the first points of an increase are too high,
    /// because new streams have not met the path's losses yet. The number is not reduced to a knee
    /// that was computed from such points.
    fn proven(&self, windows_bind: bool) -> u32 {
        let peer = self.limits.bottleneck() == Some(Bottleneck::Peer);
        if windows_bind || peer || self.options.connections == Connections::Fresh {
            return 1;
        }
        let best = self.points.iter().map(|point| point.1).fold(0.0, f64::max);
        let reached = self.points.iter().filter(|point| point.1 >= PROVEN * best).map(|point| point.0);
        reached.min().unwrap_or(1)
    }

    /// Ends the increase: the number of streams at the bend is kept.
    fn bend(&mut self) -> Decision {
        self.bend_within(u32::MAX)
    }

    /// The same with up to `most` streams.
    pub(super) fn bend_within(&mut self, most: u32) -> Decision {
        let best = self.points.iter().map(|point| point.1).fold(0.0, f64::max);
        let lazily = self.options.connections == Connections::Kept
            && self.points.last().is_some_and(|last| last.0 == self.n && last.1 >= PROVEN * best);
        let last = self.n;
        self.points.sort_by_key(|point| point.0);
        let mut windows_bind = self.windows_bind();
        if self.options.connections == Connections::Kept && self.meter.window().is_none() {
            // In the first chunks streams may add up only because they have just started.
            windows_bind = false;
        }
        let alone = self.meter.window().filter(|_| windows_bind).map(|window| window / self.meter.base_rtt());
        let tolerance = (0.87 - self.sd(self.ramp_seconds())).clamp(0.7, 0.86);
        let (n, reason) = knee(&self.points, alone, MARGIN, tolerance);
        self.shape = match reason {
            Reason::Knee { each, .. } if windows_bind => {
                Shape::Sharp { window: each * self.meter.base_rtt() }
            }
            _ => Shape::Soft,
        };
        // Politeness may permit less for the moment.
        self.wanted = n.max(self.proven(windows_bind)).min(most);
        self.base = self.within(self.wanted);
        // Numbers between the measured ones have not been tried.
        let seen = self.points.iter().filter(|point| point.0 <= self.base && point.1 >= PROVEN * best);
        let seen = seen.map(|point| point.0).max().filter(|&n| n < self.base);
        self.ascent.ended(self.base);
        // A last step without gain has shown that the ceiling is flat.
        let last_step = match *self.points.as_slice() {
            [.., a, b] => Some(elasticity(a, b)),
            _ => None,
        };
        let flat = last_step.is_some_and(|e| e < FLAT);
        // If more streams lose, the streams cost some rate, and no end host is at its limit.
        if last_step.is_some_and(|e| e.abs() < FLAT) {
            self.limits.conclude();
        }
        let reason = self.limits.bottleneck().map_or(reason, |by| Reason::Limited { by });
        self.level = self.points.iter().map(|point| point.1.max(1.0).ln()).reduce(f64::max);
        self.settle(reason);
        self.hold.moved_from = seen;
        self.hold.flat_above = flat;
        self.hold.wait = if flat { 4 } else { 1 };
        if lazily {
            return self.descend(last, reason);
        }
        self.stay(reason)
    }
}
