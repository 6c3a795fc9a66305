//! Transfers of file data for another program: from the server into a sink, and from a source to
//! the server.

use std::cell::{Cell, OnceCell};
use std::io::Read;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use bstr::BString;
use ropewalk_engine::{Feed, Parallelism, Progress, ReceiveJob, SendJob};
use ropewalk_protocol::command::{Command, Placement, Restart, Retrieval};
use ropewalk_protocol::marker::Marker;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::reply::Reply;
use ropewalk_protocol::server::{Mode, Window};
use ropewalk_storage::{ReadHandle, WriteHandle};

use super::Far;
use crate::control::Answer;
use crate::path_defaults::{PathDefaults, SMALL};
use crate::session::Session;
use crate::tune::{Ends, Hop, Wanted};
use crate::watch::Watch;
use crate::{Cancel, Error, RemoteError};

/// A range of a file to receive.
pub struct Fetch<'a> {
    pub path: &'a [u8],
    /// Must not extend beyond the end of the file.
    pub range: Range<u64>,
    /// The size of the file.
    pub size: u64,
    /// A write blocks until the reader of the sink has taken enough.
    pub sink: Arc<dyn WriteHandle>,
    /// Whether the reader of the sink waits for bytes at present.
    pub waited_for: &'a dyn Fn() -> bool,
    /// Uses one stream, so that the bytes arrive in order.
    pub in_order: bool,
    /// The most streams that the sink has room for.
    pub most_streams: u32,
    /// Stops the transfer from another thread.
    pub cancel: &'a Cancel,
}

/// The bytes of a file that are sent to a server, and the way to learn of more of them.
pub enum OutgoingSource<'a> {
    /// In any order, as the feed has them.
    Ranges(Arc<dyn ReadHandle>, Arc<Feed>),
    /// In order, starting at this offset.
    InOrder(u64, &'a mut (dyn Read + Send)),
}

/// A file, or a range of one, to send.
pub struct Outgoing<'a> {
    pub path: BString,
    pub source: OutgoingSource<'a>,
    /// The most streams that the source has data for.
    pub most_streams: u32,
    pub cancel: &'a Cancel,
    /// Called with the ranges that the server has stored, as far as it reports them.
    pub stored: &'a mut dyn FnMut(&RangeSet),
}

/// Where the data of a transfer goes.
#[derive(Clone, Copy, PartialEq)]
enum Direction {
    /// To this host.
    Here,
    /// To the far server.
    There,
}

/// A transfer while its data moves.
struct Moves<'a> {
    path: BString,
    cancel: &'a Cancel,
    /// Called at each tick.
    look: &'a dyn Fn(&Progress),
    /// The number of streams that a sending server is asked for.
    steered: Option<&'a (Wanted, Parallelism)>,
}

impl Far {
    /// The tuner of a transfer. `None`: it is small, or its number of streams is fixed.
    fn hop(&self, rtt: Duration, direction: Direction, length: Option<u64>, most: u32) -> Option<Hop> {
        let tuning = self.tuning.as_ref().filter(|_| length.is_none_or(|length| length > SMALL))?;
        let far = Some(self.endpoint.name.clone());
        let ends = match direction {
            Direction::Here => Ends { source: far, destination: None },
            Direction::There => Ends { source: None, destination: far },
        };
        tuning.begin(ends, rtt, length, most)
    }

    /// Receives a range of a file.
    ///
    /// # Errors
    /// The server refuses, fewer bytes arrive, the sink fails, the caller cancels, or the session
    /// breaks.
    pub fn fetch(&self, fetch: &Fetch<'_>) -> Result<(), Error> {
        let (mut session, _) = self.take()?;
        let result = session.fetch_range(self, fetch);
        if session.settle_transfer(result.is_err()) {
            self.keep(session);
        }
        Ok(result?)
    }

    /// Whether ranges of a file can be sent to the server in any order.
    ///
    /// # Errors
    /// No session can be opened.
    pub fn takes_any_order(&self) -> Result<bool, Error> {
        Ok(self.with(|session| Ok(session.preferred_mode() == Mode::ExtendedBlock))?)
    }

    /// Sends ranges of a file into the file of this name, which is not truncated.
    ///
    /// # Errors
    /// The server refuses, the source fails, the caller cancels, or the session breaks.
    pub fn send(&self, outgoing: Outgoing<'_>) -> Result<(), Error> {
        let (mut session, _) = self.take()?;
        let result = session.send_into_file(self, outgoing);
        if session.settle_transfer(result.is_err()) {
            self.keep(session);
        }
        Ok(result?)
    }
}

