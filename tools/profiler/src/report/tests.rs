//! Tests of whole reports.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::clean::columns;
use super::{Extras, Side, compare_html, compare_terminal, html, terminal};
use crate::profile::{
    Clock, CollectorName, CollectorReport, CollectorState, Connection, ConnectionSample, Disk, DiskUse,
    Doing, Facts, FailureKind, FileSystem, FunctionShare, HostProfile, Interface, InterfaceUse, MemoryUse,
    Outcome, Processor, Profile, ProfilerShares, Program, RateSample, Rings, Role, SCHEMA, Share, ShareKind,
    StageTime, Stages, SweepPoint, SystemSample, TcpUse, Workload,
};
use crate::sweep::{Curve, CurvePoint, CurveRun, EndLoad, Knob, Sweeps, Way};

/// Text that a browser or a terminal would interpret if it were not escaped.
const HOSTILE: &str = "</title></style></text></svg><script>alert('x')</script><img src=x onerror=\"alert(1)\">&amp;\x1b]0;\x07\u{9b}2J\u{202e}";

/// A profile with every field, with this text in every text field.
fn full(text: &str, seconds: u32, connections: usize) -> Profile {
    let host = |role: Role| HostProfile {
        schema: SCHEMA,
        role,
        started: 1.8e9 + 3.0,
        clock: Clock { offset_seconds: 3.0, error_seconds: 0.001 },
        facts: Facts {
            name: text.into(),
            kernel: text.into(),
            processors: 4,
            processor_model: text.into(),
            governors: vec![text.into()],
            memory: 1 << 34,
            sysctls: [
                (text.to_owned(), text.to_owned()),
                ("net.ipv4.tcp_rmem".into(), text.into()),
                ("net.ipv4.tcp_wmem".into(), "4096 16384 131072".into()),
            ]
            .into(),
            interfaces: vec![Interface {
                name: text.into(),
                default_route: true,
                speed: Some(1_000_000_000),
                mtu: Some(1500),
                qdisc: Some(text.into()),
                driver: Some(text.into()),
                rings: Some(Rings::default()),
                offloads: [(text.to_owned(), false)].into(),
                ..Interface::default()
            }],
            disks: vec![Disk {
                name: text.into(),
                model: text.into(),
                scheduler: text.into(),
                ..Disk::default()
            }],
            file_systems: vec![FileSystem {
                path: text.into(),
                mounted: text.into(),
                kind: text.into(),
                device: text.into(),
                options: text.into(),
            }],
            ..Facts::default()
        },
        collectors: vec![CollectorReport {
            name: CollectorName::Perf,
            state: CollectorState::Denied,
            detail: text.into(),
        }],
        system: (1..=seconds).map(|second| system(text, second)).collect(),
        connections: (0..connections)
            .map(|_| Connection {
                local: text.into(),
                remote: text.into(),
                congestion: text.into(),
                samples: (0..=seconds * 10).map(connection).collect(),
            })
            .collect(),
        connections_left_out: 3,
        profiler: Some(ProfilerShares {
            event: text.into(),
            samples: 1000,
            lost: 1,
            shares: vec![Share { kind: ShareKind::Module, name: text.into(), share: 0.7 }],
            functions: vec![FunctionShare {
                function: text.into(),
                object: text.into(),
                program: text.into(),
                share: 0.4,
            }],
        }),
        stages: Some(Stages {
            stream_seconds: f64::from(seconds),
            source: StageTime { busy: f64::from(seconds) * 0.1, waited: f64::from(seconds) * 0.8 },
            ..Stages::default()
        }),
        programs: vec![Program { name: text.into(), seconds: f64::from(seconds), ..Program::default() }],
        ..HostProfile::default()
    };
    Profile {
        schema: SCHEMA,
        started: 1.8e9,
        workload: Workload {
            description: text.into(),
            bytes: u64::from(seconds) * 10_000_000,
            seconds: f64::from(seconds),
            files: 1,
            streams: connections as u32,
            outcome: Outcome::Failed(text.into()),
            failure: Some(FailureKind::NoSpace),
            planned: Some(u64::MAX),
            rates: (1..=seconds)
                .map(|second| RateSample {
                    time: f64::from(second),
                    bytes_per_second: 1e7 + f64::from(second % 7),
                })
                .collect(),
            ..Workload::default()
        },
        baselines: crate::profile::Baselines {
            path: Some(1e8),
            source_disk: Some(2e7),
            rtt: Some(0.04),
            streams: vec![SweepPoint { streams: 4, bytes_per_second: 1e7, error: 1e5, kernel_load: 0.2 }],
            ..Default::default()
        },
        hosts: vec![host(Role::Source), host(Role::Destination)],
        sweeps: Some(sweeps(text)),
    }
}

