//! Many connections, and connections that end at bad moments.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_tests::control::Control;
use ropewalk_tests::process::memory_of;

use crate::fixture::Fixture;

#[test]
fn thousand_connections_without_login_do_no_harm() {
    let mut fixture = Fixture::new().unwrap();
    fixture.still_serves().unwrap();
    let before = fixture.memory().unwrap();
    let mut silent = Vec::new();
    for number in 0..1000 {
        let mut stream = TcpStream::connect(fixture.server.address()).unwrap();
        if number % 2 == 0 {
            // Half a command.
            stream.write_all(b"USER anon").unwrap();
        }
        silent.push(stream);
    }
    // These connections stay for 20 seconds, and other clients must not have to wait for that.
    let begin = Instant::now();
    fixture.still_serves().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(15), "a client had to wait {:?}", begin.elapsed());
    let grown = fixture.memory().unwrap().saturating_sub(before);
    assert!(grown < 40 << 20, "1000 silent connections took {grown} bytes");
    let threads = std::fs::read_dir(format!("/proc/{}/task", fixture.server.pid())).unwrap().count();
    assert!(threads < 100, "{threads} threads for silent connections");
    drop(silent);
    fixture.still_serves().unwrap();
}

#[test]
fn connection_without_login_is_closed() {
    let mut fixture = Fixture::new().unwrap();
    let mut control = Control::connect(fixture.server.address()).unwrap();
    // The fixture's limit is 20 seconds; RFC 959 defines 421 for this.
    control.stream().set_read_timeout(Some(Duration::from_secs(40))).unwrap();
    let reply = control.reply().unwrap();
    assert_eq!(reply.code, 421, "{reply:?}");
    assert!(control.is_closed());
    fixture.still_serves().unwrap();
}

#[test]
fn broken_sessions_leave_no_descriptors() {
    let mut fixture = Fixture::new().unwrap();
    fixture.still_serves().unwrap();
    let open =
        |fixture: &Fixture| std::fs::read_dir(format!("/proc/{}/fd", fixture.server.pid())).unwrap().count();
    let before = open(&fixture);
    for round in 0..100 {
        let mut control = fixture.log_in().unwrap();
        let address = control.passive().unwrap();
        match round % 4 {
            0 => {}
            1 => control.send("RETR /known").unwrap(),
            2 => {
                control.send("STOR /broken").unwrap();
                let mut data = TcpStream::connect(address).unwrap();
                data.write_all(b"some").unwrap();
            }
            _ => {
                control.send("RETR /known").unwrap();
                drop(TcpStream::connect(address).unwrap());
            }
        }
    }
    let end = Instant::now() + Duration::from_secs(20);
    while open(&fixture) > before + 2 {
        assert!(Instant::now() < end, "{} descriptors are open, {before} were before", open(&fixture));
        thread::sleep(Duration::from_millis(50));
    }
    fixture.still_serves().unwrap();
    let memory = memory_of(fixture.server.pid(), "VmRSS").unwrap();
    assert!(memory < 200 << 20, "{memory} bytes");
}

#[test]
fn abor_ends_transfer_and_keeps_session() {
    let mut fixture = Fixture::new().unwrap();
    std::fs::write(fixture.root.join("large"), vec![7; 64 << 20]).unwrap();
    let mut control = fixture.log_in().unwrap();
    let address = control.passive().unwrap();
    control.send("RETR /large").unwrap();
    // The test reads no data, so the transfer cannot end by itself.
    let data = TcpStream::connect(address).unwrap();
    assert_eq!(control.reply().unwrap().code, 150);
    control.send("ABOR").unwrap();
    // RFC 959, section 4.1.3: 426 for the transfer, then 226 for ABOR.
    assert_eq!(control.reply().unwrap().code, 426);
    assert_eq!(control.reply().unwrap().code, 226);
    drop(data);
    control.expect("NOOP", 200).unwrap();
    let (content, reply) = control.retrieve("/known").unwrap();
    assert_eq!((content.len(), reply.code), (300_000, 226));
    fixture.still_serves().unwrap();
}

#[test]
fn data_connection_from_other_address_is_refused() {
    let mut fixture = Fixture::new().unwrap();
    let mut control = fixture.log_in().unwrap();
    let address = control.passive().unwrap();
    // From another address than that of the control connection.
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
    let connected = rustix::net::connect(&socket, &address);
    control.send("RETR /known").unwrap();
    if connected.is_ok() {
        let mut stranger = TcpStream::from(socket);
        stranger.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut taken = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stranger, &mut taken);
        assert!(taken.is_empty(), "a stranger got {} bytes", taken.len());
    }
    fixture.still_serves().unwrap();
}