impl Session {
    fn fetch_range(&mut self, far: &Far, fetch: &Fetch<'_>) -> Result<(), RemoteError> {
        let Fetch { path, range, size, .. } = fetch;
        let callable = self.can.passive_sender || !self.cannot_call_back();
        let mode = if callable { self.preferred_mode() } else { Mode::Stream };
        let length = range.end - range.start;
        // Other servers keep the number of streams until the end of the transfer.
        let elastic = mode == Mode::ExtendedBlock && self.can.streams && !fetch.in_order;
        let begin = || far.hop(self.control.rtt(), Direction::Here, Some(length), fetch.most_streams);
        let hop = elastic.then(begin).flatten().filter(|hop| hop.streams() > 1);
        self.path_tuner = hop.as_ref().map(|hop| hop.path_tuner().clone());
        let streams =
            hop.as_ref().map_or_else(|| self.streams_for(length, fetch.in_order), |hop| hop.streams());
        let whole = *range == (0..*size);
        let (origin, command) = if whole || !self.can.partial {
            (0, Command::Retr((*path).into()))
        } else {
            let window = Window { offset: range.start, length: range.end - range.start };
            (range.start, Command::Eret { what: Retrieval::Partial(window), path: (*path).into() })
        };
        let restart = (origin == 0 && range.start > 0).then(|| match mode {
            Mode::ExtendedBlock => Restart::Ranges(RangeSet::from_range(0..range.start)),
            Mode::Stream => Restart::Offset(range.start),
        });
        let fits = self.channel().is_some_and(|channel| {
            !channel.sending
                && channel.mode == mode
                && mode == Mode::ExtendedBlock
                && channel.wanted.is_some() == hop.is_some()
                && (hop.is_some() || channel.streams == streams)
        });
        if !fits {
            self.wants_path = hop.is_some();
            self.receiving(mode, if mode == Mode::Stream { 1 } else { streams }, None)?;
            if let Some(channel) = self.channel().filter(|_| hop.is_some()) {
                channel.wanted = Some(Wanted::new(channel.streams));
            }
        }
        if let Some(restart) = restart {
            self.call(&Command::Rest(restart))?;
        }
        self.control.send(&command)?;
        let Some(mut channel) = self.take_channel() else { return Err(RemoteError::Desynchronized) };
        let progress = Arc::new(Progress::new());
        if let (Some(hop), Some(wanted)) = (&hop, &channel.wanted) {
            hop.receives(channel.streams, wanted.clone(), !fits);
            hop.moves(&progress);
        }
        // A server without partial retrieval sends the rest of the file.
        let accept = if origin == 0 { range.start..*size } else { range.clone() };
        let job = ReceiveJob {
            sink: fetch.sink.clone(),
            origin,
            accept: RangeSet::from_range(accept.clone()),
            checksum: None,
            sparse: false,
            written: &|_, _| Ok(()),
        };
        let look = |progress: &Progress| {
            if let Some(hop) = &hop {
                hop.look(progress, Some((fetch.waited_for)()));
            }
        };
        let mut tell = |answer: &Answer| {
            if let (Some(hop), Answer::Marker(Marker::Path(marker))) = (&hop, answer) {
                hop.participant().hears(*marker);
            }
        };
        let steered = hop.as_ref().and(channel.wanted.clone()).zip(Some(channel.data.parallelism()));
        let moves =
            Moves { path: (*path).into(), cancel: fetch.cancel, look: &look, steered: steered.as_ref() };
        let moved = self.moves(moves, &mut tell, |watch| channel.data.receive(&job, watch, &progress));
        if let Some(hop) = &hop {
            hop.finish();
            // SITE STREAMS has changed the number meanwhile: the next channel sets its own.
            self.forget_parallelism();
        }
        let (result, ended) = moved?;
        let received = self.judge((*path).into(), command.verb(), result, ended)?;
        if channel.mode == Mode::ExtendedBlock {
            self.keep_channel(channel);
        }
        if received.ranges.contains(accept.clone()) {
            return Ok(());
        }
        let (bytes, expected) = (received.bytes, accept.end - accept.start);
        Err(RemoteError::Incomplete { path: (*path).into(), bytes, expected })
    }

    fn send_into_file(&mut self, far: &Far, outgoing: Outgoing<'_>) -> Result<(), RemoteError> {
        let path = outgoing.path.clone();
        let commands = match &outgoing.source {
            OutgoingSource::InOrder(0, _) if !self.can.partial => vec![Command::Stor(path)],
            OutgoingSource::InOrder(at, _) if !self.can.partial => {
                vec![Command::Rest(Restart::Offset(*at)), Command::Stor(path)]
            }
            OutgoingSource::InOrder(at, _) => {
                vec![Command::Esto { place: Placement::Adjusted(*at), path }]
            }
            OutgoingSource::Ranges(..) => vec![Command::Esto { place: Placement::Adjusted(0), path }],
        };
        self.send_data(far, &commands, outgoing, None)
    }

