//! The body of a NAK: lost packets, one by one or as ranges (draft-gg-udt-03, appendix A).

use crate::Seq;

/// Set in the first number of a range.
const RANGE: u32 = 1 << 31;

/// The packets that a NAK reports, as `(first, last)`, in the order of the packet. A range without
/// its second number ends the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossList<'a>(&'a [u8]);

impl<'a> LossList<'a> {
    pub fn new(body: &'a [u8]) -> Self {
        Self(body)
    }

    /// Appends one entry to the body of a NAK.
    pub fn push(body: &mut Vec<u8>, first: Seq, last: Seq) {
        if first == last {
            body.extend_from_slice(&first.get().to_be_bytes());
        } else {
            body.extend_from_slice(&(first.get() | RANGE).to_be_bytes());
            body.extend_from_slice(&last.get().to_be_bytes());
        }
    }

    pub(crate) fn bytes(self) -> &'a [u8] {
        self.0
    }
}

impl Iterator for LossList<'_> {
    type Item = (Seq, Seq);

    fn next(&mut self) -> Option<Self::Item> {
        let mut word = || {
            let (word, rest) = self.0.split_first_chunk()?;
            self.0 = rest;
            Some(u32::from_be_bytes(*word))
        };
        let first = word()?;
        let last = if first & RANGE == 0 { first } else { word()? };
        Some((Seq::new(first), Seq::new(last)))
    }
}
