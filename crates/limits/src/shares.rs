//! The rates at which flows that want more than they get divide limits among them.
//!
//! All rates grow together in proportion to the weights until a limit is used up. The flows of that
//! limit keep their rate, the others continue to grow, and so on: weighted max-min fairness. The
//! weight of a flow is its part of its user's weight, whose part of the group's weight counts; so
//! what one member of a group leaves is lent to its other members first.

use std::collections::BTreeMap;

/// A flow that wants more than it gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharer<'a> {
    pub(crate) group: &'a str,
    pub(crate) group_weight: f64,
    pub(crate) user: &'a str,
    pub(crate) user_weight: f64,
    /// Indexes of its limits; at least one.
    pub(crate) limits: &'a [usize],
}

/// Rounding may leave a limit this much below its end, as a part of it.
const TOLERANCE: f64 = 1e-9;

/// The rates of `sharers`, for `limits` in bytes per second.
pub(crate) fn rates(sharers: &[Sharer<'_>], limits: &[f64]) -> Vec<f64> {
    let mut rates = vec![0.0; sharers.len()];
    let mut left = limits.to_vec();
    let mut growing: Vec<usize> = (0..sharers.len()).filter(|&at| !sharers[at].limits.is_empty()).collect();
    while !growing.is_empty() {
        let weights = weights(sharers, &growing);
        let mut growth = vec![0.0; limits.len()];
        for (&at, weight) in growing.iter().zip(&weights) {
            sharers[at].limits.iter().for_each(|&limit| growth[limit] += weight);
        }
        let times = growth.iter().zip(&left).map(|(growth, left)| left.max(0.0) / growth);
        let time = times.filter(|time| time.is_finite()).fold(f64::INFINITY, f64::min);
        if !time.is_finite() {
            break;
        }
        for (&at, weight) in growing.iter().zip(&weights) {
            rates[at] += weight * time;
        }
        for (left, growth) in left.iter_mut().zip(&growth) {
            *left -= growth * time;
        }
        let full = |limit: &usize| left[*limit] <= limits[*limit] * TOLERANCE;
        growing.retain(|&at| !sharers[at].limits.iter().any(full));
    }
    rates
}

/// The weights of users, and how many flows each has.
type Users<'a> = BTreeMap<&'a str, (f64, u32)>;

/// The weights of the flows that still grow, which have a sum of 1.
fn weights(sharers: &[Sharer<'_>], growing: &[usize]) -> Vec<f64> {
    let mut groups: BTreeMap<&str, (f64, Users<'_>)> = BTreeMap::new();
    for sharer in growing.iter().map(|&at| &sharers[at]) {
        let (_, users) = groups.entry(sharer.group).or_insert((sharer.group_weight, BTreeMap::new()));
        users.entry(sharer.user).or_insert((sharer.user_weight, 0)).1 += 1;
    }
    let all: f64 = groups.values().map(|(weight, _)| weight).sum();
    let sums: BTreeMap<&str, f64> = groups
        .iter()
        .map(|(group, (_, users))| (*group, users.values().map(|(weight, _)| weight).sum()))
        .collect();
    let weight = |sharer: &Sharer<'_>| {
        let (group_weight, users) = &groups[sharer.group];
        let (user_weight, flows) = users[sharer.user];
        group_weight / all * user_weight / sums[sharer.group] / f64::from(flows)
    };
    growing.iter().map(|&at| weight(&sharers[at])).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn user<'a>(user: &'a str, weight: f64, limits: &'a [usize]) -> Sharer<'a> {
        Sharer { group: user, group_weight: weight, user, user_weight: 1.0, limits }
    }

    #[test]
    fn rates_of_users_follow_their_weights() {
        let sharers = [user("a", 1.0, &[0]), user("b", 2.0, &[0]), user("c", 4.0, &[0])];
        let rates = rates(&sharers, &[700.0]);
        for (rate, expected) in rates.iter().zip([100.0, 200.0, 400.0]) {
            assert!((rate - expected).abs() < 1e-6, "{rates:?}");
        }
    }

    #[test]
    fn rate_that_a_user_may_not_have_is_lent_to_others() {
        let sharers = [user("a", 1.0, &[0]), user("b", 1.0, &[0, 1])];
        let rates = rates(&sharers, &[1000.0, 100.0]);
        assert!((rates[0] - 900.0).abs() < 1e-6 && (rates[1] - 100.0).abs() < 1e-6, "{rates:?}");
    }

    #[test]
    fn rate_that_a_member_leaves_goes_to_its_group_first() {
        let member =
            |group, user, limits| Sharer { group, group_weight: 1.0, user, user_weight: 1.0, limits };
        let sharers = [member("x", "a", &[0, 1][..]), member("x", "b", &[0]), member("y", "c", &[0])];
        let rates = rates(&sharers, &[1000.0, 100.0]);
        for (rate, expected) in rates.iter().zip([100.0, 400.0, 500.0]) {
            assert!((rate - expected).abs() < 1e-6, "{rates:?}");
        }
    }

    #[test]
    fn flows_of_one_user_share_the_weight_of_the_user() {
        let sharers = [user("a", 1.0, &[0]), user("a", 1.0, &[0]), user("b", 1.0, &[0])];
        let rates = rates(&sharers, &[100.0]);
        assert!((rates[0] - 25.0).abs() < 1e-6 && (rates[2] - 50.0).abs() < 1e-6, "{rates:?}");
    }

    proptest! {
        #[test]
        fn rates_stay_within_limits_and_no_flow_could_have_more(
            flows in proptest::collection::vec((0_usize..4, 1_u32..9, proptest::collection::btree_set(0_usize..5, 1..4)), 1..20),
            limits in proptest::collection::vec(1.0_f64..1e9, 5),
        ) {
            const NAMES: [&str; 4] = ["a", "b", "c", "d"];
            let sets: Vec<Vec<usize>> = flows.iter().map(|(_, _, set)| set.iter().copied().collect()).collect();
            let sharers: Vec<_> = flows.iter().zip(&sets).map(|((name, weight, _), set)| {
                user(NAMES[*name], f64::from(*weight), set)
            }).collect();
            let rates = rates(&sharers, &limits);
            let mut used = vec![0.0; limits.len()];
            for (sharer, rate) in sharers.iter().zip(&rates) {
                prop_assert!(*rate > 0.0);
                sharer.limits.iter().for_each(|&limit| used[limit] += rate);
            }
            for (used, limit) in used.iter().zip(&limits) {
                prop_assert!(*used <= limit * (1.0 + 1e-6));
            }
            for sharer in &sharers {
                prop_assert!(sharer.limits.iter().any(|&limit| used[limit] >= limits[limit] * (1.0 - 1e-6)));
            }
        }
    }
}
