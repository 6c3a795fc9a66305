//! Computes the load of the hosts in a run, in figures that can be averaged.

use std::collections::BTreeMap;

use super::model::EndLoad;
use crate::profile::{Role, Share, ShareKind};
#[cfg(feature = "report")]
use crate::{
    profile::{HostProfile, Profile},
    report::ends::Load,
};

/// Number of shares that are kept; the rest are small.
const SHARES: usize = 40;

impl EndLoad {
    /// The loads of the hosts of one run, source first. Hosts whose system was not sampled during
    /// the run are left out.
    #[cfg(feature = "report")]
    pub fn of(profile: &Profile) -> Vec<Self> {
        profile.hosts.iter().filter_map(|host| Self::of_host(host, profile)).collect()
    }

    #[cfg(feature = "report")]
    fn of_host(host: &HostProfile, profile: &Profile) -> Option<Self> {
        let load = Load::of(host, profile)?;
        let samples = || host.connections.iter().flat_map(|connection| &connection.samples);
        let mut shares = host.profiler.as_ref().map(|profiler| profiler.shares.clone()).unwrap_or_default();
        shares.sort_by(|a, b| b.share.total_cmp(&a.share));
        shares.truncate(SHARES);
        Some(Self {
            role: host.role,
            host: host.facts.name.chars().take(200).collect(),
            runs: 1,
            load: load.mean.min(1.0),
            peak: load.peak.min(1.0),
            kernel: load.kernel.min(1.0),
            disk_transfers: load.disks.iter().map(|disk| disk.transfers).sum(),
            disk_read: load.disks.iter().map(|disk| disk.read).sum(),
            disk_written: load.disks.iter().map(|disk| disk.written).sum(),
            packets_received: load.interfaces.iter().map(|one| one.received_packets).sum(),
            packets_sent: load.interfaces.iter().map(|one| one.sent_packets).sum(),
            retransmitted: load.segments_retransmitted,
            send_buffer: samples().filter_map(|sample| sample.send_buffer).max(),
            receive_buffer: samples().filter_map(|sample| sample.receive_buffer).max(),
            shares,
        })
    }

    /// Computes means, one for each role.
    pub(super) fn mean<'a>(all: impl IntoIterator<Item = &'a Self>) -> Vec<Self> {
        let mut by_role: [(Role, Vec<&Self>); 3] =
            [Role::Source, Role::Destination, Role::Both].map(|role| (role, Vec::new()));
        for one in all {
            by_role.iter_mut().filter(|(role, _)| *role == one.role).for_each(|(_, list)| list.push(one));
        }
        by_role.iter().filter(|(_, list)| !list.is_empty()).map(|(role, list)| mean(*role, list)).collect()
    }
}

/// The mean of the loads of one role. `all` is not empty.
fn mean(role: Role, all: &[&EndLoad]) -> EndLoad {
    let count = all.len() as f64;
    let of = |value: fn(&EndLoad) -> f64| all.iter().map(|one| value(one)).sum::<f64>() / count;
    // Runs without a profiler have no shares. In runs with shares, a part that is missing counts as
    // 0.
    let profiled = all.iter().filter(|one| !one.shares.is_empty()).count().max(1) as f64;
    let mut shares: BTreeMap<(ShareKind, &str), f64> = BTreeMap::new();
    for part in all.iter().flat_map(|one| &one.shares) {
        *shares.entry((part.kind, part.name.as_str())).or_default() += part.share / profiled;
    }
    let mut shares: Vec<Share> = shares
        .into_iter()
        .map(|((kind, name), share)| Share { kind, name: name.to_owned(), share })
        .collect();
    shares.sort_by(|a, b| b.share.total_cmp(&a.share));
    shares.truncate(SHARES);
    EndLoad {
        role,
        host: all.first().map(|one| one.host.clone()).unwrap_or_default(),
        runs: all.iter().map(|one| one.runs).fold(0, u32::saturating_add),
        load: of(|one| one.load),
        peak: all.iter().map(|one| one.peak).fold(0.0, f64::max),
        kernel: of(|one| one.kernel),
        disk_transfers: of(|one| one.disk_transfers),
        disk_read: of(|one| one.disk_read),
        disk_written: of(|one| one.disk_written),
        packets_received: of(|one| one.packets_received),
        packets_sent: of(|one| one.packets_sent),
        retransmitted: of(|one| one.retransmitted),
        send_buffer: all.iter().filter_map(|one| one.send_buffer).max(),
        receive_buffer: all.iter().filter_map(|one| one.receive_buffer).max(),
        shares,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_load_mean_is_by_role() {
        let part = |name: &str, share| Share { kind: ShareKind::Module, name: name.into(), share };
        let end = |role, kernel, shares: &[(&str, f64)]| EndLoad {
            role,
            kernel,
            peak: kernel,
            runs: 1,
            receive_buffer: Some((kernel * 100.0) as u64),
            shares: shares.iter().map(|(name, share)| part(name, *share)).collect(),
            ..EndLoad::default()
        };
        let all = [
            end(Role::Destination, 0.1, &[]),
            end(Role::Source, 0.5, &[("nfs", 0.4), ("tg3", 0.2)]),
            end(Role::Source, 0.7, &[("tg3", 0.8)]),
            // The profiler's data of this run was lost, so the run has no shares.
            end(Role::Source, 0.6, &[]),
        ];
        let found = EndLoad::mean(&all);
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].role, found[0].runs, found[0].peak, found[0].receive_buffer),
            (Role::Source, 3, 0.7, Some(70))
        );
        assert!((found[0].kernel - 0.6).abs() < 1e-9);
        assert_eq!(found[0].shares[0].name, "tg3");
        assert!(
            (found[0].shares[0].share - 0.5).abs() < 1e-9 && (found[0].shares[1].share - 0.2).abs() < 1e-9
        );
        assert_eq!(found[1].role, Role::Destination);
        assert!(EndLoad::mean([]).is_empty());
    }
}
