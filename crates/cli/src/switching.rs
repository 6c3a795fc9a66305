//! `--via auto` while data moves: the rest of a copy takes another path if that is better.
//!
//! The copy runs on the calling thread. A second thread follows its events, looks at the hops again
//! if transfers fail, and leaves the decision to [`RouteWatch`]. A change of
//! the path ends the run at its restart markers, as an interruption does, and starts the next one
//! over the other path: it resumes the files that were in flight, and leaves out those that are
//! done.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use ropewalk_client::{
    Cancel, EarlierRuns, Error, Event, EventSink, FailureKind, Location, Options, Pair, Summary,
};
use ropewalk_protocol::url::Url;
use ropewalk_tuning::route::{Choice, Doubt, Graph, Reason, RouteWatch};

use crate::client::Client;
use crate::credentials;
use crate::output::say;
use crate::survey::{MOST_RELAYS, Routes, path_text};
use crate::units;
use crate::via::Relays;

/// How soon an interruption reaches the running copy.
const TICK: Duration = Duration::from_millis(100);
/// The time between two looks at the bytes that have arrived.
const INTERVAL: Duration = Duration::from_millis(500);
/// The most files whose failure is held back in case that the copy continues over another path.
const MOST_HELD: usize = 1000;

/// A copy whose path may change.
pub(crate) struct Switching {
    /// The pairs as the user named them.
    pairs: Vec<Pair>,
    nodes: Vec<Option<Url>>,
    names: Vec<String>,
    graph: Graph,
    watch: RouteWatch,
    survey: Client,
    began: Instant,
    /// Changes of the path after failures, without a byte that arrived in between.
    vain: usize,
}

/// The next run.
struct Next {
    pairs: Vec<Pair>,
    options: Options,
    event: Event,
}

impl Switching {
    /// `None` if the copy cannot continue over another path: a run that is ended cannot be resumed,
    /// or its rate does not depend on the path alone.
    pub(crate) fn of(
        pairs: Vec<Pair>,
        routes: &Routes,
        relays: &Relays,
        options: &Options,
        survey: Client,
    ) -> Option<Self> {
        let resumes = options.recovery.resume && !options.dry_run && !options.data.ascii;
        let programs = options.data.disk_stack.is_some()
            || options.login.source.disk_stack.is_some()
            || options.login.destination.disk_stack.is_some();
        let limited = options.tuning.bandwidth.is_some();
        let names_relays =
            |pair: &Pair| !relays.is_empty() && relays.between(pair.clone(), &mut Vec::new()).is_ok();
        if !resumes
            || programs
            || limited
            || !pairs.iter().all(|pair| is_resumable(pair) && names_relays(pair))
        {
            return None;
        }
        let choice = routes.choice.as_ref()?;
        let watch = RouteWatch::new(routes.graph(), &choice.route.nodes, MOST_RELAYS);
        let (nodes, names, graph) = (routes.nodes.clone(), routes.names.clone(), routes.graph());
        Some(Self { pairs, nodes, names, graph, watch, survey, began: Instant::now(), vain: 0 })
    }

    /// Copies all pairs, the first run as `pairs` and `options` say.
    ///
    /// # Errors
    /// Those of [`ropewalk_client::copy`].
    pub(crate) fn copy(
        mut self,
        client: &ropewalk_client::Client,
        mut pairs: Vec<Pair>,
        mut options: Options,
        events: &Arc<dyn EventSink>,
        cancel: &Cancel,
    ) -> Result<Summary, Error> {
        let (earlier, mut sum) = (EarlierRuns::default(), None::<Summary>);
        loop {
            let (run, follower) = (Cancel::new(), Arc::new(Follower::new(events.clone())));
            let sink: Arc<dyn EventSink> = follower.clone();
            let (summary, next) = thread::scope(|scope| {
                let (this, options) = (&mut self, &options);
                let (run, follower) = (&run, &*follower);
                let watching = scope.spawn(move || this.follow(follower, options, (run, cancel)));
                let end = End(follower);
                let summary = client.copy_on(pairs, options, &sink, run, &earlier);
                drop(end);
                let next = watching.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                (summary, next)
            });
            let summary = summary.inspect_err(|_| follower.release())?;
            let next = next.or_else(|| self.after_failure(&summary, &options, cancel));
            let summary = match sum.take() {
                Some(before) => before.and(summary),
                None => summary,
            };
            let Some(next) = next else {
                follower.release();
                events.event(Event::Finished(Box::new(summary.clone())));
                return Ok(summary);
            };
            events.event(next.event);
            (pairs, options, sum) = (next.pairs, next.options, Some(summary));
        }
    }

