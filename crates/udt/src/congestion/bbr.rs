//! A congestion control that measures the path: the rate at which packets are delivered, and the
//! round-trip time without a queue (after BBR, draft-cardwell-iccrg-bbr-congestion-control).
//!
//! It sends at the measured rate, whatever single losses say, so it fills a path that loses packets
//! at random. It tries a higher rate for one round trip in eight, and drains the queue of that in
//! the next. Losses beyond [`LOSS_LIMIT`] mean that a queue overflows: the rate then stays below
//! the measured one until the next trial.
//!
//! Events count packets, as UDT does, or bytes, as QUIC does ([`Bbr::counting_bytes`]).

use crate::Micros;
use crate::congestion::{AckEvent, Controller, LossEvent};

/// The least factor that doubles the rate in each round trip (2 / ln 2).
const STARTUP_GAIN: f64 = 2.885;
/// The factors of the rate, each for one round trip.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// How many round trips a rate counts.
const RATE_ROUNDS: usize = 10;
/// Startup ends after so many round trips without a quarter more.
const FULL_ROUNDS: u32 = 3;
const GROWTH: f64 = 1.25;
/// The bandwidth-delay products in flight, so that late ACKs do not stop the sender.
const WINDOW_GAIN: f64 = 2.0;
/// An ACK waits for its sender's timer. That of libudt runs only while packets arrive: a window
/// that is full before its ACK would stop both.
const ACK_DELAY: Micros = 15_000;
const ACK_DELAY_LIBUDT: Micros = 50_000;
/// QUIC acknowledges every few packets: an ACK waits only until the thread of its sender runs.
const ACK_DELAY_QUIC: Micros = 5_000;
/// In packets.
const LEAST_WINDOW: f64 = 16.0;
/// The share of lost packets in a round trip above which a queue overflows.
const LOSS_LIMIT: f64 = 0.05;
/// The least number of lost packets that says something about the share.
const LEAST_LOSSES: f64 = 8.0;
/// So many lost packets in a round trip do not end startup.
const STARTUP_LOSSES: f64 = 32.0;
const BACKOFF: f64 = 0.85;
/// The least round-trip time is measured again after this time, with few packets in flight.
const RTT_EXPIRES: Micros = 10_000_000;
const RTT_PROBE: Micros = 200_000;
/// A round trip, and a phase, counts as one of this time at least: the threads of both ends do not
/// run all the time, so that the rate of a shorter one says little.
const LEAST_ROUND: Micros = 10_000;
/// The same for libudt, which acknowledges every 10 ms.
const LEAST_ROUND_LIBUDT: Micros = 25_000;
/// The rate before the first ACK, in packets per second: 16 packets in 100 ms.
const INITIAL_RATE: f64 = 160.0;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Startup,
    Drain,
    Cycle { index: usize, since: Micros },
    ProbeRtt { until: Micros },
}

#[derive(Clone)]
pub struct Bbr {
    /// The size of a packet in the unit of the events.
    packet: f64,
    least_round: Micros,
    ack_delay: Micros,
    round_start: Micros,
    phase: Phase,
    /// The largest rate of each of the latest round trips, in units per second.
    rates: [f64; RATE_ROUNDS],
    round: usize,
    /// The delivered units at which the round trip ends.
    round_end: u64,
    least_rtt: Micros,
    least_rtt_at: Micros,
    /// The rate that startup has reached, and for how many round trips.
    full_rate: f64,
    full_rounds: u32,
    /// The units that were sent before this round trip, and those that were lost in it.
    round_sent: u64,
    lost: u64,
    /// A factor of the rate after an overflow.
    bound: f64,
}

impl Bbr {
    /// `ropewalk` is whether the peer is a program of Ropewalk, which acknowledges often.
    pub fn new(ropewalk: bool) -> Self {
        if ropewalk {
            Self::with(1.0, LEAST_ROUND, ACK_DELAY)
        } else {
            Self::with(1.0, LEAST_ROUND_LIBUDT, ACK_DELAY_LIBUDT)
        }
    }

    /// For QUIC, whose events count bytes. `packet` is the size of a packet.
    pub fn counting_bytes(packet: u16) -> Self {
        Self::with(packet.into(), LEAST_ROUND, ACK_DELAY_QUIC)
    }

    fn with(packet: f64, least_round: Micros, ack_delay: Micros) -> Self {
        Self {
            packet,
            least_round,
            ack_delay,
            round_start: 0,
            phase: Phase::Startup,
            rates: [0.0; RATE_ROUNDS],
            round: 0,
            round_end: 0,
            least_rtt: Micros::MAX,
            least_rtt_at: 0,
            full_rate: 0.0,
            full_rounds: 0,
            round_sent: 0,
            lost: 0,
            bound: 1.0,
        }
    }

    /// Packets have another size from now on, in bytes.
    pub fn set_packet(&mut self, packet: u16) {
        self.packet = packet.into();
    }

    /// The units in flight for a sender that the window alone holds to the rate, because it cannot
    /// be given a pace. A window of the path's size drains the queue of a trial, so that no phase
    /// needs a smaller one.
    pub fn window_as_pace(&self) -> f64 {
        if let Phase::ProbeRtt { .. } = self.phase {
            return self.window();
        }
        let pace = self.rate() * self.gain().max(1.0) * self.bound;
        let least = LEAST_WINDOW * self.packet;
        pace * (self.least_rtt_or_none() + self.ack_delay) as f64 / 1e6 + least
    }

