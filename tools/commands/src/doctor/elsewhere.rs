//! The changes that the other end of a transfer needs.

use ropewalk_profiler::doctor::{Check, CheckState, Goal, checks};
use ropewalk_profiler::profile::Profile;
use ropewalk_profiler::verdict::{CauseKind, Verdict};
use serde::Serialize;

/// The other end, if its settings are too small.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Elsewhere {
    pub(super) host: String,
    /// How the transfer showed that this end limits it; `None` if only the settings say so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) evidence: Option<String>,
    /// Settings that keep it from the goal.
    pub(super) settings: Vec<Check>,
    /// The command to run there.
    pub(super) command: String,
}

impl Elsewhere {
    /// `here` is this host's index among those of the profile. Returns `None` if the other end was
    /// not measured, or is ready.
    pub(super) fn of(profile: &Profile, here: Option<usize>, goal: &Goal) -> Option<Self> {
        let (_, host) = profile.hosts.iter().enumerate().find(|(place, _)| Some(*place) != here)?;
        let name = host.facts.name.clone();
        let own = here.and_then(|here| profile.hosts.get(here)).map(|host| host.facts.name.as_str());
        let first = Verdict::of(profile).causes.into_iter().next();
        // The profile names hosts, so that two hosts of the same name cannot be distinguished.
        let evidence = first
            .filter(|cause| cause.kind == CauseKind::KernelCeiling && own != Some(name.as_str()))
            .filter(|cause| cause.host.as_deref() == Some(name.as_str()))
            .map(|cause| cause.evidence);
        let settings: Vec<Check> = checks(&host.facts, goal)
            .into_iter()
            .filter(|check| check.state == CheckState::Bad && check.set.is_some())
            .collect();
        if evidence.is_none() && settings.is_empty() {
            return None;
        }
        let (rate, rtt) = (goal.bits(), goal.rtt * 1e3);
        let command = format!("ropewalk doctor --rate {rate:.0}bit/s --rtt {rtt:.3}ms --apply");
        Some(Self { host: name, evidence, settings, command })
    }

    pub(super) fn text(&self) -> String {
        let host = if self.host.is_empty() { "the other end" } else { &self.host };
        let settings: Vec<String> =
            self.settings.iter().map(|check| format!("{} = {}", check.name, check.found)).collect();
        let small = if settings.is_empty() { String::new() } else { format!(" ({})", settings.join(", ")) };
        match &self.evidence {
            Some(evidence) => format!(
                "{host}, the other end, limits the transfer: {evidence}. Settings of this host \
                 cannot help before that is fixed. Run there: {}",
                self.command
            ),
            None => format!(
                "{host}, the other end, is not ready for this link either{small}. Run there: {}",
                self.command
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_profiler::profile::{
        Connection, ConnectionSample, Facts, HostProfile, Role, SCHEMA, Workload,
    };

    use super::*;

    fn host(name: &str, role: Role, wmem: &str) -> HostProfile {
        let sysctls = [("net.ipv4.tcp_wmem", wmem), ("net.ipv4.tcp_rmem", "4096 131072 134217728")];
        let sysctls = sysctls.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let facts = Facts { name: name.into(), sysctls: sysctls.into(), ..Facts::default() };
        HostProfile { schema: SCHEMA, role, facts, ..HostProfile::default() }
    }

    /// A download from `right`, whose send buffers may not grow.
    fn profile() -> Profile {
        let mut right = host("right", Role::Source, "4096 16384 262144");
        let samples = (1..100).map(|n| ConnectionSample {
            time: f64::from(n) / 10.0,
            rtt: 0.03,
            cwnd: 1000,
            mss: 1448,
            acknowledged: Some(n as u64 * 400_000),
            busy: Some(f64::from(n) / 10.0),
            window_limited: Some(0.0),
            buffer_limited: Some(f64::from(n) / 12.0),
            send_buffer: Some(262_144),
            queued: Some(262_144),
            unsent: Some(0),
            ..ConnectionSample::default()
        });
        right.connections = vec![Connection { samples: samples.collect(), ..Connection::default() }];
        let left = host("left", Role::Destination, "4096 16384 67108864");
        let workload =
            Workload { bytes: 40_000_000, seconds: 10.0, files: 1, streams: 1, ..Workload::default() };
        Profile { schema: SCHEMA, workload, hosts: vec![right, left], ..Profile::default() }
    }

    const GOAL: Goal = Goal { rate: 125e6, rtt: 0.03 };

    #[test]
    fn other_end_gets_a_command_to_run() {
        let there = Elsewhere::of(&profile(), Some(1), &GOAL).unwrap();
        assert_eq!((there.host.as_str(), there.settings.len()), ("right", 1));
        assert!(there.evidence.as_ref().unwrap().contains("tcp_wmem"), "{there:?}");
        assert!(there.text().ends_with("ropewalk doctor --rate 1000000000bit/s --rtt 30.000ms --apply"));
        // From the point of view of the other host.
        assert_eq!(Elsewhere::of(&profile(), Some(0), &GOAL), None);
    }

    #[test]
    fn unknown_end_gives_no_advice() {
        let mut alone = profile();
        alone.hosts.remove(0);
        assert_eq!(Elsewhere::of(&alone, Some(0), &GOAL), None);
        // If both have the same name, only the settings are evidence.
        let mut same = profile();
        same.hosts[1].facts.name = "right".into();
        let there = Elsewhere::of(&same, Some(1), &GOAL).unwrap();
        assert!(
            there.evidence.is_none() && there.text().contains("tcp_wmem = 4096 16384 262144"),
            "{there:?}"
        );
    }
}
