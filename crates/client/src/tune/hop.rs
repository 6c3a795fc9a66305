//! The tuner of the streams between this host and a far server, while one transfer moves data that
//! passes through this host.
//!
//! A [`Hop`] belongs to the thread of a transfer, which calls [`Hop::look`] at each tick of the
//! engine. Transfers between the same ends share the tuner of the path, and one of them samples it
//! for all, as the runs of a client do ([`super::path_use`]).

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_engine::{Bandwidth, Congestion, Parallelism, Progress};

use super::participant::{Participant, StreamControl, Wanted, useful_streams};
use super::path_tuner::PathTuner;
use super::path_use::{Load, PathUse, Paths};
use super::pressure::Processors;
use super::spread::Spread;
use super::{Ends, Tune};
use crate::{Auto, Options};

/// The resources and options of all hops to one server.
pub(crate) struct HopOptions {
    options: Options,
    limit: Arc<Bandwidth>,
    paths: Arc<Paths>,
}

/// See the description of the module.
pub(crate) struct Hop {
    tune: Tune,
    path: Arc<PathUse>,
    participant: Participant,
    most: u32,
    /// The bytes of the transfer, if their number is known.
    length: Option<u64>,
    sampling: RefCell<Sampling>,
}

#[derive(Default)]
struct Sampling {
    processors: Processors,
    bytes: u64,
    decided: bool,
}

impl HopOptions {
    /// `None` if the number of streams is fixed.
    pub(crate) fn new(options: &Options, limit: &Arc<Bandwidth>, paths: &Arc<Paths>) -> Option<Self> {
        if !options.is_tuned() {
            return None;
        }
        let options = options.clone().with(|options| {
            // A file has one session, and the drivers of hops are chosen by the settings.
            options.tuning.files = Auto::Set(1);
            options.tuning.choose_stack = false;
        });
        Some(Self { options, limit: limit.clone(), paths: paths.clone() })
    }

    /// The tuner for a transfer of `length` bytes, if that is known, with up to `most` streams.
    /// `None` if the path is not tuned.
    pub(crate) fn begin(&self, ends: Ends, rtt: Duration, length: Option<u64>, most: u32) -> Option<Hop> {
        let tune = Tune { passes: true, ..Tune::new(&self.options, self.limit.clone(), &self.paths) };
        let participant = tune.participant(ends, rtt, length.map(|bytes| (1, bytes)))?;
        let path = tune.used().first()?.clone();
        let most = most.min(length.map_or(u32::MAX, useful_streams)).max(1);
        Some(Hop { tune, path, participant, most, length, sampling: RefCell::default() })
    }
}

impl Hop {
    pub(crate) fn path_tuner(&self) -> &Arc<PathTuner> {
        self.participant.path_tuner()
    }

    pub(crate) fn participant(&self) -> &Participant {
        &self.participant
    }

    /// Streams for a new data channel.
    pub(crate) fn streams(&self) -> u32 {
        self.participant.share(true, self.most, 1)
    }

    /// This host sends over a data channel of this many streams.
    pub(crate) fn sends(&self, streams: u32, parallelism: Parallelism, congestion: Congestion) {
        self.participant.opened(
            streams,
            self.most,
            StreamControl::Here(parallelism, congestion, Spread::tuned(1)),
        );
    }

    /// The far server sends over a data channel of this many streams. `new`: the channel was made
    /// for this transfer.
    pub(crate) fn receives(&self, streams: u32, wanted: Wanted, new: bool) {
        let control = StreamControl::There(wanted);
        match new {
            true => self.participant.opened(streams, self.most, control),
            false => self.participant.used_again(streams, self.most, control),
        }
    }

    /// Data moves from now on.
    pub(crate) fn moves(&self, progress: &Arc<Progress>) {
        self.participant.moves_on(progress.clone());
    }

    /// Samples the path, and applies the decision of the tuner if there is one. `waited_for`: the
    /// reader of the data waits for some; `None` if this host sends.
    pub(crate) fn look(&self, progress: &Progress, waited_for: Option<bool>) {
        if let Some(waits) = waited_for {
            self.path_tuner().looked_at_reader(self.participant.id(), waits);
        }
        let mut sampling = self.sampling.borrow_mut();
        let Sampling { processors, bytes, decided } = &mut *sampling;
        let before = std::mem::replace(bytes, progress.bytes());
        self.path_tuner().add(self.participant.id(), bytes.saturating_sub(before));
        let ends = self.length.map(|length| length.saturating_sub(*bytes));
        let load = Load { work: None, ends, waiting: false, workers: 1 };
        *decided |= self.path.step(Instant::now(), processors, load).decision.is_some();
    }

    /// Stores the result for later transfers, if this one has added to it.
    pub(crate) fn finish(&self) {
        if self.sampling.borrow().decided {
            self.tune.found();
        }
    }
}
