//! A front end with data nodes: real programs on loopback, with Ropewalk's client and others.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::thread;
use std::time::Duration;

use ropewalk_tests::client::{Client, Copy, Summary};
use ropewalk_tests::control::Control;
use ropewalk_tests::files::ensure_same;
use ropewalk_tests::nodes::{LIMIT, Site, cp, write_token};
use ropewalk_tests::process;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};
use ropewalk_tests::{peers, tree};
use rustix::process::Signal;

/// After this time a transfer of limited rate is in the middle.
const MOVING: Duration = Duration::from_millis(700);

#[test]
fn transfers_and_listings_go_to_nodes() {
    let site = Site::with(&["--drivers", "tcp,udt,quic"]);
    let _nodes = [site.node("a"), site.node("b")];
    let source = site.source(20_000_003);
    let back = site.scratch.join("back");
    let mut before = 0;
    for options in [
        &["-p", "4"][..],
        &["-p", "1"],
        &["--mode", "stream"],
        &["--stack", "udt", "-p", "2"],
        &["--stack", "quic", "-p", "2"],
    ] {
        cp(options, &source, site.server.url("there")).succeeded().unwrap();
        ensure_same(&source, &site.shared("there")).unwrap();
        cp(options, site.server.url("there"), &back).succeeded().unwrap();
        ensure_same(&source, &back).unwrap();
        fs::remove_file(&back).unwrap();
        fs::remove_file(site.shared("there")).unwrap();
        let channels = site.channels();
        assert!(channels >= before + 2, "{options:?}: {}", site.server.log());
        before = channels;
    }
    // Many small files, and listings.
    let from = site.scratch.directory("tree").unwrap();
    for at in 0..200 {
        fs::write(from.join(format!("f{at}")), "x".repeat(at * 30)).unwrap();
    }
    for options in [&["-r"][..], &["-r", "--mode", "stream"]] {
        cp(options, format!("{}/", from.display()), site.server.url("tree/")).succeeded().unwrap();
        tree::ensure_same(&from, &site.shared("tree")).unwrap();
        let again = site.scratch.join("again");
        cp(options, site.server.url("tree/"), format!("{}/", again.display())).succeeded().unwrap();
        tree::ensure_same(&from, &again).unwrap();
        fs::remove_dir_all(&again).unwrap();
        fs::remove_dir_all(site.shared("tree")).unwrap();
    }
    assert!(site.channels() > before);
}

#[test]
fn plain_commands_work_over_nodes() {
    let site = Site::new();
    let _node = site.node("a");
    fs::write(site.shared("text"), "one\ntwo\n").unwrap();
    let mut control = Control::log_in(site.server.address()).unwrap();
    control.expect("TYPE A", 200).unwrap();
    assert_eq!(control.retrieve("text").unwrap().0, b"one\r\ntwo\r\n");
    control.expect("TYPE I", 200).unwrap();
    control.expect("REST 4", 350).unwrap();
    assert_eq!(control.retrieve("text").unwrap().0, b"two\n");
    // PORT.
    let listener = control.listen_for_data().unwrap();
    control.send("ERET P 1 2 text").unwrap();
    let mut got = String::new();
    std::io::Read::read_to_string(&mut listener.accept().unwrap().0, &mut got).unwrap();
    assert_eq!(got, "ne");
    assert_eq!(control.final_reply().unwrap().code, 226);
    assert_eq!(control.store("new", b"content").unwrap().code, 226);
    assert_eq!(fs::read(site.shared("new")).unwrap(), b"content");
    // Errors have the same codes as without nodes, and the session continues.
    let (_, refused) = control.retrieve("missing").unwrap();
    assert_eq!(refused.code, 500, "{refused:?}");
    assert!(site.channels() >= 4);
}

#[test]
fn node_that_does_not_belong_here_is_refused_with_reason() {
    let mut site = Site::new();
    let _first = site.node("a");
    let refused = process::run(&mut site.node_command("a", site.server.root()), LIMIT).unwrap();
    let refused = refused.failed().unwrap().errors();
    assert!(refused.contains("a node with the name a has joined from 127.0.0.1"), "{refused}");
    write_token(&site.scratch.join("token"), 'b');
    let refused = process::run(&mut site.node_command("b", site.server.root()), LIMIT).unwrap();
    let refused = refused.failed().unwrap().errors();
    assert!(refused.contains("does not have the same join token"), "{refused}");
    site.wait_for_log("a node was not let in");
}

#[test]
fn node_with_other_root_is_named_in_the_error() {
    let site = Site::new();
    let elsewhere = site.scratch.directory("elsewhere").unwrap();
    let _node = site.node_at("a", &elsewhere);
    let source = site.source(1000);
    fs::copy(&source, site.shared("f")).unwrap();
    fs::copy(&source, elsewhere.join("f")).unwrap();
    let failed = cp(&["--retries", "0"], site.server.url("f"), site.scratch.join("back")).failed().unwrap();
    assert!(failed.errors().contains("its --root is not the directory"), "{}", failed.errors());
    assert!(!site.scratch.join("back").exists());
}

