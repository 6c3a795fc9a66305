//! Copies from, to and between real servers.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use anyhow::{Result, ensure};
use common::*;
use ropewalk_client::{
    Auto, Cancel, ChecksumPolicy, DataMode, Event, FailureKind, Location, Pair, Remote, SyncLevel, Window,
    du, list, no_events, walk,
};
use ropewalk_storage::checksum::Algorithm;
use ropewalk_tests::files::{ensure_same, ensure_same_range, write_random, write_sparse};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::server::Kind;
use ropewalk_tests::tree;

#[test]
fn trees_there_and_back() -> Result<()> {
    each(&servers(), |bench| {
        write(&bench.local.join("tree/.hidden/.file"), b"not to be forgotten")?;
        let kind = bench.server.kind();
        let tree = bench.local.join("tree");
        tree::make(&tree, true)?;
        run(bench.here("tree/"), bench.url("up/"), &options())?.succeeded()?;
        tree::ensure_same(&tree, &bench.remote.join("up"))?;
        let told = run(bench.url("up/"), bench.here("back/"), &options())?.succeeded()?;
        tree::ensure_same(&tree, &bench.local.join("back"))?;
        ensure!(kind == Kind::Vsftpd || told.summary.bytes_verified == told.summary.bytes);
        run(bench.url("up/"), bench.url("third/"), &options())?.succeeded()?;
        tree::ensure_same(&tree, &bench.remote.join("third"))?;
        Ok(())
    })
}

#[test]
fn stack_that_a_server_refuses_is_not_tried_again() -> Result<()> {
    each(&gridftp(), |bench| {
        write(&bench.remote.join("f"), b"x")?;
        let stack = "tcp,popen".parse()?;
        let options = options().with(|o| o.data.stack = Some(stack));
        let told = run(bench.url("f"), bench.here("f"), &options)?;
        let summary = &told.summary;
        ensure!((summary.files_failed, summary.retries) == (1, 0), "{summary:?}");
        Ok(())
    })
}

#[test]
fn every_mode_and_number_of_streams() -> Result<()> {
    each(&gridftp(), |bench| {
        let file = bench.local.join("f");
        write_random(&file, 9_000_001, 1)?;
        for (mode, streams) in [
            (DataMode::Stream, Auto::Auto),
            (DataMode::Extended, Auto::Set(1)),
            (DataMode::Extended, Auto::Set(5)),
            (DataMode::Auto, Auto::Auto),
        ] {
            let options = options().with(|o| {
                o.data.mode = mode;
                o.tuning.streams = streams;
            });
            for (from, to) in [
                (bench.here("f"), bench.url("up")),
                (bench.url("up"), bench.here("back")),
                (bench.url("up"), bench.url("third")),
            ] {
                run(from, to, &options)?.succeeded()?;
            }
            for copied in [bench.remote.join("up"), bench.local.join("back"), bench.remote.join("third")] {
                ensure_same(&file, &copied)?;
                fs::remove_file(copied)?;
            }
        }
        ensure_clean(bench.local.path())?;
        ensure_clean(bench.remote.path())
    })
}

#[test]
fn a_limit_on_the_rate_holds_both_ways() -> Result<()> {
    const RATE: u64 = 8_000_000;
    each(&servers(), |bench| {
        write_random(&bench.local.join("f"), 3_000_001, 4)?;
        write(&bench.local.join("small"), b"small")?;
        let options = options().with(|o| o.tuning.bandwidth = Some(RATE.into()));
        for (from, to) in [(bench.here("f"), bench.url("up")), (bench.url("up"), bench.here("back"))] {
            let told = run(from, to, &options)?.succeeded()?;
            // No host is fast enough to exceed the limit by itself. A tenth of a second of data may
            // be saved up.
            let least = told.summary.bytes as f64 / RATE as f64 - 0.11;
            ensure!(told.summary.seconds >= least, "{:?}", told.summary);
        }
        ensure_same(&bench.local.join("f"), &bench.local.join("back"))?;
        run(bench.here("small"), bench.url("small"), &options)?.succeeded()?;
        // Between two servers the limit could not be enforced.
        let refused = run(bench.url("up"), bench.url("third"), &options);
        ensure!(refused.is_err_and(|error| error.to_string().contains("--through-here")));
        let through = options.with(|o| o.data.through_here = true);
        run(bench.url("up"), bench.url("third"), &through)?.succeeded()?;
        ensure_same(&bench.local.join("f"), &bench.remote.join("third"))
    })
}

