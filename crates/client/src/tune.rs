//! Tuning while data moves: finds the number of connections that is best for a path.
//!
//! A [`Lane`] is a path that transfers of this run share, with one tuner (`ropewalk_tuning`). Each
//! worker that moves data over it has a [`Seat`]. The driver's thread measures arrivals, asks the
//! tuner, and distributes its answer. If we send, streams come and go within a file. If a Ropewalk
//! server sends, it is asked for the number (SITE STREAMS). If another server sends, workers join
//! or leave between two ranges of a file.

mod buffers;
mod carried;
mod lane;
mod memory;
mod own;
mod pressure;
mod seat;
mod span;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use ropewalk_engine::Bandwidth;
use ropewalk_transport::Ceilings;
use ropewalk_tuning::tuner::{CongestionControl, Connections, Fairness, Options as TunerOptions, Prior};

pub(crate) use buffers::MOST as MOST_BUFFER;
pub(crate) use lane::Lane;
pub(crate) use pressure::Processors;
pub(crate) use seat::{Knob, Seat, Wanted, useful_streams};

use crate::auto::{DEEPEST, NEAR, Path};
use crate::tune::memory::Memory;
use crate::{Auto, Options, TunedPath};

/// Interval of samples.
const TICK: Duration = Duration::from_millis(100);
/// Approximate seconds between decisions.
const CHUNK_SECONDS: f64 = 10.0;

/// Sender and receiver; `None` is this host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ends {
    pub source: Option<String>,
    pub destination: Option<String>,
}

impl Ends {
    /// The name in messages, and in the stored results.
    pub(crate) fn name(&self) -> String {
        let end = |end: &Option<String>| end.clone().unwrap_or_else(|| "here".to_owned());
        format!("{} -> {}", end(&self.source), end(&self.destination))
    }
}

/// The paths of a run.
pub(crate) struct Tune {
    options: Options,
    /// The limit on the rate of this process.
    limit: Option<Arc<Bandwidth>>,
    memory: Memory,
    lanes: Mutex<Vec<Arc<Lane>>>,
    /// A path was added, or the run is over.
    changed: Condvar,
    over: Mutex<bool>,
}

impl Tune {
    pub(crate) fn new(options: &Options, limit: Option<Arc<Bandwidth>>) -> Self {
        Self {
            options: options.clone(),
            limit,
            memory: Memory::new(options.state_directory.as_deref()),
            lanes: Mutex::default(),
            changed: Condvar::new(),
            over: Mutex::new(false),
        }
    }

    /// Neither polite nor with a stated share.
    fn is_usual(&self) -> bool {
        self.options.tuning.fairness != Fairness::Polite && self.options.tuning.fairness.stated().is_none()
    }

    /// A seat for a worker on the path between these ends; `None` if the path is not tuned. `left`:
    /// remaining files and bytes, if known.
    pub(crate) fn seat(&self, ends: Ends, rtt: Duration, left: Option<(u64, u64)>) -> Option<Seat> {
        if !self.options.is_tuned() || rtt < NEAR {
            return None;
        }
        let mut lanes = self.lanes();
        if let Some(lane) = lanes.iter().find(|lane| lane.ends == ends) {
            return Some(Seat::new(lane.clone()));
        }
        let learnt = self.memory.recall(&ends.name());
        let prior = learnt.map(|learnt| learnt.prior).filter(|_| self.is_usual());
        let options = self.tuner_options(&ends, rtt, left, prior);
        let tuner = match self.options.tuning.tuner.build(&options) {
            Ok(tuner) => tuner,
            Err(error) => {
                tracing::warn!(%error, "the streams are not tuned");
                return None;
            }
        };
        let hires = self.options.tuning.files == Auto::Auto;
        let known = buffers::Known::new(learnt, options.capacity);
        let usual = Path::new(rtt).files(&self.options);
        let lane = Lane::new(ends, rtt, tuner, hires, usual, options.max_streams).knowing(known);
        let lane = lane.within(self.limit.clone());
        let path = Path::new(rtt);
        let many =
            options.prior.is_none() && options.first_streams > path.streams(&self.options, None, false);
        let lane = Arc::new(match left {
            Some((files, bytes)) if many => lane.for_many(path.at_once(&self.options, files, bytes)),
            _ => lane,
        });
        lanes.push(lane.clone());
        self.changed.notify_all();
        Some(Seat::new(lane))
    }

