//! Uploads that a client begins and ends by SITE UPLOAD.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::sync::Arc;

use ropewalk_storage::MemoryStore;

use crate::blocks::{EOD, EOF, block, mode_e, sample};
use crate::client::{Client, connect};
use crate::fixture::Fixture;

const ENDED: &str = "503 The upload has ended";
const UNKNOWN: &str = "503 This session has no upload";

/// Servers with a store of each kind that resumes uploads.
fn servers() -> [Fixture; 2] {
    [Fixture::new(), Fixture::with_store(Arc::new(MemoryStore::new(1 << 24)), |_, _| ())]
}

#[track_caller]
fn sends(client: &mut Client, command: &str, data: &[u8]) {
    let reply = client.put(command, data);
    assert_eq!(reply.code, 226, "{reply:?}");
}

fn names(server: &Fixture) -> Vec<String> {
    let entries = std::fs::read_dir(server.root()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn committed_upload_gets_its_name_and_attributes() {
    let server = Fixture::new();
    let mut client = server.login();
    assert!(client.command("FEAT", 211).contains("Upload;"));
    let begin = "SITE UPLOAD BEGIN a size=6;modify=20010203040506;UNIX.mode=0604;checksum.crc32=4b8e39ef; f";
    assert_eq!(client.command(begin, 250), "250 Upload a has 0 bytes.");
    sends(&mut client, "ESTO U 0 a", b"abcdef");
    assert!(!server.exists("f"));
    client.command("SIZE f", 550);
    assert_eq!(client.command("SITE UPLOAD COMMIT a", 250), "250 Upload a is complete, 6 bytes.");
    assert_eq!(names(&server), ["f"]);
    assert_eq!(server.read("f"), b"abcdef");
    let metadata = server.root().join("f").metadata().unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.mtime()), (0o604, 981_173_106));
    assert!(client.command("SITE UPLOAD COMMIT a", 503).starts_with(UNKNOWN));
}

#[test]
fn replies_to_uploads_that_come_at_once_are_sent_together() {
    let server = Fixture::new();
    let mut client = server.login();
    let before = client.segments();
    let commands = |n| format!("SITE UPLOAD BEGIN {n} size=0; f{n}\r\nSITE UPLOAD COMMIT {n}\r\n");
    client.send_bytes((0..8).map(commands).collect::<String>().as_bytes());
    for _ in 0..16 {
        client.expect(250);
    }
    let segments = client.segments() - before;
    assert!(segments < 8, "16 replies came in {segments} segments");
}

#[test]
fn commands_of_files_that_come_at_once_need_no_reply() {
    for server in servers() {
        let mut client = server.login();
        mode_e(&mut client);
        client.command("OPTS RETR Checksum=CRC32C;", 200);
        let mut data = connect(client.pasv());
        for name in ["f", "g"] {
            client.send_bytes(
                format!(
                    "SITE UPLOAD BEGIN {name} size=5; {name}\r\nESTO U 0 {name}\r\n\
                     SITE UPLOAD COMMIT {name} checksum.crc32c=9a71bb4c;\r\n"
                )
                .as_bytes(),
            );
            data.write_all(&block(0, 3, b"lo")).unwrap();
            data.write_all(&block(0, 0, b"hel")).unwrap();
            data.write_all(&block(EOD | EOF, 1, b"")).unwrap();
        }
        for name in ["f", "g"] {
            client.expect(250);
            let reply = client.end();
            assert_eq!(reply.code, 226, "{reply:?}");
            assert_eq!(client.expect(250), format!("250 Upload {name} is complete, 5 bytes."));
        }
    }
}

#[test]
fn sessions_that_begin_one_upload_share_it() {
    for server in servers() {
        let data = sample(300_000);
        let (mut one, mut two) = (server.login(), server.login());
        for client in [&mut one, &mut two] {
            client.command("SITE UPLOAD BEGIN a size=300000; /f", 250);
        }
        sends(&mut two, "ESTO U 100000 a", &data[100_000..]);
        assert_eq!(one.command("SITE UPLOAD RANGES a", 250), "250-Ranges of a| 100000-300000|250 End.");
        let text = one.command("SITE UPLOAD COMMIT a", 554);
        assert_eq!(text, "554 100000 of 300000 bytes are missing, the first at 0-100000.");
        sends(&mut one, "ESTO U 0 a", &data[..100_000]);
        two.command("SITE UPLOAD COMMIT a", 250);
        assert!(one.command("SITE UPLOAD COMMIT a", 503).starts_with(ENDED));
        assert!(one.try_put("ESTO U 0 a", b"late").text.starts_with(ENDED));
        assert_eq!(one.get("RETR f"), data);
    }
}