    /// Follows a run until it ends. Ends it if the next one is to take another path.
    fn follow(
        &mut self,
        follower: &Follower,
        options: &Options,
        (run, cancel): (&Cancel, &Cancel),
    ) -> Option<Next> {
        let mut due = Instant::now();
        loop {
            let seen = follower.wait(TICK)?;
            if cancel.is_cancelled() {
                run.cancel();
                return None;
            }
            let mut doubt = None;
            if seen.queued {
                self.watch.pause();
            }
            let moved = seen.bytes.saturating_sub(seen.resumed);
            if seen.failures > 0 {
                doubt = self.watch.failed(self.now(), moved);
            }
            if doubt.is_none() && Instant::now() >= due {
                due = Instant::now() + INTERVAL;
                if moved > 0 {
                    self.vain = 0;
                }
                let left = seen.planned.map(|planned| planned.saturating_sub(seen.bytes));
                doubt = self.watch.progress(self.now(), moved, left);
            }
            let Some(next) = doubt.and_then(|doubt| self.look(doubt, options)) else { continue };
            // The run may have ended meanwhile.
            if follower.stop() {
                run.cancel();
                return Some(next);
            }
            return None;
        }
    }

    /// The next run after one that failed because it could not reach its ends.
    fn after_failure(&mut self, summary: &Summary, options: &Options, cancel: &Cancel) -> Option<Next> {
        let of_path = |kind| matches!(kind, FailureKind::Unreachable | FailureKind::Stalled);
        let failed = summary.files_failed > 0 && summary.failures.iter().any(|failure| of_path(failure.kind));
        if !failed || cancel.is_cancelled() || options.recovery.retries == 0 {
            return None;
        }
        self.watch.gave_up();
        self.look(Doubt::Failed, options)
    }

    /// Chooses the path again. After failures the hops are estimated again.
    fn look(&mut self, doubt: Doubt, options: &Options) -> Option<Next> {
        if doubt == Doubt::Failed && self.vain > self.nodes.len() {
            // All paths fail; the client's own tries come to an end.
            return None;
        }
        if doubt == Doubt::Failed {
            // Which servers can still be reached? A slow path is not probed: that takes as long as
            // the queue on it, and its rate is known.
            self.graph = Routes::learn(&self.survey, self.nodes.clone()).graph();
        }
        if self.survey.cancel.is_cancelled() {
            return None;
        }
        let former = self.watch.in_use().to_vec();
        let choice = self.watch.decide(self.now(), self.graph.clone())?;
        if doubt == Doubt::Failed {
            self.vain += 1;
        }
        let why = self.why(doubt, &former, &choice);
        let nodes = choice.route.nodes.as_slice();
        let names = |nodes: &[usize]| nodes.iter().map(|node| self.names[*node].clone()).collect();
        let event = Event::Route {
            path: names(nodes),
            instead_of: Some(names(&former)),
            bits_per_second: known_rate(&choice).map(|rate| rate * 8.0),
            why,
        };
        let between = nodes[1..nodes.len() - 1].iter().filter_map(|node| self.nodes[*node].clone());
        let (relays, mut hops) = (Relays::from(between.collect::<Vec<Url>>()), Vec::new());
        let pairs = self.pairs.iter().cloned().map(|pair| match relays.is_empty() {
            true => Ok(pair),
            false => relays.between(pair, &mut hops),
        });
        let mut options = options.clone();
        let pairs = pairs.collect::<anyhow::Result<Vec<Pair>>>().and_then(|pairs| {
            credentials::add_hops(&mut options, hops)?;
            Ok(pairs)
        });
        match pairs {
            Ok(pairs) => Some(Next { pairs, options, event }),
            Err(error) => {
                say(format_args!("ropewalk: the path cannot change: {}", crate::message(&error)));
                None
            }
        }
    }

