//! Trees that the destination is to mirror: which files are removed and which stay.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Result, ensure};
use common::*;
use ropewalk_client::{Location, Options, Pair, Preserve, SyncLevel};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::Kind;
use ropewalk_tests::tree;

fn mirror() -> Options {
    options().with(|o| {
        o.selection.sync = Some(SyncLevel::Size);
        o.selection.delete = true;
        o.storage.into_directories = false;
    })
}

#[test]
fn a_mirror_does_not_remove_its_own_source() -> Result<()> {
    let inside = |base: &Path, at: &dyn Fn(&str) -> Location| -> Result<()> {
        write(&base.join("d/f"), b"f")?;
        write(&base.join("d/sub/x"), b"x")?;
        for destination in ["d/", "d"] {
            let told = run(at("d/sub/"), at(destination), &mirror())?.summary;
            ensure!((told.files_failed, told.removed) == (1, 0), "{told:?}");
        }
        ensure!(base.join("d/sub/x").exists() && base.join("d/f").exists());
        // A source that the mirror does not touch may be there.
        let without = mirror().with(|o| o.selection.filters = vec![(false, "/sub".to_owned())]);
        run(at("d/sub/"), at("d/"), &without)?.succeeded()?;
        ensure!(base.join("d/sub/x").exists() && base.join("d/x").exists() && !base.join("d/f").exists());
        Ok(())
    };
    let here = Scratch::new()?;
    inside(here.path(), &|name| Location::Local(format!("{}/{name}", here.path().display()).into()))?;
    each(&gridftp(), |bench| inside(bench.remote.path(), &|name| bench.url(name)))
}

/// GCT's listing of a directory does not show the link.
#[test]
fn a_link_that_leads_nowhere_is_not_missing() -> Result<()> {
    each(&gridftp(), |bench| {
        write(&bench.remote.join("s/a"), b"a")?;
        write(&bench.remote.join("s/b/c"), b"c")?;
        symlink("nowhere", bench.remote.join("s/b/k"))?;
        symlink("a", bench.remote.join("s/l"))?;
        write(&bench.local.join("t/b/k/p"), b"p")?;
        let told = run(bench.url("s/"), bench.here("t/"), &mirror())?.summary;
        ensure!((told.files_failed, told.removed) == (1, 0), "{told:?}");
        ensure!(bench.local.join("t/b/k/p").exists() && bench.local.join("t/l").exists());
        Ok(())
    })
}

/// The two files are given by a list of pairs.
#[test]
fn two_files_that_are_to_be_one_are_told() -> Result<()> {
    each(&gridftp(), |bench| {
        write(&bench.local.join("a"), b"a")?;
        write(&bench.local.join("b"), b"bb")?;
        let pair =
            |source: &str| Pair { source: bench.here(source), destination: bench.url("t"), window: None };
        let told = run_pairs(vec![pair("a"), pair("b"), pair("a")], &options())?.summary;
        // A file that is named twice is copied once, because two sessions would disturb each other.
        ensure!((told.files_done, told.files_failed) == (1, 1), "{told:?}");
        ensure!(fs::read(bench.remote.join("t"))? == b"a");
        Ok(())
    })
}

/// This also holds beneath directories that are removed.
#[test]
fn what_a_filter_leaves_out_is_not_removed() -> Result<()> {
    each_way(&gridftp(), |from, source, to, destination| {
        write(&from.join("new.root"), b"new")?;
        for name in ["old/notes.txt", "old/b.root", "old/sub/c.root", "gone/d.root", "top.txt"] {
            write(&to.join(name), b"there")?;
        }
        let mirror = mirror().with(|o| o.selection.filters = vec![(true, "*.root".to_owned())]);
        let told = run(source, destination, &mirror)?.succeeded()?.summary;
        for name in ["old/notes.txt", "top.txt", "new.root"] {
            ensure!(to.join(name).exists(), "{name}");
        }
        for name in ["old/b.root", "old/sub", "gone"] {
            ensure!(!to.join(name).exists(), "{name}");
        }
        // One of them is a whole directory.
        ensure!(told.removed == 4, "{told:?}");
        Ok(())
    })
}

/// A directory is removed as without a filter if the filter matches nothing in it.
#[test]
fn filters_keep_nothing_that_they_do_not_name() -> Result<()> {
    each_way(&gridftp(), |from, source, to, destination| {
        write(&from.join("x"), b"a file")?;
        write(&from.join("y"), b"a file")?;
        for name in ["gone/f", "x/f", "y/f", "y/f.keep"] {
            write(&to.join(name), b"there")?;
        }
        symlink("nowhere", to.join("gone/dang"))?;
        let mirror = mirror().with(|o| o.selection.filters = vec![(false, "*.keep".to_owned())]);
        let told = run(source, destination, &mirror)?.summary;
        ensure!((told.files_done, told.files_failed) == (1, 1), "{told:?}");
        ensure!(!to.join("gone").exists() && fs::read(to.join("x"))? == b"a file");
        ensure!(to.join("y/f.keep").exists() && !to.join("y/f").exists());
        Ok(())
    })
}

