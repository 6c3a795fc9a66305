//! Attempts to leave the served directory.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ropewalk_tests::{files, peers, process};

use crate::fixture::Fixture;

const SECRET: &[u8] = b"this must never be seen";

/// Returns a fixture with a secret next to the served directory.
fn beside_a_secret() -> Fixture {
    let fixture = Fixture::new().unwrap();
    let outside = fixture.scratch.directory("outside").unwrap();
    fs::write(outside.join("secret"), SECRET).unwrap();
    fixture
}

#[test]
fn dot_paths_stay_within_root() {
    let mut fixture = beside_a_secret();
    fs::create_dir(fixture.root.join("d")).unwrap();
    let absolute = fixture.scratch.join("outside/secret").to_string_lossy().into_owned();
    let mut control = fixture.log_in().unwrap();
    for path in [
        "../outside/secret",
        "/../outside/secret",
        "/d/../../outside/secret",
        "d/../../outside/secret",
        "/./../outside/secret",
        "//../outside/secret",
        "/..//outside/secret",
        &absolute,
    ] {
        let (data, reply) = control.retrieve(path).unwrap();
        assert!(data.is_empty() && reply.code >= 400, "{path}: {reply:?} {data:?}");
        for command in ["SIZE", "MDTM", "MLST", "CKSM MD5 0 -1", "DELE", "CWD"] {
            let reply = control.command(format!("{command} {path}")).unwrap();
            assert!(reply.code >= 400, "{command} {path}: {reply:?}");
        }
    }
    let reply = control.store("../outside/planted", b"x").unwrap();
    assert!(reply.code >= 400 || !fixture.scratch.join("outside/planted").exists());
    assert!(!fixture.scratch.join("outside/planted").exists());
    assert_eq!(fs::read(fixture.scratch.join("outside/secret")).unwrap(), SECRET);
    fixture.still_serves().unwrap();
}

#[test]
fn links_stay_within_root() {
    let mut fixture = beside_a_secret();
    let outside = fixture.scratch.join("outside");
    symlink(&outside, fixture.root.join("to-directory")).unwrap();
    symlink(outside.join("secret"), fixture.root.join("to-file")).unwrap();
    symlink("../outside", fixture.root.join("relative")).unwrap();
    symlink("/etc/passwd", fixture.root.join("passwd")).unwrap();
    symlink(outside.join("planted"), fixture.root.join("dangling")).unwrap();
    let mut control = fixture.log_in().unwrap();
    for path in ["/to-directory/secret", "/to-file", "/relative/secret", "/passwd"] {
        let (data, reply) = control.retrieve(path).unwrap();
        assert!(data.is_empty() && reply.code >= 400, "{path}: {reply:?} {data:?}");
        for command in ["SIZE", "CKSM MD5 0 -1", "SITE TRNC 0", "SITE CHMOD 777"] {
            let reply = control.command(format!("{command} {path}")).unwrap();
            assert!(reply.code >= 400, "{command} {path}: {reply:?}");
        }
    }
    for path in ["/to-directory/planted", "/relative/planted", "/dangling"] {
        let _ = control.store(path, b"x").unwrap();
        let _ = control.command(format!("MKD {path}")).unwrap();
        assert!(!outside.join("planted").exists(), "STOR or MKD {path} went out");
    }
    let _ = control.store("/to-file", b"overwritten").unwrap();
    for name in ["to-directory/secret", "relative/secret"] {
        let _ = control.command(format!("DELE /{name}")).unwrap();
    }
    // Links that the client creates stay within the root too.
    for target in ["/etc", "../outside", "../../../../../../etc"] {
        let _ = control.command(format!("SITE SYMLINKFROM {target}")).unwrap();
        let _ = control.command("SITE SYMLINKTO /made").unwrap();
        let (data, _) = control.retrieve("/made/passwd").unwrap();
        assert!(data.is_empty());
        let (data, _) = control.retrieve("/made/secret").unwrap();
        assert!(data.is_empty());
        let _ = control.command("DELE /made").unwrap();
    }
    assert_eq!(fs::read(outside.join("secret")).unwrap(), SECRET);
    fixture.still_serves().unwrap();
}

/// Files larger than 4 MiB are first written beside their destination, whatever exists there.
#[test]
fn upload_does_not_replace_pipe() {
    let mut fixture = Fixture::new().unwrap();
    let pipe = fixture.root.join("pipe");
    let mode = rustix::fs::Mode::from(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    symlink("pipe", fixture.root.join("link")).unwrap();
    let source = fixture.scratch.join("large");
    files::write_random(&source, 5 << 20, 1).unwrap();
    for name in ["pipe", "link"] {
        let to = format!("ftp://{}/{name}", fixture.server.address());
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["cp", "--quiet"]).arg(&source).arg(to);
        let outcome = process::run(&mut command, Duration::from_secs(60)).unwrap();
        assert!(!outcome.status.success());
        // The copy fails at once instead of sending the data again and again.
        let errors = outcome.errors();
        let expected = "answered SITE UPLOAD BEGIN with: 553 Nothing takes the place of a device";
        assert!(errors.contains(expected) && !errors.contains("cannot resume"), "{errors}");
        assert!(fs::metadata(fixture.root.join(name)).unwrap().file_type().is_fifo());
    }
    assert!(fs::symlink_metadata(fixture.root.join("link")).unwrap().is_symlink());
    fixture.still_serves().unwrap();
}

#[test]
fn links_swapped_during_lookup_stay_within_root() {
    let mut fixture = beside_a_secret();
    let outside = fixture.scratch.join("outside");
    let inside = fixture.root.join("inside");
    fs::create_dir(&inside).unwrap();
    fs::write(inside.join("secret"), b"harmless").unwrap();
    let swapped = fixture.root.join("swapped");
    let spare = fixture.root.join("spare");
    fs::create_dir(&swapped).unwrap();
    fs::write(swapped.join("secret"), b"harmless").unwrap();
    symlink(&outside, &spare).unwrap();

    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // The directory and the link that leads outside are swapped continuously.
            while !stop.load(Ordering::Relaxed) {
                exchange(&swapped, &spare);
            }
        });
        let race = || {
            let mut control = fixture.log_in().unwrap();
            let mut served = 0;
            for round in 0..1500 {
                let (data, reply) = control.retrieve("/swapped/secret").unwrap();
                assert_ne!(data, SECRET, "round {round}: {reply:?}");
                served += usize::from(data == b"harmless");
                let planted = format!("/swapped/planted{}", round % 5);
                let _ = control.store(&planted, b"x").unwrap();
                let _ = control.command(format!("DELE {planted}")).unwrap();
                let size = control.command("SIZE /swapped/secret").unwrap();
                assert!(!size.text.ends_with(&format!(" {}", SECRET.len())), "{size:?}");
            }
            assert!(served > 0, "the race was never won by the harmless file: it tests nothing");
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(race));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    let names: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["secret"], "something was written outside");
    assert_eq!(fs::read(outside.join("secret")).unwrap(), SECRET);
    fixture.still_serves().unwrap();
}

fn exchange(one: &Path, other: &Path) {
    let flags = rustix::fs::RenameFlags::EXCHANGE;
    let _ = rustix::fs::renameat_with(rustix::fs::CWD, one, rustix::fs::CWD, other, flags);
}
