//! Statistics of repeated runs, and the detection of outliers.

use super::model::Spread;
use super::student;

/// A run that is nearer to the median than this share of it is no outlier, however well the others
/// agree.
const NEAR: f64 = 0.05;
/// Probability that a run is marked in a set of runs that are all alike.
const LEVEL: f64 = 0.01;

/// Marks values that are so far from the others that noise of the same kind hardly explains it. The
/// test is the generalised extreme Studentised deviate test (Rosner 1983, the NIST handbook's
/// section 1.3.5.17.3) at 1 %, for at most a quarter of the values and at least one. For up to
/// seven values this is Grubbs' test.
///
/// Of fewer than three values none is marked; of three, one is marked only if it is a hundred times
/// as far off as the others are from each other. A value within 5 % of the median is never marked.
/// Values that are not finite are ignored.
pub fn outliers(values: &[f64]) -> Vec<bool> {
    let mut marked = vec![false; values.len()];
    let mut left: Vec<usize> = (0..values.len()).filter(|&at| values[at].is_finite()).collect();
    let all = left.len();
    if all < 3 {
        return marked;
    }
    let mut sorted: Vec<f64> = left.iter().map(|&at| values[at]).collect();
    sorted.sort_by(f64::total_cmp);
    let middle = median(&sorted);
    let (mut taken, mut certain) = (Vec::new(), 0);
    for number in 0..(all / 4).max(1) {
        let rest: Vec<f64> = left.iter().map(|&at| values[at]).collect();
        let (mean, deviation) = moments(&rest);
        let farthest = left.iter().enumerate().max_by(|a, b| {
            let off = |at: usize| (values[at] - mean).abs();
            off(*a.1).total_cmp(&off(*b.1))
        });
        let Some((place, &at)) = farthest else { break };
        let off = (values[at] - mean).abs();
        left.remove(place);
        taken.push(at);
        if off > critical(all, number) * deviation && deviation > 0.0 {
            certain = taken.len();
        }
    }
    for &at in &taken[..certain] {
        marked[at] = (values[at] - middle).abs() > NEAR * middle.abs();
    }
    marked
}

/// Rosner's λ for the `number`-th candidate, from 0, of `all` values.
fn critical(all: usize, number: usize) -> f64 {
    let rest = (all - number) as f64;
    let freedom = rest - 2.0;
    let t = student::quantile(LEVEL / (2.0 * rest), freedom);
    (rest - 1.0) * t / ((freedom + t * t) * rest).sqrt()
}

impl Spread {
    /// Computes the statistics of values in any order. Values that are not finite do not count. All
    /// fields are zero if no value is left.
    pub fn of(values: &[f64]) -> Self {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (Some(&least), Some(&most)) = (sorted.first(), sorted.last()) else { return Self::default() };
        let (mean, deviation) = moments(&sorted);
        let count = sorted.len() as f64;
        let several = sorted.len() > 1;
        Self {
            runs: u32::try_from(sorted.len()).unwrap_or(u32::MAX),
            // Rounding must not lead out of the range.
            mean: mean.clamp(least, most),
            median: median(&sorted),
            deviation: if several { deviation } else { 0.0 },
            interval: several.then(|| student::quantile(0.025, count - 1.0) * deviation / count.sqrt()),
            least,
            most,
        }
    }

    /// Standard error of the mean; `None` for fewer than two runs.
    pub fn error(&self) -> Option<f64> {
        (self.runs > 1).then(|| self.deviation / f64::from(self.runs).sqrt())
    }
}

/// The median of a sorted list that is not empty.
fn median(sorted: &[f64]) -> f64 {
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}

/// The mean, and the standard deviation of the population that the values come from (n - 1).
fn moments(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn marked(values: &[f64]) -> Vec<usize> {
        outliers(values).iter().enumerate().filter(|one| *one.1).map(|one| one.0).collect()
    }

    #[test]
    fn outliers_when_runs_are_few_are_rarely_marked() {
        assert!(marked(&[]).is_empty() && marked(&[1.0]).is_empty() && marked(&[1.0, 100.0]).is_empty());
        // Of three values, the third may be as good as the other two.
        assert!(marked(&[100.0, 101.0, 80.0]).is_empty());
        assert_eq!(marked(&[100.0, 50.0, 100.1]), [1]);
    }

    #[test]
    fn outliers_when_far_from_the_others_are_marked() {
        assert_eq!(marked(&[100.0, 101.0, 99.0, 60.0, 100.5]), [3]);
        assert!(marked(&[100.0, 110.0, 95.0, 88.0, 104.0]).is_empty());
        // Two outliers hide each other from a test that looks for one.
        let two = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 60.0, 61.0];
        assert_eq!(marked(&two), [6, 7]);
        // The other values agree by accident; a difference of 2 % does not count.
        assert!(marked(&[100.0, 100.0, 100.0, 100.0, 102.0]).is_empty());
        assert!(marked(&[5.0; 9]).is_empty());
        // A value that is not finite is neither counted nor marked.
        assert_eq!(marked(&[100.0, f64::NAN, 101.0, 99.0, 60.0, 100.5]), [4]);
    }

    /// Runs that are all alike (a sum of twelve uniform random numbers is sufficiently normal) are
    /// rarely marked.
    #[test]
    fn outliers_when_runs_are_alike_are_rarely_marked() {
        let mut state = 1_u64;
        let mut even = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / f64::from(1 << 24)
        };
        for runs in [3, 5, 10] {
            let mut wrong = 0;
            for _ in 0..400 {
                let values: Vec<f64> =
                    (0..runs).map(|_| 100.0 + 20.0 * ((0..12).map(|_| even()).sum::<f64>() - 6.0)).collect();
                wrong += usize::from(!marked(&values).is_empty());
            }
            assert!(wrong <= 12, "{runs} runs: {wrong} of 400");
        }
    }

    #[test]
    fn spread_matches_known_values() {
        let spread = Spread::of(&[3.0, 1.0, f64::NAN, 2.0]);
        assert_eq!((spread.runs, spread.mean, spread.median, spread.deviation), (3, 2.0, 2.0, 1.0));
        assert_eq!((spread.least, spread.most), (1.0, 3.0));
        // 4.303 / sqrt 3.
        assert!((spread.interval.unwrap() - 2.484).abs() < 0.002, "{spread:?}");
        let one = Spread::of(&[5.0]);
        assert_eq!((one.runs, one.mean, one.deviation, one.interval, one.error()), (1, 5.0, 0.0, None, None));
        assert_eq!(Spread::of(&[f64::INFINITY]), Spread::default());
        assert_eq!(Spread::of(&[]), Spread::default());
    }
}
