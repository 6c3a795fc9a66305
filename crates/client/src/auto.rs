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
//! A file of 1 GiB or more that comes to a disk uses 4 streams at least: it takes several writes under way at a time to keep a
//! disk busy, and others that do something else while one has the file's lock.
//!
//! Streams of a big file are shared out between the sessions that work on it. Files too small for a second stream
//! to start use one. The pipeline covers a round trip at a few thousand small files a second: 32 commands and two
//! for each millisecond, 200 at most; towards the end of a run, and where the path is tuned, see `ahead`.

use std::ops::Range;
use std::sync::LazyLock;
use std::time::Duration;

use ropewalk_protocol::range::RangeSet;

use crate::{Auto, Options};

/// Below this round trip two streams fill any path that this machine can: nothing is tuned.
pub(crate) const NEAR: Duration = Duration::from_millis(1);

/// Files up to this size use one stream (unless streams were set).
pub(crate) const SMALL: u64 = 4 << 20;

/// From this size on a disk gets several writes at a time.
const LARGE: u64 = 1 << 30;

/// Usual size of a range when a file is cut up between sessions; files of two of them are.
pub(crate) const RANGE: u64 = 64 << 20;
const LEAST_RANGE: u64 = 8 << 20;
/// What servers send in a block, as a rule.
const BLOCK: u64 = 256 << 10;
/// Towards the end of a file a range takes so long at least, where the path is known.
const LAST_SECONDS: f64 = 1.0;
const LAST_ROUND_TRIPS: f64 = 10.0;
const MOST_RANGE: u64 = 512 << 20;
/// Between two ranges a session waits for its slowest stream and for round trips, which is not to count; its number of
/// streams can change only then, which should not take long as long as the best one is looked for.
const RANGE_SECONDS: f64 = 15.0;
const SEARCH_SECONDS: f64 = 4.0;
const RANGE_ROUND_TRIPS: f64 = 40.0;
const SEARCH_ROUND_TRIPS: f64 = 30.0;
/// The most transfers by this rule whose commands may be outstanding.
pub(crate) const DEEPEST: usize = 200;

/// What is known of a tuned path when a range of a file is cut off for a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Bytes a second that the session carries.
    pub rate: f64,
    /// Its streams: each has something to carry.
    pub streams: u32,
    /// Of a round trip, in seconds.
    pub rtt: f64,
    /// The best number of streams is about known.
    pub settled: bool,
}

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
        if let Auto::Set(n) = options.tuning.streams {
            return n.max(1);
        }
        // One connection of UDT fills a path (docs/udt.md): more of them only compete.
        if size.is_some_and(|size| size <= SMALL) || options.uses_udt() {
            return 1;
        }
        let streams = match self.rtt.as_millis() {
            0 if kept && size.is_some_and(|size| size >= LARGE) => 4,
            0 => 2,
            1..=10 => 4,
            11..=100 => 8,
            _ => 16,
        };
        streams.min(options.tuning.max_streams.max(1))
    }

    /// Control sessions (or pairs) that work at the same time.
    pub(crate) fn files(self, options: &Options) -> u32 {
        match options.tuning.files {
            Auto::Set(n) => n.max(1),
            Auto::Auto => {
                let files = match self.rtt.as_millis() {
                    0 => (self.cpus as u32 / 2).clamp(2, 4),
                    1..=10 => 4,
                    _ => 8,
                };
                // Where the path is tuned each has one stream at least.
                let capped = self.rtt >= NEAR && options.tuning.streams == Auto::Auto;
                if capped { files.min(options.tuning.max_streams.max(1)) } else { files }
            }
        }
    }

    /// Of the sessions that may work, how many are worth their log-in for what was found so far.
    pub(crate) fn worth(self, options: &Options, files: u64, bytes: u64) -> u32 {
        let ranges = bytes / RANGE;
        let units = match options.tuning.files {
            Auto::Set(_) => files.max(1) + ranges,
            // A session moves many small files as fast as several do.
            Auto::Auto => 1 + files / 16 + ranges,
        };
        u32::try_from(units).unwrap_or(u32::MAX).min(self.files(options))
    }

    /// Sessions that have something to do at the same time, of files that are not cut up.
    pub(crate) fn at_once(self, options: &Options, files: u64, bytes: u64) -> u32 {
        let files = u32::try_from(files).unwrap_or(u32::MAX);
        self.worth(options, files.into(), bytes).min(files).max(1)
    }

    /// Data connections of a run that is not tuned, where so many files with so many bytes are left: those of one file, but
    /// files that are not cut up between sessions have theirs each.
    pub(crate) fn together(self, options: &Options, files: u64, bytes: u64) -> u32 {
        let (one, size) = (self.streams(options, None, false), bytes / files.max(1));
        if size >= 2 * RANGE {
            return one;
        }
        let sessions = self.at_once(options, files, bytes);
        let all = self.streams(options, Some(size), false).saturating_mul(sessions);
        // Twice as many can still be tried.
        all.min(options.tuning.max_streams / 2).max(one)
    }

    /// Transfers whose commands may be outstanding on one control connection.
    pub(crate) fn pipeline(self, options: &Options) -> usize {
        match options.tuning.pipeline {
            Auto::Set(n) => n.max(1) as usize,
            Auto::Auto => (32 + 2 * self.rtt.as_millis() as usize).min(DEEPEST),
        }
    }
}

