//! The session during an operation that takes its time: markers, ABOR, the server's end.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant, SystemTime};

use ropewalk_engine::{Attendant, Parallelism, Progress, Stage};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Action, Event, Failure, Session};
use ropewalk_storage::{Error as StoreError, ErrorKind};

use super::buffers::Sight;
use super::path_watch::PathWatch;
use crate::failure::failure;
use crate::host::Host;
use crate::host::writers::Writer;
use crate::session::control::{Control, HIGH_WATER, Received};
use crate::session::data_channel::Channel;
use crate::session::job::{Job, Permit};

/// So many ranges are told of in one reply, at most: some hundred KiB of text.
pub(super) const RANGES_TOLD: usize = 4096;
/// A client that has ended its side of the control connection and is alive makes its data connections within this time.
const LAST_CONNECTIONS: Duration = Duration::from_secs(5);
/// An upload whose client has ended its side of the control connection, and for which nothing comes for so long, ends for another one.
const STILL: Duration = Duration::from_secs(1);
/// How often it is looked whether an operation may go on that waits for its client to read.
const LOOK: Duration = Duration::from_millis(250);

/// Keeps up the dialogue with the client while an operation runs.
pub(crate) struct Attend<'a> {
    host: &'a Host,
    session: &'a mut Session,
    control: &'a mut Control,
    markers: Markers<'a>,
    /// SITE STREAMS changes it.
    streams: Option<Parallelism>,
    /// Why the operation is broken off.
    ended: Option<Failure>,
    /// The control connection is of no use any more.
    lost: bool,
    /// Nothing but the client's presence says that the data came to its end by intention.
    vouches: bool,
    /// The upload tells by itself whether all of it has come.
    proves: bool,
    /// Since when nothing more can be heard of the client.
    silent: Option<Instant>,
    /// Since when the client has left more unread than may wait, without any of it becoming less, and how many bytes.
    unread: Option<(Instant, usize)>,
    permit: Option<&'a dyn Permit>,
    writer: Option<&'a Writer>,
    /// Since when nothing has come for an upload that another one waits for, and how many bytes had.
    still: Option<(Instant, u64)>,
}

/// Told whether all of the file has come, so that it is about to get its name.
pub(super) type Secure<'a> = dyn Fn(bool) -> ropewalk_storage::Result<()> + 'a;

/// Which markers a transfer sends, and what they have told already.
pub(super) struct Markers<'a> {
    pub(super) perf: Schedule,
    pub(super) restart: Schedule,
    /// Wire offsets are so much smaller than the file's.
    pub(super) origin: u64,
    /// Makes what was received safe before a restart marker tells of it; the transfer fails where it fails.
    pub(super) secure: Option<&'a Secure<'a>>,
    /// Path markers go with the performance markers.
    pub(super) path: Option<PathWatch>,
    /// The time that streams wait in this stage is reported with the performance markers.
    pub(super) storage: Option<Stage>,
    /// What the connections show is kept for later ones.
    pub(super) sight: Option<Sight>,
    told: RangeSet,
    begun: bool,
}

/// Something that happens every so many seconds, or never.
pub(super) struct Schedule {
    interval: Duration,
    next: Instant,
}

impl Schedule {
    /// 0 seconds is never.
    pub(super) fn every(seconds: u32) -> Self {
        let interval = Duration::from_secs(seconds.into());
        Self { interval, next: Instant::now() + interval }
    }

    pub(super) fn is_on(&self) -> bool {
        !self.interval.is_zero()
    }

    pub(super) fn due(&mut self) -> bool {
        let now = Instant::now();
        if !self.is_on() || now < self.next {
            return false;
        }
        self.next = now + self.interval;
        true
    }
}

impl<'a> Markers<'a> {
    pub(super) fn new(perf: u32, restart: u32, origin: u64) -> Self {
        Self {
            perf: Schedule::every(perf),
            restart: Schedule::every(restart),
            origin,
            secure: None,
            path: None,
            storage: None,
            sight: None,
            told: RangeSet::new(),
            begun: false,
        }
    }

