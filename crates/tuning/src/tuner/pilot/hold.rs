//! Keeps a number of streams: watches for changes of the rate, and makes small trials.

use super::super::decision::{Decision, Reason};
use super::super::meter::Estimate;
use super::super::options::Connections;
use super::ascent::Ascent;
use super::back::Cliff;
use super::ramp::MARGIN;
use super::soft::SHARED;
use super::watch::{self, Report};
use super::{Phase, Pilot, Shape};

/// Maximum duration of a chunk in target durations, and the growth factor up to it.
const LONGEST: f64 = 8.0;
const GROWTH: f64 = 2.5;
const UP: f64 = 1.8;
/// Minimum change of the rate that counts (logarithm), also in standard deviations.
const CHANGE: f64 = 0.16;
const CHANGE_DEVIATIONS: f64 = 3.2;
/// After a change of the rate by this (logarithm) the whole search restarts.
const ANOTHER_PATH: f64 = 0.35;
/// Load of the windows from which on the knee must be higher, and below which it must be lower.
const FULL: f64 = 0.95;
const SLACK: f64 = 0.78;
/// If the rate fell below this fraction and the queue is unchanged, other flows took the
/// difference.
const TAKEN: f64 = 0.8;
/// Factor for the streams in each step down after an increase, and minimum duration of the step in
/// round-trip times.
const DESCENT: f64 = 0.6;
/// A fall of the rate (logarithm) from which on the closed streams were needed, also in standard
/// deviations.
const WORSE: f64 = 0.05;
const WORSE_DEVIATIONS: f64 = 1.5;
const DESCENT_ROUND_TRIPS: f64 = 50.0;
/// The error of an elasticity that a trial should reach.
const ERROR: f64 = 0.08;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hold {
    /// Duration of the next chunk in target durations.
    pub(super) len: f64,
    /// Logarithm of the rate at this number of streams, and the measured time in seconds.
    pub(super) reference: Option<(f64, f64)>,
    /// Number of chunks until the next trial.
    pub(super) wait: u32,
    /// A trial has shown that more streams gain nothing.
    pub(super) flat_above: bool,
    /// Fewer streams were tried and were slower.
    no_fewer: bool,
    since_probe: u32,
    /// Round-trip time of the last chunk.
    rtt: f64,
    repeated: bool,
    /// Number of trials since the last chunk with `base` streams, and whether the last one was with
    /// more streams.
    pub(super) trials: u32,
    pub(super) tried_up: bool,
    /// Number of chunks with `base` streams since the last trials, and the interval between trials.
    pub(super) since_trial: u32,
    pub(super) patience: u32,
    /// Number of streams in use while the surplus of an increase is being closed.
    pub(super) surplus: Option<u32>,
    /// The smaller number of streams before the last move.
    pub(super) moved_from: Option<u32>,
    /// The state to return to if the rate falls: streams and reference.
    fallback: Option<(u32, f64, f64)>,
}

impl Pilot {
    /// Keeps `base` from now on, and resets what was known for another number.
    pub(super) fn settle(&mut self, reason: Reason) -> Decision {
        // On a crowded path the number changes often; use short chunks if changes cost nothing.
        let quick = self.limits.crowded() && self.options.connections == Connections::Kept;
        self.hold = Hold {
            len: if quick {
                0.3
            } else if self.limits.crowded() {
                2.0
            } else {
                1.0
            },
            wait: 4,
            ..Hold::default()
        };
        self.up = Estimate::default();
        if self.shape == Shape::Soft {
            self.survey();
        }
        self.stay(reason)
    }

    pub(super) fn stay(&mut self, reason: Reason) -> Decision {
        self.phase = Phase::Hold;
        let len = if self.may_ask() { self.before_asking() } else { self.hold.len };
        let seconds = len * self.options.chunk_seconds;
        self.send(self.base, seconds, reason)
    }

    /// Closes the surplus streams of an increase step by step: closed streams lose their windows,
    /// and if the path changes meanwhile, the other streams still have windows for their previous
    /// share.
    pub(super) fn descend(&mut self, from: u32, reason: Reason) -> Decision {
        self.phase = Phase::Hold;
        let n = self.within((f64::from(from) * DESCENT) as u32);
        if n <= self.base {
            self.hold.surplus = None;
            return self.stay(reason);
        }
        self.hold.surplus = Some(n);
        let round_trips = DESCENT_ROUND_TRIPS * self.meter.rtt();
        self.send(n, round_trips.clamp(0.5 * self.options.chunk_seconds, self.options.chunk_seconds), reason)
    }

