//! Sums of ranges that arrive in any order, and the sum of the file from them. Adjacent ranges are
//! combined at once. Overlapping ranges have no sum, because it is unknown whose bytes are in the
//! file. The number of gaps is limited.

use std::collections::BTreeMap;
use std::ops::Range;

use ropewalk_protocol::range::RangeSet;

use super::{Algorithm, block_sum, combine};

/// The maximum number of gaps. The peer determines how many there are, and sums can be computed
/// again.
const MOST: usize = 1 << 20;

/// The sums of ranges of a file, combined as they come in any order.
///
/// Memory grows with the number of gaps, not with the number of blocks. With more than 2^20 gaps,
/// no sum is known any more.
///
/// If two ranges overlap, it is unknown which of them the file contains in the end (the same sum
/// for the same range counts as the same bytes). The overlap stays unknown, and so does every range
/// whose sum includes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces {
    algorithm: Algorithm,
    /// Disjoint ranges that are never adjacent: start -> end and sum.
    known: BTreeMap<u64, (u64, u32)>,
    /// Ranges that were written more than once, whose sums stay unknown.
    doubtful: RangeSet,
}

impl Pieces {
    /// For a combinable algorithm; with another one, [`Self::total`] always returns `None`.
    pub fn new(algorithm: Algorithm) -> Self {
        Self { algorithm, known: BTreeMap::new(), doubtful: RangeSet::new() }
    }

    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Adds the sum of a range of the file.
    pub fn insert(&mut self, range: Range<u64>, sum: u32) {
        if range.start >= range.end || !self.algorithm.is_combinable() {
            return;
        }
        if self.known.get(&range.start) == Some(&(range.end, sum)) {
            return;
        }
        let overlapped = self.take_overlapping(&range);
        for piece in &overlapped {
            self.doubtful.insert(piece.start.max(range.start)..piece.end.min(range.end));
        }
        if self.known.len() + self.doubtful.count() >= MOST {
            self.known.clear();
            self.doubtful = RangeSet::from_range(0..u64::MAX);
        }
        if !overlapped.is_empty() || !self.doubtful.intersection(range.clone()).is_empty() {
            return;
        }
        self.join(range, sum);
    }

    /// Adds the sums of `other`.
    pub fn merge(&mut self, other: &Self) {
        if other.algorithm != self.algorithm {
            return;
        }
        for range in other.doubtful.iter() {
            self.forget(range.clone());
            self.doubtful.insert(range);
        }
        for (&start, &(end, sum)) in &other.known {
            self.insert(start..end, sum);
        }
    }

    /// Drops every sum that includes a byte of `range`: the bytes have changed, and their sum is
    /// unknown.
    pub fn forget(&mut self, range: Range<u64>) {
        if range.start < range.end {
            self.take_overlapping(&range);
        }
    }

    /// The ranges whose sums are known.
    pub fn covered(&self) -> RangeSet {
        self.known.iter().map(|(&start, &(end, _))| start..end).collect()
    }

