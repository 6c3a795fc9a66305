//! The tuner of one path: steers the streams of all workers that move data over it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_engine::{Bandwidth, Progress};
use ropewalk_protocol::marker::PathMarker;
use ropewalk_tuning::tuner::{CongestionControl, Decision, Prior, Reason, Tuner, Work};

use super::buffers::{self, Buffer, Purpose, Reached};
use super::carried::Carried;
use super::memory::Learnt;
use super::other_side::OtherSide;
use super::own::Own;
use super::participant::StreamControl;
use super::path_use::Runs;
use super::pressure::Processors;
use super::span::{Counter, Heard, Span, Totals, waited};
use super::stack_choice::{Compared, Measured, StackChange, StackChoice};
use super::{Ends, TunedPath};
use crate::ahead::Tuned;
use crate::path_defaults::Pace;

mod results;
mod stacks;
mod state;

pub(super) use results::Summed;

/// Streams of one data channel whose number cannot be changed later: further channels come and go
/// beside it.
const FIXED_MOST: u32 = 8;
/// Most workers of a run, for any number of connections.
const MOST_WORKERS: u32 = 64;
/// Assumed rate of a session until it is measured, in bytes per second. Too low a value costs
/// nothing, because the next range is requested while one moves. With too high a value, a slow
/// session would keep its range of the file to the end.
const UNKNOWN_RATE: f64 = 1e6;
/// After this many spans the climb is usually over.
const SETTLED: usize = 3;
/// A run ends if the remaining data takes less than this at the last rate: streams leave because
/// nothing is left for them, and the rate of the others says nothing about the path.
const ENDING: Duration = Duration::from_secs(5);
/// Longest wait until the streams that do not take part in a trial have left.
const LEAVING: Duration = Duration::from_secs(30);
/// Wait for new streams before a span starts, in addition to some round trips.
const SETTLING: Duration = Duration::from_secs(2);
const SETTLING_ROUND_TRIPS: u32 = 20;
/// Additional round trips for the streams of servers that report no losses: the losses of slow
/// start would be attributed to the path.
const SLOW_START_ROUND_TRIPS: u32 = 10;

pub(crate) struct PathTuner {
    pub(crate) ends: Ends,
    rtt: Duration,
    /// Workers may come and go.
    hires: bool,
    /// Most connections.
    cap: u32,
    /// Number of workers by the static rule: fewer are useless while there are files for them.
    usual: u32,
    /// The rate of one connection in an earlier transfer.
    known: buffers::Known,
    /// The limit on the rate of this process.
    limit: Option<Arc<Bandwidth>>,
    /// It started with the streams of several files: whether fewer are sufficient was not tested.
    many: bool,
    /// The first number is a default, which is of each address of a striped server.
    first_of_each: bool,
    /// Payload bytes that the destination, or our sockets, have accepted.
    moved: AtomicU64,
    /// Another driver than TCP may be tried.
    chooses_stack: bool,
    state: Mutex<State>,
    pub(super) runs: Runs,
}

struct State {
    tuner: Box<dyn Tuner>,
    decision: Decision,
    decided: Instant,
    /// Since when all decided streams are present.
    complete: Option<Instant>,
    /// Connections that are distributed, which descend to the decided number, and the time of the
    /// last change.
    dealt: u32,
    descended: Instant,
    decisions: u32,
    /// Streams until the first decision, if they are not those of the tuner.
    first: Option<u32>,
    /// The last decision did not change the number of connections.
    same: bool,
    /// Participants that will join before the first decision: the first one leaves streams to the
    /// others.
    expected: u32,
    span: Option<Span>,
    participants: Vec<ParticipantState>,
    /// Counts of participants that have left.
    gone: Totals,
    next: u64,
    /// When workers were hired that have not joined yet: a log-in takes many round trips.
    coming: Vec<Instant>,
    /// The results of the last spans.
    reached: Vec<Reached>,
    min_rtt: Option<f64>,
    carried: Carried,
    /// Of a path whose data comes over another path, or goes on over one.
    other_side: Option<OtherSide>,
    /// A number of remaining bytes was known at some time.
    sized: bool,
    stack: StackChoice,
    /// The sender uses BBR if the tuner chooses it.
    bbr_permitted: bool,
}

