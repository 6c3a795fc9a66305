//! `ropewalk profile` over loopback: the measurements of both ends, and ends that fail or send
//! false profiles.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_tests::process::{self, Outcome, Program};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::{control, json_schema, peers};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(240);

/// Replaces ssh: `$1` is the host, `$2` the command.
const SSH: &str = "sh -c 'exec sh -c \"$2\"' ssh";

struct Site {
    scratch: Scratch,
}

impl Site {
    fn new() -> Self {
        Self { scratch: Scratch::new().unwrap() }
    }

    /// Starts a Ropewalk server that serves the directory `name`.
    fn server(&self, name: &str, profiles: bool) -> Server {
        let root = self.scratch.directory(name).unwrap();
        let config = self.scratch.join(format!("{name}.toml"));
        let text = format!(
            "[identity]\nmapped = false\n[profiling]\nenabled = {profiles}\nusers = ['anonymous']\nperf = false\n"
        );
        std::fs::write(&config, text).unwrap();
        // The server finds no sysstat, whose processes would outlive a killed server.
        let setup = Setup::new(Kind::Ropewalk, &root).wrapper(["env", "PATH=/nowhere"]);
        setup.argument("--config").argument(config).start().unwrap()
    }

    fn output(&self) -> PathBuf {
        self.scratch.join("profile.json")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["profile", "--no-perf", "--output"]).arg(self.output()).args(arguments);
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

fn hosts(profile: &Value) -> &[Value] {
    profile["hosts"].as_array().unwrap()
}

fn roles(profile: &Value) -> Vec<&str> {
    hosts(profile).iter().map(|host| host["role"].as_str().unwrap()).collect()
}

fn seconds(stages: &Value, stage: &str) -> f64 {
    stages[stage]["busy"].as_f64().unwrap() + stages[stage]["waited"].as_f64().unwrap()
}

/// Checks what each end of a transfer through Ropewalk's engine reports.
fn check_end(host: &Value, profile: &Value) {
    let role = host["role"].as_str().unwrap();
    assert!(!host["system"].as_array().unwrap().is_empty(), "{role}: no samples of the system");
    let connections = host["connections"].as_array().unwrap();
    assert!(!connections.is_empty(), "{role}: no connections");
    let carried = if role == "source" { "acknowledged" } else { "received" };
    let bytes: u64 = connections
        .iter()
        .filter_map(|connection| connection["samples"].as_array()?.last()?[carried].as_u64())
        .sum();
    let moved = profile["workload"]["bytes"].as_u64().unwrap();
    assert!(bytes > moved / 4 && bytes < moved * 2, "{role}: {bytes} of {moved} bytes seen");
    let stages = &host["stages"];
    let lives = stages["stream_seconds"].as_f64().unwrap();
    assert!(lives > 0.0, "{role}: {stages}");
    let own = if role == "source" { "source" } else { "destination" };
    let parts: f64 = [own, "checksum", "socket"].map(|stage| seconds(stages, stage)).iter().sum();
    assert!(parts > 0.2 * lives && parts < 1.2 * lives, "{role}: {stages}");
    let other = if role == "source" { "destination" } else { "source" };
    assert_eq!(seconds(stages, other), 0.0, "{role}: {stages}");
    let used = |name: &str| {
        host["collectors"]
            .as_array()
            .unwrap()
            .iter()
            .any(|report| report["name"] == name && report["state"] == "used")
    };
    for name in ["facts", "proc", "tcp", "programs"] {
        assert!(used(name), "{role}: {}", host["collectors"]);
    }
}

#[test]
fn uploads_and_downloads_profile_both_ends() {
    let site = Site::new();
    let server = site.server("root", true);
    // Two seconds of data: a transfer between two samples would not be seen.
    let proxy = Proxy::start(server.address()).unwrap();
    proxy.set_rate(Some(200 << 20));
    let file = server.url_at(proxy.address(), "file");
    let outcome = site.run(&["zero:400M", &file]).succeeded().unwrap();
    assert!(!outcome.text().trim().is_empty(), "nothing was said");
    let profile = site.profile();
    assert_eq!(roles(&profile), ["source", "destination"]);
    let workload = &profile["workload"];
    assert_eq!((&workload["kind"], &workload["outcome"]), (&"memory_to_disk".into(), &"done".into()));
    assert_eq!(workload["bytes"], 400 << 20);
    assert!(!workload["rates"].as_array().unwrap().is_empty());
    hosts(&profile).iter().for_each(|host| check_end(host, &profile));
    let clock = &hosts(&profile)[1]["clock"];
    let (offset, error) =
        (clock["offset_seconds"].as_f64().unwrap(), clock["error_seconds"].as_f64().unwrap());
    // Both ends have the same clock.
    assert!(error > 0.0 && error < 5.0 && offset.abs() <= error + 1e-5, "{clock}");

    site.run(&["-p", "3", &file, "null:"]).succeeded().unwrap();
    let profile = site.profile();
    assert_eq!(
        (roles(&profile), &profile["workload"]["kind"]),
        (vec!["source", "destination"], &"disk_to_memory".into())
    );
    hosts(&profile).iter().for_each(|host| check_end(host, &profile));
    assert_eq!(profile["workload"]["streams"], 3);

    // Also with one end only.
    site.run(&["--local", &file, "null:"]).succeeded().unwrap();
    assert_eq!(roles(&site.profile()), ["destination"]);
    site.run(&["--server", &server.url(""), &server.url("file"), "null:"]).succeeded().unwrap();
    assert_eq!(roles(&site.profile()), ["source"]);
}

#[test]
fn third_party_profiles_both_servers() {
    let site = Site::new();
    let (left, right) = (site.server("left", true), site.server("right", true));
    std::fs::File::create(left.root().join("file")).unwrap().set_len(300 << 20).unwrap();
    let proxy = Proxy::start(right.address()).unwrap();
    proxy.set_rate(Some(150 << 20));
    let there = right.url_at(proxy.address(), "file");
    site.run(&[&left.url("file"), &there]).succeeded().unwrap();
    let profile = site.profile();
    assert_eq!(roles(&profile), ["source", "destination"]);
    hosts(&profile).iter().for_each(|host| check_end(host, &profile));
    assert_eq!(profile["workload"]["bytes"], 300 << 20);
    assert_eq!(std::fs::metadata(right.root().join("file")).unwrap().len(), 300 << 20);
}

#[test]
fn workloads_and_baselines_run_without_disks() {
    let site = Site::new();
    let server = site.server("root", true);
    std::fs::write(server.root().join("file"), vec![7; 3 << 20]).unwrap();
    let here = site.scratch.join("here");
    let workload = ["--workload", "mem-mem,mem-disk,disk-mem", "--size", "20M", "--baseline", "path,cpu"];
    site.run(&[&workload[..], &[&server.url("file"), here.to_str().unwrap()]].concat()).succeeded().unwrap();
    for (name, kind, bytes) in [
        ("mem-mem", "memory_to_memory", 20 << 20),
        ("mem-disk", "memory_to_disk", 20 << 20),
        ("disk-mem", "disk_to_memory", 3 << 20),
    ] {
        std::fs::rename(site.scratch.join(format!("profile.{name}.json")), site.output()).unwrap();
        let profile = site.profile();
        let workload = &profile["workload"];
        assert_eq!((&workload["kind"], &workload["bytes"]), (&kind.into(), &Value::from(bytes)), "{name}");
        let baselines = &profile["baselines"];
        for part in ["path", "path_back", "checksum", "encryption", "reached"] {
            assert!(baselines[part].as_f64().is_some_and(|rate| rate > 0.0), "{part}: {baselines}");
        }
        assert_eq!(roles(&profile), ["source", "destination"]);
    }
    assert_eq!(std::fs::metadata(&here).unwrap().len(), 20 << 20);
    // These names exist only for accounts that may take profiles.
    let without = site.server("without", false);
    let outcome =
        site.run(&["--workload", "mem-mem", &without.url("file"), here.to_str().unwrap()]).failed().unwrap();
    assert!(outcome.errors().contains("cannot send zeros"), "{}", outcome.errors());
    let cp = |server: &Server| {
        let mut cp = peers::ropewalk_command().unwrap();
        process::run(
            cp.args(["cp", "--quiet", &server.url("dev/ropewalk-zero-5"), here.to_str().unwrap()]),
            LIMIT,
        )
    };
    cp(&without).unwrap().failed().unwrap();
    cp(&server).unwrap().succeeded().unwrap();
    assert_eq!(std::fs::read(&here).unwrap(), [0; 5]);
}

#[test]
fn server_without_profiles_is_named() {
    let site = Site::new();
    let server = site.server("root", false);
    let outcome = site.run(&["zero:50M", &server.url("file")]).succeeded().unwrap();
    assert!(
        outcome.errors().contains("is not measured") && outcome.errors().contains("profiling.enabled"),
        "{}",
        outcome.errors()
    );
    assert_eq!(roles(&site.profile()), ["source"]);
    let outcome = site.run(&["--server", &server.url(""), "zero:50M", &server.url("file")]).failed().unwrap();
    assert!(outcome.errors().contains("neither end can be measured"), "{}", outcome.errors());
}

#[test]
fn other_servers_are_profiled_through_ssh() {
    if !peers::available(&["globus-gridftp-server"]) {
        return;
    }
    let site = Site::new();
    let root = site.scratch.directory("root").unwrap();
    let server = Setup::new(Kind::Gct, &root).start().unwrap();
    let collect = format!("{} profile --collect", peers::ropewalk().unwrap().display());
    let ssh = ["--ssh", SSH, "--ssh-destination", "there", "--collect-command", &collect];
    let url = server.url("file");
    site.run(&[&ssh[..], &["zero:300M", &url]].concat()).succeeded().unwrap();
    let profile = site.profile();
    assert_eq!(roles(&profile), ["source", "destination"]);
    let there = &hosts(&profile)[1];
    assert!(there["stages"].is_null(), "{}", there["stages"]);
    let received = there["connections"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|connection| connection["samples"].as_array()?.last()?["received"].as_u64());
    assert!(received.max().unwrap() > 10 << 20);
    assert!(there["facts"]["file_systems"][0]["path"].as_str().is_some());

    let ssh = ["--ssh", SSH, "--ssh-destination", "there", "--collect-command", "no-such-program --collect"];
    let outcome = site.run(&[&ssh[..], &["zero:1M", &url]].concat()).succeeded().unwrap();
    assert!(outcome.errors().contains("there is no ropewalk on there"), "{}", outcome.errors());
    assert_eq!(roles(&site.profile()), ["source"]);
}

#[test]
fn broken_transfer_is_profiled_up_to_failure() {
    let site = Site::new();
    let (mut server, other) = (site.server("root", true), site.server("other", true));
    std::fs::File::create(other.root().join("file")).unwrap().set_len(6 << 30).unwrap();
    // The journal has a line for each block that has arrived.
    let journal = server.root().join(".file.ropewalk-journal");
    let arguments = ["--retries", "0", &other.url("file"), &server.url("file")];
    let mut profile = Program::start(&mut site.command(&arguments)).unwrap();
    wait_for(&journal, 8000);
    server.kill();
    let status = profile.wait(LIMIT).unwrap();
    let said = profile.finish();
    assert!(!status.success() && status.code().is_some(), "{status}: {said}");
    assert!(said.contains("the transfer failed") && said.contains("gave no profile"), "{said}");
    let profile = site.profile();
    assert!(profile["workload"]["outcome"]["failed"].as_str().is_some_and(|why| !why.is_empty()));
    assert_eq!(roles(&profile), ["source"]);
    assert!(hosts(&profile)[0]["stages"]["stream_seconds"].as_f64().unwrap() > 0.0);
}

/// Waits until the file has this many bytes.
fn wait_for(file: &Path, bytes: u64) {
    let deadline = Instant::now() + LIMIT;
    while !std::fs::metadata(file).is_ok_and(|metadata| metadata.len() >= bytes) {
        assert!(Instant::now() < deadline, "nothing came");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Starts a server that offers profiles and sends the bytes that `profile` writes.
fn liar(profile: impl Fn(&mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let profile = Arc::new(profile);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let profile = profile.clone();
            thread::spawn(move || lie(client, &*profile));
        }
    });
    address
}

fn lie(client: TcpStream, profile: &dyn Fn(&mut TcpStream) -> std::io::Result<()>) -> anyhow::Result<()> {
    let mut replies = client.try_clone()?;
    let mut data = None;
    replies.write_all(b"220 ready.\r\n")?;
    for line in BufReader::new(client).lines() {
        let line = line?.to_ascii_uppercase();
        let reply = match line.as_str() {
            "FEAT" => "211-Features\r\n ROPEWALK Profile;\r\n211 End.\r\n".to_owned(),
            "PASV" => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                let at = control::host_port(listener.local_addr()?)?;
                data = Some(listener);
                format!("227 Entering Passive Mode ({at})\r\n")
            }
            "SITE PROFILE CLOCK" => "250 Clock 99999999999999999999\r\n".to_owned(),
            "SITE PROFILE STOP" => "250 Profile 10 bytes.\r\n".to_owned(),
            "SITE PROFILE FETCH" => {
                replies.write_all(b"150 Here it comes.\r\n")?;
                if let Some(listener) = &data {
                    // The client may close the connection early.
                    let _ = profile(&mut listener.accept()?.0);
                }
                "226 Done.\r\n".to_owned()
            }
            line if line.starts_with("SITE PROFILE START") => {
                "250 Profiling 5 seconds at most.\r\n".to_owned()
            }
            line if line.starts_with("USER") => "331 Password.\r\n".to_owned(),
            line if line.starts_with("PASS ") => "230 In.\r\n".to_owned(),
            _ => "200 Ok.\r\n".to_owned(),
        };
        replies.write_all(reply.as_bytes())?;
    }
    Ok(())
}

#[test]
fn false_profiles_are_rejected() {
    let site = Site::new();
    let failed = |address: SocketAddr| {
        let url = format!("ftp://{address}/");
        let outcome = site.run(&["--server", &url, "--seconds", "200ms"]).failed().unwrap();
        assert!(!site.output().exists(), "something was written");
        outcome.errors()
    };
    let endless = liar(|data| {
        loop {
            data.write_all(&[b' '; 1 << 16])?;
        }
    });
    let said = failed(endless);
    assert!(said.contains("more than 25165824 bytes"), "{said}");

    let deep = liar(|data| data.write_all(&[b'['; 100_000]));
    assert!(failed(deep).contains("deeper than"));
    let wrong = r#"{"schema":1,"role":"source","started":1,"system":[{"time":5,"seconds":1},{"time":1,"seconds":1}]}"#;
    assert!(failed(liar(move |data| data.write_all(wrong.as_bytes()))).contains("times in order"));
    let said = failed(liar(|data| data.write_all(b"{\"schema\":1,\"role\":\"\x1b[31mred\"}")));
    assert!(said.contains("gave no profile") && !said.contains('\x1b'), "{said}");
    let none = failed(liar(|_| Ok(())));
    assert!(none.contains("gave no profile"), "{none}");
}
