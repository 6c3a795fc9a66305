//! `ropewalk profile --sweep` over loopback: the runs, the written results, and sweeps that break.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_tests::process::{self, Outcome, Program};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::{json_schema, peers};
use rustix::process::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(240);

struct Site {
    scratch: Scratch,
}

impl Site {
    fn new() -> Self {
        Self { scratch: Scratch::new().unwrap() }
    }

    /// Starts a Ropewalk server that offers profiles. It finds no sysstat, whose processes would
    /// outlive a killed server.
    fn server(&self) -> Server {
        let root = self.scratch.directory("root").unwrap();
        let config = self.scratch.join("server.toml");
        let text =
            "[identity]\nmapped = false\n[profiling]\nenabled = true\nusers = ['anonymous']\nperf = false\n";
        std::fs::write(&config, text).unwrap();
        let setup = Setup::new(Kind::Ropewalk, &root).wrapper(["env", "PATH=/nowhere"]);
        setup.argument("--config").argument(config).start().unwrap()
    }

    fn output(&self) -> PathBuf {
        self.scratch.join("profile.json")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["profile", "--no-perf", "--no-sysstat", "--output"]).arg(self.output()).args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        process::run(&mut self.command(arguments), LIMIT).unwrap()
    }

    /// Returns the written profile after checking it against the schema.
    fn profile(&self) -> Value {
        let profile: Value = serde_json::from_slice(&std::fs::read(self.output()).unwrap()).unwrap();
        let schema = include_str!("../../tools/profiler/profile.schema.json");
        json_schema::validate(&profile, &serde_json::from_str(schema).unwrap()).unwrap();
        profile
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Returns the points of a curve.
fn points<'a>(profile: &'a Value, knob: &str, way: &str) -> &'a [Value] {
    let curves = list(&profile["sweeps"]["curves"]);
    let curve = curves.iter().find(|curve| curve["knob"] == knob && curve["way"] == way);
    list(&curve.unwrap_or_else(|| panic!("no {knob} {way}: {}", profile["sweeps"]))["points"])
}

#[test]
fn sweep_runs_each_value_in_each_round_at_both_ends() {
    let site = Site::new();
    let server = site.server();
    let sweeps = ["--sweep", "streams=1,3", "--sweep", "buffer=auto,bdp,64K", "--sweep", "block=64K"];
    // Connections are sampled ten times per second, and each run takes half a second.
    let proxy = Proxy::start(server.address()).unwrap();
    proxy.set_rate(Some(60 << 20));
    let file = server.url_at(proxy.address(), "file");
    let others = ["--capacity", "100M", "--repeat", "2", "zero:30M", &file];
    let outcome = site.run(&[&sweeps[..], &others].concat()).succeeded().unwrap();
    let profile = site.profile();
    // The transfer itself is the same as without sweeps.
    assert_eq!(profile["workload"]["outcome"], "done");
    assert_eq!(profile["workload"]["bytes"], 30 << 20);
    assert_eq!(profile["sweeps"]["runs_wanted"], 12);
    assert!(profile["sweeps"]["broken_off"].is_null());
    let mut times = BTreeSet::new();
    for (knob, names) in
        [("streams", &["1", "3"][..]), ("buffer", &["auto", "bdp", "64K"]), ("block", &["64K"])]
    {
        let points = points(&profile, knob, "forth");
        let found: Vec<&str> = points.iter().map(|point| point["name"].as_str().unwrap()).collect();
        assert_eq!(found, names);
        for point in points {
            let runs = list(&point["runs"]);
            let rounds: Vec<u64> = runs.iter().map(|run| run["round"].as_u64().unwrap()).collect();
            assert_eq!(rounds, [1, 2], "{point}");
            for run in runs {
                assert_eq!((&run["bytes"], &run["failed"]), (&(30 << 20).into(), &Value::Null), "{point}");
                times.insert((run["time"].as_f64().unwrap() * 1e6) as i64);
            }
            let rate = &point["rate"];
            let [least, mean, most] = ["least", "mean", "most"].map(|name| rate[name].as_f64().unwrap());
            assert!(0.0 < least && least <= mean && mean <= most, "{rate}");
            assert_eq!((&rate["runs"], rate["interval"].is_number()), (&2.into(), true), "{rate}");
            let roles: Vec<&Value> = list(&point["ends"]).iter().map(|end| &end["role"]).collect();
            assert_eq!(roles, ["source", "destination"], "{point}");
        }
    }
    assert_eq!(times.len(), 12, "runs one after the other");
    let buffers = points(&profile, "buffer", "forth");
    assert!(buffers[0]["value"].is_null() && buffers[1]["value"].as_u64().unwrap() >= 4096);
    // Both ends have the requested size; the kernel doubles it.
    for (end, side) in list(&buffers[2]["ends"]).iter().zip(["send_buffer", "receive_buffer"]) {
        assert_eq!(end[side].as_u64(), Some(131_072), "{end}");
    }
    assert_eq!(list(&profile["baselines"]["streams"]).len(), 2);

    // The report as text and as a page.
    let text = outcome.text();
    for expected in ["Other settings", "Socket buffer", "Rates in ", "Load of the source", "1 file at a time"]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let said = outcome.errors();
    assert!(said.contains("run 12 of 12, round 2, ") && said.contains("12 runs follow"), "{said}");
    let (json, page) = (site.output(), site.scratch.join("page.html"));
    let mut report = peers::ropewalk_command().unwrap();
    process::run(report.arg("report").arg(json).arg("--html").arg(&page), LIMIT)
        .unwrap()
        .succeeded()
        .unwrap();
    let page = std::fs::read_to_string(page).unwrap();
    for figure in ["sweep-streams", "sweep-buffer", "sweep-block"] {
        assert!(page.contains(&format!("<figure id=\"{figure}\">")), "{figure}");
    }
}

