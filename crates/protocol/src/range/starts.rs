//! Storage of the ranges of a set, ordered by start: a short list in almost all cases, or a tree if
//! a peer creates many ranges.

use std::collections::{BTreeMap, btree_map};
use std::ops::Bound::{Excluded, Included};
use std::ops::Range;
use std::slice;

/// Up to this number of ranges are kept in a list: moving the ranges after an inserted one is then
/// cheap. In tests the limit is low, so that they also cover trees.
const SHORT: usize = if cfg!(test) { 3 } else { 64 };

/// Starts and ends, in order. The ranges are disjoint, non-adjacent and non-empty.
#[derive(Clone)]
pub(super) enum Starts {
    List(Vec<(u64, u64)>),
    Tree(BTreeMap<u64, u64>),
}

impl Default for Starts {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl Starts {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Tree(tree) => tree.len(),
        }
    }

    pub(super) fn iter(&self) -> Iter<'_> {
        match self {
            Self::List(list) => Iter::List(list.iter()),
            Self::Tree(tree) => Iter::Tree(tree.iter()),
        }
    }

    /// The ranges in order, beginning with the last one that starts at or before `start`.
    pub(super) fn from(&self, start: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        match self {
            Self::List(list) => {
                let after = list.partition_point(|one| one.0 <= start);
                Part::List(list[after.saturating_sub(1)..].iter())
            }
            Self::Tree(tree) => {
                let first = tree.range(..=start).next_back().map_or(start, |(&start, _)| start);
                Part::Tree(tree.range(first..))
            }
        }
    }

    /// Whether one range contains all of `range`, which is not empty.
    pub(super) fn contains(&self, range: &Range<u64>) -> bool {
        match self {
            Self::List(list) => {
                let at = list.partition_point(|one| one.1 <= range.start);
                list.get(at).is_some_and(|one| one.0 <= range.start && range.end <= one.1)
            }
            Self::Tree(tree) => {
                tree.range(..=range.start).next_back().is_some_and(|(_, &end)| range.end <= end)
            }
        }
    }

    /// Inserts `range`, which is not empty. It is joined with the ranges that it overlaps or
    /// touches.
    pub(super) fn insert(&mut self, range: Range<u64>) {
        match self {
            Self::List(list) => {
                insert(list, range);
                self.lengthened();
            }
            Self::Tree(tree) => grow(tree, range),
        }
    }

    /// Removes the bytes of `range`, which is not empty.
    pub(super) fn remove(&mut self, range: Range<u64>) {
        match self {
            Self::List(list) => {
                remove(list, range);
                self.lengthened();
            }
            Self::Tree(tree) => shrink(tree, range),
        }
    }

    fn lengthened(&mut self) {
        if let Self::List(list) = self
            && list.len() > SHORT
        {
            *self = Self::Tree(list.drain(..).collect());
        }
    }
}

fn insert(list: &mut Vec<(u64, u64)>, range: Range<u64>) {
    // The common case: blocks arrive in order.
    if let Some(last) = list.last_mut()
        && range.start >= last.0
    {
        if range.start <= last.1 {
            last.1 = last.1.max(range.end);
        } else {
            list.push((range.start, range.end));
        }
        return;
    }
    let first = list.partition_point(|one| one.1 < range.start);
    let met = list[first..].iter().take_while(|one| one.0 <= range.end).count();
    if met == 0 {
        return list.insert(first, (range.start, range.end));
    }
    let end = list[first + met - 1].1.max(range.end);
    list[first] = (list[first].0.min(range.start), end);
    if met > 1 {
        list.drain(first + 1..first + met);
    }
}

fn remove(list: &mut Vec<(u64, u64)>, range: Range<u64>) {
    let first = list.partition_point(|one| one.1 <= range.start);
    let after = list.partition_point(|one| one.0 < range.end);
    if first >= after {
        return;
    }
    let left = (list[first].0, range.start);
    let right = (range.end, list[after - 1].1);
    match (left.0 < left.1, right.0 < right.1) {
        // Only the start or the end of one range is removed.
        (true, false) if after - first == 1 => list[first] = left,
        (false, true) if after - first == 1 => list[first] = right,
        _ => drop(list.splice(first..after, [left, right].into_iter().filter(|one| one.0 < one.1))),
    }
}

fn grow(tree: &mut BTreeMap<u64, u64>, range: Range<u64>) {
    let joined = match tree.range_mut(..=range.start).next_back() {
        Some((&start, end)) if range.start <= *end => {
            if range.end <= *end {
                return;
            }
            *end = range.end;
            start
        }
        _ => {
            tree.insert(range.start, range.end);
            range.start
        }
    };
    // Ranges that begin within the new range, or at its end, are joined with it.
    while let Some((&start, &end)) = tree.range((Excluded(joined), Included(range.end))).next() {
        tree.remove(&start);
        if end > range.end {
            tree.insert(joined, end);
            return;
        }
    }
}

fn shrink(tree: &mut BTreeMap<u64, u64>, range: Range<u64>) {
    if let Some((_, end)) = tree.range_mut(..range.start).next_back()
        && *end > range.start
    {
        let right = range.end..std::mem::replace(end, range.start);
        if right.start < right.end {
            tree.insert(right.start, right.end);
            return;
        }
    }
    while let Some((&start, &end)) = tree.range(range.start..range.end).next() {
        tree.remove(&start);
        if end > range.end {
            tree.insert(range.end, end);
            return;
        }
    }
}

/// Takes ranges in order.
impl From<Vec<(u64, u64)>> for Starts {
    fn from(sorted: Vec<(u64, u64)>) -> Self {
        if sorted.len() > SHORT { Self::Tree(sorted.into_iter().collect()) } else { Self::List(sorted) }
    }
}

pub(super) enum Iter<'s> {
    List(slice::Iter<'s, (u64, u64)>),
    Tree(btree_map::Iter<'s, u64, u64>),
}

impl Iterator for Iter<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::List(list) => list.next().copied(),
            Self::Tree(tree) => tree.next().map(|(&start, &end)| (start, end)),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::List(list) => list.size_hint(),
            Self::Tree(tree) => tree.size_hint(),
        }
    }
}

impl DoubleEndedIterator for Iter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        match self {
            Self::List(list) => list.next_back().copied(),
            Self::Tree(tree) => tree.next_back().map(|(&start, &end)| (start, end)),
        }
    }
}

impl ExactSizeIterator for Iter<'_> {}

enum Part<'s> {
    List(slice::Iter<'s, (u64, u64)>),
    Tree(btree_map::Range<'s, u64, u64>),
}

impl Iterator for Part<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::List(list) => list.next().copied(),
            Self::Tree(tree) => tree.next().map(|(&start, &end)| (start, end)),
        }
    }
}
