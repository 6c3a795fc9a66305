//! The dialogue with the client while an operation runs: ABOR, replies, the end of the server.
//!
//! The connection makes one for each operation and lends it with the job. An operation that takes
//! long calls [`Dialogue::check`] now and then; a transfer has an observer that does so. Both
//! return `Break` once the operation has to end, and [`Dialogue::broken_off`] returns the reason.
//! Nothing here waits for the client, except for room if it leaves very many replies unread.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use ropewalk_engine::Parallelism;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::{Action, Event, Failure, Session};
use ropewalk_storage::{Error as StoreError, ErrorKind};

use crate::host::Host;
use crate::host::presence::Presence;
use crate::session::control::{Control, HIGH_WATER, Received};
use crate::session::data_channel::Channel;

/// An operation that waits for its client to read checks this often whether it may continue.
const LOOK: Duration = Duration::from_millis(250);
/// The text for a client whose session the administrator has ended.
pub(crate) const ENDED: &str = "The administrator has ended this session.";

/// The permit of an operation that can take long.
pub(crate) trait Permit {
    /// The client has taken or sent `bytes` bytes since the operation began. `Break`: other
    /// sessions wait for a permit and this operation is too slow to keep its own.
    fn moved(&self, bytes: u64) -> ControlFlow<()>;
}

pub(crate) struct Dialogue<'a> {
    pub(crate) host: &'a Host,
    pub(crate) presence: &'a Presence,
    pub(crate) session: &'a mut Session,
    pub(crate) control: &'a mut Control,
    /// The number of streams that SITE STREAMS changes.
    pub(crate) streams: Option<Parallelism>,
    /// The permit that is released to other sessions if the client is slow.
    permit: Option<&'a dyn Permit>,
    /// Why the operation is broken off.
    ended: Option<Failure>,
    /// The control connection can no longer be used.
    lost: bool,
}

/// The meaning of the end of the client's side of the control connection.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum EndOfInput {
    /// The client has died, unless commands of it wait.
    #[default]
    DiedUnlessQueued,
    /// The client has died, unless it has sent QUIT. For data that ends with its connection and
    /// does not say how long it is: the client's presence is the only evidence that the data is
    /// complete.
    DiedUnlessQuit,
    /// Nothing: the data shows by itself whether it is complete.
    Nothing,
}

impl<'a> Dialogue<'a> {
    pub(crate) fn new(
        host: &'a Host,
        presence: &'a Presence,
        session: &'a mut Session,
        control: &'a mut Control,
        streams: Option<Parallelism>,
    ) -> Self {
        Self { host, presence, session, control, streams, permit: None, ended: None, lost: false }
    }

    /// From now on the operation releases `permit` to other sessions if the client is slow.
    pub(crate) fn share(&mut self, permit: Option<&'a dyn Permit>) {
        self.permit = permit;
    }

    /// Reports an event to the session and sends the replies that result.
    pub(crate) fn event(&mut self, event: Event) -> ControlFlow<()> {
        self.session.event(event);
        self.pump()
    }

    /// As [`Self::event`], but replies wait for the next flush.
    pub(crate) fn queue_event(&mut self, event: Event) -> ControlFlow<()> {
        self.session.event(event);
        self.settle()
    }

    /// Sends the preliminary reply now if the client needs it to do its part of the TLS handshake
    /// on the data connection.
    pub(crate) fn reply_early(&mut self, channel: &Channel) {
        if channel.replies_early() {
            // If the client is gone, waiting for the data connection finds out.
            let _ = self.event(Event::Begun { reused: false });
        }
    }

    /// Reads what the client has sent and checks whether the operation may continue. An operation
    /// that is not driven by the engine calls this now and then.
    pub(crate) fn check(&mut self) -> ControlFlow<()> {
        self.check_with(EndOfInput::default())
    }

