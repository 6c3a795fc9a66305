//! Files from one server to another by way of this program: for servers that may not send to each other.
//!
//! One file at a time a worker, over one stream at each side; an interrupted one begins anew.

use std::io::{PipeReader, Read};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use ropewalk_engine::Progress;
use ropewalk_protocol::command::{Command, Placement, Restart};
use ropewalk_protocol::server::Mode;
use ropewalk_transfer::{Purpose, Side};

use crate::control::{Answer, LAST_WORDS};
use crate::model::threads::{join, spawn_in};
use crate::place::Endpoint;
use crate::remote_upload::RemoteUpload;
use crate::report::Meter;
use crate::session::Session;
use crate::staging::{Staging, UploadProof};
use crate::task::Task;
use crate::verify::{Check, choose, proof, proved, same};
use crate::watch::Watch;
use crate::work::Job;
use crate::worker::Worker;
use crate::{ChecksumPolicy, RemoteError, Window};

pub(crate) fn run(worker: &Worker<'_>, from: &Arc<Endpoint>, to: &Arc<Endpoint>, job: Job) {
    let Job::File(mut task) = job else { return worker.done() };
    let mut sessions = match worker.session_pair(from, to) {
        Ok(sessions) => sessions,
        Err(e) => return worker.fail(Job::File(task), e),
    };
    if task.tries.total > 0 && !task.source_program && !worker.ctx.options().data.ascii {
        // It may have changed since the copy was planned.
        match sessions.0.stat(&task.source.path()) {
            Ok(entry) => (task.size, task.modified) = (entry.size, entry.modified.or(task.modified)),
            Err(e) if e.breaks_session() => return worker.fail(Job::File(task), e),
            Err(_) => {}
        }
    }
    match judge(worker, &mut sessions, &task) {
        Ok(Some(proof)) => {
            worker.keep(sessions.0);
            worker.keep(sessions.1);
            return worker.have_already(task, proof);
        }
        Ok(None) => {}
        Err(e) => {
            if !e.breaks_session() {
                worker.keep(sessions.0);
                worker.keep(sessions.1);
            }
            return worker.fail(Job::File(task), e);
        }
    }
    worker.ctx.states.claim(&mut task, false, sessions.1.shares_part_names());
    worker.ctx.report.anew(&mut task);
    worker.ctx.report.started(&task, 0);
    let options = worker.ctx.options();
    let staging = match options.storage.in_place {
        true => Staging::InPlace,
        false => Staging::apart(&task, &sessions.1, options, false),
    };
    let remote_upload = RemoteUpload::new(task.clone(), staging, Default::default(), Check::Size);
    let settled = bring(worker, &mut sessions, &remote_upload).and_then(|bytes| {
        let proved = settle(worker, &mut sessions, &remote_upload, bytes)?;
        Ok((bytes, proved))
    });
    let (source, mut destination) = sessions;
    match settled {
        Ok((bytes, proved)) => {
            worker.keep(source);
            worker.keep(destination);
            worker.ctx.done(&task, bytes, remote_upload.began().elapsed(), proved);
            worker.done();
        }
        Err(e) => {
            if remote_upload.is_in_place() && e.invalidates_data() {
                // It has its name already. Whether it goes or not: the error is told.
                let _ = destination.control.call(&Command::Dele(remote_upload.path.clone()));
            }
            if !remote_upload.is_direct() && !e.is_transient() {
                worker.leave_over(&destination.endpoint, remote_upload.staging.removal());
            }
            // Whatever it was, one of them may have something left to say.
            destination.leave(LAST_WORDS);
            worker.ctx.report.put_back();
            // Its program has run.
            let e = if task.starts_program() { RemoteError::Spent { source: Box::new(e) } } else { e };
            worker.fail(Job::File(task), e);
        }
    }
}

