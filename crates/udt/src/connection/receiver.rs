//! The receiving direction of a connection.
//!
//! The receiver acknowledges on a real timer, also while it misses packets, and reports each gap
//! again until it is closed; libudt's receiver does neither. It does not repeat itself more often
//! than necessary: a sender with libudt that has lost its last packets sends them again only after
//! 300 ms of silence.

use std::collections::VecDeque;

use crate::config::{Config, Parameters, slots};
use crate::estimate::Estimate;
use crate::packet::{Ack, Arrivals, Body, Control, Data, Rates, ReceiverState};
use crate::queue_delay::QueueDelay;
use crate::receive_buffer::{Insertion, ReceiveBuffer};
use crate::rtt::Rtt;
use crate::{Batch, HEADER, LossList, Micros, Seq, Stats};

/// The latest ACK after a packet.
const ACK_DELAY: Micros = 10_000;
/// The rates in an ACK steer the congestion control of libudt. Its window is the reported speed
/// times the round-trip time, so the measured speed would keep it where it is.
const RATE_FACTOR: f64 = 2.4;
/// The factor while the path has a queue: the window of the sender is then little more than the
/// path holds.
const QUEUED_RATE_FACTOR: f64 = 1.1;
/// The rate of libudt grows by a step of the size of the reported capacity, or of a ninth of it
/// after a loss, in powers of ten. A step for this multiple of the capacity makes up for random
/// losses.
const CAPACITY_FACTOR: f64 = 20.0;
/// The largest speed halves in about 700 ACKs.
const PEAK_DECAY: f64 = 0.999;
/// The least time between two ACKs.
const ACK_INTERVAL: Micros = 1000;
/// After so many packets an ACK does not wait for the timer: libudt begins with a window of 16.
const ACK_PACKETS: u32 = 16;
/// When an ACK is repeated that the peer has not confirmed: first, and at last.
const LEAST_REPEAT: Micros = 15_000;
const LAST_REPEAT: Micros = 1_000_000;
const FAST_REPEATS: u32 = 5;
/// When a gap is reported again at the earliest.
const LEAST_NAK_INTERVAL: Micros = 20_000;
/// How long a gap may be the result of reordering, once packets were reordered.
const REORDERING: Micros = 3000;
/// The most gaps at a time. Packets that open another one are dropped.
const MOST_GAPS: usize = 4096;
/// The ACKs whose times are kept until the peer confirms them.
const ACKS_KEPT: usize = 64;
/// The window that libudt reports at least, and that its sender needs.
const LEAST_WINDOW: u64 = 2;

/// Packets that are missing, and when to report them.
struct Gap {
    first: u64,
    end: u64,
    report_at: Micros,
    reported: bool,
}

pub(crate) struct Receiver {
    initial: Seq,
    peer_id: u32,
    ropewalk: bool,
    payload: usize,
    initial_rate: i32,
    buffer: ReceiveBuffer,
    /// The packet after the highest one that arrived.
    highest: u64,
    gaps: VecDeque<Gap>,
    next_report: Option<Micros>,
    reordered: bool,
    /// The empty packet that ends the stream of a Ropewalk peer.
    end: Option<u64>,
    estimate: Estimate,
    queue: QueueDelay,
    /// The largest speed of the latest ACKs, which loses a little with each.
    peak: f64,
    /// When the first gap was reported.
    first_report: Option<Micros>,
    ack_due: Option<Micros>,
    unacked: u32,
    ack_number: u32,
    acked: u64,
    ack_sent: Micros,
    reported_window: u64,
    /// Number, position and time of the latest ACKs.
    acks: VecDeque<(u32, u64, Micros)>,
    confirmed: u64,
    repeats: u32,
    received: u64,
    out_of_order: u64,
    duplicates: u64,
    invalid: u64,
    /// The body of a NAK while it is made.
    losses: Vec<u8>,
}

impl Receiver {
    pub(crate) fn new(parameters: &Parameters, config: &Config) -> Self {
        let payload = parameters.payload();
        Self {
            initial: parameters.initial,
            peer_id: parameters.peer_id,
            ropewalk: parameters.ropewalk,
            payload,
            initial_rate: config.initial_rate,
            // Not more than the handshake has reported, which is computed with the larger MSS.
            buffer: ReceiveBuffer::new(config.window().min(slots(config.receive_buffer, payload)), payload),
            highest: 0,
            gaps: VecDeque::new(),
            next_report: None,
            reordered: false,
            end: None,
            estimate: Estimate::default(),
            queue: QueueDelay::default(),
            peak: 0.0,
            first_report: None,
            ack_due: None,
            unacked: 0,
            ack_number: 0,
            acked: 0,
            ack_sent: 0,
            reported_window: config.window().into(),
            acks: VecDeque::with_capacity(ACKS_KEPT),
            confirmed: 0,
            repeats: 0,
            received: 0,
            out_of_order: 0,
            duplicates: 0,
            invalid: 0,
            losses: Vec::new(),
        }
    }

