//! Data connections to the control port (SITE ONEPORT), with the real program at both ends.
//!
//! The servers here cannot listen at any other port: `data.ports` names a port that is taken.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use ropewalk_tests::control::Control;
use ropewalk_tests::process::{self, Outcome, Program, run};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::sites::data_keys::Site;
use ropewalk_tests::taken_port::TakenPort;
use ropewalk_tests::{files, grid, peers};

const LIMIT: Duration = Duration::from_secs(120);
const LARGE: u64 = (60 << 20) + 12_345;

fn cp(options: &[&str], from: impl AsRef<str>, to: impl AsRef<str>) -> Outcome {
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["cp", "--json", "--one-port"]).args(options).args([from.as_ref(), to.as_ref()]);
    run(&mut command, LIMIT).unwrap()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn last_event(outcome: &Outcome) -> serde_json::Value {
    serde_json::from_str(outcome.text().lines().last().unwrap()).unwrap()
}

#[test]
fn copies_in_clear_through_one_port_are_equal() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    let (source, back) = (scratch.join("source"), scratch.join("back"));
    files::write_random(&source, LARGE, 1).unwrap();
    let taken = TakenPort::new().unwrap();
    let server = taken.server(&root, &[]).unwrap();
    for options in [&["-p", "16"][..], &["-p", "1"], &["--mode", "stream"], &[]] {
        let put = cp(options, text(&source), server.url("there")).succeeded().unwrap();
        let stack = &last_event(&put)["stacks"][0];
        assert!(stack["one_port"] == "chosen" && stack["stack"] == "tcp", "{stack}");
        files::ensure_same(&source, &root.join("there")).unwrap();
        cp(options, server.url("there"), text(&back)).succeeded().unwrap();
        files::ensure_same(&source, &back).unwrap();
        fs::remove_file(&back).unwrap();
        fs::remove_file(root.join("there")).unwrap();
    }
}

#[test]
fn trees_of_small_files_through_one_port_are_equal() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    let tree = scratch.directory("tree/below").unwrap();
    let content = |n: usize| vec![n as u8; n * 7];
    for n in 0..200 {
        fs::write(tree.join(n.to_string()), content(n)).unwrap();
    }
    let taken = TakenPort::new().unwrap();
    let server = taken.server(&root, &[]).unwrap();
    for options in [&["-r"][..], &["-r", "--mode", "stream"]] {
        let from = format!("{}/", text(&scratch.join("tree")));
        let back = format!("{}/", text(&scratch.join("back")));
        cp(options, from, server.url("tree/")).succeeded().unwrap();
        cp(options, server.url("tree/"), back).succeeded().unwrap();
        for n in 0..200 {
            assert!(fs::read(scratch.join(format!("back/below/{n}"))).unwrap() == content(n), "{n}");
        }
        fs::remove_dir_all(scratch.join("back")).unwrap();
        fs::remove_dir_all(root.join("tree")).unwrap();
    }
}

/// The control connection is protected by GSI or TLS, and data connections by a data key or TLS.
#[test]
fn copies_with_data_keys_and_tls_through_one_port_are_equal() {
    let site = Site::new();
    let taken = TakenPort::new().unwrap();
    let keys = taken.setting("require_key = true\n");
    let (_gsi, gsi) = site.serve("gsi", &keys);
    let implicit = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let tls = format!(
        "{keys}[anonymous]\nroot = 'tls-root'\nwrite = true\n[identity]\nmapped = false\n\
         [tls]\nstate_directory = 'tls'\nrequired = 'control'\nimplicit = ['{implicit}']\n"
    );
    let (_tls, port) = site.start("tls-root", &tls);
    let urls = [
        (gsi, "gsi"),
        (format!("ftpes://localhost:{port}"), "tls-root"),
        (format!("ftps://localhost:{}", implicit.port()), "tls-root"),
    ];
    for (url, root) in urls {
        let tls = if root == "gsi" { &[][..] } else { &["--accept-new"] };
        for options in [&["-p", "16"][..], &["--mode", "stream"], &["-p", "4", "--data-protection", "clear"]]
        {
            let options = [&["--one-port", "--retries", "0"], tls, options].concat();
            site.cp(&options, "source", &format!("{url}/there")).succeeded().unwrap();
            assert!(site.is_whole(&format!("{root}/there")), "{url} {options:?}");
            site.cp(&options, &format!("{url}/there"), "back").succeeded().unwrap();
            assert!(site.is_whole("back"), "{url} {options:?}");
            fs::remove_file(site.path(&format!("{root}/there"))).unwrap();
            fs::remove_file(site.path("back")).unwrap();
        }
    }
}

