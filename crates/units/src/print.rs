//! Formatters. Those that are named `exact` print text from which [`crate::read`] returns the same
//! value; the others print three digits for people.

use std::time::Duration;

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

/// `64KiB`, `1000`: the largest unit that needs no fraction.
pub fn exact_size(bytes: u64) -> String {
    for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >> shift != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// `100Mbit/s`: the largest unit that needs no fraction.
pub fn exact_bit_rate(bits_per_second: u64) -> String {
    whole(bits_per_second.into(), &["bit/s", "kbit/s", "Mbit/s", "Gbit/s"])
}

/// `25ms`, `0`: the largest unit that needs no fraction.
pub fn exact_duration(value: Duration) -> String {
    if value.is_zero() { "0".into() } else { whole(value.as_nanos(), &["ns", "us", "ms", "s"]) }
}

/// `value` in the largest of `units`, each 1000 times the one before it, that needs no fraction.
fn whole(mut value: u128, units: &[&str]) -> String {
    let mut at = 0;
    while at + 1 < units.len() && value != 0 && value.is_multiple_of(1000) {
        value /= 1000;
        at += 1;
    }
    format!("{value}{}", units[at])
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read;

    #[test]
    fn quantity_is_printed_with_three_digits() {
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

    #[test]
    fn exact_text_is_read_as_the_same_value() {
        for (bytes, text) in [(0, "0"), (1000, "1000"), (64 << 10, "64KiB"), ((1 << 30) + 1024, "1048577KiB")]
        {
            assert_eq!(exact_size(bytes), text);
            assert_eq!(read::size(text), Some(bytes));
        }
        for (bits, text) in [(7, "7bit/s"), (64_000, "64kbit/s"), (1_500_000_000, "1500Mbit/s")] {
            assert_eq!(exact_bit_rate(bits), text);
            assert_eq!(read::rate(text), Some(bits as f64 / 8.0));
        }
        for (nanoseconds, text) in
            [(0, "0"), (1, "1ns"), (250, "250ns"), (25_000_000, "25ms"), (120_000_000_000, "120s")]
        {
            let time = Duration::from_nanos(nanoseconds);
            assert_eq!(exact_duration(time), text);
            assert_eq!(read::duration(text), Some(time));
        }
    }
}
