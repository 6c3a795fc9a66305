//! Data connections over UCX between Ropewalk's programs, with UCX's own TCP transport and its
//! shared memory; the doctor's report about RDMA.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use ropewalk_tests::process::{Outcome, run};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};
use ropewalk_tests::sites::data_keys::Site;
use ropewalk_tests::{files, peers};

const LIMIT: Duration = Duration::from_secs(120);
const WITH_KEYS: &str = "[data]\nrequire_key = true\ndrivers = ['tcp', 'gsi', 'ucx']";
const UCX: [&str; 4] = ["--stack", "ucx", "--retries", "0"];
const INSTALLED: &str = "libucp.so.0";
const LIBRARY: &str = "ROPEWALK_UCX_LIBRARY";

fn with<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&UCX[..], options].concat()
}

/// The file of the library, as the loader finds it on Debian.
fn is_installed() -> bool {
    let directories = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let found = directories.iter().any(|directory| Path::new(directory).join(INSTALLED).exists());
    found || !peers::skip("not installed: libucx0")
}

/// A copy between a directory and a server for anonymous users that offers UCX.
fn cp(library: &str, from: &str, to: &str) -> Outcome {
    let mut command: Command = peers::ropewalk_command().unwrap();
    command.arg("cp").args(UCX).args(["-p", "2", from, to]).env("UCX_TLS", "tcp,self").env(LIBRARY, library);
    run(&mut command, LIMIT).unwrap()
}

#[test]
fn copies_over_ucx_with_data_keys_are_equal() {
    if !is_installed() {
        return;
    }
    let site = Site::new();
    let (_server, url) = site.serve("root", WITH_KEYS);
    for options in [&["-p", "1"][..], &["-p", "4"], &["--mode", "stream"]] {
        site.cp(&with(options), "source", &format!("{url}/there")).succeeded().unwrap();
        assert!(site.is_whole("root/there"), "{options:?}");
        site.cp(&with(options), &format!("{url}/there"), "back").succeeded().unwrap();
        assert!(site.is_whole("back"), "{options:?}");
        fs::remove_file(site.path("root/there")).unwrap();
        fs::remove_file(site.path("back")).unwrap();
    }
    for options in [&["-r"][..], &["-r", "--mode", "stream"]] {
        site.cp(&with(options), "tree/", &format!("{url}/tree/")).succeeded().unwrap();
        assert!(site.tree_is_whole("root/tree"), "{options:?}");
        site.cp(&with(options), &format!("{url}/tree/"), "again/").succeeded().unwrap();
        assert!(site.tree_is_whole("again"), "{options:?}");
        fs::remove_dir_all(site.path("root/tree")).unwrap();
        fs::remove_dir_all(site.path("again")).unwrap();
    }
}

#[test]
fn third_party_copies_over_ucx_are_equal() {
    if !is_installed() {
        return;
    }
    let site = Site::new();
    let (_one, one) = site.serve("one", WITH_KEYS);
    let (_other, other) = site.serve("other", WITH_KEYS);
    fs::copy(site.path("source"), site.path("one/a")).unwrap();
    for options in [&["-p", "4"][..], &["--mode", "stream"]] {
        site.cp(&with(options), &format!("{one}/a"), &format!("{other}/b")).succeeded().unwrap();
        assert!(site.is_whole("other/b"), "{options:?}");
        fs::remove_file(site.path("other/b")).unwrap();
    }
    site.cp(&with(&["-r"]), "tree/", &format!("{one}/tree/")).succeeded().unwrap();
    site.cp(&with(&["-r"]), &format!("{one}/tree/"), &format!("{other}/tree/")).succeeded().unwrap();
    assert!(site.tree_is_whole("other/tree"));
}

