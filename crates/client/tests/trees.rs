//! Trees and single files: attributes of a copied directory besides its data, and the files that
//! are copied.

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use common::*;
use ropewalk_client::{
    Auto, Cancel, Event, Location, Options, Pair, Preserve, SyncLevel, Window, du, no_events, walk,
};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};

/// Seconds since 1970, a time that no file gets by itself.
const LONG_AGO: u64 = 1_000_000_000;

fn age(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    Ok(fs::File::open(path)?.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(LONG_AGO))?)
}

fn archive() -> Options {
    options().with(|o| o.preserve = Preserve { times: true, modes: true, links: true })
}

fn ensure_aged(path: &Path, mode: u32) -> Result<()> {
    let found = fs::metadata(path)?;
    ensure!(
        (found.mtime(), found.mode() & 0o7777) == (LONG_AGO as i64, mode),
        "{path:?}: {} {:o}",
        found.mtime(),
        found.mode()
    );
    Ok(())
}

#[test]
fn a_directory_gets_the_times_and_modes_of_its_source() -> Result<()> {
    each_way(&gridftp(), |from, source, to, destination| {
        write(&from.join("d/f"), b"x")?;
        age(&from.join("d"), 0o700)?;
        age(from, 0o750)?;
        run(source.clone(), destination.clone(), &archive())?.succeeded()?;
        ensure_aged(&to.join("d"), 0o700)?;
        ensure_aged(to, 0o750)?;
        // The tree is copied into an existing directory, under its own name.
        run(source, destination, &archive())?.succeeded()?;
        ensure_aged(&to.join("s"), 0o750)
    })
}

#[test]
fn a_dry_run_leaves_times_and_modes_alone() -> Result<()> {
    each_way(&gridftp(), |from, mut source, to, mut destination| {
        write(&from.join("d/f"), b"x")?;
        age(&from.join("d"), 0o700)?;
        write(&to.join("d/f"), b"y")?;
        let before = (fs::metadata(to.join("d"))?.mtime(), fs::metadata(to.join("d"))?.mode());
        for location in [&mut source, &mut destination] {
            match location {
                Location::Local(path) => path.push(""),
                Location::Remote(url) => url.path.push(b'/'),
                _ => {}
            }
        }
        let told = run(source, destination, &archive().with(|o| o.dry_run = true))?.succeeded()?;
        ensure!(told.count(|event| matches!(event, Event::WouldCopy { .. })) == 1);
        let after = (fs::metadata(to.join("d"))?.mtime(), fs::metadata(to.join("d"))?.mode());
        ensure!(before == after, "{before:?} {after:?}");
        Ok(())
    })
}

/// This also holds if no file would be put into the directory, which would fail.
#[test]
fn no_directory_is_made_in_the_place_of_a_file() -> Result<()> {
    each_way(&servers(), |from, source, to, destination| {
        fs::create_dir_all(from.join("empty"))?;
        write(&from.join("f"), b"x")?;
        write(&to.join("s/empty"), b"a file")?;
        let told = run(source, destination, &options())?;
        ensure!(told.summary.files_failed == 1, "{:?}", told.summary);
        ensure!(fs::read(to.join("s/empty"))? == b"a file" && fs::read(to.join("s/f"))? == b"x");
        Ok(())
    })
}

#[test]
fn a_part_of_a_directory_is_refused() -> Result<()> {
    each_way(&gridftp(), |from, source, to, destination| {
        write(&from.join("f"), b"0123456789")?;
        let window = Some(Window { offset: 2, length: Some(3) });
        let told = run_pairs(vec![Pair { source, destination, window }], &options())?;
        ensure!(told.summary.files_failed == 1 && !to.exists(), "{:?}", told.summary);
        Ok(())
    })
}

