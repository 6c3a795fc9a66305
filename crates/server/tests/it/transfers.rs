//! RETR and ERET in MODE S.

use std::io::Read as _;

use crate::client::{accept, port_command};
use crate::fixture::Fixture;

#[test]
fn download_over_passive_and_active_channel_works() {
    let server = Fixture::new();
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    server.write("f", &data);
    let mut client = server.login();
    assert_eq!(client.get("RETR /f"), data);
    let listener = client.port();
    client.send("RETR /f");
    let mut stream = accept(&listener);
    client.expect(150);
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    assert_eq!(client.expect(226), "226 Transfer Complete.");
    assert_eq!(bytes, data);
}

#[test]
fn unreadable_files_are_refused() {
    let server = Fixture::new();
    std::fs::create_dir(server.root().join("d")).unwrap();
    let mut client = server.login();
    client.command("RETR /x", 500);
    let _data = client.data();
    let text = client.command("RETR /nope", 500);
    assert_eq!(
        text,
        "500-Command failed. : globus_l_gfs_file_open failed.|500-globus_xio: Unable to open file /nope|\
         500-globus_xio: System error in open: No such file or directory|\
         500-globus_xio: A system call failed: No such file or directory|500 End."
    );
    client.command("RETR /d", 500);
}

#[test]
fn refused_download_keeps_channel() {
    let server = Fixture::new();
    server.write("f", "abc");
    let mut client = server.login();
    let address = client.pasv();
    client.command("RETR /nope", 500);
    let mut data = crate::client::connect(address);
    client.command("RETR /f", 150);
    let mut bytes = Vec::new();
    data.read_to_end(&mut bytes).unwrap();
    client.expect(226);
    assert_eq!(bytes, b"abc");
}

#[test]
fn eret_sends_range_of_file() {
    let server = Fixture::new();
    server.write("f", "hello world\n");
    let mut client = server.login();
    assert_eq!(client.get("ERET P 6 5 /f"), b"world");
    assert_eq!(client.get("ERET P 6 500 /f"), b"world\n");
    assert_eq!(client.get("ERET P 600 5 /f"), b"");
    client.command("REST 6", 350);
    assert_eq!(client.get("RETR /f"), b"world\n");
    client.command("REST 0-5,8-10", 350);
    assert_eq!(client.get("RETR /f"), b" wod\n");
    client.command("REST 3", 350);
    assert_eq!(client.get("ERET P 5 20 /f"), b"rld\n");
    // The range is used once only.
    assert_eq!(client.get("RETR /f"), b"hello world\n");
}

#[test]
fn ascii_download_converts_line_ends() {
    let server = Fixture::new();
    server.write("f", "a\nb\n");
    let mut client = server.login();
    client.command("TYPE A", 200);
    assert_eq!(client.get("RETR /f"), b"a\r\nb\r\n");
    assert_eq!(client.put("STOR /g", b"x\r\ny\r\n").code, 226);
    assert_eq!(server.read("g"), b"x\ny\n");
}

#[test]
fn device_is_read_and_written() {
    let server = Fixture::with(|config, _| config.root = Some("/dev".into()));
    let mut client = server.login();
    assert_eq!(client.get("ERET P 0 1000 /zero"), vec![0; 1000]);
    assert_eq!(client.put("STOR /null", b"away").code, 226);
}

#[test]
fn address_of_other_host_is_refused() {
    let server = Fixture::new();
    server.write("f", "x");
    let mut client = server.login();
    let text = client.command("PORT 127,0,0,2,200,1", 500);
    assert!(text.contains("127.0.0.2"), "{text}");
    client.command("PORT 127,0,0,1,0,80", 500);
    client.command("EPRT |1|10.0.0.1|5000|", 500);
    client.command("SPOR 127,0,0,1,200,1 127,0,0,9,200,1", 500);
    client.command("PORT 0,0,0,0,200,1", 500);
    // Connections from other addresses are refused, and do no harm.
    let address = client.pasv();
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 3], 0)).into()).unwrap();
    socket.connect(&address.into()).unwrap();
    let mut data = crate::client::connect(address);
    client.command("RETR /f", 150);
    let mut bytes = Vec::new();
    data.read_to_end(&mut bytes).unwrap();
    client.expect(226);
    assert_eq!(bytes, b"x");
}

#[test]
fn third_party_with_permission_is_accepted() {
    let server = Fixture::with(|config, _| {
        config.anonymous.as_mut().unwrap().third_party = true;
    });
    server.write("f", "x");
    let mut client = server.login();
    let listener = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
    client.command(&port_command(listener.local_addr().unwrap()), 200);
    client.send("RETR /f");
    let mut stream = accept(&listener);
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    client.expect(150);
    client.expect(226);
    assert_eq!(bytes, b"x");
}

/// A server that is the destination of a third-party transfer reports which address it has refused,
/// and why.
#[test]
fn refused_third_party_sender_is_reported() {
    let server = Fixture::with(|config, _| {
        config.data.connect_timeout = std::time::Duration::from_millis(400);
    });
    let mut client = server.login();
    let address = client.pasv();
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 3], 0)).into()).unwrap();
    socket.connect(&address.into()).unwrap();
    let text = client.command("STOR /new", 425);
    assert!(text.contains("one from 127.0.0.3 was closed"), "{text}");
    assert!(text.contains("taken from 127.0.0.1 alone (third-party transfers are not permitted)"), "{text}");
    assert!(!server.exists("new"));
}

#[test]
fn transfer_without_data_connection_fails() {
    let server = Fixture::with(|config, _| {
        config.data.connect_timeout = std::time::Duration::from_millis(50);
    });
    server.write("f", "x");
    let mut client = server.login();
    client.pasv();
    client.command("RETR /f", 425);
    client.command("NOOP", 200);
}
