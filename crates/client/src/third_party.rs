//! Files from one server to another; no data passes here.
//!
//! The destination is passive and gets its STOR first, the source connects to it. Files are pipelined on both control
//! connections. Should one side refuse a file, the other takes what comes next for it: so data goes to a part name, and a file
//! gets its own name only when both sides have confirmed it and everything before it.

mod begin;
mod finish;
mod slot;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bstr::{BString, ByteSlice};
use ropewalk_protocol::client::answer;
use ropewalk_protocol::command::{Command, Placement, Restart, Retrieval};
use ropewalk_protocol::marker::{Marker, PerfMarker};
use ropewalk_protocol::opts::Options as Opts;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Mode, Window};

use crate::ahead::Ahead;
use crate::auto::{Path, RANGE, SMALL};
use crate::control::{Answer, Control, LAST_WORDS, LONG};
use crate::get::checksum_command;
use crate::model::entry::from_status;
use crate::part::part_of;
use crate::place::Endpoint;
use crate::relay::Relay;
use crate::report::Meter;
use crate::session::{Binding, Session, active, agree, port};
use crate::setup::reachable;
use crate::task::{Task, differs};
use crate::tune::{Ends, Knob, Seat, Wanted, useful_streams};
use crate::verify::{Check, choose, proved, said_size};
use crate::watch::{AT_ONCE, Stall};
use crate::work::{Job, Route};
use crate::worker::{Pipeline, Worker, cannot_go_on, is_of_no_use};
use crate::{ChecksumPolicy, DataMode, RemoteError};

use slot::{Said, Slot};

const CAREFUL: u32 = 16;
/// How often a running transfer is looked after when no reply comes.
const TICK: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Hint,
    Place,
    Restart,
    Transfer,
    Sum,
    /// What the source is like when all of it has come.
    Version,
    Rename,
    Attribute,
}

/// A range of a file.
type Part = (Arc<Relay>, Range<u64>);

struct Flow<'w> {
    worker: &'w Worker<'w>,
    source: Session,
    destination: Session,
    seat: Option<Seat>,
    /// Streams that the source should use, where they can be changed while it sends.
    wanted: Option<Wanted>,
    source_asks: VecDeque<(u64, Ask)>,
    destination_asks: VecDeque<(u64, Ask)>,
    slots: VecDeque<Slot<'w>>,
    first: u64,
    path: Path,
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
    let (source, destination) = match worker.session_pair(from, to) {
        Ok(pair) => pair,
        Err(e) => return worker.fail(job, e),
    };
    worker.ctx.report.goes_elsewhere();
    let rtt = source.control.rtt().max(destination.control.rtt());
    let ends = Ends { source: Some(from.name.clone()), destination: Some(to.name.clone()) };
    let seat = worker.seat(ends, rtt);
    let flow = Flow {
        worker,
        seat,
        wanted: None,
        path: Path::new(rtt),
        stall: Stall::new(worker.ctx.options().stall),
        looked: Instant::now(),
        source,
        destination,
        source_asks: VecDeque::new(),
        destination_asks: VecDeque::new(),
        slots: VecDeque::new(),
        first: 0,
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
    if worker.ctx.options().delayed_passive {
        // It would answer every PASV with a delay.
        let _ = flow.destination.control.hear_out();
        flow.destination.quit();
    } else {
        worker.keep(flow.destination);
    }
}

