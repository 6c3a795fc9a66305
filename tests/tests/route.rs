//! `ropewalk route`: the choice of relays, with real servers and stored results of past transfers.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::Duration;

use ropewalk_tests::process::{Outcome, run};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::{files, peers};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);

fn server(scratch: &Scratch, name: &str, is_relay: bool) -> Server {
    let root = scratch.directory(name).unwrap();
    let setup = Setup::new(Kind::Ropewalk, &root).argument("--anonymous-third-party");
    match is_relay {
        true => setup.argument("--relay-to").argument("127.0.0.1").start().unwrap(),
        false => setup.start().unwrap(),
    }
}

fn base(server: &Server) -> String {
    format!("ftp://{}", server.address())
}

fn ropewalk(scratch: &Scratch, arguments: &[&str]) -> Outcome {
    let mut command = peers::ropewalk_command().unwrap();
    run(command.args(arguments).env("XDG_STATE_HOME", scratch.join("state")), LIMIT).unwrap()
}

fn route(scratch: &Scratch, from: &str, to: &str, relays: &[&str]) -> Value {
    let outcome = ropewalk(scratch, &["route", from, to, "--relays", &relays.join(","), "--json"]);
    serde_json::from_slice(&outcome.succeeded().unwrap().stdout).unwrap()
}

fn hop<'a>(report: &'a Value, from: &str, to: &str) -> &'a Value {
    let mut hops = report["hops"].as_array().unwrap().iter();
    hops.find(|hop| hop["from"] == from && hop["to"] == to).unwrap()
}

/// Stores results of past transfers, in bits per second.
fn remember(scratch: &Scratch, rates: &[(&str, &str, f64)]) {
    let mut paths = serde_json::Map::new();
    for (from, to, rate) in rates {
        let known = json!({"streams": 4, "bits_per_second": rate, "min_rtt_seconds": 0.1, "at": u32::MAX});
        paths.insert(format!("{from} -> {to}"), known);
    }
    let directory = scratch.directory("state/ropewalk").unwrap();
    fs::write(directory.join("paths.json"), json!({"version": 1, "paths": paths}).to_string()).unwrap();
}

#[test]
fn equal_hops_leave_the_direct_path_and_servers_that_relay_nothing_are_not_used() {
    let scratch = Scratch::new().unwrap();
    let (a, b, plain) =
        (server(&scratch, "a", false), server(&scratch, "b", true), server(&scratch, "p", false));
    let (a, b, plain) = (base(&a), base(&b), base(&plain));
    let report = route(&scratch, &format!("{a}/"), ".", &[&b, &plain]);
    assert_eq!(report["path"], json!([a, "here"]), "{report:#}");
    assert_eq!(report["via"], json!([]));
    for (from, to) in [(&*a, "here"), (&b, "here"), (&a, &b), (&plain, &b)] {
        let hop = hop(&report, from, to);
        assert_eq!(hop["basis"], "model", "{hop:#}");
        let rtt = hop["rtt_seconds"].as_f64().unwrap();
        assert!(rtt > 0.0 && rtt < 1.0, "{hop:#}");
        let rate = |name: &str| hop["rate"][name].as_f64().unwrap();
        assert!(0.0 < rate("low") && rate("low") < rate("likely") && rate("likely") < rate("high"));
    }
    let refused = hop(&report, &a, &plain);
    assert_eq!((&refused["basis"], &refused["rate"]), (&json!("unusable"), &Value::Null), "{refused:#}");
    assert!(refused["note"].as_str().unwrap().contains("550"), "{refused:#}");
}

