//! Sessions that pass from the plan to workers, and from workers to what is left in the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::place::Endpoint;
use crate::ready::Taker;
use crate::session::Session;

/// Sessions that somebody has no more use for, for those whom the server gives none of their own: it takes but one from this
/// user, say. The plan's are for workers, theirs for what is left to do in the end.
#[derive(Default)]
pub(crate) struct Lent {
    sessions: Mutex<Vec<Spare>>,
    wanted: AtomicBool,
    over: AtomicBool,
    /// Something is left to do when the workers have ended.
    late: AtomicBool,
}

struct Spare {
    session: Session,
    /// The worker that has the other session of a pair: two workers with half a pair each could do nothing.
    kept_for: Option<Taker>,
}

/// A session that a worker wants.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'w> {
    pub endpoint: &'w Arc<Endpoint>,
    /// The other server of a third-party transfer, where it wants a session with that, too.
    pub with: Option<&'w Arc<Endpoint>>,
    /// Sessions with the server that it holds.
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

    /// Nobody has the other one of a pair any more.
    pub(crate) fn release(&self, taker: Taker) {
        for spare in self.sessions.lock().iter_mut().filter(|spare| spare.kept_for == Some(taker)) {
            spare.kept_for = None;
        }
    }

    /// Somebody waits for the plan's sessions.
    pub(crate) fn want(&self) {
        self.wanted.store(true, Ordering::SeqCst);
    }

    /// For who does what is left in the end.
    pub(crate) fn take_last(&self, endpoint: &Arc<Endpoint>) -> Option<Session> {
        let mut spares = self.sessions.lock();
        let at = spares.iter().position(|spare| spare.is_with(endpoint))?;
        Some(spares.swap_remove(at).session)
    }

    /// A worker has no more use for it. Gives it back where nobody else has, either.
    pub(crate) fn leave(&self, session: Session) -> Option<Session> {
        let wanted = self.wanted.load(Ordering::SeqCst);
        if !wanted && (!self.late.load(Ordering::SeqCst) || self.has(&session.endpoint)) {
            return Some(session);
        }
        self.sessions.lock().push(Spare::new(session));
        None
    }

    /// The plan has found everything, and has no more use for these. Gives those that nobody waits for. `late`: something is
    /// left to do in the end.
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

    /// Nothing is left to do.
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
