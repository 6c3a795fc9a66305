//! Copies that need no server.

mod common;

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, ensure};
use common::*;
use ropewalk_client::{
    Auto, Cancel, ChecksumPolicy, Event, FailureKind, Location, Pair, Preserve, SyncLevel, copy, list,
    no_events, walk,
};
use ropewalk_storage::checksum::Algorithm;
use ropewalk_tests::files::{ensure_same, write_random};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::tree;

#[test]
fn files_and_trees_are_copied_here() -> Result<()> {
    let here = Scratch::new()?;
    let at = |name: &str| Location::Local(here.join(name));
    write_random(&here.join("s/big"), 5_000_001, 1)?;
    write(&here.join("s/d/small"), b"small")?;
    write(&here.join("s/empty"), b"")?;
    run(at("s/"), at("t/"), &options())?.succeeded()?;
    tree::ensure_same(&here.join("s"), &here.join("t"))?;
    ensure_same(&here.join("s/big"), &here.join("t/big"))?;
    // The copy replaces a longer file.
    run(at("s/d/small"), at("t/big"), &options())?.succeeded()?;
    ensure!(fs::read(here.join("t/big"))? == b"small");
    run(Location::Measure { size: 3_000_000 }, at("t/zeros"), &options())?.succeeded()?;
    ensure!(fs::read(here.join("t/zeros"))? == vec![0; 3_000_000]);
    ensure_clean(&here.join("t"))
}

#[test]
fn what_is_made_while_it_is_read_is_copied() -> Result<()> {
    let here = Scratch::new()?;
    let version = fs::read("/proc/version")?;
    let from = |path: &str| Location::Local(path.into());
    let at = |name: &str| Location::Local(here.join(name));
    run(from("/proc/version"), at("v"), &options())?.succeeded()?;
    ensure!(fs::read(here.join("v"))? == version);
    // This file has no size either, and cannot be read at its beginning.
    let told = run(from("/proc/self/mem"), at("m"), &options().with(|o| o.recovery.retries = 0))?.summary;
    ensure!(told.files_failed == 1 && !here.join("m").exists(), "{told:?}");
    let _socket = std::os::unix::net::UnixListener::bind(here.join("s"))?;
    let told = run(at("s"), at("n"), &options())?.summary;
    let reason = &told.failures[0].error;
    ensure!(reason.contains("is a socket") && !here.join("n").exists() && told.retries == 0, "{reason}");
    Ok(())
}

/// A user who may not read the replaced file may not read the new one either.
#[test]
fn a_file_is_replaced_with_its_permissions() -> Result<()> {
    let here = Scratch::new()?;
    write(&here.join("s"), b"new")?;
    write(&here.join("t"), b"old")?;
    fs::set_permissions(here.join("t"), fs::Permissions::from_mode(0o600))?;
    run(Location::Local(here.join("s")), Location::Local(here.join("t")), &options())?.succeeded()?;
    ensure!(fs::read(here.join("t"))? == b"new");
    ensure!(fs::metadata(here.join("t"))?.permissions().mode() & 0o777 == 0o600);
    Ok(())
}

/// A link that is itself the destination stays, and its target is replaced; a link in a destination
/// directory is replaced.
#[test]
fn a_link_that_is_named_is_written_through() -> Result<()> {
    let here = Scratch::new()?;
    let at = |name: &str| Location::Local(here.join(name));
    write(&here.join("s"), b"new")?;
    write(&here.join("d/old"), b"older")?;
    symlink("d/old", here.join("l"))?;
    symlink("nowhere", here.join("n"))?;
    symlink("../d/old", here.join("d/s"))?;
    for archive in [false, true] {
        write(&here.join("d/old"), b"older")?;
        let preserve = Preserve { times: archive, modes: archive, links: archive };
        run(at("s"), at("l"), &options().with(|o| o.preserve = preserve))?.succeeded()?;
        ensure!(here.join("l").is_symlink() && fs::read(here.join("d/old"))? == b"new");
    }
    run(at("s"), at("n"), &options())?.succeeded()?;
    ensure!(!here.join("n").is_symlink() && !here.join("nowhere").exists());
    run(at("s"), at("d/"), &options())?.succeeded()?;
    ensure!(!here.join("d/s").is_symlink());
    ensure_clean(here.path())
}

