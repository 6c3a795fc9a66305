//! A parabola of ln(rate) over ln(streams) around the number of streams to keep, fitted to the
//! latest chunks: Bayesian least squares with forgetting.

/// Prior of the curvature (mean, standard deviation): that of a path shared with other flows.
const CURVATURE: (f64, f64) = (-0.35, 0.2);
/// Prior of the slope: only its magnitude is known.
const SLOPE: (f64, f64) = (0.0, 0.5);
/// The error of the parabola grows with the third power of the distance, by about this factor.
const MISFIT: f64 = 0.15;
/// Minimum curvature that is assumed: without it there is no optimum.
const LEAST_CURVATURE: f64 = 0.08;
/// Time in seconds after which the weight of a measurement is reduced by the factor e.
const MEMORY: f64 = 300.0;
/// Maximum number of measurements.
const KEPT: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Logarithm of streams.
    x: f64,
    /// Logarithm of the rate.
    level: f64,
    variance: f64,
    age: f64,
}

#[derive(Clone, Debug)]
pub(super) struct Surface {
    seen: Vec<Seen>,
    slope: (f64, f64),
}

/// The number of streams at which the slope is as wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Optimum {
    /// Its distance, as a logarithm of streams.
    pub(super) away: f64,
    /// Standard deviation of the distance.
    pub(super) error: f64,
    /// Slope and curvature at the current number.
    pub(super) slope: f64,
    pub(super) curvature: f64,
}

impl Default for Surface {
    fn default() -> Self {
        Self { seen: Vec::new(), slope: SLOPE }
    }
}

impl Surface {
    /// Takes a chunk of `seconds` with the number to keep, whose rate was `level` (logarithm) with
    /// this variance. If it does not fit the earlier measurements, these are dropped, because the
    /// path has changed.
    pub(super) fn add(&mut self, streams: u32, level: f64, variance: f64, seconds: f64) {
        if let Some(off) = self.misfit(streams, level, variance) {
            self.shift(streams, off);
        }
        self.take(streams, level, variance, seconds);
    }

    /// The same for a trial beside the number to keep. If it does not fit, the slope has changed:
    /// only the chunk before it is comparable.
    pub(super) fn add_trial(&mut self, streams: u32, level: f64, variance: f64, seconds: f64) {
        if self.misfit(streams, level, variance).is_some() {
            self.seen.drain(..self.seen.len() - 1);
            self.slope = SLOPE;
        }
        self.take(streams, level, variance, seconds);
    }

    /// The difference from the earlier measurements, if it is too large.
    fn misfit(&self, streams: u32, level: f64, variance: f64) -> Option<f64> {
        if self.seen.len() <= 2 {
            return None;
        }
        let (expected, doubt) = self.level(streams);
        let off = level - expected;
        (off.abs() > 0.1f64.max(3.2 * (doubt + variance).sqrt())).then_some(off)
    }

    fn take(&mut self, streams: u32, level: f64, variance: f64, seconds: f64) {
        for seen in &mut self.seen {
            seen.age += seconds;
        }
        if self.seen.len() >= KEPT {
            self.seen.remove(0);
        }
        self.seen.push(Seen { x: f64::from(streams).ln(), level, variance, age: 0.0 });
    }

    /// The level jumped by a factor (logarithm) at `streams`: earlier measurements are dropped. The
    /// slope is adjusted as far as the start or end of other flows explains the jump.
    pub(super) fn shift(&mut self, streams: u32, factor: f64) {
        let slope = self.optimum(streams, 0.0).slope;
        self.seen.clear();
        self.slope = ((slope + 0.6 * (1.0 - factor.exp()).clamp(-0.5, 0.5)).clamp(-1.0, 1.0), 0.25);
    }

    /// Normal equations of level, slope and curvature around `middle`, and the origin of the
    /// levels, which avoids an effect of the vague prior of the level.
    fn equations(&self, middle: f64) -> ([[f64; 3]; 3], [f64; 3], f64) {
        let mut m = [[1e-9, 0.0, 0.0], [0.0, self.slope.1.powi(-2), 0.0], [0.0, 0.0, CURVATURE.1.powi(-2)]];
        let mut v = [0.0, self.slope.0 * m[1][1], CURVATURE.0 * m[2][2]];
        let zero = self.seen.last().map_or(0.0, |seen| seen.level);
        for seen in &self.seen {
            let x = seen.x - middle;
            let misfit = MISFIT * x.abs().powi(3);
            let weight = (-seen.age / MEMORY).exp() / (seen.variance + misfit * misfit).max(1e-6);
            let design = [1.0, x, 0.5 * x * x];
            for (row, a) in m.iter_mut().zip(design) {
                for (value, b) in row.iter_mut().zip(design) {
                    *value += weight * a * b;
                }
            }
            for (value, a) in v.iter_mut().zip(design) {
                *value += weight * a * (seen.level - zero);
            }
        }
        (m, v, zero)
    }

    /// The expected level at `streams`, and its variance.
    fn level(&self, streams: u32) -> (f64, f64) {
        let (m, v, zero) = self.equations(f64::from(streams).ln());
        (zero + solve(&m, 0, v), solve(&m, 0, [1.0, 0.0, 0.0]).max(0.0))
    }

    /// Where the slope equals `worth`, as seen from `streams`.
    pub(super) fn optimum(&self, streams: u32, worth: f64) -> Optimum {
        let (m, v, _) = self.equations(f64::from(streams).ln());
        let (slope, curvature) = (solve(&m, 1, v), solve(&m, 2, v).min(-LEAST_CURVATURE));
        let deviation = solve(&m, 1, [0.0, 1.0, 0.0]).max(0.0).sqrt();
        Optimum {
            away: ((worth - slope) / curvature).clamp(-3.0, 3.0),
            error: deviation / -curvature,
            slope,
            curvature,
        }
    }
}

/// Solves three linear equations for one unknown with Cramer's rule.
fn solve(m: &[[f64; 3]; 3], column: usize, wanted: [f64; 3]) -> f64 {
    let mut replaced = *m;
    for (row, wanted) in replaced.iter_mut().zip(wanted) {
        row[column] = wanted;
    }
    determinant(&replaced) / determinant(m)
}

fn determinant(m: &[[f64; 3]; 3]) -> f64 {
    m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1]) - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
        + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optimum_finds_vertex() {
        let mut surface = Surface::default();
        let level = |n: u32| (f64::from(n) / (f64::from(n) + 10.0)).ln() - 0.005 * f64::from(n);
        for n in [40, 60, 25, 40, 60, 30, 40] {
            surface.add(n, level(n), 1e-5, 10.0);
        }
        let optimum = surface.optimum(30, 0.0);
        assert!((30.0 * optimum.away.exp() - 40.0).abs() < 4.0, "{optimum:?}");
        assert!(optimum.error < 0.2 && optimum.curvature < 0.0);
    }

    #[test]
    fn optimum_without_measurements_is_uncertain() {
        let optimum = Surface::default().optimum(10, 0.05);
        assert!(optimum.error > 1.0 && optimum.away.is_finite());
    }

    #[test]
    fn optimum_after_other_flows_started_is_higher() {
        let mut surface = Surface::default();
        for n in [30, 20, 45, 30] {
            surface.add(n, 0.0, 1e-4, 10.0);
        }
        let before = surface.optimum(30, 0.05);
        surface.shift(30, 0.7f64.ln());
        assert!(surface.optimum(30, 0.05).away > before.away + 0.2);
    }
}
