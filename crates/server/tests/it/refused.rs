//! Data that was sent for a failed transfer must not become part of another file.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::blocks::{EOD, EOF, block, mode_e};
use crate::client::connect;
use crate::fixture::Fixture;
use crate::uploads::wait_for;

/// A file of one block.
fn file(data: &[u8]) -> Vec<u8> {
    [block(0, 0, data), block(EOD | EOF, 1, b"")].concat()
}

fn is_closed(data: &mut TcpStream) -> bool {
    match data.read(&mut [0]) {
        Ok(n) => n == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn refused_upload_over_cached_connection_discards_data() {
    let server = Fixture::new();
    server.write("isdir/x", "");
    let mut client = server.login();
    mode_e(&mut client);
    let address = client.pasv();
    let mut data = connect(address);
    client.send("STOR /a1");
    data.write_all(&file(b"111")).unwrap();
    assert_eq!(client.end().code, 226);
    client.send("STOR /isdir");
    data.write_all(&file(b"REFUSED")).unwrap();
    assert_eq!(client.end().code, 500);
    // The server closes the connection, so that a client that only looks at its data connection
    // notices.
    assert!(is_closed(&mut data));
    client.send("STOR /a2");
    connect(address).write_all(&file(b"222")).unwrap();
    assert_eq!(client.end().code, 226);
    assert_eq!(server.read("a2"), b"222");
}

/// Data of uploads that the session itself refuses, or that were aborted before they started, does
/// not become part of the next file.
#[test]
fn upload_refused_before_start_discards_data() {
    for refused in ["STOR /a\nb", "ESTO A x /f", "STOR /a2\r\nABOR"] {
        let server = Fixture::new();
        let mut client = server.login();
        mode_e(&mut client);
        let address = client.pasv();
        let mut data = connect(address);
        client.send("STOR /a1");
        data.write_all(&file(b"111")).unwrap();
        assert_eq!(client.end().code, 226);
        data.write_all(&file(b"REFUSED")).unwrap();
        client.send(refused);
        assert!(client.reply().code >= 400);
        if refused.ends_with("ABOR") {
            client.expect(226);
        }
        assert!(is_closed(&mut data));
        client.send("STOR /a3");
        connect(address).write_all(&file(b"333")).unwrap();
        assert_eq!(client.end().code, 226);
        assert_eq!(server.read("a3"), b"333");
    }
}

/// A client that sends ahead learns too late that one of its files was refused.
#[test]
fn refused_upload_in_pipeline_discards_data() {
    let server = Fixture::new();
    server.write("isdir/x", "");
    let mut client = server.login();
    mode_e(&mut client);
    let mut data = connect(client.pasv());
    data.write_all(&[file(b"111"), file(b"REFUSED"), file(b"222")].concat()).unwrap();
    client.send("STOR /a1\r\nSTOR /isdir\r\nSTOR /a2");
    assert_eq!(client.end().code, 226);
    assert_eq!(client.end().code, 500);
    drop(data);
    client.send("ABOR");
    assert_eq!(client.end().code, 426);
    client.expect(226);
    assert_eq!(server.read("a1"), b"111");
    assert!(!server.exists("a2"));
}

#[test]
fn refused_upload_with_unaccepted_connection_discards_data() {
    let server = Fixture::new();
    server.write("isdir/x", "");
    let mut client = server.login();
    mode_e(&mut client);
    let address = client.pasv();
    let mut data = connect(address);
    data.write_all(&file(b"REFUSED")).unwrap();
    client.command("STOR /isdir", 500);
    assert!(is_closed(&mut data));
    client.send("STOR /next");
    connect(address).write_all(&file(b"next")).unwrap();
    assert_eq!(client.end().code, 226);
    assert_eq!(server.read("next"), b"next");
}

/// Connections that were not accepted when a transfer fails were made for it.
#[test]
fn refused_upload_with_late_connection_discards_data() {
    let server = Fixture::new();
    let mut client = server.login();
    mode_e(&mut client);
    let address = client.pasv();
    client.send("STOR /late");
    wait_for(|| server.exists(".late.ropewalk-part"));
    client.send("ABOR");
    assert_eq!(client.end().code, 426);
    client.expect(226);
    let mut data = connect(address);
    client.send("STOR /isdir/none");
    data.write_all(&file(b"REFUSED")).unwrap();
    assert_eq!(client.end().code / 100, 5);
    assert!(is_closed(&mut data));
}

/// RFC 959 section 3.3: a data connection is for one file in MODE S.
#[test]
fn refused_upload_in_stream_mode_discards_data() {
    let server = Fixture::new();
    server.write("isdir/x", "");
    let mut client = server.login();
    let address = client.pasv();
    let mut data = connect(address);
    data.write_all(b"REFUSED").unwrap();
    drop(data);
    client.command("STOR /isdir", 500);
    client.send("STOR /next");
    connect(address).write_all(b"next").unwrap();
    client.expect(150);
    client.expect(226);
    assert_eq!(server.read("next"), b"next");

    // This connection comes after its transfer has been aborted.
    let address = client.pasv();
    client.send("STOR /late");
    wait_for(|| server.exists(".late.ropewalk-part"));
    client.send("ABOR");
    client.expect(426);
    client.expect(226);
    assert!(TcpStream::connect(address).is_err(), "it still listens");
    client.command("STOR /other", 500);

    // Data that was sent before a download ends no upload.
    let address = client.pasv();
    let mut data = connect(address);
    client.command("RETR /nope", 500);
    assert!(is_closed(&mut data));
    client.send("STOR /f");
    connect(address).write_all(b"abc").unwrap();
    client.expect(150);
    client.expect(226);
    assert_eq!(server.read("f"), b"abc");
    let mut data = client.data();
    client.command("NLST /nope", 550);
    assert!(is_closed(&mut data));
    // Commands that are no transfers leave a connection alone.
    assert_eq!(client.command("CKSM MD5 0 -1 /f", 213), "213 900150983cd24fb0d6963f7d28e17f72");
    let mut data = client.data();
    client.command("SIZE /nope", 550);
    client.command("CKSM MD5 0 -1 /nope", 500);
    client.command("RETR /f", 150);
    let mut bytes = Vec::new();
    data.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"abc");
    client.expect(226);
}

/// No data was sent for it: the next download uses the same connections.
#[test]
fn refused_download_keeps_connections() {
    let server = Fixture::new();
    server.write("f", "abc");
    let mut client = server.login();
    mode_e(&mut client);
    let listener = client.port();
    client.send("RETR /f");
    let mut data = crate::client::accept(&listener);
    let mut bytes = Vec::new();
    crate::blocks::read_until_eod(&mut data, &mut bytes);
    assert_eq!(client.end().code, 226);
    client.command("RETR /nope", 500);
    client.send("RETR /f");
    crate::blocks::read_until_eod(&mut data, &mut bytes);
    client.expect(125);
    client.expect(226);
}
