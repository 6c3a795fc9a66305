//! Observes a transfer while its data moves: replies on the control connection, progress, stalls,
//! and cancellation.
//!
//! The thread of the transfer owns the [`Watch`], and the engine calls it five times a second
//! and when the control connection is readable. If the client ends the transfer, [`Watch::failure`]
//! has the reason.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use bstr::BString;
use ropewalk_engine::{Attendant, Parallelism, Progress};

use crate::control::{Answer, Control};
use crate::renewal::Renewal;
use crate::report::Meter;
use crate::straggler::{Idle, Straggler};
use crate::tune::Wanted;
use crate::{Cancel, RemoteError, StallLimit};

/// Decides whether a transfer continues after an answer that arrived during it.
pub(crate) type Judge<'w> = dyn FnMut(Answer) -> ControlFlow<()> + 'w;

/// The maximum number of answers that are handled at a time.
pub(crate) const AT_ONCE: usize = 4096;

/// The time between two checkpoints, equal to that between the restart markers that servers are
/// asked for.
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
        // Counted from the end of the checkpoint, so that a slow disk has time for other work.
        self.last = Instant::now();
        done
    }
}

/// The engine's [`Attendant`] for transfers of this client.
pub(crate) struct Watch<'w, 'r> {
    control: &'w mut Control,
    judge: &'w mut Judge<'w>,
    meter: Option<&'w mut Meter<'r>>,
    observe: Option<&'w dyn Fn(&Progress)>,
    stall: Stall,
    cancel: &'w Cancel,
    path: BString,
    checkpoints: Option<Checkpoints<'w>>,
    streams: Option<(&'w Wanted, Parallelism)>,
    straggler: Option<(Straggler, &'w dyn Fn() -> Option<Idle>)>,
    moves: Option<&'w dyn Fn(u64) -> bool>,
    renewal: Option<Renewal>,
    /// The server has reported since the last tick that the transfer waits in its queue.
    queued: bool,
    /// The reason for which this side ended the transfer; `None` if a reply ended it.
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
            observe: None,
            stall,
            cancel,
            path,
            checkpoints: None,
            streams: None,
            straggler: None,
            moves: None,
            renewal: None,
            queued: false,
            failure: None,
        }
    }

    /// Calls `observe` at each tick.
    pub(crate) fn observed(mut self, observe: &'w dyn Fn(&Progress)) -> Self {
        self.observe = Some(observe);
        self
    }

    /// Calls `secure` at intervals, which puts the data that has arrived on stable storage. If it
    /// fails, the transfer fails.
    pub(crate) fn secured(mut self, secure: &'w dyn Fn() -> Result<(), RemoteError>) -> Self {
        self.checkpoints = Some(Checkpoints { secure, last: Instant::now() });
        self
    }

    /// Reports to the sending server how many streams it should use, whenever that number changes.
    pub(crate) fn streams(mut self, wanted: &'w Wanted, ours: Parallelism) -> Self {
        self.streams = Some((wanted, ours));
        self
    }

    /// Ends the transfer if it is slow while `idle` sessions could take over the missing data.
    pub(crate) fn yielding(
        mut self,
        straggler: Option<Straggler>,
        idle: &'w dyn Fn() -> Option<Idle>,
    ) -> Self {
        self.straggler = straggler.map(|straggler| (straggler, idle));
        self
    }

    /// Ends the transfer when `moves` returns `true` for the number of bytes that have arrived. The
    /// missing data is then moved over another driver.
    pub(crate) fn moving(mut self, moves: &'w dyn Fn(u64) -> bool) -> Self {
        self.moves = Some(moves);
        self
    }

    /// Ends the transfer if data nodes have joined and `renewal` is due. The missing data is then
    /// moved over a new channel.
    pub(crate) fn renewing(mut self, renewal: Option<Renewal>) -> Self {
        self.renewal = renewal;
        self
    }

    fn should_yield(&mut self, progress: &Progress) -> bool {
        let Some((straggler, idle)) = &mut self.straggler else { return false };
        straggler.should_yield(Instant::now(), progress.bytes(), idle)
    }

