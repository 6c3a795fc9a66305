//! TRACK: search by elasticity, a computed knee, then tracking with small probes. It controls only
//! the streams, and uses fresh connections. [`Pilot`](super::Kind::Pilot) was developed from it; it
//! is kept for comparison.

use super::decision::{Decision, Reason};
use super::meter::{Estimate, Meter, elasticity};
use super::options::Options;
use super::sample::{Chunk, Progress};
use super::{Tuner, first_bytes};

/// If doubling the streams gains less than 6 %, the curve is flat.
const FLAT: f64 = 0.06 / std::f64::consts::LN_2;
const UP: f64 = 1.8;
const DOWN: f64 = 1.3;
const LONGEST: f64 = 8.0;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Ramp { down: bool, looked_further: bool },
    Base,
    Probe { up: bool, repeated: bool },
}

#[derive(Debug)]
pub(super) struct Track {
    options: Options,
    meter: Meter,
    phase: Phase,
    /// Streams of the current chunk.
    n: u32,
    /// The best known number of streams.
    base: u32,
    points: Vec<(u32, f64)>,
    last_elasticity: Option<f64>,
    len: f64,
    reference: Option<f64>,
    reference_seconds: f64,
    wait: u32,
    bases: u32,
    next_up: bool,
    up: Estimate,
    down: Estimate,
    /// Rate and round-trip time at which a search because of full windows gained nothing.
    muted: Option<(f64, f64)>,
    reason: Reason,
}

