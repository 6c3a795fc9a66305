use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ropewalk_tests::control::Control;

use crate::user_fixture::{ADA, BOB, CLUB, Town, give, is_possible, log_in};

const SECRET: &[u8] = b"what only ada may know";

#[test]
fn new_files_belong_to_their_creator() {
    if !is_possible() {
        return;
    }
    let town = Town::new("[identity]\numask = 0o027\n[files]\ncreate_mode = 0o666\ndirectory_mode = 0o777\n");
    let mut ada = town.log_in("ada");
    assert!(ada.expect("PWD", 257).unwrap().text.contains("\"/home/ada\""));
    assert_eq!(ada.store("new", b"1").unwrap().code, 226);
    ada.expect("MKD dir", 257).unwrap();
    ada.expect("SITE SYMLINKFROM new", 350).unwrap();
    ada.expect("SITE SYMLINKTO link", 250).unwrap();
    for (path, mode) in [("new", 0o640), ("dir", 0o750)] {
        let found = fs::metadata(town.real(&format!("/home/ada/{path}"))).unwrap();
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (ADA, ADA, mode), "{path}");
    }
    assert_eq!(fs::symlink_metadata(town.real("/home/ada/link")).unwrap().uid(), ADA);

    // The setgid bit of the directory determines the group, and the user's groups are effective.
    let mut bob = town.log_in("bob");
    assert_eq!(bob.store("/club/paper", b"for members").unwrap().code, 226);
    let found = fs::metadata(town.real("/club/paper")).unwrap();
    assert_eq!((found.uid(), found.gid()), (BOB, CLUB));
    assert!(ada.retrieve("/club/paper").unwrap().1.code >= 500);
    assert_eq!(bob.store("mine", b"x").unwrap().code, 226);
    bob.expect("SITE CHGRP club mine", 250).unwrap();
    assert_eq!(fs::metadata(town.real("/home/bob/mine")).unwrap().gid(), CLUB);
    for group in ["ada", "root"] {
        assert!(bob.command(format!("SITE CHGRP {group} mine")).unwrap().code >= 500, "{group}");
    }
}

#[test]
fn files_of_other_users_are_inaccessible() {
    if !is_possible() {
        return;
    }
    let town = Town::new("");
    let mut ada = town.log_in("ada");
    assert_eq!(ada.store("secret", SECRET).unwrap().code, 226);
    assert_eq!(ada.store("/shared/hers", SECRET).unwrap().code, 226);
    give(&town.real("/shared/hers"), ADA, ADA, 0o600);
    // The part file of an interrupted upload.
    let part = town.real("/shared/.big.ropewalk-part");
    fs::write(&part, SECRET).unwrap();
    give(&part, ADA, ADA, 0o1600);
    symlink("../home/ada/secret", town.real("/home/bob/way")).unwrap();
    symlink("/home/ada", town.real("/home/bob/ways")).unwrap();

    let mut bob = town.log_in("bob");
    let paths = [
        "/home/ada/secret",
        "/shared/hers",
        "/shared/.big.ropewalk-part",
        "way",
        "ways/secret",
        "/home/ada/../ada/secret",
    ];
    for path in paths {
        let (data, reply) = bob.retrieve(path).unwrap();
        assert!(data.is_empty() && reply.code >= 500, "RETR {path}: {reply:?}");
        let reply = bob.store(path, b"from bob").unwrap();
        assert!(reply.code >= 500 || path == "way", "STOR {path}: {reply:?}");
        for command in [
            "CKSM CRC32C 0 -1 @",
            "CKSM MD5 0 -1 @",
            "SITE TRNC 0 @",
            "SITE CHMOD 666 @",
            "SITE CHGRP bob @",
            "SITE UTIME 20200101000000 @",
            "MFMT 20200101000000 @",
        ] {
            // bob's own link is replaced by his upload to its name.
            if path == "way" {
                continue;
            }
            let reply = bob.command(command.replace('@', path)).unwrap();
            assert!(reply.code >= 500, "{command} {path}: {reply:?}");
        }
        if path != "way" {
            for command in ["DELE @", "SITE RDEL @"] {
                let reply = bob.command(command.replace('@', path)).unwrap();
                assert!(reply.code >= 500, "{command} {path}: {reply:?}");
            }
            let reply = bob.command(format!("RNFR {path}")).unwrap();
            if reply.code == 350 {
                let reply = bob.command("RNTO /home/bob/taken").unwrap();
                assert!(reply.code >= 500, "RNFR {path}: {reply:?}");
            }
        }
    }
    // For bob there is nothing to resume.
    let nothing = bob.command("SITE RANGES /shared/nothing").unwrap();
    assert_eq!(bob.command("SITE RANGES /shared/big").unwrap().text, nothing.text.replace("nothing", "big"));
    // Directories, attributes, and leftovers of uploads.
    for command in [
        "CWD /home/ada",
        "MLST /home/ada/secret",
        "SIZE /home/ada/secret",
        "MDTM /home/ada/secret",
        "MLSC /home/ada",
        "MKD /home/ada/new",
        "RMD /home/ada",
        "SITE RDEL /home/ada",
        "SITE CHROOT /home/ada",
        "SITE CHMOD 777 /home/ada",
        "SIZE /shared/big",
    ] {
        let reply = bob.command(command).unwrap();
        assert!(reply.code >= 500, "{command}: {reply:?}");
    }
    for command in ["LIST /home/ada", "NLST /home/ada", "MLSD /home/ada", "MLSR /home/ada"] {
        let listing = list(&mut bob, command);
        assert!(!listing.contains("secret"), "{command}: {listing}");
    }
    // bob cannot resume ada's interrupted upload: his upload must not contain her bytes.
    bob.command("REST 22").unwrap();
    let reply = bob.store("/shared/big", b" and more").unwrap();
    if reply.code == 226 {
        assert!(!fs::read(town.real("/shared/big")).unwrap().starts_with(SECRET));
    }
    assert_eq!(fs::read(town.real("/home/ada/secret")).unwrap(), SECRET);
    assert_eq!(fs::read(town.real("/shared/hers")).unwrap(), SECRET);
    assert_eq!(fs::read(&part).unwrap(), SECRET);
    let found = fs::metadata(&part).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o777), (ADA, 0o600));
    // All of these files remained ada's.
    assert_eq!(ada.retrieve("secret").unwrap().0, SECRET);
    assert_eq!(ada.retrieve("/shared/hers").unwrap().0, SECRET);
}

