//! The driver against programs with libudt, in both roles. The programs are compiled from
//! `tests/libudt/peer.cpp`.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_tests::peers;
use ropewalk_transport::{Connection, Driver, Options};
use ropewalk_udt_driver::Udt;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
const PATIENCE: Duration = Duration::from_secs(60);

fn byte_at(index: usize) -> u8 {
    ((7 * index) >> 3) as u8
}

fn stream(length: usize) -> Vec<u8> {
    (0..length).map(byte_at).collect()
}

/// Compiles the peer once for all tests. `None` if that is not possible here.
fn peer_program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        if !Path::new("/usr/include/udt/udt.h").exists() || peers::find("c++").is_none() {
            peers::skip("not installed: a compiler for C++, or libudt (Debian: g++ libudt-dev)");
            return None;
        }
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libudt-peer");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/libudt/peer.cpp");
        let compiled = Command::new("c++")
            .args(["-O1", "-o"])
            .args([&program, &source])
            .args(["-ludt", "-lpthread"])
            .status()
            .unwrap();
        assert!(compiled.success());
        Some(program)
    });
    program.as_deref()
}

/// The work of a peer with libudt.
#[derive(Clone, Copy)]
struct Work {
    ip: IpAddr,
    send: usize,
    /// `None` is to receive until the end of the connection.
    receive: Option<usize>,
    mss: u32,
}

