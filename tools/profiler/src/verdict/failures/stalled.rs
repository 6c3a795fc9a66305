//! Data no longer moved until a timeout expired.
//!
//! The sender's connections show during the silence where the data stopped: at a closed window with
//! data behind it (the receiving program takes nothing), in data that is retransmitted again and
//! again without an answer (the path or the other machine is gone), or at a sender with nothing to
//! send (the sending program or its storage).

use super::{Failed, Failure, Silence};
use crate::profile::FailureKind;
use crate::verdict::Evidence;
use crate::verdict::text::size;

pub(super) fn judge(evidence: &Evidence, failed: &Failed) -> Option<Failure> {
    if failed.kind != FailureKind::Stalled {
        return None;
    }
    let (host, seen, advice) = match failed.silence {
        Some(Silence { closed: true, queued, .. }) => (
            evidence.destination.as_ref(),
            format!("; the receiver took nothing any more (its window was closed, {} waited)", size(queued)),
            "look at the receiving server and the storage behind it: it may hang, or be stopped",
        ),
        Some(Silence { again, queued, .. }) if again > 0.0 && queued > 0.0 => (
            None,
            format!("; {again:.0} segments were sent again without an answer"),
            "look at the path: a route, firewall or machine on the way has gone, or drops what it let pass before",
        ),
        Some(Silence { queued, .. }) if queued <= 0.0 => (
            evidence.source.as_ref(),
            "; the sender had nothing to send".into(),
            "look at the sending server and the storage behind it: a read may hang (tape, a file system that is gone)",
        ),
        _ => (
            None,
            String::new(),
            "look at both servers' logs and storage, and at firewalls on the way; `--stall-limit` says how long is waited",
        ),
    };
    let mut failure = failed.failure(evidence, host, advice);
    failure.evidence += &seen;
    Some(failure)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{judge, sample};
    use super::*;
    use crate::profile::{Connection, ConnectionSample};

    fn silent(silence: Option<Silence>) -> Failure {
        let mut evidence = sample(FailureKind::Stalled);
        let failed = evidence.failed.as_mut().unwrap();
        (failed.silence, failed.seconds) = (silence, 33.0);
        judge(&evidence).unwrap()
    }

    #[test]
    fn stalled_when_silence_is_known_names_the_side() {
        let silence = Silence { queued: 1e6, again: 0.0, closed: true };
        let failure = silent(Some(silence));
        assert_eq!(failure.host.as_deref(), Some("right"));
        assert!(failure.evidence.contains("last 30.0 s; the receiver took nothing"), "{failure:?}");
        let failure = silent(Some(Silence { queued: 1e6, again: 7.0, closed: false }));
        assert!(failure.host.is_none() && failure.evidence.contains("7 segments"), "{failure:?}");
        assert_eq!(silent(Some(Silence::default())).host.as_deref(), Some("left"));
        assert!(silent(None).advice.contains("--stall-limit"));
    }

    #[test]
    fn silence_counts_only_samples_after_the_last_data() {
        let sample = |tenth: u32| ConnectionSample {
            time: f64::from(tenth) / 10.0,
            queued: Some(if tenth < 20 { 5 } else { 1000 }),
            retransmitted: tenth.saturating_sub(20),
            send_window: Some(64),
            ..ConnectionSample::default()
        };
        let connection = Connection { samples: (0..50).map(sample).collect(), ..Connection::default() };
        let silence = Silence::of(&[&connection], |time| time > 2.05).unwrap();
        assert_eq!((silence.queued, silence.again, silence.closed), (1000.0, 28.0, false));
        assert_eq!(Silence::of(&[&connection], |time| time > 4.75), None);
        assert_eq!(Silence::of(&[], |_| true), None);
    }
}
