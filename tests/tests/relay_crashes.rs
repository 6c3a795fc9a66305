//! Kills relays with SIGKILL at random moments of copies, and cuts their connections to the far
//! server. Every byte must be right in the end, and nothing may be left over at the ends or at
//! relays.
//!
//! `ROPEWALK_RELAY_KILLS` is the number of kills or cuts, and `ROPEWALK_TEST_SEED` repeats a run
//! with the moments that it printed.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};
use std::{env, fs};

use ropewalk_tests::client::Summary;
use ropewalk_tests::control::Control;
use ropewalk_tests::peers::loudly;
use ropewalk_tests::process::{Program, run};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::random::Random;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::{files, peers};
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(120);
/// Large enough for a journal, and not a multiple of the block size.
const SIZE: u64 = (24 << 20) + 12_345;
/// Bytes per second that pass a relay until it is killed, so that it is killed in time.
const RATE: u64 = 60_000_000;
/// Each direction is combined with each way to continue.
const KILLS: u64 = 12;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Direction {
    Get,
    Put,
    ThirdParty,
}

/// How the copy continues after the relay was killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Next {
    /// The relay starts again, and the client is still there.
    SameCommand,
    /// The client has ended. The relay starts again, and the command is run again.
    CommandAgain,
    /// The relay stays away, and the command is run again with another one, or without any.
    OtherPath,
    /// The relay stays away, and the client itself takes another path (`--via auto`).
    Auto,
}

struct Copy {
    scratch: Scratch,
    ends: [Server; 2],
    relay: Server,
    other: Server,
    /// In front of the relay, at an address that stays.
    front: Proxy,
    from: String,
    to: String,
    original: PathBuf,
    result: PathBuf,
}

impl Copy {
    fn new(direction: Direction) -> Self {
        let scratch = Scratch::in_memory(256 << 20).unwrap();
        let server = |name: &str, relay: bool| {
            let root = scratch.directory(name).unwrap();
            let setup = Setup::new(Kind::Ropewalk, &root).argument("--anonymous-third-party");
            let setup = if relay { setup.argument("--relay-to").argument("127.0.0.1") } else { setup };
            setup.start().unwrap()
        };
        let (source, destination) = (server("source", false), server("destination", false));
        let (relay, other) = (server("relay", true), server("other", true));
        let front = Proxy::start(relay.address()).unwrap();
        front.set_rate(Some(RATE));
        let here = scratch.directory("here").unwrap();
        let file = |directory: &Path| directory.join("f");
        let local = |directory: &Path| file(directory).display().to_string();
        let (from, original) = match direction {
            Direction::Put => (local(&here), file(&here)),
            _ => (source.url("f"), scratch.join("source/f")),
        };
        let (to, result) = match direction {
            Direction::Get => (local(&here), file(&here)),
            _ => (destination.url("f"), scratch.join("destination/f")),
        };
        files::write_random(&original, SIZE, 11).unwrap();
        Self { scratch, ends: [source, destination], relay, other, front, from, to, original, result }
    }

