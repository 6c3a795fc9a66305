//! One-time keys over loopback: only connections that have the key are accepted.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use ropewalk_layers::{KeyLayer, Layer, LayeredDriver, LayeredListener, Progress};
use ropewalk_quic_driver::Quic;
use ropewalk_transport::testing::contract;
use ropewalk_transport::{Connection, Driver, Listener, Options, Tcp};

const LIMIT: Duration = Duration::from_secs(20);
/// Lengths of the three messages.
const HELLO: usize = 30;
const ANSWER: usize = 54;
const PROOF: usize = 32;

fn layer(number: u64, secret: u8) -> Arc<KeyLayer> {
    Arc::new(KeyLayer::new(number, &[secret; 32]).unwrap())
}

fn local() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn listen(layer: Arc<KeyLayer>) -> (LayeredListener, SocketAddr) {
    let inner = Tcp.listen(local().into(), &Options::default()).unwrap();
    let address = inner.local_addr().unwrap().socket().unwrap();
    (LayeredListener::new(inner, layer).unwrap(), address)
}

fn connect(layer: Arc<KeyLayer>, address: SocketAddr) -> std::io::Result<Box<dyn Connection>> {
    let mut connection =
        LayeredDriver::new(Arc::new(Tcp), layer).connect(address.into(), &Options::default(), LIMIT)?;
    connection.set_time_limit(LIMIT)?;
    Ok(connection)
}

fn stranger(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Accepts in another thread and returns the first authenticated connection.
fn accept<'s>(
    scope: &'s Scope<'s, '_>,
    listener: &'s LayeredListener,
) -> ScopedJoinHandle<'s, Box<dyn Connection>> {
    scope.spawn(|| {
        let mut connection = listener.accept(Instant::now() + LIMIT).unwrap().unwrap();
        connection.set_time_limit(LIMIT).unwrap();
        connection
    })
}

fn take<const N: usize>(stream: &mut impl Read) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Closes the sending direction. If the peer has closed already, there is nothing to close.
fn end(stream: &TcpStream) {
    if let Err(e) = stream.shutdown(std::net::Shutdown::Write) {
        assert_eq!(e.kind(), ErrorKind::NotConnected);
    }
}

/// Checks that the peer closes without sending anything more.
fn gets_nothing(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        // The peer closed with unread input.
        Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset),
    }
    assert!(rest.is_empty(), "{} bytes", rest.len());
}

/// Runs `attack` on the port first; then the owner connects and must be the first accepted
/// connection.
fn only_the_owner_gets_in(attack: impl FnOnce(SocketAddr)) {
    let (listener, address) = listen(layer(7, 1));
    std::thread::scope(|scope| {
        let accepted = accept(scope, &listener);
        attack(address);
        assert!(!accepted.is_finished());
        let mut owner = connect(layer(7, 1), address).unwrap();
        owner.write_all(b"mine").unwrap();
        assert_eq!(take::<4>(&mut accepted.join().unwrap()), *b"mine");
    });
}

#[test]
fn connections_with_the_key_carry_clear_data() {
    let (listener, address) = listen(layer(7, 1));
    let data: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
    // Several connections of one channel, sending in both directions at once.
    std::thread::scope(|scope| {
        for accepted_sends in [true, false, true, false] {
            let accepted = accept(scope, &listener);
            let mut one = connect(layer(7, 1), address).unwrap();
            let mut other = accepted.join().unwrap();
            if accepted_sends {
                std::mem::swap(&mut one, &mut other);
            }
            assert!(one.fast_path().socket().is_some() && other.fast_path().socket().is_some());
            let data = &data;
            let sender = scope.spawn(move || {
                one.write_all(data).unwrap();
                one.finish().unwrap();
                one
            });
            let mut got = Vec::new();
            other.read_to_end(&mut got).unwrap();
            assert!(got == *data);
            drop(sender.join().unwrap());
        }
    });
}

#[test]
fn handshake_leaves_data_after_the_proof_unread() {
    // A relay sends proof and data together, in chunks of this size.
    let through = |piece: usize| {
        let (listener, address) = listen(layer(7, 1));
        let relay = TcpListener::bind(local()).unwrap();
        let at = relay.local_addr().unwrap();
        std::thread::scope(|scope| {
            let accepted = accept(scope, &listener);
            let owner = scope.spawn(move || {
                let mut owner = connect(layer(7, 1), at).unwrap();
                owner.write_all(b"data").unwrap();
                owner
            });
            let (mut from, _) = relay.accept().unwrap();
            let to = stranger(address);
            to.set_nodelay(true).unwrap();
            let pass = |bytes: &[u8]| {
                for part in bytes.chunks(piece) {
                    (&to).write_all(part).unwrap();
                }
            };
            pass(&take::<HELLO>(&mut from));
            let answer = take::<ANSWER>(&mut &to);
            for byte in answer {
                from.write_all(&[byte]).unwrap();
            }
            pass(&take::<{ PROOF + 4 }>(&mut from));
            let mut connection = accepted.join().unwrap();
            assert_eq!(take::<4>(&mut connection), *b"data");
            drop(owner.join().unwrap());
        });
    };
    through(1);
    through(1000);
}

