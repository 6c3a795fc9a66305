//! A server's program, or something behind it that was not measured, limits the transfer.
//!
//! - The program was seen to sleep for a time that it chose itself (as a rate limit does) or to be
//!   stopped, at 30 to 80 % of the moments. Meanwhile, if it is the source, TCP had too little to
//!   send (20 to 60 % of samples, or 70 to 40 % of the congestion window and no other limit); if it
//!   is the destination, data lay unread (by the scale of `destination_disk`).
//! - The source was measured: TCP had too little to send (40 to 80 % of samples), but neither its
//!   disk (30 % of the streams' time or of the program's moments, 60 % busy), nor its processors
//!   (80 %), nor many files explain it. So the program itself waits for something.
//! - The source was not measured, and its peer sees no fault. The receiver's streams waited for the
//!   socket (60 to 90 % of their time), nothing lay unread, less than 0.001 % of segments came out
//!   of order, and the path is known to carry 1.4 to 2 times as much. The confidence is only half,
//!   because buffers of the other end look the same.

use super::cpu;
use super::destination_disk::backlog;
use crate::verdict::figures::ramp;
use crate::verdict::text::{link, percent};
use crate::verdict::{Cause, CauseKind, End, Evidence, Rule};

pub(super) struct PeerServer;

impl Rule for PeerServer {
    fn judge(&self, evidence: &Evidence) -> Option<Cause> {
        let source = match &evidence.source {
            Some(source) => idle_source(evidence, source)
                .map(|(confidence, text)| (Some(source.name.clone()), confidence, text)),
            None => unseen_source(evidence).map(|(confidence, text)| (None, confidence, text)),
        };
        let resting = [resting_source(evidence), resting_destination(evidence)];
        let (host, confidence, text) =
            resting.into_iter().chain([source]).flatten().max_by(|a, b| a.1.total_cmp(&b.1))?;
        (confidence > 0.0).then(|| Cause {
            kind: CauseKind::PeerServer,
            host,
            confidence,
            evidence: text,
            advice: "look at that server: its log, limits of rate or load, its storage behind the file system, a gateway; \
                     try another server of the site"
                .into(),
        })
    }
}

type Found = (Option<String>, f64, String);

fn resting_source(evidence: &Evidence) -> Option<Found> {
    let path = evidence.path.as_ref()?;
    let starved = path.application_limited;
    resting(evidence.source.as_ref()?, ramp(starved, 0.2, 0.6).max(evidence.handed_little()), || {
        let filled = path.filled.map(|filled| format!(", and {} of its window on the way", percent(filled)));
        format!("TCP had too little to send in {} of samples{}", percent(starved), filled.unwrap_or_default())
    })
}

fn resting_destination(evidence: &Evidence) -> Option<Found> {
    let end = evidence.destination.as_ref()?;
    let unread = backlog(end)?;
    resting(end, ramp(unread, 0.2, 0.67), || {
        format!("receive buffers were {} full of unread data", percent(unread))
    })
}

fn resting(end: &End, shown: f64, how: impl Fn() -> String) -> Option<Found> {
    let doing = end.doing?;
    let rest = doing.asleep + doing.stopped;
    let what = if doing.asleep >= doing.stopped { "asleep of its own accord" } else { "stopped" };
    let text = format!("the program was {what} in {} of moments; {}", percent(rest), how());
    Some((Some(end.name.clone()), 0.93 * ramp(rest, 0.3, 0.8) * shown, text))
}

fn idle_source(evidence: &Evidence, source: &End) -> Option<(f64, String)> {
    let path = evidence.path.as_ref()?;
    let reads = source.stage(|stages| stages.source.spent()).unwrap_or(0.0) >= 0.3
        || source.doing.is_some_and(|doing| doing.reading >= 0.3)
        || source.disk.as_ref().is_some_and(|disk| disk.1 >= 0.6);
    let many = evidence.files >= 10.0;
    if reads || many || cpu::hot(source).0 > 0.0 {
        return None;
    }
    // A disk that was not measured cannot be ruled out.
    let known = source.stages.is_some() || source.disk.is_some() || source.doing.is_some();
    let sure = if known { 0.7 } else { 0.5 };
    Some((
        sure * ramp(path.application_limited, 0.4, 0.8),
        format!(
            "TCP had too little to send in {} of samples, though neither disk nor processors were busy",
            percent(path.application_limited)
        ),
    ))
}

