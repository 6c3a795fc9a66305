//! How many streams to have where a path is crowded.
//!
//! Streams of all transfers that cross a queue have about the same window. That is all that two transfers know in
//! common, and so their numbers are made a function of it: whatever each had before, they become alike.

/// Packets of window from which on a path is no longer crowded; and where others are known to be there.
const ENOUGH: f64 = 5.6;
const ENOUGH_SHARED: f64 = 8.0;
/// Streams to have for each packet of that window; with more the path is crowded. Two transfers that have `n` packets in
/// flight together have the root of 6 n streams each.
pub(super) const EACH: f64 = 12.0;
/// Part of the way to go at once. From 1 on the sum of several would overshoot.
const PART: f64 = 0.5;
/// The same where it is short: what streams carry by chance is not to be followed.
const NEAR: f64 = 0.03;
/// Most to go at once, as a factor.
const FARTHEST: f64 = 2.0;
/// A rate that grew by this factor, while streams stayed, was left by others.
const LEFT: f64 = 1.5;
/// Weight of the last window among those before it.
const RECENT: f64 = 0.5;
/// Part of the way, and streams to add at most, where it is not known that others are there.
const PART_ALONE: f64 = 0.25;
const INCREASE: f64 = 2.0;
/// Of the most that the path has carried, less than this where it is crowded means that others are there.
const TAKEN: f64 = 0.7;
const DEVIATIONS: f64 = 4.0;
/// What is left of that memory after a chunk.
const KEPT: f64 = 0.98;
/// It says something of this chunk where it was of about as many streams, or more (factor).
const AS_MANY: f64 = 0.8;
/// Where streams are added and less is carried than this share of the best since others are held to be there, it is the
/// streams that cost so much: others would have lost, not all together.
const COST: f64 = 0.88;
const COST_DEVIATIONS: f64 = 3.2;
/// More streams than at the best by this factor may have cost that; so many more or fewer are as many.
const MORE: f64 = 1.25;
const SAME: f64 = 1.05;
/// What is left of the difference to the best after a chunk of as many streams.
const BEST_KEPT: f64 = 0.7;
/// Chunks for which nobody is held to be there after that: first, and at most.
const FIRST_BAR: u32 = 8;
const LONGEST_BAR: u32 = 64;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Crowd {
    /// Streams to have.
    at: Option<f64>,
    /// Packets of window a stream had lately.
    window: Option<f64>,
    /// Others are there.
    shared: bool,
    /// That is certain: the path was full, and more streams gained all the same.
    firm: bool,
    /// Streams and window of the last chunk.
    last: Option<(u32, f64)>,
    /// Streams and rate lately, and for how many chunks it has been far above that.
    lately: Option<(u32, f64)>,
    above: u32,
    /// The most that was carried lately, in bytes a second, and the streams that did.
    peak: (f64, u32),
    /// Streams that carried the most since others are held to be there, and that (logarithm).
    best: Option<(u32, f64)>,
    /// Chunks for which nobody is held to be there, and how many the next time.
    barred: u32,
    bar: u32,
}

impl Crowd {
    /// Streams to have where the path is crowded.
    pub(super) fn most(&self) -> Option<f64> {
        self.at.map(f64::round)
    }

    /// Others have come.
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

    /// They have left.
    pub(super) fn alone(&mut self) {
        let Self { peak, last, barred, bar, .. } = *self;
        *self = Self { peak, last, barred, bar, ..Self::default() };
    }

    /// Streams that were added carried less: how many carried the most, and what (logarithm). `level`: what `streams` carry, with
    /// this standard deviation.
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

    /// It was the streams: for a while nobody is held to be there.
    pub(super) fn bar(&mut self) {
        self.alone();
        self.bar = (2 * self.bar).clamp(FIRST_BAR, LONGEST_BAR);
        self.barred = self.bar;
    }

    /// It was not.
    pub(super) fn unbar(&mut self) {
        (self.barred, self.bar) = (0, 0);
    }

    /// That others are there is certain.
    pub(super) fn certain(&self) -> bool {
        self.firm
    }

    /// So many streams carried this rate, with this window in packets. `noise`: the standard deviation of its logarithm;
    /// `full`: there was a queue.
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

    /// Whether so much more is carried by the same streams that others must have left.
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
        // What was rounded off is not lost.
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

    /// What two have after so many chunks together.
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

    /// In a minute.
    #[test]
    fn numbers_become_alike_from_wherever_they_were() {
        for from in [[9, 128], [128, 128], [60, 120]] {
            let [a, b] = two(from, 21);
            assert!(a.abs_diff(b) <= 7, "{from:?}: {a} {b}");
            // The root of 12 * 450.
            assert!((66..=80).contains(&a), "{from:?}: {a}");
        }
    }

    #[test]
    fn alone_small_windows_only_take_away() {
        let mut crowd = Crowd::default();
        crowd.learn(1e7, 0.05, 20.0, 10, false);
        assert_eq!(crowd.most(), None);
        crowd.learn(1e7, 0.05, 6.0, 33, false);
        assert_eq!(crowd.most(), None);
        crowd.learn(1e7, 0.05, 3.0, 66, false);
        assert_eq!(crowd.most(), Some(59.0));
        // A few more at a time, where windows leave room, until there is enough of it.
        crowd.learn(1e7, 0.05, 6.0, 30, false);
        assert_eq!(crowd.most(), Some(32.0));
        crowd.learn(1e7, 0.05, 12.0, 17, false);
        assert_eq!(crowd.most(), None);
    }

    #[test]
    fn who_once_had_more_of_a_crowded_path_is_not_alone() {
        let mut crowd = Crowd::default();
        crowd.learn(1e7, 0.05, 100.0, 8, false);
        crowd.learn(5e6, 0.05, 7.0, 8, false);
        assert_eq!(crowd.most(), None);
        crowd.learn(4e6, 0.05, 4.0, 8, false);
        assert_eq!(crowd.most(), Some(16.0));
    }

    #[test]
    fn who_is_certain_of_others_takes_part_wherever_windows_are() {
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
    fn what_fewer_streams_carried_tells_of_nobody() {
        let mut crowd = Crowd::default();
        crowd.learn(1e7, 0.05, 100.0, 2, false);
        crowd.learn(3e6, 0.05, 4.0, 20, false);
        assert_eq!(crowd.most(), None);
    }

    #[test]
    fn streams_that_cost_are_not_others() {
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
        // What as many streams carry less is others'.
        assert_eq!((crowd.costs(20, 1.0, 0.02), crowd.costs(20, 0.5, 0.02)), (None, None));
    }

    #[test]
    fn a_rate_that_grows_by_itself_was_left_by_others() {
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
