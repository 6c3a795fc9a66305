//! Packets that have left the link: the delay line behind it. Packets normally arrive in the order
//! of sending; packets that were selected for reordering are kept apart and arrive at their own
//! time. Times are virtual.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use super::link::Nanos;

/// A packet that arrives at the far end at `due`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Travelling<P> {
    pub due: Nanos,
    /// The packet's position in the order of sending.
    pub(super) number: u64,
    /// Size of the IP packet.
    pub bytes: u32,
    /// The packet has to be marked "congestion experienced".
    pub marked: bool,
    pub payload: P,
}

/// A delayed (reordered) packet; the heap returns the earliest first.
struct Held<P>(Travelling<P>);

impl<P> Ord for Held<P> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.0.due, other.0.number).cmp(&(self.0.due, self.0.number))
    }
}

impl<P> PartialOrd for Held<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> PartialEq for Held<P> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<P> Eq for Held<P> {}

pub(super) struct Wire<P> {
    /// Packets in the order of sending, which is also their order of arrival.
    line: VecDeque<Travelling<P>>,
    held: BinaryHeap<Held<P>>,
    sent: u64,
    /// The largest `number` of the packets that have arrived.
    arrived: u64,
}

impl<P> Wire<P> {
    pub(super) fn new() -> Self {
        Self { line: VecDeque::new(), held: BinaryHeap::new(), sent: 0, arrived: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.line.len() + self.held.len()
    }

    /// Sends a packet that arrives at `due`, but not before the packets sent earlier.
    pub(super) fn send(&mut self, due: Nanos, bytes: u32, marked: bool, payload: P) {
        let due = self.line.back().map_or(due, |last| due.max(last.due));
        let number = self.number();
        self.line.push_back(Travelling { due, number, bytes, marked, payload });
    }

    /// Sends a packet that arrives at `due`, regardless of the other packets.
    pub(super) fn hold(&mut self, due: Nanos, bytes: u32, marked: bool, payload: P) {
        let number = self.number();
        self.held.push(Held(Travelling { due, number, bytes, marked, payload }));
    }

    fn number(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    /// Whether there is no packet that later packets would have to follow.
    pub(super) fn line_is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// The arrival time of the next packet.
    pub(super) fn next_due(&self) -> Option<Nanos> {
        let line = self.line.front().map(|packet| packet.due);
        let held = self.held.peek().map(|held| held.0.due);
        line.into_iter().chain(held).min()
    }

    /// The arrival time of the last packet that arrives within `hold` of the next one.
    pub(super) fn release(&self, hold: Nanos) -> Option<Nanos> {
        let first = self.next_due()?;
        let until = first.saturating_add(hold);
        let together = match self.line.back() {
            Some(last) if last.due <= until => self.line.len(),
            _ => self.line.partition_point(|packet| packet.due <= until),
        };
        let last = together.checked_sub(1).and_then(|index| self.line.get(index));
        Some(last.map_or(first, |last| last.due.max(first)))
    }

    /// Takes a packet that has arrived by `now`, and returns whether a packet sent later arrived
    /// before it.
    pub(super) fn take(&mut self, now: Nanos) -> Option<(Travelling<P>, bool)> {
        let line = self.line.front().map(|packet| (packet.due, packet.number));
        let held = self.held.peek().map(|held| (held.0.due, held.0.number));
        let from_held = match (line, held) {
            (None, None) => return None,
            (Some(line), Some(held)) => held < line,
            (line, _) => line.is_none(),
        };
        if (if from_held { held } else { line })?.0 > now {
            return None;
        }
        let packet = if from_held { self.held.pop()?.0 } else { self.line.pop_front()? };
        let late = packet.number < self.arrived;
        self.arrived = self.arrived.max(packet.number);
        Some((packet, late))
    }
}
