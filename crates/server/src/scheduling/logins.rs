//! Threads for log-ins: few, of lower priority than those that move data, and shared fairly among
//! addresses.

use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use ropewalk_engine::Pool;

use crate::host::throttle::network;
use crate::scheduling::fair_queue::FairQueue;

/// With this nice value the threads get about a third of the share of a transfer that competes for
/// the processor.
const NICE: i32 = 5;

type Job = Box<dyn FnOnce() + Send>;

/// Runs the steps of log-ins that take processor time: handshakes and password checks. Addresses
/// take turns, so that an address with very many steps does not make others wait for more than one
/// of them.
pub(crate) struct Logins {
    pool: Pool,
    waiting: Arc<Mutex<FairQueue<Job>>>,
}

impl Logins {
    pub(crate) fn new(threads: usize) -> Self {
        Self { pool: Pool::new("login", threads), waiting: Arc::default() }
    }

    /// Runs `job` when it is the turn of `address`. This only fails if there is no thread at all;
    /// the job is dropped then.
    pub(crate) fn spawn(&self, address: IpAddr, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let address = network(address);
        self.waiting.lock().push(address, Box::new(job));
        let waiting = Arc::clone(&self.waiting);
        let next = move || {
            make_way();
            let next = waiting.lock().pop(|_| true);
            if let Some((_, job)) = next {
                job();
            }
        };
        self.pool.spawn(next).inspect_err(|_| {
            // There was no thread before, so no other job waits.
            drop(self.waiting.lock().pop(|_| true));
        })
    }

    /// Whether no further step of `address` should start: at least `most` steps wait, and no
    /// address has more of them. 0: no limit.
    pub(crate) fn is_crowded(&self, address: IpAddr, most: u32) -> bool {
        most > 0 && self.waiting.lock().is_crowded(network(address), most as usize)
    }
}

/// Lowers the priority of this thread, once.
fn make_way() {
    thread_local!(static DONE: Cell<bool> = const { Cell::new(false) });
    if !DONE.replace(true) {
        let thread = Some(rustix::thread::gettid());
        // A server with an even lower priority keeps it. If this fails, the threads work with the
        // usual priority.
        if rustix::process::getpriority_process(thread).is_ok_and(|nice| nice < NICE) {
            let _ = rustix::process::setpriority_process(thread, NICE);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const FLOOD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn login_steps_of_addresses_alternate() {
        let logins = Logins::new(1);
        let (gate, closed) = mpsc::channel::<()>();
        let (sender, done) = mpsc::channel();
        logins.spawn(FLOOD, move || closed.recv().unwrap()).unwrap();
        for n in 0..50 {
            let sender = sender.clone();
            logins.spawn(FLOOD, move || sender.send((FLOOD, n)).unwrap()).unwrap();
        }
        for n in 0..2 {
            let sender = sender.clone();
            logins.spawn(OTHER, move || sender.send((OTHER, n)).unwrap()).unwrap();
        }
        gate.send(()).unwrap();
        let order: Vec<_> = (0..52).map(|_| done.recv_timeout(PATIENCE).unwrap()).collect();
        let place = |wanted| order.iter().position(|&one| one == wanted).unwrap();
        // The thread may have taken the first step before the other jobs were added.
        assert!(place((OTHER, 0)) <= 2 && place((OTHER, 1)) <= 4, "{order:?}");
        assert!(order.iter().filter(|one| one.0 == FLOOD).map(|one| one.1).is_sorted());
        assert_eq!(logins.waiting.lock().len(), 0);
    }

    #[test]
    fn login_threads_after_panic_run_other_steps() {
        let logins = Logins::new(1);
        let (sender, done) = mpsc::channel();
        logins.spawn(FLOOD, || panic!("on purpose")).unwrap();
        logins.spawn(FLOOD, move || sender.send(()).unwrap()).unwrap();
        done.recv_timeout(PATIENCE).unwrap();
    }

    #[test]
    fn login_thread_runs_with_lower_priority() {
        let logins = Logins::new(1);
        let (sender, done) = mpsc::channel();
        let nice = || rustix::process::getpriority_process(Some(rustix::thread::gettid())).unwrap();
        logins.spawn(OTHER, move || sender.send(nice()).unwrap()).unwrap();
        assert_eq!(done.recv_timeout(PATIENCE).unwrap(), NICE.max(nice()));
    }
}
