//! Sessions: new ones, and those that the plan has no more use for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ropewalk_transport::timespec;
use rustix::event::{PollFd, PollFlags, poll};

use crate::RemoteError;
use crate::context::Context;
use crate::place::Endpoint;
use crate::session::Session;

/// How often a worker that waits for the plan's session looks whether it has come.
const LOOK: Duration = Duration::from_millis(50);
/// And how often it asks the server.
const AGAIN: Duration = Duration::from_secs(5);

/// The plan's sessions, for workers that the server gives none of their own: it takes but one from this user, say.
#[derive(Default)]
pub(crate) struct Lent<'e> {
    sessions: Mutex<Vec<Session<'e>>>,
    wanted: AtomicBool,
    over: AtomicBool,
}

impl<'e> Lent<'e> {
    /// The plan has found everything.
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn take(&self, endpoint: &Arc<Endpoint>) -> Option<Session<'e>> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let at = sessions.iter().position(|session| Arc::ptr_eq(&session.endpoint, endpoint))?;
        Some(sessions.swap_remove(at))
    }

    /// Until the plan has found everything, so that its jobs must not wait for room; or until it is time to ask the server again.
    fn wait(&self, ctx: &Context<'_>) -> Result<(), RemoteError> {
        self.wanted.store(true, Ordering::SeqCst);
        ctx.queue.lift_limit();
        let until = Instant::now() + AGAIN;
        while !self.is_over() && Instant::now() < until {
            if ctx.queue.is_stopped() {
                return Err(RemoteError::Cancelled);
            }
            sleep(ctx, LOOK)?;
        }
        Ok(())
    }

    /// The plan has found everything, and has no more use for these. Gives those that nobody waits for.
    pub(crate) fn give(&self, sessions: Vec<Session<'e>>) -> Vec<Session<'e>> {
        let wanted = self.wanted.load(Ordering::SeqCst);
        let mut given = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = if wanted {
            given.extend(sessions);
            Vec::new()
        } else {
            sessions
        };
        drop(given);
        self.over.store(true, Ordering::SeqCst);
        rest
    }

    /// Nobody works any more.
    pub(crate) fn quit(&self) {
        let left = std::mem::take(&mut *self.sessions.lock().unwrap_or_else(PoisonError::into_inner));
        left.into_iter().for_each(Session::quit);
    }
}

/// A session that moves data from now on.
pub(crate) fn at_work(mut session: Session<'_>) -> Session<'_> {
    session.serving.get_or_insert_with(|| session.endpoint.serve());
    session
}

/// As [`open`], for a session that moves data. Where the server takes no more beside those that do already, their workers do
/// the work: [`RemoteError::Crowded`]. Where there are none, the plan's session is, once it has found everything. `own`: sessions
/// with it that the worker holds.
pub(crate) fn open_another<'e>(
    ctx: &Context<'e>,
    endpoint: &Arc<Endpoint>,
    own: u32,
) -> Result<Session<'e>, RemoteError> {
    endpoint.opening(|others| {
        let crowded = |error: &RemoteError, last: bool| {
            let others_do = endpoint.serves_besides(own) || !ctx.lent.is_over();
            others_do && (last || error.is_refused_log_in()) || last && others()
        };
        loop {
            if let Some(session) = ctx.lent.take(endpoint) {
                return Ok(at_work(session));
            }
            let planning = !ctx.lent.is_over();
            match open_unless(ctx, endpoint, &crowded) {
                Err(RemoteError::Crowded { .. }) if planning && !endpoint.serves_besides(own) => {
                    ctx.lent.wait(ctx)?;
                }
                opened => return opened.map(at_work),
            }
        }
    })
}

/// A new session with a server. Connecting is tried as often as a file would be.
pub(crate) fn open<'e>(ctx: &Context<'e>, endpoint: &Arc<Endpoint>) -> Result<Session<'e>, RemoteError> {
    open_unless(ctx, endpoint, &|_, _| false)
}

/// `crowded`: whether there is no need for another session after this error, `true` for the last try's.
fn open_unless<'e>(
    ctx: &Context<'e>,
    endpoint: &Arc<Endpoint>,
    crowded: &dyn Fn(&RemoteError, bool) -> bool,
) -> Result<Session<'e>, RemoteError> {
    let mut tries = 0;
    let mut first = None;
    loop {
        if let Some(reason) = endpoint.lost() {
            return Err(reason);
        }
        let error = match Session::open(endpoint, &ctx.setup) {
            Ok(session) => return Ok(session),
            Err(e) => e,
        };
        tries += 1;
        let pause = ctx.retry(&error, tries, *first.get_or_insert_with(Instant::now));
        if !matches!(error, RemoteError::Cancelled) && crowded(&error, pause.is_none()) {
            return Err(RemoteError::Crowded { peer: endpoint.name.clone(), source: Box::new(error) });
        }
        let Some(pause) = pause else {
            endpoint.lose(&error);
            return Err(error);
        };
        ctx.report.warn_once(format!("{error}; trying again"));
        sleep(ctx, pause)?;
    }
}

/// Waits, unless the run is cancelled.
pub(crate) fn sleep(ctx: &Context<'_>, time: Duration) -> Result<(), RemoteError> {
    let deadline = Instant::now() + time;
    loop {
        let rest = deadline.saturating_duration_since(Instant::now());
        if ctx.cancel.is_cancelled() {
            return Err(RemoteError::Cancelled);
        }
        if rest.is_zero() {
            return Ok(());
        }
        let mut fds: Vec<PollFd<'_>> = ctx
            .cancel
            .descriptor()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .into_iter()
            .collect();
        // An interrupted wait goes round again.
        let _ = poll(&mut fds, Some(&timespec(rest)));
    }
}
