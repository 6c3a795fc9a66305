//! Measures the rate of a path by a transfer of a limited time.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use ropewalk_client::{Cancel, Event, EventSink, Location, Pair};
use ropewalk_profiler::collect::{self, Collection, Sockets};
use ropewalk_profiler::profile::{Connection, ConnectionSample, Outcome, Role};

use super::Wanted;
use crate::profiling::places::Kind;
use crate::profiling::transfer::run;

/// Size of the first trial, and largest size.
const FIRST: u64 = 1 << 20;
const MOST: u64 = 1 << 40;
/// The next size must be enough for the remaining time, even if the rate grows by this factor after
/// slow start.
const FASTER: f64 = 64.0;
/// Time in which data moves, all trials together.
const TIME: Duration = Duration::from_secs(4);
/// Time limit including log-ins; then the trial is cancelled.
const ALL: Duration = Duration::from_secs(12);
/// Interval of checks for the end.
const LOOK: Duration = Duration::from_millis(20);
/// A shorter trial gives no rate.
const LEAST: Duration = Duration::from_millis(200);

/// The result.
pub(super) struct Rate {
    /// Rate of arriving bytes.
    pub(super) bytes_per_second: f64,
    /// Segments that connections of this host retransmitted; absent if it received.
    pub(super) retransmitted: Option<u64>,
}

/// The rate at which bytes arrive.
///
/// # Errors
/// The transfer fails, or nothing arrives.
pub(super) fn measure(wanted: &Wanted<'_>, pair: &Pair) -> anyhow::Result<Rate> {
    let options = Kind::MemMem.options(wanted.options);
    let begin = Instant::now();
    let deadline = begin + ALL;
    let (mut size, mut left, mut known) = (FIRST, TIME, None);
    let mut retransmitted: Option<u64> = None;
    let told = |bytes_per_second, retransmitted| Rate { bytes_per_second, retransmitted };
    loop {
        let pair = Kind::MemMem.pair(pair, size, &options)?;
        let stop = Cancel::new();
        let paced = Paced { next: wanted.events, stop: &stop, seen: Mutex::default() };
        let sends = !matches!(pair.source, Location::Remote(_));
        // Sent bytes may be in queues of this host, so acknowledged bytes count.
        let watched = sends.then(|| Collection::start(&watching(&pair)));
        let (done, ended) = mpsc::channel::<()>();
        let moved = thread::scope(|scope| {
            let paced = &paced;
            scope.spawn(move || {
                while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                    let over = Instant::now() >= deadline || paced.moving() >= left;
                    if over || wanted.cancel.is_cancelled() {
                        return paced.stop.cancel();
                    }
                }
            });
            let moved = run(&pair, &options, paced, &stop);
            drop(done);
            moved
        });
        let connections = watched.map(|watched| watched.finish().connections).unwrap_or_default();
        let again =
            connections.iter().filter_map(|connection| Some(connection.samples.last()?.retransmitted));
        let again = (!connections.is_empty()).then(|| again.map(u64::from).sum::<u64>());
        retransmitted = retransmitted.max(again);
        if wanted.cancel.is_cancelled() {
            bail!("interrupted");
        }
        match moved.workload.outcome {
            Outcome::Failed(_) if stop.is_cancelled() => {
                let seen = paced.seen.into_inner();
                let rate = acknowledged(&connections).or_else(|| rate(&seen)).or(known);
                let taken = begin.elapsed().as_secs_f64();
                let rate = rate.with_context(|| format!("nothing arrived in {taken:.0} seconds"))?;
                return Ok(told(rate, retransmitted));
            }
            Outcome::Failed(why) => bail!("{why}"),
            Outcome::Done => {}
        }
        let rate = moved.workload.rate();
        left = left.saturating_sub(paced.moving());
        if left < TIME / 4 || size >= MOST {
            return Ok(told(rate, retransmitted));
        }
        known = Some(rate);
        size = ((rate * left.as_secs_f64() * FASTER) as u64).clamp(size * 4, MOST);
    }
}

fn watching(pair: &Pair) -> collect::Options {
    let control = match &pair.destination {
        Location::Remote(url) => vec![url.port],
        _ => Vec::new(),
    };
    collect::Options {
        role: Role::Source,
        perf: false,
        sysstat: false,
        sockets: Sockets { own: true, except: control, ..Sockets::default() },
        programs: vec![std::process::id()],
        ..collect::Options::default()
    }
}

