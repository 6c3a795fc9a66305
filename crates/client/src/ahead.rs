//! How many transfers one session requests ahead of the one that moves data.
//!
//! Commands that are sent ahead save a round trip for each file, but no other session can take over
//! a request once it has been sent. Towards the end of a run the other sessions would be idle while
//! one works off its requests, and over one path some sessions are several times as fast as others.
//! So each session requests at most half of its even share of the remaining work (guided
//! self-scheduling), on a tuned path at most what it carries in a second, and at least what covers
//! a round trip.

use crate::Options;
use crate::path_defaults::PathDefaults;

/// The maximum number of bytes of transfers that wait in a session's pipeline: many small files
/// fit, and a big file is alone.
const MOST_BYTES: u64 = 32 << 20;
/// The number of bytes that may wait in any case.
const LEAST_BYTES: u64 = 1 << 20;
const LEAST_FILES: usize = 2;
/// The number of bytes that may wait at the start, when the rate of a tuned path is not known yet.
const FIRST_BYTES: u64 = 4 << 20;
/// With more files than this for each session, a second transfer may always wait.
const PLENTY: u64 = 8;
/// The number of round trips that are covered in any case: a command takes half a round trip to
/// arrive, and replies are sometimes late.
const ROUND_TRIPS: f64 = 1.5;
/// A session requests no more than it carries in this many seconds, or in this many round trips if
/// that is longer.
const SECONDS: f64 = 1.0;
const ENOUGH_ROUND_TRIPS: f64 = 4.0;

/// The remaining work of a run, and the number of sessions that share it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    pub files: u64,
    pub bytes: u64,
    pub sessions: u32,
}

/// The tuner's values for one session of a tuned path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuned {
    /// Bytes per second; `None` before it has been measured.
    pub rate: Option<f64>,
    /// Duration of a round trip in seconds.
    pub rtt: f64,
    /// The number of commands to send ahead, as the tuner decided it; `None` before that decision.
    pub pipeline: Option<u32>,
}

/// Limits on the transfers that a session has requested and not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// Transfers whose data has not moved.
    files: usize,
    bytes: u64,
    /// There are so many files that one transfer may wait behind the one that moves, however long
    /// that takes.
    second: bool,
    /// Transfers that are not confirmed; more of them gain nothing.
    pub depth: usize,
}

impl Ahead {
    /// `left` is `None` if the remaining work is not known.
    pub(crate) fn new(
        path: PathDefaults,
        options: &Options,
        left: Option<Left>,
        tuned: Option<Tuned>,
    ) -> Self {
        let rule = path.pipeline(options);
        let (Some(left), crate::Auto::Auto) = (left, options.tuning.pipeline) else {
            return Self { files: rule, bytes: MOST_BYTES, second: false, depth: rule };
        };
        let decided = tuned.and_then(|tuned| tuned.pipeline).map(|commands| commands as usize);
        let depth = rule.max(decided.unwrap_or_default());
        let parts = 2 * u64::from(left.sessions.max(1));
        let (least, enough) = match tuned {
            None => (LEAST_BYTES, MOST_BYTES),
            Some(Tuned { rate: None, .. }) => (LEAST_BYTES, FIRST_BYTES),
            // The casts saturate.
            Some(Tuned { rate: Some(rate), rtt, .. }) => {
                let of = |seconds: f64| ((rate * seconds) as u64).clamp(LEAST_BYTES, MOST_BYTES);
                (of(ROUND_TRIPS * rtt), of(SECONDS.max(ENOUGH_ROUND_TRIPS * rtt)))
            }
        };
        let part = usize::try_from(left.files / parts).unwrap_or(usize::MAX);
        Self {
            files: part.clamp(decided.unwrap_or(rule / 4).max(LEAST_FILES), depth),
            bytes: (left.bytes / parts).clamp(least, enough),
            second: left.files > PLENTY * u64::from(left.sessions.max(1)),
            depth,
        }
    }

