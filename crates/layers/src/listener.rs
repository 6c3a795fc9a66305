//! A listener whose connections are secured before they are handed over.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ropewalk_transport::{Breaker, Connection, Listener, Wait, WaitAlone};
use rustix::event::PollFlags;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::{Handshake, Layer, Progress};

/// The time that a peer has for its handshake.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// Handshakes at a time; beyond it the oldest is broken off.
const MOST: usize = 256;

/// Secures what another listener accepts. Handshakes go on beside one another: a peer that is silent keeps nobody out, and
/// one that is not believed is closed with a warning, and does no harm.
pub struct SecureListener {
    inner: Box<dyn Listener>,
    layer: Arc<dyn Layer>,
    /// The listener's descriptor and those of the handshakes under way.
    events: OwnedFd,
    pending: Mutex<VecDeque<Pending>>,
}

struct Pending {
    handshake: Box<dyn Handshake>,
    peer: Option<SocketAddr>,
    until: Instant,
    waits: PollFlags,
}

impl SecureListener {
    pub fn new(inner: Box<dyn Listener>, layer: Arc<dyn Layer>) -> io::Result<Self> {
        let events = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&events, inner.poll_fd(), EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self { inner, layer, events, pending: Mutex::default() })
    }

    /// The first connection whose handshake is done, without waiting. What is ready for the others stays in their sockets,
    /// and so the descriptor goes on to tell of it.
    fn next(&self) -> io::Result<Option<Box<dyn Connection>>> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let mut at = 0;
        while at < pending.len() {
            match self.advance(&mut pending, at, now) {
                Advanced::Done(connection) => return Ok(Some(connection)),
                Advanced::Waits => at += 1,
                Advanced::Gone => {}
            }
        }
        // With a deadline in the past it does not wait.
        while let Some(connection) = self.inner.accept(now)? {
            let peer = connection.peer_addr().ok();
            let Ok(handshake) = self.layer.begin(connection, false) else { continue };
            let fd = handshake.connection()?.poll_fd();
            epoll::add(&self.events, fd, EventData::new_u64(1), EventFlags::IN)?;
            if pending.len() >= MOST {
                pending.pop_front();
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
                let peer = entry.peer.map(|peer| peer.to_string()).unwrap_or_default();
                tracing::warn!(peer, %error, "closed a data connection that was not authenticated");
                pending.remove(at);
                Advanced::Gone
            }
        }
    }
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
            if !WaitAlone.wait(self.events.as_fd(), PollFlags::IN, deadline)? {
                return Ok(None);
            }
        }
    }

    fn turn_away(&self) -> Vec<Box<dyn Connection>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.inner.turn_away()
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    fn breaker(&self) -> io::Result<Breaker> {
        self.inner.breaker()
    }
}
