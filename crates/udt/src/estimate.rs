//! The estimates of a receiver: the speed at which packets arrive, and the capacity of the path.
//!
//! Both are medians of short intervals, as in UDT: a pause of the sender does not lower the speed,
//! and one late packet does not matter. Packets that were read together have one time, so their
//! interval is the time to the next reading, divided by their number.

use crate::Micros;

/// The intervals between packets that are kept, and those between the packets of probing pairs.
const SPEED_INTERVALS: usize = 16;
const CAPACITY_INTERVALS: usize = 64;
/// Each packet whose number is a multiple of this one is followed by the next without a pause.
const PAIR_EVERY: u32 = 16;

#[derive(Default)]
pub(crate) struct Estimate {
    last: Micros,
    /// How many packets arrived at that time.
    together: u32,
    intervals: Window<SPEED_INTERVALS>,
    /// The number and the time of the first packet of a probing pair.
    pair: Option<(u32, Micros)>,
    pairs: Window<CAPACITY_INTERVALS>,
}

impl Estimate {
    pub(crate) fn arrived(&mut self, now: Micros, seq: u32) {
        if now > self.last {
            if self.together > 0 {
                self.intervals.push((now - self.last) as f64 / f64::from(self.together));
            }
            (self.last, self.together) = (now, 0);
        }
        self.together += 1;
        if seq.is_multiple_of(PAIR_EVERY) {
            self.pair = Some((seq, now));
        } else if let Some((first, at)) = self.pair.take()
            && first + 1 == seq
            && now > at
        {
            self.pairs.push((now - at) as f64);
        }
    }

    /// In packets per second; 0 while it is unknown.
    pub(crate) fn speed(&self) -> f64 {
        self.intervals.rate(SPEED_INTERVALS / 2)
    }

    /// In packets per second; 0 while it is unknown.
    pub(crate) fn capacity(&self) -> f64 {
        self.pairs.rate(1)
    }
}

/// The latest `N` values.
struct Window<const N: usize> {
    values: [f64; N],
    count: usize,
}

impl<const N: usize> Default for Window<N> {
    fn default() -> Self {
        Self { values: [0.0; N], count: 0 }
    }
}

impl<const N: usize> Window<N> {
    fn push(&mut self, value: f64) {
        self.values[self.count % N] = value;
        self.count += 1;
    }

    /// The number of intervals in a second: the mean of those within a factor of 8 of the median,
    /// if there are at least `least`.
    fn rate(&self, least: usize) -> f64 {
        let mut sorted = self.values;
        let sorted = &mut sorted[..self.count.min(N)];
        if sorted.len() < least {
            return 0.0;
        }
        sorted.sort_unstable_by(f64::total_cmp);
        let median = sorted[sorted.len() / 2];
        let (mut sum, mut count) = (0.0, 0.0);
        for interval in sorted.iter().filter(|interval| (median / 8.0..=median * 8.0).contains(*interval)) {
            sum += interval;
            count += 1.0;
        }
        if sum > 0.0 { 1e6 * count / sum } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_does_not_depend_on_packets_that_are_read_together() {
        let (mut single, mut grouped) = (Estimate::default(), Estimate::default());
        for n in 0..400_u32 {
            single.arrived(1000 + 50 * u64::from(n), n);
            grouped.arrived(1000 + 400 * u64::from(n / 8), n);
        }
        for estimate in [single, grouped] {
            assert!((estimate.speed() - 20_000.0).abs() < 1.0, "{}", estimate.speed());
        }
    }

    #[test]
    fn capacity_is_that_of_the_pairs() {
        let mut estimate = Estimate::default();
        let mut now = 0;
        for n in 0..1000 {
            now += if n % 16 == 1 { 10 } else { 100 };
            estimate.arrived(now, n);
        }
        assert!((estimate.capacity() - 100_000.0).abs() < 1.0);
        assert!((estimate.speed() - 10_000.0).abs() < 1000.0);
    }
}
