//! Handles a failed job: it is retried, as a whole or in part, or its file fails for good.

use std::ops::Range;

use ropewalk_transfer::Behind;

use super::*;
use crate::model::error::Blame;
use crate::model::tries::Tried;
use crate::place::Place;

impl Worker<'_> {
    /// Handles a failed try of a job: the job is retried, or its file fails for good.
    pub(crate) fn fail(&self, job: Job, error: RemoteError) {
        if matches!(error, RemoteError::Cancelled) && self.ctx.cancel.is_cancelled() {
            // Otherwise workers would take the job and requeue it again and again.
            self.ctx.queue.stop();
        }
        if error.recovery().blame == Blame::None {
            return self.put_back(job);
        }
        let error = match error {
            RemoteError::Crowded { .. } if self.leave() => {
                self.ctx.report.warn_once(format!("{error}; going on with fewer"));
                return self.put_back(job);
            }
            RemoteError::Crowded { source, .. } => *source,
            error => error,
        };
        tracing::debug!(%error, file = %job.task().source.display(), "a try failed");
        let pause = self.ctx.options().recovery.retry_pause;
        match job {
            Job::File(mut task) => {
                task.tries.count(Instant::now(), 0);
                task.confirm |= matches!(error, RemoteError::PartVanished { .. });
                task.grows |= error.is_source_change();
                match self.again(&error, *task.tries) {
                    Some(pause) => {
                        self.tell_retry(&task, false, &error, pause);
                        self.ctx.queue.push_delayed(Job::File(task), Instant::now() + pause);
                    }
                    None => {
                        drop(self.ctx.states.let_go(&task));
                        self.give_up(&task, false, &error);
                    }
                }
            }
            Job::Get(ref download, _) | Job::Sum(ref download) => {
                if !download.has_failed() {
                    let download = download.clone();
                    let error = download.once_only(error);
                    let error = match error.refuses_restart() && !download.present().is_empty() {
                        true => RemoteError::Unresumable { reason: error.to_string() },
                        false => error,
                    };
                    let no_use = error.invalidates_data();
                    // The part file may have been removed, or another transfer may have started
                    // one.
                    let lost = matches!(error, RemoteError::Local { .. }) && error.is_busy();
                    let restart = no_use || lost || download.is_over();
                    let tried = download.count_try(pause, no_use);
                    self.fail_part(&download.task, tried, job, restart, &error, &|_| {
                        download.give_up();
                        if no_use { download.discard() } else { download.abandon() }
                    });
                }
            }
            Job::Put(ref upload, _) if !upload.has_failed() => {
                let upload = upload.clone();
                self.fail_upload(&upload, job, error);
                // No later run can resume it.
                if upload.is_spent()
                    && !upload.is_direct()
                    && let Place::Remote(endpoint, _) = &upload.task.destination
                {
                    self.leave_over(endpoint, upload.staging.removal());
                }
            }
            Job::Third(ref relay, _) if !relay.has_failed() => {
                let relay = relay.clone();
                self.fail_upload(&relay, job, error);
            }
            Job::Put(..) | Job::Third(..) => {}
        }
        self.done();
    }

    /// Like [`Worker::fail`]; returns an error if the session cannot be used any more.
    pub(crate) fn failed(&self, job: Job, error: RemoteError) -> Result<(), RemoteError> {
        let broken = error.breaks_session();
        self.fail(job, error);
        if broken { Err(RemoteError::Desynchronized) } else { Ok(()) }
    }

    /// Handles the failure of a range that a server receives.
    fn fail_upload(&self, remote_upload: &RemoteUpload, again: Job, error: RemoteError) {
        let error = self.as_unresumable(remote_upload, error);
        let restart = error.invalidates_data() || remote_upload.restarts;
        let tried = remote_upload.count_try(self.ctx.options().recovery.retry_pause, restart);
        self.fail_part(&remote_upload.task, tried, again, restart, &error, &|last| {
            self.end_remote_upload(remote_upload, restart, last);
        });
    }

    /// Turns the refusal of a resumed transfer into an error after which it is restarted.
    fn as_unresumable(&self, remote_upload: &RemoteUpload, error: RemoteError) -> RemoteError {
        if !error.refuses_resumption() || self.forget(remote_upload) == 0 {
            return error;
        }
        self.ctx.states.remove(&remote_upload.task);
        RemoteError::Unresumable { reason: error.to_string() }
    }

    /// Asks which ranges the server has, before a range is sent after a failure: it may have more
    /// than its markers reported, or less.
    pub(crate) fn ask_again(
        &self,
        session: &mut Session,
        remote_upload: &RemoteUpload,
        range: &Range<u64>,
    ) -> Result<(), RemoteError> {
        if remote_upload.was_asked() {
            return Ok(());
        }
        match remote_upload.staging.received(session, remote_upload.present(), &remote_upload.task) {
            Ok(found) => {
                let more = remote_upload.was_told(session, range.clone(), &found);
                self.ctx.report.there(&remote_upload.task.account, more);
                Ok(())
            }
            // Another session of this client writes to the file, so the upload is alive, and has
            // the ranges that markers reported.
            Err(e) if e.is_busy() => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Ends a transfer in its present state. The data that a later run needs to resume it stays
    /// (the server may have more than it has reported), unless the data is invalid. `last` means
    /// that the transfer failed for good.
    fn end_remote_upload(&self, remote_upload: &RemoteUpload, of_no_use: bool, last: bool) {
        remote_upload.give_up();
        if of_no_use {
            self.ctx.states.remove(&remote_upload.task);
        }
        if last {
            remote_upload.let_go_at_last(self.ctx.states.let_go(&remote_upload.task));
        }
    }

    /// Forgets the ranges that have arrived, so that they are sent again. Returns their number of
    /// bytes.
    pub(crate) fn forget(&self, remote_upload: &RemoteUpload) -> u64 {
        let bytes = remote_upload.forget_present();
        self.ctx.report.there(&remote_upload.task.account, -signed(bytes));
        bytes
    }

    /// The job for a range whose session was lost before the range was done. `session_ended` means
    /// that the server has certainly finished the session. Returns `None` if another range has
    /// already requeued the whole file.
    pub(crate) fn send_again(
        &self,
        remote_upload: &RemoteUpload,
        behind: Behind,
        session_ended: bool,
        again: Job,
    ) -> Option<Job> {
        let refused = behind == Behind::Refused;
        // Resuming does not pay for small files; servers keep no journal of them.
        if refused || remote_upload.task.size.is_none_or(|size| size <= SMALL) {
            self.forget(remote_upload);
        }
        // An upload may count ranges as present that have another file's data.
        let wrong = refused && remote_upload.is_resumable() && remote_upload.staging.upload().is_some();
        if wrong {
            self.ctx.states.remove(&remote_upload.task);
        } else if refused && remote_upload.is_resumable() {
            self.ctx.states.save(&remote_upload.task, &remote_upload.present());
        }
        if !wrong && (session_ended || behind == Behind::Confirmed || remote_upload.is_direct()) {
            return Some(again);
        }
        // The session may still write to the part file.
        if !remote_upload.give_up() {
            return None;
        }
        self.ctx.report.put_back();
        Some(Job::File(Task { apart: true, ..remote_upload.task.clone() }))
    }

    /// The beginning of a file, if it has to be sent again because a session with a GCT server was
    /// lost while it had `range` (see [`LATE_BLOCK`]).
    pub(crate) fn beginning(&self, remote_upload: &RemoteUpload, range: &Range<u64>) -> Option<Range<u64>> {
        if range.start == 0 || !remote_upload.is_resumable() || remote_upload.has_failed() {
            return None;
        }
        if remote_upload.beginning_waits() {
            return None;
        }
        let beginning = 0..LATE_BLOCK.min(range.start);
        let less = remote_upload.set_present(beginning.clone(), &RangeSet::new());
        self.ctx.report.there(&remote_upload.task.account, less);
        remote_upload.expect(1);
        Some(beginning)
    }

    /// Handles the failure of a range: the range is retried, or, with `restart`, the whole file.
    /// `end` ends the transfer in its present state; its argument means that this is for good.
    fn fail_part(
        &self,
        task: &Task,
        tries: Tried,
        again: Job,
        restart: bool,
        error: &RemoteError,
        end: &dyn Fn(bool),
    ) {
        let Some(pause) = self.again(error, tries).filter(|_| !task.starts_program()) else {
            end(true);
            return self.give_up(task, true, error);
        };
        let due = Instant::now() + pause;
        if restart {
            end(false);
            self.tell_retry(task, true, error, pause);
            let confirm = matches!(error, RemoteError::PartVanished { .. });
            let grows = task.grows || error.is_source_change();
            self.ctx.queue.push_delayed(
                Job::File(Task { tries: Box::new(tries), confirm, grows, ..task.clone() }),
                due,
            );
        } else {
            self.tell_retry(task, false, error, pause);
            self.ctx.queue.push_delayed(again, due);
        }
    }

    /// The pause before a file is tried again; `None` if it is not tried again.
    fn again(&self, error: &RemoteError, tries: Tried) -> Option<Duration> {
        let pause = self.ctx.retry(error, tries.failed, tries.first())?;
        Some(if tries.at_once { Duration::ZERO } else { pause })
    }

    fn tell_retry(&self, task: &Task, active: bool, error: &RemoteError, pause: Duration) {
        self.ctx.report.will_retry(task.id, active, task.source.display(), error.to_string(), pause);
    }

    fn give_up(&self, task: &Task, active: bool, error: &RemoteError) {
        let mut told = error.to_string();
        let of_what_arrived = |command: &str| matches!(command, "SIZE" | "CKSM" | "RNFR" | "RNTO");
        if error.kind() == FailureKind::Permission && error.refused_command().is_some_and(of_what_arrived) {
            told.push_str("; where nobody may ask or rename, --in-place writes files under their own names");
        }
        let entry = failure(task.source.display(), task.destination.display(), error.kind(), told);
        self.ctx.report.failed(task.id, active, entry);
        if self.ctx.options().recovery.stop_on_failure {
            self.ctx.queue.stop();
        }
    }
}
