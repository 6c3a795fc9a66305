//! The rule by which knobs that were not set are found. One place, no state.
//!
//! What is known before data flows is the round-trip time of the control connection, the number of local CPUs
//! and how many files the plan has found so far:
//!
//! | round-trip time | streams of a big file | files in flight |
//! |---|---|---|
//! | below 1 ms (this host, its rack) | 2 | 2, or half of the CPUs where that is more, 4 at most |
//! | up to 10 ms (campus, metro) | 4 | 4 |
//! | above | 8, above 100 ms 16 | 8 |
//!
//! A file of 1 GiB or more that comes to a disk uses 4 streams at least: written past the page cache, it needs several
//! writes under way at a time.
//!
//! Streams of a big file are shared out between the sessions that work on it. Files too small for a second stream
//! to start use one. The pipeline covers a round trip at a few thousand small files a second: 32 commands and two
//! for each millisecond, 200 at most.

use std::sync::LazyLock;
use std::time::Duration;

use crate::{Auto, Options};

/// Files up to this size use one stream (unless streams were set).
pub(crate) const SMALL: u64 = 4 << 20;

/// From this size on a disk gets several writes at a time.
const LARGE: u64 = 1 << 30;

/// Least size of a range when a file is cut up between sessions.
pub(crate) const RANGE: u64 = 64 << 20;

/// What the rule decides from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub rtt: Duration,
    pub cpus: usize,
}

impl Path {
    pub(crate) fn new(rtt: Duration) -> Self {
        // Asked once: the answer costs a dozen system calls (it reads the control groups).
        static CPUS: LazyLock<usize> =
            LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
        Self { rtt, cpus: *CPUS }
    }

    /// Data connections for a file of this size (or a range of one); `kept`: it comes to a disk.
    pub(crate) fn streams(self, options: &Options, size: Option<u64>, kept: bool) -> u32 {
        if let Auto::Set(n) = options.streams {
            return n.max(1);
        }
        if size.is_some_and(|size| size <= SMALL) {
            return 1;
        }
        match self.rtt.as_millis() {
            0 if kept && size.is_some_and(|size| size >= LARGE) => 4,
            0 => 2,
            1..=10 => 4,
            11..=100 => 8,
            _ => 16,
        }
    }

    /// Control sessions (or pairs) that work at the same time.
    pub(crate) fn files(self, options: &Options) -> u32 {
        match options.files {
            Auto::Set(n) => n.max(1),
            Auto::Auto => match self.rtt.as_millis() {
                0 => (self.cpus as u32 / 2).clamp(2, 4),
                1..=10 => 4,
                _ => 8,
            },
        }
    }

    /// Of the sessions that may work, how many are worth their log-in for what was found so far.
    pub(crate) fn worth(self, options: &Options, files: u64, bytes: u64) -> u32 {
        let ranges = bytes / RANGE;
        let units = match options.files {
            Auto::Set(_) => files.max(1) + ranges,
            // A session moves many small files as fast as several do.
            Auto::Auto => 1 + files / 16 + ranges,
        };
        u32::try_from(units).unwrap_or(u32::MAX).min(self.files(options))
    }

    /// Transfers whose commands may be outstanding on one control connection.
    pub(crate) fn pipeline(self, options: &Options) -> usize {
        match options.pipeline {
            Auto::Set(n) => n.max(1) as usize,
            Auto::Auto => (32 + 2 * self.rtt.as_millis() as usize).min(200),
        }
    }

    /// Into what ranges a file is cut for `sessions` sessions; one range means that it stays whole.
    pub(crate) fn range_size(size: u64, sessions: u32) -> u64 {
        if sessions < 2 || size < 2 * RANGE {
            return size;
        }
        let range = RANGE.max(size / (4 * u64::from(sessions)));
        // Whole blocks, so that pages and checksums of neighbours do not overlap.
        range.next_multiple_of(1 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(ms: u64, cpus: usize) -> Path {
        Path { rtt: Duration::from_millis(ms), cpus }
    }

    #[test]
    fn follows_the_round_trip_time() {
        let options = Options::default();
        assert_eq!(path(0, 2).streams(&options, Some(1 << 30), false), 2);
        assert_eq!(path(0, 2).streams(&options, Some(1 << 29), true), 2);
        assert_eq!(path(0, 2).streams(&options, Some(1 << 30), true), 4);
        assert_eq!(path(5, 2).streams(&options, Some(1 << 30), true), 4);
        assert_eq!(path(150, 2).streams(&options, None, true), 16);
        assert_eq!(path(150, 2).streams(&options, Some(1000), true), 1);
        assert_eq!(path(0, 64).files(&options), 4);
        assert_eq!(path(50, 2).files(&options), 8);
        assert_eq!(path(0, 2).pipeline(&options), 32);
        assert_eq!(path(500, 2).pipeline(&options), 200);
    }

    #[test]
    fn what_is_set_stays() {
        let options = Options {
            streams: Auto::Set(3),
            files: Auto::Set(1),
            pipeline: Auto::Set(7),
            ..Options::default()
        };
        assert_eq!(path(50, 2).streams(&options, Some(1), true), 3);
        assert_eq!(path(50, 2).files(&options), 1);
        assert_eq!(path(50, 2).pipeline(&options), 7);
    }

    #[test]
    fn ranges_are_whole_blocks_and_not_too_many() {
        assert_eq!(Path::range_size(100, 4), 100);
        assert_eq!(Path::range_size(1 << 30, 1), 1 << 30);
        assert_eq!(Path::range_size(1 << 30, 2), 128 << 20);
        assert_eq!(Path::range_size(200 << 20, 8), 64 << 20);
        assert_eq!(Path::range_size((1 << 40) + 1, 4) % (1 << 20), 0);
    }
}
