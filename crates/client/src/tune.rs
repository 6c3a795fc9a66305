//! Tuning while data moves: finds the number of connections that is best for a path.
//!
//! A [`PathTuner`] steers the streams of a path that transfers of a client's runs share, by one of
//! the tuners of `ropewalk_tuning`. Each worker that moves data over the path has a
//! [`Participant`]. The driver's thread of one of the runs measures arrivals, asks the tuner, and
//! distributes its answer. If we send, streams come and go within a file. If a Ropewalk server
//! sends, it is asked for the number (SITE STREAMS). If another server sends, workers join or leave
//! between two ranges of a file.

mod buffers;
mod carried;
mod hop;
mod memory;
mod other_side;
mod own;
mod participant;
mod path_tuner;
mod path_use;
mod pressure;
mod span;
mod spread;
mod stack_choice;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use ropewalk_engine::Bandwidth;
use ropewalk_transport::Ceilings;
use ropewalk_tuning::tuner::{CongestionControl, Connections, Fairness, Options as TunerOptions, Prior};

pub(crate) use buffers::MOST as MOST_BUFFER;
pub(crate) use hop::{Hop, HopOptions};
pub(crate) use participant::{Participant, StreamControl, Wanted, useful_streams};
pub(crate) use path_tuner::PathTuner;
pub(crate) use path_use::{Load, PathUse, Paths};
pub(crate) use pressure::Processors;
pub(crate) use spread::Spread;

use crate::path_defaults::{DEEPEST, NEAR, PathDefaults};
use crate::task::Task;
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
    pub(crate) fn of(task: &Task) -> Self {
        Self { source: task.source.server_name(), destination: task.destination.server_name() }
    }

    /// The name in messages, and in the stored results.
    pub(crate) fn name(&self) -> String {
        let end = |end: &Option<String>| end.clone().unwrap_or_else(|| "here".to_owned());
        format!("{} -> {}", end(&self.source), end(&self.destination))
    }
}

/// The result of an earlier transfer between these ends, if one is stored.
pub(crate) fn stored_result(ends: &Ends, options: &Options) -> Option<Prior> {
    Some(Memory::new(options.state_directory.as_deref()).recall(&ends.name())?.prior)
}

/// Whether an earlier run has found this way of data connections blocked, less than a day ago.
pub(crate) fn recall_blocked(way: &str, options: &Options) -> bool {
    Memory::new(options.state_directory.as_deref()).recall_blocked(way)
}

/// Stores for later runs that this way of data connections is blocked.
pub(crate) fn keep_blocked(way: &str, options: &Options) {
    Memory::new(options.state_directory.as_deref()).keep_blocked(way);
}

/// Whether this process may choose the kernel's congestion control of this name.
pub(crate) fn kernel_permits(name: &str) -> bool {
    let has = |list: &str| {
        let path = format!("/proc/sys/net/ipv4/tcp_{list}_congestion_control");
        std::fs::read_to_string(path)
            .is_ok_and(|names| names.split_ascii_whitespace().any(|known| known == name))
    };
    has("allowed") || rustix::process::geteuid().is_root() && has("available")
}

/// Bytes in flight that this host's buffers permit for a connection that it sends on.
pub(crate) fn send_window(options: &Options) -> Option<f64> {
    Ceilings::read().ok().map(|ceilings| window_of(ceilings.send.autotune, options))
}

/// Bytes in flight for the highest size of a buffer: about half of it is overhead of the kernel.
fn window_of(autotuned: u64, options: &Options) -> f64 {
    options.tuning.tcp_buffer.unwrap_or(autotuned / 2).max(1) as f64
}

/// The tuning of a run.
pub(crate) struct Tune {
    options: Options,
    /// The limit on the rate of this process.
    limit: Arc<Bandwidth>,
    memory: Memory,
    paths: Arc<Paths>,
    used: Mutex<Vec<Arc<PathUse>>>,
    /// The data passes through this host: another path brings it, or takes it away.
    passes: bool,
    /// A path was added, or the run is over.
    changed: Condvar,
    over: Mutex<bool>,
}

impl Tune {
    pub(crate) fn new(options: &Options, limit: Arc<Bandwidth>, paths: &Arc<Paths>) -> Self {
        Self {
            options: options.clone(),
            limit,
            memory: Memory::new(options.state_directory.as_deref()),
            paths: paths.clone(),
            used: Mutex::default(),
            passes: false,
            changed: Condvar::new(),
            over: Mutex::new(false),
        }
    }

    /// Neither polite nor with a stated share.
    fn is_usual(&self) -> bool {
        self.options.tuning.fairness != Fairness::Polite && self.options.tuning.fairness.stated().is_none()
    }

