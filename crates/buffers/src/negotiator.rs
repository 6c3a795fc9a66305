//! The negotiator: computes the share of each connection, and sets the buffers.
//!
//! A [`Negotiator`] alternates between looks and negotiations. It records each buffer in the
//! [`Ledger`] before it sets it, so that a killed process leaves a record. A buffer that cannot be
//! set is reported in its decision; the negotiation fails as a whole only if the connections cannot
//! be listed or the ledger cannot be written.

use ropewalk_tuning::buffers::{CurrentShare, negotiate};
use serde::Serialize;
use thiserror::Error;

use crate::analyzer::{AnalyzeError, Analyzer};
use crate::demand::Measure;
use crate::flow::{Direction, Filter, Flow, Owner, Snapshot};
use crate::ledger::{Entry, Ledger, LedgerError};
use crate::rule::Rule;
use crate::socket::{Applied, Before, GiveBack, SocketError, Taken};

/// A new negotiation is due if a demand changed by more than this fraction.
const MOVED: f64 = 0.25;

/// Number of consecutive negotiations in which a failed action is tried again.
const TRIES: u32 = 3;

/// Number of buffers that are recorded together before they are set. Their sockets are held open
/// until then.
const TOGETHER: usize = 64;

/// The connections whose buffers are set. Shares are computed for all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// None: only report what would be done.
    Nobody,
    /// Connections of ropewalk programs.
    Own,
    /// All connections.
    All,
}

/// The reason for which a buffer was not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Left {
    /// The connection moves no data.
    Idle,
    /// The connection is granted its demand, and autotuning reaches it.
    Autotuning,
    /// The buffer already has this size.
    AsBefore,
    /// No process has the socket open any more, or the owner may not be looked up.
    NoOwner,
}

/// The action that was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Left(Left),
    /// The buffer would be set to the share, but the connection is not within reach.
    WouldSet,
    /// The buffer would be restored, but the connection is not within reach.
    WouldGiveBack,
    Set(Applied),
    /// The limit is no longer needed, so the buffer was restored to its state before the first
    /// negotiation.
    GivenBack,
    /// The buffer was restored, but the kernel is too old to resume autotuning.
    GivenBackWithoutAutotuning,
    Failed(String),
}

/// The decision about a connection.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    #[serde(flatten)]
    pub flow: Flow,
    /// The share in bytes of payload.
    pub granted_bytes: u64,
    pub action: Action,
}

/// A connection whose buffer was set while its data flowed in the other direction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Turned {
    /// The current state.
    #[serde(flatten)]
    pub flow: Flow,
    /// The action for the buffer of the other direction.
    pub action: Action,
}

/// The result of a negotiation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Round {
    pub time_seconds: f64,
    pub policy: &'static str,
    pub measure: Measure,
    pub budget_bytes: u64,
    pub demand_bytes: u64,
    pub granted_bytes: u64,
    pub connections: Vec<Decision>,
    /// Connections that changed their direction, including those that the filter no longer accepts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub turned: Vec<Turned>,
    /// The snapshot on which the decisions are based.
    #[serde(skip)]
    pub snapshot: Snapshot,
}

/// A negotiation failed as a whole.
#[derive(Debug, Error)]
pub enum RoundError {
    #[error(transparent)]
    Analyze(#[from] AnalyzeError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(
        "connections came and went while the kernel listed them, and {0} whose buffers were set are not in the list: they stay noted"
    )]
    Interrupted(usize),
}

/// Divides a budget among the connections of a host, repeatedly.
pub struct Negotiator {
    analyzer: Analyzer,
    filter: Filter,
    measure: Measure,
    rule: Rule,
    budget: u64,
    reach: Reach,
    set_all: bool,
    share: CurrentShare,
    ledger: Ledger,
    /// Connections that had changed their direction at the last look.
    turned: Vec<Flow>,
    /// Demands at the last negotiation.
    last: Option<Vec<Demand>>,
    /// Whether an action failed in this negotiation that may succeed the next time.
    failed: bool,
    /// Number of consecutive negotiations with such a failure.
    failures: u32,
}

impl Negotiator {
    /// `budget` is in bytes, checked. `ledger` contains the changes of earlier runs; sockets are
    /// set only within `reach`. A buffer that is granted its demand is left to the kernel if
    /// autotuning reaches that size, unless `set_all` is true.
    ///
    /// # Errors
    /// The connections cannot be listed.
    pub fn new(
        rule: Rule,
        budget: u64,
        (measure, filter): (Measure, Filter),
        (reach, set_all): (Reach, bool),
        ledger: Ledger,
    ) -> Result<Self, AnalyzeError> {
        Ok(Self::with(Analyzer::new()?, rule, budget, (measure, filter), (reach, set_all), ledger))
    }

