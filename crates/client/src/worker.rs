//! A worker: one thread with one session (or a pair of them), which takes jobs until the queue
//! ends.
//!
//! A worker owns its sessions and returns them at its end. Jobs that fail are handled in
//! [`failing`]. If a worker panics, the queue stops, so that the others end, too.

mod failing;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bstr::BString;
use ropewalk_protocol::command::Command;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::Mode;

use crate::context::Context;
use crate::lent::Wanted;
use crate::model::threads;
use crate::opening::{at_work, open_another};
use crate::part::LATE_BLOCK;
use crate::path_defaults::SMALL;
use crate::place::Endpoint;
use crate::queue::Next;
use crate::ready::Taker;
use crate::remote_upload::RemoteUpload;
use crate::report::{failure, signed};
use crate::session::Session;
use crate::task::Task;
use crate::tune::{Ends, Participant};
use crate::work::{Job, Route, SAME_SUM};
use crate::{FailureKind, RemoteError};

/// After a refusal, this many files are sent without pipelining.
pub(crate) const CAREFUL: u32 = 16;

pub(crate) struct Worker<'c> {
    pub ctx: &'c Context,
    taker: Taker,
    /// Idle sessions of this worker.
    sessions: RefCell<Vec<Session>>,
    /// A job that was taken, but needs another route than the jobs in flight.
    carry: RefCell<Option<Job>>,
    /// The number of uploads to send one by one, because an earlier one was refused.
    pub careful: Cell<u32>,
    /// Commands that remove invalid files from servers, if the session that made the files could
    /// not do so.
    leftovers: RefCell<Vec<(Arc<Endpoint>, Vec<Command>)>>,
    /// The path has enough workers without this one.
    leaving: Cell<bool>,
    /// The worker is no longer counted.
    left: Cell<bool>,
}

impl<'c> Worker<'c> {
    pub(crate) fn new(ctx: &'c Context, sessions: Vec<Session>) -> Self {
        let sessions = RefCell::new(sessions.into_iter().map(at_work).collect());
        Self {
            ctx,
            taker: ctx.queue.taker(),
            sessions,
            carry: RefCell::new(None),
            careful: Cell::new(0),
            leftovers: RefCell::default(),
            leaving: Cell::new(false),
            left: Cell::new(false),
        }
    }

    /// Takes a job ahead of the other workers if this one has sessions, because the others would
    /// have to log in for it.
    pub(crate) fn begin_at_once(&self) {
        if !self.sessions.borrow().is_empty()
            && let Next::Job(job) = self.ctx.queue.try_next(self.taker)
        {
            self.carry.replace(Some(job));
        }
    }

    /// Carries out jobs until the queue ends. `carry_out` carries out a job and those of its route
    /// that follow.
    pub(crate) fn run(&self, carry_out: impl Fn(&Self, Job)) {
        let began = Instant::now();
        let _end = End(self.ctx);
        while let Some(job) = self.next_unless_surplus() {
            carry_out(self, job);
        }
        self.remove_leftovers();
        self.ctx.lent.release(self.taker);
        for session in self.sessions.take() {
            self.ctx.report.waited(session.control.waited);
            if let Some(session) = self.ctx.lent.leave(session) {
                self.ctx.give_back(session);
            }
        }
        self.ctx.report.worked(began.elapsed());
    }

    fn next_unless_surplus(&self) -> Option<Job> {
        if self.carry.borrow().is_none() && (self.left.get() || self.leaving.replace(false) && self.leave()) {
            return None;
        }
        self.next()
    }

    /// Stops taking jobs, unless this is the last worker, which has to do the rest.
    fn leave(&self) -> bool {
        let others = |sessions: u32| sessions.checked_sub(1).filter(|others| *others > 0);
        let left = self.left.get()
            || self.ctx.sessions.fetch_update(Ordering::Relaxed, Ordering::Relaxed, others).is_ok();
        self.left.set(left);
        left
    }

    /// The worker's share in the tuner of the path between these ends, which has this round-trip
    /// time.
    pub(crate) fn participant(&self, ends: Ends, rtt: Duration) -> Option<Participant> {
        self.ctx.tune.participant(ends, rtt, self.ctx.report.left_alike())
    }

