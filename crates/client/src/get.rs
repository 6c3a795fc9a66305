//! Files from a server to here: pipelined RETRs over one cached data channel, ranges of big files
//! by ERET.

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

use crate::context::Context;
use crate::control::Answer;
use crate::download::Download;
use crate::flow::{Begun, Part, Peers, hear};
use crate::local_copy::to_standard_output;
use crate::model::error::reply_kind;
use crate::path_defaults::{RANGE, SMALL};
use crate::place::{Endpoint, Place, is_device};
use crate::report::Meter;
use crate::session::Session;
use crate::straggler::{Idle, Straggler};
use crate::task::Task;
use crate::tune::{StreamControl, Wanted};
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

/// Handles `job` and the jobs of the same kind after it, until there are none or the session
/// breaks.
pub(crate) fn run(worker: &Worker<'_>, endpoint: &Arc<Endpoint>, job: Job) {
    if let (Place::Standard, Job::File(task)) = (&job.task().destination, &job) {
        return to_standard_output(worker, task.clone());
    }
    let Some((session, participant, job)) = worker.tuned_session(endpoint, job) else { return };
    let route = Route::Get(endpoint.clone());
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
        // Programs may have written to the source during the transfer. A sum that the server
        // computed meanwhile does not show it.
        if !slot.has_asked_version() && self.session.can.facts && download.is_unwatched() {
            checks.version = Some(Command::Mlst(Some(path)));
        }
        checks
    }

    fn naming(&self, _: &Context, _: &Download) -> Vec<(Purpose, Command)> {
        // The destination is here: [`Download::commit`].
        Vec::new()
    }

    fn is_pipelined(flow: &mut Flow<'_>) -> bool {
        let extended = flow.peers.session.channel().is_none_or(|c| c.mode == Mode::ExtendedBlock);
        // If the first file were refused, the data of the second one would come over its
        // connections.
        extended && !flow.must_connect()
    }

    /// Opens the destination, and cuts a big file up between the sessions.
    fn begin(flow: &mut Flow<'_>, task: &mut Task) -> Result<Begun<Download>, RemoteError> {
        let ctx = flow.worker.ctx;
        let options = ctx.options();
        // On a retry, or if the size is unknown, the server is asked first. So it is if the time is
        // unknown and there may be a part: listings may have no times, and the part must be of this
        // version of the source.
        let resumable = options.recovery.resume && task.size.is_some_and(|size| size > SMALL);
        let unknown = task.size.is_none() || task.modified.is_none() && resumable;
        let ask = (unknown || task.tries.total > 0) && !task.source_program;
        if (ask || task.compares()) && !flow.pipeline.is_empty() {
            return Ok(Begun::Later);
        }
        if ask && !options.data.ascii {
            match flow.peers.session.stat(&task.source.path()) {
                Ok(entry) => {
                    task.size = entry.size;
                    task.modified = entry.modified.or(task.modified);
                    task.mode = entry.mode.or(task.mode);
                }
                // Only the time was missing.
                Err(e) if !e.breaks_session() && task.size.is_some() && task.tries.total == 0 => {
                    tracing::debug!(%e, "nothing is known of its time");
                }
                Err(e) => return Err(e),
            }
        }
        if task.size == Some(0) && is_made_up(&task.source.path()) {
            task.size = None;
        }
        if options.data.ascii {
            // Line ends are translated, so the length is unknown.
            task.size = None;
        }
        if task.compares() && flow.same_already(task)? {
            ctx.report.needless(task, "same checksum");
            flow.worker.done();
            return Ok(Begun::Settled);
        }
        if task.window.is_some() && !flow.peers.session.can.partial {
            return Err(flow.no_parts());
        }
        // Data that is not kept is not verified, unless a checksum was requested.
        let measured = matches!(task.destination, Place::Measure(_))
            && options.integrity.checksum == ChecksumPolicy::Default;
        let check = ctx.check(&flow.peers.session)?;
        let check = if measured || task.source_program { Check::Size } else { check };
        ctx.report.anew(task);
        // A part is not resumed if nothing can prove that it is of the same version.
        let resume = options.recovery.resume && (task.modified.is_some() || !matches!(check, Check::Size));
        let download = Download::begin(task.clone(), check, &ctx.store, options, resume)?;
        if let Some(reason) = download.started_over() {
            tracing::info!(file = %download.task.destination.display(), reason, "begins anew");
        }
        ctx.report.started(&download.task, download.present().len());
        // The sum of a file that grows is requested when all has come: bytes that are equal then
        // were there.
        let early = matches!(check, Check::Asked(_)) && !download.task.grows;
        if early && Self::shares(flow, &download, &download.whole()) {
            // The server needs as much time for the sum as for the data, at the same time.
            download.expect(1);
            ctx.queue.push_urgent([Job::Sum(download.clone())]);
        }
        Ok(Begun::Yes(download))
    }

    fn ask_again(flow: &mut Flow<'_>, download: &Download, _: &Range<u64>) -> Result<(), RemoteError> {
        // If several ranges of a file come again, one look is enough.
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
        let can = flow.peers.session.can.partial
            && flow.peers.session.preferred_mode() == Mode::ExtendedBlock
            && !download.in_order();
        let size = download.task.length();
        can && range.end != u64::MAX
            && flow.worker.ctx.divides_files(&flow.peers.session)
            && size.is_some_and(|size| size.saturating_sub(download.resumed) >= 2 * RANGE)
            && flow.worker.ctx.range_size(RANGE, flow.participant.as_ref(), 1).is_some()
    }

    fn shape(flow: &Flow<'_>, download: &Download, missing: &RangeSet, ahead: u64) -> (Mode, u32) {
        let session = &flow.peers.session;
        let mut mode = session.preferred_mode();
        if download.in_order() || session.cannot_call_back() && !session.can.passive_sender {
            mode = Mode::Stream;
        }
        // MODE S moves one range after the other.
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
            channel.wanted =
                (channel.streams > 1 && elastic).then(|| Wanted::spread(channel.streams, channel.spread));
        }
        flow.wanted = channel.wanted.clone();
        let control = channel.wanted.clone().map_or(StreamControl::Fixed, StreamControl::There);
        Some((channel.spread.connections(channel.streams), control))
    }

    fn submission<'w>(
        flow: &mut Flow<'w>,
        part: Part<Download>,
        mode: Mode,
    ) -> Result<Submission<Download, Duration>, RemoteError> {
        let Part { file: download, range, data: mut missing } = part;
        let path = download.task.source.path();
        let whole = range.start == 0 && download.task.length().is_none_or(|n| range.end >= n);
        let grows = download.task.grows && flow.peers.session.can.partial && download.task.size.is_some();
        let partial = download.task.window.is_some() || !whole || grows;
        let (origin, command) = if partial {
            let length = range.end.saturating_sub(range.start);
            // An open end: as much as there is.
            let length = if range.end == u64::MAX { i64::MAX as u64 - range.start } else { length };
            let what = Retrieval::Partial(Window { offset: range.start, length });
            (range.start, Command::Eret { what, path: path.clone() })
        } else {
            (0, Command::Retr(path.clone()))
        };
        // Present ranges are relative to the beginning of the window.
        let there = missing.complement(range.clone()).shift_down(origin);
        let restart = match mode {
            _ if there.is_empty() => None,
            Mode::ExtendedBlock => Some(Restart::Ranges(there)),
            Mode::Stream if there.prefix() > 0 && flow.peers.session.can.restart => {
                missing = RangeSet::from_range(origin + there.prefix()..range.end);
                Some(Restart::Offset(there.prefix()))
            }
            Mode::Stream => {
                missing = RangeSet::from_range(range.clone());
                None
            }
        };
        if partial && !flow.peers.session.can.partial {
            return Err(flow.no_parts());
        }
        let sum = (matches!(download.check, Check::Asked(_)) && whole)
            .then(|| download.check.algorithm())
            .flatten()
            .map(|algorithm| checksum_command(algorithm, &download.task, &path));
        // A REST before it would be about the next file.
        flow.peers.session.control.check(&command)?;
        let mut commands = Vec::new();
        commands.extend(restart.map(|restart| (Purpose::Restart, Command::Rest(restart))));
        commands.push((Purpose::Transfer, command));
        commands.extend(sum.map(|command| (Purpose::Checksum, command)));
        // The status is asked for with the last range only, and servers answer when the transfer is
        // over. Pure-FTPd answers 500 at once to a command that comes while it sends, in place of
        // the reply of the transfer.
        if mode == Mode::ExtendedBlock
            && flow.peers.session.can.facts
            && download.is_unwatched()
            && download.task.size.is_some_and(|size| range == (0..size))
        {
            commands.push((Purpose::Version, Command::Mlst(Some(path))));
        }
        Ok(Submission {
            file: download,
            range,
            data: missing,
            origin,
            own: Duration::ZERO,
            commands: Sides { source: commands, destination: Vec::new() },
        })
    }

    fn step(flow: &mut Flow<'_>) -> Result<(), RemoteError> {
        flow.peers.session.control.flush()?;
        if let Some(id) = flow.pipeline.next_to_move() {
            // A passive sender begins when this side has connected, and a sender that authenticates
            // itself when this side has answered. Otherwise the preliminary reply says which data
            // comes next.
            let begun = flow.pipeline.slot(id).is_some_and(|slot| slot.has_begun(Side::Source));
            if begun || flow.must_connect() { flow.receive(id) } else { flow.await_begin() }?;
        } else if flow.pipeline.pending() > 0 {
            let answer = flow.peers.session.control.answer()?;
            Self::hear(flow, Side::Source, answer);
        }
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

    fn wants_new_channel(&mut self) {
        self.session.control.wants_new_channel = true;
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
        // Data that the server still sends reaches no file.
        true
    }
}

