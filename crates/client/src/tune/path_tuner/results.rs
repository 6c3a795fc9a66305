//! The results of a path: for the summary of a run, for the next run, and for the next program.

use super::*;

/// The share of the best rate that counts as equally good.
const AS_GOOD: f64 = 0.95;

/// The results of all runs so far.
#[derive(Default)]
pub(in crate::tune) struct Summed {
    decisions: u32,
    carried: Carried,
}

impl PathTuner {
    /// The result for the next run, once there is one. If the number of streams was limited to
    /// fewer than `usual`, it does not show what the path needs.
    pub(in crate::tune) fn learnt(&self, usual: u32) -> Option<Learnt> {
        let prior = self.prior(usual)?;
        let state = self.state.lock();
        let (fastest, fastest_of) = self.known.learnt(self.round_trip(&state), &state.reached);
        Some(Learnt { prior, fastest, fastest_of })
    }

    pub(super) fn prior(&self, usual: u32) -> Option<Prior> {
        let state = self.state.lock();
        let of = |purpose| state.reached.iter().filter(move |reached| reached.2 == purpose);
        // For a climb that did not end: the fewest streams with about the best rate, because later
        // ones may have gained nothing.
        let best = of(Purpose::Climb).map(|reached| reached.1).fold(0.0, f64::max);
        let climbed = || {
            of(Purpose::Climb).filter(|reached| reached.1 >= AS_GOOD * best).min_by_key(|reached| reached.0)
        };
        let stayed = of(Purpose::Stay).next_back();
        let &(streams, rate, _) = stayed.or_else(climbed).filter(|_| state.decisions >= 2 && !self.many)?;
        // The last decision may not have been measured.
        let streams = if state.decision.reason.stays() { streams.min(state.target()) } else { streams };
        let bounded = self.cap < usual && streams >= self.cap;
        (rate >= 1.0 && !bounded).then_some(Prior {
            streams,
            rate,
            min_rtt: Some(self.round_trip(&state)),
            age: 0.0,
        })
    }

    pub(in crate::tune) fn summed(&self) -> Summed {
        let state = self.state.lock();
        Summed { decisions: state.decisions, carried: state.carried.clone() }
    }

    pub(in crate::tune) fn has_decided(&self) -> bool {
        self.state.lock().decisions > 0
    }

    /// The first run after a time without any: the tuner goes on from its last decision, and
    /// nothing else of earlier runs counts.
    pub(in crate::tune) fn starts_again(&self) {
        let mut state = self.state.lock();
        (state.span, state.complete) = (None, None);
        (state.decided, state.sized, state.dealt) = (Instant::now(), false, state.target());
        state.coming.clear();
    }

    /// The result for the summary since `before`; `None` without a decision. `set`: the user has
    /// set the buffer size.
    pub(in crate::tune) fn tuned(&self, before: &Summed, set: bool) -> Option<TunedPath> {
        let buffer = self.buffer().filter(|_| !set);
        let state = self.state.lock();
        let decisions = state.decisions - before.decisions;
        let carried = state.carried.since(&before.carried);
        let stack = state.stack.why().map(str::to_owned);
        (decisions > 0 || stack.is_some()).then(|| TunedPath {
            path: self.ends.name(),
            streams: state.target(),
            usual: carried.usual().unwrap_or(state.target()),
            most: carried.most().max(carried.usual().unwrap_or(state.target())),
            bits_per_second: state.reached.last().map_or(0.0, |reached| 8.0 * reached.1),
            decisions,
            reason: state.decision.reason.to_string(),
            stack,
            buffers_matter: buffer.as_ref().is_some_and(Buffer::matters),
            buffers: buffer.map(|buffer| buffer.why()),
        })
    }
}
