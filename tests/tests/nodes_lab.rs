//! The lab's scenarios of data nodes, in a short form: thin links and small files. Requires root.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use ropewalk_tests::peers;
use ropewalk_tests::process;
use ropewalk_tests::scratch::Scratch;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(180);

/// Serialises the tests, because each emulated path needs the whole machine.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// The result of a scenario, with links of 40 Mbit/s to its nodes and other changed settings;
/// `None` if the lab cannot run here. The commands of the scenario compare what has arrived.
fn run(scenario: &str, nodes: usize, settings: &[&str]) -> Option<Value> {
    if !(rustix::process::geteuid().is_root() && fs::exists("/dev/net/tun").unwrap_or(false)) {
        peers::skip("the lab needs root and /dev/net/tun");
        return None;
    }
    let scratch = Scratch::new().unwrap();
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["lab", "run", scenario, "--json", "--quiet", "--output"]).arg(scratch.join("results"));
    for link in 2..2 + nodes {
        command.arg("--set").arg(format!("links[{link}].path.both.rate=40Mbit/s"));
    }
    for setting in settings {
        command.args(["--set", setting]);
    }
    let outcome = process::run(&mut command, LIMIT).unwrap().succeeded().unwrap();
    let result: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    for command in result["commands"].as_array().unwrap().iter().filter(|each| each["name"] != "node2") {
        assert_eq!(command["end"]["exit"], 0, "{command}");
    }
    Some(result)
}

/// Bytes that left each node, towards the client.
fn sent(result: &Value) -> Vec<u64> {
    let links = result["links"].as_array().unwrap()[2..].iter();
    links.map(|link| link["backward"]["bytes"].as_u64().unwrap()).collect()
}

/// Bytes that arrived at each node.
fn received(result: &Value) -> Vec<u64> {
    let links = result["links"].as_array().unwrap()[2..].iter();
    links.map(|link| link["forward"]["bytes"].as_u64().unwrap()).collect()
}

/// Each node moves at least three quarters of its share of the one file; the tree has few files, so
/// that its sessions need not be at all nodes.
fn assert_all_move(moved: &[u64]) {
    let least = FILE / moved.len() as u64 * 3 / 4;
    assert!(moved.iter().all(|bytes| *bytes > least), "{moved:?}");
}

const FILE: u64 = 16 << 20;
const SMALL: [&str; 3] = ["files[1].size=16MiB", "files[2].size=1MiB", "files[2].count=16"];

#[test]
fn two_nodes_share_a_file_and_a_tree_in_both_directions() {
    let _alone = alone();
    let Some(result) = run("striped-2", 2, &SMALL) else { return };
    assert_all_move(&sent(&result));
    assert_all_move(&received(&result));
}

#[test]
fn four_nodes_share_a_file_and_a_tree_in_both_directions() {
    let _alone = alone();
    let Some(result) = run("striped-4", 4, &SMALL) else { return };
    assert_all_move(&sent(&result));
    assert_all_move(&received(&result));
}

/// A node of 40 Mbit/s carries some 5 MB in the second before the other one joins.
fn assert_joins(scenario: &str, small: &[&str]) {
    let _alone = alone();
    let Some(result) = run(scenario, 2, &[small, &["commands[0].at=1s"]].concat()) else { return };
    let sent = sent(&result);
    assert!(sent[1] > 3 << 20, "{sent:?}");
}

#[test]
fn node_that_joins_moves_files_of_the_copy_that_runs() {
    assert_joins("node-joins", &["files[1].size=1MiB", "files[1].count=24"]);
}

#[test]
fn node_that_joins_moves_a_part_of_the_file_that_moves() {
    assert_joins("node-joins-file", &["files[1].size=24MiB"]);
}

#[test]
fn node_that_dies_costs_a_retry_and_no_byte() {
    let _alone = alone();
    let small = ["files[1].size=40MiB", "commands[1].at=4s"];
    let Some(result) = run("node-dies", 2, &small) else { return };
    let sent = sent(&result);
    assert!(sent[1] > 1 << 20 && sent[0] > 20 << 20, "{sent:?}");
}
