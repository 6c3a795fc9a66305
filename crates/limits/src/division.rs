//! Divides limits among flows in virtual time.
//!
//! A flow moves bytes and then owes them; debts are paid at the rates of [`crate::shares`], and a
//! flow continues when the bytes that it moved are paid. Only flows with debts take part, so that
//! the share of an idle one is lent without any message. A limit saves unused bytes for a moment: a
//! thread that wakes late catches up. The caller passes the time in, which must not go
//! back; if it does, nothing happens.
//!
//! A flow with a guarantee loses time while it has no debt, because a stream needs a moment to move
//! its next bytes. The guarantee counts what its flows are behind by, and then has a higher rate
//! until they have caught up.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::shares::{Sharer, rates};

/// Unused time of a limit that may be caught up with.
const SAVED: f64 = 0.1;
/// A guarantee whose flows are behind has so many times its rate.
const CATCHING_UP: f64 = 2.0;
/// Less than this many bytes are no debt: sums of fractions are not exact.
const NOTHING: f64 = 0.01;

/// A limit that a flow has to keep.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitSpec {
    /// Flows with limits of the same name share them.
    pub name: String,
    /// Bytes per second; `None`: no limit at present.
    pub rate: Option<u64>,
}

/// The weights and limits of a flow. Flows that are equal are one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowSpec {
    /// Users of one group share its weight.
    pub group: String,
    pub group_weight: u32,
    pub user: String,
    /// The user's weight within the group.
    pub user_weight: u32,
    pub limits: Vec<LimitSpec>,
    /// The guarantee of a rate that it has ([`Division::set_guarantees`]).
    pub guarantee: Option<String>,
}

/// A flow of a [`Division`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowId(u64);

/// The bytes that a flow has to have paid before it may continue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mark {
    flow: FlowId,
    paid: f64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Division {
    now: Duration,
    next: u64,
    limits: Vec<Limit>,
    flows: BTreeMap<FlowId, Flow>,
    guarantees: BTreeMap<String, Guarantee>,
    /// The rates of the flows with debts, in their order; `None` if they have to be computed.
    rates: Option<Vec<(FlowId, f64)>>,
}

#[derive(Debug)]
struct Limit {
    name: String,
    /// Bytes per second.
    rate: Option<f64>,
    /// Saved bytes.
    saved: f64,
    flows: u32,
}

/// A rate that flows have together.
#[derive(Debug)]
struct Guarantee {
    /// Bytes per second.
    rate: f64,
    /// Bytes by which its flows are behind, at most those of [`SAVED`].
    behind: f64,
}

impl Guarantee {
    /// The least rate of its flows at present.
    fn floor(&self) -> f64 {
        if self.behind > NOTHING { self.rate * CATCHING_UP } else { self.rate }
    }
}

#[derive(Debug)]
struct Flow {
    spec: FlowSpec,
    members: u32,
    /// Indexes into the limits.
    limits: Vec<usize>,
    /// Bytes that are still to be paid, and those that were.
    debt: f64,
    paid: f64,
}

impl Flow {
    /// Pays so many bytes of the debt. Returns whether none is left.
    fn pay(&mut self, bytes: f64) -> bool {
        self.paid += bytes;
        self.debt -= bytes;
        let is_free = self.debt <= NOTHING;
        if is_free {
            self.paid += self.debt;
            self.debt = 0.0;
        }
        is_free
    }
}

impl Division {
    /// Adds a member to the flow with these properties.
    pub fn join(&mut self, spec: &FlowSpec, now: Duration) -> FlowId {
        self.advance(now);
        if let Some((id, flow)) = self.flows.iter_mut().find(|(_, flow)| flow.spec == *spec) {
            flow.members += 1;
            return *id;
        }
        let limits = spec.limits.iter().map(|limit| self.enter(limit)).collect();
        self.next += 1;
        let id = FlowId(self.next);
        let flow = Flow { spec: spec.clone(), members: 1, limits, debt: 0.0, paid: 0.0 };
        self.flows.insert(id, flow);
        id
    }

    /// Removes a member that has joined.
    pub fn leave(&mut self, id: FlowId, now: Duration) {
        self.advance(now);
        let Some(flow) = self.flows.get_mut(&id) else { return };
        flow.members -= 1;
        if flow.members > 0 {
            return;
        }
        self.rates = None;
        if let Some(flow) = self.flows.remove(&id) {
            flow.limits.iter().for_each(|&at| self.limits[at].flows -= 1);
        }
        // Indexes stay valid: only limits at the end are removed.
        while self.limits.last().is_some_and(|limit| limit.flows == 0) {
            self.limits.pop();
        }
    }

    /// Changes a limit, if any flow has it. `rate`: bytes per second; `None`: no limit.
    pub fn set_rate(&mut self, name: &str, rate: Option<u64>, now: Duration) {
        self.advance(now);
        let Some(at) = self.limits.iter().position(|limit| limit.flows > 0 && limit.name == name) else {
            return;
        };
        let rate = rate.map(|rate| rate.max(1) as f64);
        if self.limits[at].rate != rate {
            self.change_rate(at, rate);
        }
    }

