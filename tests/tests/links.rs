//! Symbolic links in listings of Ropewalk's server, and in copies.

#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use ropewalk_tests::client::Summary;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};
use ropewalk_tests::{peers, process};

/// An earlier copy or a server may have created a link at the destination; later files must not
/// leave the destination through it.
#[test]
fn links_out_of_destination_are_not_followed() {
    let scratch = Scratch::new().unwrap();
    let served = scratch.directory("served").unwrap();
    for file in ["out/victim", "within/f", "special", "plain"] {
        fs::create_dir_all(served.join(file).parent().unwrap()).unwrap();
        fs::write(served.join(file), "new").unwrap();
    }
    let outside = scratch.directory("outside").unwrap();
    fs::write(outside.join("victim"), "older").unwrap();
    let [destination, real] = ["to", "to/real"].map(|name| scratch.directory(name).unwrap());
    symlink("../outside", destination.join("out")).unwrap();
    symlink("real", destination.join("within")).unwrap();
    symlink("/dev/null", destination.join("special")).unwrap();
    // The user may name a link as the destination, which is then followed.
    symlink("to", scratch.join("named")).unwrap();
    let server = Setup::new(Kind::Ropewalk, &served).start().unwrap();
    let copy = |from: OsString, more: &[&str]| {
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["cp", "-r", "--retries", "0"]).args(more).arg(from).arg(scratch.join("named/"));
        process::run(&mut command, Duration::from_secs(30)).unwrap()
    };
    let remote = |name: &str| OsString::from(format!("{}/{name}", server.url("").trim_end_matches('/')));
    let local = |name: &str| served.join(name).into_os_string();
    for (from, directory) in [(remote(""), remote("out")), (local(""), local("out"))] {
        for more in [&[][..], &["--sync"]] {
            let _ = fs::remove_file(destination.join("plain"));
            let done = copy(from.clone(), more);
            assert_eq!(done.status.code(), Some(1), "{}", done.errors());
            let named = format!("{}: a symbolic link that leads out", scratch.join("named/out").display());
            assert!(done.errors().contains(&named), "{}", done.errors());
            assert!(done.errors().contains("special: a symbolic link stands there"), "{}", done.errors());
            assert_eq!(fs::read_to_string(outside.join("victim")).unwrap(), "older");
            assert_eq!(fs::read_to_string(real.join("f")).unwrap(), "new");
            assert_eq!(fs::read_to_string(destination.join("plain")).unwrap(), "new");
        }
        // A directory name from the source is as untrusted as the content of the directory.
        let done = copy(directory, &[]);
        assert_eq!(done.status.code(), Some(1));
        assert_eq!(fs::read_to_string(outside.join("victim")).unwrap(), "older");
    }
    fs::remove_file(destination.join("special")).unwrap();
    copy(remote(""), &["--keep-dirlinks"]).succeeded().unwrap();
    assert_eq!(fs::read_to_string(outside.join("victim")).unwrap(), "new");
}

