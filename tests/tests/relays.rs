//! Relays: copies through servers that reach other servers on behalf of their clients, with the
//! real program at all ends, and with foreign servers at the far end.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use ropewalk_tests::control::Control;
use ropewalk_tests::fake_server::{Data, FakeServer};
use ropewalk_tests::grid::Site;
use ropewalk_tests::process::{Outcome, Program, run};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::{files, peers};

const LIMIT: Duration = Duration::from_secs(120);
const LARGE: u64 = (40 << 20) + 12_345;

/// A server that is a relay to this host.
fn relay(scratch: &Scratch, name: &str) -> Server {
    let root = scratch.directory(name).unwrap();
    let setup = Setup::new(Kind::Ropewalk, &root).argument("--anonymous-third-party");
    setup.argument("--relay-to").argument("127.0.0.1").start().unwrap()
}

/// A server that is a relay to this host, with more settings of relays.
fn relay_with(scratch: &Scratch, name: &str, settings: &str) -> Server {
    let config = scratch.join(format!("{name}.toml"));
    fs::write(&config, format!("[relay]\nto = ['127.0.0.1']\n{settings}\n")).unwrap();
    let root = scratch.directory(name).unwrap();
    Setup::new(Kind::Ropewalk, &root).argument("--config").argument(&config).start().unwrap()
}

fn server(scratch: &Scratch, name: &str) -> Server {
    let root = scratch.directory(name).unwrap();
    let setup = Setup::new(Kind::Ropewalk, &root).argument("--anonymous-third-party");
    setup.start().unwrap()
}

