//! The end of the server, and new settings.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use crate::client::Client;
use crate::fixture::{Fixture, config};

#[test]
fn drain_closes_idle_sessions_and_lets_transfers_finish() {
    let mut server = Fixture::new();
    let mut idle = server.login();
    let mut busy = server.login();
    let mut data = busy.data();
    busy.command("STOR /f", 150);
    server.handle.drain();
    idle.expect(421);
    idle.expect_end();
    crate::uploads::wait_for(|| TcpStream::connect(server.address).is_err());
    data.write_all(b"abc").unwrap();
    drop(data);
    busy.expect(226);
    busy.expect(421);
    busy.expect_end();
    server.join();
    assert_eq!(server.read("f"), b"abc");
}

#[test]
fn drain_after_grace_ends_transfers_with_restart_marker() {
    let mut server = Fixture::with(|config, _| config.timeouts.drain = Duration::from_millis(50));
    let mut client = server.login();
    crate::blocks::mode_e(&mut client);
    let mut data = crate::client::connect(client.pasv());
    client.send("STOR /f");
    data.write_all(&crate::blocks::block(0, 0, b"abcd")).unwrap();
    client.expect(150);
    client.expect(112);
    crate::uploads::wait_for(|| {
        std::fs::metadata(server.root().join(".f.ropewalk-part")).is_ok_and(|part| part.len() == 4)
    });
    server.handle.drain();
    client.expect(112);
    assert_eq!(client.expect(111), "111 Range Marker 0-4");
    client.expect(451);
    client.expect(421);
    client.expect_end();
    server.join();
}

#[test]
fn stop_ends_transfers_at_once() {
    let mut server = Fixture::new();
    let mut client = server.login();
    let _data = client.data();
    client.command("STOR /f", 150);
    let _idle = server.login();
    server.handle.stop();
    server.join();
}

#[test]
fn reload_applies_to_new_sessions() {
    let server = Fixture::new();
    let mut old = server.connect();
    let mut new = config(&server.root());
    new.banner = Some("fresh".into());
    new.anonymous.as_mut().unwrap().names = vec!["guest".into()];
    server.handle.reload(new.clone()).unwrap();
    let mut client = Client::open(server.address);
    assert_eq!(client.expect(220), "220 fresh");
    client.login("guest", "x");
    old.login("anonymous", "x");
    // Wrong settings are refused, and change nothing.
    new.anonymous = None;
    assert!(server.handle.reload(new).is_err());
    server.connect().login("guest", "x");
}
