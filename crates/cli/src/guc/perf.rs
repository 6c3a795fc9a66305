//! The lines of `-vb`, which perfSONAR and many scripts read.

use std::time::{Duration, Instant};

/// The interval at which GCT prints.
const INTERVAL: Duration = Duration::from_secs(2);

/// Progress of one file.
#[derive(Debug)]
pub(super) struct Perf {
    began: Instant,
    /// Bytes of the run when the file started.
    base: u64,
    last: (Instant, u64),
    pub(super) printed: bool,
}

impl Perf {
    pub(super) fn new(now: Instant, base: u64) -> Self {
        Self { began: now, base, last: (now, 0), printed: false }
    }

    /// Returns a line when one is due; `total` are the bytes of the run.
    pub(super) fn progress(&mut self, now: Instant, total: u64) -> Option<String> {
        if now.duration_since(self.last.0) < INTERVAL {
            return None;
        }
        let bytes = total.saturating_sub(self.base);
        Some(self.line(now, bytes, now.duration_since(self.began)))
    }

    /// Returns the last line of a file.
    pub(super) fn done(&mut self, now: Instant, bytes: u64, seconds: f64) -> String {
        let time = Duration::try_from_secs_f64(seconds).unwrap_or_else(|_| now.duration_since(self.began));
        self.line(now, bytes, time)
    }

    fn line(&mut self, now: Instant, bytes: u64, time: Duration) -> String {
        let average = megabytes(bytes, time);
        let (then, before) = self.last;
        // A very short last interval would give a meaningless rate.
        let since = now.duration_since(then);
        let instant = if self.printed && since >= INTERVAL / 10 {
            megabytes(bytes.saturating_sub(before), since)
        } else {
            average
        };
        self.last = (now, bytes);
        self.printed = true;
        format!(" {bytes:>12} bytes {average:>12.2} MB/sec avg {instant:>12.2} MB/sec inst\r")
    }
}

/// GCT's MB are 2^20 bytes.
fn megabytes(bytes: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { bytes as f64 / 1_048_576.0 / time.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn performance_lines_match_gct() {
        let start = Instant::now();
        let mut perf = Perf::new(start, 1000);
        assert_eq!(perf.progress(start + Duration::from_secs(1), 5000), None);
        let line = perf.progress(start + Duration::from_secs(2), 1000 + (600 << 20)).unwrap();
        assert_eq!(line, "    629145600 bytes       300.00 MB/sec avg       300.00 MB/sec inst\r");
        let line = perf.progress(start + Duration::from_secs(4), 1000 + (800 << 20)).unwrap();
        assert_eq!(line, "    838860800 bytes       200.00 MB/sec avg       100.00 MB/sec inst\r");
        let line = perf.done(start + Duration::from_secs(5), 1000 << 20, 5.0);
        assert_eq!(line, "   1048576000 bytes       200.00 MB/sec avg       200.00 MB/sec inst\r");
    }

    #[test]
    fn performance_of_an_instant_file_is_zero() {
        let start = Instant::now();
        let line = Perf::new(start, 0).done(start, 0, 0.0);
        assert_eq!(line, "            0 bytes         0.00 MB/sec avg         0.00 MB/sec inst\r");
    }
}
