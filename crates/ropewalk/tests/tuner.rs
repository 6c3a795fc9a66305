//! `ropewalk model tuner`, driven as a simulator drives it.

#![allow(clippy::unwrap_used)]
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// Goodput in packets per millisecond: Ito's Eq. (12) for 12.5 packets/ms and windows of 64
/// packets.
fn goodput(streams: f64, rtt_ms: f64) -> f64 {
    let window = 12.5 * rtt_ms / streams;
    let loss = 1.0 / (2.0 * window * window / 3.0 + 2.0 * window - 2.0);
    (streams * 64.0 / rtt_ms).min(12.5 * (1.0 - loss))
}

/// Streams of each chunk until the tuner has used the same number for five.
fn drive(name: &str, rtt_ms: f64, more: &[&str]) -> Vec<u64> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ropewalk"))
        .args([
            "model",
            "tuner",
            name,
            "--packet",
            "1000",
            "--window",
            "64000B",
            "--rtt",
            &format!("{rtt_ms}ms"),
        ])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut read = || -> Value {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    };
    let mut chunks = Vec::new();
    let mut next = read();
    while chunks.len() < 60
        && !chunks.iter().rev().take(5).eq([chunks.last().copied().unwrap_or(0); 5].iter())
    {
        let (streams, bytes) = (next["streams"].as_u64().unwrap(), next["bytes"].as_f64().unwrap());
        chunks.push(streams);
        let rate = 1e6 * goodput(streams as f64, rtt_ms);
        writeln!(input, "{}", json!({ "elapsed": 1.5, "rate_bps": 8.0 * rate })).unwrap();
        assert_eq!(read(), json!({ "stop": false }));
        let ended = json!({
            "streams": streams, "bytes": bytes, "seconds": bytes / rate, "rtt_ms": rtt_ms, "min_rtt_ms": rtt_ms,
            "window_bytes": 64_000,
        });
        writeln!(input, "{ended}").unwrap();
        next = read();
    }
    drop(input);
    assert!(child.wait().unwrap().success());
    chunks
}

/// The report of GridFTP-APT gives these values for its two paths.
#[test]
fn apt_settles_at_13_and_25() {
    for name in ["apt", "apt-golden"] {
        assert_eq!(drive(name, 64.0, &[]).last(), Some(&13), "{name}");
        assert_eq!(drive(name, 128.0, &[]).last(), Some(&25), "{name}");
    }
}

/// This path has no slow start: its chunks behave as if connections stayed open.
#[test]
fn pilot_gets_there_in_a_few_chunks() {
    for (rtt_ms, best) in [(64.0, 13), (128.0, 25)] {
        let chunks = drive("pilot", rtt_ms, &["--kept"]);
        let last = *chunks.last().unwrap();
        assert!((best..=best + best / 4).contains(&last), "{chunks:?}");
        assert!(chunks.len() <= 14, "{chunks:?}");
    }
}

#[test]
fn nonsense_is_answered_and_counted() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ropewalk"))
        .args(["model", "tuner", "pilot", "--explain"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = "{\"streams\":4,\"bytes\":1,\"seconds\":-1}\nno json\n{}\n{\"streams\":1e300,\"bytes\":1e300,\"seconds\":1}\n";
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let answers: Vec<Value> = output
        .stdout
        .split(|&byte| byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    assert_eq!(answers.len(), 5);
    assert_eq!(answers[0]["streams"], answers[1]["streams"]);
    assert!(answers[1]["reason"].as_str().unwrap().contains("left out"));
    assert!(answers[2]["error"].is_string() && answers[3]["error"].is_string());
    assert_eq!(answers[4]["streams"], answers[0]["streams"]);
}

#[test]
fn options_that_make_no_sense_are_wrong_use() {
    for wrong in
        [["--most", "10000"], ["--first", "0"], ["--chunk", "nan"], ["--share", "0"], ["--packet", "-5"]]
    {
        let status = Command::new(env!("CARGO_BIN_EXE_ropewalk"))
            .args(["model", "tuner", "pilot", &format!("{}={}", wrong[0], wrong[1])])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn the_evaluation_writes_json() {
    let output = Command::new(env!("CARGO_BIN_EXE_ropewalk"))
        .args(["model", "evaluate", "apt", "pilot", "--draws", "1", "--noise", "0.05", "--json"])
        .output()
        .unwrap();
    assert!(output.status.success());
    let reports: Vec<Value> = output
        .stdout
        .split(|&byte| byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    assert_eq!(reports.len(), 2);
    assert!(reports[1]["regret"].as_f64() < reports[0]["regret"].as_f64());
    assert_eq!(reports[0]["families"].as_array().unwrap().len(), 13);
}