impl Work {
    fn start(&self, role: &str, port: u16) -> Peer {
        let family = if self.ip.is_ipv4() { "4" } else { "6" };
        let receive = self.receive.map_or("-1".to_owned(), |bytes| bytes.to_string());
        let child = Command::new(peer_program().unwrap())
            .args([role, family, &port.to_string(), &self.send.to_string(), &receive, &self.mss.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Peer::new(child)
    }
}

struct Peer {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Peer {
    fn new(mut child: Child) -> Self {
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Waits for the end of the program, and returns how many bytes it has received.
    fn received(mut self) -> usize {
        let line = self.line();
        assert!(self.child.wait().unwrap().success(), "{line}");
        line.strip_prefix("received ").unwrap().parse().unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends `send` bytes and receives all that the peer sends, both at the same time, on one thread.
fn exchange(connection: &mut dyn Connection, send: usize, receive: usize, finishes: bool) {
    let data = stream(send);
    let mut sent = 0;
    let mut received = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    let deadline = Instant::now() + PATIENCE;
    connection.set_time_limit(Duration::from_millis(2)).unwrap();
    while sent < send || received.len() < receive {
        assert!(
            Instant::now() < deadline,
            "sent {sent}, received {}: {:?}",
            received.len(),
            connection.stats()
        );
        if sent < send {
            match connection.write(&data[sent..]) {
                Ok(n) => sent += n,
                Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock),
            }
        }
        if received.len() < receive {
            match connection.read(&mut buffer) {
                Ok(0) => panic!("the stream ends after {} bytes", received.len()),
                Ok(n) => received.extend_from_slice(&buffer[..n]),
                Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock, "{e}"),
            }
        }
    }
    connection.set_time_limit(PATIENCE).unwrap();
    if finishes {
        connection.finish().unwrap();
    }
    assert_eq!(connection.read_to_end(&mut received).unwrap(), 0);
    assert!(received == stream(receive));
}

fn connect(to: SocketAddr) -> Box<dyn Connection> {
    Udt.connect(to.into(), &Options::default(), PATIENCE).unwrap()
}

/// Exchanges bytes with a listener that has libudt, which ends the connection unless `finishes`.
fn with_listener(work: Work, send: usize, finishes: bool) {
    let mut peer = work.start("listen", 0);
    let port = peer.line().parse().unwrap();
    let mut connection = connect(SocketAddr::new(work.ip, port));
    exchange(&mut *connection, send, work.send, finishes);
    assert_eq!(peer.received(), send);
}

/// Exchanges bytes with a connector that has libudt.
fn with_connector(work: Work, send: usize, finishes: bool) {
    let listener = Udt.listen((work.ip, 0).into(), &Options::default()).unwrap();
    let peer = work.start("connect", listener.local_addr().unwrap().socket().unwrap().port());
    let mut connection = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
    exchange(&mut *connection, send, work.send, finishes);
    assert_eq!(peer.received(), send);
}

fn with_both(work: Work, send: usize) {
    for finishes in [true, false] {
        let receive = if finishes { None } else { Some(send) };
        with_listener(Work { receive, ..work }, send, finishes);
        with_connector(Work { receive, ..work }, send, finishes);
    }
}

#[test]
fn bytes_to_and_from_libudt_are_equal_for_any_length() {
    if peer_program().is_none() {
        return;
    }
    for length in [0, 1, 1455, 1456, 1457, 100_000] {
        with_both(Work { ip: V4, send: length, receive: None, mss: 1500 }, length);
    }
}

#[test]
fn many_bytes_in_both_directions_at_once_are_equal() {
    if peer_program().is_none() {
        return;
    }
    with_both(Work { ip: V4, send: 20_000_000, receive: None, mss: 1500 }, 20_000_000);
}

#[test]
fn many_bytes_over_ipv6_and_small_packets_are_equal() {
    if peer_program().is_none() {
        return;
    }
    with_both(Work { ip: V6, send: 3_000_000, receive: None, mss: 1500 }, 3_000_000);
    with_both(Work { ip: V4, send: 200_000, receive: None, mss: 92 }, 200_000);
    with_both(Work { ip: V4, send: 3_000_000, receive: None, mss: 9000 }, 3_000_000);
}

/// A relay between one connector and a listener that drops one packet of one direction.
struct Proxy {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Proxy {
    fn start(listener: SocketAddr, drops: usize, from_connector: bool) -> Self {
        let front = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let back = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        back.connect(listener).unwrap();
        let address = front.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let short = Some(Duration::from_millis(50));
        let connector = Arc::new(OnceLock::new());
        for forward in [true, false] {
            let (front, back) = (front.try_clone().unwrap(), back.try_clone().unwrap());
            let (stop, connector) = (stop.clone(), connector.clone());
            thread::spawn(move || {
                let (from, to) = if forward { (&front, &back) } else { (&back, &front) };
                from.set_read_timeout(short).unwrap();
                let mut buffer = [0; 65536];
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    let Ok((n, source)) = from.recv_from(&mut buffer) else { continue };
                    count += 1;
                    if forward == from_connector && count == drops {
                        continue;
                    }
                    // The peer may be gone.
                    let _ = if forward {
                        connector.get_or_init(|| source);
                        to.send(&buffer[..n])
                    } else {
                        to.send_to(&buffer[..n], connector.get().unwrap())
                    };
                }
            });
        }
        Self { address, stop }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn transfer_that_loses_any_one_of_the_first_packets_succeeds() {
    if peer_program().is_none() {
        return;
    }
    thread::scope(|scope| {
        for from_connector in [true, false] {
            for drops in 1..=12 {
                scope.spawn(move || {
                    let work = Work { ip: V4, send: 20_000, receive: None, mss: 1500 };
                    let mut peer = work.start("listen", 0);
                    let listener = SocketAddr::new(V4, peer.line().parse().unwrap());
                    let proxy = Proxy::start(listener, drops, from_connector);
                    let mut connection = connect(proxy.address);
                    exchange(&mut *connection, 20_000, 20_000, true);
                    assert_eq!(peer.received(), 20_000, "{drops} {from_connector}");

                    let listener = Udt.listen((V4, 0).into(), &Options::default()).unwrap();
                    let proxy =
                        Proxy::start(listener.local_addr().unwrap().socket().unwrap(), drops, from_connector);
                    let peer = work.start("connect", proxy.address.port());
                    let mut connection = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
                    exchange(&mut *connection, 20_000, 20_000, true);
                    assert_eq!(peer.received(), 20_000, "{drops} {from_connector}");
                });
            }
        }
    });
}
