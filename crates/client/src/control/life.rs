//! Checks that a talking peer makes progress: replies without news do not keep a command alive
//! forever.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ropewalk_protocol::marker::Marker;
use ropewalk_protocol::queue::QueuePlace;
use ropewalk_protocol::range::RangeSet;

/// Number of preliminary replies of a command, markers excluded: 125 or 150, and one in reserve.
const PRELIMINARY: u32 = 2;

/// Timeout multiplier for a peer that keeps sending markers without progress: after the last byte
/// it may wait for a disk, or for a tape.
const PATIENCE: u32 = 5;

/// A caller that waits again within this time has done nothing else in between.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Limit of calculated times.
const FAR: Duration = Duration::from_hours(365 * 24);

/// Number of stripes or ranges that are recorded; others are no sign of life.
const NOTED: usize = 4096;

#[derive(Debug)]
pub(super) struct Life {
    /// When anything came last, except for replies without news.
    heard: Instant,
    /// The last reply with news.
    sign: Instant,
    waiting: Option<Waiting>,
    preliminary: u32,
    reported: Reported,
}

/// The wait for a reply, without a sign of life.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    since: Instant,
    /// When anything came last.
    came: Instant,
    /// Markers came.
    markers: bool,
}

/// The progress that markers of a command have reported.
#[derive(Debug, Default)]
struct Reported {
    ranges: RangeSet,
    stripes: HashMap<u32, u64>,
    summed: u64,
    /// The nearest place in a queue.
    position: Option<u32>,
}

impl Reported {
    /// Records a marker. Returns whether it reports progress.
    fn takes(&mut self, marker: &Marker) -> bool {
        match marker {
            Marker::Range(ranges) if self.ranges.count() < NOTED => {
                let before = self.ranges.len();
                self.ranges.union(ranges);
                self.ranges.len() > before
            }
            Marker::Perf(perf) if self.stripes.len() < NOTED || self.stripes.contains_key(&perf.stripe) => {
                let known = self.stripes.entry(perf.stripe).or_default();
                let more = perf.bytes > *known;
                *known = perf.bytes.max(*known);
                more
            }
            Marker::Status(status) => {
                let more = status.bytes > self.summed;
                self.summed = status.bytes.max(self.summed);
                more
            }
            // The state of a path says nothing about progress.
            Marker::Range(_) | Marker::Perf(_) | Marker::Path(_) | Marker::Storage(_) => false,
            Marker::Nodes(_) => false,
        }
    }
}

impl Life {
    pub(super) fn new(now: Instant) -> Self {
        Self { heard: now, sign: now, waiting: None, preliminary: 0, reported: Reported::default() }
    }

