//! The driver: it makes connections and listeners.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ropewalk_transport::ports::ports;
use ropewalk_transport::{Connection, Driver, Endpoint, Listener, Options, Tuning, Wait};
use ropewalk_udp::{Datagrams, Fragments, Inbox, Queue, QueueListener, Route, UdpSocket, Waker, first_free};
use ropewalk_udt::congestion::Congestion;
use ropewalk_udt::{Acceptor, Config, ConnectError, Connector, LARGEST_MSS, LEAST_MSS, Parameters};
use rustix::event::PollFlags;

use crate::connection::UdtConnection;
use crate::link::Link;
use crate::worker::Worker;

/// The MSS that fills an Ethernet frame. UDT counts 20 bytes for the header of IP, IPv6 has 40.
const MSS_IPV4: u32 = 1500;
const MSS_IPV6: u32 = 1480;
/// UDT does not discover the MTU of its path; routers divide larger packets on IPv4, as they do
/// those of libudt.
const FRAGMENTS: Fragments = Fragments::Allowed;

/// The driver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Udt;

impl Driver for Udt {
    fn name(&self) -> &'static str {
        "udt"
    }

    fn read_option(&self, key: &str, value: &[u8], options: &mut Options) -> bool {
        let number = || str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        match key {
            "congestion" => {}
            "mss" => {
                options.packet_size = number().filter(|size| (LEAST_MSS..=LARGEST_MSS).contains(size));
                return options.packet_size.is_some();
            }
            "fc" => {
                options.packet_window = number().filter(|packets| *packets > 0);
                return options.packet_window.is_some();
            }
            _ => return options.tuning.read_option(key, value),
        }
        let name = String::from_utf8_lossy(value).to_ascii_lowercase();
        let known = Congestion::from_name(&name).is_some();
        options.tuning.congestion = known.then_some(name);
        known
    }

    fn listen(&self, address: Endpoint, options: &Options) -> io::Result<Box<dyn Listener>> {
        let address = address.socket()?;
        let socket = first_free(ports(address.port(), options.ports), |port| {
            UdpSocket::bind(SocketAddr::new(address.ip(), port), FRAGMENTS)
        })?;
        let address = socket.local_addr()?;
        let config = config(address, options);
        let (queue, waker) = (Queue::new()?, Waker::new()?);
        let mut worker = Worker::new(socket, waker.clone());
        let acceptor = Acceptor::new(config.clone(), random_key()?, Instant::now());
        worker.listen(acceptor, config, queue.clone());
        worker.start()?;
        Ok(Box::new(QueueListener::new(queue, waker, address)))
    }

    fn connect_waiting(
        &self,
        address: Endpoint,
        options: &Options,
        timeout: Duration,
        wait: &mut dyn Wait,
    ) -> io::Result<Box<dyn Connection>> {
        let peer = address.socket()?;
        let socket = first_free(ports(0, options.ports), |port| {
            UdpSocket::connect(peer, options.bind, port, FRAGMENTS)
        })?;
        let config = Config { connect_timeout: timeout, ..config(peer, options) };
        let connector = Connector::new(config.clone(), random_key()?, peer.ip(), Instant::now());
        let route = Route { peer, local: None };
        let (parameters, early) = handshake(connector, &socket, &route, wait)?;
        let controller = config.congestion.controller(&parameters, parameters.id.into());
        let now = Instant::now();
        let mut connection = ropewalk_udt::Connection::connected(parameters, &config, controller, now);
        for datagram in early {
            connection.handle(now, &datagram);
        }
        let waker = Waker::new()?;
        let link = Link::new(connection, waker.clone(), route, socket.local_addr()?)?;
        let mut worker = Worker::new(socket, waker);
        worker.add(parameters.id, link.clone());
        worker.start()?;
        Ok(Box::new(UdtConnection::new(link)))
    }
}

