//! The profiler's verdicts on transfers whose bottleneck is known: some cases of `ropewalk lab
//! findings profiler`, with Ropewalk's and GCT's servers, one of them third-party. Requires root.

#![allow(clippy::unwrap_used)]

use std::fs;

use ropewalk_tests::peers;
use ropewalk_tests::process;
use ropewalk_tests::scratch::Scratch;
use serde_json::Value;

/// Cases whose symptoms are far stronger than the effects of a busy machine.
const CASES: [&str; 5] = [
    "source-disk-get",
    "receive-ceiling-put-gct",
    "small-files-get",
    "capacity-get",
    "source-disk-third-party-3",
];

#[test]
fn profiler_names_known_bottlenecks() {
    if !peers::available(&["globus-gridftp-server"]) {
        return;
    }
    if !rustix::process::geteuid().is_root() || !fs::exists("/dev/net/tun").unwrap_or(false) {
        peers::skip("the lab needs root and /dev/net/tun");
        return;
    }
    let scratch = Scratch::new().unwrap();
    let results = scratch.join("results.jsonl");
    let mut command = peers::ropewalk_command().unwrap();
    // At most two at a time: more of them compete for the processors of a small machine, which the
    // profiler then reports.
    command.args(["lab", "findings", "profiler", "--jobs", "2", "--output"]).arg(&results);
    command.args(CASES.iter().flat_map(|case| ["--scenario", case]));
    let outcome = process::run(&mut command, std::time::Duration::from_secs(240)).unwrap();
    let outcome = outcome.succeeded().unwrap();
    let lines = fs::read_to_string(&results).unwrap();
    let judged: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(judged.len(), CASES.len());
    for case in &judged {
        assert_eq!(case["right"], true, "{case:#}");
        assert_eq!(case["rank"], 1, "{case:#}");
        assert!(case["confidence"].as_f64().unwrap() > 0.5, "{case:#}");
    }
    assert!(outcome.text().contains("First set: 4 of 4 right"), "{}", outcome.text());
    assert!(outcome.text().contains("Third set: 1 of 1 right"), "{}", outcome.text());
    // A readable profile of each case.
    for case in CASES {
        let profile = fs::read(scratch.join("results.profiles").join(format!("{case}.json"))).unwrap();
        let profile: Value = serde_json::from_slice(&profile).unwrap();
        assert_eq!(profile["hosts"].as_array().unwrap().len(), 2, "{case}");
    }
}
