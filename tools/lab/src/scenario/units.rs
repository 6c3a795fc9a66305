//! The types of times, rates and sizes in a scenario: `"50ms"`, `"40MiB/s"`, `"64KiB"`.

use std::{fmt, str::FromStr, time::Duration};

use ropewalk_units::{print, read};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::emulator::units;

/// A time. A number without a unit, other than 0, is rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub Duration);

/// A number of bytes, with or without a unit such as `KiB` or `MB`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

/// A payload rate in bytes per second, written in bytes (`40MiB/s`) or in bits (`100Mbit/s`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteRate(pub u64);

impl Time {
    /// A time in milliseconds.
    pub const fn millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// A time in seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        units::parse_duration(given).map(Self).map_err(|error| error.to_string())
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        units::parse_size(given).map(Self).map_err(|error| error.to_string())
    }
}

impl FromStr for ByteRate {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let unit = read::unit(given);
        let bytes = read::rate(given)
            .filter(|_| unit.ends_with("B/s") || unit.ends_with("bit/s"))
            .map(|bytes| bytes as u64);
        bytes.filter(|bytes| *bytes > 0).map(Self).ok_or_else(|| {
            format!("`{given}` is no rate: expected for example `40MiB/s`, `40MB/s` or `100Mbit/s`")
        })
    }
}

impl fmt::Display for Time {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&print::exact_duration(self.0))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&print::exact_size(self.0))
    }
}

impl fmt::Display for ByteRate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match print::exact_size(self.0) {
            plain if plain.ends_with('B') => write!(formatter, "{plain}/s"),
            plain => write!(formatter, "{plain}B/s"),
        }
    }
}

/// `Display` prints text that `FromStr` reads, so that a scenario can be written to a file again.
macro_rules! text_serde {
    ($type:ident, $what:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl serde::de::Visitor<'_> for Visitor {
                    type Value = $type;
                    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                        formatter.write_str($what)
                    }
                    fn visit_str<E: serde::de::Error>(self, given: &str) -> Result<$type, E> {
                        given.parse().map_err(E::custom)
                    }
                    fn visit_i64<E: serde::de::Error>(self, given: i64) -> Result<$type, E> {
                        given.to_string().parse().map_err(E::custom)
                    }
                    fn visit_u64<E: serde::de::Error>(self, given: u64) -> Result<$type, E> {
                        given.to_string().parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_any(Visitor)
            }
        }
    };
}

text_serde!(Time, "a time such as \"50ms\"");
text_serde!(Size, "a size such as \"64KiB\"");
text_serde!(ByteRate, "a rate such as \"40MiB/s\"");

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn units_when_printed_parse_to_the_same_value() {
        for time in [Time::millis(50), Time::seconds(90), Time(Duration::from_micros(3))] {
            assert_eq!(time.to_string().parse(), Ok(time));
        }
        for size in [Size(0), Size(1000), Size(64 << 10), Size(3 << 30), Size((1 << 30) + 1024)] {
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        for rate in [ByteRate(7), ByteRate(40 << 20), ByteRate(1_000_000)] {
            assert_eq!(rate.to_string().parse(), Ok(rate));
        }
    }

    #[test]
    fn byte_rate_in_bits_or_bytes_is_parsed() {
        assert_eq!("40MiB/s".parse(), Ok(ByteRate(40 << 20)));
        assert_eq!("100 Mbit/s".parse(), Ok(ByteRate(12_500_000)));
        for wrong in ["40MiB", "0MiB/s", "100", "unlimited", ""] {
            assert!(wrong.parse::<ByteRate>().unwrap_err().contains("is no rate"), "{wrong}");
        }
    }
}
