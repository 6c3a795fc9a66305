//! Quantities as people write them: `100Mbit/s`, `25ms`, `0.1%`, `64KiB`.
//!
//! Rates are decimal (1 Mbit/s is 10^6 bits per second); sizes may have the unit `KB` (1000) or
//! `KiB` (1024). The serde modules are for `#[serde(with = "units::duration")]` and the like.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A text that is not a valid quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is no {what}: expected {expected}")]
pub struct UnitError {
    /// The kind of quantity, e.g. `rate`.
    pub what: &'static str,
    /// The forms that are accepted.
    pub expected: &'static str,
    /// The text.
    pub found: String,
}

const RATES: &[(&str, f64)] = &[("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0)];
const TIMES: &[(&str, f64)] =
    &[("min", 60e9), ("s", 1e9), ("ms", 1e6), ("us", 1e3), ("µs", 1e3), ("ns", 1.0), ("h", 3600e9)];
const SIZES: &[(&str, f64)] = &[
    ("B", 1.0),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("KiB", 1024.0),
    ("MiB", 1048576.0),
    ("GiB", 1073741824.0),
    ("TiB", 1099511627776.0),
];

const RATE: (&str, &str) = ("rate", "a number with bit/s, kbit/s, Mbit/s or Gbit/s, or `unlimited`");
const TIME: (&str, &str) = ("duration", "a number with ns, us, ms, s, min or h, such as `25ms`");
const SIZE: (&str, &str) = ("size", "a number with B, KB, MB, GB, TB, KiB, MiB, GiB or TiB");
const PROBABILITY: (&str, &str) = ("probability", "a number from 0 to 1, or a percentage such as `0.1%`");

fn scaled(text: &str, units: &[(&str, f64)], what: (&'static str, &'static str)) -> Result<f64, UnitError> {
    let wrong = || UnitError { what: what.0, expected: what.1, found: text.to_owned() };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').ok_or_else(wrong)?;
    let number: f64 = trimmed[..split].replace('_', "").parse().map_err(|_| wrong())?;
    let unit = trimmed[split..].trim_start();
    let factor = units.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1;
    let value = number * factor;
    // Values above 2^63 make no sense, neither as nanoseconds nor as bits.
    if value.is_finite() && value < 9.2e18 { Ok(value) } else { Err(wrong()) }
}

/// Reads a duration such as `25ms`, `1.5s` or `0`.
///
/// # Errors
/// The text is not a number with one of these units, or the duration is above 290 years.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    Ok(Duration::from_nanos(scaled(text, TIMES, TIME)?.round() as u64))
}

/// Prints a duration in the largest unit that needs no fraction, so that [`parse_duration`] returns
/// the same value.
pub fn print_duration(value: Duration) -> String {
    let nanos = value.as_nanos();
    match nanos {
        0 => "0".to_owned(),
        n if n % 1_000_000_000 == 0 => format!("{}s", n / 1_000_000_000),
        n if n % 1_000_000 == 0 => format!("{}ms", n / 1_000_000),
        n if n % 1_000 == 0 => format!("{}us", n / 1_000),
        n => format!("{n}ns"),
    }
}

/// Reads a size in bytes, such as `64KiB`, `10GB` or `1000`.
///
/// # Errors
/// The text is neither a whole number nor a number with a known unit, or the size is 9.2 EB or more
/// (with a unit).
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    if let Ok(plain) = text.trim().replace('_', "").parse() {
        return Ok(plain);
    }
    Ok(scaled(text, SIZES, SIZE)?.round() as u64)
}

/// Reads a probability: `0.001` or `0.1%`.
///
/// # Errors
/// The text is not a number, or the number is not within 0 to 1.
pub fn parse_probability(text: &str) -> Result<f64, UnitError> {
    let trimmed = text.trim();
    let value = match trimmed.strip_suffix('%') {
        Some(percent) => percent.trim_end().parse::<f64>().map(|percent| percent / 100.0),
        None => trimmed.parse(),
    };
    match value {
        Ok(p) if (0.0..=1.0).contains(&p) => Ok(p),
        _ => Err(UnitError { what: PROBABILITY.0, expected: PROBABILITY.1, found: text.to_owned() }),
    }
}

/// A bit rate; [`Rate::UNLIMITED`] means that serialisation takes no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// No limit: no packet ever waits in the queue.
    pub const UNLIMITED: Self = Self(u64::MAX);

    /// A rate in bits per second. 0 is taken for 1, because a link that never sends would hold
    /// packets for ever.
    pub const fn bits_per_second(bits: u64) -> Self {
        if bits == 0 { Self(1) } else { Self(bits) }
    }

    /// A rate in 10^6 bits per second.
    pub const fn mbit(mbit: u64) -> Self {
        Self::bits_per_second(mbit.saturating_mul(1_000_000))
    }

    /// Bits per second; `None` if the rate is unlimited.
    pub const fn get(self) -> Option<u64> {
        if self.0 == u64::MAX { None } else { Some(self.0) }
    }

    /// Time to send `bytes`; zero if the rate is unlimited.
    pub fn time_for(self, bytes: u64) -> Duration {
        self.get().map_or(Duration::ZERO, |rate| {
            Duration::from_nanos(
                u64::try_from(u128::from(bytes) * 8_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX),
            )
        })
    }
}

impl Default for Rate {
    fn default() -> Self {
        Self::UNLIMITED
    }
}

