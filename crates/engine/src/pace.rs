//! The sending rate of a connection, and the bound on what waits unsent in the kernel.
//!
//! A send buffer that grew while the connection was fast holds megabytes that a connection which
//! has become slow needs many seconds to send. The other streams finish, and the end of the file
//! waits for that one. So each stream is dealt what it can send soon
//! ([`ropewalk_protocol::mode_e::Rate`]), and the kernel keeps [`UNSENT`] of it at most. Each
//! connection has one [`Pace`], which the thread that sends over it asks before each block.

use std::time::{Duration, Instant};

use ropewalk_protocol::mode_e::Rate;
use ropewalk_transport::PathStats;

/// The rate is measured over spans no shorter than this, and than a round trip.
pub(crate) const SPAN: Duration = Duration::from_millis(100);
/// At its rate the connection needs this long to send what waits unsent in the kernel. Long enough
/// for a thread that a busy host wakes late.
const UNSENT: Duration = Duration::from_millis(200);
/// The bound is no lower than this, in bytes.
const LEAST_UNSENT: u32 = 16 << 10;
/// The part of a new measurement in the smoothed rate.
const GAIN: f64 = 0.5;
/// The bound follows the rate when it is off by more than this factor.
const SLACK: f64 = 1.25;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the span began, and the bytes that the peer had acknowledged then.
    since: Option<(Instant, u64)>,
    /// How long the span has to be.
    span: Duration,
    /// Bytes per second.
    rate: Option<f64>,
    /// The bound that was set last, in bytes.
    limit: u32,
}

impl Pace {
    /// For a connection whose rate is known. If `since` states when its bytes were counted last,
    /// because its thread was blocked after that, the rate since then replaces the known one.
    pub(crate) fn of(rate: Rate, since: Option<(Instant, u64)>) -> Self {
        let rate = match rate {
            Rate::Measured(rate) if since.is_none() => Some(rate as f64),
            _ => None,
        };
        Self { since, rate, ..Self::default() }
    }

    /// A transfer starts: the time since the last one says nothing about the rate.
    pub(crate) fn restart(&mut self) {
        self.since = None;
    }

    /// Whether a span is over, so that [`Self::learn`] has something to learn.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.since.is_none_or(|(since, _)| now.duration_since(since) >= self.span)
    }

    /// Takes the statistics of the connection. Returns the bound on unsent bytes to set, if the one
    /// that is set is off.
    pub(crate) fn learn(&mut self, stats: &PathStats, now: Instant) -> Option<u32> {
        let acknowledged = stats.delivered?;
        self.span = stats.rtt.unwrap_or_default().max(SPAN);
        let Some((since, before)) = self.since else {
            self.since = Some((now, acknowledged));
            return None;
        };
        let span = now.duration_since(since);
        if span < self.span {
            return None;
        }
        self.since = Some((now, acknowledged));
        let rate = acknowledged.saturating_sub(before) as f64 / span.as_secs_f64();
        let smoothed = self.rate.map_or(rate, |before| before + GAIN * (rate - before));
        self.rate = Some(smoothed);
        let wanted = (smoothed * UNSENT.as_secs_f64()).clamp(LEAST_UNSENT.into(), i32::MAX.into());
        let (low, high) = (wanted / SLACK, wanted * SLACK);
        if (low..=high).contains(&f64::from(self.limit)) {
            return None;
        }
        self.limit = wanted as u32;
        Some(self.limit)
    }

    /// The rate as far as it is known.
    pub(crate) fn rate(&self) -> Rate {
        self.rate.map_or(Rate::Pending, |rate| Rate::Measured(rate as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acknowledged(bytes: u64) -> PathStats {
        PathStats { delivered: Some(bytes), rtt: Some(Duration::from_millis(50)), ..PathStats::default() }
    }

    #[test]
    fn pace_after_steady_sending_bounds_unsent_bytes_by_the_rate() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        assert!(pace.is_due(start));
        assert_eq!(pace.learn(&acknowledged(500), start), None);
        assert_eq!(pace.rate(), Rate::Pending);
        assert!(!pace.is_due(at(99)) && pace.is_due(at(100)));
        assert_eq!(pace.learn(&acknowledged(100_500), at(100)), Some(200_000));
        assert_eq!(pace.rate(), Rate::Measured(1_000_000));
        // A tenth more is no reason to change the bound; half of it is.
        assert_eq!(pace.learn(&acknowledged(210_500), at(200)), None);
        assert_eq!(pace.learn(&acknowledged(210_500), at(300)), Some(105_000));
    }

    #[test]
    fn pace_over_a_long_path_is_due_once_a_round_trip() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let far = |bytes| PathStats { rtt: Some(Duration::from_millis(300)), ..acknowledged(bytes) };
        pace.learn(&far(0), start);
        assert!(!pace.is_due(start + Duration::from_millis(299)));
        assert!(pace.is_due(start + Duration::from_millis(300)));
    }

    #[test]
    fn pace_of_a_stalled_connection_leaves_it_a_least_bound() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        pace.learn(&acknowledged(7), start);
        assert_eq!(pace.learn(&acknowledged(7), start + Duration::from_secs(1)), Some(LEAST_UNSENT));
        assert_eq!(pace.rate(), Rate::Measured(0));
    }

    #[test]
    fn pace_after_a_pause_keeps_the_rate_of_the_last_transfer() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        pace.learn(&acknowledged(0), start);
        pace.learn(&acknowledged(1_000_000), start + Duration::from_secs(1));
        pace.restart();
        pace.learn(&acknowledged(1_000_000), start + Duration::from_secs(60));
        assert_eq!(pace.rate(), Rate::Measured(1_000_000));
    }

    #[test]
    fn pace_waits_for_a_round_trip() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let far = |bytes| PathStats { rtt: Some(Duration::from_millis(300)), ..acknowledged(bytes) };
        pace.learn(&far(0), start);
        assert_eq!(pace.learn(&far(100_000), start + Duration::from_millis(200)), None);
        assert_eq!(pace.rate(), Rate::Pending);
    }
}