/// What can be said before any data moves: how it was proved that the destination has the same bytes, where it was to be
/// compared.
fn judge(
    worker: &Worker<'_>,
    (source, destination): &mut (Session, Session),
    task: &Task,
) -> Result<Option<String>, RemoteError> {
    destination.spare_beginning(task)?;
    if !task.starts_program() {
        source.is_another_file(task, destination, worker.ctx.options().storage.in_place)?;
    }
    if !task.compares() {
        return Ok(None);
    }
    let Some(algorithm) = worker.ctx.comparison(&[&source.can, &destination.can]) else { return Ok(None) };
    let theirs = destination.checksum(&task.destination.path(), algorithm, None, task.size);
    let Some(theirs) = task.unless_missing(theirs)? else { return Ok(None) };
    let ours = source.checksum(&task.source.path(), algorithm, None, task.size)?;
    Ok(proved(algorithm, &ours, &theirs))
}

/// The data: one thread takes it from the source, this one gives it to the destination.
fn bring(
    worker: &Worker<'_>,
    sessions: &mut (Session, Session),
    remote_upload: &RemoteUpload,
) -> Result<u64, RemoteError> {
    let (source, destination) = sessions;
    let (reader, mut writer) = std::io::pipe().map_err(RemoteError::Pipe)?;
    let task = &remote_upload.task;
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        let taking = spawn_in(scope, move || {
            let result = source.read_to(&task.source.path(), &mut writer, task.window);
            let _ = tell.send(result.is_ok());
            // Only now is there an end to be seen.
            drop(writer);
            result
        })?;
        let given = give(worker, destination, remote_upload, Whole { reader, told });
        // The reader is gone: should the source still send, it cannot go on.
        match (join(taking), given) {
            // It failed because nobody took any more.
            (Err(RemoteError::Output(_)), Err(e)) => Err(e),
            (Err(e), _) | (Ok(_), Err(e)) => Err(e),
            (Ok(taken), Ok(given)) if taken == given => Ok(given),
            (Ok(expected), Ok(there)) => {
                Err(RemoteError::SizeMismatch { path: task.destination.path(), expected, there })
            }
        }
    })
}

/// What the source sends; it ends only where that was all.
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

fn give(
    worker: &Worker<'_>,
    session: &mut Session,
    remote_upload: &RemoteUpload,
    mut data: Whole,
) -> Result<u64, RemoteError> {
    let ctx = worker.ctx;
    session.sending(Mode::Stream, 1, None)?;
    let (at, path) = (remote_upload.task.offset(), remote_upload.path.clone());
    let command = if let Some(plan) = remote_upload.staging.upload() {
        let [(_, begin), (_, transfer)] = plan.transfer(at);
        for (_, release) in session.releases(|id| *id == plan.id) {
            session.control.call(&release)?;
        }
        session.begins(&plan.id);
        session.call(&begin)?;
        transfer
    } else if remote_upload.task.window.is_some() && session.can.partial {
        Command::Esto { place: Placement::Adjusted(at), path }
    } else {
        Command::Stor(path)
    };
    if at > 0 && !session.can.partial {
        session.call(&Command::Rest(Restart::Offset(at)))?;
    }
    session.control.send(&command)?;
    let Some(mut channel) = session.take_channel() else { return Err(RemoteError::Desynchronized) };
    let mut ended = None;
    let mut judge = |answer: Answer| {
        let Answer::Final(reply) = answer else { return ControlFlow::Continue(()) };
        ended = Some(reply);
        ControlFlow::Break(())
    };
    let progress = Progress::new();
    let mut meter = Meter::new(&ctx.report, &remote_upload.task);
    let path = remote_upload.task.source.path();
    let stall = ctx.options().timeouts.stall;
    let mut watch =
        Watch::new(&mut session.control, &mut judge, Some(&mut meter), stall, &ctx.cancel, path.clone());
    let sent = channel.data.send_reader(&mut data, &mut watch, &progress);
    let failure = watch.failure.take();
    meter.finish(&progress);
    drop((meter, channel));
    if let Some(failure) = failure {
        return Err(failure);
    }
    let reply = match (ended, &sent) {
        (Some(reply), _) => reply,
        (None, Ok(_)) => session.control.finish()?,
        (None, Err(_)) => {
            let mut last = None;
            session.control.last_words(&mut |answer| {
                if let Some(Answer::Final(reply)) = answer {
                    last = Some(reply);
                }
                last.is_some()
            });
            match last {
                Some(reply) => reply,
                None => return sent.map(|sent| sent.bytes).map_err(|e| broken(session, path, e)),
            }
        }
    };
    session.accept("STOR", reply)?;
    sent.map(|sent| sent.bytes).map_err(|e| broken(session, path, e))
}

