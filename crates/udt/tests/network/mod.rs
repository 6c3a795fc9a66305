//! Two or more connections in virtual time, joined by a path that loses, delays, reorders and
//! duplicates packets. Several test programs use it.

#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use ropewalk_udt::congestion::Daimd;
use ropewalk_udt::{Acceptor, Answer, Batch, Config, Connection, Connector, Packet, Parameters};

const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 4000);

/// A path in one direction.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) delay: Duration,
    /// Random extra delay, which reorders packets.
    pub(crate) jitter: Duration,
    pub(crate) loss: f64,
    pub(crate) duplication: f64,
    /// Bytes per second and the length of the queue before it.
    pub(crate) bottleneck: Option<(f64, Duration)>,
}

impl Path {
    pub(crate) fn clean(delay: Duration) -> Self {
        Self { delay, jitter: Duration::ZERO, loss: 0.0, duplication: 0.0, bottleneck: None }
    }
}

pub(crate) struct Network {
    pub(crate) now: Instant,
    path: Path,
    random: fastrand::Rng,
    /// Datagrams by their time of arrival; the bool is the direction.
    moving: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    pub(crate) count: u64,
    /// When the bottleneck of each direction has sent its queue.
    idle_at: [Instant; 2],
    /// Pairs of ends. A packet of an even end moves in the same direction as those of the others.
    pub(crate) ends: Vec<Connection>,
}

impl Network {
    pub(crate) fn new(path: Path, seed: u64, config: &Config) -> Self {
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
    pub(crate) fn step(&mut self, until: Instant) {
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

pub(crate) fn agree(config: &Config, now: Instant) -> ([Parameters; 2], Vec<u8>) {
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

/// Lets both ends look as ends of libudt to each other.
pub(crate) fn as_strangers(network: &mut Network, config: &Config) {
    let now = network.now;
    let (parameters, answer) = agree(config, now);
    let [near, far] = parameters.map(|one| Parameters { ropewalk: false, ..one });
    let daimd = |one: &Parameters| Box::new(Daimd::new(one.mss, one.peer_window, 1));
    network.ends = vec![
        Connection::connected(near, config, daimd(&near), now),
        Connection::accepted(far, config, daimd(&far), answer, now),
    ];
}

pub(crate) fn data(length: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u8(..)).collect()
}

/// Sends `data[i]` from end i to the other one, and closes both. Returns the virtual time.
pub(crate) fn exchange(network: &mut Network, data: [&[u8]; 2], chunk: usize, limit: Duration) -> Duration {
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
