//! Detects messages of the peer that arrive twice.
//!
//! The library's own replay detection cannot be used if one context protects several connections:
//! it expects a single order, and remembers only a few dozen messages. So [`Seen`] records the
//! sequence numbers of all messages.

use std::collections::BTreeMap;

use crate::SessionError;

/// Maximum number of runs. One more run starts for each message that is still in transit on another
/// connection when a later one arrives.
const MOST: usize = 1 << 16;

/// The numbers that were seen, as runs: first number to last number.
#[derive(Debug, Default)]
pub(crate) struct Seen(BTreeMap<u64, u64>);

impl Seen {
    /// Records a number.
    ///
    /// # Errors
    /// The number was recorded before.
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
            // Count the numbers that have been missing for longest as seen: losing a message is
            // better than accepting one twice.
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
    fn enter_number_twice_fails() {
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
    fn enter_many_gaps_keeps_size_bounded() {
        let mut seen = Seen::default();
        for number in 0..MOST as u64 + 10 {
            seen.enter(2 * number).unwrap();
        }
        assert_eq!(seen.0.len(), MOST);
        // The oldest gaps are closed; the others are still open.
        assert!(seen.enter(1).is_err());
        seen.enter(2 * MOST as u64 + 1).unwrap();
    }
}
