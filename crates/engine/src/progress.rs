use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use ropewalk_protocol::range::RangeSet;

use crate::BufferBudget;
use crate::budget::MOST_GAPS;
use crate::error::{Error, Result};
use crate::flow::{Flow, Flows, PathSample};

/// So many ranges with gaps between them may every transfer have, and so many more are accounted
/// for at a time, at some dozen bytes each in several places: it is the peer who decides how many
/// there are ([`BufferBudget::add_gaps`]).
const RANGES: usize = 1 << 14;

/// Where a stream's time went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reading from the source store, and waiting for a [`Feed`](crate::Feed). With `sendfile`, in
    /// which reading and sending are one: waiting until the data is in memory.
    Source,
    /// Waiting for the socket.
    Network,
    /// Writing to the destination store.
    Destination,
    Checksum,
    /// Encrypting and decrypting, or sealing and checking, what goes over protected connections.
    Encryption,
}

/// The figures of one transfer, shared between its threads and its observers.
#[derive(Debug, Default)]
pub struct Progress {
    bytes: AtomicU64,
    streams: AtomicU32,
    stages: [AtomicU64; 5],
    lives: Mutex<Lives>,
    received: Mutex<Account>,
    /// Those of the channel.
    flows: Mutex<Option<Flows>>,
    /// The bytes of each stripe, if another process has reported them.
    stripes: Mutex<Vec<u64>>,
}

/// The received ranges, and how many of them the budget counts.
#[derive(Default)]
struct Account {
    ranges: RangeSet,
    counted: Option<(Arc<BufferBudget>, usize)>,
}

impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.ranges.fmt(f)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if let Some((budget, counted)) = &self.counted {
            budget.remove_gaps(*counted);
        }
    }
}

/// How long there were how many streams.
#[derive(Debug, Default)]
struct Lives {
    /// Until `since`, summed over streams.
    before: Duration,
    since: Option<Instant>,
    streams: u32,
    /// At a time.
    most: u32,
}

impl Lives {
    fn until(&self, now: Instant) -> Duration {
        let since = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.before.saturating_add(since.saturating_mul(self.streams))
    }
}

impl Progress {
    pub fn new() -> Self {
        Self::default()
    }

    /// Payload bytes that the destination store has taken (receiving) or the socket has taken
    /// (sending).
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Data connections in use.
    pub fn streams(&self) -> u32 {
        self.streams.load(Ordering::Relaxed)
    }

    /// Most data connections that were in use at a time.
    pub fn most_streams(&self) -> u32 {
        self.lives().most
    }

    /// Time spent in a stage, summed over streams.
    pub fn time(&self, stage: Stage) -> Duration {
        Duration::from_nanos(self.stages[stage as usize].load(Ordering::Relaxed))
    }

    /// The time for which streams were in use, summed over them: the times of stages are shares of
    /// it. It counts up until the last stream is gone, so ask for it when the transfer ends.
    pub fn stream_time(&self) -> Duration {
        self.lives().until(Instant::now())
    }

    /// The internet addresses of the peers of the live data connections, including those that are
    /// kept for later transfers. This needs no statistics.
    pub fn peers(&self) -> Vec<SocketAddr> {
        self.channel_flows().map(|flows| flows.peers()).unwrap_or_default()
    }

