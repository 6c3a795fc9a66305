//! The sending direction of a connection.
//!
//! libudt's receiver reports a loss once and is silent while it misses a packet. So the sender
//! finds lost NAKs and lost retransmissions itself: a retransmission without an answer is repeated,
//! and a sender without any answer sends its last packet again, which makes the peer report gaps.
//! All transmissions, also repeated ones, keep the pace of the congestion control.

use std::collections::VecDeque;

use crate::config::{Config, Parameters, slots};
use crate::congestion::{AckEvent, Controller, LossEvent};
use crate::intervals::Intervals;
use crate::packet::{Ack, Data};
use crate::rtt::Rtt;
use crate::send_buffer::{SendBuffer, Slot, State};
use crate::{Batch, LossList, Micros, Rates, Seq, Stats};

/// The most packets in one batch: 64 KiB of Ethernet packets, and no more than the receive buffer
/// of a socket with default limits holds.
const BATCH: u16 = 44;
/// The largest datagram, which a batch must not exceed in one system call.
const LARGEST_BATCH: usize = 65_000;
/// Under the lowest ceiling, in microseconds: a packet in a second.
const LONGEST_INTERVAL: f64 = 1e6;
/// The time between two batches.
const BATCH_TIME: f64 = 1000.0;
/// The bytes that wait for the sender are so much of its rate, within the limits of the buffer.
const UNSENT_TIME: f64 = 50_000.0;
/// How long a packet that is not full waits for more data while others are in flight.
const COALESCE: Micros = 1000;
/// The congestion control learns of a timeout after this silence, as by UDT's EXP timer.
const EXP: Micros = 300_000;
/// libudt checks its timers when a packet arrives 10 ms after its last ACK, else after 100 ms.
const TAIL_KEEP_ALIVE: Micros = 11_000;
/// An ACK may be late by the timer of its sender.
const ACK_DELAY: Micros = 15_000;
const LONGEST_PROBE: Micros = 1_000_000;
/// A closed window is probed more often: libudt does not report that it has opened.
const LONGEST_WINDOW_PROBE: Micros = 200_000;
/// The entries of a NAK that are read. More do not fit in a packet of usual size.
const MOST_ENTRIES: usize = 400;
/// The share of packets that may be repeated blindly, and the most at a time.
const REPEAT_SHARE: f64 = 0.1;
const MOST_REPEATS: f64 = 64.0;
/// A message of a single packet.
const SOLO: u32 = 0xc000_0000;

pub(crate) struct Sender {
    initial: Seq,
    peer_id: u32,
    ropewalk: bool,
    payload: usize,
    controller: Box<dyn Controller>,
    /// The least time between two packets in microseconds, whatever the controller says.
    least_interval: f64,
    buffer: SendBuffer,
    /// The end of the stream was appended; for a peer with libudt, no more data follows.
    finished: bool,
    /// The first position for which the peer has no room.
    window_end: u64,
    last_ack_number: u32,
    /// The packet after the last one that is known to have arrived.
    known: u64,
    /// How many packets have arrived, as a Ropewalk peer counts them.
    arrivals: u64,
    lost: Intervals,
    /// Packets that were sent again, with the time.
    resent: VecDeque<(u64, Micros)>,
    /// How many of these have no answer yet.
    resent_in_flight: u64,
    /// How many of these may be sent again although libudt misses an earlier packet, so that it
    /// cannot have answered.
    repeat_credit: f64,
    credit: f64,
    credit_at: Micros,
    /// When something was sent or answered last, and how often a probe found no answer since.
    last_event: Micros,
    probes: u32,
    last_answer: Micros,
    last_data: Micros,
    tail_keep_alive: bool,
    /// When the latest delivery was reported, and when that packet had been sent.
    delivered_at: Micros,
    delivered_sent: Micros,
    acked_bytes: u64,
    sent: u64,
    retransmitted: u64,
    rate: f64,
    invalid: u64,
}

