//! A rate that depends on the day of the week and the time of day.
//!
//! `Mon-Fri 08:00-18:00 2Gbit/s, Sat 500Mbit/s, else off`: the first entry that fits holds, and
//! without one there is no limit. Times are those of the local clock. A span whose end is not after
//! its start goes past midnight, and belongs to the day on which it starts. An hour that the change
//! to summer time skips has no entry in force; one that comes twice has it twice.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use ropewalk_units::{print, read};

const DAY: u16 = 24 * 60;
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
/// The longest text, in bytes: far more than a week needs.
const LONGEST: usize = 4096;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timetable {
    entries: Vec<Entry>,
    /// When no entry fits, in bytes per second; `None`: no limit.
    otherwise: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// By day, from Monday on.
    days: [bool; 7],
    /// Minutes of the day.
    start: u16,
    /// From 1 to [`DAY`]; at most `start` if it is on the next day.
    end: u16,
    /// In bytes per second; `None`: no limit.
    rate: Option<u64>,
}

/// A text is not a timetable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?}: {problem}; expected a rate, such as 2Gbit/s, or \"Mon-Fri 08:00-18:00 2Gbit/s, else off\""
)]
pub struct TimetableError {
    text: String,
    problem: String,
}

/// A time of the local clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    /// From 0, which is Monday.
    pub weekday: u8,
    /// Minutes since midnight.
    pub minute: u16,
}

impl LocalTime {
    /// The time that the clocks of this host show at `time`.
    pub fn of(time: SystemTime) -> Self {
        Self::within(time, TimeZone::system())
    }

    fn within(time: SystemTime, zone: TimeZone) -> Self {
        let time = zone.to_datetime(Timestamp::try_from(time).unwrap_or_default());
        Self {
            weekday: u8::try_from(time.weekday().to_monday_zero_offset()).unwrap_or_default(),
            minute: u16::try_from(i32::from(time.hour()) * 60 + i32::from(time.minute())).unwrap_or_default(),
        }
    }
}

impl Timetable {
    /// The same rate at all times, in bytes per second; `None`: no limit.
    pub const fn always(rate: Option<u64>) -> Self {
        Self { entries: Vec::new(), otherwise: rate }
    }

    /// The rate in bytes per second; `None`: no limit.
    pub fn rate(&self, now: LocalTime) -> Option<u64> {
        self.entries.iter().find(|entry| entry.fits(now)).map_or(self.otherwise, |entry| entry.rate)
    }

    /// The lowest rate at any time, in bytes per second; `None`: there is never a limit.
    pub fn lowest(&self) -> Option<u64> {
        self.entries.iter().filter_map(|entry| entry.rate).chain(self.otherwise).min()
    }

    /// Whether the rate never changes.
    pub fn is_constant(&self) -> bool {
        self.entries.is_empty()
    }
}

impl From<u64> for Timetable {
    fn from(rate: u64) -> Self {
        Self::always(Some(rate))
    }
}

impl Entry {
    fn fits(&self, now: LocalTime) -> bool {
        let today = usize::from(now.weekday % 7);
        let yesterday = (today + 6) % 7;
        if self.start < self.end {
            return self.days[today] && (self.start..self.end).contains(&now.minute);
        }
        (self.days[today] && now.minute >= self.start) || (self.days[yesterday] && now.minute < self.end)
    }
}

impl FromStr for Timetable {
    type Err = TimetableError;

    fn from_str(text: &str) -> Result<Self, TimetableError> {
        let failed = |problem: String| {
            let text = text.chars().take(200).collect();
            TimetableError { text, problem }
        };
        if text.len() > LONGEST {
            return Err(failed(format!("is longer than {LONGEST} bytes")));
        }
        let mut table = Self::always(None);
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        for (at, part) in parts.iter().enumerate() {
            let mut words = part.split_whitespace().peekable();
            if words.next_if(|word| word.eq_ignore_ascii_case("else")).is_some() {
                if at + 1 < parts.len() || at == 0 {
                    return Err(failed("\"else\" is the last entry, after others".into()));
                }
                table.otherwise = rate(words).map_err(failed)?;
                continue;
            }
            let days = words.peek().and_then(|word| days(word));
            if days.is_some() {
                words.next();
            }
            let span = match words.peek() {
                Some(word) if word.contains(':') => Some(span(word).map_err(failed)?),
                _ => None,
            };
            if span.is_some() {
                words.next();
            }
            let rate = rate(words).map_err(failed)?;
            if days.is_none() && span.is_none() {
                if parts.len() > 1 {
                    return Err(failed(format!("{part:?} has neither days nor times")));
                }
                table.otherwise = rate;
                continue;
            }
            let (start, end) = span.unwrap_or((0, DAY));
            table.entries.push(Entry { days: days.unwrap_or([true; 7]), start, end, rate });
        }
        Ok(table)
    }
}

