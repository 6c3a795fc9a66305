//! More streams carried much less: either the streams themselves cost so much, or other flows
//! started meanwhile. Only a measurement with the earlier number distinguishes the two cases.

use super::super::decision::{Decision, Reason, whole_bytes};
use super::super::meter::elasticity;
use super::super::options::{Connections, Fairness};
use super::ramp::Ramp;
use super::share::stated;
use super::{Phase, Pilot};

/// Numbers above this fraction of a number that was too many are not tried.
const NEAR: f64 = 0.9;
/// Rates that differ by less than this (logarithm) are equal.
const SAME: f64 = 0.17;
/// Minimum ratio of two successive reports if the rate still rises.
const RISES: f64 = 1.05;
/// Duration of a measurement: a multiple of the time that windows need to grow to their previous
/// size; minimum and maximum in target durations. It ends early when the result is clear.
const SHORTEST: f64 = 0.4;
const GROWTH: f64 = 1.5;
const LONGEST: f64 = 2.0;
/// Number of chunks during which a number that was too many is not tried again: initial and maximum
/// value.
const FIRST_DOUBT: u32 = 4;
const LONGEST_DOUBT: u32 = 64;

/// A number of streams that carried much less than fewer do. The intervals between trials of it
/// grow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cliff {
    at: u32,
    /// The largest number of streams that did no harm, and its rate (logarithm).
    harmless: Option<(u32, f64)>,
    wait: u32,
    doubt: u32,
}

impl Cliff {
    /// Records that `n` streams were too many.
    pub(super) fn met(&mut self, n: u32) {
        // A number far above the last one is a separate question.
        let same = NEAR * f64::from(n) < f64::from(self.at);
        self.doubt = if same { (2 * self.doubt).min(LONGEST_DOUBT) } else { FIRST_DOUBT };
        self.wait = self.doubt;
        self.at = n;
        self.harmless = self.harmless.filter(|harmless| harmless.0 < n);
    }

    /// Records that `n` streams carried about the expected rate.
    pub(super) fn stood(&mut self, n: u32, level: f64) {
        self.harmless = match self.harmless {
            Some((most, before)) if level < before - SAME => Some((most, before)),
            Some((most, before)) if level < before + SAME => Some((most.max(n), before.max(level))),
            _ => Some((n, level)),
        };
    }

    /// Whether at least `n` streams carried about `level` before.
    fn is_harmless(&self, n: u32, level: f64) -> bool {
        self.harmless.is_some_and(|(most, before)| n <= most && before > level - SAME)
    }

    /// A chunk has ended.
    pub(super) fn passed(&mut self) {
        self.wait = self.wait.saturating_sub(1);
    }

    /// The maximum number of streams to try now, if more were too many.
    pub(super) fn most(&self) -> Option<u32> {
        (self.wait > 0).then(|| ((NEAR * f64::from(self.at)) as u32).max(1))
    }
}

/// A repeated measurement of fewer streams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Back {
    /// Their rate before (logarithm).
    before: f64,
    /// The larger number that carried less, and its rate (logarithm).
    tried: u32,
    fallen: f64,
    /// The increase during which this happened.
    ramp: Option<Ramp>,
    /// Whether this is the second measurement, because the rate rose during the first one.
    again: bool,
}

impl Pilot {
    /// Whether more streams may be the reason of a lower rate. Polite transfers and those with a
    /// stated share have other rules.
    fn may_blame_streams(&self) -> bool {
        self.options.fairness != Fairness::Polite
            && stated(&self.options).is_none()
            && !self.limits.crowded()
            && !self.limits.shared()
    }

    /// Whether to investigate a fall from `level`: not if this number of streams did no harm
    /// before.
    pub(super) fn goes_back(&self, level: f64) -> bool {
        self.may_blame_streams() && !self.cliff.is_harmless(self.n, level)
    }

    /// A trial has ended: records whether it had too many streams.
    pub(super) fn judge(&mut self, rate: f64, seconds: f64) {
        // If connections are kept, a fall would have been investigated already.
        let fresh = self.options.connections == Connections::Fresh && self.may_blame_streams();
        if fresh && self.n > self.base && self.is_far_under(rate, seconds) {
            self.cliff.met(self.n);
        } else {
            self.cliff.stood(self.n, rate.max(1.0).ln());
        }
    }