    /// Other drivers take more than their share from TCP of others.
    fn chooses_stack(&self) -> bool {
        self.options.tuning.choose_stack && self.is_usual() && !self.limit.is_limited()
    }

    /// Adds a worker to the path between these ends; `None` if the path is not tuned. `left`:
    /// remaining files and bytes, if known.
    pub(crate) fn participant(
        &self,
        ends: Ends,
        rtt: Duration,
        left: Option<(u64, u64)>,
    ) -> Option<Participant> {
        if !self.options.is_tuned() || rtt < NEAR {
            return None;
        }
        let mut used = self.used();
        if let Some(path) = used.iter().find(|path| path.path_tuner().ends == ends) {
            return Some(Participant::new(path.path_tuner().clone()));
        }
        let make = || self.path_tuner(ends.clone(), rtt, left);
        let path = Arc::new(self.paths.join(&ends, &self.options.tuning, make)?);
        used.push(path.clone());
        self.changed.notify_all();
        Some(Participant::new(path.path_tuner().clone()))
    }

    fn path_tuner(&self, ends: Ends, rtt: Duration, left: Option<(u64, u64)>) -> Option<PathTuner> {
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
        let usual = PathDefaults::new(rtt).files(&self.options);
        let ends_name = ends.name();
        let path_tuner = PathTuner::new(ends, rtt, tuner, hires, usual, options.max_streams).knowing(known);
        let path_tuner = path_tuner.within(self.limit.clone());
        let measured = options.prior.is_some() || options.capacity.is_some();
        let path_tuner = if self.passes { path_tuner.beside_another() } else { path_tuner };
        let path_tuner = match self.chooses_stack() {
            true => path_tuner.choosing_stack(self.memory.recall_stack(&ends_name)),
            false => path_tuner,
        };
        let path = PathDefaults::new(rtt);
        let many =
            options.prior.is_none() && options.first_streams > path.streams(&self.options, None, false);
        Some(match left {
            Some((files, bytes)) if many => {
                path_tuner.for_many(path.busy_sessions(&self.options, files, bytes))
            }
            _ if measured => path_tuner,
            _ => path_tuner.with_first_of_each_address(),
        })
    }

    fn tuner_options(
        &self,
        ends: &Ends,
        rtt: Duration,
        left: Option<(u64, u64)>,
        prior: Option<Prior>,
    ) -> TunerOptions {
        let most = self.options.tuning.max_streams.clamp(1, ropewalk_tuning::tuner::MAX_STREAMS);
        let path = PathDefaults::new(rtt);
        let one = path.streams(&self.options, None, false);
        let usual = self.is_usual();
        let (files, bytes) = left.filter(|_| usual).unwrap_or_default();
        let congestion = &self.options.tuning.congestion;
        TunerOptions {
            // The untuned number: to climb there would take longer than many runs of a few dozen
            // files.
            first_streams: path.total_streams(&self.options, files, bytes),
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
        Some(window_of(autotuned, &self.options))
    }

    /// The paths that this run uses.
    pub(crate) fn used(&self) -> MutexGuard<'_, Vec<Arc<PathUse>>> {
        self.used.lock()
    }

    /// Waits for the next tick; returns `false` when the run is over. Without paths it does not
    /// wake up.
    pub(crate) fn wait(&self) -> bool {
        let mut used = self.used();
        let is_over = || *self.over.lock();
        while used.is_empty() && !is_over() {
            self.changed.wait(&mut used);
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
            self.changed.wait_for(&mut used, left);
        }
    }

    /// Ends the run and its driver.
    pub(crate) fn finish(&self) {
        *self.over.lock() = true;
        drop(self.used());
        self.changed.notify_all();
    }

