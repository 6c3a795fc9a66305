//! Clients that take or send next to nothing, while others wait for a permit.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::client::Client;
use crate::fixture::Fixture;

/// More than the buffers of a connection hold.
const BIG: usize = 64 << 20;

fn server(active: u32) -> Fixture {
    let server = Fixture::with(|config, _| config.limits.active = active);
    std::fs::File::create(server.root().join("big")).unwrap().set_len(BIG as u64).unwrap();
    server.write("f", "abc");
    server
}

/// A download whose client reads nothing.
fn reader(server: &Fixture) -> (Client, TcpStream) {
    let mut client = server.login();
    let data = client.data();
    client.command("RETR /big", 150);
    (client, data)
}

#[test]
fn slow_reader_when_others_wait_loses_permit_and_continues() {
    let server = server(2);
    let mut slow = [reader(&server), reader(&server)];
    assert_eq!(server.login().get("RETR /f"), b"abc");
    for (client, data) in &mut slow {
        let mut bytes = Vec::new();
        data.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), BIG);
        client.expect(226);
    }
    // All permits are free again: these two get them at once.
    let _slow = [reader(&server), reader(&server)];
}

#[test]
fn slow_sender_when_others_wait_loses_permit_and_continues() {
    let server = server(1);
    let mut slow = server.login();
    let mut data = slow.data();
    slow.command("STOR /g", 150);
    data.write_all(b"a").unwrap();
    assert_eq!(server.login().get("RETR /f"), b"abc");
    data.write_all(b"bc").unwrap();
    drop(data);
    slow.expect(226);
    assert_eq!(server.read("g"), b"abc");
}

#[test]
fn listing_when_transfers_stall_runs() {
    let server = server(1);
    let _slow = reader(&server);
    let mut waiting = server.login();
    let _data = waiting.data();
    waiting.send("RETR /f");
    let mut other = server.login();
    assert!(other.list("NLST /").contains(&"f".into()));
    other.send("MLSC /");
    assert_eq!(other.end().code, 250);
}

#[test]
fn slow_clients_beyond_limit_are_ended() {
    let server = server(1);
    let mut slow = [reader(&server), reader(&server)];
    assert_eq!(server.login().get("RETR /f"), b"abc");
    // One of them has received the reply, and the other has not.
    let mut ended = 0;
    for (client, data) in &mut slow {
        let _ = data.read_to_end(&mut Vec::new());
        let reply = client.reply();
        match reply.code {
            226 => {}
            426 => {
                assert!(reply.text.contains("too slow while others wait"), "{}", reply.text);
                ended += 1;
            }
            _ => panic!("{}", reply.text),
        }
    }
    assert_eq!(ended, 1);
}

/// Over the control connection.
#[test]
fn unread_listing_when_others_wait_loses_permit() {
    let server = server(1);
    for n in 0..1000 {
        server.write(&format!("d/{n:0>200}"), "");
    }
    let mut slow = server.login();
    for _ in 0..100 {
        slow.send("MLSC /d");
    }
    assert_eq!(slow.end().code, 250);
    assert!(server.login().list("NLST /").contains(&"f".into()));
    for _ in 1..100 {
        assert_eq!(slow.end().code, 250);
    }
}