/// Follows a transfer until its end. The cancellation is not reported.
struct Paced<'a> {
    next: &'a dyn EventSink,
    stop: &'a Cancel,
    /// Times, and bytes up to them, from the first progress on.
    seen: Mutex<Vec<(Instant, u64)>>,
}

impl Paced<'_> {
    /// For how long data has moved.
    fn moving(&self) -> Duration {
        let seen = self.seen.lock();
        seen.first().map_or(Duration::ZERO, |(first, _)| first.elapsed())
    }
}

impl EventSink for Paced<'_> {
    fn event(&self, event: Event) {
        match event {
            Event::Progress { bytes, .. } if bytes > 0 && !self.stop.is_cancelled() => {
                self.seen.lock().push((Instant::now(), bytes));
            }
            Event::Warning { .. } | Event::Dialogue { .. } => self.next.event(event),
            _ => {}
        }
    }
}

/// The rate in the second half of the time, after slow start.
fn rate(seen: &[(Instant, u64)]) -> Option<f64> {
    let ((first, _), (last, bytes)) = (seen.first()?, seen.last()?);
    let half = *first + last.duration_since(*first) / 2;
    let (begin, before) = seen.iter().rfind(|(moment, _)| *moment <= half)?;
    let time = last.duration_since(*begin);
    let moved = bytes.saturating_sub(*before);
    (time >= LEAST && moved > 0).then(|| moved as f64 / time.as_secs_f64())
}

/// The rate of acknowledged bytes of these connections; some of them may have started or ended
/// meanwhile.
fn acknowledged(connections: &[Connection]) -> Option<f64> {
    let samples = || connections.iter().flat_map(|connection| &connection.samples);
    let moves = |sample: &&ConnectionSample| sample.acknowledged.is_some_and(|bytes| bytes > 0);
    let first = samples().filter(moves).map(|sample| sample.time).min_by(f64::total_cmp)?;
    let last = samples().map(|sample| sample.time).max_by(f64::total_cmp)?;
    let half = first + (last - first) / 2.0;
    // A time at which there is a sample.
    let begin = samples().map(|sample| sample.time).filter(|time| *time <= half).max_by(f64::total_cmp)?;
    let until = |time: f64| -> u64 {
        let of = |connection: &Connection| {
            let sample = connection.samples.iter().rfind(|sample| sample.time <= time);
            sample.and_then(|sample| sample.acknowledged).unwrap_or(0)
        };
        connections.iter().map(of).fold(0, u64::saturating_add)
    };
    let moved = until(last).saturating_sub(until(begin));
    let time = last - begin;
    (time >= LEAST.as_secs_f64() && moved > 0).then(|| moved as f64 / time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_excludes_slow_start() {
        let zero = Instant::now();
        let at = |tenths: u64, bytes| (zero + Duration::from_millis(100 * tenths), bytes);
        // Only its first bytes for a second, then 1000 bytes in each tenth.
        let seen: Vec<_> = (0..=40).map(|n: u64| at(n, 1 + n.saturating_sub(10) * 1000)).collect();
        assert!(rate(&seen).is_some_and(|rate| (rate - 10_000.0).abs() < 1.0), "{:?}", rate(&seen));
        assert_eq!(rate(&[]), None);
        assert_eq!(rate(&[at(0, 5)]), None);
        assert_eq!(rate(&[at(0, 5), at(40, 5)]), None);
    }

    #[test]
    fn acknowledged_rate_includes_changing_connections() {
        let connection = |from: u32, to: u32, each: u64| Connection {
            samples: (from..=to)
                .map(|tenth| ConnectionSample {
                    time: f64::from(tenth) / 10.0,
                    acknowledged: Some(u64::from(tenth - from) * each),
                    ..ConnectionSample::default()
                })
                .collect(),
            ..Connection::default()
        };
        // The first connection has no sample in the second half; the last one starts there.
        let connections = [connection(0, 10, 500), connection(0, 40, 1000), connection(30, 40, 2000)];
        let is = (20.0 * 1000.0 + 10.0 * 2000.0) / 2.0;
        let found = acknowledged(&connections).unwrap_or_default();
        // The first byte is acknowledged a tenth of a second after the start.
        assert!((found - is).abs() < 0.1 * is, "{found}, expected {is}");
        assert_eq!(acknowledged(&[]), None);
        assert_eq!(acknowledged(&[connection(0, 40, 0)]), None);
    }
}
