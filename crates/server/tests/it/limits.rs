//! Limits of sessions and operations.

use std::net::TcpListener;

use crate::client::{Client, accept, port_command};
use crate::fixture::{Fixture, passwords};
use crate::uploads::wait_for;

const BUSY: &str =
    "421 Service busy: Connection limit exceeded. Please try again later. Closing control connection.";

#[test]
fn sessions_beyond_limit_are_refused() {
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
fn sessions_of_address_beyond_limit_are_refused() {
    let server = Fixture::with(|config, _| config.limits.sessions_per_address = 1);
    let _one = server.connect();
    assert_eq!(Client::open(server.address).expect(421), BUSY);
}

#[test]
fn sessions_of_user_beyond_limit_are_refused() {
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
fn denied_address_is_refused() {
    let server = Fixture::with(|config, _| config.access.deny = vec!["127.0.0.".parse().unwrap()]);
    Client::open(server.address).expect(421);
    let server = Fixture::with(|config, _| config.access.allow = vec!["127.0.0.0/8".parse().unwrap()]);
    server.connect();
}

#[test]
fn offline_server_refuses_sessions() {
    let server = Fixture::with(|config, _| config.offline = Some(String::new()));
    let mut client = Client::open(server.address);
    assert_eq!(client.expect(422), "422 Service temporarily offline. Closing control connection.");
    client.expect_end();
    let server = Fixture::with(|config, _| config.offline = Some("Back at noon.".into()));
    assert_eq!(Client::open(server.address).expect(422), "422 Back at noon.");
}

#[test]
fn lines_and_queues_beyond_limit_close_session() {
    let server = Fixture::with(|config, _| {
        config.limits.line_length = 1000;
        config.limits.queue = 10;
        config.timeouts.login_failure = std::time::Duration::from_secs(60);
    });
    let mut client = server.login();
    client.send_bytes(&[b'x'; 2000]);
    assert_eq!(client.expect(500), "500 Command line longer than 1000 bytes.");
    client.expect_end();

    server.write("f", "x");
    let mut client = server.login();
    client.pasv();
    // The transfer waits for its connection, and the others wait for the transfer.
    client.send("RETR /f");
    client.send_bytes("NOOP\r\n".repeat(30).as_bytes());
    while client.try_reply().is_some_and(|reply| reply.text != "500 Pipeline queue full.") {}
}

/// A client does not have to know how many streams the server takes: further ones wait for the
/// others.
#[test]
fn streams_beyond_limit_wait() {
    use std::io::Write as _;

    use crate::blocks::{EOD, EOF, block};
    let server = Fixture::with(|config, _| config.data.max_streams = 2);
    let mut client = server.login();
    crate::blocks::mode_e(&mut client);
    let address = client.pasv();
    client.send("STOR /f");
    let mut streams: Vec<_> = (0..5).map(|_| crate::client::connect(address)).collect();
    for (at, stream) in streams.iter_mut().enumerate() {
        stream.write_all(&block(0, at as u64, b"x")).unwrap();
    }
    for (at, stream) in streams.iter_mut().enumerate() {
        let end = if at == 4 { block(EOD | EOF, 5, b"") } else { block(EOD, 0, b"") };
        stream.write_all(&end).unwrap();
    }
    let last = |client: &mut crate::client::Client| loop {
        let reply = client.reply();
        if reply.code >= 200 {
            break reply;
        }
    };
    let reply = last(&mut client);
    assert_eq!(reply.code, 226, "{}", reply.text);
    assert_eq!(server.read("f"), b"xxxxx");
    // Too many connections end the transfer.
    let address = client.pasv();
    client.send("STOR /g");
    let _streams: Vec<_> = (0..129).map(|_| crate::client::connect(address)).collect();
    let reply = last(&mut client);
    assert_eq!(reply.code, 426, "{}", reply.text);
}

#[test]
fn disabled_command_is_unknown() {
    let server =
        Fixture::with(|config, _| config.disabled_commands = vec!["DELE".into(), "site rdel".into()]);
    server.write("f", "x");
    let mut client = server.login();
    assert_eq!(client.command("DELE /f", 500), "500 Command not supported.");
    client.command("SITE RDEL /f", 500);
    assert!(server.exists("f"));
}

#[test]
fn line_of_16_kib_is_accepted() {
    let server = Fixture::new();
    let mut client = server.login();
    let line = |length: usize| format!("{:x<length$}", "CWD /");
    client.command(&line(16_384), 550);
    client.send(&line(16_385));
    assert_eq!(client.expect(500), "500 Command line longer than 16384 bytes.");
    client.expect_end();
}

#[test]
fn site_fault_unless_enabled_is_unknown() {
    let server = Fixture::new();
    let mut client = server.login();
    assert_eq!(client.command("SITE FAULT NOOP", 500), "500 Invalid command.");
    assert!(!client.command("SITE HELP", 214).contains("FAULT"));
    client.command("NOOP", 200);
    let server = Fixture::with(|config, _| config.testing.faults = true);
    let mut client = server.login();
    client.command("SITE FAULT NOOP", 200);
    assert_eq!(client.command("NOOP", 501), "501 Fault requested.");
    client.command("PWD", 257);
    server.login().command("NOOP", 200);
}

/// A client that lets transfers stall keeps others from transfers for a while, but not from the
/// server.
#[test]
fn stalled_transfers_do_not_block_sessions() {
    let server = Fixture::with(|config, _| config.limits.active = 2);
    server.write("f", "abc");
    let mut stalled = [server.login(), server.login()];
    let addresses: Vec<_> = stalled
        .iter_mut()
        .map(|client| {
            let address = client.pasv();
            client.send("RETR /f");
            address
        })
        .collect();
    let mut other = server.login();
    other.command("SIZE /f", 213);
    other.command("MKD /d", 257);
    let mut data = other.data();
    other.send("RETR /f");
    other.send("NOOP");
    let mut third = server.login();
    third.command("NOOP", 200);
    // One of them continues.
    let mut first = crate::client::connect(addresses[0]);
    stalled[0].expect(150);
    std::io::copy(&mut first, &mut std::io::sink()).unwrap();
    stalled[0].expect(226);
    other.expect(150);
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut data, &mut bytes).unwrap();
    assert_eq!(bytes, b"abc");
    other.expect(226);
    other.expect(200);
}

/// This holds for any number of stalled transfers of one address.
#[test]
fn permits_are_left_for_another_address() {
    let server = Fixture::with(|config, _| config.limits.active = 4);
    server.write("f", "abc");
    let mut stalled: Vec<_> = (0..8).map(|_| server.login()).collect();
    for client in &mut stalled {
        client.pasv();
        client.send("RETR /f");
    }
    let mut other = Client::connect_from([127, 0, 0, 2].into(), server.address);
    other.login("anonymous", "x@");
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    other.command(&port_command(listener.local_addr().unwrap()), 200);
    other.send("RETR /f");
    let mut data = accept(&listener);
    other.expect(150);
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut data, &mut bytes).unwrap();
    assert_eq!(bytes, b"abc");
    other.expect(226);
}

