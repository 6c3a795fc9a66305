//! One path, its tuner, and those who move data over it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_engine::{Bandwidth, Progress};
use ropewalk_protocol::marker::PathMarker;
use ropewalk_tuning::tuner::{Decision, Prior, Reason, Tuner, Work};

use super::buffers::{self, Buffer, Purpose, Reached};
use super::carried::Carried;
use super::memory::Learnt;
use super::own::Own;
use super::pressure::Processors;
use super::seat::Knob;
use super::span::{Counter, Heard, Span, Totals, waited};
use super::{Ends, TunedPath};
use crate::ahead::Tuned;
use crate::auto::Pace;

mod state;

/// Streams of one data channel whose number cannot be changed later: others come and go beside it.
const FIXED_MOST: u32 = 8;
/// Workers of a run at most, however many connections are wanted.
const MOST_WORKERS: u32 = 64;
/// What a session is taken to carry until it is known, in bytes a second. Too little costs nothing, since the next range is asked
/// for while one moves; what is too much for a slow session keeps its part of the file to the end.
const UNKNOWN_RATE: f64 = 1e6;
/// After so many spans the climb is over, as a rule.
const SETTLED: usize = 3;
/// What is moved within so long at the last rate is the end of a run: streams leave since nothing is left for them, and what the
/// others reach says nothing of the path.
const ENDING: Duration = Duration::from_secs(5);
/// The longest that streams which are not to be in a trial are waited for until they have left.
const LEAVING: Duration = Duration::from_secs(30);
/// Streams that are on their way are waited for so long, and for so many round trips, before a span begins.
const SETTLING: Duration = Duration::from_secs(2);
const SETTLING_ROUND_TRIPS: u32 = 20;
/// Streams of servers that tell nothing of losses are given so many round trips more: what slow start lost would be taken for what
/// the path carries.
const SLOW_START_ROUND_TRIPS: u32 = 10;

/// Of the best rate, what counts as about as much.
const AS_GOOD: f64 = 0.95;

pub(crate) struct Lane {
    pub(crate) ends: Ends,
    rtt: Duration,
    /// Workers may come and go.
    hires: bool,
    /// Connections at most.
    cap: u32,
    /// Workers by the static rule: no fewer are of use where there are files for them.
    usual: u32,
    /// What an earlier transfer has shown of one connection.
    known: buffers::Known,
    /// The limit on the rate of this process.
    limit: Option<Arc<Bandwidth>>,
    /// It began with as many streams as several files have together: whether fewer would do was not looked at.
    many: bool,
    /// Payload bytes that the destination, or our sockets, have taken.
    moved: AtomicU64,
    state: Mutex<State>,
}

struct State {
    tuner: Box<dyn Tuner>,
    decision: Decision,
    decided: Instant,
    /// Since when the streams that were decided are there.
    complete: Option<Instant>,
    /// Connections that are dealt out: on its way down to what was decided, and when it was changed last.
    dealt: u32,
    descended: Instant,
    decisions: u32,
    /// The last one left the number of connections as it was.
    same: bool,
    /// Seats that will be taken before anything is decided: the first one leaves streams to the others.
    expected: u32,
    span: Option<Span>,
    seats: Vec<Place>,
    /// What those counted that have left.
    gone: Totals,
    next: u64,
    /// When workers were hired that have not sat down yet: a log-in takes many round trips.
    coming: Vec<Instant>,
    /// What the last spans reached.
    reached: Vec<Reached>,
    min_rtt: Option<f64>,
    carried: Carried,
    /// Bytes were left whose number was known.
    sized: bool,
}

struct Place {
    id: u64,
    streams: u32,
    most: u32,
    knob: Knob,
    moving: bool,
    /// When bytes of it arrived last, and the streams that its data channel was seen to use.
    arrived: Option<Instant>,
    used: u32,
    /// Its worker does no more than it has begun.
    leaving: bool,
    own: Own,
    /// The last transfer's, which may be over.
    progress: Option<Arc<Progress>>,
    /// Seconds that streams of the transfers before it waited for the storage of this host.
    storage: f64,
    /// Segments that it sent.
    counter: Counter,
    /// What the server that sends has told.
    heard: Heard,
}

/// A worker that was hired should be there after so long, and so many round trips.
const LOG_IN: Duration = Duration::from_secs(10);
const LOG_IN_ROUND_TRIPS: u32 = 40;

/// A further session for files in flight should have so many of them: those at the end are not even.
const FILES_EACH: u64 = 4;

/// A span is not over before, nor before so many round trips: how much was to be moved was a guess.
const SHORTEST: Duration = Duration::from_secs(2);
const SHORTEST_ROUND_TRIPS: u32 = 25;

