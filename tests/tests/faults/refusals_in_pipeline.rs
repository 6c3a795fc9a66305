//! Files that are refused in the middle of a pipeline must not disturb the files before and after
//! them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ropewalk_tests::client::{Client, Copy, Mode, Summary};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};
use ropewalk_tests::{files, peers};

use crate::fixture::Fixture;

const COUNT: u64 = 120;

fn name(number: u64) -> String {
    format!("f{number:03}")
}

/// Every seventh file, and sometimes two in a row.
fn is_refused(number: u64) -> bool {
    number % 7 == 3 || number % 21 == 4
}

fn make(from: &Path) {
    for number in 0..COUNT {
        files::write_random(&from.join(name(number)), 10 + number * 997, number).unwrap();
    }
}

fn ways() -> [Copy; 4] {
    let plain = Copy::new("", "").recursive().argument("--retries=0");
    let pipelined = Copy { pipelined: true, concurrency: Some(1), ..plain.clone() };
    [
        plain.clone().mode(Mode::Stream),
        plain,
        pipelined.clone().mode(Mode::Extended(1)),
        pipelined.mode(Mode::Extended(4)),
    ]
}

/// Runs the copy, which must fail as a whole, and compares the files that it copied.
fn run(copy: &Copy, from: &Path, to: &Path) {
    let outcome = Client::Ropewalk.run(copy).unwrap().failed().unwrap();
    let text = outcome.text();
    let is_innocent = |line: &&str| {
        line.contains("\"file_failed\"")
            && (0..COUNT).any(|number| !is_refused(number) && line.contains(&format!("{}\"", name(number))))
    };
    let innocent: Vec<&str> = text.lines().filter(is_innocent).collect();
    assert!(innocent.is_empty(), "{:?}: these should not have failed: {innocent:#?}", copy.mode);
    for number in 0..COUNT {
        let path = to.join(name(number));
        assert_eq!(path.is_file(), !is_refused(number), "{:?}: {}", copy.mode, path.display());
        if !is_refused(number) {
            files::ensure_same(&from.join(name(number)), &path).unwrap();
        }
    }
}

#[test]
fn refused_uploads_do_not_disturb_others() {
    for (round, way) in ways().into_iter().enumerate() {
        let mut fixture = Fixture::new().unwrap();
        let (from, to) = (fixture.scratch.join("from"), fixture.root.join("to"));
        make(&from);
        for number in (0..COUNT).filter(|number| is_refused(*number)) {
            // A file cannot replace a non-empty directory.
            fs::create_dir_all(to.join(name(number)).join("inner")).unwrap();
        }
        let copy = Copy {
            source: Client::Ropewalk.local(&from, true),
            destination: fixture.server.url("to/").into(),
            ..way
        };
        run(&copy, &from, &to);
        fixture.still_serves().unwrap_or_else(|error| panic!("round {round}: {error:#}"));
    }
}

#[test]
fn refused_downloads_do_not_disturb_others() {
    for (round, way) in ways().into_iter().enumerate() {
        let mut fixture = Fixture::with(|setup| setup.obeying_permissions()).unwrap();
        let (from, to) = (fixture.root.join("from"), fixture.scratch.join("to"));
        make(&from);
        for number in (0..COUNT).filter(|number| is_refused(*number)) {
            fs::set_permissions(from.join(name(number)), fs::Permissions::from_mode(0o000)).unwrap();
        }
        let copy = Copy {
            source: fixture.server.url("from/").into(),
            destination: Client::Ropewalk.local(&to, true),
            ..way
        };
        run(&copy, &from, &to);
        fixture.still_serves().unwrap_or_else(|error| panic!("round {round}: {error:#}"));
    }
}

/// A file is in the way of a directory.
#[test]
fn files_of_uncreatable_directory_are_not_sent() {
    let scratch = Scratch::new().unwrap();
    let (from, to) = (scratch.directory("from").unwrap(), scratch.directory("to").unwrap());
    for name in ["d/a", "d/e/b", "d/e/f/c", "whole/x"] {
        fs::create_dir_all(from.join(name).parent().unwrap()).unwrap();
        fs::write(from.join(name), name).unwrap();
    }
    fs::write(to.join("d"), "in the way").unwrap();
    let ours = Setup::new(Kind::Ropewalk, &to).start().unwrap();
    let gct = peers::available(&["globus-gridftp-server", "setpriv"])
        .then(|| Setup::new(Kind::Gct, &to).start().unwrap());
    let mut destinations = vec![Client::Ropewalk.local(&to, true), ours.url("").into()];
    destinations.extend(gct.as_ref().map(|gct| gct.url("").into()));
    for destination in destinations {
        let copy = Copy::new(Client::Ropewalk.local(&from, true), destination.clone()).recursive();
        let outcome = Client::Ropewalk.run(&copy).unwrap();
        let text = outcome.failed().unwrap().text();
        let failures = Summary::parse(&text).unwrap().value()["failures"].as_array().unwrap().clone();
        assert_eq!(failures.len(), 4, "{destination:?}: the directory and three files: {failures:#?}");
        let beneath = failures.iter().filter(|failure| failure["error"] == "its directory could not be made");
        assert_eq!(beneath.count(), 3, "{destination:?}: {failures:#?}");
        let started = text.lines().filter(|line| line.contains("\"file_started\"")).count();
        assert_eq!(started, 1, "{destination:?}: {text}");
        assert_eq!(fs::read(to.join("d")).unwrap(), b"in the way");
        assert_eq!(fs::read(to.join("whole/x")).unwrap(), b"whole/x");
        fs::remove_dir_all(to.join("whole")).unwrap();
    }
}
