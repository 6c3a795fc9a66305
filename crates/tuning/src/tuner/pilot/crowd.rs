//! The number of streams on a crowded path.
//!
//! Streams of all transfers that pass a queue have about the same window. This is the only value
//! that two transfers both know, so their numbers of streams are a function of it: from any initial
//! numbers, they converge.

/// From this window in packets on, a path is not crowded; the second value applies if other flows
/// are known to be there.
const ENOUGH: f64 = 5.6;
const ENOUGH_SHARED: f64 = 8.0;
/// Number of streams per packet of window; with more streams the path is crowded. Two transfers
/// that together have `n` packets in flight have sqrt(6 n) streams each.
pub(super) const EACH: f64 = 12.0;
/// Fraction of the distance to go in one step. From 1 on, several transfers together would
/// overshoot.
const PART: f64 = 0.5;
/// Below this distance (logarithm) the steps are smaller, in order not to follow random changes of
/// the rate.
const NEAR: f64 = 0.03;
/// Maximum change in one step, as a factor.
const FARTHEST: f64 = 2.0;
/// If the rate of the same streams grew by this factor, other flows have ended.
const LEFT: f64 = 1.5;
/// Weight of the latest window in the average.
const RECENT: f64 = 0.5;
/// Fraction of the distance to go, and maximum number of streams to add, if it is not known that
/// other flows are there.
const PART_ALONE: f64 = 0.25;
const INCREASE: f64 = 2.0;
/// On a crowded path, a rate below this fraction of the recent maximum means that other flows are
/// there.
const TAKEN: f64 = 0.7;
const DEVIATIONS: f64 = 4.0;
/// Factor by which that maximum is reduced after each chunk.
const KEPT: f64 = 0.98;
/// The maximum is comparable only if it was measured with at least this multiple of the current
/// streams.
const AS_MANY: f64 = 0.8;
/// If streams were added and the rate is below this fraction of the best one since other flows were
/// assumed, the streams themselves are the reason: other flows would have lost instead, not the sum
/// of all.
const COST: f64 = 0.88;
const COST_DEVIATIONS: f64 = 3.2;
/// The added streams may be the reason if there are more than at the best rate by this factor;
/// numbers within the second factor are equal.
const MORE: f64 = 1.25;
const SAME: f64 = 1.05;
/// Factor by which the difference to the best rate is reduced after a chunk with the same number of
/// streams.
const BEST_KEPT: f64 = 0.7;
/// Number of chunks after that during which no other flows are assumed: initial and maximum value.
const FIRST_BAR: u32 = 8;
const LONGEST_BAR: u32 = 64;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Crowd {
    /// Number of streams to use.
    at: Option<f64>,
    /// Recent window of a stream, packets.
    window: Option<f64>,
    /// Other flows are assumed to be there.
    shared: bool,
    /// This is certain, because more streams gained on a full path.
    firm: bool,
    /// Streams and window of the last chunk.
    last: Option<(u32, f64)>,
    /// Recent streams and rate, and the number of chunks for which the rate has been far above
    /// that.
    lately: Option<(u32, f64)>,
    above: u32,
    /// The maximum rate recently, in bytes per second, and the streams that carried it.
    peak: (f64, u32),
    /// Streams with the best rate since other flows have been assumed, and that rate (logarithm).
    best: Option<(u32, f64)>,
    /// Remaining number of chunks during which no other flows are assumed, and the last such
    /// interval.
    barred: u32,
    bar: u32,
}

impl Crowd {
    /// The number of streams to use if the path is crowded.
    pub(super) fn most(&self) -> Option<f64> {
        self.at.map(f64::round)
    }

    /// Other flows have started.
    pub(super) fn share(&mut self, firm: bool) {
        if self.barred > 0 {
            return;
        }
        self.shared = true;
        if firm && !self.firm {
            self.firm = true;
            if let Some((streams, window)) = self.last {
                self.go(streams, window);
            }
        }
    }

    /// The other flows have ended.
    pub(super) fn alone(&mut self) {
        let Self { peak, last, barred, bar, .. } = *self;
        *self = Self { peak, last, barred, bar, ..Self::default() };
    }