    /// Each range whose sum is known, with its sum.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, u32)> + '_ {
        self.known.iter().map(|(&start, &(end, sum))| (start..end, sum))
    }

    /// The sum of the bytes of a range in lowercase hexadecimal, if all of it is known.
    pub fn total(&self, range: Range<u64>) -> Option<String> {
        self.total_of(&RangeSet::from_range(range))
    }

    /// The sum of the bytes of several ranges in order of offset, without the bytes between them.
    ///
    /// Returns `None` if a range is unknown, or known only together with bytes around it.
    pub fn total_of(&self, ranges: &RangeSet) -> Option<String> {
        if !self.algorithm.is_combinable() {
            return None;
        }
        let mut total = block_sum(self.algorithm, b"");
        for range in ranges.iter() {
            let &(end, sum) = self.known.get(&range.start)?;
            if end != range.end {
                return None;
            }
            total = combine(self.algorithm, total, sum, range.end - range.start);
        }
        Some(format!("{total:08x}"))
    }

    fn take_overlapping(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        while let Some((&start, &(end, _))) = self.known.range(..range.end).next_back()
            && end > range.start
        {
            self.known.remove(&start);
            found.push(start..end);
        }
        found
    }

    fn join(&mut self, range: Range<u64>, sum: u32) {
        let (mut start, mut end, mut total) = (range.start, range.end, sum);
        if let Some((&before, &(before_end, before_sum))) = self.known.range(..start).next_back()
            && before_end == start
        {
            total = combine(self.algorithm, before_sum, total, end - start);
            start = before;
        }
        if let Some((after_end, after_sum)) = self.known.remove(&end) {
            total = combine(self.algorithm, total, after_sum, after_end - end);
            end = after_end;
        }
        self.known.insert(start, (end, total));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const A: Algorithm = Algorithm::Crc32c;

    fn data(length: usize) -> Vec<u8> {
        (0..length).map(|i| (i * 31 + i / 7) as u8).collect()
    }

    fn hex(data: &[u8]) -> Option<String> {
        Some(format!("{:08x}", block_sum(A, data)))
    }

    fn put(pieces: &mut Pieces, data: &[u8], range: Range<usize>) {
        pieces.insert(range.start as u64..range.end as u64, block_sum(A, &data[range]));
    }

    proptest! {
        #[test]
        fn insert_in_any_order_results_in_the_sum_of_the_file(
            cuts in prop::collection::btree_set(0usize..3000, 0..40),
            order in prop::collection::vec(any::<u64>(), 64),
        ) {
            let data = data(3000);
            let edges: Vec<usize> = [0].into_iter().chain(cuts).chain([3000]).collect();
            let mut blocks: Vec<(u64, Range<usize>)> =
                edges.windows(2).zip(&order).map(|(w, &key)| (key, w[0]..w[1])).collect();
            blocks.sort_by_key(|(key, _)| *key);
            let mut halves = [Pieces::new(A), Pieces::new(A)];
            for (i, (_, range)) in blocks.iter().enumerate() {
                put(&mut halves[i % 2], &data, range.clone());
            }
            let [mut pieces, other] = halves;
            pieces.merge(&other);
            prop_assert_eq!(pieces.total(0..3000), hex(&data));
            prop_assert_eq!(pieces.covered(), RangeSet::from_range(0..3000));
            prop_assert_eq!(pieces.iter().count(), 1);
        }
    }

    #[test]
    fn total_with_gaps_is_none() {
        let data = data(100);
        let mut pieces = Pieces::new(A);
        put(&mut pieces, &data, 0..40);
        put(&mut pieces, &data, 60..100);
        assert_eq!(pieces.total(0..100), None);
        assert_eq!(pieces.total(0..40), hex(&data[..40]));
        assert_eq!(pieces.total(0..39), None);
        let both = [&data[..40], &data[60..]].concat();
        assert_eq!(pieces.total_of(&pieces.covered()), hex(&both));
        put(&mut pieces, &data, 40..60);
        assert_eq!(pieces.total(0..100), hex(&data));
    }

    #[test]
    fn total_of_overlap_stays_none() {
        let data = data(100);
        let mut pieces = Pieces::new(A);
        put(&mut pieces, &data, 0..50);
        put(&mut pieces, &data, 40..60);
        assert!(pieces.covered().is_empty());
        put(&mut pieces, &data, 0..100);
        assert_eq!(pieces.total(0..100), None);
        put(&mut pieces, &data, 60..100);
        assert_eq!(pieces.total(60..100), hex(&data[60..]));
    }

    #[test]
    fn insert_beyond_the_maximum_drops_all_sums() {
        let mut pieces = Pieces::new(A);
        for at in 0..MOST as u64 - 1 {
            pieces.insert(2 * at..2 * at + 1, 0);
        }
        assert_eq!(pieces.known.len(), MOST - 1);
        // A range that closes a gap does not increase the number.
        pieces.insert(1..2, 0);
        assert_eq!(pieces.known.len(), MOST - 2);
        for at in (0..).map(|i| (1 << 30) + 2 * i).take(4) {
            pieces.insert(at..at + 1, 0);
        }
        assert_eq!((pieces.known.len(), pieces.doubtful.count()), (0, 1));
        assert_eq!(pieces.total(0..3), None);
    }

    #[test]
    fn insert_of_the_same_block_twice_keeps_its_sum() {
        let data = data(100);
        let mut pieces = Pieces::new(A);
        put(&mut pieces, &data, 10..50);
        put(&mut pieces, &data, 10..50);
        assert_eq!(pieces.total(10..50), hex(&data[10..50]));
        pieces.insert(10..50, 7);
        assert!(pieces.covered().is_empty());
    }

    #[test]
    fn merge_takes_over_doubtful_ranges() {
        let data = data(100);
        let mut doubtful = Pieces::new(A);
        put(&mut doubtful, &data, 0..50);
        put(&mut doubtful, &data, 40..60);
        let mut pieces = Pieces::new(A);
        put(&mut pieces, &data, 0..100);
        pieces.merge(&doubtful);
        assert_eq!(pieces.total(0..100), None);
    }

    #[test]
    fn insert_after_forget_restores_the_sum() {
        let data = data(100);
        let mut pieces = Pieces::new(A);
        put(&mut pieces, &data, 0..100);
        pieces.forget(50..51);
        assert_eq!(pieces.total(0..100), None);
        put(&mut pieces, &data, 0..100);
        assert_eq!(pieces.total(0..100), hex(&data));
    }

    #[test]
    fn total_of_nothing_exists_for_combinable_algorithms_only() {
        assert_eq!(Pieces::new(Algorithm::Adler32).total(0..0).unwrap(), "00000001");
        let mut pieces = Pieces::new(Algorithm::Md5);
        pieces.insert(0..5, 1);
        assert_eq!(pieces.total(0..0), None);
        assert!(pieces.covered().is_empty());
    }
}
