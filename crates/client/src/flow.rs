//! Files in flight over a session, or over a pair of sessions: one driver for all routes.
//!
//! A [`Flow`] is owned by the thread of a worker. It has the sessions of a route ([`Peers`]) and
//! the pipeline of the files in flight. It submits jobs, sends the commands that the pipeline
//! makes, and acts on its outcomes: files are completed, fail, or are queued again. [`Peers`]
//! supplies the differences between the routes: how a file is begun, over which data channel it
//! goes, and how its data moves. When a session is lost, the file whose command failed gets the
//! error.

mod settle;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_engine::Stage;
use ropewalk_protocol::command::{Command, Placement, Restart};
use ropewalk_protocol::marker::Marker;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::Mode;
use ropewalk_protocol::upload::UploadId;
use ropewalk_transfer::{
    self as transfer, Checks, File, Heard, Lost, Outgoing, Pipeline, Purpose, Side, Slot, Submission,
};

use crate::RemoteError;
use crate::ahead::Ahead;
use crate::context::Context;
use crate::control::Answer;
use crate::in_flight::InFlight;
use crate::path_defaults::{PathDefaults, SMALL};
use crate::remote_upload::RemoteUpload;
use crate::renewal::Renewal;
use crate::session::Session;
use crate::staging::Staging;
use crate::task::Task;
use crate::tune::{Participant, StreamControl, Wanted, useful_streams};
use crate::work::{Job, Route};
use crate::worker::Worker;

/// A range in flight.
pub(crate) type SlotOf<'w, P> = Slot<<P as Peers>::File, <P as Peers>::Own<'w>>;

/// See the description of the module.
pub(crate) struct Flow<'w, P: Peers> {
    pub worker: &'w Worker<'w>,
    pub peers: P,
    pub participant: Option<Participant>,
    /// Streams that a sending server should use, if they can be changed while it sends.
    pub wanted: Option<Wanted>,
    pub pipeline: Pipeline<P::File, P::Own<'w>>,
    /// The range whose command failed with its session.
    pub failed_command: Option<u64>,
    path: PathDefaults,
}

/// The sessions of a flow, and what differs between the routes.
pub(crate) trait Peers: Sized {
    type File: InFlight;
    /// The driver's own data about a range.
    type Own<'w>: Observer;

    /// The session with the server at this end.
    fn session(&mut self, side: Side) -> &mut Session;

    fn rtt(&self) -> Duration;

    /// Streams of the data channel; 0 if there is none.
    fn streams_of_channel(&self) -> u32;

