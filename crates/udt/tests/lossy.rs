//! Pairs of connections in virtual time, over paths that lose, delay, reorder and duplicate
//! packets. All bytes arrive, in order, within a time limit.

#![allow(clippy::unwrap_used)]

mod network;

use std::time::Duration;

use network::{Network, Path, as_strangers, data, exchange};
use proptest::prelude::*;
use ropewalk_udt::{Batch, Body, Config, Control, Error, Packet};

fn small() -> Config {
    Config { send_buffer: 200 << 10, receive_buffer: 100 << 10, ..Config::default() }
}

#[test]
fn stream_over_a_clean_path_arrives_without_retransmissions() {
    let data = data(3_000_000, 1);
    let mut network = Network::new(Path::clean(Duration::from_millis(5)), 1, &Config::default());
    let time = exchange(&mut network, [&data, b"hello"], 1 << 20, Duration::from_secs(10));
    assert_eq!(network.ends[0].stats().retransmitted, 0);
    assert!(time < Duration::from_secs(2), "{time:?}");
}

#[test]
fn empty_streams_end() {
    let mut network = Network::new(Path::clean(Duration::from_millis(50)), 1, &small());
    let time = exchange(&mut network, [b"", b""], 1, Duration::from_secs(10));
    assert!(time < Duration::from_millis(500), "{time:?}");
}

#[test]
fn connection_with_a_silent_peer_ends_with_an_error() {
    let config = Config::default();
    let mut network = Network::new(Path { loss: 1.0, ..Path::clean(Duration::ZERO) }, 1, &config);
    network.ends[0].write(network.now, b"hello").unwrap();
    let until = network.now + Duration::from_secs(46);
    while network.now < until {
        network.step(until);
    }
    assert_eq!(network.ends[0].read(network.now, &mut [0; 9]), Err(Error::Silent));
    assert!(network.ends[0].is_gone(network.now));
    assert!(network.ends[0].stats().sent < 200);
}

#[test]
fn idle_connection_stays_open_with_few_packets() {
    let mut network = Network::new(Path::clean(Duration::from_millis(50)), 1, &Config::default());
    let until = network.now + Duration::from_secs(120);
    while network.now < until {
        network.step(until);
    }
    assert_eq!(network.ends[0].read(network.now, &mut [0; 9]), Ok(None));
    assert!(network.count < 300, "{}", network.count);
}

#[test]
fn abort_is_an_error_for_a_ropewalk_peer() {
    let mut network = Network::new(Path::clean(Duration::from_millis(5)), 1, &Config::default());
    network.ends[0].write(network.now, b"half").unwrap();
    let mut until = network.now + Duration::from_secs(1);
    while network.now < until {
        network.step(until);
    }
    network.ends[0].abort(network.now);
    until += Duration::from_secs(1);
    while network.now < until {
        network.step(until);
    }
    let mut buffer = [0; 9];
    assert_eq!(network.ends[1].read(network.now, &mut buffer), Ok(Some(4)));
    assert_eq!(network.ends[1].read(network.now, &mut buffer), Err(Error::Reset));
    assert!(network.ends.iter().all(|end| end.is_gone(network.now)));
}

#[test]
fn closed_connection_delivers_and_is_forgotten() {
    let mut network = Network::new(Path { loss: 0.1, ..Path::clean(Duration::from_millis(20)) }, 3, &small());
    let data = data(100_000, 1);
    assert_eq!(network.ends[0].write(network.now, &data), Ok(data.len()));
    network.ends[0].close(network.now);
    let mut received = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    let until = network.now + Duration::from_secs(30);
    while network.now < until {
        network.step(until);
        while let Ok(Some(n @ 1..)) = network.ends[1].read(network.now, &mut buffer) {
            received.extend_from_slice(&buffer[..n]);
        }
    }
    assert!(received == data);
    assert!(network.ends.iter().all(|end| end.is_gone(network.now)));
}

