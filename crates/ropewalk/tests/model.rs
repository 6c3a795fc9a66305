//! `ropewalk model` as a shell sees it.
#![allow(clippy::unwrap_used)]

use std::env;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use ropewalk_models::eval::Evaluator;
use serde_json::Value;

/// The test vectors of the models themselves.
const VECTORS: &str = include_str!("../../../tools/models/tests/golden.jsonl");

fn model(arguments: &[&str], input: impl AsRef<[u8]>) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ropewalk"))
        .arg("model")
        .args(arguments)
        .env_clear()
        .env("HOME", "/nonexistent")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.as_ref().to_owned();
    // The program answers line by line; a test that only writes would fill its pipe.
    let writer = std::thread::spawn(move || {
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

#[test]
fn a_prediction() {
    let output = model(&["-b", "100Mbit/s", "--rtt", "100ms", "--buffer", "64KiB"], "");
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let out = text(&output.stdout);
    assert!(out.contains("Best: 20 streams (19.06 before rounding), 99.9 Mbit/s"), "{out}");
    assert!(out.contains("Why: this many windows of 64.0 KiB fill the link"), "{out}");
    assert!(out.contains("19 streams reach 99 % of that"), "{out}");

    let output = model(&["-b", "100Mbit/s", "--rtt", "100ms", "--buffer", "64KiB", "--json"], "");
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&line["schema"], &line["optimum"]["streams"]), (&Value::from(1), &Value::from(20)));
    let row = line["curve"].as_array().unwrap().iter().find(|row| row["streams"] == 4).unwrap();
    assert_eq!((&row["limited_by"], &row["loss"]), (&Value::from("window"), &Value::from(0.0)));
    assert!((row["goodput_bps"].as_f64().unwrap() - 4.0 * 65536.0 * 8.0 / 0.1).abs() < 1e-3);

    let out = text(&model(&["-b", "1Gbit/s", "--rtt", "50ms", "--loss", "1%"], "").stdout);
    assert!(out.contains("Why: the link is not full, and more streams would help (up to 381)"), "{out}");
    let out = text(&model(&["-b", "100Mbit/s", "--rtt", "5ms"], "").stdout);
    assert!(out.contains("Best: 1 stream ") && out.contains("fits into one window"), "{out}");
}

#[test]
fn vectors_by_standard_input() {
    let output = model(&["eval"], VECTORS);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let answers = text(&output.stdout);
    assert_eq!(answers.lines().count(), VECTORS.lines().count());
    let mut evaluator = Evaluator::default();
    for (answer, vector) in answers.lines().zip(VECTORS.lines()) {
        let answer: Value = serde_json::from_str(answer).unwrap();
        // The library's tests compare its values with the vectors.
        let expected: Value = serde_json::from_str(&evaluator.line(vector).0.to_string()).unwrap();
        assert_eq!(answer, expected);
        let vector: Value = serde_json::from_str(vector).unwrap();
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&answer["out"]), keys(&vector["out"]), "{answer}");
    }
}

#[test]
fn what_is_no_vector_does_not_stop_the_others() {
    let output = model(&["eval"], "nonsense\n\n{\"id\":\"x\",\"group\":\"x_star\",\"in\":{\"W\":1000}}\n");
    assert_eq!(code(&output), 1);
    let out = text(&output.stdout);
    let lines: Vec<&str> = out.lines().collect();
    assert!(
        lines[0].contains("not a JSON object") && lines[1].starts_with("{\"id\":\"x\",\"out\":{"),
        "{out}"
    );
    let output = model(&["eval"], b"\xc3\x28\n{\"id\":\"x\",\"group\":\"x_star\",\"in\":{\"W\":1000}}\n");
    assert_eq!((code(&output), text(&output.stdout).lines().nth(1)), (1, Some(lines[1])));
}

