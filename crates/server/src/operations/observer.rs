//! Markers and the dialogue with the client during a transfer.
//!
//! The engine calls an [`Observer`] from the thread of the session: at the start of the data, at
//! least every 250 ms, and when the control connection can be read. The observer sends markers,
//! reads commands such as ABOR, and breaks the transfer off if the client is gone, if it is too
//! slow while others wait, or if the server ends.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant, SystemTime};

use ropewalk_engine::{Attendant, Progress, Stage};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::Event;

use super::buffers::Sight;
use super::path_watch::PathWatch;
use crate::failure::failure;
use crate::host::writers::Writer;
use crate::session::control::HIGH_WATER;
use crate::session::data_channel::NodeNews;
use crate::session::dialogue::{Dialogue, EndOfInput};

/// At most this many ranges are reported in one reply: some hundred KiB of text.
pub(super) const MOST_RANGES: usize = 4096;
/// A client that has ended its side of the control connection and is alive makes its data
/// connections within this time.
const LAST_CONNECTIONS: Duration = Duration::from_secs(5);
/// If another upload waits for the file, an upload whose client has ended its side of the control
/// connection ends after this time without data.
const STILL: Duration = Duration::from_secs(1);

/// Watches one transfer.
pub(super) struct Observer<'o, 'a> {
    dialogue: &'o mut Dialogue<'a>,
    markers: Markers<'o>,
    /// The meaning of the end of the client's side of the control connection.
    end: EndOfInput,
    writer: Option<&'o Writer>,
    /// Since when the client has closed its side of the control connection.
    silent: Option<Instant>,
    /// Since when the client has left more replies unread than may wait, without reading any, and
    /// how many bytes.
    unread: Option<(Instant, usize)>,
    /// Since when nothing has arrived for an upload for whose file another one waits, and how many
    /// bytes had arrived.
    still: Option<(Instant, u64)>,
}

/// Makes what was received safe. The argument says whether all of the file has arrived, so that the
/// part file is about to be renamed.
pub(super) type Secure<'a> = dyn Fn(bool) -> ropewalk_storage::Result<()> + 'a;

/// The markers that a transfer sends, and what they have reported.
pub(super) struct Markers<'a> {
    pub(super) perf: Schedule,
    pub(super) restart: Schedule,
    /// Offset in the file of the transfer's offset 0.
    pub(super) origin: u64,
    /// Called before a restart marker is sent. The transfer fails if this fails.
    pub(super) secure: Option<&'a Secure<'a>>,
    /// The ranges that may be reported, if these are not all that were received.
    pub(super) stored: Option<&'a dyn Fn() -> Option<RangeSet>>,
    /// Path markers accompany the performance markers.
    pub(super) path: Option<PathWatch>,
    /// The stage whose waiting time is reported with the performance markers.
    pub(super) storage: Option<Stage>,
    /// The path as the connections show it is kept for later transfers.
    pub(super) sight: Option<Sight>,
    /// The stripes of the channel. Each has performance markers of its own.
    pub(super) stripes: u32,
    /// Nodes that join are reported.
    pub(super) nodes: Option<NodeNews>,
    reported: RangeSet,
    begun: bool,
}

/// An event that happens in regular intervals, or never.
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

impl Markers<'_> {
    pub(super) fn new(perf: u32, restart: u32, origin: u64) -> Self {
        Self {
            perf: Schedule::every(perf),
            restart: Schedule::every(restart),
            origin,
            secure: None,
            stored: None,
            path: None,
            storage: None,
            sight: None,
            stripes: 1,
            nodes: None,
            reported: RangeSet::new(),
            begun: false,
        }
    }

    pub(super) fn none() -> Self {
        Self::new(0, 0, 0)
    }
}

impl<'o, 'a> Observer<'o, 'a> {
    pub(super) fn new(dialogue: &'o mut Dialogue<'a>, markers: Markers<'o>) -> Self {
        Self {
            dialogue,
            markers,
            end: EndOfInput::default(),
            writer: None,
            silent: None,
            unread: None,
            still: None,
        }
    }

