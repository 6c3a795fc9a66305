//! Permits for operations that can take long.
//!
//! Short operations, such as log-ins and file operations, need no permit and have threads of their
//! own, so that clients that let their transfers stall do not keep others out. The state has one
//! lock and may be used from every thread; no method waits.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::host::throttle::network;
use crate::scheduling::fair_queue::FairQueue;

/// A semaphore with at most `most` permits, for which addresses take turns. One address holds at
/// most three quarters of them, so that some are left for others.
///
/// While the semaphore is closed, because something else is short, the waiting ones get no permits
/// unless none is held. Then they get them a few at a time ([`FairSemaphore::admit`]), so that all
/// of them do not cause the next shortage together.
///
/// An operation whose client takes or sends next to nothing yields its permit to one that waits and
/// continues without it. At most as many operations as there are permits may do so. If more are too
/// slow, the slowest one of the address that has most of them has to end.
///
/// Reservations ([`FairSemaphore::set_reserved`]) have permits that others do not get. Their
/// operations come before all others, and do not count for their addresses; those for which a
/// reservation has no permit left wait as any other.
pub(crate) struct FairSemaphore<T> {
    most: usize,
    per_address: usize,
    state: Mutex<State<T>>,
}

struct State<T> {
    free: usize,
    held: HashMap<Holder, usize>,
    /// Permits by the tokens of the reservations in force.
    reserved: HashMap<Arc<str>, usize>,
    waiting: FairQueue<Waiting<T>>,
    yielded: Vec<Arc<Yielded>>,
    closed: bool,
}

struct Waiting<T> {
    one: T,
    reservation: Option<Arc<str>>,
}

/// The one for whose operation a permit is wanted.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) address: IpAddr,
    /// The token of the reservation that it uses, perhaps one that is not in force.
    pub(crate) reservation: Option<Arc<str>>,
}

/// The one for which a permit counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    /// The network of an address.
    Address(IpAddr),
    /// The reservation with this token.
    Reservation(Arc<str>),
}

/// One that has waited, and holds a permit now.
pub(crate) struct Granted<T> {
    pub(crate) one: T,
    pub(crate) holder: Holder,
}

/// An operation that continues without its permit.
pub(crate) struct Yielded {
    address: IpAddr,
    /// Bytes per second.
    rate: AtomicU64,
    must_end: AtomicBool,
}

/// The result for a slow operation that holds a permit.
pub(crate) enum Slow<T> {
    /// It keeps its permit.
    Keeps,
    /// It has yielded its permit, to this operation, which had waited longest; to none while the
    /// semaphore is closed and others hold permits.
    Yields(Arc<Yielded>, Option<Granted<T>>),
    Ends,
}

/// The rate in bytes per second with which an operation keeps its permit while others wait. A
/// client with 256 permits needs 16 MiB/s.
pub(crate) const LEAST: u64 = 64 << 10;
/// The rate in bytes per second with which an operation continues without a permit, however many
/// there are, if its address has no more of them than others.
const TRICKLE: u64 = 4 << 10;

impl<T> FairSemaphore<T> {
    pub(crate) fn new(most: usize) -> Self {
        let state = State {
            free: most,
            held: HashMap::new(),
            reserved: HashMap::new(),
            waiting: FairQueue::default(),
            yielded: Vec::new(),
            closed: false,
        };
        Self { most, per_address: most - most / 4, state: Mutex::new(state) }
    }

    /// Acquires a permit, if there is one. The caller has to release it.
    pub(crate) fn try_acquire(&self, claim: &Claim) -> Option<Holder> {
        self.state.lock().try_acquire(claim, self.per_address)
    }

    /// Sets the permits of the reservations that are in force, by their tokens. Those that begin
    /// take no permit from an operation under way: they get the next ones that are released.
    /// Returns those of the waiting ones that hold permits now.
    pub(crate) fn set_reserved(&self, reserved: HashMap<Arc<str>, usize>) -> Vec<Granted<T>> {
        let mut state = self.state.lock();
        if state.reserved == reserved {
            return Vec::new();
        }
        state.reserved = reserved;
        if state.closed {
            return Vec::new();
        }
        std::iter::from_fn(|| state.grant(self.per_address)).collect()
    }

