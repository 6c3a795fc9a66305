//! Means and peaks of a host over the transfer.

use std::collections::BTreeMap;

use super::clean::{self, plain};
use crate::profile::{HostProfile, Processor, Profile, SystemSample};

/// The load of a host. Shares of processor time refer to all processors; rates are per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Load {
    pub(crate) mean: f64,
    pub(crate) peak: f64,
    /// Share of the time in the kernel, for programs and for interrupts.
    pub(crate) kernel: f64,
    pub(crate) iowait: f64,
    pub(crate) steal: f64,
    /// Name and means of each processor.
    pub(crate) processors: Vec<(String, Processor)>,
    pub(crate) disks: Vec<Disk>,
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) memory: Memory,
    pub(crate) segments_retransmitted: f64,
    pub(crate) context_switches: f64,
    pub(crate) interrupts: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Disk {
    pub(crate) name: String,
    pub(crate) transfers: f64,
    pub(crate) read: f64,
    pub(crate) written: f64,
    pub(crate) queue: f64,
    pub(crate) wait: f64,
    pub(crate) utilisation: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) received_packets: f64,
    pub(crate) sent_packets: f64,
    pub(crate) received_bytes: f64,
    pub(crate) sent_bytes: f64,
    pub(crate) errors: f64,
    pub(crate) dropped: f64,
}

/// Largest values over the transfer, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) used: u64,
    pub(crate) dirty: u64,
    pub(crate) swap_total: u64,
    pub(crate) swap_used: u64,
}

/// Limit on processors, disks and interfaces that are listed; further ones are only counted.
pub(crate) const MOST: usize = 64;

/// Values by the original name of a device. Two devices whose names differ only in characters that
/// are not shown stay separate.
type ByName<'a, T> = BTreeMap<&'a str, Vec<&'a T>>;

/// Samples that overlap with the transfer, with their times by the profile's clock.
pub(crate) fn during<'a>(host: &'a HostProfile, profile: &Profile) -> Vec<(f64, &'a SystemSample)> {
    let length = profile.workload.seconds;
    host.system
        .iter()
        .map(|sample| (host.aligned(sample.time, profile.started), sample))
        .filter(|(time, sample)| *time > 0.0 && (length <= 0.0 || time - sample.seconds < length))
        .collect()
}

