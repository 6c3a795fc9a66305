//! Two sides of a data connection with GSI, over loopback.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_gsi::ca::{Ca, CaOptions};
use ropewalk_gsi::{Credential, Expected, Identity, TlsSettings, Trust};
use ropewalk_layers::{GsiLayer, LayeredDriver, LayeredListener, Level};
use ropewalk_quic_driver::Quic;
use ropewalk_transport::testing::{self, Memory};
use ropewalk_transport::{Connection, Driver, Listener, Options, Tcp};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(20);

struct Site {
    _directory: TempDir,
    trust: Arc<Trust>,
    one: Credential,
    other: Credential,
}

impl Site {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let options = CaOptions {
            namespace: "/O=Grid/OU=test".into(),
            common_name: "CA".into(),
            days: 3,
            bits: 2048,
            passphrase: None,
        };
        let ca = Ca::create(&directory.path().join("ca"), &options).unwrap();
        let certificates = directory.path().join("certificates");
        ca.install(&certificates, 3).unwrap();
        let (one, other) = (ca.issue_user("One", 3).unwrap(), ca.issue_user("Other", 3).unwrap());
        Self { _directory: directory, trust: Arc::new(Trust::directory(certificates)), one, other }
    }

    fn layer(&self, credential: &Credential, expected: &Credential, level: Level) -> Arc<GsiLayer> {
        let credential = Arc::new(credential.clone());
        let identity = Identity::new(credential, self.trust.clone(), &TlsSettings::default()).unwrap();
        Arc::new(GsiLayer { identity, expected: Expected::Subject(expected.identity().into()), level })
    }
}

fn listen(layer: Arc<GsiLayer>) -> (LayeredListener, SocketAddr) {
    let inner = Tcp.listen(SocketAddr::from(([127, 0, 0, 1], 0)).into(), &Options::default()).unwrap();
    let address = inner.local_addr().unwrap().socket().unwrap();
    (LayeredListener::new(inner, layer).unwrap(), address)
}

fn both(level: Level) -> (Box<dyn Connection>, Box<dyn Connection>) {
    let site = Site::new();
    let layer = site.layer(&site.one, &site.one, level);
    let (listener, address) = listen(layer.clone());
    let driver = LayeredDriver::new(Arc::new(Tcp), layer);
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept(Instant::now() + LIMIT).unwrap().unwrap());
        let connected = driver.connect(address.into(), &Options::default(), LIMIT).unwrap();
        (connected, accepted.join().unwrap())
    })
}

fn exchange(mut one: Box<dyn Connection>, mut other: Box<dyn Connection>) {
    let data: Vec<u8> = (0..1_500_000u32).flat_map(u32::to_le_bytes).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            one.set_time_limit(LIMIT).unwrap();
            one.write_all(&data).unwrap();
            one.finish().unwrap();
        });
        other.set_time_limit(LIMIT).unwrap();
        let mut got = Vec::new();
        let mut buffer = vec![0; 100_001];
        loop {
            let most = if got.len() % 3 == 0 { 100_001 } else { 17 };
            match other.read(&mut buffer[..most]).unwrap() {
                0 => break,
                n => got.extend_from_slice(&buffer[..n]),
            }
        }
        assert!(got == data, "{} bytes", got.len());
    });
}

#[test]
fn secure_driver_keeps_the_contract_of_drivers() {
    let site = Site::new();
    for level in [Level::Clear, Level::Protected] {
        let quic = Arc::new(Quic::default());
        for inner in [Arc::new(Tcp) as Arc<dyn Driver>, Arc::new(Memory::default()), quic] {
            let driver = LayeredDriver::new(inner, site.layer(&site.one, &site.one, level));
            testing::contract(&driver, SocketAddr::from(([127, 0, 0, 1], 0)));
        }
    }
}

#[test]
fn connections_with_level_clear_are_plain() {
    let (one, other) = both(Level::Clear);
    assert!(one.fast_path().socket().is_some() && other.fast_path().socket().is_some());
    exchange(other, one);
}

#[test]
fn connections_with_level_protected_carry_data() {
    let (one, other) = both(Level::Protected);
    assert!(one.fast_path().socket().is_none() && other.fast_path().socket().is_none());
    exchange(one, other);
    let (one, other) = both(Level::Protected);
    exchange(other, one);
}

/// The engine uses non-blocking connections and calls again only for data.
#[test]
fn finish_of_a_full_protected_connection_waits_for_room() {
    let (mut one, mut other) = both(Level::Protected);
    one.set_nonblocking(true).unwrap();
    let data = [7; 100_000];
    let mut sent = 0;
    loop {
        match one.write(&data) {
            Ok(n) => sent += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    std::thread::scope(|scope| {
        let read = scope.spawn(move || {
            other.set_nonblocking(false).unwrap();
            other.set_time_limit(LIMIT).unwrap();
            std::io::copy(&mut other, &mut std::io::sink()).unwrap()
        });
        one.finish().unwrap();
        // The protected bytes that had no room were sent as well.
        assert!(read.join().unwrap() >= sent as u64);
    });
}

#[test]
fn listener_with_unexpected_and_silent_peers_accepts_the_owner() {
    let site = Site::new();
    let (listener, address) = listen(site.layer(&site.one, &site.one, Level::Clear));
    let silent = std::net::TcpStream::connect(address).unwrap();
    let mut rude = std::net::TcpStream::connect(address).unwrap();
    rude.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept(Instant::now() + LIMIT).unwrap());
        // An authenticated but unexpected peer.
        let stranger = LayeredDriver::new(Arc::new(Tcp), site.layer(&site.other, &site.one, Level::Clear));
        let refused = stranger.connect(address.into(), &Options::default(), LIMIT);
        // In TLS 1.3, a client learns only after its handshake that it was refused.
        assert!(refused.is_err());
        let owner = LayeredDriver::new(Arc::new(Tcp), site.layer(&site.one, &site.one, Level::Clear));
        owner.connect(address.into(), &Options::default(), LIMIT).unwrap();
        assert!(accepted.join().unwrap().is_some());
    });
    drop(silent);
}

#[test]
fn connect_to_an_unexpected_listener_fails() {
    let site = Site::new();
    let (listener, address) = listen(site.layer(&site.other, &site.one, Level::Protected));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = listener.accept(Instant::now() + Duration::from_secs(2));
        });
        let driver = LayeredDriver::new(Arc::new(Tcp), site.layer(&site.one, &site.one, Level::Protected));
        let error = driver.connect(address.into(), &Options::default(), LIMIT).err().unwrap();
        assert!(error.to_string().contains("/CN=Other"), "{error}");
    });
}