#[test]
fn pictures() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let is_svg = |name: &str| {
        let svg = fs::read_to_string(place(name)).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{name}");
    };
    assert_eq!(code(&model(&["figures", &place("figures")], "")), 0);
    for number in 2..=6 {
        is_svg(&format!("figures/fig{number}.svg"));
    }
    assert_eq!(code(&model(&["-b", "10Gbit/s", "--rtt", "80ms", "--plot", &place("n.svg")], "")), 0);
    is_svg("n.svg");
    let output = model(&["figures", "--png", &place("figures")], "");
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let bitmap = fs::read(place("figures/fig2.png")).unwrap();
    assert!(bitmap.starts_with(b"\x89PNG\r\n"));
    // Two dots for each of 880 pixels.
    assert_eq!(bitmap[16..20], 1760u32.to_be_bytes());
    let output = model(
        &[
            "fluid",
            "-b",
            "100Mbit/s",
            "-g",
            "20x50ms",
            "-g",
            "20x150ms",
            "--red",
            "0,800,0.05,0.002",
            "--coupling",
            "paper",
            "-q",
            "5000",
            "--plot",
            &place("fluid.svg"),
        ],
        "",
    );
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    assert!(
        text(&output.stdout)
            .contains("In equilibrium: goodput 99.6 Mbit/s, loss 0.41 %, queue 66.28 packets")
    );
    is_svg("fluid.svg");
    let output =
        model(&["fluid", "-b", "100Mbit/s", "-g", "30x20ms", "-q", "50", "--json", "--samples", "10"], "");
    assert_eq!(text(&output.stdout).lines().count(), 11);
}

#[test]
fn bad_input_is_explained() {
    for (arguments, expected) in [
        (&["-b", "0", "--rtt", "1ms"][..], "--bandwidth"),
        (&["-b", "1Gbit/s", "--rtt", "1ms", "--plot", "a.gif"], ".svg or .png"),
        (&["fluid", "-b", "1Gbit/s", "-g", "2x1ms", "--plot", "a.gif"], ".svg or .png"),
        (&["-b", "1Gbit/s"], "--rtt"),
        (&["-b", "1Gbit/s", "--rtt", "0"], "expected more than 0"),
        (&["-b", "1Gbit/s", "--rtt=-5ms"], "\"-5ms\" is not a time"),
        (&["-b", "inf", "--rtt", "1ms"], "\"inf\" is not a rate"),
        (&["-b", "1Gbit/s", "--rtt", "1ms", "--loss", "1"], "\"1\" is not a loss"),
        (&["-b", "1Gbit/s", "--rtt", "1ms", "--loss", "nan"], "\"nan\" is not a loss"),
        (&["-b", "1Gbit/s", "--rtt", "1ms", "-n", "0"], "0 is not in 1..=10000000"),
        (&["-b", "1Gbit/s", "--rtt", "1ms", "-n", "10000001"], "is not in 1..=10000000"),
        (&["-b", "1Gbit/s", "--rtt", "900d"], "RTT is 7.776e10 ms: expected 1e-5 to 1000000 ms"),
        (&["-b", "1Gbit/s", "--rtt", "1ms", "--packet", "8PiB"], "packet size is "),
        (&["fluid", "-b", "1Gbit/s"], "--group"),
        (&["fluid", "-b", "1Gbit/s", "-g", "0x5ms"], "group 1: number of connections is 0"),
        (&["fluid", "-b", "1Gbit/s", "-g", "5x5ms", "-q", "nan"], "queue is NaN packets"),
        (&["fluid", "-b", "1Gbit/s", "-g", "5x5ms", "--time", "900d"], "too much work"),
        (&["fluid", "-b", "1Gbit/s", "-g", "5x5ms", "--coupling", "paper"], "needs a RED queue"),
    ] {
        let output = model(arguments, "");
        let error = text(&output.stderr);
        assert_eq!(code(&output), 2, "{arguments:?}: {error}");
        assert!(error.contains(expected) && output.stdout.is_empty(), "{arguments:?}: {error}");
    }
}

/// Runs the page's scripts with a mock document: its equations agree with the program's, and every
/// slider position draws.
#[test]
fn the_page_computes_what_the_program_does() {
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("page.html");
    assert_eq!(code(&model(&["page", page.to_str().unwrap()], "")), 0);
    let html = fs::read_to_string(&page).unwrap();
    assert!(!html.contains("/*") || !html.contains("CHECKS*/"), "a part was not filled in");
    assert!(
        !html.contains("http://") && !html.contains("https://") && !html.contains("src="),
        "the page stands alone"
    );

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page.js");
    let output = match Command::new("node").arg(script).arg(&page).output() {
        Ok(output) => output,
        Err(error) => {
            let required = env::var_os("CI").is_some_and(|value| value == "true")
                || env::var_os("ROPEWALK_REQUIRE_PEERS").is_some_and(|value| value == "1");
            assert!(!required, "node is required: {error}");
            eprintln!("SKIPPED: node is missing ({error})");
            return;
        }
    };
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).starts_with("384 checks"), "{}", text(&output.stdout));
}