/// A channel whose last bytes arrived no longer ago, in time or in round trips, is in use, though no file may be on its way at a
/// look: small ones are handed to the kernel in no time.
const PAUSE: Duration = Duration::from_millis(300);
const PAUSE_ROUND_TRIPS: u32 = 3;

/// Of streams that are too many a part leaves so often.
const DESCENT: Duration = Duration::from_millis(500);
const DESCENT_ROUND_TRIPS: u32 = 10;
const DESCENT_PART: u32 = 16;

/// What the driver is to do after it looked at a lane.
pub(crate) struct Step {
    /// A new decision, and the rate on which it rests, in bytes a second.
    pub(crate) decision: Option<(Decision, f64)>,
    /// Workers that are missing.
    pub(crate) hire: u32,
}

impl Lane {
    /// `hires`: workers may come and go, `usual` ones are there as a rule; `cap`: connections at most.
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
            same: false,
            expected: 1,
            span: None,
            seats: Vec::new(),
            gone: Totals::default(),
            next: 0,
            coming: Vec::new(),
            reached: Vec::new(),
            min_rtt: None,
            carried: Carried::default(),
            sized: false,
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
            moved: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    /// With what an earlier transfer has shown.
    pub(super) fn knowing(mut self, known: buffers::Known) -> Self {
        self.known = known;
        self
    }

    /// Within this limit on the rate of the process.
    pub(super) fn within(mut self, limit: Option<Arc<Bandwidth>>) -> Self {
        self.limit = limit;
        self
    }

    /// For files that so many sessions move at the same time, with as many streams as they have together.
    pub(super) fn for_many(mut self, sessions: u32) -> Self {
        self.many = true;
        self.state.get_mut().expected = sessions;
        self
    }

    /// What to do with the socket buffers of new connections at our end; `None` between two servers.
    pub(crate) fn buffer(&self) -> Option<Buffer> {
        Buffer::of(&self.ends, self.connection())
    }

    /// What is known of the path of one connection.
    fn connection(&self) -> buffers::Path {
        let state = self.state.lock();
        self.known.path(self.round_trip(&state), &state.reached)
    }

    /// Of the path without queues, in seconds.
    fn round_trip(&self, state: &State) -> f64 {
        state.min_rtt.unwrap_or(self.rtt.as_secs_f64())
    }

    /// So many bytes more have been taken, of what this worker moves.
    pub(crate) fn add(&self, id: u64, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        let shortest = self.shortest();
        if let Some(seat) = self.state.lock().seat(id).filter(|_| bytes > 0) {
            let now = Instant::now();
            seat.arrived = Some(now);
            seat.own.add(now, bytes, shortest);
        }
    }

