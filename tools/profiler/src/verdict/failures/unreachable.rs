//! A server could not be reached, or disconnected before data had moved.

use super::{Failed, Failure};
use crate::profile::FailureKind;
use crate::verdict::Evidence;

pub(super) fn judge(evidence: &Evidence, failed: &Failed) -> Option<Failure> {
    let advice = "see whether the server runs and listens at that port, and whether firewalls let control and data connections pass";
    (failed.kind == FailureKind::Unreachable).then(|| failed.failure(evidence, None, advice))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{judge, sample};
    use super::*;

    #[test]
    fn unreachable_when_nothing_moved_is_reported() {
        let mut evidence = sample(FailureKind::Unreachable);
        evidence.bytes = 0.0;
        evidence.failed.as_mut().unwrap().moved_until = None;
        let failure = judge(&evidence).unwrap();
        assert_eq!(failure.kind, FailureKind::Unreachable);
        assert!(failure.evidence.contains("before any data"), "{failure:?}");
    }
}