    /// Measures `to` streams again, which carried `before` (logarithm). The current number carries
    /// `rate`.
    pub(super) fn go_back(&mut self, to: u32, before: f64, rate: f64, ramp: Option<Ramp>) -> Decision {
        let back = Back { before, tried: self.n, fallen: rate.max(1.0).ln(), ramp, again: false };
        self.look_back(to, back)
    }

    fn look_back(&mut self, to: u32, back: Back) -> Decision {
        self.phase = Phase::Back(back);
        // If connections are kept, the remaining streams have the windows of the larger number,
        // which grow by about a packet per round-trip time.
        let (rate, rtt) = (back.before.exp(), self.meter.rtt());
        let packets = (rate - back.fallen.exp()).max(0.0) * rtt / f64::from(to) / self.options.packet_bytes;
        let chunk = self.options.chunk_seconds;
        let seconds =
            self.ramp_seconds().max((SHORTEST * chunk + GROWTH * packets * rtt).min(LONGEST * chunk));
        let decision = self.send(to, seconds, Reason::ProbeDown { from: back.tried });
        Decision { bytes: decision.bytes.max(whole_bytes(seconds * rate)), ..decision }
    }

    /// Whether the reports are so clear that the rest of the chunk would add nothing.
    pub(super) fn tells(&self, back: Back) -> bool {
        let kept = self.options.connections == Connections::Kept;
        let middle = 0.5 * (back.before + back.fallen);
        // Clear means halfway from the middle to the expected level.
        let clear = 0.25 * (back.before - back.fallen);
        // Streams were only removed, so only the first report contains a start-up.
        let [_, .., (_, a), (_, b), (_, c)] = *self.meter.marks() else { return false };
        let [a, b, c] = [a, b, c].map(|rate| rate.max(1.0).ln() - middle);
        let rises = c - a > 0.5 * clear;
        kept && (b.min(c) > clear || a.max(b).max(c) < -clear && !rises)
    }

    /// The repeated measurement has ended.
    pub(super) fn returned(&mut self, back: Back, rate: f64) -> Decision {
        // If connections are kept, the rate at the end of the chunk counts.
        let kept = self.options.connections == Connections::Kept;
        let (rate, rises) = match *self.meter.marks() {
            [.., (_, a), (_, b)] if kept => (b.max(0.5 * (a + b)), b > RISES * a),
            _ => (rate, false),
        };
        let (n, now) = (self.n, rate.max(1.0).ln());
        if now > 0.5 * (back.before + back.fallen) {
            self.cliff.met(back.tried);
            if back.ramp.is_some() && self.points.len() > 1 {
                return self.bend_within(n);
            }
            let elasticity = elasticity((n, rate), (back.tried, back.fallen.exp()));
            self.points = vec![(n, rate)];
            self.base = n;
            self.ascent.ended(n);
            self.level = Some(now);
            let reason = Reason::MovedDown { elasticity };
            self.settle(reason);
            self.hold.flat_above = true;
            return self.stay(reason);
        }
        if rises && !back.again {
            return self.look_back(n, Back { again: true, ..back });
        }
        match back.ramp {
            // Continue with the rates that both numbers have on the path as it is now.
            Some(ramp) => {
                self.points = vec![(n, rate)];
                self.n = back.tried;
                self.climb_after_fall(ramp, back.fallen.exp())
            }
            None => {
                self.limits.bar(false);
                self.base = n;
                self.changed(rate, (now - back.before).exp())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cliff_met_again_is_tried_less_often() {
        let mut cliff = Cliff::default();
        assert_eq!(cliff.most(), None);
        let waited = [0; 6].map(|_| {
            cliff.met(20);
            assert_eq!(cliff.most(), Some(18));
            (0..).find(|_| {
                cliff.passed();
                cliff.most().is_none()
            })
        });
        assert_eq!(waited.map(|chunks| chunks.map_or(0, |chunks| chunks + 1)), [4, 8, 16, 32, 64, 64]);
        cliff.met(40);
        assert_eq!(cliff.wait, FIRST_DOUBT);
    }

    #[test]
    fn cliff_is_harmless_depends_on_rate() {
        let mut cliff = Cliff::default();
        cliff.stood(60, 3.0);
        cliff.stood(80, 2.5);
        assert!(cliff.is_harmless(60, 3.1) && !cliff.is_harmless(61, 2.5) && !cliff.is_harmless(10, 3.5));
        cliff.stood(20, 3.5);
        assert!(!cliff.is_harmless(60, 3.5) && cliff.is_harmless(20, 3.5));
        cliff.met(20);
        assert!(!cliff.is_harmless(20, 3.0));
    }
}
