use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ropewalk_protocol::range::RangeSet;

use crate::flow::{Flow, Flows, PathSample};

/// Where a stream's time went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reading from the source store (with `sendfile`, in which reading and sending are one, counted as network).
    Source,
    /// Waiting for the socket.
    Network,
    /// Writing to the destination store.
    Destination,
    Checksum,
}

/// Figures of one transfer, shared between its threads and whoever looks on.
#[derive(Debug, Default)]
pub struct Progress {
    bytes: AtomicU64,
    streams: AtomicU32,
    stages: [AtomicU64; 4],
    received: Mutex<RangeSet>,
    /// Those of the channel.
    flows: Mutex<Option<Flows>>,
}

impl Progress {
    pub fn new() -> Self {
        Self::default()
    }

    /// Payload bytes that the destination store has taken (receiving) or the socket has taken (sending).
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Data connections in use.
    pub fn streams(&self) -> u32 {
        self.streams.load(Ordering::Relaxed)
    }

    /// Time spent in a stage, summed over streams.
    pub fn time(&self, stage: Stage) -> Duration {
        Duration::from_nanos(self.stages[stage as usize].load(Ordering::Relaxed))
    }

    /// Receiving: the file ranges written so far (file offsets, not wire offsets), without what was there before.
    pub fn received(&self) -> RangeSet {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the kernel says of every live data connection, now. Connections that are kept for later transfers are among
    /// them. Empty before the transfer begins.
    pub fn flows(&self) -> Vec<Flow> {
        self.channel_flows().map(|flows| flows.sample()).unwrap_or_default()
    }

    /// The same, taken together.
    pub fn path(&self) -> PathSample {
        self.channel_flows().map(|flows| flows.path()).unwrap_or_default()
    }

    fn channel_flows(&self) -> Option<Flows> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_flows(&self, flows: &Flows) {
        *self.flows.lock().unwrap_or_else(PoisonError::into_inner) = Some(flows.clone());
    }

    pub(crate) fn add_bytes(&self, n: u64) {
        self.bytes.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn add_time(&self, stage: Stage, time: Duration) {
        self.stages[stage as usize].fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn set_streams(&self, n: u32) {
        self.streams.store(n, Ordering::Relaxed);
    }

    pub(crate) fn add_received(&self, start: u64, end: u64) {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).insert(start..end);
    }
}
