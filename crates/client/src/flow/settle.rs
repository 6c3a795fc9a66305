//! After the data: verification, name, and which file gets the error of a lost session.

use ropewalk_transfer::{Left, Outcome, Site};

use super::*;
use crate::control::LAST_WORDS;
use crate::worker::CAREFUL;

/// The sessions of a flow, as far as commands depend on them.
struct Ends<'e, P> {
    ctx: &'e Context,
    peers: &'e P,
}

impl<'w, P: Peers> Site<P::File, P::Own<'w>> for Ends<'_, P> {
    fn checks(&self, slot: &SlotOf<'w, P>) -> Checks {
        self.peers.checks(self.ctx, slot)
    }

    fn naming(&self, file: &P::File) -> Vec<(Purpose, Command)> {
        self.peers.naming(self.ctx, file)
    }
}

impl<P: Peers> Flow<'_, P> {
    /// Continues with everything that was confirmed, in order.
    pub(super) fn settle(&mut self) -> Result<(), RemoteError> {
        let sends = self.pipeline.route() != transfer::Route::Download;
        let careful = &self.worker.careful;
        loop {
            let outcome = self.pipeline.poll(&Ends { ctx: self.worker.ctx, peers: &self.peers });
            self.send_commands()?;
            match outcome {
                None => return Ok(()),
                Some(Outcome::Finished(slot)) => self.finished(slot),
                Some(Outcome::Failed(slot)) => {
                    if !slot.fails_alone() {
                        if sends {
                            careful.set(CAREFUL);
                        }
                        self.peers.drop_channel(&slot);
                    }
                    let code = slot.error.as_ref().and_then(RemoteError::reply_code);
                    if matches!(code, Some(425 | 426)) {
                        // The server may have lost its end of the channel, for all files.
                        self.peers.wants_new_channel();
                    }
                    self.failed(slot)?;
                }
                Some(Outcome::Desynchronized(id)) => {
                    if sends {
                        careful.set(CAREFUL);
                        // The file that failed is known: an error here is none of another one.
                        let _ = self.finish_before(id);
                    }
                    return Err(RemoteError::Desynchronized);
                }
            }
        }
    }

    /// Finishes the files whose data had arrived before that of a refused one.
    fn finish_before(&mut self, refused: u64) -> Result<(), RemoteError> {
        let deadline = Instant::now() + LAST_WORDS;
        let mut waits = false;
        loop {
            let ends = Ends { ctx: self.worker.ctx, peers: &self.peers };
            let outcome = self.pipeline.poll_before(refused, &ends);
            self.send_commands()?;
            match outcome {
                Some(Outcome::Finished(slot)) => self.finished(slot),
                Some(Outcome::Failed(slot)) => self.failed(slot)?,
                Some(Outcome::Desynchronized(_)) => return Ok(()),
                None => {
                    // Nothing listens to a source any more.
                    let of_source = self.pipeline.oldest(Side::Source).is_some_and(|(id, _)| id < refused);
                    if of_source || !self.pipeline.awaits_before(refused) {
                        return Ok(());
                    }
                    if !std::mem::replace(&mut waits, true) {
                        self.peers.stop_sending();
                        // A transfer may still wait for a connection, and the names behind it with
                        // it.
                        let destination = self.peers.session(Side::Destination);
                        if destination.quirks.answers_every_abort {
                            destination.control.break_off();
                        }
                    }
                    let control = &mut self.peers.session(Side::Destination).control;
                    let Some(answer) = control.answer_until(deadline)? else { return Ok(()) };
                    P::hear(self, Side::Destination, answer);
                }
            }
        }
    }

    /// A file, or a range of one, is done.
    fn finished(&mut self, mut slot: SlotOf<'_, P>) {
        let (ctx, careful) = (self.worker.ctx, &self.worker.careful);
        if slot.file.remote().is_some() {
            careful.set(careful.get().saturating_sub(1));
        }
        if slot.is_last() {
            let file = slot.file.clone();
            if let Some(remote) = file.remote() {
                if let Some(plan) = remote.staging.upload() {
                    self.peers.session(Side::Destination).ends(&plan.id);
                }
                ctx.states.remove(&remote.task);
            }
            match P::complete(self, &slot) {
                Ok(proof) => {
                    let task = file.task();
                    let began = task.began.unwrap_or_else(Instant::now);
                    ctx.report.tell_growth(task);
                    ctx.done(task, file.bytes(), began.elapsed(), proof);
                }
                Err(error) => {
                    slot.error = None;
                    return self.worker.fail(P::again(slot), error);
                }
            }
        }
        self.worker.done();
    }

    /// A range at the front has failed, and no reply is due for it.
    fn failed(&mut self, mut slot: SlotOf<'_, P>) -> Result<(), RemoteError> {
        let error = slot.error.take().unwrap_or(RemoteError::Desynchronized);
        let ended = slot.has_ended(Side::Destination);
        let file = slot.file.clone();
        let error = file.once_only(error);
        let Some(remote) = file.remote() else {
            self.worker.fail(P::again(slot), error);
            return Ok(());
        };
        let over = !error.is_transient() && !error.refuses_resumption() && slot.range == file.whole();
        let wrong = remote.is_in_place() && error.invalidates_data();
        let leftover = (over || remote.staging.upload().is_some() && error.invalidates_data()) && ended;
        let busy = self.pipeline.oldest(Side::Destination).is_some();
        let destination = self.peers.session(Side::Destination);
        // Before another try: it has its name already.
        let removed = match wrong && ended && !busy {
            true => destination.control.call(&Command::Dele(remote.path.clone())).map(drop),
            false => Ok(()),
        };
        if !remote.is_resumable() {
            self.worker.forget(remote);
        }
        let removal = remote.staging.removal();
        self.worker.fail(P::again(slot), error);
        if leftover {
            destination.remove_leftover(&removal, busy)?;
        }
        removed
    }

    /// The sessions cannot be used any more. The file whose command failed gets the error, the
    /// others are queued again.
    pub(super) fn give_up(mut self, error: RemoteError) {
        let late_block = self.peers.session(Side::Destination).quirks.writes_late_block;
        let session_ended = P::leave(&mut self);
        let Self { worker, pipeline, failed_command, .. } = self;
        let error =
            Some(error).filter(|e| !matches!(e, RemoteError::Cancelled | RemoteError::Desynchronized));
        pipeline
            .slots()
            .filter(|slot| slot.range.start == 0 && !slot.is_counted())
            .filter_map(|slot| slot.file.remote())
            .for_each(|remote| _ = remote.beginning_waits());
        for mut lost in pipeline.lost(error, failed_command) {
            P::lose(worker, &mut lost);
            requeue::<P>(worker, lost, session_ended, late_block);
        }
    }
}

