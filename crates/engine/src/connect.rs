//! Where the connections of a data channel come from.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_protocol::mode_e::Receiver;
use ropewalk_protocol::range::RangeSet;
use ropewalk_transport::{
    Connection, Driver, Endpoint, FlowObserver, Interest, Listener, Readiness, Tuning, Wait, timespec,
};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::settings::ChannelSettings;
use crate::watch::Watch;
use crate::wire::{Wire, is_welcome};
use crate::{Attendant, BufferBudget, Congestion, Flows, Parallelism, Pool, Progress};

/// The expected peer may reconnect within this time after its authentication failed.
const COMING_AGAIN: Duration = Duration::from_secs(2);
/// After a connection from an address that is not accepted, the expected peer may connect within
/// this time. The unexpected one was probably no stranger, but the other server of a transfer that
/// is not permitted. A first segment may be lost three times.
const COMING_FROM_ELSEWHERE: Duration = Duration::from_secs(10);
/// So many connections no sender need do without, though there may be fewer streams: each costs a
/// descriptor.
const MOST_WAITING: u32 = 128;

/// Where the system had nothing left for a connection, it is asked again after this: who waits
/// looks around that often anyway.
const REST: Duration = Duration::from_millis(100);

/// A data channel without its connections: what all threads of a transfer may use.
pub(crate) struct Core {
    pub(crate) end: End,
    pub(crate) settings: ChannelSettings,
    pub(crate) pool: Arc<Pool>,
    pub(crate) budget: Arc<BufferBudget>,
    pub(crate) control: Arc<Control>,
    pub(crate) parallelism: Parallelism,
    pub(crate) congestion: Congestion,
    pub(crate) flows: Flows,
    /// See [`crate::DataChannel::set_marking`].
    pub(crate) observer: Option<Arc<dyn FlowObserver>>,
    /// See [`crate::DataChannel::set_patient`].
    pub(crate) patient: bool,
    /// See [`crate::DataChannel::set_resend`].
    pub(crate) resend: bool,
    /// See [`crate::DataChannel::set_senders`].
    pub(crate) senders: u32,
    /// The first that came from an address that is not welcome.
    pub(crate) refused: OnceLock<Endpoint>,
    /// The system had nothing left for a connection that waits, and why; it is tried again then.
    pub(crate) rest: Mutex<Option<(Instant, Errno)>>,
    /// Connections of the last transfer, if it sent bytes again. Those of a sender stay open until
    /// the receiver closes them, because it has to learn on other streams that it needs no more
    /// from them. Those of a receiver that connects are closed in its direction, and stay until the
    /// sender closes them.
    pub(crate) lingering: Mutex<Vec<Wire>>,
}

/// The end that makes the connections, seen from here.
pub(crate) enum End {
    Passive(Box<dyn Listener>),
    Active { driver: Arc<dyn Driver>, addresses: Vec<Endpoint> },
}

impl Core {
    /// The number of receivers of a sender: those of a striped server have an address each.
    pub(crate) fn receivers(&self) -> usize {
        match &self.end {
            End::Active { addresses, .. } => addresses.len().max(1),
            End::Passive(_) => 1,
        }
    }

    /// Keeps connections open until the next transfer.
    pub(crate) fn linger(&self, wires: Vec<Wire>) {
        *self.lingering.lock() = wires;
    }

    /// Ends the last connections of a transfer that brought bytes again, at its receiver. If this
    /// end has made them, they stay open until the sender closes them, too.
    pub(crate) fn part(&self, wires: impl Iterator<Item = Wire>) {
        if self.listener().is_none() {
            // It fails only if the sender is gone already, which shows.
            self.linger(
                wires.filter_map(|mut wire| wire.connection.finish().is_ok().then_some(wire)).collect(),
            );
        }
    }

