//! What comes after the data: proof, name, and who is to blame.

use super::*;

impl Flow<'_> {
    /// Goes on with what both sides confirmed, in order.
    pub(super) fn settle(&mut self) -> Result<(), RemoteError> {
        for at in 0..self.slots.len() {
            if self.slots[at].error.is_some() && self.slots[at].fails_alone() {
                continue;
            }
            if self.slots[at].error.is_some() {
                self.worker.careful.set(CAREFUL);
                // One side may still wait for the other: both sessions are given up.
                let slot = &self.slots[at];
                let over = slot.due == 0 && slot.source.ended.is_some() && slot.destination.ended.is_some();
                if !over || self.slots.len() > 1 {
                    self.complete(at);
                    return Err(RemoteError::OutOfStep);
                }
                if let Some(slot) = self.slots.pop_front() {
                    self.first += 1;
                    let error = slot.error.unwrap_or(RemoteError::OutOfStep);
                    let wrong = slot.relay.in_place && is_of_no_use(&error);
                    let path = slot.relay.path.clone();
                    // Before anybody begins again: it has its name already.
                    let removed = match wrong {
                        true => self.destination.control.call(&Command::Dele(path)).map(drop),
                        false => Ok(()),
                    };
                    self.worker.fail(Job::Third(slot.relay, slot.range), error);
                    removed?;
                }
                return Ok(());
            }
            self.advance(at)?;
        }
        while let Some(slot) = self.slots.front() {
            if slot.is_over() {
                self.pop_done();
            } else if slot.error.is_some() && slot.counted && !slot.fails_alone() {
                // What it takes before anybody begins again.
                return self.settle();
            } else if slot.error.is_some() && slot.due == 0 {
                self.fail_front()?;
            } else {
                break;
            }
        }
        if self.slots.is_empty() && self.channel.is_some_and(|(mode, _)| mode == Mode::Stream) {
            self.channel = None;
        }
        Ok(())
    }

    /// Finishes those whose data had arrived before that of a file that was refused: it is theirs. The source sends no more, for
    /// which the destination may wait before it answers.
    fn complete(&mut self, refused: usize) {
        let deadline = Instant::now() + LAST_WORDS;
        let mut left = refused;
        let mut waits = false;
        while left > 0 {
            let slot = &self.slots[0];
            // What the source has still to say of one nobody hears.
            let sums = self.source_asks.iter().any(|(id, _)| *id < self.first + left as u64);
            if slot.error.is_some() || !slot.counted || sums {
                return;
            }
            if slot.is_over() {
                self.pop_done();
                left -= 1;
                continue;
            }
            if !std::mem::replace(&mut waits, true) {
                self.source.leave(Duration::ZERO);
                // A transfer may still wait for a connection, and the names behind it with it.
                if self.destination.quirks.answers_every_abort {
                    self.destination.control.break_off();
                }
            }
            let Ok(Some(answer)) = self.destination.control.answer_until(deadline) else { return };
            self.hear(true, answer);
            if (0..left).try_for_each(|at| self.advance(at)).is_err() {
                return;
            }
        }
    }

    /// The file at the front has failed, alone.
    fn fail_front(&mut self) -> Result<(), RemoteError> {
        let Some(slot) = self.slots.pop_front() else { return Ok(()) };
        self.first += 1;
        let error = slot.error.unwrap_or(RemoteError::OutOfStep);
        let over = !error.is_transient() && !cannot_go_on(&error) && slot.range == slot.relay.whole();
        let part = Some(slot.relay.path.clone()).filter(|_| over && !slot.relay.direct);
        self.worker.fail(Job::Third(slot.relay, slot.range), error);
        let busy = !self.destination_asks.is_empty();
        part.map_or(Ok(()), |part| self.destination.remove_leftover(part, busy))
    }

    /// The file, or part of one, at the front is done.
    fn pop_done(&mut self) {
        let Some(slot) = self.slots.pop_front() else { return };
        self.first += 1;
        self.worker.careful.set(self.worker.careful.get().saturating_sub(1));
        if slot.committing {
            self.finish(&slot.relay);
        }
        self.worker.done();
    }

    pub(super) fn advance(&mut self, at: usize) -> Result<(), RemoteError> {
        let id = self.first + at as u64;
        let mut slot = &mut self.slots[at];
        let (Some(source), Some(destination)) = (&slot.source.ended, &slot.destination.ended) else {
            return Ok(());
        };
        let relay = slot.relay.clone();
        if slot.again {
            if slot.due > 0 {
                return Ok(());
            }
            (slot.again, slot.asked_again) = (false, true);
            return if slot.asked_sum { self.ask_destination(id, &relay) } else { self.commit(at) };
        }
        if !slot.counted {
            slot.counted = true;
            if slot.relay.task.size.is_some() {
                // Without markers (MODE S) this is the first that is known of progress, and the last one may have told less.
                slot.meter.update(slot.range.end - slot.range.start - slot.there.len(), 0);
            }
            let mut moved = RangeSet::from_range(slot.range.clone());
            moved.subtract(&slot.there);
            match relay.arrived(slot.range.clone(), &moved, source.as_deref(), destination.as_deref()) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(e) => {
                    slot.error = Some(e);
                    return Ok(());
                }
            }
            slot.committing = true;
            if relay.is_unwatched() && self.source.can.facts {
                slot.version_due = true;
                let command = Command::Mlst(Some(relay.task.source.path()));
                self.ask(id, false, Ask::Version, &command)?;
            }
            slot = &mut self.slots[at];
            if relay.needs_sum() {
                let Some(algorithm) = relay.check.algorithm() else { return Ok(()) };
                slot.asked_sum = true;
                let source = checksum_command(algorithm, &relay.task, &relay.task.source.path());
                self.ask(id, false, Ask::Sum, &source)?;
                return self.ask_destination(id, &relay);
            }
            let plain = !relay.device() && !self.worker.ctx.options().ascii && relay.task.window.is_none();
            if relay.check == Check::Size && self.destination.can.size && plain && relay.task.size.is_some() {
                slot.asked_sum = true;
                return self.ask_destination(id, &relay);
            }
            slot.commits = true;
        }
        if slot.version_due {
            return Ok(());
        }
        if std::mem::take(&mut slot.commits) {
            return self.commit(at);
        }
        if slot.asked_sum && slot.destination.sum.is_some() {
            let theirs = slot.destination.sum.as_deref().unwrap_or_default();
            let compared = match (relay.check, slot.source.sum.as_deref()) {
                (Check::Size, _) => compare_sizes(&relay, theirs),
                (_, Some(ours)) => relay.compare(ours, theirs),
                (_, None) => return Ok(()),
            };
            slot.destination.sum = None;
            slot.asked_sum = false;
            match compared {
                Ok(()) => return self.commit(at),
                Err(e) => slot.error = Some(e),
            }
        }
        Ok(())
    }

    /// Asks for the sum of what has arrived, or for its size.
    fn ask_destination(&mut self, id: u64, relay: &Relay) -> Result<(), RemoteError> {
        let window = relay.task.window.is_some();
        let command = match relay.check.algorithm() {
            Some(algorithm) => Command::Cksm {
                algorithm,
                offset: relay.task.offset(),
                length: relay.task.length().filter(|_| window),
                path: relay.path.clone(),
            },
            None => Command::Size(relay.path.clone()),
        };
        self.ask(id, true, Ask::Sum, &command)
    }

    pub(super) fn commit(&mut self, at: usize) -> Result<(), RemoteError> {
        let id = self.first + at as u64;
        let relay = self.slots[at].relay.clone();
        let (task, preserve) = relay.keeping(self.worker.ctx.options().preserve);
        for command in self.destination.preserving(&task, &relay.path, preserve) {
            self.ask(id, true, Ask::Attribute, &command)?;
        }
        if !relay.direct {
            self.ask(id, true, Ask::Rename, &Command::Rnfr(relay.path.clone()))?;
            self.ask(id, true, Ask::Rename, &Command::Rnto(relay.task.destination.path()))?;
            if let Some(command) = self.destination.closing(&task, preserve) {
                self.ask(id, true, Ask::Attribute, &command)?;
            }
            if relay.task.apart {
                // What the session left that nobody knows the end of.
                self.ask(id, true, Ask::Hint, &Command::Dele(part_of(&relay.task)))?;
            }
        }
        Ok(())
    }

    pub(super) fn finish(&self, relay: &Relay) {
        let ctx = self.worker.ctx;
        ctx.states.remove(&relay.task);
        ctx.report.tell_growth(&relay.task);
        ctx.done(&relay.task, relay.bytes(), relay.began().elapsed(), relay.proof());
    }

    /// The sessions are of no more use. The file whose command failed gets the blame, the others go back.
    pub(super) fn give_up(self, error: RemoteError) {
        let Self { worker, mut source, mut destination, slots, first, culprit, .. } = self;
        worker.ctx.report.waited(source.control.waited + destination.control.waited);
        // Behind that one are files which go on.
        let failed = slots.iter().find(|slot| slot.error.is_some());
        if let Some(part) = failed.and_then(Slot::leftover) {
            worker.leave_over(&destination.endpoint, part);
        }
        let stray = destination.quirks.writes_late_block;
        // First the one that sends, so that the other one waits for no more data; then the one that would still give
        // names to files that are about to be sent once more.
        source.leave(Duration::ZERO);
        drop(source);
        let gone = destination.leave(LAST_WORDS);
        let blamed = culprit.unwrap_or(first);
        let mut blame = Some(error).filter(|e| !matches!(e, RemoteError::Cancelled | RemoteError::OutOfStep));
        let mut refused = false;
        slots.iter().filter(|s| s.range.start == 0 && !s.counted).for_each(|s| _ = s.relay.beginning_waits());
        for (id, mut slot) in (first..).zip(slots) {
            // Behind a file that was refused, others got its data: what the servers say of them is no news.
            let behind = refused;
            refused |= slot.error.is_some();
            let job = if slot.counted && slot.committing {
                slot.relay.give_up();
                worker.ctx.report.put_back();
                let (apart, confirm) = (!gone && !slot.relay.direct, slot.relay.direct);
                Job::File(Task { apart, confirm, ..slot.relay.task.clone() })
            } else if slot.counted && slot.error.is_none() {
                worker.done();
                continue;
            } else {
                // What no marker confirmed is sent again.
                let kept = slot.relay.present().intersection(slot.range.clone()).len();
                slot.meter.failed(kept.saturating_sub(slot.there.len()));
                let again = Job::Third(slot.relay.clone(), slot.range.clone());
                let Some(job) = worker.send_again(&slot.relay, behind, gone, again) else {
                    worker.done();
                    continue;
                };
                if stray && let Some(beginning) = worker.beginning(&slot.relay, &slot.range) {
                    worker.ctx.queue.push_urgent([Job::Third(slot.relay.clone(), beginning)]);
                }
                job
            };
            let own = slot.error.filter(|_| !behind);
            match own.or_else(|| blame.take_if(|_| id == blamed)) {
                Some(error) => worker.fail(job, error),
                None => worker.put_back(job),
            }
        }
    }
}