/// How much of a file, of which `left` bytes are left, one of several sessions takes at a time. `pace`: where the path is
/// tuned.
pub(crate) fn range_size(left: u64, sessions: u32, pace: Option<Pace>) -> u64 {
    let (least, usual, rounds) = match pace {
        // Short enough that sessions may come and go. The casts saturate.
        Some(Pace { rate, streams, rtt, settled }) => {
            let (seconds, most) = match settled {
                true => (RANGE_SECONDS.max(RANGE_ROUND_TRIPS * rtt), MOST_RANGE),
                false => (SEARCH_SECONDS.max(SEARCH_ROUND_TRIPS * rtt), RANGE),
            };
            let blocks = (u64::from(streams) * BLOCK).clamp(BLOCK, LEAST_RANGE);
            let last = (rate * LAST_SECONDS.max(LAST_ROUND_TRIPS * rtt)) as u64;
            (last.clamp(blocks, LEAST_RANGE), ((rate * seconds) as u64).clamp(blocks, most), 4)
        }
        None => (LEAST_RANGE, RANGE.max(left / (4 * u64::from(sessions.max(1)))), 2),
    };
    // Towards the end ever less, so that all of them end at about the same time. Where the path is tuned, a session has asked
    // for two.
    let fair = left / (rounds * u64::from(sessions.max(1)));
    // Whole blocks, so that pages and checksums of neighbours do not overlap.
    let size = usual.min(fair).max(least);
    size.next_multiple_of(granule(size))
}

/// Short ranges, at the end of a file, are blocks of servers; longer ones whole MiB.
fn granule(size: u64) -> u64 {
    if size < SMALL { BLOCK } else { 1 << 20 }
}

