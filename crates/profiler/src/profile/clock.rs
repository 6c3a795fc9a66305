//! Clocks of two hosts.

use serde::{Deserialize, Serialize};

/// How a host's clock stands to that of the host which wrote the profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Clock {
    /// Seconds by which the host's clock is ahead. Its times minus this are the writer's.
    pub offset_seconds: f64,
    /// The offset is wrong by so much at most (half of the round trip in which it was measured). 0 for the writer
    /// itself.
    pub error_seconds: f64,
}

/// One question and its answer: four times in seconds, each by the clock of who took it (RFC 5905 section 8).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exchange {
    /// We asked.
    pub asked: f64,
    /// It heard.
    pub heard: f64,
    /// It answered.
    pub answered: f64,
    /// We had the answer.
    pub had: f64,
}

impl Exchange {
    /// Time on the way, both ways.
    fn round_trip(&self) -> f64 {
        (self.had - self.asked) - (self.answered - self.heard)
    }
}

impl Clock {
    /// From the exchange that was shortest on its way: it bounds the error best. `None` where none makes sense.
    pub fn measured(exchanges: &[Exchange]) -> Option<Self> {
        exchanges
            .iter()
            .filter(|exchange| exchange.round_trip() >= 0.0)
            .min_by(|a, b| a.round_trip().total_cmp(&b.round_trip()))
            .map(|best| Self {
                offset_seconds: ((best.heard - best.asked) + (best.answered - best.had)) / 2.0,
                error_seconds: best.round_trip() / 2.0,
            })
            .filter(|clock| clock.offset_seconds.is_finite() && clock.error_seconds.is_finite())
    }

    /// A time of the host, by the writer's clock.
    pub fn align(&self, time: f64) -> f64 {
        time - self.offset_seconds
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn exchange(offset: f64, there: f64, back: f64) -> Exchange {
        let asked = 1000.0;
        let heard = asked + there + offset;
        let answered = heard + 0.001;
        Exchange { asked, heard, answered, had: answered - offset + back }
    }

    #[test]
    fn the_shortest_exchange_counts() {
        let clock =
            Clock::measured(&[exchange(5.0, 0.2, 0.01), exchange(5.0, 0.01, 0.01), exchange(5.0, 0.01, 0.3)])
                .unwrap();
        assert!((clock.offset_seconds - 5.0).abs() < 1e-9 && (clock.error_seconds - 0.01).abs() < 1e-9);
        assert!((clock.align(105.0) - 100.0).abs() < 1e-9);
        // One-sided delay is an error of half of it, and is said.
        let clock = Clock::measured(&[exchange(-3.0, 0.08, 0.0)]).unwrap();
        assert!((clock.offset_seconds + 3.0).abs() <= clock.error_seconds + 1e-9);
    }

    #[test]
    fn nonsense_measures_nothing() {
        assert_eq!(Clock::measured(&[]), None);
        // It claims to have thought longer than we waited.
        let lie = Exchange { asked: 0.0, heard: 0.0, answered: 9.0, had: 1.0 };
        assert_eq!(Clock::measured(&[lie]), None);
        assert_eq!(Clock::measured(&[Exchange { asked: f64::NAN, ..lie }]), None);
    }
}
