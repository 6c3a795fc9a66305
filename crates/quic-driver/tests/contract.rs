//! The QUIC driver over loopback keeps the contract of drivers.

#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_quic_driver::Quic;
use ropewalk_transport::{Driver, Options, Tuning, testing};

const V4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0);
const PATIENCE: Duration = Duration::from_secs(30);

fn quic() -> Quic {
    Quic::default()
}

#[test]
fn quic_over_ipv4_keeps_the_contract() {
    testing::contract(&quic(), V4);
}

#[test]
fn quic_over_ipv6_keeps_the_contract() {
    testing::contract(&quic(), V6);
}

#[test]
fn listener_with_many_connections_keeps_them_apart() {
    // More than those that need not prove their address.
    const CONNECTIONS: u8 = 60;
    let listener = quic().listen(V4.into(), &Options::default()).unwrap();
    let to = listener.local_addr().unwrap();
    thread::scope(|scope| {
        for number in 0..CONNECTIONS {
            let to = to.clone();
            scope.spawn(move || {
                let mut near = quic().connect(to, &Options::default(), PATIENCE).unwrap();
                near.set_time_limit(PATIENCE).unwrap();
                near.write_all(&[number; 10_000]).unwrap();
                near.finish().unwrap();
                let mut back = Vec::new();
                near.read_to_end(&mut back).unwrap();
                assert_eq!(back, [number; 10_000]);
            });
        }
        for _ in 0..CONNECTIONS {
            let mut far = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
            scope.spawn(move || {
                far.set_time_limit(PATIENCE).unwrap();
                let mut all = Vec::new();
                far.read_to_end(&mut all).unwrap();
                far.write_all(&all).unwrap();
            });
        }
    });
}

#[test]
fn datagrams_that_make_no_sense_do_not_disturb_a_listener() {
    let listener = quic().listen(V4.into(), &Options::default()).unwrap();
    let to = listener.local_addr().unwrap().socket().unwrap();
    let socket = UdpSocket::bind(V4).unwrap();
    for length in (0..200_usize).chain([1200, 1500, 9000]) {
        // Long headers of a known and of an unknown version, and short headers.
        for start in [&[][..], &[0xc0, 0, 0, 0, 1, 8], &[0xff, 1, 2, 3, 4, 20], &[0x40]] {
            let mut datagram = vec![u8::try_from(length % 256).unwrap(); length];
            for (byte, first) in datagram.iter_mut().zip(start) {
                *byte = *first;
            }
            socket.send_to(&datagram, to).unwrap();
        }
    }
    let mut near = quic().connect(to.into(), &Options::default(), PATIENCE).unwrap();
    let mut far = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
    near.write_all(b"hello").unwrap();
    let mut back = [0; 5];
    far.set_time_limit(PATIENCE).unwrap();
    far.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"hello");
}

#[test]
fn garbage_from_the_address_of_a_peer_does_not_disturb_a_connection() {
    let relay = Relay::start(|number, datagram| {
        let mut garbage = datagram.to_vec();
        garbage.iter_mut().skip(usize::try_from(number % 30).unwrap()).for_each(|byte| *byte ^= 0x5a);
        vec![garbage, datagram.to_vec()]
    });
    relay.carries(3_000_000);
}

#[test]
fn lost_repeated_and_reordered_datagrams_do_not_change_the_data() {
    let mut held = Vec::new();
    let relay = Relay::start(move |number, datagram| {
        let mut out = Vec::new();
        match number % 50 {
            // Lost.
            7 | 23 => {}
            // Sent after those that follow.
            11 | 12 => held.push(datagram.to_vec()),
            16 => {
                out.push(datagram.to_vec());
                out.append(&mut held);
            }
            // Sent twice.
            31 => out = vec![datagram.to_vec(), datagram.to_vec()],
            _ => out.push(datagram.to_vec()),
        }
        out
    });
    relay.carries(3_000_000);
}

/// A path between a connector and a listener.
struct Relay {
    /// Where connectors connect to.
    address: SocketAddr,
    listener: Box<dyn ropewalk_transport::Listener>,
}