    /// After a transfer that sent bytes again: waits until the peer has closed one of its
    /// connections, and then closes them.
    ///
    /// No connection is taken for one of the wrong transfer, in whichever order the ends of
    /// connections and new connections arrive. The receiver closes its connections when it has all
    /// bytes, so a sender that connects makes none before that. A receiver that connects makes none
    /// before the sender has closed those of the old transfer. So those that wait at the sender
    /// until then, and are turned away here, belong to the old transfer.
    fn outlast(&self, watch: &mut Watch<'_>) -> Result<()> {
        let mut lingering = std::mem::take(&mut *self.lingering.lock());
        if lingering.is_empty() {
            return Ok(());
        }
        let limit = self.settings.stall_timeout.unwrap_or(self.settings.connect_timeout);
        let mut deadline = Instant::now() + limit;
        let mut ready = Vec::new();
        while !lingering.iter().any(|wire| wire.connection.peer_closed()) {
            if watch.is_excused() {
                deadline = Instant::now() + limit;
            }
            if Instant::now() >= deadline {
                return Err(Error::Stalled { after: limit });
            }
            self.turn_away();
            let closing = lingering.iter().map(|wire| wire.readiness(Interest::Read));
            let interests: Vec<_> = closing.chain(self.newcomers()).collect();
            let waited = watch.wait(&interests, Some(deadline), &mut ready);
            drop(interests);
            if let Err(error) = waited {
                // Another transfer may follow the one that is broken off here.
                self.linger(lingering);
                return Err(error);
            }
        }
        self.turn_away();
        if self.listener().is_none() {
            for wire in &mut lingering {
                // A receiver that has not accepted a connection yet would take bytes that are still
                // under way on it for those of the next transfer. It fails only if the connection
                // is gone.
                let _ = wire.connection.reset_on_drop();
            }
        }
        Ok(())
    }

    /// Closes connections that wait to be accepted: they were meant for a transfer that is over.
    pub(crate) fn turn_away(&self) {
        if let Some(listener) = self.listener() {
            drop(listener.turn_away());
        }
    }

