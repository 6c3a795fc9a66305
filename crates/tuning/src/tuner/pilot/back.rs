//! More streams that carried much less: whether it is they that cost so much, or others who came meanwhile. Only going back
//! tells.

use super::super::decision::{Decision, Reason, whole_bytes};
use super::super::meter::elasticity;
use super::super::options::{Connections, Fairness};
use super::ramp::Ramp;
use super::share::stated;
use super::{Phase, Pilot};

/// So close under a number that was too many nothing is tried (factor).
const NEAR: f64 = 0.9;
/// Rates (logarithms) that differ by less are of one level.
const SAME: f64 = 0.17;
/// Of two reports: whether a rate still rises.
const RISES: f64 = 1.05;
/// How much longer a look is than windows take to grow to what they were; the shortest and the longest, in target times. It
/// ends when it is clear.
const SHORTEST: f64 = 0.4;
const GROWTH: f64 = 1.5;
const LONGEST: f64 = 2.0;
/// Chunks to let pass after a number was too many: first, and at most.
const FIRST_DOUBT: u32 = 4;
const LONGEST_DOUBT: u32 = 64;

/// A number of streams that carried much less than fewer do. It is tried ever less often.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cliff {
    at: u32,
    /// So many were seen to do no harm, and what they carried (logarithm).
    harmless: Option<(u32, f64)>,
    wait: u32,
    doubt: u32,
}

impl Cliff {
    /// So many were too many.
    pub(super) fn met(&mut self, n: u32) {
        // Far more streams than the last ones are another question.
        let same = NEAR * f64::from(n) < f64::from(self.at);
        self.doubt = if same { (2 * self.doubt).min(LONGEST_DOUBT) } else { FIRST_DOUBT };
        self.wait = self.doubt;
        self.at = n;
        self.harmless = self.harmless.filter(|harmless| harmless.0 < n);
    }

    /// So many carried about what was expected of them.
    pub(super) fn stood(&mut self, n: u32, level: f64) {
        self.harmless = match self.harmless {
            Some((most, before)) if level < before - SAME => Some((most, before)),
            Some((most, before)) if level < before + SAME => Some((most.max(n), before.max(level))),
            _ => Some((n, level)),
        };
    }

    /// Whether as many carried about as much as `level` before.
    fn is_harmless(&self, n: u32, level: f64) -> bool {
        self.harmless.is_some_and(|(most, before)| n <= most && before > level - SAME)
    }

    /// A chunk passed.
    pub(super) fn passed(&mut self) {
        self.wait = self.wait.saturating_sub(1);
    }

    /// The most streams that are to be tried for now, if there are too many.
    pub(super) fn most(&self) -> Option<u32> {
        (self.wait > 0).then(|| ((NEAR * f64::from(self.at)) as u32).max(1))
    }
}

/// Fewer streams are looked at once more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Back {
    /// What they carried before (logarithm).
    before: f64,
    /// The number that carried less, and what (logarithm).
    tried: u32,
    fallen: f64,
    /// The climb that this is a part of.
    ramp: Option<Ramp>,
    /// They were looked at, and carried more and more.
    again: bool,
}

impl Pilot {
    /// Whether more streams may be to blame: politeness and shares have their own ways.
    fn may_blame_streams(&self) -> bool {
        self.options.fairness != Fairness::Polite
            && stated(&self.options).is_none()
            && !self.limits.crowded()
            && !self.limits.shared()
    }

    /// Whether a fall from `level` is looked into: not where as many streams did no harm before.
    pub(super) fn goes_back(&self, level: f64) -> bool {
        self.may_blame_streams() && !self.cliff.is_harmless(self.n, level)
    }

    /// A trial is over: whether it was of too many.
    pub(super) fn judge(&mut self, rate: f64, seconds: f64) {
        // Where connections stay, that would have been looked into.
        let fresh = self.options.connections == Connections::Fresh && self.may_blame_streams();
        if fresh && self.n > self.base && self.is_far_under(rate, seconds) {
            self.cliff.met(self.n);
        } else {
            self.cliff.stood(self.n, rate.max(1.0).ln());
        }
    }

    /// Looks at `to` streams, which carried `before` (logarithm), once more: those that run carry `rate` alone.
    pub(super) fn go_back(&mut self, to: u32, before: f64, rate: f64, ramp: Option<Ramp>) -> Decision {
        let back = Back { before, tried: self.n, fallen: rate.max(1.0).ln(), ramp, again: false };
        self.look_back(to, back)
    }

    fn look_back(&mut self, to: u32, back: Back) -> Decision {
        self.phase = Phase::Back(back);
        // Streams that stay have the windows of the many, and gain about a packet a round trip.
        let (rate, rtt) = (back.before.exp(), self.meter.rtt());
        let packets = (rate - back.fallen.exp()).max(0.0) * rtt / f64::from(to) / self.options.packet_bytes;
        let chunk = self.options.chunk_seconds;
        let seconds =
            self.ramp_seconds().max((SHORTEST * chunk + GROWTH * packets * rtt).min(LONGEST * chunk));
        let decision = self.send(to, seconds, Reason::ProbeDown { from: back.tried });
        Decision { bytes: decision.bytes.max(whole_bytes(seconds * rate)), ..decision }
    }

    /// Whether reports say so much that the rest of the chunk says nothing new.
    pub(super) fn tells(&self, back: Back) -> bool {
        let kept = self.options.connections == Connections::Kept;
        let middle = 0.5 * (back.before + back.fallen);
        // As far from the middle as halfway to what is expected.
        let clear = 0.25 * (back.before - back.fallen);
        // Streams only left: no start-up is in the reports but the first.
        let [_, .., (_, a), (_, b), (_, c)] = *self.meter.marks() else { return false };
        let [a, b, c] = [a, b, c].map(|rate| rate.max(1.0).ln() - middle);
        let rises = c - a > 0.5 * clear;
        kept && (b.min(c) > clear || a.max(b).max(c) < -clear && !rises)
    }

    /// They have been looked at.
    pub(super) fn returned(&mut self, back: Back, rate: f64) -> Decision {
        // Where they stayed, what they carry in the end is what counts.
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
            // What both carry of the path as it is now.
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
    fn what_was_too_many_is_tried_ever_less_often() {
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
    fn what_did_no_harm_is_told_by_what_it_carried() {
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