#[test]
fn big_files_in_ranges_over_several_sessions() -> Result<()> {
    each(&gridftp(), |bench| {
        let file = bench.local.join("f");
        write_random(&file, (140 << 20) + 12_345, 2)?;
        let options = options().with(|o| {
            o.tuning.files = Auto::Set(3);
            o.tuning.streams = Auto::Set(2);
        });
        let told = run(bench.here("f"), bench.url("up"), &options)?.succeeded()?;
        ensure_same(&file, &bench.remote.join("up"))?;
        ensure!(told.summary.files_in_flight == 3, "{:?}", told.summary);
        run(bench.url("up"), bench.here("back"), &options)?.succeeded()?;
        ensure_same(&file, &bench.local.join("back"))?;
        run(bench.url("up"), bench.url("third"), &options)?.succeeded()?;
        ensure_same(&file, &bench.remote.join("third"))?;
        ensure_clean(bench.local.path())?;
        ensure_clean(bench.remote.path())
    })
}

/// Servers that serve a session with one thread get several sessions; a Ropewalk server uses all
/// processors for one session.
#[test]
fn big_files_are_cut_only_where_that_helps() -> Result<()> {
    each(&gridftp(), |bench| {
        for directory in [&bench.local, &bench.remote] {
            write_sparse(&directory.join("f"), 140 << 20, &[(100 << 20, 1000)], 5)?;
        }
        let options = options().with(|o| o.trace_control = true);
        for (from, to) in [
            (bench.here("f"), bench.url("up")),
            (bench.url("f"), bench.here("back")),
            (bench.url("f"), bench.url("third")),
        ] {
            let told = run(from, to, &options)?.succeeded()?;
            let sent = |verbs: &[&str]| {
                told.count(|event| match event {
                    Event::Dialogue { direction: '>', line, .. } => verbs.iter().any(|v| line.starts_with(v)),
                    _ => false,
                })
            };
            let (whole, ranges) = (sent(&["STOR ", "RETR ", "ESTO U 0 "]), sent(&["ESTO A ", "ERET "]));
            if bench.server.kind() == Kind::Gct {
                ensure!(whole == 0 && ranges >= 3, "{whole} whole, {ranges} ranges");
            } else {
                ensure!((1..=2).contains(&whole) && ranges == 0, "{whole} whole, {ranges} ranges");
            }
        }
        for copied in [bench.remote.join("up"), bench.local.join("back"), bench.remote.join("third")] {
            ensure_same(&bench.local.join("f"), &copied)?;
        }
        Ok(())
    })
}

#[test]
fn windows_keep_their_offsets() -> Result<()> {
    each(&gridftp(), |bench| {
        let file = bench.remote.join("f");
        write_random(&file, 3_000_000, 3)?;
        write_random(&bench.local.join("f"), 3_000_000, 3)?;
        let window = Some(Window { offset: 1_000_001, length: Some(500_000) });
        for (source, destination, copied) in [
            (bench.url("f"), bench.here("part"), bench.local.join("part")),
            (bench.here("f"), bench.url("part"), bench.remote.join("part")),
            (bench.url("f"), bench.url("third"), bench.remote.join("third")),
        ] {
            run_pairs(vec![Pair { source, destination, window }], &options())?.succeeded()?;
            ensure!(fs::metadata(&copied)?.len() == 1_500_001, "{copied:?}");
            ensure_same_range(&file, 1_000_001, &copied, 1_000_001, 500_000)?;
        }
        Ok(())
    })
}

