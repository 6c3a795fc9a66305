//! How many operations that take their time are under way. What does not, such as log-ins and file operations, has
//! threads of its own: clients that let their transfers stall do not keep others out.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// At most so many at a time; the others wait in order of arrival.
pub(crate) struct Turns<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    free: usize,
    waiting: VecDeque<T>,
}

impl<T> Turns<T> {
    pub(crate) fn new(most: usize) -> Self {
        Self { state: Mutex::new(State { free: most, waiting: VecDeque::new() }) }
    }

    /// A turn, where there is one; it has to be given back.
    pub(crate) fn take(&self) -> bool {
        let mut state = self.lock();
        let free = state.free > 0;
        state.free -= usize::from(free);
        free
    }

    /// Waits for a turn. `one` comes back with it, at once or from [`Self::give_back`].
    pub(crate) fn wait(&self, one: T) -> Option<T> {
        let mut state = self.lock();
        if state.free > 0 {
            state.free -= 1;
            return Some(one);
        }
        state.waiting.push_back(one);
        None
    }

    /// Ends a turn. Who has waited longest has it now.
    pub(crate) fn give_back(&self) -> Option<T> {
        let mut state = self.lock();
        let next = state.waiting.pop_front();
        if next.is_none() {
            state.free += 1;
        }
        next
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_taken_in_order() {
        let turns = Turns::new(2);
        assert!(turns.take() && turns.take() && !turns.take());
        assert_eq!((turns.wait('a'), turns.wait('b')), (None, None));
        assert_eq!((turns.give_back(), turns.give_back()), (Some('a'), Some('b')));
        assert_eq!(turns.give_back(), None);
        assert_eq!(turns.wait('c'), Some('c'));
        assert!(!turns.take());
        assert_eq!((turns.give_back(), turns.give_back()), (None, None));
        assert!(turns.take() && turns.take() && !turns.take());
    }
}
