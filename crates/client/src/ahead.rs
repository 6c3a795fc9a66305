//! How much of the work one session takes before it has done it.
//!
//! Commands that are sent ahead save a round trip for each file, but what one session has asked for no other can take back: towards
//! the end of a run others would look on while it works that off, and over one path some sessions are several times as fast as
//! others. So each asks for no more than half of what would be its even part of what is left (guided self-scheduling), on a
//! tuned path for no more than it carries in a second, and for no less than what covers a round trip.

use crate::Options;
use crate::path_defaults::PathDefaults;

/// Bytes of transfers that may wait in a session's pipeline: small files are many, a big one is alone.
const MOST_BYTES: u64 = 32 << 20;
/// So many may always wait.
const LEAST_BYTES: u64 = 1 << 20;
const LEAST_FILES: usize = 2;
/// So many in the beginning, where a tuned path's rate is not known yet.
const FIRST_BYTES: u64 = 4 << 20;
/// Of so many files for each session there are plenty.
const PLENTY: u64 = 8;
/// Round trips that are covered in any case: the command is half of one on its way, and replies are late now and then.
const ROUND_TRIPS: f64 = 1.5;
/// What a session does in so many seconds, or round trips, is enough to have ahead.
const SECONDS: f64 = 1.0;
const ENOUGH_ROUND_TRIPS: f64 = 4.0;

/// What is left of a run, and how many sessions share it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    pub files: u64,
    pub bytes: u64,
    pub sessions: u32,
}

/// What a tuned path says of one of its sessions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuned {
    /// Bytes a second; `None` before anything is known.
    pub rate: Option<f64>,
    /// Of a round trip, in seconds.
    pub rtt: f64,
    /// Commands ahead as the tuner decided; `None` before it did.
    pub pipeline: Option<u32>,
}

/// Transfers that a session may have asked for and not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// Those whose data has not moved.
    files: usize,
    bytes: u64,
    /// There is so much for all that one may wait behind the one that moves, however long that takes.
    second: bool,
    /// Those that are not confirmed: more of them gain nothing.
    pub depth: usize,
}

impl Ahead {
    /// `left`: `None` where nobody knows.
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

    /// Whether a session takes another transfer, where so many have not moved yet, with so many bytes, and so many of them are
    /// ranges of files. Beside a range, however long, the next one is asked for; more would be kept from other sessions.
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
        // Whole files behind a range are for other sessions.
        assert!(many.takes(2, MOST_BYTES - 1, 1) && !many.takes(2, MOST_BYTES, 1));
    }

    #[test]
    fn towards_the_end_each_leaves_the_others_their_part() {
        assert_eq!(ahead(left(64, 4 * MIB), None).bytes, 16 * MIB);
        assert_eq!(ahead(left(8, 4 * MIB), None).bytes, 2 * MIB);
        assert_eq!(ahead(left(8, 4 * MIB), None).files, 50);
        // What a session carries in a round trip and a half it may always ask for.
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
        // What is large is alone, as always.
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
