//! Files from one server to another; no data passes here.
//!
//! The destination is passive and gets its STOR first, the source connects to it. Files are pipelined on both control
//! connections. Should one side refuse a file, the other takes what comes next for it: so data goes to a part name, and a file
//! gets its own name only when both sides have confirmed it and everything before it.

mod begin;
mod finish;
mod meeting;
mod moving;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bstr::ByteSlice;
use ropewalk_protocol::client::answer;
use ropewalk_protocol::command::{Command, Placement, Restart, Retrieval};
use ropewalk_protocol::marker::Marker;
use ropewalk_protocol::opts::Options as Opts;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Mode, Window};
use ropewalk_protocol::upload::UploadId;

use ropewalk_transfer::{
    self as transfer, Checks, Heard, Left, Outcome, Outgoing, Pipeline, Purpose, Side, Sides, Site, Slot,
    Submission,
};

use crate::ahead::Ahead;
use crate::context::Context;
use crate::control::{Answer, Control, LAST_WORDS, LONG};
use crate::get::checksum_command;
use crate::path_defaults::{PathDefaults, RANGE, SMALL};
use crate::place::{Endpoint, Meeting};
use crate::relay::Relay;
use crate::report::Meter;
use crate::session::{Binding, Session, active, agree, port};
use crate::setup::reachable;
use crate::staging::Staging;
use crate::task::Task;
use crate::tune::{Ends, Participant, StreamControl, Wanted, useful_streams};
use crate::verify::{Check, choose, proved};
use crate::watch::{AT_ONCE, Stall};
use crate::work::{Job, Route};
use crate::worker::{CAREFUL, Steps, Worker, report_refusal};
use crate::{ChecksumPolicy, DataMode, RemoteError};

use moving::Moving;

/// How often a running transfer is looked after when no reply comes.
const TICK: Duration = Duration::from_secs(1);

/// A range of a file.
type Part = (Arc<Relay>, Range<u64>);

struct Flow<'w> {
    worker: &'w Worker<'w>,
    source: Session,
    destination: Session,
    participant: Option<Participant>,
    /// Streams that the source should use, where they can be changed while it sends.
    wanted: Option<Wanted>,
    pipeline: Pipeline<Relay, Moving<'w>>,
    path: PathDefaults,
    /// Where the two meet for data.
    meeting: Meeting,
    /// MODE and streams of the data channel between the two; `None` before there is one.
    channel: Option<(Mode, u32)>,
    /// The key of that channel, where both servers take one.
    binding: Option<Binding>,
    stall: Stall,
    /// When that and servers that do not answer were looked for last.
    looked: Instant,
    moved: u64,
    /// Since when the source has not said that it is done, although the destination has.
    overdue: Option<Instant>,
    /// Since when a destination of MODE S, whose source is done, has not said that it is.
    late: Option<Instant>,
    /// MODE S: the file, its size at the destination when it was asked for last, and whether it has grown before.
    seen: Option<(u64, u64, bool)>,
    /// The file whose command a session broke at.
    culprit: Option<u64>,
}

/// Handles `job` and those of the same kind that come after it, until there are none or a session breaks.
pub(crate) fn run(worker: &Worker<'_>, from: &Arc<Endpoint>, to: &Arc<Endpoint>, job: Job) {
    let job = worker.cut_before_log_in(job);
    let (mut source, mut destination) = match worker.session_pair(from, to) {
        Ok(pair) => pair,
        Err(e) => return worker.fail(job, e),
    };
    // Both servers need the same driver.
    if let Err(e) = source.restore_driver().and_then(|()| destination.restore_driver()) {
        return worker.fail(job, e);
    }
    worker.ctx.report.goes_elsewhere();
    let rtt = source.control.rtt().max(destination.control.rtt());
    let ends = Ends { source: Some(from.name.clone()), destination: Some(to.name.clone()) };
    let participant = worker.participant(ends, rtt);
    let flow = Flow {
        worker,
        participant,
        wanted: None,
        path: PathDefaults::new(rtt),
        stall: Stall::new(worker.ctx.options().timeouts.stall),
        looked: Instant::now(),
        source,
        destination,
        pipeline: Pipeline::new(transfer::Route::ThirdParty),
        meeting: Meeting::default(),
        channel: None,
        binding: None,
        moved: 0,
        overdue: None,
        late: None,
        seen: None,
        culprit: None,
    };
    let route = Route::Third(from.clone(), to.clone());
    let Some(mut flow) = worker.drive(flow, &route, job) else { return };
    worker.keep(flow.source);
    if worker.ctx.options().data.delayed_passive {
        // It would answer every PASV with a delay.
        let _ = flow.destination.control.hear_out();
        flow.destination.quit();
    } else {
        worker.keep(flow.destination);
    }
}

