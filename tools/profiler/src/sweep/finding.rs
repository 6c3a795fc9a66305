//! Evaluates a curve: finds the best setting, and how far the others are behind it, as far as that
//! is more than noise.

use super::model::{Curve, CurvePoint};
use super::student;

/// Differences below this share of the rate are not called better or worse, however well runs
/// agree.
const LEAST: f64 = 0.02;
/// Probability of a wrong conclusion in any of the comparisons of a curve.
const LEVEL: f64 = 0.05;

/// A point compared with the best one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Standing {
    /// This point has the highest mean.
    Best,
    /// The rate of the best point is higher by `gain`, a share of this point's rate; `error` is the
    /// uncertainty of `gain` in both directions.
    Behind { gain: f64, error: f64 },
    /// The runs do not show a difference.
    Alike,
    /// The points cannot be compared: one of them has fewer than two good runs.
    Unknown,
}

/// The evaluation of a curve.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finding {
    /// Index of the point with the highest mean; `None` without a good run.
    pub best: Option<usize>,
    /// The standing of each point, in the curve's order.
    pub standings: Vec<Standing>,
}

impl Finding {
    /// Compares each point's mean with the best one by Welch's t test (which does not assume that
    /// all points are equally noisy), at 5 % for all comparisons of the curve together
    /// (Bonferroni).
    pub fn of(curve: &Curve) -> Self {
        let rated = |point: &CurvePoint| point.rate.runs > 0 && point.rate.mean > 0.0;
        let highest = curve.points.iter().enumerate().filter(|(_, point)| rated(point));
        let best = highest.max_by(|a, b| a.1.rate.mean.total_cmp(&b.1.rate.mean)).map(|(at, _)| at);
        let several = curve.points.iter().filter(|point| point.rate.runs > 1).count();
        let level = LEVEL / several.saturating_sub(1).max(1) as f64;
        let standing = |at: usize, point: &CurvePoint| match best {
            Some(best) if best == at => Standing::Best,
            Some(best) => compare(&curve.points[best], point, level),
            None => Standing::Unknown,
        };
        let standings = curve.points.iter().enumerate().map(|(at, point)| standing(at, point)).collect();
        Self { best, standings }
    }

    /// The points that may be as good as the best one, as far as the runs show.
    pub fn alike(&self) -> impl Iterator<Item = usize> {
        self.standings.iter().enumerate().filter(|(_, one)| **one == Standing::Alike).map(|(at, _)| at)
    }

    /// The points that are behind, with `gain` and `error`.
    pub fn behind(&self) -> impl Iterator<Item = (usize, f64, f64)> {
        self.standings.iter().enumerate().filter_map(|(at, one)| match *one {
            Standing::Behind { gain, error } => Some((at, gain, error)),
            _ => None,
        })
    }
}

fn compare(best: &CurvePoint, other: &CurvePoint, level: f64) -> Standing {
    let parts = |point: &CurvePoint| {
        let error = point.rate.error()?;
        Some((error * error, f64::from(point.rate.runs) - 1.0))
    };
    let (Some((a, a_freedom)), Some((b, b_freedom))) = (parts(best), parts(other)) else {
        return Standing::Unknown;
    };
    let mean = other.rate.mean;
    if mean.is_nan() || mean <= 0.0 {
        return Standing::Unknown;
    }
    let both = a + b;
    // The degrees of freedom by Welch and Satterthwaite.
    let freedom = both * both / (a * a / a_freedom + b * b / b_freedom);
    let error = if both > 0.0 {
        student::quantile(level / 2.0, if freedom.is_finite() { freedom } else { 1.0 }) * both.sqrt()
    } else {
        0.0
    };
    let gain = best.rate.mean - mean;
    if gain > error && gain >= LEAST * mean {
        Standing::Behind { gain: gain / mean, error: error / mean }
    } else {
        Standing::Alike
    }
}

/// The change of a value from one profile to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// The value is higher by `gain`, a share of the earlier value; `error` is the uncertainty in
    /// both directions.
    More { gain: f64, error: f64 },
    /// The value is lower by `loss`, likewise.
    Less { loss: f64, error: f64 },
    /// The runs do not show a difference.
    Alike,
    /// The values cannot be compared: one of them has fewer than two good runs.
    Unknown,
}

