//! `kill -9` of a copy or a reservation with a network path at random steps: the next command
//! leaves no path behind, and no space or slot is left without its path for longer than a lease.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ropewalk_tests::aggregator_proxy::{self, AggregatorProxy};
use ropewalk_tests::nsi_provider::{self, NsiProvider};
use ropewalk_tests::process::{Program, run};
use ropewalk_tests::random::Random;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::trap::{Moment, Trap};
use ropewalk_tests::{files, peers};
use rustix::process::{Pid, Signal};

const LIMIT: Duration = Duration::from_secs(120);
/// So many copies are killed for each provider.
const COPIES: u32 = 25;
/// A copy makes about so many requests to its provider, and a reservation whose results are lost.
const REQUESTS: u64 = 9;
const REQUESTS_TO_RESERVE: u64 = 4;
/// So many reservations are killed.
const RESERVATIONS: u32 = 20;
/// How long a server keeps a part of a reservation that is not complete, and a margin.
const LEASE: u64 = 120 + 5;
/// For how long paths and parts of servers are reserved.
const HOURS: u64 = 2;
/// Copies at a time.
const AT_A_TIME: u32 = 5;

/// A provider that kills its client.
enum Provider {
    Nsi(NsiProvider),
    Rest(AggregatorProxy),
}

impl Provider {
    fn start(is_rest: bool, trap: Arc<Trap>) -> Self {
        let trap = Some(trap);
        match is_rest {
            true => {
                let faults = aggregator_proxy::Faults { trap, ..Default::default() };
                Self::Rest(AggregatorProxy::start(faults).unwrap())
            }
            false => {
                let faults = nsi_provider::Faults { trap, ..Default::default() };
                Self::Nsi(NsiProvider::start(faults).unwrap())
            }
        }
    }

    fn kind(&self) -> &'static str {
        if let Self::Nsi(_) = self { "nsi" } else { "nsi-rest" }
    }

    fn file(&self) -> String {
        let port = nsi_provider::free_port().unwrap();
        match self {
            Self::Nsi(provider) => provider.file(port),
            Self::Rest(proxy) => proxy.file(port),
        }
    }

    fn has_path(&self) -> bool {
        match self {
            Self::Nsi(provider) => provider.has_path(),
            Self::Rest(proxy) => proxy.has_path(),
        }
    }
}

/// Kills one copy. Returns whether it was killed before its end.
fn crash(is_rest: bool, seed: u64) -> bool {
    let mut random = Random::new(seed);
    let moment = match random.below(3) {
        0 => Moment::Before,
        1 => Moment::Unanswered,
        _ => Moment::Answered(Duration::from_micros(random.below(20_000))),
    };
    let trap = Arc::new(Trap::new(1 + random.below(REQUESTS) as u32, moment));
    let provider = Provider::start(is_rest, Arc::clone(&trap));
    let case = format!("{} with seed {seed}: {moment:?} {}", provider.kind(), trap.request);
    let scratch = Scratch::new().unwrap();
    fs::write(scratch.join("path.toml"), provider.file()).unwrap();
    files::write_random(&scratch.join("a"), 1 << 20, 7).unwrap();
    let command = || -> Command {
        let mut command = peers::ropewalk_command().unwrap();
        command.env("XDG_STATE_HOME", scratch.join("state"));
        command
    };
    let path = format!("{}:{}", provider.kind(), scratch.join("path.toml").display());
    let mut copy = command();
    copy.args(["cp", "--path", &path]).arg(scratch.join("a")).arg(scratch.join("b"));
    let mut copy = Program::start(&mut copy).unwrap();
    trap.program.set(Pid::from_raw(copy.pid().try_into().unwrap()).unwrap()).unwrap();
    let killed = !copy.wait(LIMIT).unwrap().success();
    let next = run(command().arg("reservations"), LIMIT).unwrap().succeeded().unwrap();
    let journal: Vec<_> =
        fs::read_dir(scratch.join("state/ropewalk/paths")).map(Iterator::collect).unwrap_or_default();
    let entries = journal.iter().flatten().filter(|file: &&fs::DirEntry| {
        let name = file.file_name();
        name.to_string_lossy().ends_with(".json")
    });
    assert_eq!(entries.count(), 0, "{case}: an entry is left: {}", next.errors());
    assert!(!provider.has_path(), "{case}: a path is left: {}", next.errors());
    killed
}

