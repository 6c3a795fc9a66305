//! Runs trials, several at a time. Each of the `jobs` worker threads takes the next trial that fits
//! into the budget. The calling thread stores the results and reports progress. A trial that fails
//! is a result; the sweep ends early only if the store fails, if no trial can run at all, or if the
//! caller stops it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::{Measurement, Outcome, Record, Store, SweepError, Trial, TrialId};
use crate::library::Direction;
use crate::report::capacity;
use crate::results::RunResult;
use crate::run::{Event, RunError, RunOptions, Stop};
use crate::scenario::Scenario;

/// Options of a sweep.
#[derive(Clone)]
pub struct Options {
    /// Number of trials that run at the same time. Use more than one only if the machine has the
    /// capacity: trials on paths of 100 Mbit/s take little CPU, others disturb each other.
    pub jobs: usize,
    /// Upper limit for the total rate in bits per second of the paths of trials that run at the
    /// same time. One trial may always run.
    pub budget: Option<f64>,
    /// Whether trials with warnings in their results (for example of a busy machine) are run again.
    pub redo_doubtful: bool,
    /// Ends the sweep early. The results so far are in the store.
    pub stop: Stop,
    /// The value of `{ropewalk}`. If absent, the running executable.
    pub program: Option<std::path::PathBuf>,
}

/// An event of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// Number of trials to run, and of all trials. The others have results in the store.
    Planned {
        /// Number of trials to run.
        wanted: usize,
        /// Number of all trials.
        all: usize,
    },
    /// A trial starts.
    Started(TrialId),
    /// The current state of a trial, twice per second.
    Running {
        /// The trial.
        id: TrialId,
        /// Seconds since the trial's time zero.
        at: f64,
        /// Current number of connections.
        streams: u32,
        /// Current payload rate in bits per second.
        rate: f64,
    },
    /// A trial has ended.
    Ended(Box<Record>),
}

/// Runs those of `trials` that have no result in `store`, and reports events to `tell`.
///
/// # Errors
/// [`SweepError::Store`]; [`SweepError::Run`] if no trial can run at all. A failed trial is stored
/// as a result.
pub fn execute(
    trials: Vec<Trial>,
    store: &mut Store,
    options: &Options,
    tell: &mut dyn FnMut(&Progress),
) -> Result<(), SweepError> {
    execute_with(&crate::run::run, trials, store, options, tell)
}

type Runner<'a> = &'a (dyn Fn(&Scenario, &RunOptions) -> Result<RunResult, RunError> + Sync);

fn execute_with(
    runner: Runner<'_>,
    trials: Vec<Trial>,
    store: &mut Store,
    options: &Options,
    tell: &mut dyn FnMut(&Progress),
) -> Result<(), SweepError> {
    let all = trials.len();
    let doubtful =
        |record: &Record| record.measurement().is_some_and(|measured| !measured.warnings.is_empty());
    let lacking =
        |trial: &Trial| store.measured(trial).is_none_or(|record| options.redo_doubtful && doubtful(record));
    let wanted: VecDeque<Trial> = trials.into_iter().filter(lacking).collect();
    tell(&Progress::Planned { wanted: wanted.len(), all });
    let jobs = options.jobs.clamp(1, wanted.len().max(1));
    let queue = Queue::new(wanted, options.budget);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..jobs {
            let (sender, queue) = (sender.clone(), &queue);
            scope.spawn(move || work(runner, queue, options, &sender));
        }
        drop(sender);
        let mut result = Ok(());
        for message in receiver {
            let progress = match message {
                Message::Progress(progress) => progress,
                Message::Impossible(error) => {
                    options.stop.stop();
                    result = result.and(Err(SweepError::Run(error)));
                    continue;
                }
            };
            if let Progress::Ended(record) = &progress
                && let Err(error) = store.add((**record).clone())
            {
                options.stop.stop();
                result = result.and(Err(error));
            }
            tell(&progress);
        }
        result
    })
}

enum Message {
    Progress(Progress),
    Impossible(RunError),
}

/// The waiting trials, and the load of the running ones.
struct Queue {
    state: Mutex<Waiting>,
    changed: Condvar,
    budget: f64,
}

struct Waiting {
    trials: VecDeque<Trial>,
    running: usize,
    /// Total rate of the paths of the running trials, in bits per second.
    used: f64,
}

impl Queue {
    fn new(trials: VecDeque<Trial>, budget: Option<f64>) -> Self {
        let state = Mutex::new(Waiting { trials, running: 0, used: 0.0 });
        Self { state, changed: Condvar::new(), budget: budget.unwrap_or(f64::INFINITY) }
    }

