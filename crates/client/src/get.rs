//! Files from a server to here: pipelined RETRs over one cached data channel, ranges of big files by ERET.

mod begin;
mod data;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bstr::{BString, ByteSlice};
use ropewalk_engine::{Progress, ReceiveJob};
use ropewalk_protocol::command::{Command, Restart, Retrieval};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Mode, Window};
use ropewalk_transfer::{self as transfer, Checks, Moved, Purpose, Side, Sides, Slot, Submission};

use crate::ahead::Ahead;
use crate::context::Context;
use crate::control::Answer;
use crate::download::Download;
use crate::flow::{Begun, Part, Peers, hear};
use crate::local_copy::to_standard_output;
use crate::model::error::reply_kind;
use crate::path_defaults::{RANGE, SMALL};
use crate::place::{Endpoint, Place};
use crate::report::Meter;
use crate::session::Session;
use crate::straggler::{Idle, Straggler};
use crate::task::Task;
use crate::tune::{Ends, StreamControl, Wanted};
use crate::verify::Check;
use crate::watch::Watch;
use crate::work::{Job, Route};
use crate::worker::Worker;
use crate::{ChecksumPolicy, FailureKind, FsyncPolicy, RemoteError};

/// The session with the server that sends.
pub(crate) struct Sender {
    session: Session,
}

type Flow<'w> = crate::flow::Flow<'w, Sender>;

/// Handles `job` and those of the same kind that come after it, until there are none or the session breaks.
pub(crate) fn run(worker: &Worker<'_>, endpoint: &Arc<Endpoint>, job: Job) {
    if let (Place::Standard, Job::File(task)) = (&job.task().destination, &job) {
        return to_standard_output(worker, task.clone());
    }
    let ends = Ends::of(job.task());
    let job = worker.cut_before_log_in(job);
    let mut session = match worker.session(endpoint) {
        Ok(session) => session,
        Err(e) => return worker.fail(job, e),
    };
    let rtt = session.control.rtt();
    let route = Route::Get(endpoint.clone());
    let participant =
        worker.participant(ends, rtt).filter(|_| session.preferred_mode() == Mode::ExtendedBlock);
    session.path_tuner = participant.as_ref().map(|participant| participant.path_tuner().clone());
    // A Ropewalk server, which is asked for the congestion control, sends.
    session.offer_driver(session.can.congestion);
    let flow = Flow::new(worker, Sender { session }, participant, transfer::Route::Download);
    let Some(Sender { session }) = flow.drive(&route, job) else { return };
    worker.keep(session);
}

impl Peers for Sender {
    type File = Download;
    type Own<'w> = Duration;

    fn session(&mut self, _: Side) -> &mut Session {
        &mut self.session
    }

    fn rtt(&self) -> Duration {
        self.session.control.rtt()
    }

    fn streams_of_channel(&self) -> u32 {
        self.session.streams_of_channel()
    }

    fn checks(&self, _: &Context, slot: &Slot<Download, Duration>) -> Checks {
        let (download, mut checks) = (&slot.file, Checks::default());
        let path = download.task.source.path();
        if download.needs_sum() && !slot.has_asked_checksum() {
            checks.checksums.source = download
                .check
                .algorithm()
                .map(|algorithm| checksum_command(algorithm, &download.task, &path));
        }
        // A sum that the server computed meanwhile, or none, says nothing of programs that wrote to the
        // source while it came.
        if !slot.has_asked_version() && self.session.can.facts && download.is_unwatched() {
            checks.version = Some(Command::Mlst(Some(path)));
        }
        checks
    }

    fn naming(&self, _: &Context, _: &Download) -> Vec<(Purpose, Command)> {
        // Its destination is here: [`Download::commit`].
        Vec::new()
    }

    fn has_room(flow: &mut Flow<'_>, ahead: Ahead) -> bool {
        let extended = flow.peers.session.channel().is_none_or(|c| c.mode == Mode::ExtendedBlock);
        // If the first file were refused, the second one's data would come over its connections.
        let pipelined = extended && !flow.must_connect();
        let unmoved = || flow.pipeline.slots().filter(|slot| !slot.has_moved());
        // Sizes are what servers report.
        let waiting = unmoved().map(|slot| slot.data.len()).fold(0, u64::saturating_add);
        let parts = unmoved().filter(|slot| is_part(slot)).count();
        flow.pipeline.len() < if pipelined { ahead.depth } else { 1 }
            && ahead.takes(unmoved().count(), waiting, parts)
    }

    fn begin(flow: &mut Flow<'_>, task: &mut Task) -> Result<Begun<Download>, RemoteError> {
        flow.begin(task)
    }

    fn ask_again(flow: &mut Flow<'_>, download: &Download, _: &Range<u64>) -> Result<(), RemoteError> {
        // Of ranges of one file that come again one looks for all.
        download.looks();
        flow.peers.session.unchanged(&download.task)
    }

    fn other_job(flow: &mut Flow<'_>, job: Job) -> Result<Option<Job>, RemoteError> {
        match job {
            Job::Sum(download) => flow.ask_sum(download).map(|()| None),
            other => Ok(Some(other)),
        }
    }

