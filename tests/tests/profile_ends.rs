//! `ropewalk profile` at other hosts: baselines, the tools' own files, and what is left of a program that was killed.

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

/// In place of ssh: `$1` is the host, `$2` what is to run there.
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
fn a_servers_disks_and_processor_are_measured() {
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
        // The kinds that came later are in the first profile as well.
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

    // The other way, and a place that is not there yet.
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
fn iperf3_measures_the_path_where_both_have_it() {
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
fn so_many_iperf3_and_no_more() {
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
    // Profiles are counted by themselves.
    second.expect("SITE PROFILE BASELINE CPU", 250).unwrap();
    drop(first);
    until("the first one's iperf3 has gone with its session", || {
        second.command(start).is_ok_and(|reply| reply.code == 250)
    });
}

/// A profile belongs to the session that has taken it. It counts until it is fetched, or its session is gone.
#[test]
fn a_profile_is_its_sessions_alone_and_counts_until_it_is_fetched() {
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
    // Neither the one that runs nor the one that has been taken is another session's, though it is the same user's.
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
    // Once; and there is room again.
    assert_eq!(fetch(&mut first).1, 503);
    second.expect("SITE PROFILE START 60", 250).unwrap();
    first.expect("SITE PROFILE START 60", 451).unwrap();
    drop(second);
    until("the profile has gone with its session", || {
        first.command("SITE PROFILE START 60").is_ok_and(|reply| reply.code == 250)
    });
}

#[test]
fn what_is_no_disk_of_a_server_has_no_rate() {
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch, "");
    let mut control = Control::log_in(server.address()).unwrap();
    for path in ["/dev/ropewalk-zero-1000000000", "/dev/ropewalk-null"] {
        let reply = control.expect(format!("SITE PROFILE BASELINE READ {path}"), 550).unwrap();
        assert!(reply.text.contains("no disk"), "{path}: {}", reply.text);
    }
}

#[test]
fn what_cannot_be_written_or_measured_is_said_at_once() {
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch, "longest = 3\n");
    let (target, none) = (scratch.join("target"), scratch.join("none/p.json"));
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["profile", "--no-perf", "zero:1M"]).arg(&target).arg("--output").arg(&none);
    let outcome = process::run(&mut command, LIMIT).unwrap();
    assert!(outcome.errors().contains("cannot be written to"), "{}", outcome.errors());
    assert!(!target.exists(), "it was copied for nothing");

    // What is copied is not replaced by what is said of it.
    let source = scratch.join("source");
    std::fs::write(&source, b"precious").unwrap();
    for (output, ends) in [
        (&source, [source.display().to_string(), server.url("dev/ropewalk-null")]),
        (&target, ["zero:1M".to_owned(), target.display().to_string()]),
    ] {
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["profile", "--no-perf"]).args(ends).arg("--output").arg(output);
        let outcome = process::run(&mut command, LIMIT).unwrap();
        assert!(outcome.errors().contains("that is what is copied"), "{}", outcome.errors());
    }
    assert_eq!(std::fs::read(&source).unwrap(), b"precious");
    assert!(!target.exists());

    // Longer than the server measures: what it does measure is told.
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["profile", "--no-perf", "--seconds", "1", "--server", &server.url("")]);
    process::run(&mut command, LIMIT).unwrap().succeeded().unwrap();
    let mut command = peers::ropewalk_command().unwrap();
    let outcome = process::run(command.args(["profile", "--seconds", "0", "--local"]), LIMIT).unwrap();
    assert!(outcome.errors().contains("expected more than 0"), "{}", outcome.errors());
}

#[test]
fn a_transfer_that_is_broken_off_is_told_of_both_ends() {
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
fn others_are_measured_through_ssh() {
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
    // Both ends have given what their tools wrote.
    if peers::available(&["sar"]) {
        let found = names(&raw);
        let all = ["destination.sadf.json", "destination.sar", "source.sadf.json", "source.sar"];
        assert_eq!(found, all);
    }
}

#[test]
fn raw_files_of_a_server_are_linked() {
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
    // What sar wrote can be read by sadf.
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
fn transfers_that_take_longer_than_a_profile_may() {
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

/// Of each process: its parent and its state.
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

/// A process that is waited for with all that it started.
struct Tree(std::process::Child);

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn nothing_outlives_a_program_that_is_killed() {
    if !peers::available(&["sar", "perf"]) {
        return;
    }
    // As soon as there is a directory, of the first or the last collector, and when all is under way.
    for (prefix, files) in [("ropewalk-sar-", false), ("ropewalk-perf-", false), ("ropewalk-sar-", true)] {
        killed_once_there_is(prefix, files);
    }
}

/// `prefix` begins a directory's name; with `files`, sar writes in it.
fn killed_once_there_is(prefix: &str, files: bool) {
    let scratch = Scratch::new().unwrap();
    let temporary: PathBuf = scratch.directory("tmp").unwrap();
    let mut command = Command::new(peers::ropewalk().unwrap());
    command.args(["profile", "--collect"]).env("TMPDIR", &temporary);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut tree = Tree(child);
    let mut line = String::new();
    // Kept open: it would end by itself where nobody hears its answers.
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

/// As the end of a control group kills: all at once, whoever would have cleaned up included.
#[test]
fn the_next_profile_removes_what_was_left() {
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
    // Beside it, one that goes on.
    let living = begin();
    until("sar does not begin", || names(&temporary).len() == 1);
    let kept = names(&temporary);
    let mut killed = begin();
    until("the second sar does not begin", || names(&temporary).len() == 2);
    let all: Vec<u32> = descendants(killed.0.id()).into_iter().chain([killed.0.id()]).collect();
    // Nobody may act on another's end.
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