/// Sweeps of every setting in both directions, with texts and numbers of all kinds.
fn sweeps(text: &str) -> Sweeps {
    let point = |number: u32| {
        let run = |round: u32| CurveRun {
            time: f64::from(round) - 2.0,
            round,
            bytes: 1 << 20,
            seconds: 1.0,
            bytes_per_second: 1e7 * f64::from(number) + 1e5 * f64::from(round),
            ..CurveRun::default()
        };
        let mut point = CurvePoint {
            name: if number == 1 { "auto".into() } else { format!("{number}{text}") },
            value: (number > 1).then_some(u64::from(number)),
            refused: (number == 4).then(|| text.to_owned()),
            runs: (1..=3).map(run).collect(),
            ..CurvePoint::default()
        };
        point.runs.push(CurveRun { failed: Some(text.into()), ..CurveRun::default() });
        let end = EndLoad {
            host: text.into(),
            runs: 1,
            kernel: 0.2,
            send_buffer: Some(1 << 20),
            shares: vec![Share { kind: ShareKind::Module, name: text.into(), share: 0.5 }],
            ..EndLoad::default()
        };
        let other = EndLoad { role: Role::Destination, ..end.clone() };
        point.sum_up(&vec![vec![end, other]; 4]);
        point
    };
    let curve = |knob, way| Curve {
        knob,
        way,
        description: text.into(),
        held: text.into(),
        points: (1..=4).map(point).collect(),
    };
    Sweeps {
        rounds: 3,
        runs_wanted: 99,
        seed: 1,
        broken_off: Some(text.into()),
        curves: Knob::ALL
            .iter()
            .flat_map(|&knob| [curve(knob, Way::Forth), curve(knob, Way::Back)])
            .collect(),
    }
}

fn system(text: &str, second: u32) -> SystemSample {
    let processor = |name: &str| Processor {
        name: name.into(),
        user: 0.1,
        system: 0.3,
        softirq: 0.1,
        iowait: 0.1,
        idle: 0.4,
        ..Processor::default()
    };
    SystemSample {
        time: f64::from(second),
        seconds: 1.0,
        processors: vec![processor("all"), processor("0"), processor(text)],
        memory: MemoryUse { total: 1 << 34, available: 1 << 33, dirty: 1 << 20, ..MemoryUse::default() },
        disks: vec![DiskUse { name: text.into(), read: 1e7, utilisation: 0.9, ..DiskUse::default() }],
        interfaces: vec![InterfaceUse {
            name: text.into(),
            sent_packets: 7000.0,
            sent_bytes: 1e7,
            errors: 1.0,
            ..InterfaceUse::default()
        }],
        tcp: TcpUse { retransmitted: 2.0, ..TcpUse::default() },
        ..SystemSample::default()
    }
}

fn connection(tenth: u32) -> ConnectionSample {
    ConnectionSample {
        time: f64::from(tenth) / 10.0,
        rtt: 0.04 + f64::from(tenth % 13) / 1000.0,
        min_rtt: Some(0.04),
        cwnd: 100 + tenth % 50,
        mss: 1448,
        retransmitted: tenth / 10,
        segments_sent: Some(u64::from(tenth) * 700),
        acknowledged: Some(u64::from(tenth) * 1_000_000),
        received: Some(u64::from(tenth) * 1000),
        queued: Some(u64::from(tenth % 100) * 1000),
        unread: Some(0),
        send_window: Some(200_000),
        ..ConnectionSample::default()
    }
}

