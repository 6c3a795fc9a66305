//! Counts what a congestion control sees, because quinn does not report it: the bytes that the peer
//! has acknowledged, their rate, and the bytes in flight.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

/// The rate is measured over a round trip, but at least over this time.
const SHORTEST: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
pub(crate) struct Counters {
    delivered: AtomicU64,
    in_flight: AtomicU64,
    /// In bytes per second; 0 before the first measurement.
    rate: AtomicU64,
}

impl Counters {
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn rate(&self) -> Option<u64> {
        Some(self.rate.load(Ordering::Relaxed)).filter(|rate| *rate > 0)
    }
}

/// Makes a congestion control whose events are counted.
pub(crate) struct Observed {
    pub(crate) factory: Arc<dyn ControllerFactory + Send + Sync>,
    pub(crate) counters: Arc<Counters>,
}

impl ControllerFactory for Observed {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Observer {
            inner: Arc::clone(&self.factory).build(now, current_mtu),
            counters: Arc::clone(&self.counters),
            is_probe: false,
            round: (now, self.counters.delivered()),
            round_trip: SHORTEST,
        })
    }
}

struct Observer {
    inner: Box<dyn Controller>,
    counters: Arc<Counters>,
    /// The next ACK is that of a probe for the MTU, which carries no data.
    is_probe: bool,
    /// The beginning of the measurement of the rate, and the bytes that were delivered until then.
    round: (Instant, u64),
    round_trip: Duration,
}

impl Controller for Observer {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        if !std::mem::take(&mut self.is_probe) {
            self.counters.delivered.fetch_add(bytes, Ordering::Relaxed);
        }
        self.round_trip = rtt.get().max(SHORTEST);
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.counters.in_flight.store(in_flight, Ordering::Relaxed);
        let (began, before) = self.round;
        let passed = now.saturating_duration_since(began);
        if passed >= self.round_trip {
            let delivered = self.counters.delivered();
            let rate = (delivered - before).saturating_mul(1_000_000)
                / u64::try_from(passed.as_micros()).unwrap_or(1).max(1);
            self.counters.rate.store(rate, Ordering::Relaxed);
            self.round = (now, delivered);
        }
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, is_persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        // quinn reports the larger MTU immediately before the ACK of the probe.
        self.is_probe = true;
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { inner: self.inner.clone_box(), counters: Arc::clone(&self.counters), ..*self })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
