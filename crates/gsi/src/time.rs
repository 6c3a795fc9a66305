//! Times of certificates: seconds since 1970, and their text.

use std::time::{SystemTime, UNIX_EPOCH};

use ropewalk_protocol::date::Civil;

use crate::der::{DerError, Element, GENERALIZED_TIME, UTC_TIME};

/// Seconds since 1970-01-01 00:00 UTC, without leap seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The time of the system clock.
    pub fn now() -> Self {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Self(i64::try_from(since.as_secs()).unwrap_or(i64::MAX)),
            Err(before) => Self(-i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX)),
        }
    }

    /// Seconds from `now` until this time; 0 if it has passed.
    pub fn left_at(self, now: Self) -> u64 {
        u64::try_from(self.0.saturating_sub(now.0)).unwrap_or(0)
    }

    /// Decodes UTCTime or GeneralizedTime (RFC 5280 section 4.1.2.5).
    pub(crate) fn from_der(element: &Element<'_>) -> Result<Self, DerError> {
        let text = element.content;
        let (year, rest) = match element.tag {
            UTC_TIME => {
                let year = i64::from(number(text.get(..2))?);
                (if year < 50 { 2000 + year } else { 1900 + year }, text.get(2..))
            }
            GENERALIZED_TIME => {
                let (century, year) = (number(text.get(..2))?, number(text.get(2..4))?);
                (i64::from(century) * 100 + i64::from(year), text.get(4..))
            }
            found => return Err(DerError::Tag { expected: UTC_TIME, found }),
        };
        let rest = rest.ok_or(DerError::Truncated)?;
        let field = |at: usize| number(rest.get(at..at + 2));
        let (month, day, hour, minute) = (field(0)?, field(2)?, field(4)?, field(6)?);
        // Old certificates may leave out the seconds.
        let (second, zone) =
            if rest.get(8).is_some_and(u8::is_ascii_digit) { (field(8)?, 10) } else { (0, 8) };
        if rest.get(zone..) != Some(b"Z") {
            return Err(DerError::Value);
        }
        Civil { year, month, day, hour, minute, second }.to_seconds().map(Self).ok_or(DerError::Value)
    }
}

impl std::fmt::Display for Timestamp {
    /// Formats as `2026-11-22 04:01:33 UTC`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Civil { year, month, day, hour, minute, second } = Civil::from_seconds(self.0);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
    }
}

/// The value of two digits.
fn number(digits: Option<&[u8]>) -> Result<u8, DerError> {
    match digits.ok_or(DerError::Truncated)? {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => Ok((tens - b'0') * 10 + (ones - b'0')),
        _ => Err(DerError::Value),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(tag: u8, text: &[u8]) -> Result<Timestamp, DerError> {
        Timestamp::from_der(&Element { tag, content: text, whole: text })
    }

    #[test]
    fn from_der_reads_both_time_types() {
        assert_eq!(parse(UTC_TIME, b"700101000000Z").unwrap(), Timestamp(0));
        assert_eq!(parse(GENERALIZED_TIME, b"20240229235959Z").unwrap(), Timestamp(1_709_251_199));
        assert_eq!(Timestamp(1_709_251_199).to_string(), "2024-02-29 23:59:59 UTC");
        assert_eq!(parse(UTC_TIME, b"491231235959Z").unwrap().to_string(), "2049-12-31 23:59:59 UTC");
        assert!(parse(UTC_TIME, b"7001").is_err());
        assert!(parse(UTC_TIME, b"701301000000Z").is_err());
        assert!(parse(UTC_TIME, b"700101000000+0100").is_err());
    }
}