#[test]
fn refused_files_do_not_harm_others() -> Result<()> {
    each(&gridftp(), |bench| {
        for n in 0..60 {
            write(&bench.local.join(format!("s/f{n}")), format!("contents of {n}").as_bytes())?;
        }
        // The part files cannot be created, because directories have their names.
        for n in [20, 21, 40] {
            let part = bench.part(&format!("f{n}"));
            fs::create_dir_all(bench.remote.join(format!("up/{part}/x")))?;
            fs::create_dir_all(bench.remote.join(format!("third/{part}/x")))?;
        }
        let options = bench.known()?.with(|o| o.recovery.retries = 1);
        let told = run(bench.here("s/"), bench.url("up/"), &options)?;
        ensure!((told.summary.files_done, told.summary.files_failed) == (57, 3), "{:?}", told.summary);
        let told = run(bench.here("s/"), bench.url("all/"), &options)?;
        told.succeeded()?;
        let told = run(bench.url("all/"), bench.url("third/"), &options)?;
        ensure!((told.summary.files_done, told.summary.files_failed) == (57, 3), "{:?}", told.summary);
        for n in (0..60).filter(|n| ![20, 21, 40].contains(n)) {
            for copy in ["up", "third"] {
                let text = fs::read_to_string(bench.remote.join(format!("{copy}/f{n}")))?;
                ensure!(text == format!("contents of {n}"), "{copy}/f{n} has {text}");
            }
        }
        Ok(())
    })
}

#[test]
fn directories_are_made_only_when_asked() -> Result<()> {
    each(&gridftp(), |bench| {
        write(&bench.local.join("s/sub/f"), b"x")?;
        let options = options().with(|o| o.storage.create_directories = false);
        for to in [bench.url("none/"), bench.here("none/"), bench.url("no/where/f")] {
            let from = if to == bench.url("no/where/f") { "s/sub/f" } else { "s/" };
            let told = run(bench.here(from), to, &options)?;
            ensure!((told.summary.files_done, told.summary.files_failed) == (0, 1), "{:?}", told.summary);
            ensure!(told.summary.failures[0].kind == FailureKind::NotFound, "{:?}", told.summary.failures);
        }
        ensure!(!bench.remote.join("none").exists() && !bench.local.join("none").exists());
        // Directories of the tree itself are made.
        fs::create_dir(bench.remote.join("there"))?;
        run(bench.here("s/"), bench.url("there/"), &options)?.succeeded()?;
        run(bench.here("s"), bench.url("there/"), &options)?.succeeded()?;
        ensure!(bench.remote.join("there/sub/f").is_file() && bench.remote.join("there/s/sub/f").is_file());
        Ok(())
    })
}

#[test]
fn missing_sources_are_told() -> Result<()> {
    each(&servers(), |bench| {
        write(&bench.remote.join("there"), b"x")?;
        let pairs = ["none", "there"].map(|name| Pair {
            source: bench.url(name),
            destination: bench.here("into/"),
            window: None,
        });
        let told = run_pairs(pairs.to_vec(), &options())?;
        ensure!((told.summary.files_done, told.summary.files_failed) == (1, 1), "{:?}", told.summary);
        ensure!(told.summary.failures[0].kind == FailureKind::NotFound, "{:?}", told.summary.failures);
        ensure!(bench.local.join("into/there").is_file());
        Ok(())
    })
}