fn everything(profile: &Profile) -> [String; 2] {
    let extras = Extras { raw: vec![profile.workload.description.clone()] };
    let sides = [Side { name: &profile.workload.description, profile }; 2];
    [html(profile, &extras), compare_html(&sides)]
}

/// Checks that the page has only elements that the report itself creates, and that they are
/// properly nested, as the tokeniser of a browser would see it.
fn check(page: &str) -> Result<(), String> {
    const KNOWN: &[&str] = &[
        "a",
        "bdi",
        "body",
        "br",
        "code",
        "circle",
        "dd",
        "details",
        "div",
        "dl",
        "dt",
        "figcaption",
        "figure",
        "h1",
        "h2",
        "h3",
        "head",
        "html",
        "i",
        "li",
        "main",
        "meta",
        "ol",
        "p",
        "polygon",
        "polyline",
        "rect",
        "small",
        "span",
        "strong",
        "style",
        "summary",
        "svg",
        "table",
        "tbody",
        "td",
        "text",
        "th",
        "thead",
        "title",
        "tr",
        "ul",
    ];
    const VOID: &[&str] = &["br", "meta"];
    let known = |name: &str| KNOWN.contains(&name);
    let mut rest = page.strip_prefix("<!DOCTYPE html>").ok_or("no document type")?;
    let mut open: Vec<&str> = Vec::new();
    while let Some(begin) = rest.find('<') {
        let text = &rest[..begin];
        if open.last() != Some(&"style") && text.contains('>') {
            return Err(format!("a bare > in {text:?}"));
        }
        rest = &rest[begin + 1..];
        // The report's own attributes have no > in their values.
        let end = rest.find('>').ok_or("a tag without end")?;
        let tag = &rest[..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            let expected = open.pop();
            if expected != Some(name) {
                return Err(format!("</{name}> where {expected:?} is open"));
            }
            continue;
        }
        let name = tag.split([' ', '\n', '/']).next().unwrap_or_default();
        if !known(name) {
            return Err(format!("<{tag}>"));
        }
        if tag
            .split('"')
            .step_by(2)
            .any(|outside| outside.split_whitespace().any(|word| word.starts_with("on")))
        {
            return Err(format!("an event handler: <{tag}>"));
        }
        if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
    }
    if open.is_empty() { Ok(()) } else { Err(format!("{open:?} stay open")) }
}

#[test]
fn report_when_texts_are_hostile_escapes_them() {
    let profile = full(HOSTILE, 20, 2);
    for page in everything(&profile) {
        check(&page).unwrap();
        assert!(page.contains("&lt;script&gt;") && !page.contains("<script"));
        assert!(!page.contains('\u{202e}') && !page.contains('\x1b') && !page.contains('\u{9b}'));
        assert!(!page.contains("NaN") && !page.contains("inf "));
        // The page has only addresses that are names of XML and are never fetched.
        let addresses = page.matches("http").count();
        assert_eq!(
            addresses,
            page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count() + page.matches("http-equiv").count()
        );
    }
    let sides = [Side { name: HOSTILE, profile: &profile }; 3];
    for text in [terminal(&profile, 80, false), compare_terminal(&sides, 80, false)] {
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        assert!(text.lines().all(|line| columns(line) <= 80), "{text}");
    }
    let coloured = terminal(&profile, 80, true);
    assert!(coloured.matches('\x1b').count() >= 2 && !coloured.contains("\x1b]"), "{coloured:?}");
}

