//! A listener that adds a layer to connections before it hands them over. Handshakes run
//! concurrently in the thread that calls `accept`; none of them blocks it. The number of handshakes
//! and the time of each are limited, so that unexpected peers cannot keep the expected one out, or
//! take all descriptors of the process. The limits also hold while a transfer runs that needs no
//! further connection ([`Listener::close_late`]). A failed handshake of the expected peer is logged
//! as a warning, those of others are counted, and the last failure can be queried.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_transport::{
    Breaker, Connection, Endpoint, Interest, Listener, Readiness, TurnedDown, Wait, WaitAlone, refused,
};
use rustix::event::PollFlags;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::{Handshake, Layer, Progress};

/// The time limit of a handshake.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// How many handshakes run at a time at a listener. Beyond this number, one is aborted
/// ([`victim`]).
const MOST: usize = 256;
/// How many run at a time in the process, before a listener aborts those of unexpected peers beyond
/// [`FEW`].
const MOST_OF_ALL: usize = 1024;
/// How many run at a time at a listener in any case.
const FEW: usize = 16;
/// How many connections are taken at once. Without this limit, peers that keep connecting could
/// keep the caller busy.
const AT_ONCE: usize = 64;

/// The handshakes that run in this process.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// Adds a layer to the connections that another listener accepts. Handshakes run concurrently: a
/// silent peer does not delay others, and a connection that fails the handshake is closed and
/// affects no others.
pub struct LayeredListener {
    inner: Box<dyn Listener>,
    layer: Arc<dyn Layer>,
    /// The epoll descriptor with the listener and the handshakes in progress.
    events: OwnedFd,
    /// The handshakes in progress, in the order in which they began.
    pending: Mutex<VecDeque<Pending>>,
    /// The number of handshakes of all listeners.
    all: &'static AtomicUsize,
    spared: Option<IpAddr>,
    turned_down: Mutex<Option<TurnedDown>>,
}

struct Pending {
    handshake: Box<dyn Handshake>,
    peer: Option<Endpoint>,
    until: Instant,
    waits: Interest,
    _counted: Counted,
}