#[test]
fn copies_with_gsi_data_through_one_port_are_equal() {
    let site = grid::Site::new().unwrap();
    let content = site.content().unwrap();
    let taken = TakenPort::new().unwrap();
    let server = site.serve(&taken.setting(""), &[]).unwrap();
    for options in [&["-p", "16"][..], &["-p", "2", "--data-protection", "private"], &["--mode", "stream"]] {
        let options = [&["--one-port", "--retries", "0"], options].concat();
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
fn server_without_one_port_is_a_clear_error() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    let source = scratch.join("source");
    files::write_random(&source, 1000, 1).unwrap();
    if !peers::available(&["vsftpd"]) {
        return;
    }
    let server = Setup::new(Kind::Vsftpd, &root).start().unwrap();
    let outcome = cp(&[], text(&source), server.url("there")).failed().unwrap();
    let error = last_event(&outcome)["failures"][0]["error"].to_string();
    assert!(error.contains("OnePort"), "{error}");
}

#[test]
fn one_port_with_a_stack_over_udp_fails_at_once() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    files::write_random(&root.join("there"), 1000, 1).unwrap();
    let server = Setup::new(Kind::Ropewalk, &root).argument("--drivers").argument("tcp,udt").start().unwrap();
    let outcome = cp(&["--stack", "udt"], server.url("there"), text(&scratch.join("back"))).failed().unwrap();
    let finished = last_event(&outcome);
    assert!(finished["failures"][0]["error"].to_string().contains("only TCP and QUIC can"), "{finished}");
    assert_eq!(finished["retries"], 0, "{finished}");
}

fn token(control: &mut Control) -> String {
    let reply = control.expect("SITE ONEPORT", 250).unwrap();
    reply.text.trim().rsplit(' ').next().unwrap().to_owned()
}

/// A connection to the control port with this first line, and the reply to it.
fn begin(server: &Server, line: &str) -> (TcpStream, String) {
    let mut control = Control::connect(server.address()).unwrap();
    control.send_raw(line.as_bytes()).unwrap();
    let reply = control.reply().map(|reply| reply.code.to_string()).unwrap_or_default();
    (control.stream().try_clone().unwrap(), reply)
}

#[test]
fn data_connection_needs_the_token_of_a_living_channel() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    fs::write(root.join("file"), "content").unwrap();
    let taken = TakenPort::new().unwrap();
    let server = taken.server(&root, &[]).unwrap();
    let mut control = Control::log_in(server.address()).unwrap();
    let first = token(&mut control);
    let used = format!("ONEPORT {first}\r\n");
    let (mut data, reply) = begin(&server, &used);
    assert_eq!(reply, "225");
    control.expect("RETR file", 226).unwrap();
    let mut content = String::new();
    data.read_to_string(&mut content).unwrap();
    assert_eq!(content, "content");
    // The channel of MODE S has ended, and its token with it.
    assert_eq!(begin(&server, &used).1, "425");
    // A new channel has a new token, and ends the earlier one.
    let second = token(&mut control);
    let third = token(&mut control);
    assert!(second != third && first != second);
    for bad in [
        format!("ONEPORT {second}\r\n"),
        format!("ONEPORT {}\r\n", "0".repeat(32)),
        "ONEPORT \r\n".to_owned(),
        format!("ONEPORT {third}0\r\n"),
    ] {
        let (mut data, reply) = begin(&server, &bad);
        assert_eq!(reply, "425", "{bad}");
        assert_eq!(data.read(&mut [0; 9]).unwrap(), 0, "{bad}");
    }
    // Other sessions have channels of their own.
    let mut other = Control::log_in(server.address()).unwrap();
    fs::write(root.join("other"), "of another session").unwrap();
    let theirs = token(&mut other);
    let (mut data, _) = begin(&server, &format!("ONEPORT {theirs}\r\n"));
    let (mut ours, _) = begin(&server, &format!("oneport {third}\r\n"));
    other.expect("RETR other", 226).unwrap();
    content.clear();
    data.read_to_string(&mut content).unwrap();
    assert_eq!(content, "of another session");
    control.expect("RETR file", 226).unwrap();
    content.clear();
    ours.read_to_string(&mut content).unwrap();
    assert_eq!(content, "content");
    // A session that ends takes its token along.
    let last = token(&mut control);
    control.expect("QUIT", 221).unwrap();
    assert!(control.is_closed());
    assert_eq!(begin(&server, &format!("ONEPORT {last}\r\n")).1, "425");
}