#[test]
fn check_when_page_is_broken_fails() {
    for bad in ["<script>", "<b", "<p onclick=\"x\">", "<p>", "a > b<br>", "</p>"] {
        assert!(check(&format!("<!DOCTYPE html>{bad}")).is_err(), "{bad}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn report_when_texts_are_arbitrary_stays_well_formed(text in prop_oneof!["[<>&\"'/a= \\-!\\[\\]]{0,40}", "\\PC{0,40}", any::<String>()]) {
        let profile = full(&text, 3, 1);
        for page in everything(&profile) {
            prop_assert_eq!(check(&page), Ok(()));
        }
        let shown = terminal(&profile, 80, false);
        prop_assert!(shown.chars().all(|c| c == '\n' || !c.is_control()));
        prop_assert!(shown.lines().all(|line| columns(line) <= 80), "{}", shown);
    }

    #[test]
    fn report_when_numbers_are_arbitrary_stays_well_formed(
        numbers in prop::collection::vec(prop_oneof![
            Just(f64::NAN), Just(f64::INFINITY), Just(-1e19), Just(1e19), Just(0.0), Just(1e-300), Just(f64::MIN_POSITIVE), -10.0..10.0
        ], 8),
        whole in prop_oneof![Just(0_u64), Just(u64::MAX), any::<u64>()],
    ) {
        let mut profile = full("h", 4, 8);
        profile.workload.seconds = numbers[0];
        profile.workload.bytes = whole;
        profile.workload.planned = Some(whole.wrapping_add(1));
        profile.started = numbers[1];
        profile.workload.rates[1].bytes_per_second = numbers[2];
        profile.baselines.path = Some(numbers[3]);
        profile.baselines.rtt = Some(numbers[4]);
        profile.baselines.streams[0] = SweepPoint { streams: whole as u32, bytes_per_second: numbers[5], error: numbers[6], kernel_load: numbers[7] };
        let point = &mut profile.sweeps.as_mut().unwrap().curves[2].points[1];
        point.value = Some(whole);
        (point.rate.mean, point.rate.median, point.rate.least, point.rate.most) = (numbers[0], numbers[1], numbers[2], numbers[3]);
        (point.rate.deviation, point.rate.interval) = (numbers[4], Some(numbers[5]));
        (point.runs[0].bytes_per_second, point.runs[0].outlier) = (numbers[6], true);
        (point.ends[0].kernel, point.ends[0].packets_sent) = (numbers[7], numbers[0]);
        let host = &mut profile.hosts[0];
        host.clock = Clock { offset_seconds: numbers[6], error_seconds: numbers[7] };
        host.system[1].time = numbers[5];
        host.system[1].seconds = numbers[0];
        host.system[1].processors[0].user = numbers[1];
        host.system[1].disks[0].read = numbers[2];
        host.connections[0].samples[3].time = numbers[4];
        host.connections[0].samples[4].rtt = numbers[3];
        host.connections[0].samples[4].acknowledged = Some(whole);
        host.stages.as_mut().unwrap().stream_seconds = numbers[2];
        for page in everything(&profile) {
            prop_assert_eq!(check(&page), Ok(()));
            let odd = page.find("NaN").or_else(|| page.find("inf "));
            prop_assert!(odd.is_none(), "{:?}", odd.and_then(|at| page.get(at - 150..at + 20)));
        }
        let shown = terminal(&profile, 80, false);
        prop_assert!(!shown.contains("NaN") && !shown.contains("inf "), "{}", shown);
    }
}

#[test]
fn headline_when_transfer_is_short_is_unclear() {
    let host = HostProfile { role: Role::Both, ..HostProfile::default() };
    let headline = |bytes, seconds| {
        let workload = Workload { bytes, seconds, ..Workload::default() };
        let profile = Profile { workload, hosts: vec![host.clone()], ..Profile::default() };
        terminal(&profile, 200, false).lines().next().unwrap_or_default().to_owned()
    };
    assert!(headline(0, 30.0).starts_with("Nothing was moved"), "{}", headline(0, 30.0));
    assert!(
        headline(1 << 20, 0.011).contains("11.0 ms, which is too short to tell"),
        "{}",
        headline(1 << 20, 0.011)
    );
    assert_eq!(headline(1 << 30, 10.0), "Nothing that was measured held your transfer back.");
}

#[test]
fn headline_when_program_sleeps_names_its_end() {
    let said = |at: usize, doing: Doing| {
        let mut profile = full("left", 20, 1);
        profile.workload.outcome = Outcome::Done;
        profile.hosts[1].facts.name = "right".into();
        for host in &mut profile.hosts {
            (host.stages, host.profiler, host.doing) = (None, None, None);
            host.system.clear();
            host.programs.clear();
        }
        profile.hosts[at].doing = Some(doing);
        for sample in &mut profile.hosts[1].connections[0].samples {
            std::mem::swap(&mut sample.acknowledged, &mut sample.received);
        }
        for sample in
            profile.hosts.iter_mut().flat_map(|host| &mut host.connections).flat_map(|c| &mut c.samples)
        {
            (sample.application_limited, sample.unread, sample.receive_buffer) =
                (at == 0, Some(at as u64 * 900_000), Some(2_000_000));
            (sample.queued, sample.window_limited, sample.buffer_limited) = (None, None, None);
        }
        terminal(&profile, 200, false).lines().next().unwrap_or_default().to_owned()
    };
    let asleep = Doing { samples: 100, asleep: 0.95, ..Doing::default() };
    assert_eq!(
        [said(0, asleep), said(1, asleep)],
        [
            "Your transfer was slow because the program on left did not supply the data any faster.",
            "Your transfer was slow because the program on right did not take the data any faster.",
        ]
    );
}

#[test]
fn report_when_transfer_failed_begins_with_the_failure() {
    let said = |kind, bytes: u64, seconds: u32, change: &dyn Fn(&mut Profile)| {
        let mut profile = full("host.example", seconds, 2);
        profile.sweeps = None;
        profile.workload.outcome = Outcome::Failed("the reason.".into());
        profile.workload.failure = kind;
        (profile.workload.bytes, profile.workload.planned) = (bytes, Some(1 << 30));
        change(&mut profile);
        let page = html(&profile, &Extras::default());
        check(&page).unwrap();
        (terminal(&profile, 120, false), page)
    };
    let (screen, page) = said(Some(FailureKind::NoSpace), 1 << 28, 30, &|_| ());
    let flat = screen.split_whitespace().collect::<Vec<_>>().join(" ");
    let expected = "Your transfer failed after 30.0 s, when 256 MiB of 1.00 GiB (25 %) had been sent: no space left at the destination (the reason). Until then it was slow because \
                    the disk of host.example could not read the data any faster.";
    assert!(flat.starts_with(expected), "{screen}");
    assert!(screen.contains("\nNo space left at the destination: host.example\n"), "{screen}");
    assert!(page.contains("Why it failed") && page.contains("The disk to which the data goes is full"));
    // The reason has no name.
    let (screen, page) = said(None, 1 << 28, 30, &|_| ());
    assert!(!page.contains("Why it failed") && screen.contains(": the reason. Until then"), "{screen}");
    // A transfer that moved no data has no cause of its rate.
    let (screen, _) = said(Some(FailureKind::Unreachable), 0, 30, &|profile| {
        profile.workload.rates.clear();
        profile.hosts.iter_mut().for_each(|host| host.connections.clear());
    });
    assert!(
        screen.starts_with(
            "Your transfer failed before any data had moved: server out of reach (the reason).\n"
        ),
        "{screen}"
    );
    assert!(!screen.contains("1. "), "{screen}");
    // Data moved for a second, and then nothing: the sums over all streams are no evidence.
    let (screen, page) = said(Some(FailureKind::Interrupted), 1 << 20, 30, &|profile| {
        profile.workload.rates.truncate(1);
        for sample in
            profile.hosts.iter_mut().flat_map(|host| &mut host.connections).flat_map(|one| &mut one.samples)
        {
            sample.acknowledged = sample.acknowledged.map(|bytes| bytes.min(10_000_000));
            sample.received = sample.acknowledged;
        }
    });
    let flat = screen.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.starts_with("Your transfer was broken off after 30.0 s, when 1.00 MiB of 1.00 GiB"),
        "{screen}"
    );
    assert!(flat.contains("Data moved for 1.0 s, which is too short to tell"), "{screen}");
    assert!(
        flat.contains("nothing had moved in the last 29.0 s") && !flat.contains("Source disk"),
        "{screen}"
    );
    assert!(page.contains("too short to tell: data moved for 1.0 s"));
}

