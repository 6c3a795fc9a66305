//! The bytes of packets, by position, in pages that are used again.
//!
//! A buffer of fixed size would use all of its memory in turn, also when few packets are in it, so
//! that each byte would come from memory instead of the cache. Pages that were released last are
//! used first, and a buffer takes only the memory that its packets have needed.

use std::collections::VecDeque;

/// The packets of a page.
const PACKETS: u64 = 32;

pub(crate) struct Pages {
    payload: usize,
    /// The number of the first page; the others follow it.
    first: u64,
    pages: VecDeque<Option<Box<[u8]>>>,
    free: Vec<Box<[u8]>>,
}

impl Pages {
    pub(crate) fn new(payload: usize) -> Self {
        Self { payload, first: 0, pages: VecDeque::new(), free: Vec::new() }
    }

    /// The memory of a packet that was not released; empty if nothing was written to its page.
    pub(crate) fn packet(&self, position: u64) -> &[u8] {
        let page = self.pages.get(self.index(position)).and_then(Option::as_deref);
        let at = self.offset(position);
        page.map_or(&[], |page| &page[at..at + self.payload])
    }

    /// The memory of a packet that was not released.
    pub(crate) fn packet_mut(&mut self, position: u64) -> &mut [u8] {
        let (index, at) = (self.index(position), self.offset(position));
        if index >= self.pages.len() {
            self.pages.resize_with(index + 1, || None);
        }
        let size = self.payload * PACKETS as usize;
        let page = self.pages[index]
            .get_or_insert_with(|| self.free.pop().unwrap_or_else(|| vec![0; size].into_boxed_slice()));
        &mut page[at..at + self.payload]
    }

    /// Releases the packets before `position`.
    pub(crate) fn release(&mut self, position: u64) {
        while self.first < position / PACKETS {
            match self.pages.pop_front() {
                Some(page) => self.free.extend(page),
                None => {
                    self.first = position / PACKETS;
                    return;
                }
            }
            self.first += 1;
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a number of pages in memory fits")]
    fn index(&self, position: u64) -> usize {
        (position / PACKETS - self.first) as usize
    }

    fn offset(&self, position: u64) -> usize {
        (position % PACKETS) as usize * self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_beyond_released_ones_keep_their_bytes() {
        let mut pages = Pages::new(4);
        for position in 0..10 * PACKETS {
            pages.packet_mut(position).copy_from_slice(&(position as u32).to_be_bytes());
            pages.release(position.saturating_sub(40));
            assert_eq!(
                pages.packet(position.saturating_sub(40)),
                (position.saturating_sub(40) as u32).to_be_bytes()
            );
        }
        assert!(pages.pages.len() + pages.free.len() <= 4);
    }

    #[test]
    fn packet_of_a_page_without_bytes_is_empty() {
        let mut pages = Pages::new(4);
        pages.packet_mut(3 * PACKETS)[0] = 1;
        assert!(pages.packet(0).is_empty());
        pages.release(5 * PACKETS);
        assert_eq!(pages.free.len(), 1);
        pages.packet_mut(5 * PACKETS)[0] = 2;
        assert_eq!(pages.packet(5 * PACKETS)[0], 2);
    }
}
