//! The memory of idle sessions.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use ropewalk_server::{AnonymousAccess, Config, Server};

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * rustix::param::page_size() as u64
}

#[test]
fn idle_session_needs_less_than_20_kib() {
    const SESSIONS: usize = 2000;
    let directory = tempfile::tempdir().unwrap();
    let mut config = Config::quick(
        SocketAddr::from(([127, 0, 0, 1], 0)),
        Some(AnonymousAccess::default()),
        directory.path(),
    );
    config.hostname = Some("test".into());
    let server = Server::bind(config).unwrap();
    let (address, handle) = (server.local_addrs()[0], server.handle());
    let thread = std::thread::spawn(move || server.run().unwrap());
    let connect = || {
        let mut stream = TcpStream::connect(address).unwrap();
        // Greeting, and the answers to each line.
        for line in ["", "USER ftp\r\n", "PASS x\r\n", "TYPE I\r\n", "CWD /\r\n"] {
            stream.write_all(line.as_bytes()).unwrap();
            assert!(stream.read(&mut [0; 100]).unwrap() > 0);
        }
        stream
    };
    // The first session allocates what is needed once.
    let first = connect();
    let before = resident();
    let sessions: Vec<_> = (0..SESSIONS).map(|_| connect()).collect();
    let each = resident().saturating_sub(before) / SESSIONS as u64;
    assert_eq!(handle.sessions(), SESSIONS + 1);
    println!("{each} bytes a session");
    assert!(each < 20 << 10, "{each} bytes a session");
    drop((first, sessions));
    handle.stop();
    thread.join().unwrap();
}
