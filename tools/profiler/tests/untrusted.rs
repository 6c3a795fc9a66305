//! Profiles of other hosts are accepted only within limits.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use ropewalk_profiler::profile::{
    Clock, CollectorName, CollectorReport, CollectorState, Connection, ConnectionSample, Disk, DiskUse,
    Facts, FileSystem, FunctionShare, HostProfile, Interface, InterfaceUse, Outcome, Processor, Profile,
    ProfileError, ProfilerShares, Program, RateSample, Rings, Role, SCHEMA, Share, ShareKind, Stages,
    SweepPoint, SystemSample, Workload, schema_text,
};
use ropewalk_profiler::sweep::{Curve, CurvePoint, CurveRun, EndLoad, Spread, Sweeps};
use ropewalk_profiler::verdict::Verdict;
use serde_json::Value;

/// A host profile with one of everything.
fn host(role: Role) -> HostProfile {
    HostProfile {
        schema: SCHEMA,
        role,
        started: 1.8e9,
        clock: Clock { offset_seconds: -0.25, error_seconds: 0.01 },
        facts: Facts {
            name: "left".into(),
            processors: 2,
            governors: vec!["performance".into()],
            sysctls: [("net.ipv4.tcp_rmem".into(), "1 2 3".into())].into(),
            interfaces: vec![Interface {
                name: "eth0".into(),
                rings: Some(Rings::default()),
                offloads: [("tcp-segmentation-offload".into(), true)].into(),
                speed: Some(1),
                ..Interface::default()
            }],
            disks: vec![Disk { name: "sda".into(), ..Disk::default() }],
            file_systems: vec![FileSystem { path: "/".into(), ..FileSystem::default() }],
            ..Facts::default()
        },
        collectors: vec![CollectorReport {
            name: CollectorName::Perf,
            state: CollectorState::Denied,
            detail: "perf_event_paranoid".into(),
        }],
        system: vec![SystemSample {
            time: 1.0,
            seconds: 1.0,
            processors: vec![Processor { name: "all".into(), idle: 1.0, ..Processor::default() }],
            disks: vec![DiskUse { name: "sda".into(), utilisation: 0.5, ..DiskUse::default() }],
            interfaces: vec![InterfaceUse { name: "eth0".into(), ..InterfaceUse::default() }],
            ..SystemSample::default()
        }],
        connections: vec![Connection {
            local: "10.0.0.1:1".into(),
            remote: "10.0.0.2:2".into(),
            congestion: "cubic".into(),
            samples: vec![
                ConnectionSample { time: -0.1, busy: Some(0.0), ..ConnectionSample::default() },
                ConnectionSample {
                    time: 0.1,
                    rtt: 0.06,
                    mss: 1448,
                    busy: Some(0.1),
                    ..ConnectionSample::default()
                },
            ],
        }],
        profiler: Some(ProfilerShares {
            event: "cycles".into(),
            samples: 100,
            shares: vec![Share { kind: ShareKind::Driver, name: "tg3".into(), share: 0.5 }],
            functions: vec![FunctionShare {
                function: "tg3_poll".into(),
                object: "[tg3]".into(),
                program: "server".into(),
                share: 0.5,
            }],
            ..ProfilerShares::default()
        }),
        stages: Some(Stages { stream_seconds: 1.0, ..Stages::default() }),
        programs: vec![Program { name: "ropewalk".into(), seconds: 1.0, ..Program::default() }],
        ..HostProfile::default()
    }
}

