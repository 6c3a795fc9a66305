//! Tests whether other flows share a full path: then more streams gain what the others lose.
//!
//! Two transfers of this kind that start at the same time make the same measurements, and if both
//! try more streams at the same time, neither gains. So the test is repeated a few times, at random
//! times.

use super::super::decision::{Decision, Reason};
use super::super::options::{Connections, Fairness};
use super::share::stated;
use super::{Phase, Pilot};

/// Maximum number of unsuccessful tests.
const TIMES: u32 = 4;
/// Streams of a test, as a multiple.
const MORE: f64 = 3.0;
/// Duration of a test, in target durations.
const LENGTH: f64 = 0.4;
/// Minimum gain (logarithm) that proves other flows, also in standard deviations.
const GAIN: f64 = 0.15;
const GAIN_DEVIATIONS: f64 = 2.5;
/// Minimum time between two tests, and maximum random addition, in target durations.
const SHORTEST: f64 = 0.15;
const CHANCE: f64 = 0.5;
/// Number of chunks between two checks whether the other flows are still there: initial and maximum
/// value.
const PATIENCE: u32 = 20;
const LONGEST_PATIENCE: u32 = 80;
/// The same if the other flows are not certain.
const PATIENCE_UNCERTAIN: u32 = 40;
const LONGEST_UNCERTAIN: u32 = 320;
/// Streams of a check, as a multiple, and its duration in target durations.
const FEWER: f64 = 0.7;
const CHECK: f64 = 0.5;
/// The same if the other flows are not certain: otherwise a path that is crowded only by this
/// transfer would be considered crowded for ever. The check lasts until the elasticity has this
/// error.
const FAR_FEWER: f64 = 0.4;
const ERROR: f64 = 0.1;
const LONGEST_CHECK: f64 = 2.5;
/// If each stream loses less than this (elasticity), there are no other flows; with one other
/// transfer it is about a half.
const ALONE: f64 = 0.2;

/// The knowledge about other flows on the path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Others {
    /// Number of unsuccessful tests.
    pub(super) asked: u32,
    /// Streams before the other flows were detected.
    from: u32,
    /// Chunks until the next check, and the current interval between checks.
    wait: u32,
    patience: u32,
    /// Number of successive checks that found no other flows.
    doubts: u32,
    /// Logarithm of the recent rate.
    level: Option<f64>,
}

impl Pilot {
    /// Whether a test for other flows is due and useful here.
    pub(super) fn may_ask(&self) -> bool {
        self.others.asked < TIMES
            && self.limits.full()
            && !self.limits.crowded()
            && self.limits.bottleneck().is_none()
            && self.options.connections == Connections::Kept
            && self.options.fairness != Fairness::Polite
            && stated(&self.options).is_none()
            && 4 * self.base <= self.most_to_try()
    }

    /// Time to keep `base` before the next test, in target durations.
    pub(super) fn before_asking(&self) -> f64 {
        SHORTEST + CHANCE * self.chance()
    }

    pub(super) fn ask(&mut self) -> Decision {
        let from = self.base;
        self.phase = Phase::Ask;
        let seconds = LENGTH.max(20.0 * self.meter.rtt() / self.options.chunk_seconds);
        let n = (MORE * f64::from(from)).ceil() as u32;
        self.send(n, seconds * self.options.chunk_seconds, Reason::ProbeUp { from })
    }

    pub(super) fn asked(&mut self, rate: f64, seconds: f64) -> Decision {
        let (before, stood) = self.hold.reference.unwrap_or((rate.ln(), seconds));
        let error = (self.sd(seconds).powi(2) + self.sd(stood).powi(2)).sqrt();
        if rate.ln() - before > GAIN.max(GAIN_DEVIATIONS * error)
            && let Some(decision) = self.share_path()
        {
            return decision;
        }
        if self.is_far_under(rate, seconds) && self.goes_back(before) {
            return self.go_back(self.base, before, rate, None);
        }
        self.others.asked += 1;
        self.stay(Reason::Holding)
    }

    /// More streams gain, or the same number carries less. If other flows on a full path are the
    /// only explanation, changes to the number of streams for a crowded path.
    pub(super) fn share_path(&mut self) -> Option<Decision> {
        let known = self.limits.shared();
        self.limits.share_path();
        let rate = self.meter.last().filter(|_| self.limits.shared())?;
        if !known {
            self.others = Others { from: self.base, patience: PATIENCE, ..self.others };
            self.wait();
        }
        let (base, reason) = self.limits.adjust(self.base, self.wanted, rate, self.meter.rtt())?;
        self.base = base;
        Some(self.settle(reason))
    }

    /// Schedules the next check whether the other flows are still there.
    fn wait(&mut self) {
        let chance = f64::from(self.others.patience) * self.chance();
        self.others.wait = self.others.patience + chance as u32;
        self.others.level = None;
    }

    fn chance(&self) -> f64 {
        (self.dice >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A chunk on a path that is apparently shared has ended. From time to time this starts a check
    /// with fewer streams.
    pub(super) fn check(&mut self, rate: f64) -> Option<Decision> {
        let certain = self.limits.shared();
        if !certain && !self.limits.crowded() || self.options.connections == Connections::Fresh {
            return None;
        }
        if self.others.patience == 0 {
            self.others.patience = PATIENCE_UNCERTAIN;
            self.wait();
        }
        let now = rate.ln();
        let level = self.others.level.map_or(now, |level| level + 0.5 * (now - level));
        self.others.level = Some(level);
        self.others.wait = self.others.wait.saturating_sub(1);
        if self.others.wait > 0 || self.base < 2 * self.least() {
            return None;
        }
        let from = self.base;
        self.phase = Phase::Check;
        let (fewer, len) = if certain {
            (FEWER, CHECK)
        } else {
            let noise = (self.meter.deviation() / (ERROR * FAR_FEWER.ln())).powi(2);
            (FAR_FEWER, noise.clamp(CHECK, LONGEST_CHECK))
        };
        let n = (fewer * f64::from(from)) as u32;
        Some(self.send(n, len * self.options.chunk_seconds, Reason::ProbeDown { from }))
    }

    pub(super) fn checked(&mut self, rate: f64) -> Decision {
        let fewer = (f64::from(self.base) / f64::from(self.n)).ln().max(0.1);
        let lost = (self.others.level.unwrap_or_default() - rate.ln()) / fewer;
        if lost < ALONE {
            self.others.doubts += 1;
            if self.others.doubts > 1 {
                return self.nobody(lost);
            }
            self.others.wait = 2;
            self.others.level = None;
        } else {
            self.others.doubts = 0;
            let longest = if self.limits.shared() { LONGEST_PATIENCE } else { LONGEST_UNCERTAIN };
            self.others.patience = (2 * self.others.patience).min(longest);
            self.wait();
        }
        let packets = rate * self.meter.rtt() / self.options.packet_bytes / f64::from(self.n);
        self.settle(Reason::Crowded { packets })
    }

    /// There are no other flows: returns to the number of streams at which more gained nothing.
    fn nobody(&mut self, elasticity: f64) -> Decision {
        self.limits.alone();
        self.others.asked = TIMES;
        self.others.doubts = 0;
        self.base = if self.others.from > 0 { self.others.from.min(self.n) } else { self.n };
        self.settle(Reason::MovedDown { elasticity })
    }
}