    fn least_rtt_or_none(&self) -> Micros {
        if self.least_rtt == Micros::MAX { 0 } else { self.least_rtt }
    }

    fn rate(&self) -> f64 {
        // The first ACKs are of few packets and would slow the start of a long path down.
        let least = if self.phase == Phase::Startup { INITIAL_RATE } else { 1.0 };
        let least = least * self.packet;
        self.rates.iter().fold(least, |most, rate| most.max(*rate))
    }

    fn gain(&self) -> f64 {
        match self.phase {
            Phase::Startup => STARTUP_GAIN,
            Phase::Drain => 1.0 / STARTUP_GAIN,
            Phase::Cycle { index, .. } => CYCLE[index],
            Phase::ProbeRtt { .. } => 1.0,
        }
    }

    /// The units in flight that fill the path without a queue.
    fn path_units(&self) -> f64 {
        self.rate() * self.least_rtt_or_none() as f64 / 1e6
    }

    fn end_round(&mut self, ack: &AckEvent) {
        self.round_start = ack.now;
        self.round_end = ack.delivered + ack.in_flight;
        let sent = ack.sent.saturating_sub(self.round_sent);
        self.round_sent = ack.sent;
        let lost = std::mem::take(&mut self.lost);
        let lost = lost as f64;
        let overflows = lost >= LEAST_LOSSES * self.packet && lost > LOSS_LIMIT * sent.max(1) as f64;
        if overflows {
            self.bound = (self.bound * BACKOFF).max(0.5);
        }
        if self.phase == Phase::Startup && !ack.app_limited {
            if self.rate() >= self.full_rate * GROWTH {
                (self.full_rate, self.full_rounds) = (self.rate(), 0);
            } else {
                self.full_rounds += 1;
            }
            if self.full_rounds >= FULL_ROUNDS || overflows {
                self.phase = Phase::Drain;
            }
        }
        self.round += 1;
        self.rates[self.round % RATE_ROUNDS] = 0.0;
    }

    fn update_phase(&mut self, ack: &AckEvent) {
        let now = ack.now;
        match self.phase {
            Phase::Drain if ack.in_flight as f64 <= self.path_units().max(LEAST_WINDOW * self.packet) => {
                self.phase = Phase::Cycle { index: 2, since: now };
            }
            Phase::Cycle { index, since } if now >= since + self.least_rtt.max(self.least_round) => {
                let index = (index + 1) % CYCLE.len();
                if index == 0 {
                    // The trial tests the bound, too.
                    self.bound = (self.bound / BACKOFF).min(1.0);
                }
                self.phase = Phase::Cycle { index, since: now };
            }
            Phase::ProbeRtt { until } if now >= until => {
                self.least_rtt_at = now;
                self.phase = Phase::Cycle { index: 2, since: now };
            }
            _ => {}
        }
        let expired = now >= self.least_rtt_at + RTT_EXPIRES;
        if expired && matches!(self.phase, Phase::Cycle { .. }) {
            self.least_rtt = ack.rtt_sample;
            self.phase = Phase::ProbeRtt { until: now + RTT_PROBE + ack.rtt };
        }
    }
}

impl Controller for Bbr {
    fn name(&self) -> &'static str {
        "bbr"
    }

    fn on_ack(&mut self, ack: &AckEvent) {
        if ack.rtt_sample <= self.least_rtt {
            (self.least_rtt, self.least_rtt_at) = (ack.rtt_sample, ack.now);
        }
        // A rate that the application has limited says only that the path can do that much.
        let place = &mut self.rates[self.round % RATE_ROUNDS];
        *place = place.max(ack.rate);
        if ack.delivered_before >= self.round_end && ack.now >= self.round_start + self.least_round {
            let rate = self.rate();
            self.end_round(ack);
            if ack.app_limited {
                // Nothing was measured; the old rate must not expire.
                self.rates[self.round % RATE_ROUNDS] = rate;
            }
        }
        self.update_phase(ack);
    }

    fn on_loss(&mut self, loss: &LossEvent) {
        self.lost += loss.lost;
        // Startup overruns the queue by as much again in each round trip that it goes on.
        if self.phase == Phase::Startup
            && self.lost as f64 > (LOSS_LIMIT * self.path_units()).max(STARTUP_LOSSES * self.packet)
        {
            self.phase = Phase::Drain;
        }
    }

    fn on_timeout(&mut self, _: u64) {
        // Nothing arrives: the path may have changed.
        self.bound = (self.bound * 0.5).max(0.1);
    }

    fn window(&self) -> f64 {
        let least = LEAST_WINDOW * self.packet;
        if let Phase::ProbeRtt { .. } = self.phase {
            return least.max(self.path_units() / 2.0);
        }
        let gain = if self.phase == Phase::Startup { STARTUP_GAIN } else { WINDOW_GAIN };
        gain * self.path_units() + self.rate() * self.ack_delay as f64 / 1e6 + least
    }

    fn interval(&self) -> f64 {
        1e6 / (self.rate() * self.gain() * self.bound)
    }
}
