//! Whether the other side limits a path whose data passes through this host.
//!
//! A relay has two paths for the same data. If the one that takes the data away is slower, its
//! streams do not wait for data, and at last those that bring it wait for room in memory. If the
//! one that brings it is slower, the streams that take it away wait for data. A sending server that
//! is itself a relay reports that it has nothing to send. The rate then says nothing about this
//! path.

use std::time::{Duration, Instant};

use super::span::Totals;

/// Interval of measurements.
const INTERVAL: Duration = Duration::from_secs(1);
/// The other side is the limit if the streams have waited for it for this share of their time. They
/// could carry more than it by about this share already.
const WAITING: f64 = 0.2;
/// The share of a server's reports that say that it had nothing to send, and of samples in which
/// the reader of the data did not wait for any.
const MOST: f64 = 0.5;

/// The measurements of one path.
#[derive(Debug, Default)]
pub(super) struct OtherSide {
    since: Option<(Instant, Totals)>,
    nothing_to_send: bool,
    limits: bool,
}

impl OtherSide {
    /// Adds a sample. Returns whether the other side was the limit when it was measured last.
    pub(super) fn limits(&mut self, now: Instant, totals: Totals) -> bool {
        let (at, before) = *self.since.get_or_insert((now, totals));
        let time = now.saturating_duration_since(at);
        if time >= INTERVAL {
            self.since = Some((now, totals));
            let streams = f64::from(totals.streams.max(before.streams).max(1));
            let waited = (totals.storage - before.storage) / (streams * time.as_secs_f64());
            let reports = totals.markers.saturating_sub(before.markers);
            let idle = totals.idle.saturating_sub(before.idle);
            // A server reports once a second: without a report the last one counts.
            if reports > 0 {
                self.nothing_to_send = f64::from(idle) > MOST * f64::from(reports);
            }
            let looks = totals.looks.saturating_sub(before.looks);
            let behind = f64::from(totals.behind.saturating_sub(before.behind));
            let enough = looks > 0 && behind > MOST * f64::from(looks);
            self.limits = waited >= WAITING || self.nothing_to_send || enough;
        }
        self.limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(samples: &[Totals]) -> Vec<bool> {
        let (began, mut other) = (Instant::now(), OtherSide::default());
        let at = |n: usize| began + INTERVAL * n as u32;
        samples.iter().enumerate().map(|(n, totals)| other.limits(at(n), *totals)).collect()
    }

    fn waited(storage: f64) -> Totals {
        Totals { storage, streams: 4, ..Totals::default() }
    }

    #[test]
    fn streams_that_wait_for_the_other_side_show_its_limit() {
        // Four streams: 0.4, 2 and 0.2 seconds of waiting in a second.
        let all = [waited(1.0), waited(1.4), waited(3.4), waited(3.6)];
        assert_eq!(measured(&all), [false, false, true, false]);
    }

    #[test]
    fn servers_without_data_show_the_limit_of_the_other_side() {
        let told = |markers, idle| Totals { markers, idle, streams: 4, ..Totals::default() };
        assert_eq!(measured(&[told(0, 0), told(1, 0), told(2, 1), told(3, 1)]), [false, false, true, false]);
    }

    #[test]
    fn readers_that_do_not_wait_show_the_limit_of_the_other_side() {
        let looked = |looks, behind| Totals { looks, behind, streams: 4, ..Totals::default() };
        let all = [looked(0, 0), looked(5, 2), looked(10, 6), looked(15, 6)];
        assert_eq!(measured(&all), [false, false, true, false]);
    }

    #[test]
    fn samples_within_an_interval_change_nothing() {
        let (began, mut other) = (Instant::now(), OtherSide::default());
        assert!(!other.limits(began, waited(0.0)));
        assert!(!other.limits(began + INTERVAL / 2, waited(100.0)));
        assert!(other.limits(began + INTERVAL, waited(100.0)));
        assert!(other.limits(began + INTERVAL, waited(100.0)));
    }
}