#[test]
fn dangling_link_is_listed_without_failure() {
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

/// GCT's listings make relative links absolute; links within the tree must lead within its copy.
#[test]
fn links_of_tree_stay_within_copy() {
    if !peers::available(&["globus-gridftp-server", "setpriv"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let [from, to] = ["from", "to"].map(|name| scratch.directory(name).unwrap());
    fs::create_dir_all(from.join("t/d/e")).unwrap();
    fs::write(from.join("t/a"), "a").unwrap();
    for (target, link) in [("a", "t/la"), ("../a", "t/d/up"), ("d/e", "t/down")] {
        symlink(target, from.join(link)).unwrap();
    }
    let gct = Setup::new(Kind::Gct, &from).start().unwrap();
    let ours = Setup::new(Kind::Ropewalk, &to).start().unwrap();
    let copy = |destination: &std::ffi::OsStr, more: &[&str]| {
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["cp", "-a", "--json"]).args(more).arg(gct.url("t/")).arg(destination);
        process::run(&mut command, Duration::from_secs(30)).unwrap().succeeded().unwrap().text()
    };
    let here = scratch.join("here/");
    for (destination, root) in [(here.clone().into_os_string(), here), (ours.url("c/").into(), to.join("c"))]
    {
        copy(&destination, &[]);
        let target =
            |link: &str| fs::read_link(root.join(link)).unwrap().into_os_string().into_string().unwrap();
        assert_eq!(["la", "d/up", "down"].map(target), ["a", "../a", "d/e"]);
        assert_eq!(fs::read_to_string(root.join("d/up")).unwrap(), "a");
        let again = copy(&destination, &["--sync", "--delete"]);
        assert!(again.contains("\"files_done\":0"), "{again}");
    }
}

/// Mirrors to GCT's server, whose directory listings omit dangling links.
#[test]
fn mirror_compares_and_removes_dangling_links() {
    if !peers::available(&["globus-gridftp-server", "setpriv"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let [from, to] = ["from", "to"].map(|name| scratch.directory(name).unwrap());
    fs::create_dir_all(from.join("d/e")).unwrap();
    fs::write(from.join("d/f"), "f").unwrap();
    let gct = Setup::new(Kind::Gct, &to).start().unwrap();
    let mirror = |more: &[&str]| {
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["cp", "--json", "--sync", "--delete"]).args(more);
        command.arg(format!("{}/", from.display())).arg(gct.url(""));
        let outcome = process::run(&mut command, Duration::from_secs(30)).unwrap().succeeded().unwrap();
        Summary::of(&outcome).unwrap()
    };
    mirror(&["-a"]);
    // That server creates no dangling links.
    symlink("nowhere", from.join("d/kept")).unwrap();
    symlink("nowhere", to.join("d/kept")).unwrap();
    let kept = || fs::read_link(to.join("d/kept")).unwrap();
    let first = kept();
    for link in ["gone", "d/gone", "d/e/gone"] {
        symlink("nowhere", to.join(link)).unwrap();
    }
    let again = mirror(&["-a", "--exclude", "d/e/gone"]);
    assert_eq!(again.number("removed").unwrap(), 2, "{:?}", again.value());
    assert_eq!(again.number("files_done").unwrap(), 0, "{:?}", again.value());
    assert_eq!(kept(), first);
    for (link, there) in [("gone", false), ("d/gone", false), ("d/e/gone", true)] {
        assert_eq!(to.join(link).is_symlink(), there, "{link}");
    }
    fs::remove_file(from.join("d/kept")).unwrap();
    let last = mirror(&["-r"]);
    assert_eq!(last.number("removed").unwrap(), 2, "{:?}", last.value());
    assert!(!to.join("d/kept").is_symlink() && !to.join("d/e/gone").is_symlink());
}

/// A dangling link that is not copied is reported, whatever the options.
#[test]
fn dangling_link_is_reported_by_every_copy() {
    if !peers::available(&["globus-gridftp-server", "setpriv"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let from = scratch.directory("from").unwrap();
    fs::write(from.join("f"), "f").unwrap();
    symlink("nowhere", from.join("l")).unwrap();
    for kind in [Kind::Ropewalk, Kind::Gct] {
        let server = Setup::new(kind, &from).start().unwrap();
        for more in [&["-r"][..], &["-r", "--sync"], &["-r", "--sync", "--delete"]] {
            let mut command = peers::ropewalk_command().unwrap();
            command.arg("cp").args(more).arg(server.url("")).arg(scratch.join("to/"));
            let outcome = process::run(&mut command, Duration::from_secs(30)).unwrap().failed().unwrap();
            assert!(outcome.errors().contains("/l: a dangling symbolic link"), "{kind:?} {more:?}");
        }
    }
}

/// GCT's listing of a tree omits the content of a directory that is the first of its names and
/// sorts before a dot.
#[test]
fn links_in_directories_sorting_before_dot_are_mirrored() {
    if !peers::available(&["globus-gridftp-server", "setpriv"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let [from, to] = ["from", "to"].map(|name| scratch.directory(name).unwrap());
    for directory in ["e/(1)", "#a/b/-c", "z"] {
        fs::create_dir_all(from.join(directory)).unwrap();
        symlink("nowhere", from.join(directory).join("l")).unwrap();
    }
    let [source, destination] = [&from, &to].map(|root| Setup::new(Kind::Gct, root).start().unwrap());
    let mirror = |source: &std::ffi::OsStr, destination: &std::ffi::OsStr| {
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["cp", "--json", "-a", "--sync", "--delete"]).arg(source).arg(destination);
        let outcome = process::run(&mut command, Duration::from_secs(30)).unwrap().succeeded().unwrap();
        Summary::of(&outcome).unwrap().number("removed").unwrap()
    };
    let here = scratch.join("here/");
    for round in 0..2 {
        assert_eq!(mirror(source.url("").as_ref(), here.as_os_str()), 0, "{round}");
        for link in ["e/(1)/l", "#a/b/-c/l", "z/l"] {
            assert!(here.join(link).is_symlink(), "{link} {round}");
        }
    }
    // At the destination such links are found and removed too.
    for directory in ["e/(1)", "#a/b/-c"] {
        fs::create_dir_all(to.join(directory)).unwrap();
        symlink("nowhere", to.join(directory).join("gone")).unwrap();
        fs::remove_file(here.join(directory).join("l")).unwrap();
    }
    fs::remove_dir_all(here.join("z")).unwrap();
    assert_eq!(mirror(here.as_os_str(), destination.url("").as_ref()), 2);
}

/// A dangling link, which GCT's listing of its directory omits, replaces a directory.
#[test]
fn dangling_link_replaces_directory() {
    if !peers::available(&["globus-gridftp-server", "setpriv"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let from = scratch.directory("from").unwrap();
    symlink("nowhere", from.join("l")).unwrap();
    symlink("nowhere", from.join("kept")).unwrap();
    let to = scratch.join("to/");
    for directory in ["l/beneath", "kept/beneath"] {
        fs::create_dir_all(to.join(directory)).unwrap();
    }
    let source = Setup::new(Kind::Gct, &from).start().unwrap();
    let mut command = peers::ropewalk_command().unwrap();
    command
        .args(["cp", "--json", "-a", "--sync", "--delete", "--exclude", "/kept"])
        .arg(source.url(""))
        .arg(&to);
    let outcome = process::run(&mut command, Duration::from_secs(30)).unwrap().succeeded().unwrap();
    assert_eq!(Summary::of(&outcome).unwrap().number("removed").unwrap(), 1);
    assert_eq!(fs::read_link(to.join("l")).unwrap().to_str(), Some("nowhere"));
    assert!(to.join("kept/beneath").is_dir());
}
