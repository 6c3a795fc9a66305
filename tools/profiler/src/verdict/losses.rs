//! Describes when and how losses occurred.

use super::figures::mean;
use crate::profile::Connection;

/// The moments (intervals between two samples) in which segments were retransmitted. `place` is the
/// rank of the round trip just before, among all samples of that connection: 0 is the shortest, 1
/// the longest, and the mean is 0.5 if losses do not depend on the round trip.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Losses {
    pub moments: f64,
    pub place: f64,
    /// Number of moments to expect if each segment were lost independently with the same
    /// probability.
    pub by_chance: f64,
}

impl Losses {
    /// With fewer samples than this, the ranks of a connection mean little.
    const SAMPLES: usize = 10;

    pub(super) fn of(connections: &[&Connection]) -> Option<Self> {
        let mut places = Vec::new();
        // Segments that were sent, and segments that were lost, between two samples.
        let mut spans: Vec<(f64, f64)> = Vec::new();
        for connection in connections.iter().filter(|connection| connection.samples.len() >= Self::SAMPLES) {
            let mut trips: Vec<f64> = connection.samples.iter().map(|sample| sample.rtt).collect();
            trips.sort_by(f64::total_cmp);
            for pair in connection.samples.windows(2) {
                let [before, after] = pair else { continue };
                let lost = after.retransmitted.saturating_sub(before.retransmitted);
                if let Some((new, old)) = after.segments_sent.zip(before.segments_sent) {
                    spans.push((new.saturating_sub(old) as f64, f64::from(lost)));
                }
                if lost > 0 {
                    let below = trips.partition_point(|&rtt| rtt < before.rtt);
                    let up_to = trips.partition_point(|&rtt| rtt <= before.rtt);
                    places.push(f64::midpoint(below as f64, up_to as f64) / trips.len() as f64);
                }
            }
        }
        let sent: f64 = spans.iter().map(|span| span.0).sum();
        let chance = spans.iter().map(|span| span.1).sum::<f64>() / sent.max(1.0);
        let by_chance = spans.iter().map(|span| 1.0 - (-chance * span.0).exp()).sum();
        Some(Self { moments: places.len() as f64, place: mean(places)?, by_chance })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::profile::ConnectionSample;

    /// Ten seconds of a thousand segments each; `lost` and `rtt` return the losses and the round
    /// trip (in ms) of each tenth of a second.
    fn connection(lost: impl Fn(u32) -> u32, rtt: impl Fn(u32) -> f64) -> Connection {
        let mut retransmitted = 0;
        let samples = (0..100)
            .map(|tenth| {
                retransmitted += lost(tenth);
                ConnectionSample {
                    time: f64::from(tenth) / 10.0,
                    rtt: rtt(tenth) / 1e3,
                    retransmitted,
                    segments_sent: Some(u64::from(tenth) * 100),
                    ..ConnectionSample::default()
                }
            })
            .collect();
        Connection { samples, ..Connection::default() }
    }

    #[test]
    fn losses_when_independent_match_chance() {
        let losses =
            Losses::of(&[&connection(|tenth| u32::from(tenth % 9 == 8), |tenth| f64::from(tenth * 7 % 10))]);
        let losses = losses.unwrap();
        assert_eq!(losses.moments, 11.0);
        assert!(
            (losses.place - 0.5).abs() < 0.1 && (losses.by_chance / 11.0 - 1.0).abs() < 0.1,
            "{losses:?}"
        );
    }

    #[test]
    fn losses_when_queues_are_full_have_a_high_place() {
        let losses =
            Losses::of(&[&connection(|tenth| u32::from(tenth % 10 == 9), |tenth| f64::from(tenth % 10))]);
        assert!(losses.unwrap().place > 0.8, "{losses:?}");
    }

    #[test]
    fn losses_when_in_bunches_have_fewer_moments() {
        let losses =
            Losses::of(&[&connection(|tenth| if tenth % 20 == 19 { 12 } else { 0 }, |_| 40.0)]).unwrap();
        assert!(losses.moments == 5.0 && losses.by_chance > 30.0 && losses.place == 0.5, "{losses:?}");
    }

    #[test]
    fn losses_when_nothing_was_lost_are_none() {
        assert_eq!(Losses::of(&[&connection(|_| 0, |_| 40.0)]), None);
        assert_eq!(Losses::of(&[]), None);
    }
}