    /// Sets the guarantees that hold now, by name, in bytes per second. The flows of one together
    /// have at least its rate, as far as their limits let them; what they do not use is lent to
    /// others.
    pub fn set_guarantees(&mut self, guarantees: BTreeMap<String, u64>, now: Duration) {
        let is_same = guarantees.len() == self.guarantees.len()
            && guarantees
                .iter()
                .zip(&self.guarantees)
                .all(|((name, rate), (own, guarantee))| name == own && *rate as f64 == guarantee.rate);
        if is_same {
            return;
        }
        self.advance(now);
        let of = |(name, rate): (String, u64)| {
            let behind = self.guarantees.get(&name).map_or(0.0, |guarantee| guarantee.behind);
            let rate = rate as f64;
            (name, Guarantee { rate, behind: behind.min(rate * SAVED) })
        };
        self.guarantees = guarantees.into_iter().map(of).collect();
        self.rates = None;
    }

    /// The flow has moved `bytes`. Returns the mark for [`Self::due`].
    pub fn charge(&mut self, id: FlowId, bytes: u64, now: Duration) -> Option<Mark> {
        self.advance(now);
        let flow = self.flows.get_mut(&id)?;
        let limited = |limits: &[Limit], at: &usize| limits[*at].rate.is_some();
        if !flow.limits.iter().any(|at| limited(&self.limits, at)) {
            return None;
        }
        let limits = flow.limits.iter().filter(|at| limited(&self.limits, at));
        let saved = limits.map(|&at| self.limits[at].saved).fold(bytes as f64, f64::min);
        for &at in &flow.limits {
            self.limits[at].saved -= saved.min(self.limits[at].saved);
        }
        let before = flow.debt;
        flow.paid += saved;
        flow.debt += bytes as f64 - saved;
        if before <= 0.0 && flow.debt > 0.0 {
            self.rates = None;
        }
        (flow.debt > NOTHING).then_some(Mark { flow: id, paid: flow.paid + flow.debt })
    }

    /// When a flow reaches a mark, if nothing changes until then; `None` if it has.
    pub fn due(&mut self, mark: Mark, now: Duration) -> Option<Duration> {
        self.advance(now);
        let flow = self.flows.get(&mark.flow)?;
        let left = mark.paid - flow.paid;
        if left <= NOTHING || flow.debt <= 0.0 {
            return None;
        }
        let rate =
            self.rates().iter().find(|(id, _)| *id == mark.flow).map_or(f64::INFINITY, |(_, rate)| *rate);
        let time = Duration::try_from_secs_f64(left / rate).unwrap_or(Duration::MAX);
        Some(self.now.saturating_add(time))
    }

    /// Bytes that the flow was charged for will not be moved: what was paid for them pays other
    /// debts of the flow, or is saved.
    pub fn refund(&mut self, id: FlowId, bytes: u64, now: Duration) {
        self.advance(now);
        let Some(flow) = self.flows.get_mut(&id) else { return };
        let pays = (bytes as f64).min(flow.debt);
        if flow.pay(pays) {
            self.rates = None;
        }
        for &at in &flow.limits {
            let limit = &mut self.limits[at];
            if let Some(rate) = limit.rate {
                limit.saved = (limit.saved + bytes as f64 - pays).min(rate * SAVED);
            }
        }
    }

    /// The rate at which a member of the flow can have its bytes paid while others have the debts
    /// that they have now, in bytes per second. `None`: no limit holds at present.
    pub fn share(&mut self, id: FlowId, now: Duration) -> Option<u64> {
        self.advance(now);
        self.lowest_limit(id)?;
        let members = self.flows.get(&id)?.members.max(1);
        let rates = self.rates_of(Some(id));
        let (_, rate) = rates.into_iter().find(|(other, _)| *other == id)?;
        Some((rate / f64::from(members)) as u64)
    }

    /// The lowest limit of a flow, in bytes per second; `None` if it has none at present.
    pub fn lowest_limit(&self, id: FlowId) -> Option<u64> {
        let flow = self.flows.get(&id)?;
        let rates = flow.limits.iter().filter_map(|&at| self.limits[at].rate);
        rates.reduce(f64::min).map(|rate| rate as u64)
    }

    fn change_rate(&mut self, at: usize, rate: Option<f64>) {
        let limit = &mut self.limits[at];
        limit.rate = rate;
        limit.saved = limit.saved.min(rate.unwrap_or_default() * SAVED);
        self.rates = None;
    }

