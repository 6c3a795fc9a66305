//! Files from here to a server: pipelined STORs over one cached data channel, ranges of big files by ESTO.
//!
//! In a pipeline the data of a file is sent before the server has said that it opened it. Should it refuse, it takes
//! what comes next for the following file. So nothing gets its final name before the server has confirmed it and
//! everything before it; a refusal ends the pipeline, and the files after it are sent again, for a while one by one.

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bstr::{BString, ByteSlice};
use ropewalk_engine::{Progress, SendJob};
use ropewalk_protocol::command::{Command, Placement, Restart};
use ropewalk_protocol::marker::Marker;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::reply::Reply;
use ropewalk_protocol::server::Mode;
use ropewalk_storage::checksum::{Algorithm, Pieces};

use crate::auto::{Path, RANGE, SMALL};
use crate::context::Context;
use crate::error::is_unknown_command;
use crate::inline::inline_sum;
use crate::place::{Endpoint, Place};
use crate::report::Meter;
use crate::session::Session;
use crate::source::Source;
use crate::task::Task;
use crate::upload::{Manner, Upload, UploadSource, is_device, part_path};
use crate::verify::{Check, choose, same, wire};
use crate::watch::Watch;
use crate::worker::{Job, Route, Worker};
use crate::{ChecksumPolicy, RemoteError};

/// Bytes of transfers that may wait in the pipeline.
const AHEAD: u64 = 32 << 20;
/// After a broken data connection the server may still say why.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// So many files go one by one after one was refused.
const CAREFUL: u32 = 16;

/// What a command that was sent is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// Its failure does not matter (ALLO, DELE of what may not be there).
    Hint,
    Expect,
    Restart,
    Transfer,
    Sum,
    RenameFrom,
    RenameTo,
    /// Times and modes: a failure is told, the file is there.
    Attribute,
}

impl Ask {
    fn verb(self) -> &'static str {
        match self {
            Self::Hint => "ALLO",
            Self::Expect => "SCKS",
            Self::Restart => "REST",
            Self::Transfer => "STOR",
            Self::Sum => "CKSM",
            Self::RenameFrom => "RNFR",
            Self::RenameTo => "RNTO",
            Self::Attribute => "SITE",
        }
    }
}

struct Slot {
    upload: Arc<Upload>,
    range: Range<u64>,
    data: RangeSet,
    begun: bool,
    /// All was sent; sums where they were computed.
    sent: Option<Option<Pieces>>,
    /// The final reply to the transfer, with the server's sum.
    ended: Option<Option<String>>,
    /// The server does not know SCKS.
    not_expected: bool,
    counted: bool,
    sum: Option<String>,
    asked_sum: bool,
    committing: bool,
    /// Answers that are due.
    due: u32,
    error: Option<RemoteError>,
}

struct Flow<'w, 'e> {
    worker: &'w Worker<'w, 'e>,
    session: Session<'e>,
    asks: VecDeque<(u64, Ask)>,
    slots: VecDeque<Slot>,
    first: u64,
    depth: usize,
}

/// Handles `job` and those of the same kind that come after it, until there are none or the session breaks.
pub(crate) fn run<'e>(worker: &Worker<'_, 'e>, endpoint: &Arc<Endpoint>, job: Job) {
    let session = match worker.session(endpoint) {
        Ok(session) => session,
        Err(e) => return worker.fail(job, e),
    };
    let depth = Path::new(session.control.rtt()).pipeline(worker.ctx.options());
    let route = Route::Put(endpoint.clone());
    let mut flow = Flow { worker, session, asks: VecDeque::new(), slots: VecDeque::new(), first: 0, depth };
    let mut next = Some(job);
    loop {
        while next.is_some() || flow.has_room() {
            let Some(job) = next.take().or_else(|| worker.more(&route)) else { break };
            match flow.submit(job) {
                Ok(None) => {}
                Ok(Some(job)) => {
                    next = Some(job);
                    break;
                }
                Err(e) => return flow.abandon(e),
            }
        }
        if flow.slots.is_empty() && next.is_none() {
            break;
        }
        if let Err(e) = flow.step() {
            if let Some(job) = next {
                worker.put_back(job);
            }
            return flow.abandon(e);
        }
    }
    worker.keep(flow.session);
}

