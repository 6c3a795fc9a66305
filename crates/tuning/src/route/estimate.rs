//! Estimates of the rate that a transfer over a hop reaches, as a range.
//!
//! A past transfer gives a narrow range, which widens with its age. The models of parallel TCP give
//! a range that covers the unknown loss and the unknown rate of the link.

use crate::model::{ParameterError, Path, RTTS, WINDOWS, physical, units};

/// Limits of all estimates, in bytes per second.
const RATES: (f64, f64) = (1.0, 1e13);
/// The range of the link rate if it was not stated: 1 and 10 Gbit/s.
const LINKS: (f64, f64) = (1.25e8, 1.25e9);
/// The range of the loss that is assumed if none was observed.
const UNSEEN_LOSS: (f64, f64) = (1e-5, 1e-4);
const MOST_LOSS: f64 = 0.5;
const PACKET: f64 = 1500.0;
/// A transfer reaches the rate of an earlier one within this factor.
const FRESH: f64 = 1.25;
/// After this time the factor has doubled, and stays.
const OLD_SECONDS: f64 = 30.0 * 86_400.0;
/// The standard normal deviate of a two-sided range of 90 %.
const NINETY_PERCENT: f64 = 1.645;

/// The rate of a hop, in bytes per second, probably between `low` and `high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    low: f64,
    high: f64,
    /// It comes from the model, which does not know the link, the loss and the ends.
    modelled: bool,
}

/// Packets that were sent, and those of them that were sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    pub sent: u32,
    pub lost: u32,
}

/// The properties of a hop that are known without a transfer over it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathFacts {
    /// Seconds.
    pub rtt: f64,
    pub streams: u32,
    /// Bytes in flight that the socket buffers permit to each stream.
    pub window: f64,
    /// The rate of the link in bytes per second, if it was stated.
    pub capacity: Option<f64>,
    pub loss: Loss,
}

impl Estimate {
    /// A hop about which nothing is known: 10 kB/s to 10 GB/s.
    pub const UNKNOWN: Self = Self { low: 1e4, high: 1e10, modelled: false };

    /// A range; the values are brought into order, and into sensible limits.
    pub fn new(low: f64, high: f64) -> Self {
        let sound = |rate: f64| if rate.is_nan() { RATES.0 } else { rate.clamp(RATES.0, RATES.1) };
        let (low, high) = (sound(low), sound(high));
        Self { low: low.min(high), high: low.max(high), modelled: false }
    }

    /// The estimate from the rate of a transfer that ended `age` seconds ago.
    pub fn of_past_transfer(rate: f64, age: f64) -> Self {
        let factor = FRESH * (1.0 + (age / OLD_SECONDS).clamp(0.0, 1.0));
        Self::new(rate / factor, rate * factor)
    }

    /// The estimate of the model of parallel TCP.
    ///
    /// # Errors
    /// The number of streams is outside the model.
    pub fn of_model(facts: &PathFacts) -> Result<Self, ParameterError> {
        let links = facts.capacity.map_or(LINKS, |rate| (rate, rate));
        let losses = facts.loss.range().unwrap_or(UNSEEN_LOSS);
        let rtt = (facts.rtt * 1000.0).clamp(RTTS.0, RTTS.1);
        let window = (facts.window / PACKET).clamp(WINDOWS.0, WINDOWS.1);
        let rate = |link: f64, loss: f64| {
            let bandwidth = units::packets_per_ms(8.0 * link.clamp(RATES.0, RATES.1), PACKET)?;
            let path = Path::new(bandwidth, rtt, window)?.with_background_loss(loss)?;
            Ok(physical(&path, facts.streams.into())?.goodput * PACKET * 1000.0)
        };
        Ok(Self::new(rate(links.0, losses.1)?, rate(links.1, losses.0)?).modelled())
    }

    pub(super) fn modelled(self) -> Self {
        Self { modelled: true, ..self }
    }

    pub(super) fn is_modelled(self) -> bool {
        self.modelled
    }

    /// The estimate of the model if transfers reach only this part of the estimates of the model.
    pub(super) fn calibrated(self, part: f64) -> Self {
        match self.modelled {
            true => Self::new(self.low * part, self.high * part).modelled(),
            false => self,
        }
    }

