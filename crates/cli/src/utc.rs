//! Dates, in UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ropewalk_protocol::date::Civil;

use crate::units::parse_duration;

/// Formats seconds since 1970 as `2026-01-31 12:00:00`.
pub(crate) fn show(seconds: i64) -> String {
    let Civil { year, month, day, hour, minute, second } = Civil::from_seconds(seconds);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Parses `2026-01-31`, `2026-01-31 12:00`, `2026-01-31T12:00:00Z`, or an age such as `2d`, to
/// seconds since 1970.
pub(crate) fn parse(given: &str) -> Result<i64, String> {
    if let Ok(age) = parse_duration(given) {
        return Ok(now().saturating_sub(age.as_secs().try_into().unwrap_or(i64::MAX)));
    }
    parse_date(given).ok_or_else(|| {
        format!("{given:?}: expected a date such as 2026-01-31 or 2026-01-31T12:00:00Z, or an age such as 2d")
    })
}

pub(crate) fn parse_date(given: &str) -> Option<i64> {
    let text = given.strip_suffix('Z').unwrap_or(given);
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "0:0:0"));
    let mut date = date.splitn(3, '-');
    let mut time = time.splitn(3, ':');
    let small = |part: Option<&str>| part?.parse::<u8>().ok();
    Civil {
        year: date.next()?.parse().ok()?,
        month: small(date.next())?,
        day: small(date.next())?,
        hour: small(time.next())?,
        minute: small(time.next())?,
        second: time.next().map_or(Some(0), |part| small(Some(part)))?,
    }
    .to_seconds()
}

pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    since.as_secs().try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_time_is_parsed_back() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_795_298_190, "2026-11-21 21:56:30"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(show(seconds), text);
            assert_eq!(parse_date(text), Some(seconds));
        }
    }

    #[test]
    fn time_in_each_form_is_parsed() {
        assert_eq!(parse("2000-01-01"), Ok(946_684_800));
        assert_eq!(parse("2000-01-01T00:01Z"), Ok(946_684_860));
        assert!(parse("2d").is_ok_and(|then| (now() - then - 2 * 86400).abs() < 5));
        for text in ["2026-02-29", "2026-13-01", "2026-01-01T24:00", "yesterday", "2026-1", ""] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
