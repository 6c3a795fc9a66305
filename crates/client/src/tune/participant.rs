//! A worker that moves data over a path, as the path's tuner sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ropewalk_engine::{Congestion, Parallelism, Progress};
use ropewalk_protocol::marker::PathMarker;

use super::path_tuner::PathTuner;
use super::spread::Spread;
use crate::ahead::Tuned;
use crate::path_defaults::Pace;

/// The number of streams that a server should use to each address of the receiver, and the number
/// that it was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    each: Arc<(AtomicU32, AtomicU32)>,
    spread: Spread,
}

impl Wanted {
    /// The server was asked for this number, over one address.
    pub(crate) fn new(streams: u32) -> Self {
        Self::spread(streams, Spread::tuned(1))
    }

    /// The server was asked for this number, over the addresses of `spread`.
    pub(crate) fn spread(streams: u32, spread: Spread) -> Self {
        let each = spread.each(streams);
        Self { each: Arc::new((AtomicU32::new(each), AtomicU32::new(each))), spread }
    }

    pub(crate) fn get(&self) -> u32 {
        self.each.0.load(Ordering::Relaxed)
    }

    /// A new number that the server has to be asked for.
    pub(crate) fn news(&self) -> Option<u32> {
        let wanted = self.get();
        (self.each.1.swap(wanted, Ordering::Relaxed) != wanted).then_some(wanted)
    }
}

/// How the number of streams of a worker's data channel is changed.
#[derive(Clone)]
pub(crate) enum StreamControl {
    /// We send: it changes at once. The congestion control applies to new connections.
    Here(Parallelism, Congestion, Spread),
    /// A Ropewalk server sends: it is asked by SITE STREAMS.
    There(Wanted),
    /// Only with the next data channel.
    Fixed,
}

impl StreamControl {
    pub(super) fn is_elastic(&self) -> bool {
        !matches!(self, Self::Fixed)
    }

    /// The number of addresses that share the streams.
    pub(super) fn addresses(&self) -> u32 {
        match self {
            Self::Here(.., spread) | Self::There(Wanted { spread, .. }) => spread.addresses(),
            Self::Fixed => 1,
        }
    }

    /// Changes the number of streams. Returns that of the connections that there are then.
    pub(super) fn turn(&self, streams: u32, control: Option<&str>) -> u32 {
        match self {
            Self::Here(parallelism, congestion, spread) => {
                congestion.set(control.map(str::to_owned));
                parallelism.set(spread.each(streams));
                spread.connections(streams)
            }
            Self::There(Wanted { each, spread }) => {
                each.0.store(spread.each(streams), Ordering::Relaxed);
                spread.connections(streams)
            }
            Self::Fixed => streams,
        }
    }
}

/// Most useful number of streams for this many bytes: each should carry a MiB.
pub(crate) fn useful_streams(bytes: u64) -> u32 {
    u32::try_from(bytes >> 20).unwrap_or(u32::MAX).max(1)
}

/// A worker's part in a path, which it leaves when this is dropped.
pub(crate) struct Participant {
    path_tuner: Arc<PathTuner>,
    id: u64,
}

impl Participant {
    pub(super) fn new(path_tuner: Arc<PathTuner>) -> Self {
        let id = path_tuner.join();
        Self { path_tuner, id }
    }

    pub(crate) fn path_tuner(&self) -> &Arc<PathTuner> {
        &self.path_tuner
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The expected rate of this worker over a data channel of this many streams; 0: it has none
    /// yet.
    pub(crate) fn pace(&self, streams: u32) -> Pace {
        self.path_tuner.pace(self.id, streams)
    }

    /// The expected rate of any session with this many streams, in bytes per second; `None` if
    /// unknown.
    pub(crate) fn typical_rate(&self, streams: u32) -> Option<f64> {
        self.path_tuner.typical_rate(streams)
    }

    /// The pipeline depth for this worker on this path, over a data channel of this many streams.
    pub(crate) fn ahead(&self, streams: u32) -> Tuned {
        self.path_tuner.ahead(self.id, streams)
    }

    /// Streams for a new data channel. `most`: more are useless to it. `workers` share the path.
    pub(crate) fn share(&self, elastic: bool, most: u32, workers: u32) -> u32 {
        self.path_tuner.share(self.id, elastic, most, workers)
    }

    /// The data channel was made, with this many streams.
    pub(crate) fn opened(&self, streams: u32, most: u32, stream_control: StreamControl) {
        self.path_tuner.opened(self.id, streams, most, stream_control);
    }

    /// An existing data channel of this many streams is reused for a transfer that can use `most`.
    pub(crate) fn used_again(&self, streams: u32, most: u32, stream_control: StreamControl) {
        self.path_tuner.used_again(self.id, streams, most, stream_control);
    }

    /// Data moves between two servers from now on, until this is dropped.
    pub(crate) fn moves_elsewhere(&self) {
        self.path_tuner.begun(self.id, None);
    }

    /// Data moves from now on, until this is dropped.
    pub(crate) fn moves_on(&self, progress: Arc<Progress>) {
        self.path_tuner.begun(self.id, Some(progress));
    }

    /// Data moves from now on, until the returned value is dropped.
    pub(crate) fn moves(&self, progress: Option<Arc<Progress>>) -> Moving<'_> {
        self.path_tuner.begun(self.id, progress);
        Moving(self)
    }

    /// Records a path marker of the sending server.
    pub(crate) fn hears(&self, marker: PathMarker) {
        self.path_tuner.heard(self.id, marker);
    }

    /// The sending server has reported all of a transfer: its next markers are about another one.
    pub(crate) fn heard_out(&self) {
        self.path_tuner.heard_out(self.id);
    }

    /// Whether the path has too many streams without this worker's: it should leave after its
    /// present transfers.
    pub(crate) fn is_surplus(&self) -> bool {
        self.path_tuner.is_surplus(self.id)
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        self.path_tuner.leave(self.id);
    }
}

/// See [`Participant::moves`].
pub(crate) struct Moving<'s>(&'s Participant);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.path_tuner.ended(self.0.id);
    }
}