fn cp(arguments: &[&str]) -> Outcome {
    run(peers::ropewalk_command().unwrap().arg("cp").args(arguments), LIMIT).unwrap()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// The URL of a server without a path.
fn base(server: &Server) -> String {
    format!("ftp://{}", server.address())
}

#[test]
fn copies_through_relays_are_equal() {
    let scratch = Scratch::new().unwrap();
    let (a, d) = (server(&scratch, "a"), server(&scratch, "d"));
    let (b, c) = (relay(&scratch, "b"), relay(&scratch, "c"));
    let original = scratch.join("a/large");
    files::write_random(&original, LARGE, 1).unwrap();
    let via = |relays: &[&Server]| relays.iter().map(|relay| base(relay)).collect::<Vec<_>>().join(",");
    for (name, relays) in [("one", vec![&b]), ("two", vec![&b, &c])] {
        let got = scratch.join(format!("got-{name}"));
        cp(&["--via", &via(&relays), &a.url("large"), &text(&got)]).succeeded().unwrap();
        files::ensure_same(&original, &got).unwrap();
        let put = format!("put-{name}");
        cp(&["--via", &via(&relays), &text(&original), &d.url(&put)]).succeeded().unwrap();
        files::ensure_same(&original, &scratch.join(format!("d/{put}"))).unwrap();
        // Between two servers.
        let sent = format!("sent-{name}");
        cp(&["--via", &via(&relays), &a.url("large"), &d.url(&sent)]).succeeded().unwrap();
        files::ensure_same(&original, &scratch.join(format!("d/{sent}"))).unwrap();
    }
    // The split form of URLs is the same.
    let split = format!("{}/{}", base(&b), a.url("large"));
    cp(&["--mode", "stream", &split, &text(&scratch.join("split"))]).succeeded().unwrap();
    files::ensure_same(&original, &scratch.join("split")).unwrap();
    // Nothing is kept on the way, and no part files at the destination.
    assert_eq!(fs::read_dir(scratch.join("b")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(scratch.join("d")).unwrap().count(), 4);
}

#[test]
fn trees_through_a_relay_are_equal() {
    let scratch = Scratch::new().unwrap();
    let (a, b) = (server(&scratch, "a"), relay(&scratch, "b"));
    let tree = scratch.directory("tree/below").unwrap();
    let content = |n: usize| vec![n as u8; n * 7];
    for n in 0..60 {
        fs::write(tree.join(n.to_string()), content(n)).unwrap();
    }
    let from = format!("{}/", text(&scratch.join("tree")));
    let back = format!("{}/", text(&scratch.join("back")));
    cp(&["-r", "--via", &base(&b), &from, &a.url("tree/")]).succeeded().unwrap();
    cp(&["-r", "--via", &base(&b), &a.url("tree/"), &back]).succeeded().unwrap();
    for n in 0..60 {
        assert!(fs::read(scratch.join(format!("back/below/{n}"))).unwrap() == content(n), "{n}");
    }
}

#[test]
fn commands_for_names_through_a_relay_work_at_the_far_server() {
    let scratch = Scratch::new().unwrap();
    let (a, b) = (server(&scratch, "a"), relay(&scratch, "b"));
    let far = format!("/{}", base(&a));
    let mut control = Control::log_in(b.address()).unwrap();
    control.expect(format!("MKD {far}/d"), 257).unwrap();
    control.store(&format!("{far}/d/f"), b"hello").unwrap();
    assert_eq!(fs::read(scratch.join("a/d/f")).unwrap(), b"hello");
    control.expect(format!("MFMT 20010203040506 {far}/d/f"), 213).unwrap();
    let size = control.expect(format!("SIZE {far}/d/f"), 213).unwrap();
    assert!(size.text.contains('5'), "{size:?}");
    let sum = control.expect(format!("CKSM MD5 0 -1 {far}/d/f"), 213).unwrap();
    assert!(sum.text.contains("5d41402abc4b2a76b9719d911017c592"), "{sum:?}");
    let entry = control.expect(format!("MLST {far}/d/f"), 250).unwrap();
    assert!(entry.text.contains("20010203040506"), "{entry:?}");
    let (listing, _) = control.retrieve(&format!("{far}/d/f")).unwrap();
    assert_eq!(listing, b"hello");
    control.expect(format!("RNFR {far}/d/f"), 350).unwrap();
    control.expect(format!("RNTO {far}/d/g"), 250).unwrap();
    control.expect(format!("RMD {far}/d"), 451).unwrap();
    control.expect(format!("CWD {far}/d"), 250).unwrap();
    control.expect("DELE g", 250).unwrap();
    control.expect(format!("RMD {far}/d"), 250).unwrap();
    assert_eq!(fs::read_dir(scratch.join("a")).unwrap().count(), 0);
    // A file does not move between servers by a rename.
    fs::write(scratch.join("b/here"), b"x").unwrap();
    control.expect("RNFR /here", 350).unwrap();
    assert!(control.command(format!("RNTO {far}/there")).unwrap().code >= 400);
    assert!(scratch.join("b/here").exists());
}

#[test]
fn relay_sends_markers_while_the_far_server_computes_a_checksum() {
    let scratch = Scratch::new().unwrap();
    let (seen, marker_was_seen) = mpsc::channel();
    let marker_was_seen = Mutex::new(marker_was_seen);
    let far = FakeServer::start(
        1 << 40,
        Arc::new(move |_: &str, _: &Data, control: &mut TcpStream| {
            // No word before the client has a marker of the relay.
            marker_was_seen.lock().unwrap().recv()?;
            Ok(control.write_all(b"213 5d41402abc4b2a76b9719d911017c592\r\n")?)
        }),
    )
    .unwrap();
    let b = relay(&scratch, "b");
    let mut control = Control::log_in(b.address()).unwrap();
    control.expect("OPTS CKSM markers=1;", 200).unwrap();
    let command = format!("CKSM MD5 0 -1 /ftp://{}/f", far.address());
    control.send(&command).unwrap();
    let marker = control.reply().unwrap();
    assert!(marker.code == 113 && marker.text.contains("Bytes Processed: 0"), "{marker:?}");
    seen.send(()).unwrap();
    let sum = control.final_reply().unwrap();
    assert!(sum.code == 213 && sum.text.contains("5d41402abc4b2a76b9719d911017c592"), "{sum:?}");
    // ABOR ends the wait, and the relay serves on.
    control.send(&command).unwrap();
    assert_eq!(control.reply().unwrap().code, 113);
    control.send("ABOR").unwrap();
    assert_eq!(control.final_reply().unwrap().code, 426);
    assert_eq!(control.final_reply().unwrap().code, 226);
    control.expect("NOOP", 200).unwrap();
}

#[test]
fn servers_that_the_rules_do_not_permit_are_refused_with_the_reason() {
    let scratch = Scratch::new().unwrap();
    let (a, b) = (server(&scratch, "a"), relay(&scratch, "b"));
    let mut control = Control::log_in(b.address()).unwrap();
    let chain: String = (0..50).map(|n| format!("/ftp://h{n}")).collect();
    for (path, reason) in [
        ("/ftp://127.0.0.2:99/f".to_owned(), "permit no connection to 127.0.0.2"),
        ("/http://127.0.0.1/f".to_owned(), "is not relayed"),
        ("/ftp://ada:secret@127.0.0.1/f".to_owned(), "user name or password"),
        (format!("/ftp://{0}/ftp://127.0.0.1:1/ftp://{0}/f", a.address()), "twice"),
        (format!("{chain}/f"), "more than 8 relays"),
        (format!("/{}/f", base(&b)), "is this relay itself"),
    ] {
        let reply = control.command(format!("MLST {path}")).unwrap();
        assert!(reply.code >= 500 && reply.text.contains(reason), "{path}: {reply:?}");
        assert!(!reply.text.contains("secret"), "{reply:?}");
    }
    // A server that is no relay has a directory of this name, or nothing.
    let mut control = Control::log_in(a.address()).unwrap();
    control.expect(format!("MLST /{}/", base(&b)), 550).unwrap();
    let refused = cp(&["--via", &base(&a), &b.url("f"), &text(&scratch.join("f"))]).failed().unwrap();
    assert!(refused.errors().contains("only a relay leads to the server"), "{}", refused.errors());
}

#[test]
fn transfers_whose_hops_break_are_resumed_without_a_wrong_byte() {
    let scratch = Scratch::new().unwrap();
    let (a, mut b) = (server(&scratch, "a"), relay(&scratch, "b"));
    let original = scratch.join("a/large");
    files::write_random(&original, LARGE, 2).unwrap();
    let proxy = Proxy::start(a.address()).unwrap();
    let far = |name: &str| {
        format!("ftp://{}{}", proxy.address(), a.url(name).split_once(&a.address().to_string()).unwrap().1)
    };
    proxy.cut_after(10 << 20);
    let got = scratch.join("got");
    cp(&["--retry-pause", "100ms", "--via", &base(&b), &far("large"), &text(&got)]).succeeded().unwrap();
    files::ensure_same(&original, &got).unwrap();
    proxy.cut_after(10 << 20);
    cp(&["--retry-pause", "100ms", "--via", &base(&b), &text(&original), &far("put")]).succeeded().unwrap();
    files::ensure_same(&original, &scratch.join("a/put")).unwrap();
    // The relay itself is killed, and starts again at another port.
    let front = Proxy::start(b.address()).unwrap();
    let through = format!("ftp://{}", front.address());
    proxy.set_rate(Some(20 << 20));
    let moved = proxy.moved();
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["cp", "--retry-pause", "200ms", "--via", &through, &text(&original), &far("killed")]);
    let mut copying = Program::start(&mut command).unwrap();
    proxy.wait_for(moved + (8 << 20), LIMIT).unwrap();
    b.kill();
    b.restart().unwrap();
    front.set_target(b.address());
    proxy.set_rate(None);
    assert!(copying.wait(LIMIT).unwrap().success(), "{}", copying.log());
    files::ensure_same(&original, &scratch.join("a/killed")).unwrap();
}

#[test]
fn upload_that_is_resumed_is_verified_at_the_far_server() {
    let scratch = Scratch::new().unwrap();
    let (a, b) = (server(&scratch, "a"), relay(&scratch, "b"));
    let original = scratch.join("large");
    files::write_random(&original, LARGE, 9).unwrap();
    let proxy = Proxy::start(a.address()).unwrap();
    let (via, original_text, put) = (base(&b), text(&original), through(&proxy, &a, "put"));
    proxy.cut_after(30 << 20);
    cp(&["--retries", "0", "--via", &via, &original_text, &put]).failed().unwrap();
    let before = proxy.moved();
    cp(&["--via", &via, &original_text, &put]).succeeded().unwrap();
    files::ensure_same(&original, &scratch.join("a/put")).unwrap();
    // Nothing of it has come back.
    assert!(proxy.moved() - before < LARGE, "{}", proxy.moved() - before);
}

/// The URL of a file at a server behind a proxy.
fn through(proxy: &Proxy, server: &Server, name: &str) -> String {
    server.url_at(proxy.address(), name)
}

#[test]
fn bytes_leave_a_relay_before_the_last_ones_arrive() {
    let scratch = Scratch::new().unwrap();
    let (a, b) = (server(&scratch, "a"), relay(&scratch, "b"));
    let original = scratch.join("a/large");
    files::write_random(&original, LARGE, 5).unwrap();
    let (far, near) = (Proxy::start(a.address()).unwrap(), Proxy::start(b.address()).unwrap());
    let via = format!("ftp://{}", near.address());
    let (got, there) = (text(&scratch.join("got")), through(&far, &a, "large"));
    let (original, put) = (text(&original), through(&far, &a, "put"));
    for (from, to, source, destination) in [(&there, &got, &far, &near), (&original, &put, &near, &far)] {
        let (begun, out) = (source.moved(), destination.moved());
        source.set_rate(Some(20 << 20));
        let mut command = peers::ropewalk_command().unwrap();
        let mut copying = Program::start(command.args(["cp", "--via", &via, from, to])).unwrap();
        source.wait_for(begun + (8 << 20), LIMIT).unwrap();
        source.stall(true);
        // The source is held, and the destination gets bytes all the same.
        destination.wait_for(out + (4 << 20), LIMIT).unwrap();
        assert!(source.moved() - begun < LARGE / 2, "{}", source.moved() - begun);
        source.set_rate(None);
        source.stall(false);
        assert!(copying.wait(LIMIT).unwrap().success(), "{}", copying.log());
    }
    files::ensure_same(Path::new(&original), Path::new(&got)).unwrap();
    files::ensure_same(Path::new(&original), &scratch.join("a/put")).unwrap();
}

/// The most bytes that the kernel keeps for one connection: in the socket of its sender, and in
/// that of its receiver.
fn socket_buffers() -> u64 {
    let most = |name: &str| -> u64 {
        let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap();
        text.split_whitespace().last().unwrap().parse().unwrap()
    };
    most("tcp_rmem") + most("tcp_wmem")
}

/// Memory of a process in bytes that is not a file's.
fn anonymous_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn relay_holds_no_more_than_its_memory_while_the_next_hop_stands_still() {
    const MEMORY: u64 = 8 << 20;
    const SIZE: u64 = 96 << 20;
    let scratch = Scratch::new().unwrap();
    let (a, b) = (server(&scratch, "a"), relay_with(&scratch, "b", "memory = '8MiB'"));
    let original = scratch.join("a/large");
    files::write_random(&original, SIZE, 6).unwrap();
    let (far, near) = (Proxy::start(a.address()).unwrap(), Proxy::start(b.address()).unwrap());
    let via = format!("ftp://{}", near.address());
    let (got, there) = (text(&scratch.join("got")), through(&far, &a, "large"));
    let (original, put) = (text(&original), through(&far, &a, "put"));
    // Bytes that the relay has taken are in its memory, or in the kernel's on both sides of it.
    let most = MEMORY + 2 * socket_buffers();
    assert!(most < SIZE, "sockets of this host hold a whole file");
    for (from, to, source, destination) in [(&there, &got, &far, &near), (&original, &put, &near, &far)] {
        let (begun, before) = (source.moved(), anonymous_memory(b.pid()));
        destination.stall(true);
        let mut command = peers::ropewalk_command().unwrap();
        let mut copying = Program::start(command.args(["cp", "-p", "1", "--via", &via, from, to])).unwrap();
        source.wait_for(begun + MEMORY, LIMIT).unwrap();
        // More than that does not come, however long the wait.
        source.wait_for(begun + most, Duration::from_secs(2)).unwrap_err();
        let grown = anonymous_memory(b.pid()).saturating_sub(before);
        assert!(grown < 3 * MEMORY, "{grown} bytes");
        destination.stall(false);
        assert!(copying.wait(LIMIT).unwrap().success(), "{}", copying.log());
    }
    files::ensure_same(Path::new(&original), Path::new(&got)).unwrap();
    files::ensure_same(Path::new(&original), &scratch.join("a/put")).unwrap();
}

/// The bytes that the last server had when the client reported that a relay passes them on.
fn forwarded(log: &str) -> Vec<u64> {
    log.lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|event| event["event"] == "forwarding")
        .filter_map(|event| event["stored"].as_u64())
        .collect()
}