impl Sender {
    pub(crate) fn new(parameters: &Parameters, config: &Config, controller: Box<dyn Controller>) -> Self {
        let payload = parameters.payload();
        let mut sender = Self {
            initial: parameters.initial,
            peer_id: parameters.peer_id,
            ropewalk: parameters.ropewalk,
            payload,
            controller,
            least_interval: 0.0,
            buffer: SendBuffer::new(slots(config.send_buffer, payload), payload),
            finished: false,
            window_end: parameters.peer_window.into(),
            last_ack_number: 0,
            known: 0,
            arrivals: 0,
            lost: Intervals::default(),
            resent: VecDeque::new(),
            resent_in_flight: 0,
            repeat_credit: 0.0,
            credit: 0.0,
            credit_at: 0,
            last_event: 0,
            probes: 0,
            last_answer: 0,
            last_data: 0,
            tail_keep_alive: true,
            delivered_at: 0,
            delivered_sent: 0,
            acked_bytes: 0,
            sent: 0,
            retransmitted: 0,
            rate: 0.0,
            invalid: 0,
        };
        sender.set_ceiling(config.ceiling);
        sender
    }

    /// See [`Config::ceiling`].
    pub(crate) fn set_ceiling(&mut self, ceiling: Option<u64>) {
        let interval = ceiling.map(|bytes| self.payload as f64 * 1e6 / bytes.max(1) as f64);
        self.least_interval = interval.unwrap_or(0.0).min(LONGEST_INTERVAL);
    }

    /// The time between two packets in microseconds.
    fn interval(&self) -> f64 {
        self.controller.interval().max(self.least_interval).max(0.01)
    }

    /// Whether the ceiling, not the path, determines the rate.
    fn is_held_by_ceiling(&self) -> bool {
        self.least_interval > self.controller.interval()
    }