/// A file with another time but the same bytes stays, whichever way the data would take.
#[test]
fn the_same_sums_are_not_copied() -> Result<()> {
    let options = options().with(|o| o.selection.sync = Some(SyncLevel::Checksum));
    let differ = |from: &Path, to: &Path| {
        write(&from.join("a"), b"different")?;
        write(&from.join("b"), b"the same")?;
        write(&to.join("s/a"), b"different")?;
        write(&to.join("s/b"), b"the same")
    };
    each_way(&gridftp(), |from, source, to, destination| {
        differ(from, to)?;
        let told = run(source.clone(), destination.clone(), &options)?.succeeded()?;
        ensure!(told.summary.files_done == 0, "{:?}", told.summary);
        write(&from.join("a"), b"Different")?;
        let told = run(source, destination, &options)?.succeeded()?;
        ensure!(
            told.summary.files_done == 1 && fs::read(to.join("s/a"))? == b"Different",
            "{:?}",
            told.summary
        );
        Ok(())
    })?;
    each(&gridftp(), |bench| {
        differ(&bench.remote.join("s"), &bench.remote.join("t"))?;
        let through = options.clone().with(|o| o.data.through_here = true);
        let told = run(bench.url("s"), bench.url("t"), &through)?.succeeded()?;
        ensure!(told.summary.files_done == 0, "{:?}", told.summary);
        write(&bench.remote.join("s/a"), b"Different")?;
        let told = run(bench.url("s"), bench.url("t"), &through)?.succeeded()?;
        ensure!(told.summary.files_done == 1, "{:?}", told.summary);
        ensure!(fs::read(bench.remote.join("t/s/a"))? == b"Different");
        Ok(())
    })
}

/// A server that supports only STOR would keep no data of the old file behind the window.
#[test]
fn the_beginning_of_a_longer_file_is_not_all_that_stays() -> Result<()> {
    each(&servers(), |bench| {
        write(&bench.remote.join("f"), b"0123456789")?;
        write(&bench.remote.join("long"), b"abcdefghijklmnopqrstuvwxyz")?;
        let window = Some(Window { offset: 0, length: Some(4) });
        let pair = Pair { source: bench.url("f"), destination: bench.url("long"), window };
        let told = run_pairs(vec![pair], &options().with(|o| o.data.through_here = true))?;
        let there = fs::read(bench.remote.join("long"))?;
        if bench.server.kind() == Kind::Vsftpd {
            ensure!(told.summary.files_failed == 1, "{:?}", told.summary);
            ensure!(there == b"abcdefghijklmnopqrstuvwxyz");
        } else {
            told.succeeded()?;
            ensure!(there == b"0123efghijklmnopqrstuvwxyz");
        }
        Ok(())
    })
}

/// An interrupted copy of a file of that name will be resumed later.
#[test]
fn a_link_that_replaces_something_touches_no_part() -> Result<()> {
    each_way(&gridftp(), |from, source, to, destination| {
        write(&from.join("f"), b"x")?;
        symlink("f", from.join("link"))?;
        write(&to.join("s/link"), b"a file")?;
        write(&to.join("s/.link.ropewalk-part"), b"half of it")?;
        run(source, destination, &archive())?.succeeded()?;
        ensure!(to.join("s/link").is_symlink() && fs::read(to.join("s/link"))? == b"x");
        ensure!(fs::read(to.join("s/.link.ropewalk-part"))? == b"half of it");
        fs::remove_file(to.join("s/.link.ropewalk-part"))?;
        ensure_clean(&to.join("s"))
    })
}

/// The directory may have matches that cannot be found.
#[test]
fn a_directory_that_a_pattern_leads_through_has_to_be_readable() -> Result<()> {
    if std::env::var_os("ROPEWALK_BIN").is_none() {
        return Ok(());
    }
    let (here, there) = (Scratch::new()?, Scratch::new()?);
    for name in ["open/f", "closed/f"] {
        write(&there.join(name), b"x")?;
    }
    fs::set_permissions(there.join("closed"), Permissions::from_mode(0o0))?;
    let server = Setup::new(Kind::Ropewalk, there.path()).obeying_permissions().start()?;
    let pattern = place(&server.url("*/f"));
    let told = run(pattern.clone(), Location::Local(here.join("t/")), &options())?;
    ensure!(told.summary.files_failed == 1 && told.summary.files_done == 1, "{:?}", told.summary);
    let mut unread = Vec::new();
    walk(&pattern, &archive(), &no_events(), &Cancel::new(), &mut |entry| {
        unread.extend(entry.error.map(|_| entry.name.to_string()));
        std::ops::ControlFlow::Continue(())
    })?;
    ensure!(unread == ["closed"], "{unread:?}");
    // A circle of links is not entered, and hides no entries.
    write(&here.join("s/f"), b"x")?;
    fs::create_dir(here.join("s/sub"))?;
    symlink(".", here.join("s/sub/back"))?;
    let all = Location::Local(here.join("s/**/f"));
    run(all, Location::Local(here.join("circle/")), &options())?.succeeded()?;
    Ok(())
}

