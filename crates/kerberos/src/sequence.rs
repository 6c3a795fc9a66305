//! Which messages of the peer have come.
//!
//! The library's own account is of no use where one context protects several connections: it wants one order, and looks
//! back a few dozen messages only. So the numbers that the messages bear are kept here.

use std::collections::BTreeMap;

use crate::SessionError;

/// Runs of numbers that are kept. One more run begins for each message that is still on its way over another connection
/// when a later one comes.
const MOST: usize = 1 << 16;

/// The numbers that were seen, as runs: first to last.
#[derive(Debug, Default)]
pub(crate) struct Seen(BTreeMap<u64, u64>);

impl Seen {
    /// Enters a number, once.
    pub(crate) fn enter(&mut self, number: u64) -> Result<(), SessionError> {
        let before = self.0.range(..=number).next_back().map(|(first, last)| (*first, *last));
        if before.is_some_and(|(_, last)| number <= last) {
            return Err(SessionError::Replayed { number });
        }
        let mut run = (number, number);
        if let Some((first, last)) = before
            && last.checked_add(1) == Some(number)
        {
            run.0 = first;
        }
        if let Some(next) = number.checked_add(1)
            && let Some(last) = self.0.remove(&next)
        {
            run.1 = last;
        }
        self.0.insert(run.0, run.1);
        if self.0.len() > MOST {
            // What is missing for longest counts as seen from now on: rather a message lost than one taken twice.
            let lowest = self.0.pop_first();
            if let (Some((first, _)), Some((_, last))) = (lowest, self.0.pop_first()) {
                self.0.insert(first, last);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_number_once_in_any_order() {
        let mut seen = Seen::default();
        for number in [7, 5, 6, 9, u64::MAX, 0, 8] {
            seen.enter(number).unwrap();
            assert_eq!(seen.enter(number), Err(SessionError::Replayed { number }));
        }
        assert_eq!(
            seen.0.iter().map(|(a, b)| (*a, *b)).collect::<Vec<_>>(),
            [(0, 0), (5, 9), (u64::MAX, u64::MAX)]
        );
        for number in 5..=9 {
            assert!(seen.enter(number).is_err());
        }
        seen.enter(10).unwrap();
    }

    #[test]
    fn it_does_not_grow_for_ever() {
        let mut seen = Seen::default();
        for number in 0..MOST as u64 + 10 {
            seen.enter(2 * number).unwrap();
        }
        assert_eq!(seen.0.len(), MOST);
        // The oldest gaps are closed, the others open.
        assert!(seen.enter(1).is_err());
        seen.enter(2 * MOST as u64 + 1).unwrap();
    }
}