    /// The next job. Idle sessions are kept alive while none is ready.
    fn next(&self) -> Option<Job> {
        if let Some(job) = self.carry.take() {
            return Some(job);
        }
        loop {
            let due = self.sessions.borrow().iter().map(Session::keepalive_due).min();
            match self.ctx.queue.next(self.taker, due.map(|due| Instant::now() + due)) {
                Next::Job(job) => return Some(job),
                Next::End => return None,
                Next::Nothing => self.sessions.borrow_mut().retain_mut(|s| s.keep_alive().is_ok()),
            }
        }
    }

    /// Another job of this route if one waits, unless the path has enough workers without this one.
    pub(crate) fn more(&self, route: &Route, participant: Option<&Participant>) -> Option<Job> {
        if self.carry.borrow().is_some() || self.leaving.get() || self.left.get() {
            return None;
        }
        if participant.is_some_and(Participant::is_surplus) {
            // If no job waits, the worker stays in order to take over from a slow session.
            self.leaving.set(self.ctx.queue.has_waiting());
            return None;
        }
        match self.ctx.queue.try_next(self.taker) {
            Next::Job(job) if job.route().is(route) => Some(job),
            Next::Job(job) => {
                self.carry.replace(Some(job));
                None
            }
            Next::Nothing | Next::End => None,
        }
    }

    /// A session with this server: an idle one, or a new one.
    pub(crate) fn session(&self, endpoint: &Arc<Endpoint>) -> Result<Session, RemoteError> {
        self.session_for(self.wanted(endpoint))
    }

    /// A session for `job`, the tuner of its path if several streams can move it, and the part of
    /// the job for this worker. Returns `None` if the log-in failed, and the job with it.
    pub(crate) fn tuned_session(
        &self,
        endpoint: &Arc<Endpoint>,
        job: Job,
    ) -> Option<(Session, Option<Participant>, Job)> {
        let ends = Ends::of(job.task());
        let job = self.cut_before_log_in(job);
        let mut session = match self.session(endpoint) {
            Ok(session) => session,
            Err(e) => {
                self.fail(job, e);
                return None;
            }
        };
        let rtt = session.control.rtt();
        let participant =
            self.participant(ends, rtt).filter(|_| session.preferred_mode() == Mode::ExtendedBlock);
        session.path_tuner = participant.as_ref().map(|participant| participant.path_tuner().clone());
        Some((session, participant, job))
    }