/// Counts a handshake until it is dropped.
struct Counted(&'static AtomicUsize);

impl Counted {
    fn among(all: &'static AtomicUsize) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(all)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LayeredListener {
    /// Adds `layer` to the connections that `inner` accepts.
    ///
    /// # Errors
    /// The system cannot make an epoll descriptor, or cannot watch that of `inner`.
    pub fn new(inner: Box<dyn Listener>, layer: Arc<dyn Layer>) -> io::Result<Self> {
        let events = epoll::create(CreateFlags::CLOEXEC)?;
        let (fd, flags) = inner.readiness();
        epoll::add(&events, fd, EventData::new_u64(0), epoll_flags(flags))?;
        Ok(Self {
            inner,
            layer,
            events,
            pending: Mutex::default(),
            all: &ALL,
            spared: None,
            turned_down: Mutex::default(),
        })
    }

    /// Sets the address of the expected peer. If there are too many handshakes, those from other
    /// addresses are aborted first.
    pub fn sparing(self, address: IpAddr) -> Self {
        Self { spared: Some(address.to_canonical()), ..self }
    }

    /// Returns the first connection whose handshake is complete, without waiting. Input for the
    /// other handshakes stays in their sockets, so the descriptor remains ready.
    fn next(&self) -> io::Result<Option<Box<dyn Connection>>> {
        let mut pending = self.pending.lock();
        let now = Instant::now();
        self.expire(&mut pending, now);
        let mut at = 0;
        while at < pending.len() {
            match self.advance(&mut pending, at) {
                Advanced::Done(connection) => return Ok(Some(connection)),
                Advanced::Waits => at += 1,
                Advanced::Gone => {}
            }
        }
        for _ in 0..AT_ONCE {
            // A deadline in the past means not to wait.
            let Some(connection) = self.inner.accept(now)? else { break };
            let peer = connection.peer_addr().ok();
            let Ok(handshake) = self.layer.begin(connection, false) else { continue };
            let waits = Interest::Read;
            self.watch(handshake.connection()?, waits)?;
            let _counted = Counted::among(self.all);
            pending.push_back(Pending { handshake, peer, until: now + LIMIT, waits, _counted });
            // Most connections of the expected peer need no place among those that wait.
            let last = pending.len() - 1;
            match self.advance(&mut pending, last) {
                Advanced::Done(connection) => return Ok(Some(connection)),
                Advanced::Waits => self.make_room(&mut pending),
                Advanced::Gone => {}
            }
        }
        Ok(None)
    }

    /// Aborts a handshake if there are too many.
    fn make_room(&self, pending: &mut VecDeque<Pending>) {
        let too_many = pending.len() > MOST;
        let crowded = pending.len() > FEW && self.all.load(Ordering::Relaxed) > MOST_OF_ALL;
        if !too_many && !crowded {
            return;
        }
        let peers: Vec<_> = pending.iter().map(|entry| entry.peer.as_ref()?.ip()).collect();
        let Some(at) = victim(&peers, self.spared).or(too_many.then_some(0)) else { return };
        if let Some(peer) = self.remove(pending, at) {
            refused(peer, "too many connections are not authenticated yet");
        }
    }

    /// Closes the connections whose handshakes take too long.
    fn expire(&self, pending: &mut VecDeque<Pending>, now: Instant) {
        while pending.front().is_some_and(|entry| entry.until <= now) {
            if let Some(peer) = self.remove(pending, 0) {
                self.note(peer, io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Advances one handshake.
    fn advance(&self, pending: &mut VecDeque<Pending>, at: usize) -> Advanced {
        let Some(entry) = pending.get_mut(at) else { return Advanced::Gone };
        match entry.handshake.advance() {
            Ok(Progress::Done(connection)) => {
                self.unwatch(&*connection, entry.waits);
                pending.remove(at);
                Advanced::Done(connection)
            }
            Ok(Progress::Waits(interest)) => {
                if interest != entry.waits
                    && let Ok(connection) = entry.handshake.connection()
                {
                    self.unwatch(connection, entry.waits);
                    // If this fails, the handshake continues with the next event of another one.
                    let _ = self.watch(connection, interest);
                    entry.waits = interest;
                }
                Advanced::Waits
            }
            Err(error) => {
                if let Some(peer) = self.remove(pending, at) {
                    self.note(peer, error);
                }
                Advanced::Gone
            }
        }
    }
}

impl LayeredListener {
    fn watch(&self, connection: &dyn Connection, interest: Interest) -> io::Result<()> {
        let (fd, events) = connection.readiness(interest);
        Ok(epoll::add(&self.events, fd, EventData::new_u64(1), epoll_flags(events))?)
    }

    fn unwatch(&self, connection: &dyn Connection, interest: Interest) {
        // This fails only if the descriptor is not registered.
        let _ = epoll::delete(&self.events, connection.readiness(interest).0);
    }

    /// Closes a connection whose handshake has not ended, and returns its peer.
    fn remove(&self, pending: &mut VecDeque<Pending>, at: usize) -> Option<Endpoint> {
        let entry = pending.remove(at)?;
        // A descriptor may stay open if the driver shares it, and must not wake this listener.
        if let Ok(connection) = entry.handshake.connection() {
            self.unwatch(connection, entry.waits);
        }
        entry.peer
    }

    /// Logs and records a refused connection. One from an unexpected peer does not replace one from
    /// the expected peer.
    fn note(&self, peer: Endpoint, error: io::Error) {
        let meant = self.spared.is_some() && self.spared == peer.ip();
        if meant {
            tracing::warn!(%peer, %error, "closed a data connection that was not authenticated");
        } else {
            refused(&peer, &error);
        }
        let mut noted = self.turned_down.lock();
        if meant || !noted.as_ref().is_some_and(|before| before.meant) {
            *noted = Some(TurnedDown { peer, reason: error.to_string(), meant });
        }
    }
}

fn epoll_flags(events: PollFlags) -> EventFlags {
    if events.contains(PollFlags::OUT) { EventFlags::OUT } else { EventFlags::IN }
}

/// Which handshake is aborted if there are too many: the oldest from the address with the most of
/// them. For IPv6, the network of 64 bits counts as one address, because one host may have all of
/// its addresses. So a peer can displace only its own handshakes. `None`: all of them are those of
/// the expected peer.
fn victim(peers: &[Option<IpAddr>], spared: Option<IpAddr>) -> Option<usize> {
    let from = |peer: &Option<IpAddr>| match peer {
        Some(IpAddr::V6(v6)) => Some(IpAddr::V6((v6.to_bits() & !u128::from(u64::MAX)).into())),
        address => *address,
    };
    let strange = |peer: &&Option<IpAddr>| spared.is_none() || **peer != spared;
    let mut counts: HashMap<_, usize> = HashMap::new();
    peers.iter().filter(strange).for_each(|peer| *counts.entry(from(peer)).or_default() += 1);
    let most = counts.values().copied().max().unwrap_or(0);
    peers.iter().position(|peer| strange(&peer) && counts.get(&from(peer)) == Some(&most))
}

enum Advanced {
    Done(Box<dyn Connection>),
    Waits,
    /// The handshake failed, and the next one has taken its index.
    Gone,
}

impl Listener for LayeredListener {
    fn local_addr(&self) -> io::Result<Endpoint> {
        self.inner.local_addr()
    }

    fn accept(&self, deadline: Instant) -> io::Result<Option<Box<dyn Connection>>> {
        loop {
            if let Some(mut connection) = self.next()? {
                connection.set_nonblocking(false)?;
                return Ok(Some(connection));
            }
            if !WaitAlone.wait(self.events.as_fd(), PollFlags::IN, deadline)? || Instant::now() >= deadline {
                return Ok(None);
            }
        }
    }

    fn turn_away(&self) -> Vec<Box<dyn Connection>> {
        let mut pending = self.pending.lock();
        while !pending.is_empty() {
            self.remove(&mut pending, 0);
        }
        drop(pending);
        self.inner.turn_away()
    }

    fn close_late(&self) {
        // The thread that has locked it accepts connections, and closes those as well.
        if let Some(mut pending) = self.pending.try_lock() {
            self.expire(&mut pending, Instant::now());
        }
        self.inner.close_late();
    }

    fn turned_down(&self) -> Option<TurnedDown> {
        let own = self.turned_down.lock().clone();
        own.or_else(|| self.inner.turned_down())
    }

    fn readiness(&self) -> Readiness<'_> {
        (self.events.as_fd(), PollFlags::IN)
    }

    fn breaker(&self) -> io::Result<Breaker> {
        self.inner.breaker()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read as _;
    use std::net::{SocketAddr, TcpStream};

    use ropewalk_transport::{Driver as _, Options, Tcp};

    use super::*;
    use crate::KeyLayer;

    /// A listener whose peers have to show a key, among as many other handshakes.
    fn listener(others: usize) -> (LayeredListener, SocketAddr) {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let inner = Tcp.listen(loopback.into(), &Options::default()).unwrap();
        let address = inner.local_addr().unwrap().socket().unwrap();
        let layer = Arc::new(KeyLayer::new(1, &[7; 32]).unwrap());
        let listener = LayeredListener::new(inner, layer).unwrap();
        let all = Box::leak(Box::new(AtomicUsize::new(others)));
        (LayeredListener { all, ..listener }, address)
    }

    /// Connects so many peers, which are silent, and lets the listener take them.
    fn silent_peers(count: usize, listener: &LayeredListener, address: SocketAddr) -> Vec<TcpStream> {
        let peers = (0..count).map(|_| {
            let peer = TcpStream::connect(address).unwrap();
            assert!(listener.accept(Instant::now()).unwrap().is_none());
            peer
        });
        peers.collect()
    }

    fn is_closed(mut peer: &TcpStream) -> bool {
        peer.set_nonblocking(true).unwrap();
        matches!(peer.read(&mut [0]), Ok(0))
    }

    #[test]
    fn late_handshake_is_closed_although_no_further_connection_is_accepted() {
        let (listener, address) = listener(0);
        let peers = silent_peers(1, &listener, address);
        listener.expire(&mut listener.pending.lock(), Instant::now() + LIMIT / 2);
        assert!(!is_closed(&peers[0]));
        listener.expire(&mut listener.pending.lock(), Instant::now() + LIMIT);
        assert!(is_closed(&peers[0]));
        assert!(listener.turned_down().unwrap().reason.contains("timed out"));
        assert_eq!(listener.all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn listener_in_a_crowded_process_keeps_a_few_handshakes_and_those_of_its_peer() {
        let (strict, address) = listener(MOST_OF_ALL);
        let peers = silent_peers(FEW + 5, &strict, address);
        let closed: Vec<bool> = peers.iter().map(is_closed).collect();
        assert_eq!(closed.iter().filter(|closed| **closed).count(), 5, "{closed:?}");
        assert!(closed[..5].iter().all(|closed| *closed), "the oldest go first: {closed:?}");
        drop(strict);
        let (listener, address) = listener(MOST_OF_ALL);
        let listener = listener.sparing([127, 0, 0, 1].into());
        let peers = silent_peers(FEW + 5, &listener, address);
        assert!(!peers.iter().any(is_closed));
    }

    #[test]
    fn victim_is_the_oldest_of_the_most_frequent_address() {
        let ip = |peer: &str| peer.parse().ok().and_then(|peer: SocketAddr| Endpoint::from(peer).ip());
        let peers = |all: &[&str]| -> Vec<Option<IpAddr>> { all.iter().map(|peer| ip(peer)).collect() };
        let crowd = peers(&["10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:2", "10.0.0.3:1", "10.0.0.2:3"]);
        assert_eq!(victim(&crowd, None), Some(1));
        assert_eq!(victim(&crowd, "10.0.0.2".parse().ok()), Some(0));
        // The form of IPv4 addresses on a socket for both families.
        let mapped = peers(&["[::ffff:10.0.0.1]:1", "[::ffff:10.0.0.1]:2", "10.0.0.2:1"]);
        assert_eq!(victim(&mapped, "10.0.0.1".parse().ok()), Some(2));
        // One host may have all addresses of the network.
        let network =
            peers(&["10.0.0.1:1", "10.0.0.1:2", "[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8::3]:1"]);
        assert_eq!(victim(&network, None), Some(2));
        // There are handshakes of the expected peer only.
        assert_eq!(victim(&peers(&["10.0.0.1:1", "10.0.0.1:2"]), "10.0.0.1".parse().ok()), None);
        assert_eq!(victim(&peers(&["10.0.0.1:1", "?"]), "10.0.0.1".parse().ok()), Some(1));
    }
}