impl Track {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            meter: Meter::new(options),
            phase: Phase::Ramp { down: false, looked_further: false },
            n: options.first_streams,
            base: options.first_streams,
            points: Vec::new(),
            last_elasticity: None,
            len: 1.0,
            reference: None,
            reference_seconds: 0.0,
            wait: 1,
            bases: 0,
            next_up: true,
            up: Estimate::default(),
            down: Estimate::default(),
            muted: None,
            reason: Reason::Start,
            options: options.clone(),
        }
    }

    fn ramp_len(&self) -> f64 {
        let settle = 60.0 * self.meter.rtt() / self.options.chunk_seconds;
        0.4f64.max(settle).max(0.4 * self.meter.deviation() / 0.05).min(1.0)
    }

    fn start_ramp(&mut self, from: u32, reason: Reason) -> Decision {
        self.phase = Phase::Ramp { down: false, looked_further: false };
        self.points.clear();
        self.last_elasticity = None;
        self.reference = None;
        self.len = self.ramp_len();
        self.send(from, self.len, reason)
    }

    fn send(&mut self, n: u32, len: f64, reason: Reason) -> Decision {
        self.n = n.clamp(1, self.options.max_streams);
        self.reason = reason;
        let seconds = len * self.options.chunk_seconds;
        let gain = f64::from(u8::from(matches!(reason, Reason::WindowLimited { .. })));
        let bytes = match self.meter.expected(self.n, gain) {
            Some(rate) => rate * seconds,
            None => first_bytes(&self.options, self.n, seconds),
        };
        self.meter.begin(self.n);
        Decision::streams(self.n, bytes, reason)
    }

    fn ramp(&mut self, g: f64, down: bool, looked_further: bool) -> Decision {
        let n = self.n;
        let utilisation = self.meter.utilisation(n, g);
        let before = self.points.last().copied();
        self.points.push((n, g));
        let len = self.ramp_len();
        if down {
            let e = before.map_or(1.0, |(n0, g0)| elasticity((n0, g0), (n, g)));
            if e < FLAT && n > 1 {
                return self.send(n / 2, len, Reason::LookingDown { elasticity: e });
            }
            return self.knee();
        }
        if n >= self.options.max_streams {
            return self.knee();
        }
        let e = before.map(|before| elasticity(before, (n, g)));
        let last = std::mem::replace(&mut self.last_elasticity, e);
        if let Some(utilisation) = utilisation.filter(|&u| u > 0.9) {
            return self.send(n.saturating_mul(3), len, Reason::WindowLimited { utilisation });
        }
        let Some(e) = e else {
            return self.send(2 * n, len, Reason::Growing { elasticity: 1.0 });
        };
        if e > FLAT {
            return self.send(2 * n, len, Reason::Growing { elasticity: e });
        }
        if last.is_some_and(|last| last < 0.75) && !looked_further {
            self.phase = Phase::Ramp { down, looked_further: true };
            return self.send(2 * n, len, Reason::Growing { elasticity: e });
        }
        let first = self.points.first().map_or(n, |point| point.0);
        if self.points.len() == 2 && first > 1 && utilisation.is_none_or(|u| u < 0.9) {
            self.phase = Phase::Ramp { down: true, looked_further };
            return self.send(first / 2, len, Reason::LookingDown { elasticity: e });
        }
        self.knee()
    }

    fn knee(&mut self) -> Decision {
        self.points.sort_by_key(|point| point.0);
        let (n, reason) = super::meter::knee(&self.points, None, 1.12, 0.86);
        self.base = n.clamp(1, self.options.max_streams);
        self.hold(reason)
    }

    /// Continues with base chunks, and resets all estimates for this number of streams.
    fn hold(&mut self, reason: Reason) -> Decision {
        self.phase = Phase::Base;
        self.reference = None;
        self.len = 1.0;
        self.bases = 0;
        self.wait = 1;
        self.up = Estimate::default();
        self.down = Estimate::default();
        self.next_up = true;
        self.send(self.base, self.len, reason)
    }

    fn base(&mut self, g: f64, seconds: f64) -> Decision {
        let now = g.ln();
        self.bases += 1;
        if let Some(reference) = self.reference {
            let sd = self.meter.deviation() * (self.options.chunk_seconds / seconds).sqrt();
            let off = now - reference;
            if off.abs() > 0.16f64.max(3.2 * sd) {
                return self.changed(g, off.exp());
            }
            self.meter.residual(off, seconds);
            self.reference = Some(reference + 0.3 * off);
            self.reference_seconds = (self.reference_seconds + seconds).min(80.0);
        } else {
            self.reference = Some(now);
            self.reference_seconds = seconds;
        }
        if let Some(utilisation) = self.meter.utilisation(self.n, g).filter(|&u| u > 0.93) {
            let rtt = self.meter.rtt();
            let muted = self
                .muted
                .is_some_and(|(level, at)| (g / level).ln().abs() < 0.18 && (rtt / at).ln().abs() < 0.18);
            if !muted && self.n < self.options.max_streams {
                self.muted = Some((g, rtt));
                return self.start_ramp(self.n, Reason::WindowLimited { utilisation });
            }
        }
        if self.bases >= self.wait {
            return self.probe(self.next_up, false);
        }
        self.len = (1.6 * self.len).min(LONGEST);
        self.send(self.base, self.len, Reason::Holding)
    }

    fn probe(&mut self, up: bool, repeated: bool) -> Decision {
        let up = (up && self.base < self.options.max_streams) || self.base == 1;
        let (ratio, n): (f64, f64) = match up {
            true => (UP, (f64::from(self.base) * UP).ceil()),
            false => (DOWN, (f64::from(self.base) / DOWN).floor()),
        };
        let quiet = 1.1 * self.meter.deviation() / (0.25 * ratio.ln());
        let least = 0.7f64.max(60.0 * self.meter.rtt() / self.options.chunk_seconds).min(2.5);
        let len = (quiet * quiet / 0.6).clamp(least, 2.5);
        self.phase = Phase::Probe { up, repeated };
        let from = self.base;
        let reason = if up { Reason::ProbeUp { from } } else { Reason::ProbeDown { from } };
        self.send(n as u32, len, reason)
    }

    fn probed(&mut self, g: f64, seconds: f64, up: bool, repeated: bool) -> Decision {
        let Some(reference) = self.reference else { return self.hold(Reason::Holding) };
        let ratio = (f64::from(self.n) / f64::from(self.base)).ln();
        let e = (g.ln() - reference) / ratio;
        let v = self.meter.variance() * self.options.chunk_seconds;
        let variance = (v / seconds + v / self.reference_seconds.max(1.0)) / (ratio * ratio);
        let estimate = if up { &mut self.up } else { &mut self.down };
        estimate.add(e, variance, 0.8);
        let (mean, se, count) = (estimate.mean(), estimate.error(), estimate.count());
        if up && mean - se > 0.05 {
            self.base = self.n;
            if e > 0.7 {
                return self.start_ramp(self.n, Reason::Growing { elasticity: e });
            }
            return self.hold(Reason::MovedUp { elasticity: mean });
        }
        if up && !repeated && mean + se > 0.05 && mean > 0.0 {
            return self.probe(true, true);
        }
        if !up && (mean + se < 0.0 || count >= 2 && mean < 0.05 && mean + 0.7 * se < 0.25) {
            self.base = self.n;
            return self.hold(Reason::MovedDown { elasticity: mean });
        }
        self.next_up = !up;
        self.wait = (self.wait + 1).min(6);
        self.bases = 0;
        self.phase = Phase::Base;
        self.len = (1.6 * self.len).min(LONGEST);
        self.send(self.base, self.len, Reason::Holding)
    }

    fn changed(&mut self, g: f64, factor: f64) -> Decision {
        let utilisation = self.meter.utilisation(self.n, g);
        self.muted = None;
        if utilisation.is_some_and(|u| u > 0.9) {
            return self.start_ramp(self.n, Reason::Changed { factor });
        }
        self.hold(Reason::Changed { factor });
        self.reference = Some(g.ln());
        self.reference_seconds = 0.5 * self.options.chunk_seconds;
        self.probe(true, false)
    }
}

impl Tuner for Track {
    fn first(&mut self) -> Decision {
        let len = self.ramp_len();
        self.send(self.options.first_streams, len, Reason::Start)
    }

    fn chunk(&mut self, chunk: &Chunk) -> Decision {
        self.meter.learn(chunk);
        let (corrected, seconds) = self.meter.corrected(chunk);
        let (g, seconds) = match self.phase {
            Phase::Ramp { .. } => (corrected, seconds),
            _ => self.meter.steady(chunk).unwrap_or((corrected, seconds)),
        };
        self.meter.record(chunk.streams, g);
        match self.phase {
            Phase::Ramp { down, looked_further } => self.ramp(g, down, looked_further),
            Phase::Base => self.base(g, seconds),
            Phase::Probe { up, repeated } => self.probed(g, seconds, up, repeated),
        }
    }

    fn progress(&mut self, progress: &Progress) -> Option<Reason> {
        self.meter.mark(progress);
        let reference = self.reference.filter(|_| self.phase == Phase::Base)?;
        let factor = self.meter.shifted(reference, 0.16, 3.2, 3)?;
        Some(Reason::Changed { factor })
    }

    fn lost(&mut self) {
        self.meter.begin(self.n);
    }
}
