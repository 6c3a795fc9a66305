//! Who gets in, and how many.

use crate::client::Client;
use crate::fixture::{Fixture, passwords};

const BUSY: &str =
    "421 Service busy: Connection limit exceeded. Please try again later. Closing control connection.";

#[test]
fn sessions_in_all() {
    let server = Fixture::with(|config, _| config.limits.sessions = 2);
    let mut one = server.connect();
    let _two = server.connect();
    let mut three = Client::open(server.address);
    assert_eq!(three.expect(421), BUSY);
    three.expect_end();
    one.command("QUIT", 221);
    one.expect_end();
    let _four = server.connect();
}

#[test]
fn sessions_of_an_address() {
    let server = Fixture::with(|config, _| config.limits.sessions_per_address = 1);
    let _one = server.connect();
    assert_eq!(Client::open(server.address).expect(421), BUSY);
}

#[test]
fn sessions_of_a_user() {
    let server = Fixture::with(|config, directory| {
        config.password_file = Some(passwords(directory, &[("ann", "secret")]));
        config.limits.sessions_per_user = 1;
        config.anonymous.as_mut().unwrap().sessions = Some(2);
    });
    let mut one = server.connect();
    one.login("ann", "secret");
    let mut two = server.connect();
    two.command("USER ann", 331);
    two.command("PASS secret", 421);
    two.expect_end();
    let _anonymous = [server.login(), server.login()];
    let mut third = server.connect();
    third.command("USER ftp", 331);
    third.command("PASS x", 421);
}

#[test]
fn addresses() {
    let server = Fixture::with(|config, _| config.access.deny = vec!["127.0.0.".parse().unwrap()]);
    Client::open(server.address).expect(421);
    let server = Fixture::with(|config, _| config.access.allow = vec!["127.0.0.0/8".parse().unwrap()]);
    server.connect();
}

#[test]
fn offline() {
    let server = Fixture::with(|config, _| config.offline = Some(String::new()));
    let mut client = Client::open(server.address);
    assert_eq!(client.expect(422), "422 Service temporarily offline. Closing control connection.");
    client.expect_end();
    let server = Fixture::with(|config, _| config.offline = Some("Back at noon.".into()));
    assert_eq!(Client::open(server.address).expect(422), "422 Back at noon.");
}

#[test]
fn long_lines_and_long_queues() {
    let server = Fixture::with(|config, _| {
        config.limits.line_length = 1000;
        config.limits.queue = 10;
        config.timeouts.login_failure = std::time::Duration::from_secs(60);
    });
    let mut client = server.login();
    client.send_bytes(&[b'x'; 2000]);
    client.expect(500);
    client.expect_end();

    server.write("f", "x");
    let mut client = server.login();
    client.pasv();
    // The transfer waits for its connection, and the others for the transfer.
    client.send("RETR /f");
    client.send_bytes("NOOP\r\n".repeat(30).as_bytes());
    while client.try_reply().is_some_and(|reply| reply.text != "500 Pipeline queue full.") {}
}

#[test]
fn too_many_streams() {
    use std::io::Write as _;
    let server = Fixture::with(|config, _| config.data.max_streams = 2);
    let mut client = server.login();
    crate::blocks::mode_e(&mut client);
    let address = client.pasv();
    client.send("STOR /f");
    let mut streams: Vec<_> = (0..3).map(|_| crate::client::connect(address)).collect();
    for stream in &mut streams {
        let _ = stream.write_all(&crate::blocks::block(0, 0, b"x"));
    }
    loop {
        let reply = client.reply();
        if reply.code >= 200 {
            assert_eq!(reply.code, 426, "{}", reply.text);
            break;
        }
    }
}

#[test]
fn disabled_commands() {
    let server =
        Fixture::with(|config, _| config.disabled_commands = vec!["DELE".into(), "site rdel".into()]);
    server.write("f", "x");
    let mut client = server.login();
    assert_eq!(client.command("DELE /f", 500), "500 Command not supported.");
    client.command("SITE RDEL /f", 500);
    assert!(server.exists("f"));
}
