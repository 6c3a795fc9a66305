//! Data channels.

use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use ropewalk_protocol::server::RepresentationType;
use ropewalk_transport::{Breaker, Connection, Driver, Endpoint, FlowMarking, Listener};

use crate::connect::{Core, End};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::job::{ReceiveJob, Received, SendJob, Sent};
use crate::settings::ChannelSettings;
use crate::wire::Wire;
use crate::{
    Attendant, BufferBudget, Congestion, Flows, Parallelism, Pool, Progress, ordered_receive, ordered_send,
    receive, send,
};

/// A data channel: what a PASV or PORT makes, with its connections, which in MODE E serve one
/// transfer after the other (GFD.20 section 3.4).
pub struct DataChannel {
    core: Core,
    cache: Vec<Wire>,
}

/// Connections that a channel has let go of. They are closed with this.
pub struct Discarded {
    _cached: Vec<Wire>,
    _waiting: Vec<Box<dyn Connection>>,
}

impl DataChannel {
    /// Peers connect to us.
    pub fn passive(
        listener: Box<dyn Listener>,
        settings: ChannelSettings,
        pool: Arc<Pool>,
        budget: Arc<BufferBudget>,
    ) -> Self {
        Self::new(End::Passive(listener), settings, pool, budget)
    }

    /// We connect when the first transfer begins: `settings.parallelism` times in MODE E, once in
    /// MODE S. A sender in MODE E that has several addresses, those of a striped server, makes so
    /// many connections to each, and ends the file at each. Blocks go to whichever takes them; data
    /// that has to be in order goes to the first address.
    pub fn active(
        driver: Arc<dyn Driver>,
        addresses: Vec<impl Into<Endpoint>>,
        settings: ChannelSettings,
        pool: Arc<Pool>,
        budget: Arc<BufferBudget>,
    ) -> Self {
        let addresses = addresses.into_iter().map(Into::into).collect();
        Self::new(End::Active { driver, addresses }, settings, pool, budget)
    }

    fn new(end: End, settings: ChannelSettings, pool: Arc<Pool>, budget: Arc<BufferBudget>) -> Self {
        let control = Arc::new(Control::new(settings.bandwidth.clone(), settings.granted.clone()));
        let parallelism = Parallelism::new(settings.parallelism, &control);
        let flows = Flows::default();
        let congestion = Congestion::new(settings.options.tuning.congestion.clone(), flows.clone());
        let core = Core {
            end,
            settings,
            pool,
            budget,
            control,
            parallelism,
            congestion,
            flows,
            observer: None,
            patient: true,
            resend: false,
            senders: 1,
            refused: OnceLock::new(),
            rest: Mutex::default(),
            lingering: Mutex::default(),
        };
        Self { core, cache: Vec::new() }
    }

