//! ABOR, and clients that disconnect.

use std::io::{Read as _, Write as _};

use crate::fixture::Fixture;

#[test]
fn abort_without_transfer_is_accepted() {
    let server = Fixture::new();
    let mut client = server.login();
    assert_eq!(client.command("ABOR", 226), "226 Abort successful");
}

#[test]
fn abort_during_download_ends_it() {
    let server = Fixture::new();
    std::fs::File::create(server.root().join("f")).unwrap().set_len(1 << 40).unwrap();
    let mut client = server.login();
    let mut data = client.data();
    client.command("RETR /f", 150);
    data.read_exact(&mut [0; 100_000]).unwrap();
    client.send("ABOR");
    client.expect(426);
    client.expect(226);
    let mut rest = Vec::new();
    let _ = data.read_to_end(&mut rest);
    client.command("NOOP", 200);
}

#[test]
fn abort_during_upload_keeps_data() {
    let server = Fixture::new();
    let mut client = server.login();
    let mut data = client.data();
    client.command("STOR /f", 150);
    data.write_all(b"abc").unwrap();
    crate::uploads::wait_for(|| {
        std::fs::metadata(server.root().join(".f.ropewalk-part")).is_ok_and(|part| part.len() == 3)
    });
    client.send("NOOP\r\nABOR");
    client.expect(426);
    client.expect(200);
    client.expect(226);
    assert!(!server.exists("f"));
    // The received bytes are kept.
    assert_eq!(client.command("SIZE /f", 213), "213 3");
}

#[test]
fn abort_before_data_connection_ends_transfer() {
    let server = Fixture::new();
    server.write("f", "x");
    let mut client = server.login();
    client.pasv();
    client.send("RETR /f");
    client.send("ABOR");
    client.expect(426);
    client.expect(226);
}

#[test]
fn abort_during_checksum_ends_it() {
    let server = Fixture::new();
    std::fs::File::create(server.root().join("f")).unwrap().set_len(1 << 40).unwrap();
    let mut client = server.login();
    client.send("CKSM MD5 0 -1 /f");
    client.send("ABOR");
    client.expect(426);
    client.expect(226);
}

#[test]
fn disconnected_client_ends_transfer() {
    let server = Fixture::new();
    std::fs::File::create(server.root().join("f")).unwrap().set_len(1 << 40).unwrap();
    let mut client = server.login();
    let data = client.data();
    client.command("RETR /f", 150);
    drop(client);
    crate::uploads::wait_for(|| server.handle.sessions() == 0);
    drop(data);
}

#[test]
fn abort_as_urgent_data_ends_transfer() {
    let server = Fixture::new();
    std::fs::File::create(server.root().join("f")).unwrap().set_len(1 << 40).unwrap();
    let mut client = server.login();
    let mut data = client.data();
    client.command("RETR /f", 150);
    data.read_exact(&mut [0; 1000]).unwrap();
    // The sequence of RFC 959 section 4.1.3: Telnet IP and Synch first.
    let writer = client.writer();
    let socket = socket2::SockRef::from(&writer);
    socket.send_out_of_band(b"\xff\xf4\xff").unwrap();
    socket.send_out_of_band(b"\xf2ABOR\r\n").unwrap();
    client.expect(426);
    client.expect(226);
    client.command("NOOP", 200);
}

#[test]
fn removal_of_tree_can_be_aborted() {
    let server = Fixture::new();
    for number in 0..5_000 {
        server.write(&format!("t/d{}/f{number}", number % 10), "");
    }
    let files = || {
        let directories = std::fs::read_dir(server.root().join("t")).into_iter().flatten().flatten();
        directories.map(|d| std::fs::read_dir(d.path()).into_iter().flatten().count()).sum::<usize>()
    };
    let mut client = server.login();
    client.send("SITE RDEL /t");
    crate::uploads::wait_for(|| files() < 5_000);
    client.send("ABOR");
    // The transfer may have ended just before.
    let code = client.reply().code;
    client.expect(226);
    assert_eq!(code, if files() > 0 { 426 } else { 250 });
    if code == 426 {
        client.command("SITE RDEL /t", 250);
    }
    assert!(!server.exists("t"));
}
