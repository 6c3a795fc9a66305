//! Resuming interrupted uploads in MODE E.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ropewalk_protocol::path::VirtualPath;
use ropewalk_storage::checksum::{Algorithm, block_sum};
use ropewalk_storage::testing::{Deed, Hooked};
use ropewalk_storage::{
    JournalKey, Journaling, PartFile, PosixOptions, PosixStore, Store, Upload as _, UploadOptions,
};

use crate::blocks::{EOD, EOF, block, mode_e};
use crate::client::{Client, connect};
use crate::fixture::Fixture;

/// Uploads the second half of 8 bytes, and aborts. Returns the ranges of the markers.
fn broken_upload(client: &mut Client) -> String {
    mode_e(client);
    let mut data = connect(client.pasv());
    client.command("ALLO 8", 200);
    client.send("STOR /f");
    data.write_all(&block(0, 4, b"efgh")).unwrap();
    drop(data);
    client.expect(150);
    client.expect(112);
    client.expect(112);
    let marker = client.expect(111);
    client.expect(426);
    marker.strip_prefix("111 Range Marker ").unwrap().to_owned()
}

fn first_half(client: &mut Client, command: &str) -> crate::client::Reply {
    let mut data = connect(client.pasv());
    client.command("ALLO 8", 200);
    client.command("REST 4-8", 350);
    client.send(command);
    let _ = data.write_all(&block(0, 0, b"abcd"));
    let _ = data.write_all(&block(EOD | EOF, 1, b""));
    client.end()
}

#[test]
fn upload_of_missing_ranges_completes_file() {
    let server = Fixture::new();
    assert_eq!(broken_upload(&mut server.login()), "4-8");
    let mut client = server.login();
    mode_e(&mut client);
    assert!(client.command("SITE RANGES /f", 250).contains("| 4-8|"));
    assert_eq!(first_half(&mut client, "STOR /f").code, 226);
    assert_eq!(server.read("f"), b"abcdefgh");
    assert_eq!(std::fs::read_dir(server.root()).unwrap().count(), 1);
}

#[test]
fn resumed_upload_is_not_mixed_with_old_file() {
    let server = Fixture::new();
    server.write("f", "old contents");
    broken_upload(&mut server.login());
    assert_eq!(server.read("f"), b"old contents");
    let mut client = server.login();
    mode_e(&mut client);
    assert_eq!(first_half(&mut client, "STOR /f").code, 226);
    assert_eq!(server.read("f"), b"abcdefgh");
}

/// Looking at a part file locks it, and may write its journal.
#[test]
fn ranges_without_write_permission_are_not_reported() {
    let server = Fixture::with(|config, _| config.rules = Some("R/,RW/open".into()));
    std::fs::create_dir(server.root().join("open")).unwrap();
    let mut client = server.login();
    client.command("ALLO 6", 200);
    assert_eq!(client.put("STOR /open/f", b"abc").code, 426);
    assert_eq!(client.command("SIZE /open/f", 213), "213 3");
    assert!(client.command("SITE RANGES /open/f", 250).contains("| 0-3|"));
    let part = ".f.ropewalk-part";
    std::fs::rename(server.root().join("open").join(part), server.root().join(part)).unwrap();
    client.command("SIZE /f", 550);
    assert!(!client.command("SITE RANGES /f", 250).contains("0-3"));
}

/// The part file is of another version of the source.
#[test]
fn resume_with_other_version_is_refused() {
    let server = Fixture::new();
    let mut client = server.login();
    client.command("SITE STORATTR modify=20200101000000;", 250);
    broken_upload(&mut client);
    let mut client = server.login();
    mode_e(&mut client);
    client.command("SITE STORATTR modify=20210101000000;", 250);
    let reply = first_half(&mut client, "STOR /f");
    assert!(reply.code == 554 && reply.text.contains("modified"), "{reply:?}");
    assert!(!server.exists("f"));
    client.command("SITE STORATTR modify=20200101000000;", 250);
    assert_eq!(first_half(&mut client, "STOR /f").code, 226);
    assert_eq!(server.read("f"), b"abcdefgh");
}