#[test]
fn spool_takes_a_file_while_the_next_hop_stands_still() {
    const MEMORY: u64 = 8 << 20;
    const SIZE: u64 = 96 << 20;
    let scratch = Scratch::new().unwrap();
    let spool = scratch.directory("spool").unwrap();
    let settings = format!("memory = '8MiB'\nspool = '{}'", spool.display());
    let (a, b) = (server(&scratch, "a"), relay_with(&scratch, "b", &settings));
    let original = scratch.join("a/large");
    files::write_random(&original, SIZE, 8).unwrap();
    let (far, near) = (Proxy::start(a.address()).unwrap(), Proxy::start(b.address()).unwrap());
    let via = format!("ftp://{}", near.address());
    let (got, there) = (text(&scratch.join("got")), through(&far, &a, "large"));
    let (original, put) = (text(&original), through(&far, &a, "put"));
    for (from, to, source, destination) in [(&there, &got, &far, &near), (&original, &put, &near, &far)] {
        let (begun, before) = (source.moved(), anonymous_memory(b.pid()));
        destination.stall(true);
        let mut command = peers::ropewalk_command().unwrap();
        // The slow hop needs longer for the rest than the client waits without progress.
        command.args(["cp", "--json", "-p", "1", "--stall-limit", "1/6s", "--reply-timeout", "6s"]);
        command.args(["--retries", "0", "--via", &via, from, to]);
        let mut copying = Program::start(&mut command).unwrap();
        source.wait_for(begun + SIZE, LIMIT).unwrap();
        let grown = anonymous_memory(b.pid()).saturating_sub(before);
        assert!(grown < 3 * MEMORY, "{grown} bytes");
        destination.set_rate(Some(10 << 20));
        destination.stall(false);
        assert!(copying.wait(LIMIT).unwrap().success(), "{}", copying.log());
        destination.set_rate(None);
        let stored = forwarded(&copying.finish());
        // A download is at its destination when it has arrived here.
        if from == &original {
            assert!(stored.len() > 2 && stored.is_sorted() && stored[0] < SIZE, "{stored:?}");
        } else {
            assert!(stored.is_empty(), "{stored:?}");
        }
    }
    files::ensure_same(Path::new(&original), Path::new(&got)).unwrap();
    files::ensure_same(Path::new(&original), &scratch.join("a/put")).unwrap();
    assert_eq!(fs::read_dir(&spool).unwrap().count(), 0);
}

