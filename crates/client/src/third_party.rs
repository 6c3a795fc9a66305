//! Files from one server to another; no data passes here.
//!
//! The destination is passive and gets its STOR first; the source connects to it. Files are
//! pipelined on both control connections. If one side refuses a file, the other one takes the next
//! data for it. So data goes to a part name, and a file gets its own name only when both sides have
//! confirmed it and everything before it.

mod begin;
mod meeting;
mod moving;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_protocol::client::answer;
use ropewalk_protocol::command::{Command, Restart, Retrieval};
use ropewalk_protocol::marker::{Marker, PerfMarker};
use ropewalk_protocol::opts::Options as Opts;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Mode, Window};
use ropewalk_transfer::{
    self as transfer, Checks, Left, Lost, Pipeline, Purpose, Side, Sides, Slot, Submission,
};

use crate::between::{self, Servers};
use crate::context::Context;
use crate::control::{Answer, Control, LONG};
use crate::flow::{At, Begun, Part, Peers, hear};
use crate::path_defaults::{PathDefaults, RANGE};
use crate::place::{Endpoint, Meeting};
use crate::relay::Relay;
use crate::renewal::Renewal;
use crate::report::Meter;
use crate::session::{Binding, Session, active, agree, port};
use crate::setup::reachable;
use crate::task::Task;
use crate::tune::{Ends, Spread, StreamControl, Wanted};
use crate::verify::Check;
use crate::watch::{AT_ONCE, Stall};
use crate::work::{Job, Route};
use crate::worker::Worker;
use crate::{ChecksumPolicy, DataMode, RemoteError};

use moving::Moving;

/// How often a running transfer is looked after when no reply comes.
const TICK: Duration = Duration::from_secs(1);

/// The sessions with the two servers, and what is known of the connections between them.
pub(crate) struct Pair {
    servers: Servers,
    /// Where the two meet for data.
    meeting: Meeting,
    /// MODE and streams of the data channel between the two; `None` before there is one.
    channel: Option<(Mode, u32)>,
    /// How these streams are spread over the addresses of the destination.
    spread: Spread,
    /// The key of that channel, where both servers take one.
    binding: Option<Binding>,
    stall: Stall,
    /// When that and servers that do not answer were looked for last.
    looked: Instant,
    /// Since when data nodes have joined, and the bytes that had moved by then.
    renewal: Option<(Renewal, u64)>,
    /// The transfers are to be broken off for these nodes.
    renews: bool,
    moved: u64,
    /// Since when the source has not said that it is done, although the destination has.
    overdue: Option<Instant>,
    /// Since when a destination of MODE S, whose source is done, has not said that it is.
    late: Option<Instant>,
    /// MODE S: the file, its last known size at the destination, and whether it has grown before.
    seen: Option<(u64, u64, bool)>,
}

type Flow<'w> = crate::flow::Flow<'w, Pair>;

/// Handles `job` and the jobs of the same kind after it, until there are none or a session breaks.
pub(crate) fn run(worker: &Worker<'_>, from: &Arc<Endpoint>, to: &Arc<Endpoint>, job: Job) {
    let ends = Ends::of(job.task());
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
    let participant = worker.participant(ends, rtt);
    let pair = Pair {
        servers: Servers { source, destination },
        meeting: Meeting::default(),
        channel: None,
        spread: Spread::tuned(1),
        binding: None,
        stall: Stall::new(worker.ctx.options().timeouts.stall),
        looked: Instant::now(),
        renewal: None,
        renews: false,
        moved: 0,
        overdue: None,
        late: None,
        seen: None,
    };
    let flow = Flow::new(worker, pair, participant, transfer::Route::ThirdParty);
    let route = Route::Third(from.clone(), to.clone());
    let Some(Pair { servers: Servers { source, mut destination }, .. }) = flow.drive(&route, job) else {
        return;
    };
    worker.keep(source);
    if worker.ctx.options().data.delayed_passive {
        // It would answer every PASV with a delay.
        let _ = destination.control.hear_out();
        destination.quit();
    } else {
        worker.keep(destination);
    }
}

impl Peers for Pair {
    type File = Relay;
    type Own<'w> = Moving<'w>;

