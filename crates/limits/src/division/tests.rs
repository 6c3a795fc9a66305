#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

fn limit(name: &str, rate: u64) -> LimitSpec {
    LimitSpec { name: name.into(), rate: Some(rate) }
}

fn user(name: &str, weight: u32, limits: &[LimitSpec]) -> FlowSpec {
    let (group, user) = (name.to_owned(), name.to_owned());
    FlowSpec { group, group_weight: weight, user, user_weight: 1, limits: limits.to_vec(), guarantee: None }
}

fn seconds(time: f64) -> Duration {
    Duration::from_secs_f64(time)
}

/// A stream of a flow: a block takes this long by itself, in seconds, and it moves blocks between
/// these times.
struct Stream {
    flow: FlowId,
    alone: f64,
    from: f64,
    until: f64,
}

/// Runs the streams in virtual time until `end`. Returns what each has moved, by time.
fn run(division: &mut Division, streams: &[Stream], block: u64, end: f64) -> Vec<Vec<(f64, u64)>> {
    let mut moved = vec![Vec::new(); streams.len()];
    let mut next: Vec<(f64, Option<Mark>)> =
        streams.iter().map(|stream| (stream.from + stream.alone, None)).collect();
    loop {
        let (at, now) =
            next.iter().map(|(time, _)| *time).enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        if now > end {
            return moved;
        }
        let stream = &streams[at];
        if now > stream.until {
            next[at].0 = f64::INFINITY;
            continue;
        }
        let mark = match next[at].1 {
            Some(mark) => Some(mark),
            None => {
                moved[at].push((now, block));
                division.charge(stream.flow, block, seconds(now))
            }
        };
        next[at] = match mark.and_then(|mark| Some((mark, division.due(mark, seconds(now))?))) {
            // A thread looks again after a moment, because rates may have changed.
            Some((mark, due)) => (due.as_secs_f64().clamp(now + 1e-6, now + 0.05), Some(mark)),
            None => (now + stream.alone, None),
        };
    }
}

fn sum(moved: &[(f64, u64)], from: f64, until: f64) -> f64 {
    moved.iter().filter(|(at, _)| (from..until).contains(at)).map(|(_, n)| *n as f64).sum()
}

fn stream(flow: FlowId, alone: f64) -> Stream {
    Stream { flow, alone, from: 0.0, until: f64::INFINITY }
}

#[test]
fn one_flow_with_any_number_of_fast_streams_keeps_the_rate() {
    for rate in [1_000_000, 25_000_000, 1_250_000_000_u64] {
        let block = (rate / 50).min(1 << 20);
        for count in [1, 2, 7, 64] {
            let mut division = Division::default();
            let flow = division.join(&user("a", 1, &[limit("all", rate)]), Duration::ZERO);
            // Alone each would take a tenth of the time.
            let streams: Vec<_> =
                (0..count).map(|_| stream(flow, 0.1 * block as f64 / rate as f64)).collect();
            let moved = run(&mut division, &streams, block, 20.0);
            let all: f64 = moved.iter().map(|moved| sum(moved, 0.0, 20.0)).sum();
            // One block of each stream may be under way beyond what is due.
            let slack = (count * block) as f64 + 0.1 * rate as f64;
            assert!((all - 20.0 * rate as f64).abs() <= slack, "{rate} {count}: {all}");
        }
    }
}

#[test]
fn flow_after_a_pause_saves_a_moment_only() {
    let mut division = Division::default();
    let flow = division.join(&user("a", 1, &[limit("all", 1000)]), Duration::ZERO);
    let mut due = |bytes, now: f64| {
        let mark = division.charge(flow, bytes, seconds(now)).unwrap();
        division.due(mark, seconds(now)).unwrap().as_secs_f64()
    };
    assert!((due(1000, 0.0) - 1.0).abs() < 1e-3);
    assert!((due(1000, 100.0) - 100.9).abs() < 1e-3);
    assert!((due(500, 100.0) - 101.4).abs() < 1e-3);
}

#[test]
fn limit_that_changes_holds_at_once_for_debts_too() {
    let mut division = Division::default();
    let flow = division.join(&user("a", 1, &[limit("all", 1)]), Duration::ZERO);
    let mark = division.charge(flow, 1000, Duration::ZERO).unwrap();
    assert_eq!(division.due(mark, Duration::ZERO), Some(Duration::from_secs(1000)));
    division.set_rate("all", Some(1000), Duration::ZERO);
    assert_eq!(division.due(mark, Duration::ZERO), Some(Duration::from_secs(1)));
    division.set_rate("all", None, Duration::ZERO);
    division.set_rate("other", Some(1), Duration::ZERO);
    assert_eq!(division.due(mark, Duration::from_millis(1)), None);
    assert_eq!(division.charge(flow, 1 << 40, Duration::from_millis(2)), None);
    assert_eq!(division.lowest_limit(flow), None);
}

