//! How many streams to have where a path is crowded.
//!
//! Streams of all transfers that cross a queue have about the same window. That is all that two transfers know in
//! common, and so their numbers are made a function of it: whatever each had before, they become alike.

/// Packets of window from which on a path is no longer crowded; and where others are known to be there.
const ENOUGH: f64 = 5.6;
const ENOUGH_SHARED: f64 = 8.0;
/// Streams to have for each packet of that window; with more the path is crowded. Two transfers that have `n` packets in
/// flight together have the root of 6 n streams each.
const EACH: f64 = 12.0;
/// Part of the way to go at once. From 1 on the sum of several would overshoot.
const PART: f64 = 0.25;
/// Weight of the last window among those before it.
const RECENT: f64 = 0.5;
/// Streams to add at most where it is not known that others are there.
const INCREASE: f64 = 2.0;
/// Of the most that the path has carried, less than this where it is crowded means that others are there.
const TAKEN: f64 = 0.7;
const DEVIATIONS: f64 = 4.0;
/// What is left of that memory after a chunk.
const KEPT: f64 = 0.98;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Crowd {
    /// Streams to have.
    at: Option<f64>,
    /// Packets of window a stream had lately.
    window: Option<f64>,
    /// Others are there.
    shared: bool,
    /// The most that was carried lately, in bytes a second.
    peak: f64,
}

impl Crowd {
    /// Streams to have where the path is crowded.
    pub(super) fn most(&self) -> Option<f64> {
        self.at.map(f64::round)
    }

    /// Others have come.
    pub(super) fn share(&mut self) {
        self.shared = true;
    }

    /// So many streams carried this rate, with this window in packets. `noise`: the standard deviation of its logarithm.
    pub(super) fn learn(&mut self, rate: f64, noise: f64, window: f64, streams: u32) {
        self.peak = (KEPT * self.peak).max(rate);
        self.shared |= (self.at.is_some() || window < ENOUGH)
            && (rate / self.peak).ln() < TAKEN.ln().min(-DEVIATIONS * noise);
        let before = self.window.filter(|_| self.at.is_some());
        let window = before.map_or(window, |before| before + RECENT * (window - before));
        self.window = Some(window);
        let too_many = f64::from(streams) > EACH * window;
        let known = self.shared || self.at.is_some();
        let enough = if self.shared { ENOUGH_SHARED } else { ENOUGH };
        let small = known && window < enough;
        if !too_many && !small {
            *self = Self { peak: self.peak, ..Self::default() };
            return;
        }
        // What was rounded off is not lost.
        let as_asked = self.at.filter(|at| at.round() as u32 == streams);
        let streams = as_asked.unwrap_or(f64::from(streams));
        let step = PART * (EACH * window - streams);
        let step = if self.shared { step } else { step.min(INCREASE) };
        self.at = Some((streams + step).max(1.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_FLIGHT: f64 = 900.0;

    /// What two have after so many chunks together.
    fn two(mut streams: [u32; 2], chunks: u32) -> [u32; 2] {
        let mut crowds = [Crowd::default(); 2];
        crowds[0].share();
        for _ in 0..chunks {
            let window = IN_FLIGHT / f64::from(streams[0] + streams[1]);
            for (crowd, streams) in crowds.iter_mut().zip(&mut streams) {
                crowd.learn(1e5 * window * f64::from(*streams), 0.0, window, *streams);
                *streams = crowd.most().map_or(*streams, |most| most as u32);
            }
        }
        streams
    }

    #[test]
    fn numbers_become_alike_from_wherever_they_were() {
        for from in [[9, 128], [128, 128], [60, 120]] {
            let [a, b] = two(from, 16);
            assert!(a.abs_diff(b) <= 7, "{from:?}: {a} {b}");
            // The root of 12 * 450.
            assert!((66..=80).contains(&a), "{from:?}: {a}");
        }
    }

    #[test]
    fn alone_small_windows_only_take_away() {
        let mut crowd = Crowd::default();
        crowd.learn(1e7, 0.05, 20.0, 10);
        assert_eq!(crowd.most(), None);
        crowd.learn(1e7, 0.05, 6.0, 33);
        assert_eq!(crowd.most(), None);
        crowd.learn(1e7, 0.05, 3.0, 66);
        assert_eq!(crowd.most(), Some(59.0));
        // A few more at a time, where windows leave room, until there is enough of it.
        crowd.learn(1e7, 0.05, 6.0, 30);
        assert_eq!(crowd.most(), Some(32.0));
        crowd.learn(1e7, 0.05, 12.0, 17);
        assert_eq!(crowd.most(), None);
    }

    #[test]
    fn who_once_had_more_of_a_crowded_path_is_not_alone() {
        let mut crowd = Crowd::default();
        crowd.learn(1e7, 0.05, 100.0, 8);
        crowd.learn(5e6, 0.05, 7.0, 8);
        assert_eq!(crowd.most(), None);
        crowd.learn(4e6, 0.05, 4.0, 8);
        assert_eq!(crowd.most(), Some(18.0));
    }
}