    fn session(&mut self, side: Side) -> &mut Session {
        self.servers.of(side)
    }

    fn rtt(&self) -> Duration {
        self.servers.longer_rtt()
    }

    fn streams_of_channel(&self) -> u32 {
        self.channel.map_or(0, |(_, streams)| streams)
    }

    fn checks(&self, ctx: &Context, slot: &Slot<Relay, Moving<'_>>) -> Checks {
        between::checks(&self.servers, ctx, slot)
    }

    fn naming(&self, ctx: &Context, relay: &Relay) -> Vec<(Purpose, Command)> {
        between::naming(&self.servers, ctx, relay)
    }

    fn is_pipelined(flow: &mut Flow<'_>) -> bool {
        matches!(flow.peers.channel, None | Some((Mode::ExtendedBlock, 1)))
            && !flow.worker.ctx.options().data.delayed_passive
    }

    /// If markers show that a range of a file moves, the next range may be requested. With several
    /// connections nothing else may: if it were refused, its data would go to other files.
    fn takes_parts(flow: &Flow<'_>) -> bool {
        let several = matches!(flow.peers.channel, Some((Mode::ExtendedBlock, streams)) if streams > 1);
        let one = flow.pipeline.front().filter(|slot| flow.pipeline.len() == 1 && several && is_part(slot));
        one.is_some_and(|slot| slot.error.is_none() && !slot.file.is_direct() && !slot.own.stripes.is_empty())
    }

    fn begin(flow: &mut Flow<'_>, task: &mut Task) -> Result<Begun<Relay>, RemoteError> {
        flow.begin(task)
    }

    fn ask_again(flow: &mut Flow<'_>, relay: &Relay, range: &Range<u64>) -> Result<(), RemoteError> {
        flow.unchanged(&relay.task)?;
        flow.worker.ask_again(&mut flow.peers.servers.destination, relay, range)
    }

    fn shares(flow: &Flow<'_>, relay: &Relay, _: &Range<u64>) -> bool {
        flow.shares(relay)
    }

    fn shape(flow: &Flow<'_>, relay: &Relay, _: &RangeSet, ahead: u64) -> (Mode, u32) {
        let (ctx, mode, pair) = (flow.worker.ctx, flow.mode(), &flow.peers);
        if mode == Mode::Stream || pair.servers.destination.needs_one_stream(&relay.task) {
            return (mode, 1);
        }
        let length = relay.task.length();
        let whole = length.is_some_and(|length| length >= 2 * RANGE) && flow.cuts() && !flow.shares(relay);
        if whole && !pair.servers.source.can.streams {
            // No other session takes a part of it, and this one cannot have more streams later.
            let streams =
                PathDefaults::new(pair.rtt()).streams(ctx.options(), length.map(|_| ahead), relay.is_kept());
            return (mode, ctx.streams_of_whole_file(streams));
        }
        (mode, flow.streams(relay, ahead, pair.servers.source.can.streams, flow.cuts()))
    }

    fn reusable(flow: &Flow<'_>) -> Option<u32> {
        let (mode, streams) = flow.peers.channel?;
        let once = flow.worker.ctx.options().data.delayed_passive;
        let stays = !once && !flow.peers.servers.want_new_channel();
        (mode == Mode::ExtendedBlock && stays).then_some(streams)
    }

    fn connect(flow: &mut Flow<'_>, relay: &Relay, (mode, streams): (Mode, u32)) -> Result<(), RemoteError> {
        flow.connect(mode, streams, relay.check)
    }

    fn stream_control(flow: &mut Flow<'_>, new: bool) -> Option<(u32, StreamControl)> {
        let pair = &flow.peers;
        let (_, streams) = pair.channel?;
        if new {
            flow.participant.as_ref()?.moves_elsewhere();
            // A destination that connects would not make the streams that are added.
            let adjustable = pair.servers.source.can.streams && pair.meeting.connects() == Side::Source;
            flow.wanted = (streams > 1 && adjustable).then(|| Wanted::spread(streams, pair.spread));
        }
        let control = flow.wanted.clone().map_or(StreamControl::Fixed, StreamControl::There);
        Some((pair.spread.connections(streams), control))
    }