    fn wanted<'w>(&self, endpoint: &'w Arc<Endpoint>) -> Wanted<'w> {
        Wanted { endpoint, with: None, own: 0, by: self.taker }
    }

    fn session_for(&self, wanted: Wanted<'_>) -> Result<Session, RemoteError> {
        let Wanted { endpoint, .. } = wanted;
        let mut idle = self.sessions.borrow_mut();
        if let Some(at) = idle.iter().position(|s| Arc::ptr_eq(&s.endpoint, endpoint)) {
            return Ok(idle.swap_remove(at));
        }
        // Sessions with other servers are not needed now.
        let keep = idle.len().min(1);
        for session in idle.drain(keep..) {
            self.ctx.give_back(session);
        }
        drop(idle);
        open_another(self.ctx, wanted)
    }

    /// Sessions with both servers of a third-party transfer. If both are new they are opened at the
    /// same time, because a log-in over a long path takes half a dozen round trips.
    pub(crate) fn session_pair(
        &self,
        from: &Arc<Endpoint>,
        to: &Arc<Endpoint>,
    ) -> Result<(Session, Session), RemoteError> {
        let one = Arc::ptr_eq(from, to);
        if one || !self.sessions.borrow().is_empty() {
            let destination = self.session(to)?;
            return match self.session_for(Wanted { own: one.into(), ..self.wanted(from) }) {
                Ok(source) => Ok((source, destination)),
                Err(e) => {
                    self.keep(destination);
                    Err(e)
                }
            };
        }
        let ctx = self.ctx;
        let half = |endpoint, other| Wanted { with: Some(other), ..self.wanted(endpoint) };
        let (to, from) = (half(to, from), half(from, to));
        let (destination, source) = threads::both(move || open_another(ctx, to), || open_another(ctx, from));
        match (source, destination) {
            (Ok(source), Ok(destination)) => Ok((source, destination)),
            (Ok(kept), Err(e)) | (Err(e), Ok(kept)) => {
                ctx.lent.release(self.taker);
                self.keep(kept);
                Err(e)
            }
            (Err(e), Err(_)) => Err(e),
        }
    }

    /// Keeps a session that can be used again.
    pub(crate) fn keep(&self, mut session: Session) {
        if session.control.hear_out().is_err() {
            return;
        }
        self.ctx.report.waited(std::mem::take(&mut session.control.waited));
        session.endpoint.saw_rtt(session.control.rtt());
        self.sessions.borrow_mut().push(session);
    }

    /// Keeps commands that remove files, for a time without other work.
    pub(crate) fn leave_over(&self, endpoint: &Arc<Endpoint>, removal: Vec<Command>) {
        self.leftovers.borrow_mut().push((endpoint.clone(), removal));
    }

    /// Removes what is left over, as far as possible: a file that stays does no harm.
    fn remove_leftovers(&self) {
        for (endpoint, removal) in self.leftovers.take() {
            if self.ctx.cancel.is_cancelled() {
                return;
            }
            let Ok(mut session) = self.session(&endpoint) else { return };
            if session.remove_leftover(&removal, false).is_ok() {
                self.keep(session);
            }
        }
    }

    /// Completes a job, whatever its result.
    pub(crate) fn done(&self) {
        self.ctx.queue.done();
    }

    /// Requeues a job that was not started, or that was interrupted without a failure of its own.
    pub(crate) fn put_back(&self, job: Job) {
        self.ctx.queue.push_urgent([job]);
        self.ctx.queue.done();
    }

    /// Gives `path` the times and modes to preserve. A refusal is reported as a warning.
    pub(crate) fn preserve(
        &self,
        session: &mut Session,
        task: &Task,
        path: &BString,
    ) -> Result<(), RemoteError> {
        let commands = session.preserving(task, path, self.ctx.options().preserve);
        self.set_attributes(session, task, &commands)
    }

    /// Sends these commands. A refusal is reported as a warning, and the file still counts as
    /// copied.
    pub(crate) fn set_attributes(
        &self,
        session: &mut Session,
        task: &Task,
        commands: &[Command],
    ) -> Result<(), RemoteError> {
        for set in session.calls(commands)? {
            if let Err(e) = set {
                self.ctx.report.not_preserved(&task.destination, e.reply_code(), &e.to_string());
            }
        }
        Ok(())
    }

    /// Skips a file, because the destination has the same bytes.
    pub(crate) fn have_already(&self, mut task: Task, proof: String) {
        let report = &self.ctx.report;
        if task.confirm {
            // An earlier try of this run sent the bytes.
            report.anew(&mut task);
            report.started(&task, 0);
            let bytes = task.length().unwrap_or_default();
            report.there(&task.account, signed(bytes));
            let took = task.began.map(|at| at.elapsed()).unwrap_or_default();
            self.ctx.states.remove(&task);
            self.ctx.done(&task, bytes, took, Some(proof));
        } else {
            report.needless(&task, SAME_SUM);
        }
        self.done();
    }
}

/// Stops the queue if a worker panics, so that the others do not wait for its job.
struct End<'c>(&'c Context);

impl Drop for End<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.queue.stop();
        }
    }
}

/// Reports that a job was not done because the run ended first.
pub(crate) fn left_over(ctx: &Context, job: &Job, interrupted: bool) {
    let task = job.task();
    let active = !matches!(job, Job::File(_));
    let already = match job {
        Job::File(_) => false,
        Job::Get(download, _) | Job::Sum(download) => {
            let known = !download.give_up();
            download.abandon();
            known
        }
        Job::Put(upload, _) => !upload.give_up(),
        Job::Third(relay, _) => !relay.give_up(),
    };
    if already {
        return;
    }
    let why = if interrupted { "interrupted" } else { "not begun: another file failed" };
    let entry =
        failure(task.source.display(), task.destination.display(), FailureKind::Interrupted, why.to_owned());
    ctx.report.failed(task.id, active, entry);
}