fn unseen_source(evidence: &Evidence) -> Option<(f64, String)> {
    let end = evidence.destination.as_ref()?;
    let waiting = end.stage(|stages| stages.socket.waited)?;
    let path = evidence.baselines.path?;
    if end.out_of_order? > 1e-5 || backlog(end)? > 0.2 {
        return None;
    }
    Some((
        0.5 * ramp(waiting, 0.6, 0.9) * ramp(path / evidence.rate.max(1.0), 1.4, 2.0),
        format!(
            "we waited for data {} of the time; nothing was lost or lay unread, and the path carries {}",
            percent(waiting),
            link(path)
        ),
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::profile::{Doing, StageTime};
    use crate::verdict::rules::samples::{quiet, starved};

    #[test]
    fn peer_server_when_source_is_idle_is_found() {
        let cause = PeerServer.judge(&starved()).unwrap();
        assert!(cause.confidence > 0.6 && cause.host.as_deref() == Some("left"), "{cause:?}");
        assert_eq!(PeerServer.judge(&quiet()), None);
    }

    #[test]
    fn peer_server_when_other_causes_explain_it_is_none() {
        let mut disk = starved();
        disk.source.as_mut().unwrap().stages.as_mut().unwrap().source = StageTime { busy: 0.0, waited: 5.0 };
        assert_eq!(PeerServer.judge(&disk), None);
        let mut files = starved();
        files.files = 1000.0;
        assert_eq!(PeerServer.judge(&files), None);
        let mut processor = starved();
        processor.source.as_mut().unwrap().busiest.as_mut().unwrap().user = 0.79;
        assert_eq!(PeerServer.judge(&processor), None);
    }

    #[test]
    fn peer_server_when_program_sleeps_or_is_stopped_is_found() {
        let asleep = Some(Doing { samples: 100, asleep: 0.9, ..Doing::default() });
        let mut evidence = starved();
        evidence.source.as_mut().unwrap().doing = asleep;
        let cause = PeerServer.judge(&evidence).unwrap();
        assert!(cause.confidence > 0.9 && cause.evidence.contains("asleep"), "{cause:?}");
        // Something else takes the time: the program sleeps because no more data is wanted.
        let mut evidence = quiet();
        evidence.source.as_mut().unwrap().doing = asleep;
        assert_eq!(PeerServer.judge(&evidence), None);
        evidence.path.as_mut().unwrap().filled = Some(0.2);
        assert!(PeerServer.judge(&evidence).unwrap().confidence > 0.9);
        evidence.path.as_mut().unwrap().window_limited = 0.9;
        assert_eq!(PeerServer.judge(&evidence), None);
        let mut evidence = quiet();
        let end = evidence.destination.as_mut().unwrap();
        end.doing = Some(Doing { samples: 100, stopped: 0.9, ..Doing::default() });
        assert_eq!(PeerServer.judge(&evidence), None);
        evidence.destination.as_mut().unwrap().unread = Some(14e6);
        let cause = PeerServer.judge(&evidence).unwrap();
        assert!(cause.host.as_deref() == Some("right") && cause.evidence.contains("stopped"), "{cause:?}");
    }

    #[test]
    fn peer_server_when_source_is_unmeasured_is_half_sure() {
        let mut evidence = quiet();
        (evidence.source, evidence.path) = (None, None);
        assert_eq!(PeerServer.judge(&evidence), None);
        evidence.baselines.path = Some(5e8);
        let cause = PeerServer.judge(&evidence).unwrap();
        assert!(cause.confidence > 0.3 && cause.host.is_none(), "{cause:?}");
        evidence.destination.as_mut().unwrap().out_of_order = Some(0.01);
        assert_eq!(PeerServer.judge(&evidence), None);
    }
}
