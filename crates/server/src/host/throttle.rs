//! Delays for the answers to failed log-ins, which grow with each failure.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The failures of an address are forgotten after this time without another one.
const MEMORY: Duration = Duration::from_secs(600);
/// The most addresses that are remembered.
const MOST: usize = 10_000;
/// The number of times that the pause doubles.
const DOUBLINGS: u32 = 4;

#[derive(Default)]
pub(crate) struct Throttle(Mutex<HashMap<IpAddr, Failures>>);

struct Failures {
    count: u32,
    last: Instant,
}

impl Throttle {
    /// How long the answer to a log-in that failed now is held back; `base` for the first failure.
    pub(crate) fn failed(&self, address: IpAddr, base: Duration, now: Instant) -> Duration {
        let mut addresses = self.0.lock();
        if addresses.len() >= MOST {
            addresses.retain(|_, failures| now.duration_since(failures.last) < MEMORY);
        }
        let key = network(address);
        if addresses.len() >= MOST && !addresses.contains_key(&key) {
            // There are too many to remember them all: an unknown address waits no less than a
            // known one.
            return base * (1 << DOUBLINGS);
        }
        let failures = addresses.entry(key).or_insert(Failures { count: 0, last: now });
        if now.duration_since(failures.last) >= MEMORY {
            failures.count = 0;
        }
        let pause = base * (1 << failures.count.min(DOUBLINGS));
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
        pause
    }

    pub(crate) fn succeeded(&self, address: IpAddr) {
        self.0.lock().remove(&network(address));
    }
}

/// The network of an address: one host usually has a whole /64 of IPv6.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) & (u128::MAX << 64)).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_grows_with_failures_and_expires() {
        let throttle = Throttle::default();
        let (base, now) = (Duration::from_secs(1), Instant::now());
        let address = IpAddr::from([10, 0, 0, 1]);
        let pauses: Vec<_> = (0..7).map(|_| throttle.failed(address, base, now).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 16, 16]);
        assert_eq!(throttle.failed(IpAddr::from([10, 0, 0, 2]), base, now), base);
        assert_eq!(throttle.failed(address, base, now + MEMORY), base);
        throttle.succeeded(address);
        assert_eq!(throttle.failed(address, base, now), base);
    }

    #[test]
    fn addresses_of_one_v6_network_count_as_one() {
        let throttle = Throttle::default();
        let (base, now) = (Duration::from_secs(1), Instant::now());
        throttle.failed(IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, 1]), base, now);
        let pause = throttle.failed(IpAddr::from([0x2001, 0xdb8, 0, 1, 9, 9, 9, 9]), base, now);
        assert_eq!(pause, base * 2);
    }
}
