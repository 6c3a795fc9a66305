//! Rates and remaining time, computed from progress events.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ropewalk_client::FileId;

use super::harmless;

/// The current rate is the mean over this time.
const NOW: Duration = Duration::from_secs(3);
/// The remaining time is estimated from this period: long enough to be steady, short enough to
/// follow changes.
const RECENT: Duration = Duration::from_secs(30);
/// Earlier than this there is no estimate.
const WARM_UP: Duration = Duration::from_secs(2);
/// At least this many recent files are needed to estimate the time that a file costs beside its
/// bytes.
const ENOUGH_FILES: f64 = 10.0;
/// Interval of samples.
const STEP: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    bytes: u64,
    files: u64,
}

/// The progress of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase<'a> {
    Beginning,
    /// Connecting to this server; no file has started.
    Connecting(&'a str),
    Listing,
    Moving,
}

/// Collects progress. The caller passes all times.
#[derive(Debug)]
pub(crate) struct Meter {
    began: Instant,
    samples: VecDeque<Sample>,
    pub(crate) bytes: u64,
    /// Of `bytes`, those that an earlier run had moved.
    resumed: u64,
    /// Highest rate in bytes per second over `NOW`.
    peak: f64,
    pub(crate) files_done: u64,
    pub(crate) streams: u32,
    pub(crate) files_active: u32,
    pub(crate) planned_bytes: u64,
    pub(crate) planned_files: u64,
    pub(crate) plan_complete: bool,
    /// Servers to which sessions are being opened, the most recent last.
    connecting: Vec<String>,
    /// A session is open, or none is needed.
    begun: bool,
    /// A file has started.
    moving: bool,
    /// Names of files in flight, by number.
    active: BTreeMap<FileId, String>,
    /// The size of a file is unknown.
    endless: bool,
    /// A file that waits while nothing moves.
    waiting: Option<(FileId, Waiting)>,
}

/// The reason why nothing moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Waiting {
    /// The file has this position in the queue of a server.
    Queue(u32),
    /// All was sent, and a relay passes it on. The last server has this share of it, 0 to 1.
    Relay(f64),
}

