//! Striped transfers: front ends with several data nodes, with GCT's front ends, nodes and client
//! as peers. Real programs on loopback.

#![allow(clippy::unwrap_used)]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use ropewalk_tests::client::{Client, Copy, Mode, Summary};
use ropewalk_tests::control::Control;
use ropewalk_tests::files::{ensure_same, write_random};
use ropewalk_tests::nodes::{GctSite, Site, cp, layout};
use ropewalk_tests::process::Program;
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::{peers, tree};

const SIZE: u64 = 10_000_001;

fn site(count: usize) -> (Site, Vec<Program>) {
    let site = Site::new();
    let nodes = (0..count).map(|at| site.node(&format!("n{at}"))).collect();
    (site, nodes)
}

fn source(directory: &Path) -> PathBuf {
    let path = directory.join("source");
    write_random(&path, SIZE, 3).unwrap();
    path
}

/// The stripes of which the server has reported bytes, and their number, from the markers in
/// `text`.
fn stripes(text: &str) -> Vec<(u32, u32)> {
    let field = |name: &str| -> Vec<u32> {
        text.lines().filter_map(|line| line.trim().strip_prefix(name)?.trim().parse().ok()).collect()
    };
    let mut found: Vec<_> = field("Stripe Index:").into_iter().zip(field("Total Stripe Count:")).collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[test]
fn each_node_sends_its_share_and_reports_its_stripe() {
    let (site, _nodes) = site(2);
    let source = source(site.server.root());
    let mut control = Control::log_in(site.server.address()).unwrap();
    control.expect("MODE E", 200).unwrap();
    let passive = control.expect("SPAS", 229).unwrap();
    let addresses: Vec<String> =
        passive.text.lines().filter_map(|line| line.strip_prefix(' ')).map(str::to_owned).collect();
    assert_eq!(addresses.len(), 2, "{passive:?}");
    // The second session sends to the nodes of the first.
    let mut sender = Control::log_in(site.server.address()).unwrap();
    sender.expect("MODE E", 200).unwrap();
    sender.expect("OPTS RETR StripeLayout=Partitioned;Parallelism=2,2,2;", 200).unwrap();
    sender.expect(format!("SPOR {}", addresses.join(" ")), 200).unwrap();
    control.send("STOR copy").unwrap();
    sender.send("RETR source").unwrap();
    let mut markers = String::new();
    let last = loop {
        let reply = control.reply().unwrap();
        markers.push_str(&reply.text);
        markers.push('\n');
        if reply.code >= 200 {
            break reply;
        }
    };
    assert_eq!((last.code, sender.final_reply().unwrap().code), (226, 226), "{markers}");
    ensure_same(&source, &site.shared("copy")).unwrap();
    assert_eq!(stripes(&markers), [(0, 2), (1, 2)], "{markers}");
    let shares: Vec<u64> = markers
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Stripe Bytes Transferred:")?.trim().parse().ok())
        .collect();
    assert_eq!(shares[shares.len() - 2..].iter().sum::<u64>(), SIZE);
    assert_eq!(shares.iter().max(), Some(&SIZE.div_ceil(2)), "{markers}");
}

#[test]
fn foreign_addresses_of_stripes_are_refused_like_others() {
    let (site, _nodes) = site(2);
    let mut control = Control::log_in(site.server.address()).unwrap();
    control.expect("MODE E", 200).unwrap();
    let refused = control.command("SPOR 127,0,0,1,200,0 192,0,2,1,200,0").unwrap();
    assert_eq!(refused.code, 500, "{refused:?}");
    assert!(refused.text.contains("192.0.2.1"), "{refused:?}");
    control.expect("SPOR 127,0,0,1,200,0 127,0,0,1,0,22", 500).unwrap();
}

#[test]
fn client_uses_all_nodes_both_ways() {
    let (site, _nodes) = site(3);
    let source = source(site.scratch.path());
    let back = site.scratch.join("back");
    for options in [
        &["--stripes", "auto"][..],
        &["--stripes", "2", "-p", "4"],
        &["--stripes", "auto", "-p", "2", "--stripe-block-size", "partitioned"],
        &["--stripes", "8", "-p", "1", "--stripe-block-size", "64K"],
    ] {
        let before = site.channels();
        cp(options, &source, site.server.url("there")).succeeded().unwrap();
        ensure_same(&source, &site.shared("there")).unwrap();
        let up = site.channels() - before;
        assert!(up >= 3, "{options:?}: {up} channels");
        cp(options, site.server.url("there"), &back).succeeded().unwrap();
        ensure_same(&source, &back).unwrap();
        let down = site.channels() - before - up;
        assert!(down >= 2, "{options:?}: {down} channels");
        fs::remove_file(&back).unwrap();
        fs::remove_file(site.shared("there")).unwrap();
    }
    // Connections serve one file after the other.
    let from = site.scratch.directory("tree").unwrap();
    for at in 0..40 {
        fs::write(from.join(format!("f{at}")), "x".repeat(at * 40_000)).unwrap();
    }
    let options = ["-r", "--stripes", "auto", "-p", "2"];
    cp(&options, format!("{}/", from.display()), site.server.url("tree/")).succeeded().unwrap();
    tree::ensure_same(&from, &site.shared("tree")).unwrap();
    let again = site.scratch.join("again");
    cp(&options, site.server.url("tree/"), format!("{}/", again.display())).succeeded().unwrap();
    tree::ensure_same(&from, &again).unwrap();
    for wrong in [["--stripes", "0"], ["--stripe-block-size", "0"]] {
        cp(&wrong, &source, site.server.url("there")).failed().unwrap();
    }
}

/// A number that the user sets is of each node; a limit, and what the tuner chooses, of all.
#[test]
fn most_streams_hold_for_all_nodes_together() {
    let (site, _nodes) = site(3);
    let source = source(site.scratch.path());
    let (copied, back) = (site.shared("there"), site.scratch.join("back"));
    for (delay, options, most) in [
        (0, &["--max-streams", "3"][..], 3),
        (0, &["--max-streams", "2"], 3),
        (0, &["--max-streams", "3", "-p", "2"], 6),
        // The path is tuned.
        (5, &["--max-streams", "7"], 7),
    ] {
        let proxy = Proxy::start(site.server.address()).unwrap();
        proxy.delay_lines(Duration::from_millis(delay));
        let there = site.server.url_at(proxy.address(), "there");
        let local = site.server.url("copy");
        let options: Vec<&str> = ["--stripes", "auto"].iter().chain(options).copied().collect();
        let mut before = 0;
        let mut made = |from: &OsStr, to: &OsStr| {
            cp(&options, from, to).succeeded().unwrap();
            let now = proxy.data_connections();
            let made = now - std::mem::replace(&mut before, now);
            assert!((3..=most).contains(&made), "{options:?} {from:?} to {to:?}: {made} connections");
        };
        made(source.as_os_str(), there.as_ref());
        ensure_same(&source, &copied).unwrap();
        made(there.as_ref(), back.as_os_str());
        ensure_same(&source, &back).unwrap();
        // Between two servers.
        made(there.as_ref(), local.as_ref());
        ensure_same(&source, &site.shared("copy")).unwrap();
        for path in [&copied, &back, &site.shared("copy")] {
            fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn killed_node_ends_striped_transfer_and_the_rest_is_sent_by_others() {
    let (site, mut nodes) = site(3);
    let source = site.source(40 << 20);
    fs::copy(&source, site.shared("source")).unwrap();
    let (there, back) = (site.server.url("there"), site.scratch.join("back"));
    let options = ["--stripes", "auto", "--bandwidth", "20MiB/s", "-p", "2", "--json"];
    let from = site.server.url("source");
    let run = |upload: bool| match upload {
        true => cp(&options, &source, &there),
        false => cp(&options, &from, &back),
    };
    for upload in [true, false] {
        let node = nodes.last_mut().unwrap();
        let outcome = thread::scope(|scope| {
            let copy = scope.spawn(|| run(upload));
            let before = site.channels();
            while site.channels() < before + 2 {
                thread::sleep(Duration::from_millis(10));
            }
            thread::sleep(Duration::from_millis(700));
            node.kill();
            copy.join().unwrap().succeeded().unwrap()
        });
        let copied = if upload { site.shared("there") } else { back.clone() };
        ensure_same(&source, &copied).unwrap();
        let sent = Summary::of(&outcome).unwrap().number("bytes").unwrap();
        assert!(sent < 60 << 20, "{sent} bytes for 40 MiB: {}", outcome.text());
        nodes.pop();
    }
    assert!(site.server.log().contains("a data node is lost"), "{}", site.server.log());
}

#[test]
fn striped_sites_of_gct_and_ropewalk_exchange_files() {
    if !peers::available(&["globus-gridftp-server", "globus-url-copy"]) {
        return;
    }
    for (ours, theirs) in [(1, 2), (2, 1), (2, 2), (3, 2)] {
        let ((site, _nodes), gct) = (site(ours), GctSite::new(theirs));
        let source = source(site.server.root());
        fs::copy(&source, gct.scratch.join("source")).unwrap();
        let (ours_copy, theirs_copy) = (site.shared("copy"), gct.scratch.join("copy"));
        let local_copy = site.scratch.join("copy");
        for client in [Client::Ropewalk, Client::Guc, Client::Compatible] {
            for (block, streams) in [(None, 1), (Some(0), 4), (Some(65536), 2)] {
                let run = |from: OsString, to: OsString, copied: &Path| {
                    // GCT's client refuses -sbs 0 for a file that it sends itself, and hangs with
                    // blocks, also with GCT's server.
                    let sends = from.as_encoded_bytes().starts_with(b"file:");
                    let block = block.filter(|_| !sends || client != Client::Guc);
                    let mut copy = Copy::new(from, to).mode(Mode::Extended(streams));
                    copy.arguments = layout(client, block);
                    let what = format!("{ours}x{theirs} {client:?}: {copy:?}");
                    client.run(&copy).unwrap().succeeded().expect(&what);
                    ensure_same(&source, copied).expect(&what);
                    fs::remove_file(copied).unwrap();
                };
                run(site.server.url("source").into(), gct.server.url("copy").into(), &theirs_copy);
                run(gct.server.url("source").into(), site.server.url("copy").into(), &ours_copy);
                // Between the client's host and each site.
                let (here, to_here) = (client.local(&source, false), client.local(&local_copy, false));
                run(here.clone(), gct.server.url("copy").into(), &theirs_copy);
                run(here, site.server.url("copy").into(), &ours_copy);
                run(gct.server.url("source").into(), to_here.clone(), &local_copy);
                run(site.server.url("source").into(), to_here, &local_copy);
            }
        }
    }
}

/// One node of a third-party copy between striped sites is killed, and others move the rest.
#[test]
fn striped_copy_with_gct_continues_after_cut() {
    if !peers::available(&["globus-gridftp-server"]) {
        return;
    }
    let gct = GctSite::new(2);
    let site = Site::with(&["--drivers", "tcp,rate"]);
    let mut nodes = vec![site.node("a"), site.node("b"), site.node("c")];
    let source = source(site.server.root());
    fs::copy(&source, gct.scratch.join("source")).unwrap();
    let slow = "tcp,rate:rate=500K";
    let sends = ["--stripes", "auto", "-p", "2", "--json", "--source-stack", slow];
    let receives = ["--stripes", "auto", "-p", "2", "--json", "--destination-stack", slow];
    let (to_gct, from_gct) = (
        (site.server.url("source"), gct.server.url("copy")),
        (gct.server.url("source"), site.server.url("copy")),
    );
    for (options, (from, to), copied) in
        [(sends, to_gct, gct.scratch.join("copy")), (receives, from_gct, site.shared("copy"))]
    {
        let before = site.channels();
        let mut node = nodes.remove(0);
        let outcome = thread::scope(|scope| {
            let copy = scope.spawn(|| cp(&options, &from, &to));
            while site.channels() < before + 2 {
                thread::sleep(Duration::from_millis(10));
            }
            thread::sleep(Duration::from_millis(300));
            node.kill();
            copy.join().unwrap().succeeded().unwrap()
        });
        ensure_same(&source, &copied).unwrap();
        let retries = Summary::of(&outcome).unwrap().number("retries").unwrap();
        assert!(retries > 0, "{}", outcome.text());
    }
}
