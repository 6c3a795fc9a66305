//! `ropewalk buffers` as a shell sees it.
#![allow(clippy::unwrap_used)]

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};

use rustix::net::sockopt::socket_send_buffer_size;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn program(arguments: &[&str], state: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ropewalk"));
    command
        .arg("buffers")
        .args(arguments)
        .env_clear()
        .env("HOME", "/nonexistent")
        .env("XDG_STATE_HOME", state);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn buffers(arguments: &[&str]) -> Output {
    program(arguments, "/nonexistent").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn connection() -> (TcpStream, TcpStream, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let port = client.local_addr().unwrap().port().to_string();
    (client, listener.accept().unwrap().0, port)
}

/// Tables 2 to 5 of Jeong et al.
#[test]
fn the_papers_tables() {
    let output = buffers(&["plan", "-d", "64,1024,768", "-b", "1024", "--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let granted = |name: &str| -> Vec<u64> {
        let columns = answer["policies"].as_array().unwrap();
        let column = columns.iter().find(|column| column["policy"] == name).unwrap();
        serde_json::from_value(column["granted"].clone()).unwrap()
    };
    assert_eq!(granted("none"), [64, 1024, 768]);
    assert_eq!(granted("max-min"), [64, 480, 480]);
    assert_eq!(granted("weighted"), [64, 500, 460]);
    assert_eq!(granted("threshold-table"), [53, 520, 451]);
    assert_eq!(granted("threshold"), [51, 521, 452]);
    assert_eq!(granted("current-share"), [64, 480, 480]);

    let output = buffers(&["plan", "-d", "64,1024,768", "-b", "1024", "-p", "threshold", "--table-compat"]);
    let table = text(&output.stdout);
    for cell in ["threshold-table", "53   -17 %", "520   -49 %", "451   -41 %"] {
        assert!(table.contains(cell), "{cell} in {table}");
    }
}

#[test]
fn a_look() {
    let (_client, _server, port) = connection();
    let output = buffers(&["--json", "--port", &port, "--interval", "100ms"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["schema"], 1);
    let connections = answer["connections"].as_array().unwrap();
    assert_eq!(connections.len(), 2);
    assert_eq!(connections[0]["owner"]["pid"], std::process::id());
    let output = buffers(&["--port", &port, "--interval", "100ms"]);
    let table = text(&output.stdout);
    assert!(table.starts_with("2 connections, demand 0 B") && !table.contains('\x1b'), "{table}");
    let output = buffers(&["--prometheus", "--port", &port, "--interval", "100ms"]);
    assert!(
        text(&output.stdout).contains("ropewalk_buffer_connections{direction=\"out\",owner=\"other\"} 2")
    );
}

#[test]
fn wrong_use_is_refused() {
    for arguments in [
        &["--policy", "fair"][..],
        &["--policy", "max-min", "--budget", "0"],
        &["--policy", "max-min", "--budget", "nan"],
        &["--policy", "max-min", "--budget", "-1"],
        &["--policy", "max-min", "--budget", "8000T"],
        &["--policy", "max-min", "--table-compat"],
        &["--policy", "max-min", "--watch"],
        &["--policy", "max-min", "--apply", "--dry-run"],
        &["--budget", "1M"],
        &["--apply"],
        &["--serve"],
        &["--measure", "guess"],
        &["--interval", "0"],
        &["--min-rate", "inf"],
        &["--port", "0"],
        &["plan", "-d", "1,x", "-b", "5"],
        &["plan", "-b", "5"],
    ] {
        let output = buffers(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_service_gives_back_what_it_has_set() {
    gives_back(&[Signal::TERM]);
}

/// The terminal was closed: both the shell and the kernel send SIGHUP, and the end of the session
/// sends more signals.
#[test]
fn a_service_gives_back_when_its_terminal_is_closed() {
    gives_back(&[Signal::HUP, Signal::HUP, Signal::TERM]);
}

/// Started by nohup(1).
#[test]
fn who_was_told_to_ignore_closed_terminals_goes_on() {
    let (_client, _server, port) = connection();
    let mut command = Command::new("sh");
    command.args(["-c", r#"trap "" HUP; exec "$@""#, "sh", env!("CARGO_BIN_EXE_ropewalk"), "buffers"]);
    command.args(["--watch", "--json", "--interval", "100ms", "--port", &port]);
    let mut watching = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    let pid = Pid::from_child(&watching);
    kill_process(pid, Signal::HUP).unwrap();
    for _ in 0..3 {
        lines.next().unwrap().unwrap();
    }
    kill_process(pid, Signal::TERM).unwrap();
    lines.map(Result::unwrap).for_each(drop);
    assert_eq!(watching.wait_with_output().unwrap().status.code(), Some(130));
}

fn gives_back(signals: &[Signal]) {
    let state = tempfile::tempdir().unwrap();
    let (mut client, server, port) = connection();
    let before = socket_send_buffer_size(&client).unwrap();
    let arguments = [
        "--policy",
        "max-min",
        "--budget",
        "8KiB",
        "--measure",
        "requested",
        "--direction",
        "out",
        "--port",
        &port,
        "--serve",
        "--apply",
        "--json",
        "--interval",
        "100ms",
    ];
    let mut service = program(&arguments, state.path().to_str().unwrap()).spawn().unwrap();
    // Data has to move until the service has sampled twice.
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let writer = std::thread::spawn(move || {
        let mut server = server;
        let mut taken = [0; 1000];
        loop {
            client.write_all(&[7; 1000]).unwrap();
            server.read_exact(&mut taken).unwrap();
            if stopped.try_recv() != Err(std::sync::mpsc::TryRecvError::Empty) {
                return client;
            }
        }
    });
    let mut lines = BufReader::new(service.stdout.take().unwrap()).lines();
    let round: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    drop(stop);
    let client = writer.join().unwrap();
    let set = &round["connections"][0]["action"]["set"];
    let during = socket_send_buffer_size(&client).unwrap();
    for &signal in signals {
        kill_process(Pid::from_child(&service), signal).unwrap();
    }
    let output = service.wait_with_output().unwrap();
    if round["connections"][0]["action"].get("failed").is_some() {
        eprintln!("skipped: {}", round["connections"][0]["action"]);
        return;
    }
    assert_eq!(
        (set["asked_bytes"].as_u64(), set["kernel_bytes"].as_u64()),
        (Some(8192), Some(16384)),
        "{round}"
    );
    assert_eq!(during, 16384);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    // Autotuning may have let it grow since.
    assert!(socket_send_buffer_size(&client).unwrap() >= before / 2 * 2, "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("released"), "{}", text(&output.stderr));
}