    fn submission<'w>(
        flow: &mut Flow<'w>,
        part: Part<Relay>,
        mode: Mode,
    ) -> Result<Submission<Relay, Moving<'w>>, RemoteError> {
        flow.submission(part, mode)
    }

    fn send(flow: &mut Flow<'_>, id: u64) -> Result<(), RemoteError> {
        flow.send_transfer(id).map_err(|e| {
            // Half of it may be on its way: nothing is known of either session.
            flow.pipeline.fail(id, e);
            RemoteError::Desynchronized
        })
    }

    fn step(flow: &mut Flow<'_>) -> Result<(), RemoteError> {
        let heard = flow.listen(Side::Destination)? | flow.listen(Side::Source)?;
        if !heard {
            let Servers { source, destination } = &flow.peers.servers;
            Control::wait_either(&source.control, &destination.control, Instant::now() + TICK)?;
        } else if flow.worker.ctx.cancel.is_cancelled() {
            return Err(RemoteError::Cancelled);
        }
        if flow.peers.renews {
            tracing::debug!("what is missing moves to data nodes that have joined");
            return Err(RemoteError::Desynchronized);
        }
        // Also where one of them talks without end.
        if !heard || flow.peers.looked.elapsed() >= TICK {
            flow.peers.looked = Instant::now();
            flow.look_after()?;
        }
        Ok(())
    }

    fn hear(flow: &mut Flow<'_>, side: Side, answer: Answer) {
        flow.hear(side, answer);
    }

    fn complete(_: &mut Flow<'_>, slot: &Slot<Relay, Moving<'_>>) -> Result<Option<String>, RemoteError> {
        Ok(slot.file.proof())
    }

    fn stop_sending(&mut self) {
        self.servers.source.leave(Duration::ZERO);
    }

    fn leave(flow: &mut Flow<'_>) -> bool {
        between::leave(&mut flow.peers.servers, flow.worker, flow.pipeline.slots())
    }

    fn lose(_: &Worker<'_>, lost: &mut Lost<Relay, Moving<'_>>) {
        let slot = &mut lost.slot;
        if lost.left == Left::Range {
            // Bytes that no marker confirmed are sent again.
            let kept = slot.file.present().intersection(slot.range.clone()).len();
            slot.own.meter.failed(kept.saturating_sub(slot.own.present.len()));
        }
    }
}

