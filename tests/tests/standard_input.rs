//! Copies and their standard input: they read it only if it is named as a source, and no copy in
//! the background is stopped by a question.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_tests::fake_server::{Data, FakeServer};
use ropewalk_tests::files::{ensure_same, write_random};
use ropewalk_tests::peers;
use ropewalk_tests::process::run;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};

const LIMIT: Duration = Duration::from_secs(60);

fn server(scratch: &Scratch) -> Server {
    Setup::new(Kind::Ropewalk, &scratch.directory("root").unwrap()).start().unwrap()
}

/// A shell script, in which `$R` is the program.
fn shell(script: &str) -> Command {
    let mut command = Command::new("bash");
    command.args(["-c", script]).env("R", peers::ropewalk().unwrap()).env("HOME", peers::home());
    command.env("XDG_STATE_HOME", peers::home());
    command
}

#[test]
fn copies_leave_the_list_of_a_script_alone() {
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch);
    let names: Vec<String> = (0..3).map(|at| format!("f{at}")).collect();
    for name in &names {
        fs::write(server.root().join(name), name).unwrap();
    }
    let list = scratch.join("list");
    fs::write(&list, names.iter().map(|name| format!("{name}\n")).collect::<String>()).unwrap();
    for command in
        [r#""$R" cp -q "$U/$name" "$D/$name""#, r#""$R" globus-url-copy "$U/$name" "file://$D/$name""#]
    {
        let got = scratch.directory("got").unwrap();
        let script = format!("while read name; do {command} || exit 1; done < \"$L\"");
        let mut copies = shell(&script);
        copies.env("U", server.url("")).env("D", &got).env("L", &list);
        run(&mut copies, LIMIT).unwrap().succeeded().unwrap();
        for name in &names {
            ensure_same(&server.root().join(name), &got.join(name)).unwrap();
        }
        fs::remove_dir_all(&got).unwrap();
    }
}

#[test]
fn copy_without_input_waits_without_work() {
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch);
    write_random(&server.root().join("f"), 2 << 20, 1).unwrap();
    for input in ["</dev/null", "<&-"] {
        let script = format!(
            "TIMEFORMAT='%R %U %S'; time \"$R\" cp -q --bandwidth 1MB/s \"$U\" \"$D\" {input} || exit 1"
        );
        let mut copy = shell(&script);
        copy.env("U", server.url("f")).env("D", scratch.join("got"));
        let outcome = run(&mut copy, LIMIT).unwrap().succeeded().unwrap();
        let text = outcome.errors();
        let seconds: Vec<f64> =
            text.lines().last().unwrap().split(' ').map(|word| word.parse().unwrap()).collect();
        let [elapsed, user, system] = seconds[..] else { panic!("{text}") };
        assert!(elapsed > 0.9 && user + system < elapsed / 2.0, "{input}: {text}");
        ensure_same(&server.root().join("f"), &scratch.join("got")).unwrap();
        fs::remove_file(scratch.join("got")).unwrap();
    }
}

/// The kernel stops programs in the background that read from the terminal, or change its modes.
#[test]
fn copy_in_the_background_that_would_ask_fails() {
    if !peers::available(&["script"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let refuses =
        |_: &str, _: &Data, control: &mut TcpStream| Ok(control.write_all(b"550 no such file\r\n")?);
    let server = FakeServer::start(1, Arc::new(refuses)).unwrap();
    // With job control, a command in the background has a process group of its own. `wait` also
    // returns when it is stopped.
    let asks = "set -m; \"$R\" cp -q \"$U\" \"$D\" & wait %1; echo ended with $?; kill -KILL %1 2>/dev/null";
    let mut copy = Command::new("script");
    copy.args(["-qec", &format!("bash -c '{asks}'"), "/dev/null"]);
    copy.env("R", peers::ropewalk().unwrap()).env("D", scratch.join("got"));
    copy.env("U", format!("ftp://somebody@{}/f", server.address()));
    copy.env("HOME", peers::home()).env("XDG_STATE_HOME", peers::home()).env("SHELL", "/bin/sh");
    let text = run(&mut copy, LIMIT).unwrap().text();
    assert!(text.contains("in the background"), "{text}");
    // 128 and the number of a signal that stopped it is more.
    let code = text.split("ended with ").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
    assert!((1..128).contains(&code.parse::<u32>().unwrap()), "{text}");
}
