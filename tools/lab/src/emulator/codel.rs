//! Controlled Delay (CoDel), as in the pseudocode of RFC 8289 section 5. It drops or marks packets
//! when they leave the queue, if the queueing delay has been above the target for a whole interval.
//! The state belongs to one [`Link`](super::link::Link); times are virtual.

use std::collections::VecDeque;

use super::config::Codel;
use super::link::{Nanos, Waiting};

/// CoDel's state variables (RFC 8289 section 5.1).
#[derive(Debug, Clone, Default)]
pub(super) struct CodelState {
    first_above: Option<Nanos>,
    drop_next: Nanos,
    count: u64,
    last_count: u64,
    dropping: bool,
}

/// The result of taking a packet off the queue.
pub(super) struct Dequeued<P> {
    /// The packet to send; `None` if all waiting packets were dropped.
    pub(super) packet: Option<Waiting<P>>,
    pub(super) dropped: u64,
    pub(super) marked: bool,
}

impl CodelState {
    /// Takes the next packet to be sent at `now`. `bytes` is the number of bytes in the queue and
    /// is updated; `largest` is the size of the largest packet seen.
    pub(super) fn dequeue<P>(
        &mut self,
        codel: &Codel,
        now: Nanos,
        queue: &mut VecDeque<Waiting<P>>,
        bytes: &mut u64,
        largest: u64,
    ) -> Dequeued<P> {
        let (target, interval) = (codel.target.as_nanos() as u64, codel.interval.as_nanos() as u64);
        let mut dropped = 0;
        let (mut packet, mut above) = self.next(now, target, interval, queue, bytes, largest);
        let mut marked = false;
        if self.dropping {
            self.dropping = above;
            while self.dropping && now >= self.drop_next {
                self.count += 1;
                if codel.ecn && packet.as_ref().is_some_and(|p| p.ecn) {
                    marked = true;
                    self.drop_next = control_law(self.drop_next, interval, self.count);
                    break;
                }
                dropped += 1;
                (packet, above) = self.next(now, target, interval, queue, bytes, largest);
                if above {
                    self.drop_next = control_law(self.drop_next, interval, self.count);
                } else {
                    self.dropping = false;
                }
            }
        } else if above {
            if codel.ecn && packet.as_ref().is_some_and(|p| p.ecn) {
                marked = true;
            } else {
                dropped += 1;
                (packet, _) = self.next(now, target, interval, queue, bytes, largest);
            }
            self.dropping = true;
            // If CoDel stopped dropping only recently, start near the drop rate that controlled the
            // queue then.
            let delta = self.count - self.last_count;
            let recent = now.saturating_sub(self.drop_next) < 16 * interval;
            self.count = if delta > 1 && recent { delta } else { 1 };
            self.drop_next = control_law(now, interval, self.count);
            self.last_count = self.count;
        }
        Dequeued { packet, dropped, marked }
    }

    /// `dodequeue` of RFC 8289: returns the head of the queue, and whether it may be dropped.
    fn next<P>(
        &mut self,
        now: Nanos,
        target: Nanos,
        interval: Nanos,
        queue: &mut VecDeque<Waiting<P>>,
        bytes: &mut u64,
        largest: u64,
    ) -> (Option<Waiting<P>>, bool) {
        let Some(packet) = queue.pop_front() else {
            self.first_above = None;
            return (None, false);
        };
        *bytes -= u64::from(packet.bytes);
        let sojourn = now.saturating_sub(packet.at);
        let mut above = false;
        if sojourn < target || *bytes <= largest {
            self.first_above = None;
        } else if let Some(first) = self.first_above {
            above = now >= first;
        } else {
            self.first_above = Some(now + interval);
        }
        (Some(packet), above)
    }
}

fn control_law(t: Nanos, interval: Nanos, count: u64) -> Nanos {
    t + (interval as f64 / (count as f64).sqrt()) as Nanos
}