/// `Mon`, `Mon-Fri`, `Sat-Mon`.
fn days(word: &str) -> Option<[bool; 7]> {
    let day = |name: &str| DAYS.iter().position(|day| day.eq_ignore_ascii_case(name));
    let (first, last) = match word.split_once('-') {
        Some((first, last)) => (day(first)?, day(last)?),
        None => (day(word)?, day(word)?),
    };
    let count = (last + 7 - first) % 7;
    let mut days = [false; 7];
    (0..=count).for_each(|at| days[(first + at) % 7] = true);
    Some(days)
}

/// `08:00-18:00`, `22:00-06:00`, `00:00-24:00`.
fn span(word: &str) -> Result<(u16, u16), String> {
    let time = |text: &str| {
        let (hour, minute) = text.split_once(':')?;
        let digits = |text: &str| {
            (text.len() <= 2 && text.bytes().all(|c| c.is_ascii_digit())).then(|| text.parse::<u16>().ok())?
        };
        let (hour, minute) = (digits(hour)?, digits(minute)?);
        (minute < 60 && hour * 60 + minute <= DAY).then_some(hour * 60 + minute)
    };
    let times = word.split_once('-').and_then(|(start, end)| Some((time(start)?, time(end)?)));
    match times {
        Some((start, _)) if start == DAY => Err(format!("{word:?} starts after the end of the day")),
        Some((start, end)) if start == end => Err(format!("{word:?} is empty")),
        Some((start, 0)) => Ok((start, DAY)),
        Some(times) => Ok(times),
        None => Err(format!("{word:?} is no span of time, such as 08:00-18:00")),
    }
}

fn rate<'a>(words: impl Iterator<Item = &'a str>) -> Result<Option<u64>, String> {
    let text = words.collect::<Vec<_>>().join(" ");
    if ["off", "none", "unlimited"].iter().any(|word| text.eq_ignore_ascii_case(word)) {
        return Ok(None);
    }
    match read::rate(&text) {
        Some(rate) if rate >= 1.0 => Ok(Some(rate as u64)),
        Some(_) => Err(format!("{text:?} is less than 1 byte/s")),
        None if text.is_empty() => Err("a rate is missing".into()),
        None => Err(format!("{text:?} is no rate")),
    }
}

