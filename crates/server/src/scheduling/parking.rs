//! Parked sessions, and how long they may wait.
//!
//! The reactor takes sessions out when their clients act or their time is over; any thread may park
//! a session. One lock protects the table. A session that cannot be parked is closed.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use mio::{Registry, Token};
use parking_lot::Mutex;

use crate::host::{Host, Phase};
use crate::scheduling::connection::{Connection, Wait};
use crate::session::dialogue::ENDED;

pub(crate) struct Entry {
    pub(crate) connection: Box<Connection>,
    pub(crate) why: Wait,
    deadline: Instant,
}

pub(crate) struct Parking {
    registry: Registry,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<Token, Entry>,
    deadlines: BTreeSet<(Instant, Token)>,
    /// The reactor sleeps until then, or without limit; only valid while it is `asleep`.
    sleeps_until: Option<Instant>,
    asleep: bool,
}

impl Parking {
    pub(crate) fn new(registry: Registry) -> Self {
        Self { registry, state: Mutex::default() }
    }

    /// Parks the session until its client acts or its time is over.
    pub(crate) fn park(&self, host: &Host, connection: Box<Connection>, why: Wait) {
        match self.insert(host, connection, why) {
            Ok(true) => host.wake(),
            Ok(false) => {}
            Err(connection) => connection.close(),
        }
    }

    /// Returns true if the reactor has to be woken, since it would sleep longer than this session
    /// may wait. A connection that cannot be parked is returned.
    fn insert(
        &self,
        host: &Host,
        mut connection: Box<Connection>,
        why: Wait,
    ) -> Result<bool, Box<Connection>> {
        let token = Token(connection.id() as usize);
        let deadline = connection.deadline(why);
        let mut state = self.state.lock();
        // Under the lock, so that either `take_all` or this check sees the session.
        if host.phase() != Phase::Running && !connection.control.closing() {
            drop(state);
            connection.say(421, "Service not available, closing control connection.");
            return Err(connection);
        }
        // As above, with regard to `take_now`.
        if connection.presence.is_ended() && !connection.control.closing() {
            drop(state);
            connection.say(421, ENDED);
            return Err(connection);
        }
        if !matches!(why, Wait::Pause { .. })
            && let Err(error) = connection.register(&self.registry, token, why == Wait::Write)
        {
            tracing::error!(session = connection.id(), %error, "cannot wait for a client");
            return Err(connection);
        }
        state.deadlines.insert((deadline, token));
        state.entries.insert(token, Entry { connection, why, deadline });
        Ok(state.asleep && state.sleeps_until.is_none_or(|until| deadline < until))
    }

    /// Takes the session out, if it waits for its client.
    pub(crate) fn take(&self, token: Token) -> Option<Box<Connection>> {
        let mut state = self.state.lock();
        let entry = state.entries.get(&token)?;
        if matches!(entry.why, Wait::Pause { .. }) {
            return None;
        }
        state.remove(token).map(|entry| entry.connection)
    }

    /// Takes the session out, also if it pauses.
    pub(crate) fn take_now(&self, id: u64) -> Option<Box<Connection>> {
        self.state.lock().remove(Token(id as usize)).map(|entry| entry.connection)
    }

    /// The poller's registry, with which connections are registered.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    pub(crate) fn take_all(&self) -> Vec<Entry> {
        let mut state = self.state.lock();
        state.deadlines.clear();
        state.entries.drain().map(|(_, entry)| entry).collect()
    }

    pub(crate) fn expired(&self, now: Instant) -> Vec<Entry> {
        let mut state = self.state.lock();
        let mut expired = Vec::new();
        while let Some(&(deadline, token)) = state.deadlines.first()
            && deadline <= now
        {
            expired.extend(state.remove(token));
        }
        expired
    }

    /// The time at which the first session has waited long enough. The reactor sleeps until then.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let mut state = self.state.lock();
        state.asleep = true;
        state.sleeps_until = state.deadlines.first().map(|&(deadline, _)| deadline);
        state.sleeps_until
    }

    pub(crate) fn awake(&self) {
        self.state.lock().asleep = false;
    }
}

impl State {
    fn remove(&mut self, token: Token) -> Option<Entry> {
        let entry = self.entries.remove(&token)?;
        self.deadlines.remove(&(entry.deadline, token));
        Some(entry)
    }
}
