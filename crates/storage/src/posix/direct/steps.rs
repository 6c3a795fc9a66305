//! How far ahead of direct writes space is reserved.
//!
//! As for the page cache (`posix::space`), what is reserved follows what has come: whoever announces much and sends little gets
//! little. But the steps are large, since direct writes that are under way have to end before space can be reserved.

use std::ops::Range;

use ropewalk_protocol::range::RangeSet;

/// Reserved at a time at least, where it may be, in bytes.
pub(super) const LEAST: u64 = 16 << 20;
/// Reserved at a time at most, in bytes.
const MOST: u64 = 1 << 30;
/// What may be reserved beyond twice of what has come, in bytes: several senders can begin at several places.
const FIRST: u64 = 64 << 20;

/// What is reserved of a file.
pub(super) struct Steps {
    /// Of the whole file, in bytes.
    size: u64,
    /// Where nothing needs to be reserved any more.
    settled: RangeSet,
    /// Bytes that were reserved.
    granted: u64,
    /// Bytes that have come.
    came: u64,
}

impl Steps {
    /// For a file that will have so many bytes, of which those before `first` are reserved.
    pub(super) fn new(size: u64, first: u64) -> Self {
        Self { size, settled: RangeSet::from_range(0..first), granted: first, came: 0 }
    }

    /// Bytes have come.
    pub(super) fn came(&mut self, length: u64) {
        self.came = self.came.saturating_add(length);
    }

    /// What to reserve before `range` is written; all of it counts as reserved from now on.
    pub(super) fn reach(&mut self, range: Range<u64>) -> RangeSet {
        let range = range.start..range.end.min(self.size);
        if self.settled.contains(range.clone()) {
            return RangeSet::new();
        }
        let most = self.came.saturating_mul(2).saturating_add(FIRST).saturating_sub(self.granted);
        let step = self.came.clamp(LEAST, MOST).min(most);
        // Streams are ahead of one another: what is left out since the last step is about to come.
        let near = self.settled.intersection(range.start.saturating_sub(step)..range.start).end();
        let from = if near > 0 { near } else { range.start };
        let to = range.end.max(from.saturating_add(step).min(self.size));
        let wanted = self.settled.complement(from..to);
        self.granted = self.granted.saturating_add(wanted.len());
        self.settled.insert(from..to);
        wanted
    }

    /// These bytes need no space.
    pub(super) fn leave_out(&mut self, range: Range<u64>) {
        self.settled.insert(range);
    }

    /// Nothing more is to be reserved.
    pub(super) fn end(&mut self) {
        self.settled = RangeSet::from_range(0..self.size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SIZE: u64 = 100 << 30;

    /// So many blocks of a MiB at each of these places in turns; gives how often space was reserved.
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
    fn what_is_reserved_follows_what_has_come_in_few_steps() {
        let mut steps = Steps::new(SIZE, LEAST);
        // Who has sent little gets little, however much was announced.
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
    fn several_places_get_their_steps() {
        let places: Vec<u64> = (0..16).map(|place| place * (SIZE / 16)).collect();
        let mut steps = Steps::new(SIZE, LEAST);
        let calls = fill(&mut steps, &places, SIZE / 16 / MIB);
        assert_eq!((steps.granted, steps.settled.count()), (SIZE, 1));
        assert!(calls <= 1000, "{calls}");
    }

    #[test]
    fn what_is_out_of_order_for_a_moment_makes_no_more_steps() {
        let mut steps = Steps::new(SIZE, LEAST);
        let mut calls = 0;
        // Pairs the wrong way round, the first of which begin at the end of each step.
        for block in (0..4096).map(|block| block ^ 1) {
            steps.came(MIB);
            calls += steps.reach(block * MIB..(block + 1) * MIB).count();
        }
        assert_eq!(steps.settled.count(), 1);
        assert!(calls <= 20, "{calls}");
    }

    #[test]
    fn what_is_left_out_is_not_reserved_later() {
        let mut steps = Steps::new(SIZE, LEAST);
        steps.leave_out(20 * MIB..24 * MIB);
        steps.came(MIB);
        assert_eq!(steps.reach(16 * MIB..17 * MIB).to_string(), "16777216-20971520,25165824-33554432");
        steps.end();
        assert!(steps.reach(50 * MIB..51 * MIB).is_empty());
    }
}