    fn lives(&self) -> MutexGuard<'_, Lives> {
        self.lives.lock()
    }

    /// Receiving: the file ranges written so far (file offsets, not wire offsets), without what was
    /// there before.
    pub fn received(&self) -> RangeSet {
        self.received.lock().ranges.clone()
    }

    /// The current statistics of every live data connection, including those that are kept for
    /// later transfers. Empty before the transfer starts.
    pub fn flows(&self) -> Vec<Flow> {
        self.channel_flows().map(|flows| flows.sample()).unwrap_or_default()
    }

    /// The same, taken together.
    pub fn path(&self) -> PathSample {
        self.channel_flows().map(|flows| flows.path()).unwrap_or_default()
    }

    /// The data connections of the channel that is used; `None` before there is one.
    pub fn channel_flows(&self) -> Option<Flows> {
        self.flows.lock().clone()
    }

    /// The bytes of each stripe of a transfer whose data other processes move.
    pub fn stripes(&self) -> Vec<u64> {
        self.stripes.lock().clone()
    }

    /// Takes over the figures of a transfer whose data other processes move: the bytes of each
    /// stripe, the streams of all, and the times of the stages in the order of [`Stage`].
    pub fn report(&self, stripes: &[u64], streams: u32, times: [Duration; 5]) {
        let bytes = stripes.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        self.bytes.store(bytes, Ordering::Relaxed);
        stripes.clone_into(&mut self.stripes.lock());
        self.set_streams(streams);
        for (stage, time) in self.stages.iter().zip(times) {
            stage.store(time.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// The times of all stages, in the order of [`Stage`].
    pub fn times(&self) -> [Duration; 5] {
        [Stage::Source, Stage::Network, Stage::Destination, Stage::Checksum, Stage::Encryption]
            .map(|stage| self.time(stage))
    }

    /// Adds a range that another process has received.
    ///
    /// # Errors
    /// The ranges have too many gaps between them.
    pub fn report_received(&self, range: Range<u64>, budget: &Arc<BufferBudget>) -> Result<()> {
        self.add_received(range, budget)
    }

    pub(crate) fn set_flows(&self, flows: &Flows) {
        *self.flows.lock() = Some(flows.clone());
    }

    pub(crate) fn add_bytes(&self, n: u64) {
        self.bytes.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn add_time(&self, stage: Stage, time: Duration) {
        self.stages[stage as usize].fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn set_streams(&self, n: u32) {
        if self.streams.swap(n, Ordering::Relaxed) == n {
            return;
        }
        let now = Instant::now();
        let mut lives = self.lives();
        *lives = Lives { before: lives.until(now), since: Some(now), streams: n, most: lives.most.max(n) };
    }

    /// Fails where the ranges are too many.
    pub(crate) fn add_received(&self, range: Range<u64>, budget: &Arc<BufferBudget>) -> Result<()> {
        let mut received = self.received.lock();
        received.ranges.insert(range);
        let count = received.ranges.count();
        let (budget, counted) = match &mut received.counted {
            None if count <= RANGES => return Ok(()),
            counted => counted.get_or_insert_with(|| (budget.clone(), 0)),
        };
        if count > RANGES + *counted {
            // Of all, one has half at most.
            if count > MOST_GAPS / 2 {
                return Err(Error::Scattered { count });
            }
            if !budget.add_gaps(RANGES) {
                return Err(Error::Crowded { count });
            }
            *counted += RANGES;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_scattered_too_much_is_refused() {
        let budget = BufferBudget::new(0);
        let scatter = |progress: &Progress, most: u64| {
            (0..most).try_for_each(|at| progress.add_received(2 * at..2 * at + 1, &budget))
        };
        let greedy = [Progress::new(), Progress::new()];
        for progress in &greedy {
            let error = scatter(progress, 1 << 20).unwrap_err();
            assert!(matches!(error, Error::Scattered { count } if count > MOST_GAPS / 2), "{error}");
        }
        // Others may have a few all the same, and more once those are gone.
        scatter(&Progress::new(), RANGES as u64).unwrap();
        let other = Progress::new();
        let error = scatter(&other, 4 * RANGES as u64).unwrap_err();
        assert!(matches!(error, Error::Crowded { count } if count <= 4 * RANGES), "{error}");
        drop(greedy);
        scatter(&other, 2 * RANGES as u64).unwrap();
        // Gaps that are closed cost nothing.
        for at in 0..u64::from(u16::MAX) {
            other.add_received(at << 40..(at + 1) << 40, &budget).unwrap();
        }
    }

    #[test]
    fn lives_of_streams_are_summed() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut lives = Lives::default();
        assert_eq!(lives.until(at(9)), Duration::ZERO);
        for (second, streams) in [(0, 1), (2, 4), (5, 0)] {
            lives = Lives { before: lives.until(at(second)), since: Some(at(second)), streams, ..lives };
        }
        assert_eq!(lives.until(at(60)), Duration::from_secs(2 + 12));
        let progress = Progress::new();
        progress.set_streams(3);
        assert!(progress.stream_time() > Duration::ZERO && progress.peers().is_empty());
        progress.set_streams(0);
        progress.set_streams(2);
        assert_eq!((progress.streams(), progress.most_streams()), (2, 3));
    }
}
