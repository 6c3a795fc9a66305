//! Invariants of every division of buffers, for any demands.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use ropewalk_tuning::buffers::{CurrentShare, Policy, exact_shares, negotiate};

const DIVIDING: [Policy; 4] = [
    Policy::MaxMin,
    Policy::Weighted,
    Policy::MinimumThreshold { table_compat: false },
    Policy::MinimumThreshold { table_compat: true },
];

/// Up to this number of connections, a guarantee of one twentieth never exceeds the share of a
/// large demand: see `negotiate_many_small_demands_may_exceed_a_large_share`.
const FEW: usize = 10;

/// Small numbers cause ties and caps, large ones cause small shares and overflow.
fn demands() -> impl Strategy<Value = Vec<u64>> {
    let demand = || prop_oneof![0..20_u64, 0..5000_u64, 0..1_u64 << 40, Just(u64::MAX)];
    prop_oneof![
        prop::collection::vec(demand(), 0..10),
        prop::collection::vec(0..60_u64, 0..8),
        prop::collection::vec(0..5000_u64, 0..12),
        prop::collection::vec(demand(), 0..40)
    ]
}

fn budget() -> impl Strategy<Value = u64> {
    prop_oneof![0..200_u64, 0..20_000_u64, 0..1_u64 << 42]
}

fn total(bytes: &[u64]) -> u128 {
    bytes.iter().map(|&bytes| u128::from(bytes)).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn negotiate_uses_budget_within_demands(budget in budget(), demands in demands()) {
        for policy in DIVIDING {
            let granted = negotiate(policy, budget, &demands);
            prop_assert_eq!(granted.len(), demands.len());
            prop_assert_eq!(total(&granted), total(&demands).min(u128::from(budget)), "{}", policy);
            prop_assert!(granted.iter().zip(&demands).all(|(granted, demand)| granted <= demand), "{}", policy);
        }
        prop_assert_eq!(&negotiate(Policy::None, budget, &demands), &demands);
    }

    #[test]
    fn negotiate_ignores_order_of_connections(budget in budget(), demands in demands(), turn in 0..40_usize) {
        let mut turned = demands.clone();
        turned.reverse();
        let by = turn.min(turned.len());
        turned.rotate_left(by);
        for policy in DIVIDING {
            let pairs = |demands: &[u64]| {
                let mut pairs: Vec<_> =
                    demands.iter().copied().zip(negotiate(policy, budget, demands)).collect();
                pairs.sort_unstable();
                pairs
            };
            prop_assert_eq!(pairs(&demands), pairs(&turned), "{}", policy);
        }
    }

    #[test]
    fn negotiate_larger_demand_gets_no_less(budget in budget(), demands in demands()) {
        for policy in DIVIDING {
            if matches!(policy, Policy::MinimumThreshold { .. }) && demands.len() > FEW {
                continue;
            }
            let granted = negotiate(policy, budget, &demands);
            let mut pairs: Vec<_> = demands.iter().copied().zip(granted).collect();
            pairs.sort_unstable();
            let mut most = 0;
            let mut before = None;
            for chunk in pairs.chunk_by(|a, b| a.0 == b.0) {
                if let Some(most) = before {
                    prop_assert!(chunk.iter().all(|pair| pair.1 + 1 >= most), "{} {:?}", policy, pairs);
                }
                most = chunk.iter().map(|pair| pair.1).fold(most, u64::max);
                before = Some(most);
            }
        }
    }

    #[test]
    fn negotiate_larger_budget_reduces_no_share(budget in budget(), demands in demands()) {
        for policy in DIVIDING {
            let (less, more) = (negotiate(policy, budget, &demands), negotiate(policy, budget + 1, &demands));
            prop_assert!(less.iter().zip(&more).all(|(less, more)| more + 1 >= *less), "{} {:?} {:?}", policy, less, more);
        }
    }

    /// This does not hold for the minimum threshold, where another demand may cross the 5 % line.
    #[test]
    fn negotiate_raised_demand_gets_no_less(budget in budget(), demands in demands(), who: prop::sample::Index, more in 1..5000_u64) {
        if demands.is_empty() {
            return Ok(());
        }
        let who = who.index(demands.len());
        let mut raised = demands.clone();
        raised[who] = raised[who].saturating_add(more);
        for policy in [Policy::MaxMin, Policy::Weighted] {
            let (before, after) = (negotiate(policy, budget, &demands), negotiate(policy, budget, &raised));
            prop_assert!(after[who] + 1 >= before[who], "{} {:?} {:?}", policy, before, after);
        }
    }

    #[test]
    fn negotiate_grants_demand_or_equal_share(budget in budget(), demands in demands()) {
        let wanting = demands.iter().filter(|&&demand| demand > 0).count() as u64;
        if wanting == 0 {
            return Ok(());
        }
        for policy in [Policy::MaxMin, Policy::Weighted] {
            let granted = negotiate(policy, budget, &demands);
            for (granted, demand) in granted.iter().zip(&demands) {
                prop_assert!(*granted >= (*demand).min(budget / wanting), "{}", policy);
            }
        }
    }

    #[test]
    fn negotiate_max_min_reduces_only_the_largest(budget in budget(), demands in demands()) {
        let granted = negotiate(Policy::MaxMin, budget, &demands);
        let most = granted.iter().copied().max().unwrap_or(0);
        for (granted, demand) in granted.iter().zip(&demands) {
            prop_assert!(granted == demand || granted + 1 >= most);
        }
    }

    #[test]
    fn negotiate_grants_again_is_unchanged(budget in budget(), demands in demands()) {
        for policy in [Policy::MaxMin, Policy::Weighted] {
            let once = negotiate(policy, budget, &demands);
            prop_assert_eq!(&negotiate(policy, budget, &once), &once, "{}", policy);
        }
    }

    #[test]
    fn current_share_settles_on_max_min(budget in budget(), first in demands(), demands in demands()) {
        let fair = negotiate(Policy::MaxMin, budget, &demands);
        let mut share = CurrentShare::new(budget);
        share.negotiate(&first);
        for _ in 0..demands.len() + 1 {
            let granted = share.negotiate(&demands);
            prop_assert!(total(&granted) <= u128::from(budget));
            prop_assert!(granted.iter().zip(&demands).all(|(granted, demand)| granted <= demand));
        }
        prop_assert_eq!(share.negotiate(&demands), fair.clone());
        let mut share = CurrentShare::new(budget);
        share.negotiate(&first);
        prop_assert_eq!(share.settle(&demands), fair);
    }
}

