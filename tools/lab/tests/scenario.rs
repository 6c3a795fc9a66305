//! Scenario files: values that are read, and messages for mistakes.
#![allow(clippy::unwrap_used)]

use ropewalk_lab::scenario::{ByteRate, Document, Ready, Run, Scenario, Size, Time, Value};

const BASE: &str = r#"title = "test"
variables = { streams = 4, size = "1MiB" }

[kernel]
congestion = "reno"

[hosts.left]
[hosts.right]
disk = { read = "40MiB/s", latency = "5ms" }
kernel = { congestion = "bbr", tcp_rmem = [4096, "64KiB", "1MiB"] }

[[links]]
between = ["left", "right"]
path = { round_trip = "100ms", both = { rate = "100Mbit/s", queue = 50 } }

[[servers]]
name = "server"
host = "right"
run = "serve {port:server} ${HOME} {dir}"
ready = { port = "{port:server}" }

[[commands]]
name = "get"
host = "left"
run = ["get", "{addr:right}", "{streams}"]
bytes = "{size}"
"#;

fn parse(text: &str) -> Result<Scenario, String> {
    let document = Document::parse(text, "it.toml").map_err(|error| error.to_string())?;
    document.scenario().map_err(|error| error.to_string())
}

/// The error of the base scenario with `from` replaced by `to`.
fn said(from: &str, to: &str) -> String {
    assert!(BASE.contains(from), "{from}");
    parse(&BASE.replacen(from, to, 1)).unwrap_err()
}

#[test]
fn scenario_with_all_parts_is_read() {
    let scenario = parse(BASE).unwrap();
    assert_eq!(scenario.hosts.keys().collect::<Vec<_>>(), ["left", "right"]);
    let right = &scenario.hosts["right"];
    assert_eq!(right.disk.as_ref().unwrap().read, Some(ByteRate(40 << 20)));
    assert_eq!(right.disk.as_ref().unwrap().latency, Time::millis(5));
    let kernel = scenario.kernel.overlaid(&right.kernel);
    assert_eq!(kernel.congestion.as_deref(), Some("bbr"));
    assert_eq!(kernel.tcp_rmem, Some([Size(4096), Size(65536), Size(1 << 20)]));
    assert_eq!(scenario.links[0].path.forward.delay.as_millis(), 50);
    assert!(scenario.links[0].offload && scenario.record.interval == Time::millis(100));
    assert!(matches!(&scenario.servers[0].ready, Some(Ready::Port(Value::Text(_)))));
    assert!(matches!(&scenario.commands[0].run, Run::Program(words) if words.len() == 3));
    // A scenario that is written as text reads back the same.
    let again = toml::to_string(&scenario).unwrap();
    assert_eq!(parse(&again).unwrap(), scenario, "{again}");
}

#[test]
fn scenario_with_a_replaced_mistake_names_its_line() {
    for (from, to, expected) in [
        ("[[servers]]", "[[server]]", "it.toml:16: unknown field `server`"),
        ("host = \"right\"\nrun", "hots = \"right\"\nrun", "it.toml:18: unknown field `hots`"),
        ("\"100ms\"", "\"100\"", "it.toml:14: "),
        ("\"40MiB/s\"", "\"40MiB\"", "it.toml:9: `40MiB` is no rate"),
        ("title", "title = ", "it.toml:1: "),
        ("title", "timeout = \"0\"\ntitle", "it.toml:1: timeout: expected more than 0"),
        (
            "[\"left\", \"right\"]",
            "[\"left\", \"left\", \"right\"]",
            "it.toml:13: expected a list of 2, found one of 3",
        ),
        ("\"64KiB\", \"1MiB\"", "1, 2, 3", "it.toml:10: expected a list of 3, found one of 4"),
        (
            "[\"left\", \"right\"]",
            "[\"left\", \"wright\"]",
            "it.toml:13: links[0].between[1]: there is no host `wright`; there are left, right",
        ),
        (
            "queue = 50",
            "queue = 0",
            "it.toml:14: forward.queue.packets: expected 1 to 10000000 packets, found 0",
        ),
        ("round_trip", "mtu = 600, round_trip", "it.toml:14: links[0].path.mtu: expected at least 1280"),
        ("congestion = \"reno\"", "", "it.toml:7: hosts.left: no congestion control is stated"),
        (
            "\"64KiB\", \"1MiB\"",
            "\"1MiB\", \"64KiB\"",
            "it.toml:10: hosts.right.kernel.tcp_rmem: expected [least, first, most]",
        ),
        ("\"{streams}\"", "\"{stream}\"", "it.toml:25: commands[0].run: {stream} is unknown: no variable"),
        (
            "{addr:right}",
            "{addr:middle}",
            "it.toml:25: commands[0].run: {addr:middle}: there is no host `middle`",
        ),
        ("name = \"get\"", "name = \"server\"", "it.toml:23: commands[0].name: `server` is taken"),
        (
            "name = \"get\"",
            "name = \"get\"\nafter = [\"put\"]",
            "it.toml:24: commands[0].after[0]: no command `put`",
        ),
        ("run = [\"get\"", "run = []\n#", "it.toml:25: commands[0].run: expected at least"),
        (
            "streams = 4",
            "streams = 4, seed = 3",
            "it.toml:2: variables.seed: this name has a meaning of its own",
        ),
        ("read = \"40MiB/s\", latency = \"5ms\"", "", "it.toml:9: hosts.right.disk: it limits nothing"),
        ("[hosts.left]", "[hosts.left]\n[hosts.middle]", "it.toml:13: links: hosts and links are no tree"),
        (
            "congestion = \"bbr\"",
            "sysctl = { \"vm.swappiness\" = 1 }",
            "it.toml:10: hosts.right.kernel.sysctl.\"vm.swappiness\": only settings below `net.`",
        ),
    ] {
        let said = said(from, to);
        assert!(said.starts_with(expected), "{to}: {said}");
    }
}

