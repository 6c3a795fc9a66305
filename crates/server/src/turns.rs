//! How many operations that take their time are under way. What does not, such as log-ins and file operations, has
//! threads of its own: clients that let their transfers stall do not keep others out.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::fair::Fair;
use crate::throttle::network;

/// At most so many at a time; among those who wait, addresses take turns. One address has at most three quarters, so that
/// there are some left for others, whatever it does with its own.
///
/// An operation whose client takes or sends next to nothing gives its turn to one that waits, and goes on beside: as many as there
/// are turns may do so. Beyond that, the slowest one of the address that has most of them is told to end.
pub(crate) struct Turns<T> {
    most: usize,
    most_of_one: usize,
    state: Mutex<State<T>>,
}

struct State<T> {
    free: usize,
    had: HashMap<IpAddr, usize>,
    waiting: Fair<T>,
    aside: Vec<Arc<Aside>>,
}

/// An operation that goes on without its turn.
pub(crate) struct Aside {
    address: IpAddr,
    /// Bytes a second.
    rate: AtomicU64,
    must_end: AtomicBool,
}

/// What becomes of a slow operation that has a turn.
pub(crate) enum Slow<T> {
    /// It keeps its turn.
    Stays,
    /// It has given its turn to the operation that waited longest for it.
    Aside(Arc<Aside>, T),
    Ends,
}

/// Bytes a second with which an operation keeps its turn while others wait. Whoever holds 256 turns needs 16 MiB a second.
pub(crate) const LEAST: u64 = 64 << 10;
/// Bytes a second with which an operation beside the turns goes on, however many there are, if its address has no more of them than
/// others.
const TRICKLE: u64 = 4 << 10;

impl<T> Turns<T> {
    pub(crate) fn new(most: usize) -> Self {
        let state = State { free: most, had: HashMap::new(), waiting: Fair::default(), aside: Vec::new() };
        Self { most, most_of_one: most - most / 4, state: Mutex::new(state) }
    }

    /// A turn, where there is one; it has to be given back.
    pub(crate) fn take(&self, address: IpAddr) -> bool {
        self.state.lock().take(network(address), self.most_of_one)
    }

    /// Waits for a turn. `one` comes back with it, at once or from [`Self::give_back`].
    pub(crate) fn wait(&self, address: IpAddr, one: T) -> Option<T> {
        self.take_or(address, one, Fair::push)
    }

    /// As [`Self::wait`], for one that [`Self::take_out`] gave: it comes before all others of its address.
    pub(crate) fn wait_on(&self, address: IpAddr, one: T) -> Option<T> {
        self.take_or(address, one, Fair::push_front)
    }

    fn take_or(&self, address: IpAddr, one: T, push: fn(&mut Fair<T>, IpAddr, T)) -> Option<T> {
        let address = network(address);
        let mut state = self.state.lock();
        if state.take(address, self.most_of_one) {
            return Some(one);
        }
        push(&mut state.waiting, address, one);
        None
    }

    /// Ends a turn. The next one has it now.
    pub(crate) fn give_back(&self, address: IpAddr) -> Option<T> {
        self.state.lock().give_back(network(address), self.most_of_one)
    }

    /// For an operation of `address` that has a turn and moves only `rate` bytes a second: makes way for one that waits.
    pub(crate) fn make_way(&self, address: IpAddr, rate: u64) -> Slow<T> {
        let address = network(address);
        let mut state = self.state.lock();
        let one = Aside { address, rate: rate.into(), must_end: AtomicBool::new(false) };
        let ending = state.aside.iter().filter(|one| one.must_end()).count();
        if state.waiting.len() == 0 {
            return Slow::Stays;
        }
        if state.aside.len() < self.most {
            return match state.give_back(address, self.most_of_one) {
                Some(next) => {
                    let one = Arc::new(one);
                    state.aside.push(Arc::clone(&one));
                    Slow::Aside(one, next)
                }
                // Those who wait are of an address that has enough.
                None => {
                    state.take(address, self.most_of_one);
                    Slow::Stays
                }
            };
        }
        if ending >= state.waiting.len() || !state.may_follow(address, self.most_of_one) {
            return Slow::Stays;
        }
        match state.slowest(&one) {
            Some(Some(slowest)) => {
                slowest.must_end.store(true, Ordering::Relaxed);
                Slow::Stays
            }
            Some(None) => Slow::Ends,
            None => Slow::Stays,
        }
    }

    /// An operation beside the turns is no longer slow: true if it has a turn again.
    pub(crate) fn come_back(&self, one: &Arc<Aside>) -> bool {
        let mut state = self.state.lock();
        let may = state.take(one.address, self.most_of_one);
        if may {
            state.aside.retain(|other| !Arc::ptr_eq(other, one));
        }
        may
    }

