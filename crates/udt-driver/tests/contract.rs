//! The UDT driver over loopback keeps the contract of drivers.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_transport::{Driver, Options, testing};
use ropewalk_udt_driver::Udt;

const V4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0);

#[test]
fn udt_over_ipv4_keeps_the_contract() {
    testing::contract(&Udt, V4);
}

#[test]
fn udt_over_ipv6_keeps_the_contract() {
    testing::contract(&Udt, V6);
}

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn listener_with_many_connections_keeps_them_apart() {
    const CONNECTIONS: u8 = 60;
    let listener = Udt.listen(V4.into(), &Options::default()).unwrap();
    let to = listener.local_addr().unwrap();
    thread::scope(|scope| {
        for number in 0..CONNECTIONS {
            let to = to.clone();
            scope.spawn(move || {
                let mut near = Udt.connect(to, &Options::default(), PATIENCE).unwrap();
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
    let listener = Udt.listen(V4.into(), &Options::default()).unwrap();
    let to = listener.local_addr().unwrap().socket().unwrap();
    let socket = std::net::UdpSocket::bind(V4).unwrap();
    for length in 0..200_usize {
        for first in [0, 0x80, 0xff] {
            let mut datagram = vec![u8::try_from(length).unwrap(); length];
            if let Some(byte) = datagram.first_mut() {
                *byte = first;
            }
            socket.send_to(&datagram, to).unwrap();
        }
    }
    let mut near = Udt.connect(to.into(), &Options::default(), PATIENCE).unwrap();
    let mut far = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
    near.write_all(b"hello").unwrap();
    let mut back = [0; 5];
    far.set_time_limit(PATIENCE).unwrap();
    far.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"hello");
}
