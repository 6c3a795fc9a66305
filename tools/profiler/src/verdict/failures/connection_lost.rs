//! A connection broke after data had moved, or a server could not be reached again.

use super::{Failed, Failure};
use crate::profile::FailureKind;
use crate::verdict::Evidence;

pub(super) fn judge(evidence: &Evidence, failed: &Failed) -> Option<Failure> {
    let lost = failed.kind == FailureKind::ConnectionLost
        || failed.kind == FailureKind::Unreachable && evidence.bytes > 0.0;
    let advice = "see in the log of the server that the error names whether it, or its session, ended; if not, look for a firewall \
                  that cuts connections; the same command goes on where this ended";
    lost.then(|| Failure { kind: FailureKind::ConnectionLost, ..failed.failure(evidence, None, advice) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{judge, sample};
    use super::*;

    #[test]
    fn connection_lost_when_data_had_moved_is_reported() {
        for kind in [FailureKind::ConnectionLost, FailureKind::Unreachable] {
            assert_eq!(judge(&sample(kind)).unwrap().kind, FailureKind::ConnectionLost);
        }
    }
}
