//! A node and its front end cannot reach each other, while the client reaches both.

#![allow(clippy::unwrap_used)]

use std::thread;

use ropewalk_tests::files::ensure_same;
use ropewalk_tests::nodes::{LIMIT, Site, cp};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::tcp_relay::TcpRelay;

const SIZE: u64 = 30 << 20;
const RATE: u64 = 15 << 20;
const MIDDLE: u64 = SIZE / 3;

/// Nothing passes any more, and no connection closes. Both sides find out by themselves.
#[test]
fn node_that_is_split_from_its_front_end_ends_its_transfers() {
    let mut site = Site::new();
    let relay = TcpRelay::start(site.join().parse().unwrap()).unwrap();
    let proxy = Proxy::start(site.server.address()).unwrap();
    proxy.set_rate(Some(RATE));
    let node = site.node_of("a", &[&relay.address().to_string()]);
    let source = site.source(SIZE);
    let url = site.server.url_at(proxy.address(), "there");
    thread::scope(|scope| {
        let copy = scope.spawn(|| cp(&["-p", "2"], &source, &url));
        proxy.wait_for(MIDDLE, LIMIT).unwrap();
        relay.freeze(true);
        // The client sees no difference until now: its data still moves.
        proxy.stall(true);
        site.wait_for_log("a data node is lost");
        node.wait_for_log(LIMIT, |log| log.contains("it has not answered for 6 s")).unwrap();
        node.wait_for_log(LIMIT, |log| log.contains("the lease at the front end has ended")).unwrap();
        proxy.stall(false);
        let _other = site.node("b");
        copy.join().unwrap().succeeded().unwrap();
    });
    ensure_same(&source, &site.shared("there")).unwrap();
    assert_eq!(std::fs::read_dir(site.server.root()).unwrap().count(), 1, "part files are left");
    // The network is whole again.
    relay.freeze(false);
    node.wait_for_log(LIMIT, |log| log.contains("joined again")).unwrap();
    let before = site.channels();
    cp(&[], site.server.url("there"), site.scratch.join("back")).succeeded().unwrap();
    ensure_same(&source, &site.scratch.join("back")).unwrap();
    assert!(site.channels() > before);
}
