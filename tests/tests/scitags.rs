//! SciTags on the wire: flow labels of packets on loopback, and fireflies at a collector.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use ropewalk_tests::control::Control;
use ropewalk_tests::nodes::Site;
use ropewalk_tests::process::{self, Program, run};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::{files, peers};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
const SIZE: u64 = (8 << 20) + 123;
/// Experiment 2, activity 15.
const TAG: &str = "143";
/// The bits of a label that are not random, and their value for this tag.
const MASK: u32 = 0x3fefc;
const LABEL: u32 = 0x1003c;

/// Prints `label source-port destination-port flags` of each TCP packet over IPv6 on loopback.
const CAPTURE: &str = r#"
import socket, struct
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 20)
s.bind(("lo", 0))
print("ready", flush=True)
while True:
    p = s.recv(128)
    if len(p) > 67 and p[12:14] == b"\x86\xdd" and p[20] == 6:
        label = struct.unpack("!I", p[14:18])[0] & 0xfffff
        print(label, *struct.unpack("!HH", p[54:58]), p[67], flush=True)
"#;

/// A packet: label, source port, destination port, and flags of TCP.
type Packet = [u64; 4];

/// TCP packets over IPv6 on loopback.
struct Capture(Program);

impl Capture {
    /// `None`: the test is skipped.
    fn start() -> Option<Self> {
        let mut capture = process::command("python3");
        let capture = Program::start(capture.args(["-c", CAPTURE])).unwrap();
        if capture.wait_for_line(LIMIT, |line| (line == "ready").then_some(())).is_err() {
            peers::skip("packets can be captured by root alone");
            return None;
        }
        Some(Self(capture))
    }

    /// The packets from the sources of these connections, up to their ends.
    fn packets_of(&self, messages: &[Value]) -> Vec<Packet> {
        let ports: Vec<u64> = of_state(messages, "end")
            .map(|message| message["flow-id"]["src-port"].as_u64().unwrap())
            .collect();
        let mut packets = Vec::new();
        let mut finished = 0;
        // The last packet of each connection may still be on its way to the capture.
        while finished < ports.len() {
            let line = self.0.wait_for_line(LIMIT, |line| Some(line.to_owned())).unwrap();
            let words: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
            let packet: Packet = words.try_into().unwrap();
            if ports.contains(&packet[1]) {
                finished += usize::from(packet[3] & 1 == 1);
                packets.push(packet);
            }
        }
        packets
    }
}

/// The SYN was captured, and each packet has the label of the tag.
#[track_caller]
fn are_marked(packets: &[Packet]) {
    assert!(packets.iter().any(|packet| packet[3] == 2), "the SYN was captured");
    let marked = |packet: &&Packet| packet[0] as u32 & MASK == LABEL;
    let (labelled, others): (Vec<&Packet>, Vec<&Packet>) = packets.iter().partition(marked);
    assert!(others.is_empty(), "{} of {} packets: {others:?}", others.len(), labelled.len());
}

struct Collector(UdpSocket);

impl Collector {
    fn new() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self(socket)
    }

    fn address(&self) -> String {
        self.0.local_addr().unwrap().to_string()
    }

    /// The messages until this many connections have ended. Each has the fields that the schema
    /// requires.
    fn until_ended(&self, connections: usize) -> Vec<Value> {
        let mut messages = Vec::new();
        let mut ended = 0;
        while ended < connections {
            let mut buffer = [0; 2000];
            let length = self.0.recv(&mut buffer).unwrap();
            assert!(length < 1500);
            let text = str::from_utf8(&buffer[..length]).unwrap();
            assert!(text.starts_with("<134>1 "), "{text}");
            let message: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
            for key in ["afi", "src-ip", "dst-ip", "protocol", "src-port", "dst-port"] {
                assert!(!message["flow-id"][key].is_null(), "{key}: {text}");
            }
            assert_eq!(message["version"], 1);
            assert_eq!(
                (&message["context"]["experiment-id"], &message["context"]["activity-id"]),
                (&2.into(), &15.into())
            );
            ended += usize::from(message["flow-lifecycle"]["state"] == "end");
            messages.push(message);
        }
        messages
    }
}

