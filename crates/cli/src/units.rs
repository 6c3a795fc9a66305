//! Sizes, rates and times of the command line: the formats of [`ropewalk_units::print`], and
//! parsers whose errors name the forms that a user can write.

use std::time::Duration;

use ropewalk_units::read;

pub use ropewalk_units::print::{clock, count, link_rate, rate, size, time};

/// Bytes from `4096`, `64K`, `64KiB` (powers of 1024) or `64KB` (powers of 1000).
///
/// # Errors
/// The text is not a size; the error names the forms that are.
pub fn parse_size(given: &str) -> Result<u64, String> {
    read::size(given).ok_or_else(|| {
        if given.trim().parse::<f64>().is_ok_and(|bytes| bytes.fract() > 0.0) {
            format!("{given:?} is not a size: there are no parts of bytes")
        } else {
            format!("{given:?} is not a size: expected a number with K, M, G, T (or KiB, MiB, GiB, TiB)")
        }
    })
}

/// Bytes per second from `10M`, `10MiB/s`, or bits with `100Mbit/s`. A small `b` is refused,
/// because it can mean bits or bytes.
///
/// # Errors
/// The text is not a rate; the error names the forms that are.
pub fn parse_rate(given: &str) -> Result<u64, String> {
    parse_exact_rate(given).map(|bytes| bytes as u64)
}

/// The same as [`parse_rate`], with the fraction of a byte.
///
/// # Errors
/// The same as those of [`parse_rate`].
pub fn parse_exact_rate(given: &str) -> Result<f64, String> {
    read::rate(given).ok_or_else(|| {
        let text = given.strip_suffix("/s").unwrap_or(given);
        match text.trim_end().strip_suffix('b') {
            Some(number) => {
                let number = number.trim_end().trim_end_matches('i');
                format!("{given:?}: bit/s or B/s? Expected {number}bit/s or {number}B/s")
            }
            None => format!("{given:?} is not a rate: expected for example 10MiB/s or 100Mbit/s"),
        }
    })
}

/// A time from `90` (seconds), `500ms`, `90s`, `5m`, `2h` or `1d`.
///
/// # Errors
/// The text is not a time; the error names the forms that are.
pub fn parse_duration(given: &str) -> Result<Duration, String> {
    read::duration(given)
        .ok_or_else(|| format!("{given:?} is not a time: expected a number with ms, s, m, h or d"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn refused_text_is_answered_with_the_accepted_forms() {
        assert!(parse_size("1.5").unwrap_err().ends_with("there are no parts of bytes"));
        assert!(parse_size("1X").unwrap_err().contains("KiB"));
        assert!(parse_rate("fast").unwrap_err().contains("100Mbit/s"));
        assert!(parse_duration("soon").unwrap_err().contains("ms, s, m, h or d"));
    }

    #[test]
    fn rate_with_a_small_b_is_answered_with_a_question() {
        for text in ["10Gb/s", "10Gb", "10 gb/s", "10Gib/s", "10b/s"] {
            let error = parse_rate(text).unwrap_err();
            assert!(error.contains("bit/s or B/s?"), "{error}");
        }
        assert!(parse_rate("10Gb/s").unwrap_err().ends_with("Expected 10Gbit/s or 10GB/s"));
    }

    #[test]
    fn rate_is_rounded_down_to_bytes() {
        assert_eq!(parse_rate("7bit/s"), Ok(0));
        assert_eq!(parse_exact_rate("7bit/s"), Ok(0.875));
    }
}