    fn command(&self, via: Option<String>, retries: u32) -> Command {
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["cp", "--json", "--retry-pause=100ms"]).arg(format!("--retries={retries}"));
        command.args(via.map(|via| format!("--via={via}")));
        command.args([&self.from, &self.to]).env("XDG_STATE_HOME", self.scratch.join("state"));
        command
    }

    fn front(&self) -> Option<String> {
        Some(format!("ftp://{}", self.front.address()))
    }

    fn other(&self) -> String {
        format!("ftp://{}", self.other.address())
    }

    /// The command whose client chooses the path. By past transfers, that by the first relay is the
    /// best one.
    fn auto(&self) -> Command {
        let [source, destination] = self.ends.each_ref().map(|end| format!("ftp://{}", end.address()));
        let front = self.front().unwrap_or_default();
        let rates = [(&front, 8e8), (&self.other(), 4e8), (&source, 1e6)];
        let mut paths = serde_json::Map::new();
        for end in [&source, &destination, &"here".to_owned()] {
            for (through, rate) in &rates {
                for (from, to) in
                    [(end, *through), (*through, end)].into_iter().filter(|(from, to)| from != to)
                {
                    let known = json!({"streams": 4, "bits_per_second": rate, "min_rtt_seconds": 0.1, "at": u32::MAX});
                    paths.entry(format!("{from} -> {to}")).or_insert(known);
                }
            }
        }
        let known = json!({"streams": 4, "bits_per_second": 1e6, "min_rtt_seconds": 0.1, "at": u32::MAX});
        paths.insert(format!("here -> {destination}"), known);
        let directory = self.scratch.directory("state/ropewalk").unwrap();
        fs::write(directory.join("paths.json"), json!({"version": 1, "paths": paths}).to_string()).unwrap();
        let mut command = self.command(Some("auto".to_owned()), 50);
        command.arg(format!("--relays={front},{}", self.other()));
        command
    }

    fn restart_relay(&mut self) {
        self.relay.restart().unwrap();
        self.front.set_target(self.relay.address());
    }

    /// Part files, journals, and files at relays.
    fn leftovers(&self) -> Vec<PathBuf> {
        let files = |name: &str| fs::read_dir(self.scratch.join(name)).into_iter().flatten().flatten();
        let mut all: Vec<PathBuf> = ["source", "destination", "here", "relay", "other"]
            .into_iter()
            .flat_map(files)
            .map(|entry| entry.path())
            .filter(|path| *path != self.original && *path != self.result)
            .collect();
        let journals = files("state/ropewalk").map(|entry| entry.path()).filter(|path| {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            stem.len() == 32 && path.extension().is_some_and(|ending| ending != "lock")
        });
        all.extend(journals);
        all
    }
}

fn kill_once(direction: Direction, next: Next, random: &mut Random) {
    let moment = match random.below(8) {
        // Log-in and start; the end of the data.
        0 => 0,
        1 => SIZE,
        _ => random.below(SIZE),
    };
    let without_relay = random.below(2) == 0;
    let case = format!("{direction:?}, {next:?}, killed after {moment} bytes, no relay: {without_relay}");
    let mut copy = Copy::new(direction);
    let retries = if next == Next::SameCommand { 50 } else { 0 };
    let mut command = if next == Next::Auto { copy.auto() } else { copy.command(copy.front(), retries) };
    let mut first = Program::start(&mut command).unwrap();
    if let Err(error) = copy.front.wait_for(moment, LIMIT) {
        panic!("{case}: {error}: {}", first.log());
    }
    copy.relay.kill();
    copy.front.set_rate(None);
    let log = if matches!(next, Next::SameCommand | Next::Auto) {
        if next == Next::SameCommand {
            copy.restart_relay();
        }
        assert!(first.wait(LIMIT).unwrap().success(), "{case}: {}", first.log());
        first.finish()
    } else {
        first.wait(LIMIT).unwrap();
        // The file may be complete, even if the relay could not report that any more.
        let done = copy.result.exists();
        if done && let Err(error) = files::ensure_same(&copy.original, &copy.result) {
            panic!("{case}: a file that is not whole has its name: {error}");
        }
        let via = match next {
            Next::OtherPath if without_relay => None,
            Next::OtherPath => Some(copy.other()),
            _ => {
                copy.restart_relay();
                copy.front()
            }
        };
        let again = run(&mut copy.command(via, 5), LIMIT).unwrap();
        assert!(again.status.success(), "{case}: first {}, again {}", first.log(), again.errors());
        let text = String::from_utf8(again.stdout).unwrap();
        let summary = Summary::parse(&text).unwrap();
        let resumed = summary.number("bytes_resumed").unwrap();
        // The data that had passed the relay long before it was killed is not sent again.
        assert!(done || moment < SIZE / 2 || resumed > 0, "{case}: nothing was resumed: {text}");
        text
    };
    if let Err(error) = files::ensure_same(&copy.original, &copy.result) {
        panic!("{case}: {error}: {log}");
    }
    assert_eq!(copy.leftovers(), Vec::<PathBuf>::new(), "{case}: {log}");
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// Random numbers, whose seed is printed.
fn random() -> Random {
    let now = || SystemTime::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64);
    let seed = number("ROPEWALK_TEST_SEED").unwrap_or_else(now);
    loudly(&format!("ROPEWALK_TEST_SEED={seed}"));
    Random::new(seed)
}

