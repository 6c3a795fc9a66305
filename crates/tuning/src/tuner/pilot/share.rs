//! A stated share of a path with other flows: streams are added until the transfer has about this
//! share.
//!
//! If a path is shared in proportion to the number of streams, N of our streams beside M others
//! carry N / (N + M) of its rate. The rates of several numbers of streams yield M, and M yields the
//! number to use. From then on the tuner follows the slope that corresponds to the share (`soft`);
//! a crowded path does not change the number (`crowd`).

use super::super::decision::{Decision, Reason};
use super::super::options::Options;
use super::{Phase, Pilot, Shape};

/// An increase ends when this fraction of the wanted streams is reached.
const ENOUGH: f64 = 0.8;
/// If other flows have less than this part of the path, they are not distinguished from none.
const NOBODY: f64 = 0.12;
/// Maximum factor of a step with a stated share, if two numbers of streams have not shown other
/// flows.
const CAREFUL: f64 = 1.5;
/// Factor by which the rate per stream must fall after a step to show other flows.
const LESS: f64 = 1.05;

/// The requested share, if it is below the one that a transfer takes by default.
pub(super) fn stated(options: &Options) -> Option<f64> {
    options.fairness.stated()
}

/// The number of streams of other flows, from the rates that these numbers of streams carried;
/// `None` if no other flows are visible. The rate is C N / (N + M), so N divided by the rate is
/// linear in N: (N + M) / C.
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
    /// The number of streams with the stated share, according to the measurements of the increase.
    fn wanted_for_share(&self) -> Option<f64> {
        let share = stated(&self.options)?;
        Some((others(&self.points)? * share / (1.0 - share)).max(1.0))
    }

    /// Limits the factor of a step to the stated share.
    pub(super) fn within_share(&self, from: u32, factor: f64) -> f64 {
        // Other flows are not visible yet, perhaps because streams have just started: use small
        // steps.
        let careful = stated(&self.options).is_some() && self.points.len() > 1;
        let most = self.wanted_for_share().map(|wanted| (wanted / f64::from(from)).max(1.0));
        factor.min(most.unwrap_or(if careful { CAREFUL } else { factor }))
    }

    /// Ends the increase if the transfer has the stated share.
    pub(super) fn has_share(&mut self) -> Option<Decision> {
        let share = stated(&self.options)?;
        let wanted = self.wanted_for_share()?;
        if wanted * ENOUGH > f64::from(self.n) {
            return None;
        }
        self.base = self.within(wanted.round() as u32);
        self.shape = Shape::Soft;
        self.phase = Phase::Hold;
        // The level of the increase was measured with more streams, so it does not apply.
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
    fn others_from_rates_finds_number_of_streams() {
        let carried = |n: u32, others: f64| (n, 1e7 * f64::from(n) / (f64::from(n) + others));
        for with in [5.0, 20.0, 100.0] {
            for numbers in [&[8, 24][..], &[8, 24, 34], &[24, 8]] {
                let points: Vec<_> = numbers.iter().map(|&n| carried(n, with)).collect();
                let found = others(&points).unwrap();
                assert!((found / with - 1.0).abs() < 1e-6, "{with}: {found}");
            }
        }
        // Streams that add up, no other flows, and invalid numbers.
        assert_eq!(others(&[(8, 8e6), (24, 24e6)]), None);
        assert_eq!(others(&[carried(8, 0.5), carried(24, 0.5)]), None);
        assert_eq!(others(&[(8, 8e6), (8, 7e6)]), None);
        assert_eq!(others(&[(8, 0.0), (24, 0.0)]), None);
        assert_eq!(others(&[(8, 8e6)]), None);
        assert_eq!(others(&[]), None);
    }

    #[test]
    fn stated_with_default_share_is_none() {
        let of = |fairness| stated(&Options { fairness, ..Options::default() });
        assert_eq!(of(Options::default().fairness), None);
        assert_eq!(
            (of(Fairness::Share(0.3)), of(Fairness::Share(1.0)), of(Fairness::Polite)),
            (Some(0.3), None, None)
        );
    }
}
