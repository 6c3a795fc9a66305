//! The contract of drivers, as a test suite for the tests of each driver. [`Memory`] is a driver
//! for tests that need no network.

#![allow(clippy::unwrap_used)]

mod memory;

use std::io::{self, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

pub use memory::Memory;

use crate::{Connection, Driver, Endpoint, Interest, Listener, Options, Tuning, Wait, WaitAlone};

const PATIENCE: Duration = Duration::from_secs(10);
/// A wait that long is a hang.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
const SHORT: Duration = Duration::from_millis(20);

/// Runs every check against a driver that can listen at `address` (port 0).
///
/// # Panics
/// The driver violates the contract.
pub fn contract(driver: &dyn Driver, address: impl Into<Endpoint>) {
    let address = &address.into();
    echo_and_half_close(driver, address);
    large_vectored_writes(driver, address);
    time_limit(driver, address);
    nonblocking(driver, address);
    readiness_for_writes(driver, address);
    peer_closed(driver, address);
    discard(driver, address);
    broken_off_while_reading(driver, address);
    broken_off_while_writing(driver, address);
    breaker_does_not_keep_open(driver, address);
    handle_does_not_keep_open(driver, address);
    reset_is_no_orderly_end(driver, address);
    accept_deadline(driver, address);
    accept_broken_off(driver, address);
    connect_refused(driver, address);
}

/// Returns both ends of a connection: the connecting one and the accepted one.
///
/// # Panics
/// No connection can be made.
pub fn pair(driver: &dyn Driver, address: impl Into<Endpoint>) -> (Box<dyn Connection>, Box<dyn Connection>) {
    let listener = listen(driver, &address.into());
    let to = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept(Instant::now() + PATIENCE).unwrap().unwrap());
        let mut near = driver.connect(to, &Options::default(), PATIENCE).unwrap();
        let mut far = accepting.join().unwrap();
        near.set_time_limit(PATIENCE).unwrap();
        far.set_time_limit(PATIENCE).unwrap();
        (near, far)
    })
}

fn listen(driver: &dyn Driver, address: &Endpoint) -> Box<dyn Listener> {
    driver.listen(address.clone(), &Options::default()).unwrap()
}

fn echo_and_half_close(driver: &dyn Driver, address: &Endpoint) {
    let (mut near, mut far) = pair(driver, address.clone());
    assert_eq!(near.peer_addr().unwrap(), far.local_addr().unwrap());
    assert_eq!(far.peer_addr().unwrap(), near.local_addr().unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut all = Vec::new();
            far.read_to_end(&mut all).unwrap();
            far.write_all(&all).unwrap();
            far.finish().unwrap();
        });
        near.write_all(b"hello ").unwrap();
        near.write_all(b"world").unwrap();
        near.finish().unwrap();
        let mut back = String::new();
        near.read_to_string(&mut back).unwrap();
        assert_eq!(back, "hello world");
    });
}

fn large_vectored_writes(driver: &dyn Driver, address: &Endpoint) {
    let (mut near, mut far) = pair(driver, address.clone());
    let data: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut all = Vec::new();
            far.read_to_end(&mut all).unwrap();
            all
        });
        let mut sent = 0;
        while sent < data.len() {
            let (head, tail) = data[sent..].split_at((data.len() - sent).min(17));
            sent += near.write_vectored(&[io::IoSlice::new(head), io::IoSlice::new(tail)]).unwrap();
        }
        near.finish().unwrap();
        assert!(reading.join().unwrap() == data);
    });
}

