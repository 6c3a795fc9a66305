//! After the data: proof, name, and which file is to blame for a failure.

use super::*;

/// The two servers.
struct Ends<'e> {
    ctx: &'e Context,
    source: &'e Session,
    destination: &'e Session,
}

impl<'r> Site<Relay, Moving<'r>> for Ends<'_> {
    fn checks(&self, slot: &Slot<Relay, Moving<'r>>) -> Checks {
        let (relay, mut checks) = (&slot.file, Checks::default());
        let task = &relay.task;
        if relay.is_unwatched() && self.source.can.facts && !slot.has_asked_version() {
            checks.version = Some(Command::Mlst(Some(task.source.path())));
        }
        if relay.needs_sum() {
            let window = task.window.is_some();
            if let Some(algorithm) = relay.check.algorithm() {
                checks.checksums.source = Some(checksum_command(algorithm, task, &task.source.path()));
                let sum = Command::Cksm {
                    algorithm,
                    offset: task.offset(),
                    length: task.length().filter(|_| window),
                    path: relay.path.clone(),
                };
                // The server compares that of an upload when it is committed.
                checks.checksums.destination = Some(sum).filter(|_| relay.staging.upload().is_none());
            }
            return checks;
        }
        if relay.staging.upload().is_some() {
            return checks;
        }
        let plain = !relay.device() && !self.ctx.options().data.ascii && task.window.is_none();
        if relay.check == Check::Size && self.destination.can.size && plain && task.size.is_some() {
            checks.size = Some(Command::Size(relay.path.clone()));
        }
        checks
    }

    fn naming(&self, relay: &Relay) -> Vec<(Purpose, Command)> {
        relay.naming(self.destination, self.ctx.options().preserve, None, relay.upload_proof())
    }
}

impl<'w> Flow<'w> {
    /// Continues with everything that both sides confirmed, in order.
    pub(super) fn settle(&mut self) -> Result<(), RemoteError> {
        loop {
            let (ctx, source, destination) = (self.worker.ctx, &self.source, &self.destination);
            let outcome = self.pipeline.poll(&Ends { ctx, source, destination });
            self.send_commands()?;
            match outcome {
                None => break,
                Some(Outcome::Finished(slot)) => self.finished(slot),
                Some(Outcome::Failed(slot)) => {
                    if !slot.fails_alone() {
                        self.worker.careful.set(CAREFUL);
                    }
                    self.failed(slot)?;
                }
                Some(Outcome::Desynchronized(id)) => {
                    self.worker.careful.set(CAREFUL);
                    self.complete(id);
                    return Err(RemoteError::Desynchronized);
                }
            }
        }
        if self.pipeline.is_empty() && self.channel.is_some_and(|(mode, _)| mode == Mode::Stream) {
            self.channel = None;
        }
        Ok(())
    }

    /// Finishes the files whose data had arrived before that of a refused one. The source sends no
    /// more, for which the destination may wait before it answers.
    fn complete(&mut self, refused: u64) {
        let deadline = Instant::now() + LAST_WORDS;
        let mut waits = false;
        loop {
            let (ctx, source, destination) = (self.worker.ctx, &self.source, &self.destination);
            let outcome = self.pipeline.poll_before(refused, &Ends { ctx, source, destination });
            if self.send_commands().is_err() {
                return;
            }
            match outcome {
                Some(Outcome::Finished(slot)) => self.finished(slot),
                Some(Outcome::Failed(slot)) => {
                    if self.failed(slot).is_err() {
                        return;
                    }
                }
                Some(Outcome::Desynchronized(_)) => return,
                None => {
                    // Nobody listens to the source any more.
                    let of_source = self.pipeline.oldest(Side::Source).is_some_and(|(id, _)| id < refused);
                    if of_source || !self.pipeline.awaits_before(refused) {
                        return;
                    }
                    if !std::mem::replace(&mut waits, true) {
                        self.source.leave(Duration::ZERO);
                        // A transfer may still wait for a connection, and the names behind it with it.
                        if self.destination.quirks.answers_every_abort {
                            self.destination.control.break_off();
                        }
                    }
                    let Ok(Some(answer)) = self.destination.control.answer_until(deadline) else { return };
                    self.hear(Side::Destination, answer);
                }
            }
        }
    }

