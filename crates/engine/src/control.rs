//! The state that the threads of a data channel share: whether to continue, and how to wake them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use ropewalk_transport::{Breaker, Wait, WaitAlone};
use rustix::event::{EventfdFlags, PollFlags};

use crate::allowance::GrantedRate;
use crate::bandwidth::{Bandwidth, LOOK_AGAIN};

/// Lives as long as its data channel.
#[derive(Default)]
pub(crate) struct Control {
    /// Broken off from outside: for good.
    broken: AtomicBool,
    /// The transfer under way has failed: its threads should end.
    stop: AtomicBool,
    /// Payload bytes that went through sockets, for the detection of stalls.
    moved: AtomicU64,
    breakers: Mutex<Registry>,
    wake: Event,
    /// Another thread may call [`Control::wake`]; otherwise no thread waits for it.
    wakes: AtomicBool,
    stopped: Event,
    /// The limit on the rate of all streams together.
    bandwidth: Option<Arc<Bandwidth>>,
    /// The bytes that another process grants to all streams together.
    granted: Option<Arc<GrantedRate>>,
}

#[derive(Default)]
struct Registry {
    next: u64,
    entries: Vec<(u64, Breaker)>,
}

impl Control {
    pub(crate) fn new(bandwidth: Option<Arc<Bandwidth>>, granted: Option<Arc<GrantedRate>>) -> Self {
        Self { bandwidth, granted, ..Self::default() }
    }

    /// True when the threads of a transfer should end.
    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.is_broken()
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
            || self.granted.as_ref().is_some_and(|granted| granted.has_ended())
    }

    /// Ends all that goes on, for good.
    pub(crate) fn break_off(&self) {
        self.broken.store(true, Ordering::SeqCst);
        self.stop();
    }

    /// Ends the transfer under way: breaks every connection, so that no thread stays blocked.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        let breakers: Vec<Breaker> = self.registry().entries.iter().map(|(_, b)| b.clone()).collect();
        for breaker in breakers {
            breaker.break_off();
        }
        self.stopped.signal();
        self.wake.signal();
    }

    /// Ends what the threads of the transfer under way wait for, and lets them end by themselves:
    /// no connection is broken off, so the peer does not see it yet.
    pub(crate) fn wind_up(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.stopped.signal();
        self.wake.signal();
    }

    /// A new transfer begins; no thread of the last one is left.
    pub(crate) fn begin(&self) {
        self.stop.store(false, Ordering::SeqCst);
        self.wake.clear();
        if !self.is_broken() {
            self.stopped.clear();
        }
    }

    /// Has `breaker` called when the transfer is broken off, until the registration is dropped.
    pub(crate) fn register(self: &Arc<Self>, breaker: Breaker) -> Registration {
        let id = {
            let mut registry = self.registry();
            registry.next += 1;
            let id = registry.next;
            registry.entries.push((id, breaker.clone()));
            id
        };
        if self.stopping() {
            breaker.break_off();
        }
        Registration { control: Arc::clone(self), id }
    }

    /// Permits the caller to move up to `most` bytes, as soon as they are granted. `None`: the
    /// transfer stops.
    pub(crate) fn permit(&self, most: usize) -> Option<Permitted<'_>> {
        let most = self.at_once(most);
        let Some(granted) = &self.granted else {
            return Some(Permitted { control: self, bytes: most, waited: Duration::ZERO });
        };
        let (taken, waited) = granted.take(most as u64, || self.stopping())?;
        Some(Permitted { control: self, bytes: usize::try_from(taken).unwrap_or(most), waited })
    }

    /// So many bytes went through a socket. Returns when the limit on the rate allows more, or when
    /// the transfer stops: how long that took.
    fn add_moved(&self, n: u64) -> Duration {
        self.moved.fetch_add(n, Ordering::Relaxed);
        let Some(bandwidth) = &self.bandwidth else { return Duration::ZERO };
        let Some(mark) = bandwidth.charge(n) else { return Duration::ZERO };
        let began = Instant::now();
        while !self.stopping()
            && let Some(until) = bandwidth.due(mark)
        {
            let now = Instant::now();
            let until = until.min(now + LOOK_AGAIN);
            let waited = self.stopped.fd().and_then(|fd| WaitAlone.wait(fd, PollFlags::IN, until));
            if waited.is_err() {
                std::thread::sleep(until.saturating_duration_since(now));
            }
        }
        let held = began.elapsed();
        bandwidth.add_held(held);
        held
    }

    /// Of `most` bytes, those to move at a time.
    pub(crate) fn at_once(&self, most: usize) -> usize {
        self.bandwidth.as_ref().and_then(|bandwidth| bandwidth.at_once()).map_or(most, |n| most.min(n))
    }

    /// The lowest limit on the rate of all streams together, in bytes per second.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.bandwidth.as_ref()?.limit()
    }

    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Wakes the coordinating thread, which has something to look at.
    pub(crate) fn wake(&self) {
        self.wake.signal();
    }

    /// Announces that [`Control::wake`] or [`Control::break_off`] may be called from another thread
    /// from now on.
    pub(crate) fn expect_wakes(&self) {
        self.wakes.store(true, Ordering::Relaxed);
    }

    pub(crate) fn wakes(&self) -> bool {
        self.wakes.load(Ordering::Relaxed)
    }

    pub(crate) fn wake_event(&self) -> &Event {
        &self.wake
    }

    /// Readable when [`Self::stopping`].
    pub(crate) fn stop_event(&self) -> &Event {
        &self.stopped
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.breakers.lock()
    }
}