impl Meter {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            began: now,
            samples: VecDeque::from([Sample { at: now, bytes: 0, files: 0 }]),
            bytes: 0,
            resumed: 0,
            peak: 0.0,
            files_done: 0,
            streams: 0,
            files_active: 0,
            planned_bytes: 0,
            planned_files: 0,
            plan_complete: false,
            connecting: Vec::new(),
            begun: false,
            moving: false,
            active: BTreeMap::new(),
            endless: false,
            waiting: None,
        }
    }

    /// A session with `peer` is being opened.
    pub(crate) fn connecting(&mut self, peer: &str) {
        self.connecting.push(harmless(peer));
    }

    /// The session was opened, or failed.
    pub(crate) fn connected(&mut self, peer: &str) {
        self.begun = true;
        let peer = harmless(peer);
        if let Some(at) = self.connecting.iter().position(|connecting| *connecting == peer) {
            self.connecting.remove(at);
        }
    }

    pub(crate) fn phase(&self) -> Phase<'_> {
        match self.connecting.last() {
            _ if self.moving => Phase::Moving,
            Some(peer) => Phase::Connecting(peer),
            None if self.begun || self.planned_files > 0 => Phase::Listing,
            None => Phase::Beginning,
        }
    }

    /// A file starts, of which `resumed` bytes are present: they count as done, but not as speed.
    pub(crate) fn started(&mut self, id: FileId, source: &str, size: Option<u64>, resumed: u64) {
        self.moving = true;
        self.endless |= size.is_none();
        // The last component, except for a name without any.
        let name = source.trim_end_matches('/').rsplit('/').next().filter(|name| !name.is_empty());
        self.active.insert(id, harmless(name.unwrap_or(source)));
        self.resumed(resumed);
    }

    /// A file is done, or an attempt failed.
    pub(crate) fn ended(&mut self, id: FileId) {
        self.waiting = self.waiting.filter(|(waiting, _)| *waiting != id);
        self.active.remove(&id);
    }

    /// A file waits at a server.
    pub(crate) fn waits(&mut self, id: FileId, waiting: Waiting) {
        self.waiting = Some((id, waiting));
    }

    /// The reason why nothing moves, if a server has given one.
    pub(crate) fn waiting(&self) -> Option<Waiting> {
        self.waiting.map(|(_, waiting)| waiting)
    }

    /// The name of the first file in flight, because the others change too fast. Empty if there is
    /// none.
    pub(crate) fn name(&self) -> &str {
        self.active.values().next().map_or("", String::as_str)
    }

    /// The share of bytes moved, 0 to 1; `None` if the total is unknown.
    pub(crate) fn share(&self) -> Option<f64> {
        let known = self.moving && !self.endless && self.planned_bytes > 0;
        known.then(|| (self.bytes as f64 / self.planned_bytes as f64).min(1.0))
    }

    pub(crate) fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }

    pub(crate) fn planned(&mut self, files: u64, bytes: u64, complete: bool) {
        (self.planned_files, self.planned_bytes, self.plan_complete) = (files, bytes, complete);
    }

    fn resumed(&mut self, bytes: u64) {
        self.resumed = self.resumed.saturating_add(bytes);
    }

    pub(crate) fn progress(
        &mut self,
        now: Instant,
        bytes: u64,
        files_done: u64,
        files_active: u32,
        streams: u32,
    ) {
        if bytes > self.bytes {
            self.waiting = None;
        }
        (self.bytes, self.files_done) = (bytes, files_done);
        (self.files_active, self.streams) = (files_active, streams);
        if self.samples.back().is_none_or(|last| now.duration_since(last.at) >= STEP) {
            self.samples.push_back(Sample { at: now, bytes: self.moved(), files: files_done });
        }
        if now.duration_since(self.began) >= WARM_UP {
            self.peak = self.peak.max(self.now(now));
        }
        while self.samples.len() > 2 && self.samples.get(1).is_some_and(|s| now.duration_since(s.at) > RECENT)
        {
            self.samples.pop_front();
        }
    }

    fn moved(&self) -> u64 {
        self.bytes.saturating_sub(self.resumed)
    }

    /// Bytes per second since the start.
    pub(crate) fn average(&self, now: Instant) -> f64 {
        per_second(self.moved(), now.duration_since(self.began))
    }

    /// Bytes per second over the last seconds; it falls while no progress is reported.
    pub(crate) fn now(&self, now: Instant) -> f64 {
        self.since(now, NOW).0
    }

    /// Estimates the remaining seconds from the recent past; `None` if that is not possible.
    ///
    /// Small files take time for other reasons than their bytes. So the cost of a file is the time
    /// that its bytes need at the highest rate seen, and a fixed share, which is derived from the
    /// recent files if there were enough of them.
    pub(crate) fn left(&self, now: Instant) -> Option<f64> {
        if now.duration_since(self.began) < WARM_UP {
            return None;
        }
        let bytes_left = self.planned_bytes.saturating_sub(self.bytes) as f64;
        // The bytes of files in flight are included.
        let waiting =
            self.planned_files.saturating_sub(self.files_done + u64::from(self.files_active)) as f64;
        let (bytes_rate, files_rate) = self.since(now, RECENT);
        let by_bytes = match bytes_left {
            0.0 => 0.0,
            _ if bytes_rate > 0.0 => bytes_left / bytes_rate,
            _ => return None,
        };
        let window = now.duration_since(self.began).min(RECENT).as_secs_f64();
        if waiting == 0.0 || files_rate * window < ENOUGH_FILES || self.peak <= 0.0 {
            return Some(by_bytes);
        }
        let per_file = ((1.0 - bytes_rate / self.peak) / files_rate).max(0.0);
        Some(bytes_left / self.peak + waiting * per_file)
    }

    /// Bytes and files per second within `window` before `now`.
    fn since(&self, now: Instant, window: Duration) -> (f64, f64) {
        let start = self
            .samples
            .iter()
            .rev()
            .find(|sample| now.duration_since(sample.at) >= window)
            .or_else(|| self.samples.front());
        let Some(start) = start else { return (0.0, 0.0) };
        let time = now.duration_since(start.at);
        (
            per_second(self.moved().saturating_sub(start.bytes), time),
            per_second(self.files_done.saturating_sub(start.files), time),
        )
    }
}

