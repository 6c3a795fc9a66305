//! Files from here to a server: pipelined STORs over one cached data channel, ranges of big files by ESTO.
//!
//! In a pipeline the data of a file is sent before the server has said that it opened it. Should it refuse, it takes
//! what comes next for the following file. So nothing gets its final name before the server has confirmed it and
//! everything before it; a refusal ends the pipeline, and the files after it are sent again, for a while one by one.

mod begin;
mod data;
mod finish;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_engine::{Progress, SendJob, Stage};
use ropewalk_protocol::command::{Command, Placement, Restart};
use ropewalk_protocol::marker::Marker;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::Mode;
use ropewalk_protocol::upload::UploadId;
use ropewalk_storage::checksum::{Algorithm, Hasher};
use ropewalk_transfer::{
    self as transfer, Checks, Moved, Outcome, Pipeline, Purpose, Side, Sides, Site, Slot, Submission,
};

use crate::RemoteError;
use crate::ahead::Ahead;
use crate::context::Context;
use crate::control::{Answer, LAST_WORDS};
use crate::path_defaults::{PathDefaults, RANGE, SMALL};
use crate::place::{Endpoint, Place};
use crate::report::{Meter, signed};
use crate::session::{Channel, Session};
use crate::source::{Source, Summing};
use crate::staging::Staging;
use crate::task::Task;
use crate::tune::{Ends, Participant, StreamControl, kernel_permits, useful_streams};
use crate::upload::{Manner, Upload, UploadSource};
use crate::verify::{Check, proved};
use crate::watch::Watch;
use crate::work::{Job, Route};
use crate::worker::{CAREFUL, Steps, Worker, report_refusal};

struct Flow<'w> {
    worker: &'w Worker<'w>,
    session: Session,
    participant: Option<Participant>,
    /// Each range has the time for which the server's streams have waited for its storage, by its last
    /// marker.
    pipeline: Pipeline<Upload, Duration>,
    /// The range whose command could not be sent.
    culprit: Option<u64>,
    path: PathDefaults,
}

/// Handles `job` and those of the same kind that come after it, until there are none or the session breaks.
pub(crate) fn run(worker: &Worker<'_>, endpoint: &Arc<Endpoint>, job: Job) {
    let job = worker.cut_before_log_in(job);
    let mut session = match worker.session(endpoint) {
        Ok(session) => session,
        Err(e) => return worker.fail(job, e),
    };
    let rtt = session.control.rtt();
    let path = PathDefaults::new(rtt);
    let route = Route::Put(endpoint.clone());
    let ends = Ends { source: None, destination: Some(endpoint.name.clone()) };
    let participant =
        worker.participant(ends, rtt).filter(|_| session.preferred_mode() == Mode::ExtendedBlock);
    session.path_tuner = participant.as_ref().map(|participant| participant.path_tuner().clone());
    session.offer_driver(kernel_permits("bbr"));
    let pipeline = Pipeline::new(transfer::Route::Upload);
    let flow = Flow { worker, session, participant, pipeline, culprit: None, path };
    let Some(flow) = worker.drive(flow, &route, job) else { return };
    worker.keep(flow.session);
}