fn time_limit(driver: &dyn Driver, address: &Endpoint) {
    let (mut near, _far) = pair(driver, address.clone());
    near.set_time_limit(SHORT).unwrap();
    let error = near.read(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    let data = vec![0; 1 << 20];
    let error = loop {
        match near.write(&data) {
            Ok(n) => assert!(n > 0),
            Err(e) => break e,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
}

fn nonblocking(driver: &dyn Driver, address: &Endpoint) {
    let (mut near, mut far) = pair(driver, address.clone());
    near.set_time_limit(FOREVER).unwrap();
    near.set_nonblocking(true).unwrap();
    assert_eq!(near.read(&mut [0; 10]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    far.write_all(b"x").unwrap();
    assert!(is_ready(&*near, Interest::Read, PATIENCE));
    assert_eq!(near.read(&mut [0; 10]).unwrap(), 1);
    near.set_nonblocking(false).unwrap();
    near.set_time_limit(SHORT).unwrap();
    let began = Instant::now();
    assert_eq!(near.read(&mut [0; 10]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert!(began.elapsed() >= SHORT / 2);
}

/// A connection that takes no more bytes becomes ready for a write once its peer has read.
fn readiness_for_writes(driver: &dyn Driver, address: &Endpoint) {
    let (mut near, mut far) = pair(driver, address.clone());
    near.set_nonblocking(true).unwrap();
    assert!(is_ready(&*near, Interest::Write, PATIENCE));
    let data = vec![0; 1 << 20];
    let mut sent = 0;
    // A transport may move bytes on to the other end meanwhile.
    while is_ready(&*near, Interest::Write, 5 * SHORT) {
        match near.write(&data) {
            Ok(n) => sent += n,
            Err(e) => assert_eq!(e.kind(), io::ErrorKind::WouldBlock),
        }
    }
    far.read_exact(&mut vec![0; sent]).unwrap();
    assert!(is_ready(&*near, Interest::Write, PATIENCE));
    assert!(near.write(&data).unwrap() > 0);
}

fn peer_closed(driver: &dyn Driver, address: &Endpoint) {
    let (mut near, mut far) = pair(driver, address.clone());
    assert!(!near.peer_closed() && !far.peer_closed());
    far.write_all(b"x").unwrap();
    far.finish().unwrap();
    let until = Instant::now() + PATIENCE;
    while !near.peer_closed() && Instant::now() < until {
        thread::yield_now();
    }
    assert!(near.peer_closed() && !far.peer_closed());
    assert_eq!(near.read_to_end(&mut Vec::new()).unwrap(), 1);
    drop(far);
    assert!(near.peer_closed());
}

/// A driver need not be able to discard. If it is, it drops only bytes that it reports.
fn discard(driver: &dyn Driver, address: &Endpoint) {
    let (mut near, mut far) = pair(driver, address.clone());
    far.write_all(b"12345").unwrap();
    assert!(is_ready(&*near, Interest::Read, PATIENCE));
    let discarded = near.discard(3).unwrap();
    assert!(discarded.is_none_or(|n| (1..=3).contains(&n)));
    far.finish().unwrap();
    let mut rest = Vec::new();
    near.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"12345"[discarded.unwrap_or(0)..]);
    assert!(matches!(near.discard(3), Ok(None | Some(0))));
}

fn is_ready(connection: &dyn Connection, interest: Interest, within: Duration) -> bool {
    let (descriptor, events) = connection.readiness(interest);
    WaitAlone.wait(descriptor, events, Instant::now() + within).unwrap()
}

fn broken_off_while_reading(driver: &dyn Driver, address: &Endpoint) {
    let (mut near, _far) = pair(driver, address.clone());
    near.set_time_limit(FOREVER).unwrap();
    let breaker = near.breaker().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(SHORT);
            breaker.break_off();
        });
        // Transports may report an orderly end or an error.
        if let Ok(n) = near.read(&mut [0; 10]) {
            assert_eq!(n, 0);
        }
    });
}

fn broken_off_while_writing(driver: &dyn Driver, address: &Endpoint) {
    let (mut near, _far) = pair(driver, address.clone());
    near.set_time_limit(FOREVER).unwrap();
    let breaker = near.breaker().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(SHORT);
            breaker.break_off();
        });
        let data = vec![0; 1 << 20];
        while near.write(&data).is_ok() {}
    });
}

fn breaker_does_not_keep_open(driver: &dyn Driver, address: &Endpoint) {
    let (near, mut far) = pair(driver, address.clone());
    let breaker = near.breaker().unwrap();
    drop(near);
    assert_eq!(far.read(&mut [0; 10]).unwrap(), 0);
    breaker.break_off();
}

fn handle_does_not_keep_open(driver: &dyn Driver, address: &Endpoint) {
    let (mut near, mut far) = pair(driver, address.clone());
    let handle = near.handle();
    near.write_all(&[1; 5000]).unwrap();
    far.read_exact(&mut [0; 5000]).unwrap();
    // Handshakes and the overhead of layers may count, too.
    let delivered = handle.stats().and_then(|stats| stats.delivered);
    assert!(delivered.is_none_or(|bytes| bytes < 20_000));
    handle.tune(&Tuning { unsent_limit: Some(1 << 20), ..Tuning::default() });
    drop(near);
    assert_eq!(far.read(&mut [0; 10]).unwrap(), 0);
    assert_eq!(handle.stats(), None);
    handle.tune(&Tuning::default());
}

fn reset_is_no_orderly_end(driver: &dyn Driver, address: &Endpoint) {
    let (mut near, mut far) = pair(driver, address.clone());
    near.write_all(b"half a fi").unwrap();
    near.reset_on_drop().unwrap();
    drop(near);
    assert!(far.read_to_end(&mut Vec::new()).is_err());
}

fn accept_deadline(driver: &dyn Driver, address: &Endpoint) {
    let listener = listen(driver, address);
    let began = Instant::now();
    assert!(listener.accept(began).unwrap().is_none());
    assert!(listener.accept(began + SHORT).unwrap().is_none());
    assert!(began.elapsed() >= SHORT);
}

fn accept_broken_off(driver: &dyn Driver, address: &Endpoint) {
    let listener = listen(driver, address);
    let breaker = listener.breaker().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(SHORT);
            breaker.break_off();
        });
        let error = listener.accept(Instant::now() + FOREVER).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    });
}

fn connect_refused(driver: &dyn Driver, address: &Endpoint) {
    let listener = listen(driver, address);
    let gone = listener.local_addr().unwrap();
    drop(listener);
    assert!(driver.connect(gone, &Options::default(), PATIENCE).is_err());
}
