//! Limits on the rate of a server, and the shares of its users, while data moves, here and on data
//! nodes.

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
use ropewalk_tests::nodes::{cp, write_token};
use ropewalk_tests::process::Program;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::{files, peers, process};
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

const FRONT_END: &str = "[nodes]\nlisten = '127.0.0.1:0'\njoin_token_file = 'token'\n";

/// Starts nodes of the front end in `directory`.
fn start_nodes(front_end: &Program, directory: &Path, names: [&str; 2]) -> [Program; 2] {
    let joins = |line: &str| line.strip_prefix("Nodes join at ").map(str::to_owned);
    let address = front_end.wait_for_line(LIMIT, joins).unwrap();
    names.map(|name| {
        let mut command = process::command(peers::ropewalk().unwrap());
        command.args(["node", "--join", &address, "--name", name, "--join-token-file"]);
        command.arg(directory.join("token")).arg("--root").arg(directory.join("root"));
        let node = Program::start(&mut command).unwrap();
        let ready = format!("Node {name} ready");
        node.wait_for_line(LIMIT, |line| (line == ready).then_some(())).unwrap();
        node
    })
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

/// Looks at the counters until they have grown by `bytes`, and checks at each look that they have
/// grown by no more than `rate` permits, and a `burst`.
fn assert_limited(counters: &[Arc<AtomicU64>], rate: f64, burst: f64, bytes: u64) {
    let read = || counters.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>();
    let began = Instant::now();
    let before = read();
    loop {
        let grown = read() - before;
        // Later than the look at the counters, so that the time is never too short.
        let elapsed = began.elapsed();
        let most = rate * elapsed.as_secs_f64() + burst;
        assert!(grown as f64 <= most, "{grown} bytes in {elapsed:?}, at most {most}");
        if grown >= bytes {
            println!("{:.0} bytes/s, at most {rate}", grown as f64 / elapsed.as_secs_f64());
            return;
        }
        assert!(elapsed < LIMIT, "{grown} bytes in {elapsed:?}");
        thread::sleep(Duration::from_millis(5));
    }
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

#[test]
fn transfers_on_two_nodes_keep_the_limit_together_and_follow_a_reload() {
    let scratch = Scratch::new().unwrap();
    write_token(&scratch.path().join("token"), 'a');
    let bandwidth = |rate: &str| format!("{FRONT_END}[[bandwidth]]\nrate = '{rate}'\n");
    let (program, address) = serve(scratch.path(), &bandwidth("14MB/s"));
    let [_a, mut b] = start_nodes(&program, scratch.path(), ["a", "b"]);
    let counters = USERS.map(|user| download(address, user));
    // The limit saves 100 ms, and the nodes have grants for 200 ms.
    assert_limited(&counters, 14e6, 0.4 * 14e6, 28_000_000);
    let measured = rates(&counters);
    let sum: f64 = measured.iter().sum();
    println!("1:2:4 of 14 MB/s on nodes: {measured:.0?} bytes/s, sum {sum:.0}");
    for (rate, weight) in measured.iter().zip([1.0, 2.0, 4.0]) {
        assert_within("share", *rate, sum / 7.0 * weight, 0.25);
    }
    for name in ["a", "b"] {
        let chosen = format!("node=\"{name}\"");
        program.wait_for_log(LIMIT, |log| log.contains(&chosen)).unwrap();
    }

    let reload = |rate: &str, times: usize| {
        write_settings(scratch.path(), &bandwidth(rate));
        program.signal(Signal::HUP);
        program.wait_for_log(LIMIT, |log| log.matches("settings reloaded").count() == times).unwrap();
    };
    reload("3MB/s", 1);
    // Nodes may still send their grants of the old limit, and sockets have bytes.
    assert_limited(&counters, 3e6, 0.4 * 14e6 + 1e6, 12_000_000);
    reload("off", 2);
    let before = counters.each_ref().map(|count| count.load(Ordering::Relaxed));
    wait_for(|| counters.iter().zip(before).all(|(count, before)| count.load(Ordering::Relaxed) > before));
    reload("3MB/s", 3);
    // Nodes that had no limit get to know it within 50 ms, on a busy host later.
    thread::sleep(Duration::from_millis(500));
    assert_limited(&counters, 3e6, 0.4 * 3e6 + 4e6, 9_000_000);
    // The transfers on the other node get its share.
    b.kill();
    assert_limited(&counters, 3e6, 0.4 * 3e6 + 4e6, 9_000_000);
}

#[test]
fn node_without_front_end_ends_a_transfer_that_waits_for_grants() {
    let scratch = Scratch::new().unwrap();
    write_token(&scratch.path().join("token"), 'a');
    let (mut program, address) =
        serve(scratch.path(), &format!("{FRONT_END}[[bandwidth]]\nrate = '20KB/s'\n"));
    let mut nodes = start_nodes(&program, scratch.path(), ["a", "b"]);
    // In MODE S the thread that moves the bytes is also the one that watches the front end.
    let count = download(address, "ada");
    wait_for(|| count.load(Ordering::Relaxed) > 0);
    program.kill();
    for node in &mut nodes {
        node.wait_for_log(LIMIT, |log| log.contains("the front end is lost")).unwrap();
        node.signal(Signal::TERM);
        assert!(node.wait(LIMIT).unwrap().success(), "{}", node.log());
    }
}

#[test]
fn limits_of_directions_hold_on_nodes_for_striped_transfers_of_any_mode() {
    let scratch = Scratch::new().unwrap();
    write_token(&scratch.path().join("token"), 'a');
    let bandwidth = "[data]\ndrivers = ['tcp', 'udt']\n[[bandwidth]]\nrate = '8MB/s'\ndirection = 'upload'\n";
    let (program, address) = serve(scratch.path(), &format!("{FRONT_END}{bandwidth}"));
    let _nodes = start_nodes(&program, scratch.path(), ["a", "b"]);
    let source = scratch.path().join("source");
    files::write_random(&source, 12_000_000, 3).unwrap();
    let url = |name: &str| format!("ftp://ada:open%20sesame@{address}/{name}");
    for options in
        [&["-p", "4", "--stripes", "auto"][..], &["--mode", "stream"], &["-p", "2", "--stack", "udt"]]
    {
        let began = Instant::now();
        cp(options, &source, url("there")).succeeded().unwrap();
        let least = (12e6 - 0.4 * 8e6) / 8e6;
        let took = began.elapsed().as_secs_f64();
        println!("{options:?}: {:.0} bytes/s of 8000000", 12e6 / took);
        assert!(took >= least, "12 MB in {took} s");
        files::ensure_same(&source, &scratch.path().join("root/there")).unwrap();
        let back = scratch.path().join("back");
        cp(options, url("there"), &back).succeeded().unwrap();
        files::ensure_same(&source, &back).unwrap();
        fs::remove_file(&back).unwrap();
        fs::remove_file(scratch.path().join("root/there")).unwrap();
    }
}

#[test]
fn bandwidth_of_a_copy_holds_over_every_driver() {
    let scratch = Scratch::new().unwrap();
    let (_program, address) = serve(scratch.path(), "[data]\ndrivers = ['tcp', 'udt', 'quic']\n");
    let (source, back) = (scratch.path().join("source"), scratch.path().join("back"));
    files::write_random(&source, 12_000_000, 3).unwrap();
    let url = format!("ftp://ada:open%20sesame@{address}/there");
    for stack in ["tcp", "udt", "quic"] {
        for (from, to) in [(source.as_os_str(), url.as_ref()), (url.as_ref(), back.as_os_str())] {
            let began = Instant::now();
            cp(&["-p", "2", "--stack", stack, "--bandwidth", "8MB/s"], from, to).succeeded().unwrap();
            let took = began.elapsed().as_secs_f64();
            println!("{stack}: {:.0} bytes/s of 8000000", 12e6 / took);
            assert!(took >= (12e6 - 0.4 * 8e6) / 8e6, "{stack}: 12 MB in {took} s");
        }
        files::ensure_same(&source, &back).unwrap();
        fs::remove_file(&back).unwrap();
        fs::remove_file(scratch.path().join("root/there")).unwrap();
    }
}
