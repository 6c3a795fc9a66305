//! The congestion control in virtual time: two connections of quinn over an emulated path.

#![allow(clippy::unwrap_used)]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn_proto::{Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, Event, StreamId};
use ropewalk_transport::{Options, Tuning};

use crate::settings::{self, Settings};
use crate::tls::Tls;

/// The bottleneck of a path, from the sender to the receiver.
#[derive(Clone, Copy)]
struct Path {
    round_trip: Duration,
    /// Bytes per second.
    rate: f64,
    /// The longest time in its queue.
    queue: Duration,
    /// The share of packets that are lost at random.
    loss: f64,
}

struct End {
    address: SocketAddr,
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    stream: Option<StreamId>,
}

impl End {
    fn new(number: u16, is_server: bool, tls: &Tls) -> Self {
        let server = is_server.then(|| Arc::new(settings::endpoint_server(tls)));
        Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, number)),
            endpoint: Endpoint::new(settings::endpoint(), server, false, Some([7; 32])),
            connection: None,
            stream: None,
        }
    }

    fn take(&mut self, now: Instant, from: SocketAddr, datagram: &[u8], settings: &Settings) {
        let mut buffer = Vec::new();
        let bytes = BytesMut::from(datagram);
        match self.endpoint.handle(now, from, None, None, bytes, &mut buffer) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                if let Some((_, connection)) = &mut self.connection {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                let config = Arc::new(settings.server(&Arc::default(), from));
                self.connection =
                    Some(self.endpoint.accept(incoming, now, &mut buffer, Some(config)).ok().unwrap());
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
    }

    /// Moves data between the connection and an application that never waits. Returns the bytes
    /// that it received.
    fn serve(&mut self, now: Instant, sends: bool) -> u64 {
        let Some((handle, connection)) = &mut self.connection else { return 0 };
        if connection.poll_timeout().is_some_and(|due| due <= now) {
            connection.handle_timeout(now);
        }
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(answer);
            }
        }
        while let Some(event) = connection.poll() {
            if matches!(event, Event::Connected) && sends {
                self.stream = connection.streams().open(Dir::Bi);
            }
        }
        let mut received = 0;
        if sends {
            while let Some(stream) = self.stream {
                if connection.send_stream(stream).write(&[0; 1 << 16]).is_err() {
                    break;
                }
            }
        } else {
            self.stream = self.stream.or_else(|| connection.streams().accept(Dir::Bi));
            if let Some(stream) = self.stream
                && let Ok(mut chunks) = connection.recv_stream(stream).read(true)
            {
                while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
                    received += chunk.bytes.len() as u64;
                }
                let _ = chunks.finalize();
            }
        }
        received
    }

    fn transmit(&mut self, now: Instant) -> Option<Vec<Vec<u8>>> {
        let (_, connection) = self.connection.as_mut()?;
        let mut buffer = Vec::new();
        let transmit = connection.poll_transmit(now, 10, &mut buffer)?;
        let size = transmit.segment_size.unwrap_or(transmit.size);
        Some(buffer[..transmit.size].chunks(size).map(<[u8]>::to_vec).collect())
    }

    fn due(&mut self) -> Option<Instant> {
        self.connection.as_mut().and_then(|(_, connection)| connection.poll_timeout())
    }
}

/// Pairs of ends that share a path. Each pair is a sender and a receiver.
struct Network {
    path: Path,
    pairs: Vec<([End; 2], Settings)>,
    now: Instant,
    /// When the bottleneck has sent all that it has.
    free: Instant,
    /// Datagrams on their way, by the time of their arrival and a number: the pair and end.
    coming: BinaryHeap<Reverse<(Instant, u64)>>,
    datagrams: BTreeMap<u64, (usize, usize, Vec<u8>)>,
    count: u64,
    random: u64,
    /// The bytes that each receiver has got.
    received: Vec<u64>,
    sent: u64,
    dropped: u64,
}

impl Network {
    fn new(path: Path, congestion: &[&str]) -> Self {
        let now = Instant::now();
        let tls = Tls::of_this_process().unwrap();
        let pairs = (0..).zip(congestion).map(|(number, congestion)| {
            let tuning = Tuning { congestion: Some((*congestion).to_owned()), ..Tuning::default() };
            let options = Options { tuning, ..Options::default() };
            let settings = Settings::new(&options, Duration::from_secs(30), tls.clone());
            let mut sender = End::new(1000 + number, false, &tls);
            let receiver = End::new(2000 + number, true, &tls);
            let config = settings.client(&Arc::default(), receiver.address);
            sender.connection =
                Some(sender.endpoint.connect(now, config, receiver.address, "ropewalk").unwrap());
            ([sender, receiver], settings)
        });
        Self {
            path,
            pairs: pairs.collect(),
            now,
            free: now,
            coming: BinaryHeap::new(),
            datagrams: BTreeMap::new(),
            count: 0,
            random: 88_172_645_463_325_252,
            received: vec![0; congestion.len()],
            sent: 0,
            dropped: 0,
        }
    }