#[test]
fn return_direction_overwrites_nothing() {
    let site = Site::new();
    let server = site.server();
    let here = site.scratch.join("here");
    std::fs::write(&here, vec![7; 3 << 20]).unwrap();
    let (local, remote) = (here.to_str().unwrap(), server.url("file"));
    let outcome = site.run(&["--sweep", "streams=1,2", "--both", local, &remote]).failed().unwrap();
    assert_eq!(outcome.status.code(), Some(2), "{}", outcome.errors());
    assert!(outcome.errors().contains("would overwrite"), "{}", outcome.errors());
    assert!(!site.output().exists() && !server.root().join("file").exists(), "something was measured");

    let kinds = ["--sweep", "workload=mem-mem,mem-disk,disk-mem", "--size", "10M", "--both", "--repeat", "1"];
    site.run(&[&kinds[..], &[local, &remote]].concat()).succeeded().unwrap();
    let profile = site.profile();
    let runs = |way: &str| -> Vec<usize> {
        points(&profile, "workload", way).iter().map(|point| list(&point["runs"]).len()).collect()
    };
    assert_eq!((runs("forth"), runs("back")), (vec![1, 1, 1], vec![1, 0, 1]));
    let refused = points(&profile, "workload", "back")[1]["refused"].as_str().unwrap();
    assert!(refused.contains("would overwrite"), "{refused}");
    assert_eq!(std::fs::read(&here).unwrap(), vec![7; 3 << 20]);
}

#[test]
fn refused_buffer_sizes_are_reported() {
    if !peers::available(&["vsftpd"]) {
        return;
    }
    let site = Site::new();
    let root = site.scratch.directory("root").unwrap();
    let server = Setup::new(Kind::Vsftpd, &root).start().unwrap();
    let outcome = site
        .run(&["--sweep", "buffer=auto,64K", "--repeat", "2", "zero:5M", &server.url("file")])
        .succeeded()
        .unwrap();
    let profile = site.profile();
    let buffers = points(&profile, "buffer", "forth");
    assert_eq!((list(&buffers[0]["runs"]).len(), list(&buffers[1]["runs"]).len()), (2, 0));
    assert!(buffers[1]["refused"].as_str().unwrap().contains("500"), "{}", buffers[1]);
    assert!(outcome.text().contains("64.0 KiB was not run"), "{}", outcome.text());
}

