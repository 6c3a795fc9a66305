//! A listener that secures connections before it hands them over. Handshakes run concurrently in
//! the thread that calls `accept`; none of them blocks it. The number of handshakes and the time of
//! each are limited, so that unexpected peers cannot keep the expected one out. A failed handshake
//! is logged as a warning, and the last failure can be queried.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_transport::{Breaker, Connection, Listener, TurnedDown, Wait, WaitAlone};
use rustix::event::PollFlags;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::{Handshake, Layer, Progress};

/// The time limit of a handshake.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// How many handshakes run at a time. Beyond this number, one is aborted ([`victim`]).
const MOST: usize = 256;
/// How many connections are taken at once. Without this limit, peers that keep connecting could
/// keep the caller busy.
const AT_ONCE: usize = 64;

/// Secures the connections that another listener accepts. Handshakes run concurrently: a silent
/// peer does not delay others, and a connection that fails the handshake is closed with a warning
/// and affects no others.
pub struct SecureListener {
    inner: Box<dyn Listener>,
    layer: Arc<dyn Layer>,
    /// The epoll descriptor with the listener and the handshakes in progress.
    events: OwnedFd,
    pending: Mutex<VecDeque<Pending>>,
    spared: Option<IpAddr>,
    turned_down: Mutex<Option<TurnedDown>>,
}

struct Pending {
    handshake: Box<dyn Handshake>,
    peer: Option<SocketAddr>,
    until: Instant,
    waits: PollFlags,
}