    /// Like [`new`](Self::new), with an existing analyzer.
    pub(crate) fn with(
        analyzer: Analyzer,
        rule: Rule,
        budget: u64,
        (measure, filter): (Measure, Filter),
        (reach, set_all): (Reach, bool),
        ledger: Ledger,
    ) -> Self {
        Self {
            analyzer,
            filter,
            measure,
            rule,
            budget,
            reach,
            set_all,
            share: CurrentShare::new(budget),
            ledger,
            turned: Vec::new(),
            last: None,
            failed: false,
            failures: 0,
        }
    }

    /// Takes a look without a negotiation. Rates are measured between looks.
    ///
    /// # Errors
    /// The connections cannot be listed.
    pub fn look(&mut self) -> Result<Snapshot, AnalyzeError> {
        let mut snapshot = self.everyone()?;
        self.ledger.forget_gone(&snapshot);
        for flow in &snapshot.connections {
            if let Some(bytes) = flow.past_demand_bytes {
                self.ledger.fade(flow.cookie, flow.direction, bytes);
            }
        }
        // A limit is restored even if the filter excludes its direction.
        let any_way = Filter { least_rate: 0.0, direction: None, ..self.filter.clone() };
        let turned = |flow: &&Flow| {
            let set = self.ledger.get(flow.cookie, flow.direction.opposite()).is_some();
            set && flow.demand_bytes > 0 && any_way.admits(flow) && self.is_within_reach(flow)
        };
        self.turned = snapshot.connections.iter().filter(turned).cloned().collect();
        // A connection that has become slow still has the buffer that was set, which may be full,
        // so it stays part of the sum.
        let any_rate = Filter { least_rate: 0.0, ..self.filter.clone() };
        snapshot.connections.retain(|flow| {
            let is_set = self.ledger.get(flow.cookie, flow.direction).is_some();
            if is_set { any_rate.admits(flow) } else { self.filter.admits(flow) }
        });
        Ok(snapshot)
    }

    fn everyone(&mut self) -> Result<Snapshot, AnalyzeError> {
        self.analyzer.look(self.measure, |cookie, direction| self.ledger.past(cookie, direction))
    }

    /// Whether a new negotiation is due: an action failed that is worth another try; or since the
    /// last negotiation connections were opened or closed or changed their direction, demands
    /// changed by a quarter, or programs set buffers themselves.
    pub fn is_due(&self, snapshot: &Snapshot) -> bool {
        let Some(last) = &self.last else { return true };
        let tries = 1..=TRIES;
        if tries.contains(&self.failures) || snapshot.connections.iter().any(|flow| self.is_overruled(flow)) {
            return true;
        }
        let now = demands(snapshot);
        let moved = |before: &Demand, now: &Demand| {
            (before.cookie, before.direction) != (now.cookie, now.direction)
                || now.owned && !before.owned
                || now.bytes.abs_diff(before.bytes) as f64 > MOVED * before.bytes as f64
        };
        last.len() != now.len() || last.iter().zip(&now).any(|(before, now)| moved(before, now))
    }

    /// Whether the program has set the buffer after the negotiator did, as far as this can be
    /// determined.
    fn is_overruled(&self, flow: &Flow) -> bool {
        let overruled = |entry: &Entry| entry.set && !entry.stands(flow.kernel_buffer_bytes);
        flow.demand_bytes > 0
            && flow.owner.is_some()
            && self.is_within_reach(flow)
            && self.ledger.get(flow.cookie, flow.direction).is_some_and(overruled)
    }

    fn is_within_reach(&self, flow: &Flow) -> bool {
        match self.reach {
            Reach::Nobody => false,
            Reach::Own => flow.own,
            Reach::All => true,
        }
    }

