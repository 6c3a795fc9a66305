use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ropewalk_tests::control::{Control, connect_data};
use ropewalk_tests::peers;
use ropewalk_tests::process::run;

use crate::user_fixture::{ADA, BOB, Town, give, is_possible, password};

const LIMIT: Duration = Duration::from_secs(60);

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 / 3 % 256) as u8).collect()
}

/// Several streams, a journal, and direct writes use other threads and descriptors than the
/// session.
#[test]
fn large_uploads_belong_to_the_user() {
    if !is_possible() {
        return;
    }
    let town = Town::new("[files]\ndirect_io = 'always'\njournal_above = 0\nfsync = 'each_marker'\n");
    let content = bytes(24 << 20);
    fs::write(town.scratch.join("big"), &content).unwrap();
    fs::write(town.scratch.join("password"), password("ada")).unwrap();
    std::os::unix::fs::chown(town.scratch.join("password"), Some(0), Some(0)).unwrap();
    for round in 0..2 {
        let mut command = peers::ropewalk_command().unwrap();
        command
            .args(["cp", "--quiet", "--streams", "4", "--password-file"])
            .arg(town.scratch.join("password"))
            .arg(town.scratch.join("big"))
            .arg(format!("ftp://ada@127.0.0.1:{}/home/ada/big{round}", town.port()));
        run(&mut command, LIMIT).unwrap().succeeded().unwrap();
        let path = town.real(&format!("/home/ada/big{round}"));
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid()), (ADA, ADA));
        assert!(fs::read(&path).unwrap() == content);
    }
    let names: Vec<_> =
        fs::read_dir(town.real("/home/ada")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    for ids in town.threads("Uid") {
        assert_eq!(ids, "0 0 0 0");
    }
}

#[test]
fn interrupted_upload_is_resumed_by_owner_only() {
    if !is_possible() {
        return;
    }
    let town = Town::new("");
    let content = bytes(1 << 20);
    let part = town.real("/shared/.upload.ropewalk-part");
    {
        let mut ada = town.log_in("ada");
        let address = ada.passive().unwrap();
        ada.expect("ALLO 1048576", 200).unwrap();
        ada.send("STOR /shared/upload").unwrap();
        let mut data = connect_data(address).unwrap();
        assert_eq!(ada.reply().unwrap().code, 150);
        data.write_all(&content[..300_000]).unwrap();
        let begun = Instant::now();
        while fs::metadata(&part).map_or(0, |found| found.size()) == 0 {
            assert!(begun.elapsed() < LIMIT, "nothing arrives");
            std::thread::yield_now();
        }
        // The client dies.
        drop(ada);
    }
    let mut bob = town.log_in("bob");
    let mut ada = town.log_in("ada");
    let begun = Instant::now();
    let there = loop {
        let reply = ada.command("SIZE /shared/upload").unwrap();
        if reply.code == 213 {
            break reply.text[4..].trim().parse::<usize>().unwrap();
        }
        assert!(begun.elapsed() < LIMIT, "{reply:?}");
        std::thread::yield_now();
    };
    let found = fs::metadata(&part).unwrap();
    assert_eq!((found.uid(), found.size()), (ADA, there as u64));
    assert!(there <= 300_000);
    // For bob the file does not exist, and he can neither create it nor remove the part file.
    assert!(bob.command("SIZE /shared/upload").unwrap().code >= 500);
    assert!(bob.store("/shared/upload", b"from bob").unwrap().code >= 500);
    let nothing = bob.command("SITE RANGES /shared/nothing").unwrap();
    assert_eq!(
        bob.command("SITE RANGES /shared/upload").unwrap().text,
        nothing.text.replace("nothing", "upload")
    );
    assert!(bob.command("DELE /shared/.upload.ropewalk-part").unwrap().code >= 500);
    ada.expect(format!("REST {there}"), 350).unwrap();
    let reply = ada.store("/shared/upload", &content[there..]).unwrap();
    assert_eq!(reply.code, 226, "{reply:?}");
    assert!(fs::read(town.real("/shared/upload")).unwrap() == content);
    assert_eq!(fs::metadata(town.real("/shared/upload")).unwrap().uid(), ADA);
}

