//! The demand of a connection: the buffer size that it could use.
//!
//! Jeong et al. take the demand as given. Semke, Mahdavi and Mathis (SIGCOMM 1998) use twice the
//! congestion window: one window for the data in flight, and another one so that data continues to
//! flow while a loss is repaired, which takes a round trip.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;

use crate::flow::{Direction, LimitedBy};

/// The smallest demand in bytes: two segments of Ethernet, and the smallest size that Linux grants.
const LEAST: u64 = 4096;
/// The largest size in bytes that setsockopt(2) accepts without an overflow in the kernel.
const MOST: u64 = (i32::MAX / 2) as u64;

/// The quantity from which the demand is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Twice the congestion window; if the sending program limits the rate, at most four times the
    /// data in flight. For a receiver, twice the data that it receives in a round trip. This
    /// measure follows losses within one round trip and needs no estimate of the bandwidth, so it
    /// is the default.
    #[default]
    Window,
    /// Twice the rate times the round-trip time (smoothed, including queueing).
    Rate,
    /// The size that the program has set or that autotuning has reached: the *requested* size of
    /// the paper.
    Requested,
}

impl Measure {
    /// All measures.
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

/// The text is not the name of a measure of demand.
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

/// The last grant to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// The demand of the connection when it was granted less, in bytes.
    pub demand: u64,
    /// The granted size in bytes.
    pub granted: u64,
    /// The size of the buffer before the first grant, in bytes.
    pub requested: u64,
}

/// The observed state of a connection. Amounts are in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    pub(crate) direction: Direction,
    /// Bytes per second.
    pub(crate) rate: f64,
    /// Round-trip time in seconds.
    pub(crate) rtt: f64,
    /// The congestion window of a sender; for a receiver the data that it receives in a round trip.
    pub(crate) window: u64,
    /// The receive window of the peer; 0 if it is unknown.
    pub(crate) peer_window: u64,
    pub(crate) buffer: u64,
    /// Data is in flight or waits to be sent.
    pub(crate) outstanding: bool,
    pub(crate) limited_by: LimitedBy,
}

/// Returns the demand in bytes; 0 if the connection moves no data.
pub(crate) fn demand(measure: Measure, seen: &Observation, past: Option<Past>) -> u64 {
    if seen.rate <= 0.0 && !seen.outstanding {
        return 0;
    }
    if measure == Measure::Requested {
        return past.map_or(seen.buffer, |past| past.requested).clamp(LEAST, MOST);
    }
    // A rate or a time that is not a valid number results in 0.
    let product = (seen.rate * seen.rtt).max(0.0) as u64;
    let doubled = |amount: u64| amount.saturating_mul(2);
    let mut demand = match (measure, seen.direction) {
        (Measure::Rate, _) => doubled(product),
        (_, Direction::In) => doubled(seen.window.max(product)),
        (_, Direction::Out) => doubled(seen.window),
    };
    // This includes rates below one byte per round trip.
    let known = seen.rate > 0.0 && seen.rtt > 0.0;
    if seen.limited_by == LimitedBy::Application && measure == Measure::Window && known {
        demand = demand.min(product.saturating_mul(4));
    }
    if seen.limited_by == LimitedBy::Buffer {
        // The observation does not show how much more the connection could use.
        demand = demand.max(doubled(seen.buffer));
    }
    // The window at one moment may be small because the peer has not read yet. The data per round
    // trip shows what the peer accepts.
    let most = if seen.peer_window > 0 { doubled(seen.peer_window.max(product)) } else { u64::MAX };
    match past {
        // With less buffer the connection shows a smaller demand. As long as it needs more than it
        // was granted, the earlier demand counts. Otherwise each cut would be undone by the next
        // negotiation, and made again by the one after it.
        Some(past) if demand.min(most) > past.granted => demand.max(past.demand),
        _ => demand,
    }
    .min(most)
    .clamp(LEAST, MOST)
}

/// Returns the past demand of a connection after this look. The demand was observed at one moment,
/// perhaps during slow start. If the current observation is not limited by the cut itself, the past
/// demand approaches the current one, by half of the difference at each look.
pub(crate) fn faded(measure: Measure, seen: &Observation, past: Past) -> u64 {
    let now = demand(measure, seen, None);
    if measure == Measure::Requested || now <= past.granted || is_held(seen) {
        return past.demand;
    }
    past.demand.min(now.saturating_add(past.demand.saturating_sub(now) / 2))
}

/// Whether the buffer may be the limit, so that the connection could need more than is observed.
fn is_held(seen: &Observation) -> bool {
    match seen.direction {
        Direction::Out => seen.limited_by == LimitedBy::Buffer,
        // The kernel does not report this for a receiver. A full buffer allows a window of about
        // the data that arrives in a round trip.
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
    fn demand_by_each_measure_is_as_specified() {
        assert_eq!(demand(Measure::Window, &SENDER, None), 300_000);
        assert_eq!(demand(Measure::Rate, &SENDER, None), 200_000);
        assert_eq!(demand(Measure::Requested, &SENDER, None), 1 << 20);
        let receiver = Observation { direction: Direction::In, window: 50_000, ..SENDER };
        assert_eq!(demand(Measure::Window, &receiver, None), 200_000);
    }

    #[test]
    fn demand_is_limited_by_buffer_peer_and_application() {
        let idle = Observation { rate: 0.0, outstanding: false, ..SENDER };
        assert_eq!(demand(Measure::Window, &idle, None), 0);
        let bound = Observation { limited_by: LimitedBy::Buffer, ..SENDER };
        assert_eq!(demand(Measure::Window, &bound, None), 2 << 20);
        let peer = Observation { peer_window: 65536, rate: 5e5, ..bound };
        assert_eq!(demand(Measure::Window, &peer, None), 131_072);
        // The peer accepts more in a round trip than its window shows now.
        let unread = Observation { rate: 1e6, ..peer };
        assert_eq!(demand(Measure::Window, &unread, None), 200_000);
        let slow = Observation { limited_by: LimitedBy::Application, rate: 1e5, ..SENDER };
        assert_eq!(demand(Measure::Window, &slow, None), 40_000);
        // Less than one byte per round trip.
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
    fn demand_after_cut_stays_at_past_demand() {
        let past = Past { demand: 1_000_000, granted: 200_000, requested: 700_000 };
        assert_eq!(demand(Measure::Window, &SENDER, Some(past)), 1_000_000);
        let content = Observation { window: 50_000, ..SENDER };
        assert_eq!(demand(Measure::Window, &content, Some(past)), 100_000);
        // The peer accepts less than at the time of the earlier demand.
        let peer = Observation { peer_window: 120_000, ..SENDER };
        assert_eq!(demand(Measure::Window, &peer, Some(past)), 240_000);
        assert_eq!(demand(Measure::Requested, &SENDER, Some(past)), 700_000);
    }

    #[test]
    fn past_demand_fades_unless_limited_by_cut() {
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
            // A connection that is content for a moment, and one whose demand is larger than
            // before.
            Observation { window: 50_000, ..SENDER },
            Observation { window: 2_000_000, ..SENDER },
        ];
        for seen in stands {
            assert_eq!(fading(&seen), [1_000_000], "{seen:?}");
        }
        assert_eq!(faded(Measure::Requested, &SENDER, past), 1_000_000);
    }
}
