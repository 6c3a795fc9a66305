//! Tests the harness itself, because a test that cannot fail proves nothing. GCT's programs are
//! used in place of Ropewalk's.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use ropewalk_tests::client::{Client, Copy, Mode, Summary};
use ropewalk_tests::control::{Control, connect_data, parse_host_port};
use ropewalk_tests::files;
use ropewalk_tests::mode_e::{EOD, block, end_of_file, header};
use ropewalk_tests::peers;
use ropewalk_tests::process::{self, Program};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup, percent_encode};
use ropewalk_tests::tree::{self, Snapshot};

const SOON: Duration = Duration::from_secs(20);

#[test]
fn ensure_same_different_files_fails() {
    let scratch = Scratch::new().unwrap();
    let (one, two) = (scratch.join("one"), scratch.join("two"));
    files::write_random(&one, 3_000_000, 1).unwrap();
    fs::copy(&one, &two).unwrap();
    files::ensure_same(&one, &two).unwrap();
    files::damage(&two, 2_999_999).unwrap();
    assert!(files::ensure_same(&one, &two).unwrap_err().to_string().contains("byte 2999999"));
    files::ensure_same_range(&one, 0, &two, 0, 2_999_999).unwrap();
    fs::File::options().write(true).open(&two).unwrap().set_len(2_999_999).unwrap();
    assert!(files::ensure_same(&one, &two).is_err());
}

#[test]
fn ensure_same_data_in_hole_fails() {
    let scratch = Scratch::new().unwrap();
    let (one, two) = (scratch.join("one"), scratch.join("two"));
    let size = 2 << 40;
    for path in [&one, &two] {
        files::write_sparse(path, size, &[(0, 10), (size - 10, 10)], 1).unwrap();
    }
    let before = bytes_read();
    files::ensure_same(&one, &two).unwrap();
    assert!(bytes_read() - before < 1 << 30, "holes were read");
    // Data at a place where the other file has a hole.
    files::damage(&two, 10 << 30).unwrap();
    assert!(files::ensure_same(&one, &two).is_err());
    assert!(files::ensure_same(&two, &one).is_err());
}

/// Returns the number of bytes that this thread has read.
fn bytes_read() -> u64 {
    let counters = fs::read_to_string("/proc/thread-self/io").unwrap();
    counters.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).unwrap()
}

#[test]
fn ensure_same_different_trees_fails() {
    let scratch = Scratch::new().unwrap();
    let (one, two) = (scratch.join("one"), scratch.join("two"));
    tree::make(&one, true).unwrap();
    tree::make(&two, true).unwrap();
    tree::ensure_same(&one, &two).unwrap();
    let before = Snapshot::take(&two).unwrap();
    assert!(before.written_since(&two).unwrap().is_empty());
    fs::remove_dir(two.join("hollow")).unwrap();
    assert!(tree::ensure_same(&one, &two).is_err());
    assert!(tree::ensure_same(&two, &one).is_err());
    fs::create_dir(two.join("hollow")).unwrap();
    files::damage(&two.join("a/b/more"), 5).unwrap();
    assert!(tree::ensure_same(&one, &two).is_err());
    assert_eq!(before.written_since(&two).unwrap(), [std::path::PathBuf::from("a/b/more")]);
}

#[test]
fn program_when_dropped_or_too_slow_is_killed() {
    let program = Program::start(process::command("sh").args(["-c", "sleep 600 & sleep 600"])).unwrap();
    let group = program.pid();
    let members = || {
        fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            // Fields: pid (name) state ppid pgrp
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
            fields.first().is_some_and(|state| *state != "Z")
                && fields.get(2) == Some(&group.to_string().as_str())
        })
    };
    let end = Instant::now() + SOON;
    while members().count() < 2 {
        assert!(Instant::now() < end);
    }
    drop(program);
    while members().count() > 0 {
        assert!(Instant::now() < end, "something was left behind");
    }
    assert!(process::run(process::command("sleep").arg("infinity"), Duration::from_millis(100)).is_err());
}

