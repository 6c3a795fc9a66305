//! Files from here to a server: pipelined STORs over one cached data channel, ranges of big files by ESTO.
//!
//! In a pipeline the data of a file is sent before the server has said that it opened it. Should it refuse, it takes
//! what comes next for the following file. So nothing gets its final name before the server has confirmed it and
//! everything before it; a refusal ends the pipeline, and the files after it are sent again, for a while one by one.

mod begin;
mod data;
mod finish;

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bstr::ByteSlice;
use ropewalk_engine::{Progress, SendJob, Stage};
use ropewalk_protocol::client::answer;
use ropewalk_protocol::command::{Command, Placement, Restart};
use ropewalk_protocol::marker::Marker;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::Mode;
use ropewalk_storage::checksum::{Algorithm, Hasher, Pieces};

use crate::RemoteError;
use crate::ahead::Ahead;
use crate::auto::{Path, RANGE, SMALL};
use crate::context::Context;
use crate::control::{Answer, LAST_WORDS};
use crate::model::error::is_unknown_command;
use crate::part::part_of;
use crate::place::{Endpoint, Place};
use crate::report::{Meter, signed};
use crate::session::{Channel, Session};
use crate::source::{Source, Summing};
use crate::task::Task;
use crate::tune::{Ends, Knob, Seat, useful_streams};
use crate::upload::{Manner, Upload, UploadSource};
use crate::verify::{Check, proved, said_size};
use crate::watch::Watch;
use crate::work::{Job, Route};
use crate::worker::{Pipeline, Worker, cannot_go_on, is_of_no_use};

/// So many files go one by one after one was refused.
const CAREFUL: u32 = 16;

/// What a command that was sent is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// Its failure does not matter (ALLO, DELE of what may not be there).
    Hint,
    /// What the file will replace (MLST): as a rule nothing.
    Place,
    Expect,
    Restart,
    Transfer,
    Sum,
    RenameFrom,
    RenameTo,
    /// Times and modes: a failure is told, the file is there.
    Attribute,
}

impl Ask {
    fn verb(self) -> &'static str {
        match self {
            Self::Hint => "ALLO",
            Self::Place => "MLST",
            Self::Expect => "SCKS",
            Self::Restart => "REST",
            Self::Transfer => "STOR",
            Self::Sum => "CKSM",
            Self::RenameFrom => "RNFR",
            Self::RenameTo => "RNTO",
            Self::Attribute => "SITE",
        }
    }
}

struct Slot {
    upload: Arc<Upload>,
    range: Range<u64>,
    data: RangeSet,
    begun: bool,
    /// All was sent; sums where they were computed.
    sent: Option<Option<Pieces>>,
    /// The final reply to the transfer, with the server's sum.
    ended: Option<Option<String>>,
    /// The server does not know SCKS.
    not_expected: bool,
    counted: bool,
    sum: Option<String>,
    asked_sum: bool,
    committing: bool,
    /// The commands that give it its name were sent.
    naming: bool,
    /// What was due when the server was told to break off was not done, and is asked for once more.
    again: bool,
    asked_again: bool,
    /// Answers that are due.
    due: u32,
    /// How long the server's streams have waited for its storage, by its last marker.
    storage_wait: Duration,
    error: Option<RemoteError>,
}

struct Flow<'w> {
    worker: &'w Worker<'w>,
    session: Session,
    seat: Option<Seat>,
    asks: VecDeque<(u64, Ask)>,
    slots: VecDeque<Slot>,
    first: u64,
    path: Path,
}