fn profile() -> Profile {
    let mut profile = Profile {
        schema: SCHEMA,
        started: 1.8e9,
        workload: Workload {
            bytes: 1 << 30,
            seconds: 10.0,
            files: 1,
            streams: 4,
            outcome: Outcome::Failed("connection reset".into()),
            rates: vec![RateSample { time: 1.0, bytes_per_second: 1e8 }],
            ..Workload::default()
        },
        hosts: vec![host(Role::Source), host(Role::Destination)],
        ..Profile::default()
    };
    profile.baselines.streams =
        vec![SweepPoint { streams: 4, bytes_per_second: 1e8, ..SweepPoint::default() }];
    let mut point = CurvePoint {
        name: "64K".into(),
        value: Some(65536),
        refused: Some("501 no".into()),
        runs: vec![
            CurveRun { time: -1.0, round: 1, bytes_per_second: 1e8, ..CurveRun::default() },
            CurveRun { failed: Some("reset".into()), ..CurveRun::default() },
        ],
        ..CurvePoint::default()
    };
    let shares = vec![Share { kind: ShareKind::Module, name: "nfs".into(), share: 0.5 }];
    point.sum_up(&[vec![EndLoad {
        host: "left".into(),
        runs: 1,
        send_buffer: Some(1),
        shares,
        ..EndLoad::default()
    }]]);
    point.with_outliers = Some(Spread { interval: Some(1.0), ..point.rate });
    profile.sweeps = Some(Sweeps {
        rounds: 1,
        runs_wanted: 2,
        broken_off: Some("interrupted".into()),
        curves: vec![Curve {
            description: "zeros".into(),
            held: "1 file".into(),
            points: vec![point],
            ..Curve::default()
        }],
        ..Sweeps::default()
    });
    profile
}

fn read(value: &Value) -> Result<Profile, ProfileError> {
    Profile::from_json(&serde_json::to_vec(value).unwrap())
}

fn put(place: &mut Value, value: impl Into<Value>) -> bool {
    *place = value.into();
    true
}

