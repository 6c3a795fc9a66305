//! The profiled transfer.

use std::collections::HashSet;
use std::time::Instant;

use parking_lot::Mutex;
use ropewalk_client::{
    Auto, Cancel, ErrorKind, Event, EventSink, FailureKind, FileId, Location, Options, Pair, StageTimes,
    Summary, copy,
};
use ropewalk_profiler::profile::{self, Outcome, RateSample, StageTime, Stages, Workload, WorkloadKind};

use super::end::now;

/// Initial interval of rates, in seconds; it grows if there are too many.
const STEP: f64 = 0.5;
const MOST: usize = 20_000;

/// Follows a transfer to collect its rates, and passes its events on.
pub(crate) struct Watched<'a> {
    next: &'a dyn EventSink,
    began: Instant,
    seen: Mutex<Seen>,
}

struct Seen {
    /// Seconds since the start, and bytes up to then.
    points: Vec<(f64, u64)>,
    step: f64,
    last: (f64, u64),
    resumed: u64,
    /// Files that failed and are retried: bytes present at the retry were moved by this run.
    again: HashSet<FileId>,
    /// Expected files and bytes at the end, once all have been found.
    planned: Option<(u64, u64)>,
    /// Files and bytes that were started: the size of some is known only then.
    begun: (u64, u64),
}

impl<'a> Watched<'a> {
    pub(crate) fn new(next: &'a dyn EventSink) -> Self {
        Self { next, began: Instant::now(), seen: Mutex::new(Seen::default()) }
    }

    /// The planned bytes, once they are known.
    fn planned(&self) -> Option<u64> {
        let seen = self.seen.lock();
        let (files, bytes) = seen.planned?;
        let begun = if seen.begun.0 >= files { seen.begun.1 } else { 0 };
        Some(bytes.max(begun).saturating_sub(seen.resumed)).filter(|&bytes| bytes > 0)
    }

    fn rates(&self) -> Vec<RateSample> {
        let mut seen = self.seen.lock();
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

impl Default for Seen {
    fn default() -> Self {
        Self {
            points: vec![(0.0, 0)],
            step: STEP,
            last: (0.0, 0),
            resumed: 0,
            again: HashSet::new(),
            planned: None,
            begun: (0, 0),
        }
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
                let mut seen = self.seen.lock();
                let bytes = bytes.saturating_sub(seen.resumed);
                seen.add(time, bytes);
            }
            // Bytes of an earlier run were not moved by this one.
            Event::FileStarted { id, resumed_from, size, .. } => {
                let mut seen = self.seen.lock();
                if !seen.again.remove(id) {
                    seen.resumed = seen.resumed.saturating_add(*resumed_from);
                    let (files, bytes) = seen.begun;
                    seen.begun = (files.saturating_add(1), bytes.saturating_add(size.unwrap_or(0)));
                }
            }
            Event::FileFailed { id, retry_in: Some(_), .. } => {
                self.seen.lock().again.insert(*id);
            }
            Event::Planned { files, bytes, complete: true } => {
                self.seen.lock().planned = Some((*files, *bytes));
            }
            _ => {}
        }
        self.next.event(event);
    }
}

/// The result of a transfer.
pub(crate) struct Moved {
    /// Start time, in seconds since 1970.
    pub(crate) began: f64,
    pub(crate) workload: Workload,
    /// Times of our own connections; absent if the data did not pass this host.
    pub(crate) stages: Option<Stages>,
    /// `None`: it could not be started.
    pub(crate) summary: Option<Summary>,
}

