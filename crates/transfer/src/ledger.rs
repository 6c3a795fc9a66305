//! Which bytes of a file are where they belong, and which ranges are still due.

use ropewalk_protocol::range::RangeSet;
use ropewalk_storage::checksum::Pieces;

/// The book of one file, shared by all pipelines that move ranges of it. Offsets are the source's.
#[derive(Debug)]
pub struct Ledger {
    /// Ranges handed out or waiting. The file is complete when the last one is done.
    left: u32,
    failed: bool,
    present: RangeSet,
    proved: RangeSet,
    sums: Option<Pieces>,
    /// The end of what has arrived.
    end: u64,
}

impl Ledger {
    /// A file that is one range so far, of which the destination has `present`. Sums of data that
    /// passes through this program are collected in `sums`.
    pub fn new(present: RangeSet, sums: Option<Pieces>) -> Self {
        Self { left: 1, failed: false, present, proved: RangeSet::new(), sums, end: 0 }
    }

    /// There will be `more` ranges besides the known ones.
    pub fn expect(&mut self, more: u32) {
        self.left = self.left.saturating_add(more);
    }

    /// The file has failed, or is sent again as a whole. Returns `true` the first time.
    pub fn fail(&mut self) -> bool {
        !std::mem::replace(&mut self.failed, true)
    }

    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The bytes that the destination has.
    pub fn present(&self) -> &RangeSet {
        &self.present
    }

    pub fn add_present(&mut self, ranges: &RangeSet) {
        self.present.union(ranges);
    }

    /// The destination has `found` of `within`, and nothing else of it. Returns by how many bytes
    /// that is more, or less, than was known.
    pub fn set_present(&mut self, within: std::ops::Range<u64>, found: &RangeSet) -> i64 {
        let before = self.present.len();
        self.present.remove(within.clone());
        self.present.union(&found.intersection(within));
        let difference = i128::from(self.present.len()) - i128::from(before);
        i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
    }

    /// Nothing at the destination is to be relied on. Returns how many bytes that were.
    pub fn forget_present(&mut self) -> u64 {
        std::mem::take(&mut self.present).len()
    }

    /// Both ends have the same sum of this.
    pub fn prove(&mut self, ranges: &RangeSet) {
        self.proved.union(ranges);
    }

    pub fn proved(&self) -> &RangeSet {
        &self.proved
    }

    /// The sums of what passed through this program.
    pub fn sums(&self) -> Option<&Pieces> {
        self.sums.as_ref()
    }

    pub fn add_sums(&mut self, more: &Pieces) {
        if let Some(sums) = &mut self.sums {
            sums.merge(more);
        }
    }

    /// The end of what has arrived.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// A range is done, and `arrived` is at the destination. Returns `true` for the last one.
    pub fn range_done(&mut self, arrived: &RangeSet) -> bool {
        self.present.union(arrived);
        self.end = self.end.max(arrived.end());
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_of_several_ranges_completes_the_file() {
        let mut ledger = Ledger::new(RangeSet::from_range(0..10), None);
        ledger.expect(1);
        assert!(!ledger.range_done(&RangeSet::from_range(10..20)));
        assert!(ledger.range_done(&RangeSet::from_range(20..30)));
        assert_eq!((ledger.present().len(), ledger.end()), (30, 30));
    }

    #[test]
    fn what_the_destination_reports_replaces_what_was_known_of_that_range() {
        let mut ledger = Ledger::new(RangeSet::from_range(0..20), None);
        assert_eq!(ledger.set_present(0..20, &RangeSet::from_range(0..5)), -15);
        assert_eq!(ledger.set_present(10..20, &RangeSet::from_range(0..12)), 2);
        assert_eq!((ledger.forget_present(), ledger.forget_present()), (7, 0));
    }

    #[test]
    fn first_failure_is_reported_once() {
        let mut ledger = Ledger::new(RangeSet::new(), None);
        assert!(ledger.fail() && !ledger.fail() && ledger.has_failed());
    }
}
