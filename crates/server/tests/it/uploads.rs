//! STOR and related commands in MODE S: no file looks complete before it is.

use std::io::Write as _;
use std::sync::Arc;

use ropewalk_protocol::path::VirtualPath;
use ropewalk_storage::testing::{Deed, Hooked};
use ropewalk_storage::{MemoryStore, Store as _, UploadSpec};

use crate::blocks::block;
use crate::fixture::Fixture;

const PART: &str = ".f.ropewalk-part";

#[test]
fn upload_is_renamed_when_complete() {
    let server = Fixture::new();
    let mut client = server.login();
    let mut data = client.data();
    client.command("STOR /f", 150);
    data.write_all(b"abc").unwrap();
    assert!(!server.exists("f"));
    assert!(server.exists(PART));
    let mut other = server.login();
    other.command("SIZE /f", 550);
    drop(data);
    client.expect(226);
    assert_eq!(server.read("f"), b"abc");
    assert!(!server.exists(PART));
}

#[test]
fn replaced_file_keeps_its_permissions() {
    use std::os::unix::fs::PermissionsExt as _;
    let server = Fixture::new();
    server.write("f", "old and long");
    std::fs::set_permissions(server.root().join("f"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut client = server.login();
    assert_eq!(client.put("STOR /f", b"new").code, 226);
    assert_eq!(server.read("f"), b"new");
    assert_eq!(std::fs::metadata(server.root().join("f")).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn replacement_of_private_file_is_private_from_start() {
    use std::os::unix::fs::PermissionsExt as _;
    let server = Fixture::new();
    let mode = |name: &str| std::fs::metadata(server.root().join(name)).unwrap().permissions().mode() & 0o777;
    let mut client = server.login();
    for (old, during) in [(0o600, 0o600), (0o400, 0o600), (0o640, 0o640), (0o666, 0o644)] {
        server.write("f", "old");
        std::fs::set_permissions(server.root().join("f"), std::fs::Permissions::from_mode(old)).unwrap();
        let mut data = client.data();
        client.send("STOR /f");
        let reply = client.reply();
        // A user other than root cannot write a read-only file.
        if reply.code == 150 {
            data.write_all(b"new").unwrap();
            assert_eq!(mode(PART), during);
            drop(data);
            client.expect(226);
            assert_eq!(mode("f"), old);
        }
        std::fs::remove_file(server.root().join("f")).unwrap();
    }
}

#[test]
fn interrupted_upload_is_resumed() {
    let server = Fixture::new();
    let mut client = server.login();
    client.command("ALLO 6", 200);
    let mut data = client.data();
    client.command("STOR /f", 150);
    data.write_all(b"abc").unwrap();
    drop(data);
    let text = client.expect(426);
    assert!(text.contains("3 of the 6 bytes"), "{text}");
    assert!(!server.exists("f"));
    assert_eq!(client.command("SIZE /f", 213), "213 3");
    assert!(client.command("SITE RANGES /f", 250).contains("| 0-3|"));
    client.command("REST 3", 350);
    assert_eq!(client.put("STOR /f", b"def").code, 226);
    assert_eq!(server.read("f"), b"abcdef");
    assert!(!server.exists(PART));

    let mut data = client.data();
    client.command("ALLO 6", 200);
    client.command("STOR /g", 150);
    data.write_all(b"uv").unwrap();
    drop(data);
    client.expect(426);
    assert_eq!(client.put("APPE /g", b"wxyz").code, 226);
    assert_eq!(server.read("g"), b"uvwxyz");
}

#[test]
fn resumed_upload_that_ends_early_can_be_resumed_again() {
    let server = Fixture::new();
    let mut client = server.login();
    // The name of a part file, as in third-party transfers, or the name of the file.
    for path in ["/.f.ropewalk-part", "/g"] {
        client.command("ALLO 9", 200);
        assert_eq!(client.put(&format!("STOR {path}"), b"abc").code, 426);
        client.command("ALLO 9", 200);
        client.command("REST 3", 350);
        let reply = client.put(&format!("STOR {path}"), b"def");
        assert_eq!(reply.code, 426, "{reply:?}");
        assert!(reply.text.contains("6 of the 9 bytes"), "{reply:?}");
        assert!(client.command(&format!("SITE RANGES {path}"), 250).contains("| 0-6|"));
        assert!(!server.exists("g"));
        // An announced size can be that of the rest.
        client.command("ALLO 3", 200);
        client.command("REST 6", 350);
        assert_eq!(client.put(&format!("STOR {path}"), b"ghi").code, 226);
    }
    assert_eq!(server.read(PART), b"abcdefghi");
    assert_eq!(server.read("g"), b"abcdefghi");
}

#[test]
fn upload_ends_when_client_dies() {
    let server = Fixture::new();
    let mut client = server.login();
    let mut data = client.data();
    client.command("STOR /f", 150);
    data.write_all(b"abc").unwrap();
    drop(client);
    // The server breaks the data connection off.
    let mut rest = [0; 1];
    let _ = std::io::Read::read(&mut data, &mut rest);
    wait_for(|| server.handle.sessions() == 0);
    assert!(!server.exists("f"));
}

/// The death of the client ends the data, whatever commands it has sent before; only a client that
/// has sent QUIT has sent everything.
#[test]
fn upload_of_dead_client_with_queued_commands_leaves_part_file() {
    for (ahead, size, whole) in [
        ("", None, false),
        ("\r\nNOOP", None, false),
        ("\r\nNOOP\r\nPASV", None, false),
        ("\r\nNOOP", Some(6), false),
        ("\r\nNOOP", Some(3), true),
        ("\r\nNOOP\r\nQUIT", None, true),
        ("\r\nquit", None, true),
    ] {
        let server = Fixture::new();
        let mut client = server.login();
        if let Some(size) = size {
            client.command(&format!("ALLO {size}"), 200);
        }
        let mut data = client.data();
        client.command(&format!("STOR /f{ahead}"), 150);
        data.write_all(b"abc").unwrap();
        wait_for(|| std::fs::metadata(server.root().join(PART)).is_ok_and(|part| part.len() == 3));
        client.shut();
        drop(data);
        while client.try_reply().is_some() {}
        wait_for(|| server.handle.sessions() == 0);
        assert_eq!((server.exists("f"), server.exists(PART)), (whole, !whole), "{ahead:?} {size:?}");
    }
}

#[test]
fn upload_without_rest_starts_from_beginning() {
    let server = Fixture::new();
    let mut client = server.login();
    client.command("ALLO 6", 200);
    assert_eq!(client.put("STOR /f", b"abc").code, 426);
    assert_eq!(client.put("STOR /f", b"x").code, 226);
    assert_eq!(server.read("f"), b"x");
}

#[test]
fn second_upload_to_same_file_is_refused() {
    let server = Fixture::new();
    let (mut one, mut two) = (server.login(), server.login());
    let mut data = one.data();
    one.command("STOR /f", 150);
    data.write_all(b"abc").unwrap();
    let _other = two.data();
    let text = two.command("STOR /f", 451);
    assert!(text.contains("TOO_BUSY"), "{text}");
    drop(data);
    one.expect(226);
}

/// In MODE E, with a data connection that does not exist yet.
fn abandoned(server: &Fixture, last: &str) {
    let mut gone = server.login();
    crate::blocks::mode_e(&mut gone);
    gone.pasv();
    gone.send(&format!("STOR /f{last}"));
    wait_for(|| server.exists(PART));
}

#[test]
fn repeated_upload_after_client_died_starts_at_once() {
    let server = Fixture::new();
    for _ in 0..10 {
        let mut again = server.login();
        let mut data = again.data();
        abandoned(&server, "");
        again.command("STOR /f", 150);
        data.write_all(b"abc").unwrap();
        drop(data);
        again.expect(226);
    }
    assert_eq!(server.read("f"), b"abc");
}

/// The server would wait for the data for a while.
#[test]
fn upload_after_quit_makes_way_for_another() {
    let server = Fixture::new();
    let mut again = server.login();
    let mut data = again.data();
    abandoned(&server, "\r\nQUIT");
    again.command("STOR /f", 150);
    data.write_all(b"abc").unwrap();
    drop(data);
    again.expect(226);
    assert_eq!(server.read("f"), b"abc");
}

/// A client that has only closed its side continues, as long as data comes.
#[test]
fn upload_that_receives_data_keeps_its_file() {
    let server = Fixture::new();
    let (mut one, mut two) = (server.login(), server.login());
    let mut data = one.data();
    one.send("STOR /f\r\nQUIT");
    one.shut();
    one.expect(150);
    data.write_all(b"abc").unwrap();
    wait_for(|| std::fs::metadata(server.root().join(PART)).is_ok_and(|part| part.len() == 3));
    let _other = two.data();
    two.send("STOR /f");
    let refused = std::thread::scope(|scope| {
        let refused = scope.spawn(|| two.reply().code);
        while !refused.is_finished() {
            data.write_all(b"x").unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        refused.join().unwrap()
    });
    assert_eq!(refused, 451);
    drop(data);
    one.expect(226);
    assert!(server.read("f").starts_with(b"abcx"));
}

/// A part file is renamed by a client that has seen that it is complete, not while it grows.
#[test]
fn part_file_being_written_is_not_renamed() {
    use std::os::unix::fs::PermissionsExt as _;
    let server = Fixture::new();
    let (mut one, mut two) = (server.login(), server.login());
    for command in ["STOR", "ESTO A 0"] {
        let mut data = one.data();
        one.command(&format!("{command} /{PART}"), 150);
        data.write_all(b"abc").unwrap();
        wait_for(|| std::fs::metadata(server.root().join(PART)).is_ok_and(|part| part.len() == 3));
        two.command(&format!("RNFR /{PART}"), 350);
        let text = two.command("RNTO /f", 451);
        assert!(text.contains("TOO_BUSY"), "{text}");
        assert!(!server.exists("f") && server.exists(PART));
        data.write_all(b"def").unwrap();
        drop(data);
        one.expect(226);
        two.command(&format!("RNFR /{PART}"), 350);
        two.command("RNTO /f", 250);
        assert_eq!(server.read("f"), b"abcdef");
        let mode = std::fs::metadata(server.root().join("f")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o644);
        two.command("DELE /f", 250);
    }
}

/// Clients do not see the part file, so that they could not empty the directory.
#[test]
fn directory_with_part_files_only_is_removed() {
    let server = Fixture::new();
    let (mut one, mut two) = (server.login(), server.login());
    one.command("MKD /d", 257);
    let mut data = one.data();
    one.command("ALLO 9", 200);
    one.command("STOR /d/f", 150);
    data.write_all(b"abc").unwrap();
    server.write("d/.a.ropewalk-part", "left");
    // An upload writes there, so the removal is retried.
    assert!(two.command("RMD /d", 451).contains("TOO_BUSY"));
    assert!(server.exists("d/.f.ropewalk-part") && server.exists("d/.a.ropewalk-part"));
    drop(data);
    one.expect(426);
    server.write("d/.f.ropewalk-journal", "left");
    server.write("d/there", "");
    assert!(two.command("RMD /d", 451).contains("not empty"));
    assert!(server.exists("d/.f.ropewalk-part") && server.exists("d/.f.ropewalk-journal"));
    two.command("DELE /d/there", 250);
    // Only files with such names are part files.
    std::fs::create_dir(server.root().join("d/.x.ropewalk-part")).unwrap();
    two.command("RMD /d", 451);
    two.command("RMD /d/.x.ropewalk-part", 250);
    two.command("RMD /d", 250);
    assert!(!server.exists("d"));
}

#[test]
fn upload_into_full_store_fails() {
    // A large upload can be resumed. A small rest would only take space.
    for (size, left) in [(6 << 20, true), (1 << 20, false)] {
        let store = Arc::new(MemoryStore::new(size));
        let server = Fixture::with_store(store.clone(), |_, _| ());
        let mut client = server.login();
        client.command("ALLO 20000000", 200);
        let _data = client.data();
        assert!(client.command("STOR /f", 552).contains("NO_SPACE_LEFT"));
        let mut data = client.data();
        client.send("STOR /f");
        client.expect(150);
        // The server stops reading at some point.
        let _ = data.write_all(&vec![7; 12 << 20]);
        drop(data);
        assert!(client.expect(552).contains("NO_SPACE_LEFT"));
        client.command("SIZE /f", if left { 213 } else { 550 });
        let kept = store.interrupted_upload(&VirtualPath::parse(b"/f").unwrap(), &mut |_| Ok(()));
        assert_eq!(kept.unwrap().is_some(), left);
        assert_eq!(client.put("STOR /f", b"fits").code, 226);
    }
}

/// A missing rest would be noticed.
#[test]
fn client_that_announced_size_may_close_early() {
    let server = Fixture::new();
    for (before, code) in [("ALLO 3", 226), ("SCKS CRC32 352441c2", 226), ("NOOP", 426)] {
        let mut client = server.login();
        let mut data = client.data();
        client.send(before);
        assert!(client.reply().code < 300);
        client.command("STOR /f", 150);
        client.shut();
        let _ = data.write_all(b"abc");
        drop(data);
        assert_eq!(client.reply().code, code, "{before}");
        assert_eq!(server.exists("f"), code == 226, "{before}");
        let _ = std::fs::remove_file(server.root().join("f"));
        let _ = std::fs::remove_file(server.root().join(PART));
    }
}

/// The upload relies on what it has written, checksums included.
#[test]
fn part_file_being_written_is_not_truncated() {
    let server = Fixture::new();
    let (mut one, mut other) = (server.login(), server.login());
    let mut data = one.data();
    one.command("STOR /f", 150);
    data.write_all(b"abc").unwrap();
    // Truncated to nothing: maybe nothing has arrived yet, and the file does not get longer.
    other.command(&format!("SITE TRNC 0 /{PART}"), 451);
    drop(data);
    one.expect(226);
    assert_eq!(server.read("f"), b"abc");
    other.command("SITE TRNC 1 /f", 250);
    assert_eq!(server.read("f"), b"a");
}

#[test]
fn upload_without_part_files_writes_in_place() {
    let server = Fixture::with(|config, _| config.files.part_files = false);
    let mut client = server.login();
    let mut data = client.data();
    client.command("STOR /f", 150);
    assert!(server.exists("f"));
    data.write_all(b"abc").unwrap();
    drop(data);
    client.expect(226);
    assert_eq!(server.read("f"), b"abc");
}

#[test]
fn upload_with_fsync_is_synced() {
    let server = Fixture::with(|config, _| config.files.fsync = ropewalk_server::Fsync::AtEnd);
    let mut client = server.login();
    assert_eq!(client.put("STOR /f", b"abc").code, 226);
    assert_eq!(server.read("f"), b"abc");
}

/// A power loss must not remove the name of a file whose upload was confirmed.
#[test]
fn rename_of_part_file_with_fsync_is_synced() {
    let (store, deeds) = Hooked::recorded(Arc::new(MemoryStore::new(1 << 20)));
    let server = Fixture::with_store(Arc::new(store), |config, _| {
        config.files.fsync = ropewalk_server::Fsync::AtEnd;
    });
    let mut client = server.login();
    client.command("MKD /d", 257);
    assert_eq!(client.put("STOR /.f.ropewalk-part", b"abc").code, 226);
    client.command("RNFR /.f.ropewalk-part", 350);
    client.command("RNTO /d/f", 250);
    let path = |text: &str| VirtualPath::parse(text.as_bytes()).unwrap();
    let deeds = deeds.lock();
    let renamed = deeds.iter().position(|deed| *deed == (Deed::Rename, path("/d/f"))).unwrap();
    assert!(deeds[renamed..].contains(&(Deed::SyncDirectory, path("/d"))), "{deeds:?}");
}

#[test]
fn upload_through_link_writes_target() {
    let server = Fixture::new();
    server.write("d/real", "old");
    std::os::unix::fs::symlink("d/real", server.root().join("f")).unwrap();
    let mut client = server.login();
    assert_eq!(client.put("STOR /f", b"new").code, 226);
    assert_eq!(server.read("d/real"), b"new");
    assert!(server.root().join("f").symlink_metadata().unwrap().is_symlink());
}

/// Waits for something that another thread does soon.
pub(crate) fn wait_for(done: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !done() {
        assert!(std::time::Instant::now() < deadline, "it did not happen");
        std::thread::yield_now();
    }
}

/// A client removes the part file of an upload and uploads the same name: an incomplete file must
/// not get the name.
#[test]
fn upload_whose_part_file_was_replaced_fails() {
    let server = Fixture::new();
    let (mut one, mut two) = (server.login(), server.login());
    let mut first = one.data();
    one.command("STOR /f", 150);
    first.write_all(b"first").unwrap();
    two.command("DELE /.f.ropewalk-part", 250);
    let mut second = two.data();
    two.command("STOR /f", 150);
    second.write_all(b"sec").unwrap();
    drop(first);
    let reply = one.reply();
    assert!(reply.code == 451 && reply.text.contains("replaced"), "{}", reply.text);
    assert!(!server.exists("f"));
    second.write_all(b"ond").unwrap();
    drop(second);
    two.expect(226);
    assert_eq!(server.read("f"), b"second");
}

#[test]
fn offset_beyond_limit_is_refused() {
    let server = Fixture::new();
    let mut client = server.login();
    for offset in [1u64 << 63, u64::MAX] {
        let _data = client.data();
        client.command(&format!("ESTO A {offset} /f"), 554);
        assert!(!server.exists("f"));
    }
}

#[test]
fn ranges_of_several_sessions_are_in_one_journal() {
    let server = Fixture::new();
    let (mut first, mut second) = (server.login(), server.login());
    first.command("ALLO 9", 200);
    let mut interrupted = first.data();
    first.command("STOR /.f.ropewalk-part", 150);
    interrupted.write_all(b"abc").unwrap();
    drop(interrupted);
    first.expect(426);
    let (mut one, mut other) = (first.data(), second.data());
    first.command("ESTO A 3 /.f.ropewalk-part", 150);
    second.command("ESTO A 6 /.f.ropewalk-part", 150);
    other.write_all(b"ghi").unwrap();
    drop(other);
    second.expect(226);
    one.write_all(b"de").unwrap();
    drop(one);
    first.expect(226);
    assert!(second.command("SITE RANGES /.f.ropewalk-part", 250).contains("| 0-5,6-9|"));
    assert_eq!(second.put("ESTO A 5 /.f.ropewalk-part", b"f").code, 226);
    first.command("RNFR /.f.ropewalk-part", 350);
    first.command("RNTO /f", 250);
    assert_eq!(server.read("f"), b"abcdefghi");
    assert!(!server.exists(".f.ropewalk-journal"));
}

#[test]
fn space_of_interrupted_upload_counts_as_free() {
    let store = Arc::new(MemoryStore::new(1 << 20));
    let upload = store.begin_upload(&VirtualPath::parse(b"/f").unwrap(), UploadSpec::default()).unwrap();
    upload.writer().write_at(&vec![0; 700_000], 0).unwrap();
    upload.record(0..700_000, None).unwrap();
    drop(upload);
    let server = Fixture::with_store(store, |_, _| ());
    let mut client = server.login();
    client.command("ALLO 800000", 200);
    assert_eq!(client.put("STOR /f", &vec![1; 800_000]).code, 226);
    assert_eq!(client.get("RETR /f"), vec![1; 800_000]);
}

/// All data has arrived, and then the upload was interrupted: the rest is empty.
#[test]
fn resume_with_empty_rest_keeps_data() {
    for command in ["APPE /f", "ESTO A 3 /f"] {
        let server = Fixture::new();
        let mut client = server.login();
        let mut data = client.data();
        client.command("STOR /f", 150);
        data.write_all(b"abc").unwrap();
        while !server.exists(PART) || std::fs::metadata(server.root().join(PART)).unwrap().len() < 3 {
            std::thread::yield_now();
        }
        client.send("ABOR");
        client.expect(426);
        client.expect(226);
        drop(data);
        assert_eq!(client.command("SIZE /f", 213), "213 3");
        assert_eq!(client.put(command, b"").code, 226);
        assert_eq!(server.read("f"), b"abc", "{command}");
    }
}

#[test]
fn rest_0_starts_from_beginning() {
    let server = Fixture::new();
    server.write("f", "old and long");
    let mut client = server.login();
    client.command("REST 0", 350);
    assert_eq!(client.put("STOR /f", b"new").code, 226);
    assert_eq!(server.read("f"), b"new");
    client.command("REST 0", 350);
    let mut data = client.data();
    client.command("STOR /g", 150);
    data.write_all(b"x").unwrap();
    assert!(!server.exists("g"), "it has its name before it is whole");
    drop(data);
    client.expect(226);
}

/// SIZE reports the old file, whose beginning differs from the new one. This does not last: a log
/// is appended to although a replacement of it was interrupted once.
#[test]
fn port_after_transfer_is_free() {
    let server = Fixture::new();
    server.write("f", "x");
    let mut client = server.login();
    let address = client.pasv();
    client.send("RETR /f");
    let mut data = crate::client::connect(address);
    client.expect(150);
    std::io::Read::read_to_end(&mut data, &mut Vec::new()).unwrap();
    client.expect(226);
    // The next command is only read when the last one has ended.
    client.command("NOOP", 200);
    assert!(std::net::TcpStream::connect(address).is_err(), "it still listens");
}

/// Not "in use": that would be retried forever.
#[test]
fn link_in_place_of_part_file_is_reported() {
    let server = Fixture::new();
    let mut client = server.login();
    server.write("elsewhere", "gold");
    for target in ["nowhere", "elsewhere"] {
        client.command(&format!("SITE SYMLINK {target} {PART}"), 250);
        let _data = client.data();
        for before in ["NOOP", "REST 2"] {
            client.send(before);
            client.reply();
            let text = client.command("STOR f", 500);
            assert!(text.contains("GridFTP-Reason: .f.ropewalk-part is a symbolic link"), "{text}");
        }
        client.command(&format!("DELE {PART}"), 250);
    }
    assert!(!server.exists("nowhere"));
    assert_eq!(server.read("elsewhere"), b"gold");
    assert_eq!(client.put("STOR f", b"abc").code, 226);
}

/// Of two uploads to one part file, the first is complete when the second replaces it and is
/// interrupted.
#[test]
fn part_file_of_another_upload_is_not_renamed() {
    for mode in ["S", "E"] {
        let server = Fixture::new();
        let (mut first, mut second) = (server.login(), server.login());
        assert_eq!(first.put(&format!("STOR /{PART}"), b"whole").code, 226);
        if mode == "S" {
            second.command("ALLO 100", 200);
            assert_eq!(second.put(&format!("STOR /{PART}"), b"wh").code, 426);
        } else {
            second.command("MODE E", 200);
            let mut data = second.data();
            second.command(&format!("STOR /{PART}"), 150);
            data.write_all(&block(0, 0, b"wh")).unwrap();
            drop(data);
            assert!(second.end().code >= 400);
        }
        first.command(&format!("RNFR /{PART}"), 350);
        let refused = first.command("RNTO /f", 550);
        assert!(refused.contains("another one by now"), "{refused}");
        assert!(!server.exists("f"));
        // The owner may rename the file, however short it is; so may a client that restarts the
        // upload and sends all of it.
        assert_eq!(first.put(&format!("STOR /{PART}"), b"all").code, 226);
        first.command("SITE CHMOD 640 /.f.ropewalk-part", 250);
        first.command(&format!("RNFR /{PART}"), 350);
        first.command("RNTO /f", 250);
        assert_eq!(server.read("f"), b"all");
    }
    // Changes that the client itself makes afterwards are its own.
    let server = Fixture::new();
    for change in ["APPE", "SITE TRNC 2"] {
        let mut client = server.login();
        assert_eq!(client.put(&format!("STOR /{PART}"), b"abc").code, 226);
        if change == "APPE" {
            assert_eq!(client.put(&format!("APPE /{PART}"), b"def").code, 226);
        } else {
            client.command(&format!("{change} /{PART}"), 250);
        }
        client.command(&format!("RNFR /{PART}"), 350);
        client.command("RNTO /f", 250);
    }
}
