//! The data at the destination differs from that at the source, according to checksums or sizes.

use super::{Failed, Failure};
use crate::profile::FailureKind;
use crate::verdict::Evidence;

pub(super) fn judge(evidence: &Evidence, failed: &Failed) -> Option<Failure> {
    let advice = "see whether the source was written meanwhile; if not, something on the way or a disk damages data: copy again, \
                  and compare by `ropewalk sum` at both ends";
    (failed.kind == FailureKind::ChecksumMismatch).then(|| failed.failure(evidence, None, advice))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{judge, sample};
    use crate::profile::FailureKind;

    #[test]
    fn checksum_mismatch_when_data_differs_is_reported() {
        let failure = judge(&sample(FailureKind::ChecksumMismatch)).unwrap();
        assert_eq!(failure.kind, FailureKind::ChecksumMismatch);
    }
}