/// Directories that are not writable have their modes again.
#[test]
fn a_stopped_copy_leaves_directories_as_they_were() -> Result<()> {
    let here = Scratch::new()?;
    write_random(&here.join("s/ro/f"), 64 << 20, 1)?;
    fs::create_dir_all(here.join("t/ro"))?;
    for directory in ["s/ro", "t/ro"] {
        fs::set_permissions(here.join(directory), fs::Permissions::from_mode(0o555))?;
    }
    let preserve = Preserve { modes: true, ..Preserve::default() };
    let options = options().with(|o| {
        o.preserve = preserve;
        o.selection.recursive = true;
    });
    let pair = Pair {
        source: Location::Local(here.join("s/")),
        destination: Location::Local(here.join("t/")),
        window: None,
    };
    let cancel = Cancel::new();
    let opened = AtomicU32::new(0);
    let summary = copy(
        vec![pair],
        &options,
        &|event: Event| {
            if let Event::FileStarted { .. } = event {
                opened.store(fs::metadata(here.join("t/ro")).map_or(0, |m| m.mode()), Ordering::Relaxed);
                cancel.cancel();
            }
        },
        &cancel,
    )?;
    ensure!(summary.interrupted && summary.files_done == 0, "{summary:?}");
    ensure!(opened.load(Ordering::Relaxed) & 0o777 == 0o755);
    ensure!(fs::metadata(here.join("t/ro"))?.mode() & 0o777 == 0o555);
    Ok(())
}

/// An example of such a name is /dev/stdout.
#[test]
fn a_name_of_an_open_file_is_not_replaced() -> Result<()> {
    let here = Scratch::new()?;
    write(&here.join("s"), b"new")?;
    write(&here.join("t"), b"what was there before")?;
    let open = fs::File::options().write(true).open(here.join("t"))?;
    let node = open.metadata()?.ino();
    let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
    run(Location::Local(here.join("s")), Location::Local(name.into()), &options())?.succeeded()?;
    ensure!(fs::read(here.join("t"))? == b"new");
    ensure!(fs::metadata(here.join("t"))?.ino() == node);
    ensure_clean(here.path())
}

#[test]
fn holes_stay_holes() -> Result<()> {
    let here = Scratch::new()?;
    let file = fs::File::create(here.join("f"))?;
    file.set_len(40 << 20)?;
    file.write_all_at(b"data", 20 << 20)?;
    for checksum in [ChecksumPolicy::Default, ChecksumPolicy::Require(Algorithm::Crc32c)] {
        let options = options().with(|o| o.integrity.checksum = checksum);
        run(Location::Local(here.join("f")), Location::Local(here.join("t")), &options)?.succeeded()?;
        ensure_same(&here.join("f"), &here.join("t"))?;
        let blocks = fs::metadata(here.join("t"))?.blocks();
        ensure!(blocks * 512 < 1 << 20, "{blocks}");
    }
    Ok(())
}

/// The name of one directory would stand for both.
#[test]
fn with_delete_links_to_directories_are_no_directories() -> Result<()> {
    let here = Scratch::new()?;
    let at = |name: &str| Location::Local(here.join(name));
    write(&here.join("s/l"), b"file")?;
    write(&here.join("d/t/f"), b"x")?;
    std::os::unix::fs::symlink("t", here.join("d/l"))?;
    let options = options().with(|o| {
        o.selection.sync = Some(SyncLevel::Time);
        o.selection.delete = true;
    });
    run(at("s/"), at("d/"), &options)?.succeeded()?;
    tree::ensure_same(&here.join("s"), &here.join("d"))
}

/// If a checksum is required, the written data is read back.
#[test]
fn a_checksum_that_is_required_is_compared_here_too() -> Result<()> {
    let here = Scratch::new()?;
    write_random(&here.join("s/f"), 3_000_001, 1)?;
    let at = |name: &str| Location::Local(here.join(name));
    let options = options().with(|o| o.integrity.checksum = ChecksumPolicy::Require(Algorithm::Md5));
    let told = run(at("s/f"), at("t"), &options)?.succeeded()?;
    let proved = told
        .events
        .iter()
        .any(|event| matches!(event, Event::FileDone { checksum: Some(sum), .. } if sum.starts_with("md5:")));
    ensure!(proved && told.summary.bytes_verified == 3_000_001, "{:?}", told.summary);
    // Neither destination keeps data that could be read back.
    for nothing in [Location::Measure { size: 0 }, Location::Local("/dev/null".into())] {
        let told = run(at("s/f"), nothing, &options)?.summary;
        ensure!((told.files_failed, told.bytes) == (1, 0), "{told:?}");
    }
    Ok(())
}

