//! `cp --via auto` while data moves: the rest of a copy takes another path when the relay in use
//! gets slow.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use ropewalk_tests::process::{Program, run};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::{files, peers};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(120);
const SIZE: u64 = (80 << 20) + 12_345;
/// Bytes per second over the first relay, and its rate in stored results: bits per second.
const RATE: u64 = 10_000_000;
const STORED: f64 = 8e7;
/// The rate after a third of the data. The rest would take ten minutes.
const SLOW: u64 = 100_000;

struct Graph {
    scratch: Scratch,
    source: Server,
    destination: Server,
    _relays: [Server; 2],
    /// In front of the relays.
    fronts: [Proxy; 2],
}

impl Graph {
    fn new() -> Self {
        let scratch = Scratch::in_memory(512 << 20).unwrap();
        let server = |name: &str, relay: bool| {
            let root = scratch.directory(name).unwrap();
            let setup = Setup::new(Kind::Ropewalk, &root).argument("--anonymous-third-party");
            let setup = if relay { setup.argument("--relay-to").argument("127.0.0.1") } else { setup };
            setup.start().unwrap()
        };
        let (source, destination) = (server("source", false), server("destination", false));
        let relays = [server("b", true), server("c", true)];
        let fronts = relays.each_ref().map(|relay| Proxy::start(relay.address()).unwrap());
        fronts[0].set_rate(Some(RATE));
        Self { scratch, source, destination, _relays: relays, fronts }
    }

    fn relay(&self, number: usize) -> String {
        format!("ftp://{}", self.fronts[number].address())
    }

    /// Stores results of past transfers: by the first relay as fast as it is, by the second one a
    /// bit slower, and slow without a relay.
    fn remember(&self, from: &str, to: &str) {
        let (b, c) = (self.relay(0), self.relay(1));
        let rates = [(from, to, 1e6), (from, &b, STORED), (&b, to, STORED), (from, &c, 6e7), (&c, to, 6e7)];
        let entry = |(from, to, rate): (&str, &str, f64)| {
            let known =
                json!({"streams": 4, "bits_per_second": rate, "min_rtt_seconds": 0.1, "at": u32::MAX});
            (format!("{from} -> {to}"), known)
        };
        let paths: serde_json::Map<String, Value> = rates.into_iter().map(entry).collect();
        let directory = self.scratch.directory("state/ropewalk").unwrap();
        fs::write(directory.join("paths.json"), json!({"version": 1, "paths": paths}).to_string()).unwrap();
    }

    /// Copies while the first relay gets slow; returns the events of the chosen paths.
    fn copy(&self, ends: [&str; 2], arguments: &[&str]) -> Vec<Value> {
        self.remember(ends[0], ends[1]);
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["cp", "--json", "--via=auto"]).arg(format!(
            "--relays={},{}",
            self.relay(0),
            self.relay(1)
        ));
        command.args(arguments).env("XDG_STATE_HOME", self.scratch.join("state"));
        let mut copying = Program::start(&mut command).unwrap();
        if let Err(error) = self.fronts[0].wait_for(SIZE / 3, LIMIT) {
            panic!("{error}: {}", copying.log());
        }
        self.fronts[0].set_rate(Some(SLOW));
        let status = copying.wait(LIMIT);
        let log = copying.finish();
        assert!(status.unwrap().success(), "{log}");
        let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let events: Vec<Value> = events.collect();
        let finished: Vec<&Value> = events.iter().filter(|event| event["event"] == "finished").collect();
        let [finished] = &*finished else { panic!("{log}") };
        assert_eq!((&finished["files_failed"], &finished["retries"]), (&json!(0), &json!(0)), "{log}");
        events.into_iter().filter(|event| event["event"] == "route").collect()
    }

    /// The copy was moved once, from the first relay to the second one.
    fn is_moved_once(&self, ends: [&str; 2], routes: &[Value]) {
        let path = |relay: &str| json!([ends[0], relay, ends[1]]);
        let [first, second] = routes else { panic!("{routes:#?}") };
        assert_eq!((&first["path"], &first["instead_of"]), (&path(&self.relay(0)), &Value::Null), "{first}");
        assert_eq!(second["path"], path(&self.relay(1)), "{second}");
        assert_eq!(second["instead_of"], first["path"], "{second}");
        assert!(second["why"].as_str().unwrap().contains("is expected to give"), "{second}");
    }

    fn base(server: &Server) -> String {
        format!("ftp://{}", server.address())
    }

    fn large(&self, name: &str) -> PathBuf {
        let path = self.scratch.join(name);
        files::write_random(&path, SIZE, 3).unwrap();
        path
    }
}

fn text(path: &std::path::Path) -> String {
    path.display().to_string()
}

#[test]
fn download_leaves_a_relay_that_gets_slow() {
    let graph = Graph::new();
    let (original, got) = (graph.large("source/f"), graph.scratch.join("got"));
    let source = Graph::base(&graph.source);
    let routes = graph.copy([&source, "here"], &[&graph.source.url("f"), &text(&got)]);
    graph.is_moved_once([&source, "here"], &routes);
    files::ensure_same(&original, &got).unwrap();
    // The data that was there was not fetched again.
    assert!(graph.fronts[1].moved() < SIZE * 3 / 4, "{}", graph.fronts[1].moved());
}

#[test]
fn upload_leaves_a_relay_that_gets_slow() {
    let graph = Graph::new();
    let original = graph.large("f");
    let destination = Graph::base(&graph.destination);
    let routes = graph.copy(["here", &destination], &[&text(&original), &graph.destination.url("f")]);
    graph.is_moved_once(["here", &destination], &routes);
    files::ensure_same(&original, &graph.scratch.join("destination/f")).unwrap();
    assert!(graph.fronts[1].moved() < SIZE * 3 / 4, "{}", graph.fronts[1].moved());
    assert_eq!(fs::read_dir(graph.scratch.join("destination")).unwrap().count(), 1);
}

#[test]
fn tree_between_two_servers_leaves_a_relay_that_gets_slow() {
    const FILES: u64 = 20;
    let graph = Graph::new();
    let tree = graph.scratch.directory("source/tree").unwrap();
    for number in 0..FILES {
        files::write_random(&tree.join(number.to_string()), SIZE / FILES, number).unwrap();
    }
    let ends = [Graph::base(&graph.source), Graph::base(&graph.destination)];
    let ends = ends.each_ref().map(String::as_str);
    let (from, to) = (graph.source.url("tree/"), graph.destination.url("tree/"));
    let routes = graph.copy(ends, &["-r", &from, &to]);
    graph.is_moved_once(ends, &routes);
    for number in 0..FILES {
        let name = number.to_string();
        files::ensure_same(&tree.join(&name), &graph.scratch.join("destination/tree").join(&name)).unwrap();
    }
    // Files that were done were not sent again.
    assert!(graph.fronts[1].moved() < SIZE * 3 / 4, "{}", graph.fronts[1].moved());
    assert_eq!(fs::read_dir(graph.scratch.join("destination/tree")).unwrap().count() as u64, FILES);
}

#[test]
fn copy_to_standard_output_stays_on_its_path() {
    let graph = Graph::new();
    graph.remember(&Graph::base(&graph.source), "here");
    fs::write(graph.scratch.join("source/f"), "short").unwrap();
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["cp", "--via=auto"]).arg(format!("--relays={}", graph.relay(0)));
    command.args([&graph.source.url("f"), "-"]).env("XDG_STATE_HOME", graph.scratch.join("state"));
    let shown = run(&mut command, LIMIT).unwrap().succeeded().unwrap();
    assert_eq!(shown.stdout, b"short");
}
