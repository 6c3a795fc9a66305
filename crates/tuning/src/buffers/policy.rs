//! The options of the buffer size negotiator.

use std::fmt;
use std::str::FromStr;

use num_rational::BigRational;
use num_traits::{ToPrimitive, Zero};
use thiserror::Error;

use super::fraction::{level, round, sum, whole};
use super::threshold;

/// How memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Each connection gets its demand, even if the sum exceeds the budget.
    None,
    /// `-m`: small demands are met; the other connections get equal shares.
    MaxMin,
    /// `-w`: demands up to the equal share are met; the others get the equal share, plus a part of
    /// the rest in proportion to their demands.
    Weighted,
    /// `-t`: a demand below 5 % of the sum of all demands gets up to 5 % of the memory; the others
    /// share the rest, one half equally and one half in proportion. The paper's text and its Table
    /// 4 disagree: 51 or 53 Kbytes in its example.
    MinimumThreshold {
        /// Whether small demands get what reproduces the paper's Table 4, instead of what its text
        /// says.
        table_compat: bool,
    },
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 5] = [
        Self::None,
        Self::MaxMin,
        Self::Weighted,
        Self::MinimumThreshold { table_compat: false },
        Self::MinimumThreshold { table_compat: true },
    ];

    /// `none`, `max-min`, `weighted`, `minimum-threshold` or `minimum-threshold-table`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::MaxMin => "max-min",
            Self::Weighted => "weighted",
            Self::MinimumThreshold { table_compat: false } => "minimum-threshold",
            Self::MinimumThreshold { table_compat: true } => "minimum-threshold-table",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is not the name of a policy.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "{0:?} is no buffer policy: expected none, max-min, weighted, minimum-threshold or minimum-threshold-table"
)]
pub struct PolicyName(pub String);

impl FromStr for Policy {
    type Err = PolicyName;

    fn from_str(name: &str) -> Result<Self, PolicyName> {
        Self::ALL.into_iter().find(|policy| policy.name() == name).ok_or_else(|| PolicyName(name.to_owned()))
    }
}

/// Divides `budget` bytes: returns the bytes for each of `demands` (bytes), in the same order.
pub fn negotiate(policy: Policy, budget: u64, demands: &[u64]) -> Vec<u64> {
    match exact(policy, budget, demands) {
        None => demands.to_vec(),
        Some(shares) => round(&shares, demands),
    }
}

/// The shares before rounding.
pub fn exact_shares(policy: Policy, budget: u64, demands: &[u64]) -> Vec<f64> {
    match exact(policy, budget, demands) {
        None => demands.iter().map(|&demand| demand as f64).collect(),
        Some(shares) => shares.iter().map(|share| share.to_f64().unwrap_or(f64::INFINITY)).collect(),
    }
}

/// The exact shares, or `None` if each connection gets its demand.
fn exact(policy: Policy, budget: u64, demands: &[u64]) -> Option<Vec<BigRational>> {
    let asked: u128 = demands.iter().map(|&demand| u128::from(demand)).sum();
    if policy == Policy::None || asked <= u128::from(budget) {
        return None;
    }
    // Connections without demand are not counted.
    let wanting: Vec<usize> = (0..demands.len()).filter(|&index| demands[index] > 0).collect();
    let wants: Vec<u64> = wanting.iter().map(|&index| demands[index]).collect();
    let budget = whole(budget);
    let granted = match policy {
        Policy::None => return None,
        Policy::MaxMin => level(&budget, &wants),
        Policy::Weighted => weighted(&budget, &wants),
        Policy::MinimumThreshold { table_compat } => threshold::shares(&budget, &wants, table_compat),
    };
    let mut shares = vec![BigRational::zero(); demands.len()];
    for (index, share) in wanting.into_iter().zip(granted) {
        shares[index] = share;
    }
    Some(shares)
}

fn weighted(budget: &BigRational, demands: &[u64]) -> Vec<BigRational> {
    let equal = budget / whole(demands.len());
    let mut shares: Vec<BigRational> = demands.iter().map(|&demand| whole(demand)).collect();
    let mut open: Vec<usize> = (0..demands.len()).filter(|&index| shares[index] > equal).collect();
    loop {
        let total = sum(open.iter().map(|&index| &shares[index]));
        let closed = sum(shares.iter()) - &total;
        if total.is_zero() {
            return shares;
        }
        let over = budget - closed - &equal * whole(open.len());
        let slope = over / total;
        let share = |demand: u64| &equal + &slope * whole(demand);
        // A connection whose share would exceed its demand gets its demand, and the others divide
        // the rest.
        let before = open.len();
        open.retain(|&index| share(demands[index]) < shares[index]);
        if open.len() == before {
            for index in open {
                shares[index] = share(demands[index]);
            }
            return shares;
        }
    }
}
