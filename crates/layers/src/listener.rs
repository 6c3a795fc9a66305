//! A listener whose connections are secured before they are handed over.

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

/// The time that a peer has for its handshake.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// Handshakes at a time; beyond it one is broken off ([`victim`]).
const MOST: usize = 256;
/// Connections that are taken in one go: strangers who go on connecting do not keep whoever waits.
const AT_ONCE: usize = 64;

/// Secures what another listener accepts. Handshakes go on beside one another: a peer that is silent keeps nobody out, and
/// one that is not believed is closed with a warning, and does no harm.
pub struct SecureListener {
    inner: Box<dyn Listener>,
    layer: Arc<dyn Layer>,
    /// The listener's descriptor and those of the handshakes under way.
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
    /// Secures with `layer` what `inner` accepts.
    ///
    /// # Errors
    /// The system gives no epoll descriptor, or does not watch that of `inner`.
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

    /// Where there are too many handshakes, others than those with this address are broken off: it is where most likely
    /// those come from who are meant.
    pub fn sparing(self, address: IpAddr) -> Self {
        Self { spared: Some(address.to_canonical()), ..self }
    }

    /// The first connection whose handshake is done, without waiting. What is ready for the others stays in their sockets,
    /// and so the descriptor goes on to tell of it.
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
            // With a deadline in the past it does not wait.
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

    /// Goes on with one handshake.
    fn advance(&self, pending: &mut VecDeque<Pending>, at: usize, now: Instant) -> Advanced {
        let Some(entry) = pending.get_mut(at) else { return Advanced::Gone };
        let late = entry.until <= now;
        let result = if late { Err(io::ErrorKind::TimedOut.into()) } else { entry.handshake.advance() };
        match result {
            Ok(Progress::Done(connection)) => {
                // It fails only where the descriptor is not there.
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
    /// Strangers do not hide what happened to who is meant.
    fn note(&self, peer: Option<SocketAddr>, error: &io::Error) {
        let Some(peer) = peer else { return };
        let meant = self.spared == Some(peer.ip().to_canonical());
        let mut noted = self.turned_down.lock();
        if meant || !noted.as_ref().is_some_and(|before| before.meant) {
            *noted = Some(TurnedDown { peer, reason: error.to_string(), meant });
        }
    }
}

/// Which of too many is broken off: the oldest from where most come. One address (or, of IPv6, the network of 64 bits that one
/// host may have all addresses of) can so displace only its own.
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
    /// It failed, and the next one stands in its place.
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
    fn who_comes_most_often_goes_first() {
        let peers =
            |all: &[&str]| -> Vec<Option<SocketAddr>> { all.iter().map(|peer| peer.parse().ok()).collect() };
        let crowd = peers(&["10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:2", "10.0.0.3:1", "10.0.0.2:3"]);
        assert_eq!(victim(&crowd, None), 1);
        assert_eq!(victim(&crowd, "10.0.0.2".parse().ok()), 0);
        // As a socket for both families has it.
        let mapped = peers(&["[::ffff:10.0.0.1]:1", "[::ffff:10.0.0.1]:2", "10.0.0.2:1"]);
        assert_eq!(victim(&mapped, "10.0.0.1".parse().ok()), 2);
        // A host has a whole network.
        let network =
            peers(&["10.0.0.1:1", "10.0.0.1:2", "[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8::3]:1"]);
        assert_eq!(victim(&network, None), 2);
        // There is nobody else.
        assert_eq!(victim(&peers(&["10.0.0.1:1", "10.0.0.1:2"]), "10.0.0.1".parse().ok()), 0);
        assert_eq!(victim(&peers(&["10.0.0.1:1", "?"]), "10.0.0.1".parse().ok()), 1);
    }
}
