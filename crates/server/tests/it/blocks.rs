//! MODE E.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::client::{Client, accept, connect};
use crate::fixture::Fixture;

pub(crate) const EOD: u8 = 0x08;
pub(crate) const EOF: u8 = 0x40;

pub(crate) fn block(flags: u8, offset: u64, data: &[u8]) -> Vec<u8> {
    let mut block = vec![flags];
    block.extend((data.len() as u64).to_be_bytes());
    block.extend(offset.to_be_bytes());
    block.extend(data);
    block
}

/// Reads the next block: flags, offset, payload. Returns `None` at the end of the connection.
fn read_block(stream: &mut TcpStream) -> Option<(u8, u64, Vec<u8>)> {
    let mut header = [0; 17];
    match stream.read_exact(&mut header) {
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return None,
        other => other.unwrap(),
    }
    let count = u64::from_be_bytes(header[1..9].try_into().unwrap());
    let offset = u64::from_be_bytes(header[9..].try_into().unwrap());
    let mut data = vec![0; if header[0] & EOF == 0 { count as usize } else { 0 }];
    stream.read_exact(&mut data).unwrap();
    Some((header[0], offset, data))
}

/// Writes the blocks of one transfer on one connection to `file`. Returns the EOD count if it was
/// sent.
pub(crate) fn read_until_eod(stream: &mut TcpStream, file: &mut Vec<u8>) -> Option<u64> {
    let mut count = None;
    loop {
        let (flags, offset, data) = read_block(stream).expect("no EOD");
        if flags & EOF != 0 {
            count = Some(offset);
        } else {
            let end = offset as usize + data.len();
            file.resize(file.len().max(end), 0);
            file[offset as usize..end].copy_from_slice(&data);
        }
        if flags & EOD != 0 {
            return count;
        }
    }
}

pub(crate) fn mode_e(client: &mut Client) {
    client.command("MODE E", 200);
}

pub(crate) fn sample(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 % 253) as u8).collect()
}

#[test]
fn upload_over_two_streams_sends_markers() {
    let server = Fixture::new();
    let mut client = server.login();
    mode_e(&mut client);
    let address = client.pasv();
    let (mut a, mut b) = (connect(address), connect(address));
    client.command("ALLO 10", 200);
    client.send("STOR /f");
    b.write_all(&block(0, 5, b"fghij")).unwrap();
    b.write_all(&block(EOD, 0, b"")).unwrap();
    a.write_all(&block(0, 0, b"abcde")).unwrap();
    a.write_all(&block(EOD | EOF, 2, b"")).unwrap();
    assert_eq!(client.expect(150), "150 Beginning transfer.");
    let first = client.expect(112);
    assert!(first.contains("Stripe Bytes Transferred: 0|"), "{first}");
    assert!(first.contains("Total Stripe Count: 1"), "{first}");
    let last = client.expect(112);
    assert!(last.contains("Stripe Bytes Transferred: 10|"), "{last}");
    assert_eq!(client.expect(111), "111 Range Marker 0-10");
    assert_eq!(client.expect(226), "226 Transfer Complete.");
    assert_eq!(server.read("f"), b"abcdefghij");
}

/// RFC 959 section 4.1.3: ALLO only asks for space. Holes lie before a byte that was sent.
#[test]
fn announced_size_adds_no_bytes() {
    let server = Fixture::new();
    let mut client = server.login();
    mode_e(&mut client);
    for (last, length) in [(0, 5), (70_000, 70_005), (200_000, 200_005)] {
        client.command("ALLO 100000", 200);
        let mut data = connect(client.pasv());
        client.send("STOR /f");
        data.write_all(&block(0, last, b"hello")).unwrap();
        data.write_all(&block(EOD | EOF, 1, b"")).unwrap();
        while client.reply().code < 200 {}
        let mut expected = vec![0; length - 5];
        expected.extend(b"hello");
        assert!(server.read("f") == expected, "{} bytes", server.read("f").len());
    }
    // An upload without data is an empty file.
    client.command("ALLO 100000", 200);
    let mut data = connect(client.pasv());
    client.send("STOR /f");
    data.write_all(&block(EOD | EOF, 1, b"")).unwrap();
    while client.reply().code < 200 {}
    assert_eq!(server.read("f"), b"");
}

