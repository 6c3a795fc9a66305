//! How long packets wait in the queue of the path: their time on the way, which the timestamps of
//! the sender show up to a constant, against the least of the latest minutes.

use crate::Micros;

/// A queue above this time is that of a congested path.
const LONG: Micros = 5000;
/// The weight of a packet in the mean.
const WEIGHT: f64 = 1.0 / 64.0;
/// The least value counts for so long, because the clocks of both ends may differ in speed.
const LEAST_COUNTS: Micros = 60_000_000;

#[derive(Clone, Debug, Default)]
pub(crate) struct QueueDelay {
    /// The difference of both clocks at the first packet.
    start: Option<u32>,
    /// The least time on the way against the first packet, of this minute and of the one before.
    least: [i32; 2],
    since: Micros,
    /// The mean time above the least one.
    mean: f64,
}

impl QueueDelay {
    /// A packet has arrived that the sender has stamped with its clock, in microseconds.
    pub(crate) fn arrived(&mut self, now: Micros, timestamp: u32) {
        #[expect(clippy::cast_possible_truncation, reason = "the clock of UDT wraps as well")]
        let difference = (now as u32).wrapping_sub(timestamp);
        let start = *self.start.get_or_insert(difference);
        let way = difference.wrapping_sub(start).cast_signed();
        if now >= self.since + LEAST_COUNTS {
            self.least = [way, self.least[0]];
            self.since = now;
        }
        self.least[0] = self.least[0].min(way);
        let waited = way.saturating_sub(self.least[0].min(self.least[1]));
        self.mean += WEIGHT * (f64::from(waited) - self.mean);
    }

    pub(crate) fn is_long(&self) -> bool {
        self.mean > LONG as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_take_longer_than_others_have_waited() {
        let mut delay = QueueDelay::default();
        // Both clocks wrap.
        let stamp = |at: u32| at.wrapping_sub(1000);
        for at in 0..200_u32 {
            delay.arrived(Micros::from(at) * 1000 + 70_000, stamp(at * 1000));
        }
        assert!(!delay.is_long());
        for at in 200..400_u32 {
            delay.arrived(Micros::from(at) * 1000 + 90_000, stamp(at * 1000));
        }
        assert!(delay.is_long());
        for at in 400..800_u32 {
            delay.arrived(Micros::from(at) * 1000 + 70_000, stamp(at * 1000));
        }
        assert!(!delay.is_long());
    }
}
