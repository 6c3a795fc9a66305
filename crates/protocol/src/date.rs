//! Dates in FTP: `YYYYMMDDHHMMSS[.sss]` in UTC (RFC 3659 section 2.3), and the short form in
//! listings.
//!
//! Times are seconds since 1970-01-01T00:00:00Z, negative before it, in the proleptic Gregorian
//! calendar.

use std::fmt;

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAY: i64 = 86_400;
/// 0000-01-01T00:00:00.
const FIRST: i64 = -62_167_219_200;
/// 9999-12-31T23:59:59.
const LAST: i64 = 253_402_300_799;

/// The text is not a date and time of RFC 3659 section 2.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a date and time of the form YYYYMMDDHHMMSS")]
pub struct InvalidDate;

/// The date and time fields of a moment, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Civil {
    pub year: i64,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    pub hour: u8,
    pub minute: u8,
    /// 0 to 60. A leap second, 60, counts as the first second of the next minute.
    pub second: u8,
}

impl Civil {
    pub fn from_seconds(seconds: i64) -> Self {
        let (days, rest) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
        // Years in this computation begin in March, so that the leap day is the last day of a year.
        // All eras of 400 years have the same length.
        let days = days + 719_468;
        let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        Self {
            year: year_of_era + era * 400 + i64::from(month <= 2),
            month: month as u8,
            day: (day_of_year - (153 * month_from_march + 2) / 5 + 1) as u8,
            hour: (rest / 3600) as u8,
            minute: (rest / 60 % 60) as u8,
            second: (rest % 60) as u8,
        }
    }

    /// Returns `None` if a field is out of range, or if the year is not in 0..=9999.
    pub fn to_seconds(self) -> Option<i64> {
        let leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        let length = match self.month {
            2 => 28 + u8::from(leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let date = (0..=9999).contains(&self.year)
            && (1..=12).contains(&self.month)
            && (1..=length).contains(&self.day);
        if !date || self.hour > 23 || self.minute > 59 || self.second > 60 {
            return None;
        }
        let month = i64::from(self.month);
        let year = self.year - i64::from(month <= 2);
        let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + i64::from(self.day) - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        let days = era * 146_097 + day_of_era - 719_468;
        Some(days * DAY + i64::from(self.hour) * 3600 + i64::from(self.minute) * 60 + i64::from(self.second))
    }
}

/// Parses `YYYYMMDDHHMMSS`. A fraction of a second may follow; it is dropped.
///
/// # Errors
/// The text has another form, or the day or time does not exist.
pub fn parse(text: &[u8]) -> Result<i64, InvalidDate> {
    let (whole, fraction) = text.split_at_checked(14).ok_or(InvalidDate)?;
    let fraction_is_good = fraction.is_empty()
        || fraction.strip_prefix(b".").is_some_and(|f| !f.is_empty() && f.iter().all(u8::is_ascii_digit));
    if !fraction_is_good || !whole.iter().all(u8::is_ascii_digit) {
        return Err(InvalidDate);
    }
    let number = |from: usize, to: usize| whole[from..to].iter().fold(0, |n, b| n * 10 + i64::from(b - b'0'));
    let civil = Civil {
        year: number(0, 4),
        month: number(4, 6) as u8,
        day: number(6, 8) as u8,
        hour: number(8, 10) as u8,
        minute: number(10, 12) as u8,
        second: number(12, 14) as u8,
    };
    civil.to_seconds().ok_or(InvalidDate)
}

/// Prints as `YYYYMMDDHHMMSS`. Times before year 0 print as the first second of year 0, times after
/// year 9999 as the last second of year 9999.
#[derive(Clone, Copy, Debug)]
pub struct Stamp(pub i64);

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = Civil::from_seconds(self.0.clamp(FIRST, LAST));
        write!(f, "{:04}{:02}{:02}{:02}{:02}{:02}", c.year, c.month, c.day, c.hour, c.minute, c.second)
    }
}

/// Half a mean Gregorian year, in seconds.
const HALF_A_YEAR: i64 = 15_778_476;

