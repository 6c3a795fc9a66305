//! Data connections over QUIC between Ropewalk's programs.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ropewalk_tests::process::{Program, run};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};
use ropewalk_tests::sites::data_keys::Site;
use ropewalk_tests::{files, grid, peers};

const LIMIT: Duration = Duration::from_secs(120);
const WITH_KEYS: &str = "[data]\nrequire_key = true\ndrivers = ['tcp', 'gsi', 'quic']";
const QUIC: [&str; 4] = ["--stack", "quic", "--retries", "0"];

fn with<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&QUIC[..], options].concat()
}

/// A writable server for anonymous users that offers QUIC.
fn server(root: &Path) -> Setup {
    Setup::new(Kind::Ropewalk, root).argument("--drivers").argument("tcp,quic")
}

#[test]
fn copies_over_quic_with_data_keys_are_equal() {
    let site = Site::new();
    let (_server, url) = site.serve("root", WITH_KEYS);
    for options in [&["-p", "1"][..], &["-p", "4"], &["--mode", "stream"]] {
        site.cp(&with(options), "source", &format!("{url}/there")).succeeded().unwrap();
        assert!(site.is_whole("root/there"), "{options:?}");
        site.cp(&with(options), &format!("{url}/there"), "back").succeeded().unwrap();
        assert!(site.is_whole("back"), "{options:?}");
        fs::remove_file(site.path("root/there")).unwrap();
        fs::remove_file(site.path("back")).unwrap();
    }
    for options in [&["-r"][..], &["-r", "--mode", "stream"]] {
        site.cp(&with(options), "tree/", &format!("{url}/tree/")).succeeded().unwrap();
        assert!(site.tree_is_whole("root/tree"), "{options:?}");
        site.cp(&with(options), &format!("{url}/tree/"), "again/").succeeded().unwrap();
        assert!(site.tree_is_whole("again"), "{options:?}");
        fs::remove_dir_all(site.path("root/tree")).unwrap();
        fs::remove_dir_all(site.path("again")).unwrap();
    }
}

#[test]
fn third_party_copies_over_quic_are_equal() {
    let site = Site::new();
    let (_one, one) = site.serve("one", WITH_KEYS);
    let (_other, other) = site.serve("other", WITH_KEYS);
    fs::copy(site.path("source"), site.path("one/a")).unwrap();
    let ends = ["--source-stack", "quic", "--destination-stack", "quic:congestion=cubic"];
    for options in [with(&["-p", "4"]), with(&["--mode", "stream"]), ends.to_vec()] {
        site.cp(&options, &format!("{one}/a"), &format!("{other}/b")).succeeded().unwrap();
        assert!(site.is_whole("other/b"), "{options:?}");
        fs::remove_file(site.path("other/b")).unwrap();
    }
    site.cp(&with(&["-r"]), "tree/", &format!("{one}/tree/")).succeeded().unwrap();
    site.cp(&with(&["-r"]), &format!("{one}/tree/"), &format!("{other}/tree/")).succeeded().unwrap();
    assert!(site.tree_is_whole("other/tree"));
}

/// A server that requires private data takes QUIC with a data key in place of PROT P, and says what
/// is missing otherwise.
#[test]
fn copies_over_quic_with_a_key_are_private_enough_for_the_rule() {
    let site = Site::new();
    let drivers = "[data]\ndrivers = ['tcp', 'gsi', 'quic']";
    let all = format!("{drivers}\n[tls]\nenabled = false\nrequired = 'data'");
    let account = format!("{drivers}\n[defaults]\nprotection = 'data'");
    for (root, rule, subject) in [("one", &all, "This server"), ("other", &account, "This account")] {
        let (_server, url) = site.serve(root, rule);
        site.cp(&QUIC, "source", &format!("{url}/there")).succeeded().unwrap();
        assert!(site.is_whole(&format!("{root}/there")));
        site.cp(&with(&["--mode", "stream"]), &format!("{url}/there"), "back").succeeded().unwrap();
        assert!(site.is_whole("back"));
        fs::remove_file(site.path("back")).unwrap();
        site.cp(&with(&["-r"]), "tree/", &format!("{url}/tree/")).succeeded().unwrap();
        assert!(site.tree_is_whole(&format!("{root}/tree")));

        let text = site.cp(&["--retries", "0"], "source", &format!("{url}/c")).failed().unwrap().errors();
        assert!(
            text.contains("521") && text.contains(subject) && text.contains("SETNETSTACK quic"),
            "{text}"
        );
        // GSI without PROT P proves who is there, but not that no one is between.
        let mut command = site.command();
        command.args(["cp", "--quiet"]).args(QUIC).args(["source", &format!("{url}/c")]);
        let text = run(&mut command, LIMIT).unwrap().failed().unwrap().errors();
        assert!(text.contains("521") && text.contains("does not know its peer"), "{text}");
        assert!(!site.path(root).join("c").exists());
    }
}

