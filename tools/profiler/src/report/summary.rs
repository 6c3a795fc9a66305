//! The content that all forms of the report share.

use super::clean::{self, plain};
use super::unmeasured;
use super::{say, words};
use crate::profile::{
    CollectorName, CollectorState, FailureKind, HostProfile, Outcome, Profile, Role, WorkloadKind,
};
use crate::verdict::{Cause, CauseKind, End, Evidence, Failure, Verdict};

/// The tone of the headline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    Slow,
    Unclear,
    Failed,
}

/// The summary of a profile. Its texts are cleaned already.
pub(super) struct Summary {
    pub(super) evidence: Evidence,
    /// The reason of a failure, if the transfer failed and the reason has a name.
    pub(super) failure: Option<Failure>,
    /// Reasons why there is not enough data.
    pub(super) doubts: Vec<String>,
    pub(super) causes: Vec<Cause>,
    pub(super) tone: Tone,
    /// One sentence for every reader.
    pub(super) headline: String,
    /// The transfer in one line.
    pub(super) what: String,
    /// Amount, time, files, streams.
    pub(super) amounts: String,
    /// The values that were not measured, and the reasons.
    pub(super) missing: Vec<String>,
}

/// Confidence from which a cause is called the reason.
const SURE: f64 = 0.6;
/// Seconds of a transfer below which hosts are sampled too seldom for the absence of causes to mean
/// anything.
const SHORT: f64 = 2.0;

impl Summary {
    pub(super) fn of(profile: &Profile) -> Self {
        let evidence = Evidence::of(profile);
        let Verdict { mut failure, mut doubts, mut causes } = Verdict::from_evidence(&evidence);
        if let Some(failure) = &mut failure {
            failure.host = failure.host.as_deref().map(|host| plain(host, clean::NAME));
            failure.evidence = plain(&failure.evidence, 1000);
            failure.advice = plain(&failure.advice, 1000);
        }
        doubts.iter_mut().for_each(|doubt| *doubt = plain(doubt, 300));
        for cause in &mut causes {
            cause.host = cause.host.as_deref().map(|host| plain(host, clean::NAME));
            cause.evidence = plain(&cause.evidence, 1000);
            cause.advice = plain(&cause.advice, 1000);
            if !cause.confidence.is_finite() {
                cause.confidence = 0.0;
            }
        }
        let (tone, headline) = headline(profile, &evidence, failure.as_ref(), &causes);
        Self {
            failure,
            doubts,
            tone,
            headline,
            what: what(profile),
            amounts: amounts(profile),
            missing: unmeasured::all(profile),
            evidence,
            causes,
        }
    }
}

/// The name of a host in sentences.
pub(super) fn host_name(host: &HostProfile) -> String {
    let name = plain(host.facts.name.trim(), clean::NAME);
    if !name.is_empty() {
        return name;
    }
    match host.role {
        Role::Source => "the sending machine",
        Role::Destination => "the receiving machine",
        Role::Both => "the machine",
    }
    .into()
}

pub(super) fn role(role: Role) -> &'static str {
    match role {
        Role::Source => "source",
        Role::Destination => "destination",
        Role::Both => "source and destination",
    }
}

pub(super) fn kind(kind: WorkloadKind) -> &'static str {
    match kind {
        WorkloadKind::MemoryToMemory => "memory to memory",
        WorkloadKind::MemoryToDisk => "memory to disk",
        WorkloadKind::DiskToMemory => "disk to memory",
        WorkloadKind::DiskToDisk => "disk to disk",
    }
}

/// The text of a cause after "because".
fn because(cause: &Cause, evidence: &Evidence) -> String {
    let host = cause.host.as_deref().filter(|host| !host.trim().is_empty());
    words::because(cause.kind, host, receives(cause, evidence))
}

/// Whether the cause is at the end that received the data.
pub(super) fn receives(cause: &Cause, evidence: &Evidence) -> bool {
    let is = |end: &Option<End>| {
        end.as_ref().is_some_and(|end| cause.host.as_ref() == Some(&plain(&end.name, clean::NAME)))
    };
    is(&evidence.destination) && !is(&evidence.source)
}