#[test]
fn upload_is_resumed_by_its_id_in_a_later_session() {
    for server in servers() {
        let data = sample(300_000);
        let mut client = server.login();
        client.command("SITE UPLOAD BEGIN a size=300000;resume=1; f", 250);
        sends(&mut client, "ESTO U 0 a", &data[..200_000]);
        client.command("QUIT", 221);
        drop(client);

        let mut client = server.login();
        let begin = "SITE UPLOAD BEGIN a size=300000;resume=1; f";
        // The server closes the first session on another thread: until then, the upload is busy or
        // has nothing.
        loop {
            client.send(begin);
            let reply = client.reply();
            match (reply.code, reply.text.as_str()) {
                (451, text) => assert!(text.contains("c=TOO_BUSY"), "{text}"),
                (250, "250 Upload a has 200000 bytes.") => break,
                (250, _) => drop(client.command("SITE UPLOAD SUSPEND a", 250)),
                (_, text) => panic!("{text}"),
            }
        }
        assert_eq!(client.command("SITE UPLOAD RANGES a", 250), "250-Ranges of a| 0-200000|250 End.");
        sends(&mut client, "ESTO U 200000 a", &data[200_000..]);
        client.command("SITE UPLOAD COMMIT a", 250);
        assert_eq!(client.get("RETR f"), data);
    }
}

#[test]
fn upload_of_another_source_starts_over() {
    for server in servers() {
        let mut client = server.login();
        for (begin, bytes) in [
            ("b size=6;resume=1; f", "0 bytes: it is of \"a\", not of \"b\"."),
            ("a size=7;resume=1; f", "0 bytes: the size was 6 and is 7."),
            ("a size=6; f", "0 bytes."),
            ("a size=6;resume=1; f", "3 bytes."),
        ] {
            client.command("SITE UPLOAD BEGIN a size=6; f", 250);
            sends(&mut client, "ESTO U 0 a", b"abc");
            client.command("SITE UPLOAD SUSPEND a", 250);
            assert!(client.try_put("ESTO U 3 a", b"def").text.starts_with(UNKNOWN));
            let text = client.command(&format!("SITE UPLOAD BEGIN {begin}"), 250);
            assert_eq!(text, format!("250 Upload {} has {bytes}", &begin[..1]));
            client.command(&format!("SITE UPLOAD DISCARD {}", &begin[..1]), 250);
        }
        assert_eq!(names(&server), Vec::<String>::new());
    }
}

#[test]
fn ranges_that_were_left_out_are_zeros_if_the_client_says_so() {
    for server in servers() {
        let mut client = server.login();
        client.command("SITE UPLOAD BEGIN a size=12;holes=1; f", 250);
        sends(&mut client, "ESTO U 3 a", b"abc");
        sends(&mut client, "ESTO U 8 a", b"x");
        client.command("SITE UPLOAD COMMIT a", 250);
        assert_eq!(client.get("RETR f"), b"\0\0\0abc\0\0x\0\0\0");
    }
}

#[test]
fn commit_of_more_than_the_size_is_refused() {
    for server in servers() {
        let mut client = server.login();
        client.command("SITE UPLOAD BEGIN a size=3; f", 250);
        sends(&mut client, "ESTO U 0 a", b"abcdef");
        let text = client.command("SITE UPLOAD COMMIT a", 554);
        assert_eq!(text, "554 The upload has 6 bytes, and the file 3.");
        // A session that begins its own upload once more still has it.
        assert_eq!(client.command("SITE UPLOAD BEGIN a size=3; f", 250), "250 Upload a has 6 bytes.");
        client.command("SITE UPLOAD COMMIT a size=6;", 250);
        assert_eq!(client.get("RETR f"), b"abcdef");
    }
}

#[test]
fn upload_with_wrong_checksum_is_discarded() {
    for server in servers() {
        let mut client = server.login();
        client.command("SITE UPLOAD BEGIN a size=6; f", 250);
        sends(&mut client, "ESTO U 0 a", b"abcdef");
        let text = client.command("SITE UPLOAD COMMIT a checksum.md5=00;", 550);
        assert!(text.contains("GridFTP-Computed-Checksum: e80b5017098950fc58aad83c8c14978e"), "{text}");
        assert!(client.command("SITE UPLOAD COMMIT a", 503).starts_with(ENDED));
        // The ID is free again.
        client.command("SITE UPLOAD SUSPEND a", 250);
        assert!(client.command("SITE UPLOAD SUSPEND a", 503).starts_with(UNKNOWN));
        assert_eq!(names(&server), Vec::<String>::new());
        client.command("SIZE f", 550);
    }
}

