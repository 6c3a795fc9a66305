//! Full disks, files that may not be read, and files that change while they are read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Result;
use ropewalk_tests::client::{Client, Copy, Mode};
use ropewalk_tests::control::Control;
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};
use ropewalk_tests::small_disk::{can_mount, on_small_disk};
use ropewalk_tests::{files, peers, process, tree};

use crate::fixture::{Fixture, SOON};

/// Capacity of the small disk in bytes.
const ROOM: u64 = 8 << 20;

#[test]
fn full_server_disk_is_reported() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let served = scratch.directory("served").unwrap();
    let server = Setup::new(Kind::Ropewalk, &served).wrapper(on_small_disk(&served, ROOM)).start().unwrap();
    let large = scratch.join("large");
    files::write_random(&large, 2 * ROOM, 1).unwrap();

    // A plain control connection: RFC 959 defines 452 and 552 for this.
    let mut control = Control::log_in(server.address()).unwrap();
    let refused = |control: &mut Control, name: &str, file: &Path| {
        let address = control.passive().unwrap();
        control.send(format!("STOR {name}")).unwrap();
        let mut data = ropewalk_tests::control::connect_data(address).unwrap();
        let _ = std::io::copy(&mut fs::File::open(file).unwrap(), &mut data);
        drop(data);
        let reply = control.final_reply().unwrap();
        assert!(matches!(reply.code, 452 | 552), "{reply:?}");
    };
    refused(&mut control, "/full", &large);
    assert_eq!(control.command("MLST /full").unwrap().code, 550, "a file of a failed upload is visible");
    // Free the disk: the failed upload may be kept for a restart.
    for name in ["/.full.ropewalk-part", "/.full.ropewalk-journal"] {
        let _ = control.command(format!("DELE {name}")).unwrap();
    }

    // An upload from a pipe cannot be resumed, so it must not leave the disk full.
    let mut command = process::command("sh");
    command.args(["-c", r#"cat "$1" | "$0" cp -q - "$2""#]).arg(peers::ropewalk().unwrap());
    command.arg(&large).arg(server.url("piped"));
    let outcome = process::run(&mut command, SOON).unwrap().failed().unwrap();
    assert_eq!(outcome.status.code(), Some(7), "{}", outcome.errors());
    assert_eq!(control.command("SIZE /.piped.ropewalk-part").unwrap().code, 550);
    assert_eq!(control.command("MLST /piped").unwrap().code, 550);

    for mode in [Mode::Stream, Mode::Extended(4)] {
        let copy = Copy::new(Client::Ropewalk.local(&large, false), server.url("full"))
            .mode(mode)
            .argument("--retries=1");
        let outcome = Client::Ropewalk.run(&Copy { limit: SOON, ..copy }).unwrap().failed().unwrap();
        assert_eq!(outcome.status.code(), Some(7), "{mode:?}: {}{}", outcome.text(), outcome.errors());
        assert_eq!(control.command("MLST /full").unwrap().code, 550, "{mode:?}");
        for name in ["/.full.ropewalk-part", "/.full.ropewalk-journal"] {
            let _ = control.command(format!("DELE {name}")).unwrap();
        }
    }

    // Nothing remains of a file that is too small to be resumed, whatever its destination name.
    let (filler, small) = (scratch.join("filler"), scratch.join("small"));
    files::write_random(&filler, ROOM - (1 << 20), 2).unwrap();
    files::write_random(&small, 3 << 20, 3).unwrap();
    assert_eq!(control.store("/filler", &fs::read(&filler).unwrap()).unwrap().code, 226);
    refused(&mut control, "/small", &small);
    assert_eq!(control.command("MLST /.small.ropewalk-part").unwrap().code, 550);
    for direct in [true, false] {
        let copy = Copy::new(Client::Ropewalk.local(&small, false), server.url("small"))
            .argument("--retries=0")
            .argument(if direct { "--checksum=crc32c" } else { "--checksum=md5" });
        let outcome = Client::Ropewalk.run(&Copy { limit: SOON, ..copy }).unwrap().failed().unwrap();
        assert_eq!(outcome.status.code(), Some(7), "{}{}", outcome.text(), outcome.errors());
        let left = control.command("MLST /.small.ropewalk-part").unwrap();
        assert_eq!(left.code, 550, "{left:?}");
    }
    assert_eq!(control.command("DELE /filler").unwrap().code, 250);

    // A small file still fits.
    let reply = control.store("/small", &[1; 100_000]).unwrap();
    assert_eq!(reply.code, 226, "{reply:?}");
}

#[test]
fn full_client_disk_is_reported() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new().unwrap();
    files::write_random(&fixture.root.join("large"), 2 * ROOM, 1).unwrap();
    let local = fixture.scratch.directory("local").unwrap();
    for (mode, direct) in [(Mode::Stream, "auto"), (Mode::Extended(4), "auto"), (Mode::Extended(4), "always")]
    {
        let copy = Copy::new(fixture.server.url("large"), Client::Ropewalk.local(&local.join("copy"), false));
        let copy = copy.mode(mode).argument("--retries=1").argument(format!("--direct-io={direct}"));
        let plain = Client::Ropewalk.command(&copy).unwrap();
        // The command line is: setpriv --pdeathsig KILL -- ropewalk cp ...
        let words: Vec<_> = plain.get_args().skip(3).collect();
        let small = on_small_disk(&local, ROOM);
        let mut command = process::command(&small[0]);
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let outcome = process::run(command.args(&small[1..]).args(words), SOON).unwrap().failed().unwrap();
        assert_eq!(outcome.status.code(), Some(7), "{mode:?}: {}{}", outcome.text(), outcome.errors());
    }
}

