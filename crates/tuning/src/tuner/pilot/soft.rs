//! Keeps a number of streams if there is no sharp knee: measures the slope with numbers beside it,
//! and follows the optimum.

use super::super::decision::{Decision, Reason};
use super::share::stated;
use super::surface::Surface;
use super::{Phase, Pilot};

/// Factor between `base` and the numbers to measure beside it.
const ASIDE: f64 = 1.6;
/// Expected loss of rate because of the unknown optimum, from which on a trial is made.
const DOUBT: f64 = 0.01;
/// Minimum gain of rate for a move.
const GAIN: f64 = 0.004;
/// Slope from which on other flows must be there: without them, the number of streams would be
/// increased further.
pub(super) const SHARED: f64 = 0.15;
/// Number of standard deviations from which on a slope is not accidental.
const CERTAIN: f64 = 2.0;
/// A step is taken if it is larger than this multiple of its error: up only if more streams
/// probably gain, down as soon as fewer may be sufficient.
const UP: f64 = 1.3;
const DOWN: f64 = 0.9;
/// Maximum move in one step (logarithm).
const FARTHEST: f64 = 0.6;

impl Pilot {
    /// Starts a surface with the points of the increase.
    pub(super) fn survey(&mut self) {
        self.surface = Surface::default();
        let seconds = self.ramp_seconds();
        let variance = self.sd(seconds).powi(2);
        for &(n, rate) in &self.points {
            self.surface.add(n, rate.max(1.0).ln(), variance, seconds);
        }
        self.points.clear();
    }

    /// A chunk with `base` streams has ended.
    pub(super) fn level(&mut self, rate: f64, seconds: f64) -> Decision {
        self.hold.since_trial += 1;
        self.surface.add(self.n, rate.ln(), self.sd(seconds).powi(2), seconds);
        self.adjust()
    }

    /// A chunk with a number beside `base` has ended.
    pub(super) fn dithered(&mut self, rate: f64, seconds: f64) -> Decision {
        self.surface.add_trial(self.n, rate.ln(), self.sd(seconds).powi(2), seconds);
        self.adjust()
    }

    fn adjust(&mut self) -> Decision {
        let place = f64::from(self.base).ln();
        let optimum = self.surface.optimum(self.base, self.worth());
        if optimum.slope - 2.0 * optimum.error * -optimum.curvature > SHARED {
            self.limits.share();
            if let Some(decision) = self.share_path() {
                return decision;
            }
        }
        let most = match self.limits.bottleneck() {
            Some(_) => place,
            None => f64::from(self.most_to_try()).ln(),
        };
        let least = f64::from(self.least()).ln().min(place);
        let away = optimum.away.clamp(least - place, most - place);
        let step = away.clamp(-FARTHEST, FARTHEST);
        let out_of_reach =
            optimum.away - optimum.error > most - place || optimum.away + optimum.error < least - place;
        let gain = 0.5 * -optimum.curvature * step * step;
        let n = (place + step).exp().round() as u32;
        let error = optimum.error.min(1.0);
        // The error belongs to the distance of the optimum, not to the limited step.
        let sure = away.abs() > error * if away > 0.0 { UP } else { DOWN };
        if gain > GAIN && sure && n != self.base {
            self.hold.moved_from = Some(self.base).filter(|&from| from < n);
            self.base = n;
            self.hold.len = 1.0;
            self.hold.reference = None;
            self.hold.trials = 0;
            self.hold.since_trial = 0;
            self.hold.patience = 0;
            let elasticity = optimum.slope;
            return self.stay(match step > 0.0 {
                true => Reason::MovedUp { elasticity },
                false => Reason::MovedDown { elasticity },
            });
        }
        if 0.5 * -optimum.curvature * error * error > DOUBT
            && self.hold.reference.is_some()
            && self.hold.trials < 2
            && !out_of_reach
            && self.hold.since_trial > self.hold.patience
        {
            // Try the side that is more likely to be better first, then the other.
            let likely = if self.hold.trials == 0 { step >= 0.0 } else { !self.hold.tried_up };
            let up = f64::from(self.base) < 1.2 * f64::from(self.least()) || likely && most > place;
            self.hold.trials += 1;
            self.hold.tried_up = up;
            return self.dither(up);
        }
        if self.hold.trials > 0 {
            self.hold.trials = 0;
            self.hold.since_trial = 0;
            self.hold.patience = (self.hold.patience + 1).min(4);
        }
        self.stay_longer()
    }