#[test]
fn line_of_a_data_connection_in_two_segments_is_taken_and_a_slow_one_is_not() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    let taken = TakenPort::new().unwrap();
    let server = taken.server(&root, &[]).unwrap();
    let mut control = Control::log_in(server.address()).unwrap();
    let token = token(&mut control);
    let (head, tail) = (format!("ONEPORT {}", &token[..7]), format!("{}\r\n", &token[7..]));
    let mut slow = Control::connect(server.address()).unwrap();
    slow.send_raw(head.as_bytes()).unwrap();
    let mut split = Control::connect(server.address()).unwrap();
    split.send_raw(head.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    split.send_raw(tail.as_bytes()).unwrap();
    assert_eq!(split.reply().unwrap().code, 225);
    // Three seconds are the limit.
    assert_eq!(slow.reply().unwrap().code, 425);
    assert!(slow.is_closed());
}

/// The first bytes decide. Commands that begin like the line are commands.
#[test]
fn control_connection_that_begins_with_opts_is_a_control_connection() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    let server = Setup::new(Kind::Ropewalk, &root).start().unwrap();
    let mut control = Control::connect(server.address()).unwrap();
    control.stream().write_all(b"O").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    control.expect("PTS UTF8 ON", 530).unwrap();
    // A later line is a command, too.
    let reply = control.command(format!("ONEPORT {}", "0".repeat(32))).unwrap();
    assert_eq!(reply.code, 501);
}

#[test]
fn copies_through_one_port_work_beside_idle_connections() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    let source = scratch.join("source");
    files::write_random(&source, 5_000_000, 1).unwrap();
    let taken = TakenPort::new().unwrap();
    let server = taken.server(&root, &[]).unwrap();
    let idle: Vec<_> = (0..1000)
        .map(|n| {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            if n % 2 == 0 {
                stream.write_all(b"ONEPORT 00").unwrap();
            }
            stream
        })
        .collect();
    cp(&["-p", "16"], text(&source), server.url("there")).succeeded().unwrap();
    files::ensure_same(&source, &root.join("there")).unwrap();
    drop(idle);
}

#[test]
fn third_party_copies_through_one_port_are_equal() {
    let site = Site::new();
    let taken = TakenPort::new().unwrap();
    let keys = taken.setting("require_key = true\n");
    let (_one, one) = site.serve("one", &keys);
    let (_other, other) = site.serve("other", &keys);
    fs::copy(site.path("source"), site.path("one/a")).unwrap();
    for options in [&["-p", "16"][..], &["--mode", "stream"]] {
        let options = [&["--one-port", "--retries", "0"], options].concat();
        site.cp(&options, &format!("{one}/a"), &format!("{other}/b")).succeeded().unwrap();
        assert!(site.is_whole("other/b"), "{options:?}");
        fs::remove_file(site.path("other/b")).unwrap();
    }
    let options = ["-r", "--one-port", "--retries", "0"];
    site.cp(&options, "tree/", &format!("{one}/tree/")).succeeded().unwrap();
    site.cp(&options, &format!("{one}/tree/"), &format!("{other}/tree/")).succeeded().unwrap();
    assert!(site.tree_is_whole("other/tree"));
}

