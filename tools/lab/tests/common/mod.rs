//! Functions that the tests of the lab share.

use ropewalk_lab::{
    results::{ConnectionResult, RunResult},
    run::{Event, RunError, RunOptions, run},
    scenario::{Document, Scenario},
};
use ropewalk_transport::{Driver, Options, Tcp, Tuning};
use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// A scenario of two hosts, with 20 Mbit/s and a round trip time of 40 ms.
pub(crate) const TWO_HOSTS: &str = r#"
title = "test"
kernel.congestion = "reno"
[hosts.left]
[hosts.right]
[[links]]
between = ["left", "right"]
path = { round_trip = "40ms", both = { rate = "20Mbit/s", queue = 200 } }
"#;

/// One test runs at a time, because packets are late on a busy machine.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs a test that needs root; without root it prints a message and skips the test.
pub(crate) fn lab_test(test: impl FnOnce()) {
    let _alone = ALONE.lock();
    if let Err(error @ RunError::NotRoot) = run(&scenario(TWO_HOSTS), &RunOptions::default()) {
        eprintln!("NOT TESTED: {error}");
        return;
    }
    test();
}

pub(crate) fn own_program() -> PathBuf {
    env::current_exe().unwrap()
}

pub(crate) fn scenario(text: &str) -> Scenario {
    Document::parse(text, "test.toml").unwrap().scenario().unwrap()
}

pub(crate) fn run_text(text: &str) -> RunResult {
    let result = run(&scenario(text), &RunOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    result.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    assert_clean();
    result
}

/// A scenario part with a server on `right` and a command `upload` on `left`.
pub(crate) fn transfer(bytes: &str) -> String {
    format!(
        r#"
        [[servers]]
        name = "sink"
        host = "right"
        run = ["{{ropewalk}}", "--exact", "program_sink", "--ignored", "--nocapture"]
        environment = {{ LISTEN = "{{addr:right}}:{{port:sink}}" }}
        ready = {{ port = "{{port:sink}}" }}
        [[commands]]
        name = "upload"
        host = "left"
        run = ["{{ropewalk}}", "--exact", "program_source", "--ignored", "--nocapture"]
        environment = {{ CONNECT = "{{addr:right}}:{{port:sink}}", BYTES = "{bytes}" }}
        bytes = "{bytes}"
        "#
    )
}

/// A server that reads each connection to its end and answers with one byte.
pub(crate) fn sink() {
    let listener = TcpListener::bind(env::var("LISTEN").unwrap()).unwrap();
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
        stream.write_all(b"!").unwrap();
    }
}

pub(crate) fn source() {
    let bytes: ropewalk_lab::scenario::Size = env::var("BYTES").unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(env::var("CONNECT").unwrap()).unwrap();
    stream.write_all(&vec![1; bytes.0 as usize]).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 2]).unwrap(), 1);
}

/// Connects with a congestion control other than that of the host.
pub(crate) fn chooser() {
    let address: std::net::SocketAddr = env::var("CONNECT").unwrap().parse().unwrap();
    let options = Options {
        tuning: Tuning { congestion: Some("reno".into()), ..Tuning::default() },
        ..Options::default()
    };
    let mut connection = Tcp.connect(address.into(), &options, Duration::from_secs(10)).unwrap();
    connection.write_all(b"x").unwrap();
    let used = rustix::net::sockopt::tcp_congestion(connection.fast_path().socket().unwrap());
    assert_eq!(used.unwrap(), "reno");
}

pub(crate) fn connections<'a>(
    result: &'a RunResult,
    host: &'a str,
) -> impl Iterator<Item = &'a ConnectionResult> {
    result
        .connections
        .iter()
        .filter(move |connection| connection.host == host && connection.traffic.is_none())
}

/// The sum of rate times length over all steps.
pub(crate) fn integral(times: &[f64], rates: &[f64]) -> f64 {
    let before = std::iter::once(0.0).chain(times.iter().copied());
    before.zip(times).zip(rates).map(|((before, time), rate)| (time - before) * rate).sum()
}

/// Checks that no directory, mount, interface or process of a lab remains.
pub(crate) fn assert_clean() {
    assert!(!std::path::Path::new("/ropewalk-lab").exists());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains("ropewalk-lab"), "{mounts}");
    let interfaces: Vec<_> =
        fs::read_dir("/sys/class/net").unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(interfaces.iter().all(|name| !name.to_string_lossy().starts_with("wan")), "{interfaces:?}");
    let own = namespaces_of_children();
    assert!(own.is_empty(), "{own:?}");
}

/// Processes with the variable `ROPEWALK_LAB_TEST` of this test in their environment.
fn namespaces_of_children() -> Vec<String> {
    let marker = format!("ROPEWALK_LAB_TEST={}", std::process::id());
    processes_with(&marker)
}

fn processes_with(marker: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let with = processes.filter(|process| {
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == marker.as_bytes())
    });
    with.map(|process| process.file_name().to_string_lossy().into_owned()).collect()
}

/// Runs a lab that does not end until this process is killed.
pub(crate) fn runner() {
    let text = format!(
        "{}{}[[commands]]\nname = \"it\"\nhost = \"left\"\nrun = \"setsid sleep 600 & dd if=/dev/zero of={{disk}}/x bs=1M\"\n",
        TWO_HOSTS.replace("[hosts.left]", "[hosts.left]\ndisk = { write = \"1MiB/s\" }"),
        transfer("64KiB").replace("name = \"upload\"", "name = \"upload\"\nbackground = true"),
    );
    let options = RunOptions {
        name: Some(format!("killed-{}", std::process::id())),
        program: Some(own_program()),
        events: Some(Arc::new(|event: &Event| {
            if matches!(event, Event::CommandStarted { command, .. } if command == "it") {
                println!("started");
            }
        })),
        ..RunOptions::default()
    };
    run(&scenario(&text), &options).unwrap();
}

pub(crate) fn kill_the_runner() {
    let marker = format!("ROPEWALK_LAB_KILLED={}", std::process::id());
    let (name, value) = marker.split_once('=').unwrap();
    let mut runner = Command::new(own_program())
        .args(["--exact", "program_runner", "--ignored", "--nocapture"])
        .env(name, value)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(runner.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("started")));
    // The runner, the sink, the shell, sleep and dd; the first process of the lab has no
    // environment.
    let deadline = Instant::now() + Duration::from_secs(5);
    while processes_with(&marker).len() < 5 {
        assert!(Instant::now() < deadline, "{:?}", processes_with(&marker));
        std::thread::yield_now();
    }
    let pid = runner.id();
    let spaces = namespaces(pid);
    assert!(spaces.len() > 1, "{spaces:?}");
    runner.kill().unwrap();
    runner.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while !processes_with(&marker).is_empty() || in_namespaces(&spaces) {
        assert!(Instant::now() < deadline, "left: {:?}", processes_with(&marker));
        std::thread::yield_now();
    }
    assert_clean();
    let names = ropewalk_lab::run::labs();
    assert!(names.iter().all(|lab| lab.process != pid), "{names:?}");
}

/// The network namespaces that a process holds by descriptors.
fn namespaces(pid: u32) -> Vec<String> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let targets = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.map(|target| target.display().to_string()).filter(|target| target.starts_with("net:[")).collect()
}

/// Whether any process is in one of these namespaces.
fn in_namespaces(namespaces: &[String]) -> bool {
    fs::read_dir("/proc").unwrap().flatten().any(|process| {
        fs::read_link(process.path().join("ns/net"))
            .is_ok_and(|target| namespaces.contains(&target.display().to_string()))
    })
}