/// Names of unfinished copies at the source would collide with those of this client's part files.
#[test]
fn unfinished_copies_are_no_part_of_a_tree() -> Result<()> {
    let names = [".x.ropewalk-part", ".x.ropewalk-journal", "x", "d/.y.ropewalk-part"];
    let ensure_whole = |to: &Path| {
        ensure!(fs::read(to.join("x"))? == b"x", "the file");
        for name in names.iter().filter(|name| **name != "x") {
            ensure!(!to.join(name).exists(), "{name}");
        }
        Ok(())
    };
    each_way(&gridftp(), |from, source, to, destination| {
        names.iter().try_for_each(|name| write(&from.join(name), name.as_bytes()))?;
        let told = run(source, destination, &options())?.succeeded()?.summary;
        ensure!((told.files_done, told.files_skipped) == (1, 3), "{told:?}");
        ensure_whole(to)
    })?;
    // This server lists them.
    each(&[Kind::Gct], |bench| {
        names.iter().try_for_each(|name| write(&bench.remote.join("s").join(name), name.as_bytes()))?;
        run(bench.url("s"), bench.here("t"), &options())?.succeeded()?;
        ensure_whole(&bench.local.join("t"))
    })
}

/// globus-gridftp-server takes both for `a-`: one would overwrite the other, or be removed for it.
#[test]
fn names_that_a_server_would_cut_are_not_sent() -> Result<()> {
    each(&[Kind::Gct], |bench| {
        write(&bench.local.join("s/a-\u{e9}"), b"1")?;
        write(&bench.local.join("s/a-\u{e8}"), b"22")?;
        write(&bench.local.join("s/\u{fc}/x"), b"333")?;
        write(&bench.remote.join("t/a-"), b"theirs")?;
        let told =
            run(bench.here("s/"), bench.url("t/"), &options().with(|o| o.recovery.retries = 1))?.summary;
        ensure!((told.files_failed, told.retries) == (4, 0), "{told:?}");
        let reason = format!("{:?}", told.failures);
        ensure!(reason.contains("non-ASCII"), "{reason}");
        ensure!(fs::read(bench.remote.join("t/a-"))? == b"theirs");
        ensure!(fs::read_dir(bench.remote.join("t"))?.count() == 1);
        let told = run(bench.url("t/a-\u{e9}"), bench.here("u"), &options())?.summary;
        ensure!((told.files_failed, bench.local.join("u").exists()) == (1, false), "{told:?}");
        Ok(())
    })
}

/// globus-gridftp-server lists such a name as two lines, of which the second cannot be parsed.
#[test]
fn a_line_that_cannot_be_understood_harms_its_directory_alone() -> Result<()> {
    each(&[Kind::Gct], |bench| {
        for name in ["a\n0", "ok", "d/ok", "d/e/ok"] {
            write(&bench.remote.join("s").join(name), name.as_bytes())?;
        }
        for name in ["0", "gone", "d/gone"] {
            write(&bench.local.join("t").join(name), b"here")?;
        }
        let mirror = options().with(|o| {
            o.selection.sync = Some(SyncLevel::Size);
            o.selection.delete = true;
            o.recovery.retries = 0;
        });
        let told = run(bench.url("s/"), bench.here("t/"), &mirror)?.summary;
        ensure!(told.failures.len() == 2, "{told:?}");
        ensure!(told.failures.iter().any(|failure| failure.error.contains("cannot be parsed")), "{told:?}");
        for name in ["ok", "d/ok", "d/e/ok"] {
            ensure!(fs::read(bench.local.join("t").join(name))? == name.as_bytes(), "{name}");
        }
        let left = |name| bench.local.join("t").join(name).exists();
        ensure!(left("0") && left("gone") && !left("d/gone"));
        Ok(())
    })
}

