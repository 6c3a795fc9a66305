//! Connections with a limited speed.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_layers::{Policy, Registry, SessionSecurity, StackBuilder};
use ropewalk_transport::testing::{Memory, contract, pair};
use ropewalk_transport::{Driver, Interest, Wait, WaitAlone};

const PATIENCE: Duration = Duration::from_secs(20);

fn driver(stack: &str) -> Arc<dyn Driver> {
    let registry = Registry::standard().with_driver(Arc::new(Memory::default()));
    let builder = StackBuilder::new(&registry);
    builder
        .build(Some(&stack.parse().unwrap()), SessionSecurity::default(), Policy::default())
        .unwrap()
        .driver
}

#[test]
fn stack_with_rate_keeps_the_contract_of_drivers() {
    for stack in ["tcp,rate", "tcp,rate:rate=20M;burst=100K", "memory,rate:rate=20M;burst=100K", "udt,rate"] {
        contract(&*driver(stack), (Ipv4Addr::LOCALHOST, 0));
    }
}

#[test]
fn write_without_tokens_waits_for_a_timer() {
    let (mut near, mut far) =
        pair(&*driver("memory,rate:write_rate=1K;write_burst=10"), (Ipv4Addr::LOCALHOST, 0));
    near.set_nonblocking(true).unwrap();
    assert_eq!(near.write(&[1; 100]).unwrap(), 10);
    let again = loop {
        match near.write(&[1; 100]) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                let (timer, events) = near.readiness(Interest::Write);
                assert!(WaitAlone.wait(timer, events, Instant::now() + PATIENCE).unwrap());
            }
            Ok(n) => break n,
        }
    };
    assert!((1..=10).contains(&again));
    far.read_exact(&mut [0; 11][..10 + again.min(1)]).unwrap();
}

#[test]
fn blocking_write_moves_no_more_than_the_rate() {
    let (mut near, mut far) =
        pair(&*driver("memory,rate:write_rate=100K;write_burst=1K"), (Ipv4Addr::LOCALHOST, 0));
    let began = Instant::now();
    near.write_all(&[1; 11 << 10]).unwrap();
    // At least ten of eleven parts have waited for tokens.
    assert!(began.elapsed() >= Duration::from_millis(90));
    far.read_exact(&mut [0; 11 << 10]).unwrap();
}

#[test]
fn blocking_read_without_tokens_ends_with_the_connection() {
    let (mut near, mut far) =
        pair(&*driver("memory,rate:read_rate=1;read_burst=1"), (Ipv4Addr::LOCALHOST, 0));
    far.write_all(b"ab").unwrap();
    assert_eq!(near.read(&mut [0; 10]).unwrap(), 1);
    near.set_time_limit(Duration::from_secs(24 * 3600)).unwrap();
    let breaker = near.breaker().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || breaker.break_off());
        let began = Instant::now();
        while matches!(near.read(&mut [0; 10]), Ok(1..)) && began.elapsed() < PATIENCE {}
    });
}
