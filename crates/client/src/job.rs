//! A client that lives as long as its program, and the jobs that it runs.
//!
//! A [`Client`] owns the resources that jobs share: the data threads, the memory for buffers, the
//! rate limit, the tuners of paths, and the idle sessions. Each job has a thread of its own. The
//! holder of its [`JobHandle`] reads its events and waits for its end; a [`JobControl`] pauses,
//! resumes and cancels it from any thread. A paused job closes its sessions and keeps the part
//! files at its destinations. A job that is paused when its last control is dropped ends, because
//! no caller could resume it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::client_state::ClientState;
use crate::copy::run;
use crate::done_files::{DoneFiles, EarlierRuns};
use crate::model::job_spec::JobSpec;
use crate::{Cancel, ClientLimits, Error, Event, EventSink, Options, Pair, RemoteError, Summary, Timetable};

/// Copies files as jobs that share threads, memory, a rate limit, the tuners of paths and idle
/// sessions.
#[derive(Clone)]
pub struct Client {
    state: Arc<ClientState>,
}

impl Client {
    /// A client with these limits.
    pub fn new(limits: &ClientLimits) -> Self {
        Self { state: ClientState::new(limits) }
    }

    pub(crate) fn state(&self) -> &Arc<ClientState> {
        &self.state
    }

    /// A client for one job, with the limits of the job's own options. It keeps no idle sessions.
    pub fn for_job(options: &Options) -> Self {
        Self { state: ClientState::of(options) }
    }

    /// Changes the rate limit of all jobs, including running ones; `None` removes it. The limit
    /// does not apply to data that goes directly from one server to another.
    pub fn set_bandwidth(&self, rate: Option<&Timetable>) {
        self.state.shared.bandwidth.set(rate.unwrap_or(&Timetable::always(None)));
    }

    /// Copies every pair on the calling thread, as [`crate::copy_with`] does.
    ///
    /// # Errors
    /// Those of [`crate::copy()`].
    pub fn copy(
        &self,
        pairs: Vec<Pair>,
        options: &Options,
        events: &Arc<dyn EventSink>,
        cancel: &Cancel,
    ) -> Result<Summary, Error> {
        run(pairs, options, (&self.state, None), events, cancel)
    }

    /// Like [`Client::copy`], as one of several runs of a copy: files that `earlier` runs have
    /// finished are left out, and the others are resumed. The pairs may lead to the same places
    /// through other relays than in these runs.
    ///
    /// # Errors
    /// Those of [`crate::copy()`].
    pub fn copy_on(
        &self,
        pairs: Vec<Pair>,
        options: &Options,
        events: &Arc<dyn EventSink>,
        cancel: &Cancel,
        earlier: &EarlierRuns,
    ) -> Result<Summary, Error> {
        run(pairs, options, (&self.state, Some(&earlier.0)), events, cancel)
    }

    /// Starts a job. Its events wait in the handle until they are read. A session that an earlier
    /// job has left is not reported as [`Event::Connecting`] again.
    ///
    /// # Errors
    /// The job's options have a `bandwidth`, or the system cannot start a thread.
    pub fn submit(&self, job: JobSpec) -> Result<JobHandle, Error> {
        let (sender, events) = channel();
        let sink: Arc<dyn EventSink> = Arc::new(Queued(sender));
        let handle = self.submit_to(job, sink)?;
        Ok(JobHandle { events: Some(events), ..handle })
    }

    /// Starts a job that reports its events to `sink`, from any of its threads.
    ///
    /// # Errors
    /// Those of [`Client::submit`].
    pub fn submit_to(&self, job: JobSpec, sink: Arc<dyn EventSink>) -> Result<JobHandle, Error> {
        if job.options.tuning.bandwidth.is_some() {
            let text = "the limit on the rate belongs to the client, not to one of its jobs";
            return Err(RemoteError::Usage(text.to_owned()).into());
        }
        let steering = Arc::new(Steering::default());
        let thread = {
            let (state, steering) = (self.state.clone(), steering.clone());
            let run = move || steering.run(&state, &job, &sink);
            std::thread::Builder::new().name("job".to_owned()).spawn(run).map_err(RemoteError::Threads)?
        };
        let control = JobControl(Arc::new(Holder(steering)));
        Ok(JobHandle { control, thread, events: None })
    }
}

