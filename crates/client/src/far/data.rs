//! Transfers of file data for another program: from the server into a sink, and from a source to
//! the server.

use std::io::Read;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bstr::BString;
use ropewalk_engine::{Feed, Progress, ReceiveJob, SendJob};
use ropewalk_protocol::command::{Command, Placement, Restart, Retrieval};
use ropewalk_protocol::marker::Marker;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::reply::Reply;
use ropewalk_protocol::server::{Mode, Window};
use ropewalk_storage::{ReadHandle, WriteHandle};

use super::Far;
use crate::control::Answer;
use crate::path_defaults::PathDefaults;
use crate::session::Session;
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
    /// Uses one stream, so that the bytes arrive in order.
    pub in_order: bool,
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
    pub cancel: &'a Cancel,
    /// Called with the ranges that the server has stored, as far as it reports them.
    pub stored: &'a mut dyn FnMut(&RangeSet),
}

impl Far {
    /// Receives a range of a file.
    ///
    /// # Errors
    /// The server refuses, fewer bytes arrive, the sink fails, the caller cancels, or the session
    /// breaks.
    pub fn fetch(&self, fetch: &Fetch<'_>) -> Result<(), Error> {
        let (mut session, _) = self.take()?;
        let result = session.fetch_range(fetch);
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
        let result = session.send_into_file(outgoing);
        if session.settle_transfer(result.is_err()) {
            self.keep(session);
        }
        Ok(result?)
    }
}

impl Session {
    fn fetch_range(&mut self, fetch: &Fetch<'_>) -> Result<(), RemoteError> {
        let Fetch { path, range, size, .. } = fetch;
        let streams = self.streams_for(range.end - range.start, fetch.in_order);
        let callable = self.can.passive_sender || !self.cannot_call_back();
        let mode = if callable { self.preferred_mode() } else { Mode::Stream };
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
                && channel.streams == streams
        });
        if !fits {
            self.receiving(mode, if mode == Mode::Stream { 1 } else { streams }, None)?;
        }
        if let Some(restart) = restart {
            self.call(&Command::Rest(restart))?;
        }
        self.control.send(&command)?;
        let Some(mut channel) = self.take_channel() else { return Err(RemoteError::Desynchronized) };
        let progress = Progress::new();
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
        let (result, ended) = self.moves((*path).into(), fetch.cancel, &mut |_| {}, |watch| {
            channel.data.receive(&job, watch, &progress)
        })?;
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

    fn send_into_file(&mut self, outgoing: Outgoing<'_>) -> Result<(), RemoteError> {
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
        self.send_data(&commands, outgoing)
    }

    /// Executes the commands, the last of which receives the data.
    pub(super) fn send_data(
        &mut self,
        commands: &[Command],
        outgoing: Outgoing<'_>,
    ) -> Result<(), RemoteError> {
        let Outgoing { path, source, cancel, stored } = outgoing;
        let Some((last, before)) = commands.split_last() else { return Ok(()) };
        let mode = match source {
            OutgoingSource::Ranges(..) => Mode::ExtendedBlock,
            OutgoingSource::InOrder(..) => Mode::Stream,
        };
        let fits = self
            .channel()
            .is_some_and(|channel| channel.sending && channel.mode == mode && mode == Mode::ExtendedBlock);
        if !fits {
            self.sending(mode, 1, None)?;
        }
        for command in before {
            self.call(command)?;
        }
        self.control.send(last)?;
        let Some(mut channel) = self.take_channel() else { return Err(RemoteError::Desynchronized) };
        let progress = Progress::new();
        // Streams are added when a file turns out to be big.
        let streams = self.streams_for(u64::MAX, false);
        let growing = channel.data.parallelism();
        let mut tell = |answer: &Answer| {
            if let Answer::Marker(Marker::Range(ranges)) = answer {
                stored(ranges);
            }
        };
        let (result, ended) = self.moves(path.clone(), cancel, &mut tell, |watch| match source {
            OutgoingSource::Ranges(handle, feed) => {
                let source = Arc::new(Widening { handle, growing, streams, sent: 0.into() });
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
        })?;
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
        path: BString,
        cancel: &Cancel,
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
        let mut watch = Watch::new(&mut self.control, &mut judge, None, stall, cancel, path);
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
        match (result, ended) {
            (Ok(_) | Err(_), Some(reply)) if reply.is_failure() => Err(self.refused(command, reply)),
            (Ok(value), _) => Ok(value),
            (Err(error), _) => Err(RemoteError::data(self.control.peer(), path, error)),
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

/// Allows a transfer more streams once it has read so much that the file is not small.
struct Widening {
    handle: Arc<dyn ReadHandle>,
    growing: ropewalk_engine::Parallelism,
    streams: u32,
    sent: std::sync::atomic::AtomicU64,
}

impl ropewalk_storage::Lock for Widening {}

impl ReadHandle for Widening {
    fn metadata(&self) -> ropewalk_storage::Result<ropewalk_storage::Metadata> {
        self.handle.metadata()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> ropewalk_storage::Result<usize> {
        use std::sync::atomic::Ordering::Relaxed;
        let read = self.handle.read_at(buffer, offset)?;
        let before = self.sent.fetch_add(read as u64, Relaxed);
        if before <= crate::path_defaults::SMALL
            && before + read as u64 > crate::path_defaults::SMALL
            && self.streams > 1
        {
            self.growing.set(self.streams);
        }
        Ok(read)
    }

    fn data_ranges(&self, start: u64, end: u64) -> ropewalk_storage::Result<RangeSet> {
        self.handle.data_ranges(start, end)
    }
}
