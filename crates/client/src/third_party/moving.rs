//! The progress of one range between two servers, as the markers of the destination report it.

use std::collections::HashMap;
use std::ops::Range;

use ropewalk_protocol::marker::PerfMarker;
use ropewalk_protocol::range::RangeSet;

use crate::flow::Observer;
use crate::report::Meter;

/// The most stripes of a destination whose markers are counted.
const MOST_STRIPES: usize = 4096;

pub(crate) struct Moving<'r> {
    pub(super) meter: Meter<'r>,
    /// The bytes of the range that the destination had before.
    pub(super) present: RangeSet,
    /// Bytes of each stripe, from 112 markers.
    pub(super) stripes: HashMap<u32, u64>,
}

/// Its own markers report how long the servers wait.
impl Observer for Moving<'_> {}

impl<'r> Moving<'r> {
    pub(super) fn new(meter: Meter<'r>, present: RangeSet) -> Self {
        Self { meter, present, stripes: HashMap::new() }
    }

    /// A marker of one of the destination's stripes. Returns how many more bytes have moved by it.
    pub(super) fn hear(&mut self, perf: PerfMarker, range: &Range<u64>, streams: u32) -> u64 {
        let before = self.bytes(range);
        if self.stripes.len() < MOST_STRIPES || self.stripes.contains_key(&perf.stripe) {
            self.stripes.insert(perf.stripe, perf.bytes);
        }
        let bytes = self.bytes(range);
        self.meter.update(bytes, streams);
        bytes.saturating_sub(before)
    }

    /// Bytes that all stripes have moved, as the destination reports: not more than there are.
    pub(super) fn bytes(&self, range: &Range<u64>) -> u64 {
        let sum = self.stripes.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        // The end of a file of unknown size is open; no file has more bytes than this.
        sum.min(range.end - range.start).min(i64::MAX as u64)
    }
}
