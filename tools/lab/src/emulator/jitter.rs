//! Delay variation that keeps the order of packets. The delay is a function of virtual time, so it
//! does not depend on how densely packets follow each other.

use fastrand::Rng;

use super::link::Nanos;

/// A delay that varies within ± an amplitude, along straight lines between independent uniform
/// values that are four amplitudes apart in time. So the delay never falls faster than half of the
/// time that passes, which keeps packets in order, and its mean is 0 however densely packets follow
/// each other. (Independent values for each packet, with the order kept, would push every packet
/// towards the largest delay.)
#[derive(Debug, Clone)]
pub(super) struct Wander {
    amplitude: i64,
    from: (Nanos, i64),
    to: (Nanos, i64),
    rng: Rng,
}

/// Least distance of two values in nanoseconds, so that a small jitter does not become noise
/// between successive packets.
const LEAST_STEP: Nanos = 1_000_000;

impl Wander {
    pub(super) fn new(amplitude: Nanos, rng: Rng) -> Self {
        let mut wander = Self { amplitude: 0, from: (0, 0), to: (0, 0), rng };
        wander.set(amplitude);
        wander
    }

    pub(super) fn set(&mut self, amplitude: Nanos) {
        self.amplitude = i64::try_from(amplitude).unwrap_or(i64::MAX / 8);
    }

    /// The deviation at `now`, in nanoseconds. `now` must not decrease from call to call.
    pub(super) fn at(&mut self, now: Nanos) -> i64 {
        if self.amplitude == 0 {
            self.from.1 = 0;
            self.to = (now, 0);
            return 0;
        }
        let step = (4 * self.amplitude as Nanos).max(LEAST_STEP);
        if now >= self.to.0.saturating_add(step) {
            // After a pause of at least one step the value is independent of the last one.
            self.to = (now, self.draw());
        }
        if now >= self.to.0 {
            self.from = self.to;
            self.to = (self.from.0 + step, self.draw());
        }
        let (start, length) = (self.from.0, (self.to.0 - self.from.0).max(1));
        let rise = i128::from(self.to.1 - self.from.1) * i128::from(now.saturating_sub(start));
        let value = self.from.1 + i64::try_from(rise / i128::from(length)).unwrap_or(0);
        value.clamp(-self.amplitude, self.amplitude)
    }

    fn draw(&mut self) -> i64 {
        self.rng.i64(-self.amplitude..=self.amplitude)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wander_at_any_packet_gap_stays_within_bounds_and_keeps_order() {
        for gap in [1_000, 100_000, 3_000_000, 50_000_000] {
            let mut wander = Wander::new(2_000_000, Rng::with_seed(5));
            let (mut sum, mut low, mut high, mut last) = (0f64, 0, 0, i64::MIN);
            let n = 8_000_000_000 / gap.min(400_000);
            for i in 0..n {
                let now = i * gap;
                let value = wander.at(now);
                assert!(value.abs() <= 2_000_000);
                assert!(now as i64 + value >= last, "order");
                last = now as i64 + value;
                sum += value as f64;
                low = low.min(value);
                high = high.max(value);
            }
            assert!((sum / n as f64).abs() < 150_000.0, "{gap}: mean {}", sum / n as f64);
            assert!(low < -1_700_000 && high > 1_700_000, "{gap}: {low} {high}");
        }
    }

    #[test]
    fn wander_when_amplitude_changes_turns_on_and_off() {
        let mut wander = Wander::new(0, Rng::with_seed(5));
        assert_eq!(wander.at(5), 0);
        wander.set(1_000_000);
        assert!((6..10_000_000).step_by(1000).any(|t| wander.at(t) != 0));
        wander.set(0);
        assert_eq!(wander.at(10_000_001), 0);
    }
}
