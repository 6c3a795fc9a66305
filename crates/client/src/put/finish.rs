//! What comes after the data: proof, name, and who is to blame.

use super::*;

impl Flow<'_> {
    /// Goes on with what was confirmed, in order.
    pub(super) fn settle(&mut self) -> Result<(), RemoteError> {
        for at in 0..self.slots.len() {
            let slot = &self.slots[at];
            if slot.error.is_some() && !slot.fails_alone() {
                return self.refusal(at);
            }
            if slot.error.is_none() {
                self.advance(at)?;
            }
        }
        while let Some(slot) = self.slots.front().filter(|slot| slot.counted && slot.due == 0) {
            if slot.error.is_some() && !slot.fails_alone() {
                return self.refusal(0);
            }
            if slot.error.is_some() {
                self.fail_front()?;
            } else if slot.is_over() {
                self.pop_done();
            } else {
                break;
            }
        }
        Ok(())
    }

    /// A file was refused. Alone in the pipeline it fails alone; otherwise nobody knows whose data went where.
    pub(super) fn refusal(&mut self, at: usize) -> Result<(), RemoteError> {
        self.worker.careful.set(CAREFUL);
        if self.slots.len() > 1 {
            self.complete(at)?;
            return Err(RemoteError::OutOfStep);
        }
        if self.slots[at].due > 0 {
            // What was refused stood before the transfer: the server waits for data that will not come.
            let waits = self.slots[at].ended.is_none() && self.slots[at].sent.is_none();
            return if waits { Err(RemoteError::OutOfStep) } else { Ok(()) };
        }
        // Data may have gone into the void.
        self.session.drop_channel();
        self.fail_front()
    }

    /// The file at the front has failed, and nothing is due of it.
    fn fail_front(&mut self) -> Result<(), RemoteError> {
        let Some(slot) = self.slots.pop_front() else { return Ok(()) };
        self.first += 1;
        let upload = slot.upload;
        let Some(error) = slot.error.map(|error| upload.once_only(error)) else { return Ok(()) };
        let over = !error.is_transient() && !cannot_go_on(&error) && slot.range == upload.wanted;
        let part = upload.path.clone();
        let wrong = upload.in_place && is_of_no_use(&error);
        let leftover = over && !upload.direct && slot.ended.is_some();
        // Before anybody begins again: it has its name already.
        let removed = match wrong && slot.ended.is_some() && self.asks.is_empty() {
            true => self.session.control.call(&Command::Dele(part.clone())).map(drop),
            false => Ok(()),
        };
        if !upload.is_resumable() {
            self.worker.forget(&upload);
        }
        self.worker.fail(Job::Put(upload, slot.range), error);
        if leftover {
            self.session.remove_leftover(part, !self.asks.is_empty())?;
        }
        removed
    }

    /// Finishes those whose data had arrived before that of a file that was refused: it is theirs. No more data goes to the
    /// server, which may wait for some before it answers.
    fn complete(&mut self, refused: usize) -> Result<(), RemoteError> {
        self.session.drop_channel();
        let deadline = Instant::now() + LAST_WORDS;
        let mut left = refused;
        let waits = |slot: &Slot| slot.due > 0;
        if self.session.quirks.answers_every_abort && self.slots.iter().take(refused).any(waits) {
            // A transfer may still wait for a connection, and the names behind it with it.
            self.session.control.break_off();
        }
        while left > 0 {
            let slot = &self.slots[0];
            if slot.error.is_some() && !slot.fails_alone() || !slot.counted {
                break;
            }
            if slot.due == 0 && slot.error.is_some() {
                self.fail_front()?;
                left -= 1;
                continue;
            }
            if slot.due == 0 && slot.is_over() {
                self.pop_done();
                left -= 1;
                continue;
            }
            let answer = match self.session.control.answer_until(deadline) {
                Ok(Some(answer)) => answer,
                Err(RemoteError::Cancelled) => return Err(RemoteError::Cancelled),
                // Who is to blame is known.
                Ok(None) | Err(_) => break,
            };
            self.hear(answer);
            for at in 0..left {
                if self.slots[at].error.is_none() {
                    self.advance(at)?;
                }
            }
        }
        Ok(())
    }

    /// The file, or part of one, at the front is done.
    fn pop_done(&mut self) {
        let Some(slot) = self.slots.pop_front() else { return };
        self.first += 1;
        let careful = &self.worker.careful;
        careful.set(careful.get().saturating_sub(1));
        if slot.committing {
            self.finish(&slot.upload);
        }
        self.worker.done();
    }

    /// The next commands of a slot whose transfer is confirmed.
    pub(super) fn advance(&mut self, at: usize) -> Result<(), RemoteError> {
        let slot = &mut self.slots[at];
        let (Some(pieces), Some(theirs)) = (&slot.sent, &slot.ended) else { return Ok(()) };
        let upload = slot.upload.clone();
        if slot.again {
            if slot.due > 0 {
                return Ok(());
            }
            (slot.again, slot.asked_again) = (false, true);
            return if slot.naming { self.commit(at) } else { self.ask_sum(at) };
        }
        if !slot.counted {
            slot.counted = true;
            let last = upload
                .check_source(false)
                .and_then(|()| upload.arrived(&slot.data, pieces.as_ref(), theirs.as_deref()))
                .and_then(|last| if last { upload.check_source(true).map(|()| last) } else { Ok(last) });
            match last {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(e) => {
                    slot.error = Some(e);
                    return Ok(());
                }
            }
            slot.committing = true;
            let summed =
                (upload.needs_sum() || slot.not_expected).then(|| upload.check.algorithm().is_some());
            let ascii = self.worker.ctx.options().ascii;
            let sized = upload.check == Check::Size && self.session.can.size && !upload.device() && !ascii;
            return match summed {
                Some(false) => Ok(()),
                None if !sized => self.commit(at),
                Some(true) | None => self.ask_sum(at),
            };
        }
        if slot.asked_sum
            && let Some(theirs) = slot.sum.take()
        {
            let compared = match upload.check {
                Check::Size => compare_sizes(&upload, &theirs),
                _ => upload.compare(&theirs),
            };
            match compared {
                Ok(()) => return self.commit(at),
                Err(e) => slot.error = Some(e),
            }
        }
        Ok(())
    }

    /// Asks for the sum of what has arrived, or for its size.
    fn ask_sum(&mut self, at: usize) -> Result<(), RemoteError> {
        let id = self.first + at as u64;
        let slot = &mut self.slots[at];
        slot.asked_sum = true;
        let command = match slot.upload.check.algorithm() {
            Some(algorithm) => sum_command(&slot.upload, algorithm),
            None => Command::Size(slot.upload.path.clone()),
        };
        let bytes = slot.upload.wanted.start.saturating_add(slot.upload.bytes());
        self.ask(id, Ask::Sum, &command)?;
        self.session.control.last_reads(Some(bytes));
        Ok(())
    }

    /// Gives the file its name and attributes.
    pub(super) fn commit(&mut self, at: usize) -> Result<(), RemoteError> {
        let id = self.first + at as u64;
        self.slots[at].naming = true;
        let upload = self.slots[at].upload.clone();
        let (task, preserve) = upload.keeping(self.worker.ctx.options().preserve);
        for command in self.session.preserving(&task, &upload.path, preserve) {
            self.ask(id, Ask::Attribute, &command)?;
        }
        if !upload.direct {
            self.ask(id, Ask::RenameFrom, &Command::Rnfr(upload.path.clone()))?;
            self.ask(id, Ask::RenameTo, &Command::Rnto(upload.task.destination.path()))?;
            if let Some(command) = self.session.closing(&task, preserve) {
                self.ask(id, Ask::Attribute, &command)?;
            }
            if upload.task.apart {
                // What the session left that nobody knows the end of.
                self.ask(id, Ask::Hint, &Command::Dele(part_of(&upload.task)))?;
            }
        }
        Ok(())
    }

    pub(super) fn ask(&mut self, id: u64, ask: Ask, command: &Command) -> Result<(), RemoteError> {
        self.session.control.queue(command)?;
        self.asks.push_back((id, ask));
        if let Some(slot) = id.checked_sub(self.first).and_then(|at| self.slots.get_mut(at as usize)) {
            slot.due += 1;
        }
        Ok(())
    }

    pub(super) fn finish(&self, upload: &Upload) {
        let ctx = self.worker.ctx;
        ctx.states.remove(&upload.task);
        ctx.report.tell_growth(&upload.task);
        ctx.done(&upload.task, upload.bytes(), upload.began().elapsed(), upload.proof());
    }

    /// The session is of no more use. The file whose command failed gets the blame, the others go back.
    pub(super) fn give_up(self, error: RemoteError) {
        let Self { worker, mut session, asks, slots, first, .. } = self;
        let report = &worker.ctx.report;
        report.waited(session.control.waited);
        let stray = session.quirks.writes_late_block;
        let gone = session.leave(LAST_WORDS);
        let blamed = asks.front().map_or(first, |(id, _)| *id);
        let mut blame = Some(error).filter(|e| !matches!(e, RemoteError::Cancelled | RemoteError::OutOfStep));
        let mut refused: Vec<Arc<Upload>> = Vec::new();
        slots
            .iter()
            .filter(|s| s.range.start == 0 && !s.counted)
            .for_each(|s| _ = s.upload.beginning_waits());
        for (id, slot) in (first..).zip(slots) {
            let upload = slot.upload;
            // Behind a file that was refused, others got its data: what the server says of them is no news. Ranges of one file
            // do each other no harm, since blocks say where they belong.
            let behind = refused.iter().any(|other| !Arc::ptr_eq(other, &upload));
            if slot.error.is_some() {
                refused.push(upload.clone());
            }
            let mut error = slot.error.filter(|_| !behind).or_else(|| blame.take_if(|_| id == blamed));
            if slot.sent.is_some() && !slot.counted {
                // It is sent again, but for what is known to be there.
                let mut lost = slot.data.clone();
                lost.subtract(&upload.present());
                report.there(&upload.task.account, -signed(lost.len()));
            }
            let job = if slot.counted && slot.committing {
                upload.give_up();
                report.put_back();
                // Who has its name already needs no data, and may take none: its mode may say that nobody writes to it.
                let (apart, confirm) = (!gone && !upload.direct, upload.direct);
                Job::File(Task { apart, confirm, ..upload.task.clone() })
            } else if slot.counted && error.is_none() && slot.range != upload.wanted {
                worker.done();
                continue;
            } else {
                let again = Job::Put(upload.clone(), slot.range.clone());
                let Some(job) = worker.send_again(&upload, behind, gone, again) else {
                    worker.done();
                    continue;
                };
                if stray && let Some(beginning) = worker.beginning(&upload, &slot.range) {
                    worker.ctx.queue.push_urgent([Job::Put(upload.clone(), beginning)]);
                }
                job
            };
            if upload.is_spent() {
                let broken = || RemoteError::Usage("the session broke".to_owned());
                error = Some(upload.once_only(error.unwrap_or_else(broken)));
            }
            match error {
                Some(error) => worker.fail(job, error),
                None => worker.put_back(job),
            }
        }
    }
}
