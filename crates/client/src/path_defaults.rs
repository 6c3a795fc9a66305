//! The default number of streams, of sessions and of commands in flight for a path, and the sizes
//! of the ranges into which sessions divide a file.
//!
//! These apply to settings that the user did not make, before anything is measured. Known at that
//! time are the round-trip time of the control connection, the number of CPUs of this host, and the
//! number of files that the plan has found so far:
//!
//! | round-trip time | streams of a big file | files in flight |
//! |---|---|---|
//! | below 1 ms (this host, its rack) | 2 | 2 to 4: half of the CPUs |
//! | up to 10 ms (campus, metro) | 4 | 4 |
//! | above | 8, above 100 ms 16 | 8 |
//!
//! A file of 1 GiB or more that is written to a disk uses at least 4 streams: a disk needs several
//! writes in flight, and other threads have work while one holds the lock of the file.
//!
//! Sessions that move ranges of one file share its streams. A file that is too small for a second
//! stream uses one. The pipeline covers a round trip at a few thousand small files per second: 32
//! commands and two for each millisecond, at most 200. At the end of a run, and if the path is
//! tuned, `ahead` decides.

use std::ops::Range;
use std::sync::LazyLock;
use std::time::Duration;

use ropewalk_protocol::range::RangeSet;

use crate::{Auto, Options};

/// Below this round-trip time two streams fill any path that this host can fill: nothing is tuned.
pub(crate) const NEAR: Duration = Duration::from_millis(1);

/// Files up to this size use one stream (unless streams were set).
pub(crate) const SMALL: u64 = 4 << 20;

/// From this size on, a disk gets several writes at a time.
const LARGE: u64 = 1 << 30;

/// Usual size of the ranges into which sessions divide a file. Files of two of them are divided.
pub(crate) const RANGE: u64 = 64 << 20;
const LEAST_RANGE: u64 = 8 << 20;
/// Usual block size of servers.
const BLOCK: u64 = 256 << 10;
/// Shortest duration of a range near the end of a file, if the rate is known.
const LAST_SECONDS: f64 = 1.0;
const LAST_ROUND_TRIPS: f64 = 10.0;
const MOST_RANGE: u64 = 512 << 20;
/// Duration of a range. Between two ranges a session waits for its slowest stream and for round
/// trips, which should not matter. Only then can its number of streams change, so ranges are
/// shorter while the best number is searched.
const RANGE_SECONDS: f64 = 15.0;
const SEARCH_SECONDS: f64 = 4.0;
const RANGE_ROUND_TRIPS: f64 = 40.0;
const SEARCH_ROUND_TRIPS: f64 = 30.0;
/// Upper limit of the default pipeline, in transfers.
pub(crate) const DEEPEST: usize = 200;

/// The state of a tuned path when a session takes a range of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Bytes per second of the session.
    pub rate: f64,
    /// Streams of the session.
    pub streams: u32,
    /// Round-trip time in seconds.
    pub rtt: f64,
    /// The best number of streams is known approximately.
    pub settled: bool,
}

/// The facts from which the defaults follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathDefaults {
    pub rtt: Duration,
    pub cpus: usize,
}

impl PathDefaults {
    pub(crate) fn new(rtt: Duration) -> Self {
        // Determined once: it costs a dozen system calls, because it reads the control groups.
        static CPUS: LazyLock<usize> =
            LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
        Self { rtt, cpus: *CPUS }
    }

    /// Data connections for a file, or a range, of this size. `kept`: it is written to a disk.
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

    /// Control sessions (or pairs of them) that work at the same time.
    pub(crate) fn files(self, options: &Options) -> u32 {
        match options.tuning.files {
            Auto::Set(n) => n.max(1),
            Auto::Auto => {
                let files = match self.rtt.as_millis() {
                    0 => (self.cpus as u32 / 2).clamp(2, 4),
                    1..=10 => 4,
                    _ => 8,
                };
                // If the path is tuned, each session has at least one stream.
                let capped = self.rtt >= NEAR && options.tuning.streams == Auto::Auto;
                if capped { files.min(options.tuning.max_streams.max(1)) } else { files }
            }
        }
    }

