//! A limit on the payload bytes a second of all streams that share it.
//!
//! It is a token bucket, as a schedule: the bytes that a stream has moved take their time on the
//! schedule, and the stream continues once that time has come. So streams take turns instead of
//! waking together, and a receiver that does not read lets the peer's window hold the sender back.
//! Unused time is kept for a moment only: a slow stream may catch up with that much.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Unused time that may be caught up with.
const SAVED: Duration = Duration::from_millis(100);
/// A stream moves at a time what the limit lets through in this time, within these bounds in bytes.
const AT_ONCE: f64 = 0.02;
const LEAST_AT_ONCE: usize = 16 << 10;
const MOST_AT_ONCE: usize = 1 << 20;

/// A limit on the rate of all data channels that share it.
#[derive(Debug)]
pub struct Bandwidth {
    /// Bytes a second.
    rate: u64,
    began: Instant,
    schedule: Mutex<Schedule>,
    moved: AtomicU64,
    /// Nanoseconds that streams waited, summed over them.
    held: AtomicU64,
}

impl Bandwidth {
    /// `rate`: bytes a second; 0 counts as 1.
    pub fn new(rate: u64) -> Self {
        Self {
            rate: rate.max(1),
            began: Instant::now(),
            schedule: Mutex::new(Schedule::default()),
            moved: AtomicU64::new(0),
            held: AtomicU64::new(0),
        }
    }

    /// Seconds that what has moved so far takes at this limit.
    pub fn used(&self) -> f64 {
        self.moved.load(Ordering::Relaxed) as f64 / self.rate as f64
    }

    /// How long streams waited for it, summed over them.
    pub fn held(&self) -> Duration {
        Duration::from_nanos(self.held.load(Ordering::Relaxed))
    }

    /// Bytes that a stream should move at a time.
    pub(crate) fn at_once(&self) -> usize {
        ((self.rate as f64 * AT_ONCE) as usize).clamp(LEAST_AT_ONCE, MOST_AT_ONCE)
    }

    /// A stream has moved `bytes`: when it may move on.
    pub(crate) fn take(&self, bytes: u64) -> Instant {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        let due = self.schedule.lock().take(bytes, self.rate, self.began.elapsed());
        // If the rate is so low that the clock ends first, the time is as late as the clock can
        // express.
        self.began.checked_add(due).unwrap_or_else(|| Instant::now() + Duration::from_secs(86_400))
    }

    /// A stream has waited for it.
    pub(crate) fn add_held(&self, time: Duration) {
        self.held.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Times count from the beginning of the run.
#[derive(Debug, Default)]
struct Schedule {
    /// Until then it is taken by what has moved.
    taken: Duration,
}

impl Schedule {
    /// When `bytes` that have moved by `now` are through.
    fn take(&mut self, bytes: u64, rate: u64, now: Duration) -> Duration {
        let takes = Duration::try_from_secs_f64(bytes as f64 / rate as f64).unwrap_or(Duration::MAX);
        self.taken = self.taken.max(now.saturating_sub(SAVED)).saturating_add(takes);
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Streams in virtual time, each of which needs so long for a byte by itself: bytes that all
    /// have moved by `end`, and the most within any second.
    fn run(rate: u64, each: &[f64], at_once: u64, end: f64) -> (u64, u64) {
        let mut schedule = Schedule::default();
        let mut next: Vec<f64> = each.iter().map(|byte| byte * at_once as f64).collect();
        let mut moved: Vec<(f64, u64)> = Vec::new();
        while let Some((at, now)) = next.iter().copied().enumerate().min_by(|a, b| a.1.total_cmp(&b.1))
            && now <= end
        {
            moved.push((now, at_once));
            let due = schedule.take(at_once, rate, Duration::from_secs_f64(now)).as_secs_f64();
            next[at] = due.max(now) + each[at] * at_once as f64;
        }
        let within = |from: f64| {
            moved.iter().filter(|(at, _)| (from..from + 1.0).contains(at)).map(|(_, n)| n).sum::<u64>()
        };
        let most = (0..end as u32).map(|second| within(f64::from(second))).max().unwrap_or_default();
        (moved.iter().map(|(_, n)| n).sum(), most)
    }

    #[test]
    fn schedule_with_any_number_of_fast_streams_keeps_the_rate() {
        for rate in [100_000, 1_000_000, 25_000_000, 1_250_000_000_u64] {
            let at_once = Bandwidth::new(rate).at_once() as u64;
            for streams in [1, 2, 7, 64] {
                // Alone each would take a tenth of the time.
                let each = vec![0.1 / rate as f64; streams];
                let (moved, most) = run(rate, &each, at_once, 60.0);
                let asked = 60.0 * rate as f64;
                // One block a stream may be under way beyond what is due.
                let slack = (streams as u64 * at_once) as f64 + 0.1 * rate as f64;
                assert!((moved as f64 - asked).abs() <= slack, "{rate} {streams}: {moved} of {asked}");
                assert!(most as f64 <= rate as f64 + slack, "{rate} {streams}: {most} in a second");
            }
        }
    }

    #[test]
    fn schedule_with_slow_streams_lets_all_through() {
        // Together they carry half of the limit.
        let each = vec![4.0 / 1e6; 2];
        let (moved, _) = run(1_000_000, &each, 16 << 10, 60.0);
        assert!((29_000_000..=30_000_000).contains(&moved), "{moved}");
    }

    #[test]
    fn schedule_after_a_pause_saves_a_moment_only() {
        let mut schedule = Schedule::default();
        let at = Duration::from_secs;
        assert_eq!(schedule.take(1000, 1000, at(0)), at(1));
        let due = schedule.take(1000, 1000, at(100));
        assert_eq!(due, at(101) - SAVED);
        assert_eq!(schedule.take(500, 1000, at(100)), due + Duration::from_millis(500));
    }

    #[test]
    fn schedule_never_goes_back_and_never_overflows() {
        let mut schedule = Schedule::default();
        let mut before = Duration::ZERO;
        for (bytes, now) in [(0, 0), (7, 5), (u64::MAX, 3), (u64::MAX, 9), (1, 1 << 40)] {
            let due = schedule.take(bytes, 1, Duration::from_secs(now));
            assert!(due >= before);
            before = due;
        }
        assert!(Bandwidth::new(0).take(u64::MAX) > Instant::now());
    }
}
