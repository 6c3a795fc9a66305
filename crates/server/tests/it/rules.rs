//! Path rules, and links that lead out of the permitted places.

use std::io::Write as _;
use std::os::unix::fs::symlink;

use crate::fixture::Fixture;

fn server() -> Fixture {
    let server = Fixture::with(|config, _| config.rules = Some("R/pub,RW/in,N/pub/no,R/deep/*/x".into()));
    for name in ["pub/a", "pub/no/b", "in/c", "secret/d", "deep/1/x/e", "deep/1/y/f"] {
        server.write(name, "data");
    }
    symlink("/secret/d", server.root().join("pub/absolute")).unwrap();
    symlink("../secret", server.root().join("in/directory")).unwrap();
    symlink("../secret/new", server.root().join("in/dangling")).unwrap();
    symlink("../pub/a", server.root().join("in/good")).unwrap();
    server
}

/// The names of a listing, in order.
fn names(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

#[test]
fn rules_permit_and_refuse_paths() {
    let server = server();
    let mut client = server.login();
    assert_eq!(client.get("RETR /pub/a"), b"data");
    assert_eq!(client.get("RETR /in/good"), b"data");
    assert_eq!(client.get("RETR /deep/1/x/e"), b"data");
    let _data = client.data();
    for path in
        ["/secret/d", "/pub/no/b", "/pub/absolute", "/in/directory/d", "/deep/1/y/f", "/in/../secret/d"]
    {
        client.send(&format!("RETR {path}"));
        let reply = client.reply();
        assert_eq!(reply.text, "500 Command failed : Path not allowed.", "{path}");
    }
    for path in ["/pub/x", "/secret/x", "/in/directory/x", "/in/dangling", "/x"] {
        client.send(&format!("STOR {path}"));
        let reply = client.reply();
        assert_eq!(reply.text, "500 Command failed : Path not allowed.", "{path}");
    }
    assert_eq!(client.put("STOR /in/x", b"1").code, 226);
    assert!(!server.exists("secret/new"));
}

/// The refusal comes before any data.
#[test]
fn upload_to_forbidden_part_file_is_refused() {
    let server = Fixture::with(|config, _| config.rules = Some("RW/,R/in/fixed".into()));
    server.write("in/fixed", "data");
    let mut client = server.login();
    let _data = client.data();
    client.send("STOR /in/.fixed.ropewalk-part");
    assert_eq!(client.reply().text, "500 Command failed : Path not allowed.");
    assert_eq!(client.put("STOR /in/.other.ropewalk-part", b"1").code, 226);
    client.command("RNFR /in/.other.ropewalk-part", 350);
    client.command("RNTO /in/other", 250);
}

#[test]
fn pipe_is_not_replaced_and_forbidden_pipe_is_not_revealed() {
    let server = server();
    for name in ["in/pipe", "secret/pipe"] {
        let (at, mode) = (rustix::fs::CWD, rustix::fs::Mode::from(0o600));
        rustix::fs::mknodat(at, server.root().join(name), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    }
    symlink("../secret/pipe", server.root().join("in/link")).unwrap();
    let mut client = server.login();
    for (name, code) in [("pipe", 553), ("link", 250)] {
        client.command("RNFR /in/c", 350);
        client.command(&format!("RNTO /in/{name}"), code);
    }
    assert!(server.exists("in/pipe") && server.exists("secret/pipe") && !server.exists("in/c"));
}

#[test]
fn forbidden_paths_are_refused_by_each_command() {
    let server = server();
    let mut client = server.login();
    for command in [
        "SIZE /secret/d",
        "MDTM /in/directory/d",
        "MLST /secret",
        "DELE /pub/a",
        "DELE /in/directory/d",
        "MKD /in/directory/x",
        "RMD /secret",
        "CKSM MD5 0 -1 /secret/d",
        "SITE RDEL /pub",
        "SITE CHMOD 777 /in/directory/d",
        "SITE TRNC 0 /in/directory/d",
        "RNFR /secret/d",
    ] {
        client.send(command);
        let reply = client.reply();
        assert!(reply.code == 500 && reply.text.contains("Path not allowed"), "{command}: {}", reply.text);
    }
    let text = client.command("CWD /secret", 550);
    assert_eq!(text, "550 /secret: Could not change directory. : Path not allowed.");
    client.command("RNFR /in/c", 350);
    client.command("RNTO /secret/c", 500);
    client.command("SITE SYMLINKFROM /secret/d", 500);
    client.command("SITE SYMLINK ../secret/d /in/link", 500);
    client.command("SITE SYMLINKFROM /pub/a", 350);
    client.command("SITE SYMLINKTO /in/link", 250);
    assert_eq!(std::fs::read_link(server.root().join("in/link")).unwrap().to_str(), Some("../pub/a"));
    client.command("RNFR /in/c", 350);
    client.command("RNTO /in/c2", 250);
    // A link that leads out may be removed: it is an entry of a permitted directory.
    client.command("DELE /in/directory", 250);
    assert!(server.exists("secret/d"));
}

#[test]
fn listing_shows_directories_on_permitted_paths() {
    let server = server();
    let mut client = server.login();
    assert_eq!(names(client.list("NLST /")), ["deep", "in", "pub"]);
    assert_eq!(names(client.list("NLST /pub")), ["a", "absolute"]);
    assert_eq!(names(client.list("NLST /deep")), ["1"]);
    assert_eq!(names(client.list("NLST /deep/1")), ["x"]);
    let facts = client.list("MLSD /pub");
    let absolute = facts.iter().find(|line| line.ends_with(" absolute")).unwrap();
    assert!(absolute.contains("Error=InvalidLink;") && !absolute.contains("Size=4;"), "{absolute}");
    let recursive = client.list("MLSR /");
    assert!(
        !recursive.iter().any(|line| line.contains("secret") && !line.contains("slink")),
        "{recursive:?}"
    );
    assert!(recursive.iter().any(|line| line.ends_with(" deep/1/x/e")), "{recursive:?}");
}

#[test]
fn site_restrict_limits_session() {
    let server = Fixture::new();
    server.write("a/x", "1");
    server.write("b/y", "2");
    let mut client = server.login();
    // A user who gives no rules would expect that nothing is permitted.
    client.command("SITE RESTRICT ,", 500);
    client.command("SITE RESTRICT R/a", 250);
    client.command("SIZE /a/x", 213);
    client.command("SIZE /b/y", 500);
    client.command("DELE /a/x", 500);
    client.command("SITE RESTRICT RW/", 500);
}

/// `path:alias`
#[test]
fn aliased_place_has_no_other_name() {
    let server = Fixture::with(|config, _| config.rules = Some("R/pub:/data,RW/in:/data/in,R/deep".into()));
    for name in ["pub/a", "pub/no/b", "in/c", "secret/d", "deep/e", "data/covered"] {
        server.write(name, "data");
    }
    symlink("../pub/a", server.root().join("in/good")).unwrap();
    symlink("../data/covered", server.root().join("in/covered")).unwrap();
    let mut client = server.login();
    for path in ["/data/a", "/data/no/b", "/data/in/c", "/data/in/good", "/deep/e"] {
        assert_eq!(client.get(&format!("RETR {path}")), b"data", "{path}");
    }
    let _data = client.data();
    for path in ["/pub/a", "/in/c", "/pub", "/secret/d", "/data/in/covered", "/data/../pub/a"] {
        client.send(&format!("RETR {path}"));
        assert_eq!(client.reply().text, "500 Command failed : Path not allowed.", "{path}");
    }
    client.command("SIZE /data/covered", 550);
    assert_eq!(client.put("STOR /data/in/x", b"1").code, 226);
    assert!(server.exists("in/x") && !server.exists("pub/in"));
    for command in [
        "DELE /data/a",
        "DELE /in/x",
        "MKD /data/y",
        "MKD /in/y",
        "SITE RDEL /data/in/../no",
        "DELE /data/covered",
    ] {
        client.command(command, 500);
    }
    client.command("RNFR /data/in/x", 350);
    client.command("RNTO /data/x", 500);
    client.command("RNFR /data/in/x", 350);
    client.command("RNTO /data/in/y", 250);
    client.command("SITE SYMLINKFROM /data/a", 350);
    client.command("SITE SYMLINKTO /data/in/link", 250);
    assert_eq!(std::fs::read_link(server.root().join("in/link")).unwrap().to_str(), Some("../pub/a"));
    // As with GCT, listings show the real names.
    assert_eq!(names(client.list("NLST /")), ["deep"]);
    assert_eq!(names(client.list("NLST /data")), ["a", "no"]);
    assert_eq!(names(client.list("NLST /data/in")), ["c", "covered", "good", "link", "y"]);
    client.command("CWD /data/in", 250);
    client.command("SIZE c", 213);
    client.command("CWD /in", 550);
    client.command("SITE CHROOT /data", 250);
    for (path, code) in [("/a", 213), ("/in/c", 213), ("/pub/a", 550), ("/data/a", 550), ("/../deep/e", 550)]
    {
        client.command(&format!("SIZE {path}"), code);
    }
}

/// A rule about entries beneath a directory does not affect a file in the directory's place.
#[test]
fn file_is_renamed_despite_rules_beneath() {
    let server = Fixture::with(|config, _| config.rules = Some("RW/d,N/d/*/no,W/d/in,N/d/in/*/no".into()));
    for name in ["d/a", "d/x/no/secret", "d/y/f", "d/in/b"] {
        server.write(name, "data");
    }
    let mut client = server.login();
    let mut rename = |from: &str, to: &str| {
        client.command(&format!("RNFR {from}"), 350);
        client.send(&format!("RNTO {to}"));
        client.reply().code
    };
    assert_eq!(rename("/d/a", "/d/b"), 250);
    assert_eq!(rename("/d/b", "/d/y/b"), 250);
    // A file that may not be read does not become readable by renaming it.
    assert_eq!(rename("/d/in/b", "/d/in/c"), 250);
    assert_eq!(rename("/d/in/c", "/d/c"), 500);
    assert_eq!(rename("/d/x", "/d/z"), 500);
    assert_eq!(rename("/d/y/b", "/d/x/no"), 500);
    assert_eq!(rename("/d/y/b", "/d/x"), 550);
    assert_eq!(client.put("STOR /d/.big.ropewalk-part", b"1").code, 226);
    client.command("RNFR /d/.big.ropewalk-part", 350);
    client.command("RNTO /d/big", 250);
    // Onto an existing file, and onto itself.
    assert_eq!(client.put("STOR /d/other", b"2").code, 226);
    for to in ["/d/big", "/d/./big"] {
        client.command(if to == "/d/big" { "RNFR /d/other" } else { "RNFR /d/big" }, 350);
        client.command(&format!("RNTO {to}"), 250);
        assert_eq!(server.read("d/big"), b"2");
    }
    assert_eq!(names(client.list("NLST /d")), ["big", "in", "x", "y"]);
    assert!(server.exists("d/big") && server.exists("d/x/no/secret"));
}

#[test]
fn site_restrict_with_aliases_renames_paths() {
    let server = Fixture::new();
    server.write("a/b/x", "1");
    server.write("c/y", "2");
    let mut client = server.login();
    client.command("SITE RESTRICT R/a/*:/z", 500);
    client.command("SITE RESTRICT R/a/b:/z,RW/c", 250);
    for (path, code) in [("/z/x", 213), ("/c/y", 213), ("/a/b/x", 500), ("/a", 500), ("/z/y", 550)] {
        client.command(&format!("SIZE {path}"), code);
    }
    client.command("DELE /z/x", 500);
    client.command("SITE RDEL /a", 500);
    client.command("RNFR /c/y", 350);
    client.command("RNTO /z/y", 500);
}

/// A session that has restricted itself stays restricted, whatever it sees as `/` afterwards.
#[test]
fn chroot_does_not_widen_restriction() {
    let server = Fixture::new();
    for name in ["a/secret/x", "a/y", "pub/z"] {
        server.write(name, "1");
    }
    let mut client = server.login();
    client.command("SITE RESTRICT RW/,N/a/secret", 250);
    client.command("SITE CHROOT /a", 250);
    client.command("SIZE /y", 213);
    client.command("SIZE /secret/x", 500);
    client.command("SITE RDEL /secret", 500);
    let mut client = server.login();
    client.command("SITE RESTRICT RW/,R/pub:/q", 250);
    client.command("SITE CHROOT /q", 250);
    client.command("SIZE /z", 213);
    client.command("DELE /z", 500);
    assert!(server.exists("pub/z"));
    // In the other order a restriction applies to the paths that the session sees.
    let mut client = server.login();
    client.command("SITE CHROOT /a", 250);
    client.command("SITE RESTRICT R/secret", 250);
    client.command("SIZE /secret/x", 213);
    client.command("SIZE /y", 500);
}

#[test]
fn chroot_into_alias_works() {
    let server = Fixture::with(|config, _| config.rules = Some("RW/srv/data:/".into()));
    server.write("srv/data/x", "1");
    server.write("other/y", "2");
    let mut client = server.login();
    client.command("SIZE /x", 213);
    client.command("SIZE /other/y", 550);
    client.command("SIZE /srv/data/x", 550);
    assert_eq!(client.put("STOR /new", b"1").code, 226);
    assert!(server.exists("srv/data/new"));
}

/// A session cannot remove its own root.
#[test]
fn root_of_session_cannot_be_removed() {
    let server = Fixture::new();
    server.write("jail/a", "1");
    std::fs::create_dir(server.root().join("empty")).unwrap();
    for root in ["/jail", "/empty", "/"] {
        let mut client = server.login();
        client.command(&format!("SITE CHROOT {root}"), 250);
        for path in ["/", "..", "a/.."] {
            client.command(&format!("SITE RDEL {path}"), 451);
            client.command(&format!("RMD {path}"), 451);
            client.send(&format!("DELE {path}"));
            assert!(client.reply().code >= 400);
            client.command(&format!("RNFR {path}"), 350);
            client.command("RNTO /b", 451);
        }
        client.command("MKD x", 257);
        client.command("RNFR x", 350);
        client.command("RNTO /", 451);
        client.command("RMD x", 250);
    }
    assert!(server.exists("jail/a") && server.exists("empty"));
}

/// A part file need not match the rule that permits the file.
#[test]
fn upload_with_rules_for_names_needs_no_rule_for_part_file() {
    let server = Fixture::with(|config, _| config.rules = Some("RW/in/*.dat,W/drop".into()));
    server.write("in/old.dat", "old");
    std::fs::create_dir(server.root().join("drop")).unwrap();
    let mut client = server.login();
    assert_eq!(client.put("STOR /in/new.dat", b"new").code, 226);
    assert_eq!(client.put("STOR /in/old.dat", b"newer").code, 226);
    assert_eq!(client.put("APPE /in/old.dat", b"!").code, 226);
    assert_eq!((server.read("in/new.dat"), server.read("in/old.dat")), (b"new".to_vec(), b"newer!".to_vec()));
    // A checksum is verified although the client may not read.
    client.command("SCKS MD5 900150983cd24fb0d6963f7d28e17f72", 200);
    assert_eq!(client.put("STOR /drop/x", b"abc").code, 226);
    client.command("SCKS MD5 900150983cd24fb0d6963f7d28e17f72", 200);
    assert_eq!(client.put("STOR /drop/y", b"abd").code, 550);
    client.command("ALLO 10", 200);
    assert_eq!(client.put("STOR /in/part.dat", b"12345").code, 426);
    client.command("SIZE /in/part.dat", 213);
    client.command("REST 5", 350);
    assert_eq!(client.put("STOR /in/part.dat", b"67890").code, 226);
    assert_eq!(server.read("in/part.dat"), b"1234567890");
    let mut names: Vec<_> =
        std::fs::read_dir(server.root().join("in")).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["new.dat", "old.dat", "part.dat"]);
}

/// Two sessions: one replaces a directory with a link to a closed place while the other uses it.
#[test]
fn directory_swapped_for_link_leads_nowhere() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let server = Fixture::with(|config, _| config.rules = Some("RW/open,N/secret".into()));
    server.write("secret/f", "secret");
    server.write("open/d/f", "open");
    symlink("../secret", server.root().join("open/link")).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (a, b) = (server.root().join("open/d"), server.root().join("open/link"));
            while !stop.load(Ordering::Relaxed) {
                let cwd = rustix::fs::CWD;
                rustix::fs::renameat_with(cwd, &a, cwd, &b, rustix::fs::RenameFlags::EXCHANGE).unwrap();
            }
        });
        let mut client = server.login();
        let mut check = || {
            for i in 0..300 {
                client.send("CKSM MD5 0 -1 /open/d/f");
                let reply = client.reply();
                // The sum of "secret".
                assert_ne!(reply.text, "213 5ebe2294ecd0e0f08eab7690d2a6ee69");
                let size = "SIZE /open/d/f";
                client.send(size);
                assert_ne!(client.reply().text, "213 6");
                for command in ["SITE TRNC 0 /open/d/f", "SITE CHMOD 606 /open/d/f"] {
                    client.send(command);
                    client.reply();
                }
                client.send(&format!("MKD /open/d/{i}"));
                client.reply();
            }
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut check));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    assert_eq!(server.read("secret/f"), b"secret");
    assert_eq!(std::fs::read_dir(server.root().join("secret")).unwrap().count(), 1);
}

