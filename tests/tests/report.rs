//! `ropewalk report` on the terminal and as a page in a browser.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use ropewalk_tests::peers;
use ropewalk_tests::process::{self, Outcome, Program};
use ropewalk_tests::scratch::Scratch;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

/// Returns a synthetic profile as untrusted JSON: twenty seconds of a transfer whose receiver has a
/// small buffer. `text` replaces all names.
fn profile(text: &str, ceiling: u64) -> Value {
    let rate = ceiling / 2 * 1000 / 60;
    let host = |role: &str| {
        let connections = json!([{
            "local": text, "remote": text, "congestion": "cubic",
            "samples": (0..200).map(|tenth| {
                let moved = rate * tenth / 10;
                let (sent, received) = if role == "source" { (moved, 0) } else { (0, moved) };
                json!({
                    "time": tenth as f64 / 10.0, "rtt": 0.0601, "min_rtt": 0.06, "cwnd": 200, "mss": 1448,
                    "retransmitted": tenth / 50, "segments_sent": moved / 1448, "acknowledged": sent, "received": received,
                    "busy": tenth as f64 / 10.0, "window_limited": tenth as f64 / 10.1, "buffer_limited": 0.0,
                    "send_window": ceiling / 2, "send_buffer": 4_000_000, "queued": 2_000_000,
                    "receive_buffer": ceiling, "unread": 0, "out_of_order": 0
                })
            }).collect::<Vec<_>>()
        }]);
        let processors = ["all", "0", "1"].map(|name| {
            json!({
                "name": name, "user": 0.1, "system": 0.2, "iowait": 0.0, "irq": 0.0, "softirq": 0.05, "steal": 0.0, "idle": 0.65
            })
        });
        json!({
            "schema": 1, "role": role, "started": 1_800_000_000.0, "connections": connections,
            "facts": {
                "name": format!("{role}{text}"), "kernel": text, "processors": 2, "memory": 8_u64 << 30,
                "sysctls": { "net.ipv4.tcp_rmem": format!("4096 131072 {ceiling}"), "net.ipv4.tcp_wmem": "4096 16384 4194304" }
            },
            "collectors": [{ "name": "perf", "state": "denied", "detail": text }],
            "system": (1..=20).map(|second| json!({
                "time": second as f64, "seconds": 1.0,
                "processors": processors,
                "disks": [{
                    "name": text, "transfers": 5.0, "read": 1e6, "written": 2e6, "queue": 0.1, "wait": 0.001, "utilisation": 0.1
                }],
                "interfaces": [{
                    "name": text, "received_packets": 900.0, "sent_packets": 800.0, "received_bytes": 1e6, "sent_bytes": 1e5,
                    "errors": 1.0, "dropped": 0.0
                }]
            })).collect::<Vec<_>>(),
            "stages": { "stream_seconds": 20.0, "socket": { "busy": 1.0, "waited": 18.0 } },
            "profiler": {
                "event": "cycles", "samples": 100, "shares": [{ "kind": "driver", "name": text, "share": 0.5 }], "functions": []
            }
        })
    };
    // Both directions, with a value that was not requested, a refused value, an outlier, and a
    // failure.
    let point = |value: u64, way: f64| {
        let rate = 1e6 * way * value as f64;
        let run = |factor: f64| json!({ "time": 1.0, "round": 1, "bytes": 1, "seconds": 1.0, "bytes_per_second": rate * factor });
        let mut runs = vec![run(0.9), run(1.0), run(1.1)];
        runs.push(json!({ "time": 1.0, "round": 2, "bytes": 1, "seconds": 9.0, "bytes_per_second": rate / 3.0, "outlier": true }));
        runs.push(json!({ "time": 1.0, "round": 2, "bytes": 0, "seconds": 0.0, "bytes_per_second": 0.0, "failed": text }));
        let end = |role: &str| {
            json!({
                "role": role, "host": text, "runs": 3, "load": 0.4, "peak": 0.5, "kernel": 0.02 * value as f64, "disk_transfers": 1.0,
                "disk_read": 1.0, "disk_written": 1.0, "packets_received": 1.0, "packets_sent": 1.0, "retransmitted": 0.0,
                "shares": [{ "kind": "module", "name": text, "share": 0.2 }, { "kind": "kernel", "name": "kernel", "share": 0.5 }]
            })
        };
        json!({
            "name": value.to_string(), "value": value, "runs": runs, "ends": [end("source"), end("destination")],
            "rate": {
                "runs": 3, "mean": rate, "median": rate, "deviation": rate / 10.0, "interval": rate / 5.0, "least": rate * 0.9,
                "most": rate * 1.1
            },
            "with_outliers": { "runs": 4, "mean": rate * 0.8, "median": rate * 0.9, "deviation": rate / 5.0, "least": rate / 3.0, "most": rate }
        })
    };
    let curve = |knob: &str, way: &str, factor: f64| {
        let mut points: Vec<Value> = [1, 2, 4, 8].iter().map(|value| point(*value, factor)).collect();
        points.push(json!({ "name": text, "refused": text }));
        json!({ "knob": knob, "way": way, "description": text, "held": text, "points": points })
    };
    let curves: Vec<Value> = ["buffer", "streams", "block", "files"]
        .iter()
        .flat_map(|knob| [curve(knob, "forth", 1.0), curve(knob, "back", 0.5)])
        .collect();
    json!({
        "sweeps": { "rounds": 3, "runs_wanted": 200, "broken_off": text, "curves": curves },
        "schema": 1, "started": 1_800_000_000.0,
        "workload": {
            "kind": "memory_to_memory", "description": text, "bytes": rate * 20, "seconds": 20.0, "files": 1, "streams": 1,
            "files_in_flight": 1, "rates": (1..=20).map(|second| {
                json!({ "time": second as f64, "bytes_per_second": rate })
            }).collect::<Vec<_>>()
        },
        "baselines": { "path": 25e6, "rtt": 0.06, "source_disk": 1e8 },
        "hosts": [host("source"), host("destination")]
    })
}

