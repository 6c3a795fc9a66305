//! How many operations that take their time are under way. What does not, such as log-ins and file operations, has
//! threads of its own: clients that let their transfers stall do not keep others out.

use std::collections::HashMap;
use std::net::IpAddr;

use parking_lot::Mutex;

use crate::fair::Fair;
use crate::throttle::network;

/// At most so many at a time; among those who wait, addresses take turns. One address has at most three quarters, so that
/// there are some left for others, whatever it does with its own.
pub(crate) struct Turns<T> {
    most_of_one: usize,
    state: Mutex<State<T>>,
}

struct State<T> {
    free: usize,
    had: HashMap<IpAddr, usize>,
    waiting: Fair<T>,
}

impl<T> Turns<T> {
    pub(crate) fn new(most: usize) -> Self {
        let state = State { free: most, had: HashMap::new(), waiting: Fair::default() };
        Self { most_of_one: most - most / 4, state: Mutex::new(state) }
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
        let mut state = self.state.lock();
        let State { free, had, waiting } = &mut *state;
        *free += 1;
        if let Some(theirs) = had.get_mut(&network(address)) {
            *theirs -= 1;
            if *theirs == 0 {
                had.remove(&network(address));
            }
        }
        let may = |address| had.get(&address).is_none_or(|&theirs| theirs < self.most_of_one);
        let (address, next) = waiting.pop(may)?;
        *free -= 1;
        *had.entry(address).or_default() += 1;
        Some(next)
    }

    /// Those who wait no longer, as `is` says.
    pub(crate) fn take_out(&self, is: impl Fn(&T) -> bool) -> Vec<T> {
        self.state.lock().waiting.take_out(is)
    }

    pub(crate) fn are_awaited(&self) -> bool {
        self.state.lock().waiting.len() > 0
    }
}

impl<T> State<T> {
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