fn forbid(path: &Path) -> Result<()> {
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o000))?)
}

fn allow(path: &Path) -> Result<()> {
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

#[test]
fn tree_copy_skips_unreadable_files() {
    let fixture = Fixture::with(|setup| setup.obeying_permissions()).unwrap();
    let from = fixture.root.join("from");
    tree::make(&from, false).unwrap();
    // A single unreadable directory: its error arrives after its name.
    forbid(&from.join("z")).unwrap();
    let to = fixture.scratch.join("but-one");
    let copy = Copy::new(fixture.server.url("from/"), Client::Ropewalk.local(&to, true)).recursive();
    let outcome = Client::Ropewalk.run(&copy.argument("--retries=0")).unwrap().failed().unwrap();
    assert_eq!(outcome.status.code(), Some(5), "{}{}", outcome.text(), outcome.errors());
    assert!(outcome.errors().contains(" 1 file failed"), "{}", outcome.errors());
    forbid(&from.join("a/block")).unwrap();
    let to = fixture.scratch.join("to");
    let copy = Copy::new(fixture.server.url("from/"), Client::Ropewalk.local(&to, true)).recursive();
    let outcome = Client::Ropewalk.run(&copy.argument("--retries=0")).unwrap().failed().unwrap();
    allow(&from.join("z")).unwrap();
    // Exit code 5: permission denied was the only reason.
    assert_eq!(outcome.status.code(), Some(5), "{}{}", outcome.text(), outcome.errors());
    assert!(!to.join("a/block").exists());
    assert!(!to.join("z/last").exists());
    for name in ["top", "empty", "a/one", "a/b/c/deep", "a/b/more"] {
        files::ensure_same(&from.join(name), &to.join(name)).unwrap();
    }
}

#[test]
fn upload_into_partly_unwritable_tree_copies_the_rest() {
    let mut fixture = Fixture::with(|setup| setup.obeying_permissions()).unwrap();
    let (from, to) = (fixture.scratch.join("from"), fixture.root.join("to"));
    tree::make(&from, false).unwrap();
    fs::create_dir_all(to.join("a")).unwrap();
    fs::set_permissions(to.join("a"), fs::Permissions::from_mode(0o555)).unwrap();
    let copy = Copy::new(Client::Ropewalk.local(&from, true), fixture.server.url("to/")).recursive();
    let outcome = Client::Ropewalk.run(&copy.argument("--retries=0")).unwrap().failed().unwrap();
    // Exit code 5: all failures were denials, including the files whose directory could not be
    // created.
    assert_eq!(outcome.status.code(), Some(5), "{}{}", outcome.text(), outcome.errors());
    for name in ["top", "empty", "z/last"] {
        files::ensure_same(&from.join(name), &to.join(name)).unwrap();
    }
    assert_eq!(fs::read_dir(to.join("a")).unwrap().count(), 0);
    fixture.still_serves().unwrap();
}

#[test]
fn server_file_that_shrinks_fails_download() {
    let mut fixture = Fixture::new().unwrap();
    let size = 32_000_000;
    for mode in [Mode::Stream, Mode::Extended(2)] {
        let source = fixture.root.join("shrinking");
        files::write_random(&source, size, 1).unwrap();
        let proxy = Proxy::start(fixture.server.address()).unwrap();
        proxy.set_rate(Some(30_000_000));
        let copy = fixture.scratch.join("copy");
        let url = fixture.server.url_at(proxy.address(), "shrinking");
        let job = Copy::new(url, Client::Ropewalk.local(&copy, false)).mode(mode).argument("--retries=0");
        let mut running = Client::Ropewalk.start(&job).unwrap();
        proxy.wait_for(size / 4, SOON).unwrap();
        fs::File::options().write(true).open(&source).unwrap().set_len(size / 2).unwrap();
        let status = running.wait(SOON).unwrap();
        assert!(!status.success(), "{mode:?}: a file that was cut off counted as copied: {}", running.log());
        assert!(!copy.exists(), "{mode:?}: it looks whole");
        proxy.set_rate(None);
        fixture.still_serves().unwrap();
    }
}

#[test]
fn local_file_that_shrinks_fails_upload() {
    let mut fixture = Fixture::new().unwrap();
    let size = 32_000_000;
    for mode in [Mode::Stream, Mode::Extended(2)] {
        let source = fixture.scratch.join("shrinking");
        files::write_random(&source, size, 1).unwrap();
        let proxy = Proxy::start(fixture.server.address()).unwrap();
        proxy.set_rate(Some(30_000_000));
        let url = fixture.server.url_at(proxy.address(), "shrunk");
        let job = Copy::new(Client::Ropewalk.local(&source, false), url).mode(mode).argument("--retries=0");
        let mut running = Client::Ropewalk.start(&job).unwrap();
        proxy.wait_for(size / 4, SOON).unwrap();
        fs::File::options().write(true).open(&source).unwrap().set_len(size / 2).unwrap();
        let status = running.wait(SOON).unwrap();
        assert!(!status.success(), "{mode:?}: a file that was cut off counted as copied: {}", running.log());
        if mode != Mode::Stream {
            // In stream mode the server cannot distinguish the end of the file from a sender that
            // stopped.
            assert_eq!(fixture.visible().unwrap(), ["known"], "{mode:?}: it looks whole");
        }
        proxy.set_rate(None);
        fixture.still_serves().unwrap();
    }
}
