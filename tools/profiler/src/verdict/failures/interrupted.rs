//! The user interrupted the transfer. This is no fault, but a silence before it may be the reason.

use super::{Failed, Failure, QUIET};
use crate::profile::FailureKind;
use crate::verdict::Evidence;

pub(super) fn judge(evidence: &Evidence, failed: &Failed) -> Option<Failure> {
    if failed.kind != FailureKind::Interrupted {
        return None;
    }
    let advice = if failed.moved_until.is_some() && failed.idle() >= QUIET {
        "nothing moved any more: wait for the stall limit (`--stall-limit`), which says more, or look at both servers' logs"
    } else {
        "the same command goes on where this ended"
    };
    Some(failed.failure(evidence, None, advice))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{judge, sample};
    use crate::profile::FailureKind;

    #[test]
    fn interrupted_after_a_silence_mentions_it() {
        let mut evidence = sample(FailureKind::Interrupted);
        assert!(judge(&evidence).unwrap().advice.contains("goes on"));
        evidence.failed.as_mut().unwrap().seconds = 60.0;
        let failure = judge(&evidence).unwrap();
        assert!(
            failure.advice.contains("--stall-limit") && failure.evidence.contains("57.0 s"),
            "{failure:?}"
        );
    }
}