    /// A chunk with part of the surplus has ended.
    fn descended(&mut self, n: u32, rate: f64, seconds: f64) -> Decision {
        let now = rate.ln();
        let before = self.level.unwrap_or(now);
        if (self.meter.changed().is_some() || now < before - ANOTHER_PATH) && !self.limits.crowded() {
            self.level = Some(now);
            self.base = n;
            return self.changed(rate, (now - before).exp());
        }
        self.level = Some(now.max(before));
        if self.shape == Shape::Soft {
            self.surface.add(n, now, self.sd(seconds).powi(2), seconds);
        }
        if now < before - WORSE.max(WORSE_DEVIATIONS * self.sd(seconds)) {
            // The closed streams were needed.
            self.base = self.within((f64::from(n) / DESCENT).ceil() as u32);
            self.hold.no_fewer = true;
            return self.stay(Reason::Holding);
        }
        self.descend(n, Reason::Holding)
    }

    pub(super) fn sd(&self, seconds: f64) -> f64 {
        (self.meter.variance() * 10.0 / seconds.max(1.0)).sqrt()
    }

    pub(super) fn watch(&mut self) -> Option<Reason> {
        // This number has not been measured yet, but the increase has a level.
        let Some((reference, stood)) = self.hold.reference else { return self.fall() };
        if let Some(shift) = self.shift(reference, CHANGE, self.sd(stood), false) {
            return Some(shift);
        }
        let factor = self.meter.shifted(reference, CHANGE, CHANGE_DEVIATIONS, 12)?;
        Some(Reason::Changed { factor })
    }

    /// Whether the reports of this chunk show that the rate differs from the reference.
    fn shift(&mut self, reference: f64, least: f64, doubt: f64, falls_only: bool) -> Option<Reason> {
        let reports = self.meter.reports();
        let off = |(from, until, rate): (f64, f64, f64)| Report {
            from,
            until,
            off: rate.max(1.0).ln() - reference,
        };
        let shift = watch::shifted(reports.map(off), least, doubt, self.meter.flicker())?;
        if falls_only && shift.off > 0.0 {
            return None;
        }
        self.meter.change(shift.since);
        Some(Reason::Changed { factor: shift.off.exp() })
    }

    /// The minimum rate (logarithm) expected of the current streams, based on the rate with `base`
    /// streams.
    pub(super) fn expected(&self) -> Option<f64> {
        let level = self.hold.reference.map(|reference| reference.0).or(self.level)?;
        Some(level + (f64::from(self.n) / f64::from(self.base)).ln().min(0.0))
    }

    /// Whether the last reports of a chunk are so far below the expected rate that other flows must
    /// have started.
    pub(super) fn fall(&mut self) -> Option<Reason> {
        let kept = self.options.connections == Connections::Kept && !self.limits.crowded();
        let expected = self.expected().filter(|_| kept)?;
        if let Some((since, factor)) = self.meter.fallen(expected, ANOTHER_PATH, CHANGE_DEVIATIONS) {
            self.meter.change(since);
            return Some(Reason::Changed { factor });
        }
        let stood = self.hold.reference.map_or(self.ramp_seconds(), |reference| reference.1);
        self.shift(expected, ANOTHER_PATH, self.sd(stood), true)
    }

    /// Whether a trial had such a low rate that the path must have changed.
    pub(super) fn broken(&self, rate: f64, seconds: f64) -> bool {
        let kept = self.options.connections == Connections::Kept && !self.limits.crowded();
        kept && self.is_far_under(rate, seconds)
    }

    /// Whether this chunk was much slower than expected.
    pub(super) fn is_far_under(&self, rate: f64, seconds: f64) -> bool {
        let least = ANOTHER_PATH.max(CHANGE_DEVIATIONS * self.sd(seconds));
        self.expected().is_some_and(|level| rate.ln() < level - least)
    }