    /// The congestion control that new connections should have; `None`: the host's own.
    pub(crate) fn congestion(&self) -> Option<&'static str> {
        self.state.lock().decision.congestion.map(|control| control.name())
    }

    /// What a session with so many streams is likely to carry; 0: it has none yet. Over lossy paths some carry several times
    /// what others do: where it is known, what it carried itself counts.
    pub(super) fn pace(&self, id: u64, streams: u32) -> Pace {
        let mut state = self.state.lock();
        let rtt = self.rtt.as_secs_f64();
        let streams = if streams == 0 { state.each() } else { streams };
        let rate = state.rate(id, streams).unwrap_or(UNKNOWN_RATE);
        Pace { rate, streams, rtt, settled: state.reached.len() >= SETTLED }
    }

    /// The likely rate of any session with so many streams, in bytes per second.
    pub(super) fn typical_rate(&self, streams: u32) -> Option<f64> {
        self.state.lock().typical_rate(streams)
    }

    /// What a session may ask for ahead. `streams`: those of its data channel, where nothing is known of what it has now.
    pub(super) fn ahead(&self, id: u64, streams: u32) -> Tuned {
        let mut state = self.state.lock();
        let streams = state.seat(id).map(|seat| seat.streams).filter(|now| *now > 0).unwrap_or(streams);
        Tuned {
            rate: state.rate(id, streams),
            rtt: self.rtt.as_secs_f64(),
            pipeline: (state.decisions > 0).then_some(state.decision.knobs.pipeline),
        }
    }

    pub(super) fn sit(&self) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        let id = state.next;
        // Whoever it is: one more is here.
        state.coming.pop();
        state.seats.push(Place {
            id,
            streams: 0,
            most: u32::MAX,
            knob: Knob::Fixed,
            moving: false,
            arrived: None,
            used: 0,
            leaving: false,
            own: Own::default(),
            progress: None,
            storage: 0.0,
            counter: Counter::default(),
            heard: Heard::default(),
        });
        id
    }

    pub(super) fn leave(&self, id: u64) {
        let mut state = self.state.lock();
        if let Some(at) = state.seats.iter().position(|seat| seat.id == id) {
            let mut seat = state.seats.remove(at);
            let mut totals = Totals::default();
            seat.add_to(&mut totals);
            state.gone.keep(&totals);
        }
        state.deal();
    }

    pub(super) fn share(&self, id: u64, elastic: bool, most: u32, workers: u32) -> u32 {
        let state = self.state.lock();
        let seats = state.seats.len().max(1) as u32;
        let others = || state.seats.iter().filter(|seat| seat.id != id);
        let share = if elastic {
            state.target().div_ceil(seats.max(state.to_come()))
        } else {
            let taken: u32 = others().map(|seat| seat.streams).sum();
            let unopened = 1 + others().filter(|seat| seat.streams == 0).count() as u32;
            let to_come = unopened + workers.saturating_sub(seats);
            state.target().saturating_sub(taken).div_ceil(to_come).min(FIXED_MOST)
        };
        share.clamp(1, most.max(1))
    }

    pub(super) fn opened(&self, id: u64, streams: u32, most: u32, knob: Knob) {
        let mut state = self.state.lock();
        if let Some(seat) = state.seat(id) {
            (seat.streams, seat.most, seat.knob) = (streams, most, knob);
            (seat.own, seat.arrived, seat.used) = (Own::default(), None, 0);
        }
        state.deal();
    }

    /// As [`Lane::opened`], of a channel that may be known already; what it moves now may use more streams than what it was
    /// made for.
    pub(super) fn used_again(&self, id: u64, streams: u32, most: u32, knob: Knob) {
        let mut state = self.state.lock();
        let Some(seat) = state.seat(id) else { return };
        if seat.streams > 0 && most <= seat.most {
            return;
        }
        if seat.streams == 0 {
            (seat.streams, seat.knob) = (streams, knob);
        }
        seat.most = most;
        state.deal();
    }

    pub(super) fn begun(&self, id: u64, progress: Option<Arc<Progress>>) {
        if let Some(seat) = self.state.lock().seat(id) {
            seat.storage += seat.progress.take().map_or(0.0, |before| waited(&before));
            (seat.moving, seat.progress) = (true, progress);
            seat.heard.begin();
        }
    }

    pub(super) fn heard(&self, id: u64, marker: PathMarker) {
        if let Some(seat) = self.state.lock().seat(id) {
            seat.heard.add(marker);
        }
    }

    pub(super) fn heard_out(&self, id: u64) {
        if let Some(seat) = self.state.lock().seat(id) {
            seat.heard.begin();
        }
    }

    pub(super) fn ended(&self, id: u64) {
        if let Some(seat) = self.state.lock().seat(id) {
            seat.moving = false;
        }
    }

    pub(super) fn is_surplus(&self, id: u64) -> bool {
        if !self.hires {
            return false;
        }
        let mut state = self.state.lock();
        let target = state.dealt;
        let some_more = |n: u32| n + n / 2;
        let files = state.files().map(|files| some_more(files.max(self.usual)));
        let cap = self.cap;
        let others = state.seats.iter().filter(|seat| seat.id != id && seat.streams > 0 && !seat.leaving);
        let (workers, streams, room) = others.fold((0, 0, 0_u32), |(workers, streams, room), seat| {
            let most = if seat.knob.is_elastic() { seat.most } else { seat.streams };
            (workers + 1, streams + seat.streams, room.saturating_add(most))
        });
        let Some(seat) = state.seat(id) else { return false };
        let enough = if seat.knob.is_elastic() {
            // More than the files in flight that were decided, and without it there is room for all streams.
            workers >= target || room >= target && files.is_some_and(|files| workers >= files)
        } else {
            // Streams that leave together with their session take their windows along: some too many do no harm.
            streams >= some_more(target)
        };
        // Two at the same time must not leave to each other what is to be done.
        seat.leaving |= workers > 0 && (enough || streams + seat.streams > cap);
        seat.leaving
    }

    /// Measures, and asks the tuner where a span has ended. `work` is what is known of what is left, `ends` its bytes where that is all. `waiting`: there are jobs that nobody does; `workers`: those
    /// of the run.
    pub(crate) fn step(
        &self,
        now: Instant,
        processors: &mut Processors,
        (work, ends): (Option<Work>, Option<u64>),
        waiting: bool,
        workers: u32,
    ) -> Step {
        let mut state = self.state.lock();
        let nothing = Step { decision: None, hire: 0 };
        if !state.seats.iter().any(|seat| seat.is_busy(now, self.rtt)) {
            // Between two files: what was measured of a pause says nothing of the path.
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
        let (target, bytes) = (state.target(), state.decision.bytes);
        let pause = if state.is_elastic() || state.decisions == 0 { 0 } else { SLOW_START_ROUND_TRIPS };
        let Some(span) = &mut state.span else {
            let pause = pause * self.rtt;
            // Fewer are tried: those that leave empty their buffers first, and that is not what is to be measured.
            let leaving = state.decision.reason.tries() && totals.streams > target;
            let patience = if leaving { LEAVING } else { SETTLING + SETTLING_ROUND_TRIPS * self.rtt + pause };
            if totals.streams >= target && !leaving {
                state.complete.get_or_insert(now);
            }
            let settled = state.complete.is_some_and(|complete| now.duration_since(complete) >= pause);
            if settled || now.duration_since(state.decided) >= patience {
                // Of the first one a tuner takes it that the connections are made in it.
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
            // The windows are our own: what closes them is this host's storage, which tells of itself.
            chunk.pressure.window = None;
        }
        let rate = if chunk.seconds > 0.0 { chunk.rate() } else { 0.0 };
        let purpose = match state.decision.reason {
            reason if reason.tries() => Purpose::Trial,
            // What is remembered has to hold for a first chunk.
            reason if reason.stays() && state.decisions > 0 => Purpose::Stay,
            // Otherwise it is as far as a climb or a trial may go.
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
        state.follow();
        if !changed {
            // Nothing has to settle: not a moment goes unmeasured.
            let totals = self.totals(&mut state, now, moved);
            state.span = Some(Span::new(now, totals, self.shortest()));
        }
        // Who comes to a run that is nearly over brings nothing. Sizes that no listing told count as nothing.
        let log_in = rate * (LOG_IN_ROUND_TRIPS * self.rtt).as_secs_f64();
        let lasts = ends.is_none_or(|bytes| bytes == 0 || bytes as f64 >= log_in);
        let hire = if waiting && lasts && self.hires {
            state.missing(workers, now, self.rtt).max(state.missing_files(workers, work))
        } else {
            0
        };
        state.coming.extend((0..hire).map(|_| now));
        Step { decision: Some((decision, rate)), hire }
    }

    fn totals(&self, state: &mut State, now: Instant, moved: u64) -> Totals {
        let used = self.limit.as_ref().map(|limit| limit.used());
        Totals { used, ..state.totals(now, self.rtt, moved) }
    }

    /// What the next run should know, once there is something to know. As many streams as were allowed are what the path wants
    /// only where no fewer than `usual` were.
    pub(super) fn learnt(&self, usual: u32) -> Option<Learnt> {
        let prior = self.prior(usual)?;
        let state = self.state.lock();
        let (fastest, fastest_of) = self.known.learnt(self.round_trip(&state), &state.reached);
        Some(Learnt { prior, fastest, fastest_of })
    }

    fn prior(&self, usual: u32) -> Option<Prior> {
        let state = self.state.lock();
        let of = |purpose| state.reached.iter().filter(move |reached| reached.2 == purpose);
        // Of a climb that did not end, the fewest that carried about as much as the best: what came after may have gained nothing.
        let best = of(Purpose::Climb).map(|reached| reached.1).fold(0.0, f64::max);
        let climbed = || {
            of(Purpose::Climb).filter(|reached| reached.1 >= AS_GOOD * best).min_by_key(|reached| reached.0)
        };
        let stayed = of(Purpose::Stay).next_back();
        let &(streams, rate, _) = stayed.or_else(climbed).filter(|_| state.decisions >= 2 && !self.many)?;
        // What was decided last may not have been measured any more.
        let streams = if state.decision.reason.stays() { streams.min(state.target()) } else { streams };
        let bounded = self.cap < usual && streams >= self.cap;
        (rate >= 1.0 && !bounded).then_some(Prior {
            streams,
            rate,
            min_rtt: Some(self.round_trip(&state)),
            age: 0.0,
        })
    }

    /// How it ended; `None` where there was nothing to decide. `set`: somebody has said how large buffers are.
    pub(super) fn tuned(&self, set: bool) -> Option<TunedPath> {
        let buffer = self.buffer().filter(|_| !set);
        let state = self.state.lock();
        (state.decisions > 0).then(|| TunedPath {
            path: self.ends.name(),
            streams: state.target(),
            usual: state.carried.usual().unwrap_or(state.target()),
            most: state.carried.most().max(state.carried.usual().unwrap_or(state.target())),
            bits_per_second: state.reached.last().map_or(0.0, |reached| 8.0 * reached.1),
            decisions: state.decisions,
            reason: state.decision.reason.to_string(),
            buffers_matter: buffer.as_ref().is_some_and(Buffer::matters),
            buffers: buffer.map(|buffer| buffer.why()),
        })
    }

    fn shortest(&self) -> Duration {
        SHORTEST.max(SHORTEST_ROUND_TRIPS * self.rtt)
    }
}

#[cfg(test)]
mod tests;
