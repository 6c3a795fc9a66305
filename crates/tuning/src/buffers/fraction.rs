//! Exact shares as fractions, and their rounding to bytes.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{ToPrimitive, Zero};

pub(super) fn whole(number: impl Into<BigInt>) -> BigRational {
    BigRational::from_integer(number.into())
}

pub(super) fn sum<'a>(shares: impl IntoIterator<Item = &'a BigRational>) -> BigRational {
    shares.into_iter().fold(BigRational::zero(), |sum, share| sum + share)
}

/// Divides `total` equally, except that no share exceeds its demand. Returns the shares in the
/// order of `demands`.
pub(super) fn level(total: &BigRational, demands: &[u64]) -> Vec<BigRational> {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|&index| demands[index]);
    let mut left = total.clone();
    let mut shares = vec![BigRational::zero(); demands.len()];
    for (done, &index) in order.iter().enumerate() {
        let equal = &left / whole(demands.len() - done);
        let share = whole(demands[index]).min(equal);
        left -= &share;
        shares[index] = share;
    }
    shares
}

/// Rounds `shares` to whole bytes whose sum is the rounded-down sum of the shares (see the module
/// `buffers`). No result exceeds its demand.
pub(super) fn round(shares: &[BigRational], demands: &[u64]) -> Vec<u64> {
    let total = sum(shares).floor().to_integer();
    let mut bytes: Vec<u64> =
        shares.iter().map(|share| share.floor().to_integer().to_u64().unwrap_or(u64::MAX)).collect();
    let mut given = BigInt::zero();
    for amount in &bytes {
        given += *amount;
    }
    let rest = (total - given).to_usize().unwrap_or(0);
    let fractions: Vec<BigRational> = shares.iter().map(BigRational::fract).collect();
    let mut order: Vec<usize> = (0..shares.len()).filter(|&index| bytes[index] < demands[index]).collect();
    order.sort_by(|&a, &b| fractions[b].cmp(&fractions[a]).then(demands[b].cmp(&demands[a])).then(a.cmp(&b)));
    for &index in order.iter().take(rest) {
        bytes[index] += 1;
    }
    bytes
}
