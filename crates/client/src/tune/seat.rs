//! A worker's place in a lane.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ropewalk_engine::{Congestion, Parallelism, Progress};
use ropewalk_protocol::marker::PathMarker;

use super::lane::Lane;
use crate::ahead::Tuned;
use crate::auto::Pace;

/// Streams that a server should use, and those that it was told.
#[derive(Clone, Debug)]
pub(crate) struct Wanted(Arc<(AtomicU32, AtomicU32)>);

impl Wanted {
    /// It has been told of these.
    pub(crate) fn new(streams: u32) -> Self {
        Self(Arc::new((AtomicU32::new(streams), AtomicU32::new(streams))))
    }

    pub(crate) fn get(&self) -> u32 {
        self.0.0.load(Ordering::Relaxed)
    }

    /// A number that it is to be told now.
    pub(crate) fn news(&self) -> Option<u32> {
        let wanted = self.0.0.load(Ordering::Relaxed);
        (self.0.1.swap(wanted, Ordering::Relaxed) != wanted).then_some(wanted)
    }
}

/// How the streams of a worker's data channel are changed.
#[derive(Clone)]
pub(crate) enum Knob {
    /// We send: at once. The congestion control is that of new connections.
    Here(Parallelism, Congestion),
    /// A server of ours sends: it is told.
    There(Wanted),
    /// Not before the next data channel.
    Fixed,
}

impl Knob {
    pub(super) fn is_elastic(&self) -> bool {
        !matches!(self, Self::Fixed)
    }

    pub(super) fn turn(&self, streams: u32, control: Option<&str>) {
        match self {
            Self::Here(parallelism, congestion) => {
                congestion.set(control.map(str::to_owned));
                parallelism.set(streams);
            }
            Self::There(wanted) => wanted.0.0.store(streams, Ordering::Relaxed),
            Self::Fixed => {}
        }
    }
}

/// More streams are of no use to so many bytes: each should carry a MiB.
pub(crate) fn useful_streams(bytes: u64) -> u32 {
    u32::try_from(bytes >> 20).unwrap_or(u32::MAX).max(1)
}

/// Given up when it is dropped.
pub(crate) struct Seat {
    lane: Arc<Lane>,
    id: u64,
}

impl Seat {
    pub(super) fn new(lane: Arc<Lane>) -> Self {
        let id = lane.sit();
        Self { lane, id }
    }

    pub(crate) fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// What this worker is likely to carry over a data channel of so many streams; 0: it has none yet.
    pub(crate) fn pace(&self, streams: u32) -> Pace {
        self.lane.pace(self.id, streams)
    }

    /// The likely rate of any session with so many streams, in bytes per second; `None` before that is known.
    pub(crate) fn typical_rate(&self, streams: u32) -> Option<f64> {
        self.lane.typical_rate(streams)
    }

    /// What the path says of what this worker may ask for ahead, over a data channel of so many streams.
    pub(crate) fn ahead(&self, streams: u32) -> Tuned {
        self.lane.ahead(self.id, streams)
    }

    /// Streams for a data channel that is to be made. `most`: more are of no use to it. `workers` share the path.
    pub(crate) fn share(&self, elastic: bool, most: u32, workers: u32) -> u32 {
        self.lane.share(self.id, elastic, most, workers)
    }

    /// The data channel is made, with so many streams.
    pub(crate) fn opened(&self, streams: u32, most: u32, knob: Knob) {
        self.lane.opened(self.id, streams, most, knob);
    }

    /// A data channel that was made before, with so many streams, is used for what can use `most`.
    pub(crate) fn used_again(&self, streams: u32, most: u32, knob: Knob) {
        self.lane.used_again(self.id, streams, most, knob);
    }

    /// Data moves from now on, as long as there is this seat, between two servers.
    pub(crate) fn moves_elsewhere(&self) {
        self.lane.begun(self.id, None);
    }

    /// Data moves from now on, until what is returned is dropped.
    pub(crate) fn moves(&self, progress: Option<Arc<Progress>>) -> Moving<'_> {
        self.lane.begun(self.id, progress);
        Moving(self)
    }

    /// The server that sends told of the path.
    pub(crate) fn hears(&self, marker: PathMarker) {
        self.lane.heard(self.id, marker);
    }

    /// The server that sends has told all of a transfer: what it tells next is of another.
    pub(crate) fn heard_out(&self) {
        self.lane.heard_out(self.id);
    }

    /// Whether the path has too many streams without this worker's: it should leave after what it does now.
    pub(crate) fn is_surplus(&self) -> bool {
        self.lane.is_surplus(self.id)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.lane.leave(self.id);
    }
}

/// See [`Seat::moves`].
pub(crate) struct Moving<'s>(&'s Seat);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.lane.ended(self.0.id);
    }
}
