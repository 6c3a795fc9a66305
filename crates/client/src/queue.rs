//! The queue of jobs from the plan to the workers: bounded, with delayed retries.
//!
//! The queue belongs to the run; the plan adds jobs, and workers take them, each from its own
//! thread. It counts the jobs that are being worked on, because they may come back. It ends when
//! the plan has ended, no job waits and none is being worked on, or when it is stopped.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::ready::{Ready, Taker};

/// The next step of a worker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<J> {
    Job(J),
    /// No job waits now; more may come.
    Nothing,
    /// All jobs are done, or the queue was stopped.
    End,
}

/// See the head of the module.
pub(crate) struct Queue<J> {
    state: Mutex<State<J>>,
    changed: Condvar,
    capacity: usize,
    unlimited: AtomicBool,
}

struct State<J> {
    /// Ranges of files that were started already; they come before all other jobs.
    urgent: VecDeque<J>,
    ready: Ready<J>,
    delayed: Vec<(Instant, J)>,
    /// The plan still adds jobs.
    open: bool,
    stopped: bool,
    in_work: usize,
    takers: Taker,
    /// The number of threads that wait for a change. If there are none, notification is skipped.
    waiting: usize,
    /// The number of threads that wait for a job.
    idle: usize,
}

impl<J> Queue<J> {
    pub(crate) fn new(capacity: usize) -> Self {
        let state = State {
            urgent: VecDeque::new(),
            ready: Ready::new(),
            delayed: Vec::new(),
            open: true,
            stopped: false,
            in_work: 0,
            takers: 0,
            waiting: 0,
            idle: 0,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            capacity,
            unlimited: AtomicBool::new(false),
        }
    }

    /// A unique number for a taker of jobs.
    pub(crate) fn taker(&self) -> Taker {
        let mut state = self.state.lock();
        state.takers += 1;
        state.takers
    }

    /// Adds a job to a group (see [`Ready`]), and waits for room. While there is none, `idle` is
    /// called at least every `interval`.
    ///
    /// # Errors
    /// The queue was stopped; the error has the job.
    pub(crate) fn push(
        &self,
        group: u64,
        job: J,
        interval: Duration,
        idle: &mut dyn FnMut(),
    ) -> Result<(), J> {
        let full = |state: &State<J>| {
            state.ready.len() >= self.capacity && !state.stopped && !self.unlimited.load(Ordering::SeqCst)
        };
        let mut state = self.state.lock();
        while full(&state) {
            drop(state);
            idle();
            state = self.state.lock();
            if full(&state) {
                // Delayed jobs that become due make no room.
                state = self.wait(state, false, Some(Instant::now() + interval));
            }
        }
        if state.stopped {
            return Err(job);
        }
        state.ready.push(group, job);
        self.tell(state);
        Ok(())
    }

    /// Adds jobs that come before all others, without waiting for room.
    pub(crate) fn push_urgent(&self, jobs: impl IntoIterator<Item = J>) {
        let mut state = self.state.lock();
        state.urgent.extend(jobs);
        self.tell(state);
    }

    /// Adds a job that is to be done again at `due`.
    pub(crate) fn push_delayed(&self, job: J, due: Instant) {
        let mut state = self.state.lock();
        state.delayed.push((due, job));
        self.tell(state);
    }

    /// Removes the limit: from now on there is always room.
    pub(crate) fn lift_limit(&self) {
        self.unlimited.store(true, Ordering::SeqCst);
        self.tell(self.state.lock());
    }

    /// Records that the plan has ended.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.open = false;
        self.tell(state);
    }

    /// Stops the queue, so that no further job is started.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        self.tell(state);
    }

    /// Whether a job waits that could be started now.
    pub(crate) fn has_waiting(&self) -> bool {
        let state = self.state.lock();
        !state.stopped && (!state.urgent.is_empty() || state.ready.len() > 0)
    }

    /// The number of threads that wait for a job while none waits; 0 if a job waits, or if none may
    /// be started.
    pub(crate) fn idle(&self) -> usize {
        let state = self.state.lock();
        let none = !state.stopped && state.urgent.is_empty() && state.ready.len() == 0;
        if none { state.idle } else { 0 }
    }

    /// The sum of `of` over all waiting jobs except those of the plan.
    pub(crate) fn sum(&self, of: impl Fn(&J) -> u64) -> u64 {
        let state = self.state.lock();
        let delayed = state.delayed.iter().map(|(_, job)| job);
        state.urgent.iter().chain(delayed).fold(0, |sum, job| sum.saturating_add(of(job)))
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Takes the next job, and waits for one until `deadline` if there is one. Every job that was
    /// taken must be completed by [`Queue::done`], after the jobs that it added.
    pub(crate) fn next(&self, taker: Taker, deadline: Option<Instant>) -> Next<J> {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            match state.take(taker, now) {
                Next::Nothing if deadline.is_some_and(|deadline| deadline <= now) => return Next::Nothing,
                Next::Nothing => state = self.wait(state, true, deadline),
                next => {
                    // The plan may have room now, and other workers may have reached the end.
                    self.tell(state);
                    return next;
                }
            }
        }
    }

    /// Like [`Queue::next`], without waiting.
    pub(crate) fn try_next(&self, taker: Taker) -> Next<J> {
        let mut state = self.state.lock();
        let next = state.take(taker, Instant::now());
        if matches!(next, Next::Job(_)) {
            self.tell(state);
        }
        next
    }

    /// Completes a job that was taken.
    pub(crate) fn done(&self) {
        let mut state = self.state.lock();
        state.in_work = state.in_work.saturating_sub(1);
        self.tell(state);
    }

    /// Takes all jobs that were never started.
    pub(crate) fn drain(&self) -> Vec<J> {
        let mut state = self.state.lock();
        let State { urgent, ready, delayed, .. } = &mut *state;
        urgent.drain(..).chain(ready.drain()).chain(delayed.drain(..).map(|(_, job)| job)).collect()
    }

    /// Wakes the waiting threads, so that they check the state again.
    fn tell(&self, state: MutexGuard<'_, State<J>>) {
        let waiting = state.waiting > 0;
        drop(state);
        if waiting {
            self.changed.notify_all();
        }
    }

    /// Waits for a change, until `deadline`, or, if the caller waits `for_jobs`, until a delayed
    /// job is due.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<J>>,
        for_jobs: bool,
        deadline: Option<Instant>,
    ) -> MutexGuard<'a, State<J>> {
        state.waiting += 1;
        state.idle += usize::from(for_jobs);
        let delayed = state.delayed.iter().map(|(due, _)| *due).filter(|_| for_jobs);
        match delayed.chain(deadline).min() {
            Some(due) => {
                self.changed.wait_until(&mut state, due);
            }
            None => self.changed.wait(&mut state),
        }
        state.waiting -= 1;
        state.idle -= usize::from(for_jobs);
        state
    }
}

