//! The threads, permits and parked sessions of a server.
//!
//! The reactor, the runner and the admission of new connections share one scheduler. It owns each
//! session that no thread runs: idle ones are in `parking`, ones that wait for a permit are in the
//! queue of `transfers` or `listings`.

use std::sync::Arc;

use mio::Registry;
use ropewalk_engine::Pool;

use crate::host::Host;
use crate::scheduling::connection::Connection;
use crate::scheduling::logins::Logins;
use crate::scheduling::parking::Parking;
use crate::scheduling::semaphore::FairSemaphore;
use crate::session::dialogue::ENDED;

/// Threads for sessions in addition to those whose operation holds a permit.
const QUICK: usize = 16;

pub(crate) struct Scheduler {
    pub(crate) host: Arc<Host>,
    pub(crate) parking: Parking,
    /// Threads of sessions that carry out a command.
    pub(crate) sessions: Pool,
    /// Permits for operations that move data or can take long for other reasons.
    pub(crate) transfers: FairSemaphore<Box<Connection>>,
    /// Permits for listings.
    pub(crate) listings: FairSemaphore<Box<Connection>>,
    /// Threads for TLS handshakes, GSS tokens and passwords: these steps take memory and CPU time,
    /// and must not take threads from other sessions.
    pub(crate) logins: Logins,
}

impl Scheduler {
    /// `registry` is that of the reactor.
    pub(crate) fn new(host: Arc<Host>, registry: Registry) -> Arc<Self> {
        let settings = host.settings();
        let limits = &settings.config.limits;
        let active = limits.active as usize;
        let listings = active.div_ceil(4);
        Arc::new(Self {
            parking: Parking::new(registry),
            // Operations that have lost their permit may be as many as those that hold one.
            sessions: Pool::new("session", 2 * (active + listings) + QUICK),
            transfers: FairSemaphore::new(active),
            listings: FairSemaphore::new(listings),
            logins: Logins::new(limits.password_checks as usize),
            host,
        })
    }

    /// Ends a session, whatever it does. False if there is none with this number.
    pub(crate) fn end_session(&self, id: u64) -> bool {
        if !self.host.presences.end(id) {
            return false;
        }
        tracing::info!(session = id, "the administrator ends the session");
        if let Some(connection) = self.parking.take_now(id) {
            connection.say_and_close(421, ENDED);
        }
        // The reactor checks sessions that wait for a permit.
        self.host.wake();
        true
    }

    /// Whether sessions wait for a permit.
    pub(crate) fn has_waiting(&self) -> bool {
        self.transfers.has_waiting() || self.listings.has_waiting()
    }
}