#[test]
fn handshake_refuses_other_protocols() {
    only_the_owner_gets_in(|address| {
        drop(stranger(address));
        let _silent = stranger(address);
        for rude in [&b"GET / HTTP/1.0\r\n\r\n"[..], b"\x16\x03\x01\x02\x00\x01", b"R!", b"RWDK\x01A", b"\0"]
        {
            let mut stream = stranger(address);
            stream.write_all(rude).unwrap();
            gets_nothing(&mut stream);
        }
        // MODE E's end of data, and a flood.
        for flood in [&[0x48; 17][..], &[b'R'; 1 << 20]] {
            let mut stream = stranger(address);
            let _ = stream.write_all(flood);
            gets_nothing(&mut stream);
        }
    });
}

#[test]
fn handshake_refuses_wrong_keys() {
    only_the_owner_gets_in(|address| {
        // The right number with another secret. The listener's proof does not match that secret, so
        // the connecting side refuses it.
        let error = connect(layer(7, 2), address).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("does not have the key"), "{error}");
        // The key of another channel.
        assert!(connect(layer(8, 1), address).is_err());
        // A guessed proof.
        let mut stream = stranger(address);
        stream.write_all(&hello(7)).unwrap();
        take::<ANSWER>(&mut stream);
        stream.write_all(&[0; PROOF]).unwrap();
        gets_nothing(&mut stream);
    });
}

/// A first message, made without any secret.
fn hello(number: u64) -> [u8; HELLO] {
    let mut hello = [9; HELLO];
    hello[..6].copy_from_slice(b"RWDK\x01C");
    hello[6..14].copy_from_slice(&number.to_be_bytes());
    hello
}

#[test]
fn handshake_errors_name_the_reason() {
    let words = |sent: &[u8]| {
        let listener = Tcp.listen(local().into(), &Options::default()).unwrap();
        let mut stream = stranger(listener.local_addr().unwrap().socket().unwrap());
        stream.write_all(sent).unwrap();
        let connection = listener.accept(Instant::now() + LIMIT).unwrap().unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut handshake = layer(7, 1).begin(connection, false).unwrap();
        loop {
            match handshake.advance() {
                Ok(Progress::Waits(_)) => std::thread::yield_now(),
                Ok(Progress::Done(_)) => panic!("believed"),
                Err(e) => return e.to_string(),
            }
        }
    };
    let text = words(&hello(8));
    assert!(
        text.ends_with("it is for the channel of key 0000000000000008, not of 0000000000000007"),
        "{text}"
    );
    assert!(words(b"RWDK\x02C").ends_with("by version 2, and only 1 is known"));
    assert!(words(b"GET / HTTP/1.0").ends_with("it began with \"GET / \""));
    assert!(words(&hello(7)[..29]).ends_with("after 29 of 30 bytes of its proof"));
    assert!(words(b"").ends_with("after 0 of 30 bytes of its proof"));
    assert!(words(&hello(7)).ends_with("after 0 of 32 bytes of its proof"));
}

#[test]
fn handshake_refuses_replayed_messages() {
    let (listener, address) = listen(layer(7, 1));
    let relay = TcpListener::bind(local()).unwrap();
    let at = relay.local_addr().unwrap();
    let (hello, answer, proof) = std::thread::scope(|scope| {
        let accepted = accept(scope, &listener);
        let owner = scope.spawn(move || connect(layer(7, 1), at).unwrap());
        let (mut from, _) = relay.accept().unwrap();
        let mut to = stranger(address);
        let hello = take::<HELLO>(&mut from);
        to.write_all(&hello).unwrap();
        let answer = take::<ANSWER>(&mut to);
        from.write_all(&answer).unwrap();
        let proof = take::<PROOF>(&mut from);
        to.write_all(&proof).unwrap();
        drop((accepted.join().unwrap(), owner.join().unwrap()));
        (hello, answer, proof)
    });
    // Replayed to the accepting side of the same channel.
    std::thread::scope(|scope| {
        let accepted = accept(scope, &listener);
        let mut stream = stranger(address);
        stream.write_all(&hello).unwrap();
        assert!(take::<ANSWER>(&mut stream) != answer);
        stream.write_all(&proof).unwrap();
        gets_nothing(&mut stream);
        drop(connect(layer(7, 1), address).unwrap());
        drop(accepted.join().unwrap());
    });
    // Replayed to the connecting side.
    std::thread::scope(|scope| {
        let owner = scope.spawn(move || connect(layer(7, 1), at).err().unwrap());
        let (mut from, _) = relay.accept().unwrap();
        take::<HELLO>(&mut from);
        from.write_all(&answer).unwrap();
        assert_eq!(owner.join().unwrap().kind(), ErrorKind::PermissionDenied);
        gets_nothing(&mut from);
    });
}