#[test]
fn sync_levels_and_delete() -> Result<()> {
    each(&servers(), |bench| {
        let kind = bench.server.kind();
        for name in ["same", "longer", "sub/changed"] {
            write(&bench.local.join("s").join(name), name.as_bytes())?;
        }
        run(bench.here("s/"), bench.url("d/"), &options())?.succeeded()?;
        write(&bench.local.join("s/longer"), b"longer than before")?;
        write(&bench.remote.join("d/extra"), b"not at the source")?;
        fs::create_dir_all(bench.remote.join("d/extradir/deep"))?;
        fs::create_dir_all(bench.local.join("s/emptied"))?;
        write(&bench.remote.join("d/emptied/old"), b"old")?;
        let sync = options().with(|o| {
            o.selection.sync = Some(SyncLevel::Size);
            o.selection.delete = true;
        });
        let dry = run(bench.here("s/"), bench.url("d/"), &sync.clone().with(|o| o.dry_run = true))?;
        ensure!(dry.count(|e| matches!(e, Event::WouldCopy { .. })) == 1);
        ensure!(dry.count(|e| matches!(e, Event::WouldRemove { .. })) == 3);
        ensure!(bench.remote.join("d/extra").exists());
        let told = run(bench.here("s/"), bench.url("d/"), &sync)?.succeeded()?;
        ensure!(told.count(|e| matches!(e, Event::Removed { .. })) == 3);
        ensure!((told.summary.files_done, told.summary.files_skipped) == (1, 2), "{:?}", told.summary);
        tree::ensure_same(&bench.local.join("s"), &bench.remote.join("d"))?;
        let again = options().with(|o| o.selection.sync = Some(SyncLevel::Time));
        let told = run(bench.here("s/"), bench.url("d/"), &again)?.succeeded()?;
        ensure!(told.summary.files_done == 0, "{:?}", told.summary);
        run(bench.url("d/"), bench.here("b/"), &again)?.succeeded()?;
        let told = run(bench.url("d/"), bench.here("b/"), &again)?.succeeded()?;
        ensure!(told.summary.files_done == 0, "{:?}", told.summary);
        // In the other direction, by checksum if the server supports it.
        write(&bench.remote.join("d/sub/changed"), b"sub/CHANGED")?;
        let level = if kind == Kind::Vsftpd { SyncLevel::Exists } else { SyncLevel::Checksum };
        let told =
            run(bench.url("d/"), bench.here("s/"), &options().with(|o| o.selection.sync = Some(level)))?
                .succeeded()?;
        let copied = u64::from(kind != Kind::Vsftpd);
        ensure!(told.summary.files_done == copied, "{:?}", told.summary);
        Ok(())
    })
}

#[test]
fn filters_and_globs() -> Result<()> {
    each(&gridftp(), |bench| {
        for name in ["a.dat", "b.dat", "c.txt", "sub/d.dat", "skip/e.dat"] {
            write(&bench.remote.join("s").join(name), name.as_bytes())?;
            write(&bench.local.join("s").join(name), name.as_bytes())?;
        }
        run(bench.url("s/*.dat"), bench.here("one/"), &options())?.succeeded()?;
        ensure!(list(&bench.here("one"), &options(), &no_events(), &Cancel::new())?.len() == 2);
        run(bench.here("s/{a,c}.*"), bench.url("two/"), &options())?.succeeded()?;
        let names: Vec<String> = list(&bench.url("two"), &options(), &no_events(), &Cancel::new())?
            .iter()
            .map(|e| e.name.to_string())
            .collect();
        ensure!(names == ["a.dat", "c.txt"], "{names:?}");
        let filters = vec![(false, "skip/".to_owned()), (false, "*.txt".to_owned())];
        run(bench.url("s/"), bench.here("three/"), &options().with(|o| o.selection.filters = filters))?
            .succeeded()?;
        let usage = du(&bench.here("three"), &options(), &no_events(), &Cancel::new())?;
        ensure!((usage.files, usage.directories) == (3, 1), "{usage:?}");
        // An entry that is reached through a link has its name in the whole tree.
        symlink("sub", bench.remote.join("s/way"))?;
        let filters = vec![(false, "/way/d.dat".to_owned()), (false, "/d.dat".to_owned())];
        run(bench.url("s/"), bench.here("four/"), &options().with(|o| o.selection.filters = filters))?
            .succeeded()?;
        ensure!(bench.local.join("four/sub/d.dat").exists() && !bench.local.join("four/way/d.dat").exists());
        std::fs::remove_file(bench.remote.join("s/way"))?;
        let mut seen = Vec::new();
        walk(&bench.url("s"), &options(), &no_events(), &Cancel::new(), &mut |entry| {
            seen.push(entry.name.to_string());
            std::ops::ControlFlow::Continue(())
        })?;
        ensure!(seen.contains(&"sub/d.dat".to_owned()) && seen.len() == 7, "{seen:?}");
        Ok(())
    })
}

