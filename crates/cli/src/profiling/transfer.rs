//! The transfer that is profiled.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use ropewalk_client::{Auto, Cancel, Event, EventSink, Location, Options, Pair, StageTimes, Summary, copy};
use ropewalk_profiler::profile::{Outcome, RateSample, StageTime, Stages, Workload, WorkloadKind};

use super::end::now;

/// Seconds between two rates, until there are too many.
const STEP: f64 = 0.5;
const MOST: usize = 20_000;

/// Follows a transfer for the rates, and hands its events on.
pub(crate) struct Watched<'a> {
    next: &'a dyn EventSink,
    began: Instant,
    seen: Mutex<Seen>,
}

struct Seen {
    /// Seconds since the beginning, and bytes until then.
    points: Vec<(f64, u64)>,
    step: f64,
    last: (f64, u64),
    resumed: u64,
}

impl<'a> Watched<'a> {
    pub(crate) fn new(next: &'a dyn EventSink) -> Self {
        let seen = Seen { points: vec![(0.0, 0)], step: STEP, last: (0.0, 0), resumed: 0 };
        Self { next, began: Instant::now(), seen: Mutex::new(seen) }
    }

    fn rates(&self) -> Vec<RateSample> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let last = seen.last;
        if seen.points.last().is_some_and(|point| last.0 - point.0 >= seen.step / 2.0) {
            seen.points.push(last);
        }
        let rate = |pair: &[(f64, u64)]| match pair {
            [before, after] if after.0 > before.0 => Some(RateSample {
                time: after.0,
                bytes_per_second: after.1.saturating_sub(before.1) as f64 / (after.0 - before.0),
            }),
            _ => None,
        };
        seen.points.windows(2).filter_map(rate).collect()
    }
}

impl Seen {
    fn add(&mut self, time: f64, bytes: u64) {
        self.last = (time, bytes);
        if self.points.last().is_some_and(|last| time - last.0 < self.step) {
            return;
        }
        self.points.push((time, bytes));
        if self.points.len() > MOST {
            let mut at = 0;
            self.points.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.step *= 2.0;
        }
    }
}

impl EventSink for Watched<'_> {
    fn event(&self, event: Event) {
        let time = self.began.elapsed().as_secs_f64();
        match &event {
            Event::Progress { bytes, .. } => {
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                let bytes = bytes.saturating_sub(seen.resumed);
                seen.add(time, bytes);
            }
            // What was there before was not moved.
            Event::FileStarted { resumed_from, .. } => {
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.resumed = seen.resumed.saturating_add(*resumed_from);
            }
            _ => {}
        }
        self.next.event(event);
    }
}

/// What came of a transfer.
pub(crate) struct Moved {
    /// When it began, in seconds since 1970.
    pub(crate) began: f64,
    pub(crate) workload: Workload,
    /// Of our own connections; absent where the data was not here.
    pub(crate) stages: Option<Stages>,
    /// `None`: it could not be begun.
    pub(crate) summary: Option<Summary>,
}

/// Copies, and says what was moved how fast, also where it failed.
pub(crate) fn run(pair: &Pair, options: &Options, events: &dyn EventSink, cancel: &Cancel) -> Moved {
    let began = now();
    let watched = Watched::new(events);
    let result = copy(vec![pair.clone()], options, &watched, cancel);
    let place = |location: &Location| location.in_events(options);
    let description = format!("{} to {}", place(&pair.source), place(&pair.destination));
    let mut workload = Workload {
        kind: kind(&pair.source, &pair.destination),
        description: description.chars().take(1000).collect(),
        seconds: watched.began.elapsed().as_secs_f64(),
        streams: 1,
        files_in_flight: 1,
        block_size: Some(options.block_size as u64),
        socket_buffer: options.tcp_buffer,
        rates: watched.rates(),
        ..Workload::default()
    };
    let summary = match result {
        Ok(summary) => summary,
        Err(error) => {
            workload.outcome = Outcome::Failed(error.to_string());
            return Moved { began, workload, stages: None, summary: None };
        }
    };
    let sessions = summary.files_in_flight.max(1);
    workload.bytes = summary.bytes;
    workload.seconds = summary.seconds;
    workload.files = summary.files_done;
    if workload.rates.is_empty() && workload.bytes > 0 && workload.seconds > 0.0 {
        // It was over before there was any progress to tell of.
        let bytes_per_second = workload.bytes as f64 / workload.seconds;
        workload.rates.push(RateSample { time: workload.seconds, bytes_per_second });
    }
    workload.files_in_flight = sessions;
    workload.streams = match options.streams {
        Auto::Set(streams) => streams.max(1),
        Auto::Auto => summary.streams.div_ceil(sessions).max(1),
    };
    workload.outcome = outcome(&summary);
    Moved { began, workload, stages: stages(&summary.stages), summary: Some(summary) }
}

