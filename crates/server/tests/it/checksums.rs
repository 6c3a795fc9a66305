//! CKSM, SCKS, and sums computed during transfers.

use std::io::Write as _;

use crate::fixture::Fixture;

#[test]
fn checksum_of_file_and_range_is_computed() {
    let server = Fixture::new();
    server.write("f", "hello world\n");
    let mut client = server.login();
    assert_eq!(client.command("CKSM MD5 0 -1 /f", 213), "213 6f5902ac237024bdd0c176cb93063dc4");
    assert_eq!(client.command("CKSM adler32 0 -1 /f", 213), "213 1e720467");
    assert_eq!(client.command("CKSM MD5 6 5 /f", 213), "213 7d793037a0760186574b0282f2f435e7");
    client.command("CKSM ROT13 0 -1 /f", 500);
    client.command("CKSM MD5 0 -1 /nope", 500);
}

#[test]
fn expected_checksum_is_verified() {
    let server = Fixture::new();
    let mut client = server.login();
    for (sum, code) in [("6f5902ac237024bdd0c176cb93063dc4", 226), ("6f5902ac237024bdd0c176cb93063dc5", 550)]
    {
        client.command(&format!("SCKS MD5 {sum}"), 200);
        let reply = client.put("STOR /f", b"hello world\n");
        assert_eq!(reply.code, code, "{}", reply.text);
        assert_eq!(server.exists("f"), code == 226);
        assert!(!server.exists(".f.ropewalk-part"));
        if code == 226 {
            client.command("DELE /f", 250);
        } else {
            assert!(reply.text.contains("INCORRECT_CHECKSUM"), "{}", reply.text);
        }
    }
    client.command("SCKS ADLER32 1e720467", 200);
    assert_eq!(client.put("STOR /f", b"hello world\n").code, 226);
    client.command("SITE STORATTR modify=20200102030405;checksum.md5=6f5902ac237024bdd0c176cb93063dc4;", 250);
    assert_eq!(client.put("STOR /f", b"hello world\n").code, 226);
    assert_eq!(client.command("MDTM /f", 213), "213 20200102030405");
}

#[test]
fn checksum_includes_trailing_zeros() {
    let server = Fixture::with(|config, _| config.files.sparse = true);
    let mut client = server.login();
    client.command("SCKS MD5 03833c23f988b556258e2591e69a43a2", 200);
    let mut bytes = vec![0; 1 << 20];
    bytes[..3].copy_from_slice(b"abc");
    assert_eq!(client.put("STOR /f", &bytes).code, 226);
    assert_eq!(server.read("f"), bytes);
}

#[test]
fn upload_with_wrong_sum_keeps_old_file() {
    let server = Fixture::new();
    server.write("f", "old");
    let mut client = server.login();
    client.command("SCKS ADLER32 00000001", 200);
    assert_eq!(client.put("STOR /f", b"new").code, 550);
    assert_eq!(server.read("f"), b"old");
}

#[test]
fn checksum_is_computed_during_transfer() {
    let server = Fixture::new();
    let mut client = server.login();
    client.command("OPTS RETR Checksum=CRC32C;", 200);
    let reply = client.put("STOR /f", b"123456789");
    assert_eq!(reply.text, "226-Checksum: CRC32C e3069283|226 Transfer Complete.");
    let mut data = client.data();
    client.command("RETR /f", 150);
    std::io::Read::read_to_end(&mut data, &mut Vec::new()).unwrap();
    assert_eq!(client.expect(226), "226-Checksum: CRC32C e3069283|226 Transfer Complete.");
    assert_eq!(client.command("CKSM CRC32C 0 -1 /f", 213), "213 e3069283");
    // The sum is remembered, but not beyond a change.
    std::fs::write(server.root().join("f"), "987654321").unwrap();
    assert_ne!(client.command("CKSM CRC32C 0 -1 /f", 213), "213 e3069283");
    client.command("OPTS RETR Checksum=;", 200);
    assert_eq!(client.put("STOR /f", b"123456789").text, "226 Transfer Complete.");
}