#[test]
fn other_checksums_and_none() -> Result<()> {
    each(&gridftp(), |bench| {
        write_random(&bench.local.join("f"), 5_000_000, 9)?;
        for (policy, proof) in
            [(ChecksumPolicy::Require(Algorithm::Md5), Some("md5:")), (ChecksumPolicy::None, None)]
        {
            let options = options().with(|o| o.integrity.checksum = policy);
            for (from, to) in [
                (bench.here("f"), bench.url("up")),
                (bench.url("up"), bench.here("back")),
                (bench.url("up"), bench.url("third")),
            ] {
                let told = run(from, to, &options)?.succeeded()?;
                let found = told.events.iter().find_map(|event| match event {
                    Event::FileDone { checksum, .. } => checksum.clone(),
                    _ => None,
                });
                ensure!(found.as_deref().map(|s| &s[..4]) == proof, "{found:?}");
            }
            ensure_same(&bench.local.join("f"), &bench.local.join("back"))?;
        }
        if bench.server.kind() == Kind::Gct {
            let options =
                options().with(|o| o.integrity.checksum = ChecksumPolicy::Require(Algorithm::Blake3));
            let told = run(bench.here("f"), bench.url("no"), &options)?;
            ensure!(told.summary.files_failed == 1 && !bench.remote.join("no").exists());
        }
        Ok(())
    })
}

#[test]
fn measuring_ends() -> Result<()> {
    each(&gridftp(), |bench| {
        run(Location::Measure { size: 10 << 20 }, bench.url("zeros"), &options())?.succeeded()?;
        ensure!(fs::metadata(bench.remote.join("zeros"))?.len() == 10 << 20);
        let told = run(bench.url("zeros"), Location::Measure { size: 0 }, &options())?.succeeded()?;
        ensure!(told.summary.bytes == 10 << 20);
        if bench.server.kind() == Kind::Gct {
            let device = place(&format!("ftp://{}/dev/null", bench.server.address()));
            run(Location::Measure { size: 10 << 20 }, device, &options())?.succeeded()?;
            ensure!(!fs::metadata("/dev/null")?.is_file(), "/dev/null was replaced");
        }
        Ok(())
    })
}

#[test]
fn a_wrong_password_is_an_authentication_failure() -> Result<()> {
    each(&gridftp(), |bench| {
        let url = place(&format!("ftp://nobody:wrong@{}/x", bench.server.address()));
        let told = run(url, bench.here("x"), &options())?;
        ensure!(told.summary.failures[0].kind == FailureKind::Authentication, "{:?}", told.summary.failures);
        Ok(())
    })
}

#[test]
fn over_ipv6() -> Result<()> {
    for kind in servers() {
        let Some(bench) = Bench::over_ipv6(kind)? else { continue };
        write_random(&bench.local.join("f"), 5_000_000, 4)?;
        run(bench.here("f"), bench.url("up"), &options())?.succeeded()?;
        run(bench.url("up"), bench.here("back"), &options())?.succeeded()?;
        ensure_same(&bench.local.join("f"), &bench.local.join("back"))?;
        if kind != Kind::Vsftpd {
            run(bench.url("up"), bench.url("third"), &options())?.succeeded()?;
            ensure_same(&bench.local.join("f"), &bench.remote.join("third"))?;
        }
    }
    Ok(())
}

#[test]
fn between_servers_by_way_of_here() -> Result<()> {
    each(&servers(), |bench| {
        tree::make_many(&bench.remote.join("s"), 5, 3000)?;
        write_random(&bench.remote.join("s/big"), 9_000_001, 1)?;
        write(&bench.remote.join("s/empty"), b"")?;
        let options = options().with(|o| {
            o.data.through_here = true;
            o.recovery.retries = 0;
        });
        run(bench.url("s/"), bench.url("third/"), &options)?.succeeded()?;
        tree::ensure_same(&bench.remote.join("s"), &bench.remote.join("third"))?;
        if bench.server.kind() != Kind::Vsftpd {
            let window = Some(Window { offset: 1_000_001, length: Some(500_000) });
            let pair = Pair { source: bench.url("s/big"), destination: bench.url("part"), window };
            run_pairs(vec![pair], &options)?.succeeded()?;
            let (from, to) = (bench.remote.join("s/big"), bench.remote.join("part"));
            ensure_same_range(&from, 1_000_001, &to, 1_000_001, 500_000)?;
        }
        // An incomplete file does not count.
        let proxy = Proxy::start(bench.server.address())?;
        proxy.set_rate(Some(20 << 20));
        proxy.cut_after(4 << 20);
        let told = run(place(&bench.server.url_at(proxy.address(), "s/big")), bench.url("cut"), &options)?;
        ensure!(told.summary.files_failed == 1 && !bench.remote.join("cut").exists(), "{:?}", told.summary);
        ensure!(told.summary.failures[0].kind == FailureKind::Unreachable, "{:?}", told.summary.failures);
        // One file is refused, and one is missing.
        let options = {
            let mut o = options;
            o.state_directory = bench.known()?.state_directory;
            o
        };
        fs::create_dir_all(bench.remote.join("in").join(bench.part("f")).join("x"))?;
        for (from, to) in [("s/big", "in/f"), ("s/none", "none")] {
            let told = run(bench.url(from), bench.url(to), &options)?;
            ensure!(told.summary.files_failed == 1 && !bench.remote.join(to).exists(), "{:?}", told.summary);
        }
        Ok(())
    })
}

