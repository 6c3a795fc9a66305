//! Lists the values that a report lacks, with the reasons, each thing once.

use super::clean::plain;
use super::say;
use super::summary::{collector, host_name, state};
use crate::profile::{CollectorName, CollectorState, HostProfile, Profile};

/// One line for each thing that was not measured.
pub(super) fn all(profile: &Profile) -> Vec<String> {
    let mut all = Vec::new();
    for (there, which) in
        [(profile.source().is_some(), "sending"), (profile.destination().is_some(), "receiving")]
    {
        if !there {
            all.push(format!("the {which} machine"));
        }
    }
    // A thing that is missing at both ends for the same reason is listed once.
    let mut at: Vec<(String, Vec<String>)> = Vec::new();
    for host in &profile.hosts {
        let name = host_name(host);
        for (thing, why) in things(host) {
            let text = format!("{thing}\0{why}");
            match at.iter_mut().find(|(other, _)| *other == text) {
                Some((_, names)) if names.contains(&name) => {}
                Some((_, names)) => names.push(name.clone()),
                None => at.push((text, vec![name.clone()])),
            }
        }
    }
    for (text, names) in at {
        let (thing, why) = text.split_once('\0').unwrap_or((&text, ""));
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        all.push(format!("{thing} on {}{why}", names.join(" and ")));
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

/// The missing things of a host, with the reasons of their collectors, and further collectors that
/// were not used or failed.
fn things(host: &HostProfile) -> Vec<(String, String)> {
    let parts: [(bool, &str, &[CollectorName]); 4] = [
        (
            !host.system.is_empty(),
            "processors, disks and network",
            &[CollectorName::Proc, CollectorName::Sysstat],
        ),
        (!host.connections.is_empty(), "connections", &[CollectorName::Tcp]),
        (host.stages.is_some(), "where the engine's time went", &[]),
        (host.profiler.is_some(), "shares of processor time by program and module", &[CollectorName::Perf]),
    ];
    let mut all: Vec<(String, String)> = Vec::new();
    let mut told: Vec<CollectorName> = Vec::new();
    for (there, thing, by) in parts {
        if there {
            continue;
        }
        let reasons = host.collectors.iter().filter(|report| by.contains(&report.name));
        let mut why = Vec::new();
        for report in reasons.filter(|report| report.state != CollectorState::Used) {
            told.push(report.name);
            why.push(format!("{} {}{}", collector(report.name), state(report.state), detail(&report.detail)));
        }
        all.push((thing.to_owned(), why.join(", ")));
    }
    for report in host.collectors.iter().filter(|report| report.state != CollectorState::Used) {
        if told.contains(&report.name) {
            continue;
        }
        told.push(report.name);
        let why = format!("{}{}", state(report.state), detail(&report.detail));
        all.push((collector(report.name).to_owned(), why));
    }
    all
}

fn detail(text: &str) -> String {
    let text = plain(text.trim(), 200);
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{CollectorReport, Facts, Role, Stages, SystemSample};

    fn host(role: Role, name: &str, reports: &[(CollectorName, CollectorState, &str)]) -> HostProfile {
        let reports = reports.iter().map(|&(name, state, detail)| CollectorReport {
            name,
            state,
            detail: detail.into(),
        });
        HostProfile {
            role,
            facts: Facts { name: name.into(), ..Facts::default() },
            system: vec![SystemSample::default()],
            stages: Some(Stages::default()),
            collectors: reports.collect(),
            ..HostProfile::default()
        }
    }

    fn lines(hosts: Vec<HostProfile>) -> Vec<String> {
        all(&Profile { hosts, ..Profile::default() })
    }

    #[test]
    fn unmeasured_lists_each_thing_once() {
        let perf = (CollectorName::Perf, CollectorState::Denied, "perf_event_paranoid is 4");
        let sysstat = (CollectorName::Sysstat, CollectorState::Missing, "no sar");
        let source = || host(Role::Source, "left", &[perf, sysstat]);
        let same = lines(vec![source(), host(Role::Destination, "left", &[perf, sysstat])]);
        let expected = [
            "connections on left",
            "shares of processor time by program and module on left: perf denied (perf_event_paranoid is 4)",
            "sysstat on left: missing (no sar)",
            "baselines (what path and disks reach by themselves)",
        ];
        assert_eq!(same, expected);
        let two = lines(vec![source(), host(Role::Destination, "right", &[sysstat])]);
        assert_eq!(two[0], "connections on left and right");
        assert!(two.contains(&"sysstat on left and right: missing (no sar)".to_owned()), "{two:#?}");
        assert!(
            two.contains(&"shares of processor time by program and module on right".to_owned()),
            "{two:#?}"
        );
    }

    #[test]
    fn unmeasured_when_a_reason_repeats_lists_it_once() {
        let tcp = (CollectorName::Tcp, CollectorState::Failed, "a\0b\x1b[2J");
        let lines = lines(vec![host(Role::Both, "h", &[tcp, tcp])]);
        let of_tcp = lines.iter().filter(|line| line.contains("tcp")).count();
        assert_eq!(of_tcp, 1, "{lines:#?}");
        assert!(lines.iter().all(|line| !line.contains(['\0', '\x1b'])), "{lines:#?}");
    }
}