    pub(super) fn none() -> Self {
        Self::new(0, 0, 0)
    }
}

impl<'a> Attend<'a> {
    pub(super) fn new(
        host: &'a Host,
        session: &'a mut Session,
        control: &'a mut Control,
        streams: Option<Parallelism>,
        markers: Markers<'a>,
    ) -> Self {
        Self {
            host,
            session,
            control,
            markers,
            streams,
            ended: None,
            lost: false,
            vouches: false,
            proves: false,
            silent: None,
            unread: None,
            permit: None,
            writer: None,
            still: None,
        }
    }

    /// An upload ends for another one to the same file if its client has gone and nothing comes.
    pub(super) fn giving_way(self, writer: &'a Writer) -> Self {
        Self { writer: Some(writer), ..self }
    }

    /// Gives the turn to others that wait, where the client is slow.
    pub(super) fn sharing(self, permit: Option<&'a dyn Permit>) -> Self {
        Self { permit, ..self }
    }

    /// A client that ends its side of the control connection has died, also where commands of it wait, unless it has taken
    /// its leave (QUIT): for what ends with a data connection and says nothing of its length.
    pub(super) fn vouching(self, vouches: bool) -> Self {
        Self { vouches, ..self }
    }

    /// A client may close its side early: what is missing shows.
    pub(super) fn proving(self, proves: bool) -> Self {
        Self { proves, ..self }
    }

    /// Where there are no markers.
    pub(super) fn of(job: &'a mut Job<'_>) -> Self {
        let streams = job.context.streams();
        Self::new(job.host, job.session, job.control, streams, Markers::none())
    }

    /// Tells the session, and the client what comes of it.
    pub(super) fn event(&mut self, event: Event) -> ControlFlow<()> {
        self.session.event(event);
        self.pump()
    }

    /// As [`Self::event`]; what is to be said waits for the next flush.
    fn tell(&mut self, event: Event) -> ControlFlow<()> {
        self.session.event(event);
        self.settle()
    }

    /// Says that the transfer begins, where the client needs that to do its part of the data connection's handshake.
    pub(super) fn reply_early(&mut self, channel: &Channel) {
        if channel.replies_early() {
            // A client that has gone shows when the connection is waited for.
            let _ = self.event(Event::Begun { reused: false });
        }
    }

    /// To be called now and then where no engine does: hears the client, and whether to go on.
    pub(super) fn check(&mut self) -> ControlFlow<()> {
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
        self.readable()?;
        self.alive()
    }

    /// Hears all that the client has said until now, its end included.
    pub(super) fn hear_out(&mut self) -> ControlFlow<()> {
        self.check()?;
        self.hear_all()
    }

    fn hear_all(&mut self) -> ControlFlow<()> {
        // Who never ends has not died.
        for _ in 0..64 {
            if !self.hear()? {
                break;
            }
        }
        ControlFlow::Continue(())
    }

    /// As [`Self::check`], for what goes on in a store.
    pub(super) fn go_on(&mut self, place: &VirtualPath) -> ropewalk_storage::Result<()> {
        match self.check() {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(StoreError::new(ErrorKind::Interrupted, "read", place.as_bytes())),
        }
    }

    /// Restart markers have told of something.
    pub(super) fn has_told_ranges(&self) -> bool {
        !self.markers.told.is_empty()
    }

    /// The transfer's last markers, where it has begun: what is there although it failed counts as well, if it is `kept`. `whole`:
    /// all of the file has come.
    pub(super) fn last_markers(&mut self, progress: &Progress, whole: bool, kept: bool) {
        self.learn(progress);
        if !self.markers.begun || self.lost {
            return;
        }
        // Nothing is broken off by this any more.
        let _ = self.perf(progress);
        if kept && self.markers.restart.is_on() {
            let _ = self.ranges(progress, whole);
        }
    }