    pub(super) fn held(&mut self, rate: f64, seconds: f64) -> Decision {
        let now = rate.ln();
        self.hold.since_probe += 1;
        self.cliff.passed();
        if let Some(decision) = self.check(rate) {
            return decision;
        }
        if self.limits.crowded() {
            self.level = Some(now);
        }
        if let Some((n, before)) = self.limits.costs(self.n, now, self.sd(seconds)) {
            self.limits.bar(true);
            return self.go_back(n, before, rate, None);
        }
        if let Some((base, reason)) = self.limits.adjust(self.base, self.wanted, rate, self.meter.rtt()) {
            self.wanted = self.wanted.max(self.base);
            self.base = base;
            return self.settle(reason);
        }
        if let Some(n) = self.hold.surplus.take().filter(|_| !self.limits.crowded()) {
            return self.descended(n, rate, seconds);
        }
        let fallback = self.hold.fallback.take();
        if let Some((n, before, stood)) = fallback {
            let error = (self.sd(seconds).powi(2) + self.sd(stood).powi(2)).sqrt();
            if now < before - 0.04f64.max(2.0 * error) {
                self.base = n;
                self.settle(Reason::Holding);
                self.hold.reference = Some((before, stood));
                self.hold.no_fewer = true;
                self.hold.wait = 1;
                return self.stay(Reason::Holding);
            }
        }
        if let (Some((reference, _)), Some(_)) = (self.hold.reference, self.meter.changed())
            && !self.limits.crowded()
        {
            self.level = Some(now);
            return self.changed(rate, (now - reference).exp());
        }
        if self.limits.crowded() {
            let packets = rate * self.meter.rtt() / self.options.packet_bytes / f64::from(self.n);
            return self.settle(Reason::Crowded { packets });
        }
        let before = self.level.replace(now);
        let reference = match self.hold.reference {
            // Other flows started before this number was measured.
            None if before.is_some_and(|before| now < before - ANOTHER_PATH) => {
                let level = before.unwrap_or(now);
                if let Some(from) = self.hold.moved_from.take().filter(|_| self.goes_back(level)) {
                    return self.go_back(from, level, rate, None);
                }
                return self.changed(rate, (now - level).exp());
            }
            None => (now, seconds),
            Some((reference, stood)) => {
                let off = now - reference;
                if off.abs() > CHANGE.max(CHANGE_DEVIATIONS * self.sd(seconds)) {
                    return self.changed(rate, off.exp());
                }
                self.meter.residual(off, seconds);
                let weight = (seconds / (seconds + stood)).max(0.3);
                (reference + weight * off, (stood + seconds).min(100.0))
            }
        };
        self.hold.reference = Some(reference);
        if self.may_ask() {
            return self.ask();
        }
        if self.shape == Shape::Soft {
            return self.level(rate, seconds);
        }
        // After a change of the round-trip time, earlier measurements do not show the load.
        let rtt = std::mem::replace(&mut self.hold.rtt, self.meter.base_rtt());
        let moved = rtt > 0.0 && (self.meter.base_rtt() / rtt).ln().abs() > 0.05;
        if moved {
            self.hold.no_fewer = false;
            self.ascent = Ascent::default();
        }
        let current = if moved { (now, seconds) } else { reference };
        if let Some(decision) = self.refit(current) {
            return decision;
        }
        let may = self.limits.bottleneck().is_none() && self.base < self.most_to_try();
        if may && self.hold.since_probe >= self.hold.wait {
            return self.probe();
        }
        self.stay_longer()
    }

    pub(super) fn stay_longer(&mut self) -> Decision {
        self.hold.len = (GROWTH * self.hold.len).min(LONGEST);
        let reason = match (self.limits.bottleneck(), self.shape) {
            (Some(by), _) => Reason::Limited { by },
            (None, Shape::Soft) => self.why_here(),
            (None, Shape::Sharp { .. }) => Reason::Holding,
        };
        self.stay(reason)
    }

    /// Evaluates the load of the windows, which needs no trial.
    fn refit(&mut self, (level, stood): (f64, f64)) -> Option<Decision> {
        let rate = level.exp();
        let load = self.load(self.base, rate)?;
        let sd = self.sd(stood);
        let ideal = self.within((MARGIN * load * f64::from(self.base)).ceil() as u32);
        if load > FULL * (0.5 * sd).exp() && self.base < self.most_to_try() && self.ascent.may(self.base) {
            return Some(self.climb_from(self.base, rate, 1.4, Reason::WindowLimited { utilisation: load }));
        }
        if load < SLACK && ideal < self.base && self.hold.flat_above && !self.hold.no_fewer {
            let (from, each) = (self.base, rate / (load * f64::from(self.base)));
            self.base = ideal;
            let decision = self.settle(Reason::Knee { each, ceiling: rate });
            self.hold.fallback = Some((from, level, stood));
            self.hold.flat_above = true;
            return Some(decision);
        }
        None
    }

