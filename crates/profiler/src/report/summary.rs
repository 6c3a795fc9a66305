//! What all forms of the report say.

use super::clean::{self, plain};
use super::{say, words};
use crate::profile::{CollectorName, CollectorState, HostProfile, Outcome, Profile, Role, WorkloadKind};
use crate::verdict::{Cause, CauseKind, Evidence, Verdict};

/// How good the news is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    Slow,
    Unclear,
    Failed,
}

/// A profile's essence. Texts are plain already.
pub(super) struct Summary {
    pub(super) evidence: Evidence,
    pub(super) causes: Vec<Cause>,
    pub(super) tone: Tone,
    /// One sentence for everybody.
    pub(super) headline: String,
    /// The transfer in one line.
    pub(super) what: String,
    /// Amount, time, files, streams.
    pub(super) amounts: String,
    /// What was not measured, and why.
    pub(super) missing: Vec<String>,
}

/// Confidence from which a cause is called the reason.
const SURE: f64 = 0.6;
/// Seconds of a transfer in which hosts are seen too seldom for a silence of the rules to say anything.
const SHORT: f64 = 2.0;

impl Summary {
    pub(super) fn of(profile: &Profile) -> Self {
        let evidence = Evidence::of(profile);
        let mut causes = Verdict::from_evidence(&evidence).causes;
        for cause in &mut causes {
            cause.host = cause.host.as_deref().map(|host| plain(host, clean::NAME));
            cause.evidence = plain(&cause.evidence, 1000);
            cause.advice = plain(&cause.advice, 1000);
            if !cause.confidence.is_finite() {
                cause.confidence = 0.0;
            }
        }
        let (tone, headline) = headline(profile, &causes);
        Self {
            tone,
            headline,
            what: what(profile),
            amounts: amounts(profile),
            missing: missing(profile),
            evidence,
            causes,
        }
    }
}

/// A host as it is called in sentences.
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

/// A cause's sentence after "because".
pub(super) fn because(cause: &Cause) -> String {
    let at = cause.host.as_deref().filter(|host| !host.trim().is_empty()).unwrap_or("one of the machines");
    words::because(cause.kind, at)
}

fn headline(profile: &Profile, causes: &[Cause]) -> (Tone, String) {
    let first = causes.first();
    if let Outcome::Failed(error) = &profile.workload.outcome {
        let error = plain(error, 300);
        let mut said = format!("Your transfer failed: {}", error.trim_end_matches('.'));
        said.push('.');
        if let Some(cause) = first.filter(|cause| cause.kind != CauseKind::PathCapacity) {
            said += &format!(" Until then it was slow because {}.", because(cause));
        }
        return (Tone::Failed, said);
    }
    match first {
        Some(cause) if cause.kind == CauseKind::PathCapacity && cause.confidence >= SURE => {
            (Tone::Good, "Your transfer was as fast as the network between the machines allows.".into())
        }
        Some(cause) if cause.confidence >= SURE => {
            (Tone::Slow, format!("Your transfer was slow because {}.", because(cause)))
        }
        None if profile.hosts.is_empty() => (
            Tone::Unclear,
            "Neither machine was measured, so nothing can be said about what held your transfer back.".into(),
        ),
        _ if profile.workload.bytes == 0 => {
            (Tone::Unclear, "Nothing was moved, so there is nothing to say about what held it back.".into())
        }
        // Hosts are looked at once a second.
        _ if profile.workload.seconds < SHORT => (
            Tone::Unclear,
            format!(
                "Your transfer took {}, which is too short to see what held it back: profile one of ten seconds or more.",
                say::time(profile.workload.seconds)
            ),
        ),
        Some(cause) => (
            Tone::Unclear,
            format!(
                "Your transfer may have been slow because {}; the measurements do not prove it.",
                because(cause)
            ),
        ),
        None => (Tone::Unclear, "Nothing that was measured held your transfer back.".into()),
    }
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
    let mut said = format!("{} in {}", say::size(workload.bytes as f64), say::time(workload.seconds));
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

fn missing(profile: &Profile) -> Vec<String> {
    let mut all = Vec::new();
    for (there, which) in
        [(profile.source().is_some(), "sending"), (profile.destination().is_some(), "receiving")]
    {
        if !there {
            all.push(format!("the {which} machine"));
        }
    }
    for host in &profile.hosts {
        let at = host_name(host);
        for report in host.collectors.iter().filter(|report| report.state != CollectorState::Used) {
            let detail = plain(report.detail.trim(), 200);
            let why = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
            all.push(format!("{} on {at}: {}{why}", collector(report.name), state(report.state)));
        }
        for (there, name) in [
            (!host.system.is_empty(), "processors, disks and network"),
            (!host.connections.is_empty(), "connections"),
            (host.stages.is_some(), "where the engine's time went"),
            (host.profiler.is_some(), "shares of processor time by program and module"),
        ] {
            if !there {
                all.push(format!("{name} on {at}"));
            }
        }
    }
    for (host, seconds) in super::kinds::cut_short(profile) {
        let (at, seconds) = (host_name(host), say::time(seconds));
        all.push(format!("the last {seconds} on {at}, whose profile was over before the transfer"));
    }
    let baselines = &profile.baselines;
    if baselines.path.is_none() && baselines.source_disk.is_none() && baselines.destination_disk.is_none() {
        all.push("baselines (what path and disks reach by themselves)".into());
    }
    all
}
