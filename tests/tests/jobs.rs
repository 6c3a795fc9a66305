//! `ropewalk jobs`: running copies are listed, and their limits on the rate are changed.

#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::time::{Duration, Instant};

use ropewalk_tests::process::{Outcome, Program, run};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};
use ropewalk_tests::{files, peers};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
/// At the first rate of the test it would take two days.
const SIZE: u64 = 64 << 20;

fn ropewalk(scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut command = peers::ropewalk_command().unwrap();
    command.args(arguments).env("XDG_RUNTIME_DIR", scratch.join("run"));
    command
}

fn jobs(scratch: &Scratch, arguments: &[&str]) -> Outcome {
    run(ropewalk(scratch, &["jobs"]).args(arguments), LIMIT).unwrap()
}

/// Waits until a job is listed.
fn listed(scratch: &Scratch) -> Value {
    let begun = Instant::now();
    loop {
        let list = jobs(scratch, &["--json"]).succeeded().unwrap();
        if let Some(line) = list.text().lines().next() {
            return serde_json::from_str(line).unwrap();
        }
        assert!(begun.elapsed() < LIMIT, "no job is listed");
    }
}

#[test]
fn limit_of_a_running_copy_is_changed() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    files::write_random(&root.join("f"), SIZE, 1).unwrap();
    let server = Setup::new(Kind::Ropewalk, &root).start().unwrap();
    let got = scratch.join("got");
    let mut cp = ropewalk(&scratch, &["cp", "--quiet", "--bandwidth", "Mon-Sun 300B/s, else 1MB/s"]);
    let mut copy = Program::start(cp.arg(server.url("f")).arg(&got)).unwrap();
    let job = listed(&scratch);
    assert_eq!(job["source"], server.url("f"), "{job}");
    assert_eq!(job["limit"], "00:00-24:00 300B/s, else 1000000B/s", "{job}");
    let id = job["id"].to_string();
    let text = jobs(&scratch, &[]).succeeded().unwrap().text();
    assert!(text.contains(&id) && text.contains("limit 00:00-24:00 300B/s"), "{text}");
    for (rate, reason) in [("0", "at least 1 byte/s"), ("Mon 25:00-26:00 1MB/s", "no span of time")] {
        let wrong = jobs(&scratch, &["limit", &id, rate]).failed().unwrap();
        assert!(wrong.errors().contains(reason), "{}", wrong.errors());
    }
    jobs(&scratch, &["limit", &id, "none"]).succeeded().unwrap();
    copy.wait(LIMIT).unwrap();
    files::ensure_same(&root.join("f"), &got).unwrap();
    // It has gone, with its socket.
    assert_eq!(jobs(&scratch, &["--json"]).succeeded().unwrap().text(), "");
    assert_eq!(std::fs::read_dir(scratch.join("run/ropewalk/jobs")).unwrap().count(), 0);
    let gone = jobs(&scratch, &["limit", &id, "1MB/s"]).failed().unwrap();
    assert!(gone.errors().contains("no copy of this user"), "{}", gone.errors());
}

#[test]
fn socket_of_a_killed_copy_is_removed_and_a_directory_for_all_is_not_used() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    files::write_random(&root.join("f"), SIZE, 1).unwrap();
    let server = Setup::new(Kind::Ropewalk, &root).start().unwrap();
    let cp = ["cp", "--quiet", "--bandwidth", "300B/s"];
    let start = || {
        let mut command = ropewalk(&scratch, &cp);
        Program::start(command.arg(server.url("f")).arg(scratch.join("got"))).unwrap()
    };
    let mut copy = start();
    listed(&scratch);
    copy.kill();
    assert_eq!(jobs(&scratch, &["--json"]).succeeded().unwrap().text(), "");
    let sockets = scratch.join("run/ropewalk/jobs");
    assert_eq!(std::fs::read_dir(&sockets).unwrap().count(), 0);
    // Another user could put a socket of his own there.
    std::fs::set_permissions(&sockets, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::write(root.join("small"), "x").unwrap();
    let small = [server.url("small"), scratch.join("small").display().to_string()];
    run(ropewalk(&scratch, &["cp", "--quiet"]).args(small), LIMIT).unwrap().succeeded().unwrap();
    assert_eq!(std::fs::read_dir(&sockets).unwrap().count(), 0);
}