#[test]
fn handshake_refuses_reflected_messages() {
    only_the_owner_gets_in(|address| {
        // Its own proof, sent back to the accepting side.
        let mut stream = stranger(address);
        stream.write_all(&hello(7)).unwrap();
        let answer = take::<ANSWER>(&mut stream);
        stream.write_all(&answer[ANSWER - PROOF..]).unwrap();
        gets_nothing(&mut stream);
        // Its answer, sent as the first message of a second connection.
        let mut stream = stranger(address);
        stream.write_all(&answer).unwrap();
        gets_nothing(&mut stream);
    });
    // Its own first message, sent back to the connecting side; also the messages of two connecting
    // sides, exchanged.
    let thief = TcpListener::bind(local()).unwrap();
    let at = thief.local_addr().unwrap();
    std::thread::scope(|scope| {
        let owners = [(); 2].map(|()| scope.spawn(move || connect(layer(7, 1), at).err().unwrap()));
        let ends = [(); 2].map(|()| thief.accept().unwrap().0);
        let hellos = [0, 1].map(|n| take::<HELLO>(&mut &ends[n]));
        for (mut end, hello) in ends.iter().zip(hellos.iter().rev()) {
            end.write_all(hello).unwrap();
        }
        for owner in owners {
            let error = owner.join().unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        }
    });
}

#[test]
fn handshake_of_two_accepting_sides_makes_no_progress() {
    let (one, other) = {
        let listener = Tcp.listen(local().into(), &Options::default()).unwrap();
        let address = listener.local_addr().unwrap().socket().unwrap();
        let one = Tcp.connect(address.into(), &Options::default(), LIMIT).unwrap();
        (one, listener.accept(Instant::now() + LIMIT).unwrap().unwrap())
    };
    let mut one = layer(7, 1).begin(one, false).unwrap();
    let mut other = layer(7, 1).begin(other, false).unwrap();
    for _ in 0..3 {
        assert!(matches!(one.advance().unwrap(), Progress::Waits(_)));
        assert!(matches!(other.advance().unwrap(), Progress::Waits(_)));
    }
}

#[test]
fn connect_to_a_listener_without_the_key_fails() {
    // Instead of an answer: garbage, a truncated answer, and an answer with a wrong proof.
    let mut short = [9; ANSWER];
    short[..6].copy_from_slice(b"RWDK\x01A");
    for (says, kind) in [
        (&b"220 ready.\r\n"[..], ErrorKind::InvalidData),
        (&[0; 4096], ErrorKind::InvalidData),
        (&short[..20], ErrorKind::UnexpectedEof),
        (&short, ErrorKind::PermissionDenied),
    ] {
        let thief = TcpListener::bind(local()).unwrap();
        let at = thief.local_addr().unwrap();
        std::thread::scope(|scope| {
            let owner = scope.spawn(move || connect(layer(7, 1), at).err().unwrap());
            let (mut stream, _) = thief.accept().unwrap();
            let hello = take::<HELLO>(&mut stream);
            assert_eq!(hello[..14], *b"RWDK\x01C\0\0\0\0\0\0\0\x07");
            stream.write_all(says).unwrap();
            end(&stream);
            assert_eq!(owner.join().unwrap().kind(), kind);
            gets_nothing(&mut stream);
        });
    }
}

#[test]
fn connect_to_a_silent_listener_times_out() {
    let silent = TcpListener::bind(local()).unwrap();
    let driver = LayeredDriver::new(Arc::new(Tcp), layer(7, 1));
    let limit = Duration::from_millis(30);
    let error =
        driver.connect(silent.local_addr().unwrap().into(), &Options::default(), limit).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

/// Connects from another address of this host.
fn from(address: [u8; 4], to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&stream, &SocketAddr::from((address, 0))).unwrap();
    connect(&stream, &to).unwrap();
    stream.into()
}

