//! The TCP driver over loopback: the contract of drivers, socket options, and limits.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use ropewalk_transport::{
    Connection, Driver, Options, Tcp, TcpInfo, Tuning, Wait, congestion, local_address, testing,
};
use rustix::event::PollFlags;
use rustix::net::sockopt;

const V4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0);
const PATIENCE: Duration = Duration::from_secs(10);

fn tuned(tuning: Tuning) -> Options {
    Options { tuning, ..Options::default() }
}

#[test]
fn tcp_over_ipv4_keeps_the_contract() {
    testing::contract(&Tcp, V4);
}

#[test]
fn tcp_over_ipv6_keeps_the_contract() {
    testing::contract(&Tcp, V6);
}

#[test]
fn listener_for_both_families_reports_plain_ipv4() {
    let listener = Tcp.listen((Ipv6Addr::UNSPECIFIED, 0).into(), &Options::default()).unwrap();
    let to = SocketAddr::new(V4.ip(), listener.local_addr().unwrap().socket().unwrap().port());
    let near = Tcp.connect(to.into(), &Options::default(), PATIENCE).unwrap();
    let far = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
    assert_eq!(far.peer_addr().unwrap().socket().unwrap(), near.local_addr().unwrap().socket().unwrap());
    assert!(far.peer_addr().unwrap().socket().unwrap().is_ipv4());
}

/// Of very many connections, those beyond the limit are closed at once.
#[test]
fn turn_away_returns_a_limited_number_of_connections() {
    let listener = Tcp.listen(V4.into(), &Options::default()).unwrap();
    let to = listener.local_addr().unwrap().socket().unwrap();
    let connect = || Tcp.connect(to.into(), &Options::default(), PATIENCE).unwrap();
    // Some kernels queue no more than 128 connections.
    let mut near: Vec<_> = (0..100).map(|_| connect()).collect();
    let held = listener.turn_away();
    assert_eq!(held.len(), 64);
    assert!(listener.accept(Instant::now()).unwrap().is_none());
    drop(held);
    let mut rest = Vec::new();
    assert!(near.iter_mut().all(|near| near.read_to_end(&mut rest).is_ok()) && rest.is_empty());
}

/// A range of two ports, at least one of which was free a moment ago.
fn some_range() -> (u16, u16) {
    let port =
        Tcp.listen(V4.into(), &Options::default()).unwrap().local_addr().unwrap().socket().unwrap().port();
    if port == u16::MAX { (port - 1, port) } else { (port, port + 1) }
}

