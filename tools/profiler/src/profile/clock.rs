//! The offset between the clocks of two hosts, measured as NTP does.

use serde::{Deserialize, Serialize};

/// The clock of a host relative to that of the host which wrote the profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Clock {
    /// Seconds by which the host's clock is ahead. A time of the host minus this is a time of the
    /// writer.
    pub offset_seconds: f64,
    /// Largest error of the offset, in seconds (half of the round trip in which it was measured). 0
    /// for the writer itself.
    pub error_seconds: f64,
}

/// One question and its answer: four times in seconds, each by the clock of the side that took it
/// (RFC 5905 section 8).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exchange {
    /// The asking side sent the question.
    pub asked: f64,
    /// The answering side received it.
    pub heard: f64,
    /// The answering side sent the answer.
    pub answered: f64,
    /// The asking side received the answer.
    pub had: f64,
}

impl Exchange {
    /// The time that question and answer spent on the network.
    fn round_trip(&self) -> f64 {
        (self.had - self.asked) - (self.answered - self.heard)
    }
}

impl Clock {
    /// Computes the offset from the exchange with the shortest round trip, because it has the
    /// smallest error. Returns `None` if no exchange is plausible.
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

    /// Converts a time of the host to the writer's clock.
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
    fn measured_uses_the_shortest_exchange() {
        let clock =
            Clock::measured(&[exchange(5.0, 0.2, 0.01), exchange(5.0, 0.01, 0.01), exchange(5.0, 0.01, 0.3)])
                .unwrap();
        assert!((clock.offset_seconds - 5.0).abs() < 1e-9 && (clock.error_seconds - 0.01).abs() < 1e-9);
        assert!((clock.align(105.0) - 100.0).abs() < 1e-9);
        // If the delay is on one side only, the offset is wrong by half of it, and `error_seconds`
        // covers that.
        let clock = Clock::measured(&[exchange(-3.0, 0.08, 0.0)]).unwrap();
        assert!((clock.offset_seconds + 3.0).abs() <= clock.error_seconds + 1e-9);
    }

    #[test]
    fn measured_when_exchanges_are_implausible_is_none() {
        assert_eq!(Clock::measured(&[]), None);
        // The answering side claims to have taken longer than the asking side waited.
        let lie = Exchange { asked: 0.0, heard: 0.0, answered: 9.0, had: 1.0 };
        assert_eq!(Clock::measured(&[lie]), None);
        assert_eq!(Clock::measured(&[Exchange { asked: f64::NAN, ..lie }]), None);
    }
}
