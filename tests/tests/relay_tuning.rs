//! The tuner of the hop between a relay and a far server, on paths whose windows are small, so that
//! more streams carry more. Requires root.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use ropewalk_tests::peers;
use ropewalk_tests::process;
use ropewalk_tests::scratch::Scratch;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(180);
/// The number of streams that a round trip of 60 ms suggests, which carry 70 Mbit/s.
const UNTUNED: usize = 8;

/// Serialises the tests, because each emulated path needs the whole machine.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// The far hop has 60 ms and 200 Mbit/s, the near one 2 ms and this rate.
fn scenario(near: &str, relay: &str, copy: &str, size: &str) -> String {
    format!(
        r#"
title = "hops of a relay"
description = "A relay near the client, and a far server."
timeout = "150s"

[kernel]
congestion = "cubic"
tcp_rmem = ["4 KiB", "128 KiB", "128 KiB"]
tcp_wmem = ["4 KiB", "16 KiB", "4 MiB"]

[hosts.far]
[hosts.middle]
[hosts.here]

[[links]]
between = ["far", "middle"]
path = {{ round_trip = "60ms", both = {{ rate = "200Mbit/s", queue = 1000 }} }}

[[links]]
between = ["middle", "here"]
path = {{ round_trip = "2ms", both = {{ rate = "{near}", queue = 1000 }} }}

[[files]]
host = "far"
path = "{{disk}}/file"
size = "{size}"

[[files]]
host = "here"
path = "{{disk}}/file"
size = "{size}"

[[files]]
host = "middle"
path = "{{dir}}/relay.toml"
text = "relay.to = ['10.77.0.0/16']\n{relay}"

[[servers]]
name = "far"
host = "far"
run = ["{{ropewalk}}", "serve", "--listen", "0.0.0.0:{{port:far}}", "--anonymous=rw", "--root", "{{disk}}", "--log", "error"]
ready = {{ port = "{{port:far}}" }}

[[servers]]
name = "relay"
host = "middle"
run = [
    "{{ropewalk}}", "serve", "--listen", "0.0.0.0:{{port:relay}}", "--anonymous=rw", "--root", "{{disk}}",
    "--config", "{{dir}}/relay.toml", "--log", "error",
]
ready = {{ port = "{{port:relay}}" }}
environment = {{ XDG_STATE_HOME = "{{dir}}" }}

[[commands]]
name = "copy"
host = "here"
run = ["{{ropewalk}}", "cp", "--quiet", "--via", "ftp://{{addr:middle}}:{{port:relay}}", {copy}]
bytes = "{size}"
environment = {{ XDG_CONFIG_HOME = "{{dir}}", XDG_STATE_HOME = "{{dir}}", XDG_CACHE_HOME = "{{dir}}" }}
"#
    )
}

const GET: &str = r#""ftp://{addr:far}:{port:far}/file", "{disk}/got""#;
const PUT: &str = r#""{disk}/file", "ftp://{addr:far}:{port:far}/put""#;

/// The most data connections of the far server at a time, and the seconds of the copy; `None` if
/// the lab cannot run here.
fn copied(near: &str, relay: &str, copy: &str, size: &str) -> Option<(usize, f64)> {
    if !(rustix::process::geteuid().is_root() && fs::exists("/dev/net/tun").unwrap_or(false)) {
        peers::skip("the lab needs root and /dev/net/tun");
        return None;
    }
    let scratch = Scratch::new().unwrap();
    let file = scratch.join("scenario.toml");
    fs::write(&file, scenario(near, relay, copy, size)).unwrap();
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["lab", "run"]).arg(&file);
    command.args(["--json", "--quiet", "--output"]).arg(scratch.join("results"));
    let outcome = process::run(&mut command, LIMIT).unwrap().succeeded().unwrap();
    let result: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    let copy = &result["commands"][0];
    assert_eq!(copy["end"]["exit"], 0, "{copy}");
    let connections = result["connections"].as_array().unwrap().iter();
    let carries = |connection: &&Value| {
        let bytes = |direction: &str| connection[direction].as_u64().unwrap_or(0);
        connection["host"] == "far" && bytes("sent") + bytes("received") > 256 << 10
    };
    let time = |value: &Value| value.as_f64().unwrap();
    let seen: Vec<(f64, f64)> =
        connections.filter(carries).map(|each| (time(&each["seen"][0]), time(&each["seen"][1]))).collect();
    // A transfer that was begun again has new ones.
    let at = |now: f64| seen.iter().filter(|(from, until)| (*from..*until).contains(&now)).count();
    let most = seen.iter().map(|(from, _)| at(*from)).max().unwrap();
    Some((most, time(&copy["seconds"])))
}

#[test]
fn far_hop_that_limits_a_copy_gets_more_streams() {
    let _alone = alone();
    for copy in [GET, PUT] {
        let Some((streams, seconds)) = copied("400Mbit/s", "", copy, "112 MiB") else { return };
        let (fixed, longer) = copied("400Mbit/s", "relay.streams = 8", copy, "112 MiB").unwrap();
        // One may have been replaced.
        assert!(fixed <= UNTUNED + 2, "{copy}: {fixed}");
        assert!(
            streams >= 2 * UNTUNED && seconds < 0.9 * longer,
            "{copy}: {streams}, {seconds} s, {longer} s"
        );
    }
}

/// The near hop carries less than the streams with which the far one starts: they wait for room in
/// the memory of the relay, or have nothing to send.
#[test]
fn far_hop_keeps_its_streams_while_the_near_one_is_the_limit() {
    let _alone = alone();
    for copy in [GET, PUT] {
        let Some((streams, _)) = copied("30Mbit/s", "", copy, "56 MiB") else { return };
        assert!(streams <= UNTUNED + 2, "{copy}: {streams}");
    }
}
