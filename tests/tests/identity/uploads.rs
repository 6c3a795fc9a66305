use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use ropewalk_tests::control::connect_data;
use ropewalk_tests::peers;
use ropewalk_tests::process::run;

use crate::town::{ADA, Town, is_possible, password};

const LIMIT: Duration = Duration::from_secs(60);

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 / 3 % 256) as u8).collect()
}

/// Several streams, a journal, direct writes: other threads and other descriptors than those of the session.
#[test]
fn large_uploads_are_the_users() {
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
fn interrupted_uploads_are_gone_on_with_by_their_owner_only() {
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
    // To bob there is no such file, and he cannot put one in its place or take the part away.
    assert!(bob.command("SIZE /shared/upload").unwrap().code >= 500);
    assert!(bob.store("/shared/upload", b"from bob").unwrap().code >= 500);
    for command in ["SITE RANGES /shared/upload", "DELE /shared/.upload.ropewalk-part"] {
        assert!(bob.command(command).unwrap().code >= 500, "{command}");
    }
    ada.expect(format!("REST {there}"), 350).unwrap();
    let reply = ada.store("/shared/upload", &content[there..]).unwrap();
    assert_eq!(reply.code, 226, "{reply:?}");
    assert!(fs::read(town.real("/shared/upload")).unwrap() == content);
    assert_eq!(fs::metadata(town.real("/shared/upload")).unwrap().uid(), ADA);
}
