use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::time::Duration;

use anyhow::anyhow;
use clap::{ArgGroup, Args};
use jiff::Timestamp;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use ropewalk_client::{Cancel, Options};
use ropewalk_paths::{Entry, Goal, Journal, Owner, Part, PathError, Provider, Request, Runner, now};

use crate::exit::{Exit, usage};
use crate::held::{Holder, Window, shown};
use crate::output::say;
use crate::path_source::PathSource;
use crate::path_use::{journal, sweep};
use crate::settings::ConnectionFlags;
use crate::units::{parse_duration, parse_rate, parse_size};
use crate::{signals, utc};

#[derive(Debug, Args)]
#[command(
    after_help = crate::exit::HELP,
    group = ArgGroup::new("parts").args(["space", "slots", "bandwidth"]).multiple(true),
    group = ArgGroup::new("movers").args(["slots", "bandwidth"]).multiple(true),
    group = ArgGroup::new("servers").args(["at", "at_source"]).multiple(true),
)]
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
    /// Also reserve this much space, for example 2TiB, in the directory that --at names: all or
    /// nothing
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "at")]
    space: Option<u64>,
    /// Also reserve so many transfers at a time at the servers that --at and --at-source name: all
    /// or nothing
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        requires = "servers"
    )]
    slots: Option<u32>,
    /// Also reserve this rate at the servers that --at and --at-source name: all or nothing
    #[arg(long, value_name = "RATE", value_parser = parse_rate, requires = "servers")]
    bandwidth: Option<u64>,
    /// The destination of --space, --slots and --bandwidth: the URL of a directory
    #[arg(long, value_name = "URL", requires = "parts")]
    at: Option<OsString>,
    /// The source for --slots and --bandwidth: the URL of a directory
    #[arg(long, value_name = "URL", requires = "movers")]
    at_source: Option<OsString>,
    #[command(flatten)]
    connection: ConnectionFlags,
}

/// The refusal of a rate of less than a byte per second.
pub(super) const NO_RATE: &str = "--bandwidth: expected at least 1 byte/s";

impl Reserve {
    pub fn run(self) -> anyhow::Result<Exit> {
        if self.bandwidth == Some(0) {
            return Err(usage(NO_RATE));
        }
        let source = PathSource::parse(&self.provider).map_err(usage)?;
        let Some(provider) = source.provider()? else {
            return Err(usage(format!("{source} is reserved already")));
        };
        let zone = TimeZone::system();
        let window = window(self.from.as_deref(), self.time, now(), &zone).map_err(usage)?;
        let Window { from, until } = window;
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
        let mut parts = Vec::new();
        for (place, part) in self.parts() {
            match Holder::hold(place, part, window, &self.connection.0, &cancel) {
                Ok(holder) => parts.push(holder),
                Err(error) => {
                    release(parts);
                    return Err(error.context("nothing is reserved"));
                }
            }
        }
        // Until all of it is there, it belongs to this process: after a crash, the next program
        // removes the path.
        let mut entry = Entry::new(source.to_string(), Owner::Transfer, request);
        entry.held = parts.iter().map(|part| part.held().clone()).collect();
        let runner = match reserve(&journal, entry, provider, &parts, &cancel) {
            Ok(runner) => runner,
            Err(error) => {
                release(parts);
                return match error.downcast_ref() {
                    Some(PathError::Stopped) => Ok(Exit::Interrupted),
                    _ => Err(error),
                };
            }
        };
        let runner = keep(runner, parts, time_left())?;
        let id = runner.entry().id.clone();
        for held in &runner.entry().held {
            say(format_args!("ropewalk: also reserved: {} at {}", shown(held.part), held.url));
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

impl Reserve {
    /// The parts of servers that are wanted, each with the flag and the URL of its place.
    fn parts(&self) -> Vec<((&'static str, &OsStr), Part)> {
        let at = self.at.as_deref().map(|url| ("--at", url));
        let source = self.at_source.as_deref().map(|url| ("--at-source", url));
        let (slots, rate) = (self.slots.unwrap_or_default(), self.bandwidth.unwrap_or_default());
        let space = at.zip(self.space.map(|bytes| Part::Space { bytes }));
        let movers = (slots > 0 || rate > 0).then_some(Part::Slots { slots, rate });
        space.into_iter().chain([at, source].into_iter().filter_map(|place| place.zip(movers))).collect()
    }
}

/// Reserves the path while the parts of servers are held.
fn reserve(
    journal: &Journal,
    entry: Entry,
    provider: Box<dyn Provider>,
    parts: &[Holder],
    cancel: &Cancel,
) -> anyhow::Result<Runner> {
    let mut runner = Runner::begin(journal, entry, provider, Goal::Reserved)?;
    let lost = || parts.iter().find_map(Holder::lost);
    match runner.obtain(Goal::Reserved, &|| cancel.is_cancelled() || lost().is_some()) {
        Ok(_) => Ok(runner),
        Err(error) => Err(lost().map_or_else(|| error.into(), |why| anyhow!(why))),
    }
}

/// Keeps the parts for the whole time, and then the path: all or nothing.
fn keep(mut runner: Runner, mut parts: Vec<Holder>, time: Duration) -> anyhow::Result<Runner> {
    let kept = parts.iter_mut().try_for_each(|part| part.keep(time));
    match kept.and_then(|()| Ok(runner.hand_over()?)) {
        Ok(()) => Ok(runner),
        Err(error) => {
            runner.end();
            release(parts);
            Err(error)
        }
    }
}

/// Releases the parts of what cannot be reserved as a whole. A failure is only reported: the reason
/// for which there is no path matters more, and the parts end by themselves.
fn release(parts: Vec<Holder>) {
    for error in parts.into_iter().filter_map(|part| part.release().err()) {
        say(format_args!("ropewalk: a part stays reserved until its end: {error:#}"));
    }
}

/// The reserved time that `from` and `time` name.
pub(super) fn window(
    from: Option<&str>,
    time: Duration,
    now: Duration,
    zone: &TimeZone,
) -> Result<Window, String> {
    if time < Duration::from_secs(1) {
        return Err("--for: expected at least 1s".to_owned());
    }
    let Some(text) = from else { return Ok(Window { from: None, until: now + time }) };
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
    Ok(Window { from: Some(from), until: from + time })
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
        let begin = |text: &str| utc::show(at(text).unwrap().from.unwrap().as_secs() as i64);
        assert_eq!(begin("22:00"), "2026-11-21 22:00:00");
        assert_eq!(begin("21:00"), "2026-11-22 21:00:00");
        assert_eq!(begin("2026-12-01"), "2026-12-01 00:00:00");
        assert_eq!(begin("2026-11-21T20:00"), "2026-11-21 20:00:00");
        assert_eq!(
            window(None, hours(3), now, &TimeZone::UTC),
            Ok(Window { from: None, until: now + hours(3) })
        );
        // One hour ahead of UTC; two in summer.
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let local = |text: &str| {
            let window = window(Some(text), hours(3), now, &zone).unwrap();
            utc::show(window.from.unwrap().as_secs() as i64)
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
