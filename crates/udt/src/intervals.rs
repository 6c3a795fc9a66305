//! Sorted, disjoint ranges of packet positions.

use std::collections::VecDeque;
use std::ops::Range;

/// A set of positions that is stored as ranges. Storage is kept when the set becomes empty, so that
/// a connection in steady state allocates nothing.
#[derive(Default)]
pub(crate) struct Intervals {
    ranges: VecDeque<Range<u64>>,
    count: u64,
}

impl Intervals {
    /// The number of positions.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Adds a position. Returns whether it is new.
    pub(crate) fn insert(&mut self, position: u64) -> bool {
        let after = self.ranges.partition_point(|range| range.start <= position);
        if after > 0 && position < self.ranges[after - 1].end {
            return false;
        }
        self.count += 1;
        let joins_next = self.ranges.get(after).is_some_and(|next| next.start == position + 1);
        let joins_previous = after > 0 && self.ranges[after - 1].end == position;
        match (joins_previous, joins_next) {
            (true, true) => {
                self.ranges[after - 1].end = self.ranges[after].end;
                self.ranges.remove(after);
            }
            (true, false) => self.ranges[after - 1].end += 1,
            (false, true) => self.ranges[after].start -= 1,
            (false, false) => self.ranges.insert(after, position..position + 1),
        }
        true
    }

    pub(crate) fn first(&self) -> Option<u64> {
        self.ranges.front().map(|range| range.start)
    }

    pub(crate) fn remove_first(&mut self) {
        if let Some(first) = self.ranges.front_mut() {
            first.start += 1;
            self.count -= 1;
            if first.is_empty() {
                self.ranges.pop_front();
            }
        }
    }

    pub(crate) fn remove_below(&mut self, position: u64) {
        while let Some(first) = self.ranges.front_mut()
            && first.start < position
        {
            let end = first.end.min(position);
            self.count -= end - first.start;
            first.start = end;
            if first.is_empty() {
                self.ranges.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn intervals_hold_what_a_set_holds(steps in proptest::collection::vec((0..3, 0..60_u64), 0..200)) {
            let (mut intervals, mut set) = (Intervals::default(), BTreeSet::new());
            for (kind, position) in steps {
                match kind {
                    0 => prop_assert_eq!(intervals.insert(position), set.insert(position)),
                    1 => {
                        prop_assert_eq!(intervals.first(), set.pop_first());
                        intervals.remove_first();
                    }
                    _ => {
                        intervals.remove_below(position);
                        set = set.split_off(&position);
                    }
                }
                prop_assert_eq!(intervals.count(), set.len() as u64);
                prop_assert!(intervals.ranges.iter().all(|range| range.start < range.end));
            }
            let all: Vec<u64> = intervals.ranges.iter().cloned().flatten().collect();
            prop_assert_eq!(all, set.into_iter().collect::<Vec<_>>());
        }
    }
}
