//! Sets of byte ranges: restart markers, what is there, what is still to move.

use std::fmt;
use std::ops::Range;

use bstr::{BString, ByteSlice};

/// So many ranges are put in or taken out one by one; of more, each would move what stands behind it.
const FEW: usize = 4;

/// A set of bytes, kept as sorted, disjoint, non-adjacent, non-empty half-open ranges.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RangeSet(Vec<Range<u64>>);

impl RangeSet {
    pub fn new() -> Self {
        Self::default()
    }

    /// All bytes of `range`.
    pub fn from_range(range: Range<u64>) -> Self {
        let mut set = Self::new();
        set.insert(range);
        set
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of bytes in the set.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|r| r.end - r.start).sum()
    }

    /// Number of ranges.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + ExactSizeIterator + '_ {
        self.0.iter().cloned()
    }

    /// The end of the last range, 0 where there is none.
    pub fn end(&self) -> u64 {
        self.0.last().map_or(0, |r| r.end)
    }

    /// The bytes from 0 up to the first hole.
    pub fn prefix(&self) -> u64 {
        self.0.first().filter(|r| r.start == 0).map_or(0, |r| r.end)
    }

    pub fn insert(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        // The common case: blocks that come in order.
        if self.0.last().is_none_or(|last| range.start >= last.start) {
            self.append(range);
            return;
        }
        let first = self.0.partition_point(|r| r.end < range.start);
        let after = self.0.partition_point(|r| r.start <= range.end);
        if first == after {
            self.0.insert(first, range);
        } else {
            let merged = self.0[first].start.min(range.start)..self.0[after - 1].end.max(range.end);
            self.0.splice(first..after, [merged]);
        }
    }

    pub fn remove(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let first = self.0.partition_point(|r| r.end <= range.start);
        let after = self.0.partition_point(|r| r.start < range.end);
        if first >= after {
            return;
        }
        let left = self.0[first].start..range.start;
        let right = range.end..self.0[after - 1].end;
        self.0.splice(first..after, [left, right].into_iter().filter(|r| r.start < r.end));
    }

    pub fn contains(&self, range: Range<u64>) -> bool {
        if range.start >= range.end {
            return true;
        }
        let at = self.0.partition_point(|r| r.end <= range.start);
        self.0.get(at).is_some_and(|r| r.start <= range.start && range.end <= r.end)
    }

    pub fn union(&mut self, other: &Self) {
        if other.0.len() <= FEW {
            other.iter().for_each(|range| self.insert(range));
            return;
        }
        let mut all = Self(Vec::with_capacity(self.0.len().max(other.0.len())));
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let Some(first) = match (a.peek(), b.peek()) {
            (Some(x), Some(y)) if x.start > y.start => b.next(),
            (Some(_), _) => a.next(),
            (None, _) => b.next(),
        } {
            all.append(first.clone());
        }
        *self = all;
    }

    pub fn subtract(&mut self, other: &Self) {
        if other.0.len() <= FEW {
            other.iter().for_each(|range| self.remove(range));
            return;
        }
        let mut left = Vec::with_capacity(self.0.len());
        let mut at = 0;
        for range in &self.0 {
            let mut start = range.start;
            at += other.0[at..].iter().take_while(|hole| hole.end <= start).count();
            // The last hole may reach into the next range: it is looked at again.
            while let Some(hole) = other.0.get(at).filter(|hole| hole.start < range.end) {
                if start < hole.start {
                    left.push(start..hole.start);
                }
                start = hole.end;
                if hole.end > range.end {
                    break;
                }
                at += 1;
            }
            if start < range.end {
                left.push(start..range.end);
            }
        }
        self.0 = left;
    }

    /// The bytes of `within` that are not in the set.
    pub fn complement(&self, within: Range<u64>) -> Self {
        let mut set = Self::from_range(within);
        set.subtract(self);
        set
    }

    /// The bytes that are in both.
    pub fn intersection(&self, within: Range<u64>) -> Self {
        if within.start >= within.end {
            return Self::new();
        }
        let first = self.0.partition_point(|r| r.end <= within.start);
        let after = self.0.partition_point(|r| r.start < within.end);
        let mut ranges = self.0[first..after.max(first)].to_vec();
        if let Some(first) = ranges.first_mut() {
            first.start = first.start.max(within.start);
        }
        if let Some(last) = ranges.last_mut() {
            last.end = last.end.min(within.end);
        }
        Self(ranges)
    }

    /// Adds a range that begins nowhere before the last one does.
    fn append(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => self.0.push(range),
        }
    }

    /// Every range moved up by `by`; `None` where that overflows.
    pub fn shift_up(&self, by: u64) -> Option<Self> {
        let mut ranges = Vec::with_capacity(self.0.len());
        for r in &self.0 {
            ranges.push(r.start.checked_add(by)?..r.end.checked_add(by)?);
        }
        Some(Self(ranges))
    }

    /// Every range moved down by `by`; what would be below 0 is cut off.
    pub fn shift_down(&self, by: u64) -> Self {
        let mut set = Self::new();
        for r in &self.0 {
            set.insert(r.start.saturating_sub(by)..r.end.saturating_sub(by));
        }
        set
    }
}

/// A text that is no list of ranges.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    #[error("expected a range a-b of two numbers below 2^64, got {text:?}")]
    NotARange { text: BString },
    #[error("the range {start}-{end} ends before it begins")]
    Reversed { start: u64, end: u64 },
}

impl RangeSet {
    /// Parses `a-b,c-d`, ends exclusive, in any order: the form of 111 markers. Empty ranges (`5-5`) are allowed.
    pub fn parse(text: &[u8]) -> Result<Self, RangeError> {
        text.split_str(",").map(parse_range).collect()
    }

    /// Parses what REST takes: `a-b,c-d`, or a single number `n` for `0-n` (RFC 3659 section 5.3).
    pub fn parse_restart(text: &[u8]) -> Result<Self, RangeError> {
        match parse_number(text.trim()) {
            Some(n) => Ok(Self::from_range(0..n)),
            None => Self::parse(text),
        }
    }
}

fn parse_range(text: &[u8]) -> Result<Range<u64>, RangeError> {
    let error = || RangeError::NotARange { text: text.into() };
    let (start, end) = text.trim().split_once_str("-").ok_or_else(error)?;
    let (start, end) = (parse_number(start).ok_or_else(error)?, parse_number(end).ok_or_else(error)?);
    if start > end { Err(RangeError::Reversed { start, end }) } else { Ok(start..end) }
}

fn parse_number(text: &[u8]) -> Option<u64> {
    let text = text.to_str().ok().filter(|t| t.bytes().all(|b| b.is_ascii_digit()))?;
    text.parse().ok()
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<T: IntoIterator<Item = Range<u64>>>(iter: T) -> Self {
        let mut ranges: Vec<_> = iter.into_iter().filter(|r| r.start < r.end).collect();
        // Putting them in in order is quick, whatever a peer sends.
        ranges.sort_unstable_by_key(|r| r.start);
        let mut set = Self::new();
        ranges.into_iter().for_each(|range| set.append(range));
        set
    }
}

impl fmt::Debug for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RangeSet({self})")
    }
}

/// The form of 111 markers and REST: `0-10,20-30`, ends exclusive (GFD.20 section 3.5).
impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, r) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{}-{}", r.start, r.end)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