/// A client that closes its side early still gets all replies.
#[test]
fn waiting_session_of_dead_client_ends() {
    let server = Fixture::with(|config, _| {
        config.limits.active = 1;
        config.data.connect_timeout = std::time::Duration::from_secs(600);
    });
    server.write("f", "abc");
    let mut stalled = server.login();
    let address = stalled.pasv();
    stalled.send("RETR /f");
    let mut gone: Vec<_> = (0..5).map(|_| server.login()).collect();
    for client in &mut gone {
        client.pasv();
        client.send("RETR /f");
    }
    let mut last = server.login();
    let mut data = last.data();
    last.send("RETR /f\r\nQUIT");
    last.shut();
    wait_for(|| server.handle.sessions() == 7);
    drop(gone);
    wait_for(|| server.handle.sessions() == 2);
    let mut first = crate::client::connect(address);
    stalled.expect(150);
    std::io::copy(&mut first, &mut std::io::sink()).unwrap();
    stalled.expect(226);
    last.expect(150);
    std::io::copy(&mut data, &mut std::io::sink()).unwrap();
    last.expect(226);
    last.expect(221);
}

#[test]
fn waiting_session_at_server_end_gets_reply() {
    let mut server = Fixture::with(|config, _| config.limits.active = 1);
    server.write("f", "abc");
    let mut clients = [server.login(), server.login(), server.login()];
    for client in &mut clients {
        client.pasv();
        client.send("RETR /f");
    }
    server.handle.stop();
    for client in &mut clients {
        let mut last = 0;
        while let Some(reply) = client.try_reply() {
            last = reply.code;
        }
        assert_eq!(last, 421);
    }
    server.join();
}

#[test]
fn waiting_operation_can_be_aborted() {
    let server = Fixture::with(|config, _| config.limits.active = 1);
    server.write("f", "abc");
    let mut stalled = server.login();
    let address = stalled.pasv();
    stalled.send("RETR /f");
    let mut other = server.login();
    let mut next = server.login();
    other.pasv();
    other.send("RETR /f");
    let mut data = next.data();
    next.send("RETR /f");
    next.send("NOOP");
    other.send("ABOR");
    other.expect(426);
    other.expect(226);
    other.command("NOOP", 200);
    // The last command counts, however late it is read.
    other.pasv();
    other.send("RETR /f");
    let mut first = crate::client::connect(address);
    other.send("ABOR");
    stalled.expect(150);
    std::io::copy(&mut first, &mut std::io::sink()).unwrap();
    stalled.expect(226);
    next.expect(150);
    std::io::copy(&mut data, &mut std::io::sink()).unwrap();
    next.expect(226);
    next.expect(200);
    other.expect(426);
    other.expect(226);
}

/// Uploads that wait for a file of another one wait only for a moment, and do not block short
/// operations.
#[test]
fn retried_renames_hold_no_thread() {
    let server = Fixture::with(|config, _| config.limits.active = 1);
    let mut writer = server.login();
    let mut data = writer.data();
    writer.command("STOR /f", 150);
    std::io::Write::write_all(&mut data, b"abc").unwrap();
    wait_for(|| server.exists(".f.ropewalk-part"));
    let mut waiting: Vec<_> = (0..100).map(|_| server.login()).collect();
    let mut other = server.login();
    for client in &mut waiting {
        client.command("RNFR /.f.ropewalk-part", 350);
        client.send("RNTO /g");
    }
    let begun = std::time::Instant::now();
    for client in &mut waiting {
        other.command("NOOP", 200);
        client.expect(451);
    }
    // One after the other they would take a second each.
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    drop(data);
    writer.expect(226);
}