/// The form that is parsed again to the same value.
impl fmt::Display for Timetable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |rate: Option<u64>| {
            let text = rate.map(print::exact_size);
            text.map_or_else(|| "off".to_owned(), |text| format!("{}B/s", text.trim_end_matches('B')))
        };
        for entry in &self.entries {
            let clock = |minutes: u16| format!("{:02}:{:02}", minutes / 60, minutes % 60);
            let first = (0..7).find(|&at| entry.days[at] && !entry.days[(at + 6) % 7]);
            if let Some(first) = first {
                let count = entry.days.iter().filter(|day| **day).count();
                write!(f, "{}", DAYS[first])?;
                if count > 1 {
                    write!(f, "-{}", DAYS[(first + count - 1) % 7])?;
                }
                f.write_str(" ")?;
            }
            if (entry.start, entry.end) != (0, DAY) || first.is_none() {
                write!(f, "{}-{} ", clock(entry.start), clock(entry.end))?;
            }
            write!(f, "{}, ", rate(entry.rate))?;
        }
        if !self.entries.is_empty() {
            f.write_str("else ")?;
        }
        f.write_str(&rate(self.otherwise))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn table(text: &str) -> Timetable {
        text.parse().unwrap()
    }

    fn at(weekday: u8, clock: &str) -> LocalTime {
        let (hour, minute) = clock.split_once(':').unwrap();
        LocalTime { weekday, minute: hour.parse::<u16>().unwrap() * 60 + minute.parse::<u16>().unwrap() }
    }

    #[test]
    fn timetable_with_days_and_times_has_its_rate_within_them_only() {
        let table = table("Mon-Fri 08:00-18:00 2Gbit/s, Sat 1MB/s, else off");
        assert_eq!(table.rate(at(0, "08:00")), Some(250_000_000));
        assert_eq!(table.rate(at(4, "17:59")), Some(250_000_000));
        assert_eq!(table.rate(at(0, "07:59")), None);
        assert_eq!(table.rate(at(0, "18:00")), None);
        assert_eq!(table.rate(at(5, "00:00")), Some(1_000_000));
        assert_eq!(table.rate(at(6, "12:00")), None);
    }

    #[test]
    fn timetable_past_midnight_belongs_to_the_day_of_its_start() {
        let table = table("Fri 22:00-06:00 1MB/s, else 2MB/s");
        let rate = |weekday, clock| table.rate(at(weekday, clock)).unwrap() / 1_000_000;
        assert_eq!(rate(4, "21:59"), 2);
        assert_eq!((rate(4, "22:00"), rate(4, "23:59")), (1, 1));
        assert_eq!((rate(5, "00:00"), rate(5, "05:59")), (1, 1));
        assert_eq!((rate(5, "06:00"), rate(5, "22:00"), rate(4, "03:00")), (2, 2, 2));
    }

    #[test]
    fn timetable_until_midnight_ends_with_the_day() {
        for text in ["Sun 20:00-24:00 1MB/s", "Sun 20:00-00:00 1MB/s"] {
            assert_eq!(table(text).rate(at(6, "23:59")), Some(1_000_000), "{text}");
            assert_eq!(table(text).rate(at(0, "00:00")), None, "{text}");
        }
        // From Sunday to Monday, over the end of the week.
        assert_eq!(table("Sun 22:00-02:00 1MB/s").rate(at(0, "01:00")), Some(1_000_000));
        assert_eq!(table("Sat-Mon 1MB/s").rate(at(6, "01:00")), Some(1_000_000));
        assert_eq!(table("Sat-Mon 1MB/s").rate(at(1, "01:00")), None);
    }

    #[test]
    fn timetable_follows_the_local_clock_through_summer_time() {
        let zone = || TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let table = table("02:00-03:00 1MB/s, else off");
        let rate = |utc: &str| {
            let time = SystemTime::try_from(utc.parse::<Timestamp>().unwrap()).unwrap();
            table.rate(LocalTime::within(time, zone()))
        };
        // On 29 March 2026 the clocks go from 01:59 to 03:00.
        assert_eq!((rate("2026-03-29T00:59:59Z"), rate("2026-03-29T01:00:00Z")), (None, None));
        // On 25 October they show the hour from 02:00 on twice.
        assert_eq!(rate("2026-10-24T23:59:59Z"), None);
        assert_eq!(rate("2026-10-25T00:00:00Z"), Some(1_000_000));
        assert_eq!(rate("2026-10-25T01:59:59Z"), Some(1_000_000));
        assert_eq!(rate("2026-10-25T02:00:00Z"), None);
        let sunday = LocalTime::within(
            SystemTime::try_from("2026-03-28T23:30:00Z".parse::<Timestamp>().unwrap()).unwrap(),
            zone(),
        );
        assert_eq!(sunday, at(6, "00:30"));
    }

    #[test]
    fn timetable_of_wrong_text_names_the_problem() {
        for (text, problem) in [
            ("", "a rate is missing"),
            ("0", "less than 1 byte/s"),
            ("fast", "is no rate"),
            ("Mon-Fri 8-18 1M", "is no rate"),
            ("08:00-25:00 1M", "no span of time"),
            ("08:60-09:00 1M", "no span of time"),
            ("24:00-08:00 1M", "starts after the end"),
            ("08:00-08:00 1M", "is empty"),
            ("1M, 2M", "neither days nor times"),
            ("else 1M", "last entry"),
            ("else off, Mon 1M", "last entry"),
            ("Mon 1M,", "a rate is missing"),
            ("-1:00-2:00 1M", "no span of time"),
        ] {
            let error = text.parse::<Timetable>().unwrap_err().to_string();
            assert!(error.contains(problem), "{text:?}: {error}");
        }
        let long = "Mon 1M,".repeat(1000).parse::<Timetable>().unwrap_err().to_string();
        assert!(long.contains("longer") && long.len() < 600, "{long}");
    }

    #[test]
    fn timetable_of_a_rate_alone_is_constant() {
        assert!(table("2Gbit/s").is_constant() && table("off").is_constant());
        assert_eq!(table("2Gbit/s"), Timetable::from(250_000_000));
        assert_eq!(table("2Gbit/s").to_string(), "250000000B/s");
    }

    proptest! {
        #[test]
        fn timetable_when_printed_is_parsed_to_the_same(
            entries in proptest::collection::vec((0_usize..7, 0_usize..7, 0_u16..1440, 1_u16..=1440, 1_u64..1 << 50), 0..4),
            otherwise in proptest::option::of(1_u64..1 << 50),
        ) {
            let entries = entries.into_iter().filter(|(_, _, start, end, _)| start != end);
            let entries = entries.map(|(first, count, start, end, rate)| {
                let mut days = [false; 7];
                (0..=count).for_each(|at| days[(first + at) % 7] = true);
                Entry { days, start, end, rate: Some(rate) }
            });
            let table = Timetable { entries: entries.collect(), otherwise };
            prop_assert_eq!(table.to_string().parse::<Timetable>(), Ok(table));
        }

        #[test]
        fn timetable_of_any_text_does_not_panic(text in "\\PC{0,60}") {
            if let Ok(table) = text.parse::<Timetable>() {
                table.rate(LocalTime { weekday: 3, minute: 700 });
            }
        }
    }
}