    /// Whether a session requests another transfer. `waiting` is the number of requested transfers
    /// whose data has not moved, `bytes` is their size, and `ranges` is the number of them that are
    /// ranges of files. Behind a single range, however long it is, one more transfer is requested;
    /// further ones would be withheld from other sessions.
    pub(crate) fn takes(self, waiting: usize, bytes: u64, ranges: usize) -> bool {
        let second = self.second && waiting < LEAST_FILES && bytes < MOST_BYTES;
        (waiting, ranges) == (1, 1) || ranges < 2 && (second || waiting < self.files && bytes < self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Auto;

    const MIB: u64 = 1 << 20;

    fn ahead(left: Option<Left>, tuned: Option<Tuned>) -> Ahead {
        Ahead::new(PathDefaults::new(Duration::from_millis(100)), &Options::default(), left, tuned)
    }

    fn left(files: u64, size: u64) -> Option<Left> {
        Some(Left { files, bytes: files * size, sessions: 8 })
    }

    fn tuned(rate: f64, pipeline: Option<u32>) -> Option<Tuned> {
        Some(Tuned { rate: Some(rate), rtt: 0.1, pipeline })
    }

    #[test]
    fn many_small_files_wait_and_two_ranges() {
        let many = ahead(left(1_000_000, 4096), None);
        assert_eq!((many.depth, many.files, many.bytes), (200, 200, MOST_BYTES));
        assert!(many.takes(0, 0, 0) && many.takes(199, MOST_BYTES - 1, 0) && !many.takes(1, MOST_BYTES, 0));
        assert!(!many.takes(200, MIB, 0));
        assert!(many.takes(1, 1 << 30, 1) && !many.takes(2, MIB, 2));
        // Whole files behind a range are left to other sessions.
        assert!(many.takes(2, MOST_BYTES - 1, 1) && !many.takes(2, MOST_BYTES, 1));
    }

    #[test]
    fn towards_the_end_each_leaves_the_others_their_part() {
        assert_eq!(ahead(left(64, 4 * MIB), None).bytes, 16 * MIB);
        assert_eq!(ahead(left(8, 4 * MIB), None).bytes, 2 * MIB);
        assert_eq!(ahead(left(8, 4 * MIB), None).files, 50);
        // A session may always request what it carries in one and a half round trips.
        assert_eq!(ahead(left(8, 4 * MIB), tuned(4e7, Some(4))).bytes, 6_000_000);
        assert_eq!(ahead(left(8, 4 * MIB), tuned(1e6, Some(4))).bytes, LEAST_BYTES);
        assert_eq!(ahead(left(800, 4096), tuned(1e6, Some(20))).files, 50);
        assert_eq!(ahead(left(80, 4096), tuned(1e6, Some(20))).files, 20);
        assert_eq!(ahead(left(16, 4096), tuned(1e6, Some(1))).files, LEAST_FILES);
    }

    #[test]
    fn where_the_path_is_tuned_a_second_is_enough() {
        let many = left(1_000_000, MIB);
        assert_eq!(ahead(many, tuned(3e6, Some(4))).bytes, 3_000_000);
        assert_eq!(ahead(many, tuned(3e8, Some(4))).bytes, MOST_BYTES);
        assert_eq!(ahead(many, tuned(3e5, Some(4))).bytes, LEAST_BYTES);
        let unknown = Tuned { rate: None, rtt: 0.1, pipeline: None };
        assert_eq!(ahead(many, Some(unknown)).bytes, FIRST_BYTES);
        let far = Tuned { rate: Some(3e6), rtt: 0.5, pipeline: None };
        assert_eq!(ahead(many, Some(far)).bytes, 6_000_000);
    }

    #[test]
    fn one_may_wait_behind_the_one_that_moves_while_there_are_plenty() {
        let slow = |files| ahead(left(files, 4 * MIB), tuned(1e6, Some(2)));
        assert!(slow(65).takes(1, 4 * MIB, 0) && !slow(65).takes(2, 8 * MIB, 0));
        assert!(!slow(64).takes(1, 4 * MIB, 0));
        // A large file is alone, as always.
        assert!(!ahead(left(1000, 64 * MIB), tuned(1e6, Some(2))).takes(1, 64 * MIB, 0));
    }

    #[test]
    fn a_tuner_may_ask_for_more_than_the_rule() {
        assert_eq!(ahead(left(1_000_000, 4096), tuned(1e8, Some(500))).depth, 500);
        assert_eq!(ahead(left(1_000_000, 4096), tuned(f64::INFINITY, Some(1))).files, 200);
    }

    #[test]
    fn what_is_set_or_not_known_stays() {
        let set = Options::default().with(|o| o.tuning.pipeline = Auto::Set(1));
        let path = PathDefaults::new(Duration::from_millis(100));
        let one = Ahead::new(path, &set, left(1000, 4096), tuned(1e9, Some(50)));
        assert_eq!((one.files, one.depth), (1, 1));
        assert!(one.takes(0, 0, 0) && !one.takes(1, 1, 0));
        assert_eq!(ahead(None, None), Ahead { files: 200, bytes: MOST_BYTES, second: false, depth: 200 });
        let none = Some(Left { files: 0, bytes: 0, sessions: 0 });
        assert_eq!(
            ahead(none, tuned(f64::NAN, None)),
            Ahead { files: 50, bytes: LEAST_BYTES, second: false, depth: 200 }
        );
    }
}
