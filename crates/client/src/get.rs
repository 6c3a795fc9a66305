//! Files from a server to here: pipelined RETRs over one cached data channel, ranges of big files by ERET.

mod begin;
mod data;
mod finish;

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bstr::{BString, ByteSlice};
use ropewalk_engine::{Progress, ReceiveJob, Stage};
use ropewalk_protocol::client::answer;
use ropewalk_protocol::command::{Command, Restart, Retrieval};
use ropewalk_protocol::marker::Marker;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Mode, Window};
use ropewalk_storage::checksum::Pieces;

use crate::ahead::Ahead;
use crate::auto::{Path, RANGE, SMALL};
use crate::context::Context;
use crate::control::Answer;
use crate::download::Download;
use crate::local_copy::to_standard_output;
use crate::model::entry::from_status;
use crate::model::error::reply_kind;
use crate::place::{Endpoint, Place};
use crate::report::Meter;
use crate::session::Session;
use crate::straggler::{Idle, Straggler};
use crate::task::{Task, differs};
use crate::tune::{Ends, Knob, Seat, Wanted, useful_streams};
use crate::verify::Check;
use crate::watch::Watch;
use crate::work::{Job, Route};
use crate::worker::{Pipeline, Worker};
use crate::{ChecksumPolicy, FailureKind, FsyncPolicy, RemoteError};

/// What a command that was sent is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Restart,
    Transfer,
    Sum,
    /// What the source is like when all of it has come.
    Version,
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
    asked_version: bool,
    error: Option<RemoteError>,
    /// No data belongs to it: the server computes a checksum for the whole download.
    sum_only: bool,
    /// How long the server's streams have waited for its storage, by its last marker.
    storage_wait: Duration,
}

impl Slot {
    /// It is a range of a file that several sessions share out.
    fn is_part(&self) -> bool {
        self.download.task.length().is_some_and(|length| self.range.end - self.range.start < length)
    }

    fn into_job(self) -> Job {
        if self.sum_only { Job::Sum(self.download) } else { Job::Get(self.download, self.range) }
    }
}

/// A range of a file.
type Part = (Arc<Download>, Range<u64>);

struct Flow<'w> {
    worker: &'w Worker<'w>,
    session: Session,
    seat: Option<Seat>,
    /// Streams that the server should use, where they can be changed while it sends.
    wanted: Option<Wanted>,
    asks: VecDeque<(u64, Ask)>,
    slots: VecDeque<Slot>,
    /// Number of the first slot.
    first: u64,
    path: Path,
}

/// Handles `job` and those of the same kind that come after it, until there are none or the session breaks.
pub(crate) fn run(worker: &Worker<'_>, endpoint: &Arc<Endpoint>, job: Job) {
    if let (Place::Standard, Job::File(task)) = (&job.task().destination, &job) {
        return to_standard_output(worker, task.clone());
    }
    let job = worker.cut_before_log_in(job);
    let mut session = match worker.session(endpoint) {
        Ok(session) => session,
        Err(e) => return worker.fail(job, e),
    };
    let rtt = session.control.rtt();
    let path = Path::new(rtt);
    let route = Route::Get(endpoint.clone());
    let ends = Ends { source: Some(endpoint.name.clone()), destination: None };
    let seat = worker.seat(ends, rtt).filter(|_| session.preferred_mode() == Mode::ExtendedBlock);
    session.lane = seat.as_ref().map(|seat| seat.lane().clone());
    let flow = Flow {
        worker,
        session,
        seat,
        wanted: None,
        asks: VecDeque::new(),
        slots: VecDeque::new(),
        first: 0,
        path,
    };
    let Some(flow) = worker.drive(flow, &route, job) else { return };
    worker.keep(flow.session);
}

