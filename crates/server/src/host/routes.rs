//! The paths to peers, as earlier transfers have shown them, for ABUF.
//!
//! The table belongs to the host and may be used from every thread.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_tuning::buffers::Path;

/// The most peers that are remembered.
const MOST: usize = 4096;
/// Older observations are ignored: routes change.
const MEMORY: Duration = Duration::from_secs(24 * 3600);
/// A round trip confirms the least one if it takes longer by at most this fraction of it.
const ABOUT: u32 = 8;

#[derive(Default)]
pub(crate) struct Routes(Mutex<HashMap<IpAddr, Seen>>);

struct Seen {
    path: Path,
    last: Instant,
    /// The time of the last round trip that took about as little as the least one.
    least: Instant,
}

impl Routes {
    /// The path to a peer as far as it is known.
    pub(crate) fn path(&self, peer: IpAddr, now: Instant) -> Path {
        let seen = self.0.lock();
        match seen.get(&peer) {
            Some(seen) if now.duration_since(seen.last) < MEMORY => seen.path,
            _ => Path::default(),
        }
    }

    /// Adds what a transfer has seen of the path to a peer.
    pub(crate) fn learn(&self, peer: IpAddr, path: Path, now: Instant) {
        let mut all = self.0.lock();
        if all.len() >= MOST && !all.contains_key(&peer) {
            let oldest = all.iter().min_by_key(|(_, seen)| seen.last).map(|(peer, _)| *peer);
            oldest.and_then(|peer| all.remove(&peer));
        }
        let seen = all.entry(peer).or_insert(Seen { path: Path::default(), last: now, least: now });
        if now.duration_since(seen.last) >= MEMORY {
            seen.path = Path::default();
        }
        seen.last = now;
        if let Some(rtt) = path.rtt {
            // A longer route shows only in the absence of short round trips, however often the peer
            // comes.
            let before = seen.path.rtt.filter(|_| now.duration_since(seen.least) < MEMORY);
            if before.is_none_or(|before| rtt <= before + before / ABOUT) {
                seen.least = now;
            }
            seen.path.rtt = before.into_iter().chain([rtt]).min();
        }
        seen.path.rate = match (seen.path.rate, path.rate) {
            // A slow transfer may have other reasons than the path: it counts with a small weight.
            (Some(before), Some(now)) if now < before => Some(before - (before - now) / 8),
            (before, now) => now.or(before),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(rtt: u64, rate: u64) -> Path {
        Path { rtt: Some(Duration::from_millis(rtt)), rate: Some(rate) }
    }

    #[test]
    fn routes_keep_least_round_trip_and_best_rate() {
        let (routes, peer, now) = (Routes::default(), IpAddr::from([192, 0, 2, 1]), Instant::now());
        assert_eq!(routes.path(peer, now), Path::default());
        routes.learn(peer, Path { rtt: None, rate: Some(800) }, now);
        routes.learn(peer, path(40, 1600), now);
        routes.learn(peer, path(50, 800), now);
        assert_eq!(routes.path(peer, now), path(40, 1500));
        assert_eq!(routes.path(IpAddr::from([192, 0, 2, 2]), now), Path::default());
        // Much later.
        let later = now + MEMORY;
        assert_eq!(routes.path(peer, later), Path::default());
        routes.learn(peer, path(70, 5), later);
        assert_eq!(routes.path(peer, later), path(70, 5));
    }

    /// A transfer every hour does not keep it alive: the route has become longer.
    #[test]
    fn routes_without_short_round_trip_for_a_day_forget_it() {
        let (routes, peer, start) = (Routes::default(), IpAddr::from([192, 0, 2, 1]), Instant::now());
        let hour = |n: u64| start + Duration::from_secs(n * 3600);
        let rtt = |at| routes.path(peer, at).rtt.map(|rtt| rtt.as_millis());
        routes.learn(peer, path(5, 800), hour(0));
        for n in 1..24 {
            routes.learn(peer, path(100, 800), hour(n));
            assert_eq!(rtt(hour(n)), Some(5), "{n}");
        }
        routes.learn(peer, path(110, 800), hour(24));
        assert_eq!(rtt(hour(24)), Some(110));
        assert_eq!(routes.path(peer, hour(24)).rate, Some(800));
        // A round trip close to the least one confirms it: queues come and go.
        for n in 25..100 {
            let now = match n % 20 {
                5 => 100,
                6 => 112,
                _ => 180,
            };
            routes.learn(peer, path(now, 800), hour(n));
            assert_eq!(rtt(hour(n)), Some(100), "{n}");
        }
        // A transfer that only shows a rate does not keep the round trip alive.
        for n in 100..123 {
            routes.learn(peer, Path { rtt: None, rate: Some(800) }, hour(n));
        }
        routes.learn(peer, path(300, 800), hour(123));
        assert_eq!(rtt(hour(123)), Some(300));
    }

    #[test]
    fn routes_when_full_forget_oldest_peer() {
        let (routes, now) = (Routes::default(), Instant::now());
        let peer = |n: usize| IpAddr::from((n as u32).to_be_bytes());
        for n in 0..=MOST {
            routes.learn(peer(n), path(1, 1), now + Duration::from_millis(n as u64));
        }
        assert_eq!(routes.path(peer(0), now), Path::default());
        assert_eq!(routes.path(peer(1), now), path(1, 1));
        assert_eq!(routes.path(peer(MOST), now), path(1, 1));
    }
}
