//! Data that has arrived and that the application has not read.
//!
//! Packets are kept by their position. They arrive in any order; the application reads those before
//! the first gap.

use crate::pages::Pages;

/// The length of a slot without a packet. No packet is that long.
const ABSENT: u16 = u16::MAX;

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Insertion {
    Duplicate,
    New,
    /// There is no room for the packet.
    Outside,
}

pub(crate) struct ReceiveBuffer {
    payload: usize,
    bytes: Pages,
    /// A ring of the lengths of the packets.
    lengths: Vec<u16>,
    /// The packet that is read next, and how much of it was read.
    read: u64,
    offset: usize,
    /// The first packet that is missing.
    next: u64,
    unread: usize,
}

impl ReceiveBuffer {
    pub(crate) fn new(slots: u32, payload: usize) -> Self {
        let lengths = vec![ABSENT; slots as usize];
        Self { payload, bytes: Pages::new(payload), lengths, read: 0, offset: 0, next: 0, unread: 0 }
    }

    /// The first packet that is missing.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The bytes that can be read.
    pub(crate) fn unread(&self) -> usize {
        self.unread
    }

    pub(crate) fn capacity(&self) -> usize {
        self.lengths.len() * self.payload
    }

    pub(crate) fn slots(&self) -> u64 {
        self.lengths.len() as u64
    }

    /// The packet after the last one for which there is room.
    pub(crate) fn limit(&self) -> u64 {
        self.read + self.slots()
    }

    /// `payload` must not be longer than the payload of the connection.
    pub(crate) fn insert(&mut self, position: u64, payload: &[u8]) -> Insertion {
        if position < self.next {
            return Insertion::Duplicate;
        }
        if position >= self.limit() {
            return Insertion::Outside;
        }
        let index = self.index(position);
        if self.lengths[index] != ABSENT {
            return Insertion::Duplicate;
        }
        self.bytes.packet_mut(position)[..payload.len()].copy_from_slice(payload);
        self.lengths[index] = u16::try_from(payload.len()).unwrap_or(0);
        while self.next < self.limit() {
            let length = self.lengths[self.index(self.next)];
            if length == ABSENT {
                break;
            }
            self.unread += usize::from(length);
            self.next += 1;
        }
        Insertion::New
    }

    /// Returns how many bytes were copied; 0 if there are none.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while self.read < self.next && done < buffer.len() {
            let index = self.index(self.read);
            let length = usize::from(self.lengths[index]);
            let n = (length - self.offset).min(buffer.len() - done);
            let bytes = &self.bytes.packet(self.read)[self.offset..self.offset + n];
            buffer[done..done + n].copy_from_slice(bytes);
            done += n;
            self.offset += n;
            if self.offset == length {
                self.lengths[index] = ABSENT;
                self.offset = 0;
                self.read += 1;
            }
        }
        self.bytes.release(self.read);
        self.unread -= done;
        done
    }

    #[expect(clippy::cast_possible_truncation, reason = "an index of a slot fits")]
    fn index(&self, position: u64) -> usize {
        (position % self.slots()) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_stops_before_a_gap() {
        let mut buffer = ReceiveBuffer::new(32, 4);
        assert_eq!(buffer.insert(0, b"abcd"), Insertion::New);
        assert_eq!(buffer.insert(2, b"ij"), Insertion::New);
        let mut out = [0; 20];
        assert_eq!(buffer.read(&mut out[..3]), 3);
        assert_eq!(buffer.read(&mut out), 1);
        assert_eq!(buffer.read(&mut out), 0);
        assert_eq!(buffer.insert(1, b"efgh"), Insertion::New);
        assert_eq!((buffer.unread(), buffer.read(&mut out)), (6, 6));
        assert_eq!(&out[..6], b"efghij");
    }

    #[test]
    fn insert_beyond_the_room_or_twice_changes_nothing() {
        let mut buffer = ReceiveBuffer::new(32, 4);
        for position in 0..32 {
            assert_eq!(buffer.insert(position, b"abcd"), Insertion::New);
        }
        assert_eq!(buffer.insert(32, b"abcd"), Insertion::Outside);
        assert_eq!(buffer.insert(31, b"abcd"), Insertion::Duplicate);
        assert_eq!((buffer.next(), buffer.unread()), (32, 128));
        assert_eq!(buffer.read(&mut [0; 4]), 4);
        assert_eq!(buffer.insert(32, b""), Insertion::New);
    }
}