/// The files of one source are in danger from another one only if that one is to be the whole
/// content of the directory.
#[test]
fn sources_that_share_a_destination_may_be_mirrored() -> Result<()> {
    let here = Scratch::new()?;
    for name in ["a/x1", "a/x2", "b/x3", "a/d/f"] {
        write(&here.join(name), b"x")?;
    }
    let mirror = options().with(|o| {
        o.selection.sync = Some(SyncLevel::Size);
        o.selection.delete = true;
    });
    for (number, sources) in
        [["a/*", "b/*"], ["a/x1", "a/x1"], ["a/d", "a/d"], ["a/d", "a/*"]].iter().enumerate()
    {
        let to = format!("t{number}/");
        let pairs = sources.map(|source| Pair {
            source: Location::Local(here.join(source)),
            destination: Location::Local(here.join(&to)),
            window: None,
        });
        run_pairs(pairs.to_vec(), &mirror)?.succeeded()?;
    }
    ensure!(here.join("t0/x3").exists() && here.join("t2/d/f").exists() && here.join("t3/x2").exists());
    Ok(())
}

/// Two directories of one name have one destination: neither of them is its whole content.
#[test]
fn directories_of_one_name_do_not_remove_each_other() -> Result<()> {
    each(&gridftp(), |bench| {
        for name in ["x/a/f", "x/a/x1", "y/a/f", "y/a/y1"] {
            write(&bench.local.join(name), name.as_bytes())?;
        }
        let pairs = |names: [&str; 2]| {
            names.map(|name| Pair { source: bench.here(name), destination: bench.url("t/"), window: None })
        };
        let told = run_pairs(pairs(["x/a", "y/a"]).to_vec(), &options())?.summary;
        // Of the two files with one name the first is copied, and the other one is reported.
        ensure!((told.files_done, told.files_failed) == (3, 1), "{told:?}");
        ensure!(fs::read(bench.remote.join("t/a/f"))? == b"x/a/f");
        let mirror = options().with(|o| {
            o.selection.sync = Some(SyncLevel::Size);
            o.selection.delete = true;
        });
        let refused = run_pairs(pairs(["x/a", "y/a"]).to_vec(), &mirror);
        ensure!(refused.is_err_and(|e| format!("{e:#}").contains("--delete")), "it was not refused");
        let told = run(bench.here("*/a"), bench.url("t/"), &mirror)?.summary;
        ensure!(told.failures.iter().any(|failure| failure.error.contains("--delete")), "{told:?}");
        Ok(())
    })
}

/// This holds however their destination is spelled.
#[test]
fn one_place_has_one_name() -> Result<()> {
    each(&gridftp(), |bench| {
        for name in ["x/f", "x/x1", "y/f", "y/y1"] {
            write(&bench.local.join(name), name.as_bytes())?;
        }
        symlink(".", bench.local.join("same"))?;
        for (to, other) in [
            (bench.url("t"), bench.url("./u/..//t")),
            (bench.here("t"), bench.here("./u/../t/")),
            (bench.here("v"), bench.here("same/v")),
        ] {
            fs::create_dir_all(bench.local.join("u"))?;
            fs::create_dir_all(bench.remote.join("u"))?;
            let pairs = || {
                let pair = |source, to: &Location| Pair { source, destination: to.clone(), window: None };
                vec![pair(bench.here("x/"), &to), pair(bench.here("y/"), &other)]
            };
            let mirror = options().with(|o| {
                o.selection.sync = Some(SyncLevel::Size);
                o.selection.delete = true;
            });
            let refused = run_pairs(pairs(), &mirror);
            ensure!(
                refused.is_err_and(|e| format!("{e:#}").contains("--delete")),
                "{other:?} was not refused"
            );
            let told = run_pairs(pairs(), &options())?.summary;
            ensure!((told.files_done, told.files_failed) == (3, 1), "{other:?}: {told:?}");
        }
        Ok(())
    })
}

