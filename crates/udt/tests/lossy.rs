//! Pairs of connections in virtual time, over paths that lose, delay, reorder and duplicate
//! packets. All bytes arrive, in order, within a time limit.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use ropewalk_udt::congestion::{Bbr, Controller, Daimd};
use ropewalk_udt::{
    Acceptor, Answer, Batch, Body, Config, Connection, Connector, Control, Error, Packet, Parameters,
};

const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 4000);

/// A path in one direction.
#[derive(Clone, Debug)]
struct Path {
    delay: Duration,
    /// Random extra delay, which reorders packets.
    jitter: Duration,
    loss: f64,
    duplication: f64,
    /// Bytes per second and the length of the queue before it.
    bottleneck: Option<(f64, Duration)>,
}

impl Path {
    fn clean(delay: Duration) -> Self {
        Self { delay, jitter: Duration::ZERO, loss: 0.0, duplication: 0.0, bottleneck: None }
    }
}

struct Network {
    now: Instant,
    path: Path,
    random: fastrand::Rng,
    /// Datagrams by their time of arrival; the bool is the direction.
    moving: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    count: u64,
    /// When the bottleneck of each direction has sent its queue.
    idle_at: [Instant; 2],
    /// Pairs of ends. A packet of an even end moves in the same direction as those of the others.
    ends: Vec<Connection>,
}

impl Network {
    fn new(path: Path, seed: u64, config: &Config) -> Self {
        let now = Instant::now();
        let (parameters, answer) = agree(config, now);
        let daimd = |parameters: &Parameters| Box::new(Daimd::new(parameters.mss, parameters.peer_window, 1));
        let [near, far] = parameters;
        let ends = vec![
            Connection::connected(near, config, daimd(&near), now),
            Connection::accepted(far, config, daimd(&far), answer, now),
        ];
        let random = fastrand::Rng::with_seed(seed);
        Self { now, path, random, moving: BTreeMap::new(), count: 0, idle_at: [now; 2], ends }
    }

    fn send(&mut self, to: usize, datagram: &[u8]) {
        let copies = 1 + u32::from(self.random.f64() < self.path.duplication);
        for _ in 0..copies {
            if self.random.f64() < self.path.loss {
                continue;
            }
            let mut leaves = self.now;
            if let Some((rate, queue)) = self.path.bottleneck {
                leaves = leaves.max(self.idle_at[to % 2]);
                if leaves > self.now + queue {
                    continue;
                }
                leaves += Duration::from_secs_f64((datagram.len() + 28) as f64 / rate);
                self.idle_at[to % 2] = leaves;
            }
            let delay = self.path.delay + self.path.jitter.mul_f64(self.random.f64());
            self.count += 1;
            self.moving.insert((leaves + delay, self.count), (to, datagram.to_vec()));
        }
    }

    /// Moves all datagrams of this moment, then goes to the next one, at most to `until`.
    fn step(&mut self, until: Instant) {
        let mut batch = Batch::default();
        for from in 0..self.ends.len() {
            let mut rounds = 0;
            while self.ends[from].poll_transmit(self.now, &mut batch) {
                for datagram in batch.datagrams().map(<[u8]>::to_vec).collect::<Vec<_>>() {
                    self.send(from ^ 1, &datagram);
                }
                batch.clear();
                rounds += 1;
                assert!(rounds < 10_000, "a connection sends without end");
            }
        }
        let timers = self.ends.iter().filter(|end| !end.is_gone(self.now));
        let timer = timers.filter_map(|end| end.timeout(self.now)).min();
        let arrival = self.moving.first_key_value().map(|((at, _), _)| *at);
        let next = [timer, arrival].into_iter().flatten().min().unwrap_or(until);
        assert!(next > self.now || arrival.is_some_and(|at| at <= self.now), "a timer stands still");
        self.now = next.min(until).max(self.now);
        while let Some(entry) = self.moving.first_entry()
            && entry.key().0 <= self.now
        {
            let (to, datagram) = entry.remove();
            self.ends[to].handle(self.now, &datagram);
        }
    }
}

fn agree(config: &Config, now: Instant) -> ([Parameters; 2], Vec<u8>) {
    let mut acceptor = Acceptor::new(config.clone(), [1; 32], now);
    let mut connector = Connector::new(config.clone(), [2; 32], PEER.ip(), now);
    loop {
        let request = connector.poll_transmit(now).unwrap();
        let Some(Packet::Control(control)) = Packet::parse(&request) else { panic!() };
        match acceptor.handle(now, PEER, &control, true) {
            Answer::Accept(far, answer) => {
                connector.handle(now, &answer);
                return ([connector.outcome().unwrap().unwrap(), far], answer);
            }
            Answer::Reply(reply) => connector.handle(now, &reply),
            Answer::Silence => panic!(),
        }
    }
}

fn small() -> Config {
    Config { send_buffer: 200 << 10, receive_buffer: 100 << 10, ..Config::default() }
}

/// Lets both ends look as ends of libudt to each other.
fn as_strangers(network: &mut Network, config: &Config) {
    let now = network.now;
    let (parameters, answer) = agree(config, now);
    let [near, far] = parameters.map(|one| Parameters { ropewalk: false, ..one });
    let daimd = |one: &Parameters| Box::new(Daimd::new(one.mss, one.peer_window, 1));
    network.ends = vec![
        Connection::connected(near, config, daimd(&near), now),
        Connection::accepted(far, config, daimd(&far), answer, now),
    ];
}

fn data(length: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u8(..)).collect()
}

