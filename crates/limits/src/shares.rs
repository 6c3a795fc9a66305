//! The rates at which flows that want more than they get divide limits among them.
//!
//! All rates grow together in proportion to the weights until a limit is used up. The flows of that
//! limit keep their rate, the others continue to grow, and so on: weighted max-min fairness. The
//! weight of a flow is its part of its user's weight, whose part of the group's weight counts; so
//! what one member of a group leaves is lent to its other members first.
//!
//! A flow may have a floor: if its share is less, it gets the floor, and the others divide the
//! rest.

use std::collections::BTreeMap;

/// A flow that wants more than it gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharer<'a> {
    pub(crate) group: &'a str,
    pub(crate) group_weight: f64,
    pub(crate) user: &'a str,
    pub(crate) user_weight: f64,
    /// The least rate, in bytes per second.
    pub(crate) floor: f64,
    /// Indexes of its limits; at least one.
    pub(crate) limits: &'a [usize],
}

/// Rounding may leave a limit this much below its end, as a part of it.
const TOLERANCE: f64 = 1e-9;

/// Floors take at most this part of a limit, so that no flow stands still.
const MOST_FLOORS: f64 = 0.95;

/// The rates of `sharers`, for `limits` in bytes per second.
pub(crate) fn rates(sharers: &[Sharer<'_>], limits: &[f64]) -> Vec<f64> {
    let floors = floors(sharers, limits);
    let mut at_floor = vec![false; sharers.len()];
    loop {
        let rates = rates_beside(sharers, limits, &floors, &at_floor);
        let is_below = |at: &usize| !at_floor[*at] && rates[*at] < floors[*at] * (1.0 - TOLERANCE);
        let below: Vec<usize> = (0..sharers.len()).filter(is_below).collect();
        if below.is_empty() {
            return rates;
        }
        below.into_iter().for_each(|at| at_floor[at] = true);
    }
}

/// The rates if the flows `at_floor` have their floors, and the others divide the rest.
fn rates_beside(sharers: &[Sharer<'_>], limits: &[f64], floors: &[f64], at_floor: &[bool]) -> Vec<f64> {
    let mut rates = vec![0.0; sharers.len()];
    let mut left = limits.to_vec();
    for at in (0..sharers.len()).filter(|&at| at_floor[at]) {
        rates[at] = floors[at];
        sharers[at].limits.iter().for_each(|&limit| left[limit] -= floors[at]);
    }
    let grows = |at: &usize| !at_floor[*at] && !sharers[*at].limits.is_empty();
    let mut growing: Vec<usize> = (0..sharers.len()).filter(grows).collect();
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

/// The floors of `sharers`, reduced in proportion where limits do not let all of them through.
fn floors(sharers: &[Sharer<'_>], limits: &[f64]) -> Vec<f64> {
    let mut floors = vec![0.0; sharers.len()];
    let has_floor = |at: &usize| sharers[*at].floor > 0.0 && !sharers[*at].limits.is_empty();
    let mut growing: Vec<usize> = (0..sharers.len()).filter(has_floor).collect();
    let mut left: Vec<f64> = limits.iter().map(|limit| limit * MOST_FLOORS).collect();
    // The part of the floors that all of them have so far.
    let mut part = 0.0;
    while !growing.is_empty() {
        let mut growth = vec![0.0; limits.len()];
        for &at in &growing {
            sharers[at].limits.iter().for_each(|&limit| growth[limit] += sharers[at].floor);
        }
        let parts = growth.iter().zip(&left).map(|(growth, left)| left.max(0.0) / growth);
        let step = parts.filter(|part| part.is_finite()).fold(1.0 - part, f64::min);
        part += step;
        growing.iter().for_each(|&at| floors[at] = sharers[at].floor * part);
        if part >= 1.0 {
            break;
        }
        for (left, growth) in left.iter_mut().zip(&growth) {
            *left -= growth * step;
        }
        let full = |limit: &usize| left[*limit] <= limits[*limit] * TOLERANCE;
        growing.retain(|&at| !sharers[at].limits.iter().any(full));
    }
    floors
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
        Sharer { group: user, group_weight: weight, user, user_weight: 1.0, floor: 0.0, limits }
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
        let member = |group, name, limits| Sharer { group, ..user(name, 1.0, limits) };
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

    #[test]
    fn flow_whose_share_is_less_than_its_floor_gets_the_floor_and_others_the_rest() {
        let reserved = |floor| Sharer { floor, ..user("r", 1.0, &[0]) };
        let with = |floor| rates(&[reserved(floor), user("a", 1.0, &[0]), user("b", 3.0, &[0])], &[1000.0]);
        for (floor, expected) in [
            (0.0, [200.0, 200.0, 600.0]),
            (100.0, [200.0, 200.0, 600.0]),
            (600.0, [600.0, 100.0, 300.0]),
            // More than a limit lets through.
            (2000.0, [950.0, 12.5, 37.5]),
        ] {
            let rates = with(floor);
            for (rate, expected) in rates.iter().zip(expected) {
                assert!((rate - expected).abs() < 1e-6, "{floor}: {rates:?}");
            }
        }
    }

    #[test]
    fn floors_that_a_limit_does_not_let_through_are_reduced_in_proportion() {
        let reserved = |name, floor| Sharer { floor, ..user(name, 1.0, &[0]) };
        let rates = rates(&[reserved("a", 3000.0), reserved("b", 1000.0), user("c", 1.0, &[0])], &[1000.0]);
        for (rate, expected) in rates.iter().zip([712.5, 237.5, 50.0]) {
            assert!((rate - expected).abs() < 1e-6, "{rates:?}");
        }
    }

    proptest! {
        #[test]
        fn flows_with_floors_get_them_if_they_fit_and_no_limit_is_exceeded(
            flows in proptest::collection::vec((1_u32..9, proptest::bool::ANY, 0.0_f64..1.0), 1..12),
            other in 1.0_f64..1e9,
        ) {
            const LIMIT: f64 = 1e8;
            let sum: f64 = flows.iter().map(|(_, _, floor)| floor).sum();
            let names: Vec<String> = (0..flows.len()).map(|at| at.to_string()).collect();
            let sharers: Vec<_> = flows.iter().zip(&names).map(|((weight, both, floor), name)| Sharer {
                // The floors of all have 90 % of the first limit together.
                floor: floor / sum.max(0.1) * LIMIT * 0.9,
                ..user(name, f64::from(*weight), if *both { &[0, 1] } else { &[0] })
            }).collect();
            let rates = rates(&sharers, &[LIMIT, other]);
            let second: f64 = rates.iter().zip(&flows).filter(|(_, flow)| flow.1).map(|(rate, _)| rate).sum();
            prop_assert!(rates.iter().sum::<f64>() <= LIMIT * (1.0 + 1e-6) && second <= other * (1.0 + 1e-6));
            let floors: f64 = sharers.iter().zip(&flows).filter(|(_, f)| f.1).map(|(s, _)| s.floor).sum();
            for ((rate, sharer), flow) in rates.iter().zip(&sharers).zip(&flows) {
                prop_assert!(*rate > 0.0);
                if !flow.1 || floors <= other * 0.95 {
                    prop_assert!(*rate >= sharer.floor * (1.0 - 1e-6), "{rate} {}", sharer.floor);
                }
            }
        }

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
