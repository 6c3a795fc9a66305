//! `ropewalk profile` at other hosts: baselines, the tools' own files, and the processes and files
//! of killed programs.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_tests::control::Control;
use ropewalk_tests::process::{self, Outcome, Program};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::{json_schema, peers};
use rustix::process::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(240);

/// Replaces ssh: `$1` is the host, `$2` the command.
const SSH: &str = "sh -c 'exec sh -c \"$2\"' ssh";

fn server(scratch: &Scratch, more: &str) -> Server {
    let root = scratch.directory("root").unwrap();
    let config = scratch.join("server.toml");
    let text = format!(
        "[identity]\nmapped = false\n[profiling]\nenabled = true\nusers = ['anonymous']\nperf = false\n{more}"
    );
    std::fs::write(&config, text).unwrap();
    Setup::new(Kind::Ropewalk, &root).argument("--config").argument(config).start().unwrap()
}

fn run(scratch: &Scratch, arguments: &[&str]) -> Outcome {
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["profile", "--no-perf", "--output"]).arg(scratch.join("profile.json")).args(arguments);
    process::run(&mut command, LIMIT).unwrap()
}

fn profile(path: &Path) -> Value {
    let profile: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let schema = include_str!("../../tools/profiler/profile.schema.json");
    json_schema::validate(&profile, &serde_json::from_str(schema).unwrap()).unwrap();
    profile
}