#[test]
fn idle_upload_yields_to_another_upload_of_its_file() {
    for server in servers() {
        let (mut one, mut two) = (server.login(), server.login());
        one.command("SITE UPLOAD BEGIN a size=6; f", 250);
        sends(&mut one, "ESTO U 0 a", b"abc");
        two.command("SITE UPLOAD BEGIN b size=3; f", 250);
        assert!(one.try_put("ESTO U 3 a", b"def").text.starts_with(ENDED));
        sends(&mut two, "ESTO U 0 b", b"two");
        sends(&mut one, "STOR f", b"whole");
        assert!(two.command("SITE UPLOAD COMMIT b", 503).starts_with(ENDED));
        assert_eq!(two.get("RETR f"), b"whole");
    }
}

#[test]
fn begin_is_refused_where_rules_permit_no_file() {
    let server = Fixture::with(|config, _| config.rules = Some("R/pub,RW/in".into()));
    server.write("pub/a", "data");
    server.write("in/a", "data");
    symlink("../pub/b", server.root().join("in/link")).unwrap();
    let mut client = server.login();
    for path in ["/pub/a", "/pub/b", "/secret", "/in/../pub/b"] {
        let text = client.command(&format!("SITE UPLOAD BEGIN a ; {path}"), 500);
        assert_eq!(text, "500 Path not allowed.", "{path}");
    }
    // The link is replaced and not followed.
    for path in ["/in/a", "/in/link"] {
        client.command(&format!("SITE UPLOAD BEGIN a ; {path}"), 250);
        sends(&mut client, "ESTO U 0 a", b"new");
        client.command("SITE UPLOAD COMMIT a", 250);
        assert_eq!(client.get(&format!("RETR {path}")), b"new");
    }
    assert!(!server.exists("pub/b"));
    assert_eq!(server.read("pub/a"), b"data");
}

/// As for other uploads, a checksum must not reveal bytes that another client has sent.
#[test]
fn checksum_of_others_data_needs_the_right_to_read() {
    const SUM: &str = "checksum.md5=900150983cd24fb0d6963f7d28e17f72;";
    let server = Fixture::with(|config, _| config.rules = Some("W/drop,RW/open".into()));
    std::fs::create_dir(server.root().join("drop")).unwrap();
    std::fs::create_dir(server.root().join("open")).unwrap();
    for (path, code) in [("/drop/f", 500), ("/open/f", 250)] {
        let (mut one, mut two) = (server.login(), server.login());
        let begin = format!("SITE UPLOAD BEGIN a size=3;resume=1; {path}");
        one.command(&begin, 250);
        sends(&mut one, "ESTO U 0 a", b"abc");
        two.command(&begin, 250);
        let text = two.command(&format!("SITE UPLOAD COMMIT a {SUM}"), code);
        assert!(!text.contains("Checksum"), "{text}");
        if code == 500 {
            two.command("SITE UPLOAD COMMIT a", 250);
        }
        // A session may always prove its own data.
        one.command(&format!("SITE UPLOAD BEGIN b size=3; {path}"), 250);
        sends(&mut one, "ESTO U 0 b", b"abc");
        one.command(&format!("SITE UPLOAD COMMIT b {SUM}"), 250);
        assert_eq!(server.read(&path[1..]), b"abc");
    }
}

#[test]
fn commit_replaces_a_file_or_link_and_keeps_the_mode() {
    let server = Fixture::new();
    server.write("old", "old");
    std::fs::set_permissions(server.root().join("old"), std::fs::Permissions::from_mode(0o640)).unwrap();
    server.write("target", "target");
    std::fs::set_permissions(server.root().join("target"), std::fs::Permissions::from_mode(0o640)).unwrap();
    symlink("target", server.root().join("link")).unwrap();
    std::fs::create_dir(server.root().join("d")).unwrap();
    let mut client = server.login();
    for name in ["old", "link"] {
        client.command(&format!("SITE UPLOAD BEGIN a ; {name}"), 250);
        sends(&mut client, "ESTO U 0 a", b"new");
        client.command("SITE UPLOAD COMMIT a size=3;", 250);
        assert_eq!(server.read(name), b"new");
        assert!(server.root().join(name).symlink_metadata().unwrap().is_file());
        assert_eq!(server.root().join(name).metadata().unwrap().mode() & 0o777, 0o640, "{name}");
    }
    assert_eq!(server.read("target"), b"target");
    client.command("SITE UPLOAD BEGIN a ; d", 550);
    client.command("SITE UPLOAD BEGIN a ; none/f", 550);
    assert!(client.try_put("ESTO U 0 a", b"x").text.starts_with(UNKNOWN));
}
