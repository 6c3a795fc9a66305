//! Files from a server to here: pipelined RETRs over one cached data channel, ranges of big files by ERET.

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bstr::{BString, ByteSlice};
use ropewalk_engine::{Progress, ReceiveJob};
use ropewalk_protocol::command::{Command, Restart, Retrieval};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::reply::Reply;
use ropewalk_protocol::server::{Mode, Window};
use ropewalk_storage::checksum::Pieces;

use crate::RemoteError;
use crate::auto::Path;
use crate::download::Download;
use crate::inline::inline_sum;
use crate::local_copy::{replace_link, to_standard_output};
use crate::place::{Endpoint, Place};
use crate::report::Meter;
use crate::session::Session;
use crate::task::Task;
use crate::verify::{Check, choose, wire};
use crate::watch::Watch;
use crate::worker::{Job, Route, Worker};

/// Bytes of transfers that may wait in the pipeline: small files are many, a big one is alone.
const AHEAD: u64 = 32 << 20;
/// After a broken data connection the server may still say why.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What a command that was sent is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Restart,
    Transfer,
    Sum,
}

/// One transfer in the pipeline.
struct Slot {
    download: Arc<Download>,
    /// Of the file; the end may be open.
    range: Range<u64>,
    missing: RangeSet,
    /// File offset = wire offset + this.
    origin: u64,
    begun: bool,
    moved: Option<(RangeSet, Option<Pieces>)>,
    /// The final reply of the transfer: what the sender says of a checksum.
    ended: Option<Option<String>>,
    asked_sum: bool,
    sum: Option<String>,
    error: Option<RemoteError>,
}

/// A range of a file.
type Part = (Arc<Download>, Range<u64>);

struct Flow<'w, 'e> {
    worker: &'w Worker<'w, 'e>,
    session: Session<'e>,
    asks: VecDeque<(u64, Ask)>,
    slots: VecDeque<Slot>,
    /// Number of the first slot.
    first: u64,
    depth: usize,
}