    fn tell_streams(&mut self) -> Result<(), RemoteError> {
        let Some((wanted, ours)) = &self.streams else { return Ok(()) };
        // If this side connects the streams, it closes surplus ones before the server is asked for
        // fewer, so that the server does not miss them; it opens more only when the server has
        // replied how many it accepts.
        if let Some(granted) = self.control.take_granted() {
            ours.set(granted.min(wanted.get()));
        }
        let Some(streams) = wanted.news() else { return Ok(()) };
        ours.set(streams.min(ours.get()));
        self.control.set_streams(streams)
    }

    fn replies(&mut self) -> ControlFlow<()> {
        // Bounded, so that a peer that keeps sending replies does not block the transfer. The rest
        // is read at the next tick.
        for _ in 0..AT_ONCE {
            match self.control.try_answer() {
                Ok(Some(answer)) => {
                    self.queued |= matches!(answer, Answer::Queued(_));
                    (self.judge)(answer)?;
                }
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
        if let Some(observe) = self.observe {
            observe(progress);
        }
        if self.cancel.is_cancelled() {
            self.failure = Some(RemoteError::Cancelled);
            return ControlFlow::Break(());
        }
        if let Some(Err(e)) = self.checkpoints.as_mut().map(Checkpoints::due) {
            self.failure = Some(e);
            return ControlFlow::Break(());
        }
        if self.queued {
            self.stall.begin(Instant::now(), progress.bytes());
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
        if self.control.wants_new_channel
            && self.renewal.as_ref().is_some_and(|renewal| renewal.is_due(Instant::now(), progress.bytes()))
        {
            tracing::debug!(path = %self.path, "what is missing moves to data nodes that have joined");
            self.failure = Some(RemoteError::Desynchronized);
            return ControlFlow::Break(());
        }
        // Part of a pipelined command may still have to be written, and the parser may have replies
        // already.
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

    fn is_excused(&mut self) -> bool {
        std::mem::take(&mut self.queued)
    }

    fn watch(&self) -> Option<BorrowedFd<'_>> {
        self.failure.is_none().then(|| self.control.as_fd())
    }

    fn readable(&mut self) -> ControlFlow<()> {
        self.replies()
    }
}

/// Detects a transfer that is slower than the limit for the limit's time.
pub(crate) struct Stall {
    limit: Option<StallLimit>,
    since: Instant,
    bytes: u64,
}

impl Stall {
    pub(crate) fn new(limit: Option<StallLimit>) -> Self {
        Self { limit, since: Instant::now(), bytes: 0 }
    }

    /// Restarts the measurement with this number of bytes.
    fn begin(&mut self, now: Instant, bytes: u64) {
        (self.since, self.bytes) = (now, bytes);
    }

    /// Whether the measured interval is over, so that the number of moved bytes is needed.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.limit.is_some_and(|limit| now.saturating_duration_since(self.since) >= limit.time)
    }

    /// The limit, if the `bytes` that were moved until `now` are fewer than it demands.
    pub(crate) fn check(&mut self, now: Instant, bytes: u64) -> Option<StallLimit> {
        let limit = self.limit.filter(|_| self.is_due(now))?;
        let least = u128::from(limit.bytes_per_second) * limit.time.as_millis() / 1000;
        // At least one byte has to move.
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
        // The store delayed the transfer until then.
        stall.begin(at(12), 99);
        assert_eq!(stall.check(at(16), 99), None);
        assert_eq!(stall.check(at(17), 99), Some(limit));
        assert_eq!(Stall::new(None).check(at(1000), 0), None);
        // Fractions of a second count.
        let limit = StallLimit { bytes_per_second: 10, time: Duration::from_millis(1500) };
        let mut stall = Stall { limit: Some(limit), since: start, bytes: 0 };
        assert_eq!(stall.check(start + Duration::from_millis(1500), 15), None);
        assert_eq!(stall.check(start + Duration::from_millis(3000), 29), Some(limit));
    }
}
