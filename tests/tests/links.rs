//! Symbolic links in listings of our server.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};
use ropewalk_tests::{peers, process};

#[test]
fn one_that_leads_nowhere_is_listed_and_no_failure() {
    let root = Scratch::new().unwrap();
    fs::create_dir(root.join("d")).unwrap();
    fs::write(root.join("d/f"), "0123456789").unwrap();
    symlink("nowhere", root.join("d/l")).unwrap();
    let server = Setup::new(Kind::Ropewalk, root.path()).start().unwrap();
    let told = |arguments: &[&str], path: &str| {
        let mut command = peers::ropewalk_command().unwrap();
        command.args(arguments).arg(server.url(path));
        process::run(&mut command, Duration::from_secs(30)).unwrap().succeeded().unwrap().text()
    };
    assert_eq!(told(&["ls"], "d"), "f\nl\n");
    assert!(told(&["ls", "-l"], "d").contains(" l -> nowhere\n"));
    let mut found: Vec<String> = told(&["ls", "-R"], "").lines().map(str::to_owned).collect();
    found.sort();
    assert_eq!(found, ["d", "d/f", "d/l"]);
    assert!(told(&["find", "--type", "l"], "").ends_with("/d/l\n"));
    let usage = told(&["du"], "");
    assert!(usage.starts_with("10 B\t1 file\t"), "{usage}");
}