#[test]
fn relay_without_a_directory_for_its_spool_does_not_start() {
    let config = Scratch::new().unwrap();
    let file = config.join("relay.toml");
    fs::write(&file, "[relay]\nto = ['127.0.0.1']\nspool = '/nowhere/spool'\n").unwrap();
    let mut command = peers::ropewalk_command().unwrap();
    command
        .args(["serve", "--anonymous", "--root", "/srv", "--listen", "127.0.0.1:0", "--config"])
        .arg(&file);
    let outcome = run(&mut command, LIMIT).unwrap().failed().unwrap();
    assert!(outcome.errors().contains("relay.spool: /nowhere/spool"), "{}", outcome.errors());
}

#[test]
fn foreign_servers_behind_a_relay_get_and_give_files() {
    for (kind, program) in [(Kind::Gct, "globus-gridftp-server"), (Kind::Vsftpd, "vsftpd")] {
        if !peers::available(&[program]) {
            continue;
        }
        let scratch = Scratch::new().unwrap();
        let root = scratch.directory("far").unwrap();
        let far = Setup::new(kind, &root).start().unwrap();
        let b = relay(&scratch, "b");
        let original = scratch.join("original");
        files::write_random(&original, 9 << 20, 3).unwrap();
        cp(&["--via", &base(&b), &text(&original), &far.url("f")]).succeeded().unwrap();
        let there = root.join("f");
        files::ensure_same(&original, &there).unwrap();
        let got = scratch.join("got");
        cp(&["--via", &base(&b), &far.url("f"), &text(&got)]).succeeded().unwrap();
        files::ensure_same(&original, &got).unwrap();
    }
}