    /// An upload: what the end of the client's side of the control connection means, and where
    /// other uploads to the same file ask it to end.
    pub(super) fn of_upload(
        dialogue: &'o mut Dialogue<'a>,
        markers: Markers<'o>,
        end: EndOfInput,
        writer: &'o Writer,
    ) -> Self {
        Self { end, writer: Some(writer), ..Self::new(dialogue, markers) }
    }

    /// Reads everything that the client has sent until now, and the end of its side.
    pub(super) fn drain(&mut self) -> ControlFlow<()> {
        self.dialogue.drain(self.end)
    }

    /// All data has arrived, and its store passes it on: sends the markers that are due, and reads
    /// what the client has sent.
    pub(super) fn settling(&mut self, progress: &Progress) -> ControlFlow<()> {
        if self.markers.perf.due() {
            self.perf(progress)?;
        }
        if self.markers.restart.due() {
            self.ranges(progress, false)?;
        }
        self.dialogue.check_with(self.end)
    }

    /// Restart markers have reported something.
    pub(super) fn has_reported_ranges(&self) -> bool {
        !self.markers.reported.is_empty()
    }

    /// Sends the last markers of a transfer that has started. Ranges that were received count even
    /// if the transfer failed, if they are `kept`. `whole`: all of the file has arrived.
    pub(super) fn last_markers(&mut self, progress: &Progress, whole: bool, kept: bool) {
        self.learn(progress);
        if !self.markers.begun || self.dialogue.is_lost() {
            return;
        }
        // The transfer is over and cannot be broken off any more.
        let _ = self.perf(progress);
        let _ = self.nodes();
        if kept && self.markers.restart.is_on() {
            let _ = self.ranges(progress, whole);
        }
    }

    /// Ends this upload if another one to the same file waits and the client of this one is gone.
    fn give_way(&mut self, bytes: u64) -> ControlFlow<()> {
        let Some(writer) = self.writer.filter(|writer| writer.is_asked()) else {
            self.still = None;
            return ControlFlow::Continue(());
        };
        let asked = writer.asked();
        self.dialogue.receive_all(self.end)?;
        if !self.dialogue.control.ended() {
            writer.stay(asked);
            return ControlFlow::Continue(());
        }
        let now = Instant::now();
        let (since, _) = *self.still.insert(self.still.filter(|(_, b)| *b == bytes).unwrap_or((now, bytes)));
        if !self.markers.begun || now.saturating_duration_since(since) >= STILL {
            return self.dialogue.lose();
        }
        ControlFlow::Continue(())
    }

    fn perf(&mut self, progress: &Progress) -> ControlFlow<()> {
        if !self.markers.perf.is_on() {
            return ControlFlow::Continue(());
        }
        let (stripes, timestamp) = (self.markers.stripes, timestamp());
        let parts = if stripes > 1 { progress.stripes() } else { vec![progress.bytes()] };
        for stripe in 0..stripes {
            let bytes = parts.get(stripe as usize).copied().unwrap_or(0);
            self.dialogue.queue_event(Event::Perf { timestamp, stripe, stripes, bytes })?;
        }
        if let Some(marker) = self.markers.path.as_mut().and_then(PathWatch::marker) {
            self.dialogue.queue_event(Event::Path(marker))?;
        }
        match self.markers.storage {
            Some(stage) => self.dialogue.queue_event(Event::Storage(progress.time(stage))),
            None => ControlFlow::Continue(()),
        }
    }

    /// Reports that a new data channel would be on better nodes, if there is such news.
    fn nodes(&mut self) -> ControlFlow<()> {
        match self.markers.nodes.as_ref().and_then(NodeNews::take) {
            Some(count) => self.dialogue.queue_event(Event::Nodes(count)),
            None => ControlFlow::Continue(()),
        }
    }

    /// Looks at what the connections show of the path, if it is time.
    fn look(&mut self, progress: &Progress) {
        let now = Instant::now();
        if let Some(sight) = self.markers.sight.as_mut().filter(|sight| sight.due(now)) {
            sight.look(&progress.flows(), now);
        }
    }

