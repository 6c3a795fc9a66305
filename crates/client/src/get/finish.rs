//! What comes after the data: proof, name, and who is to blame.

use super::*;

impl Flow<'_> {
    /// Finishes the slots at the front that have all they wait for.
    pub(super) fn settle(&mut self) -> Result<(), RemoteError> {
        if self.no_way_back() {
            return Err(RemoteError::OutOfStep);
        }
        while !self.slots.is_empty() {
            let alone = self.slots.len() == 1;
            let Some(slot) = self.slots.front_mut() else { return Ok(()) };
            let first = self.first;
            if let Some(error) = &slot.error {
                if error.breaks_session() {
                    return Err(RemoteError::OutOfStep);
                }
                // All was answered: the session is as good as new, its channel is not.
                let clean = alone && self.asks.is_empty();
                if slot.begun && slot.moved.is_none() && slot.ended.is_none() {
                    if !clean {
                        // What was refused stood before the transfer, and its data is on the way.
                        return Err(RemoteError::OutOfStep);
                    }
                    self.session.drop_channel();
                }
                // Its later commands are still to be answered.
                if self.asks.iter().any(|(id, _)| *id == first) {
                    return Ok(());
                }
                let Some(mut slot) = self.pop() else { return Ok(()) };
                let error = slot.error.take().unwrap_or(RemoteError::OutOfStep);
                self.worker.fail(slot.into_job(), error);
                continue;
            }
            let due = (slot.asked_sum && slot.sum.is_none())
                || slot.asked_version && self.asks.iter().any(|(id, _)| *id == first);
            if slot.moved.is_none() || slot.ended.is_none() || due {
                return Ok(());
            }
            if slot.download.has_failed() {
                self.pop();
                self.worker.done();
                continue;
            }
            if slot.sum_only {
                slot.download.told(slot.sum.clone());
            }
            if let Some((ranges, pieces)) = slot.moved.take() {
                let theirs = slot.ended.as_ref().and_then(|sum| sum.as_deref());
                match slot.download.arrived(&ranges, pieces.as_ref(), theirs) {
                    Ok(true) => {}
                    Ok(false) => {
                        self.pop();
                        self.worker.done();
                        continue;
                    }
                    Err(e) => {
                        slot.error = Some(e);
                        continue;
                    }
                }
                slot.moved = Some((ranges, pieces));
            }
            if slot.download.needs_sum() && slot.sum.is_none() {
                let Some(algorithm) = slot.download.check.algorithm() else { return Ok(()) };
                let path = slot.download.task.source.path();
                let command = checksum_command(algorithm, &slot.download.task, &path);
                slot.asked_sum = true;
                // It must not be counted as arrived twice.
                slot.moved = Some((RangeSet::new(), None));
                slot.download.expect(1);
                self.session.control.send(&command)?;
                self.session.control.last_reads(Some(slot.download.end()));
                self.asks.push_back((first, Ask::Sum));
                return Ok(());
            }
            // A sum that the server computed meanwhile, or none, says nothing of who wrote to the source while it came.
            if !slot.asked_version && self.session.can.facts && slot.download.is_unwatched() {
                slot.asked_version = true;
                // It must not be counted as arrived twice.
                slot.moved = Some((RangeSet::new(), None));
                slot.download.expect(1);
                self.session.control.send(&Command::Mlst(Some(slot.download.task.source.path())))?;
                self.asks.push_back((first, Ask::Version));
                return Ok(());
            }
            let Some(slot) = self.pop() else { return Ok(()) };
            self.finish(slot);
        }
        Ok(())
    }

    pub(super) fn finish(&mut self, slot: Slot) {
        let download = slot.download;
        let mut compared = match slot.sum.or_else(|| download.theirs()) {
            Some(theirs) => download.compare(&theirs),
            None => Ok(()),
        };
        // Of a source that somebody writes, the sum is another one's: that is what is to be told.
        if compared.is_err()
            && self.slots.is_empty()
            && self.asks.is_empty()
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
            Err(e) => self.worker.fail(Job::Get(download, slot.range), e),
        }
    }

    pub(super) fn pop(&mut self) -> Option<Slot> {
        let slot = self.slots.pop_front()?;
        self.first += 1;
        Some(slot)
    }

    /// The session is of no more use. The file whose command failed gets the blame, the others go back.
    pub(super) fn give_up(mut self, error: RemoteError) {
        let mut blame = Some(error).filter(|e| !matches!(e, RemoteError::Cancelled | RemoteError::OutOfStep));
        let blamed = self.asks.front().map_or(self.first, |(id, _)| *id);
        self.worker.ctx.report.waited(self.session.control.waited);
        let mut told = false;
        while let Some(mut slot) = self.pop() {
            let id = self.first - 1;
            // That the session ends is the answer to all that it was still asked, and costs one of them a try.
            let own =
                slot.error.take().filter(|e| !e.breaks_session() || !std::mem::replace(&mut told, true));
            let error = own.or_else(|| blame.take_if(|_| id == blamed));
            let job = slot.into_job();
            match error {
                Some(error) => self.worker.fail(job, error),
                None => self.worker.put_back(job),
            }
        }
    }
}