/// Calls `change` with each value of the tree, each time in a fresh copy, and then `check` if
/// `change` returned true.
fn each_changed(whole: &Value, change: &dyn Fn(&mut Value) -> bool, check: &mut dyn FnMut(&str, &Value)) {
    fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
        found.push(at.to_owned());
        match value {
            Value::Array(list) => {
                list.iter().enumerate().for_each(|(n, value)| pointers(value, &format!("{at}/{n}"), found));
            }
            Value::Object(object) => {
                // Names of settings have dots, but neither `~` nor `/`.
                object.iter().for_each(|(name, value)| pointers(value, &format!("{at}/{name}"), found));
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    pointers(whole, "", &mut found);
    for pointer in found {
        let mut copy = whole.clone();
        if change(copy.pointer_mut(&pointer).unwrap()) {
            check(&pointer, &copy);
        }
    }
}

#[test]
fn from_json_reads_what_was_written() {
    let profile = profile();
    let bytes = serde_json::to_vec(&profile).unwrap();
    assert_eq!(Profile::from_json(&bytes).unwrap(), profile);
    let host = &profile.hosts[0];
    assert_eq!(&HostProfile::from_json(&serde_json::to_vec(host).unwrap()).unwrap(), host);
    // A newer program may write more fields.
    let mut value = serde_json::to_value(&profile).unwrap();
    value["workload"]["weather"] = "fine".into();
    assert_eq!(read(&value).unwrap(), profile);
}

#[test]
fn from_json_limits_every_string_list_and_number() {
    let whole = serde_json::to_value(profile()).unwrap();
    let mut counts = [0; 3];
    // The first pass refuses before any field is interpreted, so its error must be the one
    // returned.
    let refused = |count: &mut u32, what: &str, pointer: &str, value: &Value| {
        *count += 1;
        let error = read(value).unwrap_err().to_string();
        assert!(error.contains(what), "{pointer}: {error}");
    };
    let lengthen = |value: &mut Value| value.is_string() && put(value, "x".repeat(10_000));
    each_changed(&whole, &lengthen, &mut |pointer, value| {
        refused(&mut counts[0], "a string has 10000 bytes", pointer, value);
    });
    let fill = |value: &mut Value| value.is_array() && put(value, vec![Value::Null; 100_001]);
    each_changed(&whole, &fill, &mut |pointer, value| {
        refused(&mut counts[1], "more than 100000 entries", pointer, value);
    });
    let raise = |value: &mut Value| value.is_number() && put(value, 1e300);
    each_changed(&whole, &raise, &mut |pointer, value| {
        refused(&mut counts[2], "a number is 1e300", pointer, value);
    });
    // If only a part of the tree were walked, the test would prove nothing.
    assert!(counts[0] > 40 && counts[1] > 20 && counts[2] > 100, "{counts:?}");
}

#[test]
fn from_json_accepts_only_negative_times_and_offsets() {
    let whole = serde_json::to_value(profile()).unwrap();
    let negate = |value: &mut Value| value.is_number() && put(value, -0.05);
    each_changed(&whole, &negate, &mut |pointer, value| {
        let signed = pointer.ends_with("/time") || pointer.ends_with("/offset_seconds");
        assert_eq!(read(value).is_ok(), signed, "{pointer}");
    });
}

#[test]
fn from_json_when_values_are_impossible_fails() {
    let refused = |change: &dyn Fn(&mut Profile), what: &str| {
        let mut profile = profile();
        change(&mut profile);
        let error = Profile::from_json(&serde_json::to_vec(&profile).unwrap()).unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
    };
    refused(&|profile| profile.schema = SCHEMA + 1, "schema 2");
    refused(&|profile| profile.schema = 0, "schema 0");
    refused(&|profile| profile.hosts[1].role = Role::Source, "two of the same");
    refused(&|profile| profile.hosts.push(host(Role::Both)), "at most two");
    refused(&|profile| profile.hosts[0].connections[0].samples[1].time = -1.0, "times in order");
    refused(&|profile| profile.hosts[0].system[0].processors[0].user = 7.0, "a share");
    refused(&|profile| profile.hosts[0].system[0].disks[0].utilisation = 70.0, "utilisation");
    refused(&|profile| profile.hosts[0].profiler.as_mut().unwrap().shares[0].share = 2.0, "share");
    refused(&|profile| profile.hosts[1].schema = 9, "schema 9");
    let point = |profile: &mut Profile, change: &dyn Fn(&mut CurvePoint)| {
        change(&mut profile.sweeps.as_mut().unwrap().curves[0].points[0]);
    };
    refused(&|profile| point(profile, &|point| point.rate.mean *= 2.0), "a spread");
    refused(&|profile| point(profile, &|point| point.rate.runs = 2), "a spread's runs");
    refused(&|profile| point(profile, &|point| point.ends[0].kernel = 2.0), "kernel load");
    refused(&|profile| point(profile, &|point| point.ends = vec![EndLoad::default(); 3]), "at most two");
    let curves = |profile: &mut Profile| {
        let curves = &mut profile.sweeps.as_mut().unwrap().curves;
        curves.push(curves[0].clone());
    };
    refused(&curves, "one of each setting and way");
}

#[test]
fn from_json_limits_depth_and_size() {
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    assert!(Profile::from_json(deep.as_bytes()).is_err());
    assert!(matches!(
        Profile::from_json(&vec![b' '; Profile::LARGEST + 1]),
        Err(ProfileError::TooLarge { .. })
    ));
    // Lists of lists of zeros: few bytes, many values.
    let row = format!("[{}]", vec!["0"; 99_000].join(","));
    let many = format!("[{}]", vec![row.as_str(); 90].join(","));
    let error = Profile::from_json(many.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("values"), "{error}");
    let key = format!("{{\"{}\":1}}", "k".repeat(100_000));
    assert!(Profile::from_json(key.as_bytes()).is_err());
}

#[test]
fn schema_file_matches_the_types() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/profile.schema.json");
    let text = schema_text().unwrap();
    if std::env::var_os("ROPEWALK_WRITE_SCHEMA").is_some() {
        std::fs::write(file, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), text, "run with ROPEWALK_WRITE_SCHEMA=1 to renew it");
}

proptest! {
    #[test]
    fn from_json_accepts_or_refuses_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Profile::from_json(&bytes);
    }

    /// Every profile that can be read can be judged: without a panic, and with finite confidences.
    #[test]
    fn verdict_judges_any_numbers(seed in 0_usize..400, number in prop_oneof![Just(0.0), Just(1e18), Just(1e-300), 0.0..1e12]) {
        let mut whole = serde_json::to_value(profile()).unwrap();
        let mut at = 0;
        fn visit(value: &mut Value, at: &mut usize, wanted: usize, number: f64) {
            match value {
                Value::Number(_) => {
                    *at += 1;
                    if *at % 400 == wanted || *at == wanted / 4 {
                        *value = if number.fract() == 0.0 { (number as u64).into() } else { number.into() };
                    }
                }
                Value::Array(list) => list.iter_mut().for_each(|value| visit(value, at, wanted, number)),
                Value::Object(object) => object.values_mut().for_each(|value| visit(value, at, wanted, number)),
                _ => {}
            }
        }
        visit(&mut whole, &mut at, seed, number);
        if let Ok(profile) = read(&whole) {
            for cause in Verdict::of(&profile).causes {
                prop_assert!((0.0..=1.0).contains(&cause.confidence), "{cause:?}");
            }
        }
    }
}