/// Entries created in a setgid directory inherit its group. A file with the setgid bit would be
/// executed with that group.
#[test]
fn setgid_directories_keep_their_group() {
    if !is_possible() {
        return;
    }
    let town = Town::new("");
    let mut bob = town.log_in("bob");
    let mode = |path: &str| fs::metadata(town.real(path)).unwrap().mode() & 0o7777;
    bob.expect("MKD /home/bob/d", 257).unwrap();
    bob.expect("SITE CHMOD 2775 /home/bob/d", 250).unwrap();
    assert_eq!(mode("/home/bob/d"), 0o2775);
    bob.expect("SITE CHMOD 6755 /home/bob/d", 250).unwrap();
    assert_eq!(mode("/home/bob/d"), 0o2755);
    assert_eq!(bob.store("/home/bob/f", b"#!/bin/sh").unwrap().code, 226);
    bob.expect("SITE CHMOD 6755 /home/bob/f", 250).unwrap();
    assert_eq!(mode("/home/bob/f"), 0o755);
}

#[test]
fn connection_serves_successive_users_separately() {
    if !is_possible() {
        return;
    }
    let town = Town::new("");
    let mut control = town.log_in("ada");
    assert_eq!(control.store("secret", SECRET).unwrap().code, 226);
    assert_eq!(control.retrieve("secret").unwrap().0, SECRET);
    let left = control.passive().unwrap();
    let reply = control.command("USER bob").unwrap();
    if reply.code == 331 {
        control.expect("PASS secret-of-bob", 230).unwrap();
        control.expect("TYPE I", 200).unwrap();
        assert!(control.retrieve("/home/ada/secret").unwrap().1.code >= 500);
        assert_eq!(control.store("/shared/his", b"x").unwrap().code, 226);
        assert_eq!(fs::metadata(town.real("/shared/his")).unwrap().uid(), BOB);
        // The data port that ada opened is closed.
        assert!(std::net::TcpStream::connect(left).is_err());
    } else {
        assert!(reply.code >= 500, "{reply:?}");
    }
}

