//! The policy of the minimum threshold, option `-t`.

use num_rational::BigRational;
use num_traits::Zero;

use super::fraction::{level, sum, whole};

/// A demand below one twentieth of the sum of all demands is small.
const PART: u32 = 20;

/// Computes the shares of positive demands whose sum exceeds `budget`.
pub(super) fn shares(budget: &BigRational, demands: &[u64], table_compat: bool) -> Vec<BigRational> {
    let asked: u128 = demands.iter().map(|&demand| u128::from(demand)).sum();
    let is_small = |demand: u64| u128::from(demand) * u128::from(PART) < asked;
    let small: Vec<usize> = (0..demands.len()).filter(|&index| is_small(demands[index])).collect();
    let big: Vec<usize> = (0..demands.len()).filter(|&index| !is_small(demands[index])).collect();
    let wants_of = |of: &[usize]| -> Vec<u64> { of.iter().map(|&index| demands[index]).collect() };
    let (small_wants, big_wants) = (wants_of(&small), wants_of(&big));

    let mut guarantee = budget / whole(PART);
    if table_compat {
        let big_asked: u128 = big_wants.iter().map(|&demand| u128::from(demand)).sum();
        if big_asked > 0 {
            guarantee *= whole(asked) / whole(big_asked);
        }
    }
    // Limit the small demands together to their part of an equal division.
    let limit = budget * whole(small.len()) / whole(demands.len());
    let mut granted = sum(small_wants
        .iter()
        .map(|&demand| whole(demand).min(guarantee.clone()))
        .collect::<Vec<_>>()
        .iter());
    granted = granted.min(limit);

    let big_shares = halves(&(budget - &granted), &big_wants);
    // Return the memory that the big demands cannot use to the small ones. Because all small
    // demands have a common ceiling, dividing the addition equally only raises this ceiling.
    let small_shares = level(&(budget - sum(&big_shares)), &small_wants);

    let mut shares = vec![BigRational::zero(); demands.len()];
    for (index, share) in small.into_iter().zip(small_shares).chain(big.into_iter().zip(big_shares)) {
        shares[index] = share;
    }
    shares
}

/// Divides `total`, one half equally and one half in proportion to the demands. The excess over a
/// demand is divided among the others in proportion to their demands, in addition to their shares.
fn halves(total: &BigRational, demands: &[u64]) -> Vec<BigRational> {
    let mut shares: Vec<BigRational> = demands.iter().map(|&demand| whole(demand)).collect();
    let mut open: Vec<usize> = (0..demands.len()).collect();
    if open.is_empty() {
        return shares;
    }
    let half = total / whole(2);
    let equal = &half / whole(open.len());
    let mut slope = half / sum(&shares);
    loop {
        let share = |demand: u64| &equal + &slope * whole(demand);
        let mut left = BigRational::zero();
        open.retain(|&index| {
            let over = share(demands[index]) - &shares[index];
            let keep = over < BigRational::zero();
            if !keep {
                left += over;
            }
            keep
        });
        if left.is_zero() || open.is_empty() {
            for index in open {
                shares[index] = share(demands[index]);
            }
            return shares;
        }
        slope += left / sum(open.iter().map(|&index| &shares[index]));
    }
}