impl Load {
    /// Computes the load; `None` if the host's system was not sampled during the transfer.
    pub(crate) fn of(host: &HostProfile, profile: &Profile) -> Option<Self> {
        let samples: Vec<&SystemSample> =
            during(host, profile).into_iter().map(|(_, sample)| sample).collect();
        if samples.is_empty() {
            return None;
        }
        let (mut processors, mut disks, mut interfaces) = (ByName::new(), ByName::new(), ByName::new());
        for sample in &samples {
            sample
                .processors
                .iter()
                .for_each(|one| processors.entry(one.name.as_str()).or_default().push(one));
            sample.disks.iter().for_each(|one| disks.entry(one.name.as_str()).or_default().push(one));
            sample
                .interfaces
                .iter()
                .for_each(|one| interfaces.entry(one.name.as_str()).or_default().push(one));
        }
        let all = processors.remove("all").unwrap_or_default();
        let mut processors: Vec<(String, Processor)> = processors
            .into_iter()
            .map(|(name, parts)| (plain(name, clean::NAME), processor(&parts)))
            .collect();
        // Sort by number, so that "10" comes after "9".
        processors.sort_by_key(|(name, _)| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
        let mut disks: Vec<Disk> = disks
            .into_iter()
            .map(|(name, parts)| Disk {
                name: plain(name, clean::NAME),
                transfers: mean(&parts, |part| part.transfers),
                read: mean(&parts, |part| part.read),
                written: mean(&parts, |part| part.written),
                queue: mean(&parts, |part| part.queue),
                wait: mean(&parts, |part| part.wait),
                utilisation: mean(&parts, |part| part.utilisation).min(1.0),
            })
            .collect();
        disks.sort_by(|a, b| (b.read + b.written).total_cmp(&(a.read + a.written)));
        let mut interfaces: Vec<Interface> = interfaces
            .into_iter()
            .map(|(name, parts)| Interface {
                name: plain(name, clean::NAME),
                received_packets: mean(&parts, |part| part.received_packets),
                sent_packets: mean(&parts, |part| part.sent_packets),
                received_bytes: mean(&parts, |part| part.received_bytes),
                sent_bytes: mean(&parts, |part| part.sent_bytes),
                errors: mean(&parts, |part| part.errors),
                dropped: mean(&parts, |part| part.dropped),
            })
            .collect();
        interfaces
            .sort_by(|a, b| (b.received_bytes + b.sent_bytes).total_cmp(&(a.received_bytes + a.sent_bytes)));
        let most = |of: fn(&SystemSample) -> u64| samples.iter().map(|sample| of(sample)).max().unwrap_or(0);
        let whole = processor(&all);
        Some(Self {
            mean: whole.busy(),
            peak: all.iter().map(|one| one.busy()).fold(0.0, f64::max),
            kernel: whole.system + whole.irq + whole.softirq,
            iowait: whole.iowait,
            steal: whole.steal,
            processors,
            disks,
            interfaces,
            memory: Memory {
                total: most(|sample| sample.memory.total),
                used: most(|sample| sample.memory.total.saturating_sub(sample.memory.available)),
                dirty: most(|sample| sample.memory.dirty),
                swap_total: most(|sample| sample.memory.swap_total),
                swap_used: most(|sample| sample.memory.swap_used),
            },
            segments_retransmitted: mean(&samples, |sample| sample.tcp.retransmitted),
            context_switches: mean(&samples, |sample| sample.context_switches),
            interrupts: mean(&samples, |sample| sample.interrupts),
        })
    }

    /// The processor that worked most.
    pub(crate) fn busiest(&self) -> Option<&(String, Processor)> {
        self.processors.iter().max_by(|a, b| a.1.busy().total_cmp(&b.1.busy()))
    }
}

fn mean<T>(parts: &[&T], of: impl Fn(&T) -> f64) -> f64 {
    let values = parts.iter().map(|part| of(part)).filter(|value| value.is_finite());
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    if count == 0 { 0.0 } else { sum / f64::from(count) }
}

fn processor(parts: &[&Processor]) -> Processor {
    Processor {
        name: String::new(),
        user: mean(parts, |part| part.user),
        system: mean(parts, |part| part.system),
        iowait: mean(parts, |part| part.iowait),
        irq: mean(parts, |part| part.irq),
        softirq: mean(parts, |part| part.softirq),
        steal: mean(parts, |part| part.steal),
        idle: mean(parts, |part| part.idle),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::profile::{DiskUse, MemoryUse, Workload};

    fn sample(time: f64, user: f64, softirq: f64) -> SystemSample {
        let processor = |name: &str, scale: f64| Processor {
            name: name.into(),
            user: user * scale,
            softirq,
            ..Processor::default()
        };
        SystemSample {
            time,
            seconds: 1.0,
            processors: vec![processor("all", 1.0), processor("10", 1.0), processor("9", 2.0)],
            disks: vec![
                DiskUse { name: "idle".into(), ..DiskUse::default() },
                DiskUse { name: "sda".into(), read: 100.0, utilisation: 1.2, ..DiskUse::default() },
            ],
            memory: MemoryUse { total: 100, available: 40, ..MemoryUse::default() },
            ..SystemSample::default()
        }
    }

    #[test]
    fn load_ignores_samples_outside_of_the_transfer() {
        let host = HostProfile {
            system: vec![
                sample(-5.0, 1.0, 0.0),
                sample(1.0, 0.2, 0.1),
                sample(2.0, 0.4, 0.1),
                sample(9.0, 1.0, 0.0),
            ],
            ..HostProfile::default()
        };
        let profile =
            Profile { workload: Workload { seconds: 2.0, ..Workload::default() }, ..Profile::default() };
        let load = Load::of(&host, &profile).unwrap();
        assert!((load.mean - 0.4).abs() < 1e-9 && (load.peak - 0.5).abs() < 1e-9, "{load:?}");
        assert!((load.kernel - 0.1).abs() < 1e-9);
        let names: Vec<&str> = load.processors.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((names, load.busiest().unwrap().0.as_str()), (vec!["9", "10"], "9"));
        assert_eq!((load.disks[0].name.as_str(), load.disks[0].utilisation), ("sda", 1.0));
        assert_eq!(load.memory.used, 60);
        assert_eq!(Load::of(&HostProfile::default(), &profile), None);
    }
}
