//! Patterns in the sources of `globus-url-copy`: Ropewalk's and GCT's program find the same files,
//! and copy them to the same names.

use std::fs;
use std::os::unix::fs::symlink;

use ropewalk_tests::client::{Client, Copy};
use ropewalk_tests::peers;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};
use ropewalk_tests::tree;

#[test]
fn patterns_match_as_with_gct() {
    if !peers::available(&["globus-gridftp-server", "globus-url-copy", "setpriv"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("served").unwrap();
    let source = root.join("s");
    fs::create_dir_all(source.join("d1/deep")).unwrap();
    fs::create_dir_all(source.join("empty")).unwrap();
    for name in ["a?b", "axb", "s*r", "st{o}r", "d1/x y", "d1/deep/z"] {
        fs::write(source.join(name), name).unwrap();
    }
    // Neither program copies a dangling link, and neither fails because of it.
    symlink("nowhere", source.join("d1/dangling")).unwrap();
    symlink("nowhere", source.join("dangling")).unwrap();
    // A listing of a whole tree does not contain the contents of this directory.
    fs::create_dir_all(root.join("l/d/sub")).unwrap();
    for name in ["a", "f"] {
        fs::write(root.join("l/d").join(name), name).unwrap();
    }
    fs::write(root.join("l/d/sub/g"), "g").unwrap();
    symlink("d", root.join("l/ld")).unwrap();
    let server = Setup::new(Kind::Gct, &root).start().unwrap();
    let remote = server.url("s/");
    for source in ["l/ld/", "l/l*"] {
        let results = [Client::Guc, Client::Compatible].map(|client| {
            let to = scratch.directory(format!("{client:?}{}", source.len())).unwrap();
            let copy = Copy::new(format!("{}{source}", server.url("")), client.local(&to, true)).recursive();
            client.run(&copy).unwrap().succeeded().unwrap();
            to
        });
        tree::ensure_same(&results[0], &results[1]).unwrap();
        assert!(fs::read_dir(&results[1]).unwrap().next().is_some(), "{source}: nothing came");
    }
    let local = Client::Guc.local(&source, true).into_string().unwrap();
    for base in [&remote, &local] {
        for (number, (pattern, recursive)) in [
            ("a?b", false),
            ("a%3Fb", false),
            ("s%2Ar", false),
            ("s*", false),
            ("st{o}*", false),
            ("", false),
            ("*", true),
            ("[de]*", true),
            ("", true),
        ]
        .into_iter()
        .enumerate()
        {
            let results = [Client::Guc, Client::Compatible].map(|client| {
                let to = scratch.directory(format!("{client:?}{number}{}", base.len())).unwrap();
                let mut copy = Copy::new(format!("{base}{pattern}"), client.local(&to, true));
                copy.recursive = recursive;
                client.run(&copy).unwrap().succeeded().unwrap();
                to
            });
            tree::ensure_same(&results[0], &results[1]).unwrap();
            assert!(fs::read_dir(&results[1]).unwrap().next().is_some(), "{base}{pattern}: nothing came");
        }
    }
}

/// GCT's server lists such a name as two lines. The second line cannot be interpreted, and the
/// other names are copied.
#[test]
fn a_name_that_cannot_be_listed_harms_no_other() {
    if !peers::available(&["globus-gridftp-server", "setpriv"]) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("served").unwrap();
    for name in ["axb", "ayb", "new\nline"] {
        fs::write(root.join(name), name).unwrap();
    }
    let server = Setup::new(Kind::Gct, &root).start().unwrap();
    let to = scratch.directory("to").unwrap();
    let copy = Copy::new(format!("{}a?b", server.url("")), Client::Compatible.local(&to, true));
    Client::Compatible.run(&copy).unwrap().failed().unwrap();
    assert!(to.join("axb").exists() && to.join("ayb").exists());
}