impl std::str::FromStr for Rate {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        if text.trim() == "unlimited" {
            return Ok(Self::UNLIMITED);
        }
        let bits = scaled(text, RATES, RATE)?.round() as u64;
        if bits == 0 {
            return Err(UnitError { what: RATE.0, expected: "at least 1bit/s", found: text.to_owned() });
        }
        Ok(Self(bits))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            None => f.write_str("unlimited"),
            Some(n) if n % 1_000_000_000 == 0 => write!(f, "{}Gbit/s", n / 1_000_000_000),
            Some(n) if n % 1_000_000 == 0 => write!(f, "{}Mbit/s", n / 1_000_000),
            Some(n) if n % 1_000 == 0 => write!(f, "{}kbit/s", n / 1_000),
            Some(n) => write!(f, "{n}bit/s"),
        }
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Text(RATE.1, str::parse))
    }
}

/// Reads a string with a parser of this module; a number without a unit fails with the same
/// message.
struct Text<T>(&'static str, fn(&str) -> Result<T, UnitError>);

impl<T> Visitor<'_> for Text<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.1)(text).map_err(E::custom)
    }
    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        (self.1)(&number.to_string()).map_err(E::custom)
    }
    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        (self.1)(&number.to_string()).map_err(E::custom)
    }
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        (self.1)(&number.to_string()).map_err(E::custom)
    }
}

/// For `#[serde(with)]`: a [`Duration`] written as `25ms`.
pub mod duration {
    use super::*;

    /// Writes `25ms`.
    ///
    /// # Errors
    /// Those of `serializer`.
    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&print_duration(*value))
    }

    /// Reads `25ms`.
    ///
    /// # Errors
    /// Those of `deserializer`, or the value is not a duration ([`parse_duration`]).
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        deserializer.deserialize_any(Text(TIME.1, parse_duration))
    }

    /// The same functions for `Option<Duration>`, for use with `#[serde(default)]`.
    pub mod option {
        use super::*;

        /// Writes `25ms`, or none.
        ///
        /// # Errors
        /// Those of `serializer`.
        pub fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
            match value {
                Some(value) => super::serialize(value, serializer),
                None => serializer.serialize_none(),
            }
        }

        /// Reads `25ms`.
        ///
        /// # Errors
        /// The same as those of [`super::deserialize`].
        pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
            super::deserialize(deserializer).map(Some)
        }
    }
}

/// For `#[serde(with)]`: a probability written as `0.001` or `"0.1%"`.
pub mod probability {
    use super::*;

    /// Writes the plain number.
    ///
    /// # Errors
    /// Those of `serializer`.
    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(*value)
    }

    /// Reads a number or a percentage.
    ///
    /// # Errors
    /// Those of `deserializer`, or the value is not a probability ([`parse_probability`]).
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        deserializer.deserialize_any(Text(PROBABILITY.1, parse_probability))
    }
}

/// For `#[serde(with)]`: a size in bytes written as `"64KiB"` or `65536`.
pub mod size {
    use super::*;

    /// Writes the plain number of bytes.
    ///
    /// # Errors
    /// Those of `serializer`.
    pub fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(*value)
    }

    /// Reads a number of bytes, with or without a unit.
    ///
    /// # Errors
    /// Those of `deserializer`, or the value is not a size ([`parse_size`]).
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_any(Text(SIZE.1, parse_size))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rate_in_any_unit_is_parsed_and_printed() {
        for (text, bits, printed) in [
            ("100Mbit/s", 100_000_000, "100Mbit/s"),
            ("1.5 Gbit/s", 1_500_000_000, "1500Mbit/s"),
            ("64kbit/s", 64_000, "64kbit/s"),
            ("7bit/s", 7, "7bit/s"),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate.get(), Some(bits));
            assert_eq!(rate.to_string(), printed);
        }
        assert_eq!("unlimited".parse::<Rate>().unwrap().get(), None);
        for wrong in
            ["", "100", "Mbit/s", "100MB", "-1Mbit/s", "0Mbit/s", "1e400Gbit/s", "99999999999999Gbit/s"]
        {
            let error = wrong.parse::<Rate>().unwrap_err();
            assert_eq!(error.found, wrong);
        }
        assert_eq!(
            "100Mbit".parse::<Rate>().unwrap_err().to_string(),
            "`100Mbit` is no rate: expected a number with bit/s, kbit/s, Mbit/s or Gbit/s, or `unlimited`"
        );
    }

    #[test]
    fn duration_in_any_unit_is_parsed_and_printed() {
        for (text, nanos, printed) in [
            ("25ms", 25_000_000, "25ms"),
            ("1.5s", 1_500_000_000, "1500ms"),
            ("2min", 120_000_000_000, "120s"),
            ("0", 0, "0"),
            ("1ns", 1, "1ns"),
            ("0.25us", 250, "250ns"),
        ] {
            let duration = parse_duration(text).unwrap();
            assert_eq!(duration, Duration::from_nanos(nanos));
            assert_eq!(print_duration(duration), printed);
            assert_eq!(parse_duration(printed).unwrap(), duration);
        }
        for wrong in ["", "25", "ms", "-1s", "1 fortnight"] {
            parse_duration(wrong).unwrap_err();
        }
    }

    #[test]
    fn size_and_probability_in_any_form_are_parsed() {
        assert_eq!(parse_size("64KiB"), Ok(65536));
        assert_eq!(parse_size("1000"), Ok(1000));
        assert_eq!(parse_size("2.5MB"), Ok(2_500_000));
        parse_size("64K").unwrap_err();
        assert_eq!(parse_probability("0.1%"), Ok(0.001));
        assert_eq!(parse_probability("0.25"), Ok(0.25));
        for wrong in ["1.1", "-0.1", "101%", "NaN", "x"] {
            parse_probability(wrong).unwrap_err();
        }
    }
}