    /// Takes the rate `level` (logarithm) of `streams`, with its standard deviation. If added
    /// streams carry less, returns the number that carried the most, and its rate (logarithm).
    pub(super) fn costs(&mut self, streams: u32, level: f64, deviation: f64) -> Option<(u32, f64)> {
        let (n, best) = self.best.get_or_insert((streams, level));
        let more = f64::from(streams) / f64::from(*n);
        if level > *best {
            (*n, *best) = (streams, level);
        } else if more > MORE && level - *best < COST.ln().min(-COST_DEVIATIONS * deviation) {
            return self.best;
        } else if more.max(more.recip()) < SAME {
            *best = level + BEST_KEPT * (*best - level);
        }
        None
    }

    /// The streams were the reason: no other flows are assumed for a while.
    pub(super) fn bar(&mut self) {
        self.alone();
        self.bar = (2 * self.bar).clamp(FIRST_BAR, LONGEST_BAR);
        self.barred = self.bar;
    }

    /// The streams were not the reason.
    pub(super) fn unbar(&mut self) {
        (self.barred, self.bar) = (0, 0);
    }

    /// Whether other flows are certain.
    pub(super) fn certain(&self) -> bool {
        self.firm
    }

    /// Takes the measurement of a chunk. `noise`: the standard deviation of the logarithm of
    /// `rate`; `window`: in packets; `full`: there was a queue.
    pub(super) fn learn(&mut self, rate: f64, noise: f64, window: f64, streams: u32, full: bool) {
        self.peak.0 *= KEPT;
        if rate >= self.peak.0 {
            self.peak = (rate, streams);
        }
        self.last = Some((streams, window));
        if self.barred > 0 {
            self.barred -= 1;
            return;
        }
        let comparable = f64::from(self.peak.1) > AS_MANY * f64::from(streams);
        self.shared |= (self.at.is_some() || window < ENOUGH)
            && comparable
            && (rate / self.peak.0).ln() < TAKEN.ln().min(-DEVIATIONS * noise);
        if self.firm && self.left(rate, streams) {
            self.alone();
        }
        let before = self.window.filter(|_| self.at.is_some());
        let window = before.map_or(window, |before| before + RECENT * (window - before));
        self.window = Some(window);
        let too_many = f64::from(streams) > EACH * window;
        let known = self.shared || self.at.is_some();
        let enough = if self.shared || full { ENOUGH_SHARED } else { ENOUGH };
        let small = known && window < enough;
        if !too_many && !small && !self.firm {
            self.alone();
            return;
        }
        self.go(streams, window);
    }

    /// Whether the same streams carry so much more that other flows must have ended.
    fn left(&mut self, rate: f64, streams: u32) -> bool {
        let near = |n: u32| (f64::from(n) / f64::from(streams)).ln().abs() < 0.15;
        match &mut self.lately {
            Some((n, lately)) if near(*n) => {
                self.above = if rate > LEFT * *lately { self.above + 1 } else { 0 };
                if self.above == 0 {
                    *lately += 0.3 * (rate - *lately);
                }
            }
            lately => {
                *lately = Some((streams, rate));
                self.above = 0;
            }
        }
        self.above > 1
    }

