//! Programs in place of files (SITE SETDISKSTACK with `popen`): between our programs, and with
//! GCT's client and server.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use ropewalk_tests::grid::{LIMIT, Site};
use ropewalk_tests::peers;
use ropewalk_tests::process::{self, run};

const OURS: &str = "[files]\ndrivers = ['file', 'popen', 'ordering']\n\
                    programs = { tar = '/bin/tar', cat = '/bin/cat', dd = '/bin/dd', false = '/bin/false' }\n";

/// A stack of `popen` for `tar` with these arguments.
fn tar(arguments: &[&str]) -> String {
    format!("popen:argv=#tar#{}", arguments.join("#"))
}

/// A directory with a few files, which is beneath the root of the servers.
fn make_tree(site: &Site) -> Vec<u8> {
    let content = site.content().unwrap();
    fs::create_dir_all(site.path("root/tree/sub")).unwrap();
    fs::write(site.path("root/tree/one"), &content).unwrap();
    fs::write(site.path("root/tree/sub/two"), b"two").unwrap();
    content
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn archive_of_a_tree_goes_through_a_download_and_an_upload() {
    let site = Site::new().unwrap();
    let content = make_tree(&site);
    let server = site.serve(OURS, &[]).unwrap();
    let out = tar(&["cf", "-", "tree"]);
    fs::create_dir(site.path("root/there")).unwrap();
    let into = tar(&["xf", "-", "-C", "there"]);
    for mode in ["stream", "extended"] {
        let url = format!("{}/any-name", server.url);
        let stacks = ["--source-disk-stack", &out, "--mode", mode, "--preserve", "all"];
        site.cp(&stacks, &url, "tree.tar").unwrap().succeeded().unwrap();
        let stacks =
            ["--destination-disk-stack", &into, "--mode", mode, "--streams", "4", "--preserve", "all"];
        site.cp(&stacks, "tree.tar", &url).unwrap().succeeded().unwrap();
        assert!(fs::read(site.path("root/there/tree/one")).unwrap() == content, "{mode}");
        assert_eq!(fs::read(site.path("root/there/tree/sub/two")).unwrap(), b"two");
        assert!(!site.path("root/any-name").exists(), "{mode}");
        fs::remove_dir_all(site.path("root/there/tree")).unwrap();
        fs::remove_file(site.path("tree.tar")).unwrap();
    }
}

#[test]
fn archive_goes_from_server_to_server() {
    let site = Site::new().unwrap();
    let content = make_tree(&site);
    let (one, other) = (site.serve(OURS, &[]).unwrap(), site.serve(OURS, &[]).unwrap());
    fs::create_dir(site.path("root/there")).unwrap();
    let (out, into) = (tar(&["cf", "-", "tree"]), tar(&["xf", "-", "-C", "there"]));
    let (from, to) = (format!("{}/x", one.url), format!("{}/y", other.url));
    for more in [&["--mode", "extended"][..], &["--mode", "stream"], &["--through-here"]] {
        let stacks = ["--source-disk-stack", &out, "--destination-disk-stack", &into];
        site.cp(&[&stacks[..], more].concat(), &from, &to).unwrap().succeeded().unwrap();
        assert!(fs::read(site.path("root/there/tree/one")).unwrap() == content, "{more:?}");
        fs::remove_dir_all(site.path("root/there/tree")).unwrap();
        // From a program into a file.
        let stacks = ["--source-disk-stack", &out];
        site.cp(&[&stacks[..], more].concat(), &from, &to).unwrap().succeeded().unwrap();
        assert!(fs::metadata(site.path("root/y")).unwrap().len() > content.len() as u64, "{more:?}");
        fs::remove_file(site.path("root/y")).unwrap();
    }
}

#[test]
fn copy_of_a_program_that_fails_fails_and_leaves_no_file() {
    let site = Site::new().unwrap();
    make_tree(&site);
    let server = site.serve(OURS, &[]).unwrap();
    let url = format!("{}/x", server.url);
    // Much of the archive comes before the failure.
    let out = tar(&["cf", "-", "tree", "missing"]);
    for mode in ["stream", "extended"] {
        let options = ["--source-disk-stack", &out, "--mode", mode];
        let errors = site.cp(&options, &url, "tree.tar").unwrap().failed().unwrap().errors();
        assert!(errors.contains("exit code 2: ") && errors.contains("tar: "), "{errors}");
        assert!(!site.path("tree.tar").exists(), "{mode}");
        let options = ["--destination-disk-stack", "popen:argv=#false", "--mode", mode];
        let errors = site.cp(&options, "source", &url).unwrap().failed().unwrap().errors();
        assert!(errors.contains("program false failed"), "{errors}");
    }
    let options = ["--source-disk-stack", "popen:argv=#sh#-c#id"];
    let errors = site.cp(&options, &url, "id").unwrap().failed().unwrap().errors();
    assert!(errors.contains("program 'sh' not whitelisted"), "{errors}");
    let options = ["--source-disk-stack", &out];
    let errors = site.cp(&options, "source", &url).unwrap().failed().unwrap().errors();
    assert!(errors.contains("no disk stack"), "{errors}");
}

#[test]
fn globus_url_copy_runs_programs_of_a_ropewalk_server() {
    if !peers::available(&["globus-url-copy"]) {
        return;
    }
    let site = Site::new().unwrap();
    let content = make_tree(&site);
    let server = site.serve(OURS, &[]).unwrap();
    let copy = |options: &[&str], from: &str, to: &str| {
        let mut command = process::command("globus-url-copy");
        site.environment(&mut command);
        run(command.args(options).args([from, to]), LIMIT).unwrap()
    };
    let (url, back) = (format!("{}/x", server.url), format!("file://{}", text(&site.path("back"))));
    for streams in [&[][..], &["-p", "4"]] {
        let get = [&["-src-fsstack", "popen:argv=#cat#tree/one"][..], streams].concat();
        copy(&get, &url, &back).succeeded().unwrap();
        assert!(fs::read(site.path("back")).unwrap() == content, "{streams:?}");
        let put = [&["-dst-fsstack", "popen:argv=#dd#of=stored,ordering"][..], streams].concat();
        copy(&put, &back, &url).succeeded().unwrap();
        assert!(fs::read(site.path("root/stored")).unwrap() == content, "{streams:?}");
        fs::remove_file(site.path("root/stored")).unwrap();
    }
    copy(&["-src-fsstack", "popen:argv=#cat#missing"], &url, &back).failed().unwrap();
}

#[test]
fn ropewalk_runs_programs_of_a_gct_server() {
    if !peers::available(&["globus-gridftp-server"]) {
        return;
    }
    let site = Site::new().unwrap();
    let content = make_tree(&site);
    let whitelists = ["-fs-whitelist", "file,popen,ordering", "-popen-whitelist", "cat:/bin/cat,dd:/bin/dd"];
    let server = site.gct(&whitelists).unwrap();
    let url = format!("{}/x", server.url);
    let (one, stored) = (site.path("root/tree/one"), site.path("root/stored"));
    let out = format!("popen:argv=#cat#{}", text(&one));
    let into = format!("popen:argv=#dd#of={},ordering", text(&stored));
    for mode in ["stream", "extended"] {
        site.cp(&["--source-disk-stack", &out, "--mode", mode], &url, "back").unwrap().succeeded().unwrap();
        assert!(fs::read(site.path("back")).unwrap() == content, "{mode}");
        let options = ["--destination-disk-stack", &into, "--mode", mode, "--streams", "4"];
        site.cp(&options, "back", &url).unwrap().succeeded().unwrap();
        let found = fs::read(&stored).unwrap();
        let differs = found.iter().zip(&content).position(|(a, b)| a != b);
        assert!(found == content, "{mode}: {} of {} bytes, {differs:?}", found.len(), content.len());
        fs::remove_file(&stored).unwrap();
        fs::remove_file(site.path("back")).unwrap();
    }
    let command = ["globus-url-copy", "-src-pipe", &format!("cat {}", text(&one))].map(str::to_owned);
    let back = format!("file://{}", text(&site.path("back")));
    let mut ropewalk = peers::ropewalk_command().unwrap();
    site.environment(&mut ropewalk);
    run(ropewalk.args(command).args([&url, &back]), LIMIT).unwrap().succeeded().unwrap();
    assert!(fs::read(site.path("back")).unwrap() == content);
}
