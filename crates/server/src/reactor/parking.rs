//! Sessions that wait, and how long they may.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use mio::{Registry, Token};
use parking_lot::Mutex;

use crate::connection::Connection;
use crate::host::{Host, Phase};

/// What a session waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The client's next command.
    Idle,
    /// That the client takes its replies.
    Write,
    /// The end of a pause, whatever the client says: after a failed log-in, or before another try.
    Pause { until: Instant },
}

pub(super) struct Entry {
    pub(super) connection: Box<Connection>,
    pub(super) why: Why,
    deadline: Instant,
}

pub(super) struct Parking {
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
    pub(super) fn new(registry: Registry) -> Self {
        Self { registry, state: Mutex::default() }
    }

    /// True where the reactor has to be woken, since it would sleep longer than this session may wait. The
    /// connection comes back where it cannot be parked.
    pub(super) fn park(
        &self,
        host: &Host,
        mut connection: Box<Connection>,
        why: Why,
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
        if !matches!(why, Why::Pause { .. })
            && let Err(error) = connection.register(&self.registry, token, why == Why::Write)
        {
            tracing::error!(session = connection.id(), %error, "cannot wait for a client");
            return Err(connection);
        }
        state.deadlines.insert((deadline, token));
        state.entries.insert(token, Entry { connection, why, deadline });
        Ok(state.asleep && state.sleeps_until.is_none_or(|until| deadline < until))
    }

    /// The session, where it waits for something of its client's.
    pub(super) fn take(&self, token: Token) -> Option<Box<Connection>> {
        let mut state = self.state.lock();
        let entry = state.entries.get(&token)?;
        if matches!(entry.why, Why::Pause { .. }) {
            return None;
        }
        state.remove(token).map(|entry| entry.connection)
    }

    pub(super) fn take_all(&self) -> Vec<Entry> {
        let mut state = self.state.lock();
        state.deadlines.clear();
        state.entries.drain().map(|(_, entry)| entry).collect()
    }

    pub(super) fn expired(&self, now: Instant) -> Vec<Entry> {
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
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let mut state = self.state.lock();
        state.asleep = true;
        state.sleeps_until = state.deadlines.first().map(|&(deadline, _)| deadline);
        state.sleeps_until
    }

    pub(super) fn awake(&self) {
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