    /// How the file of this range, of which all has arrived, is to be verified.
    fn checks(&self, ctx: &Context, slot: &SlotOf<'_, Self>) -> Checks;

    /// The commands that give a file at a server its attributes and its name.
    fn naming(&self, ctx: &Context, file: &Self::File) -> Vec<(Purpose, Command)>;

    /// Whether several ranges may be in flight over the channel that is there.
    fn is_pipelined(flow: &mut Flow<'_, Self>) -> bool;

    /// A range moves, and the next one of its file may be asked for, but no other one.
    fn takes_parts(_flow: &Flow<'_, Self>) -> bool {
        false
    }

    /// Begins a file: looks at its source and its destination. An error is one of the task alone,
    /// if the session lives.
    fn begin(flow: &mut Flow<'_, Self>, task: &mut Task) -> Result<Begun<Self::File>, RemoteError>;

    /// A try of the file has failed: asks what the servers have of it now.
    fn ask_again(
        _flow: &mut Flow<'_, Self>,
        _file: &Self::File,
        _range: &Range<u64>,
    ) -> Result<(), RemoteError> {
        Ok(())
    }

    /// A job that is no range of a file of this route.
    fn other_job(_flow: &mut Flow<'_, Self>, job: Job) -> Result<Option<Job>, RemoteError> {
        Ok(Some(job))
    }

    /// Whether several sessions share what is left of this range's file.
    fn shares(_flow: &Flow<'_, Self>, _file: &Self::File, _range: &Range<u64>) -> bool {
        false
    }

    /// The bytes of a range that have to be moved.
    fn data(_flow: &Flow<'_, Self>, file: &Self::File, range: &Range<u64>) -> Result<RangeSet, RemoteError> {
        Ok(file.present().complement(range.clone()))
    }

    /// MODE and number of streams for a file, if this and what is `ahead` of it moves over one
    /// channel.
    fn shape(flow: &Flow<'_, Self>, file: &Self::File, data: &RangeSet, ahead: u64) -> (Mode, u32);

    /// Streams of the data channel, if it can be used once more for a transfer in MODE E.
    fn reusable(_flow: &Flow<'_, Self>) -> Option<u32> {
        None
    }

    /// Makes a data channel.
    fn connect(flow: &mut Flow<'_, Self>, file: &Self::File, shape: (Mode, u32)) -> Result<(), RemoteError>;

    /// The streams of the channel, and how they are changed. `new`: it has just been made.
    fn stream_control(_flow: &mut Flow<'_, Self>, _new: bool) -> Option<(u32, StreamControl)> {
        None
    }

    /// The commands that move a range. An error is one of the range alone, if the session lives.
    fn submission<'w>(
        flow: &mut Flow<'w, Self>,
        part: Part<Self::File>,
        mode: Mode,
    ) -> Result<Submission<Self::File, Self::Own<'w>>, RemoteError>;

    /// Sends the commands of a range.
    fn send(flow: &mut Flow<'_, Self>, _id: u64) -> Result<(), RemoteError> {
        flow.send_commands()
    }

    /// Moves the next file's data, or waits for a reply.
    fn step(flow: &mut Flow<'_, Self>) -> Result<(), RemoteError>;

    /// Takes an answer to the oldest command of a side.
    fn hear(flow: &mut Flow<'_, Self>, side: Side, answer: Answer) {
        let Flow { worker, participant, pipeline, .. } = flow;
        hear(pipeline, worker.ctx, participant.as_ref(), side, answer);
    }

    /// A file is right. Returns how that was proved.
    fn complete(flow: &mut Flow<'_, Self>, slot: &SlotOf<'_, Self>) -> Result<Option<String>, RemoteError>;

    /// A range has failed, of which not all had arrived: its channel may have lost data.
    fn drop_channel(&mut self, _slot: &SlotOf<'_, Self>) {}

    /// The next file is to have a new channel.
    fn wants_new_channel(&mut self) {}

    /// No more data goes to the destination, which may wait for some before it answers.
    fn stop_sending(&mut self) {}

    /// The job that moves this range again, or verifies its file.
    fn again(slot: SlotOf<'_, Self>) -> Job {
        slot.file.job(slot.range)
    }

    /// Ends the sessions. Returns whether the server at the destination is known to be through
    /// with its session.
    fn leave(flow: &mut Flow<'_, Self>) -> bool;

    /// Reports the progress that is lost with a session, and may change its error.
    fn lose(_worker: &Worker<'_>, _lost: &mut Lost<Self::File, Self::Own<'_>>) {}
}

/// The driver's own data about a range, as far as markers change it.
pub(crate) trait Observer {
    /// The streams of a server have waited so long for its storage until now.
    fn waits_for_storage(&mut self, _ctx: &Context, _side: Side, _wait: Duration) {}
}

/// The time for which a server's streams have waited for its storage, by its last marker.
impl Observer for Duration {
    fn waits_for_storage(&mut self, ctx: &Context, side: Side, wait: Duration) {
        let stage = if side == Side::Source { Stage::Source } else { Stage::Destination };
        ctx.report.server_storage(stage, self, wait);
    }
}

/// A range that is to be moved, and the bytes of it that are missing.
pub(crate) struct Part<F> {
    pub file: Arc<F>,
    pub range: Range<u64>,
    pub data: RangeSet,
}

/// A file before anything of it is sent.
pub(crate) enum Begun<F> {
    Yes(Arc<F>),
    /// There was nothing to do.
    Settled,
    /// The pipeline has to run dry first.
    Later,
}

impl<'w, P: Peers> Flow<'w, P> {
    pub(crate) fn new(
        worker: &'w Worker<'w>,
        peers: P,
        participant: Option<Participant>,
        route: transfer::Route,
    ) -> Self {
        let (path, pipeline) = (PathDefaults::new(peers.rtt()), Pipeline::new(route));
        Self { worker, peers, participant, wanted: None, pipeline, failed_command: None, path }
    }

    /// Handles `job` and those of the same route that come after it, until there are none. Returns
    /// the sessions; `None` if one of them broke.
    pub(crate) fn drive(mut self, route: &Route, job: Job) -> Option<P> {
        let mut next = Some(job);
        loop {
            let streams = self.peers.streams_of_channel();
            let ahead = self.worker.ctx.ahead(self.path, self.participant.as_ref(), streams);
            // Further commands are worth a packet.
            let low =
                !self.pipeline.route().moves_here() || self.pipeline.len() <= ahead.depth - ahead.depth / 4;
            while next.is_some() || (low && self.has_room(ahead)) {
                let more = || self.worker.more(route, self.participant.as_ref());
                let Some(job) = next.take().or_else(more) else { break };
                match self.submit(job) {
                    Ok(None) => {}
                    Ok(Some(job)) => {
                        next = Some(job);
                        break;
                    }
                    Err(e) => {
                        self.give_up(e);
                        return None;
                    }
                }
            }
            if self.pipeline.is_empty() && next.is_none() {
                return Some(self.peers);
            }
            if let Err(e) = P::step(&mut self).and_then(|()| self.settle()) {
                if let Some(job) = next {
                    self.worker.put_back(job);
                }
                self.give_up(e);
                return None;
            }
        }
    }

    /// Whether another job may be taken.
    fn has_room(&mut self, ahead: Ahead) -> bool {
        if P::takes_parts(self) {
            return true;
        }
        let sends = self.pipeline.route() != transfer::Route::Download;
        let pipelined = P::is_pipelined(self) && !(sends && self.worker.careful.get() > 0);
        let waiting = || self.pipeline.slots().filter(|slot| !slot.has_moved() && !slot.is_counted());
        // Sizes are what servers report.
        let bytes = waiting().map(|slot| slot.data.len()).fold(0, u64::saturating_add);
        let parts = waiting().filter(|slot| slot.range != slot.file.whole()).count();
        self.pipeline.len() < if pipelined { ahead.depth } else { 1 }
            && ahead.takes(waiting().count(), bytes, parts)
            && !self.pipeline.slots().any(|slot| slot.file.must_be_alone())
            && !(sends && self.pipeline.is_entangled())
    }

    /// Sends the commands for a job. Returns it if it has to wait until nothing else is in flight:
    /// it needs another data channel. An error is one of the session; one of the job alone is
    /// settled here.
    fn submit(&mut self, job: Job) -> Result<Option<Job>, RemoteError> {
        if let (Some(front), true) = (self.pipeline.front(), P::takes_parts(self)) {
            let next = P::File::of_job(&job).is_some_and(|(file, _)| Arc::ptr_eq(file, &front.file));
            if !next {
                return Ok(Some(job));
            }
        }
        let (file, range) = match job {
            Job::File(mut task) => match P::begin(self, &mut task) {
                Ok(Begun::Yes(file)) => {
                    let whole = file.whole();
                    (file, whole)
                }
                Ok(Begun::Settled) => return Ok(None),
                Ok(Begun::Later) => return Ok(Some(Job::File(task))),
                Err(e) => return self.worker.failed(Job::File(task), e).map(|()| None),
            },
            job => match P::File::of_job(&job) {
                Some((file, range)) => (file.clone(), range.clone()),
                None => return P::other_job(self, job),
            },
        };
        if file.has_failed() {
            self.worker.done();
            return Ok(None);
        }
        if file.was_tried() {
            if !self.pipeline.is_empty() {
                return Ok(Some(file.job(range)));
            }
            if let Err(e) = P::ask_again(self, &file, &range) {
                return self.worker.failed(file.job(range), e).map(|()| None);
            }
        }
        if let Some(remote) = file.remote() {
            remote.is_begun(&range);
        }
        if file.must_be_alone() && !self.pipeline.is_empty() {
            return Ok(Some(file.job(range)));
        }
        let range = self.cut_range(&file, range);
        let data = match P::data(self, &file, &range) {
            Ok(data) => data,
            Err(e) => {
                self.worker.fail(file.job(range), e);
                return Ok(None);
            }
        };
        let ahead = self.worker.ahead(&file, data.len());
        let (mode, streams) = P::shape(self, &file, &data, ahead);
        let there = P::reusable(self).filter(|_| mode == Mode::ExtendedBlock);
        // If the path is tuned, streams come and go.
        let fits = there.is_some_and(|there| there >= streams || self.participant.is_some() && there > 1);
        if !fits {
            if !self.pipeline.is_empty() {
                return Ok(Some(file.job(range)));
            }
            if let Err(e) = P::connect(self, &file, (mode, streams)) {
                return self.worker.failed(file.job(range), e).map(|()| None);
            }
        }
        self.report_channel(!fits, ahead);
        let part = Part { file: file.clone(), range: range.clone(), data };
        match P::submission(self, part, mode) {
            Ok(submission) => {
                let id = self.pipeline.submit(submission);
                P::send(self, id).map(|()| None)
            }
            Err(e) => self.worker.failed(file.job(range), e).map(|()| None),
        }
    }

    /// Takes as much of a range as this session should move now, and leaves the rest to the next
    /// one that is free.
    fn cut_range(&self, file: &Arc<P::File>, range: Range<u64>) -> Range<u64> {
        if !P::shares(self, file, &range) {
            return range;
        }
        self.worker.cut_range(file, range, self.participant.as_ref(), self.peers.streams_of_channel())
    }

    /// Streams for a data channel over which so many bytes of a file move. `elastic`: their number
    /// can be changed while they do. `divides`: other sessions move ranges of the same file.
    ///
    /// In this order: the number that the user set, or one if the file is small; the part of a
    /// tuned path that the tuner gives this session; the default of the path, divided among the
    /// sessions that move the file. Copies through this host use one stream (`through`), and
    /// third-party copies of whole files the streams of all sessions (`third_party`).
    pub(crate) fn streams(&self, file: &P::File, bytes: u64, elastic: bool, divides: bool) -> u32 {
        let (ctx, length) = (self.worker.ctx, file.task().length());
        let path = PathDefaults::new(self.peers.rtt());
        let streams = path.streams(ctx.options(), length.map(|_| bytes), file.is_kept());
        if let Some(participant) = self.participant.as_ref().filter(|_| streams > 1) {
            return participant.share(elastic, useful_streams(bytes), ctx.sessions_on_file(length));
        }
        if divides { ctx.streams_per_session(streams, length) } else { streams }
    }

    /// Decides from now on whether the transfer at the front, of which so many bytes have moved, is
    /// broken off for new data nodes.
    pub(crate) fn renewal(&self, moved: u64) -> Renewal {
        let left = self.pipeline.slots().filter(|slot| !slot.has_moved()).map(|slot| slot.data.len());
        let left = left.fold(0, u64::saturating_add).saturating_sub(moved);
        Renewal::new(left, self.peers.rtt(), Instant::now())
    }

    /// The data channel, `new` or perhaps of an earlier flow, is used for so many bytes or more.
    fn report_channel(&mut self, new: bool, bytes: u64) {
        if self.participant.is_none() {
            return;
        }
        let Some((streams, control)) = P::stream_control(self, new) else { return };
        let Some(participant) = &self.participant else { return };
        match new {
            true => participant.opened(streams, useful_streams(bytes), control),
            false => participant.used_again(streams, useful_streams(bytes), control),
        }
    }

    /// Sends the commands that the pipeline has made.
    pub(crate) fn send_commands(&mut self) -> Result<(), RemoteError> {
        while let Some(outgoing) = self.pipeline.next_command() {
            self.send_command(outgoing)?;
        }
        Ok(())
    }

    pub(crate) fn send_command(&mut self, outgoing: Outgoing) -> Result<(), RemoteError> {
        let Outgoing { id, side, purpose, command } = outgoing;
        let control = &mut self.peers.session(side).control;
        // Commands of one session leave with its next flush, several in one packet.
        let sent = match self.pipeline.route().moves_here() {
            true => control.queue(&command),
            false => control.send(&command),
        };
        sent.inspect_err(|_| self.failed_command = Some(id))?;
        if matches!(purpose, Purpose::Checksum | Purpose::Size | Purpose::Commit) {
            let slot = self.pipeline.slot(id);
            let bytes = slot.and_then(|slot| slot.file.task().size.or(Some(slot.file.bytes())));
            control.last_reads(bytes.filter(|bytes| *bytes > 0));
        }
        Ok(())
    }

    /// Whether what an earlier transfer has left of a file at the destination can be used.
    pub(crate) fn is_resumable(&self, task: &Task) -> bool {
        let options = self.worker.ctx.options();
        options.recovery.resume
            && !options.storage.in_place
            && !options.data.ascii
            && task.window.is_none()
            && !task.apart
            && !task.is_to_device()
            && task.size.is_some_and(|size| size > SMALL)
    }

    /// The destination has the same bytes, as `proof` says: there is nothing left to do.
    pub(crate) fn have_already(&mut self, task: &Task, proof: String) -> Result<Begun<P::File>, RemoteError> {
        if task.confirm {
            // The session that gave it its name may have ended before.
            let session = self.peers.session(Side::Destination);
            self.worker.preserve(session, task, &task.destination.path())?;
        }
        self.worker.have_already(task.clone(), proof);
        Ok(Begun::Settled)
    }

    /// Where the data of a file waits at the destination, and the ranges of it that an interrupted
    /// transfer has left. `known` are those that markers reported.
    pub(crate) fn stage(
        &mut self,
        task: &Task,
        known: Option<RangeSet>,
    ) -> Result<(Staging, RangeSet), RemoteError> {
        let (options, session) = (self.worker.ctx.options(), self.peers.session(Side::Destination));
        let staging = match options.storage.in_place {
            true => Staging::InPlace,
            false => Staging::apart(task, session, options, known.is_some()),
        };
        let present = known.map(|known| staging.received(session, known, task)).transpose()?;
        Ok((staging, present.unwrap_or_default()))
    }

    /// A file that a server receives has been begun.
    pub(crate) fn begun(
        &mut self,
        file: Arc<P::File>,
        remote: &RemoteUpload,
        resumable: bool,
    ) -> Result<Begun<P::File>, RemoteError> {
        let (ctx, present) = (self.worker.ctx, remote.present());
        if resumable {
            ctx.states.save(&remote.task, &present);
        }
        ctx.report.started(&remote.task, present.len());
        if present.is_empty() && P::shares(self, &file, &file.whole()) {
            let cleared = remote.staging.clear(self.peers.session(Side::Destination));
            cleared.inspect_err(|_| ctx.report.put_back())?;
        }
        Ok(Begun::Yes(file))
    }

    /// Hears why a server has closed its data connections, until `over`.
    pub(crate) fn last_words(&mut self, side: Side, over: impl Fn(&Pipeline<P::File, P::Own<'w>>) -> bool) {
        let Self { worker, peers, participant, pipeline, .. } = self;
        peers.session(side).control.last_words(&mut |answer| {
            if let Some(answer) = answer {
                hear(pipeline, worker.ctx, participant.as_ref(), side, answer);
            }
            over(pipeline)
        });
    }

    /// The commands with which the destination receives data.
    ///
    /// # Errors
    /// The name of the file cannot be sent.
    pub(crate) fn receiving(
        &mut self,
        remote: &RemoteUpload,
        at: At,
    ) -> Result<Vec<(Purpose, Command)>, RemoteError> {
        let ids = self.pipeline.slots().filter_map(|slot| slot.file.remote()?.staging.upload());
        let in_flight: Vec<UploadId> = ids.map(|plan| plan.id.clone()).collect();
        let session = self.peers.session(Side::Destination);
        let mut commands = Vec::new();
        if let Some(plan) = remote.staging.upload() {
            commands = session.releases(|id| *id == plan.id || in_flight.contains(id));
            session.begins(&plan.id);
            commands.extend(plan.transfer(at.offset));
        } else {
            let place = remote.asks_for_place(&session.can, self.worker.ctx.options().preserve);
            commands.extend(place.map(|command| (Purpose::Replaced, command)));
            let size = at.size.filter(|size| *size > SMALL);
            commands.extend(size.map(|size| (Purpose::Hint, Command::Allo(size))));
            commands.extend(at.restart.map(|restart| (Purpose::Restart, Command::Rest(restart))));
            let path = remote.path.clone();
            let store = match at.adjusted {
                Some(offset) => Command::Esto { place: Placement::Adjusted(offset), path },
                None => Command::Stor(path),
            };
            commands.push((Purpose::Transfer, store));
        }
        // Commands before one that cannot be sent would be about the next file.
        let mut named =
            commands.iter().filter(|(purpose, _)| matches!(purpose, Purpose::Begin | Purpose::Transfer));
        named.try_for_each(|(_, command)| session.control.check(command))?;
        Ok(commands)
    }
}

/// Where the data of a range belongs in a file at a server.
pub(crate) struct At {
    /// The size of the file, if all of it is sent.
    pub size: Option<u64>,
    /// The offset in an upload.
    pub offset: u64,
    pub restart: Option<Restart>,
    /// ESTO with this offset, in place of STOR.
    pub adjusted: Option<u64>,
}

/// Takes an answer to the oldest command of a side.
pub(crate) fn hear<F: InFlight, O: Observer>(
    pipeline: &mut Pipeline<F, O>,
    ctx: &Context,
    participant: Option<&Participant>,
    side: Side,
    answer: Answer,
) {
    if let (Side::Source, Some(participant), Answer::Marker(Marker::Path(path))) =
        (side, participant, &answer)
    {
        participant.hears(*path);
    }
    let reply = match answer {
        Answer::Final(reply) => reply,
        Answer::Queued(place) => {
            if let Some(slot) = pipeline.oldest(side).and_then(|(id, _)| pipeline.slot(id)) {
                ctx.report.queued(slot.file.task(), side, place);
            }
            return;
        }
        // 150 and 125; markers come only after them.
        answer => {
            let id = pipeline.preliminary(side);
            let Some(slot) = id.and_then(|id| pipeline.slot_mut(id)) else { return };
            match (answer, slot.file.remote()) {
                (Answer::Marker(Marker::Range(ranges)), Some(remote)) if side == Side::Destination => {
                    let Some(ranges) = ranges.shift_up(slot.origin) else { return };
                    let present = remote.add_present(&ranges);
                    if remote.task.size.is_some_and(|size| size > SMALL) && !remote.is_direct() {
                        ctx.states.save(&remote.task, &present);
                    }
                    let sent = slot.has_moved() || slot.has_ended(Side::Source);
                    if sent && remote.task.destination.is_behind_relay() {
                        ctx.report.forwarding(&remote.task, present.len());
                    }
                }
                (Answer::Marker(Marker::Storage(wait)), _) => slot.own.waits_for_storage(ctx, side, wait),
                _ => {}
            }
            return;
        }
    };
    match pipeline.reply(side, reply) {
        Heard::NotPreserved { id, reply } => {
            if let Some(slot) = pipeline.slot(id) {
                let (place, why) = (&slot.file.task().destination, crate::model::error::text(&reply));
                ctx.report.not_preserved(place, Some(reply.code()), &why);
            }
        }
        Heard::NotCompared { id } => {
            if let Some(slot) = pipeline.slot(id) {
                ctx.report.not_compared(&slot.file.task().destination);
            }
        }
        Heard::Nothing | Heard::Ended => {}
    }
}
