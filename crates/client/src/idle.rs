//! Idle sessions of a client, which its next jobs use instead of logging in again.
//!
//! The client owns them. A job returns sessions that it no longer needs, and takes those with the
//! same [`SessionKey`]. A session that is taken is first asked whether it still answers (NOOP), and
//! is replaced if it does not; this is not counted as a retry. A thread closes sessions that were
//! idle for too long, and ends with the last of them. An idle session refers to no job: neither to
//! its events nor to its cancellation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::control::LAST_WORDS;
use crate::model::event::no_events;
use crate::place::Endpoint;
use crate::session::{Session, SessionKey};
use crate::setup::{Setup, Shared};
use crate::{Cancel, Options, RemoteError};

/// The reply of a server that has too many sessions. Other servers may reply with 530, but a wrong
/// password must not be sent twice.
const FULL: u16 = 421;

/// Keeps idle sessions until it is dropped.
pub(crate) struct IdleSessions(Arc<Inner>);

struct Inner {
    /// The maximum number of idle sessions with one server.
    per_server: usize,
    /// The maximum idle time.
    limit: Duration,
    /// The setup of sessions that belong to no job.
    setup: Arc<Setup>,
    state: Mutex<State>,
    /// Notified when a session is added, and when the client is dropped.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// In the order of their last use, the oldest first.
    idle: Vec<Idle>,
    /// A thread closes sessions that were idle for long.
    is_watched: bool,
    over: bool,
}

struct Idle {
    session: Session,
    since: Instant,
}

impl IdleSessions {
    pub(crate) fn new(shared: &Arc<Shared>, per_server: usize, limit: Duration) -> Self {
        let setup = Setup::sharing(shared, &Options::default(), &no_events(), &Cancel::new());
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Inner { per_server, limit, setup, state, changed }))
    }

    /// Returns a session with a server: an idle one, or a new one.
    ///
    /// # Errors
    /// Those of [`Session::open`].
    pub(crate) fn open(&self, endpoint: &Arc<Endpoint>, setup: &Arc<Setup>) -> Result<Session, RemoteError> {
        if self.0.per_server == 0 {
            return Session::open(endpoint, setup);
        }
        let Some(key) = SessionKey::new(endpoint, setup) else { return Session::open(endpoint, setup) };
        while let Some(idle) = self.take(&key) {
            match idle.pass_to(endpoint, setup) {
                Ok(Some(session)) => return Ok(session),
                Err(RemoteError::Cancelled) => return Err(RemoteError::Cancelled),
                stale => {
                    tracing::debug!(peer = endpoint.name, error = ?stale.err(), "an idle session is stale");
                    // The cause affects all of them: the server has restarted, or the path to it
                    // was interrupted.
                    self.close(&key);
                }
            }
        }
        let mut session = match Session::open(endpoint, setup) {
            // The server may permit no more sessions.
            Err(error) if error.reply_code() == Some(FULL) && self.make_room(endpoint) => {
                Session::open(endpoint, setup)?
            }
            opened => opened?,
        };
        session.allow_reuse(key);
        Ok(session)
    }

    /// Keeps a session for a later job, or closes it.
    pub(crate) fn keep(&self, mut session: Session) {
        if self.0.per_server == 0 || session.reusable_as().is_none() {
            return session.quit();
        }
        session.set_aside(&self.0.setup);
        let mut state = self.0.state.lock();
        let has_room = session.reusable_as().is_some_and(|key| {
            let with_it =
                |idle: &&Idle| idle.session.reusable_as().is_some_and(|other| other.shares_server(key));
            state.idle.iter().filter(with_it).count() < self.0.per_server
        });
        if !has_room || state.over || !self.watch(&mut state) {
            drop(state);
            return session.quit();
        }
        state.idle.push(Idle { session, since: Instant::now() });
        drop(state);
        self.0.changed.notify_all();
    }

    /// Takes the most recently used session with this key.
    fn take(&self, key: &SessionKey) -> Option<Session> {
        let mut state = self.0.state.lock();
        let at = state.idle.iter().rposition(|idle| idle.session.reusable_as().is_some_and(|k| k == key))?;
        Some(state.idle.remove(at).session)
    }

    fn close(&self, key: &SessionKey) {
        let same = |idle: &mut Idle| idle.session.reusable_as().is_none_or(|k| k == key);
        let closed: Vec<Idle> = self.0.state.lock().idle.extract_if(.., same).collect();
        closed.into_iter().for_each(|idle| idle.session.quit());
    }

    /// Closes the idle sessions with a server, and waits until the server has closed them, too.
    /// Returns `false` if there were none.
    fn make_room(&self, endpoint: &Endpoint) -> bool {
        let with_it =
            |idle: &mut Idle| idle.session.reusable_as().is_none_or(|key| key.is_server(&endpoint.url));
        let closed: Vec<Idle> = self.0.state.lock().idle.extract_if(.., with_it).collect();
        let any = !closed.is_empty();
        for mut idle in closed {
            idle.session.leave(LAST_WORDS);
        }
        any
    }

    /// Starts the thread that closes sessions. Returns `false` if the system cannot start it.
    fn watch(&self, state: &mut State) -> bool {
        if !state.is_watched {
            let inner = self.0.clone();
            let close = move || inner.close_in_time();
            let started = std::thread::Builder::new().name("idle-sessions".to_owned()).spawn(close);
            state.is_watched = started.is_ok();
        }
        state.is_watched
    }
}

impl Inner {
    /// Closes sessions whose idle time is over, until none are left.
    fn close_in_time(&self) {
        let mut state = self.state.lock();
        loop {
            let (now, over) = (Instant::now(), state.over);
            let is_due = |idle: &mut Idle| over || now.saturating_duration_since(idle.since) >= self.limit;
            let due: Vec<Idle> = state.idle.extract_if(.., is_due).collect();
            if !due.is_empty() {
                MutexGuard::unlocked(&mut state, || due.into_iter().for_each(|idle| idle.session.quit()));
                continue;
            }
            let Some(first) = state.idle.first() else {
                state.is_watched = false;
                return;
            };
            // The limit may be longer than an `Instant` can express.
            match first.since.checked_add(self.limit) {
                Some(until) => drop(self.changed.wait_until(&mut state, until)),
                None => self.changed.wait(&mut state),
            }
        }
    }
}

impl Drop for IdleSessions {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.over = true;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        self.0.changed.notify_all();
        idle.into_iter().for_each(|idle| idle.session.quit());
    }
}
