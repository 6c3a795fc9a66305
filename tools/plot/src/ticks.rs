//! Calculates the ends of an axis and the positions of its ticks.

use crate::axis::{Axis, Scale, Unit};

/// An axis with the range of its data. All positions are on the linear scale of [`Axis::place`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Laid {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) ticks: Vec<(f64, String)>,
    pub(crate) title: String,
}

impl Laid {
    /// Lays out a horizontal axis, with the data over its whole length.
    pub(crate) fn horizontal(axis: &Axis, values: impl Iterator<Item = f64>) -> Self {
        let (from, to) = ends(axis, values).unwrap_or((0.0, 1.0));
        if axis.range.is_some() {
            return Self::new(axis, from, to, 10);
        }
        let (mut from, to) = apart(from, to);
        // A range that begins near zero is extended to zero.
        if axis.scale == Scale::Linear && from >= 0.0 && from < to * 0.05 {
            from = 0.0;
        }
        let margin = (to - from) * 0.02;
        let zero = axis.scale == Scale::Linear && from == 0.0;
        Self::new(axis, if zero { from } else { from - margin }, to + margin, 10)
    }

    /// Lays out a vertical axis, from zero if that suits its values, with space above the data.
    pub(crate) fn vertical(axis: &Axis, values: impl Iterator<Item = f64>) -> Self {
        let (mut from, mut to) = ends(axis, values).unwrap_or((0.0, 1.0));
        if axis.range.is_some() {
            return Self::new(axis, from, to, 5);
        }
        let zero = axis.scale == Scale::Linear && !axis.tight && from >= 0.0;
        if zero {
            from = 0.0;
            if to == 0.0 {
                to = 1.0;
            }
        }
        (from, to) = apart(from, to);
        let margin = (to - from) * 0.06;
        Self::new(axis, if zero { from } else { from - margin }, to + margin, 5)
    }

    fn new(axis: &Axis, from: f64, to: f64, wanted: usize) -> Self {
        let (ticks, unit) = match axis.scale {
            Scale::Linear => linear(axis.unit, from, to, wanted),
            Scale::Log10 => log10(axis.unit, from, to, wanted),
            Scale::Log2 => log2(axis.unit, from, to, wanted),
        };
        let title = match (axis.label.is_empty(), unit.is_empty()) {
            (_, true) => axis.label.clone(),
            (true, false) => unit,
            (false, false) => format!("{} ({unit})", axis.label),
        };
        Self { from, to, ticks, title }
    }
}

fn ends(axis: &Axis, values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    if let Some((from, to)) = axis.range {
        return axis.place(from).zip(axis.place(to));
    }
    values.filter_map(|value| axis.place(value)).fold(None, |ends, place| match ends {
        None => Some((place, place)),
        Some((from, to)) => Some((place.min(from), place.max(to))),
    })
}

/// Returns the range, widened if its ends are equal or nearly so.
fn apart(from: f64, to: f64) -> (f64, f64) {
    if to - from > from.abs().max(to.abs()) * 1e-9 {
        return (from, to);
    }
    let half = if from == 0.0 { 0.5 } else { from.abs() * 0.1 };
    (from - half, to + half)
}

/// Returns the step of 1, 2 or 5 times a power of ten that divides `range` into about `wanted`
/// intervals.
fn step(range: f64, wanted: usize) -> f64 {
    let raw = range / wanted as f64;
    let power = 10f64.powf(raw.log10().floor());
    let digit = raw / power;
    let nice = if digit < 1.5 {
        1.0
    } else if digit < 3.5 {
        2.0
    } else if digit < 7.5 {
        5.0
    } else {
        10.0
    };
    nice * power
}

fn linear(unit: Unit, from: f64, to: f64, wanted: usize) -> (Vec<(f64, String)>, String) {
    let (factor, name) = unit.suited(from.abs().max(to.abs()) / 1.07);
    let (low, high) = (from / factor, to / factor);
    let mut step = step(high - low, wanted);
    if matches!(unit, Unit::Plain | Unit::Count(_)) && factor == 1.0 {
        step = step.max(1.0);
    }
    let decimals = (-step.log10().floor()).clamp(0.0, 12.0) as usize;
    let first = (low / step - 1e-9).ceil();
    let ticks = (0..=100)
        .map(|i| (first + f64::from(i)) * step)
        .take_while(|value| *value <= high + step * 1e-9)
        .map(|value| {
            // Avoids "-0".
            let value = if value == 0.0 { 0.0 } else { value };
            (value * factor, format!("{value:.decimals$}"))
        })
        .collect();
    (ticks, name)
}

fn log10(unit: Unit, from: f64, to: f64, wanted: usize) -> (Vec<(f64, String)>, String) {
    let decades = to - from;
    if decades < 0.8 {
        // The range is too narrow for powers of ten, so ticks are at equal distances of the values.
        let (ticks, _) = linear(unit, 10f64.powf(from), 10f64.powf(to), wanted);
        return short(unit, ticks.into_iter().map(|(value, _)| value).filter(|v| *v > 0.0), f64::log10);
    }
    let digits: &[f64] = if decades < 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let every = (decades / wanted.max(1) as f64).floor().max(1.0) as i32;
    let values = (from.floor() as i32..=to.ceil() as i32)
        .filter(|power| power.rem_euclid(every) == 0)
        .flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)))
        .filter(|value| (from - 1e-9..=to + 1e-9).contains(&value.log10()));
    short(unit, values, f64::log10)
}