#[test]
fn report_when_profile_is_empty_is_rendered() {
    let nothing = Profile::default();
    for page in everything(&nothing) {
        check(&page).unwrap();
    }
    assert!(html(&nothing, &Extras::default()).contains("Neither machine was measured"));
    let text = terminal(&nothing, 80, false);
    assert!(text.contains("not measured") && text.lines().count() <= 24, "{text}");
    assert!(compare_terminal(&[], 80, false).contains("cannot be said"));
    check(&compare_html(&[])).unwrap();
}

#[test]
fn html_of_an_hour_is_less_than_a_megabyte() {
    let page = html(&full("host.example", 3600, 16), &Extras::default());
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
    check(&page).unwrap();
}

#[test]
fn terminal_fits_on_a_screen() {
    let mut profile = full("host.example", 30, 2);
    profile.workload.outcome = Outcome::Done;
    for width in [40, 80, 132] {
        let text = terminal(&profile, width, false);
        assert!(text.lines().all(|line| columns(line) <= width), "{text}");
        // The results of sweeps stand below.
        let (screen, below) = text.split_once("\nOther settings\n").unwrap();
        let lines = screen.lines().count();
        assert!(width < 80 || lines <= 24, "{lines} lines:\n{text}");
        assert!(below.contains("Streams, the way back") && below.contains("Rates in "), "{below}");
        assert!(text.contains("1. ") && text.contains("Source disk"), "{text}");
    }
}

