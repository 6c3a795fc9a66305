//! Memory stays bounded with many sessions and with many files.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use ropewalk_tests::client::{Client, Copy, Summary};
use ropewalk_tests::control::Control;
use ropewalk_tests::peers;
use ropewalk_tests::process::memory_of;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::tree;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const SESSIONS: usize = 10_000;

/// Raises the descriptor limit of this process and its children to `count`. Returns false after a
/// message if that is not allowed.
fn allow_descriptors(count: u64) -> bool {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|limit| limit >= count) {
        return true;
    }
    let maximum = now.maximum.map(|maximum| maximum.max(count));
    let wanted = Rlimit { current: Some(count), maximum };
    setrlimit(Resource::Nofile, wanted).is_ok()
        || !peers::skip(&format!("{count} descriptors are not allowed (ulimit -Hn)"))
}

fn server(scratch: &Scratch) -> Server {
    let served = scratch.directory("served").unwrap();
    fs::write(served.join("known"), b"known").unwrap();
    let config = scratch.join("server.toml");
    fs::write(&config, "[limits]\nsessions = 20000\n").unwrap();
    Setup::new(Kind::Ropewalk, &served).argument("--config").argument(config).start().unwrap()
}

#[test]
fn ten_thousand_idle_sessions_need_little_memory() {
    if !allow_descriptors(SESSIONS as u64 + 1000) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch);
    let address = server.address();
    let mut sessions: Vec<Control> = thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(move || {
                    (0..SESSIONS / 4).map(|_| Control::log_in(address).unwrap()).collect::<Vec<_>>()
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let memory = memory_of(server.pid(), "VmRSS").unwrap();
    let threads = fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().count();
    peers::loudly(&format!("{} idle sessions: {} MiB, {threads} threads", sessions.len(), memory >> 20));
    assert!(memory < 200 << 20, "{SESSIONS} idle sessions take {memory} bytes");
    assert!(threads < 300, "{SESSIONS} idle sessions take {threads} threads");

    // The server accepts another session, and the old ones are alive.
    let (data, reply) = Control::log_in(address).unwrap().retrieve("/known").unwrap();
    assert_eq!((data.as_slice(), reply.code), (&b"known"[..], 226));
    for session in sessions.iter_mut().step_by(997) {
        session.expect("NOOP", 200).unwrap();
    }
    // All sessions may become active at once.
    for session in &mut sessions {
        session.send("NOOP").unwrap();
    }
    for session in &mut sessions {
        assert_eq!(session.reply().unwrap().code, 200);
    }
    let memory = memory_of(server.pid(), "VmRSS").unwrap();
    assert!(memory < 200 << 20, "after all were awake: {memory} bytes");
}

/// Returns the peak memory of a client that copies `source` to `destination`.
fn peak_memory(
    source: impl Into<std::ffi::OsString>,
    destination: impl Into<std::ffi::OsString>,
    files: u64,
) -> u64 {
    let copy = Copy::new(source, destination).recursive();
    let mut running = Client::Ropewalk.start(&copy).unwrap();
    let mut peak = 0;
    // The high-water mark only grows, so the last sample before the end is close enough.
    while running.is_running() {
        peak = memory_of(running.pid(), "VmHWM").unwrap_or(0).max(peak);
        thread::sleep(Duration::from_millis(5));
    }
    let status = running.wait(Duration::from_secs(1)).unwrap();
    let log = running.finish();
    assert!(status.success(), "{}", &log[log.len().saturating_sub(2000)..]);
    let events: String =
        log.lines().filter(|line| line.starts_with('{')).map(|line| format!("{line}\n")).collect();
    assert_eq!(Summary::parse(&events).unwrap().number("files_done").unwrap(), files);
    assert!(peak > 0);
    peak
}

#[test]
fn client_memory_is_independent_of_file_count() {
    let scratch = Scratch::in_memory(1 << 30).unwrap();
    let server = server(&scratch);
    let (few, many) = (5_000, 20_000);
    for (name, count) in [("few", few), ("many", many)] {
        tree::make_many(&server.root().join(name), count, 0).unwrap();
        tree::make_many(&scratch.join(name), count, 0).unwrap();
    }
    let local = |path: &Path| Client::Ropewalk.local(path, true);
    let get = |name: &str, count| {
        peak_memory(server.url(format!("{name}/")), local(&scratch.join("got").join(name)), count)
    };
    let put = |name: &str, count| {
        peak_memory(local(&scratch.join(name)), server.url(format!("put/{name}/")), count)
    };
    for (way, small, large) in [
        ("get", get("few", few as u64), get("many", many as u64)),
        ("put", put("few", few as u64), put("many", many as u64)),
    ] {
        peers::loudly(&format!("{way}: {} KiB for {few} files, {} KiB for {many}", small >> 10, large >> 10));
        assert!(large < small + (8 << 20), "{way}: {small} bytes for {few} files, {large} for {many}");
    }
    let memory = memory_of(server.pid(), "VmHWM").unwrap();
    assert!(memory < 128 << 20, "the server took {memory} bytes");
}
