//! Files from one server to another; no data passes here.
//!
//! The destination is passive and gets its STOR first, the source connects to it. Files are pipelined on both control
//! connections. Should one side refuse a file, the other takes what comes next for it: so data goes to a part name, and a file
//! gets its own name only when both sides have confirmed it and everything before it.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bstr::ByteSlice;
use ropewalk_protocol::command::{Command, Placement, Restart, Retrieval};
use ropewalk_protocol::host_port::parse_pasv_reply;
use ropewalk_protocol::marker::Marker;
use ropewalk_protocol::opts::Options as Opts;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::reply::Reply;
use ropewalk_protocol::server::{Mode, Window};

use crate::auto::{Path, RANGE, SMALL};
use crate::control::Control;
use crate::get::checksum_command;
use crate::inline::inline_sum;
use crate::place::Endpoint;
use crate::relay::Relay;
use crate::report::Meter;
use crate::session::{Session, port};
use crate::setup::reachable;
use crate::task::Task;
use crate::upload::{is_device, part_path};
use crate::verify::{Check, choose, same, wire};
use crate::watch::Stall;
use crate::worker::{Job, Route, Worker};
use crate::{ChecksumPolicy, DataMode, RemoteError};

const AHEAD: u64 = 32 << 20;
const CAREFUL: u32 = 16;
/// How often a running transfer is looked after when no reply comes.
const TICK: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Hint,
    Restart,
    Transfer,
    Sum,
    Rename,
    Attribute,
}

/// What one side has said of a file.
#[derive(Default)]
struct Said {
    /// The final reply of the transfer, with a sum where it told one.
    ended: Option<Option<String>>,
    sum: Option<String>,
}

struct Slot<'r, 'e> {
    relay: Arc<Relay>,
    range: Range<u64>,
    /// File offset = offset in markers + this.
    origin: u64,
    source: Said,
    destination: Said,
    counted: bool,
    asked_sum: bool,
    committing: bool,
    /// Answers that are due, of both sides.
    due: u32,
    meter: Meter<'r, 'e>,
    /// 112: bytes of each stripe.
    stripes: HashMap<u32, u64>,
    error: Option<RemoteError>,
}

/// A range of a file.
type Part = (Arc<Relay>, Range<u64>);

struct Flow<'w, 'e> {
    worker: &'w Worker<'w, 'e>,
    source: Session<'e>,
    destination: Session<'e>,
    source_asks: VecDeque<(u64, Ask)>,
    destination_asks: VecDeque<(u64, Ask)>,
    slots: VecDeque<Slot<'w, 'e>>,
    first: u64,
    depth: usize,
    /// MODE and streams of the data channel between the two; `None` before there is one.
    channel: Option<(Mode, u32)>,
    stall: Stall,
    moved: u64,
}

/// Handles `job` and those of the same kind that come after it, until there are none or a session breaks.
pub(crate) fn run<'e>(worker: &Worker<'_, 'e>, from: &Arc<Endpoint>, to: &Arc<Endpoint>, job: Job) {
    let destination = match worker.session(to) {
        Ok(session) => session,
        Err(e) => return worker.fail(job, e),
    };
    let source = match worker.session(from) {
        Ok(session) => session,
        Err(e) => {
            worker.keep(destination);
            return worker.fail(job, e);
        }
    };
    let rtt = source.control.rtt().max(destination.control.rtt());
    let mut flow = Flow {
        worker,
        depth: Path::new(rtt).pipeline(worker.ctx.options()),
        stall: Stall::new(worker.ctx.options().stall),
        source,
        destination,
        source_asks: VecDeque::new(),
        destination_asks: VecDeque::new(),
        slots: VecDeque::new(),
        first: 0,
        channel: None,
        moved: 0,
    };
    let route = Route::Third(from.clone(), to.clone());
    let mut next = Some(job);
    loop {
        while next.is_some() || flow.has_room() {
            let Some(job) = next.take().or_else(|| worker.more(&route)) else { break };
            match flow.submit(job) {
                Ok(None) => {}
                Ok(Some(job)) => {
                    next = Some(job);
                    break;
                }
                Err(e) => return flow.abandon(e),
            }
        }
        if flow.slots.is_empty() && next.is_none() {
            break;
        }
        if let Err(e) = flow.step() {
            if let Some(job) = next {
                worker.put_back(job);
            }
            return flow.abandon(e);
        }
    }
    worker.keep(flow.source);
    if worker.ctx.options().delayed_passive {
        // It would answer every PASV with a delay.
        flow.destination.quit();
    } else {
        worker.keep(flow.destination);
    }
}

