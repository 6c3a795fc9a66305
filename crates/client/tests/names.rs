//! Copies of files and directories with unusual names and attributes, from, to and between real
//! servers.

mod common;

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::{Result, ensure};
use common::*;
use ropewalk_client::{ChecksumPolicy, Event, Location};
use ropewalk_storage::checksum::Algorithm;
use ropewalk_tests::peers;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};
use ropewalk_tests::tree;

#[test]
fn names_of_all_kinds() -> Result<()> {
    each(&servers(), |bench| {
        let kind = bench.server.kind();
        let source = bench.local.join("odd");
        let mut names = tree::foreign_names();
        if kind != Kind::Vsftpd {
            names = tree::odd_names();
        }
        names.retain(|name| !name.as_encoded_bytes().contains(&b'\n'));
        names.push(tree::long_name());
        tree::make_named(&source, &names)?;
        run(bench.here("odd/"), bench.url("up/"), &options())?.succeeded()?;
        tree::ensure_same(&source, &bench.remote.join("up"))?;
        run(bench.url("up/"), bench.here("back/"), &options())?.succeeded()?;
        tree::ensure_same(&source, &bench.local.join("back"))?;
        Ok(())
    })
}

#[test]
fn a_name_with_an_end_of_line_fails_alone() -> Result<()> {
    each(&gridftp(), |bench| {
        write(&bench.local.join("s/good"), b"good")?;
        write(&bench.local.join("s/bad\nname"), b"bad")?;
        write(&bench.local.join("s/zood"), b"good")?;
        let told = run(bench.here("s/"), bench.url("up/"), &options())?;
        ensure!((told.summary.files_done, told.summary.files_failed) == (2, 1), "{:?}", told.summary);
        ensure!(
            told.summary.failures[0].error.contains("cannot be sent in a command"),
            "{:?}",
            told.summary.failures
        );
        Ok(())
    })
}

#[test]
fn an_unreadable_directory_does_not_harm_others() -> Result<()> {
    each(&gridftp(), |bench| {
        write(&bench.remote.join("s/a/f"), b"a")?;
        write(&bench.remote.join("s/z"), b"z")?;
        // A link to itself cannot be listed.
        symlink("loop", bench.remote.join("s/loop"))?;
        let told = run(bench.url("s/"), bench.here("s/"), &options())?;
        ensure!((told.summary.files_done, told.summary.files_failed) == (2, 1), "{:?}", told.summary);
        Ok(())
    })
}

/// Users who may put files there may neither see nor rename them.
#[test]
fn drop_boxes() -> Result<()> {
    if !peers::available(&["vsftpd"]) {
        return Ok(());
    }
    let (here, there) = (Scratch::new()?, Scratch::new()?);
    let mut setup = Setup::new(Kind::Vsftpd, there.path());
    for denied in [
        "-oanon_other_write_enable=NO",
        "-oanon_mkdir_write_enable=NO",
        "-odownload_enable=NO",
        "-odirlist_enable=NO",
        "-ocmds_denied=SIZE,MDTM,STAT,CWD,DELE",
    ] {
        setup = setup.argument(denied);
    }
    let server = setup.start()?;
    let from = || Location::Local(here.join("s"));
    let to = |name: &str| place(&server.url(name));
    for (name, bytes) in [("f", 3 << 20), ("g", 100)] {
        write(&here.join("s").join(name), &vec![b'x'; bytes])?;
    }
    // The error names the required option.
    let told = run(Location::Local(here.join("s/f")), to("f"), &options())?.summary;
    ensure!(told.files_failed == 1 && told.failures[0].error.contains("--in-place"), "{told:?}");
    ensure!(!there.join("f").exists());
    fs::create_dir(here.join("empty"))?;
    let told = run(Location::Local(here.join("empty")), to("nowhere/"), &options())?.summary;
    ensure!(told.files_failed == 1, "{told:?}");
    let in_place = options().with(|o| o.storage.in_place = true);
    let told = run(Location::Local(here.join("s/f")), to("f"), &in_place)?;
    ensure!(told.summary.files_failed == 0, "{:?}", told.events);
    ensure!(told.count(|event| matches!(event, Event::Warning { .. })) > 0, "{:?}", told.events);
    // The same holds between two servers.
    let ours = Setup::new(Kind::Ropewalk, here.path()).start()?;
    let through = in_place.clone().with(|o| o.data.through_here = true);
    let told = run(place(&ours.url("s/f")), to("h"), &through)?.succeeded()?;
    ensure!(told.count(|event| matches!(event, Event::Warning { .. })) > 0, "{:?}", told.events);
    run(Location::Local(here.join("s/g")), to("in/"), &in_place).map(|told| {
        // There is no such directory, and it cannot be made.
        ensure!(told.summary.files_failed == 1, "{:?}", told.summary);
        Ok(())
    })??;
    // No warning is sent for directories that exist.
    fs::create_dir_all(there.join("in/s"))?;
    run(from(), to("in/"), &in_place)?.succeeded()?;
    for (name, source) in [("f", "f"), ("h", "f"), ("in/s/f", "f"), ("in/s/g", "g")] {
        ensure!(fs::read(there.join(name))? == fs::read(here.join("s").join(source))?, "{name}");
    }
    Ok(())
}

/// The root of a server may be any directory.
#[test]
fn files_with_names_of_devices_are_files() -> Result<()> {
    let Some(bench) = Bench::new(Kind::Ropewalk)? else { return Ok(()) };
    fs::create_dir(bench.remote.join("dev"))?;
    write(&bench.remote.join("dev/empty"), b"")?;
    write(&bench.remote.join("dev/some"), b"some")?;
    run(bench.url("dev/"), bench.here("dev/"), &options())?.succeeded()?;
    ensure!(fs::read(bench.local.join("dev/empty"))?.is_empty());
    ensure!(fs::read(bench.local.join("dev/some"))? == b"some");
    let sums = options().with(|o| o.integrity.checksum = ChecksumPolicy::Require(Algorithm::Md5));
    for _ in 0..2 {
        let told = run(bench.here("dev/some"), bench.url("dev/new"), &sums)?.succeeded()?;
        let proved = |event: &Event| matches!(event, Event::FileDone { checksum: Some(_), .. });
        ensure!(told.count(proved) == 1, "{:?}", told.events);
    }
    ensure!(fs::read(bench.remote.join("dev/new"))? == b"some");
    // Ropewalk's own devices are an exception.
    let told = run(bench.here("dev/some"), bench.url("dev/ropewalk-null"), &options())?;
    let tried = told.summary.failures.first().map(|failure| failure.error.clone()).unwrap_or_default();
    ensure!(
        !tried.contains("RNTO")
            && !tried.contains("COMMIT")
            && !bench.remote.join("dev/.ropewalk-null.ropewalk-part").exists(),
        "{tried}"
    );
    Ok(())
}
