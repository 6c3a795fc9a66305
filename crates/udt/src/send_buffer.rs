//! Data that the application has written and the peer has not acknowledged.
//!
//! The buffer is a ring of packets. The content of a packet is fixed when it is sent for the first
//! time, because each later transmission must be the same.

use crate::Micros;

/// How the transmission of a packet stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    #[default]
    Waiting,
    InFlight,
    /// To be sent again.
    Lost,
    SentAgain,
}

/// A packet, with the values that delivery rates are computed from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slot {
    pub(crate) length: u16,
    pub(crate) state: State,
    pub(crate) repeats: u8,
    /// When the first byte of it was written, later when it was sent last.
    pub(crate) time: Micros,
    /// At the time of the transmission: the number of delivered packets, when the last of them was
    /// reported, when that one had been sent, and whether data was missing to send.
    pub(crate) delivered: u64,
    pub(crate) delivered_at: Micros,
    pub(crate) delivered_sent: Micros,
    pub(crate) app_limited: bool,
}

pub(crate) struct SendBuffer {
    payload: usize,
    bytes: Vec<u8>,
    /// The number of packets, and those that were used so far.
    capacity: u64,
    slots: Vec<Slot>,
    /// The first packet that is not acknowledged, the first one that was not sent yet, and the one
    /// after the last.
    first: u64,
    next: u64,
    end: u64,
    /// The bytes from `next` to `end`.
    unsent: u64,
}

impl SendBuffer {
    pub(crate) fn new(slots: u32, payload: usize) -> Self {
        // The system provides the pages of both when they are used.
        let bytes = vec![0; slots as usize * payload];
        let capacity = slots.into();
        let slots = Vec::with_capacity(slots as usize);
        Self { payload, bytes, capacity, slots, first: 0, next: 0, end: 0, unsent: 0 }
    }

    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn unsent_bytes(&self) -> u64 {
        self.unsent
    }

    pub(crate) fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Whether a write takes at least one byte. One slot is kept for the end of the stream.
    pub(crate) fn has_room(&self) -> bool {
        self.end - self.first + 1 < self.capacity || self.room_in_last() > 0
    }

    /// Returns how many bytes were taken.
    pub(crate) fn write(&mut self, now: Micros, mut data: &[u8]) -> usize {
        let before = data.len();
        while !data.is_empty() && self.has_room() {
            if self.room_in_last() == 0 {
                self.push(now);
            }
            let n = data.len().min(self.room_in_last());
            let index = self.index(self.end - 1);
            let length = usize::from(self.slots[index].length);
            let at = index * self.payload + length;
            self.bytes[at..at + n].copy_from_slice(&data[..n]);
            self.slots[index].length += u16::try_from(n).unwrap_or(0);
            data = &data[n..];
        }
        let written = before - data.len();
        self.unsent += written as u64;
        written
    }

    /// Appends an empty packet.
    pub(crate) fn push(&mut self, now: Micros) {
        let index = self.index(self.end);
        let slot = Slot { time: now, ..Slot::default() };
        match self.slots.get_mut(index) {
            Some(used) => *used = slot,
            None => self.slots.push(slot),
        }
        self.end += 1;
    }

    pub(crate) fn slot(&self, position: u64) -> &Slot {
        &self.slots[self.index(position)]
    }

    pub(crate) fn slot_mut(&mut self, position: u64) -> &mut Slot {
        let index = self.index(position);
        &mut self.slots[index]
    }

    pub(crate) fn is_full(&self, position: u64) -> bool {
        usize::from(self.slot(position).length) == self.payload
    }

    pub(crate) fn payload(&self, position: u64) -> &[u8] {
        let index = self.index(position);
        let at = index * self.payload;
        &self.bytes[at..at + usize::from(self.slots[index].length)]
    }

    /// Notes that the packet `next` is sent.
    pub(crate) fn advance(&mut self) {
        self.unsent -= u64::from(self.slot(self.next).length);
        self.next += 1;
    }

    /// Removes the packets before `position`, and returns how many bytes of the stream they had.
    pub(crate) fn release(&mut self, position: u64) -> u64 {
        let mut bytes = 0;
        while self.first < position {
            bytes += u64::from(self.slot(self.first).length);
            self.first += 1;
        }
        bytes
    }

    /// Room in the last packet, if it was not sent yet.
    fn room_in_last(&self) -> usize {
        if self.end == self.next { 0 } else { self.payload - usize::from(self.slot(self.end - 1).length) }
    }

    #[expect(clippy::cast_possible_truncation, reason = "an index of a slot fits")]
    fn index(&self, position: u64) -> usize {
        (position % self.capacity) as usize
    }
}