/// The client resumes from the marker, whatever happens to the server.
#[test]
fn ranges_in_restart_marker_survive_crash() {
    for fsync in [ropewalk_server::Fsync::None, ropewalk_server::Fsync::EachMarker] {
        for command in ["ALLO 8", "NOOP"] {
            let server = Fixture::with(|config, _| config.files.fsync = fsync);
            let mut client = server.login();
            mode_e(&mut client);
            client.command("TREV PERF 0", 200);
            client.command("TREV RESTART 1", 200);
            let mut data = connect(client.pasv());
            client.command(command, 200);
            client.send("STOR /f");
            data.write_all(&block(0, 4, b"efgh")).unwrap();
            client.expect(150);
            assert_eq!(client.expect(111), "111 Range Marker 4-8");
            // The files that a server leaves that is killed now.
            let left = tempfile::tempdir().unwrap();
            for name in [".f.ropewalk-part", ".f.ropewalk-journal"] {
                std::fs::copy(server.root().join(name), left.path().join(name)).unwrap();
            }
            let store: Arc<dyn Store> =
                Arc::new(PosixStore::new(left.path(), PosixOptions::default()).unwrap());
            let place = VirtualPath::parse(b"/f").unwrap();
            let found = PartFile::interrupted(&*store, &place, &mut |_| Ok(())).unwrap().unwrap();
            assert_eq!(found.present.to_string(), "4-8");
            data.write_all(&block(0, 0, b"abcd")).unwrap();
            data.write_all(&block(EOD | EOF, 1, b"")).unwrap();
            while client.reply().code < 200 {}
            assert_eq!(server.read("f"), b"abcdefgh");
            assert_eq!(std::fs::read_dir(server.root()).unwrap().count(), 1);
        }
    }
}

/// The last marker comes with the reply.
#[test]
fn small_complete_upload_writes_no_journal() {
    for fsync in [ropewalk_server::Fsync::None, ropewalk_server::Fsync::EachMarker] {
        let root = tempfile::tempdir().unwrap();
        let store = PosixStore::new(root.path(), PosixOptions::default()).unwrap();
        let asked = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&asked);
        let guard = move |path: &VirtualPath, _| {
            count.fetch_add(u32::from(path.as_bytes().ends_with(b"-journal")), Ordering::Relaxed);
            true
        };
        let store = store.guarded(Arc::new(guard)).unwrap();
        let (hooked, deeds) = Hooked::recorded(store);
        let server = Fixture::with_store(Arc::new(hooked), |config, _| config.files.fsync = fsync);
        let mut client = server.login();
        mode_e(&mut client);
        let mut data = connect(client.pasv());
        client.send("STOR /f");
        data.write_all(&block(0, 0, b"abcd")).unwrap();
        data.write_all(&block(EOD | EOF, 1, b"")).unwrap();
        client.expect(150);
        client.expect(112);
        client.expect(112);
        assert_eq!(client.expect(111), "111 Range Marker 0-4");
        assert_eq!(client.expect(226), "226 Transfer Complete.");
        assert_eq!(std::fs::read(root.path().join("f")).unwrap(), b"abcd");
        // To remove the journal of an older part file.
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        let synced = deeds.lock().iter().any(|(deed, _)| *deed == Deed::Sync);
        assert_eq!(synced, fsync == ropewalk_server::Fsync::EachMarker);
    }
}

/// Another file of the same name, whose beginning may be the same.
#[test]
fn resume_with_other_size_is_refused() {
    let server = Fixture::new();
    broken_upload(&mut server.login());
    let mut client = server.login();
    mode_e(&mut client);
    for (size, code) in [(5, 554), (9, 554), (8, 226)] {
        let mut data = connect(client.pasv());
        client.command(&format!("ALLO {size}"), 200);
        client.command("REST 4-6", 350);
        client.send("STOR /f");
        let _ = data.write_all(&block(0, 0, b"abcd"));
        let _ = data.write_all(&block(EOD | EOF, 1, b""));
        let reply = client.end();
        assert_eq!(reply.code, code, "{reply:?}");
        assert!(code == 226 || reply.text.contains(&format!("the size was 8 and is {size}")), "{reply:?}");
    }
    // The end of the older upload is neither named nor sent.
    assert_eq!(server.read("f"), b"abcdef");
}

/// Ranges of an older upload only count if the client names them.
#[test]
fn resumed_upload_clears_ranges_that_client_omits() {
    use ropewalk_storage::checksum::Hasher;
    let server = Fixture::new();
    let mut client = server.login();
    mode_e(&mut client);
    let mut data = connect(client.pasv());
    client.send("STOR /f");
    data.write_all(&block(0, 0, b"oldoldoldold")).unwrap();
    drop(data);
    assert_eq!(client.end().code, 426);
    let expected = b"old\0\0\0new\0\0w";
    let mut sum = Hasher::new(Algorithm::Md5);
    sum.update(expected);
    client.command(&format!("SCKS MD5 {}", sum.finish()), 200);
    client.command("REST 0-3", 350);
    let mut data = connect(client.pasv());
    client.send("STOR /f");
    data.write_all(&block(0, 6, b"new")).unwrap();
    data.write_all(&block(0, 11, b"w")).unwrap();
    data.write_all(&block(EOD | EOF, 1, b"")).unwrap();
    let reply = client.end();
    assert_eq!(reply.code, 226, "{reply:?}");
    assert_eq!(server.read("f"), expected);
}

