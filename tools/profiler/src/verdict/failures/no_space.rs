//! The destination's file system or a quota is full.

use super::{Failed, Failure};
use crate::profile::FailureKind;
use crate::verdict::Evidence;

pub(super) fn judge(evidence: &Evidence, failed: &Failed) -> Option<Failure> {
    let advice =
        "make room there (df, quota), or write elsewhere; the same command then goes on where this ended";
    (failed.kind == FailureKind::NoSpace)
        .then(|| failed.failure(evidence, evidence.destination.as_ref(), advice))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::sample;
    use crate::profile::FailureKind;

    #[test]
    fn no_space_names_the_destination() {
        let failure = super::super::judge(&sample(FailureKind::NoSpace)).unwrap();
        assert_eq!((failure.kind, failure.host.as_deref()), (FailureKind::NoSpace, Some("right")));
        assert!(failure.evidence.contains("30 %"), "{failure:?}");
    }
}