    pub(crate) fn write(&mut self, now: Micros, data: &[u8]) -> usize {
        self.buffer.write(now, data)
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.buffer.is_writable()
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Ends the stream. libudt has no such thing: its connections are shut down instead.
    pub(crate) fn finish(&mut self, now: Micros) {
        if !self.finished && self.ropewalk {
            self.buffer.push(now);
        }
        self.finished = true;
    }

    /// Whether the peer has acknowledged everything.
    pub(crate) fn is_flushed(&self) -> bool {
        self.buffer.first() == self.buffer.end()
    }

    pub(crate) fn on_ack(&mut self, now: Micros, number: u32, ack: &Ack, rtt: &mut Rtt) {
        let first = self.buffer.first();
        let position = ack.next.position(self.initial, first).filter(|next| *next <= self.buffer.next());
        let Some(position) = position else {
            self.invalid += 1;
            return;
        };
        let rates = ack.receiver.and_then(|receiver| receiver.rates);
        let arrivals = rates.and_then(|rates| rates.arrivals).filter(|_| self.ropewalk);
        let highest = arrivals.and_then(|arrivals| arrivals.highest.position(self.initial, first));
        let known = highest.unwrap_or(position).min(self.buffer.next()).max(position);
        let Some(receiver) = ack.receiver else {
            // A light ACK opens no window and releases nothing.
            if known > self.known.max(first) {
                self.known = known;
                let sample = self.rtt_sample(now, None, rtt);
                self.report_delivery(now, sample, 0, None, rtt);
            }
            return;
        };
        if Seq::new(number).since(Seq::new(self.last_ack_number)) > 0 {
            self.last_ack_number = number;
            self.window_end = position + u64::from(receiver.window.min(1 << 20));
        }
        let advanced = position.saturating_sub(first);
        let count = arrivals.map_or(self.arrivals, |arrivals| {
            // A reordered ACK has an older count.
            let more = arrivals.count.wrapping_sub(self.arrivals as u32).cast_signed();
            (self.arrivals + u64::try_from(more).unwrap_or(0)).min(self.buffer.next())
        });
        let news = advanced > 0 || known > self.known || count > self.arrivals;
        self.arrivals = count;
        if news && known.max(self.known) > first {
            let reported = (!Rtt::is_initial(receiver.rtt, receiver.rtt_variance)).then_some(receiver.rtt);
            self.known = self.known.max(known);
            let sample = self.rtt_sample(now, reported, rtt);
            self.release(now, position.max(first));
            self.report_delivery(now, sample, advanced, rates, rtt);
        }
    }

    /// The last packet that is known to have arrived, and the time from its transmission until now.
    fn rtt_sample(&self, now: Micros, reported: Option<u32>, rtt: &mut Rtt) -> (Slot, Micros) {
        let latest = *self.buffer.slot(self.known - 1);
        let own = now.saturating_sub(latest.time);
        // The time of a packet that was sent twice is ambiguous.
        if latest.state == State::InFlight {
            rtt.sample(reported.map_or(own, |reported| own.min(reported.into())));
        }
        (latest, own)
    }

    /// Releases the packets before `position`, which the peer has acknowledged.
    fn release(&mut self, now: Micros, position: u64) {
        if position == self.buffer.first() {
            return;
        }
        for released in self.buffer.first()..position {
            if self.buffer.slot(released).state == State::SentAgain {
                self.resent_in_flight -= 1;
            }
        }
        self.acked_bytes += self.buffer.release(position);
        self.lost.remove_below(position);
        (self.last_event, self.last_answer) = (now, now);
        self.probes = 0;
    }

    /// Tells the congestion control that packets have arrived: `acked` of them for the first time
    /// without a gap before them. `latest` was the last one, `own` the time since it was sent.
    fn report_delivery(
        &mut self,
        now: Micros,
        (latest, own): (Slot, Micros),
        acked: u64,
        rates: Option<Rates>,
        rtt: &Rtt,
    ) {
        let delivered = self.delivered_packets();
        let elapsed = (latest.time.saturating_sub(latest.delivered_sent))
            .max(now.saturating_sub(latest.delivered_at))
            .max(1);
        let rate = delivered.saturating_sub(latest.delivered) as f64 * 1e6 / elapsed as f64;
        (self.delivered_at, self.delivered_sent) = (now, latest.time);
        self.rate = rate;
        self.controller.on_ack(&AckEvent {
            now,
            acked,
            delivered,
            delivered_before: latest.delivered,
            rtt: rtt.smoothed(),
            rtt_sample: own,
            rate,
            app_limited: latest.app_limited,
            in_flight: self.in_flight(),
            rates,
            sent: self.buffer.next(),
        });
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let unsent = (self.payload as f64 * UNSENT_TIME / self.interval()) as u64;
        self.buffer.set_most_unsent(unsent);
    }

    pub(crate) fn on_nak(&mut self, now: Micros, losses: LossList<'_>, rtt: &mut Rtt) {
        let (first, next) = (self.buffer.first(), self.buffer.next());
        let before = self.known;
        let mut event = None;
        let mut lost = 0;
        let mut read = first;
        for (from, to) in losses.take(MOST_ENTRIES) {
            let position = |seq: Seq| seq.position(self.initial, first);
            // A packet that was not sent, a reversed range, or numbers from before the start.
            let (Some(from), Some(to)) = (position(from), position(to)) else {
                self.invalid += 1;
                continue;
            };
            if to < from || to >= next {
                self.invalid += 1;
                continue;
            }
            event.get_or_insert(from);
            // Entries are in order, so that a long list of ranges costs no more than one.
            for position in from.max(read)..=to {
                lost += u64::from(self.mark_lost(now, position, rtt.smoothed()));
            }
            read = read.max(to + 1);
            self.known = self.known.max((to + 2).min(next));
        }
        if let Some(first) = event {
            (self.last_event, self.last_answer) = (now, now);
            let rtt = rtt.smoothed();
            self.controller.on_loss(&LossEvent { now, first, highest: next - 1, lost, rtt });
        }
        // A packet after the missing ones has arrived. libudt sends no ACK while it misses one.
        if !self.ropewalk && self.known > before {
            let sample = self.rtt_sample(now, None, rtt);
            self.report_delivery(now, sample, 0, None, rtt);
        }
    }

    /// Marks a packet to be sent again, unless its last transmission is less than `recent` ago.
    fn mark_lost(&mut self, now: Micros, position: u64, recent: Micros) -> bool {
        let slot = self.buffer.slot_mut(position);
        match slot.state {
            State::SentAgain if now < slot.time + recent => return false,
            State::SentAgain => self.resent_in_flight -= 1,
            State::InFlight => {}
            State::Lost | State::Waiting => return false,
        }
        slot.state = State::Lost;
        self.lost.insert(position);
        true
    }

    /// Packets that were sent, have not arrived as far as is known, and are not known to be lost.
    fn in_flight(&self) -> u64 {
        let next = self.buffer.next();
        if self.ropewalk {
            return next.saturating_sub(self.arrivals + self.lost.count());
        }
        next.saturating_sub(self.known.max(self.buffer.first())) + self.resent_in_flight
    }

    fn delivered_packets(&self) -> u64 {
        if self.ropewalk {
            return self.arrivals;
        }
        self.known.max(self.buffer.first()).saturating_sub(self.lost.count() + self.resent_in_flight)
    }

    fn retransmission_timeout(&self, rtt: &Rtt, repeats: u8) -> Micros {
        (rtt.overdue() + ACK_DELAY) << (repeats.saturating_sub(1)).min(4)
    }

    fn probe_at(&self, rtt: &Rtt) -> Option<Micros> {
        if self.buffer.first() == self.buffer.next() || !self.lost.is_empty() {
            return None;
        }
        let longest =
            if self.window_end <= self.buffer.first() + 2 { LONGEST_WINDOW_PROBE } else { LONGEST_PROBE };
        let overdue = rtt.overdue() + ACK_DELAY;
        Some(self.last_event + (overdue << self.probes.min(10)).min(longest.max(overdue)))
    }

    /// Whether a retransmission without an answer may be repeated.
    fn may_repeat(&self) -> bool {
        self.ropewalk || self.repeat_credit >= 1.0
    }

    /// When the first retransmission without an answer is overdue.
    fn repeat_at(&self, rtt: &Rtt) -> Option<Micros> {
        let first = self.resent.front().filter(|_| self.may_repeat());
        first.map(|(position, at)| {
            let repeats =
                if *position < self.buffer.first() { 0 } else { self.buffer.slot(*position).repeats };
            at + self.retransmission_timeout(rtt, repeats)
        })
    }

    /// When the packet that holds back the ACKs of the peer is overdue.
    fn first_repeat_at(&self, rtt: &Rtt) -> Option<Micros> {
        let first = self.buffer.first();
        if first == self.buffer.next() {
            return None;
        }
        let slot = self.buffer.slot(first);
        let waits = slot.state == State::SentAgain;
        waits.then(|| slot.time + self.retransmission_timeout(rtt, 1))
    }

    /// When a keep-alive makes libudt acknowledge the last packets before the sender pauses: at the
    /// end of the data, or because a window is full.
    fn tail_keep_alive_at(&self) -> Option<Micros> {
        let waits = !self.tail_keep_alive && !self.ropewalk && self.buffer.first() < self.buffer.next();
        waits.then_some(self.last_data + TAIL_KEEP_ALIVE)
    }

    /// Whether such a keep-alive is due.
    pub(crate) fn take_tail_keep_alive(&mut self, now: Micros) -> bool {
        let due = self.tail_keep_alive_at().is_some_and(|at| at <= now);
        self.tail_keep_alive |= due;
        due
    }

    fn check_timers(&mut self, now: Micros, rtt: &Rtt) {
        while let Some((position, at)) = self.resent.front().copied() {
            let is_open = position >= self.buffer.first() && {
                let slot = self.buffer.slot(position);
                slot.state == State::SentAgain && slot.time == at
            };
            if is_open {
                let repeats = self.buffer.slot(position).repeats;
                if now < at + self.retransmission_timeout(rtt, repeats) || !self.may_repeat() {
                    break;
                }
                self.repeat_credit -= 1.0;
                self.mark_lost(now, position, 0);
            }
            self.resent.pop_front();
        }
        if self.first_repeat_at(rtt).is_some_and(|at| at <= now) {
            self.mark_lost(now, self.buffer.first(), 0);
        }
        if self.probe_at(rtt).is_some_and(|at| at <= now) {
            let last = self.buffer.next() - 1;
            self.last_event = now;
            self.probes += 1;
            if now >= self.last_answer + EXP {
                self.last_answer = now;
                self.controller.on_timeout(last);
            }
            self.mark_lost(now, self.buffer.first(), 0);
            self.mark_lost(now, last, 0);
        }
    }

    /// How many packets the windows permit to send now, and whether that is all that waits.
    fn sendable(&self, now: Micros) -> (u64, bool) {
        let (next, end) = (self.buffer.next(), self.buffer.end());
        let mut waiting = end - next;
        if waiting > 0 && self.is_held(now) {
            waiting -= 1;
        }
        let peer = self.window_end.saturating_sub(next);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a window")]
        let window = self.controller.window().max(2.0) as u64;
        let path = window.saturating_sub(self.in_flight());
        (self.lost.count() + waiting.min(peer).min(path), waiting <= peer.min(path))
    }

    /// Whether the last packet waits for more data.
    fn is_held(&self, now: Micros) -> bool {
        let (next, last) = (self.buffer.next(), self.buffer.end() - 1);
        !self.finished
            && !self.buffer.is_full(last)
            && self.buffer.first() < next
            && now < self.buffer.slot(last).time + COALESCE
    }

    fn update_credit(&mut self, now: Micros) {
        let interval = self.interval();
        // After a late wake-up. A receiver with libudt loses what its socket does not hold.
        let late = if self.ropewalk { BATCH_TIME / interval } else { 0.0 };
        let most = late.max(2.0 * self.batch(interval));
        let earned = now.saturating_sub(self.credit_at) as f64 / interval;
        self.credit = (self.credit + earned).min(most.max(2.0));
        self.credit_at = now;
    }

    /// The number of packets that are sent at a time.
    fn batch(&self, interval: f64) -> f64 {
        (BATCH_TIME / interval).clamp(1.0, f64::from(BATCH))
    }

    /// Appends data packets that are to be sent now. All are as long as the first one, but the last
    /// may be shorter.
    pub(crate) fn poll_transmit(&mut self, now: Micros, rtt: &Rtt, batch: &mut Batch) -> bool {
        self.check_timers(now, rtt);
        self.update_credit(now);
        let (sendable, takes_all) = self.sendable(now);
        if sendable == 0 {
            return false;
        }
        let batch_size = self.batch(self.interval());
        // While more data waits than the pace permits now, the pace is the limit.
        let app_limited = takes_all && (sendable as f64) < batch_size || self.is_held_by_ceiling();
        let wanted = batch_size.min(sendable as f64);
        if self.credit < wanted {
            return false;
        }
        let mut count = 0;
        let most = (LARGEST_BATCH / (self.payload + crate::HEADER)).clamp(1, BATCH.into());
        while count < most && self.credit >= 1.0 {
            let lost = self.lost.first();
            if lost.is_none() && self.sendable(now).0 == 0 {
                break;
            }
            let position = lost.unwrap_or(self.buffer.next());
            let length = usize::from(self.buffer.slot(position).length) + crate::HEADER;
            if count > 0 && length > batch.segment {
                break;
            }
            self.transmit(now, position, lost.is_some(), app_limited, batch);
            count += 1;
            self.credit -= 1.0;
            if count == 1 {
                batch.segment = length;
            } else if length < batch.segment {
                break;
            }
        }
        count > 0
    }

    fn transmit(&mut self, now: Micros, position: u64, again: bool, app_limited: bool, batch: &mut Batch) {
        let delivered = self.delivered_packets();
        if again {
            self.lost.remove_first();
            self.resent.push_back((position, now));
            self.resent_in_flight += 1;
            self.retransmitted += 1;
        } else {
            if self.buffer.first() == position {
                // Nothing was in flight: the rate is measured from here on.
                (self.delivered_at, self.delivered_sent) = (now, now);
                (self.last_event, self.last_answer) = (now, now);
            }
            self.buffer.advance();
            self.repeat_credit = (self.repeat_credit + REPEAT_SHARE).min(MOST_REPEATS);
            self.last_data = now;
            self.tail_keep_alive = !self.buffer.is_full(position);
        }
        self.sent += 1;
        let (delivered_at, delivered_sent) = (self.delivered_at, self.delivered_sent);
        let slot = self.buffer.slot_mut(position);
        slot.state = if again { State::SentAgain } else { State::InFlight };
        slot.repeats = slot.repeats.saturating_add(u8::from(again));
        slot.time = now;
        (slot.delivered, slot.delivered_at, slot.delivered_sent) = (delivered, delivered_at, delivered_sent);
        slot.app_limited = app_limited;
        let data = Data {
            seq: self.initial.add(position),
            message: SOLO | message_number(position),
            timestamp: now as u32,
            destination: self.peer_id,
            payload: self.buffer.payload(position),
        };
        batch.bytes.extend_from_slice(&data.header());
        batch.bytes.extend_from_slice(data.payload);
    }

    /// When to call [`Sender::poll_transmit`] again.
    pub(crate) fn timeout(&self, now: Micros, rtt: &Rtt) -> Option<Micros> {
        let timers = [
            self.probe_at(rtt),
            self.repeat_at(rtt),
            self.first_repeat_at(rtt),
            self.tail_keep_alive_at(),
            self.held_until(now),
        ];
        timers.into_iter().chain([self.paced_at(now)]).flatten().min()
    }

    fn held_until(&self, now: Micros) -> Option<Micros> {
        let waits = self.buffer.next() < self.buffer.end() && self.is_held(now);
        waits.then(|| self.buffer.slot(self.buffer.end() - 1).time + COALESCE)
    }

    fn paced_at(&self, now: Micros) -> Option<Micros> {
        let (sendable, _) = self.sendable(now);
        if sendable == 0 {
            return None;
        }
        let interval = self.interval();
        let missing = self.batch(interval).min(sendable as f64) - self.credit;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time")]
        let wait = (missing.max(0.0) * interval).ceil() as Micros;
        Some(self.credit_at + wait)
    }

    pub(crate) fn stats(&self, stats: &mut Stats) {
        let payload = self.payload as u64;
        stats.controller = self.controller.name();
        stats.congestion_window = self.controller.window();
        stats.pacing_interval = self.interval();
        stats.payload = self.payload;
        stats.sent = self.sent;
        stats.retransmitted = self.retransmitted;
        stats.acknowledged_bytes = self.acked_bytes;
        stats.unsent_bytes = self.buffer.unsent_bytes();
        stats.in_flight_bytes = self.in_flight() * payload;
        stats.delivery_rate = self.rate * payload as f64;
        stats.send_window_bytes = self.window_end.saturating_sub(self.buffer.first()) * payload;
        stats.send_buffer = self.buffer.capacity();
        stats.invalid += self.invalid;
    }
}

/// Each packet is a message. Numbers have 29 bits and begin with 1.
fn message_number(position: u64) -> u32 {
    (position % ((1 << 29) - 1)) as u32 + 1
}
