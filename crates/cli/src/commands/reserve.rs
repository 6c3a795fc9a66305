use std::ffi::OsString;
use std::io::{self, Write};
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use jiff::Timestamp;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use ropewalk_client::{Cancel, Options};
use ropewalk_paths::{Entry, Goal, Journal, Owner, PathError, Provider, Request, Runner, now};

use crate::exit::{Exit, usage};
use crate::held_space::SpaceHolder;
use crate::output::say;
use crate::path_source::PathSource;
use crate::path_use::{journal, sweep};
use crate::settings::ConnectionFlags;
use crate::units::{self, parse_duration, parse_rate, parse_size};
use crate::{signals, utc};

#[derive(Debug, Args)]
#[command(after_help = crate::exit::HELP)]
pub struct Reserve {
    /// The provider of the path, as with `cp --path`: hook:PROGRAM, hook:URL, nsi:FILE,
    /// nsi-rest:FILE or tc:FILE
    #[arg(value_name = "PROVIDER")]
    provider: String,
    /// The begin, in local time: 22:00 (the next one), or a date such as 2026-01-31T22:00; with Z
    /// at the end in UTC [default: now]
    #[arg(long, value_name = "WHEN")]
    from: Option<String>,
    /// How long the path is needed
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    time: Duration,
    /// The capacity [default: that of the provider's file, or the hook's choice]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    rate: Option<u64>,
    /// Also reserve this much space, for example 2TiB, in the directory that --at names: both or
    /// neither
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "at")]
    space: Option<u64>,
    /// The URL of the directory for --space
    #[arg(long, value_name = "URL", requires = "space")]
    at: Option<OsString>,
    #[command(flatten)]
    connection: ConnectionFlags,
}

impl Reserve {
    pub fn run(self) -> anyhow::Result<Exit> {
        let source = PathSource::parse(&self.provider).map_err(usage)?;
        let Some(provider) = source.provider()? else {
            return Err(usage(format!("{source} is reserved already")));
        };
        let zone = TimeZone::system();
        let (from, until) = window(self.from.as_deref(), self.time, now(), &zone).map_err(usage)?;
        if let Some(why) = source.without_schedule().filter(|_| from.is_some_and(|from| from > now())) {
            return Err(usage(format!("--from: {why}")));
        }
        let journal = journal(&Options::default())?;
        let cancel = Cancel::new();
        signals::watch(&cancel, "ropewalk: stopping; the path is removed (press Ctrl-C again to quit now)")?;
        sweep(&journal)?;
        let request = Request {
            from,
            until,
            capacity: self.rate.map(|bytes| bytes.saturating_mul(8)),
            description: "ropewalk reserve".to_owned(),
        };
        let time_left = || until.saturating_sub(now());
        let space = match (self.space, &self.at) {
            (Some(bytes), Some(at)) => {
                Some(SpaceHolder::hold(at, bytes, time_left(), &self.connection.0, &cancel)?)
            }
            _ => None,
        };
        // Until all of it is there, it belongs to this process: after a crash, the next program
        // removes the path.
        let mut entry = Entry::new(source.to_string(), Owner::Transfer, request);
        entry.space = space.as_ref().map(|space| space.held().clone());
        let runner = match reserve(&journal, entry, provider, space.as_ref(), &cancel) {
            Ok(runner) => runner,
            Err(error) => {
                release(space);
                return match error.downcast_ref() {
                    Some(PathError::Stopped) => Ok(Exit::Interrupted),
                    _ => Err(error),
                };
            }
        };
        let runner = keep(runner, space, time_left())?;
        let id = runner.entry().id.clone();
        if let Some(held) = &runner.entry().space {
            say(format_args!("ropewalk: {} are reserved in {} as well", units::size(held.bytes), held.url));
        }
        say(format_args!(
            "ropewalk: reserved until {} UTC; use it with cp --path reserved:{id}",
            utc::show(until.as_secs().try_into().unwrap_or(i64::MAX))
        ));
        let mut out = io::stdout().lock();
        writeln!(out, "{id}")?;
        out.flush()?;
        Ok(Exit::Done)
    }
}

/// Reserves the path while the space is held.
fn reserve(
    journal: &Journal,
    entry: Entry,
    provider: Box<dyn Provider>,
    space: Option<&SpaceHolder>,
    cancel: &Cancel,
) -> anyhow::Result<Runner> {
    let mut runner = Runner::begin(journal, entry, provider, Goal::Reserved)?;
    let lost = || space.and_then(SpaceHolder::lost);
    match runner.obtain(Goal::Reserved, &|| cancel.is_cancelled() || lost().is_some()) {
        Ok(_) => Ok(runner),
        Err(error) => Err(lost().map_or_else(|| error.into(), |why| anyhow!(why))),
    }
}

