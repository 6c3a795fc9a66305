//! Network paths on request, with the real program at both ends.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_tests::aggregator_proxy::{self, AggregatorProxy};
use ropewalk_tests::control::Control;
use ropewalk_tests::nsi_provider::{Faults, NsiProvider};
use ropewalk_tests::process::{self, Outcome, Program, run};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::{files, nsi_provider, peers};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(60);

/// A directory, a server, and a hook that writes each event on a line of a file.
struct Site {
    scratch: Scratch,
    server: Server,
    hook: PathBuf,
}

impl Site {
    /// `script` runs for each event, with the event in `$1` and its JSON object in `$json`.
    fn new(script: &str) -> Self {
        let scratch = Scratch::new().unwrap();
        let root = scratch.directory("root").unwrap();
        files::write_random(&root.join("f"), 3 << 20, 7).unwrap();
        let server = Setup::new(Kind::Ropewalk, &root).start().unwrap();
        let hook = hook(&scratch, "hook", script);
        Self { scratch, server, hook }
    }

    fn cp(&self, options: &[&str]) -> Command {
        let mut command = peers::ropewalk_command().unwrap();
        command.env("XDG_STATE_HOME", self.scratch.join("state"));
        command.args(["cp", "--path"]).arg(format!("hook:{}", self.hook.display())).args(options);
        command.arg(self.server.url("f")).arg(self.scratch.join("back"));
        command
    }

    fn run(&self, options: &[&str]) -> Outcome {
        run(&mut self.cp(options), LIMIT).unwrap()
    }

    /// The names of the events so far.
    fn events(&self) -> Vec<String> {
        events(&self.scratch, "hook")
    }

    /// The entries of the journal.
    fn journal(&self) -> Vec<PathBuf> {
        let directory = self.scratch.join("state/ropewalk/paths");
        let files = fs::read_dir(directory).map(|files| files.map(|file| file.unwrap().path()).collect());
        files.unwrap_or_default()
    }

    fn is_copied(&self) -> bool {
        fs::read(self.scratch.join("back"))
            .is_ok_and(|back| back == fs::read(self.server.root().join("f")).unwrap())
    }
}

