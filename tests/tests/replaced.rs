//! Files that are replaced keep their permissions, at whatever server and by whatever way.

#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use ropewalk_tests::client::{Client, Copy};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};
use ropewalk_tests::{files, peers, process, tree};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn what_is_replaced_keeps_its_permissions() {
    let scratch = Scratch::new().unwrap();
    let [small, large] = [("small", 1000), ("large", 5 << 20)].map(|(name, size)| {
        let path = scratch.join(name);
        files::write_random(&path, size, size).unwrap();
        path
    });
    for kind in [Kind::Ropewalk, Kind::Gct] {
        if kind == Kind::Gct && !peers::available(&["globus-gridftp-server", "setpriv"]) {
            continue;
        }
        let root = scratch.directory(format!("{kind:?}")).unwrap();
        let server = Setup::new(kind, &root).start().unwrap();
        let copy = |source: OsString, arguments: &[&str]| {
            let mut copy = Copy::new(source, server.url("x"));
            copy.arguments = arguments.iter().map(Into::into).collect();
            Client::Ropewalk.run(&copy).unwrap().succeeded().unwrap();
            mode(&root.join("x"))
        };
        // New ones have what the server gives them.
        let usual = copy(large.clone().into(), &[]);
        assert_eq!(usual, 0o644, "{kind:?}");
        fs::copy(&large, root.join("s")).unwrap();
        for kept in [0o600, 0o640, 0o440] {
            for (source, arguments) in [
                (small.clone().into(), &[][..]),
                (large.clone().into(), &[]),
                (large.clone().into(), &["--mode", "stream"]),
                (server.url("s").into(), &[]),
                (server.url("s").into(), &["--through-here"]),
            ] {
                fs::set_permissions(root.join("x"), Permissions::from_mode(kept)).unwrap();
                assert_eq!(copy(source, arguments), kept, "{kind:?} {arguments:?}");
            }
        }
        fs::set_permissions(&large, Permissions::from_mode(0o604)).unwrap();
        assert_eq!(
            copy(large.clone().into(), &["--preserve", "modes"]),
            0o604,
            "{kind:?}: those of the source were asked for"
        );
    }
}

/// Here, at our server and at GCT's: a directory of its own, and where `t` in it is.
fn each_place(scratch: &Scratch, test: impl Fn(Option<Kind>, &Path, &OsString)) {
    for kind in [None, Some(Kind::Ropewalk), Some(Kind::Gct)] {
        if kind == Some(Kind::Gct) && !peers::available(&["globus-gridftp-server", "setpriv"]) {
            continue;
        }
        let root = scratch.directory(format!("{kind:?}")).unwrap();
        let server = kind.map(|kind| Setup::new(kind, &root).obeying_permissions().start().unwrap());
        let to = match &server {
            Some(server) => server.url("t/").into(),
            None => Client::Ropewalk.local(&root.join("t"), true),
        };
        test(kind, &root, &to);
    }
}

/// Copies what is in `source` to `to`, as root without root's way past permissions.
fn copy_obeying_permissions(arguments: &[&str], source: &Path, to: &OsString) {
    let mut command = process::command("setpriv");
    command.args(["--bounding-set=-dac_override,-dac_read_search", "--"]);
    command.arg(peers::ropewalk().unwrap()).args(["cp", "-q"]).args(arguments);
    command.env("XDG_STATE_HOME", peers::home()).env("XDG_CONFIG_HOME", peers::home());
    command.arg(Client::Ropewalk.local(source, true)).arg(to);
    process::run(&mut command, Duration::from_secs(30)).unwrap().succeeded().unwrap();
}

/// Nobody may compare it: it is copied.
#[test]
fn what_may_not_be_read_at_the_destination_is_replaced() {
    let scratch = Scratch::new().unwrap();
    let source = scratch.directory("s").unwrap();
    fs::write(source.join("f"), "the same").unwrap();
    each_place(&scratch, |kind, root, to| {
        fs::create_dir(root.join("t")).unwrap();
        fs::write(root.join("t/f"), "The same").unwrap();
        fs::set_permissions(root.join("t/f"), Permissions::from_mode(0o000)).unwrap();
        copy_obeying_permissions(&["-r", "--sync=checksum"], &source, to);
        assert_eq!(fs::read_to_string(root.join("t/f")).unwrap(), "the same", "{kind:?}");
        assert_eq!(mode(&root.join("t/f")), 0, "{kind:?}");
    });
}

/// A tree whose directories nobody may write to is copied once more, as by the first copy.
#[test]
fn directories_that_nobody_writes_to_are_copied_again() {
    let scratch = Scratch::new().unwrap();
    let source = scratch.directory("s").unwrap();
    let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let shut = |base: &Path, mode| ["ro/sub", "ro"].map(|name| set(&base.join(name), mode));
    each_place(&scratch, |kind, root, to| {
        for arguments in [&["-a"][..], &["-a", "--sync=size"], &["-a", "--sync=size", "--delete"]] {
            let deletes = arguments.contains(&"--delete");
            // What the source has no longer goes from such a directory, too.
            for round in 0..if deletes { 3 } else { 2 } {
                let _ = fs::create_dir_all(source.join("ro/sub"));
                shut(&source, 0o755);
                fs::write(source.join("ro/f"), "x".repeat(round + 1)).unwrap();
                fs::write(source.join("ro/sub/g"), "y".repeat(round + 1)).unwrap();
                if round == 1 {
                    fs::create_dir_all(source.join("ro/sub/new")).unwrap();
                    fs::write(source.join("ro/sub/new/h"), "h").unwrap();
                    set(&source.join("ro/sub/new"), 0o555);
                }
                if round == 2 {
                    fs::remove_dir_all(source.join("ro/sub/new")).unwrap();
                }
                shut(&source, 0o555);
                copy_obeying_permissions(arguments, &source, to);
                tree::ensure_same(&source, &root.join("t")).unwrap();
                for name in ["ro", "ro/sub"] {
                    assert_eq!(mode(&root.join("t").join(name)), 0o555, "{kind:?} {arguments:?}");
                }
            }
            shut(&source, 0o755);
            shut(&root.join("t"), 0o755);
            fs::remove_dir_all(&source).unwrap();
            fs::remove_dir_all(root.join("t")).unwrap();
        }
    });
}