impl Flow<'_> {
    fn mode(&self) -> Mode {
        let both = self.peers.servers.source.can.extended && self.peers.servers.destination.can.extended;
        match self.worker.ctx.options().data.mode {
            DataMode::Stream => Mode::Stream,
            DataMode::Extended => Mode::ExtendedBlock,
            DataMode::Auto if both && !self.worker.ctx.options().data.ascii => Mode::ExtendedBlock,
            DataMode::Auto => Mode::Stream,
        }
    }

    /// Takes the replies of one side that are there.
    fn listen(&mut self, side: Side) -> Result<bool, RemoteError> {
        let mut heard = false;
        for _ in 0..AT_ONCE {
            match self.peers.session(side).control.try_answer() {
                Ok(Some(answer)) => self.hear(side, answer),
                Ok(None) => return Ok(heard),
                Err(e) => {
                    self.failed_command = self.pipeline.oldest(side).map(|(id, _)| id);
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
        for (session, side) in
            [(&self.peers.servers.source, Side::Source), (&self.peers.servers.destination, Side::Destination)]
        {
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
                self.failed_command = oldest.map(|(id, _)| id);
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
        self.peers.overdue = self.peers.overdue.or(Some(now)).filter(|_| come);
        if self.peers.overdue.is_some_and(|since| now.duration_since(since) > limit) {
            let (peer, command) = (self.peers.servers.source.control.peer().to_owned(), "RETR".to_owned());
            self.failed_command = front_of_source;
            return Err(RemoteError::Silent { peer, command, limit });
        }
        let stream = self.peers.channel.is_none_or(|(mode, _)| mode == Mode::Stream);
        self.peers.late = self.peers.late.or(Some(now)).filter(|_| stream && receiving && !sending);
        if self.peers.late.is_some_and(|since| now.duration_since(since) > LONG) {
            let peer = self.peers.servers.destination.control.peer().to_owned();
            self.failed_command = front_of_destination;
            return Err(RemoteError::Silent { peer, command: "STOR".to_owned(), limit: LONG });
        }
        let known = receiving && (!stream || !self.peers.stall.is_due(now) || self.stream_stands(sending));
        if !known {
            self.peers.stall = Stall::new(self.worker.ctx.options().timeouts.stall);
            return Ok(());
        }
        if let Some(limit) = self.peers.stall.check(now, self.peers.moved) {
            let path = self.pipeline.front().map(|slot| slot.file.task.source.path()).unwrap_or_default();
            self.failed_command = front_of_destination;
            return Err(RemoteError::Stalled {
                path,
                bytes_per_second: limit.bytes_per_second,
                time: limit.time,
            });
        }
        Ok(())
    }

    /// MODE S has no markers: another session asks for the size of the file from time to time. A
    /// size that stays the same only means a stall if it has grown before, because some servers
    /// store data elsewhere first, and devices have no size. A destination whose source is done may
    /// have all bytes, and much to do before its final reply.
    fn stream_stands(&mut self, sending: bool) -> bool {
        let Some(slot) = self.pipeline.front() else { return false };
        let (path, id) = (slot.file.path.clone(), self.pipeline.first());
        let whole = slot.file.task.size.filter(|_| !sending && slot.file.task.window.is_none());
        let asked = Session::open(&self.peers.servers.destination.endpoint, &self.worker.ctx.setup).and_then(
            |mut session| {
                let size = session.size(&path);
                session.quit();
                size
            },
        );
        let Ok(size) = asked else { return false };
        let before = self.peers.seen.filter(|seen| seen.0 == id);
        let grew = before.is_some_and(|(_, old, _)| size > old);
        self.peers.seen = Some((id, size, grew || before.is_some_and(|(.., grown)| grown)));
        before.is_some_and(|(.., grown)| grown && !grew)
            && (sending || whole.is_some_and(|whole| size < whole))
    }

    fn hear(&mut self, side: Side, answer: Answer) {
        let answered = self.pipeline.oldest(side).map(|(id, _)| id);
        match &answer {
            Answer::Final(reply) => self.check_meeting(reply),
            Answer::Marker(Marker::Perf(perf)) => return self.hear_of_progress(side, *perf),
            _ => {}
        }
        let Flow { worker, participant, pipeline, .. } = self;
        let ended = |pipeline: &Pipeline<_, _>| {
            answered
                .and_then(|id| pipeline.slot(id))
                .is_some_and(|slot: &Slot<Relay, _>| slot.has_ended(side))
        };
        let before = ended(pipeline);
        hear(pipeline, worker.ctx, participant.as_ref(), side, answer);
        if before || !ended(pipeline) {
            return;
        }
        if let (Side::Source, Some(participant)) = (side, participant) {
            participant.heard_out();
        }
        let slot = answered.and_then(|id| pipeline.slot_mut(id));
        if let Some(slot) = slot.filter(|slot| {
            slot.file.task.size.is_some() && slot.has_ended(Side::Source) && slot.has_ended(Side::Destination)
        }) {
            // Without markers (MODE S) this is the first report of progress; with them, the last
            // one may be older.
            let bytes = slot.data.len();
            slot.own.meter.update(bytes, 0);
        }
    }

    /// A marker of the bytes that one of the destination's stripes has.
    fn hear_of_progress(&mut self, side: Side, perf: PerfMarker) {
        let first = self.pipeline.first();
        let id = self.pipeline.preliminary(side).filter(|_| side == Side::Destination);
        let Some((id, slot)) = id.and_then(|id| Some((id, self.pipeline.slot_mut(id)?))) else { return };
        // Files behind the first one in the pipeline use the same connections.
        let connections = |(_, streams)| self.peers.spread.connections(streams);
        let streams = if id == first { self.peers.channel.map_or(1, connections) } else { 0 };
        let more = slot.own.hear(perf, &slot.range, streams);
        self.peers.moved = self.peers.moved.saturating_add(more);
        self.look_for_nodes();
    }
}

/// It is a range of a file that several pairs of sessions share out.
fn is_part(slot: &Slot<Relay, Moving<'_>>) -> bool {
    slot.range != slot.file.whole()
}
