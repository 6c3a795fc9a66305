//! Data connections bound to their session by one-time keys: Ropewalk's client with Ropewalk's
//! servers, without DCAU.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::Duration;

use ropewalk_tests::peers;
use ropewalk_tests::process::{self, run};
use ropewalk_tests::sites::data_keys::{REQUIRED, Site, WITHOUT};

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn transfers_and_listings_use_bound_connections() {
    let site = Site::new();
    let (_server, url) = site.serve("root", REQUIRED);
    for options in [&["-p", "4"][..], &["-p", "1"], &["--mode", "stream"], &["--no-delegate", "-p", "4"]] {
        site.cp(options, "source", &format!("{url}/there")).succeeded().unwrap();
        assert!(site.is_whole("root/there"), "{options:?}");
        let got = site.cp(options, &format!("{url}/there"), "back").succeeded().unwrap().errors();
        assert!(!got.contains("warning") && site.is_whole("back"), "{options:?}: {got}");
        fs::remove_file(site.path("root/there")).unwrap();
        fs::remove_file(site.path("back")).unwrap();
    }
    // Listings too, and many small files over reused connections.
    for options in [&["-r"][..], &["-r", "--mode", "stream"]] {
        site.cp(options, "tree/", &format!("{url}/tree/")).succeeded().unwrap();
        assert!(site.tree_is_whole("root/tree"), "{options:?}");
        site.cp(options, &format!("{url}/tree/"), "again/").succeeded().unwrap();
        assert!(site.tree_is_whole("again"), "{options:?}");
        fs::remove_dir_all(site.path("root/tree")).unwrap();
        fs::remove_dir_all(site.path("again")).unwrap();
    }
}

#[test]
fn dialogue_is_shown_without_secret() {
    let site = Site::new();
    let (server, url) = site.serve("root", REQUIRED);
    let shown = site.cp(&["--debug"], "source", &format!("{url}/there")).succeeded().unwrap().errors();
    let line = shown.lines().find(|line| line.contains("SITE DATAKEY")).unwrap_or_else(|| panic!("{shown}"));
    assert!(line.ends_with(" ***"), "{line}");
    assert!(shown.contains("is for the next data channel"), "{shown}");
    let logged = server.log();
    assert!(!logged.contains("DATAKEY"), "{logged}");
}

#[test]
fn third_party_uses_key_if_both_servers_support_it() {
    let site = Site::new();
    let (_one, one) = site.serve("one", REQUIRED);
    let (_other, other) = site.serve("other", REQUIRED);
    let (_old, old) = site.serve("old", WITHOUT);
    let (_open, open) = site.serve("open", "");
    fs::copy(site.path("source"), site.path("one/a")).unwrap();
    for options in [&["-p", "4"][..], &["--mode", "stream"], &["--delayed-passive"]] {
        site.cp(options, &format!("{one}/a"), &format!("{other}/b")).succeeded().unwrap();
        assert!(site.is_whole("other/b"), "{options:?}");
        fs::remove_file(site.path("other/b")).unwrap();
    }
    site.cp(&["-r"], "tree/", &format!("{one}/tree/")).succeeded().unwrap();
    site.cp(&["-r"], &format!("{one}/tree/"), &format!("{other}/tree/")).succeeded().unwrap();
    assert!(site.tree_is_whole("other/tree"));
    let required = &["--require-data-authentication", "--retries", "0"][..];
    site.cp(required, &format!("{one}/a"), &format!("{other}/b")).succeeded().unwrap();
    assert!(site.is_whole("other/b"));
    // With a server without data keys, no key is used, and a server that requires one refuses.
    fs::copy(site.path("source"), site.path("old/a")).unwrap();
    site.cp(&[], &format!("{old}/a"), &format!("{open}/b")).succeeded().unwrap();
    assert!(site.is_whole("open/b"));
    let text =
        site.cp(&["--retries", "0"], &format!("{old}/a"), &format!("{one}/b")).failed().unwrap().errors();
    assert!(text.contains("521") && text.contains("SITE DATAKEY"), "{text}");
    // A client that requires a key fails too, before any data.
    fs::copy(site.path("source"), site.path("open/a")).unwrap();
    for (from, to) in [(&old, &open), (&open, &old)] {
        let text = site.cp(required, &format!("{from}/a"), &format!("{to}/c")).failed().unwrap().errors();
        assert!(text.contains("--require-data-authentication"), "{text}");
    }
    assert!(!site.path("open/c").exists() && !site.path("old/c").exists());
}

#[test]
fn clear_data_within_tls_is_bound() {
    let site = Site::new();
    let ((_one, one), (_other, other)) = (site.serve_tls("one"), site.serve_tls("other"));
    let clear = |options: &[&'static str]| {
        let common = ["--accept-new", "--data-protection", "clear", "--require-data-authentication"];
        [&common[..], options].concat()
    };
    for options in [&["-p", "4"][..], &["--mode", "stream"]] {
        let options = clear(options);
        site.cp(&options, "source", &format!("{one}/there")).succeeded().unwrap();
        assert!(site.is_whole("one/there"), "{options:?}");
        site.cp(&options, &format!("{one}/there"), "back").succeeded().unwrap();
        assert!(site.is_whole("back"), "{options:?}");
        site.cp(&options, &format!("{one}/there"), &format!("{other}/there")).succeeded().unwrap();
        assert!(site.is_whole("other/there"), "{options:?}");
        for name in ["one/there", "other/there", "back"] {
            fs::remove_file(site.path(name)).unwrap();
        }
    }
    // A client without data keys can transfer data with PROT P only.
    if !peers::available(&["curl"]) {
        return;
    }
    let url = format!("{}/there", one.replace("ftpes", "ftp"));
    let curl = |options: &[&str]| {
        let mut command = process::command("curl");
        command.args(["--silent", "--show-error", "--max-time", "60", "--insecure", "-T"]);
        run(command.arg(site.path("source")).args(options).arg(&url), LIMIT).unwrap()
    };
    curl(&["--ssl-reqd"]).succeeded().unwrap();
    assert!(site.is_whole("one/there"));
    curl(&["--ftp-ssl-control"]).failed().unwrap();
}