/// Begins an upload that stays incomplete until its data connection is closed.
fn begin(control: &mut Control, path: &str, part: &Path) -> TcpStream {
    let address = control.passive().unwrap();
    control.send(format!("STOR {path}")).unwrap();
    let mut data = connect_data(address).unwrap();
    assert_eq!(control.reply().unwrap().code, 150);
    data.write_all(b"hers").unwrap();
    let begun = Instant::now();
    while fs::metadata(part).map_or(0, |found| found.size()) == 0 {
        assert!(begun.elapsed() < LIMIT, "nothing arrives");
        std::thread::yield_now();
    }
    data
}

/// In directories in which both users may do anything.
#[test]
fn running_upload_of_other_user_is_untouched() {
    if !is_possible() {
        return;
    }
    let town = Town::new("");
    let directory = town.scratch.directory("root/pool/d").unwrap();
    for directory in [directory.parent().unwrap(), &directory] {
        give(directory, 0, 0, 0o777);
    }
    let part = directory.join(".f.ropewalk-part");
    let (mut ada, mut bob) = (town.log_in("ada"), town.log_in("bob"));
    for mode in [0o1644, 0o1600] {
        let data = begin(&mut ada, "/pool/d/f", &part);
        give(&part, ADA, ADA, mode);
        let refused = |bob: &mut Control, command: &str| {
            let reply = bob.command(command).unwrap();
            assert!(reply.code >= 400, "{mode:o} {command}: {reply:?}");
        };
        let reply = bob.store("/pool/d/f", b"his").unwrap();
        assert!(reply.code >= 400, "{reply:?}");
        bob.expect("RNFR /pool/d/.f.ropewalk-part", 350).unwrap();
        refused(&mut bob, "RNTO /pool/d/mine");
        refused(&mut bob, "RMD /pool/d");
        drop(data);
        assert_eq!(ada.reply().unwrap().code, 226);
        assert_eq!(fs::read(directory.join("f")).unwrap(), b"hers");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        ada.expect("DELE /pool/d/f", 250).unwrap();
    }
}

#[test]
fn leftover_part_of_other_user_is_not_resumed() {
    if !is_possible() {
        return;
    }
    let town = Town::new("");
    give(&town.scratch.directory("root/pool").unwrap(), 0, 0, 0o777);
    let mut bob = town.log_in("bob");
    let leave = |directory: &str, mode| {
        let part = town.real(&format!("{directory}/.f.ropewalk-part"));
        fs::write(&part, "hers").unwrap();
        give(&part, ADA, ADA, mode);
        // The file that the upload was to replace.
        let old = town.real(&format!("{directory}/f"));
        fs::write(&old, "old").unwrap();
        give(&old, 0, 0, 0o666);
        (part, old)
    };
    let (part, file) = leave("/pool", 0o1644);
    assert_eq!(bob.store("/pool/f", b"his").unwrap().code, 226);
    assert_eq!(fs::read(&file).unwrap(), b"his");
    assert!(!part.exists() && fs::metadata(&file).unwrap().uid() == BOB);
    // The user's own part file never prevents an upload.
    let own = town.real("/pool/.own.ropewalk-part");
    fs::write(&own, "old").unwrap();
    give(&own, BOB, BOB, 0);
    assert_eq!(bob.store("/pool/own", b"his").unwrap().code, 226);
    assert!(fs::read(town.real("/pool/own")).unwrap() == b"his" && !own.exists());
    // If the server cannot determine whether the part file is in use, or cannot remove it, nothing
    // changes, not even the old file.
    for (directory, mode) in [("/pool", 0o1600), ("/shared", 0o1644), ("/shared", 0o1666)] {
        let (part, file) = leave(directory, mode);
        let reply = bob.store(&format!("{directory}/f"), b"his").unwrap();
        assert!(reply.code >= 500 && reply.text.contains(".f.ropewalk-part"), "{reply:?}");
        assert_eq!(fs::read(&part).unwrap(), b"hers");
        assert_eq!(fs::read(&file).unwrap(), b"old");
    }
}
