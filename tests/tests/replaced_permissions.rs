//! Replaced files keep their permissions, at every server and with every method.

#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
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
fn replaced_file_keeps_permissions() {
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
        // New files get the default permissions of the server.
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

/// Calls `test` for a local directory, Ropewalk's server, and GCT's server, each with its own
/// directory and the URL or path of `t` in it.
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

/// Copies the content of `source` to `to`, as root without the capability to bypass permissions.
fn copy_obeying_permissions(arguments: &[&str], source: &Path, to: &OsString) {
    let mut command = process::command("setpriv");
    command.args(["--bounding-set=-dac_override,-dac_read_search", "--"]);
    command.arg(peers::ropewalk().unwrap()).args(["cp", "-q"]).args(arguments);
    command.env("XDG_STATE_HOME", peers::home()).env("XDG_CONFIG_HOME", peers::home());
    command.arg(Client::Ropewalk.local(source, true)).arg(to);
    process::run(&mut command, Duration::from_secs(30)).unwrap().succeeded().unwrap();
}

/// The destination cannot be read for a comparison, so it is copied.
#[test]
fn unreadable_destination_is_replaced() {
    let scratch = Scratch::new().unwrap();
    let source = scratch.directory("s").unwrap();
    fs::write(source.join("f"), "the same").unwrap();
    each_place(&scratch, |kind, root, to| {
        fs::create_dir(root.join("t")).unwrap();
        fs::write(root.join("t/f"), "The same").unwrap();
        fs::set_permissions(root.join("t/f"), Permissions::from_mode(0o000)).unwrap();
        copy_obeying_permissions(&["-r", "--sync=checksum", "--dry-run"], &source, to);
        copy_obeying_permissions(&["-r", "--sync=checksum"], &source, to);
        assert_eq!(fs::read_to_string(root.join("t/f")).unwrap(), "the same", "{kind:?}");
        assert_eq!(mode(&root.join("t/f")), 0, "{kind:?}");
    });
}

/// A tree with read-only directories is copied a second time like the first time.
#[test]
fn read_only_directories_are_copied_again() {
    let scratch = Scratch::new().unwrap();
    let source = scratch.directory("s").unwrap();
    let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let shut = |base: &Path, mode| ["ro/sub", "ro", ""].map(|name| set(&base.join(name), mode));
    each_place(&scratch, |kind, root, to| {
        for arguments in [&["-a"][..], &["-a", "--sync=size"], &["-a", "--sync=size", "--delete"]] {
            let deletes = arguments.contains(&"--delete");
            // Files that no longer exist in the source are removed from such a directory too.
            for round in 0..if deletes { 3 } else { 2 } {
                let _ = fs::create_dir_all(source.join("ro/sub"));
                shut(&source, 0o755);
                fs::write(source.join("top"), "t".repeat(round + 1)).unwrap();
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
                for name in ["", "ro", "ro/sub"] {
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

/// A link at the destination must not redirect two files of a tree into one file, or into a file
/// elsewhere.
#[test]
fn links_in_destination_tree_are_replaced() {
    let scratch = Scratch::new().unwrap();
    let source = scratch.directory("s").unwrap();
    for name in ["a", "b", "c"] {
        fs::write(source.join(name), name).unwrap();
    }
    each_place(&scratch, |kind, root, to| {
        for arguments in [&["-r"][..], &["-a"], &["-r", "--sync"], &["-a", "--sync", "--delete"]] {
            fs::create_dir(root.join("t")).unwrap();
            fs::write(root.join("t/a"), "old one").unwrap();
            fs::write(root.join("elsewhere"), "stays").unwrap();
            symlink("a", root.join("t/b")).unwrap();
            symlink("../elsewhere", root.join("t/c")).unwrap();
            copy_obeying_permissions(arguments, &source, to);
            tree::ensure_same(&source, &root.join("t")).unwrap();
            assert_eq!(fs::read(root.join("elsewhere")).unwrap(), b"stays", "{kind:?} {arguments:?}");
            fs::remove_dir_all(root.join("t")).unwrap();
        }
    });
}

/// A file copied to a link that the user named is written to the link's target, whatever its size
/// and the method.
#[test]
fn named_link_is_followed_and_kept() {
    let scratch = Scratch::new().unwrap();
    let sources = [("small", 1000), ("large", 5 << 20)].map(|(name, size)| {
        let path = scratch.join(name);
        files::write_random(&path, size, size).unwrap();
        path
    });
    let from = Setup::new(Kind::Ropewalk, scratch.path()).start().unwrap();
    each_place(&scratch, |kind, root, to| {
        fs::create_dir_all(root.join("t/d")).unwrap();
        symlink("../file", root.join("t/d/second")).unwrap();
        symlink("d/second", root.join("t/link")).unwrap();
        let mut to = to.clone();
        to.push("link");
        for (source, name) in sources.iter().zip(["small", "large"]) {
            for from in [OsString::from(source), from.url(name).into()] {
                fs::write(root.join("t/file"), "old").unwrap();
                let copy = Copy::new(from, to.clone());
                Client::Ropewalk.run(&copy).unwrap().succeeded().unwrap();
                files::ensure_same(source, &root.join("t/file")).unwrap();
                assert!(root.join("t/link").is_symlink() && root.join("t/d/second").is_symlink(), "{kind:?}");
            }
        }
    });
}

#[test]
fn directory_links_are_not_followed_with_links_kept() {
    let scratch = Scratch::new().unwrap();
    let source = scratch.directory("s").unwrap();
    fs::create_dir_all(source.join("d/e")).unwrap();
    fs::write(source.join("d/e/f"), "f").unwrap();
    fs::write(source.join("g"), "g").unwrap();
    fs::set_permissions(source.join("d"), Permissions::from_mode(0o711)).unwrap();
    each_place(&scratch, |kind, root, to| {
        let out = root.join("out");
        fs::create_dir_all(root.join("t")).unwrap();
        fs::create_dir(&out).unwrap();
        fs::set_permissions(&out, Permissions::from_mode(0o700)).unwrap();
        symlink("../out", root.join("t/d")).unwrap();
        let copy = Copy::new(Client::Ropewalk.local(&source, true), to.clone()).argument("-a");
        let told = Client::Ropewalk.run(&copy).unwrap().failed().unwrap().text();
        assert!(told.contains("is a symbolic link"), "{kind:?}: {told}");
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0, "{kind:?}");
        assert_eq!(mode(&out), 0o700, "{kind:?}");
        assert_eq!(fs::read(root.join("t/g")).unwrap(), b"g", "{kind:?}: the rest is copied");
        // With --keep-dirlinks the link counts as a directory, with and without a comparison of the
        // destination.
        for sync in [&[][..], &["--sync"], &["--sync=checksum"]] {
            let arguments = [&["-r", "--keep-dirlinks"][..], sync].concat();
            copy_obeying_permissions(&arguments, &source, to);
            assert_eq!(fs::read(out.join("e/f")).unwrap(), b"f", "{kind:?} {arguments:?}");
            fs::remove_dir_all(out.join("e")).unwrap();
        }
    });
}

/// With a server that does not run as root and cannot open its own read-only file.
#[test]
fn read_only_files_are_copied_again() {
    let scratch = Scratch::new().unwrap();
    let [source, root] = ["s", "r"].map(|name| scratch.directory(name).unwrap());
    for (name, size) in [("small", 10), ("large", 5 << 20)] {
        files::write_random(&source.join(name), size, size).unwrap();
        fs::set_permissions(source.join(name), Permissions::from_mode(0o444)).unwrap();
    }
    let mut setup = Setup::new(Kind::Ropewalk, &root);
    if rustix::process::geteuid().is_root() {
        let nobody = 65534;
        for path in [scratch.path(), &root] {
            chown(path, Some(nobody), Some(nobody)).unwrap();
        }
        setup = setup.wrapper(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    }
    let server = setup.start().unwrap();
    for round in 0..2 {
        let copy = Copy::new(Client::Ropewalk.local(&source, true), server.url("t/")).argument("-a");
        Client::Ropewalk.run(&copy).unwrap().succeeded().unwrap();
        tree::ensure_same(&source, &root.join("t")).unwrap();
        assert_eq!(mode(&root.join("t/small")), 0o444, "{round}");
    }
}

/// A dry run examines as much as the copy would.
#[test]
fn dry_run_lists_what_would_be_copied() {
    let scratch = Scratch::new().unwrap();
    let source = scratch.directory("s").unwrap();
    fs::create_dir_all(source.join("old")).unwrap();
    fs::create_dir_all(source.join("new")).unwrap();
    fs::write(source.join("same"), "same").unwrap();
    fs::write(source.join("other"), "other").unwrap();
    each_place(&scratch, |kind, root, to| {
        fs::create_dir_all(root.join("t/old")).unwrap();
        fs::write(root.join("t/same"), "same").unwrap();
        fs::write(root.join("t/other"), "OTHER").unwrap();
        for (argument, files) in [("--sync=checksum", 1), ("--sync=off", 2)] {
            let copy = Copy::new(Client::Ropewalk.local(&source, true), to.clone()).recursive();
            let copy = copy.argument("--dry-run").argument(argument);
            let text = Client::Ropewalk.run(&copy).unwrap().succeeded().unwrap().text();
            let count = |event: &str| text.lines().filter(|line| line.contains(event)).count();
            assert_eq!((count("would_copy"), count("would_make")), (files, 1), "{kind:?} {argument}: {text}");
        }
    });
}

/// Files that are written in place, by option or by the server, are not written through links to
/// files.
#[test]
fn in_place_writes_do_not_follow_kept_links() {
    let scratch = Scratch::new().unwrap();
    let source = scratch.directory("s").unwrap();
    for name in ["a", "b"] {
        fs::write(source.join(name), name).unwrap();
    }
    let check = |root: &Path, copy: &dyn Fn()| {
        fs::create_dir_all(root.join("t")).unwrap();
        fs::write(root.join("elsewhere"), "stays").unwrap();
        symlink("../elsewhere", root.join("t/a")).unwrap();
        symlink("a", root.join("t/b")).unwrap();
        copy();
        tree::ensure_same(&source, &root.join("t")).unwrap();
        assert_eq!(fs::read(root.join("elsewhere")).unwrap(), b"stays");
        fs::remove_dir_all(root.join("t")).unwrap();
    };
    each_place(&scratch, |_, root, to| {
        check(root, &|| copy_obeying_permissions(&["-a", "--in-place"], &source, to));
    });
    let root = scratch.directory("configured").unwrap();
    let config = scratch.join("config.toml");
    fs::write(&config, "[files]\npart_files = false\n").unwrap();
    let mut setup = Setup::new(Kind::Ropewalk, &root);
    setup.arguments.extend(["--config".into(), config.into()]);
    let server = setup.start().unwrap();
    for argument in ["-a", "-r"] {
        check(&root, &|| copy_obeying_permissions(&[argument], &source, &server.url("t/").into()));
    }
}
