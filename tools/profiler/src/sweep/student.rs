//! Student's t distribution.

use std::f64::consts::FRAC_PI_2;

/// Number of cells of the range, each integrated by Simpson's rule.
const CELLS: u32 = 512;
/// With more degrees of freedom than this, the distribution is practically the normal one.
const MOST: f64 = 1000.0;

/// The value that t exceeds with probability `above`, with `freedom` degrees of freedom (at least
/// 1; they need not be whole).
///
/// With t = √ν tan θ the density becomes cos^(ν-1) θ on a finite range.
pub(super) fn quantile(above: f64, freedom: f64) -> f64 {
    let freedom = if freedom.is_nan() { 1.0 } else { freedom.clamp(1.0, MOST) };
    let width = FRAC_PI_2 / f64::from(CELLS);
    let cells: Vec<f64> =
        (0..CELLS).map(|n| integral(f64::from(n) * width, f64::from(n + 1) * width, freedom)).collect();
    // P(t > x) = (1 - P(|t| < x)) / 2.
    let mut left = (1.0 - 2.0 * above).clamp(0.0, 1.0) * cells.iter().sum::<f64>();
    let mut cell = 0;
    while cell + 1 < cells.len() && left > cells[cell] {
        left -= cells[cell];
        cell += 1;
    }
    let begin = cell as f64 * width;
    let (mut low, mut high) = (begin, begin + width);
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if integral(begin, middle, freedom) < left {
            low = middle;
        } else {
            high = middle;
        }
    }
    freedom.sqrt() * f64::midpoint(low, high).tan()
}

/// The integral of cos^(ν-1) over a short range.
fn integral(from: f64, to: f64, freedom: f64) -> f64 {
    let value = |angle: f64| angle.cos().max(0.0).powf(freedom - 1.0);
    (value(from) + 4.0 * value(f64::midpoint(from, to)) + value(to)) * (to - from) / 6.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_matches_tables() {
        for (above, freedom, expected) in [
            (0.025, 1.0, 12.706),
            (0.025, 2.0, 4.303),
            (0.025, 4.0, 2.776),
            (0.005, 3.0, 5.841),
            (0.025, 30.0, 2.042),
            (0.025, 1e9, 1.962),
            (0.5, 7.0, 0.0),
            (0.001_666_67, 1.0, 190.98),
        ] {
            let found = quantile(above, freedom);
            assert!((found - expected).abs() < 0.001 * expected.max(1.0), "{above} {freedom}: {found}");
        }
        // Degrees of freedom need not be whole numbers.
        let between = quantile(0.025, 2.5);
        assert!(between < 4.303 && between > 3.182, "{between}");
        assert_eq!(quantile(0.025, f64::NAN), quantile(0.025, 1.0));
        assert_eq!(quantile(0.025, -5.0), quantile(0.025, 1.0));
    }
}
