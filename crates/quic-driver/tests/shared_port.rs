//! Many channels at one UDP port, over loopback.

#![allow(clippy::unwrap_used)]

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_quic_driver::{Quic, SharedPort};
use ropewalk_transport::{
    ChannelToken, Connection, Driver, Endpoint, Listener, Options, Tuning, Wait, testing,
};

const V4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const PATIENCE: Duration = Duration::from_secs(30);

/// The options of the channel with this number.
fn channel(number: u8) -> Options {
    Options { token: Some(ChannelToken([number; ChannelToken::LENGTH])), ..Options::default() }
}

fn server() -> Quic {
    Quic::at(SharedPort::bind(&[V4]).unwrap())
}

fn client() -> Quic {
    Quic::default()
}

/// A driver for the contract: connections go to the channel of the last listener.
struct LastChannel {
    server: Quic,
    last: Mutex<u8>,
}

impl Driver for LastChannel {
    fn name(&self) -> &'static str {
        "quic"
    }

    fn listen(&self, address: Endpoint, options: &Options) -> io::Result<Box<dyn Listener>> {
        let mut last = self.last.lock();
        *last += 1;
        self.server.listen(address, &Options { token: channel(*last).token, ..options.clone() })
    }

    fn connect_waiting(
        &self,
        address: Endpoint,
        options: &Options,
        timeout: Duration,
        wait: &mut dyn Wait,
    ) -> io::Result<Box<dyn Connection>> {
        let options = Options { token: channel(*self.last.lock()).token, ..options.clone() };
        client().connect_waiting(address, &options, timeout, wait)
    }
}

#[test]
fn channel_at_a_shared_port_keeps_the_contract() {
    testing::contract(&LastChannel { server: server(), last: Mutex::new(0) }, V4);
}

/// The port is open at any address, for both families.
#[test]
fn port_at_any_address_serves_both_families() {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let server = Quic::at(SharedPort::bind(&[any]).unwrap());
    for (number, ip) in
        [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].into_iter().enumerate()
    {
        let options = channel(u8::try_from(number).unwrap());
        let listener = server.listen((ip, 0).into(), &options).unwrap();
        let mut near = client().connect(listener.local_addr().unwrap(), &options, PATIENCE).unwrap();
        near.write_all(b"x").unwrap();
        let mut far = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
        far.read_exact(&mut [0]).unwrap();
        assert_eq!(far.local_addr().unwrap(), near.peer_addr().unwrap());
    }
}

#[test]
fn channels_at_one_port_keep_their_connections_apart() {
    // More of all channels than those that need not prove their address.
    const CHANNELS: u8 = 5;
    const CONNECTIONS: u8 = 12;
    let server = server();
    let listeners: Vec<_> =
        (0..CHANNELS).map(|number| server.listen(V4.into(), &channel(number)).unwrap()).collect();
    let to = listeners[0].local_addr().unwrap();
    assert!(listeners.iter().all(|listener| listener.local_addr().unwrap() == to));
    thread::scope(|scope| {
        for number in 0..CHANNELS {
            for _ in 0..CONNECTIONS {
                let to = to.clone();
                scope.spawn(move || {
                    let mut near = client().connect(to, &channel(number), PATIENCE).unwrap();
                    near.set_time_limit(PATIENCE).unwrap();
                    near.write_all(&[number; 10_000]).unwrap();
                    near.finish().unwrap();
                    let mut back = Vec::new();
                    near.read_to_end(&mut back).unwrap();
                    assert_eq!(back, [number; 10_000]);
                });
            }
        }
        for (number, listener) in (0..CHANNELS).zip(&listeners) {
            for _ in 0..CONNECTIONS {
                let mut far = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
                scope.spawn(move || {
                    far.set_time_limit(PATIENCE).unwrap();
                    let mut all = Vec::new();
                    far.read_to_end(&mut all).unwrap();
                    assert_eq!(all, [number; 10_000]);
                    far.write_all(&all).unwrap();
                });
            }
            assert!(listener.accept(Instant::now()).unwrap().is_none());
        }
    });
}

#[test]
fn connections_of_a_channel_have_the_options_of_the_channel() {
    let server = server();
    let tuning = Tuning { receive_buffer: Some(1 << 20), ..Tuning::default() };
    let listeners = [channel(1), Options { tuning, ..channel(2) }]
        .map(|options| server.listen(V4.into(), &options).unwrap());
    let windows = [1, 2].map(|number: u8| {
        let listener = &listeners[usize::from(number) - 1];
        let _near = client().connect(listener.local_addr().unwrap(), &channel(number), PATIENCE).unwrap();
        listener.accept(Instant::now() + PATIENCE).unwrap().unwrap().stats().unwrap().receive_window
    });
    assert_eq!(windows, [Some(32 << 20), Some(1 << 20)]);
}

#[test]
fn connection_without_a_living_channel_is_refused() {
    let server = server();
    let listener = server.listen(V4.into(), &channel(1)).unwrap();
    let to = listener.local_addr().unwrap();
    let refused = |options: &Options| client().connect(to.clone(), options, PATIENCE).err().unwrap().kind();
    assert_eq!(refused(&Options::default()), ErrorKind::ConnectionRefused);
    assert_eq!(refused(&channel(2)), ErrorKind::ConnectionRefused);
    // The connections of a channel outlive its listener.
    let mut near = client().connect(to.clone(), &channel(1), PATIENCE).unwrap();
    let mut far = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
    drop(listener);
    assert_eq!(refused(&channel(1)), ErrorKind::ConnectionRefused);
    drop(server);
    near.write_all(b"hello").unwrap();
    far.set_time_limit(PATIENCE).unwrap();
    far.read_exact(&mut [0; 5]).unwrap();
}

#[test]
fn channel_with_too_many_waiting_connections_does_not_keep_others_out() {
    let server = server();
    let (crowded, other) =
        (server.listen(V4.into(), &channel(1)).unwrap(), server.listen(V4.into(), &channel(2)).unwrap());
    let to = other.local_addr().unwrap();
    let mut waiting = Vec::new();
    let error = loop {
        match client().connect(to.clone(), &channel(1), PATIENCE) {
            Ok(connection) => waiting.push(connection),
            Err(error) => break error,
        }
        assert!(waiting.len() < 200);
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    client().connect(to, &channel(2), PATIENCE).unwrap();
    assert!(other.accept(Instant::now() + PATIENCE).unwrap().is_some());
    drop(crowded);
}

#[test]
fn port_that_is_taken_is_an_error() {
    let port = SharedPort::bind(&[V4]).unwrap();
    let taken = port.addresses().next().unwrap();
    assert_eq!(SharedPort::bind(&[taken]).err().unwrap().kind(), ErrorKind::AddrInUse);
    // No driver without a port has channels.
    let error = client().listen(V4.into(), &channel(1)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
