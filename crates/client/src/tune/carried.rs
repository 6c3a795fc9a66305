//! The numbers of streams that moved the data, for the summary: a run ends with few streams.

use std::collections::BTreeMap;

/// Bytes by the number of streams at that time.
#[derive(Clone, Debug, Default)]
pub(super) struct Carried {
    bytes: BTreeMap<u32, u64>,
    /// Bytes that had moved at the last sample.
    seen: u64,
    most: u32,
}

impl Carried {
    /// Adds a sample: the number of streams, and all bytes moved so far.
    pub(super) fn look(&mut self, streams: u32, moved: u64) {
        let more = moved.saturating_sub(self.seen);
        self.seen = self.seen.max(moved);
        self.most = self.most.max(streams);
        // Bytes without streams belong to another transfer.
        if streams > 0 && more > 0 {
            *self.bytes.entry(streams).or_default() += more;
        }
    }

    /// Without the bytes that had moved `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        if before.bytes.is_empty() {
            return self.clone();
        }
        let earlier = |streams: &u32| before.bytes.get(streams).copied().unwrap_or_default();
        let later =
            self.bytes.iter().map(|(streams, bytes)| (*streams, bytes.saturating_sub(earlier(streams))));
        let bytes: BTreeMap<u32, u64> = later.filter(|(_, bytes)| *bytes > 0).collect();
        let most = bytes.last_key_value().map_or(0, |(streams, _)| *streams);
        Self { bytes, seen: self.seen, most }
    }

    /// The median over bytes: half of them moved with at most this many streams. `None` before any
    /// moved.
    pub(super) fn usual(&self) -> Option<u32> {
        let half = self.bytes.values().sum::<u64>().div_ceil(2);
        let mut sum = 0;
        let mut reaches = |bytes: u64| {
            sum += bytes;
            sum >= half
        };
        self.bytes.iter().find(|(_, bytes)| reaches(**bytes)).map(|(streams, _)| *streams)
    }

    /// The most streams in a sample.
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
        // A climb, then 64 to 69 streams for most of the time, and a long end with two.
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
        // Decreasing counters, and bytes without streams, change nothing.
        carried.look(0, moved + 1_000_000);
        carried.look(3, 5);
        assert_eq!((carried.usual(), carried.most()), (Some(66), 69));
        // Of a later run.
        let before = carried.clone();
        assert_eq!(carried.since(&before).usual(), None);
        carried.look(5, moved + 1_000_010);
        let later = carried.since(&before);
        assert_eq!((later.usual(), later.most()), (Some(5), 5));
    }
}
