//! The turn of an operation that takes its time, while it runs.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::scheduling::semaphore::{FairSemaphore, LEAST, Slow, Yielded};
use crate::session::dialogue::Permit;

/// How long it is looked how much an operation moves.
const SPAN: Duration = Duration::from_secs(2);

/// Goes on to the next session, however the operation ends.
pub(crate) struct HeldPermit<'a, T> {
    permits: &'a FairSemaphore<T>,
    /// Runs a session that has just got a permit.
    start: &'a dyn Fn(T),
    address: IpAddr,
    pace: Cell<Pace>,
    /// The operation goes on without its turn.
    aside: RefCell<Option<Arc<Yielded>>>,
}

#[derive(Clone, Copy)]
struct Pace {
    /// When so many bytes had moved.
    since: Instant,
    bytes: u64,
    /// Bytes a second in the span before; not known at the beginning.
    rate: Option<u64>,
    /// When the operation lost its turn, and how many bytes had moved.
    aside: (Instant, u64),
}

impl<'a, T> HeldPermit<'a, T> {
    /// For a permit that was acquired.
    pub(crate) fn new(permits: &'a FairSemaphore<T>, address: IpAddr, start: &'a dyn Fn(T)) -> Self {
        let now = Instant::now();
        let pace = Pace { since: now, bytes: 0, rate: None, aside: (now, 0) };
        Self { permits, start, address, pace: Cell::new(pace), aside: RefCell::new(None) }
    }
}

impl<T> Permit for HeldPermit<'_, T> {
    fn moved(&self, bytes: u64) -> ControlFlow<()> {
        let now = Instant::now();
        let mut pace = self.pace.get();
        if now.saturating_duration_since(pace.since) >= SPAN {
            pace.rate = Some(rate((pace.since, pace.bytes), (now, bytes)));
            (pace.since, pace.bytes) = (now, bytes);
        }
        self.pace.set(pace);
        let Some(last) = pace.rate else { return ControlFlow::Continue(()) };
        let mut aside = self.aside.borrow_mut();
        match &*aside {
            Some(one) if one.must_end() => return ControlFlow::Break(()),
            Some(one) if last >= LEAST && self.permits.regain(one) => *aside = None,
            // Clients that take their time let large buffers run empty before they take more.
            Some(one) => one.set_rate(rate(pace.aside, (now, bytes))),
            None if last < LEAST => match self.permits.make_way(self.address, last) {
                Slow::Keeps => {}
                Slow::Yields(one, next) => {
                    *aside = Some(one);
                    self.pace.set(Pace { aside: (now, bytes), ..pace });
                    (self.start)(next);
                }
                Slow::Ends => return ControlFlow::Break(()),
            },
            None => {}
        }
        ControlFlow::Continue(())
    }
}

/// Bytes a second.
fn rate(from: (Instant, u64), to: (Instant, u64)) -> u64 {
    let seconds = to.0.saturating_duration_since(from.0).as_secs_f64().max(0.001);
    (to.1.saturating_sub(from.1) as f64 / seconds) as u64
}

impl<T> Drop for HeldPermit<'_, T> {
    fn drop(&mut self) {
        match self.aside.get_mut() {
            Some(one) => self.permits.end_yielded(one),
            None => {
                if let Some(next) = self.permits.release(self.address) {
                    (self.start)(next);
                }
            }
        }
    }
}
