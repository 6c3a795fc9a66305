//! Plain FTP servers whose listings are incomplete or wrong.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use ropewalk_tests::plain_server::{Offer, PlainServer};
use ropewalk_tests::process::Outcome;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::{peers, process};

fn ropewalk<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Outcome {
    let mut command = peers::ropewalk_command().unwrap();
    command.args(arguments);
    process::run(&mut command, Duration::from_secs(60)).unwrap()
}

fn files(names: &[&str]) -> BTreeMap<String, Vec<u8>> {
    names.iter().map(|name| ((*name).to_owned(), name.as_bytes().to_vec())).collect()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Mirrors the server of `offer` onto `there`; returns the outcome and the names that exist
/// afterwards.
fn mirrored(offer: Offer, there: &[&str]) -> (Outcome, Vec<String>) {
    let scratch = Scratch::new().unwrap();
    for name in there {
        fs::write(scratch.join(name), name).unwrap();
    }
    let server = PlainServer::start(offer).unwrap();
    let to = format!("{}/", scratch.path().display());
    let outcome = ropewalk(["cp", "-r", "--sync", "--delete", &server.url(), &to]);
    let names = names(scratch.path());
    (outcome, names)
}

fn facts(name: &str) -> String {
    format!("type=file;size={}; {name}", name.len())
}

#[test]
fn mirror_of_truncated_listing_removes_nothing() {
    let all = ["a", "b", "c"];
    let part = vec![facts("a"), facts("b")];
    for listed in [
        "226 Output truncated to 2 matches",
        "226-Options: -l\r\n226 3 matches total",
        "226-Listing: 400 bytes\r\n226 Transfer Complete.",
        // Only a query by name shows that the listing is incomplete.
        "226 Done.",
    ] {
        let (files, listing) = (files(&all), Some(part.clone()));
        let offer = Offer { files, listing, facts: true, listed: listed.to_owned(), ..Offer::default() };
        let (outcome, names) = mirrored(offer, &all);
        let outcome = outcome.failed().unwrap_or_else(|e| panic!("{listed}: {e:#}"));
        assert_eq!(names, all, "{listed}");
        assert!(outcome.errors().contains("listing"), "{listed}: {}", outcome.errors());
    }
    let offer = Offer { files: files(&["a"]), facts: true, ..Offer::default() };
    let (outcome, names) = mirrored(offer, &all);
    outcome.succeeded().unwrap();
    assert_eq!(names, ["a"]);
}

/// Also without MLSD.
#[test]
fn mirror_queries_unlisted_file_before_removal() {
    let line = |name: &str| format!("-rw-r--r-- 1 o g 1 Feb  3  2001 {name}");
    let offer = Offer { files: files(&["a", "b"]), listing: Some(vec![line("a")]), ..Offer::default() };
    let (outcome, names) = mirrored(offer, &["a", "b"]);
    outcome.failed().unwrap();
    assert_eq!(names, ["a", "b"]);
    let (outcome, names) = mirrored(Offer { files: files(&["a"]), ..Offer::default() }, &["a", "b"]);
    outcome.succeeded().unwrap();
    assert_eq!(names, ["a"]);
}

/// A directory without a size may still exist.
#[test]
fn mirror_queries_listed_directory_as_directory() {
    let listing = Some(vec![
        "drwxr-xr-x 1 o g 0 Feb  3  2001 d".to_owned(),
        "-rw-r--r-- 1 o g 1 Feb  3  2001 e".to_owned(),
    ]);
    let offer =
        Offer { files: files(&["e"]), directories: vec!["d".to_owned()], listing, ..Offer::default() };
    let (outcome, names) = mirrored(offer, &["e", "z"]);
    outcome.succeeded().unwrap();
    assert_eq!(names, ["d", "e"]);
}

#[test]
fn mirror_when_listed_file_is_missing_removes_nothing() {
    let listing = Some(vec![facts("other")]);
    let offer = Offer { files: files(&["a"]), listing, facts: true, ..Offer::default() };
    let (outcome, names) = mirrored(offer, &["gone"]);
    outcome.failed().unwrap();
    assert_eq!(names, ["gone"]);
}

#[test]
fn fact_values_may_contain_blanks() {
    let facts = |name| format!("type=file;size=1;UNIX.groupname=domain users;UNIX.ownername=bob lee; {name}");
    let offer = Offer {
        files: files(&["a", "b"]),
        listing: Some(vec![facts("a"), facts("b")]),
        facts: true,
        ..Offer::default()
    };
    let (outcome, names) = mirrored(offer, &["a", "z"]);
    outcome.succeeded().unwrap();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn times_missing_in_listing_are_queried() {
    let scratch = Scratch::new().unwrap();
    let server = PlainServer::start(Offer { files: files(&["a", "b"]), ..Offer::default() }).unwrap();
    for (source, to) in [(server.url(), "tree/"), (format!("{}*", server.url()), "glob/")] {
        let to = format!("{}/{to}", scratch.path().display());
        ropewalk(["cp", "-r", "--preserve=times", &source, &to]).succeeded().unwrap();
        for name in ["a", "b"] {
            assert_eq!(fs::metadata(format!("{to}{name}")).unwrap().mtime(), 981_173_106, "{to}{name}");
        }
    }
}

#[test]
fn windows_listing_is_parsed() {
    let listing = Some(vec!["01-10-26  12:34PM                    3 a b".to_owned()]);
    let server = PlainServer::start(Offer { files: files(&["a b"]), listing, ..Offer::default() }).unwrap();
    let scratch = Scratch::new().unwrap();
    let to = format!("{}/", scratch.path().display());
    ropewalk(["cp", "-r", &server.url(), &to]).succeeded().unwrap();
    assert_eq!(fs::read(scratch.join("a b")).unwrap(), b"a b");
}

#[test]
fn colliding_names_are_reported() {
    for folds in [true, false] {
        let scratch = Scratch::new().unwrap();
        for name in ["A", "a", "b"] {
            fs::write(scratch.join(name), name).unwrap();
        }
        let server = PlainServer::start(Offer { facts: true, folds, ..Offer::default() }).unwrap();
        let from = format!("{}/", scratch.path().display());
        let outcome = ropewalk(["cp", "-r", &from, &server.url()]);
        if folds {
            let outcome = outcome.failed().unwrap();
            let told = outcome.errors().lines().any(|line| line.contains("/a: ") && line.contains(" A "));
            assert!(told, "{}", outcome.errors());
        } else {
            outcome.succeeded().unwrap();
            assert_eq!(server.names(), ["A", "a", "b"]);
        }
    }
}

#[test]
fn data_address_is_reported_on_failure() {
    let at = |passive: &str| {
        let passive = passive.to_owned();
        PlainServer::start(Offer { files: files(&["a"]), facts: true, passive, ..Offer::default() }).unwrap()
    };
    let several = at("227-listening\r\n227 (@)");
    assert_eq!(ropewalk(["ls", &several.url()]).succeeded().unwrap().text().trim(), "a");
    // No server listens there, and the server waits for the client's connection.
    let elsewhere = at("227 (127,255,255,254,0,9)");
    let outcome = ropewalk(["ls", "--reply-timeout=2s", "--connect-timeout=2s", &elsewhere.url()]);
    let outcome = outcome.failed().unwrap();
    assert!(outcome.errors().contains("127.255.255.254:9"), "{}", outcome.errors());
}
