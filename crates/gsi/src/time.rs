//! Times of certificates: seconds since 1970, and words.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::der::{DerError, Element, GENERALIZED_TIME, UTC_TIME};

/// Seconds since 1970-01-01 00:00 UTC, without leap seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// What the system's clock says.
    pub fn now() -> Self {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Self(i64::try_from(since.as_secs()).unwrap_or(i64::MAX)),
            Err(before) => Self(-i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX)),
        }
    }

    /// Seconds from now until then; 0 when it is past.
    pub fn left_at(self, now: Self) -> u64 {
        u64::try_from(self.0.saturating_sub(now.0)).unwrap_or(0)
    }

    /// From UTCTime or GeneralizedTime (RFC 5280 section 4.1.2.5).
    pub(crate) fn from_der(element: &Element<'_>) -> Result<Self, DerError> {
        let text = element.content;
        let (year, rest) = match element.tag {
            UTC_TIME => {
                let year = number(text.get(..2))?;
                (if year < 50 { 2000 + year } else { 1900 + year }, text.get(2..))
            }
            GENERALIZED_TIME => (number(text.get(..4))?, text.get(4..)),
            found => return Err(DerError::Tag { expected: UTC_TIME, found }),
        };
        let rest = rest.ok_or(DerError::Truncated)?;
        let field = |at: usize| number(rest.get(at..at + 2));
        let (month, day, hour, minute) = (field(0)?, field(2)?, field(4)?, field(6)?);
        // Old certificates may leave the seconds out.
        let (second, zone) =
            if rest.get(8).is_some_and(u8::is_ascii_digit) { (field(8)?, 10) } else { (0, 8) };
        let valid = (1..=12).contains(&month) && (1..=31).contains(&day);
        if !valid || hour > 23 || minute > 59 || second > 60 || rest.get(zone..) != Some(b"Z") {
            return Err(DerError::Value);
        }
        Ok(Self(days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second))
    }
}

impl std::fmt::Display for Timestamp {
    /// `2026-11-22 04:01:33 UTC`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (day, second) = (self.0.div_euclid(86_400), self.0.rem_euclid(86_400));
        let (year, month, day) = date(day);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
    }
}

fn number(digits: Option<&[u8]>) -> Result<i64, DerError> {
    digits.ok_or(DerError::Truncated)?.iter().try_fold(0, |sum, digit| {
        if digit.is_ascii_digit() { Ok(sum * 10 + i64::from(digit - b'0')) } else { Err(DerError::Value) }
    })
}

/// Days since 1970-01-01 in the Gregorian calendar; years begin in March, so that leap days come last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(tag: u8, text: &[u8]) -> Result<Timestamp, DerError> {
        Timestamp::from_der(&Element { tag, content: text, whole: text })
    }

    #[test]
    fn both_forms() {
        assert_eq!(parse(UTC_TIME, b"700101000000Z").unwrap(), Timestamp(0));
        assert_eq!(parse(GENERALIZED_TIME, b"20240229235959Z").unwrap(), Timestamp(1_709_251_199));
        assert_eq!(Timestamp(1_709_251_199).to_string(), "2024-02-29 23:59:59 UTC");
        assert_eq!(parse(UTC_TIME, b"491231235959Z").unwrap().to_string(), "2049-12-31 23:59:59 UTC");
        assert!(parse(UTC_TIME, b"7001").is_err());
        assert!(parse(UTC_TIME, b"701301000000Z").is_err());
        assert!(parse(UTC_TIME, b"700101000000+0100").is_err());
    }

    #[test]
    fn every_day_comes_back() {
        for day in (-200_000..400_000).step_by(17) {
            let (year, month, of_month) = date(day);
            assert_eq!(days(year, month, of_month), day);
        }
    }
}
