//! Data nodes that join or are stopped while a copy runs: the copy goes on over those that are
//! there. Real programs on loopback, with a limit on the rate so that the copy runs long enough.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::thread;

use ropewalk_tests::client::Summary;
use ropewalk_tests::files::ensure_same;
use ropewalk_tests::nodes::{LIMIT, Site, cp};
use ropewalk_tests::process::{Outcome, Program};
use ropewalk_tests::server::{Kind, Setup};
use ropewalk_tests::tree;
use rustix::process::Signal;

const MIB: u64 = 1 << 20;

/// Runs a copy, and starts the node `b` when the first data channel is on the node `a`. Returns the
/// outcome and the node.
fn while_joining(mut site: Site, copy: impl FnOnce() -> Outcome + Send) -> (Outcome, Program, Site) {
    let before = site.channels();
    let (outcome, second) = thread::scope(|scope| {
        let running = scope.spawn(copy);
        let new = |log: &str| log.matches("data channel on a node").count() > before;
        site.server.program().wait_for_log(LIMIT, new).unwrap();
        let second = site.node_with("b", site.server.root(), &["--log", "debug"]);
        (running.join().unwrap(), second)
    });
    (outcome.succeeded().unwrap(), second, site)
}

/// The bytes of the transfers that the node has carried to their end, by its log.
fn carried(node: &Program) -> u64 {
    let log = node.log();
    let ended = log.lines().filter(|line| line.contains("a transfer has ended"));
    let bytes = ended.filter_map(|line| line.split_once("bytes=")?.1.split(' ').next()?.parse::<u64>().ok());
    bytes.sum()
}

fn number(outcome: &Outcome, name: &str) -> u64 {
    Summary::of(outcome).unwrap().number(name).unwrap()
}

/// A site whose node is `a`, and a tree of 40 files of 1 MiB in its directory and outside of it.
fn with_tree() -> (Site, Program, PathBuf) {
    let site = Site::new();
    let node = site.node("a");
    let from = site.scratch.join("tree");
    tree::make_many(&from, 40, MIB).unwrap();
    tree::make_many(&site.shared("tree"), 40, MIB).unwrap();
    (site, node, from)
}

/// Each session has a share of the limit.
const TREE: [&str; 6] = ["-r", "--files", "4", "--bandwidth", "10MiB/s", "--json"];

#[test]
fn tree_in_both_directions_goes_on_over_a_node_that_joins() {
    for upload in [true, false] {
        let (site, _first, from) = with_tree();
        let (url, here) =
            (site.server.url(if upload { "copy/" } else { "tree/" }), site.scratch.join("copy"));
        let run = || match upload {
            true => cp(&TREE, format!("{}/", from.display()), &url),
            false => cp(&TREE, &url, format!("{}/", here.display())),
        };
        let (outcome, second, site) = while_joining(site, run);
        let copied = if upload { site.shared("copy") } else { site.scratch.join("copy") };
        tree::ensure_same(&from, &copied).unwrap();
        assert!(carried(&second) >= 2 * MIB, "{upload}: {}", second.log());
        // Sessions change between two files.
        assert_eq!((number(&outcome, "retries"), number(&outcome, "bytes")), (0, 40 * MIB));
    }
}

#[test]
fn tree_in_both_directions_goes_on_without_a_node_that_is_stopped() {
    for upload in [true, false] {
        let (mut site, mut first, from) = with_tree();
        let before = site.channels();
        let here = site.scratch.join("copy");
        let url = site.server.url(if upload { "copy/" } else { "tree/" });
        let run = || match upload {
            true => cp(&TREE, format!("{}/", from.display()), &url),
            false => cp(&TREE, &url, format!("{}/", here.display())),
        };
        let (outcome, _second) = thread::scope(|scope| {
            let running = scope.spawn(run);
            let new = |log: &str| log.matches("data channel on a node").count() > before;
            site.server.program().wait_for_log(LIMIT, new).unwrap();
            let second = site.node("b");
            first.signal(Signal::TERM);
            assert!(first.wait(LIMIT).unwrap().success(), "{}", first.log());
            (running.join().unwrap().succeeded().unwrap(), second)
        });
        let copied = if upload { site.shared("copy") } else { site.scratch.join("copy") };
        tree::ensure_same(&from, &copied).unwrap();
        // Sessions may find out by errors of the files that they have asked for. They ask for no
        // others over this channel, so that no file uses its retries up.
        let text = outcome.text();
        let failures = text.lines().filter(|line| line.contains("\"file_failed\""));
        let mut of_files = BTreeMap::new();
        for line in failures {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            *of_files.entry(event["source"].as_str().unwrap().to_owned()).or_insert(0) += 1;
        }
        assert!(of_files.values().all(|failures| *failures <= 2), "{upload}: {text}");
    }
}

#[test]
fn file_in_both_directions_goes_on_over_a_node_that_joins() {
    for upload in [true, false] {
        let site = Site::new();
        let _first = site.node("a");
        let source = site.source(50 * MIB);
        fs::copy(&source, site.shared("source")).unwrap();
        let (url, here) =
            (site.server.url(if upload { "copy" } else { "source" }), site.scratch.join("copy"));
        let options = ["--stripes", "auto", "-p", "2", "--bandwidth", "10MiB/s", "--json"];
        let run = || match upload {
            true => cp(&options, &source, &url),
            false => cp(&options, &url, &here),
        };
        let (outcome, second, site) = while_joining(site, run);
        let copied = if upload { site.shared("copy") } else { site.scratch.join("copy") };
        ensure_same(&source, &copied).unwrap();
        assert!(carried(&second) >= 5 * MIB, "{upload}: {}", second.log());
        // The channel is replaced once, and the data in flight moves twice.
        let bytes = number(&outcome, "bytes");
        assert!(bytes < 60 * MIB, "{upload}: {bytes} bytes for 50 MiB: {}", outcome.text());
        assert_eq!(number(&outcome, "retries"), 0);
    }
}

#[test]
fn copy_between_servers_goes_on_over_a_node_that_joins() {
    let site = Site::new();
    let _first = site.node("a");
    let there = Setup::new(Kind::Ropewalk, &site.scratch.directory("there").unwrap());
    let there = there.argument("--drivers").argument("tcp,rate").start().unwrap();
    let source = site.source(60 * MIB);
    fs::copy(&source, there.root().join("source")).unwrap();
    let (from, to) = (there.url("source"), site.server.url("copy"));
    let slow = "tcp,rate:rate=2500K";
    let options = ["--stripes", "auto", "-p", "2", "--source-stack", slow, "--json"];
    let (outcome, second, site) = while_joining(site, || cp(&options, &from, &to));
    ensure_same(&source, &site.shared("copy")).unwrap();
    assert!(carried(&second) >= 5 * MIB, "{}", second.log());
    assert_eq!(number(&outcome, "retries"), 0);
}