    /// Keeps what the connections of the transfer, which has ended, have shown of the path.
    fn learn(&mut self, progress: &Progress) {
        if let Some(mut sight) = self.markers.sight.take().filter(|_| Sight::telling(progress.bytes())) {
            let mut flows = progress.flows();
            flows.extend(progress.channel_flows().map(|flows| flows.gone()).unwrap_or_default());
            sight.look(&flows, Instant::now());
            sight.tell(&self.dialogue.host.routes, progress.bytes());
        }
    }

    /// Sends a restart marker with what has arrived since the last one.
    fn ranges(&mut self, progress: &Progress, whole: bool) -> ControlFlow<()> {
        let received = progress.received();
        if let Some(secure) = self.markers.secure
            && let Err(error) = secure(whole)
        {
            return self.dialogue.end(failure(error));
        }
        let mut news = match self.markers.stored.and_then(|stored| stored()) {
            None => received,
            Some(stored) => stored.iter().fold(RangeSet::new(), |mut both, range| {
                both.union(&received.intersection(range));
                both
            }),
        };
        news.subtract(&self.markers.reported);
        if news.is_empty() {
            return ControlFlow::Continue(());
        }
        if news.count() > MOST_RANGES {
            // The next marker reports the others.
            news = news.iter().take(MOST_RANGES).collect();
        }
        self.markers.reported.union(&news);
        self.dialogue.queue_event(Event::Received(news.shift_down(self.markers.origin)))
    }
}

impl Attendant for Observer<'_, '_> {
    fn begun(&mut self, reused: bool) -> io::Result<()> {
        self.markers.begun = true;
        let mut flow = self.dialogue.queue_event(Event::Begun { reused });
        if flow.is_continue() {
            flow = self.perf(&Progress::new());
        }
        // In a pipeline of small files the data may be there already, or fit into the connection:
        // then all replies leave in one packet. [`Attendant::waits`] sends them before the engine
        // waits for anything.
        if flow.is_continue() && !reused {
            flow = self.dialogue.flush();
        }
        match flow {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    fn tick(&mut self, progress: &Progress) -> ControlFlow<()> {
        let full = self.dialogue.control.pending() >= HIGH_WATER;
        if self.markers.begun {
            // A client that does not read gets no further markers: the next ones contain all that
            // these would report.
            if !full && self.markers.perf.due() {
                self.perf(progress)?;
            }
            if !full && self.markers.restart.due() {
                self.ranges(progress, false)?;
            }
            if !full {
                self.nodes()?;
            }
            self.look(progress);
        }
        // Otherwise the upload would hold its file for as long as a living client may take.
        if self.dialogue.control.ended() && !self.markers.begun {
            let since = *self.silent.get_or_insert_with(Instant::now);
            if since.elapsed() >= LAST_CONNECTIONS {
                return self.dialogue.lose();
            }
        }
        let pending = self.dialogue.control.pending();
        // The client reads as long as the number of unread bytes shrinks.
        let since = self.unread.filter(|(_, before)| pending >= *before).map(|(since, _)| since);
        self.unread = full.then(|| (since.unwrap_or_else(Instant::now), pending));
        let limit = self.dialogue.host.settings().config.timeouts.write;
        if self.unread.is_some_and(|(since, _)| since.elapsed() >= limit) {
            return self.dialogue.lose();
        }
        // Input that came along with the command may have left actions in the session.
        self.dialogue.pump()?;
        self.dialogue.moved(progress.bytes())?;
        self.give_way(progress.bytes())?;
        self.dialogue.alive()
    }

    fn waits(&mut self) -> ControlFlow<()> {
        self.dialogue.flush()
    }

    fn watch(&self) -> Option<BorrowedFd<'_>> {
        self.dialogue.input()
    }

    fn readable(&mut self) -> ControlFlow<()> {
        self.dialogue.receive(self.end).map_continue(|_| ())
    }
}

/// Tenths of a second since 1970.
pub(super) fn timestamp() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis() / 100).unwrap_or(u64::MAX)
}