/// Handles `job` and those of the same kind that come after it, until there are none or the session breaks.
pub(crate) fn run(worker: &Worker<'_>, endpoint: &Arc<Endpoint>, job: Job) {
    let job = worker.cut_before_log_in(job);
    let mut session = match worker.session(endpoint) {
        Ok(session) => session,
        Err(e) => return worker.fail(job, e),
    };
    let rtt = session.control.rtt();
    let path = Path::new(rtt);
    let route = Route::Put(endpoint.clone());
    let ends = Ends { source: None, destination: Some(endpoint.name.clone()) };
    let seat = worker.seat(ends, rtt).filter(|_| session.preferred_mode() == Mode::ExtendedBlock);
    session.lane = seat.as_ref().map(|seat| seat.lane().clone());
    let flow = Flow { worker, session, seat, asks: VecDeque::new(), slots: VecDeque::new(), first: 0, path };
    let Some(flow) = worker.drive(flow, &route, job) else { return };
    worker.keep(flow.session);
}

impl Pipeline for Flow<'_> {
    fn ahead(&mut self) -> Ahead {
        let streams = self.session.channel().map_or(0, |channel| channel.streams);
        self.worker.ctx.ahead(self.path, self.seat.as_ref(), streams)
    }

    fn is_low(&self, ahead: Ahead) -> bool {
        self.slots.len() <= ahead.depth - ahead.depth / 4
    }

    fn has_room(&mut self, ahead: Ahead) -> bool {
        let waiting: u64 = self.slots.iter().filter(|s| s.sent.is_none()).map(|s| s.data.len()).sum();
        let pipelined = self.session.channel().is_none_or(|c| c.mode == Mode::ExtendedBlock);
        let depth = if pipelined && self.worker.careful.get() == 0 { ahead.depth } else { 1 };
        let shared = !self.slots.iter().any(|s| s.upload.must_be_alone());
        let under_way = self.slots.iter().filter(|s| s.sent.is_none()).count();
        let parts = self.slots.iter().filter(|s| s.sent.is_none() && s.is_part()).count();
        self.slots.len() < depth && ahead.takes(under_way, waiting, parts) && shared
    }

    fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn seat(&self) -> Option<&Seat> {
        self.seat.as_ref()
    }

    fn submit(&mut self, job: Job) -> Result<Option<Job>, RemoteError> {
        let (upload, range) = match job {
            Job::Put(upload, range) => {
                let again = upload.was_tried();
                if again && !self.slots.is_empty() {
                    return Ok(Some(Job::Put(upload, range)));
                }
                if again && let Err(e) = self.worker.ask_again(&mut self.session, &upload, &range) {
                    return self.worker.failed(Job::Put(upload, range), e).map(|()| None);
                }
                (upload, range)
            }
            Job::File(task) => match self.begin(task)? {
                Begun::Yes(upload, range) => (upload, range),
                Begun::Settled => return Ok(None),
                Begun::Later(task) => return Ok(Some(Job::File(task))),
            },
            other => return Ok(Some(other)),
        };
        if upload.has_failed() {
            self.worker.done();
            return Ok(None);
        }
        upload.is_begun(&range);
        if upload.must_be_alone() && !self.slots.is_empty() {
            return Ok(Some(Job::Put(upload, range)));
        }
        let range = self.bite(&upload, range);
        let mode = match upload.source {
            UploadSource::Ranged(_) => self.session.preferred_mode(),
            // In order, and of unknown length.
            UploadSource::Stream(_) => Mode::Stream,
        };
        // A window is written into what is there: its holes have to become zeros.
        let sparse = self.worker.ctx.options().sparse
            && mode == Mode::ExtendedBlock
            && upload.task.window.is_none()
            && !upload.device();
        let data = match upload.data(range.clone(), sparse) {
            Ok(data) => data,
            Err(e) => {
                self.worker.fail(Job::Put(upload, range), e);
                return Ok(None);
            }
        };
        let ahead = self.worker.ahead(&upload, data.len());
        let streams = self.streams(mode, ahead, &upload);
        let fits = self.session.channel().is_some_and(|c| {
            // Where the path is tuned, streams come and go.
            let enough = c.streams >= streams || self.seat.is_some() && c.streams > 1;
            c.sending && c.mode == mode && mode == Mode::ExtendedBlock && enough
        });
        if !fits {
            if !self.slots.is_empty() {
                return Ok(Some(Job::Put(upload, range)));
            }
            let inline = match upload.check {
                Check::Inline(algorithm) => Some(algorithm),
                _ => None,
            };
            self.session.wants_path = self.seat.is_some() && streams > 1;
            if let Err(e) = self.session.sending(mode, streams, inline) {
                return self.worker.failed(Job::Put(upload, range), e).map(|()| None);
            }
            self.opened(streams, ahead);
        } else {
            self.used_again(ahead);
        }
        self.send(upload, range, data, mode)?;
        Ok(None)
    }

    fn step(&mut self) -> Result<(), RemoteError> {
        self.session.control.flush()?;
        match self.slots.iter().position(|s| s.sent.is_none() && s.error.is_none()) {
            // It begins anew, and what is sent now would be of the source as it was.
            Some(at) if self.slots[at].upload.has_failed() => return Err(RemoteError::OutOfStep),
            Some(at) => {
                let fresh = self.session.channel().is_none_or(|c| c.data.cached() == 0);
                if !fresh && self.worker.careful.get() > 0 && !self.slots[at].begun {
                    let answer = self.session.control.answer()?;
                    self.hear(answer);
                } else {
                    self.transfer(at)?;
                }
            }
            None if !self.asks.is_empty() => {
                let answer = self.session.control.answer()?;
                self.hear(answer);
            }
            None => {}
        }
        self.settle()
    }

    fn abandon(self, error: RemoteError) {
        self.give_up(error);
    }
}