/// Ranges of two versions would make a file that never existed.
#[test]
fn shared_part_file_with_other_version_is_refused() {
    let server = Fixture::new();
    let (mut one, mut two) = (server.login(), server.login());
    let esto = |client: &mut Client, modified: &str, at: u64| {
        client.command(&format!("SITE STORATTR modify={modified};"), 250);
        client.try_put(&format!("ESTO A {at} /.f.ropewalk-part"), b"abcd").code
    };
    assert_eq!(esto(&mut one, "20200101000000", 0), 226);
    // No session has it open.
    assert_eq!(esto(&mut two, "20250101000000", 4), 554);
    let mut data = one.data();
    one.command("ESTO A 4 /.f.ropewalk-part", 150);
    data.write_all(b"ef").unwrap();
    assert_eq!(esto(&mut two, "20250101000000", 8), 554);
    assert_eq!(esto(&mut two, "20200101000000", 8), 226);
    drop(data);
    one.expect(226);
    assert!(two.command("SITE RANGES /.f.ropewalk-part", 250).contains("| 0-6,8-12|"));
    two.command("DELE /.f.ropewalk-part", 250);
    assert_eq!(esto(&mut two, "20250101000000", 0), 226);
}

#[test]
fn restart_marker_beyond_part_file_is_refused() {
    let server = Fixture::new();
    let mut client = server.login();
    mode_e(&mut client);
    assert_eq!(first_half(&mut client, "STOR /f").code, 554);
    assert!(!server.exists("f"));
}

#[test]
fn upload_to_part_file_name_is_renamed_by_client() {
    let server = Fixture::new();
    let mut client = server.login();
    mode_e(&mut client);
    let part = "/.f.ropewalk-part";
    let mut data = connect(client.pasv());
    client.send(&format!("STOR {part}"));
    data.write_all(&block(0, 4, b"efgh")).unwrap();
    drop(data);
    while client.reply().code < 200 {}
    assert!(client.command(&format!("SITE RANGES {part}"), 250).contains("| 4-8|"));
    assert_eq!(first_half(&mut client, &format!("STOR {part}")).code, 226);
    client.command(&format!("RNFR {part}"), 350);
    client.command("RNTO /f", 250);
    assert_eq!(server.read("f"), b"abcdefgh");
    assert_eq!(std::fs::read_dir(server.root()).unwrap().count(), 1);
}

/// After a restart of the machine all of it is read again, which can take long.
#[test]
fn verification_of_part_file_can_be_aborted() {
    const HUGE: u64 = 1 << 42;
    let root = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(PosixStore::new(root.path(), PosixOptions::default()).unwrap());
    let place = VirtualPath::parse(b"/.f.ropewalk-part").unwrap();
    let options = UploadOptions { journal: Journaling::Above(0), ..UploadOptions::default() };
    let part = PartFile::begin(&store, &place, JournalKey::default(), options).unwrap();
    part.writer().set_len(HUGE).unwrap();
    part.record(0..1 << 30, Some(0)).unwrap();
    part.record(1 << 30..HUGE, Some(0)).unwrap();
    drop(part);
    // Another boot, and the checksum of the header.
    let path = root.path().join(".f.ropewalk-journal");
    let mut journal = std::fs::read(&path).unwrap();
    let end = u32::from_le_bytes(journal[8..12].try_into().unwrap()) as usize - 4;
    journal[16..32].fill(7);
    let sum = block_sum(Algorithm::Crc32c, &journal[..end]);
    journal[end..end + 4].copy_from_slice(&sum.to_le_bytes());
    std::fs::write(&path, &journal).unwrap();
    let (hooked, deeds) = Hooked::recorded(store);
    let server = Fixture::with_store(Arc::new(hooked), |_, _| ());
    let mut client = server.login();
    let _data = client.data();
    client.send("ESTO A 0 /.f.ropewalk-part");
    crate::uploads::wait_for(|| deeds.lock().contains(&(Deed::OpenRead, place.clone())));
    client.send("ABOR");
    client.expect(426);
    client.expect(226);
}

/// An ESTO without data makes no file longer.
#[test]
fn esto_without_data_keeps_length() {
    let server = Fixture::new();
    let mut client = server.login();
    client.put("STOR /f", b"abc");
    assert_eq!(client.put("ESTO A 3000000 /f", b"").code, 226);
    assert_eq!(std::fs::read(server.root().join("f")).unwrap(), b"abc");
    assert_eq!(client.put("ESTO A 5 /f", b"d").code, 226);
    assert_eq!(std::fs::read(server.root().join("f")).unwrap(), b"abc\0\0d");
}