    /// The index of a limit for a new flow, which brings its current rate.
    fn enter(&mut self, spec: &LimitSpec) -> usize {
        let rate = spec.rate.map(|rate| rate.max(1) as f64);
        let limit = Limit { name: spec.name.clone(), rate, saved: 0.0, flows: 0 };
        let known = self.limits.iter().position(|limit| limit.flows > 0 && limit.name == spec.name);
        if let Some(at) = known
            && self.limits[at].rate != rate
        {
            self.change_rate(at, rate);
        }
        let at = known.unwrap_or_else(|| match self.limits.iter().position(|limit| limit.flows == 0) {
            Some(at) => {
                self.limits[at] = limit;
                at
            }
            None => {
                self.limits.push(limit);
                self.limits.len() - 1
            }
        });
        self.limits[at].flows += 1;
        at
    }

    /// Lets the time until `now` pass: flows pay their debts, and limits save what is not used.
    fn advance(&mut self, now: Duration) {
        let mut left = now.saturating_sub(self.now).as_secs_f64();
        self.now = self.now.max(now);
        while left > 0.0 {
            let rates = self.rates().to_vec();
            let first =
                rates.iter().map(|(id, rate)| self.flows[id].debt / rate).fold(f64::INFINITY, f64::min);
            let mut had: BTreeMap<&str, f64> = BTreeMap::new();
            for (id, rate) in &rates {
                if let Some(name) = self.flows[id].spec.guarantee.as_deref() {
                    *had.entry(name).or_default() += rate;
                }
            }
            let caught_up = self.guarantees.iter().filter_map(|(name, guarantee)| {
                let gains = had.get(name.as_str())? - guarantee.rate;
                (gains > 0.0 && guarantee.behind > NOTHING).then(|| guarantee.behind / gains)
            });
            let step = left.min(first).min(caught_up.fold(f64::INFINITY, f64::min));
            for (name, guarantee) in &mut self.guarantees {
                let before = guarantee.floor();
                let loses = guarantee.rate - had.get(name.as_str()).copied().unwrap_or_default();
                if loses.is_finite() {
                    guarantee.behind = (guarantee.behind + loses * step).clamp(0.0, guarantee.rate * SAVED);
                }
                if guarantee.floor() != before {
                    self.rates = None;
                }
            }
            let mut used = vec![0.0; self.limits.len()];
            for (id, rate) in &rates {
                let Some(flow) = self.flows.get_mut(id) else { continue };
                flow.limits.iter().for_each(|&at| used[at] += rate);
                let pays = if rate.is_finite() { (rate * step).min(flow.debt) } else { flow.debt };
                if flow.pay(pays) {
                    self.rates = None;
                }
            }
            for (limit, used) in self.limits.iter_mut().zip(used) {
                if let Some(rate) = limit.rate {
                    limit.saved = (limit.saved + (rate - used).max(0.0) * step).min(rate * SAVED);
                }
            }
            left -= step;
        }
    }

    fn rates(&mut self) -> &[(FlowId, f64)] {
        let rates = self.rates.take().unwrap_or_else(|| self.rates_of(None));
        self.rates.insert(rates)
    }

    /// The rates of the flows with debts, and of `another`.
    fn rates_of(&self, another: Option<FlowId>) -> Vec<(FlowId, f64)> {
        let takes_part = |id: FlowId, flow: &Flow| flow.debt > 0.0 || another == Some(id);
        let indebted: Vec<_> = self.flows.iter().filter(|(id, flow)| takes_part(**id, flow)).collect();
        let is_limited = |at: &usize| self.limits[*at].rate.is_some();
        let limited: Vec<Vec<usize>> = indebted
            .iter()
            .map(|(_, flow)| flow.limits.iter().copied().filter(is_limited).collect())
            .collect();
        // Flows with the same guarantee divide it.
        let mut guaranteed: BTreeMap<&str, u32> = BTreeMap::new();
        for name in indebted.iter().filter_map(|(_, flow)| flow.spec.guarantee.as_deref()) {
            *guaranteed.entry(name).or_default() += 1;
        }
        let floor = |spec: &FlowSpec| {
            let name = spec.guarantee.as_deref()?;
            Some(self.guarantees.get(name)?.floor() / f64::from(guaranteed[name]))
        };
        let sharers = indebted.iter().zip(&limited).map(|((_, flow), limits)| Sharer {
            group: &flow.spec.group,
            group_weight: f64::from(flow.spec.group_weight.max(1)),
            user: &flow.spec.user,
            user_weight: f64::from(flow.spec.user_weight.max(1)),
            floor: floor(&flow.spec).unwrap_or_default(),
            limits,
        });
        let sharers: Vec<_> = sharers.collect();
        let capacities: Vec<f64> =
            self.limits.iter().map(|limit| limit.rate.unwrap_or(f64::INFINITY)).collect();
        let found = rates(&sharers, &capacities);
        let found = indebted.iter().zip(&limited).zip(found).map(|(((id, _), limits), rate)| {
            // All its limits may have been lifted since it got the debt.
            (**id, if limits.is_empty() { f64::INFINITY } else { rate })
        });
        found.collect()
    }
}

#[cfg(test)]
mod tests;
