//! The path is full: what it carries was reached.
//!
//! Known capacity (a memory-to-memory run, or the slower interface at 94 % of its bit rate, what TCP leaves of it
//! with a usual MTU): 80 to 92 % of it. Unknown: a queue that stands (median round trip at least a fifth and 2 ms
//! above the shortest, wholly at half) under a rate that hardly varies (less than 15 %; beyond 25 % it is no
//! capacity) while only the congestion window limits, half of the time at least: a bottleneck that is never idle.

use crate::verdict::figures::ramp;
use crate::verdict::text::{link, percent, time};
use crate::verdict::{Cause, CauseKind, Evidence, Rule};

pub(super) struct PathCapacity;

/// Share of the capacity from which a path is called full.
pub(super) const FULL: f64 = 0.85;

impl Rule for PathCapacity {
    fn judge(&self, evidence: &Evidence) -> Option<Cause> {
        let (confidence, text) = match evidence.capacity() {
            Some(capacity) => {
                let share = evidence.rate / capacity;
                let text = format!(
                    "{} is {} of the {} that the path carries",
                    link(evidence.rate),
                    percent(share),
                    link(capacity)
                );
                (0.97 * ramp(share, 0.8, 0.92), text)
            }
            None => standing_queue(evidence)?,
        };
        (confidence > 0.0).then(|| Cause {
            kind: CauseKind::PathCapacity,
            host: None,
            confidence,
            evidence: text,
            advice: "nothing at the hosts: only a faster link, another route, compression or less competing traffic".into(),
        })
    }
}

fn standing_queue(evidence: &Evidence) -> Option<(f64, String)> {
    let (ratio, queueing, variation) = (evidence.inflation()?, evidence.queueing()?, evidence.variation?);
    let limited = evidence.path.as_ref()?.congestion_limited();
    if queueing < 0.002 {
        return None;
    }
    let confidence =
        0.85 * ramp(ratio, 1.2, 1.5) * (1.0 - ramp(variation, 0.15, 0.25)) * ramp(limited, 0.5, 0.8);
    Some((
        confidence,
        format!(
            "the rate stayed at {} (varying {}) while packets waited {} in a queue all the time",
            link(evidence.rate),
            percent(variation),
            time(queueing)
        ),
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::verdict::rules::samples::quiet;

    #[test]
    fn a_known_capacity_is_reached() {
        let mut evidence = quiet();
        evidence.baselines.path = Some(1.05e8);
        let cause = PathCapacity.judge(&evidence).unwrap();
        assert!(cause.confidence > 0.9 && cause.evidence.contains("95 %"), "{cause:?}");
        evidence.baselines.path = Some(2e8);
        assert_eq!(PathCapacity.judge(&evidence), None);
        evidence.baselines.path = None;
        evidence.destination.as_mut().unwrap().interface = Some(1.1e8);
        assert!(PathCapacity.judge(&evidence).is_some());
    }

    #[test]
    fn a_standing_queue_under_a_steady_rate() {
        let mut evidence = quiet();
        evidence.variation = Some(0.05);
        assert_eq!(PathCapacity.judge(&evidence), None);
        evidence.path.as_mut().unwrap().rtt = 0.1;
        assert!(PathCapacity.judge(&evidence).unwrap().confidence > 0.8);
        evidence.variation = Some(0.4);
        assert_eq!(PathCapacity.judge(&evidence), None);
        assert_eq!(PathCapacity.judge(&Evidence::default()), None);
    }
}