/// The lengths of text change during the transfer: it is received in order, from the end of REST.
#[test]
fn text_upload_resumes_from_marker() {
    let server = Fixture::new();
    server.write("f", "01\n34");
    let mut client = server.login();
    client.command("TYPE A", 200);
    mode_e(&mut client);
    client.command("REST 0-5", 350);
    let mut data = connect(client.pasv());
    client.send("STOR /f");
    data.write_all(&block(0, 5, b"5\r\n7")).unwrap();
    data.write_all(&block(0, 9, b"\r\n9")).unwrap();
    data.write_all(&block(EOD | EOF, 1, b"")).unwrap();
    let end = loop {
        let reply = client.reply();
        if reply.code >= 200 {
            break reply;
        }
    };
    assert_eq!(end.code, 226, "{end:?}");
    assert_eq!(server.read("f"), b"01\n345\n7\n9");
}

#[test]
fn second_upload_reuses_connections() {
    let server = Fixture::new();
    let mut client = server.login();
    mode_e(&mut client);
    let mut data = connect(client.pasv());
    for (i, code) in [150, 125, 125].into_iter().enumerate() {
        client.send(&format!("STOR /f{i}"));
        data.write_all(&block(0, 0, b"data")).unwrap();
        data.write_all(&block(EOD | EOF, 1, b"")).unwrap();
        client.expect(code);
        client.expect(112);
        client.expect(112);
        client.expect(111);
        client.expect(226);
        assert_eq!(server.read(&format!("f{i}")), b"data");
    }
}

#[test]
fn pipelined_uploads_with_early_data_are_stored() {
    let server = Fixture::new();
    let mut client = server.login();
    mode_e(&mut client);
    let mut data = connect(client.pasv());
    for i in 0..20u8 {
        data.write_all(&block(EOF, 1, b"")).unwrap();
        data.write_all(&block(EOD, 0, &[i; 100])).unwrap();
    }
    client.send_bytes((0..20).map(|i| format!("STOR /f{i}\r\n")).collect::<String>().as_bytes());
    for i in 0..20u8 {
        client.expect(if i == 0 { 150 } else { 125 });
        client.expect(112);
        client.expect(112);
        assert_eq!(client.expect(111), "111 Range Marker 0-100");
        client.expect(226);
        assert_eq!(server.read(&format!("f{i}")), [i; 100]);
    }
}

#[test]
fn download_over_four_streams_is_complete() {
    let server = Fixture::new();
    let data = sample(5_000_000);
    server.write("f", &data);
    let mut client = server.login();
    mode_e(&mut client);
    client.command("OPTS RETR Parallelism=4,4,4;", 200);
    let listener = client.port();
    client.send("RETR /f");
    let mut file = Vec::new();
    let mut streams: Vec<_> = (0..4).map(|_| accept(&listener)).collect();
    let mut counts: Vec<_> = streams.iter_mut().filter_map(|s| read_until_eod(s, &mut file)).collect();
    assert_eq!(file, data);
    assert_eq!(counts.pop(), Some(4));
    client.expect(150);
    client.expect(226);
    // The next file comes over the same connections.
    server.write("g", b"small");
    client.send("RETR /g");
    let mut file = Vec::new();
    let counts: Vec<_> = streams.iter_mut().filter_map(|s| read_until_eod(s, &mut file)).collect();
    assert_eq!((file.as_slice(), counts.as_slice()), (&b"small"[..], &[4][..]));
    client.expect(125);
    client.expect(226);
}