/// The user's delegated proxy goes down a chain of relays, to our server and to GCT's.
#[test]
fn delegated_credential_logs_in_at_far_servers() {
    let site = Site::new().unwrap();
    let gct = peers::available(&["globus-gridftp-server"]).then(|| site.gct(&[]).unwrap());
    let ours = site.serve("", &[]).unwrap();
    let relay = || site.serve("[relay]\nto = ['127.0.0.1', 'localhost']\nprivate = true\n", &[]).unwrap();
    let (b, c) = (relay(), relay());
    let at = |address: std::net::SocketAddr| format!("gsiftp://localhost:{}", address.port());
    let original = site.path("original");
    files::write_random(&original, LARGE, 4).unwrap();
    for (name, far) in [("ours", Some(&ours)), ("gct", gct.as_ref())] {
        let Some(far) = far else { continue };
        for (relays, via) in [("one", at(b.address)), ("two", format!("{},{}", at(b.address), at(c.address)))]
        {
            let there = format!("{}/{name}-{relays}", far.url);
            let put = site.cp(&["--via", &via], &text(&original), &there).unwrap();
            put.succeeded().unwrap();
            files::ensure_same(&original, &site.path("root").join(format!("{name}-{relays}"))).unwrap();
            let back = site.path(&format!("back-{name}-{relays}"));
            site.cp(&["--via", &via], &there, &text(&back)).unwrap().succeeded().unwrap();
            files::ensure_same(&original, &back).unwrap();
        }
    }
    // Nothing continues without the credential, and the reason is named.
    let there = format!("{}/ours-one", ours.url);
    for (options, reason) in
        [(&["--no-delegate", "--no-dcau"][..], "delegate a proxy"), (&["--insecure"][..], "")]
    {
        let mut options = options.to_vec();
        let via = at(b.address);
        options.extend(["--retries", "0", "--via", &via]);
        let refused = site.cp(&options, &there, &text(&site.path("none"))).unwrap();
        assert!(!refused.status.success() && refused.errors().contains(reason), "{}", refused.errors());
    }
    // A server that offers no certificates gets nothing in clear.
    let scratch = Scratch::new().unwrap();
    let plain = server(&scratch, "plain");
    fs::write(scratch.join("plain/f"), "secret").unwrap();
    let there = format!("gsiftp://127.0.0.1:{}/f", plain.address().port());
    let refused =
        site.cp(&["--retries", "0", "--via", &at(b.address)], &there, &text(&site.path("none"))).unwrap();
    assert!(refused.errors().contains("does not continue in clear"), "{}", refused.errors());
}