/// A user who may write but not read must not be able to read under another name.
#[test]
fn unreadable_file_stays_unreadable_after_rename() {
    let server = Fixture::with(|config, _| config.rules = Some("RW/open,W/drop,W/open/drop".into()));
    for name in ["open/a", "drop/b", "open/d/drop/c", "open/drop/e"] {
        server.write(name, "data");
    }
    let mut client = server.login();
    let mut rename = |from: &str, to: &str, code| {
        client.command(&format!("RNFR {from}"), 350);
        client.command(&format!("RNTO {to}"), code);
    };
    rename("/drop/b", "/open/b", 500);
    rename("/open/drop/e", "/open/e", 500);
    rename("/open/drop", "/open/x", 500);
    // A complete upload of another client is renamed.
    rename("/drop/b", "/drop/c", 250);
    rename("/drop/c", "/open/drop/c", 250);
    rename("/open/a", "/drop/a", 250);
    rename("/open/d", "/open/g", 250);
}

/// An expected checksum must not reveal the content, neither by the reply nor by a match.
#[test]
fn expected_sum_of_unreadable_file_is_not_revealed() {
    let server = Fixture::with(|config, _| config.rules = Some("W/drop,RW/open".into()));
    for name in ["drop/f", "drop/part", "drop/.g.ropewalk-part", "open/f"] {
        server.write(name, "secret");
    }
    let mut client = server.login();
    client.command("CKSM MD5 0 1 /drop/f", 500);
    // The sum of "s", and a wrong one.
    for sum in ["03c7c0ace395d80182db07ae2c30f034", "0"] {
        for command in ["ESTO A 1 /drop/f", "APPE /drop/f", "ESTO A 1 /drop/.g.ropewalk-part"] {
            client.command(&format!("SCKS MD5 {sum}"), 200);
            let _data = client.data();
            let text = client.command(command, 500);
            assert!(!text.contains("Checksum"), "{command}: {text}");
        }
        // In MODE E a client may leave bytes out.
        crate::blocks::mode_e(&mut client);
        client.command("ALLO 1", 200);
        client.command(&format!("SCKS MD5 {sum}"), 200);
        let mut data = client.data();
        client.command("ESTO A 0 /drop/f", 150);
        data.write_all(&crate::blocks::block(0, 1, b"E")).unwrap();
        data.write_all(&crate::blocks::block(0x48, 1, b"")).unwrap();
        let text = loop {
            let reply = client.reply();
            if reply.code >= 200 {
                break reply;
            }
        };
        assert!(text.code == 500 && !text.text.contains("Checksum"), "{text:?}");
        client.command("MODE S", 200);
    }
    // Data of the client itself may be verified, and a user who may read may use any sum.
    for (command, data) in [("STOR /drop/new", "s"), ("STOR /drop/f", "s"), ("ESTO A 0 /drop/part", "s")] {
        client.command("SCKS MD5 03c7c0ace395d80182db07ae2c30f034", 200);
        assert_eq!(client.put(command, data.as_bytes()).code, 226, "{command}");
    }
    client.command("SCKS MD5 03c7c0ace395d80182db07ae2c30f034", 200);
    assert_eq!(client.put("ESTO A 1 /open/f", b"").code, 226);
}