    fn probe(&mut self) -> Decision {
        let from = self.base;
        let noise = (self.meter.deviation() / (ERROR * UP.ln())).powi(2);
        let least = 0.5f64.max(40.0 * self.meter.rtt() / self.options.chunk_seconds).min(2.5);
        let len = noise.clamp(least, 2.5);
        self.phase = Phase::Probe;
        let n = self.below_cliff((f64::from(from) * UP).ceil() as u32);
        self.send(n, len * self.options.chunk_seconds, Reason::ProbeUp { from })
    }

    /// A trial with more streams, which were not expected to help, has ended.
    pub(super) fn probed(&mut self, rate: f64, seconds: f64) -> Decision {
        let Some((reference, stood)) = self.hold.reference else { return self.settle(Reason::Holding) };
        let ratio = (f64::from(self.n) / f64::from(self.base)).ln();
        if ratio <= 0.0 {
            return self.settle(Reason::Holding);
        }
        let e = (rate.ln() - reference) / ratio;
        let variance = (self.sd(seconds).powi(2) + self.sd(stood).powi(2)) / (ratio * ratio);
        self.up.add(e, variance, 0.8);
        let (mean, se) = (self.up.mean(), self.up.error());
        if mean - se > self.worth() {
            if mean - 2.0 * se > SHARED
                && let Some(decision) = self.share_path()
            {
                return decision;
            }
            let n = self.n;
            if e > 0.7 {
                return self.climb_from(n, rate, 2.0, Reason::Growing { elasticity: e });
            }
            self.points = vec![(self.base, reference.exp()), (n, rate)];
            self.base = n;
            self.shape = Shape::Soft;
            return self.settle(Reason::MovedUp { elasticity: mean });
        }
        if !self.hold.repeated && mean + se > self.worth() && mean > 0.0 {
            self.hold.repeated = true;
            return self.probe();
        }
        self.hold.repeated = false;
        self.limits.conclude();
        self.hold.flat_above = true;
        self.hold.wait = (self.hold.wait + 2).min(6);
        self.hold.since_probe = 0;
        self.stay_longer()
    }

    pub(super) fn changed(&mut self, rate: f64, factor: f64) -> Decision {
        let reason = Reason::Changed { factor };
        self.others.asked = 0;
        // If the path had become slower, the queue would be longer.
        if factor < TAKEN
            && self.limits.same_queue()
            && self.options.connections == Connections::Kept
            && let Some(decision) = self.share_path()
        {
            return decision;
        }
        self.limits.forget();
        if factor < 1.0 {
            self.cliff = Cliff::default();
        }
        self.meter.forget_noise();
        self.ascent = Ascent::default();
        if let Some(by) = self.limits.bottleneck() {
            // The rate of the measured bottleneck has changed; more streams would not help.
            self.settle(Reason::Limited { by });
            self.hold.reference = Some((rate.ln(), 5.0));
            return self.stay(Reason::Limited { by });
        }
        let full = self.load(self.n, rate).or_else(|| self.meter.utilisation(self.n, rate));
        if full.is_some_and(|load| load > 0.9) && self.base < self.most() {
            return self.climb_from(self.n, rate, 2.0, reason);
        }
        if factor.ln().abs() > ANOTHER_PATH && self.shape == Shape::Soft && self.base < self.most() {
            return self.climb_from(self.n, rate, factor.recip().clamp(2.0, 4.0), reason);
        }
        if self.shape == Shape::Soft {
            return self.shifted(rate, factor);
        }
        self.settle(reason);
        self.hold.reference = Some((rate.ln(), 5.0));
        if self.base >= self.most() {
            return self.stay(reason);
        }
        self.probe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuner::{Chunk, Options, Tuner};

    #[test]
    fn held_on_crowded_path_with_right_number_keeps_it() {
        let mut pilot = Pilot::new(&Options { first_streams: 20, ..Options::default() });
        pilot.first();
        (pilot.phase, pilot.base) = (Phase::Hold, 20);
        pilot.limits.share();
        // Each stream has a window of 1.67 packets, which leaves room for 12 * 1.67 = 20 streams.
        let chunk = Chunk { rtt: Some(0.05), min_rtt: Some(0.05), ..Chunk::new(20, 10_000_000, 10.0) };
        let decision = pilot.chunk(&chunk);
        assert_eq!(decision.knobs.connections(), 20);
        assert!(matches!(decision.reason, Reason::Crowded { .. }), "{}", decision.reason);
    }
}
