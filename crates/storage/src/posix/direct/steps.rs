//! How far ahead of direct writes space is reserved.
//!
//! As for the page cache (`posix::space`), the reserved space follows the received bytes: a sender
//! that announces a large file and sends little gets little space. But the steps are large, because
//! space can be reserved only when the direct writes in progress have ended.

use std::ops::Range;

use ropewalk_protocol::range::RangeSet;

/// The smallest step in bytes, if the limit allows it.
pub(super) const LEAST: u64 = 16 << 20;
/// The largest step in bytes.
const MOST: u64 = 1 << 30;
/// How much may be reserved beyond twice the received bytes, in bytes: several senders can start at
/// several places.
const FIRST: u64 = 64 << 20;

/// The reserved space of a file.
pub(super) struct Steps {
    /// Size of the whole file in bytes.
    size: u64,
    /// Ranges that need no (further) reservation.
    settled: RangeSet,
    /// The number of bytes reserved so far.
    granted: u64,
    /// The number of bytes received so far.
    came: u64,
}

impl Steps {
    /// For a file that will have `size` bytes, the first `first` of which are reserved.
    pub(super) fn new(size: u64, first: u64) -> Self {
        Self { size, settled: RangeSet::from_range(0..first), granted: first, came: 0 }
    }

    /// Counts received bytes.
    pub(super) fn came(&mut self, length: u64) {
        self.came = self.came.saturating_add(length);
    }

    /// Returns the ranges to reserve before `range` is written. They count as reserved from now on.
    pub(super) fn reach(&mut self, range: Range<u64>) -> RangeSet {
        let range = range.start..range.end.min(self.size);
        if self.settled.contains(range.clone()) {
            return RangeSet::new();
        }
        let most = self.came.saturating_mul(2).saturating_add(FIRST).saturating_sub(self.granted);
        let step = self.came.clamp(LEAST, MOST).min(most);
        // Streams run ahead of one another, so bytes left out since the last step are about to
        // come.
        let near = self.settled.intersection(range.start.saturating_sub(step)..range.start).end();
        let from = if near > 0 { near } else { range.start };
        let to = range.end.max(from.saturating_add(step).min(self.size));
        let wanted = self.settled.complement(from..to);
        self.granted = self.granted.saturating_add(wanted.len());
        self.settled.insert(from..to);
        wanted
    }

    /// Excludes bytes that need no space.
    pub(super) fn leave_out(&mut self, range: Range<u64>) {
        self.settled.insert(range);
    }

    /// Stops reserving space.
    pub(super) fn end(&mut self) {
        self.settled = RangeSet::from_range(0..self.size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SIZE: u64 = 100 << 30;

    /// Receives `blocks` blocks of 1 MiB at each of these places in turn; returns how often space
    /// was reserved.
    fn fill(steps: &mut Steps, places: &[u64], blocks: u64) -> u64 {
        let mut calls = 0;
        for block in 0..blocks {
            for place in places {
                let at = place + block * MIB;
                steps.came(MIB);
                calls += steps.reach(at..at + MIB).count() as u64;
                assert!(steps.settled.contains(at..at + MIB));
                assert!(steps.granted <= 2 * steps.came + FIRST + MIB, "{} of {}", steps.granted, steps.came);
            }
        }
        calls
    }

    #[test]
    fn reach_follows_the_received_bytes_in_few_steps() {
        let mut steps = Steps::new(SIZE, LEAST);
        // A sender that has sent little gets little, however much was announced.
        assert_eq!(fill(&mut steps, &[0], 1), 0);
        assert_eq!(steps.granted, LEAST);
        let calls = fill(&mut steps, &[0], SIZE / MIB);
        assert_eq!((steps.granted, steps.settled.count()), (SIZE, 1));
        assert!(calls <= 120, "{calls}");
        // Nothing beyond the end, and nothing twice.
        assert!(
            steps.reach(SIZE - 5..SIZE + MIB).is_empty()
                && steps.reach(SIZE + MIB..SIZE + 2 * MIB).is_empty()
        );
    }

    #[test]
    fn reach_at_several_places_takes_few_steps() {
        let places: Vec<u64> = (0..16).map(|place| place * (SIZE / 16)).collect();
        let mut steps = Steps::new(SIZE, LEAST);
        let calls = fill(&mut steps, &places, SIZE / 16 / MIB);
        assert_eq!((steps.granted, steps.settled.count()), (SIZE, 1));
        assert!(calls <= 1000, "{calls}");
    }

    #[test]
    fn reach_slightly_out_of_order_takes_no_more_steps() {
        let mut steps = Steps::new(SIZE, LEAST);
        let mut calls = 0;
        // Pairs in the wrong order; some of them are split by the end of a step.
        for block in (0..4096).map(|block| block ^ 1) {
            steps.came(MIB);
            calls += steps.reach(block * MIB..(block + 1) * MIB).count();
        }
        assert_eq!(steps.settled.count(), 1);
        assert!(calls <= 20, "{calls}");
    }

    #[test]
    fn reach_excludes_ranges_left_out() {
        let mut steps = Steps::new(SIZE, LEAST);
        steps.leave_out(20 * MIB..24 * MIB);
        steps.came(MIB);
        assert_eq!(steps.reach(16 * MIB..17 * MIB).to_string(), "16777216-20971520,25165824-33554432");
        steps.end();
        assert!(steps.reach(50 * MIB..51 * MIB).is_empty());
    }
}