    /// An operation beside the turns has ended.
    pub(crate) fn leave(&self, one: &Arc<Aside>) {
        self.state.lock().aside.retain(|other| !Arc::ptr_eq(other, one));
    }

    /// Those who wait no longer, as `is` says.
    pub(crate) fn take_out(&self, is: impl Fn(&T) -> bool) -> Vec<T> {
        self.state.lock().waiting.take_out(is)
    }

    pub(crate) fn are_awaited(&self) -> bool {
        self.state.lock().waiting.len() > 0
    }
}

impl Aside {
    /// Others wait, and there are too many that are slow.
    pub(crate) fn must_end(&self) -> bool {
        self.must_end.load(Ordering::Relaxed)
    }

    /// It has moved so many bytes a second on average.
    pub(crate) fn set_rate(&self, rate: u64) {
        self.rate.store(rate, Ordering::Relaxed);
    }
}

impl<T> State<T> {
    fn give_back(&mut self, address: IpAddr, most_of_one: usize) -> Option<T> {
        let Self { free, had, waiting, .. } = self;
        *free += 1;
        if let Some(theirs) = had.get_mut(&address) {
            *theirs -= 1;
            if *theirs == 0 {
                had.remove(&address);
            }
        }
        let may = |address| had.get(&address).is_none_or(|&theirs| theirs < most_of_one);
        let (address, next) = waiting.pop(may)?;
        *free -= 1;
        *had.entry(address).or_default() += 1;
        Some(next)
    }

    /// Whether one that waits may have a turn that `address` gives back.
    fn may_follow(&self, address: IpAddr, most_of_one: usize) -> bool {
        let theirs = |of| self.had.get(&of).map_or(0, |theirs| theirs - usize::from(of == address));
        self.waiting.has(|of| theirs(of) < most_of_one)
    }

    /// The operation to end among `one` and those beside the turns; `Some(None)` is `one` itself. `None`: none of them is too
    /// slow.
    fn slowest(&self, one: &Aside) -> Option<Option<&Arc<Aside>>> {
        let mut counts = HashMap::from([(one.address, 1_usize)]);
        for other in self.aside.iter().filter(|other| !other.must_end()) {
            *counts.entry(other.address).or_default() += 1;
        }
        let (all, most) = (counts.values().sum::<usize>(), counts.values().copied().max()?);
        let least = if most * counts.len() > all { LEAST } else { TRICKLE };
        let has_most = |one: &Aside| !one.must_end() && counts.get(&one.address) == Some(&most);
        let rate = |one: &Aside| one.rate.load(Ordering::Relaxed);
        let others =
            self.aside.iter().filter(|other| has_most(other)).map(|other| (rate(other), Some(other)));
        let own = has_most(one).then(|| (rate(one), None));
        // Of equals, one that has been slow for longer.
        let (rate, slowest) = others.chain(own).min_by_key(|(rate, _)| *rate)?;
        (rate < least).then_some(slowest)
    }