fn broken(session: &Session, path: bstr::BString, error: ropewalk_engine::Error) -> RemoteError {
    RemoteError::data(session.control.peer(), path, error)
}

/// Proof, attributes, name.
fn settle(
    worker: &Worker<'_>,
    (source, destination): &mut (Session, Session),
    remote_upload: &RemoteUpload,
    bytes: u64,
) -> Result<Option<String>, RemoteError> {
    let (options, task) = (worker.ctx.options(), &remote_upload.task);
    if task.length().is_some_and(|length| length != bytes) && !options.data.ascii {
        return Err(RemoteError::SourceChanged { path: task.source.path() });
    }
    let policy = if options.data.ascii || remote_upload.device() || task.source_program {
        ChecksumPolicy::None
    } else {
        options.integrity.checksum
    };
    let (a, b) = (&source.can, &destination.can);
    let both = format!("{} and {}", source.endpoint.name, destination.endpoint.name);
    let check = choose(policy, &|x| a.knows(x) && b.knows(x), false, &both)?;
    let (mut proved, mut expected) = (None, UploadProof::default());
    if let Some(algorithm) = check.algorithm() {
        let ours = source.checksum(&task.source.path(), algorithm, task.window, Some(bytes))?;
        proved = Some(proof(algorithm, &ours));
        if remote_upload.staging.upload().is_some() {
            expected = UploadProof::of(algorithm, &ours);
        } else {
            let window = task.window.map(|window| Window { length: Some(bytes), ..window });
            let theirs = destination.checksum(&remote_upload.path, algorithm, window, Some(bytes))?;
            if !same(&ours, &theirs) {
                let path = task.destination.path();
                return Err(RemoteError::ChecksumMismatch { path, algorithm, ours, theirs });
            }
        }
    } else if task.window.is_none() && task.modified.is_some() && !options.data.ascii {
        // Somebody may have written to it, and left its size as it was.
        source.unchanged(task)?;
    }
    if check == Check::Size
        && remote_upload.staging.upload().is_none()
        && destination.can.size
        && !remote_upload.device()
        && !options.data.ascii
        && task.window.is_none()
    {
        match destination.size(&remote_upload.path) {
            Ok(there) if there == bytes => {}
            Ok(there) => {
                let path = task.destination.path();
                return Err(RemoteError::SizeMismatch { path, expected: bytes, there });
            }
            Err(e) if remote_upload.is_in_place() && !e.breaks_session() => {
                worker.ctx.report.not_compared(&task.destination);
            }
            Err(e) => return Err(e),
        }
    }
    if let Some(command) = remote_upload.asks_for_place(&destination.can, options.preserve) {
        let reply = destination.control.call(&command)?;
        if !reply.is_failure() {
            remote_upload.replaces(&reply);
        }
    }
    let sent = Some(bytes).filter(|_| !options.data.ascii);
    let commands = remote_upload.naming(destination, options.preserve, sent, expected);
    for (purpose, command) in &commands {
        destination.control.send(command)?;
        if *purpose == Purpose::Commit {
            destination.control.last_reads(Some(bytes));
        }
    }
    let mut refused = None;
    for (purpose, _) in commands {
        let reply = destination.control.finish()?;
        match purpose {
            Purpose::Hint => {}
            _ if !reply.is_failure() => {}
            Purpose::Attribute => {
                let why = crate::model::error::text(&reply);
                worker.ctx.report.not_preserved(&task.destination, Some(reply.code()), &why);
            }
            purpose => {
                refused.get_or_insert_with(|| remote_upload.refused(Side::Destination, purpose, reply));
            }
        }
    }
    if let Some(refused) = refused {
        return Err(refused);
    }
    if let Some(plan) = remote_upload.staging.upload() {
        destination.ends(&plan.id);
    }
    Ok(proved)
}
