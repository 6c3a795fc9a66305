//! Sizes, rates and times as people write and read them: IEC bytes for files, bits for links.

use std::time::Duration;

/// Bytes from `4096`, `64K`, `64KiB` (powers of 1024) or `64KB` (powers of 1000).
///
/// # Errors
/// The text is no size; the error says what was expected.
pub fn parse_size(given: &str) -> Result<u64, String> {
    let given = given.trim();
    if given.contains('.') && given.parse::<f64>().is_ok_and(|bytes| bytes.fract() > 0.0) {
        return Err(format!("{given:?} is not a size: there are no parts of bytes"));
    }
    let scaled =
        || scaled(given, |unit| byte_factor(unit).map(|factor| factor as f64)).map(|bytes| bytes as u64);
    whole(given).or_else(scaled).ok_or_else(|| {
        format!("{given:?} is not a size: expected a number with K, M, G, T (or KiB, MiB, GiB, TiB)")
    })
}

/// Bytes a second from `10M`, `10MiB/s`, or bits with `100Mbit/s`. A small `b` is refused: whether it means bits or bytes,
/// nobody knows.
///
/// # Errors
/// The text is no rate; the error says what was expected.
pub fn parse_rate(given: &str) -> Result<u64, String> {
    parse_exact_rate(given).map(|bytes| bytes as u64)
}

/// The same, with what is not a whole number of bytes.
///
/// # Errors
/// As [`parse_rate`].
pub fn parse_exact_rate(given: &str) -> Result<f64, String> {
    let text = given.strip_suffix("/s").unwrap_or(given);
    if let Some(number) = text.trim_end().strip_suffix('b') {
        let number = number.trim_end().trim_end_matches('i');
        return Err(format!("{given:?}: bit/s or B/s? Expected {number}bit/s or {number}B/s"));
    }
    scaled(text, |unit| match unit.strip_suffix("bit").or_else(|| unit.strip_suffix("bps")) {
        Some(prefix) => bit_factor(prefix).map(|factor| factor / 8.0),
        None => byte_factor(unit).map(|factor| factor as f64),
    })
    .ok_or_else(|| format!("{given:?} is not a rate: expected for example 10MiB/s or 100Mbit/s"))
}

/// A time from `90` (seconds), `500ms`, `90s`, `5m`, `2h` or `1d`.
///
/// # Errors
/// The text is no time; the error says what was expected.
pub fn parse_duration(given: &str) -> Result<Duration, String> {
    scaled(given, |unit| match unit {
        "ms" => Some(0.001),
        "" | "s" => Some(1.0),
        "m" | "min" => Some(60.0),
        "h" => Some(3600.0),
        "d" => Some(86400.0),
        _ => None,
    })
    .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    .ok_or_else(|| format!("{given:?} is not a time: expected a number with ms, s, m, h or d"))
}

/// Whole numbers, exactly: those above 2^53 have no place in floating point.
fn whole(given: &str) -> Option<u64> {
    let end = given.find(|c: char| !c.is_ascii_digit()).unwrap_or(given.len());
    let number: u64 = given[..end].parse().ok()?;
    number.checked_mul(byte_factor(given[end..].trim())?).filter(|&bytes| bytes <= i64::MAX as u64)
}

fn scaled(given: &str, factor: impl Fn(&str) -> Option<f64>) -> Option<f64> {
    let given = given.trim();
    let end = given.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(given.len());
    let number: f64 = given[..end].parse().ok()?;
    let value = number * factor(given[end..].trim())?;
    // Beyond 2^63 a whole number of bytes would be cut off in silence.
    (value < 9.2e18).then_some(value)
}

fn byte_factor(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    let (prefix, base) = match unit.strip_suffix("ib") {
        Some(prefix) if !prefix.is_empty() => (prefix, 1024),
        Some(_) => return None,
        None => match unit.strip_suffix('b') {
            Some(prefix) => (prefix, 1000),
            None => (unit.as_str(), 1024),
        },
    };
    power(prefix).map(|power| u64::pow(base, power))
}

