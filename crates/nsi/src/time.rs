//! Dates of XML Schema (xsd:dateTime), as durations since 1970-01-01T00:00:00Z.

use std::time::Duration;

use ropewalk_protocol::date::Civil;

/// `2026-01-31T12:00:00Z`. Parts of a second are dropped.
pub fn show(time: Duration) -> String {
    let Civil { year, month, day, hour, minute, second } =
        Civil::from_seconds(i64::try_from(time.as_secs()).unwrap_or(i64::MAX / 2));
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Parses a date with time and zone. `None`: the text is no such date, it has no zone (which the
/// `DateTimeType` of OGF's schemas demands), or the date is before 1970.
pub fn parse(text: &str) -> Option<Duration> {
    let text = text.trim();
    let (date, rest) = text.split_once('T')?;
    let zone = rest.find(['Z', '+', '-']).unwrap_or(rest.len());
    let (time, zone) = rest.split_at(zone);
    let time = match time.split_once('.') {
        Some((time, part)) if !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) => time,
        Some(_) => return None,
        None => time,
    };
    let [year, month, day] = fields(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = fields(time, ':', [2, 2, 2])?;
    let small = |number: u32| u8::try_from(number).ok();
    let civil = Civil {
        year: year.into(),
        month: small(month)?,
        day: small(day)?,
        hour: small(hour)?,
        minute: small(minute)?,
        second: small(second)?,
    };
    let offset = match zone.split_at_checked(1) {
        Some(("Z", "")) => 0,
        Some((sign @ ("+" | "-"), zone)) => {
            let (hours, minutes) = zone.split_once(':')?;
            let [hours] = fields(hours, ':', [2])?;
            let [minutes] = fields(minutes, ':', [2])?;
            let offset = i64::from(hours) * 3600 + i64::from(minutes) * 60;
            if sign == "-" { -offset } else { offset }
        }
        _ => return None,
    };
    u64::try_from(civil.to_seconds()? - offset).ok().map(Duration::from_secs)
}

/// Numbers of so many digits each.
fn fields<const N: usize>(text: &str, separator: char, digits: [usize; N]) -> Option<[u32; N]> {
    let mut numbers = [0; N];
    let mut parts = text.split(separator);
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part = parts.next()?;
        if part.len() != digits || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_is_parsed_in_each_zone_and_nonsense_is_refused() {
        let noon = Some(Duration::from_secs(1_769_860_800));
        for text in [
            "2026-01-31T12:00:00Z",
            "2026-01-31T12:00:00.999Z",
            "2026-01-31T13:30:00+01:30",
            "2026-01-31T07:00:00-05:00",
            " 2026-01-31T12:00:00+00:00 ",
        ] {
            assert_eq!(parse(text), noon, "{text}");
        }
        assert_eq!(noon.map(show).as_deref(), Some("2026-01-31T12:00:00Z"));
        for text in [
            "",
            "T",
            "2026-01-31",
            "2026-01-31T12:00:00",
            "2026-02-30T12:00:00Z",
            "1969-12-31T23:59:59Z",
            "2026-01-31T12:00Z",
            "2026-01-31T12:00:00+1",
            "2026-01-31T12:00:00X",
            "2026-01-31T12:00:00.Z",
            "+026-01-31T12:00:00Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
