//! The other direction is much faster.
//!
//! The same two hosts moved memory to memory 1.3 to 2 times as much the other way, while the transfer reached at
//! least 60 % of its own direction (else something nearer limits it). Then that direction's sender, or its way
//! through the network, is the suspect, for the other way shows what cards and processors can do.

use crate::verdict::figures::ramp;
use crate::verdict::text::link;
use crate::verdict::{Cause, CauseKind, Evidence, Rule};

pub(super) struct AsymmetricPath;

impl Rule for AsymmetricPath {
    fn judge(&self, evidence: &Evidence) -> Option<Cause> {
        let there = evidence.baselines.path.filter(|&rate| rate > 0.0)?;
        let back = evidence.baselines.path_back?;
        let confidence = 0.98 * ramp(back / there, 1.3, 2.0) * ramp(evidence.rate / there, 0.6, 0.8);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::rules::samples::quiet;

    fn rates(there: f64, back: f64, reached: f64) -> Option<f64> {
        let mut evidence = quiet();
        evidence.rate = reached;
        (evidence.baselines.path, evidence.baselines.path_back) = (Some(there), Some(back));
        AsymmetricPath.judge(&evidence).map(|cause| cause.confidence)
    }

    #[test]
    fn one_way_is_faster() {
        assert!(rates(1e6, 20e6, 0.95e6).is_some_and(|confidence| confidence > 0.9));
        assert_eq!(rates(1e6, 1.1e6, 0.95e6), None);
        // Something nearer holds it back.
        assert_eq!(rates(1e6, 20e6, 0.3e6), None);
        assert_eq!(rates(20e6, 1e6, 19e6), None);
        assert_eq!(AsymmetricPath.judge(&quiet()), None);
    }
}