    pub(crate) fn on_data(&mut self, now: Micros, data: &Data<'_>) {
        let Some(position) = data.seq.position(self.initial, self.buffer.next()) else {
            self.invalid += 1;
            return;
        };
        if data.payload.len() > self.payload || self.end.is_some_and(|end| position > end) {
            self.invalid += 1;
            return;
        }
        if position > self.highest && position < self.buffer.limit() && self.gaps.len() >= MOST_GAPS {
            return;
        }
        match self.buffer.insert(position, data.payload) {
            Insertion::New => {}
            Insertion::Outside => return,
            Insertion::Duplicate => {
                // The ACK may have been lost.
                self.duplicates += 1;
                self.request_ack(now + ACK_DELAY);
                return;
            }
        }
        self.received += 1;
        self.estimate.arrived(now, data.seq.get());
        self.queue.arrived(now, data.timestamp);
        if position > self.highest {
            let report_at = now + if self.reordered { REORDERING } else { 0 };
            self.gaps.push_back(Gap { first: self.highest, end: position, report_at, reported: false });
            self.next_report = Some(self.next_report.map_or(report_at, |at| at.min(report_at)));
        } else if position < self.highest {
            self.close_gap(position);
        }
        self.highest = self.highest.max(position + 1);
        if self.ropewalk && data.payload.is_empty() {
            self.end = Some(position);
        }
        self.unacked += 1;
        let is_short = data.payload.len() < self.payload;
        let soon = is_short || self.unacked >= ACK_PACKETS;
        self.request_ack(if soon { now } else { now + ACK_DELAY });
    }

    pub(crate) fn on_ack2(&mut self, now: Micros, number: u32, rtt: &mut Rtt) {
        let Some(index) = self.acks.iter().position(|(of, _, _)| *of == number) else { return };
        let (_, position, sent) = self.acks[index];
        rtt.sample(now.saturating_sub(sent));
        self.confirmed = self.confirmed.max(position);
        self.acks.drain(..=index);
    }

    /// Returns how many bytes were read.
    pub(crate) fn read(&mut self, now: Micros, buffer: &mut [u8]) -> usize {
        let n = self.buffer.read(buffer);
        if n > 0 && (self.ack_position() > self.acked || self.window_has_opened()) {
            self.request_ack(now);
        }
        n
    }

    pub(crate) fn unread(&self) -> usize {
        self.buffer.unread()
    }