    pub(crate) fn check_with(&mut self, end: EndOfInput) -> ControlFlow<()> {
        let limit = Instant::now() + self.host.settings().config.timeouts.write;
        while self.control.pending() >= HIGH_WATER {
            match self.control.make_room(LOOK) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut && Instant::now() < limit => {}
                Err(_) => return self.lose(),
            }
            self.moved(self.control.written())?;
            self.alive()?;
        }
        self.pump()?;
        self.receive(end)?;
        self.alive()
    }

    /// Reads everything that the client has sent until now, and the end of its side.
    pub(crate) fn drain(&mut self, end: EndOfInput) -> ControlFlow<()> {
        self.check_with(end)?;
        self.receive_all(end)
    }

    pub(crate) fn receive_all(&mut self, end: EndOfInput) -> ControlFlow<()> {
        // The loop is bounded: a client that keeps sending is alive.
        for _ in 0..64 {
            if !self.receive(end)? {
                break;
            }
        }
        ControlFlow::Continue(())
    }

    /// As [`Self::check`], for calls of a store, which are interrupted by an error.
    pub(crate) fn proceed(&mut self, place: &VirtualPath) -> ropewalk_storage::Result<()> {
        match self.check() {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(StoreError::new(ErrorKind::Interrupted, "read", place.as_bytes())),
        }
    }

    /// The failure of the operation, if it was broken off by the client or the server.
    pub(crate) fn broken_off(&self) -> Option<Failure> {
        self.ended.clone()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Reads once from the client. Returns true if something came.
    pub(crate) fn receive(&mut self, end: EndOfInput) -> ControlFlow<(), bool> {
        let mut buffer = [0; 4096];
        match self.control.receive(&mut buffer) {
            Ok(Received::Bytes(bytes)) => {
                self.session.input(&bytes);
                self.pump()?;
                ControlFlow::Continue(true)
            }
            Ok(Received::Nothing) => ControlFlow::Continue(false),
            // A client that has sent all its commands may close its side early.
            Ok(Received::End) if self.may_end(end) => ControlFlow::Continue(false),
            Ok(Received::End) | Err(_) => {
                self.lose()?;
                ControlFlow::Continue(false)
            }
        }
    }

    fn may_end(&self, end: EndOfInput) -> bool {
        match end {
            EndOfInput::Nothing => true,
            EndOfInput::DiedUnlessQueued => self.session.queued() > 0,
            EndOfInput::DiedUnlessQuit => self.session.queued() > 0 && self.session.takes_leave(),
        }
    }

    /// Breaks the operation off because of `why`, unless it was broken off before.
    pub(crate) fn end(&mut self, why: Failure) -> ControlFlow<()> {
        self.ended.get_or_insert(why);
        ControlFlow::Break(())
    }

    /// Breaks the operation off because the control connection can no longer be used.
    pub(crate) fn lose(&mut self) -> ControlFlow<()> {
        self.lost = true;
        self.end(Failure::Aborted)
    }

    fn end_by_server(&mut self) -> ControlFlow<()> {
        self.end(Failure::Busy("Service not available, closing control connection.".into()))
    }

    /// Whether the client, which has taken or sent `bytes` bytes, may continue while others wait.
    pub(crate) fn moved(&mut self, bytes: u64) -> ControlFlow<()> {
        match self.permit.map_or(ControlFlow::Continue(()), |permit| permit.moved(bytes)) {
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
            ControlFlow::Break(()) => {
                self.end(Failure::DataBroken("too slow while others wait: try again later".into()))
            }
        }
    }

    /// Whether the server lets the operation run on.
    pub(crate) fn alive(&mut self) -> ControlFlow<()> {
        if self.host.must_end() {
            self.end_by_server()
        } else if self.presence.is_ended() {
            self.end(Failure::Busy(ENDED.into()))
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Carries out the actions of the session and writes what the connection takes.
    pub(crate) fn pump(&mut self) -> ControlFlow<()> {
        let flow = self.settle();
        self.flush()?;
        flow
    }

    pub(crate) fn flush(&mut self) -> ControlFlow<()> {
        if self.control.flush().is_err() { self.lose() } else { ControlFlow::Continue(()) }
    }

    /// Carries out the actions of the session; replies wait for the next flush.
    fn settle(&mut self) -> ControlFlow<()> {
        let mut flow = ControlFlow::Continue(());
        while let Some(action) = self.session.poll() {
            match action {
                Action::Send(reply) => self.control.push(&reply),
                Action::Abort => flow = self.end(Failure::Aborted),
                Action::Streams(n) => {
                    if let Some(streams) = &self.streams {
                        streams.set(n);
                    }
                }
                // Only ADAT leads to this, and it is no operation of this kind.
                Action::Protect => {}
                Action::Close => {
                    self.control.close_after_output();
                    flow = self.lose();
                }
                Action::Perform(operation) => {
                    tracing::error!(?operation, "the session asked for an operation during another one");
                    flow = self.end_by_server();
                }
            }
        }
        flow
    }

    /// The control connection, if it is to be read when input arrives. A client that does not read
    /// its replies is not read from either.
    pub(crate) fn input(&self) -> Option<BorrowedFd<'_>> {
        let heard = !self.control.ended() && self.control.pending() < HIGH_WATER;
        heard.then(|| self.control.as_fd())
    }
}
