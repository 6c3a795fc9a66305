//! Axes: their labels, units and scales.

use crate::PlotError;

/// The unit of an axis. The axis chooses the prefix that suits its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number without a unit (streams, files in flight).
    Plain,
    /// A number of items, for example packets. It has no prefixes for values below 1.
    Count(&'static str),
    /// Bits per second, with SI prefixes (powers of 1000).
    BitsPerSecond,
    /// Bytes, with IEC prefixes (powers of 1024).
    Bytes,
    /// Bytes per second, with IEC prefixes.
    BytesPerSecond,
    /// Seconds, shown as s, ms or µs.
    Seconds,
    /// A fraction of one, shown in per cent.
    Share,
}

/// The mapping from values to positions on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Linear.
    Linear,
    /// Logarithmic, with ticks at 1, 2 and 5 or at powers of ten.
    Log10,
    /// Logarithmic, with ticks at powers of two.
    Log2,
}

/// One axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    pub(crate) label: String,
    pub(crate) unit: Unit,
    pub(crate) scale: Scale,
    pub(crate) range: Option<(f64, f64)>,
    pub(crate) tight: bool,
}

impl Axis {
    /// A linear axis. As a vertical axis it starts at 0 if no value is negative, unless it is
    /// [`tight`](Self::tight).
    pub fn linear(label: impl Into<String>, unit: Unit) -> Self {
        Self { label: label.into(), unit, scale: Scale::Linear, range: None, tight: false }
    }

    /// A logarithmic axis with ticks at powers of ten. Values that are not positive are not drawn.
    pub fn log10(label: impl Into<String>, unit: Unit) -> Self {
        Self { scale: Scale::Log10, ..Self::linear(label, unit) }
    }

    /// A logarithmic axis with ticks at powers of two. Values that are not positive are not drawn.
    pub fn log2(label: impl Into<String>, unit: Unit) -> Self {
        Self { scale: Scale::Log2, ..Self::linear(label, unit) }
    }

    /// The horizontal axis of time series: seconds since the beginning.
    pub fn time() -> Self {
        Self::linear("time", Unit::Seconds)
    }

    /// Fixes the range, which otherwise is that of the data. Values outside of it are not drawn.
    #[must_use]
    pub fn range(self, from: f64, to: f64) -> Self {
        Self { range: Some((from, to)), ..self }
    }

    /// Allows a vertical axis not to start at zero.
    #[must_use]
    pub fn tight(self) -> Self {
        Self { tight: true, ..self }
    }

    pub(crate) fn check(&self) -> Result<(), PlotError> {
        match self.range {
            Some((from, to)) if !(self.place(from).is_some() && self.place(to).is_some() && from < to) => {
                Err(PlotError::Range { axis: self.label.clone(), from, to })
            }
            _ => Ok(()),
        }
    }

    /// Maps a value to its position on a linear scale; `None` if the value cannot be shown.
    pub(crate) fn place(&self, value: f64) -> Option<f64> {
        let place = match self.scale {
            Scale::Linear => value,
            Scale::Log10 if value > 0.0 => value.log10(),
            Scale::Log2 if value > 0.0 => value.log2(),
            Scale::Log10 | Scale::Log2 => return None,
        };
        // Ranges are differences of positions. Beyond this limit they could be infinite.
        (place.abs() <= 1e300).then_some(place)
    }
}

impl Unit {
    /// Returns the factor between prefixes, the name of the unit, the prefixes upwards from none,
    /// and the prefixes downwards.
    pub(crate) fn prefixes(self) -> (f64, &'static str, &'static [&'static str], &'static [&'static str]) {
        const SI: &[&str] = &["", "k", "M", "G", "T"];
        const IEC: &[&str] = &["", "Ki", "Mi", "Gi", "Ti", "Pi"];
        const SMALL: &[&str] = &["m", "\u{b5}"];
        match self {
            Self::Plain => (1000.0, "", SI, &[]),
            Self::Count(name) => (1000.0, name, &["", "thousand ", "million "], &[]),
            Self::BitsPerSecond => (1000.0, "bit/s", SI, &[]),
            Self::Bytes => (1024.0, "B", IEC, &[]),
            Self::BytesPerSecond => (1024.0, "B/s", IEC, &[]),
            Self::Seconds => (1000.0, "s", &[""], SMALL),
            Self::Share => (1.0, "%", &[""], &[]),
        }
    }

    /// Returns the divisor and the name of the unit that suit values up to `largest`.
    pub(crate) fn suited(self, largest: f64) -> (f64, String) {
        if self == Self::Share {
            return (0.01, "%".to_owned());
        }
        let (step, name, up, down) = self.prefixes();
        // Numbers without a unit get a prefix only when they become long.
        let enough = if matches!(self, Self::Plain | Self::Count(_)) { 100.0 } else { 1.0 };
        let mut factor = 1.0;
        if largest < 1.0 && largest > 0.0 && !down.is_empty() {
            for prefix in down {
                factor /= step;
                if largest >= factor || prefix == &down[down.len() - 1] {
                    return (factor, format!("{prefix}{name}"));
                }
            }
        }
        let mut chosen = "";
        for prefix in &up[1..] {
            if largest < factor * step * enough {
                break;
            }
            factor *= step;
            chosen = prefix;
        }
        (factor, format!("{chosen}{name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_prefix_suits_largest_value() {
        for (unit, largest, factor, name) in [
            (Unit::BitsPerSecond, 100e6, 1e6, "Mbit/s"),
            (Unit::BitsPerSecond, 0.0, 1.0, "bit/s"),
            (Unit::Bytes, 65536.0, 1024.0, "KiB"),
            (Unit::BytesPerSecond, 3e9, 1_073_741_824.0, "GiB/s"),
            (Unit::Seconds, 90.0, 1.0, "s"),
            (Unit::Seconds, 0.12, 1e-3, "ms"),
            (Unit::Seconds, 2e-9, 1e-6, "\u{b5}s"),
            (Unit::Count("packets"), 833.0, 1.0, "packets"),
            (Unit::Count("packets"), 3e6, 1e3, "thousand packets"),
            (Unit::Plain, 50.0, 1.0, ""),
            (Unit::Share, 0.01, 0.01, "%"),
        ] {
            let (given, text) = unit.suited(largest);
            assert!((given / factor - 1.0).abs() < 1e-9, "{unit:?} {given}");
            assert_eq!(text, name);
        }
    }

    #[test]
    fn axis_with_invalid_range_is_refused() {
        let axis = |from, to| Axis::log10("x", Unit::Plain).range(from, to).check();
        assert!(axis(1.0, 10.0).is_ok());
        for (from, to) in [(0.0, 1.0), (2.0, 1.0), (1.0, f64::NAN), (1.0, f64::INFINITY), (1.0, 1.0)] {
            assert!(axis(from, to).is_err(), "{from} {to}");
        }
    }
}
