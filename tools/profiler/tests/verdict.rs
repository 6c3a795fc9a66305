//! Whole profiles with a known bottleneck, which must be ranked first.

#![allow(clippy::unwrap_used)]

use ropewalk_profiler::profile::{
    Connection, ConnectionSample, DiskUse, Facts, HostProfile, Processor, Profile, Program, RateSample, Role,
    SCHEMA, StageTime, Stages, SystemSample, Workload, WorkloadKind,
};
use ropewalk_profiler::verdict::{CauseKind, Verdict};

/// Ten seconds of a synthetic transfer: a sample of the system each second, and of the connection
/// ten times a second.
struct Made {
    profile: Profile,
}

impl Made {
    /// A transfer at this rate (bytes per second) over this round trip, in which nothing is
    /// remarkable.
    fn new(rate: f64, rtt: f64) -> Self {
        let host = |role, name: &str| HostProfile {
            schema: SCHEMA,
            role,
            started: 1.8e9,
            facts: Facts {
                name: name.into(),
                processors: 4,
                sysctls: ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"]
                    .map(|name| (name.to_owned(), "4096 131072 67108864".to_owned()))
                    .into(),
                ..Facts::default()
            },
            system: (1..=10)
                .map(|second| SystemSample {
                    time: f64::from(second),
                    seconds: 1.0,
                    processors: ["all", "0", "1"]
                        .map(|name| Processor {
                            name: name.into(),
                            user: 0.1,
                            system: 0.2,
                            idle: 0.7,
                            ..Processor::default()
                        })
                        .into(),
                    ..SystemSample::default()
                })
                .collect(),
            connections: vec![Connection {
                local: name.into(),
                samples: (0..100)
                    .map(|tenth| ConnectionSample {
                        time: f64::from(tenth) / 10.0,
                        rtt: rtt * 1.01,
                        min_rtt: Some(rtt),
                        mss: 1448,
                        cwnd: (rate * rtt / 1448.0) as u32 + 2,
                        segments_sent: Some((rate / 1448.0 * f64::from(tenth) / 10.0) as u64),
                        busy: Some(f64::from(tenth) / 10.0),
                        window_limited: Some(0.0),
                        buffer_limited: Some(0.0),
                        send_window: Some(30 << 20),
                        send_buffer: Some(20 << 20),
                        receive_buffer: Some(20 << 20),
                        unread: Some(0),
                        out_of_order: Some(0),
                        received: Some((rate * f64::from(tenth) / 10.0) as u64),
                        ..ConnectionSample::default()
                    })
                    .collect(),
                ..Connection::default()
            }],
            stages: Some(Stages {
                stream_seconds: 10.0,
                socket: StageTime { busy: 1.0, waited: 8.0 },
                ..Stages::default()
            }),
            ..HostProfile::default()
        };
        let profile = Profile {
            schema: SCHEMA,
            started: 1.8e9,
            workload: Workload {
                kind: WorkloadKind::DiskToDisk,
                bytes: (rate * 10.0) as u64,
                seconds: 10.0,
                files: 1,
                streams: 1,
                files_in_flight: 1,
                rates: (1..=10).map(|n| RateSample { time: f64::from(n), bytes_per_second: rate }).collect(),
                ..Workload::default()
            },
            hosts: vec![host(Role::Source, "left"), host(Role::Destination, "right")],
            ..Profile::default()
        };
        Self { profile }
    }

    fn samples(mut self, host: usize, change: impl Fn(&mut ConnectionSample)) -> Self {
        self.profile.hosts[host].connections[0].samples.iter_mut().for_each(change);
        self
    }

    fn with(mut self, change: impl Fn(&mut Profile)) -> Self {
        change(&mut self.profile);
        self
    }

    /// The sender's program has too little to send.
    fn starved(self) -> Self {
        self.samples(0, |sample| sample.application_limited = true)
    }