    /// Closes the semaphore if something is `short`. Otherwise it opens, unless others wait: these
    /// come first ([`Self::admit`]).
    pub(crate) fn set_short(&self, short: bool) {
        let mut state = self.state.lock();
        state.closed = short || state.closed && state.waiting.len() > 0;
    }

    /// Nothing is short any more: returns a few of the waiting ones, which hold permits now. After
    /// the last of them the semaphore is open.
    pub(crate) fn admit(&self) -> Vec<Granted<T>> {
        let mut state = self.state.lock();
        if !state.closed {
            return Vec::new();
        }
        let held: usize = state.held.values().sum();
        // A quarter more of what runs without shortage.
        let few = (held / 4).max(1);
        let admitted = (0..few).map_while(|_| state.grant(self.per_address)).collect();
        state.closed = state.waiting.len() > 0;
        admitted
    }

    /// The number of permits.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// The numbers of permits that are held, and of those that wait.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.held.values().sum(), state.waiting.len())
    }

    /// The permits that count for a reservation.
    pub(crate) fn held_by(&self, token: &str) -> usize {
        count(&self.state.lock().held, &Holder::Reservation(token.into()))
    }

    /// Waits for a permit. `one`, or one that has waited longer, is returned with a permit at once;
    /// otherwise [`Self::release`] or [`Self::admit`] returns it.
    pub(crate) fn wait(&self, claim: &Claim, one: T) -> Option<Granted<T>> {
        self.acquire_or(claim, one, FairQueue::push)
    }

    /// As [`Self::wait`], for one that was returned by [`Self::remove_waiting`]: it is queued
    /// before all others of its address.
    pub(crate) fn wait_again(&self, claim: &Claim, one: T) -> Option<Granted<T>> {
        self.acquire_or(claim, one, FairQueue::push_front)
    }

    fn acquire_or(
        &self,
        claim: &Claim,
        one: T,
        push: fn(&mut FairQueue<Waiting<T>>, IpAddr, Waiting<T>),
    ) -> Option<Granted<T>> {
        let mut state = self.state.lock();
        if let Some(holder) = state.try_acquire(claim, self.per_address) {
            return Some(Granted { one, holder });
        }
        let waiting = Waiting { one, reservation: claim.reservation.clone() };
        push(&mut state.waiting, network(claim.address), waiting);
        // The last permit may have been released while the first of those that wait was looked at.
        if state.closed && state.held.is_empty() { state.grant(self.per_address) } else { None }
    }

    /// Releases a permit. The one that is returned holds it now.
    pub(crate) fn release(&self, holder: &Holder) -> Option<Granted<T>> {
        self.state.lock().release(holder, self.per_address)
    }

    /// For an operation of `address` whose permit counts for `holder`, and that moves only `rate`
    /// bytes per second: yields the permit to one that waits. Reservations keep their permits.
    pub(crate) fn make_way(&self, address: IpAddr, holder: &Holder, rate: u64) -> Slow<T> {
        let address = network(address);
        let mut state = self.state.lock();
        if let Holder::Reservation(token) = holder
            && state.reserved.contains_key(token)
        {
            return Slow::Keeps;
        }
        let one = Yielded { address, rate: rate.into(), must_end: AtomicBool::new(false) };
        let ending = state.yielded.iter().filter(|one| one.must_end()).count();
        if state.waiting.len() == 0 {
            return Slow::Keeps;
        }
        if state.yielded.len() < self.most {
            let next = state.release(holder, self.per_address);
            // The waiting ones are of an address that has enough permits.
            if next.is_none() && !state.closed {
                state.take(holder.clone());
                return Slow::Keeps;
            }
            let one = Arc::new(one);
            state.yielded.push(Arc::clone(&one));
            return Slow::Yields(one, next);
        }
        if ending >= state.waiting.len() || !state.may_follow(address, self.per_address) {
            return Slow::Keeps;
        }
        match state.slowest(&one) {
            Some(Some(slowest)) => {
                slowest.must_end.store(true, Ordering::Relaxed);
                Slow::Keeps
            }
            Some(None) => Slow::Ends,
            None => Slow::Keeps,
        }
    }

    /// An operation without a permit is no longer slow. Returns the holder if it has one again.
    pub(crate) fn regain(&self, one: &Arc<Yielded>) -> Option<Holder> {
        let mut state = self.state.lock();
        // It runs already, so that nothing becomes shorter by its permit.
        let holder = state.acquire(one.address, None, self.per_address)?;
        state.yielded.retain(|other| !Arc::ptr_eq(other, one));
        Some(holder)
    }

    /// An operation without a permit has ended.
    pub(crate) fn end_yielded(&self, one: &Arc<Yielded>) {
        self.state.lock().yielded.retain(|other| !Arc::ptr_eq(other, one));
    }

    /// Removes all that wait, in the order in which they would get permits.
    pub(crate) fn take_waiting(&self) -> Vec<T> {
        let mut state = self.state.lock();
        std::iter::from_fn(|| state.waiting.pop(|_| true)).map(|(_, waiting)| waiting.one).collect()
    }

    /// Removes the waiting ones for which `is` is true.
    pub(crate) fn remove_waiting(&self, is: impl Fn(&T) -> bool) -> Vec<T> {
        let removed = self.state.lock().waiting.remove(|waiting| is(&waiting.one));
        removed.into_iter().map(|waiting| waiting.one).collect()
    }

    /// Calls `tell` for each that waits, with its position from 1 and the number of all. `tell`
    /// must not wait.
    pub(crate) fn tell_waiting(&self, mut tell: impl FnMut(&mut T, u32, u32)) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let count = u32::try_from(state.waiting.len()).unwrap_or(u32::MAX);
        let mut waiting: Vec<_> = state.waiting.in_order().collect();
        let is_reserved = |token: &Arc<str>| state.reserved.contains_key(token);
        waiting.sort_by_key(|waiting| !waiting.reservation.as_ref().is_some_and(is_reserved));
        for (waiting, position) in waiting.into_iter().zip(1..) {
            tell(&mut waiting.one, position, count);
        }
    }

    pub(crate) fn has_waiting(&self) -> bool {
        self.state.lock().waiting.len() > 0
    }
}