impl Steps for Flow<'_> {
    fn ahead(&mut self) -> Ahead {
        let streams = self.channel.map_or(0, |(_, streams)| streams);
        self.worker.ctx.ahead(self.path, self.participant.as_ref(), streams)
    }

    fn is_low(&self, _ahead: Ahead) -> bool {
        true
    }

    fn has_room(&mut self, ahead: Ahead) -> bool {
        let under_way = || self.pipeline.slots().filter(|slot| !slot.is_counted());
        let lengths = under_way().map(|slot| slot.range.end - slot.range.start);
        let waiting = lengths.fold(0, u64::saturating_add);
        let pipelined = matches!(self.channel, None | Some((Mode::ExtendedBlock, 1)))
            && self.worker.careful.get() == 0
            // In place: if another file were refused, this one would get its data.
            && !self.pipeline.slots().any(|slot| slot.file.is_direct())
            && !self.worker.ctx.options().data.delayed_passive;
        if self.takes_parts() {
            return true;
        }
        let parts = under_way().filter(|slot| is_part(slot)).count();
        self.pipeline.len() < if pipelined { ahead.depth } else { 1 }
            && ahead.takes(under_way().count(), waiting, parts)
            && !self.pipeline.is_entangled()
    }

    fn is_empty(&self) -> bool {
        self.pipeline.is_empty()
    }

    fn participant(&self) -> Option<&Participant> {
        self.participant.as_ref()
    }

    fn submit(&mut self, job: Job) -> Result<Option<Job>, RemoteError> {
        if let (Some(slot), true) = (self.pipeline.front(), self.takes_parts()) {
            match job {
                Job::Third(relay, range) if Arc::ptr_eq(&relay, &slot.file) && !relay.was_tried() => {
                    return self.go_on(relay, range);
                }
                other => return Ok(Some(other)),
            }
        }
        let (relay, range) = match job {
            Job::Third(relay, range) => {
                let again = relay.was_tried();
                if again && !self.pipeline.is_empty() {
                    return Ok(Some(Job::Third(relay, range)));
                }
                if again {
                    if let Err(e) = self.unchanged(&relay.task) {
                        return self.worker.failed(Job::Third(relay, range), e).map(|()| None);
                    }
                    if let Err(e) = self.worker.ask_again(&mut self.destination, &relay, &range) {
                        return self.worker.failed(Job::Third(relay, range), e).map(|()| None);
                    }
                }
                (relay, range)
            }
            Job::File(mut task) => {
                let resumable = self.resumable(&task);
                let locks = self.destination.shares_part_names();
                let known = self.worker.ctx.states.claim(&mut task, resumable, locks);
                let alone = task.size.is_none()
                    || task.tries.total > 0
                    || task.compares()
                    || task.confirm
                    || self.worker.ctx.options().storage.in_place
                    || known.is_some()
                    || self.worker.careful.get() > 0
                    || task.size.is_some_and(|size| size >= 2 * RANGE);
                if alone && !self.pipeline.is_empty() {
                    return Ok(Some(Job::File(task)));
                }
                let again = task.clone();
                let ask = alone && !task.source_program;
                match self.begin(task, ask, known, resumable) {
                    Ok(Some(begun)) => begun,
                    Ok(None) => return Ok(None),
                    Err(e) => {
                        return self.worker.failed(Job::File(again), e).map(|()| None);
                    }
                }
            }
            other => return Ok(Some(other)),
        };
        self.go_on(relay, range)
    }

    fn step(&mut self) -> Result<(), RemoteError> {
        let heard = self.listen(Side::Destination)? | self.listen(Side::Source)?;
        if !heard {
            Control::wait_either(&self.source.control, &self.destination.control, Instant::now() + TICK)?;
        } else if self.worker.ctx.cancel.is_cancelled() {
            return Err(RemoteError::Cancelled);
        }
        // Also where one of them talks without end.
        if !heard || self.looked.elapsed() >= TICK {
            self.looked = Instant::now();
            self.look_after()?;
        }
        self.settle()
    }

    fn abandon(self, error: RemoteError) {
        self.give_up(error);
    }
}

