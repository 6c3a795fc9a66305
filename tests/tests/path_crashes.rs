//! `kill -9` of a copy with a network path at random steps: the next command leaves no path behind.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Command;
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
use rustix::process::Pid;

const LIMIT: Duration = Duration::from_secs(120);
/// So many copies are killed for each provider.
const COPIES: u32 = 25;
/// A copy makes about so many requests to its provider.
const REQUESTS: u64 = 9;
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

fn crashes(is_rest: bool) {
    let begin = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut random = Random::new(begin.as_nanos() as u64);
    let seeds: Vec<u64> = (0..COPIES).map(|_| random.number()).collect();
    eprintln!("seeds: {seeds:?}");
    let killed: usize = thread::scope(|scope| {
        let threads: Vec<_> = seeds
            .chunks((COPIES / AT_A_TIME) as usize)
            .map(|seeds| scope.spawn(move || seeds.iter().filter(|seed| crash(is_rest, **seed)).count()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    // Some copies make fewer requests than the one at which they would be killed.
    assert!(killed * 2 >= seeds.len(), "{killed} of {} copies were killed", seeds.len());
}

#[test]
fn copy_over_nsi_that_is_killed_at_any_step_leaves_no_path() {
    crashes(false);
}

#[test]
fn copy_over_an_aggregator_proxy_that_is_killed_at_any_step_leaves_no_path() {
    crashes(true);
}