    /// Divides the budget and sets the buffers. A buffer that cannot be set is reported in its
    /// decision.
    ///
    /// # Errors
    /// The ledger cannot be written. In this case no further buffer is set.
    pub fn negotiate(&mut self, snapshot: Snapshot) -> Result<Round, RoundError> {
        self.failed = false;
        let turned = std::mem::take(&mut self.turned);
        let turned: Vec<Turned> = turned.into_iter().filter_map(|flow| self.turn(flow)).collect();
        let wants: Vec<u64> = snapshot.connections.iter().map(|flow| flow.demand_bytes).collect();
        let grants = match self.rule {
            Rule::Policy(policy) => negotiate(policy, self.budget, &wants),
            // Without settling, a rest of the budget would stay unused until the demands change.
            Rule::CurrentShare => self.share.settle(&wants),
        };
        let mut connections = Vec::with_capacity(grants.len());
        let granted: Vec<(&Flow, u64)> = snapshot.connections.iter().zip(grants.iter().copied()).collect();
        for some in granted.chunks(TOGETHER) {
            let steps: Vec<Step> =
                some.iter().map(|(flow, granted)| self.decide(flow, *granted, &snapshot)).collect();
            // The ledger is saved first, so that a process that is killed while it sets buffers
            // leaves a record of them.
            if steps.iter().any(|step| matches!(step, Step::Set(_))) {
                self.ledger.save()?;
            }
            for (&(flow, granted_bytes), step) in some.iter().zip(steps) {
                let action = match step {
                    Step::Done(action) => action,
                    Step::Set(taken) => self.set(&taken, flow, granted_bytes),
                };
                connections.push(Decision { flow: flow.clone(), granted_bytes, action });
            }
        }
        self.ledger.save()?;
        self.last = Some(demands(&snapshot));
        self.failures = if self.failed { self.failures.saturating_add(1) } else { 0 };
        Ok(Round {
            time_seconds: snapshot.time_seconds,
            policy: self.rule.name(),
            measure: self.measure,
            budget_bytes: self.budget,
            demand_bytes: wants.iter().fold(0, |sum, &want| sum.saturating_add(want)),
            granted_bytes: grants.iter().fold(0, |sum, &grant| sum.saturating_add(grant)),
            connections,
            turned,
            snapshot,
        })
    }

    /// Decides what to do with a buffer. A buffer that is to be set is recorded.
    fn decide(&mut self, flow: &Flow, granted: u64, snapshot: &Snapshot) -> Step {
        let noted = self.ledger.get(flow.cookie, flow.direction).cloned();
        if flow.demand_bytes == 0 || granted == 0 {
            return Step::Done(Action::Left(Left::Idle));
        }
        let limits = match flow.direction {
            Direction::Out => snapshot.ceilings.send,
            Direction::In => snapshot.ceilings.receive,
        };
        // The kernel uses half of the size for its bookkeeping.
        let reached = granted >= flow.demand_bytes && granted <= limits.autotune / 2 && !self.set_all;
        let unlimited = reached
            && match &noted {
                None => !self.is_fixed_below(flow, granted),
                Some(entry) => !is_below(&entry.before, granted),
            };
        match &noted {
            None if unlimited => return Step::Done(Action::Left(Left::Autotuning)),
            Some(entry)
                if !unlimited && entry.granted == granted && entry.stands(flow.kernel_buffer_bytes) =>
            {
                return Step::Done(Action::Left(Left::AsBefore));
            }
            _ => {}
        }
        let Some(owner) = &flow.owner else { return Step::Done(Action::Left(Left::NoOwner)) };
        if !self.is_within_reach(flow) {
            return Step::Done(if unlimited { Action::WouldGiveBack } else { Action::WouldSet });
        }
        let taken = match self.take(flow, owner) {
            Ok(taken) => taken,
            Err(failed) => {
                // Otherwise each later look would report that the program has set the buffer.
                self.ledger.doubt(flow.cookie, flow.direction);
                return Step::Done(failed);
            }
        };
        if let (true, Some(entry)) = (unlimited, noted) {
            return Step::Done(self.give_back(&taken, &entry));
        }
        let before = match taken.look(flow.direction) {
            Ok(before) => before,
            Err(error) => return Step::Done(self.fail(&error)),
        };
        let (cookie, direction, demand) = (flow.cookie, flow.direction, flow.demand_bytes);
        self.ledger.note(Entry {
            cookie,
            direction,
            before,
            demand,
            granted,
            set: false,
            kernel_bytes: None,
        });
        Step::Set(taken)
    }

