//! After the data: proof, name, and which file is to blame for a failure.

use super::*;

/// The server of a download.
struct Ends<'e> {
    session: &'e Session,
}

impl Site<Download, Duration> for Ends<'_> {
    fn checks(&self, slot: &Slot<Download, Duration>) -> Checks {
        let (download, mut checks) = (&slot.file, Checks::default());
        let path = download.task.source.path();
        if download.needs_sum() && !slot.has_asked_checksum() {
            checks.checksums.source = download
                .check
                .algorithm()
                .map(|algorithm| checksum_command(algorithm, &download.task, &path));
        }
        // A sum that the server computed meanwhile, or none, says nothing of programs that wrote to the
        // source while it came.
        if !slot.has_asked_version() && self.session.can.facts && download.is_unwatched() {
            checks.version = Some(Command::Mlst(Some(path)));
        }
        checks
    }

    fn naming(&self, _: &Download) -> Vec<(Purpose, Command)> {
        // Its destination is here: [`Download::commit`].
        Vec::new()
    }
}

impl Flow<'_> {
    /// Finishes the ranges at the front that have all they wait for.
    pub(super) fn settle(&mut self) -> Result<(), RemoteError> {
        if self.no_way_back() {
            return Err(RemoteError::Desynchronized);
        }
        loop {
            let outcome = self.pipeline.poll(&Ends { session: &self.session });
            self.send_commands()?;
            match outcome {
                None => return Ok(()),
                Some(Outcome::Finished(slot)) => self.finish(slot),
                Some(Outcome::Failed(slot)) => {
                    if slot.has_begun(Side::Source) && !slot.has_moved() && !slot.has_ended(Side::Source) {
                        // All was answered: the session is as good as new, its channel is not.
                        self.session.drop_channel();
                    }
                    self.failed(slot, None);
                }
                Some(Outcome::Desynchronized(_)) => return Err(RemoteError::Desynchronized),
            }
        }
    }

    fn finish(&mut self, slot: Slot<Download, Duration>) {
        if !slot.is_last() {
            return self.worker.done();
        }
        let download = slot.file.clone();
        let theirs = slot.checksum_of_source().map(str::to_owned).or_else(|| download.theirs());
        let mut compared = theirs.map_or(Ok(()), |theirs| download.compare_sum(&theirs));
        // If another program writes to the source, the sum is of another version: report that.
        if compared.is_err()
            && self.pipeline.is_empty()
            && self.pipeline.pending() == 0
            && let Err(changed @ RemoteError::SourceChanged { .. }) = self.session.unchanged(&download.task)
        {
            compared = Err(changed);
        }
        let bytes = download.end().saturating_sub(download.task.offset());
        match compared.and_then(|()| download.commit(self.worker.ctx.options(), 0)) {
            Ok(proof) => {
                self.worker.ctx.report.tell_growth(&download.task);
                self.worker.ctx.done(&download.task, bytes, download.began().elapsed(), proof);
                self.worker.done();
            }
            Err(error) => self.failed(slot, Some(error)),
        }
    }

    /// A range has failed, or its file when it was to get its name.
    fn failed(&self, mut slot: Slot<Download, Duration>, error: Option<RemoteError>) {
        let error = error.or_else(|| slot.error.take()).unwrap_or(RemoteError::Desynchronized);
        self.worker.fail(into_job(slot), error);
    }

    /// The session cannot be used any more. The file whose command failed gets the blame, the others
    /// are queued again.
    pub(super) fn give_up(self, error: RemoteError) {
        let Self { worker, session, pipeline, culprit, .. } = self;
        worker.ctx.report.waited(session.control.waited);
        let error =
            Some(error).filter(|e| !matches!(e, RemoteError::Cancelled | RemoteError::Desynchronized));
        for lost in pipeline.lost(error, culprit) {
            match (lost.left, lost.error) {
                (Left::Nothing, _) => worker.done(),
                (Left::Confirmation | Left::Range, Some(error)) => worker.fail(into_job(lost.slot), error),
                (Left::Confirmation | Left::Range, None) => worker.put_back(into_job(lost.slot)),
            }
        }
    }
}

/// The job that moves this range again, or verifies its file.
fn into_job(slot: Slot<Download, Duration>) -> Job {
    if slot.is_last() {
        // It was the last range of its file, and is due once more.
        slot.file.expect(1);
    }
    if slot.is_checksum_only() { Job::Sum(slot.file) } else { Job::Get(slot.file, slot.range) }
}