/// globus-gridftp-server reports the entries beside a dangling link as invalid links.
#[test]
fn links_beside_one_that_leads_nowhere_are_copied() -> Result<()> {
    each(&gridftp(), |bench| {
        write(&bench.remote.join("s/sub/x"), b"x")?;
        write(&bench.remote.join("s/f"), b"f")?;
        for (target, name) in [("sub", "a"), ("nowhere", "b"), ("sub", "c"), ("f", "d"), ("../../out", "e")] {
            symlink(target, bench.remote.join("s").join(name))?;
        }
        let usage = du(&bench.url("s/"), &options(), &no_events(), &Cancel::new())?;
        ensure!((usage.files, usage.directories, usage.errors) == (2, 1, 0), "{usage:?}");
        run(bench.url("s/"), bench.here("t/"), &archive())?.succeeded()?;
        for name in ["a", "b", "c", "d", "e"] {
            ensure!(fs::symlink_metadata(bench.local.join("t").join(name))?.is_symlink(), "{name}");
        }
        ensure!(fs::read(bench.local.join("t/sub/x"))? == b"x");
        Ok(())
    })
}

#[test]
fn a_part_that_is_not_there_is_no_empty_file() -> Result<()> {
    each_way(&gridftp(), |from, source, to, destination| {
        write(from, b"12345")?;
        let copy = |offset| {
            let window = Some(Window { offset, length: None });
            let pair = Pair { source: source.clone(), destination: destination.clone(), window };
            run_pairs(vec![pair], &options())
        };
        let told = copy(6)?.summary;
        ensure!((told.files_failed, to.exists()) == (1, false), "{told:?}");
        copy(3)?.succeeded()?;
        ensure!(fs::read(to)?.ends_with(b"45"));
        Ok(())
    })
}

/// The file has no data in flight, so the sessions of the others continue.
#[test]
fn a_name_that_one_of_two_servers_would_cut_fails_alone() -> Result<()> {
    if !gridftp().contains(&Kind::Ropewalk) {
        return Ok(());
    }
    let (Some(ours), Some(gct)) = (Bench::new(Kind::Ropewalk)?, Bench::new(Kind::Gct)?) else {
        return Ok(());
    };
    let mut whole = 0;
    for n in 0..40 {
        let content = vec![b'x'; 1000 + n];
        whole += content.len() as u64;
        write(&ours.remote.join(format!("s/f{n}")), &content)?;
        write(&ours.remote.join(format!("s/g{n}-\u{e9}")), b"cut")?;
    }
    let options = options().with(|o| {
        o.recovery.retries = 0;
        o.tuning.files = Auto::Set(1);
        o.tuning.pipeline = Auto::Set(16);
    });
    let told = run(ours.url("s/"), gct.url("t/"), &options)?;
    ensure!((told.summary.files_done, told.summary.files_failed) == (40, 40), "{:?}", told.summary);
    // Each file was sent once.
    ensure!(told.summary.bytes == whole, "{} of {whole}", told.summary.bytes);
    ensure!(fs::read_dir(gct.remote.join("t"))?.count() == 40);
    Ok(())
}

#[test]
fn links_to_names_with_spaces_are_made() -> Result<()> {
    let Some(bench) = Bench::new(Kind::Ropewalk)? else { return Ok(()) };
    fs::create_dir_all(bench.local.join("s"))?;
    for (name, target) in [("one", "b c"), ("two", " x"), ("three", "y ")] {
        symlink(target, bench.local.join("s").join(name))?;
    }
    run(bench.here("s/"), bench.url("t/"), &archive())?.succeeded()?;
    for (name, target) in [("one", "b c"), ("two", " x"), ("three", "y ")] {
        ensure!(fs::read_link(bench.remote.join("t").join(name))?.as_os_str() == target, "{name}");
    }
    Ok(())
}

#[test]
fn a_file_is_not_copied_onto_itself() -> Result<()> {
    each(&gridftp(), |bench| {
        write(&bench.remote.join("f"), b"all there is")?;
        symlink("f", bench.remote.join("link"))?;
        let local = Location::Local(bench.remote.join("f"));
        let (here, there) = (bench.url("f"), bench.url("link"));
        for (source, destination, in_place) in [
            (&here, &here, false),
            (&here, &here, true),
            (&here, &there, true),
            (&there, &here, true),
            (&local, &here, true),
        ] {
            for through_here in [false, true] {
                let options = options().with(|o| {
                    o.storage.in_place = in_place;
                    o.data.through_here = through_here;
                    o.recovery.retries = 0;
                });
                let told = run(source.clone(), destination.clone(), &options)?.summary;
                ensure!(told.files_failed == 1, "{source:?} {destination:?} {in_place} {through_here}");
                ensure!(told.failures[0].error.contains("are the same file"), "{:?}", told.failures);
                ensure!(fs::read(bench.remote.join("f"))? == b"all there is");
            }
        }
        Ok(())
    })
}