impl Flow<'_> {
    /// Streams for a data channel that moves so many bytes.
    fn streams(&self, mode: Mode, bytes: u64, upload: &Upload) -> u32 {
        if mode == Mode::Stream {
            return 1;
        }
        let path = Path::new(self.session.control.rtt());
        let streams = path.streams(self.worker.ctx.options(), Some(bytes), !upload.device());
        if let Some(seat) = self.seat.as_ref().filter(|_| streams > 1) {
            let most = useful_streams(bytes);
            return seat.share(true, most, self.worker.ctx.workers_for(upload.task.length()));
        }
        if self.worker.ctx.cuts(&self.session) {
            self.worker.ctx.share(streams, upload.task.length())
        } else {
            streams
        }
    }

    /// A data channel was made with so many streams, for so many bytes or more.
    fn opened(&mut self, streams: u32, bytes: u64) {
        let (Some(seat), Some(channel)) = (&self.seat, self.session.channel()) else { return };
        seat.opened(streams, useful_streams(bytes), knob(channel, streams));
    }

    /// A data channel that is there, perhaps of an earlier flow, is used for so many bytes or more.
    fn used_again(&mut self, bytes: u64) {
        let (Some(seat), Some(channel)) = (&self.seat, self.session.channel()) else { return };
        seat.used_again(channel.streams, useful_streams(bytes), knob(channel, channel.streams));
    }

    fn hear(&mut self, answer: Answer) {
        hear(&mut self.asks, &mut self.slots, self.first, self.worker.ctx, answer);
    }
}

/// How the streams of a channel over which we send are changed.
fn knob(channel: &Channel, streams: u32) -> Knob {
    match streams {
        0 | 1 => Knob::Fixed,
        _ => Knob::Here(channel.data.parallelism(), channel.data.congestion()),
    }
}

enum Begun {
    Yes(Arc<Upload>, Range<u64>),
    /// It failed, or there was nothing to do.
    Settled,
    /// The pipeline has to run dry first.
    Later(Task),
}

impl Slot {
    /// It is a range of a file that several sessions share out.
    fn is_part(&self) -> bool {
        self.range != self.upload.wanted
    }

    /// What has failed is no business of those behind it: all of its data is where it belongs.
    fn fails_alone(&self) -> bool {
        let wrong = self.upload.in_place && self.error.as_ref().is_some_and(is_of_no_use);
        // Who has its name already has to be removed before anybody begins again.
        self.committing && !wrong
    }

    /// It has failed, and nobody knows whose data went where behind it.
    fn entangles(&self) -> bool {
        self.error.is_some() && !self.fails_alone()
    }