#[test]
fn remembered_sum_after_writing_in_place_is_dropped() {
    let server = Fixture::new();
    let mut client = server.login();
    client.command("OPTS RETR Checksum=CRC32C;", 200);
    client.put("STOR /f", b"123456789");
    let before = std::fs::metadata(server.root().join("f")).unwrap().modified().unwrap();
    assert_eq!(client.put("ESTO A 0 /f", b"X").code, 226);
    std::fs::File::options().write(true).open(server.root().join("f")).unwrap().set_modified(before).unwrap();
    assert_ne!(client.command("CKSM CRC32C 0 -1 /f", 213), "213 e3069283");
}

/// Programs that restore or update files do this.
#[test]
fn remembered_sum_after_change_with_same_size_and_time_is_dropped() {
    let server = Fixture::new();
    let mut client = server.login();
    client.command("OPTS RETR Checksum=CRC32C;", 200);
    let size = 100_000;
    let path = server.root().join("f");
    std::fs::write(server.root().join("other"), vec![b'b'; size]).unwrap();
    let other = client.command("CKSM CRC32C 0 -1 /other", 213);
    for downloaded in [false, true] {
        assert_eq!(client.put("STOR /f", &vec![b'a'; size]).code, 226);
        if downloaded {
            let mut data = client.data();
            client.command("RETR /f", 150);
            std::io::Read::read_to_end(&mut data, &mut Vec::new()).unwrap();
            client.expect(226);
        }
        assert_ne!(client.command("CKSM CRC32C 0 -1 /f", 213), other);
        let before = std::fs::metadata(&path).unwrap().modified().unwrap();
        // Not within the same tick of the kernel's clock.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut file = std::fs::File::options().write(true).open(&path).unwrap();
        file.write_all(&vec![b'b'; size]).unwrap();
        file.set_modified(before).unwrap();
        drop(file);
        assert_eq!(client.command("CKSM CRC32C 0 -1 /f", 213), other);
    }
}

#[test]
fn sum_of_upload_is_not_remembered_for_another_file() {
    for part_files in [true, false] {
        the_sum_is_not_that_of_another_file(part_files);
    }
}

fn the_sum_is_not_that_of_another_file(part_files: bool) {
    let server = Fixture::with(|config, _| config.files.part_files = part_files);
    let size = 100_000;
    for directory in ["in", "next"] {
        std::fs::create_dir(server.root().join(directory)).unwrap();
    }
    server.write("next/f", "n".repeat(size));
    let mut client = server.login();
    client.command("OPTS RETR Checksum=CRC32C;", 200);
    let mut data = client.data();
    client.command("STOR /in/f", 150);
    data.write_all(&vec![b'u'; size]).unwrap();
    std::fs::rename(server.root().join("in"), server.root().join("done")).unwrap();
    std::fs::rename(server.root().join("next"), server.root().join("in")).unwrap();
    drop(data);
    client.expect(226);
    assert_eq!(server.read("done/f"), vec![b'u'; size]);
    assert_eq!(server.read("in/f"), vec![b'n'; size]);
    let sum = |path: &str| server.login().command(&format!("CKSM CRC32C 0 -1 {path}"), 213);
    std::fs::copy(server.root().join("in/f"), server.root().join("again")).unwrap();
    assert_eq!(sum("/in/f"), sum("/again"));
    assert_ne!(sum("/in/f"), sum("/done/f"));
}

#[test]
fn checksum_of_large_file_sends_markers() {
    let server = Fixture::new();
    // Long enough for a second. The file is sparse, so it costs no disk space.
    std::fs::File::create(server.root().join("f")).unwrap().set_len(64 << 30).unwrap();
    let mut client = server.login();
    client.command("OPTS CKSM markers=1;", 200);
    client.send("CKSM SHA512 0 -1 /f");
    let marker = client.expect(113);
    assert!(
        marker.starts_with("113-Status Marker| Timestamp: ") && marker.ends_with("|113 End."),
        "{marker}"
    );
    client.send("ABOR");
    loop {
        let reply = client.reply();
        if reply.code != 113 {
            assert_eq!(reply.code, 426);
            break;
        }
    }
    client.expect(226);
    let _ = std::io::sink().flush();
}