/// With TLS, PROT C and a key.
#[test]
fn copy_over_quic_within_tls_needs_no_second_encryption() {
    let site = Site::new();
    fs::create_dir(site.path("root")).unwrap();
    let text = format!(
        "[data]\ndrivers = ['tcp', 'quic']\n[anonymous]\nroot = '{}'\nwrite = true\n\
         [identity]\nmapped = false\n[tls]\nstate_directory = 'tls'\nrequired = 'data'\n",
        site.path("root").display()
    );
    let (_server, port) = site.start("empty", &text);
    let url = format!("ftpes://localhost:{port}/there");
    let clear = ["--accept-new", "--data-protection", "clear", "--retries", "0"];
    let quic = [&clear[..], &["--stack", "quic"]].concat();
    site.cp(&quic, "source", &url).succeeded().unwrap();
    assert!(site.is_whole("root/there"));
    let text = site.cp(&clear, "source", &url).failed().unwrap().errors();
    assert!(text.contains("521") && text.contains("SETNETSTACK quic"), "{text}");
}

#[test]
fn copies_over_quic_with_gsi_are_equal() {
    let site = grid::Site::new().unwrap();
    let content = site.content().unwrap();
    let server = site.serve("[data]\ndrivers = ['tcp', 'gsi', 'quic']\n", &[]).unwrap();
    for options in [&["-p", "4"][..], &["-p", "1", "--data-protection", "private"]] {
        let url = format!("{}/copy", server.url);
        site.cp(&with(options), "source", &url).unwrap().succeeded().unwrap();
        assert!(fs::read(site.path("root/copy")).unwrap() == content, "{options:?}");
        site.cp(&with(options), &url, "back").unwrap().succeeded().unwrap();
        assert!(fs::read(site.path("back")).unwrap() == content, "{options:?}");
        fs::remove_file(site.path("root/copy")).unwrap();
        fs::remove_file(site.path("back")).unwrap();
    }
}

/// A copy with `quic` in its stack uses nothing else, and fails before any data moves.
#[test]
fn copy_over_quic_with_a_server_without_quic_fails() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    files::write_random(&scratch.join("source"), 100_000, 1).unwrap();
    let mut servers = vec![Setup::new(Kind::Ropewalk, &root).start().unwrap()];
    if peers::available(&["vsftpd"]) {
        servers.push(Setup::new(Kind::Vsftpd, &root).start().unwrap());
    }
    for server in &servers {
        let mut command = peers::ropewalk_command().unwrap();
        command.arg("cp").args(QUIC).arg(scratch.join("source")).arg(server.url("there"));
        let errors = run(&mut command, LIMIT).unwrap().failed().unwrap().errors();
        assert!(errors.contains("quic"), "{errors}");
        assert!(fs::read_dir(&root).unwrap().next().is_none(), "{errors}");
    }
}

/// Starts a copy of this many bytes per second, and returns when it has moved `bytes`.
fn copy_until(from: &str, to: &str, bytes: u64) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut command = peers::ropewalk_command().unwrap();
    // The windows may be full on a busy machine, and the sender counts their bytes as sent.
    let stack = "quic:sndbuf=1048576;rcvbuf=1048576";
    command.args(["cp", "--json", "--stack", stack, "-p", "2", "--bandwidth", "20MB/s", from, to]);
    let mut client = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut events = BufReader::new(client.stdout.take().unwrap()).lines().map(Result::unwrap);
    let moved = events.any(|line| {
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        event["event"] == "progress" && event["bytes"].as_u64() >= Some(bytes)
    });
    assert!(moved);
    (client, events)
}

const LARGE: u64 = (60 << 20) + 12_345;
const MOVED: u64 = 20 << 20;

#[test]
fn upload_over_quic_resumes_after_the_client_was_killed() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    let source = scratch.join("source");
    files::write_random(&source, LARGE, 1).unwrap();
    let server = server(&root).start().unwrap();
    let source_text = source.display().to_string();
    let (mut client, _) = copy_until(&source_text, &server.url("there"), MOVED);
    client.kill().unwrap();
    client.wait().unwrap();
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["cp", "--json", "--stack", "quic", &source_text, &server.url("there")]);
    let events = run(&mut command, LIMIT).unwrap().succeeded().unwrap().text();
    let last: serde_json::Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    assert!(last["bytes_resumed"].as_u64().unwrap() > MOVED / 2, "{last}");
    let stack = &last["stacks"][0];
    assert!(stack["stack"] == "quic" && stack["reason"] == "chosen", "{last}");
    files::ensure_same(&source, &root.join("there")).unwrap();
}

#[test]
fn download_over_quic_resumes_after_the_server_was_killed() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    files::write_random(&root.join("source"), LARGE, 2).unwrap();
    // The second server has the port of the first one.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let serve = || {
        let mut command: Command = peers::ropewalk_command().unwrap();
        command.args(["serve", "--anonymous", "--drivers", "quic", "--listen", &format!("127.0.0.1:{port}")]);
        command.arg("--root").arg(&root);
        let program = Program::start(&mut command).unwrap();
        program.wait_for_line(LIMIT, |line| line.contains("listening").then_some(())).unwrap();
        program
    };
    let first = serve();
    let to = scratch.join("copy");
    let url = format!("ftp://127.0.0.1:{port}/source");
    let (mut client, events) = copy_until(&url, &to.display().to_string(), MOVED);
    drop(first);
    let _second = serve();
    let last: serde_json::Value = serde_json::from_str(&events.last().unwrap()).unwrap();
    assert!(client.wait().unwrap().success(), "{last}");
    assert!(last["retries"].as_u64() >= Some(1), "{last}");
    assert!(last["bytes"].as_u64() < Some(LARGE + MOVED), "{last}");
    files::ensure_same(&root.join("source"), &to).unwrap();
}
