//! Files from one server to another by way of this program, for servers that may not send to each
//! other.
//!
//! The pipeline has one file, whose data one thread takes from the source while the worker's thread
//! gives it to the destination, over one stream at each side. For the pipeline it is an upload from
//! here. An interrupted transfer starts again.

use std::io::{PipeReader, Read};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ropewalk_engine::Progress;
use ropewalk_protocol::command::{Command, Restart};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::Mode;
use ropewalk_transfer::{
    self as transfer, Checks, Lost, Moved, Pipeline, Purpose, Side, Sides, Slot, Submission,
};

use crate::RemoteError;
use crate::between::{self, Servers};
use crate::context::Context;
use crate::control::Answer;
use crate::flow::{At, Begun, Part, Peers, hear};
use crate::model::threads::{join, spawn_in};
use crate::place::Endpoint;
use crate::relay::Relay;
use crate::report::Meter;
use crate::session::Session;
use crate::task::Task;
use crate::verify::Check;
use crate::watch::Watch;
use crate::work::{Job, Route};
use crate::worker::Worker;

type Flow<'w> = crate::flow::Flow<'w, Servers>;

/// Handles `job` and the jobs of the same kind after it, until there are none or a session breaks.
pub(crate) fn run(worker: &Worker<'_>, from: &Arc<Endpoint>, to: &Arc<Endpoint>, job: Job) {
    let (source, destination) = match worker.session_pair(from, to) {
        Ok(sessions) => sessions,
        Err(e) => return worker.fail(job, e),
    };
    let flow = Flow::new(worker, Servers { source, destination }, None, transfer::Route::Upload);
    let route = Route::Third(from.clone(), to.clone());
    let Some(Servers { source, destination }) = flow.drive(&route, job) else { return };
    worker.keep(source);
    worker.keep(destination);
}

impl Peers for Servers {
    type File = Relay;
    type Own<'w> = Duration;

    fn session(&mut self, side: Side) -> &mut Session {
        self.of(side)
    }

    fn rtt(&self) -> Duration {
        self.longer_rtt()
    }

    fn streams_of_channel(&self) -> u32 {
        self.destination.streams_of_channel()
    }

    fn checks(&self, ctx: &Context, slot: &Slot<Relay, Duration>) -> Checks {
        // Its status was asked for when all had come.
        Checks { version: None, ..between::checks(self, ctx, slot) }
    }

    fn naming(&self, ctx: &Context, relay: &Relay) -> Vec<(Purpose, Command)> {
        between::naming(self, ctx, relay)
    }

    fn is_pipelined(_: &mut Flow<'_>) -> bool {
        false
    }

    fn begin(flow: &mut Flow<'_>, task: &mut Task) -> Result<Begun<Relay>, RemoteError> {
        let (ctx, Self { source, destination }) = (flow.worker.ctx, &mut flow.peers);
        let options = ctx.options();
        if task.tries.total > 0 && !task.source_program && !options.data.ascii {
            // It may have changed since the copy was planned.
            match source.stat(&task.source.path()) {
                Ok(entry) => (task.size, task.modified) = (entry.size, entry.modified.or(task.modified)),
                Err(e) if e.breaks_session() => return Err(e),
                Err(_) => {}
            }
        }
        destination.spare_beginning(task)?;
        if !task.starts_program() {
            source.is_another_file(task, destination, options.storage.in_place)?;
        }
        if (task.compares() || task.confirm)
            && let Some(proof) = between::same_already(&mut flow.peers, ctx, task)?
        {
            return flow.have_already(task, proof);
        }
        let check = match task.is_to_device() || task.source_program {
            true => Check::Size,
            false => between::check(&flow.peers, ctx, false)?,
        };
        ctx.states.claim(task, false, flow.peers.destination.shares_part_names());
        let (staging, present) = flow.stage(task, None)?;
        ctx.report.anew(task);
        let relay = Relay::begin(task.clone(), check, staging, present, true);
        flow.begun(relay.clone(), &relay, false)
    }

    fn shape(_: &Flow<'_>, _: &Relay, _: &RangeSet, _: u64) -> (Mode, u32) {
        (Mode::Stream, 1)
    }

    fn connect(flow: &mut Flow<'_>, _: &Relay, (mode, streams): (Mode, u32)) -> Result<(), RemoteError> {
        flow.peers.destination.sending(mode, streams, None)
    }

    fn submission<'w>(
        flow: &mut Flow<'w>,
        part: Part<Relay>,
        _: Mode,
    ) -> Result<Submission<Relay, Duration>, RemoteError> {
        let Part { file: relay, range, data } = part;
        let (offset, partial) = (range.start, flow.peers.destination.can.partial);
        let restart = (offset > 0 && !partial).then_some(Restart::Offset(offset));
        let adjusted = (relay.task.window.is_some() && partial).then_some(offset);
        let destination = flow.receiving(&relay, At { size: None, offset, restart, adjusted })?;
        let commands = Sides { source: Vec::new(), destination };
        Ok(Submission { file: relay, range, data, origin: 0, own: Duration::ZERO, commands })
    }

    fn step(flow: &mut Flow<'_>) -> Result<(), RemoteError> {
        for side in [Side::Destination, Side::Source] {
            flow.peers.of(side).control.flush()?;
        }
        if let Some(id) = flow.pipeline.next_to_move() {
            return flow.bring(id);
        }
        let waiting =
            [Side::Source, Side::Destination].into_iter().find(|s| flow.pipeline.oldest(*s).is_some());
        let Some(side) = waiting else { return Ok(()) };
        let answer = flow.peers.of(side).control.answer()?;
        Self::hear(flow, side, answer);
        Ok(())
    }

    fn complete(_: &mut Flow<'_>, slot: &Slot<Relay, Duration>) -> Result<Option<String>, RemoteError> {
        Ok(slot.file.proof())
    }

    fn leave(flow: &mut Flow<'_>) -> bool {
        between::leave(&mut flow.peers, flow.worker, flow.pipeline.slots())
    }

    fn lose(_: &Worker<'_>, lost: &mut Lost<Relay, Duration>) {
        lost.error = lost.error.take().map(|error| lost.slot.file.once_only(error));
    }
}

