//! The threads, permits and parked sessions of a server.
//!
//! The reactor, the runner and the admission of new connections share one scheduler. It owns each
//! session that no thread runs: idle ones are in `parking`, ones that wait for a permit are in the
//! queue of `transfers` or `listings`, and uploads that wait for free space in `low_disk`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use mio::Registry;
use ropewalk_engine::Pool;

use crate::host::Host;
use crate::operations::Permits;
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
    /// Permits for listings, a quarter as many.
    pub(crate) listings: FairSemaphore<Box<Connection>>,
    /// Uploads that wait until their file system has more free space. There are no permits.
    pub(crate) low_disk: FairSemaphore<Box<Connection>>,
    /// A thread looks at these file systems.
    pub(crate) looks_at_disks: AtomicBool,
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
            low_disk: FairSemaphore::new(0),
            looks_at_disks: AtomicBool::new(false),
            logins: Logins::new(limits.password_checks as usize),
            host,
        })
    }

    pub(crate) fn permits_for(&self, permit: Permits) -> &FairSemaphore<Box<Connection>> {
        match permit {
            Permits::Listing => &self.listings,
            Permits::Transfer | Permits::None => &self.transfers,
        }
    }

    /// The queue in which a session waits.
    pub(crate) fn queue_of(&self, connection: &Connection) -> &FairSemaphore<Box<Connection>> {
        if connection.low_disk_since.is_some() {
            return &self.low_disk;
        }
        self.permits_for(connection.waiting.as_ref().map_or(Permits::Transfer, |entry| entry.permit))
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

    /// The queues of sessions that wait for a permit or for space on a disk.
    pub(crate) fn queues(&self) -> [&FairSemaphore<Box<Connection>>; 3] {
        [&self.transfers, &self.listings, &self.low_disk]
    }

    /// Whether sessions wait in a queue.
    pub(crate) fn has_waiting(&self) -> bool {
        self.queues().iter().any(|queue| queue.has_waiting())
    }

    /// Looks at the memory and the processors of the host, and lets new transfers wait if they are
    /// short. Returns whether they are.
    pub(crate) fn look_at_load(&self) -> bool {
        let shortage = self.host.shortage();
        self.transfers.set_short(shortage.is_some());
        shortage.is_some()
    }
}