/// Sends events to the holder of the handle.
struct Queued(Sender<Event>);

impl EventSink for Queued {
    fn event(&self, event: Event) {
        // The job continues if the handle is gone.
        let _ = self.0.send(event);
    }
}

/// A job that is running, paused or finished. A running job continues if its handle is dropped.
pub struct JobHandle {
    control: JobControl,
    thread: JoinHandle<Result<Summary, Error>>,
    events: Option<Receiver<Event>>,
}

impl JobHandle {
    /// The job's events, as an iterator that ends with the job. `None` if they were taken before,
    /// or if they go to a sink.
    pub fn events(&mut self) -> Option<impl Iterator<Item = Event> + Send + use<>> {
        self.events.take().map(Receiver::into_iter)
    }

    /// Pauses, resumes and cancels the job, also while [`JobHandle::join`] waits for it.
    pub fn control(&self) -> JobControl {
        self.control.clone()
    }

    /// Whether the job has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end of the job. The summary of a job that was paused adds up all of its runs;
    /// failures are those of the last run. A paused job without another [`JobControl`] ends.
    ///
    /// # Errors
    /// Those of [`copy`](crate::copy()).
    pub fn join(self) -> Result<Summary, Error> {
        let Self { control, thread, .. } = self;
        drop(control);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Controls a job from any thread. Clones control the same job.
#[derive(Clone)]
pub struct JobControl(Arc<Holder>);

impl JobControl {
    /// Asks the job to end. Destinations keep the part files of unfinished files.
    pub fn cancel(&self) {
        self.0.0.want(Wanted::End);
    }

    /// Asks the job to pause: its transfers stop and its sessions close. Unfinished files are
    /// reported as interrupted. When the job is resumed, it goes through its pairs again: it skips
    /// the files that it has finished, and completes those that a destination has in part.
    pub fn pause(&self) {
        self.0.0.want(Wanted::Pause);
    }

    /// Lets a paused job run again.
    pub fn resume(&self) {
        self.0.0.want(Wanted::Run);
    }
}

/// Shared by all controls of a job: when it is dropped, a paused job ends.
struct Holder(Arc<Steering>);

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// The state that the job is to be in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wanted {
    #[default]
    Run,
    Pause,
    /// The job is to end for good.
    End,
}

#[derive(Default)]
struct Steering {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    wanted: Wanted,
    /// Cancels the present run.
    run: Cancel,
}

impl Steering {
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

    /// Ends a paused job, because no control is left that could resume it.
    fn abandon(&self) {
        if self.state.lock().wanted == Wanted::Pause {
            self.want(Wanted::End);
        }
    }

    /// Runs the job until it is finished or is to end.
    fn run(
        &self,
        client: &Arc<ClientState>,
        job: &JobSpec,
        sink: &Arc<dyn EventSink>,
    ) -> Result<Summary, Error> {
        let mut sum: Option<Summary> = None;
        let done = Arc::new(DoneFiles::default());
        loop {
            let cancel = self.next_run();
            let events: Arc<dyn EventSink> = Arc::new(WithoutEnd(sink.clone()));
            let summary = run(job.pairs.clone(), &job.options, (client, Some(&done)), &events, &cancel)?;
            let paused = summary.interrupted && self.state.lock().wanted != Wanted::End;
            let summary = match sum.take() {
                Some(before) => before.and(summary),
                None => summary,
            };
            if !paused {
                sink.event(Event::Finished(Box::new(summary.clone())));
                return Ok(summary);
            }
            sum = Some(summary);
        }
    }

    /// Waits while the job is paused. Returns the [`Cancel`] of the next run.
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

/// Drops the event that a run has finished, because the job may only be paused.
struct WithoutEnd(Arc<dyn EventSink>);

impl EventSink for WithoutEnd {
    fn event(&self, event: Event) {
        if !matches!(event, Event::Finished(_)) {
            self.0.event(event);
        }
    }
}
