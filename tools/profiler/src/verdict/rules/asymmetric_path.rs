//! The other direction is much faster.
//!
//! The same two hosts moved 1.3 to 2 times as much from memory to memory in the other direction,
//! while the transfer reached at least 60 % of its own direction's rate (otherwise a nearer cause
//! limits it) and exceeded it by no more than 10 %. Then the sender or the route of this direction
//! is the suspect, because the other direction shows what cards and processors can do.
//!
//! A connection that loses data moves a random amount in each measurement. So if the measuring
//! connection retransmitted segments, or if that is unknown and the transfer did (by the scale of
//! `congestion_loss`), queues must show (by the same scale) that this direction was full.

use super::congestion_loss::{queued, weight};
use crate::verdict::figures::ramp;
use crate::verdict::text::link;
use crate::verdict::{Cause, CauseKind, Evidence, Rule};

pub(super) struct AsymmetricPath;

impl Rule for AsymmetricPath {
    fn judge(&self, evidence: &Evidence) -> Option<Cause> {
        let there = evidence.baselines.path.filter(|&rate| rate > 0.0)?;
        let back = evidence.baselines.path_back?;
        let sound = if evidence.rate > there * 1.1 { 0.0 } else { whole(evidence) };
        let confidence = 0.98 * sound * ramp(back / there, 1.3, 2.0) * ramp(evidence.rate / there, 0.6, 0.8);
        (confidence > 0.0).then(|| Cause {
            kind: CauseKind::AsymmetricPath,
            host: None,
            confidence,
            evidence: format!(
                "from memory to memory, this way carries {}, the other {} ({:.1} times)",
                link(there),
                link(back),
                back / there
            ),
            advice: "compare the routes (traceroute both ways) and the senders' settings (buffers, qdisc, congestion control, \
                     `ropewalk doctor` on both); a link may be sold as asymmetric"
                .into(),
        })
    }
}

/// How far the measured rate is the capacity of this direction, 0 to 1.
fn whole(evidence: &Evidence) -> f64 {
    let base = &evidence.baselines;
    if base.path_retransmitted == Some(0) {
        return 1.0;
    }
    let Some(path) = &evidence.path else { return if base.path_whole().is_some() { 1.0 } else { 0.0 } };
    // Losses on a full path come with queues.
    let queues = queued(evidence).unwrap_or(0.0);
    if base.path_whole().is_none() { queues } else { 1.0 - (1.0 - queues) * weight(path).unwrap_or(0.0) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::verdict::rules::samples::quiet;

    fn rates(there: f64, back: f64, reached: f64) -> Option<f64> {
        let mut evidence = quiet();
        evidence.rate = reached;
        (evidence.baselines.path, evidence.baselines.path_back) = (Some(there), Some(back));
        AsymmetricPath.judge(&evidence).map(|cause| cause.confidence)
    }

    #[test]
    fn asymmetric_path_when_other_way_is_faster_is_found() {
        assert!(rates(1e6, 20e6, 0.95e6).is_some_and(|confidence| confidence > 0.9));
        assert_eq!(rates(1e6, 1.1e6, 0.95e6), None);
        // A nearer cause limits the transfer.
        assert_eq!(rates(1e6, 20e6, 0.3e6), None);
        assert_eq!(rates(20e6, 1e6, 19e6), None);
        assert_eq!(AsymmetricPath.judge(&quiet()), None);
        // The transfer shows that this direction carries more.
        assert_eq!(rates(1e6, 20e6, 1.2e6), None);
    }

    #[test]
    fn asymmetric_path_when_losses_explain_it_is_none() {
        let mut evidence = quiet();
        evidence.rate = 1.9e6;
        evidence.path.as_mut().unwrap().loss = Some(0.003);
        (evidence.baselines.path, evidence.baselines.path_back) = (Some(2e6), Some(5e6));
        assert_eq!(AsymmetricPath.judge(&evidence), None);
        (evidence.baselines.path_streams, evidence.baselines.path_retransmitted) = (Some(1), Some(40));
        assert_eq!(AsymmetricPath.judge(&evidence), None);
        // A narrow path loses data too, but its queue is full.
        evidence.path.as_mut().unwrap().rtt = 0.09;
        assert!(AsymmetricPath.judge(&evidence).unwrap().confidence > 0.9);
        evidence.path.as_mut().unwrap().rtt = 0.061;
        evidence.baselines.path_retransmitted = Some(0);
        assert!(AsymmetricPath.judge(&evidence).unwrap().confidence > 0.9);
    }
}