impl Relay {
    /// `pass` gets the number and the bytes of each datagram, and returns what arrives of it. The
    /// threads end with the process.
    fn start(mut pass: impl FnMut(u64, &[u8]) -> Vec<Vec<u8>> + Send + 'static) -> Self {
        let listener = quic().listen(V4.into(), &Options::default()).unwrap();
        let to = listener.local_addr().unwrap().socket().unwrap();
        let (front, back) = (UdpSocket::bind(V4).unwrap(), UdpSocket::bind(V4).unwrap());
        let address = front.local_addr().unwrap();
        back.connect(to).unwrap();
        let passed = std::sync::Arc::new(parking_lot::Mutex::new((None, 0, move |n, d: &[u8]| pass(n, d))));
        for forward in [true, false] {
            let (front, back) = (front.try_clone().unwrap(), back.try_clone().unwrap());
            let passed = passed.clone();
            thread::spawn(move || {
                let mut buffer = [0; 1 << 16];
                let socket = if forward { &front } else { &back };
                while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    let (peer, number, pass) = &mut *passed.lock();
                    *number += 1;
                    if forward {
                        *peer = Some(from);
                    }
                    for datagram in pass(*number, &buffer[..length]) {
                        let _ = match (forward, &peer) {
                            (true, _) => back.send(&datagram),
                            (false, Some(peer)) => front.send_to(&datagram, peer),
                            (false, None) => Ok(0),
                        };
                    }
                }
            });
        }
        Self { address, listener }
    }

    /// Sends so many bytes to the listener and back, and compares them.
    fn carries(&self, bytes: u32) {
        let data: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut far = self.listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
                far.set_time_limit(PATIENCE).unwrap();
                let mut all = Vec::new();
                far.read_to_end(&mut all).unwrap();
                far.write_all(&all).unwrap();
                far.finish().unwrap();
            });
            let mut near = quic().connect(self.address.into(), &Options::default(), PATIENCE).unwrap();
            near.set_time_limit(PATIENCE).unwrap();
            near.write_all(&data).unwrap();
            near.finish().unwrap();
            let mut back = Vec::new();
            near.read_to_end(&mut back).unwrap();
            assert!(back == data);
        });
    }
}

#[test]
fn writer_waits_when_the_peer_stops_reading() {
    const WINDOW: usize = 1 << 20;
    let tuning = Tuning { send_buffer: Some(WINDOW), receive_buffer: Some(WINDOW), ..Tuning::default() };
    let options = Options { tuning, ..Options::default() };
    let listener = quic().listen(V4.into(), &options).unwrap();
    let mut near = quic().connect(listener.local_addr().unwrap(), &options, PATIENCE).unwrap();
    let mut far = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
    near.set_time_limit(Duration::from_millis(500)).unwrap();
    let block = vec![7; 1 << 20];
    let mut written = 0;
    let error = loop {
        match near.write(&block) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    // The queues of both ends, and their windows.
    assert!((2 * WINDOW..20 << 20).contains(&written), "{written}");
    let stats = near.stats().unwrap();
    assert!(stats.not_sent > 0 && stats.limits.busy >= stats.limits.receive_window, "{stats:?}");
    assert!(stats.limits.receive_window + stats.limits.send_buffer > Duration::ZERO, "{stats:?}");
    // The rest arrives once the peer reads again.
    near.finish().unwrap();
    far.set_time_limit(PATIENCE).unwrap();
    let mut all = Vec::new();
    assert_eq!(far.read_to_end(&mut all).unwrap(), written);
}

#[test]
fn stats_describe_the_path() {
    let (mut near, mut far) = testing::pair(&quic(), V4);
    near.write_all(&[1; 1_000_000]).unwrap();
    far.read_exact(&mut vec![0; 1_000_000]).unwrap();
    let until = Instant::now() + PATIENCE;
    let stats = loop {
        let stats = near.stats().unwrap();
        if stats.delivered.is_some_and(|bytes| bytes >= 1_000_000) || Instant::now() > until {
            break stats;
        }
        thread::yield_now();
    };
    assert!(stats.delivered.is_some_and(|bytes| (1_000_000..1_200_000).contains(&bytes)), "{stats:?}");
    assert!(stats.rtt.is_some() && stats.min_rtt <= stats.rtt && stats.congestion_window > 0, "{stats:?}");
    assert!(far.stats().unwrap().received > 0);
}

#[test]
fn both_ends_of_a_connection_have_one_binding_and_other_connections_have_others() {
    let pairs = [testing::pair(&quic(), V4), testing::pair(&quic(), V4)];
    let bindings = pairs.map(|(near, far)| (near.channel_binding().unwrap(), far.channel_binding().unwrap()));
    assert!(bindings.iter().all(|(near, far)| near == far));
    assert_ne!(bindings[0].0, bindings[1].0);
}

#[test]
fn options_of_a_stack_string_choose_the_congestion_control_and_the_windows() {
    let read = |key: &str, value: &[u8]| {
        let mut options = Options::default();
        (quic().read_option(key, value, &mut options), options.tuning)
    };
    for name in ["bbr", "cubic", "reno"] {
        let tuning = Tuning { congestion: Some(name.to_owned()), ..Tuning::default() };
        assert_eq!(read("congestion", name.as_bytes()), (true, tuning));
    }
    assert_eq!(read("congestion", b"vegas"), (false, Tuning::default()));
    assert_eq!(read("sndbuf", b"65536"), (true, Tuning { send_buffer: Some(65536), ..Tuning::default() }));
    assert_eq!(read("nodelay", b"1"), (false, Tuning::default()));
}
