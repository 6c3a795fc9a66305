//! Peers that stop reading or writing.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_tests::client::{Client, Copy, Mode};
use ropewalk_tests::control::connect_data;
use ropewalk_tests::files;
use ropewalk_tests::proxy::Proxy;

use crate::fixture::{Fixture, SOON};

#[test]
fn stalled_reader_is_aborted() {
    let mut fixture = Fixture::new().unwrap();
    files::write_random(&fixture.root.join("large"), 64 << 20, 1).unwrap();
    let mut control = fixture.log_in().unwrap();
    let address = control.passive().unwrap();
    control.send("RETR /large").unwrap();
    let _data = TcpStream::connect(address).unwrap();
    let reply = control.final_reply().unwrap();
    assert!((400..600).contains(&reply.code), "{reply:?}");
    control.expect("NOOP", 200).unwrap();
    fixture.still_serves().unwrap();
}

#[test]
fn stalled_writer_is_aborted_without_file() {
    let mut fixture = Fixture::new().unwrap();
    let mut control = fixture.log_in().unwrap();
    let address = control.passive().unwrap();
    control.send("STOR /stalled").unwrap();
    let mut data = connect_data(address).unwrap();
    data.write_all(b"the beginning").unwrap();
    let reply = control.final_reply().unwrap();
    assert!((400..600).contains(&reply.code), "{reply:?}");
    assert_eq!(fixture.visible().unwrap(), ["known"]);
    fixture.still_serves().unwrap();
}

#[test]
fn data_port_without_connection_times_out() {
    let mut fixture = Fixture::new().unwrap();
    for command in ["RETR /known", "STOR /nobody", "MLSD /"] {
        let mut control = fixture.log_in().unwrap();
        control.passive().unwrap();
        let reply = control.command(command).unwrap();
        assert!((400..600).contains(&reply.code), "{command}: {reply:?}");
        control.expect("NOOP", 200).unwrap();
    }
    assert_eq!(fixture.visible().unwrap(), ["known"]);
    fixture.still_serves().unwrap();
}

#[test]
fn active_port_without_listener_fails() {
    let mut fixture = Fixture::new().unwrap();
    let mut control = fixture.log_in().unwrap();
    drop(control.listen_for_data().unwrap());
    let reply = control.command("RETR /known").unwrap();
    assert!((400..600).contains(&reply.code), "{reply:?}");
    control.expect("NOOP", 200).unwrap();
    fixture.still_serves().unwrap();
}

#[test]
fn client_resumes_stalled_transfer() {
    let fixture = Arc::new(Fixture::new().unwrap());
    let size = 24_000_001;
    files::write_random(&fixture.root.join("large"), size, 2).unwrap();
    for mode in [Mode::Stream, Mode::Extended(4)] {
        let proxy = Proxy::start(fixture.server.address()).unwrap();
        proxy.set_rate(Some(60_000_000));
        let copy = fixture.scratch.join("copy");
        let url = fixture.server.url_at(proxy.address(), "large");
        let job = Copy::new(url, Client::Ropewalk.local(&copy, false))
            .mode(mode)
            .argument("--stall-limit=1KiB/2s")
            .argument("--retry-pause=100ms");
        let mut running = Client::Ropewalk.start(&job).unwrap();
        proxy.wait_for(size / 2, SOON).unwrap();
        proxy.stall(true);
        std::thread::sleep(Duration::from_secs(4));
        proxy.stall(false);
        let status = running.wait(SOON).unwrap();
        assert!(status.success(), "{mode:?}: {}", running.log());
        files::ensure_same(&fixture.root.join("large"), &copy).unwrap();
        std::fs::remove_file(copy).unwrap();
    }
}

#[test]
fn client_fails_when_everything_stalls() {
    let fixture = Fixture::new().unwrap();
    files::write_random(&fixture.root.join("large"), 24_000_001, 2).unwrap();
    let proxy = Proxy::start(fixture.server.address()).unwrap();
    proxy.stall(true);
    let copy = fixture.scratch.join("copy");
    let url = fixture.server.url_at(proxy.address(), "large");
    let job = Copy::new(url, Client::Ropewalk.local(&copy, false))
        .argument("--stall-limit=1KiB/1s")
        .argument("--retries=0");
    let outcome = Client::Ropewalk.run(&Copy { limit: SOON, ..job }).unwrap().failed().unwrap();
    // Exit code 8 means stalled; the server's timeout is as short, so it may detect the stall
    // first.
    assert!(matches!(outcome.status.code(), Some(8 | 9)), "{}: {}", outcome.status, outcome.text());
    assert!(!copy.exists(), "a stalled transfer left a file that looks whole");
}
