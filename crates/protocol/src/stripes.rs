//! The division of a file among the stripes of a sender (GFD.20 section 3.4.2.4).
//!
//! No I/O. The bytes that are to be sent are counted through in order, and cut into units which the
//! stripes get in turn: so a restart is divided as evenly as a first transfer. The receivers need
//! not know the division, because each block states its position.

use crate::range::RangeSet;
use crate::server::StripeLayout;

/// The unit if the client has named none, in bytes. It is that of GCT.
const BLOCK: u64 = 1 << 20;
/// Most units of one file, because each may be a range of its own. Units of larger files are larger
/// than the client wants.
const MOST_UNITS: u64 = 1 << 14;

/// Divides `ranges` among `count` stripes.
pub fn shares(layout: StripeLayout, ranges: &RangeSet, count: usize) -> Vec<RangeSet> {
    let mut shares = vec![RangeSet::new(); count.max(1)];
    let total = ranges.len();
    let unit = match layout {
        StripeLayout::Partitioned => total.div_ceil(shares.len() as u64),
        StripeLayout::Blocked { block_size: Some(size) } => size,
        StripeLayout::Blocked { block_size: None } | StripeLayout::ServerDefault => BLOCK,
    };
    let unit = unit.max(total.div_ceil(MOST_UNITS)).max(1);
    let mut counted = 0;
    for range in ranges.iter() {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start.saturating_add(unit - counted % unit));
            let stripe = (counted / unit) as usize % shares.len();
            shares[stripe].insert(start..end);
            counted += end - start;
            start = end;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn set(ranges: &[(u64, u64)]) -> RangeSet {
        ranges.iter().map(|(start, end)| *start..*end).collect()
    }

    #[test]
    fn partitioned_file_is_one_range_for_each_stripe() {
        let shares = shares(StripeLayout::Partitioned, &set(&[(0, 10)]), 3);
        assert_eq!(shares, [set(&[(0, 4)]), set(&[(4, 8)]), set(&[(8, 10)])]);
    }

    #[test]
    fn blocks_go_to_stripes_in_turn() {
        let layout = StripeLayout::Blocked { block_size: Some(3) };
        assert_eq!(shares(layout, &set(&[(0, 10)]), 2), [set(&[(0, 3), (6, 9)]), set(&[(3, 6), (9, 10)])]);
        // The rest of a file is divided evenly, too.
        let rest = set(&[(5, 7), (100, 104)]);
        assert_eq!(shares(layout, &rest, 2), [set(&[(5, 7), (100, 101)]), set(&[(101, 104)])]);
        assert_eq!(shares(StripeLayout::ServerDefault, &set(&[(0, 9)]), 2), [set(&[(0, 9)]), set(&[])]);
    }

    #[test]
    fn tiny_blocks_of_large_file_are_made_larger() {
        let layout = StripeLayout::Blocked { block_size: Some(0) };
        let shares = shares(layout, &set(&[(0, 1 << 40)]), 2);
        assert_eq!(shares.iter().map(RangeSet::count).sum::<usize>(), MOST_UNITS as usize);
        assert_eq!(shares[0].len(), shares[1].len());
    }

    proptest! {
        #[test]
        fn each_byte_has_exactly_one_stripe(
            cuts in prop::collection::btree_set(0u64..5000, 0..20),
            size in 0u64..300, blocked: bool, count in 1usize..6,
        ) {
            let cuts: Vec<u64> = cuts.into_iter().collect();
            let ranges: RangeSet = cuts.chunks_exact(2).map(|cut| cut[0]..cut[1]).collect();
            let layout = match blocked {
                true => StripeLayout::Blocked { block_size: Some(size) },
                false => StripeLayout::Partitioned,
            };
            let shares = shares(layout, &ranges, count);
            let mut all = RangeSet::new();
            shares.iter().for_each(|share| all.union(share));
            prop_assert_eq!(&all, &ranges);
            prop_assert_eq!(shares.iter().map(RangeSet::len).sum::<u64>(), ranges.len());
        }
    }
}
