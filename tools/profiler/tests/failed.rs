//! Recorded profiles of transfers that fail or are very short (`ropewalk profile` over loopback, on
//! a machine that was otherwise busy). The report must give the reason of the failure, and draw no
//! conclusions from two samples.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use ropewalk_profiler::profile::{FailureKind, Profile};
use ropewalk_profiler::report;
use ropewalk_profiler::verdict::Verdict;

struct Recorded {
    name: &'static str,
    failure: Option<FailureKind>,
    host: Option<&'static str>,
    /// The beginning of the report, and further parts of it.
    headline: &'static str,
    has: &'static [&'static str],
    /// The highest allowed confidence of its first cause.
    surest: f64,
}

const RECORDED: &[Recorded] = &[
    Recorded {
        name: "disk-full-put",
        failure: Some(FailureKind::NoSpace),
        host: Some("right"),
        headline: "Your transfer failed after 11.4 ms, when 1.25 MiB of 1.00 GiB (0.1 %) had been sent: no space left at the destination (",
        has: &["Data moved for 11.4 ms, which is too short to tell"],
        surest: 0.4,
    },
    // The server was stopped by a signal after 3 s and abandoned after 5 more; it kept its
    // connections.
    Recorded {
        name: "stopped-server-put",
        failure: Some(FailureKind::Stalled),
        host: Some("right"),
        headline: "Your transfer failed after 11.8 s, when 5.28 GiB of 1000 GiB (0.5 %) had been sent: stalled (",
        has: &[
            "nothing had moved in the last",
            "the receiver took nothing any more (its window was closed, ",
        ],
        // Sums over the whole time, which was mostly silent, show nothing about the time before the
        // silence.
        surest: 0.6,
    },
    Recorded {
        name: "killed-server-put",
        failure: Some(FailureKind::ConnectionLost),
        host: None,
        headline: "Your transfer failed after 2.4 s, when 947 MiB of 1000 GiB (0.0925 %) had been sent: connection lost (",
        has: &["Connection reset by peer"],
        surest: 1.0,
    },
    Recorded {
        name: "killed-server-early-put",
        failure: Some(FailureKind::ConnectionLost),
        host: None,
        headline: "Your transfer failed after 252.2 ms, when 2.15 GiB of 100 GiB (2.1 %) had been sent: connection lost (",
        has: &["too short to tell: data moved for 196.9 ms"],
        surest: 0.4,
    },
    Recorded {
        name: "interrupted-put",
        failure: Some(FailureKind::Interrupted),
        host: None,
        headline: "Your transfer was broken off after 2.3 s, when 2.92 GiB of 100 GiB (2.9 %) had been sent.",
        has: &["Broken off"],
        surest: 1.0,
    },
    Recorded {
        name: "refused-put",
        failure: Some(FailureKind::Unreachable),
        host: None,
        headline: "Your transfer failed before any data had moved: server out of reach (cannot connect",
        has: &["Server out of reach"],
        surest: 0.0,
    },
    Recorded {
        name: "not-found-get",
        failure: Some(FailureKind::NotFound),
        host: None,
        headline: "Your transfer failed before any data had moved: not found (/nix: no such file or directory).",
        has: &[],
        surest: 0.0,
    },
    // An earlier version blamed a disk (0.95) and other guests of the machine for these.
    Recorded {
        name: "one-byte-put",
        failure: None,
        host: None,
        headline: "Your transfer took 3.4 ms, which is too short to tell what held it back",
        has: &["too short to tell: 3.4 ms; what there is:"],
        surest: 0.4,
    },
    Recorded {
        name: "ten-mib-put",
        failure: None,
        host: None,
        headline: "Your transfer took 20.9 ms, which is too short to tell what held it back",
        has: &["too short to tell: 20.9 ms"],
        surest: 0.4,
    },
];

#[test]
fn recorded_failures_are_explained() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/failed");
    let mut wrong = Vec::new();
    for Recorded { name, failure, host, headline, has, surest } in RECORDED {
        let bytes = std::fs::read(directory.join(name).with_added_extension("json")).unwrap();
        let profile = Profile::from_json(&bytes).unwrap();
        let verdict = Verdict::of(&profile);
        let screen = report::terminal(&profile, 120, false);
        let flat = screen.split_whitespace().collect::<Vec<_>>().join(" ");
        let found = verdict.failure.as_ref();
        let found = (found.map(|failure| failure.kind), found.and_then(|failure| failure.host.as_deref()));
        let first = verdict.causes.first().map_or(0.0, |cause| cause.confidence);
        let right = found == (*failure, *host)
            && first <= *surest
            && flat.starts_with(headline)
            && has.iter().all(|part| flat.contains(part));
        if !right {
            wrong.push(format!("{name}: {found:?}, {first:.2}, {:?}\n{screen}", verdict.failure));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(std::fs::read_dir(directory).unwrap().count(), RECORDED.len(), "one is not tested");
}