/// Waits until the program has written `text` to either output.
fn wait_for(program: &Program, text: &str) {
    let deadline = Instant::now() + LIMIT;
    while !program.log().contains(text) {
        assert!(Instant::now() < deadline, "{}", program.log());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn broken_sweep_reports_finished_runs() {
    let site = Site::new();
    let mut server = site.server();
    let arguments = ["--sweep", "streams=1,2", "--repeat", "100", "--retries", "0", "zero:5M"];
    let url = server.url("file");
    let start = || Program::start(&mut site.command(&[&arguments[..], &[&url]].concat())).unwrap();
    let made = |profile: &Value| -> usize {
        points(profile, "streams", "forth").iter().map(|point| list(&point["runs"]).len()).sum()
    };
    let mut stopped = start();
    wait_for(&stopped, "run 3 of 200");
    stopped.signal(Signal::INT);
    let status = stopped.wait(LIMIT).unwrap();
    let said = stopped.finish();
    assert_eq!(status.code(), Some(130), "{said}");
    let profile = site.profile();
    let why = profile["sweeps"]["broken_off"].as_str().unwrap();
    assert!(
        why.starts_with("interrupted after ") && said.contains("The sweep was broken off"),
        "{why}: {said}"
    );
    assert!((3..200).contains(&made(&profile)), "{}", made(&profile));

    std::fs::remove_file(site.output()).unwrap();
    let mut broken = start();
    wait_for(&broken, "run 3 of 200");
    server.kill();
    let status = broken.wait(LIMIT).unwrap();
    let said = broken.finish();
    assert_eq!(status.code(), Some(1), "{said}");
    let profile = site.profile();
    assert!(made(&profile) >= 3, "{said}");
    let failed = points(&profile, "streams", "forth")
        .iter()
        .flat_map(|point| list(&point["runs"]))
        .filter(|run| run["failed"].is_string());
    assert!((2..=4).contains(&failed.count()), "{profile}");
}

#[test]
fn unsupported_sweeps_are_named() {
    let site = Site::new();
    for (arguments, expected) in [
        (&["--sweep", "zero:1M", "null:"][..], "cannot be swept"),
        (&["zero:1M", "null:", "--sweep", "streams=0"], "number from 1 to 1024"),
        (&["zero:1M", "null:", "--sweep", "--sweep", "streams"], "given twice"),
        (&["zero:1M", "null:", "--sweep", "--dry-run"], "--dry-run"),
        (&["zero:1M", "null:", "--both"], "--sweep"),
        (&["zero:1M", "null:", "--sweep", "workload", "--workload", "mem-mem"], "exclude each other"),
    ] {
        let outcome = site.run(arguments).failed().unwrap();
        assert_eq!(outcome.status.code(), Some(2), "{arguments:?}: {}", outcome.errors());
        assert!(outcome.errors().contains(expected), "{arguments:?}: {}", outcome.errors());
    }
}

/// Replaces ssh: `$1` is the host, `$2` the command.
const SSH: &str = "sh -c 'exec sh -c \"$2\"' ssh";

#[test]
fn sweep_against_gct_server_runs() {
    if !peers::available(&["globus-gridftp-server"]) {
        return;
    }
    let site = Site::new();
    let root = site.scratch.directory("gct").unwrap();
    let server = Setup::new(Kind::Gct, &root).start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    // Connections are sampled ten times per second, and each run takes half a second.
    proxy.set_rate(Some(60 << 20));
    let file = server.url_at(proxy.address(), "file");
    let collect = format!("{} profile --collect", peers::ropewalk().unwrap().display());
    let ssh = ["--ssh", SSH, "--ssh-destination", "there", "--collect-command", &collect];
    let sweeps = ["--sweep", "streams=1,2", "--sweep", "buffer=auto,64K", "--repeat", "2", "zero:30M", &file];
    let outcome = site.run(&[&ssh[..], &sweeps].concat()).succeeded().unwrap();
    let profile = site.profile();
    let said = outcome.errors();
    assert!(profile["sweeps"]["broken_off"].is_null(), "{said}");
    for (knob, names) in [("streams", ["1", "2"]), ("buffer", ["auto", "64K"])] {
        let points = points(&profile, knob, "forth");
        let found: Vec<&str> = points.iter().map(|point| point["name"].as_str().unwrap()).collect();
        assert_eq!(found, names);
        for point in points {
            assert!(point["refused"].is_null(), "{point}");
            for run in list(&point["runs"]) {
                assert_eq!((&run["bytes"], &run["failed"]), (&(30 << 20).into(), &Value::Null), "{point}");
            }
            let roles: Vec<&Value> = list(&point["ends"]).iter().map(|end| &end["role"]).collect();
            assert_eq!(roles, ["source", "destination"], "{point}");
        }
    }
    // GCT's server accepts SBUF, and the kernel doubles the requested size.
    let buffers = points(&profile, "buffer", "forth");
    assert_eq!(list(&buffers[1]["ends"])[0]["send_buffer"].as_u64(), Some(131_072), "{}", buffers[1]);
}
