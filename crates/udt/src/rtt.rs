//! The round-trip time of a path.

use crate::Micros;

/// The values of UDT before the first sample.
const INITIAL: Micros = 100_000;
const INITIAL_VARIANCE: Micros = 50_000;
/// A sample above this is nonsense of a peer.
const LARGEST: Micros = 60_000_000;

/// A smoothed round-trip time, as UDT computes it: 7/8 old, 1/8 new; 3/4 and 1/4 for the variance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    smoothed: Micros,
    variance: Micros,
    least: Option<Micros>,
}

impl Default for Rtt {
    fn default() -> Self {
        Self { smoothed: INITIAL, variance: INITIAL_VARIANCE, least: None }
    }
}

impl Rtt {
    pub(crate) fn sample(&mut self, sample: Micros) {
        let sample = sample.clamp(1, LARGEST);
        match self.least {
            None => (self.smoothed, self.variance) = (sample, sample / 2),
            Some(_) => {
                self.variance = (3 * self.variance + self.smoothed.abs_diff(sample)) / 4;
                self.smoothed = (7 * self.smoothed + sample) / 8;
            }
        }
        self.least = Some(self.least.map_or(sample, |least| least.min(sample)));
    }

    /// Whether a peer reports the values that it has before its first sample.
    pub(crate) fn is_initial(smoothed: u32, variance: u32) -> bool {
        (Micros::from(smoothed), Micros::from(variance)) == (INITIAL, INITIAL_VARIANCE)
    }

    pub(crate) fn smoothed(&self) -> Micros {
        self.smoothed
    }

    pub(crate) fn variance(&self) -> Micros {
        self.variance
    }

    /// The least sample, if there is one.
    pub(crate) fn least(&self) -> Option<Micros> {
        self.least
    }

    /// The time after which an answer is overdue.
    pub(crate) fn overdue(&self) -> Micros {
        self.smoothed + 4 * self.variance
    }
}