    /// Returns the first trial that fits into the budget, or the first of all if none is running;
    /// waits until there is one. The caller must pass the returned rate to `ended`. Returns `None`
    /// if no trial is left.
    fn next(&self, stop: &Stop) -> Option<(Trial, f64)> {
        let mut state = self.state.lock();
        loop {
            if stop.is_stopped() || state.trials.is_empty() {
                return None;
            }
            let fits = |trial: &Trial| state.used + rate_of(trial) <= self.budget;
            let at = if state.running == 0 { Some(0) } else { state.trials.iter().position(fits) };
            if let Some(trial) = at.and_then(|at| state.trials.remove(at)) {
                let rate = rate_of(&trial);
                state.running += 1;
                state.used += rate;
                return Some((trial, rate));
            }
            self.changed.wait(&mut state);
        }
    }

    fn ended(&self, rate: f64) {
        let mut state = self.state.lock();
        state.running = state.running.saturating_sub(1);
        state.used = if state.running == 0 { 0.0 } else { state.used - rate };
        self.changed.notify_all();
    }
}

struct Ended<'a>(&'a Queue, f64);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.ended(self.1);
    }
}

/// The larger one of the capacities of the trial's path in the two directions. A path without a
/// limit needs the whole budget.
fn rate_of(trial: &Trial) -> f64 {
    let way = |direction| capacity(&trial.scenario, direction, 1.0, SEGMENT);
    way(Direction::Get).max(way(Direction::Put))
}

/// Payload of a packet of 1500 bytes.
const SEGMENT: u32 = 1448;

