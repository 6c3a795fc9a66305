//! Baselines of `ropewalk profile` over slow paths, with tools that hang, and with Ctrl-C: each
//! part is limited in time.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_tests::process::{self, Program};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::sshd::Sshd;
use ropewalk_tests::terminal::Terminal;
use ropewalk_tests::{json_schema, peers};
use rustix::process::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(240);

fn server(scratch: &Scratch) -> Server {
    let root = scratch.directory("root").unwrap();
    let config = scratch.join("server.toml");
    let text =
        "[identity]\nmapped = false\n[profiling]\nenabled = true\nusers = ['anonymous']\nperf = false\n";
    fs::write(&config, text).unwrap();
    // The server finds no sysstat, which would take time.
    let setup = Setup::new(Kind::Ropewalk, &root).wrapper(["env", "PATH=/nowhere"]);
    setup.argument("--config").argument(config).start().unwrap()
}

fn command(scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["profile", "--no-perf", "--no-sysstat", "--output"]).arg(scratch.join("profile.json"));
    command.args(arguments);
    command
}

fn profile(scratch: &Scratch) -> Value {
    let profile: Value = serde_json::from_slice(&fs::read(scratch.join("profile.json")).unwrap()).unwrap();
    let schema = include_str!("../../tools/profiler/profile.schema.json");
    json_schema::validate(&profile, &serde_json::from_str(schema).unwrap()).unwrap();
    profile
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A baseline moves what the path carries within its time, however slow the path is, and requires
/// no minimum amount.
#[test]
fn baseline_on_slow_path_takes_no_longer() {
    const RATE: u64 = 10_000_000 / 8;
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch);
    let proxy = Proxy::start(server.address()).unwrap();
    proxy.set_rate(Some(RATE));
    let url = server.url_at(proxy.address(), "file");
    let outcome =
        process::run(&mut command(&scratch, &["--baseline", "path", "zero:1M", &url]), LIMIT).unwrap();
    let said = outcome.succeeded().unwrap().errors();
    // Earlier versions first moved 32 MiB in each direction.
    assert!(proxy.moved() < 30 << 20, "{} bytes", proxy.moved());
    let baselines = &profile(&scratch)["baselines"];
    assert_eq!(baselines["path_by"], "ropewalk", "{said}");
    for way in ["path", "path_back"] {
        let rate = baselines[way].as_f64().unwrap();
        assert!(rate > RATE as f64 / 10.0 && rate < RATE as f64 * 1.5, "{way}: {rate} of {RATE}: {said}");
    }
}

#[test]
fn baseline_on_stalled_path_times_out_and_ctrl_c_skips_the_rest() {
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch);
    let proxy = Proxy::start(server.address()).unwrap();
    proxy.stall(true);
    let url = server.url_at(proxy.address(), "file");
    let mut command = command(&scratch, &["--baseline", "path,disk,cpu", "zero:1M", &url]);
    let mut program = Program::start(&mut command).unwrap();
    until("the path is not given up", || program.log().contains("baseline of the path: nothing arrived"));
    // The measurement of the return path has begun, or begins now.
    program.signal(Signal::INT);
    let status = program.wait(LIMIT).unwrap();
    let said = program.finish();
    assert_eq!(status.code(), Some(130), "{said}");
    let profile = profile(&scratch);
    let baselines = &profile["baselines"];
    // Results up to the interruption are reported; nothing was measured after it.
    assert!(baselines["rtt"].as_f64().is_some_and(|rtt| rtt > 0.0), "{baselines}");
    for part in ["path", "path_back", "destination_disk", "checksum"] {
        assert!(baselines[part].is_null(), "{part}: {baselines}");
    }
    assert_eq!(profile["workload"]["outcome"]["failed"], "interrupted", "{}", profile["workload"]);
}

#[test]
fn fio_that_does_not_end_is_killed() {
    let scratch = Scratch::new().unwrap();
    let tools = scratch.directory("tools").unwrap();
    let pid = scratch.join("pid");
    // The script has a child process, as fio does.
    let script = format!("#!/bin/sh\nsleep 1000 &\necho $$ $! > {}\nwait\n", pid.display());
    fs::write(tools.join("fio"), script).unwrap();
    fs::set_permissions(tools.join("fio"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let file = scratch.join("file");
    fs::write(&file, vec![7; 2 << 20]).unwrap();
    let mut command = command(&scratch, &["--baseline", "disk", file.to_str().unwrap(), "null:"]);
    let path = std::env::var_os("PATH").unwrap();
    let paths = [tools.clone()].into_iter().chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(paths).unwrap());
    let said = process::run(&mut command, LIMIT).unwrap().succeeded().unwrap().errors();
    assert!(said.contains("baseline of the source's disk: fio did not end within"), "{said}");
    assert!(profile(&scratch)["baselines"]["source_disk"].is_null());
    let started = fs::read_to_string(&pid).unwrap();
    let gone = |pid: &str| {
        let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
        // The process was killed, but its parent may not have reaped it yet.
        stat.is_empty() || stat.contains(") Z ") || stat.contains(") X ")
    };
    until("fio lives on", || started.split_whitespace().all(gone));
}

/// The terminal sends Ctrl-C to all processes in its foreground, including ssh; the measurements of
/// the other host are kept nevertheless.
#[test]
fn ctrl_c_at_terminal_keeps_measurements_through_ssh() {
    if !peers::available(&["ssh", "sshd", "script", "setpriv"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch);
    let sshd = Sshd::start(&scratch.directory("ssh").unwrap()).unwrap();
    let collect = format!("{} profile --collect", peers::ropewalk().unwrap().display());
    let ssh = sshd.client();
    let host = format!("ssh://localhost:{}", sshd.port());
    let far = ["--ssh", &ssh, "--ssh-destination", &host, "--collect-command", &collect];
    let proxy = Proxy::start(server.address()).unwrap();
    let places = ["zero:100T", &server.url_at(proxy.address(), "dev/ropewalk-null")];
    let command = command(&scratch, &[&far[..], &places].concat());
    let mut terminal = Terminal::start(&command).unwrap();
    // Data moves, so both ends are being measured.
    proxy.wait_for(4 << 20, LIMIT).unwrap();
    terminal.interrupt().unwrap();
    let (_, said) = terminal.finish().unwrap();
    assert!(said.contains("stopping"), "{said}");
    let profile = profile(&scratch);
    let roles: Vec<&str> =
        profile["hosts"].as_array().unwrap().iter().map(|host| host["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["source", "destination"], "{said}");
    assert_eq!(profile["workload"]["outcome"]["failed"], "interrupted", "{said}");
    sshd.until_none("profile --collect").unwrap();
}