/// Returns the agreed parameters, and the datagrams that came before them.
fn handshake(
    mut connector: Connector,
    socket: &UdpSocket,
    route: &Route,
    wait: &mut dyn Wait,
) -> io::Result<(Parameters, Vec<Vec<u8>>)> {
    let mut inbox = Inbox::new();
    loop {
        while let Some(bytes) = connector.poll_transmit(Instant::now()) {
            socket.send(&Datagrams { segment: bytes.len(), bytes: &bytes, ecn: None }, route)?;
        }
        match connector.outcome() {
            Some(Ok(parameters)) => return Ok((parameters, connector.into_early())),
            Some(Err(error)) => {
                let kind = match error {
                    ConnectError::Refused => io::ErrorKind::ConnectionRefused,
                    ConnectError::TimedOut => io::ErrorKind::TimedOut,
                };
                return Err(io::Error::new(kind, error.to_string()));
            }
            None => {}
        }
        let deadline = connector.timeout().unwrap_or_else(Instant::now);
        if wait.wait(socket.as_fd(), PollFlags::IN, deadline)? {
            let now = Instant::now();
            let mut handle = |datagrams: &Datagrams<'_>| {
                datagrams.each().for_each(|datagram| connector.handle(now, datagram));
            };
            while inbox.receive(socket, |_, datagrams| handle(datagrams))? {}
        }
    }
}

fn config(address: SocketAddr, options: &Options) -> Config {
    let default = Config::default();
    let is_ipv4 = address.ip().to_canonical().is_ipv4();
    Config {
        mss: options.packet_size.unwrap_or(if is_ipv4 { MSS_IPV4 } else { MSS_IPV6 }),
        flight: options.packet_window,
        send_buffer: options.tuning.send_buffer.unwrap_or(default.send_buffer),
        receive_buffer: options.tuning.receive_buffer.unwrap_or(default.receive_buffer),
        // TCP may have a congestion control with a name that UDT does not have.
        congestion: options.tuning.congestion.as_deref().and_then(Congestion::from_name).unwrap_or_default(),
        ceiling: ceiling(&options.tuning),
        ..default
    }
}

/// The most bytes per second that a connection sends; `None`: no bound.
pub(crate) fn ceiling(tuning: &Tuning) -> Option<u64> {
    tuning.most_rate.filter(|rate| *rate < u64::MAX)
}

fn random_key() -> io::Result<[u8; 32]> {
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};
    use std::net::Ipv4Addr;
    use std::thread;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn packet_options_out_of_their_range_are_refused() {
        let mut options = Options::default();
        for (key, value) in
            [("mss", "91"), ("mss", "65536"), ("mss", "x"), ("fc", "0"), ("fc", "-1"), ("FC", "9")]
        {
            assert!(!Udt.read_option(key, value.as_bytes(), &mut options), "{key}={value}");
        }
        assert!(
            Udt.read_option("mss", b"1400", &mut options) && Udt.read_option("fc", b"25600", &mut options)
        );
        assert_eq!((options.packet_size, options.packet_window), (Some(1400), Some(25_600)));
    }

    #[test]
    fn connection_with_any_packet_options_carries_bytes() {
        for (mss, window) in [(LEAST_MSS, 64), (1200, 1), (9000, 100), (LARGEST_MSS, 25_600)] {
            let options =
                Options { packet_size: Some(mss), packet_window: Some(window), ..Options::default() };
            let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let listener = Udt.listen(any.into(), &options).unwrap();
            let address = listener.local_addr().unwrap();
            let data: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut near = Udt.connect(address, &options, PATIENCE).unwrap();
                    near.write_all(&data).unwrap();
                });
                let mut far = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
                far.set_time_limit(PATIENCE).unwrap();
                let mut found = vec![0; data.len()];
                far.read_exact(&mut found).unwrap();
                assert!(found == data, "mss {mss}, fc {window}");
            });
        }
    }
}