/// A link at the destination stands for another directory of the same tree, or leads out of it.
#[test]
fn a_mirror_goes_through_no_link() -> Result<()> {
    each(&gridftp(), |bench| {
        let archive = Preserve { times: true, modes: true, links: true };
        for (round, preserve) in [Preserve::default(), archive].into_iter().enumerate() {
            let (from, to) = (format!("s{round}"), format!("t{round}"));
            let (s, t) = (bench.local.join(&from), bench.remote.join(&to));
            write(&s.join("l/i"), b"precious")?;
            fs::create_dir_all(s.join("x"))?;
            fs::create_dir_all(t.join("x"))?;
            symlink("x", t.join("l"))?;
            if preserve.links {
                write(&s.join("m"), b"mine")?;
                write(&bench.remote.join("outside"), b"victim")?;
                symlink("../outside", t.join("m"))?;
            }
            let options = options().with(|o| {
                o.selection.sync = Some(SyncLevel::Time);
                o.selection.delete = true;
                o.preserve = preserve;
                o.recovery.retries = 0;
            });
            for _ in 0..2 {
                run(bench.here(&format!("{from}/")), bench.url(&format!("{to}/")), &options)?.succeeded()?;
                tree::ensure_same(&s, &t)?;
            }
            if preserve.links {
                ensure!(fs::read(bench.remote.join("outside"))? == b"victim" && !t.join("m").is_symlink());
            }
        }
        Ok(())
    })
}

/// GCT's server lists dangling links only in the listing of a whole tree.
#[test]
fn a_mirror_keeps_links_that_lead_nowhere() -> Result<()> {
    each(&gridftp(), |bench| {
        write(&bench.remote.join("s/d/f"), b"x")?;
        symlink("nowhere", bench.remote.join("s/d/lost"))?;
        symlink("f", bench.remote.join("s/d/link"))?;
        let preserve = Preserve { links: true, ..Preserve::default() };
        fs::create_dir_all(bench.remote.join("s/no"))?;
        symlink("nowhere", bench.remote.join("s/no/lost"))?;
        let filters = vec![(false, "no/".to_owned())];
        let options = options().with(|o| {
            o.selection.sync = Some(SyncLevel::Time);
            o.selection.delete = true;
            o.preserve = preserve;
            o.selection.filters = filters;
        });
        for _ in 0..2 {
            write(&bench.local.join("t/d/extra"), b"x")?;
            run(bench.url("s/"), bench.here("t/"), &options)?.succeeded()?;
            ensure!(fs::read_link(bench.local.join("t/d/lost"))?.as_os_str() == "nowhere");
            ensure!(bench.local.join("t/d/link").is_symlink() && !bench.local.join("t/d/extra").exists());
        }
        // Links that a filter excludes are not looked for.
        let filters = vec![(false, "lo*".to_owned())];
        let told = run(
            bench.url("s/"),
            bench.here("u/"),
            &crate::options().with(|o| o.selection.filters = filters),
        )?;
        ensure!(told.succeeded()?.summary.files_done == 2 && !bench.local.join("t/no").exists());
        Ok(())
    })
}

/// Listings of a Ropewalk server report an entry whose name would take two lines.
#[test]
fn what_a_listing_cannot_name_is_neither_copied_nor_removed() -> Result<()> {
    let ours: Vec<Kind> = gridftp().into_iter().filter(|kind| *kind == Kind::Ropewalk).collect();
    each(&ours, |bench| {
        for name in ["a\rb", "a?b", "d/c\nd", "ok"] {
            write(&bench.remote.join("s").join(name), name.as_bytes())?;
        }
        for name in ["a\rb", "gone", "d/c\nd", "d/gone", "e/gone"] {
            write(&bench.local.join("t").join(name), b"here")?;
        }
        let mirror = options().with(|o| {
            o.selection.sync = Some(SyncLevel::Size);
            o.selection.delete = true;
            o.recovery.retries = 0;
        });
        let told = run(bench.url("s/"), bench.here("t/"), &mirror)?.summary;
        ensure!((told.files_done, told.files_failed) == (2, 2), "{told:?}");
        ensure!(fs::read(bench.local.join("t/a?b"))? == b"a?b");
        // It is not known whether these files have such names.
        for name in ["a\rb", "gone", "d/c\nd", "d/gone", "e/gone"] {
            ensure!(fs::read(bench.local.join("t").join(name))? == b"here", "{name:?}");
        }
        // A plain copy or a pattern does not copy them either.
        let told = run(bench.url("s"), bench.here("u"), &options().with(|o| o.recovery.retries = 0))?.summary;
        ensure!((told.files_done, told.files_failed) == (2, 2), "{told:?}");
        let told =
            run(bench.url("s/a*"), bench.here("v/"), &options().with(|o| o.recovery.retries = 0))?.summary;
        ensure!((told.files_done, told.files_failed) == (1, 1), "{told:?}");
        // At the destination no file is removed for the name that is shown.
        write(&bench.local.join("w/x"), b"x")?;
        fs::remove_file(bench.remote.join("s/a?b"))?;
        run(bench.here("w/"), bench.url("s/"), &mirror)?.succeeded()?;
        ensure!(bench.remote.join("s/a\rb").exists() && !bench.remote.join("s/ok").exists());
        Ok(())
    })
}