#[test]
fn upload_through_one_port_resumes_after_the_server_was_killed() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    let source = scratch.join("source");
    files::write_random(&source, LARGE, 1).unwrap();
    let taken = TakenPort::new().unwrap();
    // The second server has the port of the first one.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let serve = || {
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["serve", "--anonymous=rw", "--listen", &format!("127.0.0.1:{port}")]);
        command.args(["--data-ports", &taken.range()]).arg("--root").arg(&root);
        let program = Program::start(&mut command).unwrap();
        program.wait_for_line(LIMIT, |line| line.contains("listening").then_some(())).unwrap();
        program
    };
    let first = serve();
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["cp", "--json", "--one-port", "-p", "4", "--bandwidth", "20MB/s", &text(&source)]);
    command.arg(format!("ftp://127.0.0.1:{port}/there"));
    let mut client = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut events = BufReader::new(client.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(events.any(|line| {
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        event["event"] == "progress" && event["bytes"].as_u64() >= Some(LARGE / 3)
    }));
    drop(first);
    let _second = serve();
    let last: serde_json::Value = serde_json::from_str(&events.last().unwrap()).unwrap();
    assert!(client.wait().unwrap().success(), "{last}");
    assert!(last["retries"].as_u64() >= Some(1) && last["bytes"].as_u64() < Some(2 * LARGE), "{last}");
    files::ensure_same(&source, &root.join("there")).unwrap();
}

/// Without `--one-port`: the announced ports are behind a firewall, and the copies work all the
/// same. The second one does not try them, because the first one has stored that. Between two
/// servers only one of them can be reached, and only at its control port.
#[test]
fn copies_through_a_firewall_fall_back_to_one_port() {
    if !rustix::process::geteuid().is_root() && peers::skip("network namespaces need root") {
        return;
    }
    if !peers::available(&["unshare", "nsenter", "ip"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    files::write_random(&scratch.join("source"), 5_000_000, 1).unwrap();
    let tree = scratch.directory("tree").unwrap();
    for n in 0..50 {
        fs::write(tree.join(n.to_string()), vec![n; usize::from(n)]).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/one_port_firewall.sh");
    let mut command = process::command("unshare");
    command.args(["--net", "bash"]).arg(script).arg(peers::ropewalk().unwrap()).arg(scratch.path());
    command.env("XDG_STATE_HOME", scratch.join("state"));
    run(&mut command, LIMIT).unwrap().succeeded().unwrap();
    for (name, reason) in [("upload", "fallback"), ("download", "remembered"), ("tree", "fallback")] {
        let event = fs::read_to_string(scratch.join(format!("{name}.event"))).unwrap();
        let event: serde_json::Value = serde_json::from_str(&event).unwrap();
        assert!(event["stacks"][0]["one_port"] == reason && event["retries"] == 0, "{event}");
    }
}

/// A router that translates addresses: clients and servers behind it, get, put, between two
/// servers, and again after the client was killed.
#[test]
fn copies_through_address_translation_use_the_one_port_that_is_forwarded() {
    if !rustix::process::geteuid().is_root() && peers::skip("network namespaces need root") {
        return;
    }
    if !peers::available(&["unshare", "nsenter", "ip", "iptables"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    files::write_random(&scratch.join("source"), 5_000_000, 1).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/one_port_nat.sh");
    let mut command = process::command("unshare");
    command.args(["--net", "bash"]).arg(script).arg(peers::ropewalk().unwrap()).arg(scratch.path());
    command.env("XDG_STATE_HOME", scratch.join("state"));
    run(&mut command, LIMIT).unwrap().succeeded().unwrap();
    let event = |name: &str| -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(scratch.join(name)).unwrap()).unwrap()
    };
    let upload = event("upload.event");
    assert!(upload["stacks"][0]["one_port"] == "fallback" && upload["retries"] == 0, "{upload}");
    let again = event("again.event");
    assert!(again["bytes"].as_u64().unwrap() < 4_500_000, "{again}");
}