fn rate(value: &Value) -> f64 {
    value.as_f64().filter(|rate| *rate > 1e3).unwrap_or_else(|| panic!("no rate: {value}"))
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn baselines_of_server_disks_and_cpu_are_measured() {
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch, "");
    std::fs::write(server.root().join("file"), vec![7; 8 << 20]).unwrap();
    let here = scratch.join("here");
    let baseline =
        ["--baseline", "disk,cpu,path", "--workload", "mem-mem,disk-mem,disk-disk", "--size", "20M"];
    let outcome = run(&scratch, &[&baseline[..], &[&server.url("file"), here.to_str().unwrap()]].concat());
    let outcome = outcome.succeeded().unwrap();
    for name in ["mem-mem", "disk-mem", "disk-disk"] {
        let profile = profile(&scratch.join(format!("profile.{name}.json")));
        let baselines = &profile["baselines"];
        for part in ["path", "path_back", "source_disk", "destination_disk", "checksum", "encryption"] {
            rate(&baselines[part]);
        }
        let ends: Vec<&str> = baselines["processors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|end| {
                for of in ["checksum", "encryption"] {
                    rate(&end["rates"][of]);
                }
                end["role"].as_str().unwrap()
            })
            .collect();
        assert_eq!(ends, ["source", "destination"]);
        let rtt = baselines["rtt"].as_f64().unwrap();
        assert!(rtt > 0.0 && rtt < 5.0, "{rtt}");
        assert!(baselines["loss"].as_f64().unwrap() < 0.5 && baselines["probes"].as_u64().unwrap() > 0);
        assert!(!baselines["path_by"].as_str().unwrap().is_empty());
        // The first profile also contains the kinds of baselines that came later.
        let kinds: Vec<&str> = baselines["kinds"]
            .as_array()
            .unwrap()
            .iter()
            .map(|kind| kind["kind"].as_str().unwrap())
            .collect();
        assert_eq!(kinds, ["memory_to_memory", "disk_to_memory", "disk_to_disk"]);
    }
    let said = outcome.text();
    let table = said.split("of memory-memory").nth(1).unwrap_or_else(|| panic!("no table: {said}"));
    assert!(table.contains("100 %") && table.contains("disk to disk"), "{table}");
    assert_eq!(names(server.root()), ["file"], "something was left behind");

    // In the other direction, to a path that does not exist yet.
    let outcome = run(&scratch, &["--baseline", "disk", "zero:5M", &server.url("none/new")]);
    outcome.succeeded().unwrap();
    rate(&profile(&scratch.join("profile.json"))["baselines"]["destination_disk"]);
    assert_eq!(names(server.root()), ["file", "none"]);

    let html = scratch.join("report.html");
    let mut report = peers::ropewalk_command().unwrap();
    report.arg("report").arg(scratch.join("profile.disk-mem.json")).arg("--html").arg(&html);
    process::run(&mut report, LIMIT).unwrap().succeeded().unwrap();
    let page = std::fs::read_to_string(html).unwrap();
    for text in ["kind of transfer", "checksum, one processor of the destination", "path measured by"] {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn path_is_measured_by_iperf3_if_both_have_it() {
    if !peers::available(&["iperf3"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    // One at a time: the second test takes the place of the first.
    let server = server(&scratch, "iperf3 = true\nat_once = 1\n");
    run(&scratch, &["--baseline", "path", "zero:5M", &server.url("new")]).succeeded().unwrap();
    let baselines = &profile(&scratch.join("profile.json"))["baselines"];
    assert!(baselines["path_by"].as_str().unwrap().starts_with("iperf"), "{baselines}");
    assert!(rate(&baselines["path"]) > 1e6 && rate(&baselines["path_back"]) > 1e6);
}

#[test]
fn iperf3_servers_are_limited() {
    if !peers::available(&["iperf3"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch, "iperf3 = true\nat_once = 1\n");
    let start = "SITE PROFILE BASELINE IPERF";
    let mut first = Control::log_in(server.address()).unwrap();
    first.expect(start, 250).unwrap();
    first.expect(start, 250).unwrap();
    let mut second = Control::log_in(server.address()).unwrap();
    second.expect(start, 451).unwrap();
    // Profiles are counted separately.
    second.expect("SITE PROFILE BASELINE CPU", 250).unwrap();
    drop(first);
    until("the first one's iperf3 has gone with its session", || {
        second.command(start).is_ok_and(|reply| reply.code == 250)
    });
}

/// A profile belongs to the session that started it. It counts until it is fetched or the session
/// ends.
#[test]
fn profile_belongs_to_session_until_fetched() {
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch, "at_once = 1\n");
    let fetch = |control: &mut Control| {
        let data = control.open_data();
        control.send("SITE PROFILE FETCH").unwrap();
        (data, control.final_reply().unwrap().code)
    };
    let mut first = Control::log_in(server.address()).unwrap();
    let mut second = Control::log_in(server.address()).unwrap();
    first.expect("SITE PROFILE START 60", 250).unwrap();
    second.expect("SITE PROFILE START 60", 451).unwrap();
    // Another session of the same user can access neither the running profile nor the finished one.
    second.expect("SITE PROFILE STOP", 503).unwrap();
    assert_eq!(fetch(&mut second).1, 503);
    first.expect("SITE PROFILE STOP", 250).unwrap();
    assert_eq!(fetch(&mut second).1, 503);
    second.expect("SITE PROFILE START 60", 451).unwrap();
    second.expect("SITE PROFILE BASELINE CPU", 451).unwrap();
    let address = first.passive().unwrap();
    first.send("SITE PROFILE FETCH").unwrap();
    let mut bytes = Vec::new();
    let mut data = ropewalk_tests::control::connect_data(address).unwrap();
    std::io::Read::read_to_end(&mut data, &mut bytes).unwrap();
    assert_eq!(first.final_reply().unwrap().code, 226);
    assert!(serde_json::from_slice::<Value>(&bytes).unwrap()["system"].is_array());
    // A profile can be fetched once; then another one can start.
    assert_eq!(fetch(&mut first).1, 503);
    second.expect("SITE PROFILE START 60", 250).unwrap();
    first.expect("SITE PROFILE START 60", 451).unwrap();
    drop(second);
    until("the profile has gone with its session", || {
        first.command("SITE PROFILE START 60").is_ok_and(|reply| reply.code == 250)
    });
}

#[test]
fn virtual_files_of_server_have_no_disk_rate() {
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch, "");
    let mut control = Control::log_in(server.address()).unwrap();
    for path in ["/dev/ropewalk-zero-1000000000", "/dev/ropewalk-null"] {
        let reply = control.expect(format!("SITE PROFILE BASELINE READ {path}"), 550).unwrap();
        assert!(reply.text.contains("no disk"), "{path}: {}", reply.text);
    }
}

#[test]
fn unwritable_output_and_excess_duration_are_reported_at_once() {
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch, "longest = 3\n");
    let (target, none) = (scratch.join("target"), scratch.join("none/p.json"));
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["profile", "--no-perf", "zero:1M"]).arg(&target).arg("--output").arg(&none);
    let outcome = process::run(&mut command, LIMIT).unwrap();
    assert!(outcome.errors().contains("cannot be written to"), "{}", outcome.errors());
    assert!(!target.exists(), "it was copied for nothing");

    // The output must not replace the source of the copy.
    let source = scratch.join("source");
    std::fs::write(&source, b"precious").unwrap();
    for (output, ends) in [
        (&source, [source.display().to_string(), server.url("dev/ropewalk-null")]),
        (&target, ["zero:1M".to_owned(), target.display().to_string()]),
    ] {
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["profile", "--no-perf"]).args(ends).arg("--output").arg(output);
        let outcome = process::run(&mut command, LIMIT).unwrap();
        assert!(outcome.errors().contains("this file is part of the copy"), "{}", outcome.errors());
    }
    assert_eq!(std::fs::read(&source).unwrap(), b"precious");
    assert!(!target.exists());

    // Longer than the server measures: the measured part is reported.
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["profile", "--no-perf", "--seconds", "1", "--server", &server.url("")]);
    process::run(&mut command, LIMIT).unwrap().succeeded().unwrap();
    let mut command = peers::ropewalk_command().unwrap();
    let outcome = process::run(command.args(["profile", "--seconds", "0", "--local"]), LIMIT).unwrap();
    assert!(outcome.errors().contains("expected more than 0"), "{}", outcome.errors());
}

