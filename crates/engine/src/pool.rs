//! Threads that are reused.

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

type Job = Box<dyn FnOnce() + Send>;

/// How long a thread waits for its next job before it ends.
const IDLE_TIME: Duration = Duration::from_secs(5);

/// A pool of threads that grows as needed up to a limit and shrinks when idle. A job that panics
/// affects no other job.
///
/// Dropping the pool lets the jobs that were spawned finish, and does not wait for them.
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    limit: usize,
    idle_time: Duration,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Pool {
    /// A pool of at most `limit` threads, which show up as `name` in the system's tools.
    pub fn new(name: &str, limit: usize) -> Self {
        Self::with_idle_time(name, limit, IDLE_TIME)
    }

    /// Like [`Pool::new`], with threads that end after `idle_time` without a job.
    pub fn with_idle_time(name: &str, limit: usize, idle_time: Duration) -> Self {
        let shared = Shared {
            name: name.to_owned(),
            limit: limit.max(1),
            idle_time,
            state: Mutex::default(),
            work: Condvar::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Runs `job` on a thread of the pool, at once or, when all are busy and there may be no more,
    /// later. Fails only where the system gives no thread at all; the job is then dropped.
    ///
    /// # Errors
    /// That of the system, which gave no thread.
    pub fn spawn(&self, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut state = self.shared.lock();
        let failure = match self.room(&mut state) {
            Room::Idle => None,
            Room::New => self.grow(&mut state).err(),
            Room::Full => None,
        };
        match failure {
            Some(e) if state.threads == 0 => return Err(e),
            _ => state.queue.push_back(Box::new(job)),
        }
        drop(state);
        self.shared.work.notify_one();
        Ok(())
    }

    /// Runs `job` where a thread is to be had at once; otherwise gives it back.
    ///
    /// # Errors
    /// `job`, where all threads are busy and there is no further one.
    pub fn try_spawn<F: FnOnce() + Send + 'static>(&self, job: F) -> Result<(), F> {
        let mut job = Some(job);
        self.try_enqueue(|| job.take().map(|job| Box::new(job) as Job));
        job.map_or(Ok(()), Err)
    }

    /// Calls `job` where a thread is to be had at once, and runs what it gives.
    fn try_enqueue(&self, job: impl FnOnce() -> Option<Job>) {
        let mut state = self.shared.lock();
        let available = match self.room(&mut state) {
            Room::Idle => true,
            Room::New => self.grow(&mut state).is_ok(),
            Room::Full => false,
        };
        if available {
            state.queue.extend(job());
            drop(state);
            self.shared.work.notify_one();
        }
    }

    /// Lets `f` spawn jobs that borrow from here; returns when all of them have ended.
    pub fn scope<'env, R>(&self, f: impl FnOnce(&Scope<'_, 'env>) -> R) -> R {
        let scope = Scope { pool: self, running: Arc::default(), env: PhantomData };
        // Waits in its destructor, so also where `f` panics.
        let waiting = WaitForAll(&scope.running);
        let result = f(&scope);
        drop(waiting);
        result
    }

    /// Threads that exist now.
    pub fn threads(&self) -> usize {
        self.shared.lock().threads
    }

    fn room(&self, state: &mut State) -> Room {
        if state.idle > state.queue.len() {
            Room::Idle
        } else if state.threads < self.shared.limit {
            Room::New
        } else {
            Room::Full
        }
    }

    fn grow(&self, state: &mut State) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        // The kernel keeps 15 bytes of a name.
        thread::Builder::new().name(self.shared.name.clone()).spawn(move || {
            ropewalk_storage::thread_starts();
            shared.work();
        })?;
        state.threads += 1;
        // It has a job as good as taken: the next `spawn` must not count on it, nor this one's
        // queue entry on another.
        state.idle += 1;
        Ok(())
    }
}

enum Room {
    Idle,
    New,
    Full,
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The work of a thread. `State::idle` counts the thread from before it runs.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                state.idle -= 1;
                drop(state);
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    tracing::error!(pool = self.name, "a job panicked");
                }
                state = self.lock();
                state.idle += 1;
                continue;
            }
            if state.closed {
                break;
            }
            let wait = self.work.wait_for(&mut state, self.idle_time);
            if wait.timed_out() && state.queue.is_empty() {
                break;
            }
        }
        state.idle -= 1;
        state.threads -= 1;
    }
}