/// A server with a quota and slots, and a user who has a password.
struct PartServer {
    program: Program,
    /// Of a directory with the quota.
    url: String,
}

impl PartServer {
    fn start(scratch: &Scratch) -> Self {
        let root = scratch.directory("root").unwrap();
        let passwords = scratch.join("users");
        let mut passwd = peers::ropewalk_command().unwrap();
        passwd.args(["passwd", "--file"]).arg(&passwords).arg("ada");
        let mut child = passwd.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        writeln!(child.stdin.take().unwrap(), "sesame").unwrap();
        assert!(child.wait().unwrap().success());
        let config = scratch.join("server.toml");
        let text = format!(
            "root = {root:?}\nlisten = ['127.0.0.1:0']\npassword_file = {passwords:?}\n\
             [identity]\nmapped = false\n[tls]\nenabled = false\n[space]\nstate_directory = {:?}\n\
             [[quota]]\nname = 'q'\ntree = {root:?}\nbytes = '100MiB'\n[[bandwidth]]\n\
             rate = '1Gbit/s'\n[reservations]\nstate_file = {:?}\nslots = 50\nbandwidth = 50\n",
            scratch.join("ledger"),
            scratch.join("slots"),
        );
        fs::write(&config, text).unwrap();
        let mut serve = peers::ropewalk_command().unwrap();
        let program = Program::start(serve.args(["serve", "--config"]).arg(&config)).unwrap();
        let listening = |line: &str| line.strip_prefix("Server listening at ").map(str::to_owned);
        let address = program.wait_for_line(LIMIT, listening).unwrap();
        program.wait_for_log(LIMIT, |log| log.contains("files counted")).unwrap();
        Self { program, url: format!("ftp://ada:sesame@{address}/") }
    }

    /// The tokens and ends of the reservations of space or slots, in seconds since 1970.
    fn reservations(&self, (command, end): (&str, &str)) -> Vec<(String, u64)> {
        let mut list = peers::ropewalk_command().unwrap();
        let listed =
            run(list.args([command, "list", "--json", &self.url]), LIMIT).unwrap().succeeded().unwrap();
        let of_line = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            (line["token"].as_str().unwrap().to_owned(), line[end].as_u64().unwrap())
        };
        listed.text().lines().map(of_line).collect()
    }
}