/// Sends `data[i]` from end i to the other one, and closes both. Returns the virtual time.
fn exchange(network: &mut Network, data: [&[u8]; 2], chunk: usize, limit: Duration) -> Duration {
    let began = network.now;
    let mut sent = [0; 2];
    let mut finished = [false; 2];
    let mut received = [Vec::new(), Vec::new()];
    let mut ended = [false; 2];
    let mut buffer = vec![0; 1 << 16];
    while !ended.iter().all(|ended| *ended) {
        let elapsed = network.now - began;
        let got = received.each_ref().map(Vec::len);
        assert!(elapsed < limit, "{elapsed:?} {sent:?} {got:?} {:?}", network.ends[0].stats());
        for end in [0, 1] {
            let connection = &mut network.ends[end];
            loop {
                let part = &data[end][sent[end]..];
                if part.is_empty() || finished[end] {
                    break;
                }
                let n = connection.write(network.now, &part[..part.len().min(chunk)]).unwrap();
                if n == 0 {
                    break;
                }
                sent[end] += n;
            }
            while !ended[end] {
                match connection.read(network.now, &mut buffer) {
                    Ok(Some(0)) => ended[end] = true,
                    Ok(Some(n)) => received[end].extend_from_slice(&buffer[..n]),
                    Ok(None) => break,
                    Err(error) => panic!("{error} at {elapsed:?}, {got:?}"),
                }
            }
            // Peers with libudt close both directions, so the last reader closes.
            let ropewalk = connection.parameters().ropewalk;
            let complete = ropewalk || received[end].len() == data[1 - end].len();
            if !finished[end] && sent[end] == data[end].len() && complete {
                connection.finish(network.now);
                finished[end] = true;
            }
        }
        network.step(network.now + Duration::from_secs(1));
    }
    assert!(received[1] == data[0] && received[0] == data[1]);
    network.now - began
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

type MakeController = fn(&Parameters) -> Box<dyn Controller>;

/// The share of a path of 100 Mbit/s that a transfer uses, its start included, and the share of
/// packets that are sent again.
fn utilisation(controller: MakeController, loss: f64, queue: u64) -> (f64, f64) {
    let rate = 12.5e6;
    let queue = Duration::from_millis(queue);
    let path = Path { loss, bottleneck: Some((rate, queue)), ..Path::clean(Duration::from_millis(30)) };
    let config = Config::default();
    let mut network = Network::new(path, 5, &config);
    let (now, (parameters, answer)) = (network.now, agree(&config, network.now));
    let [near, far] = parameters;
    network.ends = vec![
        Connection::connected(near, &config, controller(&near), now),
        Connection::accepted(far, &config, controller(&far), answer, now),
    ];
    let data = data(30_000_000, 1);
    let time = exchange(&mut network, [&data, b""], 1 << 20, Duration::from_secs(100));
    let stats = network.ends[0].stats();
    (data.len() as f64 / time.as_secs_f64() / rate, stats.retransmitted as f64 / stats.sent as f64)
}

fn bbr(_: &Parameters) -> Box<dyn Controller> {
    Box::new(Bbr::default())
}

fn daimd(parameters: &Parameters) -> Box<dyn Controller> {
    Box::new(Daimd::new(parameters.mss, parameters.peer_window, 1))
}

#[test]
fn bbr_fills_a_lossy_path_without_many_retransmissions() {
    // The start overflows the queue of each path.
    let paths = [(0.0, 50, 0.75, 0.1), (0.0, 10, 0.65, 0.15), (0.001, 50, 0.75, 0.1), (0.01, 50, 0.7, 0.12)];
    for (loss, queue, least, most) in paths {
        let (used, again) = utilisation(bbr, loss, queue);
        assert!(used > least && again < most, "loss {loss}: {used} of the path used, {again} sent again");
    }
}

/// How many bytes each of two senders delivers that share a path of 100 Mbit/s.
fn shares(controllers: [MakeController; 2], queue: u64) -> [u64; 2] {
    let bottleneck = Some((12.5e6, Duration::from_millis(queue)));
    let path = Path { bottleneck, ..Path::clean(Duration::from_millis(30)) };
    let config = Config::default();
    let mut network = Network::new(path, 5, &config);
    let now = network.now;
    network.ends.clear();
    for controller in controllers {
        let ([near, far], answer) = agree(&config, now);
        network.ends.push(Connection::connected(near, &config, controller(&near), now));
        network.ends.push(Connection::accepted(far, &config, controller(&far), answer, now));
    }
    let block = data(1 << 20, 1);
    let mut buffer = vec![0; 1 << 16];
    let until = now + Duration::from_secs(10);
    while network.now < until {
        let now = network.now;
        for sender in [0, 2] {
            while network.ends[sender].write(now, &block).unwrap() > 0 {}
            while network.ends[sender + 1].read(now, &mut buffer).unwrap().is_some() {}
        }
        network.step(until);
    }
    [0, 2].map(|sender| network.ends[sender].stats().acknowledged_bytes)
}

/// Neither control starves the other, nor itself.
#[test]
fn senders_that_share_a_path_all_get_a_part() {
    for other in [bbr, daimd] as [MakeController; 2] {
        let [first, second] = shares([bbr, other], 50);
        let least = first.min(second) as f64 / (first + second) as f64;
        assert!(least > 0.15, "{first} {second}");
        assert!((first + second) as f64 > 0.8 * 12.5e6 * 10.0, "{first} {second}");
    }
}

#[test]
fn daimd_uses_a_path_that_loses_nothing() {
    let (used, again) = utilisation(daimd, 0.0, 50);
    assert!(used > 0.7 && again < 0.15, "{used} of the path used, {again} sent again");
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