    /// Returns the reason for the current number: whether more streams would certainly gain, but
    /// not enough to take the rate from other flows. A slope that may be noise does not show other
    /// flows, and neither does a slope if more streams are not permitted.
    pub(super) fn why_here(&self) -> Reason {
        let optimum = self.surface.optimum(self.base, 0.0);
        let doubt = if self.limits.shared() { 0.0 } else { CERTAIN * optimum.error * -optimum.curvature };
        let gains = optimum.slope - doubt > 0.4 * self.worth();
        if gains && self.base >= self.most() && !self.limits.shared() {
            return self.limits.reason(self.meter.last().unwrap_or_default(), self.meter.rtt());
        }
        match gains && optimum.slope < 1.0 {
            true => Reason::FairShare { share: 1.0 - optimum.slope },
            false => Reason::Holding,
        }
    }

    fn dither(&mut self, up: bool) -> Decision {
        let from = self.base;
        let n = f64::from(from);
        let (n, reason) = match up {
            true => (self.below_cliff((n * ASIDE).ceil() as u32), Reason::ProbeUp { from }),
            false => ((n / ASIDE).floor() as u32, Reason::ProbeDown { from }),
        };
        let noise = (self.meter.deviation() / (0.1 * ASIDE.ln())).powi(2);
        let shortest = if stated(&self.options).is_some() { 1.5 } else { 0.5 };
        let least = (40.0 * self.meter.rtt() / self.options.chunk_seconds).clamp(shortest, 2.0);
        self.phase = Phase::Dither;
        self.send(n, noise.clamp(least, 2.0) * self.options.chunk_seconds, reason)
    }

    /// The level of the rate changed.
    pub(super) fn shifted(&mut self, rate: f64, factor: f64) -> Decision {
        self.surface.shift(self.n, factor.ln());
        self.surface.add(self.n, rate.ln(), self.sd(5.0).powi(2), 5.0);
        self.hold.reference = Some((rate.ln(), 5.0));
        self.hold.len = 1.0;
        self.adjust()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuner::Options;

    /// The reason for 30 streams if the rate grows with elasticity `slope`, measured with this
    /// variance.
    fn why(slope: f64, variance: f64) -> Reason {
        why_within(slope, variance, &Options::default())
    }

    fn why_within(slope: f64, variance: f64, options: &Options) -> Reason {
        let mut pilot = Pilot::new(options);
        pilot.base = 30;
        for n in [20, 30, 45, 30, 20, 45] {
            pilot.surface.add(n, slope * f64::from(n).ln(), variance, 10.0);
        }
        pilot.why_here()
    }

    #[test]
    fn why_here_with_certain_slope_is_fair_share() {
        assert!(matches!(why(0.08, 1e-6), Reason::FairShare { share } if (share - 0.92).abs() < 0.02));
        // A slope of the same size, but with noise of 5 %.
        assert_eq!(why(0.08, 2.5e-3), Reason::Holding);
        assert_eq!(why(0.0, 1e-6), Reason::Holding);
    }

    #[test]
    fn why_here_at_maximum_is_capped() {
        let capped = Options { max_streams: 30, ..Options::default() };
        for slope in [0.08, 0.5, 1.2] {
            assert_eq!(why_within(slope, 1e-6, &capped), Reason::Capped { cap: 30 });
        }
        assert_eq!(why_within(0.0, 1e-6, &capped), Reason::Holding);
    }
}