#[test]
fn listen_uses_the_port_range_until_it_is_used_up() {
    let range = some_range();
    let options = Options { ports: Some(range), ..Options::default() };
    let mut listeners = Vec::new();
    let error = loop {
        match Tcp.listen(V4.into(), &options) {
            Ok(listener) => {
                let port = listener.local_addr().unwrap().socket().unwrap().port();
                assert!((range.0..=range.1).contains(&port));
                listeners.push(listener);
                assert!(listeners.len() <= 2);
            }
            Err(e) => break e,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn connect_uses_the_port_range_and_address() {
    let listener = Tcp.listen(V4.into(), &Options::default()).unwrap();
    let to = listener.local_addr().unwrap().socket().unwrap();
    let range = some_range();
    let bind = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    let options = Options { ports: Some(range), bind: Some(bind), ..Options::default() };
    let first = Tcp.connect(to.into(), &options, PATIENCE).unwrap();
    let second = Tcp.connect(to.into(), &options, PATIENCE).unwrap();
    for connection in [&first, &second] {
        let local = connection.local_addr().unwrap().socket().unwrap();
        assert_eq!(local.ip(), bind);
        assert!((range.0..=range.1).contains(&local.port()));
    }
    let kind = Tcp.connect(to.into(), &options, PATIENCE).err().unwrap().kind();
    assert!(matches!(kind, io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable), "{kind}");
}

#[test]
fn socket_options_apply_to_both_sides() {
    // If possible, another congestion control than the default within this host.
    let asked = congestion::allowed().into_iter().find(|name| name != "reno").unwrap_or("reno".into());
    let options = tuned(Tuning {
        send_buffer: Some(100_000),
        receive_buffer: Some(50_000),
        congestion: Some(asked.clone()),
        ..Tuning::default()
    });
    let listener = Tcp.listen(V4.into(), &options).unwrap();
    let near =
        Tcp.connect(listener.local_addr().unwrap().socket().unwrap().into(), &options, PATIENCE).unwrap();
    let far = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
    for connection in [&near, &far] {
        let fd = connection.fast_path().socket().unwrap();
        assert!(sockopt::tcp_nodelay(fd).unwrap());
        assert!(sockopt::socket_keepalive(fd).unwrap());
        // Linux doubles the requested size.
        assert_eq!(sockopt::socket_send_buffer_size(fd).unwrap(), 200_000);
        assert_eq!(sockopt::socket_recv_buffer_size(fd).unwrap(), 100_000);
        assert_eq!(sockopt::tcp_congestion(fd).unwrap(), asked);
    }
    far.tune(&Tuning { receive_buffer: Some(70_000), ..Tuning::default() });
    assert_eq!(sockopt::socket_recv_buffer_size(far.fast_path().socket().unwrap()).unwrap(), 140_000);
    assert_eq!(sockopt::socket_send_buffer_size(far.fast_path().socket().unwrap()).unwrap(), 200_000);
}

#[test]
fn connections_within_this_host_use_reno() {
    for to in [V4, V6] {
        let listener = Tcp.listen(to.into(), &Options::default()).unwrap();
        let to = listener.local_addr().unwrap().socket().unwrap();
        let near = Tcp.connect(to.into(), &Options::default(), PATIENCE).unwrap();
        let far = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
        for fd in [near.fast_path().socket().unwrap(), far.fast_path().socket().unwrap()] {
            assert_eq!(sockopt::tcp_congestion(fd).unwrap(), "reno");
        }
    }
    // The same for the external address of this host, if there is one. No packet is sent to find
    // it.
    if let Ok(own) = local_address("192.0.2.1:9".parse().unwrap()) {
        let listener = Tcp.listen(SocketAddr::new(own, 0).into(), &Options::default()).unwrap();
        let to = listener.local_addr().unwrap().socket().unwrap();
        let near = Tcp.connect(to.into(), &Options::default(), PATIENCE).unwrap();
        assert_eq!(sockopt::tcp_congestion(near.fast_path().socket().unwrap()).unwrap(), "reno");
    }
    // A listener that may get connections from elsewhere uses the host's default.
    let everywhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    let listener = Tcp.listen(everywhere.into(), &Options::default()).unwrap();
    let own = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    assert_eq!(sockopt::tcp_congestion(listener.readiness().0).unwrap(), own.trim());
}

#[test]
fn buffers_beyond_an_int_become_the_largest_possible() {
    let of = |bytes| {
        let options =
            tuned(Tuning { send_buffer: Some(bytes), receive_buffer: Some(bytes), ..Tuning::default() });
        let listener = Tcp.listen(V4.into(), &options).unwrap();
        let near =
            Tcp.connect(listener.local_addr().unwrap().socket().unwrap().into(), &options, PATIENCE).unwrap();
        let sizes = |fd: std::os::fd::BorrowedFd<'_>| {
            (sockopt::socket_send_buffer_size(fd).unwrap(), sockopt::socket_recv_buffer_size(fd).unwrap())
        };
        let made = sizes(near.fast_path().socket().unwrap());
        near.tune(&options.tuning);
        (made, sizes(near.fast_path().socket().unwrap()))
    };
    assert_eq!(of(1 << 32), of(1 << 30));
}

#[test]
fn unknown_congestion_control_changes_nothing() {
    let options = tuned(Tuning { congestion: Some("no-such".into()), ..Tuning::default() });
    let listener = Tcp.listen(V4.into(), &options).unwrap();
    let near =
        Tcp.connect(listener.local_addr().unwrap().socket().unwrap().into(), &options, PATIENCE).unwrap();
    let own = sockopt::tcp_congestion(near.fast_path().socket().unwrap()).unwrap();
    assert!(congestion::available().contains(&own), "{own}");
    let choose = |name: &str| near.tune(&Tuning { congestion: Some(name.into()), ..Tuning::default() });
    choose("another\0");
    choose(&"long".repeat(50));
    assert_eq!(sockopt::tcp_congestion(near.fast_path().socket().unwrap()).unwrap(), own);
    // Every kernel has it and allows it.
    choose("reno");
    assert_eq!(sockopt::tcp_congestion(near.fast_path().socket().unwrap()).unwrap(), "reno");
}

struct GiveUp;

impl Wait for GiveUp {
    fn wait(&mut self, _: BorrowedFd<'_>, _: PollFlags, _: Instant) -> io::Result<bool> {
        Err(io::ErrorKind::Interrupted.into())
    }
}

#[test]
fn connect_waiting_can_be_aborted() {
    // The backlog of the listener fills up because no connection is accepted, and connecting then
    // has to wait. On loopback it may also succeed at once.
    let listener = Tcp.listen(V4.into(), &Options::default()).unwrap();
    let to = listener.local_addr().unwrap().socket().unwrap();
    match Tcp.connect_waiting(to.into(), &Options::default(), PATIENCE, &mut GiveUp) {
        Ok(_) => {}
        Err(e) => assert_eq!(e.kind(), io::ErrorKind::Interrupted),
    }
}

#[test]
fn info_returns_the_statistics_of_the_kernel() {
    let (mut near, mut far) = testing::pair(&Tcp, V4);
    near.write_all(&[1; 5000]).unwrap();
    near.finish().unwrap();
    far.read_to_end(&mut Vec::new()).unwrap();
    let of = |connection: &dyn Connection| TcpInfo::of(connection.fast_path().socket().unwrap()).unwrap();
    let info = of(&*near);
    assert!(info.mss > 0 && info.congestion_window > 0);
    assert_eq!(info.bytes_sent, Some(5000));
    // The FIN counts as one byte.
    assert!((5000..=5001).contains(&of(&*far).bytes_received.unwrap()));
    let stats = near.stats().unwrap();
    assert_eq!(stats.congestion_window, u64::from(info.congestion_window) * u64::from(info.mss));
    assert!(stats.rtt.is_some() && stats.sent > 0 && stats.delivered >= Some(5000));
    assert!(stats.send_buffer > Some(0) && stats.receive_buffer > Some(0));
}

/// Fills a connection whose peer reads nothing until a write would block. Returns the bytes that
/// the kernel took and has not sent.
fn unsent_when_full(limit: Option<u32>) -> u64 {
    let options =
        tuned(Tuning { send_buffer: Some(4 << 20), receive_buffer: Some(64 << 10), ..Tuning::default() });
    let listener = Tcp.listen(V4.into(), &options).unwrap();
    let mut near =
        Tcp.connect(listener.local_addr().unwrap().socket().unwrap().into(), &options, PATIENCE).unwrap();
    let _far = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
    near.set_nonblocking(true).unwrap();
    if let Some(bytes) = limit {
        near.tune(&Tuning { unsent_limit: Some(bytes), ..Tuning::default() });
    }
    while near.write(&[0; 16 << 10]).is_ok() {}
    near.stats().unwrap().not_sent
}

#[test]
fn unsent_limit_blocks_before_the_send_buffer_is_full() {
    assert!(unsent_when_full(None) > 128 << 10);
    // The last write may have exceeded the limit.
    assert!(unsent_when_full(Some(16 << 10)) <= 64 << 10);
}
