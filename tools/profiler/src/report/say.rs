//! Formats numbers for people. A value that is not finite is shown as a dash.

use ropewalk_protocol::date::Civil;

use crate::verdict::text;

const NOTHING: &str = "–";

fn number(value: f64, show: impl Fn(f64) -> String) -> String {
    if value.is_finite() { show(value) } else { NOTHING.to_owned() }
}

/// Formats bytes per second as bits per second.
pub(super) fn rate(bytes_per_second: f64) -> String {
    text::link(bytes_per_second)
}

pub(super) fn size(bytes: f64) -> String {
    text::size(bytes)
}

/// Formats bytes per second as bytes, as is usual for disks.
pub(super) fn throughput(bytes_per_second: f64) -> String {
    number(bytes_per_second, |value| text::size(value) + "/s")
}

pub(super) fn time(seconds: f64) -> String {
    number(seconds, |value| {
        let magnitude = value.abs();
        let sign = if value < 0.0 { "-" } else { "" };
        if magnitude >= 7200.0 {
            format!("{sign}{:.1} h", magnitude / 3600.0)
        } else if magnitude > 0.0 && magnitude < 1e-4 {
            format!("{sign}{:.1} µs", magnitude * 1e6)
        } else {
            format!("{sign}{}", text::time(magnitude))
        }
    })
}

pub(super) fn percent(share: f64) -> String {
    number(
        share,
        |value| if value.abs() >= 1e4 { "more than 1000000 %".to_owned() } else { text::percent(value) },
    )
}

/// Formats a number of things, or of things per second.
pub(super) fn count(value: f64) -> String {
    number(value, |value| {
        let (factor, unit) = match value.abs() {
            v if v >= 999_500_000_000.0 => return format!("{value:.2e}"),
            v if v >= 999_500_000.0 => (1e9, " G"),
            v if v >= 999_500.0 => (1e6, " M"),
            v if v >= 9999.5 => (1e3, " k"),
            _ => (1.0, ""),
        };
        let value = value / factor;
        let places = if value == value.round() && factor == 1.0 || value.abs() >= 99.95 { 0 } else { 1 };
        format!("{value:.places$}{unit}")
    })
}

/// `1 file`, `3 files`.
pub(super) fn things(number: u64, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

/// Formats seconds since 1970 as date and time in UTC.
pub(super) fn moment(seconds: f64) -> String {
    // Years 1970 to 9999.
    if !(0.0..253_402_300_800.0).contains(&seconds) {
        return NOTHING.to_owned();
    }
    let Civil { year, month, day, hour, minute, second } = Civil::from_seconds(seconds as i64);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn say_formats_numbers_briefly() {
        for (shown, expected) in [
            (rate(1.25e8), "1.00 Gbit/s"),
            (rate(f64::NAN), "–"),
            (throughput(1_048_576.0), "1.00 MiB/s"),
            (time(0.06), "60.0 ms"),
            (time(0.000_02), "20.0 µs"),
            (time(-90.0), "-90.0 s"),
            (time(9000.0), "2.5 h"),
            (percent(0.5), "50 %"),
            (percent(f64::INFINITY), "–"),
            (count(12.0), "12"),
            (count(0.25), "0.2"),
            (count(123_456.0), "123 k"),
            (count(1e18), "1.00e18"),
            (things(1, "file"), "1 file"),
            (things(0, "stream"), "0 streams"),
        ] {
            assert_eq!(shown, expected);
        }
    }

    #[test]
    fn moment_formats_dates() {
        for (seconds, expected) in [
            (0.0, "1970-01-01 00:00:00 UTC"),
            (951_782_400.0, "2000-02-29 00:00:00 UTC"),
            (1_800_000_000.5, "2027-01-15 08:00:00 UTC"),
            (4_107_542_399.0, "2100-02-28 23:59:59 UTC"),
            (-1.0, "–"),
            (1e19, "–"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(moment(seconds), expected);
        }
    }
}