impl Flow<'_> {
    fn no_parts(&self) -> RemoteError {
        let what = "send a part of a file (no ERET)".to_owned();
        RemoteError::Unsupported { peer: self.peers.session.control.peer().to_owned(), what }
    }

    /// Has the server compute the checksum of a source, while other sessions move its data.
    fn ask_sum(&mut self, download: Arc<Download>) -> Result<(), RemoteError> {
        let algorithm = download.check.algorithm().filter(|_| !download.has_failed());
        let Some(algorithm) = algorithm else {
            self.worker.done();
            return Ok(());
        };
        let command = checksum_command(algorithm, &download.task, &download.task.source.path());
        self.pipeline.submit_checksum(Submission {
            file: download,
            range: 0..0,
            data: RangeSet::new(),
            origin: 0,
            own: Duration::ZERO,
            commands: Sides { source: vec![(Purpose::Checksum, command)], destination: Vec::new() },
        });
        self.send_commands()
    }

    /// `sync` by checksum: whether the destination has the same bytes.
    fn same_already(&mut self, task: &Task) -> Result<bool, RemoteError> {
        let Place::Local(path) = &task.destination else { return Ok(false) };
        let Some(algorithm) = self.worker.ctx.comparison(&[&self.peers.session.can]) else {
            return Ok(false);
        };
        let command = checksum_command(algorithm, task, &task.source.path());
        let reply = match self.peers.session.call_reading(&command, task.size) {
            Ok(reply) => reply,
            Err(e) if e.breaks_session() => return Err(e),
            Err(_) => return Ok(false),
        };
        let ours = self.worker.ctx.local_sum(path, algorithm);
        Ok(ours.is_ok_and(|ours| crate::verify::same(&ours, &reply.text().to_str_lossy())))
    }

    /// Whether this side has yet to connect, or to do its part of an authentication.
    fn must_connect(&mut self) -> bool {
        let channel = self.peers.session.channel();
        channel.is_some_and(|c| (!c.listening || c.authenticated) && c.data.cached() == 0)
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

/// Of devices, and of files that are made while they are read, servers tell that they are empty.
fn is_made_up(path: &[u8]) -> bool {
    is_device(path) || path.starts_with(b"/sys/")
}
