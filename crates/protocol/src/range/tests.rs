#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;

fn set(text: &str) -> RangeSet {
    RangeSet::parse(text.as_bytes()).unwrap()
}

#[test]
fn range_set_is_parsed_and_printed() {
    assert_eq!(set("0-10,20-30").to_string(), "0-10,20-30");
    assert_eq!(set("20-30, 0-10,10-12,25-40,7-7").to_string(), "0-12,20-40");
    assert_eq!(set("0-18446744073709551615").len(), u64::MAX);
    assert_eq!(format!("{:?}", set("1-2")), "RangeSet(1-2)");
    assert!(set("5-5").is_empty());
    assert_eq!(RangeSet::parse(b"9-5"), Err(RangeError::Reversed { start: 9, end: 5 }));
    for text in
        ["", "5", "-", "1-", "-1", "1-2,", "1-2;3-4", "+1-2", "0-18446744073709551616", "a-b", "1-2-3"]
    {
        assert!(matches!(RangeSet::parse(text.as_bytes()), Err(RangeError::NotARange { .. })), "{text}");
    }
}

#[test]
fn range_set_queries_return_expected_ranges() {
    let ranges = set("0-10,20-30");
    assert_eq!((ranges.len(), ranges.count(), ranges.end(), ranges.prefix()), (20, 2, 30, 10));
    assert_eq!((RangeSet::new().end(), set("1-2").prefix()), (0, 0));
    assert_eq!(ranges.complement(5..25).to_string(), "10-20");
    assert_eq!(ranges.intersection(5..25).to_string(), "5-10,20-25");
    assert!(
        ranges.contains(20..30)
            && ranges.contains(7..7)
            && !ranges.contains(5..25)
            && !ranges.contains(30..31)
    );
}

#[test]
fn range_set_shifts_saturate_or_fail_on_overflow() {
    assert_eq!(set("0-10,20-30").shift_up(5), Some(set("5-15,25-35")));
    assert_eq!(set("1-2").shift_up(u64::MAX), None);
    assert_eq!(set("0-10,20-30").shift_down(5), set("0-5,15-25"));
    assert_eq!(set("0-10,20-30").shift_down(25), set("0-5"));
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, u64),
    Remove(u64, u64),
    Union(Vec<(u64, u64)>),
    Subtract(Vec<(u64, u64)>),
}

const SIZE: u64 = 40;

/// Either a few ranges, or so many short ones that the sets are merged.
fn ranges() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let short = (0..=SIZE, 0..3_u64).prop_map(|(at, length)| (at, (at + length).min(SIZE)));
    prop_oneof![prop::collection::vec((0..=SIZE, 0..=SIZE), 0..4), prop::collection::vec(short, 0..20),]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = || (0..=SIZE, 0..=SIZE);
    let step = prop_oneof![
        range().prop_map(|(a, b)| Step::Insert(a, b)),
        range().prop_map(|(a, b)| Step::Remove(a, b)),
        ranges().prop_map(Step::Union),
        ranges().prop_map(Step::Subtract),
    ];
    prop::collection::vec(step, 0..30)
}

fn collect(ranges: &[(u64, u64)]) -> RangeSet {
    ranges.iter().map(|(a, b)| *a..*b).collect()
}

