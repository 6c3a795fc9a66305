//! A session with its control connection, which is parked while the client is silent.
//!
//! One thread at a time owns the connection: the reactor, the queue for a permit, or a thread of a
//! pool. Dropping it or [`Connection::close`] ends the session.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use ropewalk_engine::Discarded;
use ropewalk_protocol::one_port::TAKEN;
use ropewalk_protocol::queue::QueuePlace;
use ropewalk_protocol::reply::Reply;
use ropewalk_protocol::server::{Failure, Operation, Outcome, Session};
use ropewalk_security::canonical;

use crate::accounts::login::Login;
use crate::host::Host;
use crate::host::limits::SessionPermit;
use crate::host::parts::CompletedParts;
use crate::host::presence::{Activity, Present, User};
use crate::host::transfer_log::Record;
use crate::host::uploads::SessionUploads;
use crate::operations::Entry;
use crate::scheduling::semaphore::{Claim, Holder};
use crate::security::client::SecurityContext;
use crate::security::codec::ClearText;
use crate::session::context::{Context, Retry, StatHistory};
use crate::session::control::{Control, Stream};
use crate::session::dialogue::Dialogue;
use crate::session::job::Job;
use crate::settings::Settings;

pub(crate) struct Connection {
    pub(crate) session: Session,
    pub(crate) control: Control,
    pub(crate) context: Context,
    /// The result of the operation for which the session waits.
    pub(crate) answer: Option<Result<Outcome, Failure>>,
    /// An operation that waits for its permit, or for space on its disk.
    pub(crate) waiting: Option<Entry>,
    /// The holder of the permit that it was given while it waited.
    pub(crate) holder: Option<Holder>,
    /// Since when it waits for space on its disk.
    pub(crate) low_disk_since: Option<Instant>,
    /// The place in the queue for the permit that the client knows, and since when.
    pub(crate) told_place: Option<(QueuePlace, Instant)>,
    /// An operation to retry after a pause ([`Retry`](crate::session::context::Retry)).
    pub(crate) again: Option<Operation>,
    /// A transfer without a final reply.
    pub(crate) record: Option<Box<Record>>,
    /// Data connections of a transfer or listing that has failed.
    pub(crate) leftovers: Vec<Discarded>,
    /// The client has died during uploads: its waiting commands are not carried out.
    pub(crate) deserted: bool,
    since: Instant,
    /// The time of the last command or result. A line that never ends does not count.
    pub(crate) acted: Instant,
    pub(crate) presence: Present,
    _permit: SessionPermit,
}

/// The event for which a session waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The client's next command.
    Idle,
    /// Room for replies, which the client has to read.
    Write,
    /// The end of a pause, whatever the client sends: after a failed log-in, or before a retry.
    Pause { until: Instant },
}

/// A client that waits for a permit for this time learns its place.
const QUEUE_GRACE: Duration = Duration::from_secs(1);
/// The place is repeated in this interval if it does not change, so that nothing on the way takes
/// the connection for dead.
const QUEUE_REPEAT: Duration = Duration::from_secs(15);

impl Connection {
    pub(crate) fn new(
        host: &Host,
        settings: Arc<Settings>,
        stream: Stream,
        peer: SocketAddr,
        local: SocketAddr,
        permit: SessionPermit,
    ) -> Box<Self> {
        let peer = SocketAddr::new(canonical(peer.ip()), peer.port());
        let id = host.next_session();
        tracing::info!(session = id, %peer, "connected");
        let mut session = settings.session();
        if host.ssh_user.get().is_some() {
            session.begin_within_ssh();
        }
        Box::new(Self {
            session,
            control: Control::new(stream, Box::new(ClearText)),
            context: Context {
                id,
                peer,
                local,
                settings,
                login: None,
                channel: None,
                profile: None,
                iperf: None,
                task: None,
                scitag: None,
                client: SecurityContext::default(),
                reported: StatHistory::default(),
                completed_parts: CompletedParts::default(),
                uploads: SessionUploads::default(),
                retry: Retry::default(),
            },
            answer: None,
            waiting: None,
            holder: None,
            low_disk_since: None,
            told_place: None,
            again: None,
            record: None,
            leftovers: Vec::new(),
            since: Instant::now(),
            acted: Instant::now(),
            deserted: false,
            presence: host.presences.enter(id, peer),
            _permit: permit,
        })
    }