/// Prints as `Nov 21 19:17`, or as `Nov 21  2001` if the time is after `now` or more than half a
/// year before it. This is the form of `ls`. If the year is missing, a client assumes the last such
/// day before now; 29 February would be invalid in most years. Times outside of the years 0 to 9999
/// are clamped.
#[derive(Clone, Copy, Debug)]
pub struct ListStamp {
    /// In seconds since 1970.
    pub seconds: i64,
    /// The clock, in seconds since 1970.
    pub now: i64,
}

impl fmt::Display for ListStamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = Civil::from_seconds(self.seconds.clamp(FIRST, LAST));
        let month = MONTHS[usize::from(c.month - 1)];
        write!(f, "{month} {:>2} ", c.day)?;
        if (self.now.saturating_sub(HALF_A_YEAR)..=self.now).contains(&self.seconds) {
            write!(f, "{:02}:{:02}", c.hour, c.minute)
        } else {
            write!(f, " {:04}", c.year)
        }
    }
}

/// Returns the number (1 to 12) of the month with this English abbreviation, in any case.
pub fn month(name: &[u8]) -> Option<u8> {
    let at = MONTHS.iter().position(|m| m.as_bytes().eq_ignore_ascii_case(name))?;
    Some(at as u8 + 1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn date_known_moments_are_parsed_and_printed() {
        for (text, seconds) in [
            ("19700101000000", 0),
            ("20000229123456", 951_827_696),
            ("20010203040506", 981_173_106),
            ("20261121191739", 1_795_288_659),
            ("19691231235959", -1),
            ("00000101000000", -62_167_219_200),
            ("99991231235959", 253_402_300_799),
        ] {
            assert_eq!(parse(text.as_bytes()), Ok(seconds), "{text}");
            assert_eq!(Stamp(seconds).to_string(), text);
        }
        assert_eq!(parse(b"20010203040506.789"), Ok(981_173_106));
        assert_eq!(parse(b"20161231235960"), parse(b"20170101000000"));
    }

    #[test]
    fn parse_invalid_date_fails() {
        for text in [
            "",
            "2001",
            "20010229000000",
            "20011301000000",
            "20010100000000",
            "20010132000000",
            "20010101240000",
            "20010101006000",
            "20010101000061",
            "2001010100000",
            "20010101000000.",
            "20010101000000.x",
            "200101010000000",
            "+2010101000000",
            "19000229000000",
        ] {
            assert_eq!(parse(text.as_bytes()), Err(InvalidDate), "{text}");
        }
    }

    #[test]
    fn list_stamp_shows_time_only_within_half_a_year() {
        let listed = |seconds, now| ListStamp { seconds, now }.to_string();
        let now = 1_795_288_659;
        assert_eq!(listed(now, now), "Nov 21 19:17");
        assert_eq!(listed(now - HALF_A_YEAR, now), "May 23 04:23");
        assert_eq!(listed(now - HALF_A_YEAR - 1, now), "May 23  2026");
        assert_eq!(listed(now + 1, now), "Nov 21  2026");
        assert_eq!(listed(981_173_106, now), "Feb  3  2001");
        // 2024-02-29T12:00:00.
        assert_eq!(listed(1_709_208_000, now), "Feb 29  2024");
        assert_eq!((month(b"jan"), month(b"DEC"), month(b"foo")), (Some(1), Some(12), None));
    }

    #[test]
    fn stamps_at_limits_of_i64_are_clamped() {
        assert_eq!(Stamp(i64::MAX).to_string(), "99991231235959");
        assert_eq!(Stamp(i64::MIN).to_string(), "00000101000000");
        for (seconds, now) in [(i64::MIN, i64::MAX), (i64::MAX, i64::MIN), (i64::MIN, i64::MIN)] {
            assert_eq!(ListStamp { seconds, now }.to_string().len(), 12);
        }
    }

    proptest! {
        #[test]
        fn stamp_printed_is_parsed_back(seconds in -62_167_219_200i64..=253_402_300_799) {
            prop_assert_eq!(parse(Stamp(seconds).to_string().as_bytes()), Ok(seconds));
        }

        #[test]
        fn date_on_any_input_does_not_panic(bytes: Vec<u8>, seconds: i64) {
            let _ = parse(&bytes);
            let _ = Stamp(seconds).to_string();
        }
    }
}