/// Bytes that one thread may move. Those that it does not move are for others when this is dropped.
pub(crate) struct Permitted<'a> {
    control: &'a Control,
    bytes: usize,
    /// How long it took until they were granted.
    waited: Duration,
}

impl Permitted<'_> {
    /// At least one, unless none were wanted.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// So many bytes went through a socket. Returns when the limit on the rate allows more, or when
    /// the transfer stops: how long the limit held the thread up.
    pub(crate) fn moved(mut self, n: usize) -> Duration {
        let taken = std::mem::take(&mut self.bytes);
        if let Some(granted) = &self.control.granted {
            granted.moved(taken as u64, n as u64);
        }
        self.waited + self.control.add_moved(n as u64)
    }
}

impl Drop for Permitted<'_> {
    fn drop(&mut self) {
        if let Some(granted) = self.control.granted.as_ref().filter(|_| self.bytes > 0) {
            granted.moved(self.bytes as u64, 0);
        }
    }
}

/// See [`Control::register`].
pub(crate) struct Registration {
    control: Arc<Control>,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut registry = self.control.registry();
        if let Some(at) = registry.entries.iter().position(|(id, _)| *id == self.id) {
            registry.entries.swap_remove(at);
        }
    }
}

/// A flag that `poll` can wait for. Its descriptor is made when a thread first waits for it: most
/// channels need none.
#[derive(Default)]
pub(crate) struct Event {
    set: AtomicBool,
    fd: OnceLock<OwnedFd>,
}

impl Event {
    pub(crate) fn signal(&self) {
        self.set.store(true, Ordering::SeqCst);
        if let Some(fd) = self.fd.get() {
            // Fails only where the counter is at its maximum: then it is readable anyway.
            let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
        }
    }

    pub(crate) fn clear(&self) {
        self.set.store(false, Ordering::SeqCst);
        if let Some(fd) = self.fd.get() {
            // Fails where there was nothing to read.
            let _ = rustix::io::read(fd, &mut [0_u8; 8]);
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::SeqCst)
    }

    /// A descriptor that is readable while the flag is set.
    pub(crate) fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(fd) = self.fd.get() {
            return Ok(fd.as_fd());
        }
        let made = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let fd = self.fd.get_or_init(|| made);
        if self.is_set() {
            // Signalled before the descriptor was there.
            let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
        }
        Ok(fd.as_fd())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::{Duration, Instant};

    use ropewalk_transport::{Wait, WaitAlone};
    use rustix::event::PollFlags;

    use super::*;

    fn readable(event: &Event) -> bool {
        WaitAlone.wait(event.fd().unwrap(), PollFlags::IN, Instant::now()).unwrap()
    }

    #[test]
    fn an_event_can_be_waited_for_whenever_it_was_signalled() {
        let event = Event::default();
        event.signal();
        assert!(readable(&event));
        event.clear();
        assert!(!readable(&event));
        event.signal();
        event.signal();
        assert!(event.is_set() && readable(&event));
        event.clear();
        assert!(!event.is_set() && !readable(&event));
    }

    #[test]
    fn control_that_stops_ends_the_wait_for_the_limit() {
        let bandwidth = Arc::new(Bandwidth::new(&1.into()));
        let control = Arc::new(Control::new(Some(bandwidth.clone()), None));
        let waiting = {
            let control = Arc::clone(&control);
            std::thread::spawn(move || control.add_moved(1 << 40))
        };
        while control.moved() == 0 {
            std::thread::yield_now();
        }
        control.stop();
        assert_eq!(waiting.join().unwrap(), bandwidth.held());
        assert_eq!((control.at_once(1 << 20), Control::default().at_once(1 << 20)), (16 << 10, 1 << 20));
    }

    #[test]
    fn what_is_registered_is_broken_off_once_it_is_too_late() {
        let control = Arc::new(Control::default());
        let hits = Arc::new(AtomicU64::new(0));
        let breaker = {
            let hits = Arc::clone(&hits);
            Breaker::new(move || {
                hits.fetch_add(1, Ordering::SeqCst);
            })
        };
        let kept = control.register(breaker.clone());
        drop(control.register(breaker.clone()));
        control.stop();
        assert_eq!(hits.load(Ordering::SeqCst), 1);
        let late = control.register(breaker);
        assert_eq!(hits.load(Ordering::SeqCst), 2);
        control.begin();
        assert!(!control.stopping());
        control.break_off();
        assert_eq!(hits.load(Ordering::SeqCst), 4);
        control.begin();
        assert!(control.stopping() && readable(control.stop_event()));
        drop((kept, late));
        assert!(
            WaitAlone
                .wait(
                    control.wake_event().fd().unwrap(),
                    PollFlags::IN,
                    Instant::now() + Duration::from_millis(1)
                )
                .is_ok()
        );
    }
}