    /// The number of sessions that are worth their log-in for the files found so far.
    pub(crate) fn useful_sessions(self, options: &Options, files: u64, bytes: u64) -> u32 {
        let ranges = bytes / RANGE;
        let units = match options.tuning.files {
            Auto::Set(_) => files.max(1) + ranges,
            // A session moves many small files as fast as several do.
            Auto::Auto => 1 + files / 16 + ranges,
        };
        u32::try_from(units).unwrap_or(u32::MAX).min(self.files(options))
    }

    /// The number of sessions that have work at the same time, if no file is divided.
    pub(crate) fn busy_sessions(self, options: &Options, files: u64, bytes: u64) -> u32 {
        let files = u32::try_from(files).unwrap_or(u32::MAX);
        self.useful_sessions(options, files.into(), bytes).min(files).max(1)
    }

    /// The number of data connections of a run that is not tuned and has this many files and bytes
    /// left: those of one file, or, if files are not divided among sessions, those of all files in
    /// flight.
    pub(crate) fn total_streams(self, options: &Options, files: u64, bytes: u64) -> u32 {
        let (one, size) = (self.streams(options, None, false), bytes / files.max(1));
        if size >= 2 * RANGE {
            return one;
        }
        let sessions = self.busy_sessions(options, files, bytes);
        let all = self.streams(options, Some(size), false).saturating_mul(sessions);
        // Twice as many can still be tried.
        all.min(options.tuning.max_streams / 2).max(one)
    }

    /// Transfers whose commands may be in flight on one control connection.
    pub(crate) fn pipeline(self, options: &Options) -> usize {
        match options.tuning.pipeline {
            Auto::Set(n) => n.max(1) as usize,
            Auto::Auto => (32 + 2 * self.rtt.as_millis() as usize).min(DEEPEST),
        }
    }
}

/// The size of the next range that one of several sessions takes of a file with `left` bytes left.
/// `pace` is known if the path is tuned.
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
    // Ranges become shorter towards the end, so that all sessions end at about the same time. On a
    // tuned path a session requests two ranges at a time.
    let fair = left / (rounds * u64::from(sessions.max(1)));
    // Whole blocks, so that adjacent ranges share no page and no checksum block.
    let size = usual.min(fair).max(least);
    size.next_multiple_of(granule(size))
}

/// Ranges consist of whole MiB; short ones near the end of a file consist of blocks of servers.
fn granule(size: u64) -> u64 {
    if size < SMALL { BLOCK } else { 1 << 20 }
}

/// Divides a range after the next `size` missing bytes. Returns the part to transfer now, and the
/// rest.
pub(crate) fn cut_range(
    range: Range<u64>,
    present: &RangeSet,
    size: u64,
) -> (Range<u64>, Option<Range<u64>>) {
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

    fn path(ms: u64, cpus: usize) -> PathDefaults {
        PathDefaults { rtt: Duration::from_millis(ms), cpus }
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
            assert_eq!(path(rtt, 2).useful_sessions(&options, 1 << 20, 1 << 40), files);
        }
    }

    #[test]
    fn files_of_some_size_have_streams_each() {
        let path = path(100, 2);
        let together = |most, files, size| {
            path.total_streams(&Options::default().with(|o| o.tuning.max_streams = most), files, files * size)
        };
        assert_eq!(together(128, 32, 16 << 20), 64);
        assert_eq!((together(20, 32, 16 << 20), together(4, 32, 16 << 20)), (10, 4));
        let far = PathDefaults { rtt: Duration::from_millis(150), cpus: 2 };
        assert_eq!(far.total_streams(&Options::default(), 32, 32 << 24), 64);
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
        assert_eq!(cut_range(0..100 * M, &none, 8 * M), (0..8 * M, Some(8 * M..100 * M)));
        // A remainder that is not worth a range of its own is moved with the range before it.
        assert_eq!(cut_range(0..11 * M, &none, 8 * M), (0..11 * M, None));
        assert_eq!(cut_range(5..u64::MAX, &none, 8 * M).0, 5..9 * M);
        let present: RangeSet = [0..3 * M + 5, 20 * M..30 * M].into_iter().collect();
        assert_eq!(cut_range(0..100 * M, &present, 8 * M).0, 3 * M + 5..12 * M);
        assert_eq!(cut_range(20 * M..30 * M, &present, 8 * M), (20 * M..30 * M, None));
    }
}
