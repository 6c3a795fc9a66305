//! Formats numbers for sentences: bits for links, IEC bytes for sizes. A value that is not finite
//! (such as 0 divided by 0) is shown as a dash.

const NOTHING: &str = "–";

pub(crate) fn link(bytes_per_second: f64) -> String {
    scaled(bytes_per_second * 8.0, 1000.0, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"])
}

pub(crate) fn size(bytes: f64) -> String {
    scaled(bytes, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

pub(crate) fn time(seconds: f64) -> String {
    if !seconds.is_finite() {
        return NOTHING.into();
    }
    match seconds {
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s > 0.0 && s < 1e-4 => format!("{:.1} µs", s * 1e6),
        s => format!("{:.1} ms", s * 1000.0),
    }
}

pub(crate) fn percent(share: f64) -> String {
    let value = share * 100.0;
    if !value.is_finite() {
        return NOTHING.into();
    }
    if value >= 10.0 || value == 0.0 {
        format!("{value:.0} %")
    } else if value >= 0.1 {
        format!("{value:.1} %")
    } else {
        format!("{value:.4} %")
    }
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    if !value.is_finite() {
        return NOTHING.into();
    }
    let mut at = 0;
    while value >= step * 0.9995 && at + 1 < units.len() {
        value /= step;
        at += 1;
    }
    let places = match value {
        v if at == 0 || v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.places$} {}", units[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_when_value_is_not_finite_is_a_dash() {
        let shown = [link(f64::NAN), size(f64::INFINITY), time(f64::NAN), percent(f64::NEG_INFINITY)];
        assert_eq!(shown, ["–"; 4]);
    }

    #[test]
    fn text_shows_three_digits_and_a_unit() {
        assert_eq!((link(125_000_000.0).as_str(), link(10.0).as_str()), ("1.00 Gbit/s", "80 bit/s"));
        assert_eq!((size(131_072.0).as_str(), size(500.0).as_str()), ("128 KiB", "500 B"));
        assert_eq!((time(0.0801).as_str(), time(12.0).as_str()), ("80.1 ms", "12.0 s"));
        assert_eq!((time(0.000_02).as_str(), time(0.0).as_str()), ("20.0 µs", "0.0 ms"));
        assert_eq!(
            (percent(0.5).as_str(), percent(0.012).as_str(), percent(0.000_02).as_str()),
            ("50 %", "1.2 %", "0.0020 %")
        );
    }
}
