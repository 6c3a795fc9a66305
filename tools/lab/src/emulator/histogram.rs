//! A histogram of times with a resolution of about 6 %, cheap enough to add every packet. The
//! buckets are fixed, so adding a time takes constant time and no allocation. The emulator uses it
//! for the lateness of deliveries.

use std::time::Duration;

use serde::Serialize;

/// Buckets per power of two.
const FINE: u32 = 16;
const BUCKETS: usize = (64 - 3) * FINE as usize;

/// Counts durations in nanoseconds, in buckets of a sixteenth of a power of two.
#[derive(Clone)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
    sum: u128,
}

/// A summary of many times, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Spread {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], count: 0, max: 0, sum: 0 }
    }
}

fn bucket(nanos: u64) -> usize {
    if nanos < u64::from(FINE) {
        return nanos as usize;
    }
    let power = nanos.ilog2();
    let fine = (nanos >> (power - 4)) as usize & (FINE as usize - 1);
    (power as usize - 3) * FINE as usize + fine
}

/// The largest value of a bucket.
fn top(bucket: usize) -> u64 {
    let (power, fine) = (bucket / FINE as usize, (bucket % FINE as usize) as u64);
    if power == 0 {
        return fine;
    }
    let width = 1u128 << (power - 1);
    u64::try_from((u128::from(fine) + 17) * width - 1).unwrap_or(u64::MAX)
}

impl Histogram {
    /// Adds one time.
    pub fn add(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(nanos).min(BUCKETS - 1)] += 1;
        self.count += 1;
        self.max = self.max.max(nanos);
        self.sum += u128::from(nanos);
    }

    /// The time that the share `p` of all times does not exceed, rounded up to the end of its
    /// bucket.
    pub fn quantile(&self, p: f64) -> Duration {
        let rank = ((self.count as f64 * p).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(top(index).min(self.max));
            }
        }
        Duration::from_nanos(self.max)
    }

    /// The mean, the usual quantiles and the maximum.
    pub fn spread(&self) -> Spread {
        let quantile = |p| self.quantile(p).as_secs_f64();
        Spread {
            mean: if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 / 1e9 },
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: self.max as f64 / 1e9,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_of_all_sizes_are_contiguous_and_contain_their_values() {
        for n in (0..100_000).chain([u64::MAX, u64::MAX - 1, 1 << 40, (1 << 40) - 1]) {
            let b = bucket(n);
            assert!(b < BUCKETS && top(b) >= n, "{n}");
            assert!(b == 0 || top(b - 1) < n, "{n}");
        }
    }

    #[test]
    fn quantiles_of_uniform_times_are_within_seven_percent() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.spread(), Spread::default());
        for n in 1..=1000 {
            histogram.add(Duration::from_micros(n));
        }
        for (p, micros) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0)] {
            let found = histogram.quantile(p).as_secs_f64() * 1e6;
            assert!((found / micros - 1.0).abs() < 0.07, "{p}: {found}");
        }
        assert_eq!(histogram.quantile(1.0), Duration::from_micros(1000));
        assert!((histogram.spread().mean - 500.5e-6).abs() < 1e-9);
    }
}
