//! Files from here to a server: pipelined STORs over one cached data channel, ranges of big files
//! by ESTO.
//!
//! In a pipeline the data of a file is sent before the server has confirmed that it opened the
//! file. If the server refuses, it takes the data that comes next for the following file. So no
//! file gets its final name before the server has confirmed it and everything before it. A refusal
//! ends the pipeline, and the files after it are sent again, for a while one by one.

mod data;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use ropewalk_engine::{Progress, SendJob};
use ropewalk_protocol::command::{Command, Restart};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::Mode;
use ropewalk_storage::checksum::Hasher;
use ropewalk_transfer::{self as transfer, Checks, Lost, Moved, Purpose, Side, Sides, Slot, Submission};

use crate::RemoteError;
use crate::context::Context;
use crate::control::{Answer, LAST_WORDS};
use crate::flow::{At, Begun, Part, Peers, hear};
use crate::path_defaults::RANGE;
use crate::place::{Endpoint, Place};
use crate::report::{Meter, signed};
use crate::session::{Channel, Session};
use crate::source::{Source, Summing};
use crate::task::Task;
use crate::tune::{StreamControl, kernel_permits};
use crate::upload::{Manner, Upload, UploadSource};
use crate::verify::{Check, proved};
use crate::watch::Watch;
use crate::work::{Job, Route};
use crate::worker::{CAREFUL, Worker};

/// From this round trip on, a file that we send goes over one session.
const FAR: Duration = Duration::from_millis(5);

/// The session with the server that receives.
pub(crate) struct Receiver {
    session: Session,
}

type Flow<'w> = crate::flow::Flow<'w, Receiver>;

/// Handles `job` and the jobs of the same kind after it, until there are none or the session
/// breaks.
pub(crate) fn run(worker: &Worker<'_>, endpoint: &Arc<Endpoint>, job: Job) {
    let Some((session, participant, job)) = worker.tuned_session(endpoint, job) else { return };
    let route = Route::Put(endpoint.clone());
    session.offer_driver(kernel_permits("bbr"));
    let flow = Flow::new(worker, Receiver { session }, participant, transfer::Route::Upload);
    let Some(Receiver { session }) = flow.drive(&route, job) else { return };
    worker.keep(session);
}

impl Peers for Receiver {
    type File = Upload;
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

    fn checks(&self, ctx: &Context, slot: &Slot<Upload, Duration>) -> Checks {
        let (upload, mut checks) = (&slot.file, Checks::default());
        if upload.staging.upload().is_some() {
            // The server compares size and sum when it is committed.
        } else if upload.needs_sum() || slot.is_expectation_unknown() {
            let Range { start, end } = upload.wanted;
            let command = |algorithm| upload.checksum_command(algorithm, start, Some(end - start));
            checks.checksums.destination = upload.check.algorithm().map(command);
        } else if upload.check == Check::Size
            && self.session.can.size
            && !upload.device()
            && !ctx.options().data.ascii
        {
            checks.size = Some(Command::Size(upload.path.clone()));
        }
        checks
    }

    fn naming(&self, ctx: &Context, upload: &Upload) -> Vec<(Purpose, Command)> {
        let sent = upload.size_of_stream().filter(|_| !ctx.options().data.ascii);
        upload.naming(&self.session, ctx.options().preserve, sent, upload.upload_proof())
    }

    fn is_pipelined(flow: &mut Flow<'_>) -> bool {
        flow.peers.session.channel().is_none_or(|c| c.mode == Mode::ExtendedBlock)
    }

    fn begin(flow: &mut Flow<'_>, task: &mut Task) -> Result<Begun<Upload>, RemoteError> {
        let ctx = flow.worker.ctx;
        let options = ctx.options();
        let source = Source::open(task, &*ctx.store)?;
        if options.storage.in_place
            && !task.destination_program
            && flow.peers.session.is_here()
            && let Place::Local(path) = &task.source
            && let Ok(here) = ctx.store.stat(path, true)
        {
            if !flow.pipeline.is_empty() {
                return Ok(Begun::Later);
            }
            flow.peers.session.is_apart(task, (here.device, here.inode))?;
        }
        ctx.tell_of_times(&flow.peers.session);
        let resumable = flow.is_resumable(task);
        let known = ctx.states.claim(task, resumable, flow.peers.session.shares_part_names());
        let ask = known.is_some()
            || task.compares()
            || task.confirm
            || flow.peers.session.would_truncate(task)
            || (resumable && flow.cuts(task));
        if ask && !flow.pipeline.is_empty() {
            return Ok(Begun::Later);
        }
        flow.peers.session.spare_beginning(task)?;
        if (task.compares() || task.confirm)
            && let Some(proof) = flow.same_already(task)?
        {
            return flow.have_already(task, proof);
        }
        let (staging, present) = flow.stage(task, known)?;
        let check = ctx.check(&flow.peers.session)?;
        let can = &flow.peers.session.can;
        let expect = can.may_expect_checksums() && flow.peers.session.preferred_mode() == Mode::ExtendedBlock;
        let manner = Manner { check, atomic: can.replace, staging, expect, present };
        ctx.report.anew(task);
        let upload = Upload::begin(task.clone(), source, manner)?;
        flow.begun(upload.clone(), &upload, resumable)
    }