fn of_state<'a>(messages: &'a [Value], state: &'a str) -> impl Iterator<Item = &'a Value> {
    messages.iter().filter(move |message| message["flow-lifecycle"]["state"] == state)
}

fn sent(messages: &[Value]) -> u64 {
    of_state(messages, "end").map(|message| message["usage"]["sent"].as_u64().unwrap()).sum()
}

fn cp(options: &[&str], from: &str, to: &str) {
    let mut command = peers::ropewalk_command().unwrap();
    command.arg("cp").args(options).args([from, to]);
    run(&mut command, LIMIT).unwrap().succeeded().unwrap();
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A directory with a file, and a server with these settings.
fn site(settings: &str, ipv6: bool) -> (Scratch, Server) {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    files::write_random(&root.join("f"), SIZE, 1).unwrap();
    let config = scratch.join("server.toml");
    fs::write(&config, settings).unwrap();
    let setup = Setup::new(Kind::Ropewalk, &root).argument("--config").argument(config);
    let setup = if ipv6 { setup.ipv6() } else { setup };
    (scratch, setup.start().unwrap())
}

#[test]
fn upload_with_a_tag_has_it_in_the_label_of_each_packet_and_in_fireflies() {
    let (_scratch, server) = site("", true);
    let Some(capture) = Capture::start() else { return };
    let collector = Collector::new();
    let options = ["--scitag", TAG, "--fireflies", &collector.address(), "-p", "2", "--mode", "extended"];
    cp(&options, &text(&server.root().join("f")), &server.url("up"));
    let messages = collector.until_ended(2);
    assert_eq!(of_state(&messages, "start").count(), 2);
    assert!(sent(&messages) >= SIZE, "{messages:?}");
    let packets = capture.packets_of(&messages);
    are_marked(&packets);
    let labels: BTreeSet<_> = packets.iter().map(|packet| (packet[1], packet[0])).collect();
    assert_eq!(labels.len(), 2, "each connection keeps its label: {labels:?}");
}

#[test]
fn connections_of_data_nodes_have_labels_and_fireflies() {
    let collector = Collector::new();
    let scratch = Scratch::new().unwrap();
    let config = scratch.join("server.toml");
    let settings = format!(
        "[scitags]\nfireflies = ['{}']\nmap = [{{ path = '/f', tag = '{TAG}' }}, {{ path = '/up', tag = '{TAG}' }}]\n",
        collector.address()
    );
    fs::write(&config, settings).unwrap();
    let site = Site::over_ipv6(&["--config", &text(&config)]);
    let _nodes = ["a", "b"].map(|name| site.node_with(name, site.server.root(), &["--address", "::1"]));
    let file = site.shared("f");
    files::write_random(&file, SIZE, 1).unwrap();
    let Some(capture) = Capture::start() else { return };
    // A node connects to the client.
    let got = scratch.join("got");
    let mut curl = process::command("curl");
    curl.args(["-sS", "-P", "-", "-o", &text(&got), &format!("ftp://{}/f", site.server.address())]);
    run(&mut curl, LIMIT).unwrap().succeeded().unwrap();
    files::ensure_same(&got, &file).unwrap();
    let messages = collector.until_ended(1);
    assert!(sent(&messages) >= SIZE, "{messages:?}");
    are_marked(&capture.packets_of(&messages));
    // The client connects to all nodes, and has no tag of its own.
    cp(&["--stripes", "auto", "-p", "1", "--mode", "extended"], &text(&file), &site.server.url("up"));
    files::ensure_same(&site.shared("up"), &file).unwrap();
    let messages = collector.until_ended(2);
    assert!(sent(&messages) >= SIZE, "{messages:?}");
    let receivers: BTreeSet<_> =
        of_state(&messages, "end").map(|message| message["flow-id"]["dst-port"].as_u64().unwrap()).collect();
    assert_eq!(receivers.len(), 2, "each node reports its own connection: {messages:?}");
    assert!(site.channels() >= 3, "{}", site.server.log());
}

#[test]
fn transfers_of_plain_clients_have_the_default_tag_of_the_server() {
    let collector = Collector::new();
    let settings = format!(
        "[scitags]\nfireflies = ['{}']\nmap = [{{ path = '/f', tag = '{TAG}' }}]\n",
        collector.address()
    );
    let (scratch, server) = site(&settings, false);
    let got = scratch.join("got");
    let mut curl = process::command("curl");
    curl.args(["-sS", "-o", &text(&got), &format!("ftp://{}/f", server.address())]).stdin(Stdio::null());
    run(&mut curl, LIMIT).unwrap().succeeded().unwrap();
    files::ensure_same(&got, &server.root().join("f")).unwrap();
    let messages = collector.until_ended(1);
    assert!(sent(&messages) >= SIZE);
    let end = of_state(&messages, "end").next().unwrap();
    let source = (end["flow-id"]["src-ip"].as_str(), end["flow-id"]["afi"].as_str());
    assert_eq!(source, (Some("127.0.0.1"), Some("ipv4")));
}

#[test]
fn client_sets_asks_and_removes_its_tag() {
    let (_scratch, server) = site("[scitags]\nexperiments = [2]\ndefault = '129'\n", false);
    let mut control = Control::log_in(server.address()).unwrap();
    assert!(control.command("FEAT").unwrap().text.contains(" SCITAG 65-65535"));
    for (command, code, expected) in [
        ("SITE SCITAG", 250, "250 SciTag 129."),
        ("SITE SCITAG 143", 250, "250 SciTag 143."),
        ("SITE SCITAG 200", 550, "550 SciTag 200: experiment 3 is not permitted here."),
        ("SITE SCITAG", 250, "250 SciTag 143."),
        ("SITE SCITAG 0", 250, "250 SciTag off."),
        ("SITE SCITAG", 250, "250 No SciTag."),
        ("SITE SCITAG 64", 501, ""),
        ("SITE SCITAG 65536", 501, ""),
        ("SITE SCITAG 99999999999999999999999", 501, ""),
        ("SITE SCITAG -1", 501, ""),
        ("SITE SCITAG 143 143", 501, ""),
        ("SITE SCITAG atlas", 501, ""),
    ] {
        let reply = control.command(command).unwrap();
        assert_eq!(reply.code, code, "{command}: {reply:?}");
        assert!(reply.text.contains(expected.trim_start_matches(|c: char| c.is_ascii_digit())), "{reply:?}");
    }
}

#[test]
fn download_with_fireflies_names_the_server_as_source() {
    let collector = Collector::new();
    let (scratch, server) = site("", false);
    let registry = scratch.join("api.json");
    let activity = r#"{"activityName":"Production Input","activityId":15}"#;
    let json = format!(
        r#"{{"version":1,"experiments":[{{"expName":"atlas","expId":2,"activities":[{activity}]}}]}}"#
    );
    fs::write(&registry, json).unwrap();
    let options = [
        "--scitag",
        "ATLAS/production input",
        "--scitag-registry",
        &text(&registry),
        "--fireflies",
        &collector.address(),
        "-p",
        "1",
    ];
    cp(&options, &server.url("f"), &text(&scratch.join("got")));
    let messages = collector.until_ended(1);
    assert!(sent(&messages) >= SIZE);
    let start = of_state(&messages, "start").next().unwrap();
    assert_ne!(start["flow-id"]["src-port"], start["flow-id"]["dst-port"]);
}

#[test]
fn tag_at_the_end_of_a_url_marks_its_copy() {
    let collector = Collector::new();
    let (scratch, server) = site("", false);
    let fireflies = ["--fireflies", &collector.address(), "-p", "1", "--scitag", "200"];
    let there = format!("{}?scitag.flow={TAG}", server.url("up"));
    cp(&fireflies, &text(&server.root().join("f")), &there);
    files::ensure_same(&server.root().join("up"), &server.root().join("f")).unwrap();
    assert!(sent(&collector.until_ended(1)) >= SIZE);
    let from = format!("{}?scitag.flow={TAG}", server.url("f"));
    cp(&fireflies, &from, &text(&scratch.join("got")));
    assert!(sent(&collector.until_ended(1)) >= SIZE);
}

#[test]
fn tag_at_the_end_of_a_path_marks_its_transfer_if_the_server_lets_it() {
    let collector = Collector::new();
    let settings = format!(
        "[scitags]\nfireflies = ['{}']\ndefault = '200'\nexperiments = [2]\nin_paths = true\n",
        collector.address()
    );
    let (scratch, server) = site(&settings, false);
    let got = scratch.join("got");
    let named = |name: &str| format!("ftp://{}/{name}%3Fscitag.flow={TAG}", server.address());
    let curl = |arguments: &[&str]| {
        let mut curl = process::command("curl");
        run(curl.arg("-sS").args(arguments), LIMIT).unwrap().succeeded().unwrap();
    };
    curl(&["-o", &text(&got), &named("f")]);
    files::ensure_same(&got, &server.root().join("f")).unwrap();
    assert!(sent(&collector.until_ended(1)) >= SIZE);
    curl(&["-T", &text(&got), &named("up")]);
    files::ensure_same(&got, &server.root().join("up")).unwrap();
    assert!(sent(&collector.until_ended(1)) >= SIZE);
    // An experiment that is not permitted is ignored.
    let mut control = Control::log_in(server.address()).unwrap();
    let (content, reply) = control.retrieve("/f?scitag.flow=200").unwrap();
    assert_eq!((content.len() as u64, reply.code), (SIZE, 226));
    assert!(server.log().contains("experiment is not permitted"), "{}", server.log());
    assert_eq!(control.command("SIZE /f?scitag.flow=64").unwrap().code, 501);
}

/// A web server that has one document.
fn web(body: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let head = BufReader::new(stream.try_clone().unwrap()).lines();
            let _ = head.map_while(Result::ok).take_while(|line| !line.is_empty()).count();
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all((head + &body).as_bytes());
        }
    });
    format!("http://{address}/api.json")
}

