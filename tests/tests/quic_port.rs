//! Data channels over QUIC at one UDP port of the server, with the real program at both ends.
//!
//! Most servers here cannot listen at any other port: `data.ports` names a port that is taken.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use ropewalk_tests::control::Control;
use ropewalk_tests::process::{self, Outcome, run};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};
use ropewalk_tests::sites::data_keys::Site;
use ropewalk_tests::taken_port::TakenPort;
use ropewalk_tests::{files, grid, peers};

const LIMIT: Duration = Duration::from_secs(120);
const QUIC: [&str; 4] = ["--stack", "quic", "--retries", "0"];
const DRIVERS: &str = "drivers = ['tcp', 'gsi', 'quic']\n";

fn cp(options: &[&str], from: impl AsRef<str>, to: impl AsRef<str>) -> Outcome {
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["cp", "--json"]).args(QUIC).args(options).args([from.as_ref(), to.as_ref()]);
    run(&mut command, LIMIT).unwrap()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn last_event(outcome: &Outcome) -> serde_json::Value {
    serde_json::from_str(outcome.text().lines().last().unwrap()).unwrap()
}

#[test]
fn copies_over_quic_through_one_port_are_equal() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    let (source, back) = (scratch.join("source"), scratch.join("back"));
    files::write_random(&source, (20 << 20) + 12_345, 1).unwrap();
    let taken = TakenPort::new().unwrap();
    let server = taken.server(&root, &["--drivers", "tcp,quic"]).unwrap();
    for options in [&["-p", "4"][..], &["-p", "40"], &["--mode", "stream"], &["--one-port"]] {
        let put = cp(options, text(&source), server.url("there")).succeeded().unwrap();
        let stack = &last_event(&put)["stacks"][0];
        let reason = if options.contains(&"--one-port") { "chosen" } else { "shared" };
        assert!(stack["one_port"] == reason && stack["stack"] == "quic", "{stack}");
        files::ensure_same(&source, &root.join("there")).unwrap();
        cp(options, server.url("there"), text(&back)).succeeded().unwrap();
        files::ensure_same(&source, &back).unwrap();
        fs::remove_file(&back).unwrap();
        fs::remove_file(root.join("there")).unwrap();
    }
}

#[test]
fn sessions_at_once_through_one_port_keep_their_data_apart() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    let taken = TakenPort::new().unwrap();
    let server = taken.server(&root, &["--drivers", "tcp,quic"]).unwrap();
    let names: Vec<String> = (0..6).map(|n| format!("file{n}")).collect();
    for (seed, name) in names.iter().enumerate() {
        files::write_random(&scratch.join(name), 5_000_000 + seed as u64, seed as u64).unwrap();
    }
    let all = |arguments: &dyn Fn(&str) -> [String; 2]| {
        let start = |name: &String| {
            let mut command = peers::ropewalk_command().unwrap();
            command.args(["cp", "--quiet", "-p", "4"]).args(QUIC).args(arguments(name));
            command.stdout(Stdio::null()).spawn().unwrap()
        };
        let copies: Vec<_> = names.iter().map(start).collect();
        for mut copy in copies {
            assert!(copy.wait().unwrap().success());
        }
    };
    all(&|name| [text(&scratch.join(name)), server.url(name)]);
    all(&|name| [server.url(name), text(&scratch.join(format!("{name}.back")))]);
    for name in &names {
        files::ensure_same(&scratch.join(name), &root.join(name)).unwrap();
        files::ensure_same(&scratch.join(name), &scratch.join(format!("{name}.back"))).unwrap();
    }
}

/// The control connection is protected by GSI, and data connections by a data key or GSI.
#[test]
fn copies_with_data_keys_and_gsi_through_one_port_are_equal() {
    let site = Site::new();
    let taken = TakenPort::new().unwrap();
    let keys = taken.setting(&format!("{DRIVERS}require_key = true\n"));
    let (_server, url) = site.serve("root", &keys);
    for options in [&["-p", "4"][..], &["--mode", "stream"]] {
        let options = [&QUIC[..], options].concat();
        site.cp(&options, "source", &format!("{url}/there")).succeeded().unwrap();
        assert!(site.is_whole("root/there"), "{options:?}");
        site.cp(&options, &format!("{url}/there"), "back").succeeded().unwrap();
        assert!(site.is_whole("back"), "{options:?}");
        fs::remove_file(site.path("root/there")).unwrap();
        fs::remove_file(site.path("back")).unwrap();
    }
    let tree = [&QUIC[..], &["-r"]].concat();
    site.cp(&tree, "tree/", &format!("{url}/tree/")).succeeded().unwrap();
    assert!(site.tree_is_whole("root/tree"));

    let site = grid::Site::new().unwrap();
    let content = site.content().unwrap();
    let server = site.serve(&taken.setting(DRIVERS), &[]).unwrap();
    for options in [&["-p", "4"][..], &["-p", "1", "--data-protection", "private"]] {
        let options = [&QUIC[..], options].concat();
        let url = format!("{}/copy", server.url);
        site.cp(&options, "source", &url).unwrap().succeeded().unwrap();
        assert!(fs::read(site.path("root/copy")).unwrap() == content, "{options:?}");
        site.cp(&options, &url, "back").unwrap().succeeded().unwrap();
        assert!(fs::read(site.path("back")).unwrap() == content, "{options:?}");
        fs::remove_file(site.path("root/copy")).unwrap();
        fs::remove_file(site.path("back")).unwrap();
    }
}

