//! One direction of the path in virtual time, without I/O and without a clock.
//!
//! Times are nanoseconds since any fixed moment. Every call first computes what has happened on the
//! link up to the time of the call, each event at its own time. So a call that comes late changes
//! only when the caller gets its answer, and not the answer itself.

use std::collections::VecDeque;

use fastrand::Rng;

use super::codel::{CodelState, Dequeued};
use super::config::{Direction, Queue};
use super::jitter::Wander;
use super::loss::LossProcess;
use super::red::{RedState, Verdict};
use super::stats::Counters;
use super::wire::{Travelling, Wire};

/// Nanoseconds, as a time since the start or as a duration.
pub type Nanos = u64;

/// A packet in the queue.
#[derive(Debug)]
pub(super) struct Waiting<P> {
    pub(super) at: Nanos,
    pub(super) bytes: u32,
    pub(super) ecn: bool,
    pub(super) marked: bool,
    pub(super) payload: P,
}

/// The events in the queue since the last call of [`Link::window`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    pub queue_max: u64,
    /// Packets that left the queue for the link; `waited` is the sum of their waiting times.
    pub served: u64,
    pub waited: Nanos,
    pub waited_max: Nanos,
}

/// Loss, queue, link and delay of one direction. Packets carry a payload `P` of any type.
pub struct Link<P> {
    config: Direction,
    loss: LossProcess,
    jitter: Wander,
    red: RedState,
    codel: CodelState,
    /// Random numbers for RED and for reordering. Loss has a generator of its own, so that the
    /// losses of a seed do not depend on the queue.
    rng: Rng,
    queue: VecDeque<Waiting<P>>,
    queue_bytes: u64,
    largest: u64,
    /// The link is busy until this time, plus `remainder` times 1/rate nanoseconds.
    busy_until: Nanos,
    remainder: u64,
    wire: Wire<P>,
    counters: Counters,
    window: Window,
}

impl<P> Link<P> {
    /// An idle link. The caller must have validated `config`.
    pub fn new(config: Direction, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        Self {
            loss: LossProcess::new(config.loss, rng.fork()),
            jitter: Wander::new(config.jitter.as_nanos() as Nanos, rng.fork()),
            red: RedState::default(),
            codel: CodelState::default(),
            rng,
            queue: VecDeque::new(),
            queue_bytes: 0,
            largest: 0,
            busy_until: 0,
            remainder: 0,
            wire: Wire::new(),
            counters: Counters::default(),
            window: Window::default(),
            config,
        }
    }

    /// The current configuration.
    pub fn config(&self) -> &Direction {
        &self.config
    }

    /// Changes the configuration from `now` on. The packet on the link is finished at the old rate,
    /// packets that have left the link keep their arrival times, and packets that exceed a new
    /// limit of the queue stay in it until they are sent.
    pub fn set(&mut self, now: Nanos, config: Direction) {
        self.advance(now);
        if std::mem::discriminant(&config.queue) != std::mem::discriminant(&self.config.queue) {
            self.red = RedState::default();
            self.codel = CodelState::default();
        }
        self.loss.set(config.loss);
        self.jitter.set(config.jitter.as_nanos() as Nanos);
        self.remainder = 0;
        self.config = config;
    }

    /// Offers a packet of `bytes` that arrives at `now`; `ecn` says whether it may be marked.
    /// [`Self::take`] returns it later unless it is dropped.
    pub fn offer(&mut self, now: Nanos, bytes: u32, ecn: bool, payload: P) {
        self.advance(now);
        self.counters.packets_in += 1;
        self.counters.bytes_in += u64::from(bytes);
        self.largest = self.largest.max(u64::from(bytes));
        if self.loss.next() {
            self.counters.lost += 1;
            return;
        }
        let Some(marked) = self.admit(now, bytes, ecn) else { return };
        self.counters.marked += u64::from(marked);
        self.queue.push_back(Waiting { at: now, bytes, ecn, marked, payload });
        self.queue_bytes += u64::from(bytes);
        self.advance(now);
        let waiting = self.queue.len() as u64;
        self.counters.waiting_max = self.counters.waiting_max.max(waiting);
        self.window.queue_max = self.window.queue_max.max(waiting);
    }

    /// Returns `None` if the queue drops the packet, otherwise whether the packet is to be marked.
    fn admit(&mut self, now: Nanos, bytes: u32, ecn: bool) -> Option<bool> {
        let mut marked = false;
        let limit = match self.config.queue {
            Queue::DropTail { packets } => packets,
            Queue::Codel(codel) => codel.limit,
            Queue::Red(red) => {
                let idle = if self.queue.is_empty() { now.saturating_sub(self.busy_until) } else { 0 };
                let slot = self.slot(bytes);
                match self.red.arrive(&red, self.queue.len(), idle, slot, ecn, &mut self.rng) {
                    Verdict::Keep => {}
                    Verdict::Mark => marked = true,
                    Verdict::Drop => {
                        self.counters.dropped_red += 1;
                        return None;
                    }
                }
                red.limit
            }
        };
        if self.queue.len() >= limit as usize {
            self.counters.dropped_full += 1;
            return None;
        }
        Some(marked)
    }