    /// Sets a buffer that was recorded.
    fn set(&mut self, taken: &Taken, flow: &Flow, granted: u64) -> Action {
        match taken.set(flow.direction, granted) {
            Ok(applied) => {
                self.ledger.confirm(flow.cookie, flow.direction, applied.kernel_bytes);
                Action::Set(applied)
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Whether the program has fixed the buffer to a size below `bytes`, which turned autotuning
    /// off.
    fn is_fixed_below(&self, flow: &Flow, bytes: u64) -> bool {
        // In most cases the size shows that the buffer is large enough, without duplicating the
        // socket.
        flow.kernel_buffer_bytes < kernel_size(bytes)
            && flow.owner.as_ref().is_some_and(|owner| {
                let now = Taken::new(owner, flow.cookie).and_then(|taken| taken.look(flow.direction));
                now.is_ok_and(|now| is_below(&now, bytes))
            })
    }

    /// Restores the buffer of the direction that carries hardly any data now: only the other
    /// direction counts.
    fn turn(&mut self, flow: Flow) -> Option<Turned> {
        let entry = self.ledger.get(flow.cookie, flow.direction.opposite())?.clone();
        let action = match &flow.owner {
            None => Action::Left(Left::NoOwner),
            Some(owner) => match self.take(&flow, owner) {
                Ok(taken) => self.give_back(&taken, &entry),
                Err(failed) => failed,
            },
        };
        Some(Turned { flow, action })
    }

    fn take(&mut self, flow: &Flow, owner: &Owner) -> Result<Taken, Action> {
        Taken::new(owner, flow.cookie).map_err(|error| {
            if matches!(error, SocketError::Gone { .. }) {
                self.analyzer.forget_owner(flow.inode);
            }
            self.fail(&error)
        })
    }

    fn fail(&mut self, error: &SocketError) -> Action {
        // Another try would be forbidden, too.
        self.failed |= !matches!(error, SocketError::Forbidden { .. } | SocketError::Unsupported);
        Action::Failed(error.to_string())
    }

    fn give_back(&mut self, taken: &Taken, entry: &Entry) -> Action {
        match taken.give_back(entry.direction, entry.before) {
            Ok(how) => {
                self.ledger.remove(entry.cookie, entry.direction);
                match how {
                    GiveBack::Whole => Action::GivenBack,
                    GiveBack::WithoutAutotuning => Action::GivenBackWithoutAutotuning,
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Restores all buffers to their state before the first negotiation, of this run and of earlier
    /// runs, regardless of the filter.
    ///
    /// # Errors
    /// Not all connections can be listed, the ledger cannot be written, or it was opened for
    /// observation only, because another process may be using it.
    pub fn release(&mut self) -> Result<Vec<(Flow, Action)>, RoundError> {
        self.ledger.ours()?;
        let snapshot = self.everyone()?;
        // Closed sockets need not be restored.
        self.ledger.forget_gone(&snapshot);
        let (mut done, mut missed) = (Vec::new(), 0);
        for entry in self.ledger.entries() {
            let Some(flow) = snapshot.connections.iter().find(|flow| flow.cookie == entry.cookie) else {
                missed += 1;
                continue;
            };
            let action = match &flow.owner {
                None => Action::Left(Left::NoOwner),
                Some(owner) => match Taken::new(owner, entry.cookie) {
                    Ok(taken) => self.give_back(&taken, &entry),
                    Err(error) => Action::Failed(error.to_string()),
                },
            };
            done.push((Flow { direction: entry.direction, ..flow.clone() }, action));
        }
        self.ledger.save()?;
        self.last = None;
        if missed > 0 { Err(RoundError::Interrupted(missed)) } else { Ok(done) }
    }
}

/// Whether a program has fixed its buffer to less than `bytes` of payload.
fn is_below(before: &Before, bytes: u64) -> bool {
    before.locked == Some(true) && before.kernel_bytes < kernel_size(bytes)
}

/// The kernel doubles the size that a program sets.
fn kernel_size(payload: u64) -> u64 {
    payload.saturating_mul(2)
}

/// The step that follows from a decision.
enum Step {
    Done(Action),
    /// Set the buffer of this socket, as recorded.
    Set(Taken),
}

/// The demand of a connection.
struct Demand {
    cookie: u64,
    direction: Direction,
    bytes: u64,
    /// Whether the owner is known.
    owned: bool,
}

/// The demands of the connections that move data, ordered by cookie like in the snapshot.
fn demands(snapshot: &Snapshot) -> Vec<Demand> {
    let wanting = snapshot.connections.iter().filter(|flow| flow.demand_bytes > 0);
    let demand = |flow: &Flow| Demand {
        cookie: flow.cookie,
        direction: flow.direction,
        bytes: flow.demand_bytes,
        owned: flow.owner.is_some(),
    };
    wanting.map(demand).collect()
}