    fn shares(flow: &Flow<'_>, download: &Download, range: &Range<u64>) -> bool {
        flow.cuts(download, range)
    }

    fn data(_: &Flow<'_>, download: &Download, range: &Range<u64>) -> Result<RangeSet, RemoteError> {
        Ok(download.present().complement(range.clone()))
    }

    fn shape(flow: &Flow<'_>, download: &Download, missing: &RangeSet, ahead: u64) -> (Mode, u32) {
        let session = &flow.peers.session;
        let mut mode = session.preferred_mode();
        if download.in_order() || session.cannot_call_back() && !session.can.passive_sender {
            mode = Mode::Stream;
        }
        // One range after the other is all that MODE S can do.
        if mode == Mode::Stream || missing.is_empty() {
            return (mode, 1);
        }
        let divides = flow.worker.ctx.divides_files(session);
        (mode, flow.streams(download, ahead, session.can.streams, divides))
    }

    fn reusable(flow: &Flow<'_>) -> Option<u32> {
        flow.peers.session.reusable(false)
    }

    fn connect(flow: &mut Flow<'_>, download: &Download, shape: (Mode, u32)) -> Result<(), RemoteError> {
        let ((mode, streams), session) = (shape, &mut flow.peers.session);
        session.wants_path = flow.participant.is_some() && streams > 1;
        session.wants_resend = true;
        session.wants_congestion(flow.participant.as_ref());
        session.receiving(mode, streams, download.check.inline())
    }

    fn stream_control(flow: &mut Flow<'_>, new: bool) -> Option<(u32, StreamControl)> {
        let elastic = flow.peers.session.can.streams;
        let channel = flow.peers.session.channel()?;
        if new {
            channel.wanted = (channel.streams > 1 && elastic).then(|| Wanted::new(channel.streams));
        }
        flow.wanted = channel.wanted.clone();
        Some((channel.streams, channel.wanted.clone().map_or(StreamControl::Fixed, StreamControl::There)))
    }

    fn submission<'w>(
        flow: &mut Flow<'w>,
        part: Part<Download>,
        mode: Mode,
    ) -> Result<Submission<Download, Duration>, RemoteError> {
        flow.submission(part, mode)
    }

    fn step(flow: &mut Flow<'_>) -> Result<(), RemoteError> {
        flow.step()?;
        if flow.no_way_back() { Err(RemoteError::Desynchronized) } else { Ok(()) }
    }

    fn complete(flow: &mut Flow<'_>, slot: &Slot<Download, Duration>) -> Result<Option<String>, RemoteError> {
        let download = &slot.file;
        let theirs = slot.checksum_of_source().map(str::to_owned).or_else(|| download.theirs());
        let mut compared = theirs.map_or(Ok(()), |theirs| download.compare_sum(&theirs));
        // If another program writes to the source, the sum is of another version: report that.
        if compared.is_err()
            && flow.pipeline.is_empty()
            && flow.pipeline.pending() == 0
            && let Err(changed @ RemoteError::SourceChanged { .. }) =
                flow.peers.session.unchanged(&download.task)
        {
            compared = Err(changed);
        }
        compared.and_then(|()| download.commit(flow.worker.ctx.options(), 0))
    }

    fn drop_channel(&mut self, slot: &Slot<Download, Duration>) {
        if slot.has_begun(Side::Source) && !slot.has_moved() && !slot.has_ended(Side::Source) {
            // All was answered: the session is as good as new, its channel is not.
            self.session.drop_channel();
        }
    }

    fn again(slot: Slot<Download, Duration>) -> Job {
        if slot.is_last() {
            // It was the last range of its file, and is due once more.
            slot.file.expect(1);
        }
        if slot.is_checksum_only() { Job::Sum(slot.file) } else { Job::Get(slot.file, slot.range) }
    }

    fn leave(flow: &mut Flow<'_>) -> bool {
        flow.worker.ctx.report.waited(flow.peers.session.control.waited);
        // What it still sends goes nowhere.
        true
    }
}

impl Flow<'_> {
    fn step(&mut self) -> Result<(), RemoteError> {
        self.peers.session.control.flush()?;
        match self.pipeline.next_to_move() {
            Some(id) => {
                // A passive sender begins when we have connected, and one that authenticates itself when
                // we have answered. Otherwise its preliminary reply says whose data comes next.
                let begun = self.pipeline.slot(id).is_some_and(|slot| slot.has_begun(Side::Source));
                if begun || self.must_connect() { self.receive(id) } else { self.await_begin() }
            }
            None if self.pipeline.pending() > 0 => {
                let answer = self.peers.session.control.answer()?;
                Sender::hear(self, Side::Source, answer);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// We are the ones to connect, or to do our part of an authentication, and have not done so yet.
    fn must_connect(&mut self) -> bool {
        let channel = self.peers.session.channel();
        channel.is_some_and(|c| (!c.listening || c.authenticated) && c.data.cached() == 0)
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