struct ParticipantState {
    id: u64,
    streams: u32,
    most: u32,
    stream_control: StreamControl,
    moving: bool,
    /// When its bytes arrived last, and the number of streams that its data channel was seen to
    /// use.
    arrived: Option<Instant>,
    used: u32,
    /// Its worker finishes its transfers and leaves.
    leaving: bool,
    own: Own,
    /// Progress of the last transfer, which may be over.
    progress: Option<Arc<Progress>>,
    /// Seconds that streams of the earlier transfers waited for the storage of this host.
    storage: f64,
    /// Segments that it sent.
    counter: Counter,
    /// Reports of the sending server.
    heard: Heard,
    /// Samples of the reader of its data, and those in which it did not wait for any.
    looks: u32,
    behind: u32,
}

/// Time limit for a hired worker to log in, in addition to some round trips.
const LOG_IN: Duration = Duration::from_secs(10);
const LOG_IN_ROUND_TRIPS: u32 = 40;

/// A further session should get at least this many files, because the load is uneven at the end.
const FILES_EACH: u64 = 4;

/// Shortest span, also in round trips: the number of bytes to move was a guess.
const SHORTEST: Duration = Duration::from_secs(2);
const SHORTEST_ROUND_TRIPS: u32 = 25;

/// A channel whose last bytes arrived within this time, or this many round trips, is in use. A
/// sample may see no file in flight, because small files are passed to the kernel at once.
const PAUSE: Duration = Duration::from_millis(300);
const PAUSE_ROUND_TRIPS: u32 = 3;

/// Interval at which a part of the surplus streams leaves.
const DESCENT: Duration = Duration::from_millis(500);
const DESCENT_ROUND_TRIPS: u32 = 10;
const DESCENT_PART: u32 = 16;

/// Actions for the driver after a sample.
#[derive(Default)]
pub(crate) struct Step {
    /// A new decision, and the rate on which it is based, in bytes per second.
    pub(crate) decision: Option<(Decision, f64)>,
    /// The path was moved to another driver.
    pub(crate) stack: Option<StackChange>,
    /// Number of missing workers.
    pub(crate) hire: u32,
}

impl PathTuner {
    /// `hires`: workers may come and go, `usual` is their usual number; `cap`: most connections.
    pub(super) fn new(
        ends: Ends,
        rtt: Duration,
        mut tuner: Box<dyn Tuner>,
        hires: bool,
        usual: u32,
        cap: u32,
    ) -> Self {
        let decision = tuner.first();
        let state = State {
            tuner,
            decision,
            decided: Instant::now(),
            complete: None,
            dealt: decision.knobs.connections().max(1),
            descended: Instant::now(),
            decisions: 0,
            first: None,
            same: false,
            expected: 1,
            span: None,
            participants: Vec::new(),
            gone: Totals::default(),
            next: 0,
            coming: Vec::new(),
            reached: Vec::new(),
            min_rtt: None,
            carried: Carried::default(),
            other_side: None,
            sized: false,
            stack: StackChoice::default(),
            bbr_permitted: false,
        };
        let known = buffers::Known::default();
        Self {
            ends,
            rtt,
            hires,
            cap,
            usual,
            known,
            limit: None,
            many: false,
            first_of_each: false,
            moved: AtomicU64::new(0),
            chooses_stack: false,
            state: Mutex::new(state),
            runs: Runs::default(),
        }
    }

    /// Uses the results of an earlier transfer.
    pub(super) fn knowing(mut self, known: buffers::Known) -> Self {
        self.known = known;
        self
    }

    /// Applies this limit on the rate of the process.
    pub(super) fn within(mut self, limit: Arc<Bandwidth>) -> Self {
        self.limit = Some(limit);
        self
    }

    /// For files that this many sessions move at the same time, with as many streams as they have
    /// together.
    pub(super) fn for_many(mut self, sessions: u32) -> Self {
        self.many = true;
        self.state.get_mut().expected = sessions;
        self
    }

    /// The first number follows from the round trip alone.
    pub(super) fn with_first_of_each_address(mut self) -> Self {
        self.first_of_each = true;
        self
    }

    /// For data that comes to this host over another path, or leaves it over one: while that path
    /// limits the rate, nothing is measured and the number of streams stays.
    pub(super) fn beside_another(mut self) -> Self {
        self.state.get_mut().other_side = Some(OtherSide::default());
        self
    }

    /// The treatment of the socket buffers of new connections at our end; `None` between two
    /// servers.
    pub(crate) fn buffer(&self) -> Option<Buffer> {
        Buffer::of(&self.ends, self.connection())
    }

    /// The known properties of the path of one connection.
    fn connection(&self) -> buffers::Path {
        let state = self.state.lock();
        self.known.path(self.round_trip(&state), &state.reached)
    }

