//! The congestion controls of connections: those of quinn, and [`Bbr`] of the UDT crate.
//!
//! The BBR of quinn sends about twice what a path carries, and its queue drops the rest.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, CubicConfig, NewRenoConfig};
use ropewalk_udt::congestion::{AckEvent, Bbr, Controller as _, LossEvent};

/// The packets in flight before the first ACK (RFC 9002, section 7.2).
const INITIAL_PACKETS: u64 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Congestion {
    Bbr,
    Cubic,
    Reno,
}

impl Congestion {
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "bbr" => Some(Self::Bbr),
            "cubic" => Some(Self::Cubic),
            "reno" => Some(Self::Reno),
            _ => None,
        }
    }

    pub(crate) fn factory(self) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self {
            Self::Bbr => Arc::new(MakeRateControl),
            Self::Cubic => Arc::new(CubicConfig::default()),
            Self::Reno => Arc::new(NewRenoConfig::default()),
        }
    }
}

struct MakeRateControl;

impl ControllerFactory for MakeRateControl {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(RateControl {
            bbr: Bbr::counting_bytes(current_mtu),
            start: now,
            mtu: current_mtu,
            idle: true,
            sent: 0,
            delivered: 0,
            delivered_at: now,
            delivered_sent: now,
            batches: VecDeque::new(),
            acked: 0,
            newest: None,
            rtt: Duration::ZERO,
            app_limited_until: 0,
        })
    }
}

/// Packets that were sent at one time, with what was known then.
#[derive(Clone, Copy)]
struct Batch {
    sent: Instant,
    /// The bytes that had been delivered, when the last of them were acknowledged, and when the
    /// newest of these had been sent.
    delivered: u64,
    delivered_at: Instant,
    delivered_sent: Instant,
}

/// Measures the rate of delivery for [`Bbr`] (draft-cheng-iccrg-delivery-rate-estimation), and
/// keeps as many bytes in flight as its pace needs. quinn has no pace but a quarter more than the
/// window in each round trip.
#[derive(Clone)]
struct RateControl {
    bbr: Bbr,
    start: Instant,
    mtu: u16,
    /// Nothing is in flight.
    idle: bool,
    /// Bytes since the start.
    sent: u64,
    delivered: u64,
    delivered_at: Instant,
    delivered_sent: Instant,
    /// In the order of their times; those before the newest that was acknowledged are dropped.
    batches: VecDeque<Batch>,
    /// Bytes of this ACK, and when the newest of its packets was sent.
    acked: u64,
    newest: Option<Instant>,
    rtt: Duration,
    /// The application had nothing more to send when so many bytes had been delivered or were in
    /// flight. Rates up to there say nothing about the path.
    app_limited_until: u64,
}

impl RateControl {
    fn micros(&self, time: Instant) -> u64 {
        micros(time.saturating_duration_since(self.start))
    }

    /// The batch that was sent at this time. Older ones are forgotten.
    fn batch(&mut self, sent: Instant) -> Option<Batch> {
        while self.batches.front().is_some_and(|batch| batch.sent < sent) {
            self.batches.pop_front();
        }
        self.batches.front().copied().filter(|batch| batch.sent == sent)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Controller for RateControl {
    fn on_sent(&mut self, now: Instant, bytes: u64, _: u64) {
        if std::mem::take(&mut self.idle) {
            // The time without data is no time of delivery.
            (self.delivered_at, self.delivered_sent) = (now, now);
        }
        self.sent += bytes;
        if self.batches.back().is_none_or(|batch| batch.sent < now) {
            self.batches.push_back(Batch {
                sent: now,
                delivered: self.delivered,
                delivered_at: self.delivered_at,
                delivered_sent: self.delivered_sent,
            });
        }
    }

    fn on_ack(&mut self, _: Instant, sent: Instant, bytes: u64, _: bool, rtt: &RttEstimator) {
        self.acked += bytes;
        self.newest = self.newest.max(Some(sent));
        self.rtt = rtt.get();
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, _: Option<u64>) {
        let acked = std::mem::take(&mut self.acked);
        let Some(newest) = self.newest.take() else { return };
        self.delivered += acked;
        self.idle = in_flight == 0;
        if app_limited {
            self.app_limited_until = self.delivered + in_flight;
        }
        // Without a batch, a packet that was sent later has been acknowledged before.
        let Some(batch) = self.batch(newest) else { return };
        let elapsed = (newest.saturating_duration_since(batch.delivered_sent))
            .max(now.saturating_duration_since(batch.delivered_at));
        (self.delivered_at, self.delivered_sent) = (now, newest);
        let event = AckEvent {
            now: self.micros(now),
            acked,
            delivered: self.delivered,
            delivered_before: batch.delivered,
            rtt: micros(self.rtt),
            rtt_sample: micros(now.saturating_duration_since(newest)),
            rate: (self.delivered - batch.delivered) as f64 * 1e6 / micros(elapsed).max(1) as f64,
            app_limited: batch.delivered < self.app_limited_until,
            in_flight,
            rates: None,
            sent: self.sent,
        };
        self.bbr.on_ack(&event);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.bbr.on_loss(&LossEvent {
            now: self.micros(now),
            first: self.micros(sent),
            highest: self.sent,
            lost: lost_bytes,
            rtt: micros(self.rtt),
        });
        if is_persistent {
            self.bbr.on_timeout(self.sent);
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu;
        self.bbr.set_packet(new_mtu);
    }

    fn window(&self) -> u64 {
        if self.delivered == 0 {
            return self.initial_window();
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, below 2^63")]
        let window = self.bbr.window_as_pace() as u64;
        window
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL_PACKETS * u64::from(self.mtu)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests;