/// Handles `job` and those of the same kind that come after it, until there are none or the session breaks.
pub(crate) fn run<'e>(worker: &Worker<'_, 'e>, endpoint: &Arc<Endpoint>, job: Job) {
    if let (Place::Standard, Job::File(task)) = (&job.task().destination, &job) {
        return to_standard_output(worker, task.clone());
    }
    let session = match worker.session(endpoint) {
        Ok(session) => session,
        Err(e) => return worker.fail(job, e),
    };
    let depth = Path::new(session.control.rtt()).pipeline(worker.ctx.options());
    let route = Route::Get(endpoint.clone());
    let mut flow = Flow { worker, session, asks: VecDeque::new(), slots: VecDeque::new(), first: 0, depth };
    let mut next = Some(job);
    loop {
        while next.is_some() || flow.has_room() {
            let Some(job) = next.take().or_else(|| worker.more(&route)) else { break };
            match flow.submit(job) {
                Ok(None) => {}
                // It needs another data channel: the pipeline has to run dry first.
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
        let waiting: u64 = self.slots.iter().filter(|s| s.moved.is_none()).map(|s| s.missing.len()).sum();
        let pipelined = self.session.channel().is_none_or(|c| c.mode == Mode::ExtendedBlock);
        self.slots.len() < if pipelined { self.depth } else { 1 } && waiting < AHEAD
    }

    /// Sends the commands for a job. Gives it back where it has to wait until the pipeline is empty. An error
    /// is one of the session; what is wrong with the job alone is settled here.
    fn submit(&mut self, job: Job) -> Result<Option<Job>, RemoteError> {
        let (download, range) = match job {
            Job::Get(download, range) => (download, range),
            Job::File(task) if task.link.is_some() => {
                self.link(task);
                return Ok(None);
            }
            Job::File(task) => {
                // Another try, or a size that nobody knows: ask first.
                let ask = task.size.is_none() || task.tries > 0;
                if ask && !self.slots.is_empty() {
                    return Ok(Some(Job::File(task)));
                }
                match self.begin(task, ask)? {
                    Some(begun) => begun,
                    None => return Ok(None),
                }
            }
            other => return Ok(Some(other)),
        };
        if download.has_failed() {
            self.worker.done();
            return Ok(None);
        }
        let missing = download.present().complement(range.clone());
        let (mode, streams) = self.shape(&download, &missing);
        if !self.fits(mode, streams) {
            if !self.slots.is_empty() {
                return Ok(Some(Job::Get(download, range)));
            }
            let inline = match download.check {
                Check::Inline(algorithm) => Some(algorithm),
                _ => None,
            };
            if let Err(e) = self.session.receiving(mode, streams, inline) {
                let session_is_fine = !e.breaks_session();
                self.worker.fail(Job::Get(download, range), e);
                return if session_is_fine { Ok(None) } else { Err(RemoteError::Cancelled) };
            }
        }
        self.send(download, range, missing, mode)?;
        Ok(None)
    }

    /// A symbolic link needs no transfer.
    fn link(&self, task: Task) {
        let (Some(target), Place::Local(link)) = (&task.link, &task.destination) else { return self.worker.done() };
        match replace_link(&*self.worker.ctx.store, target, link) {
            Ok(()) => {
                self.worker.ctx.report.linked(&task);
                self.worker.done();
            }
            Err(e) => self.worker.fail(Job::File(task), e),
        }
    }

    /// Opens the destination, and cuts a big file up between the sessions.
    fn begin(&mut self, mut task: Task, ask: bool) -> Result<Option<Part>, RemoteError> {
        let ctx = self.worker.ctx;
        let options = ctx.options();
        if ask && !options.ascii {
            match self.session.stat(&task.source.path()) {
                Ok(entry) => {
                    task.size = entry.size;
                    task.modified = entry.modified.or(task.modified);
                    task.mode = entry.mode.or(task.mode);
                }
                Err(e) => {
                    let session_is_fine = !e.breaks_session();
                    self.worker.fail(Job::File(task), e);
                    return if session_is_fine { Ok(None) } else { Err(RemoteError::Cancelled) };
                }
            }
        }
        if task.compare && self.same_already(&task)? {
            ctx.report.skipped(task.source.display(), "same checksum");
            self.worker.done();
            return Ok(None);
        }
        let check = match self.check() {
            Ok(check) => check,
            Err(e) => {
                self.worker.fail(Job::File(task), e);
                return Ok(None);
            }
        };
        let whole = task.offset()..task.length().map_or(u64::MAX, |length| task.offset() + length);
        task.began.get_or_insert_with(Instant::now);
        let download = match Download::begin(task.clone(), check, &ctx.store, options) {
            Ok(download) => download,
            Err(e) => {
                self.worker.fail(Job::File(task), e);
                return Ok(None);
            }
        };
        if let Some(reason) = download.started_over() {
            tracing::info!(file = %download.task.destination.display(), reason, "begins anew");
        }
        let present = download.present();
        let size = download.task.length();
        ctx.report.started(
            download.task.id,
            download.task.source.display(),
            download.task.destination.display(),
            size,
            present.len(),
        );
        let cut = self.cut(&whole, &present);
        let mut ranges = cut.into_iter();
        let Some(first) = ranges.next() else { return Ok(Some((download, whole))) };
        let rest: Vec<Job> = ranges.map(|range| Job::Get(download.clone(), range)).collect();
        download.expect(rest.len() as u32);
        ctx.queue.push_urgent(rest);
        Ok(Some((download, first)))
    }

    /// The ranges that are handed out one by one; the whole where it is not worth it or cannot be done.
    fn cut(&self, whole: &Range<u64>, present: &RangeSet) -> Vec<Range<u64>> {
        let ctx = self.worker.ctx;
        let sessions = ctx.sessions.load(Ordering::Relaxed);
        let can = self.session.can.partial && self.session.preferred_mode() == Mode::ExtendedBlock;
        if whole.end == u64::MAX || !can {
            return vec![whole.clone()];
        }
        let missing = present.complement(whole.clone());
        let step = Path::range_size(whole.end - whole.start, sessions);
        if step >= whole.end - whole.start || missing.len() < 2 * crate::auto::RANGE {
            return vec![whole.clone()];
        }
        let starts = (whole.start..whole.end).step_by(step as usize);
        starts
            .map(|start| start..(start + step).min(whole.end))
            .filter(|range| !missing.intersection(range.clone()).is_empty())
            .collect()
    }

    fn check(&self) -> Result<Check, RemoteError> {
        let (ctx, can) = (self.worker.ctx, &self.session.can);
        let options = ctx.options();
        if options.ascii {
            return Ok(Check::Size);
        }
        let inline = can.inline_checksum;
        let check = choose(options.checksum, &|a| can.knows(a), inline, self.session.control.peer())?;
        if check == Check::Size && options.checksum != crate::ChecksumPolicy::None {
            ctx.report.warn_once(format!(
                "{} computes no checksums: only sizes are compared",
                self.session.endpoint.name
            ));
        }
        Ok(check)
    }

    /// `sync` by checksum: whether the destination has the same bytes.
    fn same_already(&mut self, task: &Task) -> Result<bool, RemoteError> {
        let Place::Local(path) = &task.destination else { return Ok(false) };
        let Some(algorithm) = self.worker.ctx.comparison(&[&self.session.can]) else { return Ok(false) };
        let command = checksum_command(algorithm, task, &task.source.path());
        let Ok(reply) = self.session.call(&command) else { return Ok(false) };
        let ours = self.worker.ctx.local_sum(path, algorithm);
        Ok(ours.is_ok_and(|ours| crate::verify::same(&ours, &reply.text().to_str_lossy())))
    }

    /// MODE and number of streams for a transfer.
    fn shape(&self, download: &Download, missing: &RangeSet) -> (Mode, u32) {
        let options = self.worker.ctx.options();
        let mut mode = self.session.preferred_mode();
        if self.session.cannot_call_back() && !self.session.can.passive_sender {
            mode = Mode::Stream;
        }
        // One range after the other is all that MODE S can do.
        if mode == Mode::Stream || missing.is_empty() {
            return (mode, 1);
        }
        let size = download.task.length().map(|_| missing.len());
        let streams = Path::new(self.session.control.rtt()).streams(options, size);
        (mode, self.worker.ctx.share(streams, size))
    }

    fn fits(&mut self, mode: Mode, streams: u32) -> bool {
        self.session.channel().is_some_and(|c| {
            !c.sending && c.mode == mode && mode == Mode::ExtendedBlock && c.streams >= streams
        })
    }

    fn send(
        &mut self,
        download: Arc<Download>,
        range: Range<u64>,
        missing: RangeSet,
        mode: Mode,
    ) -> Result<(), RemoteError> {
        let path = download.task.source.path();
        let id = self.first + self.slots.len() as u64;
        let whole = range.start == 0 && download.task.length().is_none_or(|n| range.end >= n);
        let partial = download.task.window.is_some() || !whole;
        let (origin, command) = if partial {
            let length = range.end.saturating_sub(range.start);
            // An open end: as much as there is.
            let length = if range.end == u64::MAX { i64::MAX as u64 - range.start } else { length };
            let what = Retrieval::Partial(Window { offset: range.start, length });
            (range.start, Command::Eret { what, path: path.clone() })
        } else {
            (0, Command::Retr(path.clone()))
        };
        // What is there counts from the beginning of the window.
        let mut missing = missing;
        let there = missing.complement(range.clone()).shift_down(origin);
        let restart = match mode {
            _ if there.is_empty() => None,
            Mode::ExtendedBlock => Some(Restart::Ranges(there)),
            Mode::Stream if there.prefix() > 0 && self.session.can.restart => {
                missing = RangeSet::from_range(origin + there.prefix()..range.end);
                Some(Restart::Offset(there.prefix()))
            }
            Mode::Stream => {
                missing = RangeSet::from_range(range.clone());
                None
            }
        };
        if partial && !self.session.can.partial {
            let what = "send a part of a file (no ERET)".to_owned();
            let error = RemoteError::Unsupported { peer: self.session.control.peer().to_owned(), what };
            self.worker.fail(Job::Get(download, range), error);
            return Ok(());
        }
        let sum = (matches!(download.check, Check::Asked(_)) && whole)
            .then(|| download.check.algorithm())
            .flatten()
            .map(|algorithm| checksum_command(algorithm, &download.task, &path));
        let mut asks = Vec::new();
        if let Some(restart) = restart {
            asks.push((Ask::Restart, Command::Rest(restart)));
        }
        asks.push((Ask::Transfer, command));
        let asked_sum = sum.is_some();
        asks.extend(sum.map(|command| (Ask::Sum, command)));
        for (ask, command) in asks {
            if let Err(e) = self.session.control.send(&command) {
                if let RemoteError::CannotTravel { .. } = e {
                    self.worker.fail(Job::Get(download, range), e);
                    return Ok(());
                }
                self.worker.put_back(Job::Get(download, range));
                return Err(e);
            }
            self.asks.push_back((id, ask));
        }
        self.slots.push_back(Slot {
            download,
            range,
            missing,
            origin,
            begun: false,
            moved: None,
            ended: None,
            asked_sum,
            sum: None,
            error: None,
        });
        Ok(())
    }

    /// Moves the next file's data, or waits for a reply; then settles what is finished.
    fn step(&mut self) -> Result<(), RemoteError> {
        let next = self.slots.iter().position(|s| s.moved.is_none() && s.error.is_none());
        match next {
            Some(at) => {
                let listening = self.session.channel().is_some_and(|c| c.listening);
                if self.slots[at].begun || !listening {
                    self.receive(at)?;
                } else {
                    self.await_begin()?;
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

    /// We listen: the peer's connections come before its preliminary reply.
    fn await_begin(&mut self) -> Result<(), RemoteError> {
        let limit = self.worker.ctx.options().connect_timeout;
        let fresh = self.session.channel().is_some_and(|c| c.data.cached() == 0);
        if !fresh {
            let reply = self.session.control.reply()?;
            self.hear(reply);
            return Ok(());
        }
        match self.session.control.reply_until(Instant::now() + limit)? {
            Some(reply) => {
                self.hear(reply);
                Ok(())
            }
            None => {
                self.session.endpoint.unreachable_back.store(true, Ordering::Relaxed);
                self.worker.ctx.report.warn_once(format!(
                    "{} cannot open data connections to this host (a firewall or NAT?): single passive \
                     connections are used, which is slower",
                    self.session.endpoint.name
                ));
                let peer = self.session.control.peer().to_owned();
                Err(RemoteError::NoDataConnection { peer, limit })
            }
        }
    }

    /// Takes the data of one slot.
    fn receive(&mut self, at: usize) -> Result<(), RemoteError> {
        let ctx = self.worker.ctx;
        let id = self.first + at as u64;
        let Some(mut channel) = self.session.take_channel() else {
            let what = "send: the data channel is gone".to_owned();
            return Err(RemoteError::Unsupported { peer: self.session.control.peer().to_owned(), what });
        };
        let (download, accept, origin) = {
            let slot = &self.slots[at];
            (slot.download.clone(), slot.missing.clone(), slot.origin)
        };
        let path = download.task.source.path();
        let progress = Progress::new();
        let mut meter = Meter::new(&ctx.report);
        let written = |range: Range<u64>, sum: Option<u32>| download.record(range, sum);
        let job = ReceiveJob {
            sink: download.handle(),
            origin,
            accept,
            checksum: download.check.in_passing(),
            sparse: download.sparse,
            written: &written,
        };
        let (asks, slots, first) = (&mut self.asks, &mut self.slots, self.first);
        let mut judge = |reply: Reply| {
            hear(asks, slots, first, reply);
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
        let result = channel.data.receive(&job, &mut watch, &progress);
        let failure = watch.failure.take();
        if let Ok(received) = &result {
            meter.update(received.bytes, received.streams);
        }
        meter.finish(&progress);
        drop(meter);
        match result {
            Ok(received) => {
                self.slots[at].moved = Some((received.ranges, received.pieces));
                if channel.mode == Mode::ExtendedBlock {
                    self.session.keep_channel(channel);
                }
                Ok(())
            }
            Err(source) => {
                drop(channel);
                let peer = self.session.control.peer().to_owned();
                let mut error = failure.unwrap_or_else(|| RemoteError::data(&peer, path, source));
                if matches!(error, RemoteError::Data { .. }) {
                    self.last_words(at);
                    error = self.slots[at].error.take().unwrap_or(error);
                }
                // In MODE S the next file has a new channel anyway; else what is in the pipeline is lost.
                let alone = self.slots.len() == 1 && !error.breaks_session();
                self.slots[at].error = Some(error);
                if alone { Ok(()) } else { Err(RemoteError::Cancelled) }
            }
        }
    }

    /// Waits a little for what the server has to say about a transfer that broke.
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
        hear(&mut self.asks, &mut self.slots, self.first, reply);
    }

    /// Finishes the slots at the front that have all they wait for.
    fn settle(&mut self) -> Result<(), RemoteError> {
        while let Some(slot) = self.slots.front_mut() {
            let first = self.first;
            if slot.error.is_some() {
                // Its later commands are still to be answered.
                if self.asks.iter().any(|(id, _)| *id == first) {
                    return Ok(());
                }
                let Some(slot) = self.pop() else { return Ok(()) };
                let error = slot.error.unwrap_or(RemoteError::Cancelled);
                self.worker.fail(Job::Get(slot.download, slot.range), error);
                continue;
            }
            if slot.moved.is_none() || slot.ended.is_none() || (slot.asked_sum && slot.sum.is_none()) {
                return Ok(());
            }
            if slot.download.has_failed() {
                self.pop();
                self.worker.done();
                continue;
            }
            if let Some((ranges, pieces)) = slot.moved.take() {
                let theirs = slot.ended.as_ref().and_then(|sum| sum.as_deref());
                match slot.download.arrived(&ranges, pieces.as_ref(), theirs) {
                    Ok(true) => {}
                    Ok(false) => {
                        self.pop();
                        self.worker.done();
                        continue;
                    }
                    Err(e) => {
                        slot.error = Some(e);
                        continue;
                    }
                }
                slot.moved = Some((ranges, pieces));
            }
            if slot.download.needs_sum() && slot.sum.is_none() {
                let Some(algorithm) = slot.download.check.algorithm() else { return Ok(()) };
                let path = slot.download.task.source.path();
                let command = checksum_command(algorithm, &slot.download.task, &path);
                slot.asked_sum = true;
                // It must not be counted as arrived twice.
                slot.moved = Some((RangeSet::new(), None));
                slot.download.expect(1);
                self.session.control.send(&command)?;
                self.asks.push_back((first, Ask::Sum));
                return Ok(());
            }
            let Some(slot) = self.pop() else { return Ok(()) };
            self.finish(slot);
        }
        Ok(())
    }

    fn finish(&self, slot: Slot) {
        let download = slot.download;
        let compared = match &slot.sum {
            Some(theirs) => download.compare(theirs),
            None => Ok(()),
        };
        let bytes = download.end().saturating_sub(download.task.offset());
        match compared.and_then(|()| download.commit(self.worker.ctx.options())) {
            Ok(proof) => {
                self.worker.ctx.report.done(download.task.id, bytes, download.began().elapsed(), proof);
                self.worker.done();
            }
            Err(e) => self.worker.fail(Job::Get(download, slot.range), e),
        }
    }

    fn pop(&mut self) -> Option<Slot> {
        let slot = self.slots.pop_front()?;
        self.first += 1;
        Some(slot)
    }

    /// The session is of no more use. The first slot that failed gets the blame, the others go back.
    fn abandon(mut self, error: RemoteError) {
        let mut blame = Some(error).filter(|e| !matches!(e, RemoteError::Cancelled));
        self.worker.ctx.report.waited(self.session.control.waited);
        while let Some(slot) = self.pop() {
            let job = Job::Get(slot.download, slot.range);
            match slot.error.or_else(|| blame.take_if(|_| slot.moved.is_none())) {
                Some(error) => self.worker.fail(job, error),
                None => self.worker.put_back(job),
            }
        }
    }
}

/// Takes one reply to the oldest command.
fn hear(asks: &mut VecDeque<(u64, Ask)>, slots: &mut VecDeque<Slot>, first: u64, reply: Reply) {
    let Some(&(id, ask)) = asks.front() else { return };
    let slot = id.checked_sub(first).and_then(|at| slots.get_mut(at as usize));
    if reply.is_preliminary() {
        if let (Some(slot), Ask::Transfer) = (slot, ask) {
            // 150 and 125; markers come only after them.
            slot.begun = true;
        }
        return;
    }
    asks.pop_front();
    let Some(slot) = slot else { return };
    if reply.is_failure() {
        let command = match ask {
            Ask::Restart => "REST",
            Ask::Transfer => "RETR",
            Ask::Sum => "CKSM",
        };
        slot.error.get_or_insert(RemoteError::Refused {
            peer: slot.download.task.source.display(),
            command: command.to_owned(),
            reply,
        });
        return;
    }
    match ask {
        Ask::Restart => {}
        Ask::Transfer => slot.ended = Some(inline_sum(&reply)),
        Ask::Sum => slot.sum = Some(reply.text().to_string()),
    }
}

/// CKSM of the whole source, or of the window that is wanted.
pub(crate) fn checksum_command(
    algorithm: ropewalk_storage::checksum::Algorithm,
    task: &Task,
    path: &BString,
) -> Command {
    Command::Cksm {
        algorithm: wire(algorithm),
        offset: task.offset(),
        length: task.window.and_then(|_| task.length()),
        path: path.clone(),
    }
}
