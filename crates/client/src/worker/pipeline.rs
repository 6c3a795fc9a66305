//! Several transfers of one route at a time over the same session.

use std::ops::Deref;

use ropewalk_transfer::{File, Heard, Pipeline};

use super::Worker;
use crate::RemoteError;
use crate::ahead::Ahead;
use crate::context::Context;
use crate::remote_upload::RemoteUpload;
use crate::tune::Participant;
use crate::work::{Job, Route};

/// Transfers that are under way over a session, or a pair of them.
pub(crate) trait Steps {
    /// How much may be asked for ahead.
    fn ahead(&mut self) -> Ahead;

    /// Whether it has run down so far that further commands are worth a packet.
    fn is_low(&self, ahead: Ahead) -> bool;

    fn has_room(&mut self, ahead: Ahead) -> bool;

    fn is_empty(&self) -> bool;

    fn participant(&self) -> Option<&Participant>;

    /// Sends the commands for a job. Gives it back where it has to wait until nothing else is under way: it needs another data
    /// channel. An error is one of the session; what is wrong with the job alone is settled here.
    fn submit(&mut self, job: Job) -> Result<Option<Job>, RemoteError>;

    /// Moves the next file's data, or waits for a reply; then settles what is finished.
    fn step(&mut self) -> Result<(), RemoteError>;

    /// The session broke: whatever is under way fails, or is left to others.
    fn abandon(self, error: RemoteError);
}

/// Reports what a refused command means for the user.
pub(crate) fn report_refusal<F, O>(pipeline: &mut Pipeline<F, O>, ctx: &Context, heard: Heard)
where
    F: File + Deref<Target = RemoteUpload>,
{
    match heard {
        Heard::NotPreserved { id, reply } => {
            if let Some(slot) = pipeline.slot(id) {
                let (place, why) = (&slot.file.task.destination, crate::model::error::text(&reply));
                ctx.report.not_preserved(place, Some(reply.code()), &why);
            }
        }
        Heard::NotCompared { id } => {
            if let Some(slot) = pipeline.slot(id) {
                ctx.report.not_compared(&slot.file.task.destination);
            }
        }
        Heard::Nothing | Heard::Ended => {}
    }
}

impl Worker<'_> {
    /// Handles `job` and those of the same route that come after it, until there are none. `None`: the session broke.
    pub(crate) fn drive<S: Steps>(&self, mut pipeline: S, route: &Route, job: Job) -> Option<S> {
        let mut next = Some(job);
        loop {
            let ahead = pipeline.ahead();
            let low = pipeline.is_low(ahead);
            while next.is_some() || (low && pipeline.has_room(ahead)) {
                let Some(job) = next.take().or_else(|| self.more(route, pipeline.participant())) else {
                    break;
                };
                match pipeline.submit(job) {
                    Ok(None) => {}
                    Ok(Some(job)) => {
                        next = Some(job);
                        break;
                    }
                    Err(e) => {
                        pipeline.abandon(e);
                        return None;
                    }
                }
            }
            if pipeline.is_empty() && next.is_none() {
                return Some(pipeline);
            }
            if let Err(e) = pipeline.step() {
                if let Some(job) = next {
                    self.put_back(job);
                }
                pipeline.abandon(e);
                return None;
            }
        }
    }
}
