//! The packets of UDT and the machines that take them.

#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use ropewalk_fuzz::{Decisions, ITERATIONS};
use ropewalk_udt::congestion::Daimd;
use ropewalk_udt::{Acceptor, Answer, Batch, Config, Connection, Packet, Parameters, Seq};

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

/// A connection that gets any packets keeps its promises: it sends a bounded number of datagrams at
/// a time, its next timer is in the future, and it delivers no more bytes than it got.
#[test]
fn udt_connection() {
    let parameters = Parameters {
        id: 1,
        peer_id: 2,
        initial: Seq::new(0x7fff_fff0),
        mss: 200,
        peer_window: 64,
        ropewalk: true,
    };
    let config = Config { send_buffer: 10_000, receive_buffer: 10_000, ..Config::default() };
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut decisions = Decisions(input);
        let parameters = Parameters { ropewalk: decisions.below(2) == 0, ..parameters };
        let mut now = Instant::now();
        let daimd = Box::new(Daimd::new(parameters.mss, parameters.peer_window, 1));
        let mut connection = Connection::accepted(parameters, &config, daimd, vec![1; 64], now);
        let (mut batch, mut buffer) = (Batch::default(), [0; 300]);
        let (mut got, mut delivered) = (0, 0);
        while !decisions.is_empty() {
            match decisions.below(5) {
                0 => now += Duration::from_millis(decisions.byte().into()),
                1 => drop(connection.write(now, &buffer[..decisions.below(300)])),
                2 => {
                    if let Ok(Some(n)) = connection.read(now, &mut buffer) {
                        delivered += n;
                    }
                }
                3 if decisions.below(16) == 0 => connection.close(now),
                _ => {
                    let mut packet = [0_u8; 16];
                    packet[15] = 1;
                    // Numbers near those in use, and the kinds that there are.
                    if decisions.below(2) == 0 {
                        packet[..4].copy_from_slice(&[0x7f, 0xff, 0xff, 0xf0]);
                        packet[3] = packet[3].wrapping_add(decisions.byte() % 16);
                    } else {
                        packet[..2].copy_from_slice(&[0x80, decisions.byte() % 9]);
                        packet[7] = decisions.byte() % 8;
                    }
                    let length = decisions.below(200);
                    let body = decisions.bytes(length);
                    got += body.len();
                    connection.handle(now, &[&packet[..], &body].concat());
                }
            }
            let mut sent = 0;
            while connection.poll_transmit(now, &mut batch) {
                sent += batch.datagrams().count();
                batch.clear();
            }
            assert!(sent < 1000);
            if !connection.is_gone(now) {
                assert!(connection.timeout(now).unwrap() > now);
            }
            assert!(delivered <= got);
        }
    });
}