#[test]
fn addresses_and_names_are_converted() {
    assert_eq!(parse_host_port("227 Entering (127,0,0,1,4,1)"), Some(([127, 0, 0, 1], 1025).into()));
    assert_eq!(parse_host_port("227 Entering (127,0,0,1,4)"), None);
    assert_eq!(percent_encode(b"/a b/100%\xff"), "/a%20b/100%25%FF");
    let events = "{\"event\":\"planned\"}\n{\"event\":\"finished\",\"bytes\":7}\n";
    assert_eq!(Summary::parse(events).unwrap().number("bytes").unwrap(), 7);
    assert!(Summary::parse("{\"event\":\"planned\"}\n").is_err());
}

fn gct() -> Option<(Scratch, Server)> {
    if !peers::available(&["globus-gridftp-server", "globus-url-copy", "setpriv"]) {
        return None;
    }
    let scratch = Scratch::new().unwrap();
    let served = scratch.directory("served").unwrap();
    let server = Setup::new(Kind::Gct, &served).start().unwrap();
    Some((scratch, server))
}

#[test]
fn control_connection_with_gct_works() {
    let Some((_scratch, server)) = gct() else { return };
    let path = |name: &str| String::from_utf8(server.remote_path(name)).unwrap();
    let mut control = Control::log_in(server.address()).unwrap();
    assert_eq!(control.store(&path("plain"), b"hello").unwrap().code, 226);
    assert_eq!(control.retrieve(&path("plain")).unwrap().0, b"hello");
    assert!(control.retrieve(&path("missing")).unwrap().1.code >= 500);

    control.expect("MODE E", 200).unwrap();
    let address = control.passive().unwrap();
    control.send(format!("STOR {}", path("blocks"))).unwrap();
    let (mut one, mut two) = (connect_data(address).unwrap(), connect_data(address).unwrap());
    one.write_all(&block(5, b"world")).unwrap();
    one.write_all(&end_of_file(2)).unwrap();
    two.write_all(&block(0, b"hello")).unwrap();
    two.write_all(&header(EOD, 0, 0)).unwrap();
    assert_eq!(control.final_reply().unwrap().code, 226);
    assert_eq!(fs::read(server.root().join("blocks")).unwrap(), b"helloworld");
}

#[test]
fn proxy_counts_slows_and_cuts() {
    let Some((scratch, server)) = gct() else { return };
    let size = 10_000_000;
    files::write_random(&server.root().join("source"), size, 1).unwrap();
    let copy = scratch.join("copy");
    let local = Client::Guc.local(&copy, false);
    for mode in [Mode::Stream, Mode::Extended(4)] {
        let proxy = Proxy::start(server.address()).unwrap();
        let get = Copy::new(server.url_at(proxy.address(), "source"), &local).mode(mode);
        Client::Guc.run(&get).unwrap().succeeded().unwrap();
        files::ensure_same(&server.root().join("source"), &copy).unwrap();
        let (moved, before) = (proxy.moved(), proxy.data_connections());
        assert!((size..size + 17 * 200).contains(&moved), "{mode:?}: {moved} bytes");
        assert_eq!(before, if mode == Mode::Stream { 1 } else { 4 });

        proxy.set_rate(Some(20_000_000));
        let begin = Instant::now();
        Client::Guc.run(&get).unwrap().succeeded().unwrap();
        assert!(begin.elapsed() > Duration::from_millis(400), "{mode:?}: not slowed");

        proxy.cut_after(proxy.moved() + size / 2);
        Client::Guc.run(&get).unwrap().failed().unwrap();
        assert!(!proxy.cut_is_due());

        proxy.stall(true);
        let mut running = Client::Guc.start(&get).unwrap();
        let stalled_at = proxy.moved();
        std::thread::sleep(Duration::from_millis(300));
        assert!(running.is_running());
        assert_eq!(proxy.moved(), stalled_at);
        proxy.stall(false);
        assert!(running.wait(SOON).unwrap().success());
    }
}

#[test]
fn proxy_after_server_restart_reconnects() {
    let Some((scratch, mut server)) = gct() else { return };
    files::write_random(&server.root().join("source"), 1000, 1).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let copy = scratch.join("copy");
    let get = Copy::new(server.url_at(proxy.address(), "source"), Client::Guc.local(&copy, false));
    server.kill();
    Client::Guc.run(&get).unwrap().failed().unwrap();
    server.restart().unwrap();
    proxy.set_target(server.address());
    Client::Guc.run(&get).unwrap().succeeded().unwrap();
    files::ensure_same(&server.root().join("source"), &copy).unwrap();
}
