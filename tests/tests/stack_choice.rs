//! Copies with `--stack auto` over lossy and clean paths, in the WAN lab, which requires root.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Command;

use parking_lot::{Mutex, MutexGuard};
use ropewalk_tests::peers;
use ropewalk_tests::scratch::Scratch;
use serde_json::Value;

/// Serialises the tests, because each emulated path needs the whole machine.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// Drops each UDP packet that arrives at a host.
const BLOCKED: &str =
    "ip rule add pref 100 lookup local; ip rule del pref 0; ip rule add pref 10 ipproto udp blackhole";

/// A lossy path that half of the most TCP connections do not fill: the tuner tries several numbers
/// of them, and one of its measurements may be wrong by chance. And a path whose queue overflows.
const LOSSY: &str = r#"round_trip = "120ms", both = { rate = "60Mbit/s", queue = 300, loss = "3%" }"#;
const CLEAN: &str = r#"round_trip = "60ms", both = { rate = "60Mbit/s", queue = 300 }"#;

/// The events of copies over a path with these properties; `None` if the lab cannot run here. The
/// server allows UDT. `right` is run at the server's host first. Each copy is an argument list
/// without the program.
fn copies(path: &str, right: &str, copies: &[String]) -> Option<Vec<Vec<Value>>> {
    if !(rustix::process::geteuid().is_root() && fs::exists("/dev/net/tun").unwrap_or(false)) {
        peers::skip("the lab needs root and /dev/net/tun");
        return None;
    }
    let scratch = Scratch::new().unwrap();
    let ropewalk = peers::ropewalk().unwrap().display().to_string();
    let log = |n: usize| scratch.join(format!("{n}.jsonl"));
    let run: Vec<String> = copies
        .iter()
        .enumerate()
        .map(|(n, copy)| format!("timeout 120 {ropewalk} cp --json {copy} > {}", log(n).display()))
        .collect();
    let scenario = scratch.join("scenario.toml");
    let text = format!(
        r#"
        title = "a path"
        description = "For one test."
        [kernel]
        congestion = "cubic"
        [hosts.left]
        [hosts.right]
        [[links]]
        between = ["left", "right"]
        path = {{ {path} }}
        [[servers]]
        name = "ropewalk"
        host = "right"
        run = "{right} exec {ropewalk} serve --listen 0.0.0.0:{{port:ropewalk}} --anonymous=rw --root / --log error --drivers tcp,gsi,udt"
        ready = {{ port = "{{port:ropewalk}}" }}
        environment = {{ XDG_CONFIG_HOME = "{{dir}}", XDG_STATE_HOME = "{{dir}}" }}
        [[commands]]
        name = "copies"
        host = "left"
        at = "0s"
        run = """{}"""
        environment = {{ XDG_CONFIG_HOME = "{{dir}}", XDG_STATE_HOME = "{{dir}}" }}
        "#,
        run.join("\n")
    );
    fs::write(&scenario, text).unwrap();
    let output = Command::new(peers::ropewalk().unwrap())
        .args(["lab", "run"])
        .arg(&scenario)
        .args(["--json", "--quiet", "--output"])
        .arg(scratch.join("results"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let events = |n| fs::read_to_string(log(n)).unwrap();
    let parsed = |text: String| text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    Some((0..copies.len()).map(events).map(parsed).collect())
}

fn upload(size: &str, options: &str) -> String {
    format!("{options} zero:{size} ftp://{{addr:right}}:{{port:ropewalk}}/dev/null")
}

/// The names of the reasons for which the driver changed.
fn changes(events: &[Value]) -> Vec<&str> {
    let changes = events.iter().filter(|event| event["event"] == "stack");
    changes.map(|event| event["reason"].as_str().unwrap()).collect()
}

/// The last event, of a copy that did all without another try.
fn finished(events: &[Value]) -> &Value {
    let end = events.last().unwrap();
    let did = end["files_done"] == 1 && end["files_failed"] == 0 && end["retries"] == 0;
    assert!(did, "{events:?}");
    end
}

#[test]
fn lossy_path_moves_to_udt_and_the_next_copy_starts_with_it() {
    let _alone = alone();
    let copy = upload("250M", "--stack auto");
    let Some(logs) = copies(LOSSY, "", &[copy.clone(), copy]) else { return };
    assert_eq!(changes(&logs[0]), ["lossy", "better"], "{:?}", logs[0]);
    let end = finished(&logs[0]);
    assert_eq!((&end["stacks"][0]["stack"], &end["stacks"][0]["reason"]), (&"udt".into(), &"tuned".into()));
    assert!(end["tuned"][0]["stack"].as_str().unwrap().contains("over udt"), "{end}");
    assert_eq!(changes(&logs[1]), ["remembered"], "{:?}", logs[1]);
    let seconds = |log: &[Value]| finished(log)["seconds"].as_f64().unwrap();
    assert!(seconds(&logs[1]) < seconds(&logs[0]), "{logs:?}");
}

#[test]
fn download_over_a_lossy_path_moves_to_udt_and_is_whole() {
    let _alone = alone();
    let scratch = Scratch::new().unwrap();
    let content: Vec<u8> =
        (0..60_000_000_u32).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_be_bytes()).collect();
    let (source, target) = (scratch.join("source"), scratch.join("target"));
    fs::write(&source, &content).unwrap();
    let copy = format!(
        "--stack auto ftp://{{addr:right}}:{{port:ropewalk}}{} {}",
        source.display(),
        target.display()
    );
    let Some(logs) = copies(LOSSY, "", &[copy]) else { return };
    assert_eq!(changes(&logs[0]), ["lossy", "better"], "{:?}", logs[0]);
    finished(&logs[0]);
    assert!(fs::read(&target).unwrap() == content);
}

#[test]
fn lossy_path_that_blocks_udp_goes_on_with_tcp() {
    let _alone = alone();
    let Some(logs) = copies(LOSSY, &format!("{BLOCKED};"), &[upload("250M", "--stack auto")]) else { return };
    assert_eq!(changes(&logs[0]), ["lossy", "failed"], "{:?}", logs[0]);
    let end = finished(&logs[0]);
    assert_eq!((&end["stacks"][0]["stack"], &end["stacks"][0]["reason"]), (&"tcp".into(), &"tuned".into()));
}

#[test]
fn path_whose_loss_is_congestion_stays_with_tcp() {
    let _alone = alone();
    let Some(logs) = copies(CLEAN, "", &[upload("100M", "--stack auto")]) else { return };
    assert_eq!(changes(&logs[0]), [""; 0], "{:?}", logs[0]);
    finished(&logs[0]);
}