fn outcome(summary: &Summary) -> Outcome {
    let first = summary.failures.first().map(|failure| failure.error.clone());
    match (summary.files_failed, summary.interrupted) {
        (_, true) => Outcome::Failed("interrupted".to_owned()),
        (0, false) => Outcome::Done,
        (1, false) => Outcome::Failed(first.unwrap_or_default()),
        (n, false) => Outcome::Failed(format!("{n} files failed, the first: {}", first.unwrap_or_default())),
    }
}

fn stages(times: &StageTimes) -> Option<Stages> {
    let busy = |busy| StageTime { busy, waited: 0.0 };
    (times.streams > 0.0).then(|| Stages {
        stream_seconds: times.streams,
        source: busy(times.source),
        checksum: busy(times.checksum),
        encryption: busy(times.encryption),
        socket: StageTime { busy: 0.0, waited: times.network },
        destination: busy(times.destination),
    })
}

/// Where servers keep nothing, ours and GCT's.
const DEVICES: [&[u8]; 4] = [b"/dev/zero", b"/dev/null", NULL.as_bytes(), ZEROS.as_bytes()];

/// At our servers, for those who may take profiles; the size, in bytes, follows.
pub(crate) const ZEROS: &str = "/dev/ropewalk-zero-";
pub(crate) const NULL: &str = "/dev/ropewalk-null";

fn is_memory(location: &Location) -> bool {
    match location {
        Location::Measure { .. } => true,
        Location::Remote(url) => DEVICES.iter().any(|device| url.path.starts_with(device)),
        Location::Local(path) => path.starts_with("/dev"),
        Location::Standard => false,
    }
}

fn kind(source: &Location, destination: &Location) -> WorkloadKind {
    match (is_memory(source), is_memory(destination)) {
        (true, true) => WorkloadKind::MemoryToMemory,
        (true, false) => WorkloadKind::MemoryToDisk,
        (false, true) => WorkloadKind::DiskToMemory,
        (false, false) => WorkloadKind::DiskToDisk,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_client::parse_location;

    use super::*;

    #[test]
    fn rates_are_told_and_bounded() {
        let mut seen = Seen { points: vec![(0.0, 0)], step: STEP, last: (0.0, 0), resumed: 0 };
        for n in 1..=400_000_u32 {
            seen.add(f64::from(n) * 0.1, u64::from(n) * 100);
        }
        assert!(seen.points.len() <= MOST && seen.points.len() > MOST / 4, "{}", seen.points.len());
        let sink = |_: Event| ();
        let watched = Watched { next: &sink, began: Instant::now(), seen: Mutex::new(seen) };
        let rates = watched.rates();
        assert!(rates.iter().all(|rate| (rate.bytes_per_second - 1000.0).abs() < 1.0));
        assert!((rates.last().unwrap().time - 40_000.0).abs() < 10.0);
    }

    #[test]
    fn from_what_to_what() {
        let place = |text: &str| parse_location(text).unwrap();
        for (source, destination, is) in [
            ("zero:1G", "null:", WorkloadKind::MemoryToMemory),
            ("zero:1G", "ftp://h/dev/null", WorkloadKind::MemoryToMemory),
            ("ftp://h/dev/ropewalk-zero-5", "/tmp/x", WorkloadKind::MemoryToDisk),
            ("ftp://h/file", "null:", WorkloadKind::DiskToMemory),
            ("/tmp/a", "ftp://h/b", WorkloadKind::DiskToDisk),
        ] {
            assert_eq!(kind(&place(source), &place(destination)), is, "{source} {destination}");
        }
    }
}