    /// Where a passive channel listens. An error where the channel is active and not connected.
    ///
    /// # Errors
    /// `NotConnected` as said; otherwise as of the socket.
    pub fn local_addr(&self) -> io::Result<Endpoint> {
        match (&self.core.end, self.cache.first()) {
            (End::Passive(listener), _) => listener.local_addr(),
            (End::Active { .. }, Some(wire)) => wire.connection.local_addr(),
            (End::Active { .. }, None) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Connections kept from the last transfer.
    pub fn cached(&self) -> usize {
        self.cache.len()
    }

    /// How many streams the channel is to use, now and later: can be changed from any thread, also
    /// while a transfer is under way.
    pub fn parallelism(&self) -> Parallelism {
        self.core.control.expect_wakes();
        self.core.parallelism.clone()
    }

    /// Changes how many streams the next transfers use, and how many connections both ends take for
    /// agreed where a receiver connects and there are none yet. Connections that are too many are
    /// closed by the next send.
    pub fn set_parallelism(&mut self, n: u32) {
        self.core.settings.parallelism = n.max(1);
        self.core.parallelism.set(n);
    }

    /// The congestion control of the channel's connections: can be changed from any thread, also
    /// while they move data.
    pub fn congestion(&self) -> Congestion {
        self.core.congestion.clone()
    }

    /// Changes the congestion control of connections; `None` is the host's own, for those still to
    /// be made.
    pub fn set_congestion(&mut self, name: Option<String>) {
        self.core.congestion.set(name);
    }

    /// The statistics of the channel's connections, for any thread.
    pub fn flows(&self) -> Flows {
        self.core.flows.clone()
    }

    /// Changes the representation type of the next transfers: clients may send TYPE after PASV.
    pub fn set_representation(&mut self, representation: RepresentationType) {
        self.core.settings.representation = representation;
    }

    /// Whether the sender may send blocks again, because both ends have agreed on it. Not so unless
    /// this is called.
    pub fn set_resend(&mut self, allowed: bool) {
        self.core.resend = allowed;
    }

    /// Changes the marks of the connections that the next transfers make. Connections that exist
    /// keep theirs.
    pub fn set_marking(&mut self, marking: FlowMarking) {
        self.core.settings.options.flow_label = marking.label;
        self.core.observer = marking.observer;
    }

    /// In MODE E so many senders, the nodes of a striped server, connect to this end. Each ends the
    /// file for its own connections. One unless this is called.
    pub fn set_senders(&mut self, n: u32) {
        self.core.senders = n;
    }

    /// Whether it is no stall where a source has nothing to send yet, or a destination takes
    /// nothing (pipes, terminals), for longer than `stall_timeout`. It is so unless this is called.
    pub fn set_patient(&mut self, patient: bool) {
        self.core.patient = patient;
    }

    /// Breaks off whatever goes on, from another thread, and for good: later transfers over this
    /// channel fail with [`Error::Aborted`].
    pub fn breaker(&self) -> Breaker {
        self.core.control.expect_wakes();
        let control = Arc::downgrade(&self.core.control);
        Breaker::new(move || {
            if let Some(control) = control.upgrade() {
                control.break_off();
            }
        })
    }

    /// Sends a file's ranges. After an error no connection is cached, as the protocol wants, and
    /// connections that wait to be accepted are closed.
    ///
    /// # Errors
    /// No connection is made, or one breaks or stalls; `job.source` cannot be read or changes
    /// meanwhile; the ranges do not fit the channel; or the attendant or a breaker aborts the
    /// transfer ([`Error::Aborted`]).
    pub fn send(
        &mut self,
        job: &SendJob,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Sent> {
        let mut watch = self.core.watch(attendant, progress, false);
        let result = send::send(&self.core, &mut self.cache, job, &mut watch);
        self.ended(result)
    }

    /// Receives a file's ranges. After an error no connection is cached, and connections that wait
    /// to be accepted are closed. The bytes that came before it are in the store, and in
    /// [`Progress::received`].
    ///
    /// # Errors
    /// No connection is made, or one breaks or stalls; the peer breaks the protocol or sends too
    /// much; the destination cannot be written; or the attendant or a breaker aborts the transfer
    /// ([`Error::Aborted`]).
    pub fn receive(
        &mut self,
        job: &ReceiveJob<'_>,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Received> {
        let mut watch = self.core.watch(attendant, progress, true);
        let result = receive::receive(&self.core, &mut self.cache, job, &mut watch);
        self.ended(result)
    }

    /// Sends the bytes of `source` until its end, in order and as they are, whatever the
    /// representation type (listings, whose rows have their CR LF already; standard input). This
    /// needs MODE S, or MODE E over one stream.
    ///
    /// A `source` that takes its time should return [`io::ErrorKind::WouldBlock`] after some tenths
    /// of a second. It is then asked again, and the attendant and the peer are served meanwhile.
    /// The bytes that it has returned until then are sent.
    ///
    /// # Errors
    /// As [`Self::send`]; [`Error::Reader`] if `source` fails.
    pub fn send_reader(
        &mut self,
        source: &mut dyn Read,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Sent> {
        self.send_from(source, None, attendant, progress)
    }

    /// As [`Self::send_reader`], with the descriptor that `source` reads from: where `source` would
    /// have to wait ([`io::ErrorKind::WouldBlock`]), it is waited for with everything else.
    ///
    /// # Errors
    /// As [`Self::send_reader`].
    pub fn send_polled(
        &mut self,
        source: &mut dyn Read,
        descriptor: BorrowedFd<'_>,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Sent> {
        self.send_from(source, Some(descriptor), attendant, progress)
    }

    fn send_from(
        &mut self,
        source: &mut dyn Read,
        descriptor: Option<BorrowedFd<'_>>,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Sent> {
        let mut watch = self.core.watch(attendant, progress, false);
        let result = ordered_send::send(&self.core, &mut self.cache, source, descriptor, &mut watch);
        self.ended(result)
    }

    /// Receives in order into `sink`, as it is, whatever the representation type (listings,
    /// standard output). Blocks of MODE E that come out of order are kept, up to 32 MiB of them.
    ///
    /// # Errors
    /// As [`Self::receive`]; [`Error::Writer`] if `sink` fails, and [`Error::OutOfOrder`] beyond
    /// those 32 MiB.
    pub fn receive_writer(
        &mut self,
        sink: &mut dyn Write,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Received> {
        let mut watch = self.core.watch(attendant, progress, true);
        let result = ordered_receive::receive(&self.core, &mut self.cache, sink, &mut watch);
        self.ended(result)
    }

    /// Lets go of the connections of earlier transfers, and of those that wait to be accepted: what
    /// they bring was meant for a transfer that is over, and the next one would take it for its
    /// own.
    pub fn discard(&mut self) -> Discarded {
        let waiting = self.core.listener().map(|listener| listener.turn_away()).unwrap_or_default();
        Discarded { _cached: std::mem::take(&mut self.cache), _waiting: waiting }
    }

    fn ended<T>(&mut self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            drop(self.discard());
        }
        // A thread whose connection was broken off may have been the first to say something.
        if self.core.control.is_broken() { result.map_err(|_| Error::Aborted) } else { result }
    }
}

// A channel is handed from thread to thread with its session.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<DataChannel>();
};