    /// A command is sent, and no reply was due before it.
    pub(super) fn asks(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Bytes came, whose meaning is not known yet.
    pub(super) fn hears(&mut self, now: Instant) {
        self.heard = now;
    }

    pub(super) fn quiet(&self) -> Duration {
        self.heard.elapsed()
    }

    /// The end of the wait for the present reply, if a silent peer gets `limit`. Time spent on
    /// other work does not count.
    pub(super) fn waits(&mut self, now: Instant, limit: Duration) -> Instant {
        let at_once = |waiting: &Waiting| now.saturating_duration_since(waiting.came) < AT_ONCE;
        let fresh = Waiting { since: now, came: now, markers: false };
        let waiting = self.waiting.filter(at_once).unwrap_or(fresh);
        self.waiting = Some(waiting);
        let limit = if waiting.markers { limit.saturating_mul(PATIENCE) } else { limit };
        // A file may have any reported size.
        waiting.since.checked_add(limit).unwrap_or(waiting.since + FAR)
    }

    /// A command has its final reply.
    pub(super) fn ends(&mut self, now: Instant) {
        (self.preliminary, self.reported) = (0, Reported::default());
        self.lives(now);
    }

    pub(super) fn begins(&mut self, now: Instant) {
        self.preliminary = self.preliminary.saturating_add(1);
        if self.preliminary <= PRELIMINARY { self.lives(now) } else { self.talks(now, false) }
    }

    pub(super) fn tells(&mut self, now: Instant, marker: &Marker) {
        if self.reported.takes(marker) { self.lives(now) } else { self.talks(now, true) }
    }

    /// The peer has the command in a queue. Only a place that comes nearer is news.
    pub(super) fn waits_in_queue(&mut self, now: Instant, place: QueuePlace) {
        let nearer = self.reported.position.is_none_or(|known| place.position < known);
        if nearer {
            self.reported.position = Some(place.position);
            self.lives(now);
        } else {
            self.talks(now, true);
        }
    }

    fn lives(&mut self, now: Instant) {
        (self.heard, self.sign, self.waiting) = (now, now, None);
    }

    fn talks(&mut self, now: Instant, marker: bool) {
        self.heard = self.sign;
        if let Some(waiting) = &mut self.waiting {
            waiting.came = now;
            waiting.markers |= marker;
        }
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_protocol::marker::{PerfMarker, StatusMarker};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// How many seconds a peer gets that repeats the same message each second: `None` if there is
    /// no end.
    fn patience(says: impl Fn(&mut Life, Instant, u64)) -> Option<u64> {
        let began = Instant::now();
        let mut life = Life::new(began);
        (0..1000).find(|&second| {
            let now = began + Duration::from_secs(second);
            let over = life.waits(now, LIMIT) <= now;
            // Half a second before it is asked again.
            says(&mut life, now + Duration::from_millis(500), second);
            over
        })
    }

    fn perf(timestamp: u64, stripe: u32, bytes: u64) -> Marker {
        Marker::Perf(PerfMarker { timestamp, stripe, bytes, stripes: 2 })
    }

    #[test]
    fn what_tells_of_nothing_more_is_no_sign_of_life() {
        // The first two count.
        assert_eq!(patience(|life, now, _| life.begins(now)), Some(12));
        // The first markers of each stripe count, too.
        let same = |life: &mut Life, now, second: u64| life.tells(now, &perf(second, 0, 5));
        assert_eq!(patience(same), Some(51));
        let stripes = |life: &mut Life, now, second: u64| {
            let stripe = (second % 2) as u32;
            life.tells(now, &perf(second, stripe, 5 + u64::from(stripe)));
        };
        assert_eq!(patience(stripes), Some(52));
        // Alternating values count as the greater one.
        assert_eq!(patience(|life, now, second| life.tells(now, &perf(second, 0, 5 + second % 2))), Some(52));
        let ranges = |life: &mut Life, now, _| life.tells(now, &Marker::Range(RangeSet::from_range(0..5)));
        assert_eq!(patience(ranges), Some(51));
    }

    #[test]
    fn what_tells_of_more_is_one() {
        assert_eq!(patience(|life, now, second| life.tells(now, &perf(second, 0, second))), None);
        assert_eq!(
            patience(|life, now, second| life.tells(now, &perf(second, second as u32 % 2, second))),
            None
        );
        let ranges = |life: &mut Life, now, second| {
            life.tells(now, &Marker::Range(RangeSet::from_range(second..second + 1)));
        };
        assert_eq!(patience(ranges), None);
        let sums = |life: &mut Life, now, bytes| {
            life.tells(now, &Marker::Status(StatusMarker { timestamp: 0, bytes }));
        };
        assert_eq!(patience(sums), None);
        assert_eq!(patience(|life, now, _| life.ends(now)), None);
        // Other work was done between two waits.
        let mut life = Life::new(Instant::now());
        let began = Instant::now();
        assert_eq!(life.waits(began, LIMIT), began + LIMIT);
        let later = began + Duration::from_secs(3600);
        assert_eq!(life.waits(later, LIMIT), later + LIMIT);
    }
}
