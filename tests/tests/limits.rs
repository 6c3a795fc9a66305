//! Limits on the rate of a server, and the shares of its users, while data moves.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_tests::control::Control;
use ropewalk_tests::process::Program;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::{files, peers};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(60);
const USERS: [&str; 3] = ["ada", "bob", "eve"];
const FILE: u64 = 256 << 20;

fn write_settings(directory: &Path, bandwidth: &str) {
    let text = format!(
        "root = 'root'\nlisten = ['127.0.0.1:0']\npassword_file = 'users'\n{bandwidth}\
         [identity]\nmapped = false\n[tls]\nenabled = false\n[shares.users]\nbob = 2\neve = 4\n"
    );
    fs::write(directory.join("server.toml"), text).unwrap();
}

fn serve(directory: &Path, bandwidth: &str) -> (Program, SocketAddr) {
    fs::create_dir(directory.join("root")).unwrap();
    files::write_sparse(&directory.join("root/file"), FILE, &[], 1).unwrap();
    for user in USERS {
        let mut passwd = peers::ropewalk_command().unwrap();
        passwd.args(["passwd", "--file"]).arg(directory.join("users")).arg(user);
        let mut child = passwd.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        writeln!(child.stdin.take().unwrap(), "open sesame").unwrap();
        assert!(child.wait().unwrap().success());
    }
    write_settings(directory, bandwidth);
    let mut serve = peers::ropewalk_command().unwrap();
    let program =
        Program::start(serve.args(["serve", "--config"]).arg(directory.join("server.toml"))).unwrap();
    let listening = |line: &str| line.strip_prefix("Server listening at ")?.trim().parse().ok();
    let address = program.wait_for_line(LIMIT, listening).unwrap();
    (program, address)
}

/// Downloads the file as a user, and counts the bytes that have come.
fn download(address: SocketAddr, user: &str) -> Arc<AtomicU64> {
    let mut control = Control::connect(address).unwrap();
    control.expect(format!("USER {user}"), 331).unwrap();
    control.expect("PASS open sesame", 230).unwrap();
    control.expect("TYPE I", 200).unwrap();
    let mut data = control.open_data().unwrap();
    control.send("RETR /file").unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    thread::spawn(move || {
        let _control = control;
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n @ 1..) = data.read(&mut buffer) {
            counted.fetch_add(n as u64, Ordering::Relaxed);
        }
    });
    count
}

/// The rates of all counters over a while, in bytes per second.
fn rates(counters: &[Arc<AtomicU64>]) -> Vec<f64> {
    let read = || counters.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let (before, began) = (read(), Instant::now());
    thread::sleep(Duration::from_secs(3));
    let seconds = began.elapsed().as_secs_f64();
    read().iter().zip(before).map(|(after, before)| (after - before) as f64 / seconds).collect()
}

fn wait_for(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < LIMIT);
        thread::sleep(Duration::from_millis(20));
    }
}

fn assert_within(what: &str, value: f64, expected: f64, tolerance: f64) {
    assert!((value / expected - 1.0).abs() < tolerance, "{what}: {value}, expected {expected}");
}

#[test]
fn users_divide_the_limit_of_a_server_by_their_weights_and_follow_a_reload() {
    let scratch = Scratch::new().unwrap();
    let (program, address) = serve(scratch.path(), "[[bandwidth]]\nrate = '14MB/s'\n");
    let counters = USERS.map(|user| download(address, user));
    wait_for(|| counters.iter().all(|count| count.load(Ordering::Relaxed) > 1 << 20));
    let measured = rates(&counters);
    println!("1:2:4 of 14 MB/s: {measured:.0?} bytes/s, sum {:.0}", measured.iter().sum::<f64>());
    assert_within("sum", measured.iter().sum(), 14e6, 0.1);
    for (rate, weight) in measured.iter().zip([1.0, 2.0, 4.0]) {
        assert_within("share", *rate, 2e6 * weight, 0.2);
    }

    // Another limit, for one user more, holds for transfers under way.
    let changed = "[[bandwidth]]\nrate = '7MB/s'\n[[bandwidth]]\nrate = '1MB/s'\nuser = 'eve'\n";
    write_settings(scratch.path(), changed);
    program.signal(Signal::HUP);
    program.wait_for_log(LIMIT, |log| log.contains("settings reloaded")).unwrap();
    // Sockets have to send the bytes of their buffers first.
    let [ada, _, eve] = &counters;
    let at = (ada.load(Ordering::Relaxed), eve.load(Ordering::Relaxed));
    wait_for(|| {
        ada.load(Ordering::Relaxed) > at.0 + (2 << 20) && eve.load(Ordering::Relaxed) > at.1 + (1 << 20)
    });
    let measured = rates(&counters);
    println!("7 MB/s, one user 1 MB/s: {measured:.0?} bytes/s");
    for (rate, expected) in measured.iter().zip([2e6, 4e6, 1e6]) {
        assert_within("rate after the reload", *rate, expected, 0.25);
    }
}