    /// Ends the session, and returns the connection for the data behind its first line of `length`
    /// bytes. The answer to that line is sent in clear. Output that was meant for a handshake is
    /// not sent.
    pub(crate) fn into_data(self: Box<Self>, registry: &Registry, length: usize) -> io::Result<TcpStream> {
        tracing::debug!(session = self.context.id, "is a data connection");
        let Self { mut control, .. } = *self;
        control.set_codec(Box::new(ClearText));
        control.push(&Reply::new(TAKEN, "Data connection open."));
        match control.flush()? {
            true => control.release(registry, length),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// When the connection was accepted.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    pub(crate) fn id(&self) -> u64 {
        self.context.id
    }

    pub(crate) fn job<'a>(&'a mut self, host: &'a Arc<Host>) -> Job<'a> {
        Job {
            host,
            dialogue: Dialogue::new(
                host,
                &self.presence,
                &mut self.session,
                &mut self.control,
                self.context.streams(),
            ),
            context: &mut self.context,
            record: &mut self.record,
            permit: None,
        }
    }

    /// Starts implicit TLS, before the greeting.
    pub(crate) fn begin_within_tls(&mut self) -> Result<(), Failure> {
        self.context.client = SecurityContext::within_tls(&self.context.settings, self.context.peer.ip())?;
        self.session.begin_within_tls();
        self.protect();
        Ok(())
    }

    /// Protects everything from here on.
    pub(crate) fn protect(&mut self) {
        let longest = self.context.settings.longest_line();
        if let Some(codec) = self.context.client.codec(longest) {
            if let Some(subject) = self.context.client.subject() {
                tracing::info!(session = self.context.id, subject, peer = %self.context.peer, "authenticated");
            }
            self.control.set_codec(codec);
        }
    }

    /// Records a handshake on the control connection that is complete now. Returns false if there
    /// is none.
    pub(crate) fn secured(&mut self) -> bool {
        let Some(secured) = self.control.take_secured() else { return false };
        let (tls, cipher) = (secured.version, secured.cipher);
        self.context.client.established(secured);
        tracing::info!(
            session = self.context.id, peer = %self.context.peer, subject = self.context.client.subject(), tls, cipher,
            "secured"
        );
        true
    }

    pub(crate) fn logged_in(&mut self, login: Login) {
        tracing::info!(
            session = self.context.id, user = login.account.name, peer = %self.context.peer,
            subject = self.context.client.subject(), "logged in"
        );
        // The channel and the profile of another user of this connection are discarded.
        self.context.channel = None;
        self.context.profile = None;
        let (name, counted_as) = (login.account.name.clone(), login.account.counted_as.clone());
        self.presence.log_in(User { name, counted_as });
        if let (Some(hops), Some(task)) = (&login.hops, &self.context.task) {
            hops.name_task(task);
        }
        self.context.login = Some(Box::new(login));
    }

    /// Discards data that may have been sent for an upload that was refused.
    pub(crate) fn decline(&mut self) {
        if let Some(channel) = &mut self.context.channel {
            self.leftovers.extend(channel.decline());
        }
    }

    /// Closes the data connections of a failed transfer, after the reply was sent: a client that
    /// saw its data connection end first would take that for the failure.
    pub(crate) fn tidy(&mut self) {
        if !self.leftovers.is_empty() {
            // If the client is gone, reading from it finds out.
            let _ = self.control.flush();
            self.leftovers = Vec::new();
        }
    }

    /// The time at which a session that is parked now has waited too long.
    pub(crate) fn deadline(&self, why: Wait) -> Instant {
        let timeouts = &self.context.settings.config.timeouts;
        match why {
            Wait::Pause { until } => until,
            Wait::Write => Instant::now() + timeouts.write,
            // Commands do not extend the time for the log-in.
            Wait::Idle if self.context.login.is_none() => self.since + timeouts.login,
            Wait::Idle => self.acted + timeouts.idle,
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token, output: bool) -> io::Result<()> {
        self.control.register(registry, token, output)
    }

    /// The one for whom it asks for permits.
    pub(crate) fn claim(&self) -> Claim {
        Claim { address: self.context.peer.ip(), reservation: self.context.reservation() }
    }

    /// Its operation waits in no queue any more, and is not carried out.
    pub(crate) fn stop_waiting(&mut self) {
        (self.waiting, self.low_disk_since) = (None, None);
    }

    /// Tells the client its place in the queue for a permit, if it has waited for a moment and the
    /// place is new, or was reported long ago. This does not wait: a client that does not read its
    /// replies gets no more of them.
    pub(crate) fn tell_place(&mut self, place: QueuePlace) {
        let now = Instant::now();
        let is_due = match self.told_place {
            None => now.saturating_duration_since(self.acted) >= QUEUE_GRACE,
            Some((told, at)) => {
                told.position != place.position || now.saturating_duration_since(at) >= QUEUE_REPEAT
            }
        };
        if !is_due || self.control.pending() > 0 {
            return;
        }
        self.told_place = Some((place, now));
        if let Some(line) = self.session.tell_place(place) {
            self.control.push(&line);
        }
        // An error shows again when the session continues.
        let _ = self.control.flush();
        self.presence.set(Activity::Waiting { position: Some(place.position) });
    }

    /// A reply that is not the session's.
    pub(crate) fn say(&mut self, code: u16, text: &str) {
        if let Some(end) = self.session.end_queue() {
            self.control.push(&end);
        }
        self.control.push(&Reply::new(code, text));
    }

    pub(crate) fn say_and_close(mut self: Box<Self>, code: u16, text: &str) {
        self.say(code, text);
        self.close();
    }

    pub(crate) fn close(self: Box<Self>) {
        tracing::info!(session = self.context.id, user = self.context.user(), "closed");
        let Self { mut control, context, presence, _permit: permit, .. } = *self;
        // The client may be gone already.
        let _ = control.flush();
        // A client may connect again as soon as its connection ends, and must find that the session
        // no longer counts.
        drop(context);
        drop(presence);
        drop(permit);
        control.close();
    }
}