#[test]
fn html_contains_all_sections() {
    let mut profile = full("left.example", 30, 2);
    profile.workload.outcome = Outcome::Done;
    profile.hosts[1].facts.name = "right.example".into();
    let page = html(&profile, &Extras { raw: vec!["left/perf.txt".into(), "../x".into()] });
    for expected in [
        "Your transfer was slow because the disk of left.example could not read the data any faster.",
        "id=\"rate\"",
        "id=\"streams\"",
        "id=\"rtt\"",
        "id=\"retransmissions\"",
        "id=\"cwnd\"",
        "id=\"cpu\"",
        "id=\"disk\"",
        "id=\"packets\"",
        "id=\"stages\"",
        "id=\"profiler\"",
        "id=\"baselines\"",
        "id=\"settings\"",
        "net.ipv4.tcp_rmem",
        "3.0 s ahead, known to ± 1.0 ms",
        "href=\"./left/perf.txt\"",
        "<li>../x</li>",
        "perf on left.example and right.example: denied",
        "2027-01-15 08:00:00 UTC",
    ] {
        assert!(page.contains(expected), "{expected}");
    }
    check(&page).unwrap();
}

#[test]
fn compare_when_given_two_profiles_shows_both() {
    let mut before = full("left", 20, 1);
    before.workload.outcome = Outcome::Done;
    let mut after = before.clone();
    after.workload.bytes *= 3;
    after.hosts[0].facts.sysctls.insert("net.ipv4.tcp_wmem".into(), "4096 16384 67108864".into());
    let sides = [Side { name: "a.json", profile: &before }, Side { name: "b.json", profile: &after }];
    let text = compare_terminal(&sides, 100, false);
    assert!(text.starts_with("The last transfer was 3.0 times as fast as the first.\n"), "{text}");
    for expected in
        ["before: a.json", "after: b.json", "source: net.ipv4.tcp_wmem", "4096 16384 67108864", "first cause"]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let page = compare_html(&sides);
    assert!(page.contains("source: net.ipv4.tcp_wmem") && !page.contains("source: kernel"));
    check(&page).unwrap();
}