impl<'w> Flow<'w> {
    fn mode(&self) -> Mode {
        let both = self.source.can.extended && self.destination.can.extended;
        match self.worker.ctx.options().data.mode {
            DataMode::Stream => Mode::Stream,
            DataMode::Extended => Mode::ExtendedBlock,
            DataMode::Auto if both && !self.worker.ctx.options().data.ascii => Mode::ExtendedBlock,
            DataMode::Auto => Mode::Stream,
        }
    }

    /// One range of a file that is cut up moves, as markers say: the next one may be asked for. Nothing else, where there are several
    /// connections: were it refused, what came for it would go to others.
    fn takes_parts(&self) -> bool {
        let several = matches!(self.channel, Some((Mode::ExtendedBlock, streams)) if streams > 1);
        let one = self.pipeline.front().filter(|slot| self.pipeline.len() == 1 && several && is_part(slot));
        one.is_some_and(|slot| slot.error.is_none() && !slot.file.is_direct() && !slot.own.stripes.is_empty())
    }

    fn go_on(&mut self, relay: Arc<Relay>, range: Range<u64>) -> Result<Option<Job>, RemoteError> {
        if relay.has_failed() {
            self.worker.done();
            return Ok(None);
        }
        relay.is_begun(&range);
        if relay.is_direct() && !self.pipeline.is_empty() {
            return Ok(Some(Job::Third(relay, range)));
        }
        let range = self.cut_range(&relay, range);
        let ahead = self.worker.ahead(&relay, range.end - range.start);
        let mode = self.mode();
        let streams = if mode == Mode::Stream || self.destination.needs_one_stream(&relay.task) {
            1
        } else {
            let rtt = self.source.control.rtt().max(self.destination.control.rtt());
            let size = relay.task.length().map(|_| ahead);
            let streams = PathDefaults::new(rtt).streams(self.worker.ctx.options(), size, !relay.device());
            let participant = self.participant.as_ref().filter(|_| streams > 1);
            let big = relay.task.length().is_some_and(|length| length >= 2 * RANGE);
            let whole = big && self.cuts() && !self.shares(&relay);
            if whole && !self.source.can.streams {
                // No other session takes a part of it, and this one cannot have more streams later.
                self.worker.ctx.streams_of_whole_file(streams)
            } else if let Some(participant) = participant {
                let most = size.map_or(u32::MAX, useful_streams);
                let workers = self.worker.ctx.sessions_on_file(relay.task.length());
                participant.share(self.source.can.streams, most, workers)
            } else if self.cuts() {
                self.worker.ctx.streams_per_session(streams, relay.task.length())
            } else {
                streams
            }
        };
        let fits = mode == Mode::ExtendedBlock
            && self
                .channel
                .is_some_and(|(m, n)| m == mode && (n >= streams || self.participant.is_some() && n > 1))
            && !self.worker.ctx.options().data.delayed_passive;
        if !fits {
            if !self.pipeline.is_empty() {
                return Ok(Some(Job::Third(relay, range)));
            }
            if let Err(e) = self.connect(mode, streams, relay.check) {
                return self.worker.failed(Job::Third(relay, range), e).map(|()| None);
            }
            self.opened(streams, ahead);
        } else {
            self.used_again(ahead);
        }
        self.send(relay, range, mode)?;
        Ok(None)
    }

    fn session(&mut self, side: Side) -> &mut Session {
        match side {
            Side::Source => &mut self.source,
            Side::Destination => &mut self.destination,
        }
    }