    /// Nothing is left to be done for it.
    fn is_over(&self) -> bool {
        !self.again && (!self.asked_sum || self.sum.is_none())
    }
}

/// Takes what came for the oldest command.
fn hear(
    asks: &mut VecDeque<(u64, Ask)>,
    slots: &mut VecDeque<Slot>,
    first: u64,
    ctx: &Context,
    answer: Answer,
) {
    let Some(&(id, ask)) = asks.front() else { return };
    let slot = id.checked_sub(first).and_then(|at| slots.get_mut(at as usize));
    let Answer::Final(reply) = answer else {
        let (Some(slot), Ask::Transfer) = (slot, ask) else { return };
        slot.begun = true;
        match answer {
            Answer::Marker(Marker::Range(ranges)) => {
                let present = slot.upload.add_present(&ranges);
                if slot.upload.task.size.is_some_and(|size| size > SMALL) && !slot.upload.direct {
                    ctx.states.save(&slot.upload.task, &present);
                }
            }
            Answer::Marker(Marker::Storage(wait)) => {
                ctx.report.server_storage(Stage::Destination, &mut slot.storage_wait, wait);
            }
            _ => {}
        }
        return;
    };
    asks.pop_front();
    let Some(slot) = slot else { return };
    slot.due = slot.due.saturating_sub(1);
    if reply.is_failure() {
        match ask {
            Ask::Hint | Ask::Place => return,
            Ask::Expect if is_unknown_command(&reply) => {
                slot.not_expected = true;
                return;
            }
            // ABOR, which was about a transfer behind it.
            Ask::Sum | Ask::RenameFrom | Ask::RenameTo | Ask::Attribute
                if reply.code() == 426 && !slot.asked_again =>
            {
                slot.again = true;
                return;
            }
            Ask::Attribute => {
                let (place, why) = (&slot.upload.task.destination, crate::model::error::text(&reply));
                ctx.report.not_preserved(place, Some(reply.code()), &why);
                return;
            }
            Ask::Sum if slot.upload.in_place && slot.upload.check == Check::Size => {
                ctx.report.not_compared(&slot.upload.task.destination);
                slot.sum = Some(String::new());
                return;
            }
            _ => {}
        }
        let peer = slot.upload.task.destination.display();
        let verb = match ask {
            Ask::Sum if slot.upload.check == Check::Size => "SIZE",
            ask => ask.verb(),
        };
        let of_part = matches!(ask, Ask::Sum) && !slot.upload.direct;
        if of_part || matches!(ask, Ask::RenameFrom | Ask::RenameTo) {
            slot.error.get_or_insert(RemoteError::of_part(peer, verb, &slot.upload.path, reply));
            return;
        }
        slot.error.get_or_insert(RemoteError::Refused { peer, command: verb.to_owned(), reply });
        return;
    }
    match ask {
        Ask::Place => slot.upload.replaces(&reply),
        Ask::Transfer => slot.ended = Some(answer::inline_checksum(&reply).map(|(_, sum)| sum)),
        Ask::Sum => slot.sum = Some(reply.text().to_str_lossy().into_owned()),
        _ => {}
    }
}

fn sum_command(upload: &Upload, algorithm: Algorithm) -> Command {
    let window = upload.task.window.is_some();
    Command::Cksm {
        algorithm,
        offset: if window { upload.wanted.start } else { 0 },
        length: window.then(|| upload.wanted.end - upload.wanted.start),
        path: upload.path.clone(),
    }
}

fn compare_sizes(upload: &Upload, said: &str) -> Result<(), RemoteError> {
    let Some(there) = said_size(&upload.task.destination, said)? else { return Ok(()) };
    let expected = upload.wanted.start + upload.bytes();
    let fits = if upload.task.window.is_some() { there >= expected } else { there == expected };
    if fits {
        Ok(())
    } else {
        Err(RemoteError::SizeMismatch { path: upload.task.destination.path(), expected, there })
    }
}
