//! `ropewalk sync` and `ropewalk check` synchronise and compare two trees.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::Duration;

use ropewalk_tests::process::{self, Outcome};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};
use ropewalk_tests::{peers, tree};

fn ropewalk(words: &[&str]) -> Outcome {
    let mut command = peers::ropewalk_command().unwrap();
    command.args(words);
    process::run(&mut command, Duration::from_secs(60)).unwrap()
}

/// Returns the exit code and the lines of standard output, sorted.
fn check(words: &[&str]) -> (Option<i32>, Vec<String>) {
    let output = ropewalk(&[&["check"], words].concat());
    let mut lines: Vec<String> = output.text().lines().map(str::to_owned).collect();
    lines.sort();
    (output.status.code(), lines)
}

#[test]
fn check_lists_differences_and_sync_removes_them() {
    let (here, root) = (Scratch::new().unwrap(), Scratch::new().unwrap());
    let server = Setup::new(Kind::Ropewalk, root.path()).start().unwrap();
    let source = here.join("s");
    for (name, text) in
        [("same", "same"), ("sum", "abcd"), ("d/size", "longer"), ("d/new", "new"), ("x.tmp", "x")]
    {
        fs::create_dir_all(source.join(name).parent().unwrap()).unwrap();
        fs::write(source.join(name), text).unwrap();
    }
    fs::create_dir(source.join("empty")).unwrap();
    let (from, to) = (source.display().to_string(), server.url("t"));
    ropewalk(&["sync", &from, &to]).succeeded().unwrap();
    // A second run writes to the same directory, not into a subdirectory of it.
    ropewalk(&["sync", &from, &to]).succeeded().unwrap();
    assert!(!root.join("t/s").exists());
    tree::ensure_same(&source, &root.join("t")).unwrap();
    assert_eq!(check(&[&from, &to]), (Some(0), vec![]));

    fs::write(root.join("t/sum"), "abXd").unwrap();
    fs::write(root.join("t/d/size"), "short").unwrap();
    fs::remove_file(root.join("t/d/new")).unwrap();
    fs::remove_dir(root.join("t/empty")).unwrap();
    fs::write(root.join("t/gone"), "gone").unwrap();
    fs::remove_file(root.join("t/x.tmp")).unwrap();
    let (code, lines) = check(&[&from, &to, "--exclude", "*.tmp"]);
    let expected = [
        format!("differs: {from}/d/size"),
        format!("only at the destination: {}/gone", server.url("t")),
        format!("only at the source: {from}/d/new"),
        format!("only at the source: {from}/empty/"),
    ];
    assert_eq!((code, &*lines), (Some(1), &expected[..]));
    let (code, lines) = check(&[&from, &to, "--checksum"]);
    assert!(code == Some(1) && lines.contains(&format!("differs: {from}/sum")), "{lines:?}");
    assert_eq!(check(&["-q", &from, &to]), (Some(1), vec![]));
    // `check` has changed nothing.
    assert!(root.join("t/gone").exists() && !root.join("t/d/new").exists());
    // Compare single files.
    assert_eq!(check(&[&format!("{from}/same"), &format!("{to}/same")]).0, Some(0));
    assert_eq!(check(&[&format!("{from}/same"), &format!("{to}/none")]).0, Some(1));

    ropewalk(&["sync", "--delete", "--sync=checksum", &from, &to]).succeeded().unwrap();
    tree::ensure_same(&source, &root.join("t")).unwrap();
    assert_eq!(check(&[&from, &to, "--checksum"]), (Some(0), vec![]));
    assert_eq!(check(&[&to, &from, "--checksum"]), (Some(0), vec![]));
    assert_eq!(check(&[&format!("{from}/none"), &to]).0, Some(4));
}