    /// Writes, reads and judges the profile. Returns the first cause and its host.
    fn verdict(&self) -> Option<(CauseKind, Option<String>)> {
        let bytes = serde_json::to_vec(&self.profile).unwrap();
        let verdict = Verdict::of(&Profile::from_json(&bytes).unwrap());
        verdict.causes.into_iter().next().map(|cause| (cause.kind, cause.host))
    }
}

fn sysctl(profile: &mut Profile, host: usize, name: &str, value: &str) {
    profile.hosts[host].facts.sysctls.insert(name.into(), value.into());
}

#[test]
fn verdict_when_nothing_is_remarkable_is_empty() {
    assert_eq!(Made::new(1e8, 0.06).verdict(), None);
    assert_eq!(Verdict::of(&Profile::default()).causes, []);
}

#[test]
fn verdict_ranks_known_bottlenecks_first() {
    let left = || Some("left".to_owned());
    let right = || Some("right".to_owned());
    let made: Vec<(Made, CauseKind, Option<String>)> = vec![
        (
            Made::new(2e7, 0.02).starved().with(|profile| {
                profile.hosts[0].stages.as_mut().unwrap().source = StageTime { busy: 0.5, waited: 8.5 };
            }),
            CauseKind::SourceDisk,
            left(),
        ),
        (
            // A foreign server, for which there are only figures of the system.
            Made::new(2e7, 0.02).starved().with(|profile| {
                profile.hosts[0].stages = None;
                for sample in &mut profile.hosts[0].system {
                    sample.disks = vec![DiskUse {
                        name: "sda".into(),
                        read: 2e7,
                        utilisation: 0.98,
                        ..DiskUse::default()
                    }];
                }
            }),
            CauseKind::SourceDisk,
            left(),
        ),
        (
            Made::new(2e7, 0.02)
                .samples(0, |sample| sample.window_limited = Some(sample.time * 0.9))
                .samples(1, |sample| sample.unread = Some(9 << 20))
                .with(|profile| {
                    profile.hosts[1].stages.as_mut().unwrap().destination =
                        StageTime { busy: 9.0, waited: 0.0 };
                }),
            CauseKind::DestinationDisk,
            right(),
        ),
        (
            Made::new(1e6, 0.06)
                .samples(0, |sample| {
                    sample.window_limited = Some(sample.time * 0.97);
                    sample.send_window = Some(65_536);
                })
                .samples(1, |sample| sample.receive_buffer = Some(131_072))
                .with(|profile| sysctl(profile, 1, "net.ipv4.tcp_rmem", "4096 131072 131072")),
            CauseKind::KernelCeiling,
            right(),
        ),
        (
            Made::new(1e6, 0.06)
                .samples(0, |sample| {
                    sample.buffer_limited = Some(sample.time * 0.9);
                    sample.send_buffer = Some(131_072);
                })
                .with(|profile| sysctl(profile, 0, "net.ipv4.tcp_wmem", "4096 16384 131072")),
            CauseKind::KernelCeiling,
            left(),
        ),
        (
            Made::new(1e6, 0.06)
                .samples(0, |sample| {
                    sample.buffer_limited = Some(sample.time * 0.9);
                    sample.send_buffer = Some(131_072);
                })
                .with(|profile| profile.workload.socket_buffer = Some(65_536)),
            CauseKind::SenderBuffer,
            left(),
        ),
        (
            Made::new(1e6, 0.06)
                .samples(0, |sample| {
                    sample.window_limited = Some(sample.time * 0.97);
                    sample.send_window = Some(65_536);
                })
                .samples(1, |sample| sample.receive_buffer = Some(131_072)),
            CauseKind::ReceiverWindow,
            right(),
        ),
        (
            Made::new(24e6, 0.03).samples(0, |sample| {
                sample.rtt = 0.05;
                sample.retransmitted = (sample.time * 2.0) as u32;
            }),
            CauseKind::PathCapacity,
            None,
        ),
        (
            Made::new(3e6, 0.03)
                .samples(0, |sample| {
                    sample.rtt = 0.045;
                    sample.retransmitted = (sample.time * 20.0) as u32;
                })
                .samples(1, |sample| {
                    sample.received = Some((3e6 * (sample.time + 0.3 * sample.time.sin())) as u64);
                })
                .with(|profile| {
                    for (n, sample) in profile.workload.rates.iter_mut().enumerate() {
                        sample.bytes_per_second *= if n % 2 == 0 { 0.5 } else { 1.5 };
                    }
                }),
            CauseKind::CongestionLoss,
            None,
        ),
        (
            Made::new(1.5e6, 0.04).samples(0, |sample| sample.retransmitted = (sample.time * 1.05) as u32),
            CauseKind::NonCongestiveLoss,
            None,
        ),
        (
            Made::new(1e8, 0.01).with(|profile| {
                for sample in &mut profile.hosts[1].system {
                    let busy = Processor {
                        name: "1".into(),
                        user: 0.02,
                        system: 0.2,
                        softirq: 0.77,
                        ..Processor::default()
                    };
                    sample.processors[2] = busy;
                }
            }),
            CauseKind::CpuInterrupt,
            right(),
        ),
        (
            Made::new(1e8, 0.01).starved().with(|profile| {
                for sample in &mut profile.hosts[0].system {
                    sample.processors[1] =
                        Processor { name: "0".into(), user: 0.95, system: 0.05, ..Processor::default() };
                }
                profile.hosts[0].stages.as_mut().unwrap().encryption = StageTime { busy: 8.0, waited: 0.0 };
            }),
            CauseKind::CpuEncryption,
            left(),
        ),
        (
            Made::new(2e7, 0.01).starved().with(|profile| {
                for sample in &mut profile.hosts[0].system {
                    sample.processors[1] =
                        Processor { name: "0".into(), user: 0.95, system: 0.05, ..Processor::default() };
                }
                profile.hosts[0].programs = vec![Program {
                    name: "server".into(),
                    seconds: 10.0,
                    user: 2.0,
                    system: 0.5,
                    waited_for_processor: Some(7.4),
                    processors: Some(1),
                    ..Program::default()
                }];
            }),
            CauseKind::CpuCompeting,
            left(),
        ),
        (
            Made::new(1e5, 0.1).starved().with(|profile| {
                profile.workload.files = 100;
                profile.baselines.path = Some(1e7);
            }),
            CauseKind::SmallFiles,
            None,
        ),
        (
            Made::new(1.1e6, 0.03).with(|profile| {
                profile.baselines.path = Some(1.2e6);
                profile.baselines.path_back = Some(24e6);
            }),
            CauseKind::AsymmetricPath,
            None,
        ),
        (Made::new(1e6, 0.05).starved(), CauseKind::PeerServer, left()),
    ];
    let wrong: Vec<String> = made
        .iter()
        .map(|(made, kind, host)| (made.verdict(), Some((*kind, host.clone()))))
        .filter(|(found, wanted)| found != wanted)
        .map(|(found, wanted)| format!("{found:?} instead of {wanted:?}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn verdict_ignores_samples_outside_the_transfer() {
    // The same busy processor, but before and after the transfer, by a clock that is an hour ahead.
    let made = Made::new(1e8, 0.01).with(|profile| {
        let host = &mut profile.hosts[0];
        host.started += 3600.0;
        host.clock.offset_seconds = 3600.0;
        let busy = Processor { name: "0".into(), system: 1.0, ..Processor::default() };
        let sample = |time| SystemSample {
            time,
            seconds: 1.0,
            processors: vec![busy.clone()],
            ..SystemSample::default()
        };
        host.system.insert(0, sample(-50.0));
        host.system.extend([20.0, 30.0].map(sample));
    });
    assert_eq!(made.verdict(), None);
    let made = made.starved().with(|profile| {
        profile.hosts[0].system.iter_mut().for_each(|sample| {
            sample.processors = vec![Processor { name: "0".into(), system: 1.0, ..Processor::default() }];
        });
    });
    assert_eq!(made.verdict(), Some((CauseKind::CpuCopy, Some("left".to_owned()))));
}
