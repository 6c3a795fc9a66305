//! Striped transfers: front ends with several data nodes, with GCT's front ends, nodes and client
//! as peers. Real programs on loopback.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_tests::client::{Client, Copy, Mode};
use ropewalk_tests::control::Control;
use ropewalk_tests::files::{ensure_same, write_random};
use ropewalk_tests::nodes::{LIMIT, Site};
use ropewalk_tests::peers;
use ropewalk_tests::process::{self, Program};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};

const SIZE: u64 = 10_000_001;

/// A front end of GCT with data nodes.
struct GctSite {
    scratch: Scratch,
    server: Server,
    _nodes: Vec<Program>,
}

impl GctSite {
    fn new(count: usize) -> Self {
        let scratch = Scratch::new().unwrap();
        let mut nodes = Vec::new();
        let mut contacts = Vec::new();
        for _ in 0..count {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut command = process::command(peers::find("globus-gridftp-server").unwrap());
            command.args(["-dn", "-aa", "-p", &port.to_string(), "-home-dir", "/", "-ipc-allow-from", "127"]);
            command.args(["-control-interface", "127.0.0.1", "-data-interface", "127.0.0.1"]);
            command.args(["-anonymous-user", "root", "-allow-root"]).env("GLOBUS_HOSTNAME", "127.0.0.1");
            nodes.push(Program::start(&mut command).unwrap());
            // It prints nothing.
            let end = Instant::now() + LIMIT;
            while TcpStream::connect(("127.0.0.1", port)).is_err() {
                assert!(Instant::now() < end, "a data node of GCT does not listen");
                thread::sleep(Duration::from_millis(20));
            }
            contacts.push(format!("127.0.0.1:{port}"));
        }
        let server = Setup::new(Kind::Gct, scratch.path())
            .argument("-r")
            .argument(contacts.join(","))
            .start()
            .unwrap();
        Self { scratch, server, _nodes: nodes }
    }
}

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
fn striped_sites_of_gct_and_ropewalk_exchange_files() {
    if !peers::available(&["globus-gridftp-server", "globus-url-copy"]) {
        return;
    }
    for (ours, theirs) in [(1, 2), (2, 1), (2, 2), (3, 2)] {
        let ((site, _nodes), gct) = (site(ours), GctSite::new(theirs));
        let source = source(site.server.root());
        fs::copy(&source, gct.scratch.join("source")).unwrap();
        for client in [Client::Guc, Client::Compatible] {
            for (layout, streams) in [(&[][..], 1), (&["-sbs", "0"], 4), (&["-sbs", "65536"], 2)] {
                let run = |from: String, to: String| {
                    let mut copy = Copy::new(from, to).mode(Mode::Extended(streams)).argument("-stripe");
                    copy.arguments.extend(layout.iter().map(Into::into));
                    let what = format!("{ours}x{theirs} {client:?} {layout:?}: {copy:?}");
                    client.run(&copy).unwrap().succeeded().expect(&what);
                };
                run(site.server.url("source"), gct.server.url("copy"));
                ensure_same(&source, &gct.scratch.join("copy")).unwrap();
                run(gct.server.url("source"), site.server.url("copy"));
                ensure_same(&source, &site.shared("copy")).unwrap();
                fs::remove_file(gct.scratch.join("copy")).unwrap();
                fs::remove_file(site.shared("copy")).unwrap();
            }
        }
    }
}