/// Kills one reservation of a path with space and slots. Returns whether it was killed before its
/// end.
fn crash_of_reservation(seed: u64) -> bool {
    let mut random = Random::new(seed);
    // A step at the server, or one at the provider.
    let steps = ["space reserved", "slots reserved", "reservation extended", "reservation of slots extended"];
    let log = steps.get(random.below(10) as usize);
    let moment = match random.below(3) {
        0 => Moment::Before,
        1 => Moment::Unanswered,
        _ => Moment::Answered(Duration::from_micros(random.below(20_000))),
    };
    let trap = Arc::new(Trap::new(1 + random.below(REQUESTS_TO_RESERVE) as u32, moment));
    let case = format!("seed {seed}: {log:?} or {moment:?} {}", trap.request);
    let faults = nsi_provider::Faults {
        trap: log.is_none().then(|| Arc::clone(&trap)),
        loses_results: true,
        ..Default::default()
    };
    let provider = NsiProvider::start(faults).unwrap();
    let scratch = Scratch::new().unwrap();
    let server = PartServer::start(&scratch);
    fs::write(scratch.join("path.toml"), provider.file(nsi_provider::free_port().unwrap())).unwrap();
    let command = || -> Command {
        let mut command = peers::ropewalk_command().unwrap();
        command.env("XDG_STATE_HOME", scratch.join("state"));
        command
    };
    let mut reserve = command();
    reserve.args(["reserve", &format!("nsi:{}", scratch.join("path.toml").display())]);
    reserve.args(["--for", &format!("{HOURS}h"), "--space", "1MiB", "--at", &server.url]);
    reserve.args(["--slots", "2", "--bandwidth", "100Mbit/s"]);
    let mut reserve = Program::start(&mut reserve).unwrap();
    let pid = Pid::from_raw(reserve.pid().try_into().unwrap()).unwrap();
    trap.program.set(pid).unwrap();
    if let Some(step) = log {
        server.program.wait_for_log(LIMIT, |log| log.contains(step)).unwrap();
        reserve.signal(Signal::KILL);
    }
    let killed = !reserve.wait(LIMIT).unwrap().success();
    let next = run(command().args(["reservations", "--json"]), LIMIT).unwrap().succeeded().unwrap();
    let parts = ["space", "slots"].map(|command| {
        let end = if command == "space" { "until" } else { "lease" };
        (command, server.reservations((command, end)))
    });
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let case = format!("{case}: {} {} {parts:?} at {now}", next.text(), next.errors());
    match next.text().lines().next() {
        Some(line) => {
            let entry: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(
                (entry["owner"].as_str(), entry["state"].as_str()),
                (Some("person"), Some("reserved"))
            );
            let until = entry["until"].as_u64().unwrap();
            let is_kept =
                |part: &(&str, Vec<(String, u64)>)| matches!(&part.1[..], [(_, end)] if end + 2 >= until);
            assert!(provider.has_path() && parts.iter().all(is_kept), "{case}");
        }
        None => {
            assert!(!provider.has_path() && killed, "{case}");
            // A crash just before the last record leaves parts, which the next command names.
            let is_named = |command: &str, token: &str| {
                let release = format!("{command} release");
                next.errors().lines().any(|line| line.contains(&release) && line.contains(token))
            };
            for (command, left) in &parts {
                let may_stay = |(token, end): &(String, u64)| *end <= now + LEASE || is_named(command, token);
                assert!(left.iter().all(may_stay), "{case}");
            }
        }
    }
    killed
}

/// Runs so many programs, several at a time, and kills at least half of them. Some make fewer
/// requests than the one at which they would be killed, so that more may have to run.
fn crashes(programs: u32, crash: impl Fn(u64) -> bool + Sync) {
    const RUNS: u32 = 4;
    let begin = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut random = Random::new(begin.as_nanos() as u64);
    let crash = &crash;
    let mut killed = 0;
    for _ in 0..RUNS {
        let seeds: Vec<u64> = (0..programs).map(|_| random.number()).collect();
        eprintln!("seeds: {seeds:?}");
        killed += thread::scope(|scope| {
            let threads: Vec<_> = seeds
                .chunks((programs / AT_A_TIME) as usize)
                .map(|seeds| scope.spawn(move || seeds.iter().filter(|seed| crash(**seed)).count()))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        });
        if killed * 2 >= programs as usize {
            return;
        }
    }
    panic!("{killed} of {} programs were killed", RUNS * programs);
}

#[test]
fn copy_over_nsi_that_is_killed_at_any_step_leaves_no_path() {
    crashes(COPIES, |seed| crash(false, seed));
}

#[test]
fn copy_over_an_aggregator_proxy_that_is_killed_at_any_step_leaves_no_path() {
    crashes(COPIES, |seed| crash(true, seed));
}

#[test]
fn reservation_that_is_killed_at_any_step_leaves_all_or_nothing() {
    crashes(RESERVATIONS, crash_of_reservation);
}
