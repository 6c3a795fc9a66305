//! After the data: proof, name, and which file is to blame for a failure.

use super::*;

/// Our end and the server of an upload.
struct Ends<'e> {
    ctx: &'e Context,
    session: &'e Session,
}

impl Site<Upload, Duration> for Ends<'_> {
    fn checks(&self, slot: &Slot<Upload, Duration>) -> Checks {
        let (upload, mut checks) = (&slot.file, Checks::default());
        if upload.staging.upload().is_some() {
            // The server compares size and sum when it is committed.
        } else if upload.needs_sum() || slot.is_expectation_unknown() {
            checks.checksums.destination =
                upload.check.algorithm().map(|algorithm| sum_command(upload, algorithm));
        } else if upload.check == Check::Size
            && self.session.can.size
            && !upload.device()
            && !self.ctx.options().data.ascii
        {
            checks.size = Some(Command::Size(upload.path.clone()));
        }
        checks
    }

    fn naming(&self, upload: &Upload) -> Vec<(Purpose, Command)> {
        let sent = upload.size_of_stream().filter(|_| !self.ctx.options().data.ascii);
        upload.naming(self.session, self.ctx.options().preserve, sent, upload.upload_proof())
    }
}

impl Flow<'_> {
    /// Continues with everything that was confirmed, in order.
    pub(super) fn settle(&mut self) -> Result<(), RemoteError> {
        loop {
            let ends = Ends { ctx: self.worker.ctx, session: &self.session };
            let outcome = self.pipeline.poll(&ends);
            self.send_commands()?;
            match outcome {
                None => return Ok(()),
                Some(Outcome::Finished(slot)) => self.finished(slot),
                Some(Outcome::Failed(slot)) => {
                    if !slot.fails_alone() {
                        self.worker.careful.set(CAREFUL);
                        // Data may have been discarded by the server.
                        self.session.drop_channel();
                    }
                    self.failed(slot)?;
                }
                Some(Outcome::Desynchronized(id)) => {
                    self.worker.careful.set(CAREFUL);
                    self.complete(id)?;
                    return Err(RemoteError::Desynchronized);
                }
            }
        }
    }

    /// A file at the front has failed, and no reply is due for it.
    fn failed(&mut self, slot: Slot<Upload, Duration>) -> Result<(), RemoteError> {
        let ended = slot.has_ended(Side::Destination);
        let upload = slot.file;
        let Some(error) = slot.error.map(|error| upload.once_only(error)) else { return Ok(()) };
        let over = !error.is_transient() && !error.refuses_resumption() && slot.range == upload.wanted;
        let wrong = upload.is_in_place() && error.invalidates_data();
        let leftover = (over || upload.staging.upload().is_some() && error.invalidates_data()) && ended;
        let (path, removal) = (upload.path.clone(), upload.staging.removal());
        let busy = self.pipeline.pending() > 0;
        // Before another try: it has its name already.
        let removed = match wrong && ended && !busy {
            true => self.session.control.call(&Command::Dele(path)).map(drop),
            false => Ok(()),
        };
        if !upload.is_resumable() {
            self.worker.forget(&upload);
        }
        self.worker.fail(Job::Put(upload, slot.range), error);
        if leftover {
            self.session.remove_leftover(&removal, busy)?;
        }
        removed
    }

    /// Finishes the files whose data had arrived before that of a refused one. No more data goes to
    /// the server, which may wait for some before it answers.
    fn complete(&mut self, refused: u64) -> Result<(), RemoteError> {
        self.session.drop_channel();
        let deadline = Instant::now() + LAST_WORDS;
        if self.session.quirks.answers_every_abort && self.pipeline.is_due_before(refused) {
            // A transfer may still wait for a connection, and the names behind it with it.
            self.session.control.break_off();
        }
        loop {
            let ends = Ends { ctx: self.worker.ctx, session: &self.session };
            let outcome = self.pipeline.poll_before(refused, &ends);
            self.send_commands()?;
            match outcome {
                Some(Outcome::Finished(slot)) => self.finished(slot),
                Some(Outcome::Failed(slot)) => self.failed(slot)?,
                Some(Outcome::Desynchronized(_)) => return Ok(()),
                None if !self.pipeline.awaits_before(refused) => return Ok(()),
                None => match self.session.control.answer_until(deadline) {
                    Ok(Some(answer)) => self.hear(answer),
                    Err(RemoteError::Cancelled) => return Err(RemoteError::Cancelled),
                    // The file to blame is known.
                    Ok(None) | Err(_) => return Ok(()),
                },
            }
        }
    }

    /// A file, or a range of one, is done.
    fn finished(&mut self, slot: Slot<Upload, Duration>) {
        let careful = &self.worker.careful;
        careful.set(careful.get().saturating_sub(1));
        if slot.is_last() {
            let (ctx, upload) = (self.worker.ctx, &slot.file);
            if let Some(plan) = upload.staging.upload() {
                self.session.ends(&plan.id);
            }
            ctx.states.remove(&upload.task);
            ctx.report.tell_growth(&upload.task);
            ctx.done(&upload.task, upload.bytes(), upload.began().elapsed(), upload.proof());
        }
        self.worker.done();
    }

    /// The session cannot be used any more. The file whose command failed gets the blame, the others
    /// are queued again.
    pub(super) fn give_up(self, error: RemoteError) {
        let Self { worker, mut session, pipeline, culprit, .. } = self;
        let report = &worker.ctx.report;
        report.waited(session.control.waited);
        let late_block = session.quirks.writes_late_block;
        let session_ended = session.leave(LAST_WORDS);
        let error =
            Some(error).filter(|e| !matches!(e, RemoteError::Cancelled | RemoteError::Desynchronized));
        pipeline
            .slots()
            .filter(|slot| slot.range.start == 0 && !slot.is_counted())
            .for_each(|slot| _ = slot.file.beginning_waits());
        for mut lost in pipeline.lost(error, culprit) {
            let upload = &lost.slot.file;
            if lost.slot.has_moved() && !lost.slot.is_counted() {
                // It is sent again, except for what is known to be there.
                let mut unconfirmed = lost.slot.data.clone();
                unconfirmed.subtract(&upload.present());
                report.there(&upload.task.account, -signed(unconfirmed.len()));
            }
            if upload.is_spent() {
                let broken = || RemoteError::Usage("the session broke".to_owned());
                lost.error = Some(upload.once_only(lost.error.unwrap_or_else(broken)));
            }
            worker.requeue(lost, session_ended, late_block);
        }
    }
}