/// UCX_TLS names the transports at both ends. A library that is missing, at either end, is an error
/// that names it, and no data moves.
#[test]
fn copy_over_ucx_is_equal_with_the_library_and_fails_without_it() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    let source = scratch.join("source");
    files::write_random(&source, (60 << 20) + 12_345, 1).unwrap();
    let source = source.display().to_string();
    let missing = "/nowhere/libucp.so.0";
    let server = |library: &str| {
        let environment = ["env", "UCX_TLS=tcp,self", &format!("{LIBRARY}={library}")].map(str::to_owned);
        let setup = Setup::new(Kind::Ropewalk, &root).argument("--drivers").argument("tcp,ucx");
        setup.wrapper(environment).start().unwrap()
    };
    for (here, there) in [(missing, INSTALLED), (missing, missing), (INSTALLED, missing)] {
        if here == INSTALLED && !is_installed() {
            return;
        }
        let server = server(there);
        let outcome = cp(here, &source, &server.url("there"));
        let errors = outcome.failed().unwrap().errors();
        assert!(errors.contains("UCX cannot be loaded") && errors.contains(missing), "{errors}");
        assert!(fs::read_dir(&root).unwrap().next().is_none(), "{errors}");
    }
    let server = server(INSTALLED);
    cp(INSTALLED, &source, &server.url("there")).succeeded().unwrap();
    files::ensure_same(Path::new(&source), &root.join("there")).unwrap();
    let back = scratch.join("back");
    cp(INSTALLED, &server.url("there"), &back.display().to_string()).succeeded().unwrap();
    files::ensure_same(Path::new(&source), &back).unwrap();
}

/// UCX must notice a dead peer, and find the memory by its name: processes that cannot be traced,
/// as the server, have no links to it in /proc.
#[test]
fn copy_over_shared_memory_is_equal() {
    if !is_installed() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    let source = scratch.join("source");
    files::write_random(&source, (20 << 20) + 12_345, 1).unwrap();
    let shared = ["UCX_TLS=posix,tcp,self", "UCX_POSIX_ERROR_HANDLING=y", "UCX_POSIX_USE_PROC_LINK=n"];
    let environment = ["env"].into_iter().chain(shared).map(str::to_owned);
    let setup = Setup::new(Kind::Ropewalk, &root).argument("--drivers").argument("tcp,ucx");
    let server = setup.wrapper(environment).start().unwrap();
    let back = scratch.join("back");
    for (from, to) in [
        (source.display().to_string(), server.url("there")),
        (server.url("there"), back.display().to_string()),
    ] {
        let mut command = peers::ropewalk_command().unwrap();
        command.arg("cp").args(UCX).args(["-p", "2", &from, &to]);
        command.envs(shared.map(|setting| setting.split_once('=').unwrap()));
        run(&mut command, LIMIT).unwrap().succeeded().unwrap();
    }
    files::ensure_same(&source, &back).unwrap();
}

fn doctor(options: &[&str], library: &str) -> Outcome {
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["doctor", "--rdma"]).args(options).env("UCX_TLS", "tcp,self").env(LIBRARY, library);
    run(&mut command, LIMIT).unwrap()
}

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["checks"].as_array().unwrap().iter().find(|check| check["name"] == name).unwrap()
}

#[test]
fn doctor_without_the_library_names_the_file_and_the_package() {
    let missing = "/nowhere/libucp.so.0";
    let text = doctor(&[], missing).failed().unwrap().text();
    assert!(text.contains("data over RDMA: not ready"), "{text}");
    assert!(text.contains(missing) && text.contains("libucx0") && text.contains("ucx-ib"), "{text}");
    let report: Value = serde_json::from_str(&doctor(&["--json"], missing).failed().unwrap().text()).unwrap();
    assert_eq!((&report["event"], &report["ready"]), (&"rdma".into(), &false.into()));
    assert_eq!(check(&report, "UCX library")["state"], "bad");
    assert_eq!(check(&report, "transfer within this host")["state"], "unknown");
    assert!(report.get("ucx").is_none() && report.get("transfer").is_none(), "{report}");
}

#[test]
fn doctor_with_the_library_reports_transports_and_the_rate_of_a_transfer() {
    if !is_installed() {
        return;
    }
    let report = doctor(&["--json"], INSTALLED).failed().unwrap().text();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert!(report["ucx"].as_str().unwrap().starts_with("1."), "{report}");
    let transports = report["transports"].as_array().unwrap();
    assert!(transports.iter().any(|one| one["name"] == "tcp" && one["rdma"] == false), "{report}");
    assert!(report["transfer"]["bytes_per_second"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!(check(&report, "transfer within this host")["state"], "good");
    // UCX_TLS excludes RDMA.
    let found = check(&report, "transports of UCX");
    assert!(found["state"] == "bad" && found["found"].as_str().unwrap().contains("UCX_TLS=tcp,self"));
}