impl Pipeline for Flow<'_> {
    fn ahead(&mut self) -> Ahead {
        let streams = self.session.channel().map_or(0, |channel| channel.streams);
        self.worker.ctx.ahead(self.path, self.seat.as_ref(), streams)
    }

    fn is_low(&self, ahead: Ahead) -> bool {
        self.slots.len() <= ahead.depth - ahead.depth / 4
    }

    fn has_room(&mut self, ahead: Ahead) -> bool {
        // Sizes are what servers say.
        let missing = self.slots.iter().filter(|s| s.moved.is_none()).map(|s| s.missing.len());
        let waiting = missing.fold(0, u64::saturating_add);
        let extended = self.session.channel().is_none_or(|c| c.mode == Mode::ExtendedBlock);
        // Should the first file be refused, the second one's data would come over the connections made for it.
        let pipelined = extended && !self.must_connect();
        let under_way = self.slots.iter().filter(|s| s.moved.is_none()).count();
        let parts = self.slots.iter().filter(|s| s.moved.is_none() && s.is_part()).count();
        self.slots.len() < if pipelined { ahead.depth } else { 1 } && ahead.takes(under_way, waiting, parts)
    }

    fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn seat(&self) -> Option<&Seat> {
        self.seat.as_ref()
    }

    fn submit(&mut self, job: Job) -> Result<Option<Job>, RemoteError> {
        let (download, range) = match job {
            Job::Get(download, range) => {
                if download.must_look() {
                    if !self.slots.is_empty() {
                        return Ok(Some(Job::Get(download, range)));
                    }
                    // Of ranges of one file that come again one looks for all.
                    download.looks();
                    if let Err(e) = self.session.unchanged(&download.task) {
                        return self.worker.failed(Job::Get(download, range), e).map(|()| None);
                    }
                }
                (download, range)
            }
            Job::Sum(download) => return self.ask_sum(download).map(|()| None),
            Job::File(task) => {
                // Another try, or a size that nobody knows: ask first. A part that may be there is of this version of the
                // source, or of none: listings may not tell the time.
                let resumable =
                    self.worker.ctx.options().resume && task.size.is_some_and(|size| size > SMALL);
                let unknown = task.size.is_none() || task.modified.is_none() && resumable;
                let ask = unknown || task.tries.total > 0;
                if (ask || task.compares()) && !self.slots.is_empty() {
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
        let range = self.bite(&download, range);
        let missing = download.present().complement(range.clone());
        let ahead = self.worker.ahead(&download, missing.len());
        let (mode, streams) = self.shape(&download, &missing, ahead);
        if !self.fits(mode, streams) {
            if !self.slots.is_empty() {
                return Ok(Some(Job::Get(download, range)));
            }
            let inline = match download.check {
                Check::Inline(algorithm) => Some(algorithm),
                _ => None,
            };
            self.session.wants_path = self.seat.is_some() && streams > 1;
            self.session.wants_congestion(self.seat.as_ref());
            if let Err(e) = self.session.receiving(mode, streams, inline) {
                return self.worker.failed(Job::Get(download, range), e).map(|()| None);
            }
            self.opened(streams, ahead);
        } else {
            self.used_again(ahead);
        }
        self.send(download, range, missing, mode)?;
        Ok(None)
    }

    fn step(&mut self) -> Result<(), RemoteError> {
        self.session.control.flush()?;
        let next = self.slots.iter().position(|s| s.moved.is_none() && s.error.is_none());
        match next {
            Some(at) => {
                // A passive sender begins when we have connected, and one that authenticates itself when we have answered; in
                // any other case its preliminary reply says
                // whose data comes next.
                if self.slots[at].begun || self.must_connect() {
                    self.receive(at)?;
                } else {
                    self.await_begin()?;
                }
            }
            None if !self.asks.is_empty() => {
                let answer = self.session.control.answer()?;
                self.hear(answer);
            }
            None => {}
        }
        self.settle()
    }

    fn abandon(self, error: RemoteError) {
        self.give_up(error);
    }
}

impl Flow<'_> {
    /// We are the ones to connect, or to do our part of an authentication, and have not done so yet.
    fn must_connect(&mut self) -> bool {
        self.session.channel().is_some_and(|c| (!c.listening || c.authenticated) && c.data.cached() == 0)
    }

    fn hear(&mut self, answer: Answer) {
        let ctx = self.worker.ctx;
        hear(&mut self.asks, &mut self.slots, self.first, ctx, self.seat.as_ref(), answer);
    }
}

/// Takes what came for the oldest command.
fn hear(
    asks: &mut VecDeque<(u64, Ask)>,
    slots: &mut VecDeque<Slot>,
    first: u64,
    ctx: &Context,
    seat: Option<&Seat>,
    answer: Answer,
) {
    let Some(&(id, ask)) = asks.front() else { return };
    let slot = id.checked_sub(first).and_then(|at| slots.get_mut(at as usize));
    let Answer::Final(reply) = answer else {
        if let (Some(slot), Ask::Transfer) = (slot, ask) {
            // 150 and 125; markers come only after them.
            slot.begun = true;
            if let Answer::Marker(Marker::Storage(wait)) = answer {
                ctx.report.server_storage(Stage::Source, &mut slot.storage_wait, wait);
            }
        }
        if let (Some(seat), Answer::Marker(Marker::Path(path))) = (seat, &answer) {
            seat.hears(*path);
        }
        return;
    };
    asks.pop_front();
    let Some(slot) = slot else { return };
    if reply.is_failure() {
        let command = match ask {
            Ask::Restart => "REST",
            Ask::Transfer => "RETR",
            Ask::Sum => "CKSM",
            // It was there a moment ago, and all of it has come.
            Ask::Version => return,
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
        Ask::Transfer => slot.ended = Some(answer::inline_checksum(&reply).map(|(_, sum)| sum)),
        Ask::Sum => slot.sum = Some(reply.text().to_string()),
        Ask::Version => {
            let task = &slot.download.task;
            if from_status(&reply).is_some_and(|entry| differs(task, &entry, true)) {
                slot.error.get_or_insert(RemoteError::SourceChanged { path: task.source.path() });
            }
        }
    }
}

/// CKSM of the whole source, or of what is wanted of it.
pub(crate) fn checksum_command(
    algorithm: ropewalk_storage::checksum::Algorithm,
    task: &Task,
    path: &BString,
) -> Command {
    Command::Cksm {
        algorithm,
        offset: task.offset(),
        length: task.length().filter(|_| task.window.is_some() || task.grows),
        path: path.clone(),
    }
}
