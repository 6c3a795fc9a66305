//! The coordinating thread's waiting: for sockets, its own threads, its attendant and the clock at
//! once.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_transport::{Listener, Readiness, Wait, timespec};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::wire::TIME_LIMIT;
use crate::{Attendant, Progress, Stage};

/// Attendants are promised a tick every 250 ms.
const TICK: Duration = TIME_LIMIT;
/// While data flows, the descriptors need not be polled more often.
const GLANCE: Duration = Duration::from_millis(2);

pub(crate) struct Watch<'a> {
    attendant: &'a mut dyn Attendant,
    pub(crate) progress: &'a Progress,
    pub(crate) control: Arc<Control>,
    /// Has connections whose handshakes are not complete.
    listener: Option<&'a dyn Listener>,
    stall_timeout: Option<Duration>,
    /// Waiting for a source or a destination is no stall.
    patient: bool,
    ticked: Instant,
    polled: Instant,
    moved: u64,
    moved_at: Instant,
    begun: bool,
    /// Why a [`Wait`] failed.
    failure: Option<Error>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(
        attendant: &'a mut dyn Attendant,
        progress: &'a Progress,
        control: &Arc<Control>,
        listener: Option<&'a dyn Listener>,
        stall_timeout: Option<Duration>,
        patient: bool,
    ) -> Self {
        control.begin();
        let now = Instant::now();
        Self {
            attendant,
            progress,
            control: Arc::clone(control),
            listener,
            stall_timeout,
            patient,
            ticked: now,
            polled: now,
            moved: control.moved(),
            moved_at: now,
            begun: false,
            failure: None,
        }
    }

    /// Reports once that the first data connection is up.
    pub(crate) fn begun(&mut self, reused: bool) -> Result<()> {
        if self.begun {
            return Ok(());
        }
        self.begun = true;
        self.attendant.begun(reused).map_err(Error::Attendant)?;
        self.moved_at = Instant::now();
        Ok(())
    }

    pub(crate) fn receiver_ready(&self) -> bool {
        self.attendant.receiver_ready()
    }

    /// Whether the peer has said that it waits for something else than this end.
    pub(crate) fn is_excused(&mut self) -> bool {
        self.attendant.is_excused()
    }

    /// Between two blocks: what is due by the clock, and from time to time the descriptors, without
    /// waiting for them. `ready` gets the indices of `interests` that can be served.
    pub(crate) fn check(&mut self, interests: &[Readiness<'_>], ready: &mut Vec<usize>) -> Result<()> {
        ready.clear();
        let now = self.pulse()?;
        if now.duration_since(self.polled) < GLANCE
            || interests.is_empty() && self.attendant.watch().is_none()
        {
            return Ok(());
        }
        self.polled = now;
        self.poll(interests, Duration::ZERO, ready)
    }

    /// Waits until one of `interests` can be served, another thread calls [`Control::wake`], or at
    /// most to the next tick or the deadline.
    pub(crate) fn wait(
        &mut self,
        interests: &[Readiness<'_>],
        deadline: Option<Instant>,
        ready: &mut Vec<usize>,
    ) -> Result<()> {
        ready.clear();
        let now = self.pulse()?;
        if self.attendant.waits().is_break() {
            return Err(Error::Aborted);
        }
        let mut until = self.ticked + TICK;
        if let Some(deadline) = deadline {
            until = until.min(deadline);
        }
        self.poll(interests, until.saturating_duration_since(now), ready)?;
        self.polled = self.pulse()?;
        Ok(())
    }

    /// Waits for one connection.
    pub(crate) fn wait_for(&mut self, connection: Readiness<'_>) -> Result<()> {
        let began = Instant::now();
        let result = Self::wait(self, &[connection], None, &mut Vec::new());
        self.progress.add_time(Stage::Network, began.elapsed());
        result
    }

    /// Waits for what is read from or written to besides the network.
    pub(crate) fn wait_for_store(
        &mut self,
        descriptor: BorrowedFd<'_>,
        events: PollFlags,
        stage: Stage,
    ) -> Result<()> {
        let began = Instant::now();
        if self.patient {
            self.excuse();
        }
        let result = Self::wait(self, &[(descriptor, events)], None, &mut Vec::new());
        self.progress.add_time(stage, began.elapsed());
        result
    }

    /// It was not for the network that nothing moved until now.
    pub(crate) fn excuse(&mut self) {
        self.moved_at = Instant::now();
        self.attendant.excused(self.progress);
    }

    /// Ticks, stalls and breaking off. Returns the time.
    pub(crate) fn pulse(&mut self) -> Result<Instant> {
        if self.control.is_broken() {
            return Err(Error::Aborted);
        }
        let now = Instant::now();
        if now.duration_since(self.ticked) < TICK {
            return Ok(now);
        }
        self.ticked = now;
        ropewalk_transport::log_refused();
        // A transfer that needs no further connection accepts none.
        if let Some(listener) = self.listener {
            listener.close_late();
        }
        if self.attendant.tick(self.progress).is_break() {
            return Err(Error::Aborted);
        }
        let moved = self.control.moved();
        if moved != self.moved || self.attendant.is_excused() {
            (self.moved, self.moved_at) = (moved, now);
        } else if let Some(limit) = self.stall_timeout
            && self.begun
            && now.duration_since(self.moved_at) >= limit
        {
            return Err(Error::Stalled { after: limit });
        }
        Ok(now)
    }

    fn poll(&mut self, interests: &[Readiness<'_>], timeout: Duration, ready: &mut Vec<usize>) -> Result<()> {
        let wake = self.control.wake_event();
        let watched = self.attendant.watch();
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(interests.len() + 2);
        fds.extend(interests.iter().map(|(fd, events)| PollFd::from_borrowed_fd(*fd, *events)));
        let mut wake_at = None;
        if self.control.wakes() {
            wake_at = Some(fds.len());
            fds.push(PollFd::from_borrowed_fd(wake.fd().map_err(Error::system("eventfd"))?, PollFlags::IN));
        }
        let watch_at = fds.len();
        fds.extend(watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        match rustix::event::poll(&mut fds, Some(&timespec(timeout))) {
            Ok(0) | Err(Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(e) => return Err(Error::system("poll")(e.into())),
        }
        ready.extend((0..interests.len()).filter(|&i| !fds[i].revents().is_empty()));
        let input = fds.get(watch_at).is_some_and(|fd| !fd.revents().is_empty());
        if wake_at.is_some_and(|at| !fds[at].revents().is_empty()) {
            wake.clear();
        }
        drop(fds);
        if input && self.attendant.readable().is_break() {
            return Err(Error::Aborted);
        }
        Ok(())
    }

    /// The reason for which a [`Wait`] of this watch failed, instead of what the driver made of it.
    pub(crate) fn failure(&mut self) -> Option<Error> {
        self.failure.take()
    }
}

impl Wait for Watch<'_> {
    fn wait(&mut self, fd: BorrowedFd<'_>, events: PollFlags, deadline: Instant) -> io::Result<bool> {
        let mut ready = Vec::new();
        loop {
            if let Err(e) = Self::wait(self, &[(fd, events)], Some(deadline), &mut ready) {
                self.failure = Some(e);
                return Err(io::ErrorKind::Interrupted.into());
            }
            if !ready.is_empty() {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
        }
    }
}