/// Cuts the next `size` bytes that are missing off a range: what comes now, and what is left of it.
pub(crate) fn bite(range: Range<u64>, present: &RangeSet, size: u64) -> (Range<u64>, Option<Range<u64>>) {
    let Some(missing) = present.complement(range.clone()).iter().next() else { return (range, None) };
    let end = missing.start.saturating_add(size).next_multiple_of(granule(size));
    if end.saturating_add(size / 2) >= range.end {
        return (missing.start..range.end, None);
    }
    (missing.start..end, Some(end..range.end))
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
    fn path_over_udt_has_one_stream_unless_asked_for_more() {
        let udt = Options::default().with(|o| o.data.stack = "udt:mss=1400,gsi".parse().ok());
        assert_eq!(path(150, 2).streams(&udt, None, true), 1);
        assert!(!udt.is_tuned());
        let one_end = Options::default().with(|o| o.login.source.stack = "udt".parse().ok());
        assert_eq!(path(0, 2).streams(&one_end, Some(1 << 30), true), 1);
        let asked = udt.with(|o| o.tuning.streams = Auto::Set(4));
        assert_eq!(path(150, 2).streams(&asked, None, true), 4);
    }

    #[test]
    fn no_more_streams_than_allowed() {
        let options = Options::default().with(|o| o.tuning.max_streams = 1);
        for rtt in [0, 5, 50, 150] {
            assert_eq!(path(rtt, 2).streams(&options, Some(1 << 30), true), 1);
            let files = if rtt == 0 { 2 } else { 1 };
            assert_eq!(path(rtt, 2).files(&options), files);
            assert_eq!(path(rtt, 2).worth(&options, 1 << 20, 1 << 40), files);
        }
    }

    #[test]
    fn files_of_some_size_have_streams_each() {
        let path = path(100, 2);
        let together = |most, files, size| {
            path.together(&Options::default().with(|o| o.tuning.max_streams = most), files, files * size)
        };
        assert_eq!(together(128, 32, 16 << 20), 64);
        assert_eq!((together(20, 32, 16 << 20), together(4, 32, 16 << 20)), (10, 4));
        let far = Path { rtt: Duration::from_millis(150), cpus: 2 };
        assert_eq!(far.together(&Options::default(), 32, 32 << 24), 64);
        assert_eq!(together(128, 3, 16 << 20), 8);
        assert_eq!(together(128, 3, 100 << 20), 24);
        // Small ones have a stream each, and large ones share those that one has.
        assert_eq!(together(128, 2000, 256 << 10), 8);
        assert_eq!(together(128, 100, 1 << 30), 8);
        assert_eq!((together(128, 0, 0), together(128, 1, u64::MAX)), (8, 8));
    }

    #[test]
    fn what_is_set_stays() {
        let options = Options::default().with(|o| {
            o.tuning.streams = Auto::Set(3);
            o.tuning.files = Auto::Set(1);
            o.tuning.pipeline = Auto::Set(7);
        });
        assert_eq!(path(50, 2).streams(&options, Some(1), true), 3);
        assert_eq!(path(50, 2).files(&options), 1);
        assert_eq!(path(50, 2).pipeline(&options), 7);
    }

    #[test]
    fn ranges_are_whole_blocks_of_some_seconds() {
        const MIB: f64 = 1048576.0;
        assert_eq!(range_size(1 << 40, 8, None), 32 << 30);
        let left = |left, rate, streams, rtt, settled| {
            range_size(left, 8, Some(Pace { rate, streams, rtt, settled })) as f64 / MIB
        };
        let paced = |rate, rtt, settled| left(1 << 40, rate, 1, rtt, settled);
        assert_eq!(paced(1e9, 0.01, true), 512.0);
        assert_eq!(paced(1e9, 0.01, false), 64.0);
        assert_eq!(paced(4e6, 0.1, false), 16.0);
        assert_eq!(paced(4e6, 0.3, false), 35.0);
        assert_eq!(paced(4e6, 0.01, true), 58.0);
        assert_eq!(paced(4e6, 0.5, true), 77.0);
        assert_eq!(paced(f64::INFINITY, 0.0, true), 512.0);
        assert_eq!(paced(f64::NAN, 0.1, true), 0.25);
        // A slow session keeps no large part of the file for minutes.
        assert_eq!((paced(1e5, 0.1, true), paced(1e5, 0.1, false)), (1.5, 0.5));
        assert_eq!(paced(4.4e6, 0.1, true).fract(), 0.0);
        // The last ones take a second, or some round trips; each stream has a block.
        assert_eq!((left(0, 1e5, 1, 0.1, false), left(0, 1e5, 12, 0.1, false)), (0.25, 3.0));
        assert_eq!((left(0, 1.5e6, 1, 0.1, true), left(0, 1.5e6, 1, 0.3, true)), (1.5, 5.0));
        assert_eq!((left(0, 1e9, 1, 0.1, true), left(0, 1.5e6, 64, 0.1, true)), (8.0, 8.0));
        assert_eq!(range_size(256 << 20, 8, None), 16 << 20);
        assert_eq!(range_size(1, 0, None), 8 << 20);
    }

    #[test]
    fn bites_take_what_is_missing() {
        const M: u64 = 1 << 20;
        let none = RangeSet::new();
        assert_eq!(bite(0..100 * M, &none, 8 * M), (0..8 * M, Some(8 * M..100 * M)));
        // A remainder that is hardly worth it stays with the rest.
        assert_eq!(bite(0..11 * M, &none, 8 * M), (0..11 * M, None));
        assert_eq!(bite(5..u64::MAX, &none, 8 * M).0, 5..9 * M);
        let present: RangeSet = [0..3 * M + 5, 20 * M..30 * M].into_iter().collect();
        assert_eq!(bite(0..100 * M, &present, 8 * M).0, 3 * M + 5..12 * M);
        assert_eq!(bite(20 * M..30 * M, &present, 8 * M), (20 * M..30 * M, None));
    }
}