/// The files before one that fails in a list are copied, and none of those after it.
#[test]
fn a_list_is_worked_off_up_to_what_fails() -> Result<()> {
    let here = Scratch::new()?;
    for name in ["a", "c"] {
        write(&here.join(name), name.as_bytes())?;
    }
    let pair = |name: &str| Pair {
        source: Location::Local(here.join(name)),
        destination: Location::Local(here.join(format!("t/{name}"))),
        window: None,
    };
    let pairs = ["a", "b", "c"].map(pair).to_vec();
    let options = options().with(|o| o.recovery.stop_on_failure = true);
    let summary = copy(pairs, &options, &|_: Event| {}, &Cancel::new())?;
    ensure!((summary.files_done, summary.files_failed) == (1, 1), "{summary:?}");
    ensure!(fs::read(here.join("t/a"))? == b"a" && !here.join("t/c").exists());
    Ok(())
}

#[test]
fn patterns_that_match_nothing_are_told() -> Result<()> {
    let here = Scratch::new()?;
    write(&here.join("a"), b"x")?;
    let (pattern, events) = (Location::Local(here.join("*.dat")), no_events());
    let walked =
        walk(&pattern, &options(), &events, &Cancel::new(), &mut |_| std::ops::ControlFlow::Continue(()));
    ensure!(walked.is_err_and(|e| e.failure_kind() == FailureKind::NotFound));
    ensure!(list(&pattern, &options(), &events, &Cancel::new()).is_err());
    Ok(())
}

#[test]
fn a_walk_can_be_stopped() -> Result<()> {
    let here = Scratch::new()?;
    for name in ["a", "b/c", "d"] {
        write(&here.join(name), b"x")?;
    }
    let mut found = 0;
    walk(&Location::Local(here.path().into()), &options(), &no_events(), &Cancel::new(), &mut |_| {
        found += 1;
        std::ops::ControlFlow::Break(())
    })?;
    ensure!(found == 1, "{found}");
    Ok(())
}

/// The other names of the file would keep the old content.
#[test]
fn nothing_is_copied_onto_itself() -> Result<()> {
    let here = Scratch::new()?;
    write(&here.join("f"), b"text")?;
    fs::hard_link(here.join("f"), here.join("hard"))?;
    std::os::unix::fs::symlink("f", here.join("soft"))?;
    let at = |name: &str| Location::Local(here.join(name));
    for (source, destination) in [("f", "f"), ("f", "hard"), ("soft", "f"), ("f", "soft")] {
        let told = run(at(source), at(destination), &options())?.summary;
        ensure!(told.failures.iter().any(|f| f.error.ends_with("are the same file")), "{told:?}");
    }
    ensure!(fs::read_link(here.join("soft"))? == std::path::Path::new("f"));
    run(at("f"), at("g"), &options())?.succeeded()?;
    ensure_clean(here.path())
}

#[test]
fn a_copy_that_is_given_up_leaves_nothing() -> Result<()> {
    let here = Scratch::new()?;
    write_random(&here.join("f"), 40 << 20, 1)?;
    let at = |name: &str| Location::Local(here.join(name));
    let pair = Pair { source: at("f"), destination: at("g"), window: None };
    let cancel = Cancel::new();
    let told = run_until(vec![pair], &options(), &cancel, &|event| {
        if matches!(event, Event::Progress { bytes, .. } if *bytes > 0) {
            cancel.cancel();
        }
    })?;
    ensure!(told.summary.interrupted && !here.join("g").exists(), "{:?}", told.summary);
    ensure_clean(here.path())
}

/// A panic in a worker's thread reaches the caller, and the other workers do not wait for that
/// worker's job.
#[test]
fn a_sink_that_panics_ends_the_run() -> Result<()> {
    let here = Scratch::new()?;
    for name in ["a", "b", "c"] {
        write(&here.join("s").join(name), b"x")?;
    }
    let at = |name: &str| Location::Local(here.join(name));
    let options = options().with(|o| o.tuning.files = Auto::Set(2));
    // Repeated, because either worker may have the last file, while the other has no work.
    for _ in 0..10 {
        let done = AtomicU32::new(0);
        let sink = |event: Event| {
            let last = matches!(event, Event::FileDone { .. }) && done.fetch_add(1, Ordering::Relaxed) == 2;
            assert!(!last, "as the test wants it");
        };
        let pair = Pair { source: at("s/"), destination: at("t/"), window: None };
        let run = AssertUnwindSafe(|| copy(vec![pair], &options, &sink, &Cancel::new()));
        ensure!(catch_unwind(run).is_err());
    }
    Ok(())
}

