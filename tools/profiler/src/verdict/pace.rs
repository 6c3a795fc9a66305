//! How evenly data moved, according to TCP's counters.

use std::collections::BTreeMap;

use super::figures::median;
use crate::profile::{Connection, ConnectionSample};

/// Seconds of a bin. It is so short that a connection which waits for one lost segment spoils only
/// few bins.
const BIN: f64 = 0.5;

/// Bytes in each bin of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Pace(BTreeMap<u64, f64>);

impl Pace {
    /// Counts the bytes of the senders' connections, or of the receivers'.
    pub(super) fn of(connections: &[&Connection], sends: bool) -> Self {
        let mut bins: BTreeMap<u64, f64> = BTreeMap::new();
        let count = |sample: &ConnectionSample| if sends { sample.acknowledged } else { sample.received };
        for connection in connections {
            for pair in connection.samples.windows(2) {
                let [before, after] = pair else { continue };
                let Some((new, old)) = count(after).zip(count(before)) else { continue };
                let (from, to) = (before.time.max(0.0) / BIN, after.time.max(0.0) / BIN);
                let grown = new.saturating_sub(old) as f64;
                // Samples that lie far apart do not show what happened between them.
                if grown <= 0.0 || to <= from || to - from > 100.0 {
                    continue;
                }
                for bin in from as u64..=to as u64 {
                    let part = (to.min((bin + 1) as f64) - from.max(bin as f64)) / (to - from);
                    *bins.entry(bin).or_default() += grown * part;
                }
            }
        }
        Self(bins)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes per second in each bin, without the first bin, which is incomplete, and without the
    /// last three, when the transfer is about to end.
    pub(super) fn rates(&self) -> Vec<f64> {
        self.0.values().map(|bytes| bytes / BIN).take(self.0.len().saturating_sub(3)).skip(1).collect()
    }

    /// Half of the rates, without the beginning, are no farther from their median than this, as a
    /// share of the median. Needs five rates.
    pub(super) fn unrest(&self) -> Option<f64> {
        let rates = self.rates();
        let settled = rates.get(rates.len() / 3..).filter(|rates| rates.len() >= 5)?;
        let middle = median(settled.iter().copied()).filter(|&middle| middle > 0.0)?;
        Some(median(settled.iter().map(|rate| (rate - middle).abs()))? / middle)
    }

    /// Share of `seconds` in which bins have at least a hundredth of the largest bin's bytes.
    pub(super) fn share(&self, seconds: f64) -> Option<f64> {
        let most = self.0.values().copied().max_by(f64::total_cmp).filter(|&most| most > 0.0)?;
        let moving = self.0.values().filter(|&&bytes| bytes >= most / 100.0).count();
        (seconds > 0.0).then(|| (moving as f64 * BIN / seconds).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A connection with samples at these times, and the bytes that were acknowledged since the
    /// previous sample.
    fn connection(samples: impl IntoIterator<Item = (f64, u64)>) -> Connection {
        let mut acknowledged = 0;
        let samples = samples.into_iter().map(|(time, grown)| {
            acknowledged += grown;
            ConnectionSample { time, acknowledged: Some(acknowledged), ..ConnectionSample::default() }
        });
        Connection { samples: samples.collect(), ..Connection::default() }
    }

    #[test]
    fn pace_when_samples_span_bins_divides_bytes() {
        let pace = Pace::of(&[&connection([(0.25, 7), (0.75, 100), (1.75, 400)])], true);
        assert_eq!(pace.0.into_values().collect::<Vec<_>>(), [50.0, 150.0, 200.0, 100.0]);
        assert!(Pace::of(&[&connection([(0.0, 0), (1.0, 100)])], false).is_empty());
        assert!(Pace::of(&[&connection([(0.0, 0), (1e18, 100)])], true).is_empty());
    }

    #[test]
    fn unrest_when_connections_wait_at_times_stays_small() {
        let tenths =
            |grown: fn(u32) -> u64| (0..100).map(move |tenth| (f64::from(tenth) / 10.0, grown(tenth)));
        let even = Pace::of(&[&connection(tenths(|_| 1000))], true);
        assert!(even.unrest().unwrap() < 1e-6, "{:?}", even.unrest());
        // About every three seconds, data is stuck for half a second and then arrives at once.
        let stuck = |tenth| match tenth % 30 {
            10..15 => 0,
            15 => 6000,
            _ => 1000,
        };
        let waits = Pace::of(&[&connection(tenths(stuck))], true);
        assert!(waits.unrest().unwrap() < 0.015, "{:?}", waits.unrest());
        let shared = Pace::of(&[&connection(tenths(|tenth| 900 + u64::from(tenth / 7 % 3) * 100))], true);
        assert!(shared.unrest().unwrap() > 0.03, "{:?}", shared.unrest());
    }

    #[test]
    fn share_counts_the_time_in_which_data_moved() {
        let pace = Pace::of(&[&connection([(0.0, 0), (1.0, 1000), (1.9, 1000), (12.0, 0)])], true);
        assert_eq!(pace.share(20.0), Some(0.1));
        assert_eq!((pace.share(0.0), Pace::default().share(1.0)), (None, None));
    }
}