/// A reader that pauses stops the sender, which resumes when the reader does.
#[test]
fn slow_reader_stops_the_sender_without_losing_data() {
    let config = small();
    for strangers in [false, true] {
        let mut network = Network::new(Path::clean(Duration::from_millis(10)), 1, &config);
        if strangers {
            as_strangers(&mut network, &config);
        }
        let data = data(1_000_000, 1);
        let (mut sent, mut received) = (0, Vec::new());
        let mut buffer = vec![0; 30_000];
        let began = network.now;
        for pause in 0.. {
            let until = network.now + Duration::from_millis(300);
            while network.now < until {
                sent += network.ends[0].write(network.now, &data[sent..]).unwrap();
                network.step(until);
            }
            assert!(network.ends[1].unread() <= config.receive_buffer);
            let n = network.ends[1].read(network.now, &mut buffer).unwrap().unwrap();
            received.extend_from_slice(&buffer[..n]);
            if received.len() == data.len() {
                break;
            }
            assert!(pause < 200, "{:?}", network.ends[0].stats());
        }
        assert!(received == data && network.now - began < Duration::from_secs(20));
    }
}

/// libudt acknowledges full packets only after 100 ms, or when another packet arrives after 10 ms.
#[test]
fn sender_to_libudt_with_a_full_window_sends_a_keep_alive() {
    let config = Config::default();
    let mut network = Network::new(Path::clean(Duration::ZERO), 1, &config);
    as_strangers(&mut network, &config);
    let (began, connection) = (network.now, &mut network.ends[0]);
    let mut batch = Batch::default();
    let mut now = began;
    connection.write(now, &data(1_000_000, 1)).unwrap();
    loop {
        while connection.poll_transmit(now, &mut batch) {
            let datagrams = batch.datagrams().map(|datagram| Packet::parse(datagram).unwrap());
            let bodies = datagrams.filter_map(|packet| match packet {
                Packet::Control(control) => Some(control.body),
                Packet::Data(_) => None,
            });
            if let Some(body) = bodies.last() {
                assert_eq!((body, connection.stats().sent), (Body::KeepAlive, 16));
                assert!((10..13).contains(&(now - began).as_millis()), "{:?}", now - began);
                return;
            }
            batch.clear();
        }
        now = connection.timeout(now).unwrap();
    }
}

#[test]
fn forged_packets_change_nothing() {
    let mut network = Network::new(Path::clean(Duration::from_millis(5)), 1, &small());
    let data = data(300_000, 1);
    let [near, far] = [0, 1].map(|end| network.ends[end].parameters().id);
    let now = network.now;
    let mut send = |to: usize, id: u32, info: u32, body: Body<'_>| {
        let mut packet = Vec::new();
        Control::new(id, info, body).print(&mut packet);
        network.ends[to].handle(now, &packet);
    };
    send(0, near ^ 1, 0, Body::Shutdown);
    send(0, near, 0, Body::MessageDrop { first: 0, last: 100 });
    send(1, far, 0, Body::PeerError);
    send(1, far, 7, Body::Ack2);
    let beyond = [0xff; 8];
    send(0, near, 0, Body::Nak(ropewalk_udt::LossList::new(&beyond)));
    exchange(&mut network, [&data, &data], 1 << 20, Duration::from_secs(10));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn bytes_over_a_lossy_path_arrive_in_order(
        seed in any::<u64>(),
        delay in 0..100_u64,
        jitter in prop_oneof![Just(0), 0..20_u64],
        loss in prop_oneof![Just(0.0), 0.0..0.1],
        duplication in prop_oneof![Just(0.0), 0.0..0.05],
        lengths in [0..400_000_usize, 0..40_000_usize],
        chunk in prop_oneof![1..3000_usize, Just(1 << 20)],
        mss in 92..2000_u32,
        strangers in any::<bool>(),
    ) {
        let path = Path {
            delay: Duration::from_millis(delay),
            jitter: Duration::from_millis(jitter),
            loss,
            duplication,
            bottleneck: None,
        };
        let config = Config { mss, ..small() };
        let mut network = Network::new(path, seed, &config);
        if strangers {
            as_strangers(&mut network, &config);
        }
        let [there, back] = lengths.map(|length| data(length, seed));
        exchange(&mut network, [&there, &back], chunk, Duration::from_secs(120));
    }
}