impl Yielded {
    /// Whether the operation has to end, since others wait and too many are slow.
    pub(crate) fn must_end(&self) -> bool {
        self.must_end.load(Ordering::Relaxed)
    }

    /// Sets the average rate in bytes per second.
    pub(crate) fn set_rate(&self, rate: u64) {
        self.rate.store(rate, Ordering::Relaxed);
    }
}

impl<T> State<T> {
    fn release(&mut self, holder: &Holder, per_address: usize) -> Option<Granted<T>> {
        self.free += 1;
        if let Some(theirs) = self.held.get_mut(holder) {
            *theirs -= 1;
            if *theirs == 0 {
                self.held.remove(holder);
            }
        }
        if self.closed && !self.held.is_empty() { None } else { self.grant(per_address) }
    }

    /// Gives a permit to the next one that waits, if there is a permit for it.
    fn grant(&mut self, per_address: usize) -> Option<Granted<T>> {
        if self.free == 0 {
            return None;
        }
        let (one, holder) = match self.next_reserved() {
            Some(next) => next,
            None if self.free <= self.kept() => return None,
            None => {
                let Self { held, waiting, .. } = self;
                let may = |address| count(held, &Holder::Address(address)) < per_address;
                let (address, next) = waiting.pop(may)?;
                (next.one, Holder::Address(address))
            }
        };
        self.take(holder.clone());
        Some(Granted { one, holder })
    }