/// Where jobs that borrow can be spawned, see [`Pool::scope`].
pub struct Scope<'pool, 'env> {
    pool: &'pool Pool,
    running: Arc<Running>,
    /// Invariant, as in `std::thread::Scope`.
    env: PhantomData<&'env mut &'env ()>,
}

#[derive(Default)]
struct Running {
    count: Mutex<usize>,
    none: Condvar,
}

impl<'env> Scope<'_, 'env> {
    /// Runs `job` with `value` where a thread is to be had at once; otherwise gives the value back.
    ///
    /// # Errors
    /// `value`, where all threads are busy and there is no further one.
    pub fn try_spawn<T: Send + 'env>(&self, value: T, job: impl FnOnce(T) + Send + 'env) -> Result<(), T> {
        let mut value = Some(value);
        self.pool.try_enqueue(|| {
            *self.running.lock() += 1;
            let guard = RunningGuard(Arc::clone(&self.running));
            let task = Task { job, value: value.take()?, _guard: guard };
            let task: Box<dyn FnOnce() + Send + 'env> = Box::new(move || task.run());
            // SAFETY: the two types differ in the lifetime only. `Pool::scope` does not return
            // before every `RunningGuard` is dropped, and a task, run or not, drops its guard after
            // all that borrows from `'env`.
            Some(unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + 'env>, Job>(task) })
        });
        value.map_or(Ok(()), Err)
    }
}

/// Fields are dropped in order: the guard last.
struct Task<T, F> {
    job: F,
    value: T,
    _guard: RunningGuard,
}

impl<T, F: FnOnce(T)> Task<T, F> {
    fn run(self) {
        let Self { job, value, _guard } = self;
        job(value);
    }
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.count.lock()
    }
}

struct RunningGuard(Arc<Running>);

impl Drop for RunningGuard {
    fn drop(&mut self) {
        let mut count = self.0.lock();
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}

struct WaitForAll<'a>(&'a Running);

impl Drop for WaitForAll<'_> {
    fn drop(&mut self) {
        let mut count = self.0.lock();
        while *count > 0 {
            self.0.none.wait(&mut count);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn reuses_threads_and_survives_a_panic() {
        let pool = Pool::new("test", 1);
        let (sender, receiver) = mpsc::channel();
        pool.spawn(|| panic!("on purpose")).unwrap();
        for i in 0..3 {
            let sender = sender.clone();
            pool.spawn(move || sender.send((i, thread::current().id())).unwrap()).unwrap();
        }
        let first = receiver.recv_timeout(PATIENCE).unwrap();
        assert_eq!(first.0, 0);
        assert_eq!(receiver.recv_timeout(PATIENCE).unwrap(), (1, first.1));
        assert_eq!(receiver.recv_timeout(PATIENCE).unwrap(), (2, first.1));
        assert_eq!(pool.threads(), 1);
    }

    #[test]
    fn idle_threads_end() {
        let pool = Pool::with_idle_time("test", 4, Duration::from_millis(1));
        pool.spawn(|| {}).unwrap();
        let began = Instant::now();
        while pool.threads() > 0 {
            assert!(began.elapsed() < PATIENCE);
            thread::yield_now();
        }
        let (sender, receiver) = mpsc::channel();
        pool.spawn(move || sender.send(()).unwrap()).unwrap();
        receiver.recv_timeout(PATIENCE).unwrap();
    }

    #[test]
    fn gives_a_job_back_when_full() {
        let pool = Pool::new("test", 1);
        let (release, wait) = mpsc::channel::<()>();
        let (sender, receiver) = mpsc::channel();
        assert!(pool.try_spawn(move || assert!(wait.recv().is_ok())).is_ok());
        assert!(pool.try_spawn(|| {}).is_err());
        pool.spawn(move || sender.send(()).unwrap()).unwrap();
        release.send(()).unwrap();
        receiver.recv_timeout(PATIENCE).unwrap();
    }

    #[test]
    fn a_scope_waits_for_its_jobs() {
        let pool = Pool::new("test", 3);
        let mut values = [0; 3];
        pool.scope(|scope| {
            for value in &mut values {
                assert!(scope.try_spawn(value, |value| *value = 1).is_ok());
            }
        });
        assert_eq!(values, [1; 3]);
    }

    #[test]
    fn a_panic_in_a_scope_leaves_the_others_alone() {
        let pool = Pool::new("test", 2);
        let mut done = false;
        pool.scope(|scope| {
            assert!(scope.try_spawn((), |()| panic!("on purpose")).is_ok());
            assert!(scope.try_spawn(&mut done, |done| *done = true).is_ok());
        });
        assert!(done);
    }
}