    pub fn low(self) -> f64 {
        self.low
    }

    pub fn high(self) -> f64 {
        self.high
    }

    pub fn is_known(self) -> bool {
        self != Self::UNKNOWN
    }

    /// The geometric mean of the range. That of an unknown hop is the low end, so that hops of
    /// which something is known are preferred.
    pub fn likely(self) -> f64 {
        if self.is_known() { (self.low * self.high).sqrt() } else { self.low }
    }

    /// The distance from the likely rate to the ends of the range, as a logarithm; infinite for an
    /// unknown hop, which no gain can exceed.
    pub(super) fn spread(self) -> f64 {
        if self.is_known() { (self.high / self.low).ln() / 2.0 } else { f64::INFINITY }
    }
}

impl Loss {
    /// The range of the fraction of lost packets, by the limits of a Poisson mean after Wilson and
    /// Hilferty; `None` if no packet was lost, since a few packets do not show a small loss.
    fn range(self) -> Option<(f64, f64)> {
        if self.lost == 0 {
            return None;
        }
        let limit = |count: f64, deviate: f64| {
            count * (1.0 - 1.0 / (9.0 * count) + deviate / (3.0 * count.sqrt())).powi(3)
        };
        let (lost, sent) = (f64::from(self.lost), f64::from(self.sent.max(self.lost)));
        let low = limit(lost, -NINETY_PERCENT) / sent;
        let high = limit(lost + 1.0, NINETY_PERCENT) / sent;
        Some((low.clamp(0.0, MOST_LOSS), high.clamp(0.0, MOST_LOSS)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn facts(rtt: f64, loss: Loss) -> PathFacts {
        PathFacts { rtt, streams: 1, window: 4e6, capacity: None, loss }
    }

    #[test]
    fn model_estimate_falls_with_round_trip_time_and_loss() {
        let of = |rtt, lost| Estimate::of_model(&facts(rtt, Loss { sent: 1000, lost })).unwrap();
        // The rate of a loss-limited connection is inverse to the round-trip time.
        assert!((of(0.1, 0).likely() / of(0.2, 0).likely() - 2.0).abs() < 1e-6);
        assert!(of(0.1, 2).likely() < of(0.1, 0).likely() / 2.0);
        assert!(of(0.1, 20).likely() < of(0.1, 2).likely());
        // Near hosts are limited by the link.
        assert_eq!((of(1e-5, 0).low(), of(1e-5, 0).high()), LINKS);
    }

    #[test]
    fn loss_range_has_the_limits_of_poisson() {
        let (low, high) = Loss { sent: 100, lost: 1 }.range().unwrap();
        assert!((low - 0.0005).abs() < 2e-4 && (high - 0.0474).abs() < 1e-3, "{low} {high}");
        assert_eq!(Loss { sent: 100, lost: 0 }.range(), None);
    }

    #[test]
    fn past_transfer_counts_less_with_age() {
        let spread = |days: f64| Estimate::of_past_transfer(1e6, days * 86_400.0).spread();
        assert!(spread(0.0) < spread(10.0) && spread(10.0) < spread(30.0));
        assert_eq!(spread(30.0), spread(3000.0));
        assert!((Estimate::of_past_transfer(1e6, 5.0).likely() - 1e6).abs() < 1.0);
    }

    proptest! {
        #[test]
        fn estimates_are_ordered_and_finite(
            rtt in any::<f64>(), window in any::<f64>(), capacity in prop::option::of(any::<f64>()),
            streams in 1u32..1000, sent in any::<u32>(), lost in any::<u32>(),
        ) {
            let given = |value: f64| !value.is_nan();
            prop_assume!(given(rtt) && given(window) && capacity.is_none_or(given));
            let facts = PathFacts { rtt, streams, window, capacity, loss: Loss { sent, lost } };
            let estimate = Estimate::of_model(&facts).unwrap();
            prop_assert!(RATES.0 <= estimate.low() && estimate.low() <= estimate.high());
            prop_assert!(estimate.high() <= RATES.1 && estimate.spread().is_finite());
        }
    }
}