    /// The time that a packet of `bytes` takes on the link, rounded down.
    fn slot(&self, bytes: u32) -> Nanos {
        self.config.rate.time_for(u64::from(bytes) + u64::from(self.config.overhead)).as_nanos() as Nanos
    }

    /// Takes from the queue all packets that the link has begun to send by `now`.
    pub fn advance(&mut self, now: Nanos) {
        while let Some(head) = self.queue.front() {
            let start = self.busy_until.max(head.at);
            if start > now {
                break;
            }
            if start > self.busy_until {
                self.remainder = 0;
            }
            let taken = match &self.config.queue {
                Queue::Codel(codel) => {
                    let (queue, bytes) = (&mut self.queue, &mut self.queue_bytes);
                    self.codel.dequeue(codel, start, queue, bytes, self.largest)
                }
                _ => {
                    let packet = self.queue.pop_front();
                    self.queue_bytes -= packet.as_ref().map_or(0, |p| u64::from(p.bytes));
                    Dequeued { packet, dropped: 0, marked: false }
                }
            };
            self.counters.dropped_codel += taken.dropped;
            self.counters.marked += u64::from(taken.marked);
            if let Some(packet) = taken.packet {
                self.serve(start, packet, taken.marked);
            }
        }
    }

    fn serve(&mut self, start: Nanos, packet: Waiting<P>, marked: bool) {
        let waited = start.saturating_sub(packet.at);
        self.window.served += 1;
        self.window.waited += waited;
        self.window.waited_max = self.window.waited_max.max(waited);

        let mut done = start;
        if let Some(rate) = self.config.rate.get() {
            let bits = 8 * (u128::from(packet.bytes) + u128::from(self.config.overhead));
            let time = bits * 1_000_000_000 + u128::from(self.remainder);
            done += u64::try_from(time / u128::from(rate)).unwrap_or(u64::MAX / 4);
            self.remainder = (time % u128::from(rate)) as u64;
        }
        self.busy_until = done;
        let delay = self.config.delay.as_nanos() as Nanos;
        let due = (done + delay).saturating_add_signed(self.jitter.at(done));
        let marked = packet.marked || marked;
        match self.config.reorder {
            Some(reorder) if self.rng.f64() < reorder.probability => {
                let due = due + reorder.by.as_nanos() as Nanos;
                self.wire.hold(due, packet.bytes, marked, packet.payload);
            }
            _ => self.wire.send(due, packet.bytes, marked, packet.payload),
        }
    }

    /// The time at which to call [`Self::take`] next, if packets that are due within `hold` of each
    /// other are to be taken together at the time of the last one. The time may turn out to be too
    /// early; the next call returns a later one then. `None`: no packet is on its way.
    pub fn next_deadline(&self, hold: Nanos) -> Option<Nanos> {
        let wire = self.wire.release(hold);
        // The next packet of the queue arrives after those in the delay line, and not before this
        // time.
        let queue = self.queue.front().filter(|_| self.wire.line_is_empty()).map(|head| {
            let slot = if matches!(self.config.queue, Queue::Codel(_)) { 0 } else { self.slot(head.bytes) };
            let delay = self.config.delay.saturating_sub(self.config.jitter).as_nanos() as Nanos;
            self.busy_until.max(head.at) + slot + delay
        });
        match (wire, queue) {
            (Some(wire), Some(queue)) => Some(wire.min(queue)),
            (wire, queue) => wire.or(queue),
        }
    }

    /// Takes a packet that has arrived by `now`, in the order of arrival.
    pub fn take(&mut self, now: Nanos) -> Option<Travelling<P>> {
        self.advance(now);
        let (packet, late) = self.wire.take(now)?;
        self.counters.packets_out += 1;
        self.counters.bytes_out += u64::from(packet.bytes);
        self.counters.reordered += u64::from(late);
        Some(packet)
    }

    /// The counters; those of which the link has no knowledge are 0.
    pub fn counters(&self) -> Counters {
        Counters { waiting: self.queue.len() as u64, travelling: self.wire.len() as u64, ..self.counters }
    }

    /// RED's average queue length; for other queues the current number of waiting packets.
    pub fn queue_average(&self) -> f64 {
        match self.config.queue {
            Queue::Red(_) => self.red.average(),
            _ => self.queue.len() as f64,
        }
    }

    /// Returns the events in the queue since the last call.
    pub fn window(&mut self) -> Window {
        let next = Window { queue_max: self.queue.len() as u64, ..Window::default() };
        std::mem::replace(&mut self.window, next)
    }
}
