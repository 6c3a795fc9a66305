//! A path does not exist, or the server does not accept the user.

use super::{Failed, Failure};
use crate::profile::FailureKind;
use crate::verdict::Evidence;

pub(super) fn judge(evidence: &Evidence, failed: &Failed) -> Option<Failure> {
    let advice = match failed.kind {
        // Data moved, so the path existed when it was opened.
        FailureKind::NotFound if evidence.bytes > 0.0 => {
            "something removed the path that the error names while it was copied: cleaners of scratch directories, another job"
        }
        FailureKind::NotFound => {
            "look for the path that the error names, as the server shows it (`ropewalk ls`)"
        }
        FailureKind::Authentication => {
            "look at the credential and its end of life, the user's name, and what the server's log says of it"
        }
        _ => return None,
    };
    Some(failed.failure(evidence, None, advice))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{judge, sample};
    use crate::profile::FailureKind;

    #[test]
    fn refused_when_path_vanished_says_so() {
        let mut evidence = sample(FailureKind::NotFound);
        assert!(judge(&evidence).unwrap().advice.contains("removed"));
        evidence.bytes = 0.0;
        assert!(judge(&evidence).unwrap().advice.contains("look for"));
        assert!(judge(&sample(FailureKind::Authentication)).unwrap().advice.contains("credential"));
    }
}
