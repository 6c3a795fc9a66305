//! The control connection.

use crate::fixture::Fixture;

#[test]
fn session_greets_logs_in_and_quits() {
    let server = Fixture::new();
    let mut client = crate::client::Client::open(server.address);
    let greeting = client.expect(220);
    assert!(greeting.starts_with("220 test GridFTP Server ") && greeting.ends_with(" ready."), "{greeting}");
    assert_eq!(client.command("SYST", 530), "530 Please login with USER and PASS.");
    client.command("FEAT", 211);
    client.command("USER anonymous", 331);
    assert_eq!(client.command("PASS x", 230), "230 User anonymous logged in.");
    assert_eq!(client.command("PWD", 257), "257 \"/\" is current directory.");
    assert_eq!(client.command("QUIT", 221), "221 Goodbye.");
    client.expect_end();
}

#[test]
fn pipelined_commands_are_answered_in_order() {
    let server = Fixture::new();
    server.write("a", "12345");
    let mut client = server.login();
    let mut lines = String::new();
    for i in 0..300 {
        lines += match i % 3 {
            0 => "NOOP\r\n",
            1 => "SIZE /a\r\n",
            _ => "PWD\r\n",
        };
    }
    client.send_bytes(lines.as_bytes());
    for i in 0..300 {
        client.expect([200, 213, 257][i % 3]);
    }
}

#[test]
fn commands_in_several_packets_are_assembled() {
    let server = Fixture::new();
    let mut client = server.login();
    for byte in b"NOOP\r\n" {
        client.send_bytes(&[*byte]);
    }
    client.expect(200);
}

#[test]
fn client_that_closes_early_gets_all_replies() {
    let server = Fixture::new();
    let mut client = server.connect();
    client.send_bytes(b"USER ftp\r\nPASS x\r\nPWD\r\nQUIT\r\n");
    client.shut();
    for code in [331, 230, 257, 221] {
        client.expect(code);
    }
    client.expect_end();
}

#[test]
fn files_and_directories_can_be_managed() {
    let server = Fixture::new();
    let mut client = server.login();
    assert_eq!(client.command("MKD /d", 257), "257 Directory \"/d\" created successfully.");
    assert!(client.command("MKD /d", 553).contains("PATH_EXISTS"));
    client.command("CWD d", 250);
    assert_eq!(client.put("STOR a b", b"hello").code, 226);
    assert_eq!(server.read("d/a b"), b"hello");
    assert_eq!(client.command("SIZE a b", 213), "213 5");
    client.command("RNFR a b", 350);
    client.command("RNTO c", 250);
    assert_eq!(client.command("MFMT 20200102030405 c", 213), "213 Modify=20200102030405; c");
    assert_eq!(client.command("MDTM c", 213), "213 20200102030405");
    assert_eq!(client.command("SIZE /d", 550), "550 /d: a directory has no size.");
    let none = client.command("SITE CHGRP no-such-group c", 550);
    assert_eq!(none, "550 no-such-group: there is no such group here.");
    client.command("SITE CHMOD 600 c", 250);
    let facts = client.command("MLST c", 250);
    assert!(facts.contains("UNIX.mode=0600") && facts.contains("Size=5"), "{facts}");
    client.command("SITE SYMLINKFROM c", 350);
    client.command("SITE SYMLINKTO l", 250);
    assert_eq!(std::fs::read_link(server.root().join("d/l")).unwrap().to_str(), Some("c"));
    client.command("SITE TRNC 2 c", 250);
    assert_eq!(server.read("d/c"), b"he");
    client.command("DELE l", 250);
    client.command("CWD /", 250);
    client.command("SITE RDEL /d", 250);
    assert!(!server.exists("d"));
    assert!(client.command("CWD /d", 550).contains("PATH_NOT_FOUND"));
    assert!(client.command("RMD /d", 550).contains("PATH_NOT_FOUND"));
}

#[test]
fn site_chroot_moves_root() {
    let server = Fixture::new();
    server.write("in/a", "x");
    server.write("secret", "y");
    std::os::unix::fs::symlink("../secret", server.root().join("in/out")).unwrap();
    let mut client = server.login();
    client.command("SITE CHROOT /in", 250);
    client.command("SIZE /a", 213);
    client.command("SIZE /../secret", 550);
    assert_eq!(client.command("SIZE /out", 500), "500 Path not allowed.");
}

#[test]
fn client_that_closes_early_gets_its_download() {
    use std::io::Read as _;
    let server = Fixture::new();
    server.write("f", vec![7; 3_000_000]);
    let mut client = server.login();
    let mut data = client.data();
    client.send("RETR /f\r\nQUIT");
    client.shut();
    client.expect(150);
    let mut bytes = Vec::new();
    data.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), 3_000_000);
    client.expect(226);
    client.expect(221);
    client.expect_end();
}

#[test]
fn client_that_reads_late_gets_all_replies() {
    const COMMANDS: usize = 20_000;
    let server = Fixture::new();
    let mut client = server.login();
    let mut writer = client.writer();
    let thread = std::thread::spawn(move || {
        use std::io::Write as _;
        writer.write_all("HELP\r\n".repeat(COMMANDS).as_bytes()).unwrap();
    });
    // The server neither blocks a thread nor keeps megabytes of replies.
    server.login().command("NOOP", 200);
    for _ in 0..COMMANDS {
        client.expect(214);
    }
    thread.join().unwrap();
    client.command("NOOP", 200);
}

#[test]
fn garbage_on_control_connection_does_no_harm() {
    let server = Fixture::new();
    let mut random = 1u64;
    for round in 0..100 {
        let mut bytes = Vec::new();
        for _ in 0..200 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes.extend_from_slice(&random.to_le_bytes());
        }
        bytes.extend_from_slice(b"\r\nSIZE \xff\xfe\r\nRETR \r\n");
        let mut client = if round % 2 == 0 { server.login() } else { server.connect() };
        client.send_bytes(&bytes);
        client.shut();
        while client.try_reply().is_some() {}
    }
    server.login().command("NOOP", 200);
}
