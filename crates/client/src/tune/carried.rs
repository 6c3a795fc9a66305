//! How many streams carried what moved over a path: for the summary, since a run ends with few.

use std::collections::BTreeMap;

/// Bytes by the number of streams that there were meanwhile.
#[derive(Debug, Default)]
pub(super) struct Carried {
    bytes: BTreeMap<u32, u64>,
    /// Bytes that had moved at the last look.
    seen: u64,
    most: u32,
}

impl Carried {
    /// There are so many streams, and so many bytes have moved in all.
    pub(super) fn look(&mut self, streams: u32, moved: u64) {
        let more = moved.saturating_sub(self.seen);
        self.seen = self.seen.max(moved);
        self.most = self.most.max(streams);
        // What arrives behind the last stream was another's.
        if streams > 0 && more > 0 {
            *self.bytes.entry(streams).or_default() += more;
        }
    }

    /// The median over bytes: half of them moved with no more streams. `None` before any moved.
    pub(super) fn usual(&self) -> Option<u32> {
        let half = self.bytes.values().sum::<u64>().div_ceil(2);
        let mut sum = 0;
        let mut reaches = |bytes: u64| {
            sum += bytes;
            sum >= half
        };
        self.bytes.iter().find(|(_, bytes)| reaches(**bytes)).map(|(streams, _)| *streams)
    }

    /// The most streams at a look.
    pub(super) fn most(&self) -> u32 {
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carried_counts_by_bytes_and_not_by_time() {
        let mut carried = Carried::default();
        assert_eq!((carried.usual(), carried.most()), (None, 0));
        // A climb, 64 to 69 streams for most of it, and a long end of two.
        let mut moved = 0;
        for (streams, more) in [(8, 1_000), (24, 3_000), (64, 50_000), (69, 40_000), (66, 30_000)] {
            moved += more;
            carried.look(streams, moved);
        }
        for _ in 0..1000 {
            moved += 10;
            carried.look(2, moved);
        }
        assert_eq!((carried.usual(), carried.most()), (Some(66), 69));
        // Counters that fall, and bytes behind the last stream, change nothing.
        carried.look(0, moved + 1_000_000);
        carried.look(3, 5);
        assert_eq!((carried.usual(), carried.most()), (Some(66), 69));
    }
}