/// Tables 2 to 5 of Jeong et al., in Kbytes.
#[test]
fn negotiate_matches_tables_of_the_paper() {
    let demands = [64, 1024, 768];
    assert_eq!(negotiate(Policy::MaxMin, 1024, &demands), [64, 480, 480]);
    assert_eq!(negotiate(Policy::Weighted, 1024, &demands), [64, 500, 460]);
    assert_eq!(negotiate(Policy::MinimumThreshold { table_compat: true }, 1024, &demands), [53, 520, 451]);
    // The rule of the text.
    let by_text = Policy::MinimumThreshold { table_compat: false };
    assert_eq!(negotiate(by_text, 1024, &demands), [51, 521, 452]);
    assert!((exact_shares(by_text, 1024, &demands)[0] - 51.2).abs() < 1e-12);

    let rates = |policy| -> Vec<i64> {
        let granted = negotiate(policy, 1024, &demands);
        let change = |(granted, demand): (u64, u64)| 100.0 * (granted as f64 - demand as f64) / demand as f64;
        // The table truncates 37.5.
        granted.into_iter().zip(demands).map(change).map(|rate| (rate + 0.01).round() as i64).collect()
    };
    assert_eq!(rates(Policy::MaxMin), [0, -53, -37]);
    assert_eq!(rates(Policy::Weighted), [0, -51, -40]);
    assert_eq!(rates(Policy::MinimumThreshold { table_compat: true }), [-17, -49, -41]);
}

/// With the minimum threshold, a higher demand may get less, because it makes another demand small.
#[test]
fn negotiate_threshold_is_not_monotone() {
    let policy = Policy::MinimumThreshold { table_compat: false };
    let (before, after) =
        (negotiate(policy, 5230, &[3723, 2286, 322]), negotiate(policy, 5230, &[3836, 2286, 322]));
    assert_eq!((before[0], after[0]), (2832, 2799));
}

/// Fourteen small demands get 5 % each; five of the six large ones get less.
#[test]
fn negotiate_many_small_demands_may_exceed_a_large_share() {
    let mut demands = vec![200; 14];
    demands.extend([50_000, 50_000, 50_000, 50_000, 50_000, 700_000]);
    let granted = negotiate(Policy::MinimumThreshold { table_compat: false }, 2000, &demands);
    assert_eq!(granted[12..], [100, 100, 66, 66, 66, 66, 65, 271]);
}

#[test]
fn policy_names_parse() {
    for policy in Policy::ALL {
        assert_eq!(policy.name().parse::<Policy>().unwrap(), policy);
    }
    assert!("fair".parse::<Policy>().unwrap_err().to_string().contains("expected none, max-min"));
}

/// Many connections whose demands reach their caps one after the other.
#[test]
fn negotiate_thousand_connections_is_fast() {
    let demands: Vec<u64> = (1..=1000).map(|n| n * n * 1000).collect();
    for policy in Policy::ALL {
        negotiate(policy, 100_000_000_000, &demands);
    }
}