impl Flow<'_> {
    /// Brings the data of a file from the source to the destination.
    fn bring(&mut self, id: u64) -> Result<(), RemoteError> {
        let (ctx, Servers { source, destination }) = (self.worker.ctx, &mut self.peers);
        let Some(relay) = self.pipeline.slot(id).map(|slot| slot.file.clone()) else { return Ok(()) };
        let (task, pipeline) = (&relay.task, &mut self.pipeline);
        let (reader, mut writer) = std::io::pipe().map_err(RemoteError::Pipe)?;
        let (tell, told) = channel();
        let brought = std::thread::scope(|scope| {
            let taking = spawn_in(scope, move || {
                let result = source.read_to(&task.source.path(), &mut writer, task.window);
                let _ = tell.send(result.is_ok());
                // Only now is there an end to be seen.
                drop(writer);
                result
            })?;
            let given = give(ctx, destination, pipeline, (id, &relay), Whole { reader, told });
            // The reader is gone, so that a source that still sends fails.
            match (join(taking), given) {
                // It failed because the destination took no more.
                (Err(RemoteError::Output(_)), Err(e)) => Err(e),
                (Err(e), _) | (Ok(_), Err(e)) => Err(e),
                (Ok(taken), Ok(given)) => Ok((taken, given)),
            }
        });
        let wrong = match brought {
            Err(e) => {
                // Either side may have something left to say.
                pipeline.fail(id, e);
                return Err(RemoteError::Desynchronized);
            }
            Ok((expected, there)) if expected != there => {
                Some(RemoteError::SizeMismatch { path: task.destination.path(), expected, there })
            }
            Ok((_, bytes)) => {
                relay.passed(bytes);
                self.changed(&relay, bytes)?
            }
        };
        self.pipeline.moved(id, Moved { ranges: None, sums: None });
        if let Some(error) = wrong {
            self.pipeline.fail(id, error);
        }
        Ok(())
    }

    /// The error for a file whose source is not the planned one any more, of which `bytes` came.
    fn changed(&mut self, relay: &Relay, bytes: u64) -> Result<Option<RemoteError>, RemoteError> {
        let task = &relay.task;
        if self.worker.ctx.options().data.ascii {
            return Ok(None);
        }
        if task.length().is_some_and(|length| length != bytes) {
            return Ok(Some(RemoteError::SourceChanged { path: task.source.path() }));
        }
        if relay.check != Check::Size || task.window.is_some() || task.modified.is_none() {
            return Ok(None);
        }
        // Another program may have written to it, and left its size as it was.
        match self.peers.source.unchanged(task) {
            Err(e) if e.breaks_session() => Err(e),
            looked => Ok(looked.err()),
        }
    }
}

/// The data of the source. It ends only if the source has sent all.
struct Whole {
    reader: PipeReader,
    told: Receiver<bool>,
}

impl Read for Whole {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self.reader.read(buffer)? {
            0 if !buffer.is_empty() && self.told.recv() != Ok(true) => {
                Err(std::io::Error::other("the source broke off"))
            }
            n => Ok(n),
        }
    }
}

/// Sends a file's data to the destination. Returns the number of bytes.
fn give(
    ctx: &Context,
    session: &mut Session,
    pipeline: &mut Pipeline<Relay, Duration>,
    (id, relay): (u64, &Relay),
    mut data: Whole,
) -> Result<u64, RemoteError> {
    let Some(mut channel) = session.take_channel() else { return Err(RemoteError::Desynchronized) };
    let over = |pipeline: &Pipeline<Relay, Duration>| {
        pipeline.slot(id).is_none_or(|slot| slot.has_ended(Side::Destination) || slot.error.is_some())
    };
    let mut judge = |answer: Answer| {
        hear(pipeline, ctx, None, Side::Destination, answer);
        if over(pipeline) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let progress = Progress::new();
    let mut meter = Meter::new(&ctx.report, &relay.task);
    let (path, stall) = (relay.task.source.path(), ctx.options().timeouts.stall);
    let mut watch =
        Watch::new(&mut session.control, &mut judge, Some(&mut meter), stall, &ctx.cancel, path.clone());
    let sent = channel.data.send_reader(&mut data, &mut watch, &progress);
    let failure = watch.failure.take();
    meter.finish(&progress);
    drop((meter, channel));
    if let Some(failure) = failure {
        return Err(failure);
    }
    let sent = sent.map_err(|e| RemoteError::data(session.control.peer(), path, e));
    if matches!(sent, Err(RemoteError::Data { .. })) {
        session.control.last_words(&mut |answer| {
            if let Some(answer) = answer {
                hear(pipeline, ctx, None, Side::Destination, answer);
            }
            over(pipeline)
        });
    }
    match sent {
        Ok(sent) => Ok(sent.bytes),
        Err(error) => Err(error.or_refusal(pipeline.slot_mut(id).and_then(|slot| slot.error.take()))),
    }
}
