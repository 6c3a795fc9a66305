//! The time that a slow device takes for its requests. Each request reserves the device for its
//! size and latency, and the thread that serves it sleeps until the reserved time has passed. Reads
//! and writes have separate schedules unless the device is shared. The bytes and the busy time are
//! counted for the results.

use crate::{record::DiskMeter, scenario::Disk};
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// A request may begin up to this long before it arrives, to make up for late wake-ups of the
/// device's threads. Apart from that, idle time of the device is lost.
const SLACK: Duration = Duration::from_millis(30);

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Read,
    Write,
}

/// The schedule of a device: each request begins when the one before it has ended.
#[derive(Debug)]
pub(super) struct Device {
    limit: Disk,
    /// The end of the last read and of the last write.
    busy_until: [Mutex<Instant>; 2],
    limited: Mutex<bool>,
    changed: Condvar,
    meter: Arc<DiskMeter>,
}

impl Device {
    pub(super) fn new(limit: Disk, meter: Arc<DiskMeter>) -> Self {
        let now = Instant::now();
        Self {
            limit,
            busy_until: [Mutex::new(now), Mutex::new(now)],
            limited: Mutex::new(false),
            changed: Condvar::new(),
            meter,
        }
    }

    /// Switches the limits on or off. Switching them off releases the requests that wait.
    pub(super) fn limit(&self, limited: bool) {
        *self.limited() = limited;
        self.changed.notify_all();
    }

    pub(super) fn is_limited(&self) -> bool {
        *self.limited()
    }

    fn limited(&self) -> MutexGuard<'_, bool> {
        self.limited.lock()
    }

    /// Counts a request and waits until the device would have finished it.
    pub(super) fn work(&self, way: Way, bytes: usize) {
        let counter = match way {
            Way::Read => &self.meter.read,
            Way::Write => &self.meter.written,
        };
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
        if !*self.limited() {
            return;
        }
        let cost = self.cost(way, bytes);
        self.meter.busy.fetch_add(cost.as_nanos() as u64, Ordering::Relaxed);
        let end = self.end(way, cost, Instant::now());
        let mut limited = self.limited();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if !*limited || left.is_zero() {
                return;
            }
            self.changed.wait_for(&mut limited, left);
        }
    }

    fn cost(&self, way: Way, bytes: usize) -> Duration {
        let rate = match way {
            Way::Read => self.limit.read,
            Way::Write => self.limit.write,
        };
        let transfer = rate.map_or(0.0, |rate| bytes as f64 / rate.0 as f64);
        self.limit.latency.0 + Duration::from_secs_f64(transfer)
    }

    /// Reserves the time for a request that arrives at `now`, and returns when it ends.
    fn end(&self, way: Way, cost: Duration, now: Instant) -> Instant {
        let lane = if self.limit.shared || way == Way::Read { 0 } else { 1 };
        let mut busy_until = self.busy_until[lane].lock();
        let begin = now.checked_sub(SLACK).map_or(now, |earliest| busy_until.max(earliest));
        *busy_until = begin + cost;
        *busy_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{ByteRate, Time};

    fn device(shared: bool) -> Device {
        let limit =
            Disk { read: Some(ByteRate(1000)), write: Some(ByteRate(500)), shared, latency: Time::millis(5) };
        Device::new(limit, Arc::default())
    }

    #[test]
    fn device_with_limits_serves_requests_one_after_another() {
        let device = device(false);
        let now = Instant::now() + Duration::from_secs(60);
        assert_eq!(device.cost(Way::Read, 1000), Duration::from_millis(1005));
        assert_eq!(device.cost(Way::Write, 1000), Duration::from_millis(2005));
        let second = Duration::from_secs(1);
        let first = device.end(Way::Read, second, now);
        assert_eq!(first, now + second - SLACK);
        assert_eq!(device.end(Way::Read, second, now), first + second);
        assert_eq!(device.end(Way::Write, second, now), first);
        // The idle time of the pause is lost.
        let later = now + second * 10;
        assert_eq!(device.end(Way::Read, second, later), later + second - SLACK);
    }

    #[test]
    fn device_when_shared_serves_reads_and_writes_one_after_another() {
        let device = device(true);
        let now = Instant::now() + Duration::from_secs(60);
        let first = device.end(Way::Read, Duration::from_secs(1), now);
        assert_eq!(device.end(Way::Write, Duration::from_secs(1), now), first + Duration::from_secs(1));
    }
}
