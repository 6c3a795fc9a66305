//! Measures this host with the real collectors.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use ropewalk_profiler::collect::{Collection, Options, Sockets};
use ropewalk_profiler::profile::{CollectorName, CollectorState, HostProfile, Role};

fn children() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .flat_map(|task| {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            children.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        })
        .collect()
}

fn left_behind() -> Vec<String> {
    let names = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    let own = |name: &String| name.starts_with("ropewalk-sar-") || name.starts_with("ropewalk-perf-");
    names.filter_map(|entry| entry.file_name().into_string().ok()).filter(own).collect()
}

/// Whether any process has this name among its arguments.
fn is_in_use(name: &str) -> bool {
    let commands = fs::read_dir("/proc").unwrap().flatten().filter_map(|process| {
        let command = fs::read(process.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&command).into_owned())
    });
    commands.into_iter().any(|command| command.contains(name))
}

#[test]
fn collection_over_loopback_uses_the_installed_collectors() {
    let before = left_behind();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let collection = Collection::start(&Options {
        role: Role::Both,
        sockets: Sockets { ports: vec![port], ..Sockets::default() },
        programs: vec![std::process::id()],
        paths: vec![std::env::temp_dir()],
        ..Options::default()
    });
    let sink = thread::spawn(move || {
        let mut bytes = 0;
        let (mut connection, _) = listener.accept().unwrap();
        let mut buffer = vec![0; 1 << 20];
        while let Ok(n) = connection.read(&mut buffer) {
            bytes += n;
            if n == 0 {
                break;
            }
        }
        bytes
    });
    let mut connection = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let block = vec![7; 1 << 20];
    // Until sar has written a sample, which takes one second.
    let begin = std::time::Instant::now();
    while begin.elapsed() < Duration::from_millis(1300) {
        connection.write_all(&block).unwrap();
    }
    let profile = collection.finish();
    drop(connection);
    assert!(sink.join().unwrap() > 1 << 20);

    let state = |name| profile.collectors.iter().find(|report| report.name == name).unwrap();
    for name in [CollectorName::Proc, CollectorName::Tcp, CollectorName::Programs, CollectorName::Facts] {
        assert_eq!(state(name).state, CollectorState::Used, "{:?}", state(name));
    }
    // The state of the other collectors depends on what is installed and allowed, but is always
    // explained.
    for name in [CollectorName::Sysstat, CollectorName::Perf] {
        assert!(!state(name).detail.is_empty(), "{:?}", state(name));
        assert_ne!(state(name).state, CollectorState::Failed, "{:?}", state(name));
    }
    assert!(!profile.system.is_empty() && profile.system.iter().all(|sample| sample.processors.len() > 1));
    assert!(profile.system.iter().any(|sample| sample.interrupts > 0.0), "{:?}", profile.collectors);
    assert_eq!(profile.connections.len(), 2);
    assert!(profile.connections.iter().all(|connection| connection.samples.len() >= 5));
    let sent =
        profile.connections.iter().map(|connection| connection.samples.last().unwrap().acknowledged.unwrap());
    assert!(sent.max().unwrap() > 1 << 20);
    assert_eq!(profile.programs.len(), 1);
    // Ropewalk accepts its own output when it comes from another host.
    let bytes = serde_json::to_vec(&profile).unwrap();
    assert_eq!(HostProfile::from_json(&bytes).unwrap().connections.len(), 2);

    // A collection that is dropped instead leaves nothing behind either.
    drop(Collection::start(&Options::default()));
    assert_eq!(children(), Vec::<String>::new());
    // This process has no children any more: a directory that is in use, now or in a moment,
    // belongs to another test.
    let left = || left_behind().into_iter().filter(|name| !before.contains(name) && !is_in_use(name));
    let until = std::time::Instant::now() + Duration::from_secs(5);
    while left().next().is_some() && std::time::Instant::now() < until {
        thread::yield_now();
    }
    assert_eq!(left().collect::<Vec<_>>(), Vec::<String>::new());
}
