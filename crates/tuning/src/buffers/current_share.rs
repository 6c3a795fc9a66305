//! The fair share of Semke, Mahdavi and Mathis, which is kept between negotiations.

use num_rational::BigRational;

use super::fraction::{round, whole};

/// A share that follows the demands by one step per negotiation: connections that demand at most
/// the previous share get their demand, and the new share is the rest, divided by the number of the
/// other connections. With constant demands the share reaches the max-min share after at most as
/// many steps as there are connections; [`settle`](Self::settle) runs all steps at once.
///
/// In the published algorithm, a step after an increase of the demands may grant more than the
/// budget, or almost nothing. Here the share never falls below the budget divided equally, which
/// keeps every step within the budget.
#[derive(Clone, Debug)]
pub struct CurrentShare {
    budget: u64,
    wanting: usize,
    /// `None`: no limit, each connection gets its demand.
    share: Option<BigRational>,
}

impl CurrentShare {
    /// Creates a share of `budget` bytes.
    pub fn new(budget: u64) -> Self {
        Self { budget, wanting: 0, share: None }
    }

    /// Runs one step: returns the bytes for each of `demands` (bytes). If the number of connections
    /// with a demand differs from that of the previous step, the share restarts from equal parts.
    pub fn negotiate(&mut self, demands: &[u64]) -> Vec<u64> {
        self.step(demands);
        self.grants(demands)
    }

    /// Runs steps until the share is constant: the max-min share.
    pub fn settle(&mut self, demands: &[u64]) -> Vec<u64> {
        // The first step may restart, with a share that happens to equal the old one. After it the
        // share only grows, each time past at least one demand.
        self.step(demands);
        for _ in 0..=demands.len() {
            let before = self.share.clone();
            self.step(demands);
            if self.share == before {
                break;
            }
        }
        self.grants(demands)
    }

    /// The share in bytes, or `None` if no connection needs a limit.
    pub fn limit(&self) -> Option<u64> {
        self.share.as_ref().map(|share| share.floor().to_integer().try_into().unwrap_or(u64::MAX))
    }

    fn step(&mut self, demands: &[u64]) {
        let wanting = demands.iter().filter(|&&demand| demand > 0).count();
        let asked: u128 = demands.iter().map(|&demand| u128::from(demand)).sum();
        let restart = wanting != self.wanting;
        self.wanting = wanting;
        if asked <= u128::from(self.budget) {
            self.share = None;
            return;
        }
        let equal = whole(self.budget) / whole(wanting);
        let last = match self.share.take() {
            Some(share) if !restart => share,
            _ => equal.clone(),
        };
        let (mut left, mut big) = (whole(self.budget), 0_u64);
        for &demand in demands.iter().filter(|&&demand| demand > 0) {
            if whole(demand) <= last {
                left -= whole(demand);
            } else {
                big += 1;
            }
        }
        let next = if big > 0 { left / whole(big) } else { equal.clone() };
        self.share = Some(next.max(equal));
    }

    fn exact(&self, demands: &[u64]) -> Vec<BigRational> {
        let cut = |demand: u64| match &self.share {
            Some(share) => whole(demand).min(share.clone()),
            None => whole(demand),
        };
        demands.iter().map(|&demand| cut(demand)).collect()
    }

    fn grants(&self, demands: &[u64]) -> Vec<u64> {
        round(&self.exact(demands), demands)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Policy, negotiate};
    use super::*;

    #[test]
    fn negotiate_example_of_the_paper_settles_in_one_step() {
        let mut share = CurrentShare::new(1024);
        assert_eq!(share.negotiate(&[64, 1024, 768]), [64, 480, 480]);
        assert_eq!(share.limit(), Some(480));
        assert_eq!(share.negotiate(&[64, 1024, 768]), [64, 480, 480]);
    }

    #[test]
    fn negotiate_repeatedly_reaches_max_min_share() {
        let demands = [1, 2, 4, 8, 16, 1000];
        let mut share = CurrentShare::new(100);
        let mut last = Vec::new();
        for _ in 0..demands.len() {
            last = share.negotiate(&demands);
        }
        assert_eq!(last, negotiate(Policy::MaxMin, 100, &demands));
    }

    #[test]
    fn negotiate_after_demands_rose_stays_within_budget() {
        let mut share = CurrentShare::new(1000);
        assert_eq!(share.settle(&[10, 10, 5000]), [10, 10, 980]);
        assert_eq!(share.negotiate(&[900, 900, 5000]), [333, 333, 334]);
        assert_eq!(share.negotiate(&[100, 900, 5000]), [100, 450, 450]);
        assert_eq!(share.negotiate(&[400, 400, 400]), [334, 333, 333]);
        assert_eq!(share.negotiate(&[400, 400]), [400, 400]);
    }

    /// The share for the five demands, 22.25, equals that of the first step for the six.
    #[test]
    fn settle_when_restarted_share_is_equal_continues() {
        let mut share = CurrentShare::new(101);
        share.negotiate(&[21, 21, 21, 12, 27]);
        assert_eq!(share.settle(&[17, 5, 25, 22, 7, 26]), [17, 5, 25, 22, 7, 25]);
    }

    #[test]
    fn negotiate_without_budget_or_demand_grants_nothing() {
        let mut share = CurrentShare::new(0);
        assert_eq!(share.negotiate(&[]), Vec::<u64>::new());
        assert_eq!(share.negotiate(&[0, 0]), [0, 0]);
        assert_eq!(share.settle(&[5, 6]), [0, 0]);
        assert_eq!(CurrentShare::new(100).settle(&[5, 6]), [5, 6]);
    }
}
