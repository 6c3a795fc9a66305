//! Queues in which addresses take turns, so that an address with very many entries does not make
//! others wait for more than one of them.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

pub(crate) struct FairQueue<T> {
    waiting: HashMap<IpAddr, VecDeque<T>>,
    /// The addresses in `waiting`, the next one first.
    turns: VecDeque<IpAddr>,
    count: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { waiting: HashMap::new(), turns: VecDeque::new(), count: 0 }
    }
}

impl<T> FairQueue<T> {
    pub(crate) fn push(&mut self, address: IpAddr, one: T) {
        self.theirs(address).push_back(one);
    }

    /// For an entry that returns to the queue: before all others of its address.
    pub(crate) fn push_front(&mut self, address: IpAddr, one: T) {
        self.theirs(address).push_front(one);
    }

    /// The entries of an address, of which there will be one more.
    fn theirs(&mut self, address: IpAddr) -> &mut VecDeque<T> {
        let theirs = self.waiting.entry(address).or_default();
        if theirs.is_empty() {
            self.turns.push_back(address);
        }
        self.count += 1;
        theirs
    }

    /// Removes the next entry of an address for which `may` is true.
    pub(crate) fn pop(&mut self, may: impl Fn(IpAddr) -> bool) -> Option<(IpAddr, T)> {
        let at = self.turns.iter().position(|&address| may(address))?;
        let address = self.turns.remove(at)?;
        let theirs = self.waiting.get_mut(&address)?;
        let one = theirs.pop_front();
        if theirs.is_empty() {
            self.waiting.remove(&address);
        } else {
            self.turns.push_back(address);
        }
        self.count -= usize::from(one.is_some());
        one.map(|one| (address, one))
    }

    /// Removes the first entry for which `is` is true, whose address has had its turn then.
    pub(crate) fn pop_where(&mut self, is: impl Fn(&T) -> bool) -> Option<T> {
        let found = self.turns.iter().enumerate().find_map(|(turn, address)| {
            let at = self.waiting.get(address)?.iter().position(&is)?;
            Some((turn, at))
        });
        let (turn, at) = found?;
        let address = self.turns.remove(turn)?;
        let theirs = self.waiting.get_mut(&address)?;
        let one = theirs.remove(at);
        if theirs.is_empty() {
            self.waiting.remove(&address);
        } else {
            self.turns.push_back(address);
        }
        self.count -= usize::from(one.is_some());
        one
    }

    /// Whether there is an entry of an address for which `may` is true.
    pub(crate) fn has(&self, may: impl Fn(IpAddr) -> bool) -> bool {
        self.turns.iter().any(|&address| may(address))
    }

    /// Removes all entries for which `is` is true, regardless of turns.
    pub(crate) fn remove(&mut self, is: impl Fn(&T) -> bool) -> Vec<T> {
        let mut out = Vec::new();
        for theirs in self.waiting.values_mut() {
            if theirs.iter().any(&is) {
                let (gone, left): (Vec<T>, Vec<T>) = theirs.drain(..).partition(&is);
                theirs.extend(left);
                out.extend(gone);
            }
        }
        self.waiting.retain(|_, theirs| !theirs.is_empty());
        self.turns.retain(|address| self.waiting.contains_key(address));
        self.count -= out.len();
        out
    }

    /// All entries in the order in which they come if every address may run.
    pub(crate) fn in_order(&mut self) -> impl Iterator<Item = &mut T> {
        let turns: HashMap<IpAddr, usize> = self.turns.iter().copied().zip(0..).collect();
        let entries = self.waiting.iter_mut().flat_map(|(address, theirs)| {
            let turn = turns.get(address).copied().unwrap_or_default();
            theirs.iter_mut().enumerate().map(move |(round, one)| ((round, turn), one))
        });
        let mut entries: Vec<_> = entries.collect();
        entries.sort_unstable_by_key(|(place, _)| *place);
        entries.into_iter().map(|(_, one)| one)
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Whether there are at least `most` entries, and `address` has its share of them.
    pub(crate) fn is_crowded(&self, address: IpAddr, most: usize) -> bool {
        let theirs = self.waiting.get(&address).map_or(0, VecDeque::len);
        self.count >= most && theirs * self.waiting.len() >= self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn queue_when_crowded_refuses_addresses_with_large_share() {
        let mut waiting = FairQueue::default();
        for _ in 0..10 {
            waiting.push(FLOOD, ());
        }
        assert!(!waiting.is_crowded(FLOOD, 11));
        assert!(waiting.is_crowded(FLOOD, 10));
        assert!(!waiting.is_crowded(OTHER, 10));
        waiting.push(OTHER, ());
        assert!(waiting.is_crowded(FLOOD, 10) && !waiting.is_crowded(OTHER, 10));
        while waiting.pop(|_| true).is_some() {}
        assert!(!waiting.is_crowded(FLOOD, 1));
    }

    #[test]
    fn queue_pop_skips_addresses_that_may_not_run() {
        let mut waiting = FairQueue::default();
        for n in 0..4 {
            waiting.push(FLOOD, n);
        }
        waiting.push(OTHER, 10);
        assert_eq!(waiting.remove(|n| n % 2 == 1).len(), 2);
        assert_eq!(waiting.len(), 3);
        assert_eq!(waiting.pop(|address| address == OTHER), Some((OTHER, 10)));
        assert_eq!(waiting.pop(|address| address == OTHER), None);
        waiting.push(OTHER, 11);
        assert_eq!(waiting.in_order().map(|n| *n).collect::<Vec<_>>(), [0, 11, 2]);
        let order: Vec<_> = std::iter::from_fn(|| waiting.pop(|_| true)).map(|(_, n)| n).collect();
        assert_eq!(order, [0, 11, 2]);
        waiting.push(FLOOD, 3);
        waiting.push(FLOOD, 4);
        waiting.push(OTHER, 12);
        assert_eq!((waiting.pop_where(|n| *n > 9), waiting.pop_where(|n| *n == 4)), (Some(12), Some(4)));
        assert_eq!((waiting.pop_where(|n| *n > 9), waiting.pop_where(|n| *n == 3)), (None, Some(3)));
        assert_eq!(waiting.len(), 0);
        waiting.push(OTHER, 12);
        assert_eq!(waiting.remove(|_| true), [12]);
        assert!(waiting.waiting.is_empty() && waiting.turns.is_empty() && waiting.len() == 0);
    }
}