impl Pipeline for Flow<'_> {
    fn ahead(&mut self) -> Ahead {
        let streams = self.channel.map_or(0, |(_, streams)| streams);
        self.worker.ctx.ahead(self.path, self.seat.as_ref(), streams)
    }

    fn is_low(&self, _ahead: Ahead) -> bool {
        true
    }

    fn has_room(&mut self, ahead: Ahead) -> bool {
        let lengths = self.slots.iter().filter(|s| !s.counted).map(|s| s.range.end - s.range.start);
        let waiting = lengths.fold(0, u64::saturating_add);
        let pipelined = matches!(self.channel, None | Some((Mode::ExtendedBlock, 1)))
            && self.worker.careful.get() == 0
            // In place: were another file refused, this one would get its data.
            && !self.slots.iter().any(|s| s.relay.direct)
            && !self.worker.ctx.options().delayed_passive;
        if self.takes_parts() {
            return true;
        }
        let under_way = self.slots.iter().filter(|s| !s.counted).count();
        let parts = self.slots.iter().filter(|s| !s.counted && s.is_part()).count();
        self.slots.len() < if pipelined { ahead.depth } else { 1 } && ahead.takes(under_way, waiting, parts)
    }

    fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn seat(&self) -> Option<&Seat> {
        self.seat.as_ref()
    }

    fn submit(&mut self, job: Job) -> Result<Option<Job>, RemoteError> {
        if let (Some(slot), true) = (self.slots.front(), self.takes_parts()) {
            match job {
                Job::Third(relay, range) if Arc::ptr_eq(&relay, &slot.relay) && !relay.was_tried() => {
                    return self.go_on(relay, range);
                }
                other => return Ok(Some(other)),
            }
        }
        let (relay, range) = match job {
            Job::Third(relay, range) => {
                let again = relay.was_tried();
                if again && !self.slots.is_empty() {
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
                let locks = self.destination.quirks.separates_uploads;
                let known = self.worker.ctx.states.claim(&mut task, resumable, locks);
                let alone = task.size.is_none()
                    || task.tries.total > 0
                    || task.compares()
                    || task.confirm
                    || self.worker.ctx.options().in_place
                    || known.is_some()
                    || self.worker.careful.get() > 0
                    || task.size.is_some_and(|size| size >= 2 * RANGE);
                if alone && !self.slots.is_empty() {
                    return Ok(Some(Job::File(task)));
                }
                let again = task.clone();
                match self.begin(task, alone, known, resumable) {
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
        let heard = self.listen(true)? | self.listen(false)?;
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
        match self.worker.ctx.options().mode {
            DataMode::Stream => Mode::Stream,
            DataMode::Extended => Mode::ExtendedBlock,
            DataMode::Auto if both && !self.worker.ctx.options().ascii => Mode::ExtendedBlock,
            DataMode::Auto => Mode::Stream,
        }
    }

    /// One range of a file that is cut up moves, as markers say: the next one may be asked for. Nothing else, where there are several
    /// connections: were it refused, what came for it would go to others.
    fn takes_parts(&self) -> bool {
        let several = matches!(self.channel, Some((Mode::ExtendedBlock, streams)) if streams > 1);
        let one = self.slots.front().filter(|slot| self.slots.len() == 1 && several && slot.is_part());
        one.is_some_and(|slot| slot.error.is_none() && !slot.relay.direct && !slot.stripes.is_empty())
    }

    fn go_on(&mut self, relay: Arc<Relay>, range: Range<u64>) -> Result<Option<Job>, RemoteError> {
        if relay.has_failed() {
            self.worker.done();
            return Ok(None);
        }
        relay.is_begun(&range);
        if relay.direct && !self.slots.is_empty() {
            return Ok(Some(Job::Third(relay, range)));
        }
        let range = self.bite(&relay, range);
        let ahead = self.worker.ahead(&relay, range.end - range.start);
        let mode = self.mode();
        let streams = if mode == Mode::Stream {
            1
        } else {
            let rtt = self.source.control.rtt().max(self.destination.control.rtt());
            let size = relay.task.length().map(|_| ahead);
            let streams = Path::new(rtt).streams(self.worker.ctx.options(), size, !relay.device());
            let seat = self.seat.as_ref().filter(|_| streams > 1);
            let big = relay.task.length().is_some_and(|length| length >= 2 * RANGE);
            let whole = big && self.cuts() && !self.shares(&relay);
            if whole && !self.source.can.streams {
                // No other session takes a part of it, and this one cannot have more streams later.
                self.worker.ctx.share_whole(streams)
            } else if let Some(seat) = seat {
                let most = size.map_or(u32::MAX, useful_streams);
                let workers = self.worker.ctx.workers_for(relay.task.length());
                seat.share(self.source.can.streams, most, workers)
            } else if self.cuts() {
                self.worker.ctx.share(streams, relay.task.length())
            } else {
                streams
            }
        };
        let fits = mode == Mode::ExtendedBlock
            && self.channel.is_some_and(|(m, n)| m == mode && (n >= streams || self.seat.is_some() && n > 1))
            && !self.worker.ctx.options().delayed_passive;
        if !fits {
            if !self.slots.is_empty() {
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

    fn ask(&mut self, id: u64, destination: bool, ask: Ask, command: &Command) -> Result<(), RemoteError> {
        let (session, asks) = if destination {
            (&mut self.destination, &mut self.destination_asks)
        } else {
            (&mut self.source, &mut self.source_asks)
        };
        session.control.send(command).inspect_err(|_| self.culprit = Some(id))?;
        asks.push_back((id, ask));
        let slot = &mut self.slots[(id - self.first) as usize];
        slot.due += 1;
        if ask == Ask::Sum {
            session.control.last_reads(slot.relay.task.size);
        }
        Ok(())
    }

    /// Takes the replies of one side that are there.
    fn listen(&mut self, destination: bool) -> Result<bool, RemoteError> {
        let mut heard = false;
        for _ in 0..AT_ONCE {
            let session = if destination { &mut self.destination } else { &mut self.source };
            match session.control.try_answer() {
                Ok(Some(answer)) => self.hear(destination, answer),
                Ok(None) => return Ok(heard),
                Err(e) => {
                    let asks = if destination { &self.destination_asks } else { &self.source_asks };
                    self.culprit = asks.front().map(|(id, _)| *id);
                    return Err(e);
                }
            }
            heard = true;
        }
        Ok(heard)
    }

    /// Notices transfers that stand still, and servers that do not answer.
    fn look_after(&mut self) -> Result<(), RemoteError> {
        if self.slots.iter().any(|slot| slot.relay.has_failed() && !slot.counted) {
            // It begins anew, and what moves now may be of the source as it was.
            return Err(RemoteError::OutOfStep);
        }
        self.tell_streams()?;
        let limit = self.worker.ctx.options().reply_timeout;
        let transferring =
            |asks: &VecDeque<(u64, Ask)>| asks.front().is_some_and(|(_, ask)| *ask == Ask::Transfer);
        for (session, asks) in
            [(&self.source, &self.source_asks), (&self.destination, &self.destination_asks)]
        {
            let limit = match asks.front() {
                // Those are looked after below.
                None | Some((_, Ask::Transfer)) => continue,
                // CKSM of a big file takes its time.
                Some((_, Ask::Sum)) => session.control.patience(),
                Some(_) => limit,
            };
            if session.control.quiet() > limit {
                let (peer, command) = (session.control.peer().to_owned(), "a command".to_owned());
                self.culprit = asks.front().map(|(id, _)| *id);
                return Err(RemoteError::Silent { peer, command, limit });
            }
        }
        let now = Instant::now();
        let sending = transferring(&self.source_asks);
        let receiving = transferring(&self.destination_asks);
        // All of that file has come, so that there is nothing left for it to do.
        let front = self.source_asks.front().and_then(|(id, _)| id.checked_sub(self.first));
        let slot = front.and_then(|at| self.slots.get(at as usize));
        let come = sending && slot.is_some_and(|slot| slot.destination.ended.is_some());
        self.overdue = self.overdue.or(Some(now)).filter(|_| come);
        if self.overdue.is_some_and(|since| now.duration_since(since) > limit) {
            let (peer, command) = (self.source.control.peer().to_owned(), "RETR".to_owned());
            self.culprit = self.source_asks.front().map(|(id, _)| *id);
            return Err(RemoteError::Silent { peer, command, limit });
        }
        let stream = self.channel.is_none_or(|(mode, _)| mode == Mode::Stream);
        self.late = self.late.or(Some(now)).filter(|_| stream && receiving && !sending);
        if self.late.is_some_and(|since| now.duration_since(since) > LONG) {
            let peer = self.destination.control.peer().to_owned();
            self.culprit = self.destination_asks.front().map(|(id, _)| *id);
            return Err(RemoteError::Silent { peer, command: "STOR".to_owned(), limit: LONG });
        }
        let known = receiving && (!stream || !self.stall.is_due(now) || self.stream_stands(sending));
        if !known {
            self.stall = Stall::new(self.worker.ctx.options().stall);
            return Ok(());
        }
        if let Some(limit) = self.stall.check(now, self.moved) {
            let path = self.slots.front().map(|slot| slot.relay.task.source.path()).unwrap_or_default();
            self.culprit = self.destination_asks.front().map(|(id, _)| *id);
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
        let Some(slot) = self.slots.front() else { return false };
        let (path, id) = (slot.relay.path.clone(), self.first);
        let whole = slot.relay.task.size.filter(|_| !sending && slot.relay.task.window.is_none());
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

    fn hear(&mut self, destination: bool, answer: Answer) {
        let asks = if destination { &mut self.destination_asks } else { &mut self.source_asks };
        let Some(&(id, ask)) = asks.front() else { return };
        let slot = id.checked_sub(self.first).and_then(|at| self.slots.get_mut(at as usize));
        let ctx = self.worker.ctx;
        let Answer::Final(reply) = answer else {
            if let (false, Some(seat), Answer::Marker(Marker::Path(path))) =
                (destination, &self.seat, &answer)
            {
                seat.hears(*path);
            }
            let (Some(slot), true) = (slot, destination && ask == Ask::Transfer) else { return };
            match answer {
                Answer::Marker(Marker::Range(ranges)) => {
                    if let Some(ranges) = ranges.shift_up(slot.origin) {
                        let present = slot.relay.add_present(&ranges);
                        if slot.relay.task.size.is_some_and(|size| size > SMALL) && !slot.relay.direct {
                            ctx.states.save(&slot.relay.task, &present);
                        }
                    }
                }
                Answer::Marker(Marker::Perf(perf)) => {
                    let before = slot.told();
                    slot.hear(perf);
                    self.moved = self.moved.saturating_add(slot.told().saturating_sub(before));
                    let streams = self.channel.map_or(1, |(_, streams)| streams);
                    // Those behind it in the pipeline use the same connections.
                    let streams = if id == self.first { streams } else { 0 };
                    slot.meter.update(slot.told(), streams);
                }
                _ => {}
            }
            return;
        };
        asks.pop_front();
        let Some(slot) = slot else { return };
        slot.due = slot.due.saturating_sub(1);
        let (place, said) = if destination {
            (&slot.relay.task.destination, &mut slot.destination)
        } else {
            (&slot.relay.task.source, &mut slot.source)
        };
        if reply.is_failure() {
            match ask {
                Ask::Hint | Ask::Place => {}
                // It was there a moment ago.
                Ask::Version => slot.version_due = false,
                // ABOR, which was about a transfer behind it.
                Ask::Sum | Ask::Rename | Ask::Attribute
                    if destination && reply.code() == 426 && !slot.asked_again =>
                {
                    slot.again = true;
                }
                Ask::Sum if destination && slot.relay.in_place && slot.relay.check == Check::Size => {
                    ctx.report.not_compared(place);
                    said.sum = Some(String::new());
                }
                Ask::Attribute => {
                    ctx.report.not_preserved(place, Some(reply.code()), &crate::model::error::text(&reply));
                }
                Ask::Rename => {
                    let error = RemoteError::of_part(place.display(), "RNTO", &slot.relay.path, reply);
                    slot.error.get_or_insert(error);
                }
                Ask::Sum if destination && !slot.relay.direct => {
                    let verb = if slot.relay.check == Check::Size { "SIZE" } else { "CKSM" };
                    let error = RemoteError::of_part(place.display(), verb, &slot.relay.path, reply);
                    slot.error.get_or_insert(error);
                }
                _ => {
                    let command = match (ask, destination) {
                        (Ask::Transfer, true) => "STOR",
                        (Ask::Transfer, false) => "RETR",
                        (Ask::Restart, _) => "REST",
                        (Ask::Sum, _) if slot.relay.check == Check::Size => "SIZE",
                        (Ask::Sum, _) => "CKSM",
                        _ => "RNTO",
                    };
                    let (peer, command) = (place.display(), command.to_owned());
                    slot.error.get_or_insert(RemoteError::Refused { peer, command, reply });
                }
            }
            return;
        }
        match ask {
            Ask::Place => slot.relay.replaces(&reply),
            Ask::Transfer => {
                said.ended = Some(answer::inline_checksum(&reply).map(|(_, sum)| sum));
                if let (false, Some(seat)) = (destination, &self.seat) {
                    seat.heard_out();
                }
            }
            Ask::Sum => said.sum = Some(reply.text().to_str_lossy().into_owned()),
            Ask::Version => {
                slot.version_due = false;
                let task = &slot.relay.task;
                if from_status(&reply).is_some_and(|entry| differs(task, &entry, true)) {
                    slot.error.get_or_insert(RemoteError::SourceChanged { path: task.source.path() });
                }
            }
            _ => {}
        }
    }
}

fn compare_sizes(relay: &Relay, said: &str) -> Result<(), RemoteError> {
    let there = said_size(&relay.task.destination, said)?;
    let Some((there, expected)) = there.zip(relay.task.size) else { return Ok(()) };
    if there == expected {
        Ok(())
    } else {
        Err(RemoteError::SizeMismatch { path: relay.task.destination.path(), expected, there })
    }
}