#[test]
fn empty_files_are_transferred() {
    let server = Fixture::new();
    server.write("f", b"");
    let mut client = server.login();
    mode_e(&mut client);
    let listener = client.port();
    client.send("RETR /f");
    let mut stream = accept(&listener);
    assert_eq!(read_until_eod(&mut stream, &mut Vec::new()), Some(1));
    client.expect(150);
    client.expect(226);
    let mut data = connect(client.pasv());
    client.send("STOR /g");
    data.write_all(&block(EOD | EOF, 1, b"")).unwrap();
    client.expect(150);
    client.expect(112);
    client.expect(112);
    client.expect(226);
    assert_eq!(server.read("g"), b"");
}

#[test]
fn eret_and_esto_use_relative_offsets() {
    let server = Fixture::new();
    server.write("f", "hello world\n");
    let mut client = server.login();
    mode_e(&mut client);
    let listener = client.port();
    client.command("REST 0-1", 350);
    client.send("ERET P 6 5 /f");
    let mut stream = accept(&listener);
    let mut file = Vec::new();
    read_until_eod(&mut stream, &mut file);
    assert_eq!(file, b"\0orld");
    client.expect(150);
    client.expect(226);

    let mut data = connect(client.pasv());
    client.send("ESTO A 6 /f");
    data.write_all(&block(0, 0, b"WORLD")).unwrap();
    data.write_all(&block(EOD | EOF, 1, b"")).unwrap();
    client.expect(150);
    client.expect(112);
    client.expect(112);
    assert_eq!(client.expect(111), "111 Range Marker 0-5");
    client.expect(226);
    assert_eq!(server.read("f"), b"hello WORLD\n");
}

#[test]
fn active_channel_for_upload_is_refused() {
    let server = Fixture::new();
    let mut client = server.login();
    mode_e(&mut client);
    let _listener = client.port();
    let text = client.command("STOR /f", 500);
    assert!(text.contains("globus_gridftp_server_register_read failed."), "{text}");
    assert!(!server.exists("f") && !server.exists(".f.ropewalk-part"));
}

#[test]
fn passive_channel_for_download_is_accepted() {
    let server = Fixture::new();
    let bytes = sample(3_000_000);
    server.write("f", &bytes);
    let mut client = server.login();
    mode_e(&mut client);
    client.command("OPTS RETR Parallelism=2,2,2;", 200);
    let address = client.pasv();
    let mut streams = [connect(address), connect(address)];
    client.send("RETR /f");
    let mut file = Vec::new();
    let counts: Vec<_> = streams.iter_mut().filter_map(|s| read_until_eod(s, &mut file)).collect();
    assert_eq!(counts, [2]);
    assert_eq!(file, bytes);
    client.expect(150);
    client.expect(226);
}

#[test]
fn broken_stream_fails_transfer_and_reports_ranges() {
    let server = Fixture::new();
    let mut client = server.login();
    mode_e(&mut client);
    let mut data = connect(client.pasv());
    client.send("STOR /f");
    data.write_all(&block(0, 4, b"efgh")).unwrap();
    data.write_all(&block(0, 12, b"mnop")).unwrap();
    drop(data);
    client.expect(150);
    client.expect(112);
    client.expect(112);
    assert_eq!(client.expect(111), "111 Range Marker 4-8,12-16");
    client.expect(426);
    assert!(!server.exists("f"));
}

/// The client has died: its pending commands must not keep the next client from its files.
#[test]
fn waiting_uploads_of_dead_client_end() {
    let server = Fixture::new();
    let mut client = server.login();
    mode_e(&mut client);
    let mut data = connect(client.pasv());
    client.send("STOR /a");
    data.write_all(&block(0, 0, b"half")).unwrap();
    client.expect(150);
    client.send("STOR /b\r\nSTOR /c");
    client.shut();
    drop(data);
    while let Some(reply) = client.try_reply() {
        assert!(reply.code < 200 || reply.code == 426, "{}", reply.text);
    }
    for name in ["a", "b", "c", ".b.ropewalk-part", ".c.ropewalk-part"] {
        assert!(!server.exists(name), "{name}");
    }
}