#[test]
fn third_party_copies_over_quic_through_one_port_are_equal() {
    let site = Site::new();
    let taken = TakenPort::new().unwrap();
    let keys = taken.setting(&format!("{DRIVERS}require_key = true\n"));
    let (_one, one) = site.serve("one", &keys);
    let (_other, other) = site.serve("other", &keys);
    fs::copy(site.path("source"), site.path("one/a")).unwrap();
    for options in [&["-p", "4"][..], &["--mode", "stream"]] {
        let options = [&QUIC[..], &["--one-port"], options].concat();
        site.cp(&options, &format!("{one}/a"), &format!("{other}/b")).succeeded().unwrap();
        assert!(site.is_whole("other/b"), "{options:?}");
        fs::remove_file(site.path("other/b")).unwrap();
    }
}

/// The servers that do not have the port are those with `quic_port = 0`, those that do not know
/// SITE ONEPORT, and those whose UDP port another program has. Copies use announced ports there.
#[test]
fn copies_over_quic_with_a_server_without_the_port_use_announced_ports() {
    let scratch = Scratch::new().unwrap();
    let source = scratch.join("source");
    files::write_random(&source, 1_000_000, 1).unwrap();
    let taken = TakenPort::new().unwrap();
    for (number, more) in
        ["[data]\nquic_port = 0", "disabled_commands = ['SITE ONEPORT']"].into_iter().enumerate()
    {
        let root = scratch.directory(format!("root{number}")).unwrap();
        let config = scratch.join(format!("config{number}"));
        fs::write(&config, format!("{more}\n")).unwrap();
        let setup = Setup::new(Kind::Ropewalk, &root).argument("--drivers").argument("tcp,quic");
        let server = setup.argument("--config").argument(&config).start().unwrap();
        let put = cp(&["-p", "4"], text(&source), server.url("there")).succeeded().unwrap();
        let stack = &last_event(&put)["stacks"][0];
        assert!(stack["stack"] == "quic" && stack["one_port"].is_null(), "{stack}");
        files::ensure_same(&source, &root.join("there")).unwrap();
        let refused = cp(&["--one-port"], text(&source), server.url("no")).failed().unwrap();
        let error = last_event(&refused)["failures"][0]["error"].to_string();
        assert!(error.contains("does not offer"), "{error}");
    }
    let root = scratch.directory("root").unwrap();
    let named = scratch.join("config");
    fs::write(&named, format!("[data]\nquic_port = {}\n", taken.port)).unwrap();
    let setup = Setup::new(Kind::Ropewalk, &root).argument("--drivers").argument("tcp,quic");
    let error = format!("{:#}", setup.argument("--config").argument(&named).start().err().unwrap());
    assert!(error.contains("data.quic_port"), "{error}");
}

/// Clients that do not know the port make channels with PASV, as before.
#[test]
fn passive_channels_over_quic_have_ports_of_their_own() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    let setup = Setup::new(Kind::Ropewalk, &root).argument("--drivers").argument("tcp,quic");
    let server = setup.start().unwrap();
    let mut control = Control::log_in(server.address()).unwrap();
    let features = control.expect("FEAT", 211).unwrap().text;
    assert!(features.contains(";QuicPort;"), "{features}");
    control.expect("SITE SETNETSTACK quic", 250).unwrap();
    let shared = server.address().port();
    assert_ne!(control.passive().unwrap().port(), shared);
    let reply = control.expect("SITE ONEPORT", 250).unwrap();
    assert!(reply.text.contains(&format!("UDP port {shared}, token ")), "{}", reply.text);
    control.expect("SITE SETNETSTACK tcp", 250).unwrap();
    let reply = control.expect("SITE ONEPORT", 250).unwrap();
    assert!(!reply.text.contains("UDP"), "{}", reply.text);
}

/// Runs the copies of quic_port_firewall.sh, and returns the last event of each and all warnings.
fn behind_a_firewall(passes: &str) -> Option<Vec<serde_json::Value>> {
    if !rustix::process::geteuid().is_root() && peers::skip("network namespaces need root") {
        return None;
    }
    if !peers::available(&["unshare", "nsenter", "ip"]) {
        return None;
    }
    let scratch = Scratch::new().unwrap();
    files::write_random(&scratch.join("source"), 5_000_000, 1).unwrap();
    let tree = scratch.directory("tree").unwrap();
    for n in 0..50 {
        fs::write(tree.join(n.to_string()), vec![n; usize::from(n)]).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quic_port_firewall.sh");
    let mut command = process::command("unshare");
    command
        .args(["--net", "bash"])
        .arg(script)
        .arg(peers::ropewalk().unwrap())
        .arg(scratch.path())
        .arg(passes);
    command.env("XDG_STATE_HOME", scratch.join("state"));
    run(&mut command, LIMIT).unwrap().succeeded().unwrap();
    let events = ["upload", "download", "streamed", "tree"].map(|name| {
        let event = fs::read_to_string(scratch.join(format!("{name}.event"))).unwrap();
        serde_json::from_str(&event).unwrap()
    });
    Some(events.into())
}

/// Only the control port and the UDP port of the same number can be reached.
#[test]
fn copies_over_quic_through_a_firewall_use_one_udp_port() {
    for event in behind_a_firewall("one").unwrap_or_default() {
        assert!(event["stacks"][0]["one_port"] == "shared" && event["retries"] == 0, "{event}");
    }
}

/// A firewall that was made for announced ports does not let the shared one through.
#[test]
fn copies_over_quic_fall_back_to_announced_ports() {
    for event in behind_a_firewall("announced").unwrap_or_default() {
        assert!(event["stacks"][0]["one_port"].is_null() && event["retries"] == 0, "{event}");
    }
}