    /// The first one that waits and whose reservation has a permit left.
    fn next_reserved(&mut self) -> Option<(T, Holder)> {
        if self.reserved.is_empty() {
            return None;
        }
        let Self { held, reserved, waiting, .. } = self;
        let holder = |waiting: &Waiting<T>| reserved_holder(held, reserved, waiting.reservation.as_ref());
        let next = waiting.pop_where(|waiting| holder(waiting).is_some())?;
        let holder = holder(&next)?;
        Some((next.one, holder))
    }

    /// Permits that are kept for operations of reservations.
    fn kept(&self) -> usize {
        let left = |(token, slots): (&Arc<str>, &usize)| {
            slots.saturating_sub(count(&self.held, &Holder::Reservation(Arc::clone(token))))
        };
        self.reserved.iter().map(left).sum()
    }

    /// Takes a permit that is free.
    fn take(&mut self, holder: Holder) {
        self.free -= 1;
        *self.held.entry(holder).or_default() += 1;
    }

    /// Whether one that waits may get a permit that `address` releases.
    fn may_follow(&self, address: IpAddr, per_address: usize) -> bool {
        let theirs = |of| count(&self.held, &Holder::Address(of)).saturating_sub(usize::from(of == address));
        self.waiting.has(|of| theirs(of) < per_address)
    }

    /// The operation that should end, among `one` and those without a permit; `Some(None)` is `one`
    /// itself. `None`: none of them is too slow.
    fn slowest(&self, one: &Yielded) -> Option<Option<&Arc<Yielded>>> {
        let mut counts = HashMap::from([(one.address, 1_usize)]);
        for other in self.yielded.iter().filter(|other| !other.must_end()) {
            *counts.entry(other.address).or_default() += 1;
        }
        let (all, most) = (counts.values().sum::<usize>(), counts.values().copied().max()?);
        let least = if most * counts.len() > all { LEAST } else { TRICKLE };
        let has_most = |one: &Yielded| !one.must_end() && counts.get(&one.address) == Some(&most);
        let rate = |one: &Yielded| one.rate.load(Ordering::Relaxed);
        let others =
            self.yielded.iter().filter(|other| has_most(other)).map(|other| (rate(other), Some(other)));
        let own = has_most(one).then(|| (rate(one), None));
        // Of several with the same rate, the one that has been slow for longer.
        let (rate, slowest) = others.chain(own).min_by_key(|(rate, _)| *rate)?;
        (rate < least).then_some(slowest)
    }

    fn try_acquire(&mut self, claim: &Claim, most: usize) -> Option<Holder> {
        let may = !self.closed || self.held.is_empty() && self.waiting.len() == 0;
        if !may {
            return None;
        }
        self.acquire(network(claim.address), claim.reservation.as_ref(), most)
    }

    fn acquire(&mut self, address: IpAddr, reservation: Option<&Arc<str>>, most: usize) -> Option<Holder> {
        if self.free == 0 {
            return None;
        }
        let reserved = reserved_holder(&self.held, &self.reserved, reservation);
        let holder = reserved.unwrap_or(Holder::Address(address));
        if let Holder::Address(_) = holder
            && (self.free <= self.kept() || count(&self.held, &holder) >= most)
        {
            return None;
        }
        self.take(holder.clone());
        Some(holder)
    }
}

/// The permits of a holder.
fn count(held: &HashMap<Holder, usize>, holder: &Holder) -> usize {
    held.get(holder).copied().unwrap_or(0)
}

/// The holder for an operation of a reservation, if that is in force and has a permit left.
fn reserved_holder(
    held: &HashMap<Holder, usize>,
    reserved: &HashMap<Arc<str>, usize>,
    reservation: Option<&Arc<str>>,
) -> Option<Holder> {
    let (token, slots) = reserved.get_key_value(reservation?)?;
    let holder = Holder::Reservation(Arc::clone(token));
    (count(held, &holder) < *slots).then_some(holder)
}

#[cfg(test)]
mod tests;
