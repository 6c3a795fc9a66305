//! Finds the reason why a transfer failed. This is the main finding of a failed transfer, and is
//! reported before the causes of its rate.

mod checksum_mismatch;
mod connection_lost;
mod interrupted;
mod no_space;
mod permission;
mod refused;
mod stalled;
mod unreachable;

use serde::{Deserialize, Serialize};

use super::evidence::moving;
use super::span::Span;
use super::text::{percent, size, time};
use super::{End, Evidence};
use crate::profile::{Connection, FailureKind, Outcome, Profile};

/// The figures of a failed transfer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Failed {
    pub kind: FailureKind,
    /// Bytes that were to be moved.
    pub planned: Option<f64>,
    /// Duration of the transfer until the failure, in seconds.
    pub seconds: f64,
    /// The time at which data moved last, in seconds from the beginning; absent if no data moved.
    pub moved_until: Option<f64>,
    /// The state of the connections after that.
    pub silence: Option<Silence>,
}

/// The state of the sender's connections while no data got through.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Silence {
    /// Bytes that were waiting to be sent or acknowledged.
    pub queued: f64,
    /// Segments that were retransmitted in this time.
    pub again: f64,
    /// Whether the receiver's window was closed on all connections that had something to send.
    pub closed: bool,
}

/// The reason why a transfer failed, and what to do about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Failure {
    pub kind: FailureKind,
    /// The host at which it failed, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The evidence in words, with numbers.
    pub evidence: String,
    /// The recommended action.
    pub advice: String,
}

/// Looks for one kind of failure.
type Rule = fn(&Evidence, &Failed) -> Option<Failure>;

const RULES: [Rule; 8] = [
    no_space::judge,
    permission::judge,
    refused::judge,
    checksum_mismatch::judge,
    stalled::judge,
    connection_lost::judge,
    unreachable::judge,
    interrupted::judge,
];

/// Finds the reason of a failure. Returns `None` if the transfer did not fail, or failed for an
/// unknown reason.
pub(super) fn judge(evidence: &Evidence) -> Option<Failure> {
    let failed = evidence.failed.as_ref()?;
    RULES.iter().find_map(|rule| rule(evidence, failed))
}

impl Failed {
    /// `span` is the time in which data moved. Returns `None` if the transfer did not fail.
    pub(super) fn of(profile: &Profile, span: Option<Span>) -> Option<Self> {
        let workload = &profile.workload;
        if workload.outcome == Outcome::Done {
            return None;
        }
        let moved_until = span.map(|span| span.to);
        let silence = moved_until.and_then(|until| {
            let source = profile.source()?;
            let connections = moving(&source.connections, true);
            let times = |time: f64| source.aligned(time, profile.started);
            Silence::of(&connections, |time| times(time) > until && times(time) <= workload.seconds)
        });
        Some(Self {
            kind: workload.failure.unwrap_or_default(),
            planned: workload.planned.map(|bytes| bytes as f64),
            seconds: workload.seconds,
            moved_until,
            silence,
        })
    }

    /// Seconds before the end in which no data moved.
    pub fn idle(&self) -> f64 {
        (self.seconds - self.moved_until.unwrap_or(0.0)).max(0.0)
    }

    /// Describes how far the transfer got.
    pub fn far(&self, evidence: &Evidence) -> String {
        if evidence.bytes <= 0.0 {
            return if self.moved_until.is_some() {
                format!("after {}, when none of its data was known to have arrived", time(self.seconds))
            } else {
                "before any data had moved".into()
            };
        }
        // Data that is in flight at the end may never arrive.
        let planned = self.planned.filter(|&planned| planned >= evidence.bytes);
        let of =
            planned.map(|planned| format!(" of {} ({})", size(planned), percent(evidence.bytes / planned)));
        let of = of.unwrap_or_default();
        format!("after {}, when {}{of} had been sent", time(self.seconds), size(evidence.bytes))
    }

    /// Describes how far the transfer got, and the silence before its end.
    fn told(&self, evidence: &Evidence) -> String {
        let far = format!("it ended {}", self.far(evidence));
        match self.idle() {
            idle if idle >= QUIET && self.moved_until.is_some() => {
                format!("{far}; nothing had moved in the last {}", time(idle))
            }
            _ => far,
        }
    }

    fn failure(&self, evidence: &Evidence, host: Option<&End>, advice: &str) -> Failure {
        Failure {
            kind: self.kind,
            host: host.map(|end| end.name.clone()).filter(|name| !name.is_empty()),
            evidence: self.told(evidence),
            advice: advice.to_owned(),
        }
    }
}

/// Seconds of silence that are worth mentioning.
const QUIET: f64 = 3.0;

impl Silence {
    /// Evaluates the time after the last data. One connection must have three samples in that time,
    /// which takes half a second.
    fn of(connections: &[&Connection], after: impl Fn(f64) -> bool) -> Option<Self> {
        let mut silence = Self { closed: true, ..Self::default() };
        let mut seen = false;
        for connection in connections {
            let mut samples = connection.samples.iter().filter(|sample| after(sample.time));
            let Some(first) = samples.next() else { continue };
            let Some(last) = samples.clone().next_back().filter(|_| samples.count() >= 2) else { continue };
            seen = true;
            let queued = last.unsent.max(last.queued).unwrap_or(0) as f64;
            silence.queued += queued;
            silence.again += f64::from(last.retransmitted.saturating_sub(first.retransmitted));
            // A window smaller than a segment counts as closed.
            let closed = last.send_window.is_some_and(|window| window < u64::from(last.mss.max(1)));
            silence.closed &= queued <= 0.0 || closed;
        }
        seen.then_some(Self { closed: silence.closed && silence.queued > 0.0, ..silence })
    }
}

/// Evidence for the tests of the rules: the unremarkable transfer, which failed in this way after
/// 300 MB of 1 GB.
#[cfg(test)]
pub(super) fn sample(kind: FailureKind) -> Evidence {
    let mut evidence = super::rules::samples::quiet();
    (evidence.bytes, evidence.seconds) = (3e8, 3.0);
    let failed = Failed { kind, planned: Some(1e9), seconds: 3.1, moved_until: Some(3.0), silence: None };
    evidence.failed = Some(failed);
    evidence
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn far_describes_progress_and_silence() {
        let mut evidence = sample(FailureKind::Other);
        let far = |evidence: &Evidence| evidence.failed.as_ref().unwrap().told(evidence);
        assert_eq!(far(&evidence), "it ended after 3.1 s, when 286 MiB of 954 MiB (30 %) had been sent");
        evidence.failed.as_mut().unwrap().seconds = 23.0;
        assert!(far(&evidence).ends_with("nothing had moved in the last 20.0 s"), "{}", far(&evidence));
        // More was moved than planned, so the planned amount is treated as unknown.
        evidence.failed.as_mut().unwrap().planned = Some(1e8);
        assert!(far(&evidence).starts_with("it ended after 23.0 s, when 286 MiB had been sent"));
        evidence.bytes = 0.0;
        evidence.failed.as_mut().unwrap().moved_until = None;
        assert_eq!(far(&evidence), "it ended before any data had moved");
    }

    #[test]
    fn judge_when_transfer_succeeded_or_reason_is_unknown_is_none() {
        assert_eq!(judge(&super::super::rules::samples::quiet()), None);
        assert_eq!(judge(&sample(FailureKind::Other)), None);
    }
}
