//! Sessions that wait, and how long they may.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use mio::{Registry, Token};
use parking_lot::Mutex;

use crate::host::{Host, Phase};
use crate::scheduling::connection::{Connection, Wait};

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
    /// The reactor sleeps until then or for ever; `awake` where it does not sleep.
    sleeps_until: Option<Instant>,
    asleep: bool,
}

impl Parking {
    pub(crate) fn new(registry: Registry) -> Self {
        Self { registry, state: Mutex::default() }
    }

    /// From now on the session waits for its client, or for time to pass.
    pub(crate) fn park(&self, host: &Host, connection: Box<Connection>, why: Wait) {
        match self.insert(host, connection, why) {
            Ok(true) => host.wake(),
            Ok(false) => {}
            Err(connection) => connection.close(),
        }
    }

    /// True if the reactor has to be woken, since it would sleep longer than this session may wait.
    /// The connection is returned if it cannot be parked.
    fn insert(
        &self,
        host: &Host,
        mut connection: Box<Connection>,
        why: Wait,
    ) -> Result<bool, Box<Connection>> {
        let token = Token(connection.id() as usize);
        let deadline = connection.deadline(why);
        let mut state = self.state.lock();
        // Under the lock, so that a session is either seen by `take_all` or by this.
        if host.phase() != Phase::Running && !connection.control.closing() {
            drop(state);
            connection.say(421, "Service not available, closing control connection.");
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

    /// The session, where it waits for something of its client's.
    pub(crate) fn take(&self, token: Token) -> Option<Box<Connection>> {
        let mut state = self.state.lock();
        let entry = state.entries.get(&token)?;
        if matches!(entry.why, Wait::Pause { .. }) {
            return None;
        }
        state.remove(token).map(|entry| entry.connection)
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

    /// When the first session has waited long enough; the reactor sleeps until then.
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