#[test]
fn limit_of_a_flow_that_joins_with_another_rate_has_that_rate() {
    let mut division = Division::default();
    let old = division.join(&user("a", 1, &[limit("all", 14)]), Duration::ZERO);
    let new = division.join(&user("a", 1, &[limit("all", 7)]), Duration::ZERO);
    assert_eq!((division.lowest_limit(old), division.lowest_limit(new)), (Some(7), Some(7)));
}

#[test]
fn share_of_an_idle_user_is_lent_and_comes_back() {
    let (rate, block) = (10_000_000, 100_000);
    let mut division = Division::default();
    let [a, b] = ["a", "b"].map(|name| division.join(&user(name, 1, &[limit("all", rate)]), Duration::ZERO));
    let fast = 0.001;
    let streams = [stream(a, fast), Stream { flow: b, alone: fast, from: 10.0, until: 20.0 }];
    let moved = run(&mut division, &streams, block, 30.0);
    for (from, until, expected) in [(1.0, 9.0, 1.0), (11.0, 19.0, 0.5), (21.0, 29.0, 1.0)] {
        let share = sum(&moved[0], from, until) / (until - from) / rate as f64;
        assert!((share - expected).abs() < 0.03, "{from}: {share}");
    }
}

#[test]
fn share_that_a_slow_user_leaves_is_lent() {
    let (rate, block) = (10_000_000, 100_000);
    let mut division = Division::default();
    let [a, b] = [("a", 1), ("b", 4)]
        .map(|(name, weight)| division.join(&user(name, weight, &[limit("all", rate)]), Duration::ZERO));
    // The second could have 80 %, but takes 20 %.
    let moved = run(&mut division, &[stream(a, 0.001), stream(b, 0.04)], block, 20.0);
    let shares = [0, 1].map(|at| sum(&moved[at], 2.0, 20.0) / 18.0 / rate as f64);
    assert!(shares[0] + shares[1] > 0.97 && shares[0] + shares[1] < 1.02, "{shares:?}");
    assert!(shares[1] > 0.17, "{shares:?}");
}