    /// The round trip without queues, in seconds.
    fn round_trip(&self, state: &State) -> f64 {
        state.min_rtt.unwrap_or(self.rtt.as_secs_f64())
    }

    /// Adds bytes that were accepted for this worker.
    pub(crate) fn add(&self, id: u64, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        let shortest = self.shortest();
        if let Some(participant) = self.state.lock().participant(id).filter(|_| bytes > 0) {
            let now = Instant::now();
            participant.arrived = Some(now);
            participant.own.add(now, bytes, shortest);
        }
    }

    /// The congestion control of new connections; `None`: the host's own.
    pub(crate) fn congestion(&self) -> Option<&'static str> {
        self.state.lock().decision.congestion.map(|control| control.name())
    }

    /// The expected rate of a session with this many streams; 0: it has none yet. Over lossy paths
    /// some sessions are several times as fast as others, so its own measured rate has precedence.
    pub(super) fn pace(&self, id: u64, streams: u32) -> Pace {
        let mut state = self.state.lock();
        let rtt = self.rtt.as_secs_f64();
        let streams = if streams == 0 { state.each() } else { streams };
        let rate = state.rate(id, streams).unwrap_or(UNKNOWN_RATE);
        Pace { rate, streams, rtt, settled: state.reached.len() >= SETTLED }
    }

    /// The expected rate of any session with this many streams, in bytes per second.
    pub(super) fn typical_rate(&self, streams: u32) -> Option<f64> {
        self.state.lock().typical_rate(streams)
    }

    /// The pipeline depth of a session. `streams`: those of its data channel, if its present number
    /// is unknown.
    pub(super) fn ahead(&self, id: u64, streams: u32) -> Tuned {
        let mut state = self.state.lock();
        let streams = state
            .participant(id)
            .map(|participant| participant.streams)
            .filter(|now| *now > 0)
            .unwrap_or(streams);
        Tuned {
            rate: state.rate(id, streams),
            rtt: self.rtt.as_secs_f64(),
            pipeline: (state.decisions > 0).then_some(state.decision.knobs.pipeline),
        }
    }

    pub(super) fn join(&self) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        let id = state.next;
        // One expected worker has come, no matter which.
        state.coming.pop();
        state.participants.push(ParticipantState {
            id,
            streams: 0,
            most: u32::MAX,
            stream_control: StreamControl::Fixed,
            moving: false,
            arrived: None,
            used: 0,
            leaving: false,
            own: Own::default(),
            progress: None,
            storage: 0.0,
            counter: Counter::default(),
            heard: Heard::default(),
            looks: 0,
            behind: 0,
        });
        id
    }

    pub(super) fn leave(&self, id: u64) {
        let mut state = self.state.lock();
        if let Some(at) = state.participants.iter().position(|participant| participant.id == id) {
            let mut participant = state.participants.remove(at);
            let mut totals = Totals::default();
            participant.add_to(&mut totals);
            state.gone.keep(&totals);
        }
        state.deal();
    }

    pub(super) fn share(&self, id: u64, elastic: bool, most: u32, workers: u32) -> u32 {
        let state = self.state.lock();
        let participants = state.participants.len().max(1) as u32;
        let others = || state.participants.iter().filter(|participant| participant.id != id);
        let share = if elastic {
            state.target().div_ceil(participants.max(state.to_come()))
        } else {
            let taken: u32 = others().map(|participant| participant.streams).sum();
            let unopened = 1 + others().filter(|participant| participant.streams == 0).count() as u32;
            let to_come = unopened + workers.saturating_sub(participants);
            state.target().saturating_sub(taken).div_ceil(to_come).min(FIXED_MOST)
        };
        share.clamp(1, most.max(1))
    }

    pub(super) fn opened(&self, id: u64, streams: u32, most: u32, stream_control: StreamControl) {
        let mut state = self.state.lock();
        if self.first_of_each {
            state.begin_at(stream_control.addresses(), self.cap);
        }
        if let Some(participant) = state.participant(id) {
            (participant.streams, participant.most, participant.stream_control) =
                (streams, most, stream_control);
            (participant.own, participant.arrived, participant.used) = (Own::default(), None, 0);
        }
        state.deal();
    }

    /// The same as [`PathTuner::opened`] for a channel that may be known already; the next transfer
    /// may be able to use more streams than the one for which it was made.
    pub(super) fn used_again(&self, id: u64, streams: u32, most: u32, stream_control: StreamControl) {
        let mut state = self.state.lock();
        let Some(participant) = state.participant(id) else { return };
        if participant.streams > 0 && most <= participant.most {
            return;
        }
        if participant.streams == 0 {
            (participant.streams, participant.stream_control) = (streams, stream_control);
        }
        participant.most = most;
        state.deal();
    }

    pub(super) fn begun(&self, id: u64, progress: Option<Arc<Progress>>) {
        if let Some(participant) = self.state.lock().participant(id) {
            participant.storage += participant.progress.take().map_or(0.0, |before| waited(&before));
            (participant.moving, participant.progress) = (true, progress);
            participant.heard.begin();
        }
    }

    pub(super) fn heard(&self, id: u64, marker: PathMarker) {
        if let Some(participant) = self.state.lock().participant(id) {
            participant.heard.add(marker);
        }
    }

    /// The reader of the data was looked at: whether it waited for some.
    pub(super) fn looked_at_reader(&self, id: u64, waits: bool) {
        if let Some(participant) = self.state.lock().participant(id) {
            participant.looks = participant.looks.saturating_add(1);
            participant.behind = participant.behind.saturating_add(u32::from(!waits));
        }
    }

    pub(super) fn heard_out(&self, id: u64) {
        if let Some(participant) = self.state.lock().participant(id) {
            participant.heard.begin();
        }
    }

    pub(super) fn ended(&self, id: u64) {
        if let Some(participant) = self.state.lock().participant(id) {
            participant.moving = false;
        }
    }

    pub(super) fn is_surplus(&self, id: u64) -> bool {
        if !self.hires {
            return false;
        }
        let mut state = self.state.lock();
        if state.stack.driver().is_some() {
            // The number of workers is that of TCP's decisions.
            return false;
        }
        let target = state.dealt;
        let some_more = |n: u32| n + n / 2;
        let files = state.files().map(|files| some_more(files.max(self.usual)));
        let cap = self.cap;
        let others = state
            .participants
            .iter()
            .filter(|participant| participant.id != id && participant.streams > 0 && !participant.leaving);
        let (workers, streams, room) = others.fold((0, 0, 0_u32), |(workers, streams, room), participant| {
            let most =
                if participant.stream_control.is_elastic() { participant.most } else { participant.streams };
            (workers + 1, streams + participant.streams, room.saturating_add(most))
        });
        let Some(participant) = state.participant(id) else { return false };
        let enough = if participant.stream_control.is_elastic() {
            // There are more workers than decided files in flight, and the others have room for all
            // streams.
            workers >= target || room >= target && files.is_some_and(|files| workers >= files)
        } else {
            // Streams that leave with their session take their windows along, so a small surplus is
            // tolerated.
            streams >= some_more(target)
        };
        // Two workers must not leave at the same time.
        participant.leaving |= workers > 0 && (enough || streams + participant.streams > cap);
        participant.leaving
    }

    /// Takes a sample, and asks the tuner when a span has ended. `work`: remaining files and bytes,
    /// if known. `ends`: remaining bytes once the walk is complete. `waiting`: there are jobs
    /// without a worker. `workers`: the workers of the run.
    pub(crate) fn step(
        &self,
        now: Instant,
        processors: &mut Processors,
        (work, ends): (Option<Work>, Option<u64>),
        waiting: bool,
        workers: u32,
    ) -> Step {
        let mut state = self.state.lock();
        let nothing = Step { stack: state.stack.take_change(), ..Step::default() };
        if !state.participants.iter().any(|participant| participant.is_busy(now, self.rtt)) {
            // Between two files: the rate of a pause says nothing about the path.
            (state.span, state.complete) = (None, None);
            state.decided = now;
            return nothing;
        }
        state.descend(now, self.rtt);
        let moved = self.moved.load(Ordering::Relaxed);
        let totals = self.totals(&mut state, now, moved);
        state.min_rtt = match (state.min_rtt, totals.min_rtt) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        state.carried.look(totals.streams, moved);
        state.sized |= ends.is_some_and(|bytes| bytes > 0);
        if state.is_ending(ends, totals.streams) {
            (state.span, state.complete) = (None, None);
            return nothing;
        }
        if state.stack.driver().is_some() {
            state.measure_other(now, totals, self.rtt);
            return nothing;
        }
        if state.other_side.as_mut().is_some_and(|other| other.limits(now, totals)) {
            state.span = None;
            return nothing;
        }
        let (target, bytes) = (state.target(), state.decision.bytes);
        let pause = if state.is_elastic() || state.decisions == 0 { 0 } else { SLOW_START_ROUND_TRIPS };
        let Some(span) = &mut state.span else {
            let pause = pause * self.rtt;
            // A trial with fewer streams starts once the others have emptied their buffers and
            // left.
            let leaving = state.decision.reason.tries() && totals.streams > target;
            let patience = if leaving { LEAVING } else { SETTLING + SETTLING_ROUND_TRIPS * self.rtt + pause };
            if totals.streams >= target && !leaving {
                state.complete.get_or_insert(now);
            }
            let settled = state.complete.is_some_and(|complete| now.duration_since(complete) >= pause);
            if settled || now.duration_since(state.decided) >= patience {
                // A tuner assumes that the first chunk includes the opening of connections.
                let making = if state.decisions == 0 { 2 * self.rtt } else { Duration::ZERO };
                let began = now.checked_sub(making).unwrap_or(now);
                state.span = Some(Span::new(began, totals, self.shortest()));
                let _ = processors.busiest();
            }
            return nothing;
        };
        let ended = span.look(now, totals, bytes);
        let told = ended.mark.and_then(|mark| state.tuner.progress(&mark));
        if !ended.full && told.is_none() {
            return nothing;
        }
        let Some(span) = state.span.take() else { return nothing };
        let mut chunk = span.chunk();
        chunk.work = work;
        chunk.pressure.cpu = processors.busiest();
        if self.ends.destination.is_none() {
            // The windows are our own: they are closed by this host's storage, which is measured
            // separately.
            chunk.pressure.window = None;
        }
        let rate = if chunk.seconds > 0.0 { chunk.rate() } else { 0.0 };
        let purpose = match state.decision.reason {
            reason if reason.tries() => Purpose::Trial,
            // A remembered number has to prove itself in a first chunk.
            reason if reason.stays() && state.decisions > 0 => Purpose::Stay,
            // Otherwise this is the limit of a climb or a trial.
            reason if reason.bounds() && state.same => Purpose::Stay,
            _ => Purpose::Climb,
        };
        if chunk.bytes > 0 && rate.is_finite() {
            if state.reached.len() >= 8 {
                state.reached.remove(0);
            }
            state.reached.push((chunk.streams, rate, purpose));
        }
        let decision = state.tuner.chunk(&chunk);
        let bbr = state.bbr_permitted && state.decision.congestion == Some(CongestionControl::Bbr);
        state.stack.over_tcp(Measured { chunk: &chunk, reason: decision.reason, bbr, left: ends });
        tracing::info!(
            path = %self.ends.name(), measured = ?chunk, streams = decision.knobs.streams,
            files = decision.knobs.files, pipeline = decision.knobs.pipeline, reason = %decision.reason, "tuned"
        );
        let changed = decision.knobs.connections() != target;
        state.decision = decision;
        state.decisions += 1;
        state.same = !changed;
        state.decided = now;
        state.complete = None;
        if state.stack.driver().is_some() {
            state.moves_to_other_driver(now);
            return Step { decision: Some((decision, rate)), stack: state.stack.take_change(), hire: 0 };
        }
        state.follow();
        if !changed {
            // Nothing has to settle, so the next span starts without a gap.
            let totals = self.totals(&mut state, now, moved);
            state.span = Some(Span::new(now, totals, self.shortest()));
        }
        // Do not hire if the run would end before the new worker has logged in. Unknown sizes count
        // as 0 bytes.
        let log_in = rate * (LOG_IN_ROUND_TRIPS * self.rtt).as_secs_f64();
        let lasts = ends.is_none_or(|bytes| bytes == 0 || bytes as f64 >= log_in);
        let hire = if waiting && lasts && self.hires {
            state.missing(workers, now, self.rtt).max(state.missing_files(workers, work))
        } else {
            0
        };
        state.coming.extend((0..hire).map(|_| now));
        Step { decision: Some((decision, rate)), stack: nothing.stack, hire }
    }

    fn totals(&self, state: &mut State, now: Instant, moved: u64) -> Totals {
        let used = self.limit.as_ref().filter(|limit| limit.is_limited()).map(|limit| limit.used());
        Totals { used, ..state.totals(now, self.rtt, moved) }
    }

    fn shortest(&self) -> Duration {
        SHORTEST.max(SHORTEST_ROUND_TRIPS * self.rtt)
    }
}

#[cfg(test)]
mod tests;