#[test]
fn registry_is_fetched_from_its_address_and_kept() {
    let (scratch, server) = site("", false);
    let cache = scratch.directory("cache").unwrap();
    let good = web(r#"{"experiments":[{"expName":"atlas","expId":2,"activities":[{"activityName":"Production Input","activityId":15}]}]}"#.to_owned());
    let broken = web(r#"{"experiments":[{"expName":"atlas","expId":"#.to_owned());
    let kept = cache.join("ropewalk/scitags.json");
    let old = || {
        let file = fs::File::options().write(true).open(&kept).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(2 * 86_400)).unwrap();
    };
    let copy = |url: &str| {
        let collector = Collector::new();
        let mut command = peers::ropewalk_command().unwrap();
        command.env("XDG_CACHE_HOME", &cache).env("NO_PROXY", "*").args(["cp", "-p", "1", "--scitag"]);
        command.args(["atlas/production-input", "--scitag-registry-url", url]);
        command.args(["--fireflies", &collector.address(), &server.url("f"), &text(&scratch.join("got"))]);
        let outcome = run(&mut command, LIMIT).unwrap();
        if outcome.status.success() {
            // They have the tag of this name.
            collector.until_ended(1);
        }
        outcome
    };
    let outcome = copy(&broken);
    let said = outcome.errors();
    assert!(
        outcome.status.code() == Some(2) && said.contains("line 1 column") && said.contains(&broken),
        "{said}"
    );
    assert!(!kept.exists());
    copy(&good).succeeded().unwrap();
    let content = fs::read(&kept).unwrap();
    // A copy of today is used as it is; an old one stays if there is none better.
    for url in [&broken, "http://127.0.0.1:1/api.json"] {
        copy(url).succeeded().unwrap();
        old();
        copy(url).succeeded().unwrap();
        assert_eq!(fs::read(&kept).unwrap(), content);
    }
}

#[test]
fn name_without_a_registry_is_a_clear_error() {
    let scratch = Scratch::new().unwrap();
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["cp", "--scitag", "atlas", "--scitag-registry", &text(&scratch.join("none"))]);
    let outcome = run(command.args([&text(&scratch.join("a")), &text(&scratch.join("b"))]), LIMIT).unwrap();
    assert_eq!(outcome.status.code(), Some(2), "{}", outcome.errors());
    assert!(outcome.errors().contains("registry of SciTags"), "{}", outcome.errors());
}