/// A part file has the permissions of the file that it will become.
#[test]
fn part_file_of_forbidden_file_is_forbidden() {
    let server =
        Fixture::with(|config, _| config.rules = Some("RW/,R/in/fixed,N/in/*.key,W/in/*.box".into()));
    server.write("in/.a.box.ropewalk-part", "data");
    for name in
        [".a.key.ropewalk-part", ".a.key.ropewalk-journal", ".fixed.ropewalk-part", "d/.b.key.ropewalk-part"]
    {
        server.write(&format!("in/{name}"), "data");
    }
    let mut client = server.login();
    for command in [
        "SIZE /in/.a.key.ropewalk-part",
        "MLST /in/.a.key.ropewalk-part",
        "CKSM MD5 0 -1 /in/.a.key.ropewalk-part",
        "SIZE /in/.a.key.ropewalk-journal",
        "DELE /in/.a.key.ropewalk-part",
        "RNFR /in/.a.key.ropewalk-part",
        "SITE CHMOD 600 /in/.fixed.ropewalk-part",
        "DELE /in/.fixed.ropewalk-part",
    ] {
        client.command(command, 500);
    }
    client.command("SIZE /in/.fixed.ropewalk-part", 213);
    // A file that may only be written must not become readable.
    client.command("CKSM MD5 0 -1 /in/.a.box.ropewalk-part", 500);
    client.command("RNFR /in/.a.box.ropewalk-part", 350);
    client.command("RNTO /in/readable", 500);
    // It does not get the part of a closed file either.
    server.write("in/mine", "1");
    client.command("RNFR /in/mine", 350);
    client.command("RNTO /in/.fixed.ropewalk-part", 500);
    assert!(!names(client.list("NLST /in")).iter().any(|name| name.contains(".key")));
}

/// The length of a part file says how much has arrived.
#[test]
fn truncation_does_not_extend_part_file() {
    let server = Fixture::new();
    server.write(".f.ropewalk-part", "data");
    let mut client = server.login();
    client.command("SITE TRNC 5 /.f.ropewalk-part", 500);
    client.command("SITE TRNC 3 /.f.ropewalk-part", 250);
}