fn per_second(amount: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { amount as f64 / time.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, seconds: f64) -> Instant {
        start + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn meter_of_steady_progress_estimates_the_end() {
        let start = Instant::now();
        let mut meter = Meter::new(start);
        meter.planned(1, 10_000, true);
        for second in 1..=5u32 {
            meter.progress(at(start, second.into()), u64::from(second) * 1000, 0, 1, 4);
        }
        let now = at(start, 5.0);
        assert!((meter.average(now) - 1000.0).abs() < 1.0);
        assert!((meter.now(now) - 1000.0).abs() < 1.0);
        assert!(meter.left(now).is_some_and(|left| (left - 5.0).abs() < 0.1));
    }

    #[test]
    fn meter_of_a_stall_shows_a_falling_rate() {
        let start = Instant::now();
        let mut meter = Meter::new(start);
        meter.planned(1, 10_000, true);
        meter.progress(at(start, 1.0), 5000, 0, 1, 1);
        assert!(meter.now(at(start, 2.0)) > 0.0);
        assert!(meter.now(at(start, 60.0)) < 1.0, "no bytes in the last seconds");
        assert_eq!(meter.left(at(start, 61.0)), None, "nothing moves: no end in sight");
    }

    #[test]
    fn meter_excludes_resumed_bytes_from_the_rate() {
        let start = Instant::now();
        let mut meter = Meter::new(start);
        meter.planned(1, 1_000_000, true);
        meter.resumed(900_000);
        meter.progress(at(start, 1.0), 910_000, 0, 1, 1);
        meter.progress(at(start, 4.0), 940_000, 0, 1, 1);
        assert!((meter.average(at(start, 4.0)) - 10_000.0).abs() < 1.0);
        assert!(meter.left(at(start, 4.0)).is_some_and(|left| (left - 6.0).abs() < 0.5));
    }

    #[test]
    fn estimate_includes_the_cost_of_small_files() {
        let start = Instant::now();
        let mut meter = Meter::new(start);
        // A large file takes 5 seconds; then ten tiny files follow each second, and hundreds
        // remain.
        meter.planned(1001, 50_001_000, true);
        meter.progress(at(start, 2.5), 25_000_000, 0, 1, 1);
        meter.progress(at(start, 5.0), 50_000_000, 1, 1, 1);
        meter.progress(at(start, 40.0), 50_000_350, 351, 0, 1);
        let left = meter.left(at(start, 40.0));
        assert!(left.is_some_and(|left| (50.0..80.0).contains(&left)), "{left:?}");
    }

    #[test]
    fn estimate_for_few_small_files_ignores_the_time_of_a_large_one() {
        let start = Instant::now();
        let mut meter = Meter::new(start);
        meter.planned(52, 2_000_000, true);
        meter.progress(at(start, 2.0), 400_000, 1, 1, 1);
        meter.progress(at(start, 8.0), 1_600_000, 1, 1, 1);
        let left = meter.left(at(start, 8.0));
        assert!(left.is_some_and(|left| left < 5.0), "{left:?}");
    }

    #[test]
    fn estimate_at_the_start_is_none() {
        let start = Instant::now();
        let mut meter = Meter::new(start);
        meter.planned(1, 1000, true);
        meter.progress(at(start, 1.0), 500, 0, 1, 1);
        assert_eq!(meter.left(at(start, 1.0)), None);
    }
}