    fn ask_again(flow: &mut Flow<'_>, upload: &Upload, range: &Range<u64>) -> Result<(), RemoteError> {
        flow.worker.ask_again(&mut flow.peers.session, upload, range)
    }

    fn shares(flow: &Flow<'_>, upload: &Upload, _: &Range<u64>) -> bool {
        let left = (upload.wanted.end - upload.wanted.start).saturating_sub(upload.resumed);
        let ranged = matches!(upload.source, UploadSource::Ranged(_));
        !upload.is_direct() && ranged && left >= 2 * RANGE && flow.cuts(&upload.task)
    }

    fn data(flow: &Flow<'_>, upload: &Upload, range: &Range<u64>) -> Result<RangeSet, RemoteError> {
        // A window is written into what is there: its holes have to become zeros.
        let sparse = flow.worker.ctx.options().storage.sparse
            && flow.mode(upload) == Mode::ExtendedBlock
            && upload.task.window.is_none()
            && !upload.device();
        upload.data(range.clone(), sparse)
    }

    fn shape(flow: &Flow<'_>, upload: &Upload, _: &RangeSet, ahead: u64) -> (Mode, u32) {
        let (mode, session) = (flow.mode(upload), &flow.peers.session);
        if mode == Mode::Stream || session.needs_one_stream(&upload.task) {
            return (mode, 1);
        }
        (mode, flow.streams(upload, ahead, true, flow.worker.ctx.divides_files(session)))
    }

    fn reusable(flow: &Flow<'_>) -> Option<u32> {
        flow.peers.session.reusable(true)
    }

    fn connect(
        flow: &mut Flow<'_>,
        upload: &Upload,
        (mode, streams): (Mode, u32),
    ) -> Result<(), RemoteError> {
        let session = &mut flow.peers.session;
        session.wants_path = flow.participant.is_some() && streams > 1;
        session.wants_resend = true;
        session.sending(mode, streams, upload.check.inline())
    }

    fn stream_control(flow: &mut Flow<'_>, _: bool) -> Option<(u32, StreamControl)> {
        let channel = flow.peers.session.channel()?;
        Some((channel.spread.connections(channel.streams), stream_control(channel)))
    }