#[test]
fn scenario_with_an_added_mistake_names_its_line() {
    for (added, expected) in [
        (
            "[[traffic]]\nname = \"t\"\nfrom = \"left\"\nto = \"left\"",
            "it.toml:30: traffic[0].to: expected another host",
        ),
        (
            "[[traffic]]\nname = \"t\"\nfrom = \"left\"\nto = \"right\"\non = \"1s\"",
            "it.toml:31: traffic[0].on: `on` and `off`",
        ),
        (
            "[[traffic]]\nname = \"t\"\nfrom = \"left\"\nto = \"right\"\nstart = \"2s\"\nstop = \"1s\"",
            "it.toml:32: traffic[0].stop: expected a time after the start, 2s",
        ),
        (
            "[[files]]\nhost = \"left\"\npath = \"/etc/passwd\"\nsize = 1",
            "it.toml:29: files[0].path: expected a path below",
        ),
        (
            "[[files]]\nhost = \"left\"\npath = \"{disk}/../x\"\nsize = 1",
            "it.toml:29: files[0].path: expected a path below",
        ),
        ("[[files]]\nhost = \"left\"\npath = \"{disk}/x\"", "it.toml:29: files[0].path: expected either"),
        (
            "[[files]]\nhost = \"left\"\npath = \"{disk}/x\"\nkind = \"hole\"",
            "it.toml:30: files[0].kind: a hole goes with",
        ),
        (
            "[[files]]\nhost = \"left\"\npath = \"{disk}/x\"\nkind = \"null\"\nsize = 1",
            "it.toml:30: files[0].kind: `null` goes without",
        ),
        (
            "[[links]]\nbetween = [\"right\", \"left\"]\npath = {}",
            "it.toml:12: links: hosts and links are no tree",
        ),
        ("[[links.changes]]\nat = \"1s\"\nmtu = 100", "it.toml:27: links[0].changes[0]"),
        ("[record]\ninterval = \"1ms\"", "it.toml:28: record.interval: expected at least 10ms"),
        ("[record]\nhosts = [\"moon\"]", "it.toml:28: record.hosts[0]: there is no host `moon`"),
        ("at = \"10min\"", "it.toml:27: commands[0].at: 600s is not before"),
        (
            "at = \"1s\"\ndelay = \"3s\"",
            "it.toml:28: commands[0].delay: `delay` counts from the end of other commands",
        ),
        ("environment = { \"A=B\" = \"1\" }", "it.toml:27: commands[0].environment: `A=B` is no name"),
        ("environment = { \"\" = \"1\" }", "it.toml:27: commands[0].environment: `` is no name"),
    ] {
        let text = match added.starts_with("[[links.changes]]") {
            true => BASE.replacen("\n[[servers]]", &format!("{}{added}\n[[servers]]", "\n".repeat(12)), 1),
            false => format!("{BASE}{added}\n"),
        };
        let said = parse(&text).unwrap_err();
        assert!(said.starts_with(expected), "{added}: {said}");
    }
}

#[test]
fn document_with_changed_values_makes_a_changed_scenario() {
    let mut document = Document::parse(BASE, "it.toml").unwrap();
    document.set("streams", &Value::Integer(16)).unwrap();
    document.set("links[0].path.both.rate", &Value::Text("1Gbit/s".into())).unwrap();
    document.set("hosts.left.kernel.sysctl.\"net.ipv4.tcp_sack\"", &Value::Integer(0)).unwrap();
    let scenario = document.scenario().unwrap();
    assert_eq!(scenario.variables["streams"], Value::Integer(16));
    assert_eq!(scenario.links[0].path.backward.rate.get(), Some(1_000_000_000));
    assert_eq!(scenario.hosts["left"].kernel.sysctl.len(), 1);
    let said = |field: &str| document.clone().set(field, &Value::Integer(1)).unwrap_err().to_string();
    assert_eq!(said("links[3].mtu"), "it.toml: links[3].mtu: there are only 1, from 0");
    assert_eq!(said("title.x"), "it.toml: title.x: nothing can be named x here: no table");
    assert!(said("links[").contains("expected for example"));
    document.set("links[0].path.mtu", &Value::Integer(9)).unwrap();
    let said = document.scenario().unwrap_err().to_string();
    assert!(said.starts_with("it.toml") && said.contains("mtu"), "{said}");
}