    /// The results for the summary; they are also stored for the next run.
    pub(crate) fn found(&self) -> Vec<TunedPath> {
        let used = self.used();
        // A transfer that yields to others measures the remaining capacity, and one with a limit on
        // its rate, for some of its time, measures that.
        if self.is_usual() && !self.limit.is_limited() && self.limit.used() <= 0.0 {
            let usual = Options::default().tuning.max_streams;
            let path_tuners = || used.iter().map(|path| path.path_tuner());
            let priors = path_tuners()
                .filter_map(|path_tuner| Some((path_tuner.ends.name(), path_tuner.learnt(usual)?)));
            let stacks = path_tuners()
                .filter_map(|path_tuner| Some((path_tuner.ends.name(), path_tuner.compared_stacks()?)));
            self.memory.keep(&priors.collect::<Vec<_>>(), &stacks.collect::<Vec<_>>());
        }
        let set = self.options.tuning.tcp_buffer.is_some();
        used.iter().filter_map(|path| path.tuned(set)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const RTT: Duration = Duration::from_millis(50);

    fn ends() -> Ends {
        Ends { source: Some("gsiftp://a".into()), destination: None }
    }

    fn run(paths: &Arc<Paths>, change: fn(&mut Options)) -> Tune {
        let state_directory = Some("/nonexistent".into());
        let options = Options { state_directory, ..Options::default() }.with(change);
        Tune::new(&options, Arc::new(Bandwidth::new(&crate::Timetable::always(None))), paths)
    }

    /// Lets the tuner of a path decide once.
    fn decide(run: &Tune, participant: &Participant) {
        participant.opened(1, 100, StreamControl::Fixed);
        participant.moves_elsewhere();
        let path = run.used()[0].clone();
        let (mut processors, began) = (Processors::default(), Instant::now());
        for second in 0..100 {
            path.path_tuner().add(participant.id(), 1 << 30);
            let now = began + Duration::from_secs(second);
            if path.step(now, &mut processors, Load::default()).decision.is_some() {
                return;
            }
        }
        panic!("no decision");
    }

    #[test]
    fn runs_at_the_same_time_share_the_tuner_of_a_path() {
        let paths = Arc::default();
        let runs = [run(&paths, |_| {}), run(&paths, |_| {})];
        let [one, other] = runs.each_ref().map(|run| run.participant(ends(), RTT, None).unwrap());
        assert!(Arc::ptr_eq(one.path_tuner(), other.path_tuner()));
        let elsewhere = Ends { source: Some("gsiftp://b".into()), destination: None };
        assert!(!Arc::ptr_eq(
            one.path_tuner(),
            runs[0].participant(elsewhere, RTT, None).unwrap().path_tuner()
        ));
        let fewer = run(&paths, |o| o.tuning.max_streams = 3);
        assert!(!Arc::ptr_eq(one.path_tuner(), fewer.participant(ends(), RTT, None).unwrap().path_tuner()));
        // A decision that the first run makes reaches the other one.
        decide(&runs[0], &one);
        let follower = runs[1].used()[0].clone();
        let look = || follower.step(Instant::now(), &mut Processors::default(), Load::default()).decision;
        assert!(look().is_some() && look().is_none());
        let found = runs.each_ref().map(|run| run.found().first().map(|path| path.decisions));
        assert_eq!(found, [Some(1), Some(1)]);
    }

    #[test]
    fn run_goes_on_with_the_tuner_of_an_earlier_one_if_that_has_decided() {
        let paths = Arc::default();
        let first = run(&paths, |_| {});
        let participant = first.participant(ends(), RTT, None).unwrap();
        let undecided = Arc::downgrade(participant.path_tuner());
        drop((participant, first));
        let second = run(&paths, |_| {});
        let participant = second.participant(ends(), RTT, None).unwrap();
        assert!(undecided.upgrade().is_none());
        decide(&second, &participant);
        let decided = participant.path_tuner().clone();
        drop((participant, second));
        let third = run(&paths, |_| {});
        assert!(Arc::ptr_eq(&decided, third.participant(ends(), RTT, None).unwrap().path_tuner()));
        // It has decided nothing itself.
        assert!(third.found().is_empty());
    }

    #[test]
    fn path_is_sampled_by_the_next_run_while_the_first_is_stuck() {
        let paths = Arc::default();
        let runs = [run(&paths, |_| {}), run(&paths, |_| {})];
        let [_one, other] = runs.each_ref().map(|run| run.participant(ends(), RTT, None).unwrap());
        decide(&runs[1], &other);
        let first = runs[0].used()[0].clone();
        let orders = first.step(Instant::now(), &mut Processors::default(), Load::default());
        assert!(orders.decision.is_some());
    }

    #[test]
    fn workers_are_started_by_the_run_that_has_files_without_one() {
        let paths = Arc::default();
        let runs = [run(&paths, |_| {}), run(&paths, |_| {})];
        let [one, _other] = runs.each_ref().map(|run| run.participant(ends(), RTT, None).unwrap());
        one.opened(1, 1, StreamControl::Fixed);
        one.moves_elsewhere();
        let uses = runs.each_ref().map(|run| run.used()[0].clone());
        let (mut processors, began) = (Processors::default(), Instant::now());
        let work = Some(ropewalk_tuning::tuner::Work { files: 1000, bytes: 1 << 50 });
        let waits = Load { work, ends: Some(1 << 50), waiting: true, workers: 1 };
        let mut hired = [0, 0];
        for second in 0..100 {
            one.path_tuner().add(one.id(), 1 << 20);
            let now = began + Duration::from_secs(second);
            hired[1] += uses[1].step(now, &mut processors, waits).hire;
            hired[0] += uses[0].step(now, &mut processors, Load { waiting: false, ..waits }).hire;
        }
        assert!(hired[0] == 0 && hired[1] > 0, "{hired:?}");
    }
}
