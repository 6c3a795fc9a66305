//! The quantities of the models' options.

use ropewalk_units::read;

use crate::units;

/// Bits per second from `10Gbit/s` or `100MiB/s`. A number without a unit is refused: other options
/// take it for bytes, but the rate of a link is usually given in bits.
pub(super) fn bits_per_second(text: &str) -> Result<f64, String> {
    let bits = units::parse_exact_rate(text)? * 8.0;
    if !text.contains(['b', 'B']) {
        let number = text.trim().trim_end_matches("/s");
        return Err(format!("{text:?}: bits or bytes? Expected {number}bit/s or {number}B/s"));
    }
    // Removes digits that come from the conversion.
    let bits = (bits * 1e6).round() / 1e6;
    if bits > 0.0 { Ok(bits) } else { Err("expected more than 0".into()) }
}

/// Milliseconds from `80ms`, `350us` or `350µs`. A number without a unit is refused: other options
/// take it for seconds, but round trips are usually given in milliseconds.
pub(super) fn milliseconds(text: &str) -> Result<f64, String> {
    if read::unit(text).is_empty() && read::duration(text).is_some_and(|time| !time.is_zero()) {
        return Err(format!("{text:?} has no unit: expected for example 80ms or 30s"));
    }
    let time = read::duration(text)
        .ok_or_else(|| format!("{text:?} is not a time: expected a number with us, ms, s, m, h or d"))?;
    if time.is_zero() { Err("expected more than 0".into()) } else { Ok(time.as_nanos() as f64 / 1e6) }
}

/// Bytes, at least one.
pub(super) fn bytes(text: &str) -> Result<f64, String> {
    match units::parse_size(text)? {
        0 => Err("expected more than 0".into()),
        bytes => Ok(bytes as f64),
    }
}

/// A share from `0.001` or `0.1%`.
pub(super) fn share(text: &str) -> Result<f64, String> {
    read::share(text)
        .filter(|value| (0.0..1.0).contains(value))
        .ok_or_else(|| format!("{text:?} is not a loss: expected for example 0.001 or 0.1%, below 1"))
}

/// `0.12 %`.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        0.0 => "0 %".into(),
        p if p < 0.001 => format!("{p:.1e} %"),
        p if p < 0.1 => format!("{p:.4} %"),
        p => format!("{p:.2} %"),
    }
}

/// `80 ms`, without digits that come from the conversion.
pub(super) fn show_ms(ms: f64) -> String {
    let rounded = (ms * 1e6).round() / 1e6;
    format!("{rounded} ms")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn quantities_with_units_are_parsed() {
        assert_eq!(bits_per_second("10Gbit/s"), Ok(1e10));
        for (text, bits) in [("9bit/s", 9.0), ("1bit/s", 1.0), ("1.1Mbit/s", 1.1e6), ("0.3kbit/s", 300.0)] {
            assert_eq!(bits_per_second(text), Ok(bits), "{text}");
        }
        assert_eq!(milliseconds("80ms"), Ok(80.0));
        for text in ["350us", "350\u{b5}s", "350 \u{3bc}s"] {
            assert_eq!(milliseconds(text), Ok(0.35), "{text}");
        }
        assert_eq!(bytes("64KiB"), Ok(65536.0));
        assert_eq!(share("0.1%"), Ok(0.001));
        assert_eq!(share("0"), Ok(0.0));
        for text in ["0", "0bit/s", "10", "10G", "10M/s", "-1Gbit/s", "nan", "inf", ""] {
            assert!(bits_per_second(text).is_err(), "{text}");
        }
        for text in ["0ms", "-3us", "0us", "nanus", "infus", "soon", "80", "1_000", "0.08"] {
            assert!(milliseconds(text).is_err(), "{text}");
        }
        for text in ["1", "100%", "-0.1", "nan", "inf", "much"] {
            assert!(share(text).is_err(), "{text}");
        }
        assert_eq!(
            [percent(0.0), percent(1.2e-8), percent(0.0005), percent(0.25)],
            ["0 %", "1.2e-6 %", "0.0500 %", "25.00 %"]
        );
    }
}
