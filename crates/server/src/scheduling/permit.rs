//! The permit of a running operation that can take long.
//!
//! It lives on the thread of the operation. While other sessions wait, an operation that moves too
//! little loses its permit; it may continue without it, or has to end. Dropping the permit starts
//! the session that gets it next.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::scheduling::semaphore::{FairSemaphore, Granted, Holder, LEAST, Slow, Yielded};
use crate::session::dialogue::Permit;

/// The interval over which the rate of an operation is measured.
const SPAN: Duration = Duration::from_secs(2);

/// Releases the permit when it is dropped, and starts the next session.
pub(crate) struct HeldPermit<'a, T> {
    permits: &'a FairSemaphore<T>,
    /// Runs a session that has just got a permit.
    start: &'a dyn Fn(Granted<T>),
    address: IpAddr,
    holder: RefCell<Holder>,
    pace: Cell<Pace>,
    /// Set while the operation continues without its permit.
    yielded: RefCell<Option<Arc<Yielded>>>,
}

#[derive(Clone, Copy)]
struct Pace {
    /// The time at which `bytes` bytes had moved.
    since: Instant,
    bytes: u64,
    /// Bytes per second in the last interval; unknown at the beginning.
    rate: Option<u64>,
    /// The time at which the operation lost its permit, and the bytes that had moved by then.
    yielded: (Instant, u64),
}

impl<'a, T> HeldPermit<'a, T> {
    /// For a permit that was acquired.
    pub(crate) fn new(
        permits: &'a FairSemaphore<T>,
        address: IpAddr,
        holder: Holder,
        start: &'a dyn Fn(Granted<T>),
    ) -> Self {
        let now = Instant::now();
        let pace = Pace { since: now, bytes: 0, rate: None, yielded: (now, 0) };
        let (pace, holder) = (Cell::new(pace), RefCell::new(holder));
        Self { permits, start, address, holder, pace, yielded: RefCell::new(None) }
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
        let mut yielded = self.yielded.borrow_mut();
        match &*yielded {
            Some(one) if one.must_end() => return ControlFlow::Break(()),
            Some(one)
                if last >= LEAST
                    && let Some(holder) = self.permits.regain(one) =>
            {
                *self.holder.borrow_mut() = holder;
                *yielded = None;
            }
            // The rate since the permit was lost: slow clients let large buffers run empty before
            // they take more, so a short interval says little.
            Some(one) => one.set_rate(rate(pace.yielded, (now, bytes))),
            None if last < LEAST => match self.permits.make_way(self.address, &self.holder.borrow(), last) {
                Slow::Keeps => {}
                Slow::Yields(one, next) => {
                    *yielded = Some(one);
                    self.pace.set(Pace { yielded: (now, bytes), ..pace });
                    if let Some(next) = next {
                        (self.start)(next);
                    }
                }
                Slow::Ends => return ControlFlow::Break(()),
            },
            None => {}
        }
        ControlFlow::Continue(())
    }
}

/// Bytes per second.
fn rate(from: (Instant, u64), to: (Instant, u64)) -> u64 {
    let seconds = to.0.saturating_duration_since(from.0).as_secs_f64().max(0.001);
    (to.1.saturating_sub(from.1) as f64 / seconds) as u64
}

impl<T> Drop for HeldPermit<'_, T> {
    fn drop(&mut self) {
        match self.yielded.get_mut() {
            Some(one) => self.permits.end_yielded(one),
            None => {
                if let Some(next) = self.permits.release(self.holder.get_mut()) {
                    (self.start)(next);
                }
            }
        }
    }
}