    /// A number from 0 to 1 (xorshift).
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            for pair in 0..self.pairs.len() {
                self.serve(pair);
            }
            let timers =
                self.pairs.iter_mut().flat_map(|(ends, _)| ends.iter_mut().filter_map(End::due)).min();
            let arrival = self.coming.peek().map(|Reverse((time, _))| *time);
            let next = timers.into_iter().chain(arrival).min().unwrap_or(until);
            self.now = next.max(self.now + Duration::from_micros(1));
            while let Some(Reverse((time, number))) = self.coming.peek().copied()
                && time <= self.now
            {
                self.coming.pop();
                let (pair, end, datagram) = self.datagrams.remove(&number).unwrap();
                let (ends, settings) = &mut self.pairs[pair];
                let from = ends[1 - end].address;
                ends[end].take(self.now, from, &datagram, settings);
            }
        }
    }

    fn serve(&mut self, pair: usize) {
        for end in 0..2 {
            let ends = &mut self.pairs[pair].0;
            self.received[pair] += ends[end].serve(self.now, end == 0);
            while let Some(datagrams) = self.pairs[pair].0[end].transmit(self.now) {
                for datagram in datagrams {
                    self.send(pair, end, datagram);
                }
            }
        }
    }

    fn send(&mut self, pair: usize, end: usize, datagram: Vec<u8>) {
        let mut arrival = self.now + self.path.round_trip / 2;
        if end == 0 {
            self.sent += datagram.len() as u64;
            let waits = self.free.saturating_duration_since(self.now);
            if waits > self.path.queue || self.random() < self.path.loss {
                self.dropped += datagram.len() as u64;
                return;
            }
            self.free =
                self.free.max(self.now) + Duration::from_secs_f64(datagram.len() as f64 / self.path.rate);
            arrival = self.free + self.path.round_trip / 2;
        }
        self.count += 1;
        self.coming.push(Reverse((arrival, self.count)));
        self.datagrams.insert(self.count, (pair, 1 - end, datagram));
    }
}

const MBIT: f64 = 125_000.0;

#[test]
fn bbr_fills_paths_and_does_not_overrun_their_queues() {
    // Round trip and queue in ms, rate in Mbit/s, loss; the least share of the path that data
    // fills in ten seconds, and the largest share of bytes that are dropped.
    let cases = [
        (40, 40, 20.0, 0.0, 0.85, 0.02),
        (40, 10, 20.0, 0.0, 0.8, 0.05),
        (40, 40, 20.0, 0.005, 0.8, 0.025),
        (100, 100, 20.0, 0.01, 0.75, 0.04),
        (5, 20, 20.0, 0.001, 0.85, 0.03),
        (200, 50, 20.0, 0.0, 0.65, 0.06),
    ];
    for (round_trip, queue, rate, loss, least, most) in cases {
        let path = Path {
            round_trip: Duration::from_millis(round_trip),
            rate: rate * MBIT,
            queue: Duration::from_millis(queue),
            loss,
        };
        let mut network = Network::new(path, &["bbr"]);
        network.run(Duration::from_secs(10));
        let used = network.received[0] as f64 / (10.0 * path.rate);
        let dropped = network.dropped as f64 / network.sent as f64;
        eprintln!("{round_trip} ms, {queue} ms, {rate} Mbit/s, {loss}: used {used:.3}, dropped {dropped:.4}");
        assert!(used > least && dropped < most, "{round_trip} ms, {rate} Mbit/s, {loss}: {used}, {dropped}");
    }
}

#[test]
fn connections_with_bbr_share_a_path() {
    let path = Path {
        round_trip: Duration::from_millis(30),
        rate: 50.0 * MBIT,
        queue: Duration::from_millis(30),
        loss: 0.0,
    };
    let mut network = Network::new(path, &["bbr"; 4]);
    network.run(Duration::from_secs(10));
    let sum: u64 = network.received.iter().sum();
    let dropped = network.dropped as f64 / network.sent as f64;
    eprintln!("{:?}, dropped {dropped:.4}", network.received);
    assert!(sum as f64 > 0.85 * 10.0 * path.rate, "{sum}");
    assert!(dropped < 0.05, "{dropped}");
    let least = *network.received.iter().min().unwrap();
    assert!(least > sum / 16, "{:?}", network.received);
}
