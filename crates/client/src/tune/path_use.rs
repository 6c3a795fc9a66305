//! The runs that use a path at the same time, and the paths of a client.
//!
//! Runs of one client share the tuner of a path: otherwise each would take the other's data for
//! cross traffic. The first that is not stuck samples the path for all, with the sum of their
//! remaining work; the others find its decisions here, and the workers that they are to start.
//! A later run starts with the tuner of an earlier one, unless the path was unused for long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_tuning::tuner::{Decision, Work};

use super::path_tuner::{PathTuner, Step, Summed};
use super::pressure::Processors;
use super::stack_choice::StackChange;
use super::{Ends, TunedPath};
use crate::TuningOptions;

/// After this time without a run a path may have changed: its next run starts from the stored
/// results, as another program would.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// A run that has not looked for this time waits, for the sink of its events say: the next one
/// samples the path.
const STUCK: Duration = Duration::from_secs(2);

/// The paths that runs of a client use, or have used.
#[derive(Default)]
pub(crate) struct Paths(Mutex<Vec<Known>>);

/// A path and the options that its tuner has.
struct Known {
    tuning: TuningOptions,
    path_tuner: Arc<PathTuner>,
}

impl Paths {
    /// Adds a run to the path between these ends. `make` makes the path if there is none with such
    /// options; `None`: it cannot.
    pub(super) fn join(
        &self,
        ends: &Ends,
        tuning: &TuningOptions,
        make: impl FnOnce() -> Option<PathTuner>,
    ) -> Option<PathUse> {
        let mut all = self.0.lock();
        all.retain(|known| known.path_tuner.runs.are_remembered());
        let found = all.iter().find(|known| known.path_tuner.ends == *ends && known.tuning == *tuning);
        let path_tuner = match found {
            Some(known) => {
                known.path_tuner.runs.is_unused().then(|| known.path_tuner.starts_again());
                known.path_tuner.clone()
            }
            None => {
                let path_tuner = Arc::new(make()?);
                all.push(Known { tuning: tuning.clone(), path_tuner: path_tuner.clone() });
                path_tuner
            }
        };
        Some(PathUse::new(path_tuner))
    }
}

/// The runs of a path.
#[derive(Default)]
pub(super) struct Runs(Mutex<State>);

#[derive(Default)]
struct State {
    runs: Vec<Run>,
    next: u64,
    /// The end of the last run with a decision, if no run uses the path.
    unused: Option<Instant>,
}

struct Run {
    id: u64,
    load: Load,
    /// When it looked last.
    looked: Instant,
    /// For the run's next look, if another one samples the path.
    decision: Option<(Decision, f64)>,
    stack: Option<StackChange>,
    hire: u32,
}

/// The remaining work of a run.
#[derive(Clone, Copy, Default)]
pub(crate) struct Load {
    /// Remaining files and bytes, if known.
    pub work: Option<Work>,
    /// Remaining bytes once the walk is complete.
    pub ends: Option<u64>,
    /// There are jobs without a worker.
    pub waiting: bool,
    /// The workers of the run.
    pub workers: u32,
}

impl Runs {
    fn is_unused(&self) -> bool {
        self.0.lock().runs.is_empty()
    }

    /// Whether a further run shares the tuner of these, or continues with it.
    fn are_remembered(&self) -> bool {
        let state = self.0.lock();
        !state.runs.is_empty() || state.unused.is_some_and(|unused| unused.elapsed() < FORGOTTEN)
    }
}

impl Run {
    fn take_orders(&mut self) -> Step {
        Step {
            decision: self.decision.take(),
            stack: self.stack.take(),
            hire: std::mem::take(&mut self.hire),
        }
    }
}

/// A run's use of a path, until this is dropped.
pub(crate) struct PathUse {
    path_tuner: Arc<PathTuner>,
    id: u64,
    /// The results of earlier runs.
    before: Summed,
}

impl PathUse {
    fn new(path_tuner: Arc<PathTuner>) -> Self {
        let mut state = path_tuner.runs.0.lock();
        state.next += 1;
        let id = state.next;
        state.runs.push(Run {
            id,
            load: Load::default(),
            looked: Instant::now(),
            decision: None,
            stack: None,
            hire: 0,
        });
        drop(state);
        let before = path_tuner.summed();
        Self { path_tuner, id, before }
    }

    pub(crate) fn path_tuner(&self) -> &Arc<PathTuner> {
        &self.path_tuner
    }

    /// Reports the run's remaining work; returns what it has to do. The first run that is
    /// not stuck also samples the path.
    pub(crate) fn step(&self, now: Instant, processors: &mut Processors, load: Load) -> Step {
        let nothing = Step::default();
        let mut state = self.path_tuner.runs.0.lock();
        let Some(at) = state.runs.iter().position(|run| run.id == self.id) else { return nothing };
        (state.runs[at].load, state.runs[at].looked) = (load, now);
        let is_awake = |run: &Run| now.saturating_duration_since(run.looked) < STUCK;
        if state.runs.iter().position(is_awake) != Some(at) {
            return state.runs[at].take_orders();
        }
        let loads = || state.runs.iter().map(|run| run.load);
        // The one with the most files of those that have files without a worker.
        let files = |run: &Run| run.load.work.map_or(0, |work| work.files);
        let waiting = state.runs.iter().enumerate().filter(|(_, run)| run.load.waiting);
        let hires = waiting.max_by_key(|(_, run)| files(run)).map(|(at, _)| at);
        let works = loads().filter_map(|load| load.work);
        let work = works.reduce(|a, b| Work {
            files: a.files.saturating_add(b.files),
            bytes: a.bytes.saturating_add(b.bytes),
        });
        let ends = loads().map(|load| load.ends).reduce(|a, b| Some(a?.saturating_add(b?))).flatten();
        let workers = hires.map_or(load.workers, |at| state.runs[at].load.workers);
        let step = self.path_tuner.step(now, processors, (work, ends), hires.is_some(), workers);
        for (other, run) in state.runs.iter_mut().enumerate() {
            run.decision = step.decision.or(run.decision);
            run.stack = step.stack.clone().or(run.stack.take());
            run.hire += if hires == Some(other) { step.hire } else { 0 };
        }
        state.runs[at].take_orders()
    }

    /// The result of this run for its summary; `None` without a decision. `set`: the user has set
    /// the buffer size.
    pub(super) fn tuned(&self, set: bool) -> Option<TunedPath> {
        self.path_tuner.tuned(&self.before, set)
    }
}

impl Drop for PathUse {
    fn drop(&mut self) {
        let decided = self.path_tuner.has_decided();
        let mut state = self.path_tuner.runs.0.lock();
        state.runs.retain(|run| run.id != self.id);
        state.unused = (state.runs.is_empty() && decided).then(Instant::now);
    }
}