    /// The failure to tell, where the operation was broken off from here.
    pub(super) fn broken_off(&self) -> Option<Failure> {
        self.ended.clone()
    }

    /// True where something came.
    fn hear(&mut self) -> ControlFlow<(), bool> {
        let mut buffer = [0; 4096];
        match self.control.receive(&mut buffer) {
            Ok(Received::Bytes(bytes)) => {
                self.session.input(&bytes);
                self.pump()?;
                ControlFlow::Continue(true)
            }
            Ok(Received::Nothing) => ControlFlow::Continue(false),
            // A client that has said all that it has to say may close its side early.
            Ok(Received::End) if self.has_said_all() => ControlFlow::Continue(false),
            Ok(Received::End) | Err(_) => {
                self.lose()?;
                ControlFlow::Continue(false)
            }
        }
    }

    fn has_said_all(&self) -> bool {
        self.proves || self.session.queued() > 0 && (!self.vouches || self.session.takes_leave())
    }

    fn end(&mut self, why: Failure) -> ControlFlow<()> {
        self.ended.get_or_insert(why);
        ControlFlow::Break(())
    }

    fn lose(&mut self) -> ControlFlow<()> {
        self.lost = true;
        self.end(Failure::Aborted)
    }

    fn end_by_server(&mut self) -> ControlFlow<()> {
        self.end(Failure::Busy("Service not available, closing control connection.".into()))
    }

    /// Whether the client, which has taken or sent so many bytes, may go on while others wait.
    fn moved(&mut self, bytes: u64) -> ControlFlow<()> {
        match self.permit.map_or(ControlFlow::Continue(()), |permit| permit.moved(bytes)) {
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
            ControlFlow::Break(()) => {
                self.end(Failure::DataBroken("too slow while others wait: try again later".into()))
            }
        }
    }

    /// If another upload to the same file waits.
    fn give_way(&mut self, bytes: u64) -> ControlFlow<()> {
        let Some(writer) = self.writer.filter(|writer| writer.is_asked()) else {
            self.still = None;
            return ControlFlow::Continue(());
        };
        let asked = writer.asked();
        self.hear_all()?;
        if !self.control.ended() {
            writer.stay(asked);
            return ControlFlow::Continue(());
        }
        let now = Instant::now();
        let (since, _) = *self.still.insert(self.still.filter(|(_, b)| *b == bytes).unwrap_or((now, bytes)));
        if !self.markers.begun || now.saturating_duration_since(since) >= STILL {
            return self.lose();
        }
        ControlFlow::Continue(())
    }

    fn alive(&mut self) -> ControlFlow<()> {
        if self.host.must_end() { self.end_by_server() } else { ControlFlow::Continue(()) }
    }

    /// Does what the session wants now, and writes what the connection takes.
    fn pump(&mut self) -> ControlFlow<()> {
        let flow = self.settle();
        self.flush()?;
        flow
    }

    fn flush(&mut self) -> ControlFlow<()> {
        if self.control.flush().is_err() { self.lose() } else { ControlFlow::Continue(()) }
    }

    /// Does what the session wants now; what is to be said waits for the next flush.
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
                // Comes of ADAT only, which is no transfer.
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

    fn perf(&mut self, progress: &Progress) -> ControlFlow<()> {
        if !self.markers.perf.is_on() {
            return ControlFlow::Continue(());
        }
        self.tell(Event::Perf { timestamp: timestamp(), stripe: 0, stripes: 1, bytes: progress.bytes() })?;
        if let Some(marker) = self.markers.path.as_mut().and_then(PathWatch::marker) {
            self.tell(Event::Path(marker))?;
        }
        match self.markers.storage {
            Some(stage) => self.tell(Event::Storage(progress.time(stage))),
            None => ControlFlow::Continue(()),
        }
    }

