//! Parsers: a number, and a unit if there is one, with or without a space between them.
//!
//! A number has digits, at most one point, and `_` between digits. It has no sign and no exponent.

use std::time::Duration;

/// Larger values are refused, because they would be cut off at the largest `i64`.
const LIMIT: f64 = 9.2e18;

/// Bytes from `4096`, `64K` or `64KiB` (powers of 1024), or `64KB` (powers of 1000), up to
/// [`i64::MAX`]. The case of the unit does not matter. A fraction needs a unit; its result is
/// rounded to whole bytes.
pub fn size(text: &str) -> Option<u64> {
    let (number, unit) = split(text);
    let factor = byte_factor(unit)?;
    // Whole numbers above 2^53 have no exact value in floating point.
    if let Ok(number) = number.parse::<u64>() {
        return number.checked_mul(factor).filter(|&bytes| bytes <= i64::MAX as u64);
    }
    let number: f64 = number.parse().ok()?;
    let bytes = bounded(number * factor as f64)?;
    (!unit.is_empty() || number.fract() == 0.0).then(|| bytes.round() as u64)
}

/// Bytes per second from `10M`, `10MiB` or `10MiB/s`, or from bits: `100Mbit/s`, `100Mbps`. A unit
/// that ends with a small `b` is refused, because it can mean bits or bytes.
pub fn rate(text: &str) -> Option<f64> {
    let text = text.trim_end();
    let (number, unit) = split(text.strip_suffix("/s").unwrap_or(text));
    let factor = match unit.strip_suffix("bit").or_else(|| unit.strip_suffix("bps")) {
        Some(prefix) => u64::pow(1000, power(&prefix.to_ascii_lowercase())?) as f64 / 8.0,
        None if unit.ends_with('b') => return None,
        None => byte_factor(unit)? as f64,
    };
    bounded(number.parse::<f64>().ok()? * factor)
}

/// A time from `90` (seconds), `500ms`, `350us`, `20ns`, `90s`, `5m`, `5min`, `2h` or `1d`, rounded
/// to nanoseconds.
pub fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text);
    let factor = match unit {
        "ns" => 1e-9,
        // The micro sign, and the Greek letter that looks like it.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(bounded(number.parse::<f64>().ok()? * factor)?).ok()
}

/// A share from `0.001` or `0.1%`. The caller checks the range, which may exclude 1; the result can
/// be negative or not a number.
pub fn share(text: &str) -> Option<f64> {
    match text.trim().strip_suffix('%') {
        Some(percent) => percent.trim_end().parse::<f64>().ok().map(|percent| percent / 100.0),
        None => text.trim().parse().ok(),
    }
}

/// The unit of a quantity as it is written: `KiB` in `64 KiB`. Empty if there is only a number.
pub fn unit(text: &str) -> &str {
    divide(text).1
}

/// The number, without `_` between its digits, and the unit. A `_` elsewhere stays, so that the
/// number cannot be parsed.
fn split(text: &str) -> (String, &str) {
    let (number, unit) = divide(text);
    let mut plain = String::with_capacity(number.len());
    let mut rest = number.chars().peekable();
    while let Some(letter) = rest.next() {
        let between =
            plain.ends_with(|c: char| c.is_ascii_digit()) && rest.peek().is_some_and(char::is_ascii_digit);
        if letter != '_' || !between {
            plain.push(letter);
        }
    }
    (plain, unit)
}

fn divide(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

fn bounded(value: f64) -> Option<f64> {
    (value < LIMIT).then_some(value)
}

fn byte_factor(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    let (prefix, base) = match unit.strip_suffix("ib") {
        Some("") => return None,
        Some(prefix) => (prefix, 1024),
        None => match unit.strip_suffix('b') {
            Some(prefix) => (prefix, 1000),
            None => (unit.as_str(), 1024),
        },
    };
    power(prefix).map(|power| u64::pow(base, power))
}

fn power(prefix: &str) -> Option<u32> {
    match prefix {
        "" => Some(0),
        "k" => Some(1),
        "m" => Some(2),
        "g" => Some(3),
        "t" => Some(4),
        "p" => Some(5),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_in_any_unit_is_read() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("64KiB", 65536),
            ("64kb", 64000),
            ("1.5M", 1_572_864),
            ("2.3KB", 2300),
            ("1 GiB", 1 << 30),
            ("2T", 2 << 40),
            ("10B", 10),
            ("1_000", 1000),
            ("4.0", 4),
            ("9007199254740993", (1 << 53) + 1),
            ("9223372036854775807", i64::MAX as u64),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn underscore_is_read_between_digits_only() {
        assert_eq!(size("1_000_000"), Some(1_000_000));
        for text in ["_5", "5_", "1__0", "1_.5K", "1._5K", "5_K"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn size_that_is_malformed_or_too_large_is_refused() {
        for text in ["", "x", "-1", "1X", "1iB", "K", "1.2.3", "1.5", "_", "1e3", "64Ki B"] {
            assert_eq!(size(text), None, "{text}");
        }
        for text in ["9223372036854775808", "8192P", "99999999P", "99999999.5P"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn rate_in_bits_or_bytes_is_read() {
        for (text, bytes) in [
            ("10MiB/s", 10_485_760.0),
            ("1K", 1024.0),
            ("10GB/s", 1e10),
            ("100Mbit/s", 12_500_000.0),
            ("100 Mbit", 12_500_000.0),
            ("1bit/s", 0.125),
            ("8kbps", 1000.0),
        ] {
            assert_eq!(rate(text), Some(bytes), "{text}");
        }
        for text in ["fast", "", "-1Mbit/s", "10Gb/s", "10Gb", "10Gib/s", "10b/s", "1e400Gbit/s", "inf"] {
            assert_eq!(rate(text), None, "{text}");
        }
    }

    #[test]
    fn duration_in_any_unit_is_read() {
        for (text, nanoseconds) in [
            ("90", 90_000_000_000),
            ("1.5h", 5_400_000_000_000),
            ("2min", 120_000_000_000),
            ("25 ms", 25_000_000),
            ("350us", 350_000),
            ("350\u{b5}s", 350_000),
            ("350\u{3bc}s", 350_000),
            ("0.25us", 250),
            ("1ns", 1),
            ("0", 0),
        ] {
            assert_eq!(duration(text), Some(Duration::from_nanos(nanoseconds)), "{text}");
        }
        for text in ["", "ms", "-1s", "soon", "1 fortnight", "nan", "999999999999999999d"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn share_as_number_or_percentage_is_read() {
        assert_eq!(share("0.1%"), Some(0.001));
        assert_eq!(share("25 %"), Some(0.25));
        assert_eq!(share(" 0.25 "), Some(0.25));
        assert_eq!(share("much"), None);
    }

    #[test]
    fn unit_is_returned_as_it_is_written() {
        assert_eq!([unit("64 KiB"), unit("1.5h "), unit("7"), unit("")], ["KiB", "h", "", ""]);
    }
}
