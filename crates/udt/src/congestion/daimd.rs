//! The congestion control of UDT (draft-gg-udt-03 section 6.1; libudt 4.11 where it differs): an
//! additive increase whose step depends on the spare capacity, and a decrease by 1/9 for a loss.
//!
//! The formulas, constants and their order are those of libudt, so that a connection is as fair to
//! programs with libudt as these are to each other. One difference: libudt begins with a receive
//! speed of 16 packets per second, and a loss in the first round trips leaves it there. Here a
//! speed counts from its first report on.

use crate::Micros;
use crate::congestion::{AckEvent, Controller, LossEvent};

/// UDT's interval of rate control.
const SYN: Micros = 10_000;
/// The packets in flight at the start.
const INITIAL_WINDOW: f64 = 16.0;
/// The slowest pace, in microseconds between packets.
const SLOWEST: f64 = 100_000.0;
/// The most decreases in one congestion epoch.
const MOST_DECREASES: u32 = 5;
const DECREASE: f64 = 1.125;

pub struct Daimd {
    /// Bytes of a packet, as an MSS counts them.
    mss: f64,
    /// The end of slow start.
    peer_window: f64,
    interval: f64,
    window: f64,
    slow_start: bool,
    speed: f64,
    capacity: f64,
    last_increase: Micros,
    loss_since_increase: bool,
    interval_at_decrease: f64,
    last_decrease: Option<u64>,
    naks: u32,
    average_naks: f64,
    decreases: u32,
    decrease_every: u32,
    random: u64,
}

impl Daimd {
    /// `seed` decides about the spacing of decreases, so that connections do not act in step.
    pub fn new(mss: u32, peer_window: u32, seed: u64) -> Self {
        Self {
            mss: f64::from(mss),
            peer_window: f64::from(peer_window),
            interval: 1.0,
            window: INITIAL_WINDOW,
            slow_start: true,
            speed: 0.0,
            capacity: 0.0,
            last_increase: 0,
            loss_since_increase: false,
            interval_at_decrease: 1.0,
            last_decrease: None,
            naks: 0,
            average_naks: 0.0,
            decreases: 0,
            decrease_every: 1,
            random: seed | 1,
        }
    }

    fn end_slow_start(&mut self, rtt: Micros) {
        self.slow_start = false;
        // Without a report of the peer: the window in one round trip.
        let speed = self.speed.max(self.window * 1e6 / (rtt + SYN) as f64);
        self.interval = (1e6 / speed).min(SLOWEST);
    }

    /// A number from 0 to 1 (xorshift).
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn decrease(&mut self, highest: u64) {
        self.interval = (self.interval * DECREASE).ceil().min(SLOWEST);
        self.last_decrease = Some(highest);
    }
}

fn smooth(value: &mut f64, sample: i32) {
    if sample > 0 {
        let sample = f64::from(sample);
        *value = if *value > 0.0 { (7.0 * *value + sample) / 8.0 } else { sample };
    }
}

