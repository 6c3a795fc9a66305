//! Data that the application has written and the peer has not acknowledged.
//!
//! The content of a packet is fixed when it is sent for the first time, because each later
//! transmission must be the same. The buffer takes only a few bytes more than the sender can send
//! at once: what waits here cannot be sent by another stream, and leaves the cache before it is
//! sent.

use std::collections::VecDeque;

use crate::Micros;
use crate::pages::Pages;

/// The limits of the bytes that wait to be sent.
const LEAST_UNSENT: u64 = 1 << 20;
const MOST_UNSENT: u64 = 4 << 20;

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
    bytes: Pages,
    /// The most packets, and those from `first` to `end`.
    capacity: u64,
    slots: VecDeque<Slot>,
    /// The first packet that is not acknowledged, the first one that was not sent yet, and the one
    /// after the last.
    first: u64,
    next: u64,
    end: u64,
    /// The bytes from `next` to `end`.
    unsent: u64,
    /// The buffer takes no more while so many bytes wait.
    most_unsent: u64,
}

impl SendBuffer {
    pub(crate) fn new(slots: u32, payload: usize) -> Self {
        Self {
            payload,
            bytes: Pages::new(payload),
            capacity: slots.into(),
            slots: VecDeque::new(),
            first: 0,
            next: 0,
            end: 0,
            unsent: 0,
            most_unsent: LEAST_UNSENT,
        }
    }

    /// Sets how many bytes may wait, within the limits.
    pub(crate) fn set_most_unsent(&mut self, bytes: u64) {
        self.most_unsent = bytes.clamp(LEAST_UNSENT, MOST_UNSENT);
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
        usize::try_from(self.capacity).map_or(usize::MAX, |packets| packets * self.payload)
    }

    /// Whether a write takes at least one byte. One slot is kept for the end of the stream.
    fn has_room(&self) -> bool {
        self.unsent < self.most_unsent
            && (self.end - self.first + 1 < self.capacity || self.room_in_last() > 0)
    }

    /// Whether there is so much room that it is worth to wake the application.
    pub(crate) fn is_writable(&self) -> bool {
        self.unsent <= self.most_unsent / 2 && self.end - self.first + 1 < self.capacity - self.capacity / 8
    }

    /// Returns how many bytes were taken.
    pub(crate) fn write(&mut self, now: Micros, mut data: &[u8]) -> usize {
        let before = data.len();
        while !data.is_empty() && self.has_room() {
            if self.room_in_last() == 0 {
                self.push(now);
            }
            let n = data.len().min(self.room_in_last());
            let last = self.end - 1;
            let length = usize::from(self.slot(last).length);
            self.bytes.packet_mut(last)[length..length + n].copy_from_slice(&data[..n]);
            self.slot_mut(last).length += u16::try_from(n).unwrap_or(0);
            self.unsent += n as u64;
            data = &data[n..];
        }
        before - data.len()
    }

    /// Appends an empty packet.
    pub(crate) fn push(&mut self, now: Micros) {
        self.slots.push_back(Slot { time: now, ..Slot::default() });
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
        // The packet that ends the stream has no bytes, and its page may have none.
        let length = usize::from(self.slot(position).length);
        if length == 0 { &[] } else { &self.bytes.packet(position)[..length] }
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
            bytes += self.slots.pop_front().map_or(0, |slot| u64::from(slot.length));
            self.first += 1;
        }
        self.bytes.release(position);
        bytes
    }

    /// Room in the last packet, if it was not sent yet.
    fn room_in_last(&self) -> usize {
        if self.end == self.next { 0 } else { self.payload - usize::from(self.slot(self.end - 1).length) }
    }

    #[expect(clippy::cast_possible_truncation, reason = "an index of a slot fits")]
    fn index(&self, position: u64) -> usize {
        (position - self.first) as usize
    }
}