    fn go(&mut self, streams: u32, window: f64) {
        // Use the exact value if it was only rounded for the chunk.
        let as_asked = self.at.filter(|at| at.round() as u32 == streams);
        let streams = as_asked.unwrap_or(f64::from(streams));
        let away = (EACH * window / streams).ln();
        let most = FARTHEST.ln();
        let step = (PART * away * away.abs() / (away.abs() + NEAR)).clamp(-most, most);
        let slowly = (PART_ALONE * (EACH * window - streams)).min(INCREASE);
        let to = if self.shared { streams * step.exp() } else { streams + slowly };
        self.at = Some(to.max(1.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_FLIGHT: f64 = 900.0;

    /// The streams of two transfers after this number of chunks.
    fn two(mut streams: [u32; 2], chunks: u32) -> [u32; 2] {
        let mut crowds = [Crowd::default(); 2];
        crowds[0].share(false);
        for _ in 0..chunks {
            let window = IN_FLIGHT / f64::from(streams[0] + streams[1]);
            for (crowd, streams) in crowds.iter_mut().zip(&mut streams) {
                crowd.learn(1e5 * window * f64::from(*streams), 0.0, window, *streams, false);
                *streams = crowd.most().map_or(*streams, |most| most as u32);
            }
        }
        streams
    }

    /// Within a minute.
    #[test]
    fn crowd_of_two_converges_from_any_numbers() {
        for from in [[9, 128], [128, 128], [60, 120]] {
            let [a, b] = two(from, 21);
            assert!(a.abs_diff(b) <= 7, "{from:?}: {a} {b}");
            // The square root of 12 * 450.
            assert!((66..=80).contains(&a), "{from:?}: {a}");
        }
    }

    #[test]
    fn crowd_without_other_flows_only_reduces_streams() {
        let mut crowd = Crowd::default();
        crowd.learn(1e7, 0.05, 20.0, 10, false);
        assert_eq!(crowd.most(), None);
        crowd.learn(1e7, 0.05, 6.0, 33, false);
        assert_eq!(crowd.most(), None);
        crowd.learn(1e7, 0.05, 3.0, 66, false);
        assert_eq!(crowd.most(), Some(59.0));
        // A few streams are added at a time if the windows are large enough, until the path is no
        // longer crowded.
        crowd.learn(1e7, 0.05, 6.0, 30, false);
        assert_eq!(crowd.most(), Some(32.0));
        crowd.learn(1e7, 0.05, 12.0, 17, false);
        assert_eq!(crowd.most(), None);
    }

    #[test]
    fn crowd_when_rate_fell_far_assumes_other_flows() {
        let mut crowd = Crowd::default();
        crowd.learn(1e7, 0.05, 100.0, 8, false);
        crowd.learn(5e6, 0.05, 7.0, 8, false);
        assert_eq!(crowd.most(), None);
        crowd.learn(4e6, 0.05, 4.0, 8, false);
        assert_eq!(crowd.most(), Some(16.0));
    }

    #[test]
    fn crowd_with_certain_flows_applies_to_any_window() {
        let mut crowd = Crowd::default();
        crowd.learn(5e6, 0.05, 50.0, 9, true);
        crowd.share(false);
        assert_eq!(crowd.most(), None);
        crowd.share(true);
        assert_eq!(crowd.most(), Some(18.0));
        crowd.learn(7e6, 0.05, 35.0, 18, true);
        assert_eq!(crowd.most(), Some(36.0));
    }

    #[test]
    fn crowd_ignores_maximum_of_fewer_streams() {
        let mut crowd = Crowd::default();
        crowd.learn(1e7, 0.05, 100.0, 2, false);
        crowd.learn(3e6, 0.05, 4.0, 20, false);
        assert_eq!(crowd.most(), None);
    }

    #[test]
    fn crowd_when_added_streams_cost_assumes_no_other_flows() {
        let mut crowd = Crowd::default();
        crowd.learn(1e7, 0.05, 4.0, 20, true);
        crowd.share(true);
        assert_eq!(crowd.costs(20, 1.0, 0.02), None);
        assert_eq!(crowd.costs(30, 0.95, 0.02), None);
        assert_eq!(crowd.costs(40, 0.85, 0.02), Some((20, 1.0)));
        crowd.bar();
        assert!(crowd.most().is_none() && !crowd.certain());
        for _ in 0..FIRST_BAR {
            crowd.share(true);
            crowd.learn(1e7, 0.05, 1.0, 20, true);
            assert_eq!(crowd.most(), None);
        }
        crowd.share(true);
        assert!(crowd.certain());
        // If the same number of streams carries less, other flows are the reason.
        assert_eq!((crowd.costs(20, 1.0, 0.02), crowd.costs(20, 0.5, 0.02)), (None, None));
    }

    #[test]
    fn crowd_when_rate_grows_assumes_that_others_ended() {
        let mut crowd = Crowd::default();
        crowd.learn(5e6, 0.05, 6.0, 72, true);
        crowd.share(true);
        for _ in 0..3 {
            crowd.learn(5e6, 0.05, 6.0, 72, true);
        }
        crowd.learn(1e7, 0.05, 12.0, 72, true);
        assert!(crowd.certain());
        crowd.learn(1e7, 0.05, 12.0, 72, true);
        assert!(!crowd.certain() && crowd.most().is_none());
    }
}