impl<'e> Flow<'_, 'e> {
    fn has_room(&mut self) -> bool {
        let waiting: u64 = self.slots.iter().filter(|s| s.sent.is_none()).map(|s| s.data.len()).sum();
        let pipelined = self.session.channel().is_none_or(|c| c.mode == Mode::ExtendedBlock);
        let depth = if pipelined && self.worker.careful.get() == 0 { self.depth } else { 1 };
        self.slots.len() < depth && waiting < AHEAD
    }

    fn submit(&mut self, job: Job) -> Result<Option<Job>, RemoteError> {
        let (upload, range) = match job {
            Job::Put(upload, range) => (upload, range),
            Job::File(task) if task.link.is_some() => return self.link(task),
            Job::File(task) => match self.begin(task)? {
                Begun::Yes(upload, range) => (upload, range),
                Begun::Settled => return Ok(None),
                Begun::Later(task) => return Ok(Some(Job::File(task))),
            },
            other => return Ok(Some(other)),
        };
        if upload.has_failed() {
            self.worker.done();
            return Ok(None);
        }
        let mode = match upload.source {
            UploadSource::Ranged(_) => self.session.preferred_mode(),
            // In order, and of unknown length.
            UploadSource::Stream(_) => Mode::Stream,
        };
        let sparse = self.worker.ctx.options().sparse && mode == Mode::ExtendedBlock && !upload.device();
        let data = match upload.data(range.clone(), sparse) {
            Ok(data) => data,
            Err(e) => {
                self.worker.fail(Job::Put(upload, range), e);
                return Ok(None);
            }
        };
        let streams = self.streams(mode, &data);
        let fits = self.session.channel().is_some_and(|c| {
            c.sending && c.mode == mode && mode == Mode::ExtendedBlock && c.streams >= streams
        });
        if !fits {
            if !self.slots.is_empty() {
                return Ok(Some(Job::Put(upload, range)));
            }
            let inline = match upload.check {
                Check::Inline(algorithm) => Some(algorithm),
                _ => None,
            };
            if let Err(e) = self.session.sending(mode, streams, inline) {
                let broken = e.breaks_session();
                self.worker.fail(Job::Put(upload, range), e);
                return if broken { Err(RemoteError::Cancelled) } else { Ok(None) };
            }
        }
        self.send(upload, range, data, mode)?;
        Ok(None)
    }

    fn streams(&self, mode: Mode, data: &RangeSet) -> u32 {
        if mode == Mode::Stream {
            return 1;
        }
        let path = Path::new(self.session.control.rtt());
        let size = Some(data.len());
        self.worker.ctx.share(path.streams(self.worker.ctx.options(), size), size)
    }

    fn begin(&mut self, mut task: Task) -> Result<Begun, RemoteError> {
        let ctx = self.worker.ctx;
        let options = ctx.options();
        let settled = |error: RemoteError, task: Task| {
            let broken = error.breaks_session();
            self.worker.fail(Job::File(task), error);
            if broken { Err(RemoteError::Cancelled) } else { Ok(Begun::Settled) }
        };
        let source = match Source::open(&mut task, &*ctx.store) {
            Ok(source) => source,
            Err(e) => return settled(e, task),
        };
        let resumable = options.resume
            && !options.ascii
            && task.window.is_none()
            && !is_device(&task.destination.path())
            && task.size.is_some_and(|size| size > SMALL);
        let known = if resumable { ctx.states.load(&task) } else { None };
        let ask = known.is_some() || task.compare || (resumable && self.cuts(&task));
        if ask && !self.slots.is_empty() {
            return Ok(Begun::Later(task));
        }
        if task.compare {
            match self.same_already(&task) {
                Ok(true) => {
                    ctx.report.skipped(task.source.display(), "same checksum");
                    self.worker.done();
                    return Ok(Begun::Settled);
                }
                Ok(false) => {}
                Err(e) => return settled(e, task),
            }
        }
        let part = part_path(&task.destination.path());
        let present = match known {
            Some(known) => match self.found(&task, &part, known) {
                Ok(present) => present,
                Err(e) => return settled(e, task),
            },
            None => RangeSet::new(),
        };
        let can = &self.session.can;
        let manner = match self.check() {
            Ok(check) => {
                let expect = can.expect_checksum && self.session.preferred_mode() == Mode::ExtendedBlock;
                Manner { check, atomic: can.is_ours(), expect, present: present.clone() }
            }
            Err(e) => return settled(e, task),
        };
        task.began.get_or_insert_with(Instant::now);
        let upload = match Upload::begin(task.clone(), source, manner) {
            Ok(upload) => upload,
            Err(e) => return settled(e, task),
        };
        if resumable {
            ctx.states.save(&upload.task, &present);
        }
        ctx.report.started(
            upload.task.id,
            upload.task.source.display(),
            upload.task.destination.display(),
            upload.task.length(),
            present.len(),
        );
        let whole = upload.wanted.clone();
        let mut ranges = self.cut(&upload, &present).into_iter();
        let Some(first) = ranges.next() else { return Ok(Begun::Yes(upload, whole)) };
        let rest: Vec<Job> = ranges.map(|range| Job::Put(upload.clone(), range)).collect();
        if !rest.is_empty() && present.is_empty() {
            // ESTO does not truncate: nothing of an earlier file must stay behind the end of this one.
            self.session.control.call(&Command::Dele(part))?;
        }
        upload.expect(rest.len() as u32);
        ctx.queue.push_urgent(rest);
        Ok(Begun::Yes(upload, first))
    }

    /// Whether a file of this size would be cut up between sessions.
    fn cuts(&self, task: &Task) -> bool {
        let sessions = self.worker.ctx.sessions.load(Ordering::Relaxed);
        let size = task.size.unwrap_or_default();
        self.session.can.partial
            && self.session.preferred_mode() == Mode::ExtendedBlock
            && Path::range_size(size, sessions) < size
    }

    fn cut(&self, upload: &Upload, present: &RangeSet) -> Vec<Range<u64>> {
        let whole = upload.wanted.clone();
        let missing = present.complement(whole.clone());
        if upload.direct
            || !matches!(upload.source, UploadSource::Ranged(_))
            || !self.cuts(&upload.task)
            || missing.len() < 2 * RANGE
        {
            return vec![whole];
        }
        let step = Path::range_size(whole.end, self.worker.ctx.sessions.load(Ordering::Relaxed));
        (whole.start..whole.end)
            .step_by(step as usize)
            .map(|start| start..(start + step).min(whole.end))
            .filter(|range| !missing.intersection(range.clone()).is_empty())
            .collect()
    }

    /// What of an interrupted upload is really there.
    fn found(&mut self, task: &Task, part: &BString, known: RangeSet) -> Result<RangeSet, RemoteError> {
        if self.session.can.ranges {
            return self.session.ranges(part);
        }
        // Where the part file is gone or too short for what the journal says, it begins anew.
        let size = match self.session.size(part) {
            Ok(size) => size,
            Err(e) if e.breaks_session() => return Err(e),
            Err(_) => return Ok(RangeSet::new()),
        };
        if self.session.preferred_mode() == Mode::Stream {
            return Ok(RangeSet::from_range(0..size.min(task.size.unwrap_or_default())));
        }
        Ok(if known.end() <= size { known } else { RangeSet::new() })
    }

    fn check(&self) -> Result<Check, RemoteError> {
        let (ctx, can) = (self.worker.ctx, &self.session.can);
        let options = ctx.options();
        if options.ascii {
            return Ok(Check::Size);
        }
        let peer = self.session.control.peer();
        let check = choose(options.checksum, &|a| can.knows(a), can.inline_checksum, peer)?;
        if check == Check::Size && options.checksum != ChecksumPolicy::None {
            ctx.report.warn_once(format!(
                "{} computes no checksums: only sizes are compared",
                self.session.endpoint.name
            ));
        }
        Ok(check)
    }

    fn same_already(&mut self, task: &Task) -> Result<bool, RemoteError> {
        let Place::Local(path) = &task.source else { return Ok(false) };
        let Some(algorithm) = self.worker.ctx.comparison(&[&self.session.can]) else { return Ok(false) };
        let ours = self.worker.ctx.local_sum(path, algorithm)?;
        let theirs = self.session.checksum(&task.destination.path(), algorithm, None)?;
        Ok(same(&ours, &theirs))
    }

    /// A symbolic link is made by a command.
    fn link(&mut self, task: Task) -> Result<Option<Job>, RemoteError> {
        if !self.slots.is_empty() {
            return Ok(Some(Job::File(task)));
        }
        let target = task.link.clone().unwrap_or_default();
        match self.session.replace_link(&target, &task.destination.path()) {
            Ok(()) => {
                self.worker.ctx.report.linked(&task);
                self.worker.done();
                Ok(None)
            }
            Err(e) => {
                let broken = e.breaks_session();
                self.worker.fail(Job::File(task), e);
                if broken { Err(RemoteError::Cancelled) } else { Ok(None) }
            }
        }
    }

    /// Sends the commands of a transfer.
    fn send(
        &mut self,
        upload: Arc<Upload>,
        range: Range<u64>,
        mut data: RangeSet,
        mode: Mode,
    ) -> Result<(), RemoteError> {
        let id = self.first + self.slots.len() as u64;
        let size = upload.task.length();
        let whole = upload.task.window.is_none() && range == upload.wanted;
        let present = upload.present();
        let path = upload.path.clone();
        let mut asks = Vec::new();
        if let Some((algorithm, value)) = &upload.expected {
            let command = Command::Scks { algorithm: wire(*algorithm), value: value.as_str().into() };
            asks.push((Ask::Expect, command));
        }
        if whole && let Some(size) = size.filter(|size| *size > SMALL) {
            asks.push((Ask::Hint, Command::Allo(size)));
        }
        match mode {
            _ if whole && present.is_empty() => asks.push((Ask::Transfer, Command::Stor(path))),
            Mode::ExtendedBlock => {
                // Offsets on the wire stay those of the file; ESTO does not truncate.
                asks.push((Ask::Transfer, Command::Esto { place: Placement::Adjusted(0), path }));
            }
            Mode::Stream => {
                let at = if whole { present.prefix() } else { range.start };
                data = RangeSet::from_range(at..range.end);
                if at > 0 {
                    asks.push((Ask::Restart, Command::Rest(Restart::Offset(at))));
                }
                asks.push((Ask::Transfer, Command::Stor(path)));
            }
        }
        let due = asks.len() as u32;
        for (ask, command) in asks {
            if let Err(e) = self.session.control.send(&command) {
                let broken = e.breaks_session();
                self.worker.fail(Job::Put(upload, range), e);
                return if broken { Err(RemoteError::Cancelled) } else { Ok(()) };
            }
            self.asks.push_back((id, ask));
        }
        self.slots.push_back(Slot {
            upload,
            range,
            data,
            begun: false,
            sent: None,
            ended: None,
            not_expected: false,
            counted: false,
            sum: None,
            asked_sum: false,
            committing: false,
            due,
            error: None,
        });
        Ok(())
    }

    fn step(&mut self) -> Result<(), RemoteError> {
        match self.slots.iter().position(|s| s.sent.is_none() && s.error.is_none()) {
            Some(at) => {
                let fresh = self.session.channel().is_none_or(|c| c.data.cached() == 0);
                if !fresh && self.worker.careful.get() > 0 && !self.slots[at].begun {
                    let reply = self.session.control.reply()?;
                    self.hear(reply);
                } else {
                    self.transfer(at)?;
                }
            }
            None if !self.asks.is_empty() => {
                let reply = self.session.control.reply()?;
                self.hear(reply);
            }
            None => {}
        }
        self.settle()
    }

    /// Sends the data of one slot.
    fn transfer(&mut self, at: usize) -> Result<(), RemoteError> {
        let ctx = self.worker.ctx;
        let id = self.first + at as u64;
        let Some(mut channel) = self.session.take_channel() else { return Err(RemoteError::Cancelled) };
        let (upload, ranges) = (self.slots[at].upload.clone(), self.slots[at].data.clone());
        let path = upload.task.source.path();
        let progress = Progress::new();
        let mut meter = Meter::new(&ctx.report);
        let (asks, slots, first) = (&mut self.asks, &mut self.slots, self.first);
        let mut judge = |reply: Reply| {
            hear(asks, slots, first, ctx, reply);
            let slot = &slots[(id - first) as usize];
            if slot.error.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let mut watch = Watch::new(
            &mut self.session.control,
            &mut judge,
            Some(&mut meter),
            ctx.options().stall,
            ctx.cancel,
            path.clone(),
        );
        let result = match &upload.source {
            UploadSource::Ranged(handle) => {
                let job = SendJob {
                    source: handle.clone(),
                    ranges,
                    origin: 0,
                    // A small file was summed when it was read.
                    checksum: upload.check.in_passing().filter(|_| upload.expected.is_none()),
                    expected_size: upload.task.size,
                };
                channel.data.send(&job, &mut watch, &progress)
            }
            UploadSource::Stream(stream) => match stream.open() {
                Ok(mut reader) => channel.data.send_reader(&mut *reader, &mut watch, &progress),
                Err(e) => Err(ropewalk_engine::Error::Reader(e)),
            },
        };
        let failure = watch.failure.take();
        if let Ok(sent) = &result {
            meter.update(sent.bytes, sent.streams);
        }
        meter.finish(&progress);
        drop(meter);
        match result {
            Ok(sent) => {
                if let UploadSource::Stream(_) = upload.source {
                    upload.streamed(sent.bytes);
                    self.slots[at].data = RangeSet::from_range(0..sent.bytes);
                }
                self.slots[at].sent = Some(sent.pieces);
                if channel.mode == Mode::ExtendedBlock {
                    self.session.keep_channel(channel);
                }
                Ok(())
            }
            Err(source) => {
                drop(channel);
                let mut error =
                    failure.unwrap_or_else(|| RemoteError::data(self.session.control.peer(), path, source));
                if matches!(error, RemoteError::Data { .. }) {
                    self.last_words(at);
                    error = self.slots[at].error.take().unwrap_or(error);
                }
                let refused = matches!(error, RemoteError::Refused { .. });
                if refused {
                    self.worker.careful.set(CAREFUL);
                }
                self.slots[at].error = Some(error);
                // The last command was answered: the session is as good as new, its channel is not.
                let clean = refused && self.slots.len() == 1 && self.asks.is_empty();
                if clean { Ok(()) } else { Err(RemoteError::Cancelled) }
            }
        }
    }

    fn last_words(&mut self, at: usize) {
        let deadline = Instant::now() + LAST_WORDS;
        while self.slots[at].ended.is_none() && self.slots[at].error.is_none() {
            match self.session.control.reply_until(deadline) {
                Ok(Some(reply)) => self.hear(reply),
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn hear(&mut self, reply: Reply) {
        hear(&mut self.asks, &mut self.slots, self.first, self.worker.ctx, reply);
    }

    /// Goes on with what was confirmed, in order.
    fn settle(&mut self) -> Result<(), RemoteError> {
        for at in 0..self.slots.len() {
            if self.slots[at].error.is_some() {
                return self.refusal(at);
            }
            self.advance(at)?;
        }
        while self.slots.front().is_some_and(|s| s.counted && s.due == 0 && s.error.is_none() && s.is_over()) {
            let Some(slot) = self.slots.pop_front() else { break };
            self.first += 1;
            let careful = &self.worker.careful;
            careful.set(careful.get().saturating_sub(1));
            if slot.committing {
                self.finish(&slot.upload);
            }
            self.worker.done();
        }
        Ok(())
    }

    /// A file was refused. Alone in the pipeline it fails alone; otherwise nobody knows whose data went where.
    fn refusal(&mut self, at: usize) -> Result<(), RemoteError> {
        self.worker.careful.set(CAREFUL);
        if self.slots.len() > 1 {
            return Err(RemoteError::Cancelled);
        }
        if self.slots[at].due > 0 {
            return Ok(());
        }
        let Some(slot) = self.slots.pop_front() else { return Ok(()) };
        self.first += 1;
        // Data may have gone into the void.
        self.session.drop_channel();
        let Some(error) = slot.error else { return Ok(()) };
        let upload = slot.upload;
        let over = !error.is_transient() && slot.range == upload.wanted;
        let part = upload.path.clone();
        let leftover = over && !upload.direct && slot.ended.is_some();
        self.worker.fail(Job::Put(upload, slot.range), error);
        if leftover {
            // It arrived and has no use.
            self.session.control.call(&Command::Dele(part))?;
        }
        Ok(())
    }

    /// The next commands of a slot whose transfer is confirmed.
    fn advance(&mut self, at: usize) -> Result<(), RemoteError> {
        let id = self.first + at as u64;
        let slot = &mut self.slots[at];
        let (Some(pieces), Some(theirs)) = (&slot.sent, &slot.ended) else { return Ok(()) };
        let upload = slot.upload.clone();
        if !slot.counted {
            slot.counted = true;
            let last = upload.check_source().and_then(|()| {
                upload.arrived(&slot.data, pieces.as_ref(), theirs.as_deref())
            });
            match last {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(e) => {
                    slot.error = Some(e);
                    return Ok(());
                }
            }
            slot.committing = true;
            if upload.needs_sum() || slot.not_expected {
                let Some(algorithm) = upload.check.algorithm() else { return Ok(()) };
                slot.asked_sum = true;
                let command = sum_command(&upload, algorithm);
                return self.ask(id, Ask::Sum, &command);
            }
            let ascii = self.worker.ctx.options().ascii;
            if upload.check == Check::Size && self.session.can.size && !upload.device() && !ascii {
                slot.asked_sum = true;
                let command = Command::Size(upload.path.clone());
                return self.ask(id, Ask::Sum, &command);
            }
            return self.commit(at);
        }
        if slot.asked_sum
            && let Some(theirs) = slot.sum.take()
        {
            let compared = match upload.check {
                Check::Size => compare_sizes(&upload, &theirs),
                _ => upload.compare(&theirs),
            };
            match compared {
                Ok(()) => return self.commit(at),
                Err(e) => slot.error = Some(e),
            }
        }
        Ok(())
    }

    /// Gives the file its name and attributes.
    fn commit(&mut self, at: usize) -> Result<(), RemoteError> {
        let id = self.first + at as u64;
        let upload = self.slots[at].upload.clone();
        let options = self.worker.ctx.options();
        let (time, mode) = (
            upload.task.modified.filter(|_| options.preserve.times),
            upload.task.mode.filter(|_| options.preserve.modes),
        );
        for command in self.session.attributes(&upload.path, time, mode) {
            self.ask(id, Ask::Attribute, &command)?;
        }
        if !upload.direct {
            self.ask(id, Ask::RenameFrom, &Command::Rnfr(upload.path.clone()))?;
            self.ask(id, Ask::RenameTo, &Command::Rnto(upload.task.destination.path()))?;
        }
        Ok(())
    }

    fn ask(&mut self, id: u64, ask: Ask, command: &Command) -> Result<(), RemoteError> {
        self.session.control.send(command)?;
        self.asks.push_back((id, ask));
        if let Some(slot) = id.checked_sub(self.first).and_then(|at| self.slots.get_mut(at as usize)) {
            slot.due += 1;
        }
        Ok(())
    }

    fn finish(&self, upload: &Upload) {
        let ctx = self.worker.ctx;
        ctx.states.remove(&upload.task);
        ctx.report.done(upload.task.id, upload.bytes(), upload.began().elapsed(), upload.proof());
    }

    /// The session is of no more use. The first slot that failed gets the blame, the others go back.
    fn abandon(mut self, error: RemoteError) {
        let mut blame = Some(error).filter(|e| !matches!(e, RemoteError::Cancelled));
        self.worker.ctx.report.waited(self.session.control.waited);
        while let Some(slot) = self.slots.pop_front() {
            let whole = slot.counted && slot.range == slot.upload.wanted;
            let job = match slot.error {
                // It was counted as arrived; what is left to do for it is begun anew.
                None if slot.counted && slot.committing => {
                    slot.upload.give_up();
                    self.worker.ctx.report.put_back();
                    Job::File(slot.upload.task.clone())
                }
                None if slot.counted && !whole => {
                    self.worker.done();
                    continue;
                }
                _ => Job::Put(slot.upload, slot.range),
            };
            match slot.error.or_else(|| blame.take_if(|_| slot.sent.is_none())) {
                Some(error) => self.worker.fail(job, error),
                None => self.worker.put_back(job),
            }
        }
    }
}

enum Begun {
    Yes(Arc<Upload>, Range<u64>),
    /// It failed, or there was nothing to do.
    Settled,
    /// The pipeline has to run dry first.
    Later(Task),
}

impl Slot {
    /// Nothing is left to be done for it.
    fn is_over(&self) -> bool {
        !self.asked_sum || self.sum.is_none()
    }
}

/// Takes one reply to the oldest command.
fn hear(asks: &mut VecDeque<(u64, Ask)>, slots: &mut VecDeque<Slot>, first: u64, ctx: &Context<'_>, reply: Reply) {
    let Some(&(id, ask)) = asks.front() else { return };
    let slot = id.checked_sub(first).and_then(|at| slots.get_mut(at as usize));
    if reply.is_preliminary() {
        let (Some(slot), Ask::Transfer) = (slot, ask) else { return };
        slot.begun = true;
        if let Some(Ok(Marker::Range(ranges))) = Marker::from_reply(&reply) {
            let present = slot.upload.add_present(&ranges);
            if slot.upload.task.size.is_some_and(|size| size > SMALL) && !slot.upload.direct {
                ctx.states.save(&slot.upload.task, &present);
            }
        }
        return;
    }
    asks.pop_front();
    let Some(slot) = slot else { return };
    slot.due = slot.due.saturating_sub(1);
    if reply.is_failure() {
        match ask {
            Ask::Hint => return,
            Ask::Expect if is_unknown_command(&reply) => {
                slot.not_expected = true;
                return;
            }
            Ask::Attribute => {
                ctx.report.warn_once(format!(
                    "{}: times or modes could not be set: {}",
                    slot.upload.task.destination.display(),
                    crate::error::text(&reply)
                ));
                return;
            }
            _ => {}
        }
        let peer = slot.upload.task.destination.display();
        slot.error.get_or_insert(RemoteError::Refused { peer, command: ask.verb().to_owned(), reply });
        return;
    }
    match ask {
        Ask::Transfer => slot.ended = Some(inline_sum(&reply)),
        Ask::Sum => slot.sum = Some(reply.text().to_str_lossy().into_owned()),
        _ => {}
    }
}

fn sum_command(upload: &Upload, algorithm: Algorithm) -> Command {
    let window = upload.task.window.is_some();
    Command::Cksm {
        algorithm: wire(algorithm),
        offset: if window { upload.wanted.start } else { 0 },
        length: window.then(|| upload.wanted.end - upload.wanted.start),
        path: upload.path.clone(),
    }
}

fn compare_sizes(upload: &Upload, said: &str) -> Result<(), RemoteError> {
    let Ok(there) = said.trim().parse::<u64>() else { return Ok(()) };
    let expected = upload.wanted.start + upload.bytes();
    let fits = if upload.task.window.is_some() { there >= expected } else { there == expected };
    if fits { Ok(()) } else { Err(RemoteError::SizeMismatch { path: upload.task.destination.path(), expected, there }) }
}