    fn tuner_options(
        &self,
        ends: &Ends,
        rtt: Duration,
        left: Option<(u64, u64)>,
        prior: Option<Prior>,
    ) -> TunerOptions {
        let most = self.options.tuning.max_streams.clamp(1, ropewalk_tuning::tuner::MAX_STREAMS);
        let path = Path::new(rtt);
        let one = path.streams(&self.options, None, false);
        let usual = self.is_usual();
        let (files, bytes) = left.filter(|_| usual).unwrap_or_default();
        let congestion = &self.options.tuning.congestion;
        TunerOptions {
            // The untuned number: to climb there would take longer than many runs of a few dozen
            // files.
            first_streams: path.together(&self.options, files, bytes),
            least_streams: if usual { one } else { 1 },
            max_streams: most,
            chunk_seconds: CHUNK_SECONDS,
            capacity: self.options.tuning.capacity.map(|bits| bits as f64 / 8.0),
            rtt: Some(rtt.as_secs_f64().clamp(1e-6, 60.0)),
            connections: Connections::Kept,
            fairness: self.options.tuning.fairness,
            prior,
            congestion: congestion.iter().filter_map(|name| CongestionControl::from_name(name)).collect(),
            max_files: most.min(32),
            max_pipeline: DEEPEST as u32,
            // The kernel's limit of bytes in flight at our end; that of the other end may be lower.
            window: self.options.tuning.capacity.and_then(|_| self.window(ends)),
            ..TunerOptions::default()
        }
    }

    /// Bytes in flight that this host's buffers permit for a connection; `None` between two
    /// servers.
    fn window(&self, ends: &Ends) -> Option<f64> {
        let ceilings = Ceilings::read().ok()?;
        let autotuned = match (&ends.source, &ends.destination) {
            (None, _) => ceilings.send.autotune,
            (_, None) => ceilings.receive.autotune,
            _ => return None,
        };
        // About half of a buffer is overhead of the kernel.
        Some(self.options.tuning.tcp_buffer.unwrap_or(autotuned / 2).max(1) as f64)
    }

    pub(crate) fn lanes(&self) -> MutexGuard<'_, Vec<Arc<Lane>>> {
        self.lanes.lock()
    }

    /// Waits for the next tick; returns `false` when the run is over. Without paths it does not
    /// wake up.
    pub(crate) fn wait(&self) -> bool {
        let mut lanes = self.lanes();
        let is_over = || *self.over.lock();
        while lanes.is_empty() && !is_over() {
            self.changed.wait(&mut lanes);
        }
        if is_over() {
            return false;
        }
        let until = Instant::now() + TICK;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if is_over() {
                return false;
            }
            if left.is_zero() {
                return true;
            }
            self.changed.wait_for(&mut lanes, left);
        }
    }

    /// Ends the run and its driver.
    pub(crate) fn finish(&self) {
        *self.over.lock() = true;
        drop(self.lanes());
        self.changed.notify_all();
    }

    /// The results for the summary; they are also stored for the next run.
    pub(crate) fn found(&self) -> Vec<TunedPath> {
        let lanes = self.lanes();
        // A transfer that yields to others measures the remaining capacity, and one with a limit on
        // its rate measures that.
        if self.is_usual() && self.limit.is_none() {
            let usual = Options::default().tuning.max_streams;
            let priors = lanes.iter().filter_map(|lane| Some((lane.ends.name(), lane.learnt(usual)?)));
            self.memory.keep(&priors.collect::<Vec<_>>());
        }
        let set = self.options.tuning.tcp_buffer.is_some();
        lanes.iter().filter_map(|lane| lane.tuned(set)).collect()
    }
}
