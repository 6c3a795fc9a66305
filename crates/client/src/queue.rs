//! Jobs on their way from the plan to the workers: bounded, with delayed repeats.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a worker is to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<J> {
    Job(J),
    /// Nothing now; more may come.
    Nothing,
    /// All is done, or the queue was stopped.
    End,
}

/// A bounded queue that knows how many jobs are in work: it ends when the plan has ended, nothing waits and nobody
/// works, for a job in work may come back.
pub(crate) struct Queue<J> {
    state: Mutex<State<J>>,
    changed: Condvar,
    capacity: usize,
}

struct State<J> {
    /// Parts of what was begun already: before everything else.
    urgent: VecDeque<J>,
    ready: VecDeque<J>,
    delayed: Vec<(Instant, J)>,
    /// The plan still adds.
    open: bool,
    stopped: bool,
    in_work: usize,
}

impl<J> Queue<J> {
    pub(crate) fn new(capacity: usize) -> Self {
        let state = State {
            urgent: VecDeque::new(),
            ready: VecDeque::new(),
            delayed: Vec::new(),
            open: true,
            stopped: false,
            in_work: 0,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), capacity }
    }

    /// Adds a job, waiting for room; `idle` is called now and then while there is none, at least every `interval`.
    /// `false`: the queue was stopped, the job is gone.
    pub(crate) fn push(&self, job: J, interval: Duration, idle: &mut dyn FnMut()) -> bool {
        let mut state = self.lock();
        while state.ready.len() >= self.capacity && !state.stopped {
            drop(state);
            idle();
            state = self.lock();
            if state.ready.len() >= self.capacity && !state.stopped {
                state = self.wait(state, Some(Instant::now() + interval));
            }
        }
        if state.stopped {
            return false;
        }
        state.ready.push_back(job);
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Adds jobs that come before all others, without waiting for room.
    pub(crate) fn push_urgent(&self, jobs: impl IntoIterator<Item = J>) {
        self.lock().urgent.extend(jobs);
        self.changed.notify_all();
    }

    /// Adds a job that is to be done again at `due`.
    pub(crate) fn push_delayed(&self, job: J, due: Instant) {
        self.lock().delayed.push((due, job));
        self.changed.notify_all();
    }

    /// The plan has ended.
    pub(crate) fn close(&self) {
        self.lock().open = false;
        self.changed.notify_all();
    }

    /// Nothing more is to be begun.
    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// The next job; waits for one, until `deadline` where there is one. Every job taken must be given back by
    /// [`Queue::done`], after whatever it put into the queue.
    pub(crate) fn next(&self, deadline: Option<Instant>) -> Next<J> {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            match state.take(now) {
                Next::Nothing if deadline.is_some_and(|deadline| deadline <= now) => return Next::Nothing,
                Next::Nothing => state = self.wait(state, deadline),
                next => {
                    drop(state);
                    // Room for the plan; the end for the others.
                    self.changed.notify_all();
                    return next;
                }
            }
        }
    }

    /// As [`Queue::next`], without waiting.
    pub(crate) fn try_next(&self) -> Next<J> {
        let next = self.lock().take(Instant::now());
        if matches!(next, Next::Job(_)) {
            self.changed.notify_all();
        }
        next
    }

    /// A job taken is finished.
    pub(crate) fn done(&self) {
        let mut state = self.lock();
        state.in_work = state.in_work.saturating_sub(1);
        drop(state);
        self.changed.notify_all();
    }

    /// What was never begun.
    pub(crate) fn drain(&self) -> Vec<J> {
        let mut state = self.lock();
        let State { urgent, ready, delayed, .. } = &mut *state;
        urgent.drain(..).chain(ready.drain(..)).chain(delayed.drain(..).map(|(_, job)| job)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, until a delayed job is due or until `deadline`.
    fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State<J>>,
        deadline: Option<Instant>,
    ) -> MutexGuard<'a, State<J>> {
        match state.delayed.iter().map(|(due, _)| *due).chain(deadline).min() {
            Some(due) => {
                let limit = due.saturating_duration_since(Instant::now());
                self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
            }
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl<J> State<J> {
    fn take(&mut self, now: Instant) -> Next<J> {
        if self.stopped {
            return Next::End;
        }
        let due = self.delayed.iter().position(|(due, _)| *due <= now);
        let job = self
            .urgent
            .pop_front()
            .or_else(|| due.map(|at| self.delayed.swap_remove(at).1))
            .or_else(|| self.ready.pop_front());
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
        queue.push(job, Duration::from_secs(1), &mut || {})
    }

    #[test]
    fn ends_when_nobody_works() {
        let queue = Queue::new(4);
        assert!(add(&queue, 1));
        queue.close();
        assert_eq!(queue.next(None), Next::Job(1));
        // It may come back.
        assert_eq!(queue.try_next(), Next::Nothing);
        queue.push_delayed(2, Instant::now());
        queue.done();
        assert_eq!(queue.next(None), Next::Job(2));
        queue.done();
        assert_eq!(queue.next(None), Next::End);
    }

    #[test]
    fn urgent_before_due_before_ready() {
        let queue = Queue::new(4);
        add(&queue, 3);
        queue.push_delayed(2, Instant::now());
        queue.push_urgent([1]);
        assert_eq!(queue.next(None), Next::Job(1));
        assert_eq!(queue.next(None), Next::Job(2));
        assert_eq!(queue.next(None), Next::Job(3));
    }

    #[test]
    fn waits_for_what_is_delayed() {
        let queue = Queue::new(1);
        queue.push_delayed(1, Instant::now() + Duration::from_millis(20));
        queue.close();
        assert_eq!(queue.try_next(), Next::Nothing);
        assert_eq!(queue.next(None), Next::Job(1));
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
        assert_eq!(queue.next(None), Next::End);
        assert_eq!(queue.drain(), [1]);
    }
}
