//! The interface of a listener: it accepts the connections that peers make.

use std::io;
use std::time::Instant;

use crate::{Breaker, Connection, Endpoint, Readiness};

/// More connections than a kernel queues at a port.
const TURNED_AWAY: usize = 8192;
/// More streams than an upload usually has.
const TURNED_AWAY_TOGETHER: usize = 64;

/// Waits for connections.
pub trait Listener: Send + Sync {
    /// The address of the listener, to which drivers of its kind connect.
    ///
    /// # Errors
    /// Those of getsockname(2).
    fn local_addr(&self) -> io::Result<Endpoint>;
    /// Returns the next connection, or `Ok(None)` after `deadline` (a deadline in the past: do not
    /// wait at all). Fails with `ConnectionAborted` after the listener was aborted.
    ///
    /// # Errors
    /// `ConnectionAborted`, or an error of the system, such as that no descriptor is left. A
    /// connection that the peer has closed meanwhile is not an error.
    fn accept(&self, deadline: Instant) -> io::Result<Option<Box<dyn Connection>>>;
    /// Returns the connections that wait to be accepted, so that the caller can close them.
    /// Connections whose handshake is not complete are closed here. So are those beyond a limit,
    /// because a peer that makes very many connections must not use up descriptors or keep the
    /// caller busy.
    fn turn_away(&self) -> Vec<Box<dyn Connection>> {
        let now = Instant::now();
        let mut waiting = Vec::new();
        for connection in (0..TURNED_AWAY).map_while(|_| self.accept(now).ok().flatten()) {
            if waiting.len() < TURNED_AWAY_TOGETHER {
                waiting.push(connection);
            }
        }
        waiting
    }
    /// Closes connections whose handshakes take too long. A caller that accepts no connections for
    /// a while calls this about every second, because strangers may keep descriptors otherwise.
    fn close_late(&self) {}
    /// The last connection that was closed because its handshake failed.
    fn turned_down(&self) -> Option<TurnedDown> {
        None
    }
    /// Returns what to wait for until a connection can be accepted.
    fn readiness(&self) -> Readiness<'_>;
    /// Returns a handle with which another thread can abort the listener.
    ///
    /// # Errors
    /// The driver cannot abort listeners; TCP always can.
    fn breaker(&self) -> io::Result<Breaker>;
}

/// A connection that was closed before it was handed over, because its handshake failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnedDown {
    pub peer: Endpoint,
    pub reason: String,
    /// Whether it came from the expected peer, so that another connection is unlikely.
    pub meant: bool,
}