#[test]
fn draining_node_finishes_its_transfer() {
    let mut site = Site::new();
    let mut node = site.node("a");
    let source = site.source(30 << 20);
    let url = site.server.url("there");
    thread::scope(|scope| {
        let copy = scope.spawn(|| cp(&["--bandwidth", "15MiB/s", "-p", "2"], &source, &url));
        site.wait_for_log("data channel on a node");
        thread::sleep(MOVING);
        node.signal(Signal::TERM);
        copy.join().unwrap().succeeded().unwrap();
    });
    ensure_same(&source, &site.shared("there")).unwrap();
    assert!(node.wait(LIMIT).unwrap().success(), "{}", node.log());
    site.wait_for_log("a node has left");
    assert!(!site.server.log().contains("is lost"), "{}", site.server.log());
    // Without nodes the front end moves data itself.
    cp(&[], &source, site.server.url("again")).succeeded().unwrap();
    ensure_same(&source, &site.shared("again")).unwrap();
}

/// A session that does nothing does not keep a node from leaving, and nothing is wrong then.
#[test]
fn node_that_drains_while_its_session_is_idle_leaves_in_order() {
    let mut site = Site::new();
    let mut node = site.node("a");
    fs::write(site.shared("f"), b"content").unwrap();
    let mut control = Control::log_in(site.server.address()).unwrap();
    control.expect("PASV", 227).unwrap();
    site.wait_for_log("data channel on a node");
    node.signal(Signal::TERM);
    assert!(node.wait(LIMIT).unwrap().success(), "{}", node.log());
    let refused = control.expect("RETR f", 425).unwrap();
    assert!(format!("{refused:?}").contains("the data node a is gone: send PASV"), "{refused:?}");
    site.wait_for_log("a data node has left in order");
    site.wait_for_log("a node has left");
    assert_eq!(control.retrieve("f").unwrap().0, b"content");
    let (log, of_node) = (site.server.log(), node.log());
    let warns = |line: &&str| line.contains("WARN") && !line.contains("transfer failed");
    assert_eq!(log.lines().filter(warns).count(), 0, "{log}");
    assert!(!log.contains("is lost") && !of_node.contains("WARN"), "{log}{of_node}");
}

#[test]
fn killed_node_costs_its_unfinished_ranges_only() {
    let mut site = Site::new();
    let mut first = site.node("a");
    let source = site.source(40 << 20);
    let url = site.server.url("there");
    let options = ["--bandwidth", "20MiB/s", "-p", "2", "--json"];
    let outcome = thread::scope(|scope| {
        let copy = scope.spawn(|| cp(&options, &source, &url));
        site.wait_for_log("data channel on a node");
        thread::sleep(MOVING);
        let _second = site.node("b");
        first.kill();
        copy.join().unwrap().succeeded().unwrap()
    });
    ensure_same(&source, &site.shared("there")).unwrap();
    site.wait_for_log("a data node is lost");
    site.wait_for_log("node=\"b\" address=127.0.0.1");
    let sent = Summary::of(&outcome).unwrap().number("bytes").unwrap();
    assert!(sent < 60 << 20, "{sent} bytes for 40 MiB: {}", outcome.text());
}

#[test]
fn silent_node_loses_its_lease_and_joins_again() {
    let mut site = Site::new();
    let node = site.node("a");
    node.signal(Signal::STOP);
    site.wait_for_log("its lease has run out");
    let source = site.source(1 << 20);
    cp(&[], &source, site.server.url("there")).succeeded().unwrap();
    assert_eq!(site.channels(), 0, "{}", site.server.log());
    node.signal(Signal::CONT);
    node.wait_for_log(LIMIT, |log| log.contains("joined again")).unwrap();
    cp(&[], &source, site.server.url("again")).succeeded().unwrap();
    assert!(site.channels() > 0);
    ensure_same(&source, &site.shared("again")).unwrap();
}

#[test]
fn gct_and_nodes_exchange_files() {
    if !peers::available(&["globus-gridftp-server", "globus-url-copy"]) {
        return;
    }
    let site = Site::new();
    let _nodes = [site.node("a"), site.node("b")];
    let source = site.source(10_000_001);
    let there = Scratch::new().unwrap();
    fs::copy(&source, there.join("source")).unwrap();
    let gct = Setup::new(Kind::Gct, there.path()).start().unwrap();
    for client in [Client::Ropewalk, Client::Guc] {
        let put = Copy::new(client.local(&source, false), site.server.url("put"));
        client.run(&put).unwrap().succeeded().unwrap();
        ensure_same(&source, &site.shared("put")).unwrap();
        let back = site.scratch.join("back");
        let get = Copy::new(site.server.url("put"), client.local(&back, false));
        client.run(&get).unwrap().succeeded().unwrap();
        ensure_same(&source, &back).unwrap();
        client.run(&Copy::new(gct.url("source"), site.server.url("in"))).unwrap().succeeded().unwrap();
        ensure_same(&source, &site.shared("in")).unwrap();
        client.run(&Copy::new(site.server.url("put"), gct.url("out"))).unwrap().succeeded().unwrap();
        ensure_same(&source, &there.join("out")).unwrap();
        for done in [site.shared("put"), site.shared("in"), there.join("out"), back] {
            fs::remove_file(done).unwrap();
        }
    }
    assert!(site.channels() >= 8, "{}", site.server.log());
}