fn bit_factor(prefix: &str) -> Option<f64> {
    power(&prefix.to_ascii_lowercase()).map(|power| f64::powi(1000.0, power as i32))
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

/// `1.23 GiB`.
pub fn size(bytes: u64) -> String {
    iec(bytes as f64)
}

/// `1.23 GiB/s`.
pub fn rate(bytes_per_second: f64) -> String {
    format!("{}/s", iec(bytes_per_second))
}

/// `9.87 Gbit/s`, for a link.
pub fn link_rate(bytes_per_second: f64) -> String {
    let mut value = bytes_per_second.max(0.0) * 8.0;
    for unit in ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"] {
        if value < 999.5 {
            return format!("{} {unit}", three_digits(value));
        }
        value /= 1000.0;
    }
    format!("{} Tbit/s", three_digits(value))
}

fn iec(bytes: f64) -> String {
    let mut value = bytes.max(0.0);
    if value < 1023.5 {
        return format!("{value:.0} B");
    }
    for unit in ["KiB", "MiB", "GiB", "TiB"] {
        value /= 1024.0;
        if value < 1023.5 {
            return format!("{} {unit}", three_digits(value));
        }
    }
    format!("{} PiB", three_digits(value / 1024.0))
}

fn three_digits(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// `0.42 s`, `12.3 s`, `4:05` (minutes) or `1:02:03` (hours).
pub fn time(seconds: f64) -> String {
    if seconds < 59.95 { format!("{} s", three_digits(seconds.max(0.0))) } else { clock(seconds) }
}

/// `0:09`, `4:05`, `1:02:03`.
pub fn clock(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    let (hours, minutes, seconds) = (whole / 3600, whole / 60 % 60, whole % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

/// `1 file`, `2 files`.
pub fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("64KiB", 65536),
            ("64kb", 64000),
            ("1.5M", 1_572_864),
            ("1 GiB", 1 << 30),
            ("2T", 2 << 40),
            ("10B", 10),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse_size("4.0"), Ok(4));
        assert_eq!(parse_size("9007199254740993"), Ok((1 << 53) + 1));
        assert_eq!(parse_size(&i64::MAX.to_string()), Ok(i64::MAX as u64));
        assert!(parse_size("9223372036854775808").is_err() && parse_size("8192P").is_err());
        for text in ["", "x", "-1", "1X", "1iB", "K", "1.2.3", "1.5", "99999999P"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates() {
        assert_eq!(parse_rate("10MiB/s"), Ok(10 << 20));
        assert_eq!(parse_rate("1K"), Ok(1024));
        assert_eq!(parse_rate("100Mbit/s"), Ok(12_500_000));
        assert_eq!(parse_rate("8kbps"), Ok(1000));
        assert!(parse_rate("fast").is_err());
        assert_eq!(parse_rate("10GB/s"), Ok(10_000_000_000));
        for text in ["10Gb/s", "10Gb", "10 gb/s", "10Gib/s", "10b/s"] {
            let error = parse_rate(text).unwrap_err();
            assert!(error.contains("bit/s or B/s?"), "{error}");
        }
        assert!(parse_rate("10Gb/s").unwrap_err().ends_with("Expected 10Gbit/s or 10GB/s"));
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5h"), Ok(Duration::from_secs(5400)));
        assert!(parse_duration("soon").is_err());
    }

    #[test]
    fn prints() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1024), "1.00 KiB");
        assert_eq!(size(1_048_575), "1.00 MiB");
        assert_eq!(size(u64::MAX), "16384 PiB");
        assert_eq!(rate(1_572_864.0), "1.50 MiB/s");
        assert_eq!(link_rate(125_000_000.0), "1.00 Gbit/s");
        assert_eq!(link_rate(f64::NAN), "0.00 bit/s");
        assert_eq!(time(0.1234), "0.12 s");
        assert_eq!(time(59.99), "1:00");
        assert_eq!(clock(3723.0), "1:02:03");
        assert_eq!(count(1, "file"), "1 file");
    }
}
