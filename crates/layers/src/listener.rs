//! A listener that adds a layer to connections before it hands them over. Handshakes run
//! concurrently in the thread that calls `accept`; none of them blocks it. The number of handshakes
//! and the time of each are limited, so that unexpected peers cannot keep the expected one out. A
//! failed handshake of the expected peer is logged as a warning, those of others are counted, and
//! the last failure can be queried.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
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
/// How many handshakes run at a time. Beyond this number, one is aborted ([`victim`]).
const MOST: usize = 256;
/// How many connections are taken at once. Without this limit, peers that keep connecting could
/// keep the caller busy.
const AT_ONCE: usize = 64;

/// Adds a layer to the connections that another listener accepts. Handshakes run concurrently: a
/// silent peer does not delay others, and a connection that fails the handshake is closed and affects
/// no others.
pub struct LayeredListener {
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
    peer: Option<Endpoint>,
    until: Instant,
    waits: Interest,
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
            let waits = Interest::Read;
            self.watch(handshake.connection()?, waits)?;
            if pending.len() >= MOST {
                let peers: Vec<_> = pending.iter().map(|entry| entry.peer.as_ref()?.ip()).collect();
                if let Some(peer) = self.remove(&mut pending, victim(&peers, self.spared)) {
                    refused(peer, "too many connections are not authenticated yet");
                }
            }
            pending.push_back(Pending { handshake, peer, until: now + LIMIT, waits });
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
/// its addresses. So a peer can displace only its own handshakes.
fn victim(peers: &[Option<IpAddr>], spared: Option<IpAddr>) -> usize {
    let from = |peer: &Option<IpAddr>| match peer {
        Some(IpAddr::V6(v6)) => Some(IpAddr::V6((v6.to_bits() & !u128::from(u64::MAX)).into())),
        address => *address,
    };
    let strange = |peer: &&Option<IpAddr>| spared.is_none() || **peer != spared;
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
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn victim_is_the_oldest_of_the_most_frequent_address() {
        let ip = |peer: &str| peer.parse().ok().and_then(|peer: SocketAddr| Endpoint::from(peer).ip());
        let peers = |all: &[&str]| -> Vec<Option<IpAddr>> { all.iter().map(|peer| ip(peer)).collect() };
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
