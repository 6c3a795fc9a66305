//! File transfers: the common part of RETR, ERET, STOR, APPE and ESTO.

use std::sync::Arc;
use std::time::SystemTime;

use bstr::ByteSlice;
use ropewalk_engine::Progress;
use ropewalk_protocol::command::ChecksumAlgorithm;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::{Direction, Event, Failure, Listen, Outcome, Transfer};

use super::{Answer, channel, part_names, programs, retrieve, scitag, store};
use crate::host::presence::Activity;
use crate::host::transfer_log::Record;
use crate::session::job::Job;

pub(super) fn transfer(job: &mut Job<'_>, transfer: &Transfer) -> Answer {
    let progress = Arc::new(Progress::new());
    let log = Started::now(job, command(transfer), &transfer.path, &progress);
    let enabled = job.context.settings.config.profiling.enabled;
    let recorded = enabled.then(|| job.host.profiling.transfer(job.context.counted_as(), &progress));
    let answer = announce(job, transfer.delayed.as_ref()).and_then(|()| {
        if let Some(channel) = &mut job.context.channel {
            channel.data.set_representation(transfer.representation);
            channel.data.set_resend(transfer.resend);
            channel.set_congestion(transfer.congestion, &job.context.settings.config.data);
        }
        scitag::mark(job, Some(&transfer.path), transfer.scitag);
        let program = job.context.login()?.program.clone();
        match (transfer.direction, program) {
            (Direction::Retrieve, Some(program)) => programs::retrieve(job, &program, transfer, &progress),
            (Direction::Store, Some(program)) => programs::store(job, &program, transfer, &progress),
            (Direction::Retrieve, None) => retrieve::retrieve(job, transfer, &progress),
            (Direction::Store, None) => store::store(job, transfer, &progress),
        }
    });
    drop(recorded);
    log.ended(job, &progress, answer.as_ref().err());
    answer.map(|checksum| Outcome::Transferred { checksum })
}

/// A checksum that was computed during the transfer.
pub(super) type Checksum = Option<(ChecksumAlgorithm, String)>;

/// Delayed passive: creates the channel now and reports its address, even if the transfer fails
/// afterwards.
pub(super) fn announce(job: &mut Job<'_>, delayed: Option<&Listen>) -> Result<(), Failure> {
    let Some(listen) = delayed else {
        return Ok(());
    };
    let addresses = channel::listen(job, listen)?;
    if job.dialogue.event(Event::Listening(addresses)).is_break() {
        return Err(job.dialogue.broken_off().unwrap_or(Failure::Aborted));
    }
    Ok(())
}

fn command(transfer: &Transfer) -> &'static str {
    match transfer.direction {
        Direction::Retrieve if transfer.window.is_some() => "ERET",
        Direction::Retrieve => "RETR",
        Direction::Store if transfer.adjust.is_some() => "ESTO",
        Direction::Store if transfer.append => "APPE",
        Direction::Store => "STOR",
    }
}

/// A transfer or listing that has started, for the logs.
pub(super) struct Started {
    at: SystemTime,
    kind: &'static str,
    path: VirtualPath,
}

impl Started {
    pub(super) fn now(
        job: &Job<'_>,
        kind: &'static str,
        path: &VirtualPath,
        progress: &Arc<Progress>,
    ) -> Self {
        tracing::debug!(session = job.context.id, kind, path = ?path.as_bytes().as_bstr(), "transfer begins");
        let progress = Arc::clone(progress);
        job.dialogue.presence.set(Activity::Moving { command: kind, path: path.clone(), progress });
        Self { at: SystemTime::now(), kind, path: path.clone() }
    }

    /// Leaves the record for the log. The session adds the code of its reply.
    pub(super) fn ended(self, job: &mut Job<'_>, progress: &Progress, failure: Option<&Failure>) {
        job.dialogue.presence.moved(progress.bytes());
        let end = SystemTime::now();
        let context = &*job.context;
        let seconds = end.duration_since(self.at).unwrap_or_default().as_secs_f64();
        let (bytes, streams) = (progress.bytes(), progress.most_streams());
        let task = context.task.as_ref().map(|task| task.to_str_lossy());
        let task = task.as_deref();
        match failure {
            None => tracing::info!(
                session = context.id, user = context.user(), kind = self.kind, path = ?self.path.as_bytes().as_bstr(), bytes, streams, seconds, task,
                "transfer done"
            ),
            // The client has asked for it (ABOR), for example to go on over other data nodes, or is
            // gone.
            Some(Failure::Aborted) => tracing::info!(
                session = context.id, user = context.user(), kind = self.kind, path = ?self.path.as_bytes().as_bstr(), bytes, streams, seconds, task,
                "transfer aborted"
            ),
            Some(failure) => tracing::warn!(
                session = context.id, user = context.user(), kind = self.kind, path = ?self.path.as_bytes().as_bstr(), bytes, streams, seconds, task,
                ?failure, "transfer failed"
            ),
        }
        let channel = context.channel.as_deref();
        *job.record = Some(Box::new(Record {
            start: self.at,
            end,
            user: context.user().to_owned(),
            path: part_names::accounted(&self.path).as_bytes().into(),
            buffer: channel.and_then(|c| c.buffer).unwrap_or(0) as u64,
            block: context.settings.config.data.block_size,
            bytes,
            streams,
            peer: channel.map_or(context.peer.ip(), |c| c.peer),
            kind: self.kind,
            code: 0,
            task: context.task.clone(),
        }));
    }
}