fn headline(
    profile: &Profile,
    evidence: &Evidence,
    failure: Option<&Failure>,
    causes: &[Cause],
) -> (Tone, String) {
    let first = causes.first();
    if let Outcome::Failed(error) = &profile.workload.outcome {
        return (Tone::Failed, failed(evidence, failure, first, error));
    }
    match first {
        Some(cause) if cause.kind == CauseKind::PathCapacity && cause.confidence >= SURE => {
            (Tone::Good, "Your transfer was as fast as the network between the machines allows.".into())
        }
        Some(cause) if cause.confidence >= SURE => {
            (Tone::Slow, format!("Your transfer was slow because {}.", because(cause, evidence)))
        }
        None if profile.hosts.is_empty() => (
            Tone::Unclear,
            "Neither machine was measured, so nothing can be said about what held your transfer back.".into(),
        ),
        _ if profile.workload.bytes == 0 => {
            (Tone::Unclear, "Nothing was moved, so there is nothing to say about what held it back.".into())
        }
        // Hosts are sampled once a second.
        _ if profile.workload.seconds < SHORT => (
            Tone::Unclear,
            format!(
                "Your transfer took {}, which is too short to tell what held it back: profile one of ten seconds or more.",
                say::time(profile.workload.seconds)
            ),
        ),
        Some(cause) => (
            Tone::Unclear,
            format!(
                "Your transfer may have been slow because {}; the measurements do not prove it.",
                because(cause, evidence)
            ),
        ),
        None => (Tone::Unclear, "Nothing that was measured held your transfer back.".into()),
    }
}

/// Describes that the transfer failed, how far it got, and why; then the cause that slowed it down
/// before.
fn failed(evidence: &Evidence, failure: Option<&Failure>, first: Option<&Cause>, error: &str) -> String {
    let error = plain(error.trim(), 300);
    let error = error.trim_end_matches('.');
    let kind = failure.map(|failure| failure.kind);
    let what = if kind == Some(FailureKind::Interrupted) { "was broken off" } else { "failed" };
    let far = evidence.failed.as_ref().map(|failed| failed.far(evidence)).unwrap_or_default();
    let mut said = format!("Your transfer {what} {far}");
    match kind {
        Some(FailureKind::Interrupted) => {}
        Some(kind) if error.is_empty() => said += &format!(": {}", words::failed(kind)),
        Some(kind) => said += &format!(": {} ({error})", words::failed(kind)),
        None if error.is_empty() => {}
        None => said += &format!(": {error}"),
    }
    said.push('.');
    let moved = evidence.failed.as_ref().is_some_and(|failed| failed.moved_until.is_some());
    match first {
        Some(cause) if cause.confidence >= SURE && cause.kind != CauseKind::PathCapacity => {
            said += &format!(" Until then it was slow because {}.", because(cause, evidence));
        }
        _ if moved && evidence.seconds < SHORT => {
            let seconds = say::time(evidence.seconds);
            said += &format!(" Data moved for {seconds}, which is too short to tell what held it back.");
        }
        _ => {}
    }
    said
}

fn what(profile: &Profile) -> String {
    let workload = &profile.workload;
    let description = plain(workload.description.trim(), 300);
    let names = match (profile.source(), profile.destination()) {
        (Some(source), Some(destination)) if !std::ptr::eq(source, destination) => {
            format!("{} → {}", host_name(source), host_name(destination))
        }
        (Some(host), _) if host.role == Role::Both => format!("within {}", host_name(host)),
        (Some(source), _) => format!("from {}", host_name(source)),
        (None, Some(destination)) => format!("to {}", host_name(destination)),
        (None, None) => String::new(),
    };
    let parts = [kind(workload.kind).to_owned(), names, description];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

fn amounts(profile: &Profile) -> String {
    let workload = &profile.workload;
    let planned = workload.planned.filter(|&planned| planned > workload.bytes);
    let planned = planned.map(|planned| format!(" of {}", say::size(planned as f64))).unwrap_or_default();
    let bytes = say::size(workload.bytes as f64);
    let mut said = format!("{bytes}{planned} in {}", say::time(workload.seconds));
    said += &format!(", {}", say::things(workload.files, "file"));
    said += &format!(", {}", say::things(workload.streams.into(), "stream"));
    if workload.files_in_flight > 1 {
        said += &format!(" for each of {} files at a time", workload.files_in_flight);
    }
    if let Some(size) = workload.block_size {
        said += &format!(", blocks of {}", say::size(size as f64));
    }
    if let Some(size) = workload.socket_buffer {
        said += &format!(", socket buffers set to {}", say::size(size as f64));
    }
    said
}

pub(super) fn collector(name: CollectorName) -> &'static str {
    match name {
        CollectorName::Sysstat => "sysstat",
        CollectorName::Proc => "proc",
        CollectorName::Perf => "perf",
        CollectorName::Tcp => "tcp",
        CollectorName::Facts => "facts",
        CollectorName::Programs => "programs",
    }
}

pub(super) fn state(state: CollectorState) -> &'static str {
    match state {
        CollectorState::Used => "used",
        CollectorState::Missing => "missing",
        CollectorState::Denied => "denied",
        CollectorState::Failed => "failed",
    }
}
