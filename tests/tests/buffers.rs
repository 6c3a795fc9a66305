//! `ropewalk buffers`, which divides a budget of buffers among running transfers.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_tests::peers;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};
use ropewalk_tests::terminal::Terminal;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Less than the transfers request.
const BUDGET: u64 = 512 << 10;

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the connections that one run reports.
fn look(scratch: &Scratch, arguments: &[&str]) -> Vec<Value> {
    let output = Command::new(peers::ropewalk().unwrap())
        .args(["buffers", "--json", "--interval", "300ms"])
        .args(arguments)
        .env("XDG_STATE_HOME", scratch.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    answer["connections"].as_array().unwrap().clone()
}

fn number(connection: &Value, field: &str) -> u64 {
    connection[field].as_u64().unwrap_or_else(|| panic!("{field} in {connection}"))
}

/// The buffers of Ropewalk's server and client are set within the budget and the data keeps moving;
/// those of another program are not changed.
#[test]
fn ropewalk_transfers_get_their_share_of_the_budget() {
    if !rustix::process::geteuid().is_root() {
        peers::skip("other processes' sockets are taken as root");
        return;
    }
    let scratch = Scratch::new().unwrap();
    let server = Setup::new(Kind::Ropewalk, "/".as_ref()).start().unwrap();
    let client = Command::new(peers::ropewalk().unwrap())
        .args(["cp", "--quiet", "-p", "3", "zero:100000G", &server.url("/dev/null")])
        .env("XDG_STATE_HOME", scratch.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let client = Killed(client);
    // A connection of another program: the test itself.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let foreign = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut sender = foreign.try_clone().unwrap();
    let mut receiver = listener.accept().unwrap().0;
    let threads = [
        thread::spawn(move || while sender.write_all(&[0; 4096]).is_ok() {}),
        thread::spawn(move || while receiver.read(&mut [0; 65_536]).is_ok_and(|bytes| bytes > 0) {}),
    ];

    let pids = [client.0.id(), std::process::id()].map(|pid| pid.to_string());
    let [ours, us] = &pids;
    let began = Instant::now();
    let moves = || look(&scratch, &["--process", ours, "--min-rate", "10Mbit/s"]);
    while moves().len() < 3 {
        assert!(began.elapsed() < Duration::from_secs(20), "no transfer");
    }
    let budget = BUDGET.to_string();
    let policy = ["--policy", "max-min", "--budget", &budget, "--process", ours, "--process", us];
    let decided = look(&scratch, &policy);
    let granted: u64 = decided.iter().map(|connection| number(connection, "granted_bytes")).sum();
    assert!(granted <= BUDGET, "{decided:?}");
    let (own, others): (Vec<_>, Vec<_>) = decided.iter().partition(|connection| connection["own"] == true);
    let set: Vec<_> = own.iter().filter(|connection| connection["action"]["set"].is_object()).collect();
    let forbidden = |connection: &&Value| {
        connection["action"]["failed"].as_str().is_some_and(|why| why.contains("pidfd_getfd"))
    };
    if set.is_empty() && own.iter().any(forbidden) {
        // A container may forbid this. Everything else has been tested before.
        return peers::loudly("SKIPPED: no sockets may be taken here");
    }
    assert!(set.len() >= 3, "{decided:?}");
    assert!(others.iter().all(|connection| connection["action"]["set"].is_null()), "{others:?}");
    assert!(others.iter().any(|connection| connection["action"] == "would_set"), "{others:?}");

    // The kernel's values are the decided ones, and the streams continue.
    let after = look(&scratch, &["--process", ours]);
    for connection in set {
        let now = after.iter().find(|now| now["cookie"] == connection["cookie"]).unwrap();
        let (granted, has) = (number(connection, "granted_bytes"), number(now, "kernel_buffer_bytes"));
        assert!((granted..=2 * granted + 65_536).contains(&has), "{connection}, {now}");
        assert!(now["bytes_per_second"].as_f64().unwrap() > 1e6, "{now}");
    }
    foreign.shutdown(Shutdown::Both).unwrap();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// The server and the client each divide their own budget among their connections, without
/// privileges over other processes.
#[test]
fn programs_divide_their_own_budgets() {
    let scratch = Scratch::new().unwrap();
    let settings = scratch.path().join("server.toml");
    std::fs::write(&settings, format!("[data]\nsocket_memory = {BUDGET}\n")).unwrap();
    let server = Setup::new(Kind::Ropewalk, "/".as_ref()).argument("--config").argument(&settings);
    let server = server.start().unwrap();
    let client = Command::new(peers::ropewalk().unwrap())
        .args([
            "cp",
            "--quiet",
            "-p",
            "3",
            "--socket-memory",
            "256K",
            "zero:100000G",
            &server.url("/dev/null"),
        ])
        .env("XDG_STATE_HOME", scratch.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let client = Killed(client);
    for (pid, budget) in [(client.0.id(), BUDGET / 2), (server.pid(), BUDGET)] {
        let pid = pid.to_string();
        let began = Instant::now();
        loop {
            let streams = look(&scratch, &["--process", &pid, "--min-rate", "10Mbit/s"]);
            // The kernel counts twice the size that was set.
            let sum: u64 = streams.iter().map(|stream| number(stream, "kernel_buffer_bytes")).sum();
            if streams.len() == 3 && sum <= 2 * budget {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(20), "{sum} of {budget}: {streams:?}");
        }
    }
}

/// `--watch` prints until Ctrl-C: one line of JSON per interval, or a table that is redrawn in
/// place.
#[test]
fn watch_runs_until_interrupted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let _connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let _other = listener.accept().unwrap();
    let command = ["buffers", "--watch", "--interval", "100ms", "--port", &port];
    let mut child = Command::new(peers::ropewalk().unwrap())
        .args(command)
        .arg("--json")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let look: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(look["connections"].as_array().unwrap().len(), 2, "{look}");
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    lines.map(Result::unwrap).for_each(drop);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "ropewalk: stopping\n");

    if !peers::available(&["script"]) {
        return;
    }
    let mut watched = Command::new(peers::ropewalk().unwrap());
    watched.args(command).env("TERM", "xterm");
    let mut terminal = Terminal::start(&watched).unwrap();
    for _ in 0..3 {
        for part in ["\x1b[H2 connections, demand ", "\x1b[K", "\x1b[J"] {
            terminal.wait_for(part).unwrap();
        }
    }
    terminal.interrupt().unwrap();
    let (status, shown) = terminal.finish().unwrap();
    assert_eq!(status.code(), Some(130), "{shown}");
}