    fn take(&mut self, address: IpAddr, most: usize) -> bool {
        let theirs = self.had.get(&address).copied().unwrap_or(0);
        let may = self.free > 0 && theirs < most;
        if may {
            self.free -= 1;
            self.had.insert(address, theirs + 1);
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
    fn turns_are_taken_in_order() {
        let turns = Turns::new(2);
        assert!(turns.take(ONE) && turns.take(ONE) && !turns.take(ONE));
        assert_eq!((turns.wait(ONE, 'a'), turns.wait(ONE, 'b')), (None, None));
        assert!(turns.are_awaited());
        assert_eq!((turns.give_back(ONE), turns.give_back(ONE)), (Some('a'), Some('b')));
        assert_eq!(turns.give_back(ONE), None);
        assert_eq!(turns.wait(ONE, 'c'), Some('c'));
        assert!(!turns.take(ONE));
        assert_eq!((turns.give_back(ONE), turns.give_back(ONE)), (None, None));
        assert!(turns.take(ONE) && turns.take(ONE) && !turns.take(ONE));
    }

    #[test]
    fn who_comes_alone_is_next() {
        let turns = Turns::new(1);
        assert!(turns.take(ONE));
        for n in 0..10 {
            assert_eq!(turns.wait(ONE, n), None);
        }
        assert_eq!(turns.wait(OTHER, 10), None);
        assert_eq!(turns.give_back(ONE), Some(0));
        assert_eq!(turns.give_back(ONE), Some(10));
        assert_eq!(turns.take_out(|n| n % 2 == 0).len(), 4);
        assert_eq!(turns.give_back(OTHER), Some(1));
    }

    fn aside(slow: Slow<char>) -> (Arc<Aside>, char) {
        match slow {
            Slow::Aside(one, next) => (one, next),
            Slow::Stays => panic!("it stays"),
            Slow::Ends => panic!("it ends"),
        }
    }

    #[test]
    fn slow_operations_make_way_for_those_who_wait() {
        let turns = Turns::new(1);
        assert!(turns.take(ONE));
        assert!(matches!(turns.make_way(ONE, 0), Slow::Stays));
        assert_eq!(turns.wait(OTHER, 'a'), None);
        let (slow, next) = aside(turns.make_way(ONE, 0));
        assert_eq!(next, 'a');
        assert!(!turns.take(ONE) && !turns.come_back(&slow));
        assert_eq!(turns.give_back(OTHER), None);
        // It is fast again, and has the turn.
        assert!(turns.come_back(&slow) && !turns.take(OTHER));
        assert_eq!(turns.wait(OTHER, 'b'), None);
        let (slow, _) = aside(turns.make_way(ONE, 0));
        turns.leave(&slow);
        assert_eq!(turns.give_back(OTHER), None);
        assert!(turns.take(ONE));
    }

    #[test]
    fn of_too_many_that_are_slow_the_slowest_of_the_largest_crowd_ends() {
        let turns = Turns::new(4);
        let (third, fourth) = (IpAddr::from([10, 0, 0, 3]), IpAddr::from([10, 0, 0, 4]));
        assert!(turns.take(ONE) && turns.take(ONE) && turns.take(ONE) && turns.take(OTHER));
        for _ in 0..4 {
            assert_eq!(turns.wait(third, 'x'), None);
        }
        let (slow, _) = aside(turns.make_way(ONE, 1000));
        let (slower, _) = aside(turns.make_way(ONE, 999));
        let (slowest, _) = aside(turns.make_way(OTHER, 0));
        // The third address has enough turns: nobody would gain.
        assert!(matches!(turns.make_way(ONE, 0), Slow::Stays));
        assert_eq!(turns.wait(fourth, 'y'), None);
        let (last, next) = aside(turns.make_way(ONE, LEAST - 1));
        assert_eq!(next, 'y');
        let ending = || [&slow, &slower, &slowest, &last].map(|one| one.must_end());
        assert!(matches!(turns.make_way(fourth, 0), Slow::Stays));
        assert_eq!(ending(), [false; 4]);
        for _ in 0..4 {
            assert_eq!(turns.wait(fourth, 'z'), None);
        }
        assert!(matches!(turns.make_way(third, 0), Slow::Stays));
        assert_eq!(ending(), [false, true, false, false]);
        slow.set_rate(LEAST);
        assert!(matches!(turns.make_way(ONE, 5000), Slow::Ends));
        turns.leave(&slower);
        // Those who wait are helped by the ones that end already.
        let (_next, x) = aside(turns.make_way(third, 0));
        assert_eq!((x, turns.take_out(|_| true).len()), ('x', 4));
        assert!(matches!(turns.make_way(third, 0), Slow::Stays));
    }

    #[test]
    fn where_no_address_has_more_than_others_what_moves_a_little_goes_on() {
        let turns = Turns::new(2);
        assert!(turns.take(ONE) && turns.take(OTHER));
        let third = IpAddr::from([10, 0, 0, 3]);
        for _ in 0..4 {
            assert_eq!(turns.wait(third, 'x'), None);
        }
        let (one, _) = aside(turns.make_way(ONE, TRICKLE));
        let (other, _) = aside(turns.make_way(OTHER, TRICKLE));
        assert!(matches!(turns.make_way(third, TRICKLE), Slow::Stays));
        assert!(!one.must_end() && !other.must_end());
        assert!(matches!(turns.make_way(third, TRICKLE - 1), Slow::Ends));
    }

    #[test]
    fn nobody_has_all() {
        let turns = Turns::new(8);
        assert_eq!((0..8).filter(|_| turns.take(ONE)).count(), 6);
        assert_eq!(turns.wait(ONE, 'a'), None);
        assert!(turns.take(OTHER) && turns.take(OTHER) && !turns.take(OTHER));
        // What the other gives back is not for who has enough.
        assert_eq!(turns.give_back(OTHER), None);
        assert!(turns.take(OTHER));
        assert_eq!(turns.give_back(ONE), Some('a'));
        assert_eq!(turns.wait(ONE, 'b'), None);
        for _ in 0..2 {
            assert_eq!(turns.give_back(OTHER), None);
        }
        assert_eq!(turns.give_back(ONE), Some('b'));
    }
}