/// Returns a range to the queue whose session was lost. `session_ended`: the server is known to
/// have ended that session. `late_block`: the server may have written to the beginning of the
/// file.
fn requeue<P: Peers>(
    worker: &Worker<'_>,
    lost: Lost<P::File, P::Own<'_>>,
    session_ended: bool,
    late_block: bool,
) {
    let Lost { slot, left, error, behind } = lost;
    let file = slot.file.clone();
    let job = match (left, file.remote()) {
        (Left::Nothing, _) => return worker.done(),
        (Left::Confirmation | Left::Range, None) => P::again(slot),
        (Left::Confirmation, Some(remote)) => {
            remote.give_up();
            worker.ctx.report.put_back();
            // A file that has its name already needs no data, and may accept none: its mode may
            // forbid writing. The session may still rename or commit what another one would write
            // to.
            let apart = !session_ended && !remote.is_direct();
            let confirm = remote.is_direct() || remote.staging.upload().is_some();
            Job::File(Task { apart, confirm, ..remote.task.clone() })
        }
        (Left::Range, Some(remote)) => {
            let range = slot.range.clone();
            let keeps_ranges = remote.staging.upload().is_some();
            if error.is_none() && keeps_ranges && slot.has_begun(Side::Destination) {
                remote.was_interrupted();
            }
            let Some(job) = worker.send_again(remote, behind, session_ended, P::again(slot)) else {
                return worker.done();
            };
            if late_block && let Some(beginning) = worker.beginning(remote, &range) {
                worker.ctx.queue.push_urgent([file.clone().job(beginning)]);
            }
            job
        }
    };
    match error {
        Some(error) => worker.fail(job, error),
        None => worker.put_back(job),
    }
}