impl Change {
    /// Compares by the same test as [`Finding::of`]; `share` is the share of the total level for
    /// this comparison.
    pub fn of(before: &CurvePoint, after: &CurvePoint, share: f64) -> Self {
        let level = LEVEL * share.clamp(0.0, 1.0);
        let rises = after.rate.mean >= before.rate.mean;
        let (best, other) = if rises { (after, before) } else { (before, after) };
        match compare(best, other, level) {
            Standing::Behind { gain, error } if rises => Self::More { gain, error },
            // `gain` is relative to the smaller value; `loss` must be relative to the earlier one,
            // which is larger.
            Standing::Behind { gain, error } => {
                let of = 1.0 + gain;
                Self::Less { loss: gain / of, error: error / of }
            }
            Standing::Unknown => Self::Unknown,
            _ => Self::Alike,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::CurveRun;

    fn curve(points: &[&[f64]]) -> Curve {
        let point = |rates: &&[f64]| {
            let run = |&bytes_per_second| CurveRun { bytes_per_second, ..CurveRun::default() };
            let mut point = CurvePoint { runs: rates.iter().map(run).collect(), ..CurvePoint::default() };
            point.sum_up(&[]);
            point
        };
        Curve { points: points.iter().map(point).collect(), ..Curve::default() }
    }

    #[test]
    fn finding_when_difference_exceeds_noise_reports_it() {
        let finding = Finding::of(&curve(&[&[45.0, 46.0, 45.5], &[58.8, 59.0, 59.3], &[58.0, 59.9, 59.1]]));
        assert_eq!(finding.best, Some(1));
        assert_eq!((finding.standings[1], finding.standings[2]), (Standing::Best, Standing::Alike));
        let Standing::Behind { gain, error } = finding.standings[0] else { panic!("{finding:?}") };
        assert!((gain - 0.297).abs() < 0.01 && error > 0.01 && error < gain, "{finding:?}");
        assert_eq!((finding.alike().count(), finding.behind().count()), (1, 1));
    }

    #[test]
    fn finding_when_difference_is_noise_is_alike() {
        let noisy = Finding::of(&curve(&[&[45.0, 66.0, 55.0], &[68.0, 49.0, 59.0]]));
        assert_eq!(noisy.standings, [Standing::Alike, Standing::Best]);
        // The runs agree exactly, but a difference of one per cent does not count.
        let near = Finding::of(&curve(&[&[100.0, 100.0], &[101.0, 101.0]]));
        assert_eq!(near.standings, [Standing::Alike, Standing::Best]);
        assert!(matches!(
            Finding::of(&curve(&[&[100.0; 3], &[110.0; 3]])).standings[0],
            Standing::Behind { .. }
        ));
    }

    #[test]
    fn finding_when_runs_are_single_is_unknown() {
        let finding = Finding::of(&curve(&[&[10.0], &[100.0], &[], &[f64::NAN]]));
        assert_eq!(finding.best, Some(1));
        assert_eq!(
            finding.standings,
            [Standing::Unknown, Standing::Best, Standing::Unknown, Standing::Unknown]
        );
        assert_eq!(Finding::of(&curve(&[&[], &[]])).best, None);
        assert_eq!(Finding::of(&Curve::default()), Finding::default());
    }

    /// Among curves without any difference, only few may show one: the test allows 5 %.
    #[test]
    fn finding_when_settings_are_equal_rarely_reports_a_difference() {
        let mut state = 7_u64;
        let mut even = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / f64::from(1 << 24)
        };
        let mut wrong = 0;
        for _ in 0..100 {
            let points: Vec<Vec<f64>> = (0..5)
                .map(|_| (0..3).map(|_| 100.0 + 8.0 * ((0..12).map(|_| even()).sum::<f64>() - 6.0)).collect())
                .collect();
            let slices: Vec<&[f64]> = points.iter().map(Vec::as_slice).collect();
            wrong += usize::from(Finding::of(&curve(&slices)).behind().count() > 0);
        }
        // The best of five points is compared with each, so there are a few more.
        assert!(wrong <= 15, "{wrong} of 100");
    }
}
