//! Sets of byte ranges: for restart markers, and for the received and the missing ranges of a file.

mod starts;

use std::fmt;
use std::ops::Range;

use bstr::{BString, ByteSlice};

use starts::Starts;

/// A set operation inserts or removes up to this number of ranges one by one, and also more if they
/// are a small fraction of the existing ranges. Otherwise it merges both sets in one pass.
const FEW: usize = 4;
/// The fraction that is small: at most one in this number of the existing ranges.
const SMALL_PART: usize = 8;

/// A set of bytes: disjoint, non-adjacent, non-empty half-open ranges, ordered by start.
///
/// A peer decides the number and the order of the ranges, so no order may be slow: an insertion or
/// a removal takes time in the order of the logarithm of their number.
#[derive(Clone, Default)]
pub struct RangeSet(Starts);

impl PartialEq for RangeSet {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().eq(other.0.iter())
    }
}

impl Eq for RangeSet {}

impl RangeSet {
    pub fn new() -> Self {
        Self::default()
    }

    /// The set of all bytes of `range`.
    pub fn from_range(range: Range<u64>) -> Self {
        let mut set = Self::new();
        set.insert(range);
        set
    }

    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Number of bytes in the set.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// Number of ranges.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + ExactSizeIterator + '_ {
        self.0.iter().map(|(start, end)| start..end)
    }

    /// The end of the last range, or 0 if the set is empty.
    pub fn end(&self) -> u64 {
        self.0.iter().next_back().map_or(0, |(_, end)| end)
    }

    /// The length of the range that begins at 0, or 0 if there is none.
    pub fn prefix(&self) -> u64 {
        self.0.iter().next().filter(|(start, _)| *start == 0).map_or(0, |(_, end)| end)
    }

    pub fn insert(&mut self, range: Range<u64>) {
        if range.start < range.end {
            self.0.insert(range);
        }
    }

    pub fn remove(&mut self, range: Range<u64>) {
        if range.start < range.end {
            self.0.remove(range);
        }
    }

    pub fn contains(&self, range: Range<u64>) -> bool {
        if range.start >= range.end {
            return true;
        }
        self.0.contains(&range)
    }

    pub fn union(&mut self, other: &Self) {
        if self.dwarfs(other) {
            other.iter().for_each(|range| self.insert(range));
            return;
        }
        let mut all = Joined::with_capacity(self.count().max(other.count()));
        {
            let (mut a, mut b) = (self.iter().peekable(), other.iter().peekable());
            while let Some(first) = match (a.peek(), b.peek()) {
                (Some(x), Some(y)) if x.start > y.start => b.next(),
                (Some(_), _) => a.next(),
                (None, _) => b.next(),
            } {
                all.append(first);
            }
        }
        *self = all.into();
    }

    pub fn subtract(&mut self, other: &Self) {
        if self.dwarfs(other) {
            other.iter().for_each(|range| self.remove(range));
            return;
        }
        let mut left = Vec::with_capacity(self.count());
        let mut holes = other.from(self.0.iter().next().map_or(0, |(start, _)| start)).peekable();
        for range in self.iter() {
            let mut start = range.start;
            while holes.next_if(|hole| hole.end <= start).is_some() {}
            while let Some(hole) = holes.peek().filter(|hole| hole.start < range.end) {
                if start < hole.start {
                    left.push((start, hole.start));
                }
                start = hole.end;
                // The hole may extend into the next range.
                if hole.end > range.end {
                    break;
                }
                holes.next();
            }
            if start < range.end {
                left.push((start, range.end));
            }
        }
        self.0 = left.into();
    }

    /// The bytes of `within` that are not in the set.
    pub fn complement(&self, within: Range<u64>) -> Self {
        let mut set = Self::from_range(within);
        // Most of the ranges may be outside of `within`.
        let cut = set.iter().next();
        match cut {
            Some(within) if self.count() > FEW => set.subtract(&self.intersection(within)),
            _ => set.subtract(self),
        }
        set
    }

    /// The bytes of the set that are within `within`.
    pub fn intersection(&self, within: Range<u64>) -> Self {
        let ranges = self.from(within.start).take_while(|range| range.start < within.end);
        let cut = ranges.map(|range| (range.start.max(within.start), range.end.min(within.end)));
        Self(cut.filter(|(start, end)| start < end).collect::<Vec<_>>().into())
    }

    /// The ranges in order, beginning with the last one that starts at or before `start`.
    fn from(&self, start: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.from(start).map(|(start, end)| start..end)
    }

    /// Whether `other` has few ranges, or few compared to this set.
    fn dwarfs(&self, other: &Self) -> bool {
        other.count() <= FEW.max(self.count() / SMALL_PART)
    }

    /// Moves every range up by `by`; `None` if that overflows.
    pub fn shift_up(&self, by: u64) -> Option<Self> {
        let moved = self.0.iter().map(|(start, end)| Some((start.checked_add(by)?, end.checked_add(by)?)));
        moved.collect::<Option<Vec<_>>>().map(|moved| Self(moved.into()))
    }

    /// Moves every range down by `by`. Bytes that would be below 0 are dropped.
    pub fn shift_down(&self, by: u64) -> Self {
        self.iter().map(|range| range.start.saturating_sub(by)..range.end.saturating_sub(by)).collect()
    }
}

/// Builds a list of ranges that are appended in the order of their starts.
struct Joined(Vec<(u64, u64)>);

impl Joined {
    fn with_capacity(ranges: usize) -> Self {
        Self(Vec::with_capacity(ranges))
    }

    /// Appends a range that does not begin before the last one.
    fn append(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some((_, end)) if range.start <= *end => *end = range.end.max(*end),
            _ => self.0.push((range.start, range.end)),
        }
    }
}

impl From<Joined> for RangeSet {
    fn from(joined: Joined) -> Self {
        Self(joined.0.into())
    }
}

/// The text is not a list of ranges.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    #[error("expected a range a-b of two numbers below 2^64, got {text:?}")]
    NotARange { text: BString },
    #[error("the range {start}-{end} ends before it begins")]
    Reversed { start: u64, end: u64 },
}

impl RangeSet {
    /// Parses `a-b,c-d` with exclusive ends, in any order: the form of 111 markers. Empty ranges
    /// (`5-5`) are allowed.
    ///
    /// # Errors
    /// A part is not two numbers below 2^64 with `-` between them, or it ends before it begins.
    pub fn parse(text: &[u8]) -> Result<Self, RangeError> {
        text.split_str(",").map(parse_range).collect()
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
        // Sorting first makes the insertions fast, in whatever order a peer sends the ranges.
        ranges.sort_unstable_by_key(|r| r.start);
        let mut joined = Joined::with_capacity(ranges.len());
        ranges.into_iter().for_each(|range| joined.append(range));
        joined.into()
    }
}

impl fmt::Debug for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RangeSet({self})")
    }
}

/// The form of 111 markers and REST: `0-10,20-30`, with exclusive ends (GFD.20 section 3.5).
impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, r) in self.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{}-{}", r.start, r.end)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