    /// Sends the commands that the pipeline has made.
    fn send_commands(&mut self) -> Result<(), RemoteError> {
        while let Some(outgoing) = self.pipeline.next_command() {
            self.send_command(outgoing)?;
        }
        Ok(())
    }

    fn send_command(&mut self, outgoing: Outgoing) -> Result<(), RemoteError> {
        let Outgoing { id, side, purpose, command } = outgoing;
        let sent = self.session(side).control.send(&command);
        sent.inspect_err(|_| self.culprit = Some(id))?;
        if matches!(purpose, Purpose::Checksum | Purpose::Size | Purpose::Commit) {
            let size = self.pipeline.slot(id).and_then(|slot| slot.file.task.size);
            self.session(side).control.last_reads(size);
        }
        Ok(())
    }

    /// Takes the replies of one side that are there.
    fn listen(&mut self, side: Side) -> Result<bool, RemoteError> {
        let mut heard = false;
        for _ in 0..AT_ONCE {
            match self.session(side).control.try_answer() {
                Ok(Some(answer)) => self.hear(side, answer),
                Ok(None) => return Ok(heard),
                Err(e) => {
                    self.culprit = self.pipeline.oldest(side).map(|(id, _)| id);
                    return Err(e);
                }
            }
            heard = true;
        }
        Ok(heard)
    }

    /// Notices transfers that stand still, and servers that do not answer.
    fn look_after(&mut self) -> Result<(), RemoteError> {
        if self.pipeline.slots().any(|slot| slot.file.has_failed() && !slot.is_counted()) {
            // It starts again, and what moves now may be of the source as it was.
            return Err(RemoteError::Desynchronized);
        }
        self.tell_streams()?;
        let limit = self.worker.ctx.options().timeouts.reply;
        for (session, side) in [(&self.source, Side::Source), (&self.destination, Side::Destination)] {
            let oldest = self.pipeline.oldest(side);
            let limit = match oldest {
                // Those are looked after below.
                None | Some((_, Purpose::Transfer)) => continue,
                // CKSM of a big file takes its time.
                Some((_, Purpose::Checksum | Purpose::Size | Purpose::Commit)) => session.control.patience(),
                Some(_) => limit,
            };
            if session.control.quiet() > limit {
                let (peer, command) = (session.control.peer().to_owned(), "a command".to_owned());
                self.culprit = oldest.map(|(id, _)| id);
                return Err(RemoteError::Silent { peer, command, limit });
            }
        }
        let now = Instant::now();
        let transferring = |side| self.pipeline.oldest(side).is_some_and(|(_, p)| p == Purpose::Transfer);
        let (sending, receiving) = (transferring(Side::Source), transferring(Side::Destination));
        let oldest = |side| self.pipeline.oldest(side).map(|(id, _)| id);
        let (front_of_source, front_of_destination) = (oldest(Side::Source), oldest(Side::Destination));
        // All of that file has come, so that there is nothing left for it to do.
        let slot = front_of_source.and_then(|id| self.pipeline.slot(id));
        let come = sending && slot.is_some_and(|slot| slot.has_ended(Side::Destination));
        self.overdue = self.overdue.or(Some(now)).filter(|_| come);
        if self.overdue.is_some_and(|since| now.duration_since(since) > limit) {
            let (peer, command) = (self.source.control.peer().to_owned(), "RETR".to_owned());
            self.culprit = front_of_source;
            return Err(RemoteError::Silent { peer, command, limit });
        }
        let stream = self.channel.is_none_or(|(mode, _)| mode == Mode::Stream);
        self.late = self.late.or(Some(now)).filter(|_| stream && receiving && !sending);
        if self.late.is_some_and(|since| now.duration_since(since) > LONG) {
            let peer = self.destination.control.peer().to_owned();
            self.culprit = front_of_destination;
            return Err(RemoteError::Silent { peer, command: "STOR".to_owned(), limit: LONG });
        }
        let known = receiving && (!stream || !self.stall.is_due(now) || self.stream_stands(sending));
        if !known {
            self.stall = Stall::new(self.worker.ctx.options().timeouts.stall);
            return Ok(());
        }
        if let Some(limit) = self.stall.check(now, self.moved) {
            let path = self.pipeline.front().map(|slot| slot.file.task.source.path()).unwrap_or_default();
            self.culprit = front_of_destination;
            return Err(RemoteError::Stalled {
                path,
                bytes_per_second: limit.bytes_per_second,
                time: limit.time,
            });
        }
        Ok(())
    }

