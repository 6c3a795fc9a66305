//! The fair share of Semke, Mahdavi and Mathis, kept from one negotiation to the next.

use num_rational::BigRational;

use super::fraction::{round, whole};

/// A share that follows the demands by one step a negotiation: who wants at most the share of last time gets its demand,
/// and the share becomes what is left for each of the others. With constant demands it reaches the max-min share in at
/// most as many steps as there are connections; [`settle`](Self::settle) takes them at once.
///
/// As published, a step after demands have risen may grant more than there is, or next to nothing. Here the share never
/// falls below the budget in equal parts, which keeps every step within the budget.
#[derive(Clone, Debug)]
pub struct CurrentShare {
    budget: u64,
    wanting: usize,
    /// `None`: no limit, everyone gets its demand.
    share: Option<BigRational>,
}

impl CurrentShare {
    /// Divides `budget` bytes.
    pub fn new(budget: u64) -> Self {
        Self { budget, wanting: 0, share: None }
    }

    /// One step: bytes for each of `demands` (bytes). A step with another number of connections than the last one starts
    /// again, from equal parts.
    pub fn negotiate(&mut self, demands: &[u64]) -> Vec<u64> {
        self.step(demands);
        self.grants(demands)
    }

    /// Steps until nothing changes: the max-min share.
    pub fn settle(&mut self, demands: &[u64]) -> Vec<u64> {
        // The first step may begin again, with a share that happens to be the old one. After it the share only grows, past
        // at least one demand each time.
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

    /// The share in bytes, or `None` if nobody needs a limit.
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
    fn one_step_suffices_for_the_papers_example() {
        let mut share = CurrentShare::new(1024);
        assert_eq!(share.negotiate(&[64, 1024, 768]), [64, 480, 480]);
        assert_eq!(share.limit(), Some(480));
        assert_eq!(share.negotiate(&[64, 1024, 768]), [64, 480, 480]);
    }

    #[test]
    fn it_reaches_the_max_min_share_step_by_step() {
        let demands = [1, 2, 4, 8, 16, 1000];
        let mut share = CurrentShare::new(100);
        let mut last = Vec::new();
        for _ in 0..demands.len() {
            last = share.negotiate(&demands);
        }
        assert_eq!(last, negotiate(Policy::MaxMin, 100, &demands));
    }

    #[test]
    fn risen_demands_stay_within_the_budget() {
        let mut share = CurrentShare::new(1000);
        assert_eq!(share.settle(&[10, 10, 5000]), [10, 10, 980]);
        assert_eq!(share.negotiate(&[900, 900, 5000]), [333, 333, 334]);
        assert_eq!(share.negotiate(&[100, 900, 5000]), [100, 450, 450]);
        assert_eq!(share.negotiate(&[400, 400, 400]), [334, 333, 333]);
        assert_eq!(share.negotiate(&[400, 400]), [400, 400]);
    }

    /// The share of the five, 22.25, is also that of the first step for the six.
    #[test]
    fn a_share_that_happens_to_be_the_old_one_is_not_settled() {
        let mut share = CurrentShare::new(101);
        share.negotiate(&[21, 21, 21, 12, 27]);
        assert_eq!(share.settle(&[17, 5, 25, 22, 7, 26]), [17, 5, 25, 22, 7, 25]);
    }

    #[test]
    fn nothing_to_divide() {
        let mut share = CurrentShare::new(0);
        assert_eq!(share.negotiate(&[]), Vec::<u64>::new());
        assert_eq!(share.negotiate(&[0, 0]), [0, 0]);
        assert_eq!(share.settle(&[5, 6]), [0, 0]);
        assert_eq!(CurrentShare::new(100).settle(&[5, 6]), [5, 6]);
    }
}
