//! Small statistics.

/// Linear from 0 at `from` to 1 at `to`, and constant outside.
pub(super) fn ramp(value: f64, from: f64, to: f64) -> f64 {
    ((value - from) / (to - from)).clamp(0.0, 1.0)
}

/// The middle value; of an even number, the mean of the two in the middle.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let high = *values.get(values.len() / 2)?;
    let low = *values.get((values.len() - 1) / 2)?;
    Some(f64::midpoint(low, high))
}

pub(super) fn mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.into_iter().fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// Standard deviation over mean.
pub(super) fn variation(values: &[f64]) -> Option<f64> {
    let middle = mean(values.iter().copied()).filter(|&middle| middle > 0.0)?;
    let square = mean(values.iter().map(|value| (value - middle).powi(2)))?;
    (values.len() >= 3).then(|| square.sqrt() / middle)
}

/// The largest of the known values.
pub(super) fn largest(values: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    values.into_iter().flatten().max_by(f64::total_cmp)
}

pub(super) fn smallest(values: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    values.into_iter().flatten().min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_match_known_values() {
        assert_eq!((ramp(0.1, 0.2, 0.4), ramp(0.5, 0.2, 0.4), ramp(2.0, 1.0, 3.0)), (0.0, 1.0, 0.5));
        assert_eq!((median([3.0, 1.0, 2.0]), median([1.0, 2.0]), median([])), (Some(2.0), Some(1.5), None));
        assert_eq!(mean([1.0, 3.0]), Some(2.0));
        assert_eq!(variation(&[2.0; 5]), Some(0.0));
        assert_eq!((variation(&[1.0, 2.0]), variation(&[0.0; 9])), (None, None));
        assert_eq!((largest([None, Some(2.0)]), smallest([None, None])), (Some(2.0), None));
    }
}