#[test]
fn copies_whose_relay_is_killed_lose_nothing() {
    let mut random = random();
    for kill in 0..number("ROPEWALK_RELAY_KILLS").unwrap_or(KILLS) {
        let direction = [Direction::Get, Direction::Put, Direction::ThirdParty][(kill % 3) as usize];
        let nexts = [Next::SameCommand, Next::CommandAgain, Next::OtherPath, Next::Auto];
        kill_once(direction, nexts[(kill / 3 % 4) as usize], &mut random);
    }
}

/// Uploads a file through a relay that loses its connections to the far server once, and returns
/// whether the client was informed of success.
fn upload_with_cut(far: Kind, fsync: &str, plain: bool, random: &mut Random) -> bool {
    let scratch = Scratch::in_memory(64 << 20).unwrap();
    let far = Setup::new(far, &scratch.directory("far").unwrap()).start().unwrap();
    let front = Proxy::start(far.address()).unwrap();
    let config = scratch.join("relay.toml");
    fs::write(&config, format!("[relay]\nto = ['127.0.0.1']\n[files]\nfsync = '{fsync}'\n")).unwrap();
    let root = scratch.directory("relay").unwrap();
    let relay = Setup::new(Kind::Ropewalk, &root).argument("--config").argument(&config).start().unwrap();

    let size = [6, 70_000, 3 << 20][random.below(3) as usize];
    let commands = ["PASV", "STOR", "ESTO", "SIZE", "MLST", "CKSM", "SITE", "RNFR", "RNTO", "TYPE"];
    let cut = match random.below(3) {
        0 => {
            let after = random.below(size) + 1;
            front.cut_after(after);
            format!("after {after} bytes")
        }
        _ => {
            let command = commands[random.below(commands.len() as u64) as usize];
            let times = random.below(3) as u32 + 1;
            front.cut_on(command, times);
            format!("at {command}, {times} times")
        }
    };
    let case = format!("{size} bytes to {:?}, fsync {fsync}, plain: {plain}, cut {cut}", far.kind());
    let original = scratch.join("f");
    files::write_random(&original, size, size).unwrap();
    let path = far.remote_path("f");
    let there = format!("ftp://{}{}", front.address(), String::from_utf8_lossy(&path));
    let (success, report) = if plain {
        let mut control = Control::log_in(relay.address()).unwrap();
        let reply = control.store(&format!("/{there}"), &fs::read(&original).unwrap()).unwrap();
        (reply.code < 300, reply.text)
    } else {
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["cp", "--json", "--retries=0"]).arg(format!("--via=ftp://{}", relay.address()));
        command.arg(&original).arg(&there).env("XDG_STATE_HOME", scratch.join("state"));
        let outcome = run(&mut command, LIMIT).unwrap();
        (outcome.status.success(), outcome.errors())
    };
    let result = scratch.join("far/f");
    if (success || result.exists())
        && let Err(error) = files::ensure_same(&original, &result)
    {
        panic!("{case}: {error}: {report}");
    }
    success
}

/// A relay that loses the far server reports success only if that has the whole file, and a file
/// that is not whole has no name.
#[test]
fn uploads_whose_far_server_is_lost_are_whole_or_fail() {
    let mut random = random();
    let mut failures = 0;
    let cuts = number("ROPEWALK_RELAY_KILLS").unwrap_or(2 * KILLS);
    for cut in 0..cuts {
        let far = [Kind::Ropewalk, Kind::Vsftpd][(cut % 2) as usize];
        let fsync = ["each_marker", "none", "at_end"][(cut / 2 % 3) as usize];
        failures += u32::from(!upload_with_cut(far, fsync, cut / 6 % 2 == 0, &mut random));
    }
    loudly(&format!("{failures} of {cuts} uploads failed"));
    assert!(failures > 0, "no cut was noticed");
}
