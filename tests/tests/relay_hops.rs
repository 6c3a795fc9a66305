//! The data connections of each hop: drivers and numbers of streams between a relay and the servers
//! behind it are those of the relay's settings, and those before it are the client's.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::Duration;

use ropewalk_tests::process::{Outcome, run};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::{files, peers};

const LIMIT: Duration = Duration::from_secs(120);
const SIZE: u64 = (24 << 20) + 12_345;

fn server(scratch: &Scratch, name: &str, config: &str) -> Server {
    let (root, file) = (scratch.directory(name).unwrap(), scratch.join(format!("{name}.toml")));
    fs::write(&file, config).unwrap();
    let setup = Setup::new(Kind::Ropewalk, &root).argument("--anonymous-third-party");
    setup.argument("--config").argument(file).start().unwrap()
}

fn cp(via: &Server, from: &str, to: &str) -> Outcome {
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["cp", "--retries=0", "--streams=5"]).arg(format!("--via=ftp://{}", via.address()));
    run(command.args([from, to]), LIMIT).unwrap()
}

/// The transfers that a server has logged, each with its number of streams.
fn streams(server: &Server, kind: &str) -> Vec<String> {
    let kind = format!("kind=\"{kind}\"");
    let log = server.log();
    let done = log.lines().filter(|line| line.contains("transfer done") && line.contains(&kind));
    let number = |line: &str| {
        let word = line.split_whitespace().find_map(|word| word.strip_prefix("streams="));
        word.unwrap().to_owned()
    };
    done.map(number).collect()
}

#[test]
fn first_hop_over_tcp_and_the_second_over_udt_give_and_take_files() {
    let scratch = Scratch::new().unwrap();
    let far = server(&scratch, "far", "data.drivers = ['tcp', 'udt']\n");
    let plain = server(&scratch, "plain", "");
    let hop = format!("hop = [{{ to = '127.0.0.1:{}', stack = 'udt', streams = 2 }}]", far.address().port());
    let relay = server(&scratch, "relay", &format!("[relay]\nto = ['127.0.0.1']\nstreams = 3\n{hop}\n"));
    let original = scratch.join("original");
    files::write_random(&original, SIZE, 1).unwrap();
    let (original, got) = (original.display().to_string(), scratch.join("got"));
    for (name, behind, chosen, count) in [("far", &far, "udt", "2"), ("plain", &plain, "tcp", "3")] {
        cp(&relay, &original, &behind.url("f")).succeeded().unwrap();
        files::ensure_same(original.as_ref(), &scratch.join(name).join("f")).unwrap();
        cp(&relay, &behind.url("f"), &got.display().to_string()).succeeded().unwrap();
        files::ensure_same(original.as_ref(), &got).unwrap();
        let log = behind.log();
        assert_eq!(log.contains("stack=udt"), chosen == "udt", "{name}: {log}");
        for kind in ["ESTO", "RETR"] {
            assert_eq!(streams(behind, kind), [count], "{name}: {log}");
        }
    }
    // The hop of the client has its own streams, over TCP.
    let log = relay.log();
    assert!(!log.contains("stack=udt"), "{log}");
    assert_eq!(streams(&relay, "RETR"), ["5", "5"], "{log}");
}

/// Also over sessions that the relay had for another client before.
#[test]
fn all_hops_log_the_name_of_the_clients_task() {
    let scratch = Scratch::new().unwrap();
    let log = |name: &str| scratch.join(format!("{name}.log"));
    let logging = |name: &str| format!("log.transfer_log = '{}'\n", log(name).display());
    let relay = |name: &str| server(&scratch, name, &(logging(name) + "[relay]\nto = ['127.0.0.1']\n"));
    let (far, first, second) = (server(&scratch, "far", &logging("far")), relay("first"), relay("second"));
    let original = scratch.join("original");
    files::write_random(&original, 100_000, 1).unwrap();
    for task in ["job-7", "job-8"] {
        let path = format!("--via=ftp://{},ftp://{}", first.address(), second.address());
        let (original, got) = (original.display().to_string(), scratch.join(format!("got-{task}")));
        for (from, to) in [(original, far.url(task)), (far.url(task), got.display().to_string())] {
            let mut command = peers::ropewalk_command().unwrap();
            command.args(["cp", "--task-id", task, &path, &from, &to]);
            run(&mut command, LIMIT).unwrap().succeeded().unwrap();
        }
        for name in ["first", "second", "far"] {
            let log = fs::read_to_string(log(name)).unwrap();
            let line = format!("/{task} BUFFER=");
            let mut named = log.lines().filter(|moved| moved.contains(&line)).map(|moved| {
                let (_, name) = moved.split_once(" TASKID=").unwrap();
                name == task
            });
            assert!(named.next().is_some_and(|first| first) && named.all(|named| named), "{name}: {log}");
        }
    }
}

#[test]
fn far_server_without_the_driver_is_refused_with_the_reason() {
    let scratch = Scratch::new().unwrap();
    let far = server(&scratch, "far", "");
    let relay = server(&scratch, "relay", "[relay]\nto = ['127.0.0.1']\nstack = 'udt'\n");
    fs::write(scratch.join("far/f"), "f").unwrap();
    let refused = cp(&relay, &far.url("f"), &scratch.join("got").display().to_string()).failed().unwrap();
    assert!(refused.errors().contains("use the driver udt"), "{}", refused.errors());
    assert!(!scratch.join("got").exists());
}
