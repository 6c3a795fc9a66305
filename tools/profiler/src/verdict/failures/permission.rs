//! A file may not be read or written. The text of the error shows which end refused.

use super::{Failed, Failure};
use crate::profile::FailureKind;
use crate::verdict::Evidence;

pub(super) fn judge(evidence: &Evidence, failed: &Failed) -> Option<Failure> {
    let advice = "look at the owner and mode of the path that the error names, and at whom the server maps the user to";
    (failed.kind == FailureKind::Permission).then(|| failed.failure(evidence, None, advice))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::sample;
    use crate::profile::FailureKind;

    #[test]
    fn permission_names_no_host() {
        let failure = super::super::judge(&sample(FailureKind::Permission)).unwrap();
        assert_eq!((failure.kind, failure.host), (FailureKind::Permission, None));
    }
}