impl<'w, 'e> Flow<'w, 'e> {
    fn mode(&self) -> Mode {
        let both = self.source.can.extended && self.destination.can.extended;
        match self.worker.ctx.options().mode {
            DataMode::Stream => Mode::Stream,
            DataMode::Extended => Mode::ExtendedBlock,
            DataMode::Auto if both && !self.worker.ctx.options().ascii => Mode::ExtendedBlock,
            DataMode::Auto => Mode::Stream,
        }
    }

    fn has_room(&self) -> bool {
        let waiting: u64 = self.slots.iter().filter(|s| !s.counted).map(|s| s.range.end - s.range.start).sum();
        let pipelined = matches!(self.channel, None | Some((Mode::ExtendedBlock, 1)))
            && self.worker.careful.get() == 0
            && !self.worker.ctx.options().delayed_passive;
        self.slots.len() < if pipelined { self.depth } else { 1 } && waiting < AHEAD
    }

    fn submit(&mut self, job: Job) -> Result<Option<Job>, RemoteError> {
        let (relay, range) = match job {
            Job::Third(relay, range) => (relay, range),
            Job::File(task) => {
                let resumable = self.resumable(&task);
                let known = if resumable { self.worker.ctx.states.load(&task) } else { None };
                let alone = task.link.is_some()
                    || task.size.is_none()
                    || task.tries > 0
                    || task.compare
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
                        let broken = e.breaks_session();
                        self.worker.fail(Job::File(again), e);
                        return if broken { Err(RemoteError::Cancelled) } else { Ok(None) };
                    }
                }
            }
            other => return Ok(Some(other)),
        };
        if relay.has_failed() {
            self.worker.done();
            return Ok(None);
        }
        let mode = self.mode();
        let streams = if mode == Mode::Stream {
            1
        } else {
            let rtt = self.source.control.rtt().max(self.destination.control.rtt());
            let size = relay.task.length().map(|_| range.end - range.start);
            self.worker.ctx.share(Path::new(rtt).streams(self.worker.ctx.options(), size), size)
        };
        let fits = mode == Mode::ExtendedBlock
            && self.channel.is_some_and(|(m, n)| m == mode && n >= streams)
            && !self.worker.ctx.options().delayed_passive;
        if !fits {
            if !self.slots.is_empty() {
                return Ok(Some(Job::Third(relay, range)));
            }
            if let Err(e) = self.connect(mode, streams, relay.check) {
                let broken = e.breaks_session();
                self.worker.fail(Job::Third(relay, range), e);
                return if broken { Err(RemoteError::Cancelled) } else { Ok(None) };
            }
        }
        self.send(relay, range, mode)?;
        Ok(None)
    }

    fn resumable(&self, task: &Task) -> bool {
        let options = self.worker.ctx.options();
        options.resume
            && self.mode() == Mode::ExtendedBlock
            && task.window.is_none()
            && !is_device(&task.destination.path())
            && task.size.is_some_and(|size| size > SMALL)
    }

    /// Makes the two servers ready for each other.
    fn connect(&mut self, mode: Mode, streams: u32, check: Check) -> Result<(), RemoteError> {
        self.channel = None;
        let inline = if let Check::Inline(algorithm) = check { Some(algorithm) } else { None };
        self.destination.drop_channel();
        self.source.drop_channel();
        let parallelism = (mode == Mode::ExtendedBlock).then_some(streams);
        if self.delayed() {
            // The address comes after STOR.
            self.destination.prepare(mode, None, inline, Some(Command::Opts(Opts::Passive { delayed: true })))?;
            self.destination.call(&Command::Pasv)?;
            self.source.prepare(mode, parallelism, inline, None)?;
        } else {
            if parallelism.is_some() {
                self.destination.frequent_markers()?;
            }
            let address = self.destination.passive(mode, None, inline)?;
            self.source.prepare(mode, parallelism, inline, None)?;
            self.point(address)?;
        }
        self.channel = Some((mode, streams));
        Ok(())
    }

    fn delayed(&self) -> bool {
        self.worker.ctx.options().delayed_passive && self.destination.can.delayed_passive
    }

    /// Tells the source where to connect to.
    fn point(&mut self, address: SocketAddr) -> Result<(), RemoteError> {
        let refused = self.source.call(&port(address));
        refused.map(drop).map_err(|e| match e {
            RemoteError::Refused { reply, .. } => RemoteError::Unsupported {
                peer: self.source.endpoint.name.clone(),
                what: format!(
                    "send to another server ({}, third-party transfer): {}",
                    self.destination.endpoint.name,
                    crate::error::text(&reply)
                ),
            },
            other => other,
        })
    }

    fn begin(
        &mut self,
        mut task: Task,
        ask: bool,
        known: Option<RangeSet>,
        resumable: bool,
    ) -> Result<Option<Part>, RemoteError> {
        let ctx = self.worker.ctx;
        if let Some(target) = &task.link {
            self.destination.replace_link(target, &task.destination.path())?;
            ctx.report.linked(&task);
            self.worker.done();
            return Ok(None);
        }
        if ask {
            let entry = self.source.stat(&task.source.path())?;
            let changed = known.is_some() && (entry.size != task.size);
            task.size = entry.size.or(task.size);
            task.modified = entry.modified.or(task.modified);
            task.mode = entry.mode.or(task.mode);
            if changed {
                return Err(RemoteError::SourceChanged { path: task.source.path() });
            }
        }
        if task.compare && self.same_already(&task)? {
            ctx.report.skipped(task.source.display(), "same checksum");
            self.worker.done();
            return Ok(None);
        }
        let check = self.check()?;
        let part = part_path(&task.destination.path());
        let mut present = RangeSet::new();
        if let Some(known) = known {
            present = if self.destination.can.ranges {
                self.destination.ranges(&part)?
            } else {
                match self.destination.size(&part) {
                    Ok(size) if known.end() <= size => known,
                    Err(e) if e.breaks_session() => return Err(e),
                    _ => RangeSet::new(),
                }
            };
        }
        task.began.get_or_insert_with(Instant::now);
        let relay = Relay::begin(task, check, present.clone());
        if resumable {
            ctx.states.save(&relay.task, &present);
        }
        let task = &relay.task;
        ctx.report.started(task.id, task.source.display(), task.destination.display(), task.length(), present.len());
        let whole = relay.whole();
        let mut ranges = self.cut(&relay, &present).into_iter();
        let Some(first) = ranges.next() else { return Ok(Some((relay, whole))) };
        let rest: Vec<Job> = ranges.map(|range| Job::Third(relay.clone(), range)).collect();
        if !rest.is_empty() && present.is_empty() {
            // ESTO does not truncate.
            self.destination.control.call(&Command::Dele(part))?;
        }
        relay.expect(rest.len() as u32);
        ctx.queue.push_urgent(rest);
        Ok(Some((relay, first)))
    }

    fn cut(&self, relay: &Relay, present: &RangeSet) -> Vec<Range<u64>> {
        let whole = relay.whole();
        let can = self.source.can.partial && self.destination.can.partial && self.mode() == Mode::ExtendedBlock;
        if !can || relay.direct || whole.end == u64::MAX {
            return vec![whole];
        }
        let sessions = self.worker.ctx.sessions.load(Ordering::Relaxed);
        let step = Path::range_size(whole.end, sessions);
        let missing = present.complement(whole.clone());
        if step >= whole.end || missing.len() < 2 * RANGE {
            return vec![whole];
        }
        (0..whole.end)
            .step_by(step as usize)
            .map(|start| start..(start + step).min(whole.end))
            .filter(|range| !missing.intersection(range.clone()).is_empty())
            .collect()
    }

    fn check(&self) -> Result<Check, RemoteError> {
        let ctx = self.worker.ctx;
        let options = ctx.options();
        if options.ascii {
            return Ok(Check::Size);
        }
        let (a, b) = (&self.source.can, &self.destination.can);
        let inline = a.inline_checksum && b.inline_checksum;
        let both = format!("{} and {}", self.source.endpoint.name, self.destination.endpoint.name);
        let check = choose(options.checksum, &|x| a.knows(x) && b.knows(x), inline, &both)?;
        if check == Check::Size && options.checksum != ChecksumPolicy::None {
            ctx.report.warn_once(format!("{both} have no checksum in common: only sizes are compared"));
        }
        Ok(check)
    }

    fn same_already(&mut self, task: &Task) -> Result<bool, RemoteError> {
        let servers = [&self.source.can, &self.destination.can];
        let Some(algorithm) = self.worker.ctx.comparison(&servers) else { return Ok(false) };
        // Both at the same time.
        self.source.control.send(&checksum_command(algorithm, task, &task.source.path()))?;
        let theirs = self.destination.checksum(&task.destination.path(), algorithm, None);
        let reply = self.source.control.finish()?;
        let ours = self.source.accept("CKSM", reply)?;
        Ok(same(&ours.text().to_str_lossy(), &theirs?))
    }

    /// Sends the commands of a transfer to both.
    fn send(&mut self, relay: Arc<Relay>, range: Range<u64>, mode: Mode) -> Result<(), RemoteError> {
        let id = self.first + self.slots.len() as u64;
        let whole = range == relay.whole() && relay.task.window.is_none();
        let (origin, path, from) = (range.start, relay.path.clone(), relay.task.source.path());
        let there = relay.present().intersection(range.clone()).shift_down(origin);
        let restart = match mode {
            _ if there.is_empty() => None,
            Mode::ExtendedBlock => Some(Restart::Ranges(there)),
            Mode::Stream => (there.prefix() > 0).then(|| Restart::Offset(there.prefix())),
        };
        let (retrieve, store) = if whole {
            (Command::Retr(from), Command::Stor(path))
        } else {
            let length = if range.end == u64::MAX { i64::MAX as u64 - origin } else { range.end - origin };
            let what = Retrieval::Partial(Window { offset: origin, length });
            (Command::Eret { what, path: from }, Command::Esto { place: Placement::Adjusted(origin), path })
        };
        let mut to_destination = Vec::new();
        if let Some(size) = relay.task.length().filter(|size| *size > SMALL && whole) {
            to_destination.push((Ask::Hint, Command::Allo(size)));
        }
        to_destination.extend(restart.clone().map(|restart| (Ask::Restart, Command::Rest(restart))));
        to_destination.push((Ask::Transfer, store));
        let mut to_source = Vec::new();
        to_source.extend(restart.map(|restart| (Ask::Restart, Command::Rest(restart))));
        to_source.push((Ask::Transfer, retrieve));
        let meter = Meter::new(&self.worker.ctx.report);
        self.slots.push_back(Slot {
            relay,
            range,
            origin,
            source: Said::default(),
            destination: Said::default(),
            counted: false,
            asked_sum: false,
            committing: false,
            due: 0,
            meter,
            stripes: HashMap::new(),
            error: None,
        });
        if let Err(e) = self.ask_all(id, to_destination, to_source) {
            // Half of it may be on its way: nothing can be said about either session.
            if let Some(slot) = self.slots.back_mut() {
                slot.error = Some(e);
            }
            return Err(RemoteError::Cancelled);
        }
        Ok(())
    }

    fn ask_all(
        &mut self,
        id: u64,
        to_destination: Vec<(Ask, Command)>,
        to_source: Vec<(Ask, Command)>,
    ) -> Result<(), RemoteError> {
        for (ask, command) in to_destination {
            self.ask(id, true, ask, &command)?;
        }
        if self.delayed() {
            let address = self.delayed_address(id)?;
            self.point(address)?;
        }
        for (ask, command) in to_source {
            self.ask(id, false, ask, &command)?;
        }
        Ok(())
    }

    /// Delayed passive: the address is a preliminary reply to STOR.
    fn delayed_address(&mut self, id: u64) -> Result<SocketAddr, RemoteError> {
        loop {
            let reply = self.destination.control.reply()?;
            if reply.code() == 127 {
                let peer = self.destination.control.remote_addr().ip();
                let address = parse_pasv_reply(reply.text());
                return match address {
                    Ok(address) => Ok(reachable(address.into(), peer)),
                    Err(_) => Err(self.destination.nonsense("STOR", &reply)),
                };
            }
            self.hear(true, reply);
            let slot = &mut self.slots[(id - self.first) as usize];
            if let Some(error) = slot.error.take() {
                return Err(error);
            }
        }
    }

    fn ask(&mut self, id: u64, destination: bool, ask: Ask, command: &Command) -> Result<(), RemoteError> {
        if destination {
            self.destination.control.send(command)?;
            self.destination_asks.push_back((id, ask));
        } else {
            self.source.control.send(command)?;
            self.source_asks.push_back((id, ask));
        }
        self.slots[(id - self.first) as usize].due += 1;
        Ok(())
    }

    /// Takes what replies there are, or waits for one.
    fn step(&mut self) -> Result<(), RemoteError> {
        let mut heard = false;
        while let Some(reply) = self.destination.control.try_reply()? {
            self.hear(true, reply);
            heard = true;
        }
        while let Some(reply) = self.source.control.try_reply()? {
            self.hear(false, reply);
            heard = true;
        }
        if !heard {
            Control::wait_either(&self.source.control, &self.destination.control, Instant::now() + TICK)?;
            self.look_after()?;
        }
        self.settle()
    }

    /// Notices transfers that stand still, and servers that do not answer.
    fn look_after(&mut self) -> Result<(), RemoteError> {
        let limit = self.worker.ctx.options().reply_timeout;
        let transferring = |asks: &VecDeque<(u64, Ask)>| asks.front().is_some_and(|(_, ask)| *ask == Ask::Transfer);
        for (session, asks) in
            [(&self.source, &self.source_asks), (&self.destination, &self.destination_asks)]
        {
            // CKSM of a big file takes its time.
            let long = asks.front().is_some_and(|(_, ask)| matches!(ask, Ask::Transfer | Ask::Sum));
            if !asks.is_empty() && !long && session.control.quiet() > limit {
                let (peer, command) = (session.control.peer().to_owned(), "a command".to_owned());
                return Err(RemoteError::Silent { peer, command, limit });
            }
        }
        let markers = self.channel.is_some_and(|(mode, _)| mode == Mode::ExtendedBlock);
        if !markers || !transferring(&self.destination_asks) {
            self.stall = Stall::new(self.worker.ctx.options().stall);
            return Ok(());
        }
        if let Some(limit) = self.stall.check(Instant::now(), self.moved) {
            let path = self.slots.front().map(|slot| slot.relay.task.source.path()).unwrap_or_default();
            return Err(RemoteError::Stalled {
                path,
                bytes_per_second: limit.bytes_per_second,
                time: limit.time,
            });
        }
        Ok(())
    }

    fn hear(&mut self, destination: bool, reply: Reply) {
        let asks = if destination { &mut self.destination_asks } else { &mut self.source_asks };
        let Some(&(id, ask)) = asks.front() else { return };
        let slot = id.checked_sub(self.first).and_then(|at| self.slots.get_mut(at as usize));
        let ctx = self.worker.ctx;
        if reply.is_preliminary() {
            let (Some(slot), true) = (slot, destination && ask == Ask::Transfer) else { return };
            match Marker::from_reply(&reply) {
                Some(Ok(Marker::Range(ranges))) => {
                    if let Some(ranges) = ranges.shift_up(slot.origin) {
                        let present = slot.relay.add_present(&ranges);
                        if slot.relay.task.size.is_some_and(|size| size > SMALL) && !slot.relay.direct {
                            ctx.states.save(&slot.relay.task, &present);
                        }
                    }
                }
                Some(Ok(Marker::Perf(perf))) => {
                    let before = slot.stripes.insert(perf.stripe, perf.bytes).unwrap_or_default();
                    self.moved += perf.bytes.saturating_sub(before);
                    let streams = self.channel.map_or(1, |(_, streams)| streams);
                    // Those behind it in the pipeline use the same connections.
                    let streams = if id == self.first { streams } else { 0 };
                    slot.meter.update(slot.stripes.values().sum(), streams);
                }
                _ => {}
            }
            return;
        }
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
                Ask::Hint => {}
                Ask::Attribute => ctx.report.warn_once(format!(
                    "{}: times or modes could not be set: {}",
                    place.display(),
                    crate::error::text(&reply)
                )),
                _ => {
                    let command = match (ask, destination) {
                        (Ask::Transfer, true) => "STOR",
                        (Ask::Transfer, false) => "RETR",
                        (Ask::Restart, _) => "REST",
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
            Ask::Transfer => said.ended = Some(inline_sum(&reply)),
            Ask::Sum => said.sum = Some(reply.text().to_str_lossy().into_owned()),
            _ => {}
        }
    }

    /// Goes on with what both sides confirmed, in order.
    fn settle(&mut self) -> Result<(), RemoteError> {
        for at in 0..self.slots.len() {
            if self.slots[at].error.is_some() {
                self.worker.careful.set(CAREFUL);
                // One side may still wait for the other: both sessions are given up.
                let slot = &self.slots[at];
                let over = slot.due == 0 && slot.source.ended.is_some() && slot.destination.ended.is_some();
                if !over || self.slots.len() > 1 {
                    return Err(RemoteError::Cancelled);
                }
                if let Some(slot) = self.slots.pop_front() {
                    self.first += 1;
                    let error = slot.error.unwrap_or(RemoteError::Cancelled);
                    self.worker.fail(Job::Third(slot.relay, slot.range), error);
                }
                return Ok(());
            }
            self.advance(at)?;
        }
        while self.slots.front().is_some_and(Slot::is_over) {
            let Some(slot) = self.slots.pop_front() else { break };
            self.first += 1;
            self.worker.careful.set(self.worker.careful.get().saturating_sub(1));
            if slot.committing {
                self.finish(&slot.relay);
            }
            self.worker.done();
        }
        if self.slots.is_empty() && self.channel.is_some_and(|(mode, _)| mode == Mode::Stream) {
            self.channel = None;
        }
        Ok(())
    }

    fn advance(&mut self, at: usize) -> Result<(), RemoteError> {
        let id = self.first + at as u64;
        let slot = &mut self.slots[at];
        let (Some(source), Some(destination)) = (&slot.source.ended, &slot.destination.ended) else { return Ok(()) };
        let relay = slot.relay.clone();
        if !slot.counted {
            slot.counted = true;
            if slot.relay.task.size.is_some() {
                let markers: u64 = slot.stripes.values().sum();
                // Without markers (MODE S) this is the first that is known of progress.
                let moved = if slot.stripes.is_empty() { slot.range.end - slot.range.start } else { markers };
                slot.meter.update(moved, 0);
            }
            let range = RangeSet::from_range(slot.range.clone());
            match relay.arrived(&range, source.as_deref(), destination.as_deref()) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(e) => {
                    slot.error = Some(e);
                    return Ok(());
                }
            }
            slot.committing = true;
            if relay.needs_sum() {
                let Some(algorithm) = relay.check.algorithm() else { return Ok(()) };
                slot.asked_sum = true;
                let source = checksum_command(algorithm, &relay.task, &relay.task.source.path());
                let window = relay.task.window.is_some();
                let destination = Command::Cksm {
                    algorithm: wire(algorithm),
                    offset: relay.task.offset(),
                    length: relay.task.length().filter(|_| window),
                    path: relay.path.clone(),
                };
                self.ask(id, false, Ask::Sum, &source)?;
                return self.ask(id, true, Ask::Sum, &destination);
            }
            let plain = !relay.device() && !self.worker.ctx.options().ascii && relay.task.window.is_none();
            if relay.check == Check::Size && self.destination.can.size && plain && relay.task.size.is_some() {
                slot.asked_sum = true;
                return self.ask(id, true, Ask::Sum, &Command::Size(relay.path.clone()));
            }
            return self.commit(at);
        }
        if slot.asked_sum && slot.destination.sum.is_some() {
            let theirs = slot.destination.sum.as_deref().unwrap_or_default();
            let compared = match (relay.check, slot.source.sum.as_deref()) {
                (Check::Size, _) => compare_sizes(&relay, theirs),
                (_, Some(ours)) => relay.compare(ours, theirs),
                (_, None) => return Ok(()),
            };
            slot.destination.sum = None;
            slot.asked_sum = false;
            match compared {
                Ok(()) => return self.commit(at),
                Err(e) => slot.error = Some(e),
            }
        }
        Ok(())
    }

    fn commit(&mut self, at: usize) -> Result<(), RemoteError> {
        let id = self.first + at as u64;
        let relay = self.slots[at].relay.clone();
        let options = self.worker.ctx.options();
        let time = relay.task.modified.filter(|_| options.preserve.times);
        let mode = relay.task.mode.filter(|_| options.preserve.modes);
        for command in self.destination.attributes(&relay.path, time, mode) {
            self.ask(id, true, Ask::Attribute, &command)?;
        }
        if !relay.direct {
            self.ask(id, true, Ask::Rename, &Command::Rnfr(relay.path.clone()))?;
            self.ask(id, true, Ask::Rename, &Command::Rnto(relay.task.destination.path()))?;
        }
        Ok(())
    }

    fn finish(&self, relay: &Relay) {
        let ctx = self.worker.ctx;
        ctx.states.remove(&relay.task);
        ctx.report.done(relay.task.id, relay.bytes(), relay.began().elapsed(), relay.proof());
    }

    /// The sessions are of no more use. The first slot that failed gets the blame, the others go back.
    fn abandon(mut self, error: RemoteError) {
        let mut blame = Some(error).filter(|e| !matches!(e, RemoteError::Cancelled));
        while let Some(mut slot) = self.slots.pop_front() {
            let job = if slot.counted && slot.committing {
                slot.relay.give_up();
                self.worker.ctx.report.put_back();
                Job::File(slot.relay.task.clone())
            } else if slot.counted {
                self.worker.done();
                continue;
            } else {
                // What no marker confirmed is sent again.
                slot.meter.lost();
                Job::Third(slot.relay, slot.range)
            };
            match slot.error.or_else(|| blame.take()) {
                Some(error) => self.worker.fail(job, error),
                None => self.worker.put_back(job),
            }
        }
    }
}

impl Slot<'_, '_> {
    fn is_over(&self) -> bool {
        self.counted && self.due == 0 && self.error.is_none() && !self.asked_sum
    }
}

fn compare_sizes(relay: &Relay, said: &str) -> Result<(), RemoteError> {
    let (Ok(there), Some(expected)) = (said.trim().parse::<u64>(), relay.task.size) else { return Ok(()) };
    if there == expected {
        Ok(())
    } else {
        Err(RemoteError::SizeMismatch { path: relay.task.destination.path(), expected, there })
    }
}
