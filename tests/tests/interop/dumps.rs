//! `-do` and `-df`: each `globus-url-copy`, Ropewalk's and GCT's, reads the files that the other
//! one writes.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use ropewalk_tests::client::{Client, Copy};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::{peers, process};

fn start() -> Option<(Scratch, Server)> {
    if !peers::available(&["globus-gridftp-server", "globus-url-copy", "setpriv"]) {
        return None;
    }
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("served").unwrap();
    fs::create_dir_all(root.join("s/sub dir")).unwrap();
    for (name, content) in [("a", "aa"), ("b c", "bbb"), ("50%,;&'", "p"), ("sub dir/d", "d")] {
        fs::write(root.join("s").join(name), content).unwrap();
    }
    let server = Setup::new(Kind::Gct, &root).start().unwrap();
    Some((scratch, server))
}

/// The lines of a file, sorted, because directories have no order.
fn lines(path: &Path) -> Vec<String> {
    let mut lines: Vec<String> = fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn what_would_be_copied_is_told_as_by_gct() {
    let Some((scratch, server)) = start() else { return };
    let there = scratch.directory("there").unwrap();
    let copies = [
        Copy::new(server.url("s/"), Client::Guc.local(&there, true)).recursive(),
        Copy::new(Client::Guc.local(&server.root().join("s"), true), server.url("up/")).recursive(),
        Copy::new(server.url("s/a"), Client::Guc.local(&there.join("a"), false)),
        Copy::new(server.url("s/a"), Client::Guc.local(&there.join("a"), false)).window(1, 1),
    ];
    for (number, copy) in copies.into_iter().enumerate() {
        let dumps = [Client::Guc, Client::Compatible].map(|client| {
            let dump = scratch.join(format!("{client:?}{number}"));
            let copy = copy.clone().argument("-do").argument(&dump);
            client.run(&copy).unwrap().succeeded().unwrap();
            lines(&dump)
        });
        assert_eq!(dumps[0], dumps[1], "{copy:?}");
        assert!(!dumps[0].is_empty());
    }
    assert!(fs::read_dir(&there).unwrap().next().is_none(), "something was copied");
}

/// Also if the files of a tree are copied one by one, to know which of them are left.
#[test]
fn directories_keep_times_and_modes() {
    let Some((scratch, server)) = start() else { return };
    let (from, there) = (server.root().join("s/sub dir"), scratch.directory("there").unwrap());
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::open(&from).unwrap().set_modified(old).unwrap();
    let copy = Copy::new(server.url("s/"), Client::Guc.local(&there, true)).recursive();
    let copy = copy.argument("-preserve").argument("-df").argument(scratch.join("left"));
    Client::Compatible.run(&copy).unwrap().succeeded().unwrap();
    assert_eq!(fs::metadata(there.join("sub dir")).unwrap().modified().unwrap(), old);
}

/// Also the parent directories, without `-cd`.
#[test]
fn a_tree_makes_the_directory_that_it_goes_to() {
    let Some((scratch, server)) = start() else { return };
    for client in [Client::Guc, Client::Compatible] {
        let (name, there) = (format!("{client:?}"), scratch.join(format!("{client:?}/new")));
        let copies = [
            (Copy::new(server.url("s/"), Client::Guc.local(&there, true)), there),
            (
                Copy::new(
                    Client::Guc.local(&server.root().join("s"), true),
                    server.url(format!("up/{name}/")),
                ),
                server.root().join("up").join(&name),
            ),
        ];
        for (copy, made) in copies {
            client.run(&copy.recursive()).unwrap().succeeded().unwrap();
            assert_eq!(fs::read(made.join("sub dir/d")).unwrap(), b"d", "{client:?}");
        }
    }
}

#[test]
fn what_one_of_them_left_undone_the_other_does() {
    let Some((scratch, server)) = start() else { return };
    for (number, (first, second)) in
        [(Client::Compatible, Client::Guc), (Client::Guc, Client::Compatible)].into_iter().enumerate()
    {
        let there = scratch.directory(format!("there{number}")).unwrap();
        // A directory in place of a file.
        fs::create_dir_all(there.join("a/x")).unwrap();
        if matches!(first, Client::Guc) {
            fs::create_dir(there.join("sub dir")).unwrap();
        }
        let dump = scratch.join(format!("left{number}"));
        let copy = Copy::new(server.url("s/"), Client::Guc.local(&there, true))
            .recursive()
            .argument("-df")
            .argument(&dump);
        first.run(&copy).unwrap().failed().unwrap();
        assert!(lines(&dump).iter().any(|line| line.contains("/s/a\"")), "{:?}", lines(&dump));
        fs::remove_dir_all(there.join("a")).unwrap();
        second.run(&copy).unwrap().succeeded().unwrap();
        assert!(lines(&dump).is_empty(), "{:?}", lines(&dump));
        for name in ["a", "b c", "50%,;&'", "sub dir/d"] {
            let original = fs::read(server.root().join("s").join(name)).unwrap();
            assert_eq!(fs::read(there.join(name)).unwrap(), original, "{first:?}, then {second:?}: {name}");
        }
    }
}

/// A pattern that could not be expanded stays a pattern in the dump file.
#[test]
fn a_pattern_that_was_left_undone_is_one_later() {
    let Some((scratch, server)) = start() else { return };
    for (number, base) in [
        server.url("later/"),
        Client::Compatible.local(&server.root().join("later"), true).into_string().unwrap(),
    ]
    .into_iter()
    .enumerate()
    {
        for carries_on in [false, true] {
            let there = scratch.directory(format!("there{number}{carries_on}")).unwrap();
            let left = scratch.join(format!("left{number}{carries_on}"));
            let mut copy = Copy::new(format!("{base}a%3F*"), Client::Compatible.local(&there, true));
            copy = copy.argument("-df").argument(&left);
            if carries_on {
                copy = copy.argument("-c");
            }
            Client::Compatible.run(&copy).unwrap().failed().unwrap();
            fs::create_dir(server.root().join("later")).unwrap();
            for name in ["a?1", "a?2", "ab"] {
                fs::write(server.root().join("later").join(name), name).unwrap();
            }
            Client::Compatible.run(&copy).unwrap().succeeded().unwrap();
            assert_eq!(fs::read_dir(&there).unwrap().count(), 2, "{copy:?}");
            fs::remove_dir_all(server.root().join("later")).unwrap();
        }
    }
}

/// A source with two destinations, a missing source, and a URL that we do not support.
#[test]
fn lists_keep_all_their_lines() {
    let Some((scratch, server)) = start() else { return };
    let list = scratch.join("list");
    let local = |name: &str| format!("file://{}", scratch.join(name).display());
    let text = [
        format!("\"{}\" \"{}\"", server.url("s/a"), local("one")),
        format!("\"{}\" \"{}\"", server.url("s/a"), local("two")),
        format!("\"{}\" \"{}\"", server.url("s/none"), local("none")),
        format!("\"foo://h/a\" \"{}\"", local("other")),
    ];
    fs::write(&list, text.join("\n") + "\n").unwrap();
    let dumps = ["globus-url-copy", "ours"].map(|program| {
        let dump = scratch.join(format!("dump of {program}"));
        let mut command = match program {
            "ours" => peers::ropewalk_command().unwrap(),
            gct => process::command(gct),
        };
        if program == "ours" {
            command.arg("globus-url-copy");
        }
        command.arg("-do").arg(&dump).arg("-f").arg(&list);
        process::run(&mut command, Duration::from_secs(30)).unwrap();
        lines(&dump)
    });
    let [theirs, ours] = dumps;
    assert_eq!(theirs, ours[1..]);
    assert_eq!(theirs.len(), 3);
    // GCT's program stops there.
    assert!(ours[0].contains("foo://h/a"), "{ours:?}");
    // With -c the others are copied.
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["globus-url-copy", "-c", "-f"]).arg(&list);
    let outcome = process::run(&mut command, Duration::from_secs(30)).unwrap().failed().unwrap();
    assert!(outcome.errors().contains("line 4: "), "{}", outcome.errors());
    for name in ["one", "two"] {
        assert!(scratch.join(name).is_file(), "{name}");
    }
}
