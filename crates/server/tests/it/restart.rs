//! Going on with uploads in MODE E that were broken off.

use std::io::Write as _;

use crate::blocks::{EOD, EOF, block, mode_e};
use crate::client::{Client, connect};
use crate::fixture::Fixture;

/// Uploads the second half of 8 bytes, and breaks off; gives the markers' ranges.
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
    loop {
        let reply = client.reply();
        if reply.code >= 200 {
            return reply;
        }
    }
}

#[test]
fn the_missing_part_completes_the_file() {
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
fn an_old_file_of_the_same_name_is_not_mixed_up_with_the_new_one() {
    let server = Fixture::new();
    server.write("f", "old contents");
    broken_upload(&mut server.login());
    assert_eq!(server.read("f"), b"old contents");
    let mut client = server.login();
    mode_e(&mut client);
    assert_eq!(first_half(&mut client, "STOR /f").code, 226);
    assert_eq!(server.read("f"), b"abcdefgh");
}

#[test]
fn what_is_not_there_is_not_believed() {
    let server = Fixture::new();
    let mut client = server.login();
    mode_e(&mut client);
    assert_eq!(first_half(&mut client, "STOR /f").code, 554);
    assert!(!server.exists("f"));
}

#[test]
fn parts_by_their_own_name() {
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