    /// A file at the front has failed, and no reply is due for it.
    fn failed(&mut self, slot: Slot<Relay, Moving<'w>>) -> Result<(), RemoteError> {
        let fails_alone = slot.fails_alone();
        let error = slot.error.unwrap_or(RemoteError::Desynchronized);
        let relay = slot.file;
        let over = !error.is_transient() && !error.refuses_resumption() && slot.range == relay.whole();
        let leftover = (over || relay.staging.upload().is_some() && error.invalidates_data()) && fails_alone;
        let (path, removal) = (relay.path.clone(), relay.staging.removal());
        let busy = self.pipeline.oldest(Side::Destination).is_some();
        // Before another try: it has its name already.
        let removed = match relay.is_in_place() && error.invalidates_data() && !busy {
            true => self.destination.control.call(&Command::Dele(path)).map(drop),
            false => Ok(()),
        };
        self.worker.fail(Job::Third(relay, slot.range), error);
        if leftover {
            self.destination.remove_leftover(&removal, busy)?;
        }
        removed
    }

    /// A file, or a range of one, is done.
    fn finished(&mut self, slot: Slot<Relay, Moving<'w>>) {
        let careful = &self.worker.careful;
        careful.set(careful.get().saturating_sub(1));
        if slot.is_last() {
            let (ctx, relay) = (self.worker.ctx, &slot.file);
            if let Some(plan) = relay.staging.upload() {
                self.destination.ends(&plan.id);
            }
            ctx.states.remove(&relay.task);
            ctx.report.tell_growth(&relay.task);
            ctx.done(&relay.task, relay.bytes(), relay.began().elapsed(), relay.proof());
        }
        self.worker.done();
    }

    /// The sessions cannot be used any more. The file whose command failed gets the blame, the others
    /// are queued again.
    pub(super) fn give_up(self, error: RemoteError) {
        let Self { worker, mut source, mut destination, pipeline, culprit, .. } = self;
        worker.ctx.report.waited(source.control.waited + destination.control.waited);
        // Behind the file that failed are files that are tried again.
        let failed = pipeline.slots().find(|slot| slot.error.is_some());
        if let Some(removal) = failed.and_then(leftover) {
            worker.leave_over(&destination.endpoint, removal);
        }
        let late_block = destination.quirks.writes_late_block;
        // First the source, so that the destination waits for no more data; then the destination, which
        // would still give names to files that are about to be sent once more.
        source.leave(Duration::ZERO);
        drop(source);
        let session_ended = destination.leave(LAST_WORDS);
        let error =
            Some(error).filter(|e| !matches!(e, RemoteError::Cancelled | RemoteError::Desynchronized));
        pipeline
            .slots()
            .filter(|slot| slot.range.start == 0 && !slot.is_counted())
            .for_each(|slot| _ = slot.file.beginning_waits());
        for mut lost in pipeline.lost(error, culprit) {
            let slot = &mut lost.slot;
            if lost.left == Left::Range {
                // What no marker confirmed is sent again.
                let kept = slot.file.present().intersection(slot.range.clone()).len();
                slot.own.meter.failed(kept.saturating_sub(slot.own.present.len()));
            }
            worker.requeue(lost, session_ended, late_block);
        }
    }
}

/// The commands that remove what has arrived of a file that failed for good, if that has nothing that a later run could resume: the source
/// refused to send it, or it is too small.
fn leftover(slot: &Slot<Relay, Moving<'_>>) -> Option<Vec<Command>> {
    let relay = &slot.file;
    let error = slot.error.as_ref().filter(|error| !error.is_transient())?;
    let unsent = error.refused_command() == Some("RETR");
    // If something has come it is tried once more.
    let nothing = relay.resumed == 0 && (unsent && relay.present().is_empty() || !relay.is_resumable());
    let removal = relay.staging.removal();
    (nothing && !removal.is_empty() && slot.range == relay.whole()).then_some(removal)
}