impl Steps for Flow<'_> {
    fn ahead(&mut self) -> Ahead {
        let streams = self.session.channel().map_or(0, |channel| channel.streams);
        self.worker.ctx.ahead(self.path, self.participant.as_ref(), streams)
    }

    fn is_low(&self, ahead: Ahead) -> bool {
        self.pipeline.len() <= ahead.depth - ahead.depth / 4
    }

    fn has_room(&mut self, ahead: Ahead) -> bool {
        let pipelined = self.session.channel().is_none_or(|c| c.mode == Mode::ExtendedBlock);
        let depth = if pipelined && self.worker.careful.get() == 0 { ahead.depth } else { 1 };
        let shared = !self.pipeline.slots().any(|slot| slot.file.must_be_alone());
        let unsent = || self.pipeline.slots().filter(|slot| !slot.has_moved());
        let waiting: u64 = unsent().map(|slot| slot.data.len()).sum();
        let parts = unsent().filter(|slot| slot.range != slot.file.wanted).count();
        self.pipeline.len() < depth
            && ahead.takes(unsent().count(), waiting, parts)
            && shared
            && !self.pipeline.is_entangled()
    }

    fn is_empty(&self) -> bool {
        self.pipeline.is_empty()
    }

    fn participant(&self) -> Option<&Participant> {
        self.participant.as_ref()
    }

    fn submit(&mut self, job: Job) -> Result<Option<Job>, RemoteError> {
        let (upload, range) = match job {
            Job::Put(upload, range) => {
                let again = upload.was_tried();
                if again && !self.pipeline.is_empty() {
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
        if upload.must_be_alone() && !self.pipeline.is_empty() {
            return Ok(Some(Job::Put(upload, range)));
        }
        let range = self.cut_range(&upload, range);
        let mode = match upload.source {
            UploadSource::Ranged(_) => self.session.preferred_mode(),
            // In order, and of unknown length.
            UploadSource::Stream(_) => Mode::Stream,
        };
        // A window is written into what is there: its holes have to become zeros.
        let sparse = self.worker.ctx.options().storage.sparse
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
        let same_driver = !self.session.must_change_driver();
        let fits = self.session.channel().is_some_and(|c| {
            // Where the path is tuned, streams come and go.
            let enough = c.streams >= streams || self.participant.is_some() && c.streams > 1;
            same_driver && c.sending && c.mode == mode && mode == Mode::ExtendedBlock && enough
        });
        if !fits {
            if !self.pipeline.is_empty() {
                return Ok(Some(Job::Put(upload, range)));
            }
            let inline = match upload.check {
                Check::Inline(algorithm) => Some(algorithm),
                _ => None,
            };
            self.session.wants_path = self.participant.is_some() && streams > 1;
            self.session.wants_resend = true;
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
        match self.pipeline.next_to_move().and_then(|id| self.pipeline.slot(id).map(|slot| (id, slot))) {
            // It starts again, and what is sent now would be of the source as it was.
            Some((_, slot)) if slot.file.has_failed() => return Err(RemoteError::Desynchronized),
            Some((id, slot)) => {
                let begun = slot.has_begun(Side::Destination);
                let fresh = self.session.channel().is_none_or(|c| c.data.cached() == 0);
                if !fresh && self.worker.careful.get() > 0 && !begun {
                    let answer = self.session.control.answer()?;
                    self.hear(answer);
                } else {
                    self.transfer(id)?;
                }
            }
            None if self.pipeline.pending() > 0 => {
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
        if mode == Mode::Stream || self.session.needs_one_stream(&upload.task) {
            return 1;
        }
        let path = PathDefaults::new(self.session.control.rtt());
        let streams = path.streams(self.worker.ctx.options(), Some(bytes), !upload.device());
        if let Some(participant) = self.participant.as_ref().filter(|_| streams > 1) {
            let most = useful_streams(bytes);
            return participant.share(true, most, self.worker.ctx.sessions_on_file(upload.task.length()));
        }
        if self.worker.ctx.divides_files(&self.session) {
            self.worker.ctx.streams_per_session(streams, upload.task.length())
        } else {
            streams
        }
    }

    /// A data channel was made with so many streams, for so many bytes or more.
    fn opened(&mut self, streams: u32, bytes: u64) {
        let (Some(participant), Some(channel)) = (&self.participant, self.session.channel()) else { return };
        participant.opened(streams, useful_streams(bytes), stream_control(channel, streams));
    }

    /// A data channel that is there, perhaps of an earlier flow, is used for so many bytes or more.
    fn used_again(&mut self, bytes: u64) {
        let (Some(participant), Some(channel)) = (&self.participant, self.session.channel()) else { return };
        participant.used_again(
            channel.streams,
            useful_streams(bytes),
            stream_control(channel, channel.streams),
        );
    }

    fn hear(&mut self, answer: Answer) {
        hear(&mut self.pipeline, self.worker.ctx, answer);
    }
}

/// How the streams of a channel over which we send are changed.
fn stream_control(channel: &Channel, streams: u32) -> StreamControl {
    match streams {
        0 | 1 => StreamControl::Fixed,
        _ => StreamControl::Here(channel.data.parallelism(), channel.data.congestion()),
    }
}

enum Begun {
    Yes(Arc<Upload>, Range<u64>),
    /// It failed, or there was nothing to do.
    Settled,
    /// The pipeline has to run dry first.
    Later(Task),
}

/// Takes what came for the oldest command.
fn hear(pipeline: &mut Pipeline<Upload, Duration>, ctx: &Context, answer: Answer) {
    let reply = match answer {
        Answer::Final(reply) => reply,
        answer => {
            let id = pipeline.preliminary(Side::Destination);
            let Some(slot) = id.and_then(|id| pipeline.slot_mut(id)) else { return };
            match answer {
                Answer::Marker(Marker::Range(ranges)) => {
                    let present = slot.file.add_present(&ranges);
                    if slot.file.task.size.is_some_and(|size| size > SMALL) && !slot.file.is_direct() {
                        ctx.states.save(&slot.file.task, &present);
                    }
                }
                Answer::Marker(Marker::Storage(wait)) => {
                    ctx.report.server_storage(Stage::Destination, &mut slot.own, wait);
                }
                _ => {}
            }
            return;
        }
    };
    let heard = pipeline.reply(Side::Destination, reply);
    report_refusal(pipeline, ctx, heard);
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