    pub(crate) fn watch<'a>(
        &'a self,
        attendant: &'a mut dyn Attendant,
        progress: &'a Progress,
        receiving: bool,
    ) -> Watch<'a> {
        self.flows.set_receiving(receiving);
        progress.set_flows(&self.flows);
        let Self { control, settings, patient, .. } = self;
        Watch::new(attendant, progress, control, self.listener(), settings.stall_timeout, *patient)
    }

    /// The first connection of a transfer that has none yet.
    pub(crate) fn open(&self, watch: &mut Watch<'_>) -> Result<Wire> {
        self.outlast(watch)?;
        match &self.end {
            End::Active { .. } => self.connect(0, Duration::MAX, watch),
            End::Passive(listener) => {
                let begun = Instant::now();
                let mut deadline = begun + self.settings.connect_timeout;
                let mut ready = Vec::new();
                loop {
                    if let Some(wire) = self.accept()? {
                        return Ok(wire);
                    }
                    if Instant::now() >= deadline {
                        return Err(self.missing(0, 1, begun.elapsed()));
                    }
                    // A peer that failed to authenticate will hardly connect again.
                    if listener.turned_down().is_some_and(|it| it.meant) {
                        deadline = deadline.min(Instant::now() + COMING_AGAIN);
                    }
                    if self.refused.get().is_some() {
                        deadline = deadline.min(Instant::now() + COMING_FROM_ELSEWHERE);
                    }
                    watch.wait(&self.newcomers(), Some(deadline), &mut ready)?;
                }
            }
        }
    }

    pub(crate) fn missing(&self, made: usize, wanted: usize, waited: Duration) -> Error {
        if let Some((_, error)) = *self.rest.lock() {
            return Error::Accept(error.into());
        }
        let turned_down = match &self.end {
            End::Passive(listener) => listener.turned_down(),
            End::Active { .. } => None,
        };
        Error::NoConnection {
            made: made as u32,
            wanted: wanted as u32,
            waited,
            turned_down: turned_down.map(Box::new),
            refused: self.refused.get().cloned().zip(self.settings.only_from),
        }
    }

    /// Makes a connection to one of the addresses, within `limit` and the channel's time limit.
    pub(crate) fn connect(&self, index: usize, limit: Duration, watch: &mut Watch<'_>) -> Result<Wire> {
        self.connect_waiting(index, limit, watch).map_err(|e| watch.failure().unwrap_or(e))
    }

    pub(crate) fn connect_waiting(&self, index: usize, limit: Duration, wait: &mut dyn Wait) -> Result<Wire> {
        let End::Active { driver, addresses } = &self.end else {
            return Err(Error::Accept(io::ErrorKind::Unsupported.into()));
        };
        let Some(address) = addresses.get(index) else {
            return Err(Error::System { action: "connect", source: io::ErrorKind::AddrNotAvailable.into() });
        };
        let timeout = self.settings.connect_timeout.min(limit);
        let mut options = self.settings.options.clone();
        options.tuning.congestion = self.congestion.get();
        driver
            .connect_waiting(address.clone(), &options, timeout, wait)
            .and_then(|connection| self.wire(connection, index))
            .map_err(|source| Error::Connect { address: address.clone(), source })
    }

    /// Adds a connection to each address to which none of `wires` leads, and sorts them by address.
    pub(crate) fn reach_all(&self, wires: &mut Vec<Wire>, watch: &mut Watch<'_>) -> Result<()> {
        for index in 1..self.receivers() {
            if !wires.iter().any(|wire| wire.address == index) {
                wires.push(self.connect(index, Duration::MAX, watch)?);
            }
        }
        wires.sort_by_key(|wire| wire.address);
        Ok(())
    }

    /// A connection that waits to be accepted and is welcome, if there is one.
    pub(crate) fn accept(&self) -> Result<Option<Wire>> {
        let Some(listener) = self.open_listener() else { return Ok(None) };
        // A deadline in the past: does not wait.
        let now = Instant::now();
        loop {
            let connection = match listener.accept(now) {
                Ok(Some(connection)) => connection,
                // No connection waits.
                Ok(None) => {
                    *self.rest.lock() = None;
                    return Ok(None);
                }
                Err(error) => match Errno::from_io_error(&error) {
                    Some(errno) if is_shortage(errno) => {
                        if self.rest.lock().replace((now + REST, errno)).is_none() {
                            tracing::warn!(%error, "data connections have to wait");
                        }
                        return Ok(None);
                    }
                    _ => return Err(Error::Accept(error)),
                },
            };
            *self.rest.lock() = None;
            // It has that of the listener, or one that a route names.
            let congestion = self.congestion.get();
            if congestion.is_some() {
                connection.tune(&Tuning { congestion, ..Tuning::default() });
            }
            // A connection that is broken already is no reason to end the transfer.
            let Ok(wire) = self.wire(connection, 0) else { continue };
            if is_welcome(&wire.peer, self.settings.only_from) {
                return Ok(Some(wire));
            }
            ropewalk_transport::refused(&wire.peer, "its address is not that of the client");
            let _ = self.refused.set(wire.peer.clone());
        }
    }

    /// The listener, where there is one and the system has something left for connections.
    pub(crate) fn open_listener(&self) -> Option<&dyn Listener> {
        let resting = || matches!(*self.rest.lock(), Some((until, _)) if Instant::now() < until);
        self.listener().filter(|_| !resting())
    }

    /// Returns what to wait for until a peer connects.
    pub(crate) fn newcomers(&self) -> Vec<Readiness<'_>> {
        self.open_listener().map(|listener| listener.readiness()).into_iter().collect()
    }

    fn wire(&self, connection: Box<dyn Connection>, address: usize) -> io::Result<Wire> {
        let (local, peer, handle) = (connection.local_addr()?, connection.peer_addr()?, connection.handle());
        let mut wire = Wire::new(connection, address, &self.budget, &self.flows)?;
        if let (Some(observer), Ok(local), Ok(peer)) = (&self.observer, local.socket(), peer.socket()) {
            wire.listed.observe(&**observer, local, peer, handle);
        }
        Ok(wire)
    }

    /// Streams that a receiver reads at a time. Each of several senders has as many as it was asked
    /// for.
    pub(crate) fn most_streams(&self) -> u32 {
        self.settings.max_streams.saturating_mul(self.senders.max(1))
    }

    /// Connections that a receiver has at a time, those among them that wait until they may bring
    /// something.
    pub(crate) fn most_connections(&self) -> u32 {
        self.settings.max_streams.max(MOST_WAITING).saturating_mul(self.senders.max(1))
    }

    /// The state of a transfer in MODE E that this end receives.
    pub(crate) fn receiver(&self, accept: RangeSet, origin: u64) -> Receiver {
        let receiver = Receiver::new(accept, origin, self.most_connections()).with_senders(self.senders);
        if self.resend { receiver.with_resend() } else { receiver }
    }

    /// The listener, to wait for further connections.
    pub(crate) fn listener(&self) -> Option<&dyn Listener> {
        match &self.end {
            End::Passive(listener) => Some(&**listener),
            End::Active { .. } => None,
        }
    }
}

/// Of what the whole machine, or this process, has no more at the moment.
fn is_shortage(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::PERM)
}

/// Waits for one thing, until the transfer ends.
pub(crate) struct Stoppable<'a>(pub(crate) &'a Control);

impl Wait for Stoppable<'_> {
    fn wait(&mut self, fd: BorrowedFd<'_>, events: PollFlags, deadline: Instant) -> io::Result<bool> {
        let stop = self.0.stop_event().fd()?;
        loop {
            if self.0.stopping() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let mut fds =
                [PollFd::from_borrowed_fd(fd, events), PollFd::from_borrowed_fd(stop, PollFlags::IN)];
            match rustix::event::poll(&mut fds, Some(&timespec(left))) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(_) if !fds[0].revents().is_empty() => return Ok(true),
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}