#[test]
fn limits_without_flows_are_forgotten() {
    let mut division = Division::default();
    let first = division.join(&user("a", 1, &[limit("x", 5), limit("y", 6)]), Duration::ZERO);
    let second = division.join(&user("b", 1, &[limit("y", 6)]), Duration::ZERO);
    assert_eq!(division.join(&user("b", 1, &[limit("y", 6)]), Duration::ZERO), second);
    division.leave(first, Duration::ZERO);
    let names = |division: &Division| {
        let used = division.limits.iter().filter(|limit| limit.flows > 0);
        used.map(|limit| limit.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&division), ["y"]);
    division.leave(second, Duration::ZERO);
    assert_eq!(names(&division).len(), 1);
    division.leave(second, Duration::ZERO);
    assert!(division.limits.is_empty());
    assert_eq!(division.charge(second, 7, Duration::ZERO), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn backlogged_users_get_their_shares_and_the_sum_is_the_limit(
        users in proptest::collection::vec((1_u32..6, 1_usize..5), 1..6),
        rate in 1_000_000_u64..1_000_000_000,
    ) {
        let block = (rate / 50).clamp(16 << 10, 1 << 20);
        let mut division = Division::default();
        let flows: Vec<_> = users.iter().enumerate().map(|(at, (weight, _))| {
            division.join(&user(&format!("u{at}"), *weight, &[limit("all", rate)]), Duration::ZERO)
        }).collect();
        let mut streams = Vec::new();
        for (flow, (_, count)) in flows.iter().zip(&users) {
            streams.extend((0..*count).map(|_| stream(*flow, 0.01 * block as f64 / rate as f64)));
        }
        let (from, until) = (5.0, 45.0);
        let moved = run(&mut division, &streams, block, until);
        let mut moved = moved.iter().map(|moved| sum(moved, from, until));
        let by_user: Vec<f64> = users.iter().map(|(_, count)| moved.by_ref().take(*count).sum()).collect();
        let all: f64 = by_user.iter().sum();
        let asked = rate as f64 * (until - from);
        prop_assert!((all / asked - 1.0).abs() < 0.02, "{} of {}", all, asked);
        let weights: u32 = users.iter().map(|(weight, _)| weight).sum();
        for (moved, (weight, _)) in by_user.iter().zip(&users) {
            let share = moved / all / (f64::from(*weight) / f64::from(weights));
            prop_assert!((share - 1.0).abs() < 0.05, "{} of {:?}", share, users);
        }
    }

    #[test]
    fn division_after_any_calls_neither_panics_nor_exceeds_limits(
        calls in proptest::collection::vec((0_u8..5, 0_usize..4, 0_u64..1 << 40, 0_u64..3_000), 1..200),
    ) {
        let mut division = Division::default();
        let (mut now, mut joined): (u64, Vec<FlowId>) = (0, Vec::new());
        for (call, which, number, pause) in calls {
            now += pause;
            let time = Duration::from_millis(now);
            let names = ["all", "up", "down", "site"];
            let spec = user(["a", "b", "c", "d"][which], 1 + (number % 7) as u32, &[limit("all", 1000), limit(names[which], 500)]);
            match call {
                0 => joined.push(division.join(&spec, time)),
                1 if !joined.is_empty() => division.leave(joined.swap_remove(which % joined.len()), time),
                2 => division.set_rate(names[which], Some(number), time),
                // The clock of the caller goes back.
                3 => division.advance(Duration::from_millis(now / 2)),
                _ => {
                    let mark = joined.get(which).and_then(|flow| division.charge(*flow, number, time));
                    if let Some(mark) = mark {
                        prop_assert!(division.due(mark, time).is_none_or(|due| due >= time));
                    }
                }
            }
            for flow in division.flows.values() {
                prop_assert!(flow.debt >= 0.0 && flow.debt.is_finite() && flow.paid.is_finite());
            }
            for limit in &division.limits {
                prop_assert!(limit.saved >= 0.0 && limit.saved <= limit.rate.unwrap_or_default() * SAVED + 1e-6);
            }
        }
    }
}

#[test]
fn guaranteed_rate_is_had_beside_a_flood_lent_while_idle_and_gone_with_its_end() {
    let (rate, block) = (10_000_000, 100_000);
    for own_streams in [1, 4] {
        let mut division = Division::default();
        let limits = [limit("all", rate)];
        let guarantee = Some("g".to_owned());
        let reserved = division.join(&FlowSpec { guarantee, ..user("r", 1, &limits) }, Duration::ZERO);
        let flood = ["a", "b", "c"].map(|name| division.join(&user(name, 1, &limits), Duration::ZERO));
        division.set_guarantees(BTreeMap::from([("g".to_owned(), 7_000_000)]), Duration::ZERO);
        // Alone, a block of the reserved flow takes a seventh of the time that the guarantee has.
        let own = |_| Stream { flow: reserved, alone: 0.002, from: 10.0, until: 20.0 };
        let streams: Vec<_> = (0..own_streams)
            .map(own)
            .chain(flood.iter().flat_map(|flow| (0..4).map(|_| stream(*flow, 0.001))))
            .collect();
        let moved = run(&mut division, &streams, block, 30.0);
        let rates = |from: f64, until: f64| {
            let all = moved.iter().map(|moved| sum(moved, from, until) / (until - from) / rate as f64);
            let all: Vec<f64> = all.collect();
            (all[..own_streams].iter().sum::<f64>(), all[own_streams..].iter().sum::<f64>())
        };
        let ((_, lent), (own, others)) = (rates(1.0, 9.0), rates(11.0, 19.0));
        println!("{own_streams} streams: {own:.3} of 0.7, others {others:.3}, lent {lent:.3}");
        assert!((lent - 1.0).abs() < 0.03, "{lent}");
        assert!(own > 0.7 * 0.98 && own < 0.72, "{own_streams}: {own}");
        assert!((own + others - 1.0).abs() < 0.03, "{own} {others}");
        assert!((rates(21.0, 29.0).1 - 1.0).abs() < 0.03);
    }
    let mut division = Division::default();
    let spec = FlowSpec { guarantee: Some("g".to_owned()), ..user("r", 1, &[limit("all", 1000)]) };
    let reserved = division.join(&spec, Duration::ZERO);
    let other = division.join(&user("a", 1, &spec.limits), Duration::ZERO);
    let mut rate_with = |guarantee: Option<u64>| {
        let guarantees = guarantee.map(|rate| ("g".to_owned(), rate));
        division.set_guarantees(guarantees.into_iter().collect(), Duration::ZERO);
        division.charge(other, 1 << 20, Duration::ZERO);
        division.share(reserved, Duration::ZERO)
    };
    assert_eq!(
        [rate_with(Some(800)), rate_with(Some(100)), rate_with(None)],
        [Some(800), Some(500), Some(500)]
    );
}