/// Copies, and returns the bytes and the rate, even after a failure.
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
        block_size: Some(options.data.block_size as u64),
        socket_buffer: options.tuning.tcp_buffer,
        rates: watched.rates(),
        planned: watched.planned(),
        ..Workload::default()
    };
    let summary = match result {
        Ok(summary) => summary,
        Err(error) => {
            workload.outcome = Outcome::Failed(error.to_string());
            let is_usage = error.kind() == ErrorKind::Usage;
            workload.failure = (!is_usage).then(|| failure(error.failure_kind(), false));
            return Moved { began, workload, stages: None, summary: None };
        }
    };
    let sessions = summary.files_in_flight.max(1);
    workload.bytes = summary.bytes;
    workload.seconds = summary.seconds;
    workload.files = summary.files_done;
    if workload.rates.is_empty() && workload.bytes > 0 && workload.seconds > 0.0 {
        // It was over before any progress was reported.
        let bytes_per_second = workload.bytes as f64 / workload.seconds;
        workload.rates.push(RateSample { time: workload.seconds, bytes_per_second });
    }
    workload.files_in_flight = sessions;
    workload.streams = match options.tuning.streams {
        Auto::Set(streams) => streams.max(1),
        Auto::Auto => summary.streams.div_ceil(sessions).max(1),
    };
    workload.outcome = outcome(&summary);
    if workload.outcome != Outcome::Done {
        let first = summary.failures.first().map(|failure| failure.kind);
        let kind = first.filter(|_| !summary.interrupted).unwrap_or(FailureKind::Interrupted);
        workload.failure = Some(failure(kind, workload.bytes > 0));
    }
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

/// The failure in the profile's terms; `moved`: some of the data had arrived.
fn failure(kind: FailureKind, moved: bool) -> profile::FailureKind {
    match kind {
        FailureKind::Authentication => profile::FailureKind::Authentication,
        FailureKind::ChecksumMismatch => profile::FailureKind::ChecksumMismatch,
        FailureKind::Interrupted => profile::FailureKind::Interrupted,
        FailureKind::NoSpace => profile::FailureKind::NoSpace,
        FailureKind::NotFound => profile::FailureKind::NotFound,
        FailureKind::Permission => profile::FailureKind::Permission,
        FailureKind::Stalled => profile::FailureKind::Stalled,
        FailureKind::Unreachable if moved => profile::FailureKind::ConnectionLost,
        FailureKind::Unreachable => profile::FailureKind::Unreachable,
        FailureKind::Other => profile::FailureKind::Other,
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

/// Names for which servers, Ropewalk's and GCT's, store nothing.
const DEVICES: [&[u8]; 4] = [b"/dev/zero", b"/dev/null", NULL.as_bytes(), ZEROS.as_bytes()];

/// At Ropewalk servers, for accounts that may take profiles; the size in bytes follows.
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
    fn rates_are_recorded_and_limited() {
        let mut seen = Seen::default();
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
    fn bytes_of_a_failed_try_are_counted() {
        let sink = |_: Event| ();
        let watched = Watched::new(&sink);
        let begun = |id, size, resumed_from| Event::FileStarted {
            id,
            source: String::new(),
            destination: String::new(),
            size,
            resumed_from,
        };
        let started = |id, resumed_from| begun(id, None, resumed_from);
        let sized = |id, size| begun(id, Some(size), 0);
        let failed =
            |id| Event::FileFailed { id, source: String::new(), error: String::new(), retry_in: Some(1.0) };
        watched.event(Event::Planned { files: 2, bytes: 1000, complete: false });
        assert_eq!(watched.planned(), None);
        watched.event(Event::Planned { files: 2, bytes: 1000, complete: true });
        for event in [started(1, 100), started(2, 0), failed(2), started(2, 300), failed(2), started(2, 400)]
        {
            watched.event(event);
        }
        assert_eq!((watched.planned(), watched.seen.lock().resumed), (Some(900), 100));
        // Sizes that became known late.
        let watched = Watched::new(&sink);
        watched.event(Event::Planned { files: 2, bytes: 0, complete: true });
        watched.event(sized(1, 500));
        assert_eq!(watched.planned(), None);
        watched.event(sized(2, 200));
        assert_eq!(watched.planned(), Some(700));
    }

    #[test]
    fn workload_names_its_ends() {
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
