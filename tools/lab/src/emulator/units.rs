//! Quantities as people write them: `100Mbit/s`, `25ms`, `0.1%`, `64KiB`.
//!
//! Rates are decimal (1 Mbit/s is 10^6 bits per second); sizes may have the unit `KB` (1000) or
//! `KiB` (1024). The serde modules are for `#[serde(with = "units::duration")]` and the like.

use std::fmt;
use std::time::Duration;

use ropewalk_units::{print, read};
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

const RATE: (&str, &str) = ("rate", "a number with bit/s, kbit/s, Mbit/s or Gbit/s, or `unlimited`");
const TIME: (&str, &str) = ("duration", "a number with ns, us, ms, s, min or h, such as `25ms`");
const SIZE: (&str, &str) = ("size", "a number with B, KB, MB, GB, TB, KiB, MiB, GiB or TiB");
const PROBABILITY: (&str, &str) = ("probability", "a number from 0 to 1, or a percentage such as `0.1%`");

fn wrong(what: (&'static str, &'static str), found: &str) -> UnitError {
    UnitError { what: what.0, expected: what.1, found: found.to_owned() }
}

/// Reads a duration such as `25ms`, `1.5s` or `0`.
///
/// # Errors
/// The text is not a number with one of these units, or the duration is above 290 years.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    read::duration(text)
        .filter(|time| i64::try_from(time.as_nanos()).is_ok())
        .filter(|_| !read::unit(text).is_empty() || text.trim() == "0")
        .ok_or_else(|| wrong(TIME, text))
}

/// Reads a size in bytes, such as `64KiB`, `10GB` or `1000`.
///
/// # Errors
/// The text is neither a whole number nor a number with a known unit, or the size is above
/// [`i64::MAX`].
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let unit = read::unit(text);
    read::size(text).filter(|_| unit.is_empty() || unit.ends_with('B')).ok_or_else(|| wrong(SIZE, text))
}

/// Reads a probability: `0.001` or `0.1%`.
///
/// # Errors
/// The text is not a number, or the number is not within 0 to 1.
pub fn parse_probability(text: &str) -> Result<f64, UnitError> {
    read::share(text).filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| wrong(PROBABILITY, text))
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
        let bits = read::rate(text)
            .filter(|_| read::unit(text).ends_with("bit/s"))
            .map(|bytes| bytes * 8.0)
            .filter(|&bits| bits < i64::MAX as f64)
            .ok_or_else(|| wrong(RATE, text))?
            .round() as u64;
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
            Some(bits) => f.write_str(&print::exact_bit_rate(bits)),
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
        serializer.serialize_str(&print::exact_duration(*value))
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
            assert_eq!(print::exact_duration(duration), printed);
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
