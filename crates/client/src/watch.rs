//! Looking after a transfer while its data moves: replies on the control connection, progress, stalls, Ctrl-C.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use bstr::BString;
use ropewalk_engine::{Attendant, Parallelism, Progress};

use crate::control::{Answer, Control};
use crate::report::Meter;
use crate::straggler::{Idle, Straggler};
use crate::tune::Wanted;
use crate::{Cancel, RemoteError, StallLimit};

/// What an answer that came during a transfer means for it.
pub(crate) type Judge<'w> = dyn FnMut(Answer) -> ControlFlow<()> + 'w;

/// So many answers are taken at a time.
pub(crate) const AT_ONCE: usize = 4096;

/// Between two checkpoints, as between two restart markers that we ask a server for.
const CHECKPOINTS: Duration = Duration::from_secs(1);

struct Checkpoints<'w> {
    secure: &'w dyn Fn() -> Result<(), RemoteError>,
    last: Instant,
}

impl Checkpoints<'_> {
    fn due(&mut self) -> Result<(), RemoteError> {
        if self.last.elapsed() < CHECKPOINTS {
            return Ok(());
        }
        let done = (self.secure)();
        // A slow disk is not to be kept busy with nothing else.
        self.last = Instant::now();
        done
    }
}

/// The engine's [`Attendant`] of a client's transfer.
pub(crate) struct Watch<'w, 'r> {
    control: &'w mut Control,
    judge: &'w mut Judge<'w>,
    meter: Option<&'w mut Meter<'r>>,
    stall: Stall,
    cancel: &'w Cancel,
    path: BString,
    checkpoints: Option<Checkpoints<'w>>,
    streams: Option<(&'w Wanted, Parallelism)>,
    straggler: Option<(Straggler, &'w dyn Fn() -> Option<Idle>)>,
    moves: Option<&'w dyn Fn(u64) -> bool>,
    /// Why the transfer was broken off by us; `None` where a reply broke it off.
    pub failure: Option<RemoteError>,
}

impl<'w, 'r> Watch<'w, 'r> {
    pub(crate) fn new(
        control: &'w mut Control,
        judge: &'w mut Judge<'w>,
        meter: Option<&'w mut Meter<'r>>,
        stall: Option<StallLimit>,
        cancel: &'w Cancel,
        path: BString,
    ) -> Self {
        let stall = Stall::new(stall);
        Self {
            control,
            judge,
            meter,
            stall,
            cancel,
            path,
            checkpoints: None,
            streams: None,
            straggler: None,
            moves: None,
            failure: None,
        }
    }

    /// Has what arrived put on stable storage by `secure`, every so often; the transfer fails where that fails.
    pub(crate) fn secured(mut self, secure: &'w dyn Fn() -> Result<(), RemoteError>) -> Self {
        self.checkpoints = Some(Checkpoints { secure, last: Instant::now() });
        self
    }

    /// Tells the server, which sends, how many streams it should use, whenever that changes.
    pub(crate) fn streams(mut self, wanted: &'w Wanted, ours: Parallelism) -> Self {
        self.streams = Some((wanted, ours));
        self
    }

    /// Breaks the transfer off when it is slow while `idle` sessions could take over what is missing.
    pub(crate) fn yielding(
        mut self,
        straggler: Option<Straggler>,
        idle: &'w dyn Fn() -> Option<Idle>,
    ) -> Self {
        self.straggler = straggler.map(|straggler| (straggler, idle));
        self
    }

    /// Breaks the transfer off when `moves` is true of the bytes that have arrived: what is missing
    /// comes over another driver.
    pub(crate) fn moving(mut self, moves: &'w dyn Fn(u64) -> bool) -> Self {
        self.moves = Some(moves);
        self
    }

    fn should_yield(&mut self, progress: &Progress) -> bool {
        let Some((straggler, idle)) = &mut self.straggler else { return false };
        straggler.should_yield(Instant::now(), progress.bytes(), idle)
    }

    fn tell_streams(&mut self) -> Result<(), RemoteError> {
        let Some((wanted, ours)) = &self.streams else { return Ok(()) };
        // Where we are the ones to connect: fewer before the server, so that no stream that leaves is taken for one that is
        // missing; more when the server has said how many it takes.
        if let Some(granted) = self.control.take_granted() {
            ours.set(granted.min(wanted.get()));
        }
        let Some(streams) = wanted.news() else { return Ok(()) };
        ours.set(streams.min(ours.get()));
        self.control.set_streams(streams)
    }

    fn replies(&mut self) -> ControlFlow<()> {
        // A peer that goes on without end must not keep this from the rest: what is left comes with the next tick.
        for _ in 0..AT_ONCE {
            match self.control.try_answer() {
                Ok(Some(answer)) => (self.judge)(answer)?,
                Ok(None) => break,
                Err(e) => {
                    self.failure = Some(e);
                    return ControlFlow::Break(());
                }
            }
        }
        if let Err(e) = self.tell_streams() {
            self.failure = Some(e);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

impl Attendant for Watch<'_, '_> {
    fn begun(&mut self, _reused: bool) -> io::Result<()> {
        Ok(())
    }

    fn tick(&mut self, progress: &Progress) -> ControlFlow<()> {
        if let Some(meter) = &mut self.meter {
            meter.update(progress.bytes(), progress.streams());
        }
        if self.cancel.is_cancelled() {
            self.failure = Some(RemoteError::Cancelled);
            return ControlFlow::Break(());
        }
        if let Some(Err(e)) = self.checkpoints.as_mut().map(Checkpoints::due) {
            self.failure = Some(e);
            return ControlFlow::Break(());
        }
        if let Some(limit) = self.stall.check(Instant::now(), progress.bytes()) {
            self.failure = Some(RemoteError::Stalled {
                path: self.path.clone(),
                bytes_per_second: limit.bytes_per_second,
                time: limit.time,
            });
            return ControlFlow::Break(());
        }
        if self.should_yield(progress) {
            tracing::debug!(path = %self.path, "other sessions take over what is missing of a slow range");
            self.failure = Some(RemoteError::Desynchronized);
            return ControlFlow::Break(());
        }
        if self.moves.is_some_and(|moves| moves(progress.bytes())) {
            tracing::debug!(path = %self.path, "the path moves to another driver");
            self.failure = Some(RemoteError::Desynchronized);
            return ControlFlow::Break(());
        }
        // What is left of a pipelined command may have to be written, and replies may be in the parser already.
        self.replies()
    }

    fn waits(&mut self) -> ControlFlow<()> {
        match self.control.flush() {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => {
                self.failure = Some(e);
                ControlFlow::Break(())
            }
        }
    }

    fn excused(&mut self, progress: &Progress) {
        self.stall.begin(Instant::now(), progress.bytes());
    }

    fn watch(&self) -> Option<BorrowedFd<'_>> {
        self.failure.is_none().then(|| self.control.as_fd())
    }

    fn readable(&mut self) -> ControlFlow<()> {
        self.replies()
    }
}

/// Finds a transfer that is slower than the limit for the limit's time.
pub(crate) struct Stall {
    limit: Option<StallLimit>,
    since: Instant,
    bytes: u64,
}

impl Stall {
    pub(crate) fn new(limit: Option<StallLimit>) -> Self {
        Self { limit, since: Instant::now(), bytes: 0 }
    }

    /// The time begins anew, with so many bytes.
    fn begin(&mut self, now: Instant, bytes: u64) {
        (self.since, self.bytes) = (now, bytes);
    }

    /// Whether the time is over at the end of which it has to be known how much has moved.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.limit.is_some_and(|limit| now.saturating_duration_since(self.since) >= limit.time)
    }

    /// The limit, where `bytes` moved until `now` fall short of it.
    pub(crate) fn check(&mut self, now: Instant, bytes: u64) -> Option<StallLimit> {
        let limit = self.limit.filter(|_| self.is_due(now))?;
        let least = u128::from(limit.bytes_per_second) * limit.time.as_millis() / 1000;
        // At least something.
        let stalled = u128::from(bytes.saturating_sub(self.bytes)) < least.max(1);
        self.begin(now, bytes);
        stalled.then_some(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_less_than_the_limit_in_its_time() {
        let limit = StallLimit { bytes_per_second: 10, time: Duration::from_secs(5) };
        let mut stall = Stall::new(Some(limit));
        let start = stall.since;
        let at = |s: u64| start + Duration::from_secs(s);
        assert_eq!(stall.check(at(4), 0), None);
        assert_eq!(stall.check(at(5), 50), None);
        assert_eq!(stall.check(at(9), 60), None);
        assert_eq!(stall.check(at(10), 99), Some(limit));
        // The store kept it waiting until then.
        stall.begin(at(12), 99);
        assert_eq!(stall.check(at(16), 99), None);
        assert_eq!(stall.check(at(17), 99), Some(limit));
        assert_eq!(Stall::new(None).check(at(1000), 0), None);
        // Parts of seconds count as such.
        let limit = StallLimit { bytes_per_second: 10, time: Duration::from_millis(1500) };
        let mut stall = Stall { limit: Some(limit), since: start, bytes: 0 };
        assert_eq!(stall.check(start + Duration::from_millis(1500), 15), None);
        assert_eq!(stall.check(start + Duration::from_millis(3000), 29), Some(limit));
    }
}
