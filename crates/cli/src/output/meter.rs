//! What progress events say about rates and the time that is left.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ropewalk_client::FileId;

use super::harmless;

/// "Now" is the mean of this long.
const NOW: Duration = Duration::from_secs(3);
/// The time left is estimated from what happened in this long: long enough to be steady, short enough to follow changes.
const RECENT: Duration = Duration::from_secs(30);
/// No estimate before.
const WARM_UP: Duration = Duration::from_secs(2);
/// So many files within the recent past say how long a file takes beside its bytes.
const ENOUGH_FILES: f64 = 10.0;
/// Distance of samples.
const STEP: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    bytes: u64,
    files: u64,
}

/// How far a copy has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase<'a> {
    Beginning,
    /// To this server; no file has begun.
    Connecting(&'a str),
    Listing,
    Moving,
}

/// Collects progress; all times are given by the caller.
#[derive(Debug)]
pub(crate) struct Meter {
    began: Instant,
    samples: VecDeque<Sample>,
    pub(crate) bytes: u64,
    /// Of `bytes`, what an earlier run had moved.
    resumed: u64,
    /// Highest rate in bytes a second that was seen over `NOW`.
    peak: f64,
    pub(crate) files_done: u64,
    pub(crate) streams: u32,
    pub(crate) files_active: u32,
    pub(crate) planned_bytes: u64,
    pub(crate) planned_files: u64,
    pub(crate) plan_complete: bool,
    /// Servers that sessions are begun with, the last one at the end.
    connecting: Vec<String>,
    /// There is a session, or none is wanted.
    begun: bool,
    /// A file has begun.
    moving: bool,
    /// Names of files that have begun and not ended, by their numbers.
    active: BTreeMap<FileId, String>,
    /// Of a file nobody knows the size.
    endless: bool,
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
        }
    }

    /// A session with `peer` is begun.
    pub(crate) fn connecting(&mut self, peer: &str) {
        self.connecting.push(harmless(peer));
    }

    /// It has come about, or failed.
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

    /// A file begins, of which `resumed` bytes are there: they count as done, not as speed.
    pub(crate) fn started(&mut self, id: FileId, source: &str, size: Option<u64>, resumed: u64) {
        self.moving = true;
        self.endless |= size.is_none();
        // Its last part, but for what has none.
        let name = source.trim_end_matches('/').rsplit('/').next().filter(|name| !name.is_empty());
        self.active.insert(id, harmless(name.unwrap_or(source)));
        self.resumed(resumed);
    }

    /// A file is done, or a try of it failed.
    pub(crate) fn ended(&mut self, id: FileId) {
        self.active.remove(&id);
    }

    /// Of the first file that is under way: the others will go by. Empty where there is none.
    pub(crate) fn name(&self) -> &str {
        self.active.values().next().map_or("", String::as_str)
    }

    /// Share of the bytes that are there, 0 to 1; `None` where nobody knows how many there will be.
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

    /// Bytes a second since the beginning.
    pub(crate) fn average(&self, now: Instant) -> f64 {
        per_second(self.moved(), now.duration_since(self.began))
    }

    /// Bytes a second of the last seconds; it sinks when no progress is told.
    pub(crate) fn now(&self, now: Instant) -> f64 {
        self.since(now, NOW).0
    }

    /// Seconds that are left, judging by the recent past; `None` where that cannot be known.
    ///
    /// With small files it is not bytes that take time. So a file is taken to cost what its bytes need at the best
    /// rate that was seen, and a share for itself, which the recent files tell when there were enough of them.
    pub(crate) fn left(&self, now: Instant) -> Option<f64> {
        if now.duration_since(self.began) < WARM_UP {
            return None;
        }
        let bytes_left = self.planned_bytes.saturating_sub(self.bytes) as f64;
        // Files that are under way show in the bytes.
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

    /// Bytes and files a second within `window` before `now`.
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
    fn steady_progress() {
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
    fn a_stall_shows() {
        let start = Instant::now();
        let mut meter = Meter::new(start);
        meter.planned(1, 10_000, true);
        meter.progress(at(start, 1.0), 5000, 0, 1, 1);
        assert!(meter.now(at(start, 2.0)) > 0.0);
        assert!(meter.now(at(start, 60.0)) < 1.0, "no bytes in the last seconds");
        assert_eq!(meter.left(at(start, 61.0)), None, "nothing moves: no end in sight");
    }

    #[test]
    fn resumed_bytes_are_no_speed() {
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
    fn small_files_take_time_of_their_own() {
        let start = Instant::now();
        let mut meter = Meter::new(start);
        // A large file is through in 5 seconds; then ten tiny ones came a second, and hundreds wait.
        meter.planned(1001, 50_001_000, true);
        meter.progress(at(start, 2.5), 25_000_000, 0, 1, 1);
        meter.progress(at(start, 5.0), 50_000_000, 1, 1, 1);
        meter.progress(at(start, 40.0), 50_000_350, 351, 0, 1);
        let left = meter.left(at(start, 40.0));
        assert!(left.is_some_and(|left| (50.0..80.0).contains(&left)), "{left:?}");
    }

    #[test]
    fn a_few_waiting_files_do_not_weigh_what_a_large_one_took() {
        let start = Instant::now();
        let mut meter = Meter::new(start);
        meter.planned(52, 2_000_000, true);
        meter.progress(at(start, 2.0), 400_000, 1, 1, 1);
        meter.progress(at(start, 8.0), 1_600_000, 1, 1, 1);
        let left = meter.left(at(start, 8.0));
        assert!(left.is_some_and(|left| left < 5.0), "{left:?}");
    }

    #[test]
    fn no_estimate_at_the_beginning() {
        let start = Instant::now();
        let mut meter = Meter::new(start);
        meter.planned(1, 1000, true);
        meter.progress(at(start, 1.0), 500, 0, 1, 1);
        assert_eq!(meter.left(at(start, 1.0)), None);
    }
}