#[test]
fn link_races_do_not_cross_users() {
    if !is_possible() {
        return;
    }
    let town = Town::new("");
    let mut ada = town.log_in("ada");
    assert_eq!(ada.store("secret", SECRET).unwrap().code, 226);
    // bob swaps one of his directories with a link to ada's as fast as he can.
    let own = town.scratch.directory("root/home/bob/own").unwrap();
    give(&own, BOB, BOB, 0o755);
    fs::write(own.join("secret"), b"from bob").unwrap();
    give(&own.join("secret"), BOB, BOB, 0o644);
    symlink("/home/ada", town.real("/home/bob/other")).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            let cwd = rustix::fs::CWD;
            while !over.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(cwd, &own, cwd, town.real("/home/bob/other"), flags).unwrap();
                thread::yield_now();
            }
        });
        let mut bob = town.log_in("bob");
        let mut ada = town.log_in("ada");
        for round in 0..60 {
            let (data, _) = bob.retrieve("/home/bob/own/secret").unwrap();
            assert_ne!(data, SECRET, "round {round}");
            let sum = bob.command("CKSM CRC32C 0 -1 /home/bob/own/secret").unwrap();
            let reply = bob.store("/home/bob/own/planted", b"from bob").unwrap();
            assert!(sum.code != 0 && reply.code != 0);
            bob.command("DELE /home/bob/own/secret").unwrap();
            let _ = bob.store("/home/bob/own/secret", b"from bob").unwrap();
            // Meanwhile other sessions use the same threads.
            assert_eq!(ada.retrieve("secret").unwrap().0, SECRET, "round {round}");
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs::read(town.real("/home/ada/secret")).unwrap(), SECRET);
    let names: Vec<_> =
        fs::read_dir(town.real("/home/ada")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["secret"]);
}

#[test]
fn concurrent_sessions_of_many_users_stay_separate() {
    if !is_possible() {
        return;
    }
    let town = Town::new("");
    thread::scope(|scope| {
        for worker in 0..4 {
            let (user, uid, other) = if worker % 2 == 0 { ("ada", ADA, "bob") } else { ("bob", BOB, "ada") };
            let town = &town;
            scope.spawn(move || {
                let mut control = town.log_in(user);
                for n in 0..40 {
                    let name = format!("/shared/{user}-{worker}-{n}");
                    assert_eq!(control.store(&name, name.as_bytes()).unwrap().code, 226);
                    assert_eq!(fs::metadata(town.real(&name)).unwrap().uid(), uid);
                    control.expect(format!("MKD {name}.d"), 257).unwrap();
                    assert_eq!(fs::metadata(town.real(&format!("{name}.d"))).unwrap().uid(), uid);
                    assert!(control.command(format!("CWD /home/{other}")).unwrap().code >= 500);
                    control.expect(format!("CWD /home/{user}"), 250).unwrap();
                }
            });
        }
    });
    // No thread keeps another user's identity.
    for (field, value) in [("Uid", "0 0 0 0"), ("Gid", "0 0 0 0")] {
        let found = town.threads(field);
        assert!(found.len() > 1 && found.iter().all(|ids| ids == value), "{field}: {found:?}");
    }
}

fn list(control: &mut Control, command: &str) -> String {
    use std::io::Read;
    let address = control.passive().unwrap();
    control.send(command).unwrap();
    let mut data = ropewalk_tests::control::connect_data(address).unwrap();
    let first = control.reply().unwrap();
    let mut text = String::new();
    if first.code < 400 {
        data.read_to_string(&mut text).unwrap();
        control.final_reply().unwrap();
    }
    text
}

#[test]
fn session_after_user_change_starts_fresh() {
    if !is_possible() {
        return;
    }
    let town = Town::new("");
    let mut control = town.connect();
    log_in(&mut control, "ada");
    assert_eq!(control.store("secret", SECRET).unwrap().code, 226);
    // The checksum of a file is reported only to users who may read the file, even if it is cached.
    let large: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
    assert_eq!(control.store("/shared/large", &large).unwrap().code, 226);
    give(&town.real("/shared/large"), ADA, ADA, 0o600);
    control.expect("CKSM CRC32C 0 -1 /shared/large", 213).unwrap();
    let mut bob = town.log_in("bob");
    assert!(bob.command("CKSM CRC32C 0 -1 /shared/large").unwrap().code >= 500);
}