#[test]
fn a_part_that_cannot_be_had_leaves_nothing() -> Result<()> {
    each(&[Kind::Vsftpd], |bench| {
        write(&bench.remote.join("f"), b"0123456789")?;
        let window = Some(Window { offset: 2, length: Some(3) });
        let pair = Pair { source: bench.url("f"), destination: bench.here("f"), window };
        let told = run_pairs(vec![pair], &options())?.summary;
        ensure!(told.files_failed == 1 && !bench.local.join("f").exists(), "{told:?}");
        Ok(())
    })
}

/// An operation at the destination has no source, so the failure names the destination.
#[test]
fn a_directory_that_cannot_be_made_is_named() -> Result<()> {
    each(&[Kind::Gct], |bench| {
        write(&bench.local.join("s/\u{fc}/x"), b"x")?;
        let told = run(bench.here("s/"), bench.url("t/"), &options())?;
        let named = told.events.iter().filter_map(|event| match event {
            Event::FileFailed { source, .. } => Some(source),
            _ => None,
        });
        let named: Vec<_> = named.collect();
        ensure!(named.len() == 2 && named.iter().all(|name| name.contains('\u{fc}')), "{named:?}");
        Ok(())
    })
}

/// If a name in a directory sorts before `.`, GCT's listing of a whole tree does not show the
/// directory itself.
#[test]
fn directories_that_no_listing_tells_of_are_made() -> Result<()> {
    each(&gridftp(), |bench| {
        for name in ["d/(1).txt", "d/g", "d/-x/#a#", "d/-x/y", "e/h"] {
            write(&bench.remote.join("s").join(name), name.as_bytes())?;
        }
        fs::set_permissions(bench.remote.join("s/d"), Permissions::from_mode(0o750))?;
        let preserve = Preserve { modes: true, ..Preserve::default() };
        let options = options().with(|o| {
            o.recovery.retries = 0;
            o.preserve = preserve;
        });
        let told = run(bench.url("s/"), bench.here("t/"), &options)?.succeeded()?.summary;
        ensure!((told.files_done, told.directories) == (5, 3), "{told:?}");
        ensure!(fs::read(bench.local.join("t/d/-x/#a#"))? == b"d/-x/#a#");
        ensure!(fs::metadata(bench.local.join("t/d"))?.permissions().mode() & 0o777 == 0o750);
        // A directory that is the first of its names is taken for its parent, and is not listed.
        let hidden = ["v/#d/f", "v/#d/#e/#g/h", "v/z", "#f/(/i", "!x/!y/!z/q"];
        for name in hidden {
            write(&bench.remote.join("w").join(name), name.as_bytes())?;
        }
        symlink("nowhere", bench.remote.join("w/v/#d/#e/lost"))?;
        fs::set_permissions(bench.remote.join("w/v"), Permissions::from_mode(0o750))?;
        fs::set_permissions(bench.remote.join("w/v/#d"), Permissions::from_mode(0o711))?;
        let preserve = Preserve { modes: true, links: true, ..Preserve::default() };
        let told = run(bench.url("w/"), bench.here("w/"), &options.clone().with(|o| o.preserve = preserve))?;
        let told = told.succeeded()?.summary;
        ensure!((told.files_done, told.directories) == (6, 9), "{told:?}");
        for name in hidden {
            ensure!(fs::read(bench.local.join("w").join(name))? == name.as_bytes(), "{name}");
        }
        ensure!(fs::read_link(bench.local.join("w/v/#d/#e/lost"))?.as_os_str() == "nowhere");
        for (name, mode) in [("w/v", 0o750), ("w/v/#d", 0o711), ("w/v/#d/#e", 0o755)] {
            let told = fs::metadata(bench.local.join(name))?.permissions().mode() & 0o777;
            ensure!(told == mode, "{name}: {told:o}");
        }
        // A directory that a filter excludes is left out, with its content.
        let without = vec![(false, "#d/".to_owned())];
        let told =
            run(bench.url("w/"), bench.here("x/"), &options.clone().with(|o| o.selection.filters = without))?;
        let told = told.succeeded()?.summary;
        ensure!(told.files_done == 3 && !bench.local.join("x/v/#d").exists(), "{told:?}");
        let filters = vec![(false, "-x/".to_owned())];
        let told = run(bench.url("s/"), bench.here("u/"), &options.with(|o| o.selection.filters = filters))?
            .succeeded()?
            .summary;
        ensure!(told.files_done == 3 && !bench.local.join("u/d/-x").exists(), "{told:?}");
        Ok(())
    })
}