/// There are more failures than the summary lists.
#[test]
fn failures_that_are_not_listed_count_for_the_reason() -> Result<()> {
    let here = Scratch::new()?;
    let at = |name: &str| Location::Local(here.join(name));
    let missing = (0..150).map(|n| Pair { source: at(&n.to_string()), destination: at("t"), window: None });
    let mut pairs: Vec<Pair> = missing.collect();
    let told = run_pairs(pairs.clone(), &options())?;
    ensure!((told.summary.files_failed, told.summary.failures.len()) == (150, 100), "{:?}", told.summary);
    ensure!(told.summary.failed_for == Some(FailureKind::NotFound), "{:?}", told.summary.failed_for);
    // The last file fails for another reason.
    fs::create_dir(here.join("directory"))?;
    write(&here.join("f"), b"x")?;
    pairs.push(Pair { source: at("f"), destination: at("f/g"), window: None });
    pairs.push(Pair { source: at("directory"), destination: at("d"), window: None });
    let told = run_pairs(pairs, &options().with(|o| o.selection.recursive = false))?;
    ensure!(
        told.summary.files_failed > 150 && told.summary.failed_for.is_none(),
        "{:?}",
        told.summary.failed_for
    );
    Ok(())
}

/// An existing pipe cannot have holes.
#[test]
fn holes_are_written_to_what_is_no_file() -> Result<()> {
    let here = Scratch::new()?;
    let (sparse, pipe) = (here.join("sparse"), here.join("pipe"));
    fs::File::create(&sparse)?.set_len(300_000)?;
    fs::File::options().write(true).open(&sparse)?.write_all_at(b"hello", 100_000)?;
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into())?;
    // A pipe without a reader cannot be opened for writing, and one without a writer is at its end.
    let both = fs::File::options().read(true).write(true).open(&pipe)?;
    let mut end = fs::File::open(&pipe)?;
    let reader = std::thread::spawn(move || {
        let mut read = Vec::new();
        end.read_to_end(&mut read).map(|_| read)
    });
    let told = run(Location::Local(sparse.clone()), Location::Local(pipe), &options())?;
    drop(both);
    let read = reader.join().unwrap_or_else(|_| Ok(Vec::new()))?;
    told.succeeded()?;
    ensure!(read == fs::read(sparse)?, "{} bytes", read.len());
    Ok(())
}

/// A directory that could not be made must not count as existing for the next file.
#[test]
fn what_could_not_be_made_is_made_for_the_next() -> Result<()> {
    let here = Scratch::new()?;
    write(&here.join("s"), b"x")?;
    write(&here.join("n"), b"a file")?;
    let at = |name: &str| Location::Local(here.join(name));
    let removed = AtomicU32::new(0);
    let sink = |event: Event| {
        if let Event::FileFailed { .. } = event {
            removed.fetch_add(1, Ordering::Relaxed);
            let _ = fs::remove_file(here.join("n"));
        }
    };
    let options = options().with(|o| {
        o.storage.create_directories = true;
        o.recovery.retries = 0;
    });
    let pairs = ["n/a", "n/b"].map(|name| Pair { source: at("s"), destination: at(name), window: None });
    let summary = copy(pairs.to_vec(), &options, &sink, &Cancel::new())?;
    ensure!((summary.files_failed, removed.into_inner()) == (1, 1), "{summary:?}");
    ensure!(fs::read(here.join("n/b"))? == b"x");
    Ok(())
}

/// With a slash at its end, a link stands for its target.
#[test]
fn the_contents_of_a_link_are_those_of_its_directory() -> Result<()> {
    let here = Scratch::new()?;
    write(&here.join("real/d/f"), b"x")?;
    symlink("real", here.join("link"))?;
    let links = options().with(|o| o.preserve = Preserve { links: true, ..Preserve::default() });
    run(
        Location::Local(format!("{}/", here.join("link").display()).into()),
        Location::Local(here.join("to")),
        &links,
    )?
    .succeeded()?;
    tree::ensure_same(&here.join("real"), &here.join("to"))?;
    // Without the slash, the link itself is copied.
    run(Location::Local(here.join("link")), Location::Local(here.join("copy")), &links)?.succeeded()?;
    ensure!(fs::read_link(here.join("copy"))?.as_os_str() == "real");
    Ok(())
}