impl SecureListener {
    /// Secures with `layer` the connections that `inner` accepts.
    ///
    /// # Errors
    /// The system cannot make an epoll descriptor, or cannot watch that of `inner`.
    pub fn new(inner: Box<dyn Listener>, layer: Arc<dyn Layer>) -> io::Result<Self> {
        let events = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&events, inner.poll_fd(), EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self {
            inner,
            layer,
            events,
            pending: Mutex::default(),
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
        let mut at = 0;
        while at < pending.len() {
            match self.advance(&mut pending, at, now) {
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
            let fd = handshake.connection()?.poll_fd();
            epoll::add(&self.events, fd, EventData::new_u64(1), EventFlags::IN)?;
            if pending.len() >= MOST {
                let peers: Vec<_> = pending.iter().map(|entry| entry.peer).collect();
                let gone = pending.remove(victim(&peers, self.spared)).and_then(|entry| entry.peer);
                let peer = gone.map(|peer| peer.to_string()).unwrap_or_default();
                tracing::warn!(
                    peer,
                    most = MOST,
                    "closed a data connection: too many that are not authenticated yet"
                );
            }
            pending.push_back(Pending { handshake, peer, until: now + LIMIT, waits: PollFlags::IN });
            let last = pending.len() - 1;
            if let Advanced::Done(connection) = self.advance(&mut pending, last, now) {
                return Ok(Some(connection));
            }
        }
        Ok(None)
    }

    /// Advances one handshake.
    fn advance(&self, pending: &mut VecDeque<Pending>, at: usize, now: Instant) -> Advanced {
        let Some(entry) = pending.get_mut(at) else { return Advanced::Gone };
        let late = entry.until <= now;
        let result = if late { Err(io::ErrorKind::TimedOut.into()) } else { entry.handshake.advance() };
        match result {
            Ok(Progress::Done(connection)) => {
                // This fails only if the descriptor is not registered.
                let _ = epoll::delete(&self.events, connection.poll_fd());
                pending.remove(at);
                Advanced::Done(connection)
            }
            Ok(Progress::Waits(events)) => {
                if events != entry.waits
                    && let Ok(connection) = entry.handshake.connection()
                {
                    let out = events.contains(PollFlags::OUT);
                    let flags = if out { EventFlags::OUT } else { EventFlags::IN };
                    let _ = epoll::modify(&self.events, connection.poll_fd(), EventData::new_u64(1), flags);
                    entry.waits = events;
                }
                Advanced::Waits
            }
            Err(error) => {
                self.note(entry.peer, &error);
                let peer = entry.peer.map(|peer| peer.to_string()).unwrap_or_default();
                tracing::warn!(peer, %error, "closed a data connection that was not authenticated");
                pending.remove(at);
                Advanced::Gone
            }
        }
    }
}

impl SecureListener {
    /// Records a refused connection. One from an unexpected peer does not replace one from the
    /// expected peer.
    fn note(&self, peer: Option<SocketAddr>, error: &io::Error) {
        let Some(peer) = peer else { return };
        let meant = self.spared == Some(peer.ip().to_canonical());
        let mut noted = self.turned_down.lock();
        if meant || !noted.as_ref().is_some_and(|before| before.meant) {
            *noted = Some(TurnedDown { peer, reason: error.to_string(), meant });
        }
    }
}

/// Which handshake is aborted if there are too many: the oldest from the address with the most of
/// them. For IPv6, the network of 64 bits counts as one address, because one host may have all of
/// its addresses. So a peer can displace only its own handshakes.
fn victim(peers: &[Option<SocketAddr>], spared: Option<IpAddr>) -> usize {
    let address = |peer: &Option<SocketAddr>| peer.map(|peer| peer.ip().to_canonical());
    let from = |peer: &Option<SocketAddr>| match address(peer) {
        Some(IpAddr::V6(v6)) => Some(IpAddr::V6((v6.to_bits() & !u128::from(u64::MAX)).into())),
        address => address,
    };
    let strange = |peer: &&Option<SocketAddr>| spared.is_none() || address(peer) != spared;
    let mut counts: HashMap<_, usize> = HashMap::new();
    peers.iter().filter(strange).for_each(|peer| *counts.entry(from(peer)).or_default() += 1);
    let most = counts.values().copied().max().unwrap_or(0);
    let at = peers.iter().position(|peer| strange(&peer) && counts.get(&from(peer)) == Some(&most));
    at.unwrap_or(0)
}

enum Advanced {
    Done(Box<dyn Connection>),
    Waits,
    /// The handshake failed, and the next one has taken its index.
    Gone,
}

impl Listener for SecureListener {
    fn local_addr(&self) -> io::Result<SocketAddr> {
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
        self.pending.lock().clear();
        self.inner.turn_away()
    }

    fn turned_down(&self) -> Option<TurnedDown> {
        let own = self.turned_down.lock().clone();
        own.or_else(|| self.inner.turned_down())
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    fn breaker(&self) -> io::Result<Breaker> {
        self.inner.breaker()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn victim_is_the_oldest_of_the_most_frequent_address() {
        let peers =
            |all: &[&str]| -> Vec<Option<SocketAddr>> { all.iter().map(|peer| peer.parse().ok()).collect() };
        let crowd = peers(&["10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:2", "10.0.0.3:1", "10.0.0.2:3"]);
        assert_eq!(victim(&crowd, None), 1);
        assert_eq!(victim(&crowd, "10.0.0.2".parse().ok()), 0);
        // The form of IPv4 addresses on a socket for both families.
        let mapped = peers(&["[::ffff:10.0.0.1]:1", "[::ffff:10.0.0.1]:2", "10.0.0.2:1"]);
        assert_eq!(victim(&mapped, "10.0.0.1".parse().ok()), 2);
        // One host may have all addresses of the network.
        let network =
            peers(&["10.0.0.1:1", "10.0.0.1:2", "[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8::3]:1"]);
        assert_eq!(victim(&network, None), 2);
        // There are handshakes of the expected peer only.
        assert_eq!(victim(&peers(&["10.0.0.1:1", "10.0.0.1:2"]), "10.0.0.1".parse().ok()), 0);
        assert_eq!(victim(&peers(&["10.0.0.1:1", "?"]), "10.0.0.1".parse().ok()), 1);
    }
}