impl Controller for Daimd {
    fn name(&self) -> &'static str {
        "daimd"
    }

    fn on_ack(&mut self, ack: &AckEvent) {
        if let Some(rates) = ack.rates {
            smooth(&mut self.speed, rates.speed);
            smooth(&mut self.capacity, rates.capacity);
        }
        if ack.now < self.last_increase + SYN {
            if self.slow_start {
                self.window += ack.acked as f64;
            }
            return;
        }
        self.last_increase = ack.now;
        if self.slow_start {
            self.window += ack.acked as f64;
            if self.window > self.peer_window {
                self.end_slow_start(ack.rtt);
            }
            return;
        }
        self.window = self.speed * (ack.rtt + SYN) as f64 / 1e6 + INITIAL_WINDOW;
        if std::mem::take(&mut self.loss_since_increase) {
            return;
        }
        let mut spare = self.capacity - 1e6 / self.interval;
        if self.interval > self.interval_at_decrease {
            spare = spare.min(self.capacity / 9.0);
        }
        let increase = if spare > 0.0 {
            (10_f64.powf((spare * self.mss * 8.0).log10().ceil()) * 1.5e-6 / self.mss).max(0.01)
        } else {
            0.01
        };
        let syn = SYN as f64;
        self.interval = self.interval * syn / (self.interval * increase + syn);
    }

    fn on_loss(&mut self, loss: &LossEvent) {
        if self.slow_start {
            self.end_slow_start(loss.rtt);
            return;
        }
        self.loss_since_increase = true;
        if self.last_decrease.is_none_or(|last| loss.first > last) {
            self.interval_at_decrease = self.interval;
            self.average_naks = (self.average_naks * 0.875 + f64::from(self.naks) * 0.125).ceil();
            (self.naks, self.decreases) = (1, 1);
            let every = (self.average_naks * self.random()).ceil().max(1.0);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number")]
            {
                self.decrease_every = every as u32;
            }
            self.decrease(loss.highest);
        } else if self.decreases < MOST_DECREASES {
            self.decreases += 1;
            self.naks += 1;
            if self.naks.is_multiple_of(self.decrease_every) {
                self.decrease(loss.highest);
            }
        }
    }

    fn on_timeout(&mut self, _: u64) {
        if self.slow_start && self.speed > 0.0 {
            self.end_slow_start(SYN);
        }
    }

    fn window(&self) -> f64 {
        self.window
    }

    fn interval(&self) -> f64 {
        self.interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rates;

    fn ack(now: Micros) -> AckEvent {
        let rates = Some(Rates { speed: 10_000, capacity: 80_000, arrivals: None });
        AckEvent {
            now,
            acked: 100,
            delivered: 0,
            delivered_before: 0,
            rtt: 50_000,
            rtt_sample: 50_000,
            rate: 0.0,
            app_limited: false,
            in_flight: 0,
            rates,
            sent: 0,
        }
    }

    fn loss(first: u64, highest: u64) -> LossEvent {
        LossEvent { now: 0, first, highest, lost: 1, rtt: 50_000 }
    }

    fn after_slow_start() -> Daimd {
        let mut daimd = Daimd::new(1500, 8192, 1);
        daimd.on_ack(&ack(SYN));
        daimd.on_loss(&loss(1, 100));
        daimd
    }

    #[test]
    fn slow_start_ended_by_a_loss_continues_at_the_reported_speed() {
        let daimd = after_slow_start();
        assert!((daimd.interval() - 100.0).abs() < 1e-9);
    }

    #[test]
    fn increase_is_that_of_the_spare_capacity() {
        let mut daimd = after_slow_start();
        // 70,000 spare packets of 1500 bytes are 840 Mbit/s: 100 packets per second and 10 ms.
        daimd.on_ack(&ack(2 * SYN));
        assert!((1e6 / daimd.interval() - 10_100.0).abs() < 1e-6);
        // At most once in 10 ms.
        daimd.on_ack(&ack(2 * SYN + 1));
        assert!((1e6 / daimd.interval() - 10_100.0).abs() < 1e-6);
        assert!((daimd.window() - (10_000.0 * 0.06 + 16.0)).abs() < 1e-6);
    }

    #[test]
    fn losses_of_one_epoch_decrease_the_rate_at_most_five_times() {
        let mut daimd = after_slow_start();
        daimd.on_loss(&loss(101, 1000));
        assert!((daimd.interval() - 113.0).abs() < 1e-9);
        for _ in 0..20 {
            daimd.on_loss(&loss(500, 1000));
        }
        assert!(daimd.interval() <= (100.0 * DECREASE.powi(5)).ceil() + 5.0);
    }

    #[test]
    fn increase_after_a_loss_is_left_out_once() {
        let mut daimd = after_slow_start();
        daimd.on_loss(&loss(101, 1000));
        let interval = daimd.interval();
        daimd.on_ack(&ack(2 * SYN));
        assert!((daimd.interval() - interval).abs() < 1e-9);
        daimd.on_ack(&ack(3 * SYN));
        assert!(daimd.interval() < interval);
    }
}