    /// Executes the commands, the last of which receives the data: `length` bytes, if that is
    /// known.
    pub(super) fn send_data(
        &mut self,
        far: &Far,
        commands: &[Command],
        outgoing: Outgoing<'_>,
        length: Option<u64>,
    ) -> Result<(), RemoteError> {
        let Outgoing { path, source, most_streams, cancel, stored } = outgoing;
        let Some((last, before)) = commands.split_last() else { return Ok(()) };
        let mode = match source {
            OutgoingSource::Ranges(..) => Mode::ExtendedBlock,
            OutgoingSource::InOrder(..) => Mode::Stream,
        };
        let fits = self
            .channel()
            .is_some_and(|channel| channel.sending && channel.mode == mode && mode == Mode::ExtendedBlock);
        if !fits {
            self.path_tuner = None;
            self.sending(mode, 1, None)?;
        }
        for command in before {
            self.call(command)?;
        }
        self.control.send(last)?;
        let Some(mut channel) = self.take_channel() else { return Err(RemoteError::Desynchronized) };
        let progress = Arc::new(Progress::new());
        let fixed = self.streams_for(u64::MAX, false);
        let (parallelism, congestion) = (channel.data.parallelism(), channel.data.congestion());
        let (rtt, wide, tuned) = (self.control.rtt(), Cell::new(mode == Mode::Stream), OnceCell::new());
        // A small file has one stream.
        let widen = || {
            if wide.replace(true) {
                return;
            }
            let Some(hop) = far.hop(rtt, Direction::There, length, most_streams) else {
                return parallelism.set(fixed);
            };
            hop.sends(1, parallelism.clone(), congestion.clone());
            hop.moves(&progress);
            let _ = tuned.set(hop);
        };
        if length.is_some_and(|length| length > SMALL) {
            widen();
        }
        let look = |progress: &Progress| {
            if progress.bytes() > SMALL {
                widen();
            }
            if let Some(hop) = tuned.get() {
                hop.look(progress, None);
            }
        };
        let mut tell = |answer: &Answer| {
            if let Answer::Marker(Marker::Range(ranges)) = answer {
                stored(ranges);
            }
        };
        let moves = Moves { path: path.clone(), cancel, look: &look, steered: None };
        let moved = self.moves(moves, &mut tell, |watch| match source {
            OutgoingSource::Ranges(source, feed) => {
                let job = SendJob {
                    source,
                    ranges: RangeSet::new(),
                    origin: 0,
                    checksum: None,
                    expected_size: None,
                    resend: false,
                    feed: Some(feed),
                };
                channel.data.send(&job, watch, &progress)
            }
            OutgoingSource::InOrder(_, reader) => channel.data.send_reader(reader, watch, &progress),
        });
        if let Some(hop) = tuned.get() {
            hop.finish();
        }
        let (result, ended) = moved?;
        self.judge(path, last.verb(), result, ended)?;
        if channel.mode == Mode::ExtendedBlock {
            self.keep_channel(channel);
        }
        Ok(())
    }

    fn streams_for(&self, bytes: u64, in_order: bool) -> u32 {
        let streams = PathDefaults::new(self.control.rtt()).streams(&self.setup.options, Some(bytes), true);
        if in_order { 1 } else { streams }
    }

    /// Moves data while replies are read. Returns the result, and the final reply if it has
    /// arrived.
    fn moves<T>(
        &mut self,
        Moves { path, cancel, look, steered }: Moves<'_>,
        tell: &mut dyn FnMut(&Answer),
        run: impl FnOnce(&mut Watch<'_, '_>) -> ropewalk_engine::Result<T>,
    ) -> Result<(ropewalk_engine::Result<T>, Option<Reply>), RemoteError> {
        let mut ended = None;
        let mut judge = |answer: Answer| {
            tell(&answer);
            let Answer::Final(reply) = answer else { return ControlFlow::Continue(()) };
            let failed = reply.is_failure();
            ended = Some(reply);
            if failed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let stall = self.setup.options.timeouts.stall;
        let watch = Watch::new(&mut self.control, &mut judge, None, stall, cancel, path);
        let mut watch = watch.observed(look);
        if let Some((wanted, parallelism)) = steered {
            watch = watch.streams(wanted, parallelism.clone());
        }
        let result = run(&mut watch);
        if let Some(failure) = watch.failure.take() {
            return Err(failure);
        }
        if result.is_ok() && ended.is_none() {
            loop {
                match self.control.answer()? {
                    Answer::Final(reply) => {
                        ended = Some(reply);
                        break;
                    }
                    answer => tell(&answer),
                }
            }
        }
        Ok((result, ended))
    }

    fn judge<T>(
        &mut self,
        path: BString,
        command: &str,
        result: ropewalk_engine::Result<T>,
        ended: Option<Reply>,
    ) -> Result<T, RemoteError> {
        let refusal = ended.filter(Reply::is_failure).map(|reply| self.refused(command, reply));
        match (result, refusal) {
            (Ok(_), Some(refusal)) => Err(refusal),
            (Ok(value), None) => Ok(value),
            (Err(error), refusal) => {
                Err(RemoteError::data(self.control.peer(), path, error).or_refusal(refusal))
            }
        }
    }

    /// Whether the session can be used again. After a failure, it can if the reply to the command
    /// arrives soon.
    pub(super) fn settle_transfer(&mut self, failed: bool) -> bool {
        if failed {
            self.drop_channel();
            let _ = self.control.flush();
            self.control.last_words(&mut |answer| matches!(answer, Some(Answer::Final(_))));
        }
        self.control.hear_out().is_ok() && self.control.is_at_rest()
    }
}