    /// Whether all bytes before the end of the stream have arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.end.is_some_and(|end| self.buffer.next() > end)
    }

    pub(crate) fn has_gap(&self) -> bool {
        self.buffer.next() < self.highest
    }

    /// The position that an ACK reports. When the buffer is nearly full, an ACK holds the last
    /// packet back: a sender with libudt takes notice of a window only if the position advances.
    fn ack_position(&self) -> u64 {
        let next = self.buffer.next();
        let scarce = self.buffer.limit() - next < self.buffer.slots() / 4;
        if scarce && next > self.acked { next - 1 } else { next }
    }

    fn window(&self, position: u64) -> u64 {
        (self.buffer.limit() - position).clamp(LEAST_WINDOW, self.buffer.slots())
    }

    fn window_has_opened(&self) -> bool {
        let half = self.buffer.slots() / 2;
        self.reported_window < half / 2 && self.window(self.buffer.next()) >= half
    }

    fn request_ack(&mut self, at: Micros) {
        let at = at.max(self.ack_sent + ACK_INTERVAL);
        self.ack_due = Some(self.ack_due.map_or(at, |due| due.min(at)));
    }

    fn close_gap(&mut self, position: u64) {
        self.out_of_order += 1;
        let after = self.gaps.partition_point(|gap| gap.first <= position);
        let Some(index) = after.checked_sub(1) else { return };
        let gap = &mut self.gaps[index];
        // A late packet that closes a gap before its report was reordered; one that comes very
        // soon after it has crossed the report.
        self.reordered |= !gap.reported;
        if position == gap.first {
            gap.first += 1;
        } else if position + 1 == gap.end {
            gap.end -= 1;
        } else {
            let rest = Gap { first: position + 1, ..*gap };
            gap.end = position;
            self.gaps.insert(index + 1, rest);
        }
        if self.gaps[index].first == self.gaps[index].end {
            self.gaps.remove(index);
        }
    }

    /// When an ACK that the peer has not confirmed is repeated.
    fn repeat_at(&self, rtt: &Rtt) -> Option<Micros> {
        if self.acked <= self.confirmed {
            return None;
        }
        let wait = if self.repeats < FAST_REPEATS {
            (rtt.overdue().max(LEAST_REPEAT) << self.repeats).min(LAST_REPEAT)
        } else {
            LAST_REPEAT
        };
        Some(self.ack_sent + wait)
    }

    /// Appends a NAK or an ACK that is due.
    pub(crate) fn poll_transmit(&mut self, now: Micros, rtt: &Rtt, batch: &mut Batch) -> bool {
        if self.next_report.is_some_and(|at| at <= now) && self.report_gaps(now, rtt) {
            let losses = Body::Nak(LossList::new(&self.losses));
            Control::new(self.peer_id, 0, losses).print(&mut batch.bytes);
            return true;
        }
        let is_due = self.ack_due.is_some_and(|at| at <= now);
        let is_repeat = !is_due && self.repeat_at(rtt).is_some_and(|at| at <= now);
        if !is_due && !is_repeat {
            return false;
        }
        self.ack_due = None;
        self.unacked = 0;
        let position = self.ack_position();
        // libudt gets no news from an ACK of the same position, unless the first one was lost.
        if position == self.acked && !is_repeat && !self.ropewalk && self.confirmed == self.acked {
            return false;
        }
        self.repeats = if is_repeat && position == self.acked { self.repeats + 1 } else { 0 };
        self.print_ack(now, position, rtt, batch);
        true
    }

    fn print_ack(&mut self, now: Micros, position: u64, rtt: &Rtt, batch: &mut Batch) {
        self.ack_number = Seq::new(self.ack_number).add(1).get();
        self.acked = position;
        self.ack_sent = now;
        self.reported_window = self.window(position);
        if self.acks.len() == ACKS_KEPT {
            self.acks.pop_front();
        }
        self.acks.push_back((self.ack_number, position, now));
        self.peak = self.estimate.speed().max(PEAK_DECAY * self.peak);
        let (speed, capacity) = self.reported_rates(now, rtt);
        let word = |time: Micros| u32::try_from(time).unwrap_or(u32::MAX);
        let state = ReceiverState {
            rtt: word(rtt.smoothed()),
            rtt_variance: word(rtt.variance()),
            window: u32::try_from(self.reported_window).unwrap_or(u32::MAX),
            rates: Some(Rates {
                speed,
                capacity,
                arrivals: self.ropewalk.then(|| Arrivals {
                    highest: self.initial.add(self.highest),
                    count: self.received as u32,
                }),
            }),
        };
        let ack = Ack { next: self.initial.add(position), receiver: Some(state) };
        Control::new(self.peer_id, self.ack_number, Body::Ack(ack)).print(&mut batch.bytes);
    }

    /// The speed and the capacity that an ACK reports. While the path has a queue, the sender must
    /// not become faster; while it has none, losses are none of congestion, and the sender may
    /// recover from them fast.
    fn reported_rates(&self, now: Micros, rtt: &Rtt) -> (i32, i32) {
        let measured = self.estimate.speed();
        // Packets that are read together are no probing pairs.
        let most = self.estimate.capacity().max(self.peak);
        #[expect(clippy::cast_possible_truncation, reason = "a conversion of f64 saturates")]
        let rate = |rate: f64| if rate > 0.0 { rate as i32 } else { self.initial_rate };
        let left_slow_start = self.first_report.is_some_and(|at| now > at + 2 * rtt.smoothed());
        if !left_slow_start {
            return (rate(RATE_FACTOR * measured), rate(RATE_FACTOR * most.max(measured)));
        }
        if self.queue.is_long() {
            return (rate(QUEUED_RATE_FACTOR * measured), rate(measured));
        }
        (rate(RATE_FACTOR * most.max(measured)), rate(CAPACITY_FACTOR * most.max(measured)))
    }

    /// Writes the gaps whose time has come into `losses`. Returns whether there are any.
    fn report_gaps(&mut self, now: Micros, rtt: &Rtt) -> bool {
        let again = now + (rtt.smoothed() + rtt.smoothed() / 4).max(LEAST_NAK_INTERVAL);
        let most = self.payload.max(HEADER) - HEADER / 2;
        self.losses.clear();
        let mut next: Option<Micros> = None;
        for gap in &mut self.gaps {
            if gap.report_at <= now && self.losses.len() < most {
                LossList::push(&mut self.losses, self.initial.add(gap.first), self.initial.add(gap.end - 1));
                gap.report_at = again;
                gap.reported = true;
                self.first_report.get_or_insert(now);
            }
            next = Some(next.map_or(gap.report_at, |at| at.min(gap.report_at)));
        }
        self.next_report = next;
        !self.losses.is_empty()
    }

    /// When to call [`Receiver::poll_transmit`] again.
    pub(crate) fn timeout(&self, rtt: &Rtt) -> Option<Micros> {
        [self.next_report, self.ack_due, self.repeat_at(rtt)].into_iter().flatten().min()
    }

    pub(crate) fn stats(&self, stats: &mut Stats) {
        stats.received = self.received;
        stats.out_of_order = self.out_of_order;
        stats.duplicates = self.duplicates;
        stats.receive_window_bytes = self.window(self.buffer.next()) * self.payload as u64;
        stats.receive_buffer = self.buffer.capacity();
        stats.arrival_rate = self.estimate.speed();
        stats.capacity = self.estimate.capacity();
        stats.invalid += self.invalid;
    }
}