fn write(scratch: &Scratch, name: &str, profile: &Value) -> String {
    let path = scratch.join(name);
    fs::write(&path, profile.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

fn report(arguments: &[&str]) -> Outcome {
    process::run(peers::ropewalk_command().unwrap().arg("report").args(arguments), SOON).unwrap()
}

/// Returns the document in Chromium after the page has loaded, and the messages on its console.
fn browse(scratch: &Scratch, page: &Path) -> Result<(String, Vec<String>)> {
    let state = scratch.join("browser");
    let mut command = process::command("chromium");
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
    ]);
    command.args(["--no-first-run", "--disable-component-update", "--enable-logging=stderr", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", state.display())).arg(format!("file://{}", page.display()));
    command.env("HOME", scratch.path());
    let outcome = process::run(&mut command, SOON)?.succeeded()?;
    let console =
        outcome.errors().lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect();
    Ok((outcome.text(), console))
}

/// Counts connections and closes them.
fn listen() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let heard = Arc::new(AtomicUsize::new(0));
    let count = heard.clone();
    thread::spawn(move || {
        for _ in listener.incoming() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    (address, heard)
}

#[test]
fn page_shows_all_figures_and_runs_no_script() {
    if !peers::available(&["chromium", "setpriv"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    // A script that escapes from the text would connect here.
    let (address, heard) = listen();
    let beacon = format!("http://{address}/");
    let hostile = format!(
        "\"'></title></text></svg></style><img src=\"{beacon}\"><script src=\"{beacon}\"></script><script>document.title='taken'</script>"
    );
    let json = write(&scratch, "profile.json", &profile(&hostile, 131_072));
    let page = scratch.join("page.html");
    report(&[&json, "--html", page.to_str().unwrap()]).succeeded().unwrap();

    let (document, console) = browse(&scratch, &page).unwrap();
    assert_eq!(console, Vec::<String>::new());
    let sweeps = ["sweep-buffer", "sweep-streams", "sweep-block", "sweep-files"];
    let figures = ["rate", "streams", "rtt", "retransmissions", "cwnd", "cpu", "disk", "packets"];
    for figure in sweeps {
        let (_, rest) = document
            .split_once(&format!("<figure id=\"{figure}\">"))
            .unwrap_or_else(|| panic!("no {figure}"));
        let drawing = rest.split_once("</svg>").unwrap().0;
        // Four points for each direction and each end, and an outlier next to each point of the
        // rates.
        let marks = drawing.matches("<circle").count() + drawing.matches("<polygon").count();
        assert!(marks >= 4 * 4 + 4 * 2, "{figure}: {marks} marks in {drawing}");
        assert!(!drawing.contains("no data"), "{figure}");
    }
    for figure in figures {
        let (_, rest) = document
            .split_once(&format!("<figure id=\"{figure}\">"))
            .unwrap_or_else(|| panic!("no {figure}"));
        let drawing = rest.split_once("</svg>").unwrap().0;
        // More lines than the axes and the grid have.
        assert!(drawing.matches("<polyline").count() > 8, "{figure}: {drawing}");
        assert!(!drawing.contains("no data"), "{figure}");
    }
    for expected in [
        "Your transfer was slow because a setting",
        "Where the streams' time went",
        "What the processors worked on",
        "Other settings",
        "8 was best (64.0 Mbit/s), ",
        "1 outlier left out (8.00 Mbit/s without",
    ] {
        assert!(document.contains(expected), "{expected}");
    }
    for element in ["<script", "<img", "<iframe", "<link", "<object", "<title>taken"] {
        assert!(!document.contains(element), "{element}");
    }
    assert_eq!(heard.load(Ordering::SeqCst), 0, "the page asked the network");

    // Positive control: without its policy and with a script, the same page connects.
    let text = fs::read_to_string(&page).unwrap();
    let (begin, rest) = text.split_once("<meta http-equiv").unwrap();
    let open = begin.to_owned() + rest.split_once('>').unwrap().1;
    let injected = |text: &str| {
        text.replace("</main>", &format!("<img src=\"{beacon}\"><script>nonsense()</script></main>"))
    };
    fs::write(&page, injected(&open)).unwrap();
    let (_, console) = browse(&scratch, &page).unwrap();
    assert!(console.iter().any(|line| line.contains("nonsense is not defined")), "{console:?}");
    assert!(heard.swap(0, Ordering::SeqCst) > 0);
    // The policy also blocks a script that escapes from the text.
    fs::write(&page, injected(&text)).unwrap();
    let (_, console) = browse(&scratch, &page).unwrap();
    assert!(
        console.iter().filter(|line| line.contains("Content Security Policy")).count() >= 2,
        "{console:?}"
    );
    assert_eq!(heard.load(Ordering::SeqCst), 0, "the page asked the network");
}

#[test]
fn terminal_report_fits_one_screen() {
    let scratch = Scratch::new().unwrap();
    let json = write(&scratch, "p.json", &profile("\u{1b}[2J\u{9b}31m", 131_072));
    let outcome = report(&[&json]).succeeded().unwrap();
    let all = outcome.text();
    // The results of sweeps follow below.
    let (text, below) = all.split_once("\nOther settings\n").unwrap();
    assert!(text.lines().count() <= 24, "{text}");
    assert!(below.contains("Streams: 8 was best") && below.contains("broken off"), "{below}");
    assert!(below.chars().all(|c| c == '\n' || !c.is_control()), "{below:?}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    for expected in
        ["Your transfer was slow because", "1. Limit of the operating system", "tcp_rmem", "perf on source"]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn compare_two_profiles() {
    let scratch = Scratch::new().unwrap();
    let before = write(&scratch, "before.json", &profile("", 131_072));
    let after = write(&scratch, "after.json", &profile("", 1 << 20));
    let page = scratch.join("page.html");
    let text =
        report(&[&before, &after, "--compare", "--html", page.to_str().unwrap()]).succeeded().unwrap().text();
    assert!(text.starts_with("The last transfer was 8.0 times as fast"), "{text}");
    for expected in ["destination: net.ipv4.tcp_rmem", "4096 131072 1048576"] {
        assert!(text.contains(expected), "{expected}: {text}");
        assert!(fs::read_to_string(&page).unwrap().contains(expected));
    }
}

#[test]
fn compare_draws_sweeps_of_both_profiles() {
    if !peers::available(&["chromium", "setpriv"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let (address, heard) = listen();
    let hostile =
        format!("\"'></title></svg></style><img src=\"http://{address}/\"><script>nonsense()</script>");
    let before = write(&scratch, "before.json", &profile(&hostile, 131_072));
    // The second profile has other rates and lacks one setting.
    let mut after = profile(&hostile, 1 << 20);
    let curves = after["sweeps"]["curves"].as_array_mut().unwrap();
    curves.retain(|curve| curve["knob"] != "block");
    for point in curves.iter_mut().flat_map(|curve| curve["points"].as_array_mut().unwrap()) {
        for figure in ["mean", "median", "least", "most"] {
            if let Some(rate) = point["rate"][figure].as_f64() {
                point["rate"][figure] = json!(rate * 3.0);
            }
        }
    }
    let after = write(&scratch, "after.json", &after);
    let page = scratch.join("page.html");
    report(&[&before, &after, "--compare", "--html", page.to_str().unwrap()]).succeeded().unwrap();
    let (document, console) = browse(&scratch, &page).unwrap();
    assert_eq!(console, Vec::<String>::new());
    let drawing = |figure: &str| {
        let (_, rest) = document
            .split_once(&format!("<figure id=\"{figure}\">"))
            .unwrap_or_else(|| panic!("no {figure}"));
        rest.split_once("</svg>").unwrap().0
    };
    for (figure, curves) in [
        ("compare-buffer", 2),
        ("compare-buffer-back", 2),
        ("compare-streams", 2),
        ("compare-streams-back", 2),
        ("compare-files", 2),
        ("compare-block", 1),
    ] {
        let drawing = drawing(figure);
        // Four points each, and one in the legend.
        let marks = drawing.matches("<circle").count() + drawing.matches("<polygon").count();
        assert!(marks >= 4 * curves, "{figure}: {marks} marks in {drawing}");
        assert!(!drawing.contains("no data"), "{figure}");
    }
    for expected in ["before: ", "last against first", "+200 % ± ", "How settings were compared"] {
        assert!(document.contains(expected), "{expected}");
    }
    for element in ["<script", "<img"] {
        assert!(!document.contains(element), "{element}");
    }
    assert_eq!(heard.load(Ordering::SeqCst), 0, "the page asked the network");
}

#[test]
fn raw_files_are_linked_from_page() {
    let scratch = Scratch::new().unwrap();
    let json = write(&scratch, "p.json", &profile("", 131_072));
    let raw = scratch.directory("site/raw").unwrap();
    fs::write(raw.join("sar #1.json"), "{}").unwrap();
    let page = scratch.join("site/page.html");
    let page = page.to_str().unwrap();
    report(&[&json, "--html", page, "--raw", raw.to_str().unwrap()]).succeeded().unwrap();
    assert!(fs::read_to_string(page).unwrap().contains("href=\"./raw/sar%20%231.json\">raw/sar #1.json</a>"));
    let outcome = report(&[&json, "--html", page, "--raw", &json]).failed().unwrap();
    assert_eq!(outcome.status.code(), Some(2), "{}", outcome.errors());
}

#[test]
fn invalid_profile_is_refused() {
    let scratch = Scratch::new().unwrap();
    let good = write(&scratch, "good.json", &profile("", 131_072));
    let mut backwards = profile("", 131_072);
    backwards["workload"]["rates"][3]["time"] = json!(-5.0);
    let backwards = write(&scratch, "backwards.json", &backwards);
    let endless = write(&scratch, "endless.json", &json!({ "schema": 1, "started": 1e300, "workload": {} }));
    let missing = scratch.join("missing").to_str().unwrap().to_owned();
    for (arguments, code, said) in [
        (vec![backwards.as_str()], 1, "times in order"),
        (vec![&endless], 1, "expected 0 to 1e19"),
        (vec!["/dev/zero"], 1, "expected at most"),
        (vec![&missing], 4, "cannot read"),
        (vec![&good, "--compare"], 2, "takes 2 to 6 profiles"),
        (vec![&good, &good, "--html", "x"], 2, "give one profile"),
    ] {
        let outcome = report(&arguments).failed().unwrap();
        assert_eq!(outcome.status.code(), Some(code), "{arguments:?}: {}", outcome.errors());
        assert!(outcome.errors().contains(said), "{arguments:?}: {}", outcome.errors());
    }
}

#[test]
fn closed_pipe_is_not_reported() {
    let scratch = Scratch::new().unwrap();
    let json = write(&scratch, "p.json", &profile("", 131_072));
    let binary = peers::ropewalk().unwrap();
    let mut command = process::command("sh");
    command.args(["-c", &format!("'{}' report '{json}' --html - | head -c 10; echo", binary.display())]);
    let mut program = Program::start(&mut command).unwrap();
    program.wait(SOON).unwrap();
    let said = program.finish();
    assert_eq!(said.trim(), "<!DOCTYPE", "{said}");
}
