//! One thread, one session (or a pair of them): takes jobs until there are none.

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

/// So many files go one by one after one was refused.
pub(crate) const CAREFUL: u32 = 16;

pub(crate) struct Worker<'c> {
    pub ctx: &'c Context,
    taker: Taker,
    /// Idle sessions of this worker.
    sessions: RefCell<Vec<Session>>,
    /// A job that was taken and is of another kind than those under way.
    carry: RefCell<Option<Job>>,
    /// Uploads that are to go one by one, because one before them was refused.
    pub careful: Cell<u32>,
    /// Files at servers that are of no use and could not be removed by the session that made them.
    leftovers: RefCell<Vec<(Arc<Endpoint>, Vec<Command>)>>,
    /// The path has enough without it.
    leaving: Cell<bool>,
    /// It counts as a worker no more.
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

    /// Whoever has sessions takes a job before all others: they would log in anew for it.
    pub(crate) fn begin_at_once(&self) {
        if !self.sessions.borrow().is_empty()
            && let Next::Job(job) = self.ctx.queue.try_next(self.taker)
        {
            self.carry.replace(Some(job));
        }
    }

    /// Until the queue ends. `carry_out` does a job, and those like it that follow.
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

    /// It takes no more jobs, unless it is the last one: somebody has to do the rest.
    fn leave(&self) -> bool {
        let others = |sessions: u32| sessions.checked_sub(1).filter(|others| *others > 0);
        let left = self.left.get()
            || self.ctx.sessions.fetch_update(Ordering::Relaxed, Ordering::Relaxed, others).is_ok();
        self.left.set(left);
        left
    }

    /// A place among those that move data between these ends, over a path of this round trip.
    pub(crate) fn participant(&self, ends: Ends, rtt: Duration) -> Option<Participant> {
        self.ctx.tune.participant(ends, rtt, self.ctx.report.left_alike())
    }

    /// The next job; idle sessions are kept alive while there is none.
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

    /// Another job of this route, where one waits, unless the path has enough workers without this one.
    pub(crate) fn more(&self, route: &Route, participant: Option<&Participant>) -> Option<Job> {
        if self.carry.borrow().is_some() || self.leaving.get() || self.left.get() {
            return None;
        }
        if participant.is_some_and(Participant::is_surplus) {
            // If nothing waits, it stays to take over what a slow session leaves.
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

    /// A session for `job`, the tuner of its path if several streams can move it, and what is left
    /// of the job for this worker. `None`: the log-in failed, and so has the job.
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
        // Another server's sessions are of no use now.
        let keep = idle.len().min(1);
        for session in idle.drain(keep..) {
            self.ctx.give_back(session);
        }
        drop(idle);
        open_another(self.ctx, wanted)
    }

    /// Sessions with both servers of a third-party transfer. Where both are new they are begun at the same time: over a
    /// long path a log-in takes half a dozen round trips.
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

    /// A session that can be used again.
    pub(crate) fn keep(&self, mut session: Session) {
        if session.control.hear_out().is_err() {
            return;
        }
        self.ctx.report.waited(std::mem::take(&mut session.control.waited));
        session.endpoint.saw_rtt(session.control.rtt());
        self.sessions.borrow_mut().push(session);
    }

    /// These commands remove something when there is nothing else to do.
    pub(crate) fn leave_over(&self, endpoint: &Arc<Endpoint>, removal: Vec<Command>) {
        self.leftovers.borrow_mut().push((endpoint.clone(), removal));
    }

    /// As far as that can be done: it does no harm where it stays.
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

    /// A job is finished, one way or another.
    pub(crate) fn done(&self) {
        self.ctx.queue.done();
    }

    /// A job was not begun, or broke off through no fault of its own.
    pub(crate) fn put_back(&self, job: Job) {
        self.ctx.queue.push_urgent([job]);
        self.ctx.queue.done();
    }

    /// Gives `path` the times and modes that are to be kept. What cannot be set is told.
    pub(crate) fn preserve(
        &self,
        session: &mut Session,
        task: &Task,
        path: &BString,
    ) -> Result<(), RemoteError> {
        let commands = session.preserving(task, path, self.ctx.options().preserve);
        self.set_attributes(session, task, &commands)
    }

    /// By these commands; a refusal is told, and the file is there all the same.
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

    /// Nothing is to be done for a file: the destination has the same bytes.
    pub(crate) fn have_already(&self, mut task: Task, proof: String) {
        let report = &self.ctx.report;
        if task.confirm {
            // They came from us.
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

/// The others do not wait for what a worker had in work when it panicked.
struct End<'c>(&'c Context);

impl Drop for End<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.queue.stop();
        }
    }
}

/// Tells that a job was never done, because the run ended first.
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
