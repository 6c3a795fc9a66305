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
pub(crate) struct FairSemaphore<T> {
    most: usize,
    per_address: usize,
    state: Mutex<State<T>>,
}

struct State<T> {
    free: usize,
    held: HashMap<IpAddr, usize>,
    waiting: FairQueue<T>,
    yielded: Vec<Arc<Yielded>>,
    closed: bool,
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
    Yields(Arc<Yielded>, Option<T>),
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
            waiting: FairQueue::default(),
            yielded: Vec::new(),
            closed: false,
        };
        Self { most, per_address: most - most / 4, state: Mutex::new(state) }
    }

    /// Acquires a permit, if there is one. The caller has to release it.
    pub(crate) fn try_acquire(&self, address: IpAddr) -> bool {
        self.state.lock().try_acquire(network(address), self.per_address)
    }

    /// Closes the semaphore if something is `short`. Otherwise it opens, unless others wait: these
    /// come first ([`Self::admit`]).
    pub(crate) fn set_short(&self, short: bool) {
        let mut state = self.state.lock();
        state.closed = short || state.closed && state.waiting.len() > 0;
    }

    /// Nothing is short any more: returns a few of the waiting ones, which hold permits now. After
    /// the last of them the semaphore is open.
    pub(crate) fn admit(&self) -> Vec<T> {
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

    /// Waits for a permit. `one`, or one that has waited longer, is returned with a permit at once;
    /// otherwise [`Self::release`] or [`Self::admit`] returns it.
    pub(crate) fn wait(&self, address: IpAddr, one: T) -> Option<T> {
        self.acquire_or(address, one, FairQueue::push)
    }

    /// As [`Self::wait`], for one that was returned by [`Self::remove_waiting`]: it is queued
    /// before all others of its address.
    pub(crate) fn wait_again(&self, address: IpAddr, one: T) -> Option<T> {
        self.acquire_or(address, one, FairQueue::push_front)
    }

    fn acquire_or(&self, address: IpAddr, one: T, push: fn(&mut FairQueue<T>, IpAddr, T)) -> Option<T> {
        let address = network(address);
        let mut state = self.state.lock();
        if state.try_acquire(address, self.per_address) {
            return Some(one);
        }
        push(&mut state.waiting, address, one);
        // The last permit may have been released while the first of those that wait was looked at.
        if state.closed && state.held.is_empty() { state.grant(self.per_address) } else { None }
    }

    /// Releases a permit. The one that is returned holds it now.
    pub(crate) fn release(&self, address: IpAddr) -> Option<T> {
        self.state.lock().release(network(address), self.per_address)
    }

    /// For an operation of `address` that holds a permit and moves only `rate` bytes per second:
    /// yields the permit to one that waits.
    pub(crate) fn make_way(&self, address: IpAddr, rate: u64) -> Slow<T> {
        let address = network(address);
        let mut state = self.state.lock();
        let one = Yielded { address, rate: rate.into(), must_end: AtomicBool::new(false) };
        let ending = state.yielded.iter().filter(|one| one.must_end()).count();
        if state.waiting.len() == 0 {
            return Slow::Keeps;
        }
        if state.yielded.len() < self.most {
            let next = state.release(address, self.per_address);
            // The waiting ones are of an address that has enough permits.
            if next.is_none() && !state.closed {
                state.acquire(address, self.per_address);
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

    /// An operation without a permit is no longer slow. Returns true if it holds a permit again.
    pub(crate) fn regain(&self, one: &Arc<Yielded>) -> bool {
        let mut state = self.state.lock();
        // It runs already, so that nothing becomes shorter by its permit.
        let may = state.acquire(one.address, self.per_address);
        if may {
            state.yielded.retain(|other| !Arc::ptr_eq(other, one));
        }
        may
    }

    /// An operation without a permit has ended.
    pub(crate) fn end_yielded(&self, one: &Arc<Yielded>) {
        self.state.lock().yielded.retain(|other| !Arc::ptr_eq(other, one));
    }

    /// Removes all that wait, in the order in which they would get permits.
    pub(crate) fn take_waiting(&self) -> Vec<T> {
        let mut state = self.state.lock();
        std::iter::from_fn(|| state.waiting.pop(|_| true)).map(|(_, one)| one).collect()
    }

    /// Removes the waiting ones for which `is` is true.
    pub(crate) fn remove_waiting(&self, is: impl Fn(&T) -> bool) -> Vec<T> {
        self.state.lock().waiting.remove(is)
    }

    /// Calls `tell` for each that waits, with its position from 1 and the number of all. `tell`
    /// must not wait.
    pub(crate) fn tell_waiting(&self, mut tell: impl FnMut(&mut T, u32, u32)) {
        let mut state = self.state.lock();
        let count = u32::try_from(state.waiting.len()).unwrap_or(u32::MAX);
        for (one, position) in state.waiting.in_order().zip(1..) {
            tell(one, position, count);
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
    fn release(&mut self, address: IpAddr, per_address: usize) -> Option<T> {
        self.free += 1;
        if let Some(theirs) = self.held.get_mut(&address) {
            *theirs -= 1;
            if *theirs == 0 {
                self.held.remove(&address);
            }
        }
        if self.closed && !self.held.is_empty() { None } else { self.grant(per_address) }
    }

    /// Gives a permit to the next one that waits, if there is a permit for it.
    fn grant(&mut self, per_address: usize) -> Option<T> {
        let Self { free, held, waiting, .. } = self;
        if *free == 0 {
            return None;
        }
        let may = |address| held.get(&address).is_none_or(|&theirs| theirs < per_address);
        let (address, next) = waiting.pop(may)?;
        *free -= 1;
        *held.entry(address).or_default() += 1;
        Some(next)
    }

    /// Whether one that waits may get a permit that `address` releases.
    fn may_follow(&self, address: IpAddr, per_address: usize) -> bool {
        let theirs = |of| self.held.get(&of).map_or(0, |theirs| theirs - usize::from(of == address));
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

    fn try_acquire(&mut self, address: IpAddr, most: usize) -> bool {
        let may = !self.closed || self.held.is_empty() && self.waiting.len() == 0;
        may && self.acquire(address, most)
    }

    fn acquire(&mut self, address: IpAddr, most: usize) -> bool {
        let theirs = self.held.get(&address).copied().unwrap_or(0);
        let may = self.free > 0 && theirs < most;
        if may {
            self.free -= 1;
            self.held.insert(address, theirs + 1);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn semaphore_with_waiting_operations_grants_permits_in_order() {
        let permits = FairSemaphore::new(2);
        assert!(permits.try_acquire(ONE) && permits.try_acquire(ONE) && !permits.try_acquire(ONE));
        assert_eq!((permits.wait(ONE, 'a'), permits.wait(ONE, 'b')), (None, None));
        assert!(permits.has_waiting());
        assert_eq!((permits.release(ONE), permits.release(ONE)), (Some('a'), Some('b')));
        assert_eq!(permits.release(ONE), None);
        assert_eq!(permits.wait(ONE, 'c'), Some('c'));
        assert!(!permits.try_acquire(ONE));
        assert_eq!((permits.release(ONE), permits.release(ONE)), (None, None));
        assert!(permits.try_acquire(ONE) && permits.try_acquire(ONE) && !permits.try_acquire(ONE));
    }

    #[test]
    fn semaphore_with_waiting_addresses_alternates_between_them() {
        let permits = FairSemaphore::new(1);
        assert!(permits.try_acquire(ONE));
        for n in 0..10 {
            assert_eq!(permits.wait(ONE, n), None);
        }
        assert_eq!(permits.wait(OTHER, 10), None);
        assert_eq!(permits.release(ONE), Some(0));
        assert_eq!(permits.release(ONE), Some(10));
        assert_eq!(permits.remove_waiting(|n| n % 2 == 0).len(), 4);
        assert_eq!(permits.release(OTHER), Some(1));
    }

    fn yielded(slow: Slow<char>) -> (Arc<Yielded>, char) {
        match slow {
            Slow::Yields(one, Some(next)) => (one, next),
            Slow::Yields(_, None) => panic!("no operation gets the permit"),
            Slow::Keeps => panic!("it stays"),
            Slow::Ends => panic!("it ends"),
        }
    }

    #[test]
    fn semaphore_when_others_wait_takes_permit_of_slow_operation() {
        let permits = FairSemaphore::new(1);
        assert!(permits.try_acquire(ONE));
        assert!(matches!(permits.make_way(ONE, 0), Slow::Keeps));
        assert_eq!(permits.wait(OTHER, 'a'), None);
        let (slow, next) = yielded(permits.make_way(ONE, 0));
        assert_eq!(next, 'a');
        assert!(!permits.try_acquire(ONE) && !permits.regain(&slow));
        assert_eq!(permits.release(OTHER), None);
        // The operation is fast again, and holds the permit.
        assert!(permits.regain(&slow) && !permits.try_acquire(OTHER));
        assert_eq!(permits.wait(OTHER, 'b'), None);
        let (slow, _) = yielded(permits.make_way(ONE, 0));
        permits.end_yielded(&slow);
        assert_eq!(permits.release(OTHER), None);
        assert!(permits.try_acquire(ONE));
    }

    #[test]
    fn semaphore_with_too_many_slow_operations_ends_slowest_of_busiest_address() {
        let permits = FairSemaphore::new(4);
        let (third, fourth) = (IpAddr::from([10, 0, 0, 3]), IpAddr::from([10, 0, 0, 4]));
        assert!(
            permits.try_acquire(ONE)
                && permits.try_acquire(ONE)
                && permits.try_acquire(ONE)
                && permits.try_acquire(OTHER)
        );
        for _ in 0..4 {
            assert_eq!(permits.wait(third, 'x'), None);
        }
        let (slow, _) = yielded(permits.make_way(ONE, 1000));
        let (slower, _) = yielded(permits.make_way(ONE, 999));
        let (slowest, _) = yielded(permits.make_way(OTHER, 0));
        // The third address has enough permits: no waiting operation would gain.
        assert!(matches!(permits.make_way(ONE, 0), Slow::Keeps));
        assert_eq!(permits.wait(fourth, 'y'), None);
        let (last, next) = yielded(permits.make_way(ONE, LEAST - 1));
        assert_eq!(next, 'y');
        let ending = || [&slow, &slower, &slowest, &last].map(|one| one.must_end());
        assert!(matches!(permits.make_way(fourth, 0), Slow::Keeps));
        assert_eq!(ending(), [false; 4]);
        for _ in 0..4 {
            assert_eq!(permits.wait(fourth, 'z'), None);
        }
        assert!(matches!(permits.make_way(third, 0), Slow::Keeps));
        assert_eq!(ending(), [false, true, false, false]);
        slow.set_rate(LEAST);
        assert!(matches!(permits.make_way(ONE, 5000), Slow::Ends));
        permits.end_yielded(&slower);
        // The operations that end already make room for the waiting ones.
        let (_next, x) = yielded(permits.make_way(third, 0));
        assert_eq!((x, permits.remove_waiting(|_| true).len()), ('x', 4));
        assert!(matches!(permits.make_way(third, 0), Slow::Keeps));
    }

    #[test]
    fn semaphore_with_even_addresses_keeps_trickling_operations() {
        let permits = FairSemaphore::new(2);
        assert!(permits.try_acquire(ONE) && permits.try_acquire(OTHER));
        let third = IpAddr::from([10, 0, 0, 3]);
        for _ in 0..4 {
            assert_eq!(permits.wait(third, 'x'), None);
        }
        let (one, _) = yielded(permits.make_way(ONE, TRICKLE));
        let (other, _) = yielded(permits.make_way(OTHER, TRICKLE));
        assert!(matches!(permits.make_way(third, TRICKLE), Slow::Keeps));
        assert!(!one.must_end() && !other.must_end());
        assert!(matches!(permits.make_way(third, TRICKLE - 1), Slow::Ends));
    }

    #[test]
    fn semaphore_for_one_address_keeps_quarter_for_others() {
        let permits = FairSemaphore::new(8);
        assert_eq!((0..8).filter(|_| permits.try_acquire(ONE)).count(), 6);
        assert_eq!(permits.wait(ONE, 'a'), None);
        assert!(permits.try_acquire(OTHER) && permits.try_acquire(OTHER) && !permits.try_acquire(OTHER));
        // The permit that the other address releases does not go to an address that has enough.
        assert_eq!(permits.release(OTHER), None);
        assert!(permits.try_acquire(OTHER));
        assert_eq!(permits.release(ONE), Some('a'));
        assert_eq!(permits.wait(ONE, 'b'), None);
        for _ in 0..2 {
            assert_eq!(permits.release(OTHER), None);
        }
        assert_eq!(permits.release(ONE), Some('b'));
    }

    #[test]
    fn closed_semaphore_keeps_one_running_and_admits_the_others_a_few_at_a_time() {
        let permits = FairSemaphore::new(16);
        assert!(permits.try_acquire(ONE) && permits.try_acquire(ONE));
        permits.set_short(true);
        assert!(!permits.try_acquire(OTHER));
        for n in 0..6 {
            assert_eq!(permits.wait(OTHER, n), None);
        }
        assert_eq!(permits.release(ONE), None);
        // Nothing runs any more.
        assert_eq!(permits.release(ONE), Some(0));
        assert_eq!(permits.counts(), (1, 5));
        permits.set_short(false);
        assert!(!permits.try_acquire(ONE), "the others have waited for longer");
        assert_eq!(permits.admit(), [1]);
        permits.set_short(true);
        assert_eq!(permits.release(OTHER), None);
        permits.set_short(false);
        assert_eq!((permits.admit(), permits.admit(), permits.admit()), (vec![2], vec![3], vec![4]));
        assert_eq!(permits.admit(), [5]);
        assert_eq!(permits.counts(), (5, 0));
        // It is open.
        assert!(permits.try_acquire(ONE) && permits.admit().is_empty());
        permits.set_short(true);
        permits.set_short(false);
        assert!(permits.try_acquire(ONE));
    }

    #[test]
    fn closed_semaphore_without_operations_runs_the_one_that_waits() {
        let permits = FairSemaphore::new(4);
        permits.set_short(true);
        assert_eq!(permits.wait(ONE, 'a'), Some('a'));
        assert_eq!((permits.wait(ONE, 'b'), permits.wait(OTHER, 'c')), (None, None));
        let looked_at = permits.remove_waiting(|one| *one == 'b');
        assert_eq!(permits.release(ONE), Some('c'));
        assert_eq!(permits.release(OTHER), None);
        assert_eq!(permits.wait_again(ONE, looked_at[0]), Some('b'));
    }

    #[test]
    fn slow_operations_of_a_closed_semaphore_do_not_hold_up_others() {
        let permits = FairSemaphore::new(4);
        assert!(permits.try_acquire(ONE) && permits.try_acquire(ONE));
        permits.set_short(true);
        assert_eq!(permits.wait(OTHER, 'a'), None);
        let Slow::Yields(first, None) = permits.make_way(ONE, 0) else { panic!("it keeps its permit") };
        let (_second, next) = yielded(permits.make_way(ONE, 0));
        assert_eq!((next, permits.counts()), ('a', (1, 0)));
        // One that is fast again holds a permit.
        assert!(permits.regain(&first));
        assert_eq!(permits.counts(), (2, 0));
    }
}
