//! The path over another driver than TCP: its streams, and the measurements for the choice.

use super::*;

/// Streams over another driver: it fills the path with few, because loss does not hold it back.
pub(super) const STREAMS: u32 = 2;
/// A span over another driver starts after this time and so many round trips, in which its rate
/// grows.
const GROWING: Duration = Duration::from_secs(1);
const GROWING_ROUND_TRIPS: u32 = 15;
/// Its length.
const LENGTH: Duration = Duration::from_secs(4);
const LENGTH_ROUND_TRIPS: u32 = 20;
/// Time for the sessions to make data connections over another driver, also in round trips.
const MOVING: Duration = Duration::from_secs(10);
const MOVING_ROUND_TRIPS: u32 = 30;

impl PathTuner {
    /// Lets the path try another driver. `compared`: the result of an earlier run.
    pub(in crate::tune) fn choosing_stack(mut self, compared: Option<Compared>) -> Self {
        self.chooses_stack = true;
        self.state.get_mut().stack.remember(compared);
        self
    }

    /// Whether sessions are to say which drivers they have.
    pub(crate) fn chooses_stack(&self) -> bool {
        self.chooses_stack
    }

    /// A session over this path has the driver at both ends. `bbr`: the sender uses BBR if the
    /// tuner chooses it.
    pub(crate) fn offers_driver(&self, driver: &'static str, bbr: bool) {
        let mut state = self.state.lock();
        state.bbr_permitted |= bbr;
        let before = state.stack.driver();
        state.stack.offer(driver);
        if state.stack.driver() != before {
            state.moves_to_other_driver(Instant::now());
        }
    }

    /// The driver for data connections that are made now; `None`: TCP.
    pub(crate) fn driver(&self) -> Option<&'static str> {
        self.state.lock().stack.driver()
    }

    /// The rate of the last measurement over TCP, in bytes per second.
    pub(crate) fn last_rate(&self) -> Option<f64> {
        self.state.lock().reached.last().map(|reached| reached.1)
    }

    /// The driver does not work on this path.
    pub(crate) fn driver_failed(&self, why: &str) {
        let mut state = self.state.lock();
        if state.stack.driver().is_some() {
            state.stack.failed(why);
            state.returns_to_tcp(Instant::now());
        }
    }

    /// The result of a comparison for later runs.
    pub(in crate::tune) fn compared_stacks(&self) -> Option<Compared> {
        self.state.lock().stack.compared().cloned()
    }
}

impl State {
    pub(super) fn moves_to_other_driver(&mut self, now: Instant) {
        (self.span, self.complete, self.decided) = (None, None, now);
        self.dealt = self.target();
        self.deal();
    }

    pub(super) fn returns_to_tcp(&mut self, now: Instant) {
        // The tuner goes on from its last decision.
        self.moves_to_other_driver(now);
    }

    /// Takes a sample over another driver. The tuner of the number of streams does not hear of it.
    pub(super) fn measure_other(&mut self, now: Instant, totals: Totals, rtt: Duration) {
        let Some(span) = &mut self.span else {
            let moved = totals.streams > 0 && totals.streams <= self.moving_most();
            let growing = GROWING.max(GROWING_ROUND_TRIPS * rtt);
            let patience = MOVING + MOVING_ROUND_TRIPS * rtt;
            if moved {
                self.complete.get_or_insert(now);
            }
            let grown = self.complete.is_some_and(|complete| now.duration_since(complete) >= growing);
            if grown || now.duration_since(self.decided) >= patience {
                self.span = Some(Span::new(now, totals, Duration::ZERO));
                self.decided = now;
            }
            return;
        };
        span.look(now, totals, u64::MAX);
        if now.duration_since(self.decided) < LENGTH.max(LENGTH_ROUND_TRIPS * rtt) {
            return;
        }
        let chunk = span.chunk();
        let seconds = now.duration_since(self.decided).as_secs_f64();
        self.stack.over_other(chunk.bytes as f64 / seconds);
        if self.stack.driver().is_some() {
            self.span = Some(Span::new(now, totals, Duration::ZERO));
            self.decided = now;
        } else {
            self.returns_to_tcp(now);
        }
    }

    /// With more streams than this, some are still those of TCP.
    fn moving_most(&self) -> u32 {
        STREAMS.max(self.participants.iter().map(|participant| participant.stream_control.addresses()).sum())
    }
}