    fn submission<'w>(
        flow: &mut Flow<'w>,
        part: Part<Upload>,
        mode: Mode,
    ) -> Result<Submission<Upload, Duration>, RemoteError> {
        let Part { file: upload, range, mut data } = part;
        let whole = upload.task.window.is_none() && range == upload.wanted;
        let present = upload.present();
        let mut commands = Vec::new();
        if let Some((algorithm, value)) =
            upload.expected.as_ref().filter(|_| upload.staging.upload().is_none())
        {
            let command = Command::Scks { algorithm: *algorithm, value: value.as_str().into() };
            commands.push((Purpose::Expect, command));
        }
        let offset = match mode {
            Mode::Stream if whole => present.prefix(),
            Mode::Stream => range.start,
            // Offsets on the wire stay those of the file.
            Mode::ExtendedBlock => 0,
        };
        if mode == Mode::Stream {
            data = RangeSet::from_range(offset..range.end);
        }
        // STOR from the beginning would leave nothing of a file whose window is sent.
        let into = upload.task.window.is_some() && flow.peers.session.can.partial;
        // ESTO does not truncate.
        let truncates = whole && present.is_empty() || mode == Mode::Stream && !into;
        commands.extend(flow.receiving(
            &upload,
            At {
                size: upload.task.length().filter(|_| whole),
                offset,
                restart: (truncates && offset > 0).then_some(Restart::Offset(offset)),
                adjusted: (!truncates).then_some(offset),
            },
        )?);
        Ok(Submission {
            file: upload,
            range,
            data,
            origin: 0,
            own: Duration::ZERO,
            commands: Sides { source: Vec::new(), destination: commands },
        })
    }

    fn step(flow: &mut Flow<'_>) -> Result<(), RemoteError> {
        flow.peers.session.control.flush()?;
        match flow.pipeline.next_to_move().and_then(|id| flow.pipeline.slot(id).map(|slot| (id, slot))) {
            // It starts again, and what is sent now would be of the source as it was.
            Some((_, slot)) if slot.file.has_failed() => return Err(RemoteError::Desynchronized),
            Some((id, slot)) => {
                let begun = slot.has_begun(Side::Destination);
                let fresh = flow.peers.session.channel().is_none_or(|c| c.data.cached() == 0);
                if fresh || flow.worker.careful.get() == 0 || begun {
                    return flow.transfer(id);
                }
            }
            None if flow.pipeline.pending() > 0 => {}
            None => return Ok(()),
        }
        let answer = flow.peers.session.control.answer()?;
        Self::hear(flow, Side::Destination, answer);
        Ok(())
    }

    fn complete(_: &mut Flow<'_>, slot: &Slot<Upload, Duration>) -> Result<Option<String>, RemoteError> {
        Ok(slot.file.proof())
    }

    fn drop_channel(&mut self, _: &Slot<Upload, Duration>) {
        // Data may have been discarded by the server.
        self.session.drop_channel();
    }

    fn stop_sending(&mut self) {
        self.session.drop_channel();
    }

    fn leave(flow: &mut Flow<'_>) -> bool {
        let session = &mut flow.peers.session;
        flow.worker.ctx.report.waited(session.control.waited);
        session.leave(LAST_WORDS)
    }

    fn lose(worker: &Worker<'_>, lost: &mut Lost<Upload, Duration>) {
        let upload = &lost.slot.file;
        if lost.slot.has_moved() && !lost.slot.is_counted() {
            // It is sent again, except for what is known to be there.
            let mut unconfirmed = lost.slot.data.clone();
            unconfirmed.subtract(&upload.present());
            worker.ctx.report.there(&upload.task.account, -signed(unconfirmed.len()));
        }
        if upload.is_spent() {
            let broken = || RemoteError::Usage("the session broke".to_owned());
            lost.error = Some(upload.once_only(lost.error.take().unwrap_or_else(broken)));
        }
    }
}

impl Flow<'_> {
    fn mode(&self, upload: &Upload) -> Mode {
        match upload.source {
            UploadSource::Ranged(_) => self.peers.session.preferred_mode(),
            // In order, and of unknown length.
            UploadSource::Stream(_) => Mode::Stream,
        }
    }

    /// Whether a file of this size would be cut up between sessions.
    fn cuts(&self, task: &Task) -> bool {
        self.peers.session.can.partial
            && self.worker.ctx.divides_files(&self.peers.session)
            && !self.suffices()
            && self.peers.session.preferred_mode() == Mode::ExtendedBlock
            && task.size.is_some_and(|size| size >= 2 * RANGE)
            && self.worker.ctx.range_size(RANGE, self.participant.as_ref(), 1).is_some()
    }

    /// Whether one session can use the whole path. Between two ranges of a file streams wait for
    /// each other and for round trips; if these are short, the single thread of the server is the
    /// limit.
    fn suffices(&self) -> bool {
        let tuned = self.participant.is_some() && self.worker.ctx.options().tuning.files == crate::Auto::Auto;
        tuned && self.peers.session.control.rtt() >= FAR
    }

    /// How it was proved that the destination has the same bytes; `None` where it has not.
    fn same_already(&mut self, task: &Task) -> Result<Option<String>, RemoteError> {
        let Place::Local(path) = &task.source else { return Ok(None) };
        let Some(algorithm) = self.worker.ctx.comparison(&[&self.peers.session.can]) else { return Ok(None) };
        let theirs = self.peers.session.checksum(&task.destination.path(), algorithm, None, task.size);
        let Some(theirs) = task.unless_missing(theirs)? else { return Ok(None) };
        let ours = self.worker.ctx.local_sum(path, algorithm)?;
        Ok(proved(algorithm, &ours, &theirs))
    }
}

/// How the streams of a channel over which we send are changed.
fn stream_control(channel: &Channel) -> StreamControl {
    match channel.streams {
        0 | 1 => StreamControl::Fixed,
        _ => StreamControl::Here(channel.data.parallelism(), channel.data.congestion(), channel.spread),
    }
}