    /// No markers tell of MODE S: when it is time to know, another session is asked how long the file is. Only of one that has
    /// grown meanwhile a size says that it stands still: some servers keep what comes elsewhere, and devices have none. One
    /// whose source is done may have all, and much to do before it says so.
    fn stream_stands(&mut self, sending: bool) -> bool {
        let Some(slot) = self.pipeline.front() else { return false };
        let (path, id) = (slot.file.path.clone(), self.pipeline.first());
        let whole = slot.file.task.size.filter(|_| !sending && slot.file.task.window.is_none());
        let asked =
            Session::open(&self.destination.endpoint, &self.worker.ctx.setup).and_then(|mut session| {
                let size = session.size(&path);
                session.quit();
                size
            });
        let Ok(size) = asked else { return false };
        let before = self.seen.filter(|seen| seen.0 == id);
        let grew = before.is_some_and(|(_, old, _)| size > old);
        self.seen = Some((id, size, grew || before.is_some_and(|(.., grown)| grown)));
        before.is_some_and(|(.., grown)| grown && !grew)
            && (sending || whole.is_some_and(|whole| size < whole))
    }

    fn hear(&mut self, side: Side, answer: Answer) {
        let reply = match answer {
            Answer::Final(reply) => reply,
            answer => return self.hear_of_progress(side, answer),
        };
        self.check_meeting(&reply);
        let front = self.pipeline.oldest(side).map(|(id, _)| id);
        let heard = self.pipeline.reply(side, reply);
        if let Heard::Ended = heard {
            if let (Side::Source, Some(participant)) = (side, &self.participant) {
                participant.heard_out();
            }
            let slot = front.and_then(|id| self.pipeline.slot_mut(id));
            if let Some(slot) = slot.filter(|slot| {
                slot.file.task.size.is_some()
                    && slot.has_ended(Side::Source)
                    && slot.has_ended(Side::Destination)
            }) {
                // Without markers (MODE S) this is the first report of progress, and the last marker may be older.
                let bytes = slot.data.len();
                slot.own.meter.update(bytes, 0);
            }
        }
        report_refusal(&mut self.pipeline, self.worker.ctx, heard);
    }

    /// A preliminary reply or a marker.
    fn hear_of_progress(&mut self, side: Side, answer: Answer) {
        if let (Side::Source, Some(participant), Answer::Marker(Marker::Path(path))) =
            (side, &self.participant, &answer)
        {
            participant.hears(*path);
        }
        let first = self.pipeline.first();
        let id = self.pipeline.preliminary(side).filter(|_| side == Side::Destination);
        let Some((id, slot)) = id.and_then(|id| Some((id, self.pipeline.slot_mut(id)?))) else { return };
        match answer {
            Answer::Marker(Marker::Range(ranges)) => {
                if let Some(ranges) = ranges.shift_up(slot.origin) {
                    let present = slot.file.add_present(&ranges);
                    if slot.file.task.size.is_some_and(|size| size > SMALL) && !slot.file.is_direct() {
                        self.worker.ctx.states.save(&slot.file.task, &present);
                    }
                }
            }
            Answer::Marker(Marker::Perf(perf)) => {
                // Files behind the first one in the pipeline use the same connections.
                let streams = self.channel.map_or(1, |(_, streams)| streams);
                let streams = if id == first { streams } else { 0 };
                let more = slot.own.hear(perf, &slot.range, streams);
                self.moved = self.moved.saturating_add(more);
            }
            _ => {}
        }
    }
}

/// It is a range of a file that several pairs of sessions share out.
fn is_part(slot: &Slot<Relay, Moving<'_>>) -> bool {
    slot.range != slot.file.whole()
}
