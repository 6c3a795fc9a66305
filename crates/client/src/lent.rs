//! Sessions that pass from the plan to workers, and from workers to the last steps of a run.
//!
//! The run owns one [`Lent`], which all of its threads use. A session is in it only while no worker
//! uses it; sessions that are left at the end of the run return to the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::place::Endpoint;
use crate::ready::Taker;
use crate::session::Session;

/// Sessions that their holder no longer needs, for workers that cannot open their own, for example
/// because the server permits only one session for this user. The plan's sessions go to workers,
/// and those of workers to the steps that follow the transfers.
#[derive(Default)]
pub(crate) struct Lent {
    sessions: Mutex<Vec<Spare>>,
    wanted: AtomicBool,
    over: AtomicBool,
    /// Steps are left to do when the workers have ended.
    late: AtomicBool,
}

struct Spare {
    session: Session,
    /// The worker that has the other session of a pair. Two workers with half a pair each could do
    /// nothing.
    kept_for: Option<Taker>,
}

/// A session that a worker wants.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'w> {
    pub endpoint: &'w Arc<Endpoint>,
    /// The other server of a third-party transfer, if the worker needs a session with it, too.
    pub with: Option<&'w Arc<Endpoint>>,
    /// The number of sessions with the server that the worker holds.
    pub own: u32,
    pub by: Taker,
}

impl Lent {
    /// The plan has found everything.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    pub(crate) fn has(&self, endpoint: &Arc<Endpoint>) -> bool {
        self.sessions.lock().iter().any(|spare| spare.is_with(endpoint))
    }

    pub(crate) fn take(&self, wanted: Wanted<'_>) -> Option<Session> {
        let mut spares = self.sessions.lock();
        let free = |spare: &Spare| spare.kept_for.is_none_or(|taker| taker == wanted.by);
        let at = spares.iter().position(|spare| spare.is_with(wanted.endpoint) && free(spare))?;
        let taken = spares.swap_remove(at);
        let other = wanted.with.and_then(|with| spares.iter_mut().find(|s| s.is_with(with) && free(s)));
        if let Some(other) = other {
            other.kept_for = Some(wanted.by);
        }
        Some(taken.session)
    }

    /// Releases the sessions that are kept for a worker with the other session of a pair.
    pub(crate) fn release(&self, taker: Taker) {
        for spare in self.sessions.lock().iter_mut().filter(|spare| spare.kept_for == Some(taker)) {
            spare.kept_for = None;
        }
    }

    /// Records that a worker waits for the plan's sessions.
    pub(crate) fn want(&self) {
        self.wanted.store(true, Ordering::SeqCst);
    }

    /// Takes a session for the last steps of the run.
    pub(crate) fn take_last(&self, endpoint: &Arc<Endpoint>) -> Option<Session> {
        let mut spares = self.sessions.lock();
        let at = spares.iter().position(|spare| spare.is_with(endpoint))?;
        Some(spares.swap_remove(at).session)
    }

    /// Leaves a session that a worker no longer needs. Returns it if no other part of the run needs
    /// it.
    pub(crate) fn leave(&self, session: Session) -> Option<Session> {
        let wanted = self.wanted.load(Ordering::SeqCst);
        if !wanted && (!self.late.load(Ordering::SeqCst) || self.has(&session.endpoint)) {
            return Some(session);
        }
        self.sessions.lock().push(Spare::new(session));
        None
    }

    /// Ends the plan, which no longer needs these sessions. Returns them if no worker waits for
    /// them. `late` means that steps are left to do after the transfers.
    pub(crate) fn give(&self, sessions: Vec<Session>, late: bool) -> Vec<Session> {
        self.late.store(late, Ordering::SeqCst);
        let wanted = self.wanted.load(Ordering::SeqCst);
        let mut given = self.sessions.lock();
        let rest = if wanted {
            given.extend(sessions.into_iter().map(Spare::new));
            Vec::new()
        } else {
            sessions
        };
        drop(given);
        self.over.store(true, Ordering::SeqCst);
        rest
    }

    /// Takes all sessions at the end of the run.
    pub(crate) fn take_all(&self) -> Vec<Session> {
        let left = std::mem::take(&mut *self.sessions.lock());
        left.into_iter().map(|spare| spare.session).collect()
    }
}

impl Spare {
    fn new(session: Session) -> Self {
        Self { session, kept_for: None }
    }

    fn is_with(&self, endpoint: &Arc<Endpoint>) -> bool {
        Arc::ptr_eq(&self.session.endpoint, endpoint)
    }
}