    fn why(&self, doubt: Doubt, former: &[usize], choice: &Choice) -> String {
        let former = path_text(former, &self.names);
        let rate = units::link_rate;
        let doubt = match doubt {
            _ if choice.reason == Reason::OnlyUsable => format!("{former} cannot be used any more"),
            Doubt::Fell { rate: now, usual } => {
                format!("{former} gives {}, after {}", rate(now), rate(usual))
            }
            Doubt::BelowEstimate { rate: now, low } => {
                format!("{former} gives {}, and at least {} was expected", rate(now), rate(low))
            }
            Doubt::BelowOther { rate: now } => format!("{former} gives {}", rate(now)),
            Doubt::Failed => format!("transfers over {former} fail"),
        };
        let likely = crate::survey::likely(choice.route.estimate);
        format!("{doubt}; this one is expected to give {likely}; the rest of the copy takes it")
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

/// The likely rate of the chosen path in bytes per second, if known.
fn known_rate(choice: &Choice) -> Option<f64> {
    let estimate = choice.route.estimate;
    estimate.is_known().then(|| estimate.likely())
}

/// Whether a copy of the pair can be ended and resumed.
fn is_resumable(pair: &Pair) -> bool {
    let ordinary = |location: &Location| match location {
        Location::Remote(_) => true,
        Location::Local(path) => {
            std::fs::metadata(path).map_or(true, |there| there.is_file() || there.is_dir())
        }
        Location::Standard | Location::Measure { .. } => false,
    };
    pair.window.is_none() && ordinary(&pair.source) && ordinary(&pair.destination)
}

/// Passes the events of a run on, and counts what the watch needs.
struct Follower {
    inner: Arc<dyn EventSink>,
    seen: Mutex<Seen>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    bytes: u64,
    /// Bytes that earlier runs have left.
    resumed: u64,
    /// Bytes of all files, if the plan is complete.
    planned: Option<u64>,
    /// Failures since the last look, after which the client tries again.
    failures: u32,
    /// A server has put a transfer into a queue since the last look.
    queued: bool,
}

#[derive(Default)]
struct Seen {
    counts: Counts,
    /// Files that failed for good.
    held: Vec<Event>,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Runs,
    /// The run is being ended for a change of its path: files that are not done have not failed.
    Stops,
    Ended,
}

/// Ends the thread that follows a run, also after a panic.
struct End<'a>(&'a Follower);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut seen = self.0.seen.lock();
        if seen.state == State::Runs {
            seen.state = State::Ended;
        }
        self.0.changed.notify_all();
    }
}

impl Follower {
    fn new(inner: Arc<dyn EventSink>) -> Self {
        Self { inner, seen: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits for a failure or the end of the run, at most for this time. `None`: the run has ended.
    fn wait(&self, most: Duration) -> Option<Counts> {
        let mut seen = self.seen.lock();
        if seen.state == State::Runs && seen.counts.failures == 0 {
            self.changed.wait_for(&mut seen, most);
        }
        let counts = seen.counts;
        (seen.counts.failures, seen.counts.queued) = (0, false);
        (seen.state == State::Runs).then_some(counts)
    }

    /// Marks the run as one that is ended for a change of its path. Returns `false` if it has ended
    /// by itself.
    fn stop(&self) -> bool {
        let mut seen = self.seen.lock();
        let runs = seen.state == State::Runs;
        if runs {
            seen.state = State::Stops;
        }
        runs
    }

    /// Reports the files that have failed for good.
    fn release(&self) {
        let held = std::mem::take(&mut self.seen.lock().held);
        held.into_iter().for_each(|event| self.inner.event(event));
    }
}

impl EventSink for Follower {
    fn event(&self, event: Event) {
        let mut seen = self.seen.lock();
        match &event {
            Event::Progress { bytes, .. } => seen.counts.bytes = *bytes,
            Event::Planned { bytes, complete, .. } => seen.counts.planned = complete.then_some(*bytes),
            Event::FileStarted { resumed_from, .. } => seen.counts.resumed += resumed_from,
            Event::Queued { .. } => seen.counts.queued = true,
            Event::FileFailed { retry_in: Some(_), .. } | Event::ConnectFailed { .. } => {
                seen.counts.failures += 1;
                self.changed.notify_all();
            }
            Event::FileFailed { retry_in: None, .. } if seen.state == State::Stops => return,
            Event::FileFailed { retry_in: None, .. } if seen.held.len() < MOST_HELD => {
                return seen.held.push(event);
            }
            Event::Finished(_) => return,
            _ => {}
        }
        drop(seen);
        self.inner.event(event);
    }
}