fn hook(scratch: &Scratch, name: &str, script: &str) -> PathBuf {
    let (path, log) = (scratch.join(name), scratch.join(format!("{name}.log")));
    let text = format!("#!/bin/sh\nread -r json\necho \"$1 $json\" >> {}\n{script}\n", log.display());
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn lines(scratch: &Scratch, name: &str) -> Vec<String> {
    let text = fs::read_to_string(scratch.join(format!("{name}.log"))).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn events(scratch: &Scratch, name: &str) -> Vec<String> {
    let word = |line: String| line.split(' ').next().unwrap_or_default().to_owned();
    lines(scratch, name).into_iter().map(word).collect()
}

#[test]
fn copy_over_hook_path_reserves_binds_and_releases_in_order() {
    let site = Site::new(
        r#"case $1 in activate) echo '{"binding":{"address":"127.0.0.1","capacity":"80Mbit/s","mtu":9000}}';; esac"#,
    );
    let outcome = site.run(&["--rate", "40Mbit/s", "--capacity", "1Gbit/s"]).succeeded().unwrap();
    assert!(site.is_copied());
    let hold = lines(&site.scratch, "hook").into_iter().find(|line| line.starts_with("hold ")).unwrap();
    assert!(hold.contains("40000000"), "{hold}");
    assert!(outcome.errors().contains("is up, from 127.0.0.1, 80Mbit/s, MTU 9000"), "{}", outcome.errors());
    let events = site.events();
    let at = |name: &str| {
        events.iter().position(|event| event == name).unwrap_or_else(|| panic!("{name}: {events:?}"))
    };
    let order = [
        "hold",
        "commit",
        "activate",
        "pre_connect",
        "post_connect",
        "pre_close",
        "post_close",
        "release",
        "terminate",
    ];
    assert!(order.windows(2).all(|pair| at(pair[0]) < at(pair[1])), "{events:?}");
    assert_eq!(site.journal(), Vec::<PathBuf>::new());
}

#[test]
fn hook_without_a_path_fails_the_copy_only_if_the_path_is_required() {
    let site = Site::new("case $1 in hold) echo no circuit to there >&2; exit 1;; esac");
    let outcome = site.run(&["--path-policy", "require"]).failed().unwrap();
    assert!(outcome.errors().contains("no circuit to there"), "{}", outcome.errors());
    assert!(!site.is_copied());
    let outcome = site.run(&[]).succeeded().unwrap();
    assert!(outcome.errors().contains("over the usual network"), "{}", outcome.errors());
    assert!(site.is_copied());
    assert_eq!(site.journal(), Vec::<PathBuf>::new());
}

#[test]
fn hook_that_refuses_a_connection_fails_the_copy_only_if_the_path_is_required() {
    let site = Site::new("case $1 in pre_connect) echo closed >&2; exit 1;; esac");
    let outcome = site.run(&["--path-policy", "require", "--retries", "0"]).failed().unwrap();
    assert!(outcome.errors().contains("closed"), "{}", outcome.errors());
    assert!(site.events().ends_with(&["release".to_owned(), "terminate".to_owned()]), "{:?}", site.events());
    let outcome = site.run(&[]).succeeded().unwrap();
    assert!(outcome.errors().contains("made without its hook"), "{}", outcome.errors());
    assert!(site.is_copied());
}

#[test]
fn interrupted_copy_releases_its_path() {
    let site = Site::new("");
    let mut copy = Program::start(&mut site.cp(&["--bandwidth", "1M"])).unwrap();
    copy.wait_for_log(LIMIT, |log| log.contains("is up")).unwrap();
    copy.signal(Signal::INT);
    assert_eq!(copy.wait(LIMIT).unwrap().code(), Some(130));
    assert!(site.events().ends_with(&["release".to_owned(), "terminate".to_owned()]), "{:?}", site.events());
    assert_eq!(site.journal(), Vec::<PathBuf>::new());
}

#[test]
fn path_of_a_killed_copy_is_removed_by_the_next_one() {
    let site = Site::new("");
    let mut copy = Program::start(&mut site.cp(&["--bandwidth", "1M"])).unwrap();
    copy.wait_for_log(LIMIT, |log| log.contains("is up")).unwrap();
    copy.signal(Signal::KILL);
    copy.wait(LIMIT).unwrap();
    assert!(!site.journal().is_empty());
    assert!(!site.events().contains(&"terminate".to_owned()));
    let outcome = site.run(&[]).succeeded().unwrap();
    assert!(outcome.errors().contains("of an earlier run was removed"), "{}", outcome.errors());
    assert_eq!(site.events().iter().filter(|event| *event == "terminate").count(), 2);
    assert_eq!(site.journal(), Vec::<PathBuf>::new());
}

#[test]
fn path_that_is_not_up_is_not_used() {
    let site = Site::new(
        r#"case $1 in
        activate) echo '{"status":"pending"}';;
        query) test -e "$0.up" && echo '{"status":"up"}' || echo '{"status":"pending"}';;
        esac"#,
    );
    let mut copy = Program::start(&mut site.cp(&[])).unwrap();
    let log = site.scratch.join("hook.log");
    let asked = |_: &str| fs::read_to_string(&log).is_ok_and(|text| text.contains("query "));
    copy.wait_for_log(LIMIT, asked).unwrap();
    assert!(!site.events().contains(&"pre_connect".to_owned()), "{:?}", site.events());
    fs::write(site.scratch.join("hook.up"), "").unwrap();
    assert!(copy.wait(LIMIT).unwrap().success());
    assert!(site.is_copied());
}

