//! Several front ends with the same nodes and the same shared directory.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_tests::control::Control;
use ropewalk_tests::files::ensure_same;
use ropewalk_tests::nodes::{LIMIT, Site, cp};
use ropewalk_tests::peers;
use ropewalk_tests::process::{self, Program, run};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::server::Server;
use serde_json::Value;

const SIZE: u64 = 30 << 20;
const RATE: u64 = 15 << 20;

/// Two front ends with two nodes.
struct Pair {
    first: Site,
    second: Server,
    /// The admin sockets.
    sockets: [PathBuf; 2],
    nodes: Vec<Program>,
    _sockets: ropewalk_tests::scratch::Scratch,
}

impl Pair {
    fn new() -> Self {
        let scratch = ropewalk_tests::scratch::Scratch::new().unwrap();
        let sockets = ["first", "second"].map(|name| scratch.join(name));
        let first = Site::with(&["--admin-socket", sockets[0].to_str().unwrap()]);
        let (second, join) =
            first.another_front_end("127.0.0.1:0", &["--admin-socket", sockets[1].to_str().unwrap()]);
        let nodes = ["a", "b"].map(|name| first.node_of(name, &[first.join(), &join])).into();
        Self { first, second, sockets, nodes, _sockets: scratch }
    }

    /// Waits until the node is such at the front end of this number.
    fn wait_for(&self, front_end: usize, node: &str, is_such: impl Fn(&Value) -> bool) {
        let end = Instant::now() + LIMIT;
        loop {
            let nodes = admin(&self.sockets[front_end], &["nodes", "--json"]);
            let nodes: Vec<Value> = nodes.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            if nodes.iter().any(|found| found["name"] == node && is_such(found)) {
                return;
            }
            assert!(Instant::now() < end, "{nodes:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn admin(socket: &Path, words: &[&str]) -> String {
    let mut command = peers::ropewalk_command().unwrap();
    command.arg("admin").arg("--socket").arg(socket).args(words);
    run(&mut command, LIMIT).unwrap().succeeded().unwrap().text()
}

/// The nodes to which data channels have gone, in order.
fn chosen(server: &Server) -> Vec<String> {
    let log = server.log();
    let lines = log.lines().filter(|line| line.contains("data channel on a node"));
    lines.map(|line| line.split("node=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()).collect()
}

fn wait_for_channels(server: &Server, count: usize) -> Vec<String> {
    let end = Instant::now() + LIMIT;
    while chosen(server).len() < count {
        assert!(Instant::now() < end, "{}", server.log());
        thread::sleep(Duration::from_millis(5));
    }
    chosen(server)
}

#[test]
fn channel_goes_to_node_with_most_free_capacity_of_all_front_ends() {
    let pair = Pair::new();
    let mut first = Control::log_in(pair.first.server.address()).unwrap();
    first.passive().unwrap();
    let busy = wait_for_channels(&pair.first.server, 1).remove(0);
    pair.wait_for(1, &busy, |node| node["elsewhere"] == 1 && node["channels"] == 0);
    pair.wait_for(0, &busy, |node| node["elsewhere"] == 0 && node["channels"] == 1);
    let mut second = Control::log_in(pair.second.address()).unwrap();
    second.passive().unwrap();
    let other = wait_for_channels(&pair.second, 1).remove(0);
    assert_ne!(busy, other, "the second front end does not know what the first has given");
    // The nodes have one channel each, and the one that is free first gets the next.
    drop(first);
    pair.wait_for(1, &busy, |node| node["elsewhere"] == 0);
    let mut third = Control::log_in(pair.second.address()).unwrap();
    third.passive().unwrap();
    assert_eq!(wait_for_channels(&pair.second, 2)[1], busy);
}

#[test]
fn front_end_that_dies_does_not_disturb_the_other() {
    let mut pair = Pair::new();
    let proxy = Proxy::start(pair.first.server.address()).unwrap();
    proxy.set_rate(Some(RATE));
    let source = pair.first.source(SIZE);
    // The client reaches the front ends at one address, as with a name that has theirs.
    let moving = pair.first.server.url_at(proxy.address(), "moved");
    let undisturbed = pair.second.url("undisturbed");
    let retrying = ["-p", "2", "--retries", "20", "--retry-pause", "100ms"];
    let once = ["-p", "2", "--retries", "0", "--bandwidth", "10MiB/s"];
    thread::scope(|scope| {
        let copy = scope.spawn(|| cp(&retrying, &source, &moving));
        let other = scope.spawn(|| cp(&once, &source, &undisturbed));
        wait_for_channels(&pair.second, 1);
        proxy.wait_for(SIZE / 3, LIMIT).unwrap();
        proxy.set_target(pair.second.address());
        pair.first.server.kill();
        copy.join().unwrap().succeeded().unwrap();
        other.join().unwrap().succeeded().unwrap();
    });
    for name in ["moved", "undisturbed"] {
        ensure_same(&source, &pair.first.shared(name)).unwrap();
    }
    assert_eq!(std::fs::read_dir(pair.first.server.root()).unwrap().count(), 2, "part files are left");
    assert!(!pair.second.log().contains("is lost"), "{}", pair.second.log());
    for node in &pair.nodes {
        assert_eq!(node.log().matches("the front end is lost").count(), 1, "{}", node.log());
    }
}

#[test]
fn drain_holds_at_one_front_end() {
    let pair = Pair::new();
    admin(&pair.sockets[0], &["drain", "--node", "a"]);
    pair.wait_for(0, "a", |node| node["draining"] == true);
    pair.wait_for(1, "a", |node| node["draining"] == false);
    let mut sessions = Vec::new();
    for address in [pair.first.server.address(), pair.second.address()] {
        for _ in 0..2 {
            let mut control = Control::log_in(address).unwrap();
            control.passive().unwrap();
            sessions.push(control);
        }
    }
    assert_eq!(wait_for_channels(&pair.first.server, 2), ["b", "b"]);
    assert!(wait_for_channels(&pair.second, 2).contains(&"a".to_owned()));
}

#[test]
fn front_end_that_is_missing_at_the_start_is_joined_later() {
    let site = Site::new();
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let node = site.node_of("a", &[&address, site.join()]);
    node.wait_for_log(LIMIT, |log| log.contains("a front end is missing")).unwrap();
    let (_late, join) = site.another_front_end(&address, &[]);
    assert_eq!(join, address);
    node.wait_for_log(LIMIT, |log| log.contains(&format!("front_end=\"{address}\""))).unwrap();
    // The same front end twice is a mistake.
    let mut twice = site.node_command("b", site.server.root());
    twice.args(["--join", site.join()]);
    let refused = process::run(&mut twice, LIMIT).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(refused.errors().contains("is named twice"), "{}", refused.errors());
}