fn work(runner: Runner<'_>, queue: &Queue, options: &Options, sender: &Sender<Message>) {
    // The receiver is gone if the sweep has ended.
    let tell = |message| sender.send(message).is_ok();
    while !options.stop.is_stopped() {
        let Some((trial, rate)) = queue.next(&options.stop) else { return };
        // Releases the budget however the run ends.
        let _given_back = Ended(queue, rate);
        if !tell(Message::Progress(Progress::Started(trial.id.clone()))) {
            return;
        }
        let (id, events) = (trial.id.clone(), sender.clone());
        let forward = move |event: &Event| {
            if let Event::Progress { at, streams, rate, .. } = event {
                let running = Progress::Running { id: id.clone(), at: *at, streams: *streams, rate: *rate };
                let _ = events.send(Message::Progress(running));
            }
        };
        let run_options = RunOptions {
            name: None,
            program: options.program.clone(),
            stop: options.stop.clone(),
            events: Some(Arc::new(forward)),
        };
        let outcome = match runner(&trial.scenario, &run_options) {
            Ok(result) => Outcome::Measured(Measurement::of(&result)),
            Err(RunError::Stopped) => return,
            Err(error @ RunError::NotRoot) => {
                tell(Message::Impossible(error));
                return;
            }
            Err(error) => Outcome::Failed(error.to_string()),
        };
        if !tell(Message::Progress(Progress::Ended(Box::new(Record::new(&trial, outcome))))) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::library::{Call, Workload, open};
    use crate::results::{CommandResult, End};
    use crate::sweep::{Design, groups, trials};

    fn plan() -> Vec<Trial> {
        let design = Design {
            programs: vec![Call::parse("iperf3").unwrap()],
            vary: vec!["streams=1..4".parse().unwrap()],
            repetitions: 3,
            workload: Workload::default(),
        };
        trials("paper-100ms", &open("paper-100ms").unwrap(), &design).unwrap()
    }

    fn options(jobs: usize) -> Options {
        Options { jobs, budget: None, redo_doubtful: false, stop: Stop::default(), program: None }
    }

    /// Transfers one megabyte per stream, in one second.
    fn runner(scenario: &Scenario, _: &RunOptions) -> Result<RunResult, RunError> {
        let streams: u64 = scenario.variables["streams"].to_string().parse().unwrap();
        let command = CommandResult {
            seconds: 1.0,
            bytes: Some(streams * 1_000_000),
            end: End::Exit(0),
            ..Default::default()
        };
        Ok(RunResult { commands: vec![command], ..RunResult::default() })
    }

    #[test]
    fn execute_with_any_number_of_jobs_runs_every_trial_once() {
        for jobs in [1, 4] {
            let mut store = Store::in_memory();
            execute_with(&runner, plan(), &mut store, &options(jobs), &mut |_| {}).unwrap();
            assert_eq!(store.records().len(), 12);
            let mut groups = groups(store.records());
            groups.sort_by(|a, b| a.values.cmp(&b.values));
            let medians: Vec<f64> = groups.iter().map(|group| group.goodput.median).collect();
            assert_eq!(medians, [8e6, 16e6, 24e6, 32e6]);
            assert!(groups.iter().all(|group| group.goodput.count == 3));

            let mut told = Vec::new();
            execute_with(&runner, plan(), &mut store, &options(jobs), &mut |p| told.push(p.clone())).unwrap();
            assert_eq!(told, [Progress::Planned { wanted: 0, all: 12 }]);
        }
    }

    /// A time that is longer than any machine takes to start some threads.
    const WAIT: std::time::Duration = std::time::Duration::from_secs(20);

    #[test]
    fn execute_with_a_budget_limits_trials_at_the_same_time() {
        for (budget, most) in [(50e6, 1), (210e6, 2), (1e9, 4)] {
            let (now, seen, changed) = (Mutex::new(0), AtomicUsize::new(0), Condvar::new());
            // Each run waits until the maximum number of runs has been reached.
            let counting = |scenario: &Scenario, options: &RunOptions| {
                let mut running = now.lock();
                *running += 1;
                seen.fetch_max(*running, Ordering::SeqCst);
                changed.notify_all();
                let enough = |_: &mut usize| seen.load(Ordering::SeqCst) < most;
                changed.wait_while_for(&mut running, enough, WAIT);
                *running -= 1;
                drop(running);
                runner(scenario, options)
            };
            let mut store = Store::in_memory();
            let options = Options { budget: Some(budget), ..options(4) };
            execute_with(&counting, plan(), &mut store, &options, &mut |_| {}).unwrap();
            assert_eq!((store.records().len(), seen.into_inner()), (12, most), "{budget}");
        }
    }

    #[test]
    fn execute_when_a_trial_failed_runs_it_again() {
        let failing = |scenario: &Scenario, options: &RunOptions| match scenario.variables["streams"]
            .to_string()
            .as_str()
        {
            "2" => Err(RunError::NameTaken("x".into())),
            _ => runner(scenario, options),
        };
        let mut store = Store::in_memory();
        execute_with(&failing, plan(), &mut store, &options(2), &mut |_| {}).unwrap();
        assert_eq!(groups(store.records()).iter().map(|group| group.failed).sum::<usize>(), 3);
        execute_with(&runner, plan(), &mut store, &options(2), &mut |_| {}).unwrap();
        let groups = groups(store.records());
        assert!(groups.iter().all(|group| group.failed == 0 && group.goodput.count == 3));
    }

    #[test]
    fn execute_with_redo_doubtful_runs_doubtful_trials_again() {
        let busy = |scenario: &Scenario, options: &RunOptions| {
            runner(scenario, options).map(|result| RunResult { warnings: vec!["busy".into()], ..result })
        };
        let mut store = Store::in_memory();
        execute_with(&busy, plan(), &mut store, &options(1), &mut |_| {}).unwrap();
        assert_eq!(groups(store.records())[0].runs(), "3 (3 doubtful)");
        execute_with(&runner, plan(), &mut store, &options(1), &mut |_| {}).unwrap();
        assert_eq!(store.records().len(), 12);
        let again = Options { redo_doubtful: true, ..options(1) };
        execute_with(&runner, plan(), &mut store, &again, &mut |_| {}).unwrap();
        assert_eq!(groups(store.records())[0].runs(), "3");
    }

    #[test]
    fn execute_when_stopped_keeps_the_results() {
        let ran = AtomicUsize::new(0);
        let stopping = |scenario: &Scenario, options: &RunOptions| {
            if ran.fetch_add(1, Ordering::Relaxed) == 4 {
                options.stop.stop();
                return Err(RunError::Stopped);
            }
            runner(scenario, options)
        };
        let mut store = Store::in_memory();
        execute_with(&stopping, plan(), &mut store, &options(1), &mut |_| {}).unwrap();
        assert_eq!(store.records().len(), 4);
        execute_with(&runner, plan(), &mut store, &options(1), &mut |_| {}).unwrap();
        assert_eq!(store.records().len(), 12);
    }

    #[test]
    fn execute_without_root_ends_the_sweep() {
        let not_root = |_: &Scenario, _: &RunOptions| Err(RunError::NotRoot);
        let mut store = Store::in_memory();
        let result = execute_with(&not_root, plan(), &mut store, &options(2), &mut |_| {});
        assert!(matches!(result, Err(SweepError::Run(RunError::NotRoot))));
        assert!(store.records().is_empty());
    }
}