#[test]
fn delayed_passive_between_servers() -> Result<()> {
    each(&gridftp(), |bench| {
        tree::make_many(&bench.remote.join("s"), 5, 3000)?;
        let options = options().with(|o| o.data.delayed_passive = true);
        run(bench.url("s/"), bench.url("third/"), &options)?.succeeded()?;
        tree::ensure_same(&bench.remote.join("s"), &bench.remote.join("third"))
    })
}

#[test]
fn text_is_translated() -> Result<()> {
    each(&servers(), |bench| {
        if bench.server.kind() == Kind::Vsftpd {
            // This server translates text only if its administrator has enabled it.
            return Ok(());
        }
        let text = "one\ntwo\n\nlast".repeat(1000);
        write(&bench.local.join("t"), text.as_bytes())?;
        let options = options().with(|o| o.data.ascii = true);
        run(bench.here("t"), bench.url("up"), &options)?.succeeded()?;
        ensure!(fs::read_to_string(bench.remote.join("up"))? == text);
        run(bench.url("up"), bench.here("back"), &options)?.succeeded()?;
        ensure!(fs::read_to_string(bench.local.join("back"))? == text);
        Ok(())
    })
}

#[test]
fn small_operations() -> Result<()> {
    each(&servers(), |bench| {
        let Location::Remote(top) = bench.url("") else { anyhow::bail!("no URL") };
        let mut remote = Remote::connect(&top, &options())?;
        let at = |name: &str| [top.path.as_slice(), name.as_bytes()].concat();
        remote.make_directory(&at("a/b/c"), true)?;
        remote.make_directory(&at("a/b/c"), true)?;
        write(&bench.remote.join("a/f"), b"0123456789")?;
        ensure!(remote.stat(&at("a/b"))?.is_directory() && remote.size(&at("a/f"))? == 10);
        let mut window = Vec::new();
        remote.read_to(&at("a/f"), &mut window, Some(Window { offset: 3, length: Some(4) }))?;
        ensure!(window == b"3456", "{window:?}");
        remote.rename(&at("a/f"), &at("a/g"))?;
        let names: Vec<String> = remote.list(&at("a"))?.iter().map(|e| e.name.to_string()).collect();
        ensure!(names == ["b", "g"], "{names:?}");
        let Err(error) = remote.size(&at("a/none")) else { anyhow::bail!("it has a size") };
        ensure!(!error.is_transient(), "{error}");
        if bench.server.kind() != Kind::Vsftpd {
            ensure!(remote.checksum(&at("a/g"), Algorithm::Md5, None)? == "781e5e245d69b566979b86e28d23f2c7");
            remote.set_mode(&at("a/g"), 0o600)?;
            remote.set_modified(&at("a/g"), 1_000_000_000)?;
            let metadata = fs::metadata(bench.remote.join("a/g"))?;
            ensure!((metadata.mode() & 0o777, metadata.mtime()) == (0o600, 1_000_000_000));
        }
        ensure!(remote.remove(&at("a"), false).is_err());
        remote.remove(&at("a"), true)?;
        ensure!(!bench.remote.join("a").exists());
        remote.quit();
        Ok(())
    })
}
