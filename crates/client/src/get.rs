//! Files from a server to here: pipelined RETRs over one cached data channel, ranges of big files by ERET.

mod begin;
mod data;
mod finish;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bstr::{BString, ByteSlice};
use ropewalk_engine::{Progress, ReceiveJob, Stage};
use ropewalk_protocol::command::{Command, Restart, Retrieval};
use ropewalk_protocol::marker::Marker;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Mode, Window};
use ropewalk_transfer::{
    self as transfer, Checks, Left, Moved, Outcome, Pipeline, Purpose, Side, Sides, Site, Slot, Submission,
};

use crate::ahead::Ahead;
use crate::context::Context;
use crate::control::Answer;
use crate::download::Download;
use crate::local_copy::to_standard_output;
use crate::model::error::reply_kind;
use crate::path_defaults::{PathDefaults, RANGE, SMALL};
use crate::place::{Endpoint, Place};
use crate::report::Meter;
use crate::session::Session;
use crate::straggler::{Idle, Straggler};
use crate::task::Task;
use crate::tune::{Ends, Participant, StreamControl, Wanted, useful_streams};
use crate::verify::Check;
use crate::watch::Watch;
use crate::work::{Job, Route};
use crate::worker::{Steps, Worker};
use crate::{ChecksumPolicy, FailureKind, FsyncPolicy, RemoteError};

/// A range of a file.
type Part = (Arc<Download>, Range<u64>);

struct Flow<'w> {
    worker: &'w Worker<'w>,
    session: Session,
    participant: Option<Participant>,
    /// Streams that the server should use, where they can be changed while it sends.
    wanted: Option<Wanted>,
    /// Each range has the time for which the server's streams have waited for its storage, by its last
    /// marker. The data of a slot is what is missing of its range.
    pipeline: Pipeline<Download, Duration>,
    /// The range whose command could not be sent.
    culprit: Option<u64>,
    path: PathDefaults,
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
    let path = PathDefaults::new(rtt);
    let route = Route::Get(endpoint.clone());
    let ends = Ends { source: Some(endpoint.name.clone()), destination: None };
    let participant =
        worker.participant(ends, rtt).filter(|_| session.preferred_mode() == Mode::ExtendedBlock);
    session.path_tuner = participant.as_ref().map(|participant| participant.path_tuner().clone());
    // A Ropewalk server, which is asked for the congestion control, sends.
    session.offer_driver(session.can.congestion);
    let flow = Flow {
        worker,
        session,
        participant,
        wanted: None,
        pipeline: Pipeline::new(transfer::Route::Download),
        culprit: None,
        path,
    };
    let Some(flow) = worker.drive(flow, &route, job) else { return };
    worker.keep(flow.session);
}

impl Steps for Flow<'_> {
    fn ahead(&mut self) -> Ahead {
        let streams = self.session.channel().map_or(0, |channel| channel.streams);
        self.worker.ctx.ahead(self.path, self.participant.as_ref(), streams)
    }

    fn is_low(&self, ahead: Ahead) -> bool {
        self.pipeline.len() <= ahead.depth - ahead.depth / 4
    }

    fn has_room(&mut self, ahead: Ahead) -> bool {
        let extended = self.session.channel().is_none_or(|c| c.mode == Mode::ExtendedBlock);
        // If the first file were refused, the second one's data would come over its connections.
        let pipelined = extended && !self.must_connect();
        let unmoved = || self.pipeline.slots().filter(|slot| !slot.has_moved());
        // Sizes are what servers report.
        let waiting = unmoved().map(|slot| slot.data.len()).fold(0, u64::saturating_add);
        let parts = unmoved().filter(|slot| is_part(slot)).count();
        self.pipeline.len() < if pipelined { ahead.depth } else { 1 }
            && ahead.takes(unmoved().count(), waiting, parts)
    }

    fn is_empty(&self) -> bool {
        self.pipeline.is_empty()
    }

    fn participant(&self) -> Option<&Participant> {
        self.participant.as_ref()
    }

    fn submit(&mut self, job: Job) -> Result<Option<Job>, RemoteError> {
        let (download, range) = match job {
            Job::Get(download, range) => {
                if download.must_look() {
                    if !self.pipeline.is_empty() {
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
                    self.worker.ctx.options().recovery.resume && task.size.is_some_and(|size| size > SMALL);
                let unknown = task.size.is_none() || task.modified.is_none() && resumable;
                let ask = (unknown || task.tries.total > 0) && !task.source_program;
                if (ask || task.compares()) && !self.pipeline.is_empty() {
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
        let range = self.cut_range(&download, range);
        let missing = download.present().complement(range.clone());
        let ahead = self.worker.ahead(&download, missing.len());
        let (mode, streams) = self.shape(&download, &missing, ahead);
        if !self.fits(mode, streams) {
            if !self.pipeline.is_empty() {
                return Ok(Some(Job::Get(download, range)));
            }
            let inline = match download.check {
                Check::Inline(algorithm) => Some(algorithm),
                _ => None,
            };
            self.session.wants_path = self.participant.is_some() && streams > 1;
            self.session.wants_resend = true;
            self.session.wants_congestion(self.participant.as_ref());
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
        match self.pipeline.next_to_move() {
            Some(id) => {
                // A passive sender begins when we have connected, and one that authenticates itself when
                // we have answered. Otherwise its preliminary reply says whose data comes next.
                let begun = self.pipeline.slot(id).is_some_and(|slot| slot.has_begun(Side::Source));
                if begun || self.must_connect() {
                    self.receive(id)?;
                } else {
                    self.await_begin()?;
                }
            }
            None if self.pipeline.pending() > 0 => {
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
        hear(&mut self.pipeline, self.worker.ctx, self.participant.as_ref(), answer);
    }
}

/// Takes what came for the oldest command.
fn hear(
    pipeline: &mut Pipeline<Download, Duration>,
    ctx: &Context,
    participant: Option<&Participant>,
    answer: Answer,
) {
    if let Answer::Final(reply) = answer {
        pipeline.reply(Side::Source, reply);
        return;
    }
    if let (Some(participant), Answer::Marker(Marker::Path(path))) = (participant, &answer) {
        participant.hears(*path);
    }
    // 150 and 125; markers come only after them.
    let id = pipeline.preliminary(Side::Source);
    if let (Some(slot), Answer::Marker(Marker::Storage(wait))) =
        (id.and_then(|id| pipeline.slot_mut(id)), answer)
    {
        ctx.report.server_storage(Stage::Source, &mut slot.own, wait);
    }
}

/// It is a range of a file that several sessions share out.
fn is_part(slot: &Slot<Download, Duration>) -> bool {
    slot.file.task.length().is_some_and(|length| slot.range.end - slot.range.start < length)
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