impl<J> State<J> {
    fn take(&mut self, taker: Taker, now: Instant) -> Next<J> {
        if self.stopped {
            return Next::End;
        }
        let due = self.delayed.iter().position(|(due, _)| *due <= now);
        let job = self
            .urgent
            .pop_front()
            .or_else(|| due.map(|at| self.delayed.swap_remove(at).1))
            .or_else(|| self.ready.take(taker));
        match job {
            Some(job) => {
                self.in_work += 1;
                Next::Job(job)
            }
            None if !self.open && self.in_work == 0 && self.delayed.is_empty() => Next::End,
            None => Next::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(queue: &Queue<i32>, job: i32) -> bool {
        queue.push(0, job, Duration::from_secs(1), &mut || {}).is_ok()
    }

    #[test]
    fn ends_when_nobody_works() {
        let queue = Queue::new(4);
        assert!(add(&queue, 1));
        queue.close();
        assert_eq!(queue.next(1, None), Next::Job(1));
        // The job may come back.
        assert_eq!(queue.try_next(1), Next::Nothing);
        queue.push_delayed(2, Instant::now());
        queue.done();
        assert_eq!(queue.next(1, None), Next::Job(2));
        queue.done();
        assert_eq!(queue.next(1, None), Next::End);
    }

    #[test]
    fn urgent_before_due_before_ready() {
        let queue = Queue::new(4);
        add(&queue, 3);
        queue.push_delayed(2, Instant::now());
        queue.push_urgent([1]);
        assert_eq!(queue.next(1, None), Next::Job(1));
        assert_eq!(queue.next(1, None), Next::Job(2));
        assert_eq!(queue.next(1, None), Next::Job(3));
    }

    #[test]
    fn idle_threads_count_only_while_no_job_waits() {
        let queue = Queue::new(4);
        add(&queue, 1);
        assert_eq!(queue.idle(), 0);
        assert_eq!(queue.next(1, None), Next::Job(1));
        assert_eq!(queue.idle(), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(queue.next(2, None), Next::Job(2)));
            while queue.idle() != 1 {
                std::thread::yield_now();
            }
            queue.push_urgent([2]);
            assert_eq!(queue.idle(), 0);
        });
    }

    #[test]
    fn sums_what_was_begun_and_waits() {
        let queue = Queue::new(4);
        add(&queue, 1);
        queue.push_urgent([2, 4]);
        queue.push_delayed(8, Instant::now());
        assert_eq!(queue.sum(|job| u64::from(job.unsigned_abs())), 14);
        assert_eq!(queue.next(1, None), Next::Job(2));
        assert_eq!(queue.sum(|_| u64::MAX), u64::MAX);
    }

    #[test]
    fn what_is_due_makes_no_room() {
        let queue = Queue::new(1);
        add(&queue, 1);
        queue.push_delayed(2, Instant::now());
        let (begin, mut looks) = (Instant::now(), 0);
        let mut idle = || {
            looks += 1;
            if looks == 3 {
                queue.stop();
            }
        };
        assert_eq!(queue.push(0, 3, Duration::from_millis(20), &mut idle), Err(3));
        assert!(looks == 3 && begin.elapsed() >= Duration::from_millis(40));
    }

    #[test]
    fn waits_for_what_is_delayed() {
        let queue = Queue::new(1);
        queue.push_delayed(1, Instant::now() + Duration::from_millis(20));
        queue.close();
        assert_eq!(queue.try_next(1), Next::Nothing);
        assert_eq!(queue.next(1, None), Next::Job(1));
    }

    #[test]
    fn a_full_queue_blocks_until_stopped() {
        let queue = Queue::new(1);
        assert!(add(&queue, 1));
        std::thread::scope(|scope| {
            let blocked = scope.spawn(|| add(&queue, 2));
            queue.stop();
            assert!(!blocked.join().unwrap_or(true));
        });
        assert_eq!(queue.next(1, None), Next::End);
        assert_eq!(queue.drain(), [1]);
    }
}
