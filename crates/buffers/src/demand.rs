//! How much buffer a connection could use.
//!
//! Jeong et al. take the demand as given; Semke, Mahdavi and Mathis (SIGCOMM 1998) take twice the congestion window: one
//! window that is on its way, and one more so that data keeps flowing while a loss is repaired, which takes a round trip.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;

use crate::flow::{Direction, LimitedBy};

/// No connection asks for less: two segments of an Ethernet, and the least that Linux grants.
const LEAST: u64 = 4096;
/// The most that setsockopt(2) takes without overflow in the kernel.
const MOST: u64 = (i32::MAX / 2) as u64;

/// What the demand is computed from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Twice the congestion window; if the sending program is what limits the rate, no more than four times what is on its
    /// way. For a receiver twice what it takes in a round trip. Follows losses within one round trip and needs no bandwidth
    /// estimate, therefore the default.
    #[default]
    Window,
    /// Twice the rate times the round trip time (smoothed, with queueing).
    Rate,
    /// What the program has set, or autotuning has reached: the paper's *requested* size.
    Requested,
}

impl Measure {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Window, Self::Rate, Self::Requested];

    /// `window`, `rate` or `requested`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Rate => "rate",
            Self::Requested => "requested",
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No measure of demand has this name.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0:?} is no measure of demand: expected window, rate or requested")]
pub struct MeasureName(pub String);

impl FromStr for Measure {
    type Err = MeasureName;

    fn from_str(name: &str) -> Result<Self, MeasureName> {
        Self::ALL
            .into_iter()
            .find(|measure| measure.name() == name)
            .ok_or_else(|| MeasureName(name.to_owned()))
    }
}

/// What a connection was given before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// What it asked for when it was given less, bytes.
    pub demand: u64,
    /// What it got, bytes.
    pub granted: u64,
    /// Its buffer before, bytes.
    pub requested: u64,
}

/// What is known of a connection. Amounts in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    pub(crate) direction: Direction,
    /// Bytes a second.
    pub(crate) rate: f64,
    /// Seconds.
    pub(crate) rtt: f64,
    /// Congestion window of a sender, what a receiver takes in a round trip.
    pub(crate) window: u64,
    /// What the peer is willing to take; 0 if that is not known.
    pub(crate) peer_window: u64,
    pub(crate) buffer: u64,
    /// Something is on its way or waits to be sent.
    pub(crate) outstanding: bool,
    pub(crate) limited_by: LimitedBy,
}

/// Bytes; 0 if the connection moves nothing.
pub(crate) fn demand(measure: Measure, seen: &Observation, past: Option<Past>) -> u64 {
    if seen.rate <= 0.0 && !seen.outstanding {
        return 0;
    }
    if measure == Measure::Requested {
        return past.map_or(seen.buffer, |past| past.requested).clamp(LEAST, MOST);
    }
    // A rate or time that makes no sense becomes 0.
    let product = (seen.rate * seen.rtt).max(0.0) as u64;
    let doubled = |amount: u64| amount.saturating_mul(2);
    let mut demand = match (measure, seen.direction) {
        (Measure::Rate, _) => doubled(product),
        (_, Direction::In) => doubled(seen.window.max(product)),
        (_, Direction::Out) => doubled(seen.window),
    };
    // Of less than a byte a round trip, too.
    let known = seen.rate > 0.0 && seen.rtt > 0.0;
    if seen.limited_by == LimitedBy::Application && measure == Measure::Window && known {
        demand = demand.min(product.saturating_mul(4));
    }
    if seen.limited_by == LimitedBy::Buffer {
        // Nothing shows how much more it could use.
        demand = demand.max(doubled(seen.buffer));
    }
    // A window seen at one moment may be small because the peer has not read yet; what it takes in a round trip, it takes.
    let most = if seen.peer_window > 0 { doubled(seen.peer_window.max(product)) } else { u64::MAX };
    match past {
        // With less buffer it shows less demand. While it needs more than it got, what it once asked for stands: else
        // each cut would be taken back at the next negotiation, and made again at the one after.
        Some(past) if demand.min(most) > past.granted => demand.max(past.demand),
        _ => demand,
    }
    .min(most)
    .clamp(LEAST, MOST)
}

/// What is left of a connection's past demand after this look. It was seen at one moment, of slow start perhaps: where what
/// is seen now is not the cut itself, the past fades towards it, by half each time.
pub(crate) fn faded(measure: Measure, seen: &Observation, past: Past) -> u64 {
    let now = demand(measure, seen, None);
    if measure == Measure::Requested || now <= past.granted || is_held(seen) {
        return past.demand;
    }
    past.demand.min(now.saturating_add(past.demand.saturating_sub(now) / 2))
}

