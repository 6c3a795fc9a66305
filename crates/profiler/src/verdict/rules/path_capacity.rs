//! The path is full: what it carries was reached.
//!
//! Known capacity (a memory-to-memory run, unless a single connection lost data in it, or the slower interface at 94 % of
//! its bit rate, what TCP leaves of it with a usual MTU; none that the transfer exceeds by more than 10 %): 80 to 92 % of
//! it. Unknown: a queue that stands (median round trip at least a tenth and 2 ms
//! above the shortest, wholly at a quarter) under a rate that does not vary, while only the congestion window limits, half
//! of the time at least: a bottleneck that is never idle, and carries nothing else. Such a one delivers the same in each
//! half-second: half of them are within 1.5 % of their median (beyond 4 % it is shared, or idle at times). Where TCP did
//! not count, the rate that the program told may vary by 15 % (25 %), for it counts in blocks.

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

/// By how much the rate varies, and how far that is too much for a link that is never idle.
pub(super) fn uneven(evidence: &Evidence) -> Option<(f64, f64)> {
    match evidence.unrest {
        Some(unrest) => Some((unrest, ramp(unrest, 0.015, 0.04))),
        None => evidence.variation.map(|variation| (variation, ramp(variation, 0.15, 0.25))),
    }
}

fn standing_queue(evidence: &Evidence) -> Option<(f64, String)> {
    let (ratio, queueing) = (evidence.inflation()?, evidence.queueing()?);
    let (varying, uneven) = uneven(evidence)?;
    let limited = evidence.path.as_ref()?.congestion_limited();
    if queueing < 0.002 {
        return None;
    }
    let confidence = 0.9 * ramp(ratio, 1.1, 1.25) * (1.0 - uneven) * ramp(limited, 0.5, 0.8);
    Some((
        confidence,
        format!(
            "the rate stayed at {} (varying {}) while packets waited {} in a queue all the time",
            link(evidence.rate),
            percent(varying),
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
        // TCP counts better than a program that counts blocks.
        evidence.unrest = Some(0.006);
        assert!(PathCapacity.judge(&evidence).unwrap().confidence > 0.8);
        evidence.unrest = Some(0.05);
        assert_eq!(PathCapacity.judge(&evidence), None);
        assert_eq!(PathCapacity.judge(&Evidence::default()), None);
    }
}