    /// What the connections show now.
    fn look(&mut self, progress: &Progress) {
        let now = Instant::now();
        if let Some(sight) = self.markers.sight.as_mut().filter(|sight| sight.due(now)) {
            sight.look(&progress.flows(), now);
        }
    }

    /// The transfer has ended: what its connections have shown is kept.
    fn learn(&mut self, progress: &Progress) {
        if let Some(mut sight) = self.markers.sight.take().filter(|_| Sight::telling(progress.bytes())) {
            let mut flows = progress.flows();
            flows.extend(progress.channel_flows().map(|flows| flows.gone()).unwrap_or_default());
            sight.look(&flows, Instant::now());
            sight.tell(&self.host.routes, progress.bytes());
        }
    }

    /// A restart marker with what came since the last one.
    fn ranges(&mut self, progress: &Progress, whole: bool) -> ControlFlow<()> {
        let received = progress.received();
        if let Some(secure) = self.markers.secure
            && let Err(error) = secure(whole)
        {
            return self.end(failure(error));
        }
        let mut news = received;
        news.subtract(&self.markers.told);
        if news.is_empty() {
            return ControlFlow::Continue(());
        }
        if news.count() > RANGES_TOLD {
            // The next marker tells more.
            news = news.iter().take(RANGES_TOLD).collect();
        }
        self.markers.told.union(&news);
        self.tell(Event::Received(news.shift_down(self.markers.origin)))
    }
}

impl Attendant for Attend<'_> {
    fn begun(&mut self, reused: bool) -> io::Result<()> {
        self.markers.begun = true;
        let mut flow = self.tell(Event::Begun { reused });
        if flow.is_continue() {
            flow = self.perf(&Progress::new());
        }
        // In a pipeline of small files the data may be there already, or fit into the connection: one packet for all
        // replies then. Before anything is waited for, [`Attendant::waits`] sends them.
        if flow.is_continue() && !reused {
            flow = self.flush();
        }
        match flow {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    fn tick(&mut self, progress: &Progress) -> ControlFlow<()> {
        let full = self.control.pending() >= HIGH_WATER;
        if self.markers.begun {
            // A client that reads nothing is told nothing more: the markers that follow say all that these would.
            if !full && self.markers.perf.due() {
                self.perf(progress)?;
            }
            if !full && self.markers.restart.due() {
                self.ranges(progress, false)?;
            }
            self.look(progress);
        }
        // It would hold what it is to be written to for as long as a client may need that is alive.
        if self.control.ended() && !self.markers.begun {
            let since = *self.silent.get_or_insert_with(Instant::now);
            if since.elapsed() >= LAST_CONNECTIONS {
                return self.lose();
            }
        }
        let pending = self.control.pending();
        // It reads as long as less is left.
        let since = self.unread.filter(|(_, before)| pending >= *before).map(|(since, _)| since);
        self.unread = full.then(|| (since.unwrap_or_else(Instant::now), pending));
        let limit = self.host.settings().config.timeouts.write;
        if self.unread.is_some_and(|(since, _)| since.elapsed() >= limit) {
            return self.lose();
        }
        // The session may have wanted something from the beginning, because of what came with the command.
        self.pump()?;
        self.moved(progress.bytes())?;
        self.give_way(progress.bytes())?;
        self.alive()
    }

    fn waits(&mut self) -> ControlFlow<()> {
        self.flush()
    }

    fn watch(&self) -> Option<BorrowedFd<'_>> {
        // A client that does not read what it is told is not heard either.
        let heard = !self.control.ended() && self.control.pending() < HIGH_WATER;
        heard.then(|| self.control.as_fd())
    }

    fn readable(&mut self) -> ControlFlow<()> {
        self.hear().map_continue(|_| ())
    }
}

/// Tenths of a second since 1970.
pub(super) fn timestamp() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis() / 100).unwrap_or(u64::MAX)
}