#[test]
fn hook_of_a_server_sees_and_refuses_data_connections() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    files::write_random(&root.join("f"), 1 << 20, 7).unwrap();
    let refusal = scratch.join("closed");
    let script = format!("test ! -e {} || {{ echo closed >&2; exit 1; }}", refusal.display());
    let hook = hook(&scratch, "hook", &script);
    let config = scratch.join("server.toml");
    fs::write(&config, format!("[paths]\nhook = \"{}\"\n", hook.display())).unwrap();
    let mut server =
        Setup::new(Kind::Ropewalk, &root).argument("--config").argument(&config).start().unwrap();
    let cp = |server: &Server| {
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["cp", "--retries", "0", "--task-id", "none"]);
        command.arg(server.url("f")).arg(scratch.join("back"));
        run(&mut command, LIMIT).unwrap()
    };
    cp(&server).succeeded().unwrap();
    // The server closes its end after the client.
    let ended = |_: &str| {
        let seen = events(&scratch, "hook");
        ["post_close", "end_listen"].iter().all(|name| seen.iter().any(|event| event == name))
    };
    server.program().wait_for_log(LIMIT, ended).unwrap();
    let seen = events(&scratch, "hook");
    for name in
        ["pre_listen", "post_listen", "pre_accept", "post_accept", "pre_close", "post_close", "end_listen"]
    {
        assert!(seen.iter().any(|event| event == name), "{name}: {seen:?}");
    }
    let accepted = lines(&scratch, "hook").into_iter().find(|line| line.starts_with("post_accept ")).unwrap();
    for member in
        [r#""task_id":"unset""#, r#""transport":"tcp""#, r#""remote":"127.0.0.1:"#, r#""local":"127.0.0.1:"#]
    {
        assert!(accepted.contains(member), "{member}: {accepted}");
    }
    let mut control = Control::log_in(server.address()).unwrap();
    control.expect("SITE TASKID job-7", 250).unwrap();
    control.passive().unwrap();
    let last = lines(&scratch, "hook").into_iter().rfind(|line| line.starts_with("post_listen ")).unwrap();
    assert!(last.contains(r#""task_id":"job-7""#), "{last}");
    drop(control);
    fs::remove_file(scratch.join("back")).unwrap();
    fs::write(&refusal, "").unwrap();
    let outcome = cp(&server).failed().unwrap();
    assert!(outcome.errors().contains("closed"), "{}", outcome.errors());
}

#[test]
fn hooks_of_both_servers_get_the_task_id_of_the_copy() {
    let scratch = Scratch::new().unwrap();
    let start = |name: &str| {
        let root = scratch.directory(format!("{name}-root")).unwrap();
        let config = scratch.join(format!("{name}.toml"));
        let hook = hook(&scratch, name, "");
        fs::write(&config, format!("[paths]\nhook = \"{}\"\n", hook.display())).unwrap();
        Setup::new(Kind::Ropewalk, &root).argument("--config").argument(&config).start().unwrap()
    };
    let (source, destination) = (start("source"), start("destination"));
    files::write_random(&source.root().join("f"), 1 << 20, 7).unwrap();
    let task = |name: &str| {
        let line = lines(&scratch, name).pop().unwrap();
        let event: serde_json::Value = serde_json::from_str(line.split_once(' ').unwrap().1).unwrap();
        event["task_id"].as_str().unwrap().to_owned()
    };
    let copied = |options: &[&str]| {
        let mut command = peers::ropewalk_command().unwrap();
        command.arg("cp").args(options).arg(source.url("f")).arg(destination.url("g"));
        run(&mut command, LIMIT).unwrap().succeeded().unwrap();
        (task("source"), task("destination"))
    };
    let (one, other) = copied(&[]);
    assert!(one == other && one.len() == 36 && one.split('-').count() == 5, "{one} {other}");
    assert_ne!(copied(&[]).0, one);
    assert_eq!(copied(&["--task-id", "job-7"]), ("job-7".to_owned(), "job-7".to_owned()));
    assert_eq!(copied(&["--task-id", "none"]), ("unset".to_owned(), "unset".to_owned()));
    assert_eq!(fs::read(source.root().join("f")).unwrap(), fs::read(destination.root().join("g")).unwrap());
    // The hook of this side has it as well.
    let site = Site::new("");
    site.run(&["--task-id", "job-8"]).succeeded().unwrap();
    let connected = lines(&site.scratch, "hook").into_iter().find(|line| line.starts_with("pre_connect "));
    assert!(connected.unwrap().contains(r#""task_id":"job-8""#));
}

#[test]
fn log_of_a_server_has_the_task_id_with_each_transfer() {
    let site = Site::new("");
    let copied = |task: &str, url: String| {
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["cp", "--retries", "0", "--task-id", task, &url]).arg(site.scratch.join("back"));
        let outcome = run(&mut command, LIMIT).unwrap();
        let _ = fs::remove_file(site.scratch.join("back"));
        outcome
    };
    // The lines about ends of transfers that the log has got meanwhile.
    let logged = |so_far: usize| {
        let ended = |log: &str| -> Vec<String> {
            let lines = log.lines().filter(|line| line.contains("transfer done"));
            lines.skip(so_far).map(str::to_owned).collect()
        };
        let began = Instant::now();
        while ended(&site.server.log()).is_empty() {
            assert!(began.elapsed() < LIMIT, "{}", site.server.log());
            thread::sleep(Duration::from_millis(10));
        }
        ended(&site.server.log())
    };
    copied("job-7", site.server.url("f")).succeeded().unwrap();
    let lines = logged(0);
    assert!(lines.iter().any(|line| line.contains("INFO") && line.contains("task=\"job-7\"")), "{lines:?}");
    copied("none", site.server.url("f")).succeeded().unwrap();
    let lines = logged(lines.len());
    assert!(lines.iter().all(|line| !line.contains("task=")), "{lines:?}");
}

#[test]
fn server_of_gct_logs_the_task_id_of_the_copy() {
    if !peers::available(&["globus-gridftp-server"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    files::write_random(&root.join("f"), 1000, 7).unwrap();
    let log = scratch.join("transfers");
    let mut server = Setup::new(Kind::Gct, &root).argument("-log-transfer").argument(&log).start().unwrap();
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["cp", "--task-id", "job-7"]).arg(server.url("f")).arg(scratch.join("back"));
    run(&mut command, LIMIT).unwrap().succeeded().unwrap();
    let logged = |_: &str| fs::read_to_string(&log).is_ok_and(|text| text.contains("TASKID=job-7 "));
    server.program().wait_for_log(LIMIT, logged).unwrap();
}

/// Runs a command with the state of the site.
fn ropewalk(site: &Site, words: &[&str]) -> Outcome {
    let mut command = peers::ropewalk_command().unwrap();
    command.env("XDG_STATE_HOME", site.scratch.join("state")).args(words);
    run(&mut command, LIMIT).unwrap()
}

#[test]
fn reserved_path_is_listed_used_kept_and_cancelled() {
    let site = Site::new("");
    let hook = format!("hook:{}", site.hook.display());
    let id = ropewalk(&site, &["reserve", &hook, "--for", "1h", "--rate", "80Mbit/s"]).succeeded().unwrap();
    let id = id.text().trim().to_owned();
    assert_eq!(site.events(), ["hold", "commit"]);
    let listed = ropewalk(&site, &["reservations", "--json"]).succeeded().unwrap().text();
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((listed["id"].as_str(), listed["state"].as_str()), (Some(&*id), Some("reserved")));
    assert_eq!((listed["capacity"].as_u64(), listed["in_use"].as_bool()), (Some(80_000_000), Some(false)));

    let (url, back) = (site.server.url("f"), site.scratch.join("back").display().to_string());
    ropewalk(&site, &["cp", "--path", &format!("reserved:{id}"), &url, &back]).succeeded().unwrap();
    assert!(site.is_copied());
    assert_eq!(site.events(), ["hold", "commit", "activate", "release"]);
    let text = ropewalk(&site, &["reservations"]).succeeded().unwrap().text();
    assert!(text.starts_with(&id) && text.contains("  reserved  "), "{text}");

    ropewalk(&site, &["cancel", &id]).succeeded().unwrap();
    assert!(site.events().ends_with(&["terminate".to_owned()]));
    assert_eq!(site.journal(), Vec::<PathBuf>::new());
    assert_eq!(ropewalk(&site, &["cancel", &id]).failed().unwrap().status.code(), Some(4));
}

#[test]
fn reservation_in_the_past_is_refused_before_anything_is_sent() {
    let site = Site::new("");
    let hook = format!("hook:{}", site.hook.display());
    for (words, text) in [
        (["--from", "2020-01-01", "--for", "1h"], "this time is over"),
        (["--from", "25:00", "--for", "1h"], "expected a time such as 22:00"),
        (["--from", "22:00", "--for", "0"], "at least 1s"),
    ] {
        let outcome = ropewalk(&site, &[&["reserve", &hook], &words[..]].concat()).failed().unwrap();
        assert!(outcome.errors().contains(text), "{}", outcome.errors());
    }
    assert_eq!(site.events(), Vec::<String>::new());
}

/// A site whose path comes from a provider of NSI.
fn nsi(faults: Faults) -> (Site, NsiProvider, String) {
    let (site, provider) = (Site::new(""), NsiProvider::start(faults).unwrap());
    let file = site.scratch.join("nsi.toml");
    fs::write(&file, provider.file(nsi_provider::free_port().unwrap())).unwrap();
    (site, provider, format!("nsi:{}", file.display()))
}

#[test]
fn copy_over_nsi_path_reserves_provisions_and_terminates() {
    let (site, provider, path) = nsi(Faults::default());
    let (url, back) = (site.server.url("f"), site.scratch.join("back").display().to_string());
    let outcome = ropewalk(&site, &["cp", "--path", &path, &url, &back]).succeeded().unwrap();
    assert!(outcome.errors().contains("is up, from 127.0.0.1, 200Mbit/s"), "{}", outcome.errors());
    assert!(site.is_copied() && !provider.has_path());
    assert_eq!(site.journal(), Vec::<PathBuf>::new());
    let requests = provider.requests();
    let steps: Vec<&str> =
        requests.iter().map(String::as_str).filter(|name| *name != "querySummarySync").collect();
    assert_eq!(steps, ["reserve", "reserveCommit", "provision", "release", "terminate"]);
}

#[test]
fn copy_that_requires_its_path_stops_when_the_path_goes_down() {
    let (site, provider, path) = nsi(Faults::default());
    let (url, back) = (site.server.url("f"), site.scratch.join("back").display().to_string());
    let mut command = peers::ropewalk_command().unwrap();
    command.env("XDG_STATE_HOME", site.scratch.join("state"));
    command.args(["cp", "--path-policy", "require", "--bandwidth", "50K", "--path", &path, &url, &back]);
    let mut copy = Program::start(&mut command).unwrap();
    copy.wait_for_log(LIMIT, |log| log.contains("is up")).unwrap();
    provider.take_down();
    assert_eq!(copy.wait(LIMIT).unwrap().code(), Some(1));
    assert!(copy.log().contains("stopped without its path"), "{}", copy.log());
    assert!(!site.is_copied() && !provider.has_path());
}

#[test]
fn path_that_nsi_refuses_fails_the_copy_only_if_it_is_required() {
    let (site, provider, path) = nsi(Faults { refuses: Some("no such port"), ..Faults::default() });
    let (url, back) = (site.server.url("f"), site.scratch.join("back").display().to_string());
    let require = ["cp", "--path-policy", "require", "--path", &path, &url, &back];
    let outcome = ropewalk(&site, &require).failed().unwrap();
    assert!(outcome.errors().contains("no such port (error 00400)"), "{}", outcome.errors());
    ropewalk(&site, &["cp", "--path", &path, &url, &back]).succeeded().unwrap();
    assert!(site.is_copied() && !provider.has_path());
}

#[test]
fn path_reserved_with_nsi_is_cancelled_by_its_id() {
    let (site, provider, path) = nsi(Faults::default());
    let id = ropewalk(&site, &["reserve", &path, "--from", "23:59", "--for", "2h"]).succeeded().unwrap();
    assert!(provider.has_path());
    let id = id.text().trim().to_owned();
    ropewalk(&site, &["cancel", &id]).succeeded().unwrap();
    assert!(!provider.has_path());
    let requests = provider.requests();
    // A slow host queries as well.
    let steps: Vec<&str> =
        requests.iter().map(String::as_str).filter(|name| *name != "querySummarySync").collect();
    assert_eq!(steps, ["reserve", "reserveCommit", "terminate"]);
}

#[test]
fn reservation_of_a_hook_that_is_gone_is_forgotten_on_request() {
    let site = Site::new("");
    let hook = format!("hook:{}", site.hook.display());
    let id = ropewalk(&site, &["reserve", &hook, "--for", "1h"]).succeeded().unwrap();
    let id = id.text().trim().to_owned();
    fs::remove_file(&site.hook).unwrap();
    ropewalk(&site, &["cancel", "--forget", &id]).succeeded().unwrap();
    assert_eq!(site.journal(), Vec::<PathBuf>::new());
}

/// A network namespace whose loopback interface has an HTB queue, with a server at port 2811.
const TC_SITE: &str = r#"
set -e
ip link set lo up
tc qdisc add dev lo root handle 1: htb default 2
tc class add dev lo parent 1: classid 1:1 htb rate 800mbit
tc class add dev lo parent 1:1 classid 1:2 htb rate 80mbit ceil 800mbit
"$BIN" serve --listen 127.0.0.1:2811 --root "$1/root" --anonymous > "$1/server" 2>&1 &
trap 'kill $!' EXIT
until "$BIN" ls ftp://127.0.0.1:2811/ > /dev/null 2>&1; do sleep 0.05; done
id=$("$BIN" reserve "tc:$1/tc.toml" --for 1h)
tc class show dev lo > "$1/reserved"
"$BIN" reserve "tc:$1/tc.toml" --for 1h --rate 700Mbit/s && exit 9
"$BIN" cp --path "reserved:$id" ftp://127.0.0.1:2811/f "$1/back"
tc -s class show dev lo > "$1/used"
"$BIN" cancel "$id"
tc class show dev lo > "$1/cancelled"
tc filter show dev lo > "$1/filters"
"#;

#[test]
fn tc_path_is_a_class_that_carries_the_copy_and_is_removed() {
    if !peers::available(&["unshare", "tc", "ip"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    files::write_random(&root.join("f"), 3 << 20, 7).unwrap();
    let settings = "interface = \"lo\"\naddress = \"127.0.0.1\"\ncapacity = \"80Mbit/s\"\nparent = \"1:1\"\n";
    fs::write(scratch.join("tc.toml"), settings).unwrap();
    let mut command = process::command("unshare");
    command.env("BIN", peers::ropewalk().unwrap()).env("XDG_STATE_HOME", scratch.join("state"));
    command.env("HOME", peers::home());
    command.args(["-n", "sh", "-c", TC_SITE, "sh"]).arg(scratch.path());
    let outcome = run(&mut command, LIMIT).unwrap().succeeded().unwrap();
    assert!(outcome.errors().contains("640Mbit/s left, not 700Mbit/s"), "{}", outcome.errors());
    let text = |name: &str| fs::read_to_string(scratch.join(name)).unwrap();
    let own = |text: &str| -> Vec<String> {
        let other = |line: &&str| line.contains("parent 1:1 ") && !line.contains(" 1:2 ");
        text.lines().filter(other).map(str::to_owned).collect()
    };
    let reserved = own(&text("reserved"));
    assert!(reserved.len() == 1 && reserved[0].contains("rate 80Mbit ceil 80Mbit"), "{}", text("reserved"));
    let used = text("used");
    let sent = used.lines().skip_while(|line| own(line).is_empty()).nth(1).unwrap_or_default();
    let sent = sent.trim().split(' ').nth(1).and_then(|bytes| bytes.parse::<u64>().ok()).unwrap_or_default();
    assert!(sent >= 3 << 20, "{used}");
    assert_eq!(own(&text("cancelled")), Vec::<String>::new());
    assert_eq!(text("filters"), "");
    assert_eq!(fs::read(scratch.join("back")).unwrap(), fs::read(root.join("f")).unwrap());
}

/// A copy over a path that is reserved for a short time.
fn short_copy(site: &Site, path: &str, policy: &str, bandwidth: &str) -> Command {
    let mut command = peers::ropewalk_command().unwrap();
    command.env("XDG_STATE_HOME", site.scratch.join("state"));
    command.args(["cp", "--json", "--path", path, "--path-policy", policy]);
    command.args(["--path-time", "3s", "--bandwidth", bandwidth]);
    command.arg(site.server.url("f")).arg(site.scratch.join("back"));
    command
}

/// The states of the path in the events of a copy.
fn path_states(outcome: &str) -> Vec<String> {
    let events = outcome.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let paths = events.filter(|event| event["event"] == "path");
    paths.map(|event| event["state"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn copy_that_takes_longer_extends_its_path() {
    let (site, provider, path) = nsi(Faults::default());
    let mut copy = Program::start(&mut short_copy(&site, &path, "require", "200K")).unwrap();
    copy.wait_for_log(LIMIT, |log| log.matches("the path is extended until").count() == 2).unwrap();
    copy.signal(Signal::INT);
    assert_eq!(copy.wait(LIMIT).unwrap().code(), Some(130));
    assert!(!provider.has_path() && site.journal().is_empty());
    let with = |version: u32| format!("<criteria version=\"{version}\">");
    for version in 1..=3 {
        assert_eq!(provider.texts().iter().filter(|text| text.contains(&with(version))).count(), 1);
    }
    let log = copy.log();
    assert_eq!(path_states(&log), ["reserved", "up", "extended", "extended", "released"], "{log}");
}

#[test]
fn path_that_is_not_extended_ends_with_its_time_and_the_policy_decides() {
    let (site, provider, path) = nsi(Faults { refuses_extensions: Some("busy then"), ..Faults::default() });
    let outcome = run(&mut short_copy(&site, &path, "require", "200K"), LIMIT).unwrap().failed().unwrap();
    for text in ["the path is not extended, and ends at", "the reserved time is over"] {
        assert!(outcome.errors().contains(text), "{text}: {}", outcome.errors());
    }
    assert_eq!(path_states(&outcome.text()), ["reserved", "up", "not-extended", "down", "released"]);
    let last = outcome.text().lines().last().unwrap().to_owned();
    assert!(last.contains(r#""event":"finished""#), "{last}");
    assert!(!site.is_copied() && !provider.has_path());
    run(&mut short_copy(&site, &path, "prefer", "1M"), LIMIT).unwrap().succeeded().unwrap();
    assert!(site.is_copied() && !provider.has_path());
}

#[test]
fn path_that_does_not_come_is_an_event_with_its_reason() {
    let (site, _provider, path) = nsi(Faults { refuses: Some("no such port"), ..Faults::default() });
    let outcome = run(&mut short_copy(&site, &path, "require", "200K"), LIMIT).unwrap().failed().unwrap();
    let line = outcome.text().lines().next().unwrap_or_default().to_owned();
    let event: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((event["event"].as_str(), event["state"].as_str()), (Some("path"), Some("failed")));
    assert!(event["reason"].as_str().unwrap().contains("no such port") && event["id"].is_string(), "{line}");
}

/// A site whose path comes from an NSI Aggregator Proxy.
fn nsi_rest(faults: aggregator_proxy::Faults) -> (Site, AggregatorProxy, String) {
    let (site, proxy) = (Site::new(""), AggregatorProxy::start(faults).unwrap());
    let file = site.scratch.join("proxy.toml");
    fs::write(&file, proxy.file(nsi_provider::free_port().unwrap())).unwrap();
    (site, proxy, format!("nsi-rest:{}", file.display()))
}

#[test]
fn copy_over_path_of_an_aggregator_proxy_provisions_and_removes_it() {
    let (site, proxy, path) = nsi_rest(aggregator_proxy::Faults::default());
    let (url, back) = (site.server.url("f"), site.scratch.join("back").display().to_string());
    let outcome = ropewalk(&site, &["cp", "--path", &path, &url, &back]).succeeded().unwrap();
    assert!(outcome.errors().contains("is up, from 127.0.0.1, 200Mbit/s"), "{}", outcome.errors());
    assert!(site.is_copied() && !proxy.has_path());
    assert_eq!(site.journal(), Vec::<PathBuf>::new());
    assert_eq!(proxy.changes().len(), 4, "{:?}", proxy.changes());
}

#[test]
fn path_of_an_aggregator_proxy_is_reserved_for_now_only_and_cancelled() {
    let (site, proxy, path) = nsi_rest(aggregator_proxy::Faults::default());
    let outcome =
        ropewalk(&site, &["reserve", &path, "--from", "2100-01-01", "--for", "2h"]).failed().unwrap();
    assert!(outcome.errors().contains("has no schedule"), "{}", outcome.errors());
    assert_eq!((outcome.status.code(), proxy.changes()), (Some(2), Vec::new()));
    let id = ropewalk(&site, &["reserve", &path, "--for", "2h"]).succeeded().unwrap().text();
    assert!(proxy.has_path());
    let (id, url, back) = (id.trim(), site.server.url("f"), site.scratch.join("back").display().to_string());
    ropewalk(&site, &["cp", "--path", &format!("reserved:{id}"), &url, &back]).succeeded().unwrap();
    assert!(site.is_copied());
    assert_eq!(proxy.reservations()[0].status, "RESERVED");
    ropewalk(&site, &["cancel", id]).succeeded().unwrap();
    assert!(!proxy.has_path());
}