/// Keeps the space for the whole time, and then the path: both or neither.
fn keep(mut runner: Runner, mut space: Option<SpaceHolder>, time: Duration) -> anyhow::Result<Runner> {
    let kept = space.as_mut().map_or(Ok(()), |space| space.keep(time));
    match kept.and_then(|()| Ok(runner.hand_over()?)) {
        Ok(()) => Ok(runner),
        Err(error) => {
            runner.end();
            release(space);
            Err(error)
        }
    }
}

/// Releases the space of a path that did not come. A failure is only reported: the reason for which
/// there is no path matters more, and the space ends by itself.
fn release(space: Option<SpaceHolder>) {
    if let Some(Err(error)) = space.map(SpaceHolder::release) {
        say(format_args!("ropewalk: the space stays reserved until its end: {error:#}"));
    }
}

/// The begin and the end of the reserved time, since 1970. No begin is as soon as possible.
fn window(
    from: Option<&str>,
    time: Duration,
    now: Duration,
    zone: &TimeZone,
) -> Result<(Option<Duration>, Duration), String> {
    if time < Duration::from_secs(1) {
        return Err("--for: expected at least 1s".to_owned());
    }
    let Some(text) = from else { return Ok((None, now + time)) };
    let (plain, zone) = match text.strip_suffix('Z') {
        Some(plain) => (plain, &TimeZone::UTC),
        None => (text, zone),
    };
    let from = match plain.split_once(':').filter(|(hour, _)| hour.len() <= 2) {
        Some((hour, minute)) => next_time(hour, minute, now, zone)
            .ok_or_else(|| format!("--from {text:?}: expected a time such as 22:00"))?,
        None => {
            let date = utc::parse_date(plain).and_then(|date| in_zone(date, zone)).ok_or_else(|| {
                format!("--from {text:?}: expected 22:00, or a date such as 2026-01-31T22:00")
            })?;
            Duration::from_secs(u64::try_from(date).unwrap_or_default())
        }
    };
    if from + time <= now {
        return Err(format!("--from {text}: this time is over"));
    }
    Ok((Some(from), from + time))
}

/// The next time at which clocks in `zone` show this hour and minute. If the change to summer time
/// skips it, that is the time just after the change.
fn next_time(hour: &str, minute: &str, now: Duration, zone: &TimeZone) -> Option<Duration> {
    let (hour, minute): (i8, i8) = (hour.parse().ok()?, minute.parse().ok()?);
    let now = Timestamp::from_second(i64::try_from(now.as_secs()).ok()?).ok()?;
    let today = zone.to_datetime(now).date();
    let time = Time::new(hour, minute, 0, 0).ok()?;
    let at = |day: Date| zone.to_timestamp(day.to_datetime(time)).ok();
    let next = at(today).filter(|at| *at >= now).or_else(|| at(today.tomorrow().ok()?))?;
    Some(Duration::from_secs(u64::try_from(next.as_second()).ok()?))
}

/// The time at which clocks in `zone` show what clocks in UTC show at `seconds` since 1970.
fn in_zone(seconds: i64, zone: &TimeZone) -> Option<i64> {
    let shown = TimeZone::UTC.to_datetime(Timestamp::from_second(seconds).ok()?);
    Some(zone.to_timestamp(shown).ok()?.as_second())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn window_begins_at_the_next_such_time_and_never_ends_in_the_past() {
        // 2026-11-21 21:56:30.
        let now = Duration::from_secs(1_795_298_190);
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        let at = |text: &str| window(Some(text), hours(3), now, &TimeZone::UTC);
        let begin = |text: &str| utc::show(at(text).unwrap().0.unwrap().as_secs() as i64);
        assert_eq!(begin("22:00"), "2026-11-21 22:00:00");
        assert_eq!(begin("21:00"), "2026-11-22 21:00:00");
        assert_eq!(begin("2026-12-01"), "2026-12-01 00:00:00");
        assert_eq!(begin("2026-11-21T20:00"), "2026-11-21 20:00:00");
        assert_eq!(window(None, hours(3), now, &TimeZone::UTC), Ok((None, now + hours(3))));
        // One hour ahead of UTC; two in summer.
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let local = |text: &str| {
            let (from, _) = window(Some(text), hours(3), now, &zone).unwrap();
            utc::show(from.unwrap().as_secs() as i64)
        };
        assert_eq!(local("22:00"), "2026-11-22 21:00:00");
        assert_eq!(local("23:00"), "2026-11-21 22:00:00");
        assert_eq!(local("22:00Z"), "2026-11-21 22:00:00");
        assert_eq!(local("2027-07-01T12:00"), "2027-07-01 10:00:00");
        assert_eq!(local("2027-07-01T12:00Z"), "2027-07-01 12:00:00");
        for (text, error) in [("24:00", "such as 22:00"), ("tomorrow", "such as"), ("2020-01-01", "is over")]
        {
            assert!(at(text).unwrap_err().contains(error), "{text}");
        }
        assert!(window(None, Duration::ZERO, now, &zone).is_err());
    }
}