proptest! {
    /// The set behaves like an array of one flag per byte.
    #[test]
    fn range_set_behaves_like_one_flag_per_byte(steps in steps(), (start, end) in (0..=SIZE, 0..=SIZE)) {
        let (mut set, mut flags) = (RangeSet::new(), vec![false; SIZE as usize]);
        for step in &steps {
            let (ranges, value) = match step {
                Step::Insert(a, b) => { set.insert(*a..*b); (vec![(*a, *b)], true) }
                Step::Remove(a, b) => { set.remove(*a..*b); (vec![(*a, *b)], false) }
                Step::Union(ranges) => { set.union(&collect(ranges)); (ranges.clone(), true) }
                Step::Subtract(ranges) => { set.subtract(&collect(ranges)); (ranges.clone(), false) }
            };
            for (a, b) in ranges {
                for at in a..b {
                    flags[at as usize] = value;
                }
            }
            let ranges: Vec<_> = set.iter().collect();
            prop_assert!(ranges.iter().all(|r| r.start < r.end));
            prop_assert!(ranges.windows(2).all(|w| w[0].end < w[1].start));
            for at in 0..SIZE {
                prop_assert_eq!(set.contains(at..at + 1), flags[at as usize]);
            }
        }
        let within = |at: &u64| start <= *at && *at < end;
        let all: Vec<u64> = (0..SIZE).collect();
        let bytes = |set: &RangeSet| set.iter().flatten().collect::<Vec<_>>();
        let has = |at: &u64| flags[*at as usize];
        prop_assert_eq!(bytes(&set), all.iter().copied().filter(has).collect::<Vec<_>>());
        prop_assert_eq!(bytes(&set.intersection(start..end)), all.iter().copied().filter(|a| has(a) && within(a)).collect::<Vec<_>>());
        prop_assert_eq!(bytes(&set.complement(start..end)), all.iter().copied().filter(|a| !has(a) && within(a)).collect::<Vec<_>>());
        prop_assert_eq!(set.contains(start..end), all.iter().filter(|a| within(a)).all(has));
        prop_assert_eq!(set.len(), flags.iter().filter(|f| **f).count() as u64);
        prop_assert_eq!(set.prefix(), flags.iter().take_while(|f| **f).count() as u64);
        if !set.is_empty() {
            prop_assert_eq!(RangeSet::parse(set.to_string().as_bytes()), Ok(set.clone()));
        }
        let up = set.shift_up(start).unwrap();
        prop_assert_eq!(bytes(&up), bytes(&set).iter().map(|a| a + start).collect::<Vec<_>>());
        prop_assert_eq!(up.shift_down(start), set);
    }

    #[test]
    fn range_set_on_any_input_does_not_panic(text: Vec<u8>, a: u64, b: u64) {
        let _ = RangeSet::parse(&text);
        let mut set = RangeSet::from_range(a..b);
        set.insert(b..a);
        set.remove(a / 2..b);
        let _ = (set.len(), set.shift_up(b), set.shift_down(a), set.complement(0..u64::MAX));
    }
}

/// A peer decides the number and the order of the ranges. Each of these operations would take
/// minutes if every range moved the ranges after it.
#[test]
fn range_set_of_a_million_ranges_is_fast() {
    const MANY: u64 = 1 << 20;
    let every = |step: u64, from: u64| (0..MANY).map(move |i| from + step * i..from + step * i + 1);
    let (even, odd): (RangeSet, RangeSet) = (every(4, 0).collect(), every(4, 2).rev().collect());
    let mut both = even.clone();
    both.union(&odd);
    assert_eq!((both.count() as u64, both.len()), (2 * MANY, 2 * MANY));
    assert_eq!(both.complement(0..4 * MANY).len(), 2 * MANY);
    let mut left = both.clone();
    left.subtract(&even);
    assert_eq!(left, odd);
    left.subtract(&odd);
    assert!(left.is_empty());
    // As with markers, the ranges reported before are removed again and again.
    let mut told = RangeSet::new();
    for _ in 0..4 {
        let mut news = both.clone();
        news.subtract(&told);
        told.union(&news);
    }
    assert_eq!(told, both);
    assert_eq!(both.intersection(2..4 * MANY - 5).count() as u64, 2 * MANY - 3);
    let gaps = both.complement(0..both.end());
    gaps.iter().rev().for_each(|gap| both.insert(gap));
    assert_eq!(both.count(), 1);
}

/// Ranges from the last to the first, and from both ends to the middle: each of these would take
/// minutes if every range moved the ranges after it.
#[test]
fn range_set_insertions_in_any_order_are_fast() {
    const MANY: u64 = 1 << 19;
    let at = |i: u64| 2 * i..2 * i + 1;
    let all: RangeSet = (0..MANY).map(at).collect();
    let mut descending = RangeSet::new();
    (0..MANY).rev().for_each(|i| descending.insert(at(i)));
    assert!(descending == all);
    let mut inwards = RangeSet::new();
    (0..MANY / 2).flat_map(|i| [i, MANY - 1 - i]).for_each(|i| inwards.insert(at(i)));
    assert!(inwards == all);
    // An operation with a few ranges does not visit all ranges.
    for i in (0..MANY).step_by(16) {
        assert_eq!(all.intersection(2 * i..2 * i + 2).len(), 1);
        assert_eq!(all.complement(2 * i..2 * i + 2).len(), 1);
        descending.subtract(&RangeSet::from_range(at(i)));
        inwards.union(&RangeSet::from_range(2 * i + 1..2 * i + 2));
    }
    assert_eq!(descending.len(), MANY - MANY / 16);
    assert_eq!(inwards.count() as u64, MANY - MANY / 16);
}
