//! The packets of UDT and the machines that take them.

#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use ropewalk_fuzz::ITERATIONS;
use ropewalk_udt::{Acceptor, Answer, Config, Packet};

/// A parsed packet prints to a packet that is parsed to the same.
#[test]
fn udt_packet() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let Some(packet) = Packet::parse(input) else { return };
        let mut printed = Vec::new();
        packet.print(&mut printed);
        assert_eq!(Packet::parse(&printed), Some(packet));
    });
}

/// No handshake without a cookie makes a connection, and no answer is longer than its request.
#[test]
fn udt_acceptor() {
    let now = Instant::now();
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 4000));
    let mut acceptor = Acceptor::new(Config::default(), [7; 32], now);
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut datagram = vec![0; 64];
        datagram[0] = 0x80;
        datagram[16..].iter_mut().zip(input).for_each(|(place, byte)| *place = *byte);
        let Some(Packet::Control(control)) = Packet::parse(&datagram) else { unreachable!() };
        match acceptor.handle(now, peer, &control, true) {
            Answer::Silence => {}
            Answer::Reply(reply) => assert!(reply.len() <= datagram.len()),
            Answer::Accept(..) => unreachable!("the cookie was guessed"),
        }
    });
}
