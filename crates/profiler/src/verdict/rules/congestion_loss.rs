//! Losses from queues that overflow: others share the path, or a queue on it is too short.
//!
//! Segments sent again (0.001 % is a sign, 0.1 % is proof: at 10^-5, the rule of Mathis et al. leaves a Reno flow
//! about 390 segments in flight, less than 50 Mbit/s over 100 ms) together with queues (median round trip 10 to 40 %
//! and at least 1 ms above the shortest), while the congestion window limits half of the time. A path whose capacity
//! is reached loses too, but that is no fault (path_capacity); so the rate has to be below it, or, where it is
//! unknown, to vary by more than 10 to 20 %.

use super::path_capacity::FULL;
use crate::verdict::figures::ramp;
use crate::verdict::text::{percent, time};
use crate::verdict::{Cause, CauseKind, Evidence, Path, Rule};

pub(super) struct CongestionLoss;

/// How much losses weigh: by powers of ten.
pub(super) fn weight(path: &Path) -> Option<f64> {
    let loss = path.loss.filter(|&loss| loss > 0.0)?;
    Some(ramp(loss.log10(), -5.0, -3.0))
}

/// Whether the rate is below what the path carries; by its variation where that is unknown.
fn below_capacity(evidence: &Evidence) -> f64 {
    match evidence.capacity() {
        Some(capacity) => 1.0 - ramp(evidence.rate / capacity, FULL - 0.1, FULL),
        None => evidence.variation.map_or(0.6, |variation| ramp(variation, 0.1, 0.2)),
    }
}

impl Rule for CongestionLoss {
    fn judge(&self, evidence: &Evidence) -> Option<Cause> {
        let path = evidence.path.as_ref()?;
        let (ratio, queueing) = (evidence.inflation()?, evidence.queueing()?);
        let queues = if queueing < 0.001 { 0.0 } else { ramp(ratio, 1.1, 1.4) };
        let confidence = 0.9
            * weight(path)?
            * queues
            * ramp(path.congestion_limited(), 0.3, 0.7)
            * below_capacity(evidence);
        (confidence > 0.0).then(|| Cause {
            kind: CauseKind::CongestionLoss,
            host: None,
            confidence,
            evidence: format!(
                "{} of segments were sent again while packets waited {} in queues; the congestion window limited {} of the time",
                percent(path.loss.unwrap_or(0.0)),
                time(queueing),
                percent(path.congestion_limited())
            ),
            advice: "others share the path: another time or route, a fair number of streams; qdisc fq at the sender \
                     smooths bursts that short queues drop"
                .into(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::verdict::rules::samples::quiet;

    fn lossy() -> Evidence {
        let mut evidence = quiet();
        let path = evidence.path.as_mut().unwrap();
        (path.loss, path.rtt) = (Some(0.002), 0.09);
        evidence.variation = Some(0.3);
        evidence
    }

    #[test]
    fn losses_with_queues() {
        let cause = CongestionLoss.judge(&lossy()).unwrap();
        assert!(cause.confidence > 0.8 && cause.evidence.contains("0.2 %"), "{cause:?}");
    }

    #[test]
    fn a_full_path_and_losses_without_queues_are_other_causes() {
        let mut evidence = lossy();
        evidence.baselines.path = Some(1.05e8);
        assert_eq!(CongestionLoss.judge(&evidence), None);
        let mut evidence = lossy();
        evidence.path.as_mut().unwrap().rtt = 0.0605;
        assert_eq!(CongestionLoss.judge(&evidence), None);
        assert_eq!(CongestionLoss.judge(&quiet()), None);
        assert_eq!(CongestionLoss.judge(&Evidence::default()), None);
    }
}