#[test]
fn interrupted_transfer_is_profiled_at_both_ends() {
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch, "");
    let output = scratch.join("profile.json");
    let mut command = peers::ropewalk_command().unwrap();
    command
        .args(["profile", "--no-perf", "zero:100T", &server.url("dev/ropewalk-null"), "--output"])
        .arg(&output);
    let mut program = Program::start(&mut command).unwrap();
    until("the server measures", || server.log().contains("a profile is taken"));
    program.signal(Signal::INT);
    let status = program.wait(LIMIT).unwrap();
    let said = program.finish();
    assert_eq!(status.code(), Some(130), "{said}");
    let profile = profile(&output);
    let roles: Vec<&Value> = profile["hosts"].as_array().unwrap().iter().map(|host| &host["role"]).collect();
    assert_eq!(roles, ["source", "destination"], "{said}");
}

#[test]
fn other_hosts_are_profiled_through_ssh() {
    if !peers::available(&["globus-gridftp-server", "iperf3"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("gct").unwrap();
    let server = Setup::new(Kind::Gct, &root).start().unwrap();
    let collect = format!("{} profile --collect", peers::ropewalk().unwrap().display());
    let url = server.url("file");
    let ssh = ["--ssh", SSH, "--ssh-destination", "there", "--collect-command", &collect];
    let raw = scratch.join("raw");
    let wanted = ["--baseline", "disk,cpu,path", "--raw", raw.to_str().unwrap(), "zero:300M", &url];
    run(&scratch, &[&ssh[..], &wanted].concat()).succeeded().unwrap();
    let profile = profile(&scratch.join("profile.json"));
    let baselines = &profile["baselines"];
    rate(&baselines["destination_disk"]);
    assert_eq!(baselines["processors"].as_array().unwrap().len(), 2);
    assert!(baselines["path_by"].as_str().unwrap().starts_with("iperf"), "{baselines}");
    assert_eq!(names(&root), ["file"], "something was left behind");
    // Both ends have sent the output of their tools.
    if peers::available(&["sar"]) {
        let found = names(&raw);
        let all = ["destination.sadf.json", "destination.sar", "source.sadf.json", "source.sar"];
        assert_eq!(found, all);
    }
}

#[test]
fn raw_files_of_server_are_linked() {
    if !peers::available(&["sar"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch, "");
    let proxy = Proxy::start(server.address()).unwrap();
    // Samples are taken every second.
    proxy.set_rate(Some(50 << 20));
    let raw = scratch.join("raw");
    let url = server.url_at(proxy.address(), "file");
    run(&scratch, &["--raw", raw.to_str().unwrap(), "zero:150M", &url]).succeeded().unwrap();
    let all = ["destination.sadf.json", "destination.sar", "source.sadf.json", "source.sar"];
    assert_eq!(names(&raw), all);
    let json: Value = serde_json::from_slice(&std::fs::read(raw.join(all[0])).unwrap()).unwrap();
    assert!(json["sysstat"]["hosts"][0]["statistics"].is_array());
    // sadf can read the output of sar.
    let mut sadf = process::command("sadf");
    process::run(sadf.arg("-j").arg(raw.join(all[1])).args(["--", "-u"]), LIMIT)
        .unwrap()
        .succeeded()
        .unwrap();
    let html = scratch.join("report.html");
    let mut report = peers::ropewalk_command().unwrap();
    report.arg("report").arg(scratch.join("profile.json")).arg("--html").arg(&html).arg("--raw").arg(&raw);
    process::run(&mut report, LIMIT).unwrap().succeeded().unwrap();
    let page = std::fs::read_to_string(html).unwrap();
    for name in all {
        assert!(page.contains(&format!("href=\"./raw/{name}\"")), "{name}");
    }
}

#[test]
fn transfer_longer_than_profile_limit_is_reported() {
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch, "longest = 1\n");
    let proxy = Proxy::start(server.address()).unwrap();
    proxy.set_rate(Some(10 << 20));
    let outcome = run(&scratch, &["zero:80M", &server.url_at(proxy.address(), "file")]).succeeded().unwrap();
    let profile = profile(&scratch.join("profile.json"));
    let hosts = profile["hosts"].as_array().unwrap();
    let measured = |at: usize| hosts[at]["measured"].as_f64().unwrap();
    let seconds = profile["workload"]["seconds"].as_f64().unwrap();
    assert!(measured(0) >= seconds - 0.1 && measured(1) < seconds, "{} {}", measured(0), measured(1));
    assert!(outcome.text().contains("over before the transfer"), "{}", outcome.text());
}

/// Returns the parent and the state of each process.
fn processes() -> HashMap<u32, (u32, char)> {
    let mut found = HashMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let mut fields = stat.rsplit_once(") ").unwrap().1.split(' ');
        let state = fields.next().unwrap().chars().next().unwrap();
        found.insert(pid, (fields.next().unwrap().parse().unwrap(), state));
    }
    found
}

fn descendants(of: u32) -> Vec<u32> {
    let all = processes();
    let mut found = vec![of];
    let mut at = 0;
    while at < found.len() {
        let of = found[at];
        found.extend(all.iter().filter(|(_, (parent, _))| *parent == of).map(|(pid, _)| *pid));
        at += 1;
    }
    found.split_off(1)
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A process whose descendants are waited for as well.
struct Tree(std::process::Child);

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn killed_program_leaves_no_processes_or_files() {
    if !peers::available(&["sar", "perf"]) {
        return;
    }
    // As soon as the directory of the first or the last collector exists, and when everything is
    // running.
    for (prefix, files) in [("ropewalk-sar-", false), ("ropewalk-perf-", false), ("ropewalk-sar-", true)] {
        killed_once_there_is(prefix, files);
    }
}

/// `prefix` is the beginning of a directory's name. With `files`, waits until sar has written a
/// file in it.
fn killed_once_there_is(prefix: &str, files: bool) {
    let scratch = Scratch::new().unwrap();
    let temporary: PathBuf = scratch.directory("tmp").unwrap();
    let mut command = Command::new(peers::ropewalk().unwrap());
    command.args(["profile", "--collect"]).env("TMPDIR", &temporary);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut tree = Tree(child);
    let mut line = String::new();
    // Keep the pipe open: the program would end by itself if its output could not be written.
    let mut said = BufReader::new(tree.0.stdout.take().unwrap());
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("ropewalk-profile 1 "), "{line}");
    tree.0.stdin.as_mut().unwrap().write_all(b"clock\n").unwrap();
    let of_it = || names(&temporary).into_iter().find(|name| name.starts_with(prefix));
    until("no directory is made", || of_it().is_some());
    if files {
        let directory = temporary.join(of_it().unwrap());
        until("sar does not write", || !names(&directory).is_empty());
    }
    let started = descendants(tree.0.id());
    assert!(!started.is_empty());
    tree.0.kill().unwrap();
    tree.0.wait().unwrap();
    let gone = |pid: &u32| processes().get(pid).is_none_or(|(_, state)| matches!(state, 'Z' | 'X'));
    until("something lives on", || started.iter().all(gone));
    until("something is left behind", || names(&temporary).is_empty());
}

/// Kills all processes at once as the end of a control group does, including those that would clean
/// up.
#[test]
fn next_profile_removes_leftovers() {
    if !peers::available(&["sar"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let temporary: PathBuf = scratch.directory("tmp").unwrap();
    let begin = || {
        let mut command = Command::new(peers::ropewalk().unwrap());
        command.args(["profile", "--collect", "--no-perf"]).env("TMPDIR", &temporary);
        let child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut tree = Tree(child);
        let mut line = String::new();
        BufReader::new(tree.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("ropewalk-profile 1 "), "{line}");
        tree
    };
    let signal = |pid: u32, signal: Signal| {
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        let _ = rustix::process::kill_process(pid, signal);
    };
    // Another profile keeps running beside it.
    let living = begin();
    until("sar does not begin", || names(&temporary).len() == 1);
    let kept = names(&temporary);
    let mut killed = begin();
    until("the second sar does not begin", || names(&temporary).len() == 2);
    let all: Vec<u32> = descendants(killed.0.id()).into_iter().chain([killed.0.id()]).collect();
    // Stop all processes first, so that none can react to the end of another.
    all.iter().for_each(|pid| signal(*pid, Signal::STOP));
    all.iter().for_each(|pid| signal(*pid, Signal::KILL));
    killed.0.wait().unwrap();
    let left: Vec<String> = names(&temporary).into_iter().filter(|name| !kept.contains(name)).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let next = begin();
    let found = names(&temporary);
    assert!(!found.contains(&left[0]), "{left:?} is still there: {found:?}");
    assert!(found.contains(&kept[0]), "{kept:?} was in use: {found:?}");
    drop((living, next));
    until("something is left behind", || names(&temporary).is_empty());
}