#[test]
fn listener_with_many_unexpected_peers_keeps_the_expected_one() {
    let inner = Tcp.listen(local().into(), &Options::default()).unwrap();
    let address = inner.local_addr().unwrap().socket().unwrap();
    let listener = LayeredListener::new(inner, layer(7, 1)).unwrap().sparing([127, 0, 0, 1].into());
    // The owner connects first and is slow.
    let connection = Tcp.connect(address.into(), &Options::default(), LIMIT).unwrap();
    let mut own = layer(7, 1).begin(connection, true).unwrap();
    let mut strangers = Vec::new();
    for at in 0..600 {
        strangers.push(from([127, 0, 0, 2 + (at % 200) as u8], address));
        if at % 20 == 0 {
            // One call takes all connections since the last one.
            assert!(listener.accept(Instant::now()).unwrap().is_none());
        }
    }
    while listener.accept(Instant::now()).unwrap().is_none() {
        own.advance().unwrap();
    }
}

/// The caller can then stop waiting for a peer that failed the authentication, and report the
/// reason.
#[test]
fn turned_down_reports_the_last_refused_peer() {
    let inner = Tcp.listen(local().into(), &Options::default()).unwrap();
    let address = inner.local_addr().unwrap().socket().unwrap();
    let listener = LayeredListener::new(inner, layer(7, 1)).unwrap().sparing([127, 0, 0, 1].into());
    assert_eq!(listener.turned_down(), None);
    let come = |source: [u8; 4]| {
        from(source, address).write_all(&[0; 4096]).unwrap();
        let known = || listener.turned_down().filter(|it| it.peer.ip() == Some(IpAddr::from(source)));
        let until = Instant::now() + LIMIT;
        while known().is_none() && Instant::now() < until {
            assert!(listener.accept(Instant::now() + Duration::from_millis(10)).unwrap().is_none());
        }
        known().unwrap()
    };
    assert!(!come([127, 0, 0, 9]).meant);
    assert!(come([127, 0, 0, 1]).meant);
    // A refused unexpected peer does not replace the record.
    from([127, 0, 0, 9], address).write_all(&[0; 4096]).unwrap();
    assert!(listener.accept(Instant::now() + Duration::from_millis(50)).unwrap().is_none());
    assert!(listener.turned_down().unwrap().meant);
}

#[test]
fn key_over_quic_keeps_the_contract_of_drivers() {
    contract(&LayeredDriver::new(Arc::new(Quic::default()), layer(7, 1)), local());
}

/// Copies what one connection receives to the other, both ways, until one of them has ended.
fn pass_on(near: Box<dyn Connection>, far: Box<dyn Connection>) {
    let mut ends = [near, far];
    ends.iter_mut().for_each(|end| end.set_nonblocking(true).unwrap());
    let mut buffer = [0; 1000];
    loop {
        for from in [0, 1] {
            match ends[from].read(&mut buffer) {
                Ok(count) if count > 0 => ends[1 - from].write_all(&buffer[..count]).unwrap(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                _ => return,
            }
        }
    }
}

/// A man in the middle has a connection to each side, and passes on what they send: over TCP they
/// do not notice, over QUIC their proofs are for different connections.
#[test]
fn proof_over_quic_is_for_one_connection() {
    for (driver, passes) in [(Arc::new(Tcp) as Arc<dyn Driver>, true), (Arc::new(Quic::default()), false)] {
        let options = Options::default();
        let inner = driver.listen(local().into(), &options).unwrap();
        let server = inner.local_addr().unwrap();
        let listener = LayeredListener::new(inner, layer(7, 1)).unwrap();
        let between = driver.listen(local().into(), &options).unwrap();
        let to = between.local_addr().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let near = between.accept(Instant::now() + LIMIT).unwrap().unwrap();
                let far = driver.connect(server, &Options::default(), LIMIT).unwrap();
                pass_on(near, far);
            });
            let accepted = scope.spawn(|| {
                let until = if passes { LIMIT } else { Duration::from_secs(1) };
                listener.accept(Instant::now() + until).unwrap()
            });
            let connected = LayeredDriver::new(Arc::clone(&driver), layer(7, 1)).connect(to, &options, LIMIT);
            assert_eq!(
                connected.as_ref().err().map(|error| error.kind()),
                (!passes).then_some(ErrorKind::PermissionDenied)
            );
            drop(connected);
            assert_eq!(accepted.join().unwrap().is_some(), passes);
        });
    }
}