#[test]
fn past_transfers_decide_and_the_chosen_relay_serves_the_copy() {
    let scratch = Scratch::new().unwrap();
    let (a_server, b) = (server(&scratch, "a", false), server(&scratch, "b", true));
    let (a, b) = (base(&a_server), base(&b));
    remember(&scratch, &[(&a, "here", 1e6), (&b, "here", 5e7)]);
    let report = route(&scratch, &format!("{a}/"), ".", &[&b]);
    assert_eq!(report["path"], json!([a, b, "here"]), "{report:#}");
    assert_eq!(hop(&report, &a, "here")["basis"], "past-transfer");
    assert!(report["reason"].as_str().unwrap().contains("clearly wider"), "{report:#}");
    let shown = ropewalk(&scratch, &["route", &format!("{a}/"), ".", "--relays", &b]).succeeded().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains(&format!("Path: {a} > {b} > here")), "{shown}");
    assert!(shown.contains(&format!("cp --via {b} ")), "{shown}");
    // The picture has the same.
    let picture = scratch.join("route.svg");
    let draw = |file: &str| {
        let arguments = ["route", &format!("{a}/"), ".", "--relays", &b, "--picture", file];
        ropewalk(&scratch, &arguments)
    };
    draw(&picture.display().to_string()).succeeded().unwrap();
    let svg = fs::read_to_string(&picture).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains(&a) && svg.contains(&b));
    assert_eq!(svg.matches("url(#c)").count(), 2, "{svg}");
    let nowhere = scratch.join("none/route.svg").display().to_string();
    let failed = draw(&nowhere).failed().unwrap();
    assert!(failed.errors().contains(&format!("cannot write the picture {nowhere}")), "{}", failed.errors());
    // It is a way that works.
    let original = scratch.join("a/f");
    files::write_random(&original, 1 << 20, 1).unwrap();
    let got = scratch.join("got");
    let via = report["via"][0].as_str().unwrap();
    ropewalk(&scratch, &["cp", "--via", via, &a_server.url("f"), &got.display().to_string()])
        .succeeded()
        .unwrap();
    files::ensure_same(&original, &got).unwrap();
    // `cp` finds it by itself.
    let got = scratch.join("auto");
    let auto = ["cp", "--via", "auto", "--relays", &b, &a_server.url("f"), &got.display().to_string()];
    let copied = ropewalk(&scratch, &auto).succeeded().unwrap();
    files::ensure_same(&original, &got).unwrap();
    assert!(copied.errors().contains(&format!("path {a} > {b} > here: ")), "{}", copied.errors());
    let events = ropewalk(&scratch, &[&auto[..], &["--json"]].concat()).succeeded().unwrap();
    let first: Value =
        serde_json::from_slice(events.stdout.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    assert_eq!((&first["event"], &first["path"]), (&json!("route"), &json!([a, b, "here"])), "{first}");
    assert!(first["bits_per_second"].as_f64().unwrap() > 0.0, "{first}");
    for (arguments, reason) in [
        (&["cp", "--via", "auto", &a_server.url("f"), "/tmp/none"][..], "--via auto needs --relays"),
        (&["cp", "--via", &b, "--relays", &b, &a_server.url("f"), "/tmp/none"], "--relays is for --via auto"),
        (&["cp", "--via", "auto", "--relays", &b, "/tmp/none", "/tmp/no"], "at a server"),
    ] {
        let refused = ropewalk(&scratch, arguments).failed().unwrap();
        assert!(refused.errors().contains(reason), "{}", refused.errors());
    }
    // A difference within the uncertainty is no reason.
    remember(&scratch, &[(&a, "here", 4.9e7), (&b, "here", 5e7)]);
    let report = route(&scratch, &format!("{a}/"), ".", &[&b]);
    assert_eq!(report["via"], json!([]), "{report:#}");
    let copied = ropewalk(&scratch, &auto).succeeded().unwrap();
    assert!(copied.errors().contains(&format!("path {a} > here: no other path")), "{}", copied.errors());
}

#[test]
fn hop_between_two_far_servers_is_unknown_and_a_server_out_of_reach_is_not_used() {
    let scratch = Scratch::new().unwrap();
    let (a, d, b) = (server(&scratch, "a", false), server(&scratch, "d", false), server(&scratch, "b", true));
    let (a, d, b, gone) = (base(&a), base(&d), base(&b), "ftp://127.0.0.1:1");
    let report = route(&scratch, &format!("{a}/"), &format!("{d}/"), &[&b, gone]);
    assert_eq!(report["path"], json!([a, d]), "{report:#}");
    let direct = hop(&report, &a, &d);
    assert_eq!((&direct["basis"], &direct["rate"]["likely"]), (&json!("unknown"), &Value::Null));
    assert!(report["reason"].as_str().unwrap().contains("unknown"), "{report:#}");
    assert_eq!(hop(&report, &b, &d)["basis"], "model");
    assert_eq!(hop(&report, &a, &b)["basis"], "model");
    assert_eq!(hop(&report, &a, gone)["basis"], "unknown");
    // No path at all.
    let arguments = ["route", "ftp://127.0.0.1:1/", ".", "--relays", &b];
    let failed = ropewalk(&scratch, &arguments).failed().unwrap();
    assert!(String::from_utf8_lossy(&failed.stderr).contains("no path can be used"));
}
