//! A client that lives as long as its program, and the jobs that it runs.
//!
//! A [`Client`] owns what jobs share: the memory for buffers, the limit on the rate, the data
//! threads. Each job has a thread of its own. A [`JobHandle`] follows and steers
//! it from any thread. A paused job closes its sessions and keeps what its destinations have; when
//! it is resumed it plans again and leaves out what is done.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::copy::run;
use crate::setup::Shared;
use crate::{Cancel, CopyError, Event, EventSink, Options, Pair, RemoteError, Summary};

/// Limits that all jobs of a client share.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientLimits {
    /// Memory for buffers of data, in bytes.
    pub buffer_memory: usize,
    /// The rate of all jobs together, in bytes per second; `None`: no limit.
    pub bandwidth: Option<u64>,
}

impl Default for ClientLimits {
    fn default() -> Self {
        let options = Options::default();
        Self { buffer_memory: options.buffer_memory, bandwidth: None }
    }
}

/// Copies files as jobs that share threads, memory and a limit on their rate.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

/// The pairs that a job copies, and its options.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobSpec {
    pub pairs: Vec<Pair>,
    /// `buffer_memory` and `bandwidth` are the client's, see [`ClientLimits`].
    pub options: Options,
}

impl JobSpec {
    /// A job with the defaults of `ropewalk cp`.
    pub fn new(pairs: Vec<Pair>) -> Self {
        Self { pairs, options: Options::default() }
    }

    /// The same with other options.
    #[must_use]
    pub fn with_options(self, options: Options) -> Self {
        Self { options, ..self }
    }
}

impl Client {
    /// A client with these limits.
    pub fn new(limits: &ClientLimits) -> Self {
        Self { shared: Shared::new(limits.buffer_memory, limits.bandwidth) }
    }

    /// Starts a job. Its events wait in the handle until they are read.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn submit(&self, job: JobSpec) -> Result<JobHandle, CopyError> {
        let (sender, events) = channel();
        let sink: Arc<dyn EventSink> = Arc::new(Queued(sender));
        let handle = self.submit_to(job, sink)?;
        Ok(JobHandle { events: Some(events), ..handle })
    }

    /// Starts a job that reports its events to `sink`, from any of its threads.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub fn submit_to(&self, job: JobSpec, sink: Arc<dyn EventSink>) -> Result<JobHandle, CopyError> {
        let control = Arc::new(Control::default());
        let thread = {
            let (shared, control) = (self.shared.clone(), control.clone());
            let run = move || control.run(&shared, &job, &sink);
            std::thread::Builder::new().name("job".to_owned()).spawn(run).map_err(RemoteError::Threads)?
        };
        Ok(JobHandle { control, thread, events: None })
    }
}

/// Sends events to the holder of the handle.
struct Queued(Sender<Event>);

impl EventSink for Queued {
    fn event(&self, event: Event) {
        // The job goes on if the handle is gone.
        let _ = self.0.send(event);
    }
}

/// A job that runs, waits or has ended. Dropping the handle leaves the job alone.
pub struct JobHandle {
    control: Arc<Control>,
    thread: JoinHandle<Result<Summary, CopyError>>,
    events: Option<Receiver<Event>>,
}

impl JobHandle {
    /// The job's events, once: an iterator that ends with the job. `None` if they were taken, or go
    /// to a sink.
    pub fn events(&mut self) -> Option<impl Iterator<Item = Event> + Send + use<>> {
        self.events.take().map(Receiver::into_iter)
    }

    /// Asks the job to end. Destinations keep the parts of unfinished files.
    pub fn cancel(&self) {
        self.control.want(Wanted::End);
    }

    /// Asks the job to pause: its transfers stop and its sessions close. Files that were not done
    /// are reported as interrupted. When the job is resumed, it goes through its pairs again: it
    /// leaves out what it has finished of trees, completes what a destination has in part, and
    /// sends a file again that a pair names by itself.
    pub fn pause(&self) {
        self.control.want(Wanted::Pause);
    }

    /// Lets a paused job run again.
    pub fn resume(&self) {
        self.control.want(Wanted::Run);
    }

    /// Whether the job has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end of the job. The summary of a job that was paused adds up what its runs did;
    /// failures are those of the last run.
    ///
    /// # Errors
    /// As [`copy`](crate::copy()).
    pub fn join(self) -> Result<Summary, CopyError> {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// The state that the holder of a handle wants the job to be in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wanted {
    #[default]
    Run,
    Pause,
    /// For good.
    End,
}

#[derive(Default)]
struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    wanted: Wanted,
    /// Ends the present run.
    run: Cancel,
}

impl Control {
    fn want(&self, wanted: Wanted) {
        let mut state = self.state.lock();
        if state.wanted == Wanted::End {
            return;
        }
        state.wanted = wanted;
        if wanted != Wanted::Run {
            state.run.cancel();
        }
        self.changed.notify_all();
    }

    /// Runs the job until it has ended or is to end.
    fn run(
        &self,
        shared: &Arc<Shared>,
        job: &JobSpec,
        sink: &Arc<dyn EventSink>,
    ) -> Result<Summary, CopyError> {
        let mut sum: Option<Summary> = None;
        loop {
            let cancel = self.next_run();
            let last: Arc<Mutex<Option<Event>>> = Arc::default();
            let held: Arc<dyn EventSink> = Arc::new(HoldsEnd { sink: sink.clone(), end: last.clone() });
            let summary = run(job.pairs.clone(), &job.options, shared, &held, &cancel)?;
            let paused = summary.interrupted && self.state.lock().wanted != Wanted::End;
            let summary = match sum.take() {
                Some(before) => before.and(summary),
                None => summary,
            };
            if !paused {
                if last.lock().take().is_some() {
                    sink.event(Event::Finished(Box::new(summary.clone())));
                }
                return Ok(summary);
            }
            sum = Some(summary);
        }
    }

    /// Waits while the job is paused. Returns what ends the next run.
    fn next_run(&self) -> Cancel {
        let mut state = self.state.lock();
        while state.wanted == Wanted::Pause {
            self.changed.wait(&mut state);
        }
        if state.wanted == Wanted::Run && state.run.is_cancelled() {
            state.run = Cancel::new();
        }
        state.run.clone()
    }
}

/// Keeps the event that a run has finished: the job may only be paused.
struct HoldsEnd {
    sink: Arc<dyn EventSink>,
    end: Arc<Mutex<Option<Event>>>,
}

impl EventSink for HoldsEnd {
    fn event(&self, event: Event) {
        match event {
            Event::Finished(_) => *self.end.lock() = Some(event),
            event => self.sink.event(event),
        }
    }
}