fn log2(unit: Unit, from: f64, to: f64, wanted: usize) -> (Vec<(f64, String)>, String) {
    let every = ((to - from) / wanted.max(1) as f64).floor().max(1.0) as i32;
    let values = (from.floor() as i32..=to.ceil() as i32)
        .filter(|power| power.rem_euclid(every) == 0)
        .map(|power| 2f64.powi(power))
        .filter(|value| (from - 1e-9..=to + 1e-9).contains(&value.log2()));
    short(unit, values, f64::log2)
}

/// Labels each tick with its own prefix, because a logarithmic axis spans several prefixes.
fn short(
    unit: Unit,
    values: impl Iterator<Item = f64>,
    place: fn(f64) -> f64,
) -> (Vec<(f64, String)>, String) {
    let (_, base, ..) = unit.prefixes();
    let ticks = values
        .map(|value| {
            let (factor, name) = match unit {
                Unit::Plain | Unit::Count(_) => (1.0, base.to_owned()),
                _ => unit.suited(value * (1.0 + 1e-9)),
            };
            let prefix = name.strip_suffix(base).unwrap_or_default();
            (place(value), format!("{}{prefix}", plain(value / factor)))
        })
        .collect();
    (ticks, base.to_owned())
}

/// Prints a value with few digits, and with an exponent only if it is very small or very large.
fn plain(value: f64) -> String {
    if value != 0.0 && !(1e-4..1e6).contains(&value.abs()) {
        return format!("{value:.0e}");
    }
    let digits = (2.0 - value.abs().max(1e-12).log10().floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(laid: &Laid) -> String {
        laid.ticks.iter().map(|(_, label)| label.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn linear_axis_has_round_ticks() {
        let axis = Axis::linear("rate", Unit::BitsPerSecond);
        let laid = Laid::vertical(&axis, [3e6, 97e6].into_iter());
        assert_eq!(labels(&laid), "0 20 40 60 80 100");
        assert_eq!(laid.title, "rate (Mbit/s)");
        let laid = Laid::horizontal(&Axis::time(), [0.0, 60.0].into_iter());
        assert_eq!(laid.from, 0.0);
        assert_eq!(labels(&laid), "0 5 10 15 20 25 30 35 40 45 50 55 60");
        let laid = Laid::vertical(&Axis::linear("loss", Unit::Share), [0.0, 0.002].into_iter());
        assert_eq!(labels(&laid), "0.00 0.05 0.10 0.15 0.20");
        let laid = Laid::vertical(&Axis::linear("streams", Unit::Plain), [1.0, 2.0].into_iter());
        assert_eq!(labels(&laid), "0 1 2");
    }

    #[test]
    fn logarithmic_axis_has_ticks_at_powers() {
        let laid = Laid::horizontal(&Axis::log2("streams", Unit::Plain), [1.0, 64.0].into_iter());
        assert_eq!(labels(&laid), "1 2 4 8 16 32 64");
        let laid = Laid::horizontal(&Axis::log2("buffer", Unit::Bytes), [16384.0, 4_194_304.0].into_iter());
        assert_eq!(labels(&laid), "16Ki 32Ki 64Ki 128Ki 256Ki 512Ki 1Mi 2Mi 4Mi");
        assert_eq!(laid.title, "buffer (B)");
        let laid = Laid::vertical(&Axis::log10("rate", Unit::BitsPerSecond), [1e4, 3e8].into_iter());
        assert_eq!(labels(&laid), "10k 100k 1M 10M 100M");
        let laid = Laid::vertical(&Axis::log10("loss", Unit::Share), [0.0, 1e-4, 0.05].into_iter());
        assert_eq!(labels(&laid), "0.01 0.1 1");
    }

    #[test]
    fn axis_with_unusual_data_has_a_valid_range() {
        for axis in
            [Axis::linear("y", Unit::Plain), Axis::log10("y", Unit::Plain), Axis::log2("y", Unit::Plain)]
        {
            for values in [
                vec![],
                vec![f64::NAN],
                vec![f64::INFINITY, -1.0],
                vec![0.0],
                vec![5.0],
                vec![-3.0, -3.0],
                vec![1e-300, 1e300],
                vec![f64::MIN, f64::MAX],
                vec![1.0, 1.0 + 1e-15],
            ] {
                for laid in [
                    Laid::vertical(&axis, values.iter().copied()),
                    Laid::horizontal(&axis, values.iter().copied()),
                ] {
                    assert!(laid.from < laid.to, "{values:?} {laid:?}");
                    assert!(laid.ticks.len() <= 101, "{values:?}");
                }
            }
        }
    }
}