/// If a whole tree is listed by the name of a link, GCT's listing has an entry for the link itself.
#[test]
fn the_link_that_a_tree_is_asked_by_is_not_in_it() -> Result<()> {
    each(&gridftp(), |bench| {
        write(&bench.remote.join("real/f"), b"x")?;
        symlink("real", bench.remote.join("link"))?;
        for options in [options(), archive()] {
            let there = bench.local.join("to");
            run(bench.url("link/"), Location::Local(there.clone()), &options)?.succeeded()?;
            ropewalk_tests::tree::ensure_same(&bench.remote.join("real"), &there)?;
            fs::remove_dir_all(there)?;
        }
        // Also, no entry is to be removed at the destination for it.
        let options = options().with(|o| {
            o.selection.sync = Some(SyncLevel::Size);
            o.selection.delete = true;
        });
        let told = run(bench.url("real/"), bench.url("link/"), &options)?;
        let summary = &told.summary;
        ensure!((summary.files_failed, summary.removed) == (0, 0), "{summary:?}");
        Ok(())
    })
}

/// Local sockets are left out, too.
#[test]
fn sockets_at_servers_are_left_out() -> Result<()> {
    each(&gridftp(), |bench| {
        write(&bench.remote.join("s/f"), b"x")?;
        let _socket = std::os::unix::net::UnixListener::bind(bench.remote.join("s/socket"))?;
        let told = run(bench.url("s/"), bench.here("to"), &options())?;
        let summary = &told.summary;
        ensure!((summary.files_done, summary.files_failed, summary.retries) == (1, 0, 0), "{summary:?}");
        Ok(())
    })
}

/// This includes the links that GCT's listings of directories do not show.
#[test]
fn links_that_lead_nowhere_are_the_same_the_second_time() -> Result<()> {
    each(&gridftp(), |bench| {
        write(&bench.remote.join("s/d/f"), b"x")?;
        for link in ["s/a", "s/d/b", "s/d/c"] {
            symlink("nowhere", bench.remote.join(link))?;
        }
        let options = archive().with(|o| {
            o.selection.sync = Some(SyncLevel::Size);
            o.selection.delete = true;
        });
        run(bench.url("s/"), bench.here("to"), &options)?.succeeded()?;
        write(&bench.local.join("to/d/f2"), b"gone")?;
        let told = run(bench.url("s/"), bench.here("to"), &options)?;
        let summary = &told.summary;
        let moved = (summary.files_done, summary.files_failed, summary.removed);
        ensure!(moved == (0, 0, 1) && bench.local.join("to/d/c").is_symlink(), "{summary:?}");
        Ok(())
    })
}

#[test]
fn what_is_the_same_gets_its_permissions_all_the_same() -> Result<()> {
    each_way(&gridftp(), |from, source, to, destination| {
        for name in ["open", "shut"] {
            write(&from.join(name), b"x")?;
            fs::set_permissions(from.join(name), Permissions::from_mode(0o644))?;
        }
        let mirror = options().with(|o| {
            o.selection.sync = Some(SyncLevel::Time);
            o.preserve = Preserve { times: true, modes: true, links: false };
            o.storage.into_directories = false;
        });
        run(source.clone(), destination.clone(), &mirror)?.succeeded()?;
        fs::set_permissions(from.join("shut"), Permissions::from_mode(0o600))?;
        let told = run(source, destination, &mirror)?.succeeded()?.summary;
        ensure!(told.files_done == 0, "{told:?}");
        for (name, mode) in [("open", 0o644), ("shut", 0o600)] {
            let there = fs::metadata(to.join(name))?.permissions().mode() & 0o777;
            ensure!(there == mode, "{name}: {there:o}");
        }
        Ok(())
    })
}
