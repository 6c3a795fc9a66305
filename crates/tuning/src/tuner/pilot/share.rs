//! A stated share of a path that others use: streams are added until about that is taken.
//!
//! Where a path is shared stream for stream, N of our streams beside M others carry N / (N + M) of it. What
//! several numbers of streams carried gives M, and that the number to have. From there on the slope is followed that this has
//! (`soft`); a crowded path gives no other number (`crowd`).

use super::super::decision::{Decision, Reason};
use super::super::options::Options;
use super::{Phase, Pilot, Shape};

/// With so many of the streams wanted a climb is over.
const ENOUGH: f64 = 0.8;
/// Others that have less of a path than this are not told from none.
const NOBODY: f64 = 0.12;
/// A step of a climb (factor) where a share is stated and two numbers of streams have not told of others.
const CAREFUL: f64 = 1.5;
/// What a stream carries less after a step (as a factor) that tells of others.
const LESS: f64 = 1.05;

/// The share that was asked for, where that is not what a transfer takes anyway.
pub(super) fn stated(options: &Options) -> Option<f64> {
    options.fairness.stated()
}

/// Streams of others on a path of which these numbers of streams carried these rates; `None` where nothing is seen of others.
/// N / (N + M) of C is a line in N where N is divided by it: (N + M) / C.
fn others(points: &[(u32, f64)]) -> Option<f64> {
    let of = |&(n, rate): &(u32, f64)| (f64::from(n), f64::from(n) / rate.max(1.0));
    let count = points.len() as f64;
    let (x, y) =
        points.iter().map(of).fold((0.0, 0.0), |sum, at| (sum.0 + at.0 / count, sum.1 + at.1 / count));
    let (mut square, mut product) = (0.0, 0.0);
    for at in points.iter().map(of) {
        square += (at.0 - x).powi(2);
        product += (at.0 - x) * (at.1 - y);
    }
    let others = y * square / product - x;
    let numbers = points.iter().map(|point| f64::from(point.0));
    let (fewest, most) = numbers.fold((f64::INFINITY, 0.0), |(a, b), n| (n.min(a), n.max(b)));
    let less = (most + others) / (fewest + others);
    (less > LESS && others > NOBODY * (most + others)).then_some(others)
}

impl Pilot {
    /// Streams that have the stated share, by what a climb has shown.
    fn wanted_for_share(&self) -> Option<f64> {
        let share = stated(&self.options)?;
        Some((others(&self.points)? * share / (1.0 - share)).max(1.0))
    }

    /// A climb goes no further than that.
    pub(super) fn within_share(&self, from: u32, factor: f64) -> f64 {
        // Nothing is seen of others yet, as streams that have just begun may hide: not far then.
        let careful = stated(&self.options).is_some() && self.points.len() > 1;
        let most = self.wanted_for_share().map(|wanted| (wanted / f64::from(from)).max(1.0));
        factor.min(most.unwrap_or(if careful { CAREFUL } else { factor }))
    }

    /// Whether a climb has taken what it may.
    pub(super) fn has_share(&mut self) -> Option<Decision> {
        let share = stated(&self.options)?;
        let wanted = self.wanted_for_share()?;
        if wanted * ENOUGH > f64::from(self.n) {
            return None;
        }
        self.base = self.within(wanted.round() as u32);
        self.shape = Shape::Soft;
        self.phase = Phase::Hold;
        // What the climb reached with more is no measure of what these carry.
        self.level = None;
        Some(self.settle(Reason::StatedShare { share }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::super::options::Fairness;
    use super::*;

    #[test]
    fn numbers_of_streams_tell_of_others() {
        let carried = |n: u32, others: f64| (n, 1e7 * f64::from(n) / (f64::from(n) + others));
        for with in [5.0, 20.0, 100.0] {
            for numbers in [&[8, 24][..], &[8, 24, 34], &[24, 8]] {
                let points: Vec<_> = numbers.iter().map(|&n| carried(n, with)).collect();
                let found = others(&points).unwrap();
                assert!((found / with - 1.0).abs() < 1e-6, "{with}: {found}");
            }
        }
        // Streams that add up, nobody else, and numbers that make no sense.
        assert_eq!(others(&[(8, 8e6), (24, 24e6)]), None);
        assert_eq!(others(&[carried(8, 0.5), carried(24, 0.5)]), None);
        assert_eq!(others(&[(8, 8e6), (8, 7e6)]), None);
        assert_eq!(others(&[(8, 0.0), (24, 0.0)]), None);
        assert_eq!(others(&[(8, 8e6)]), None);
        assert_eq!(others(&[]), None);
    }

    #[test]
    fn the_usual_share_is_not_a_stated_one() {
        let of = |fairness| stated(&Options { fairness, ..Options::default() });
        assert_eq!(of(Options::default().fairness), None);
        assert_eq!(
            (of(Fairness::Share(0.3)), of(Fairness::Share(1.0)), of(Fairness::Polite)),
            (Some(0.3), None, None)
        );
    }
}
