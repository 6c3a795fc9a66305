//! Kills data nodes and their front end with SIGKILL at random moments of copies by one client
//! that retries. After each copy every byte must be right, and nothing may be left over.
//!
//! `ROPEWALK_TEST_KILLS` is the number of kills (8). `ROPEWALK_TEST_SEED` repeats a run with the
//! choices that it printed.

#![allow(clippy::unwrap_used)]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use ropewalk_tests::files::{ensure_same, write_random};
use ropewalk_tests::nodes::{LIMIT, Site};
use ropewalk_tests::process::{Program, run};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::random::Random;
use ropewalk_tests::tcp_relay::TcpRelay;
use ropewalk_tests::{peers, peers::loudly};
use serde_json::Value;

/// Not a multiple of the block size.
const SIZE: u64 = (24 << 20) + 12_345;
/// A copy takes about a second.
const RATE: u64 = 30_000_000;
const NODES: usize = 3;
const PAUSE: Duration = Duration::from_millis(20);

struct World {
    site: Site,
    /// Between the client and the front end, which has another port after each start.
    proxy: Proxy,
    /// Between the nodes and the front end.
    relay: TcpRelay,
    nodes: Vec<Program>,
    admin: PathBuf,
}

impl World {
    fn new(admin: &Path) -> Self {
        let site = Site::with(&["--admin-socket", admin.to_str().unwrap()]);
        let relay = TcpRelay::start(site.join().parse().unwrap()).unwrap();
        let proxy = Proxy::start(site.server.address()).unwrap();
        proxy.set_rate(Some(RATE));
        let join = relay.address().to_string();
        let nodes = (0..NODES).map(|at| site.node_of(&name(at), &[&join])).collect();
        Self { site, proxy, relay, nodes, admin: admin.to_owned() }
    }

    /// Kills the node of this number, or the front end, and starts it again.
    fn kill(&mut self, victim: usize) {
        if victim < NODES {
            self.nodes[victim].kill();
            // The name may be in use until the front end has noticed the end of the connection.
            let ended = Instant::now() + LIMIT;
            while self.nodes().iter().any(|node| node["name"] == name(victim)) {
                assert!(Instant::now() < ended, "the lease of a node that was killed does not end");
                thread::sleep(PAUSE);
            }
            self.nodes[victim] = self.site.node_of(&name(victim), &[&self.relay.address().to_string()]);
            return;
        }
        self.site.restart();
        self.relay.set_target(self.site.join().parse().unwrap());
        self.proxy.set_target(self.site.server.address());
    }

    fn list(&self, what: &str) -> Vec<Value> {
        let mut command = peers::ropewalk_command().unwrap();
        command.arg("admin").arg("--socket").arg(&self.admin).args([what, "--json"]);
        let text = run(&mut command, LIMIT).unwrap().succeeded().unwrap().text();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn nodes(&self) -> Vec<Value> {
        self.list("nodes")
    }

    /// Waits until there is no session, and each node is a member without channels.
    fn wait_until_idle(&self) {
        let ended = Instant::now() + LIMIT;
        loop {
            let nodes = self.nodes();
            let idle = nodes.iter().filter(|node| node["channels"] == 0 && node["draining"] == false).count();
            if nodes.len() == NODES && idle == NODES && self.list("sessions").is_empty() {
                return;
            }
            assert!(Instant::now() < ended, "{nodes:?}, {:?}", self.list("sessions"));
            thread::sleep(PAUSE);
        }
    }
}

fn name(node: usize) -> String {
    format!("n{node}")
}

fn command(options: &[&str], from: &str, to: &str) -> Command {
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["cp", "--retries", "50", "--retry-pause", "100ms"]).args(options).args([from, to]);
    command
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// Part files and journals.
fn leftovers(directories: &[&Path]) -> Vec<PathBuf> {
    let entries = directories.iter().flat_map(|directory| fs::read_dir(directory).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.file_name().unwrap().to_string_lossy().contains("ropewalk-")).collect()
}

#[test]
fn copies_survive_kills_of_nodes_and_front_end() {
    if !peers::available(&["setpriv"]) {
        return;
    }
    let wanted = number("ROPEWALK_TEST_KILLS").unwrap_or(8);
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = number("ROPEWALK_TEST_SEED").unwrap_or(now);
    loudly(&format!("ROPEWALK_TEST_SEED={seed}"));
    let mut random = Random::new(seed);
    let sockets = ropewalk_tests::scratch::Scratch::new().unwrap();
    let mut world = World::new(&sockets.join("admin"));
    let local = world.site.scratch.directory("local").unwrap();
    let (source, back, there) = (local.join("source"), local.join("back"), world.site.shared("there"));
    write_random(&source, SIZE, seed).unwrap();
    let (began, mut kills, mut of_front_end, mut copies) = (Instant::now(), 0, 0, 0);
    let mut times = Vec::new();
    while kills < wanted {
        let options =
            [&["-p", "2"][..], &["-p", "1"], &["--stripes", "auto", "-p", "2"], &["--mode", "stream"]]
                [random.below(4) as usize];
        let is_upload = copies % 2 == 0;
        let url = world.site.server.url_at(world.proxy.address(), "there");
        let (from, to) = match is_upload {
            true => (source.display().to_string(), url),
            false => (url, back.display().to_string()),
        };
        let base = world.proxy.moved();
        let started = Instant::now();
        let mut client = Program::start(&mut command(options, &from, &to)).unwrap();
        let mut moment = 0;
        let mut done = Vec::new();
        for _ in 0..1 + random.below(2) {
            moment += random.below(SIZE - moment);
            world.proxy.wait_for(base + moment, LIMIT).unwrap();
            let victim = random.below(NODES as u64 + 1) as usize;
            world.kill(victim);
            done.push((moment, victim));
            of_front_end += u64::from(victim == NODES);
            kills += 1;
        }
        let case = format!("seed {seed}, copy {copies} {options:?}, upload: {is_upload}, kills {done:?}");
        let status = client.wait(LIMIT).unwrap();
        assert!(status.success(), "{case}: {}\n{}", client.log(), world.site.server.log());
        times.push(started.elapsed().as_secs_f64());
        let result = if is_upload { &there } else { &back };
        ensure_same(&source, result).unwrap_or_else(|error| panic!("{case}: {error}"));
        if !is_upload {
            fs::remove_file(&back).unwrap();
            fs::remove_file(&there).unwrap();
        }
        let left = leftovers(&[&local, world.site.server.root()]);
        assert!(left.is_empty(), "{case}: {left:?}");
        copies += 1;
    }
    world.wait_until_idle();
    times.sort_by(f64::total_cmp);
    loudly(&format!(
        "{kills} kills ({of_front_end} of the front end) in {copies} copies of {SIZE} bytes, {:.0} s (a copy: median \
         {:.1} s, worst {:.1} s): no copy failed, no byte was wrong, nothing was left over",
        began.elapsed().as_secs_f64(),
        times[times.len() / 2],
        times[times.len() - 1],
    ));
}
