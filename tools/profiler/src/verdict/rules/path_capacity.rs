//! The path is full: the transfer reached its capacity.
//!
//! If the capacity is known, the rate is 80 to 92 % of it. It is known from a run from memory to
//! memory, unless a single connection lost data in that, or from the slower interface at 94 % of
//! its bit rate, which TCP leaves of it with a usual MTU. A capacity that the transfer exceeds by
//! more than 10 % does not count.
//!
//! If it is unknown, the sign is a bottleneck that is never idle and carries nothing else: a
//! standing queue (median round trip at least a tenth and 2 ms above the shortest, in full at a
//! quarter) under a rate that does not vary, while only the congestion window limits, at least half
//! of the time. Such a bottleneck delivers the same amount in each half-second: half of them are
//! within 1.5 % of their median (beyond 4 % the path is shared, or idle at times). If TCP did not
//! count, the rate that the program reported may vary by 15 % (25 %), because the program counts in
//! blocks.

use crate::verdict::figures::ramp;
use crate::verdict::text::{link, percent, time};
use crate::verdict::{Cause, CauseKind, Evidence, Rule};

pub(super) struct PathCapacity;

/// Share of the capacity from which a path counts as full.
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

/// The variation of the rate, and how far it is too large for a link that is never idle.
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
    fn path_capacity_when_known_and_reached_is_found() {
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
    fn path_capacity_when_unknown_uses_queue_and_steady_rate() {
        let mut evidence = quiet();
        evidence.variation = Some(0.05);
        assert_eq!(PathCapacity.judge(&evidence), None);
        evidence.path.as_mut().unwrap().rtt = 0.1;
        assert!(PathCapacity.judge(&evidence).unwrap().confidence > 0.8);
        evidence.variation = Some(0.4);
        assert_eq!(PathCapacity.judge(&evidence), None);
        // TCP counts more precisely than a program that counts blocks.
        evidence.unrest = Some(0.006);
        assert!(PathCapacity.judge(&evidence).unwrap().confidence > 0.8);
        evidence.unrest = Some(0.05);
        assert_eq!(PathCapacity.judge(&evidence), None);
        assert_eq!(PathCapacity.judge(&Evidence::default()), None);
    }
}