/// Whether its buffer may be what holds it, so that more could be needed than is seen.
fn is_held(seen: &Observation) -> bool {
    match seen.direction {
        Direction::Out => seen.limited_by == LimitedBy::Buffer,
        // Not told: the window that a full buffer allows is about what it takes in a round trip.
        Direction::In => seen.rate * seen.rtt >= seen.buffer as f64 * 0.75,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENDER: Observation = Observation {
        direction: Direction::Out,
        rate: 1e6,
        rtt: 0.1,
        window: 150_000,
        peer_window: 0,
        buffer: 1 << 20,
        outstanding: true,
        limited_by: LimitedBy::Network,
    };

    #[test]
    fn measures() {
        assert_eq!(demand(Measure::Window, &SENDER, None), 300_000);
        assert_eq!(demand(Measure::Rate, &SENDER, None), 200_000);
        assert_eq!(demand(Measure::Requested, &SENDER, None), 1 << 20);
        let receiver = Observation { direction: Direction::In, window: 50_000, ..SENDER };
        assert_eq!(demand(Measure::Window, &receiver, None), 200_000);
    }

    #[test]
    fn limits() {
        let idle = Observation { rate: 0.0, outstanding: false, ..SENDER };
        assert_eq!(demand(Measure::Window, &idle, None), 0);
        let bound = Observation { limited_by: LimitedBy::Buffer, ..SENDER };
        assert_eq!(demand(Measure::Window, &bound, None), 2 << 20);
        let peer = Observation { peer_window: 65536, rate: 5e5, ..bound };
        assert_eq!(demand(Measure::Window, &peer, None), 131_072);
        // It takes more in a round trip than it tells just now.
        let unread = Observation { rate: 1e6, ..peer };
        assert_eq!(demand(Measure::Window, &unread, None), 200_000);
        let slow = Observation { limited_by: LimitedBy::Application, rate: 1e5, ..SENDER };
        assert_eq!(demand(Measure::Window, &slow, None), 40_000);
        // Less than a byte a round trip.
        let idle = Observation { rate: 5.0, ..slow };
        assert_eq!(demand(Measure::Window, &idle, None), LEAST);
        for rate in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            let odd = Observation { rate, ..SENDER };
            for measure in Measure::ALL {
                assert!((LEAST..=MOST).contains(&demand(measure, &odd, None)), "{rate} {measure}");
            }
        }
    }

    #[test]
    fn a_cut_is_not_taken_for_a_small_demand() {
        let past = Past { demand: 1_000_000, granted: 200_000, requested: 700_000 };
        assert_eq!(demand(Measure::Window, &SENDER, Some(past)), 1_000_000);
        let content = Observation { window: 50_000, ..SENDER };
        assert_eq!(demand(Measure::Window, &content, Some(past)), 100_000);
        // The peer takes less than when it asked.
        let peer = Observation { peer_window: 120_000, ..SENDER };
        assert_eq!(demand(Measure::Window, &peer, Some(past)), 240_000);
        assert_eq!(demand(Measure::Requested, &SENDER, Some(past)), 700_000);
    }

    #[test]
    fn a_past_demand_fades_where_it_is_not_the_cut_that_is_seen() {
        let past = Past { demand: 1_000_000, granted: 200_000, requested: 700_000 };
        let fading = |seen: &Observation| {
            let each = |past: &Past| {
                Some(Past { demand: faded(Measure::Window, seen, *past), ..*past }).filter(|now| now != past)
            };
            std::iter::successors(Some(past), each).map(|past| past.demand).collect::<Vec<_>>()
        };
        let demands = fading(&SENDER);
        assert_eq!(demands[..4], [1_000_000, 650_000, 475_000, 387_500]);
        assert_eq!(demands.last(), Some(&300_000));
        let receiver = Observation { direction: Direction::In, limited_by: LimitedBy::Unknown, ..SENDER };
        assert_eq!(fading(&receiver).last(), Some(&300_000));

        let stands = [
            Observation { limited_by: LimitedBy::Buffer, ..SENDER },
            Observation { buffer: 120_000, ..receiver },
            // Content for a moment, and asking for more than ever.
            Observation { window: 50_000, ..SENDER },
            Observation { window: 2_000_000, ..SENDER },
        ];
        for seen in stands {
            assert_eq!(fading(&seen), [1_000_000], "{seen:?}");
        }
        assert_eq!(faded(Measure::Requested, &SENDER, past), 1_000_000);
    }
}
