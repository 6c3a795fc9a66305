#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

/// 2026-11-29T00:00:00Z.
const NOW: u64 = 1_795_910_400;
const CAPACITY: Capacity = Capacity { slots: 10, rate: 1000, user_rate: None, reservations: 1000 };

fn booking(token: &str, (slots, rate): (u32, u64), (from, until): (u64, u64)) -> Booking {
    let (token, user) = (token.to_owned(), "ada".to_owned());
    Booking { token, user, slots, rate, from, until, lease: until }
}

#[test]
fn reservations_that_overlap_are_added_up_and_others_are_not() {
    let mut calendar = Calendar::default();
    let mut reserve = |token, amounts, from, until| {
        calendar.reserve(booking(token, amounts, (NOW + from, NOW + until)), &CAPACITY, NOW)
    };
    assert_eq!(reserve("a", (6, 300), 0, 100), Ok(()));
    assert_eq!(reserve("b", (4, 700), 100, 200), Ok(()));
    // It meets one after the other, and not both.
    assert_eq!(reserve("c", (4, 300), 50, 150), Ok(()));
    assert_eq!(reserve("d", (1, 0), 99, 100), Err(Refusal::Slots { left: 0, most: 10, wanted: 1 }));
    assert_eq!(reserve("d", (0, 1), 149, 300), Err(Refusal::Rate { left: 0, most: 1000, wanted: 1 }));
    assert_eq!(reserve("d", (10, 1000), 200, 300), Ok(()));
    assert_eq!(
        reserve("e", (4_294_967_295, 0), 0, u64::MAX - NOW),
        Err(Refusal::Slots { left: 0, most: 10, wanted: 4_294_967_295 })
    );
    assert_eq!(
        reserve("e", (0, u64::MAX), 300, 301),
        Err(Refusal::Rate { left: 1000, most: 1000, wanted: u64::MAX })
    );
}

#[test]
fn next_change_is_the_next_begin_or_end_to_the_fraction_of_a_second() {
    let at = |ms: u64| Duration::from_millis(NOW * 1000 + ms);
    let next = |bookings: &[Booking], ms| next_change(bookings, at(ms)).map(|left| left.as_millis());
    let leased = Booking { lease: NOW + 30, ..booking("a", (1, 0), (NOW + 10, NOW + 60)) };
    let kept = booking("b", (1, 0), (NOW + 20, NOW + 60));
    assert_eq!(next(&[], 0), None);
    let both = [leased, kept];
    assert_eq!(next(&both, 250), Some(9750));
    // The moment itself is no future change: what it brings is in force.
    assert_eq!(next(&both, 10_000), Some(10_000));
    assert_eq!(next(&both, 19_999), Some(1));
    assert_eq!(next(&both, 20_000), Some(10_000));
    assert_eq!(next(&both, 30_001), Some(29_999));
    assert_eq!(next(&both, 60_000), None);
}

#[test]
fn window_that_is_reversed_empty_or_over_is_refused() {
    let mut calendar = Calendar::default();
    let mut reserve = |from, until| calendar.reserve(booking("a", (1, 1), (from, until)), &CAPACITY, NOW);
    assert_eq!(reserve(NOW + 5, NOW + 4), Err(Refusal::Reversed));
    assert_eq!(reserve(NOW + 5, NOW + 5), Err(Refusal::Reversed));
    assert_eq!(reserve(u64::MAX, 0), Err(Refusal::Reversed));
    assert_eq!(reserve(NOW - 100, NOW), Err(Refusal::Past));
    assert_eq!(reserve(0, 1), Err(Refusal::Past));
    // One that has begun is in force at once.
    assert_eq!(reserve(NOW - 300, NOW + 1), Ok(()));
    assert!(calendar.bookings()[0].is_in_force(NOW) && !calendar.bookings()[0].is_in_force(NOW + 1));
}

#[test]
fn reservation_whose_lease_is_not_extended_ends_and_leaves_its_window() {
    let mut calendar = Calendar::default();
    let night = (NOW + 3600, NOW + 7200);
    let held = Booking { lease: NOW + 120, ..booking("held", (10, 0), night) };
    assert_eq!(calendar.reserve(held, &CAPACITY, NOW), Ok(()));
    let wanted = booking("b", (1, 0), night);
    assert!(calendar.reserve(wanted.clone(), &CAPACITY, NOW + 119).is_err());
    assert_eq!(calendar.extend("held", "eve", NOW + 600, NOW + 119), None);
    assert_eq!(calendar.extend("held", "ada", NOW + 240, NOW + 119).unwrap().lease, NOW + 240);
    assert!(calendar.reserve(wanted.clone(), &CAPACITY, NOW + 239).is_err());
    assert_eq!(calendar.extend("held", "ada", NOW + 600, NOW + 240), None);
    assert_eq!(calendar.get("held", "ada", NOW + 240), None);
    let mut expiring = calendar.clone();
    let ended: Vec<_> = expiring.expire(NOW + 240).into_iter().map(|booking| booking.token).collect();
    assert_eq!((ended, expiring.bookings().len()), (vec!["held".to_owned()], 0));
    assert_eq!(calendar.reserve(wanted, &CAPACITY, NOW + 240), Ok(()));
    // It does not come back if the clock is set back.
    assert_eq!(calendar.get("held", "ada", NOW), None);
    // A lease is not longer than its window.
    assert_eq!(calendar.extend("b", "ada", u64::MAX, NOW + 240).unwrap().lease, night.1);
    assert_eq!(calendar.expire(night.1).len(), 1);
}

#[test]
fn reservation_is_released_by_its_user_alone() {
    let mut calendar = Calendar::default();
    assert_eq!(calendar.reserve(booking("a", (10, 0), (NOW, NOW + 9)), &CAPACITY, NOW), Ok(()));
    assert_eq!((calendar.release("a", "eve"), calendar.release("b", "ada")), (None, None));
    assert_eq!(calendar.get("a", "eve", NOW), None);
    assert_eq!(calendar.release("a", "ada").unwrap().slots, 10);
    assert_eq!(calendar.reserve(booking("b", (10, 0), (NOW, NOW + 9)), &CAPACITY, NOW), Ok(()));
}

#[test]
fn user_has_at_most_so_many_reservations_and_no_more_than_its_limits_let_through() {
    let mut calendar = Calendar::default();
    let capacity = Capacity { user_rate: Some(100), reservations: 3, ..CAPACITY };
    let mut reserve = |token, rate, user: &str| {
        let booking = Booking { user: user.to_owned(), ..booking(token, (0, rate), (NOW, NOW + 9)) };
        calendar.reserve(booking, &capacity, NOW)
    };
    assert_eq!(reserve("a", 60, "ada"), Ok(()));
    assert_eq!(reserve("b", 41, "ada"), Err(Refusal::UserRate { left: 40, most: 100, wanted: 41 }));
    assert_eq!(reserve("b", 100, "eve"), Ok(()));
    assert_eq!((reserve("c", 20, "ada"), reserve("d", 20, "ada")), (Ok(()), Ok(())));
    assert_eq!(reserve("e", 0, "ada"), Err(Refusal::TooMany { has: 3, most: 3 }));
}

#[test]
fn clock_that_is_set_by_minutes_moves_no_window() {
    let mut calendar = Calendar::default();
    let window = (NOW + 600, NOW + 1200);
    assert_eq!(calendar.reserve(booking("a", (10, 0), window), &CAPACITY, NOW), Ok(()));
    for now in [NOW - 300, NOW + 300, NOW, NOW + 900, NOW - 900] {
        let overlapping = booking("b", (1, 0), (NOW + 1199, NOW + 1300));
        assert!(calendar.reserve(overlapping, &CAPACITY, now).is_err(), "{now}");
        assert_eq!(calendar.bookings()[0].is_in_force(now), now == NOW + 900);
    }
}

/// A step of a user of the calendar.
#[derive(Clone, Debug)]
enum Step {
    Reserve {
        user: bool,
        slots: u32,
        rate: u64,
        from: u64,
        length: u64,
        lease: u64,
    },
    Extend {
        at: usize,
        lease: u64,
    },
    Release {
        at: usize,
    },
    /// The clock is set, perhaps back.
    Clock {
        now: u64,
    },
    Expire,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (any::<bool>(), 0_u32..6, 0_u64..600, 0_u64..60, 0_u64..40, 0_u64..70)
            .prop_map(|(user, slots, rate, from, length, lease)| Step::Reserve {
                user, slots, rate, from, length, lease
            }),
        2 => (0_usize..40, 0_u64..90).prop_map(|(at, lease)| Step::Extend { at, lease }),
        1 => (0_usize..40).prop_map(|at| Step::Release { at }),
        2 => (0_u64..60).prop_map(|now| Step::Clock { now }),
        1 => Just(Step::Expire),
    ]
}

proptest! {
    #[test]
    fn calendar_is_never_over_committed(steps in proptest::collection::vec(step(), 1..40)) {
        let mut calendar = Calendar::default();
        let mut now = 30;
        for (at, step) in steps.into_iter().enumerate() {
            let user = |user| if user { "ada" } else { "eve" };
            match step {
                Step::Reserve { user: who, slots, rate, from, length, lease } => {
                    let wanted = Booking {
                        token: at.to_string(),
                        user: user(who).to_owned(),
                        slots,
                        rate,
                        from,
                        until: from + length,
                        lease,
                    };
                    let fits = (from..from + length).all(|time| {
                        let at = |other: &&Booking| {
                            now < other.lease.min(other.until) && (other.from..other.until).contains(&time)
                        };
                        let (mut all_slots, mut all_rate) = (u64::from(slots), rate);
                        for other in calendar.bookings().iter().filter(at) {
                            all_slots += u64::from(other.slots);
                            all_rate += other.rate;
                        }
                        all_slots <= 10 && all_rate <= 1000
                    });
                    let reserved = calendar.reserve(wanted, &CAPACITY, now);
                    prop_assert_eq!(reserved.is_ok(), fits && length > 0 && from + length > now);
                }
                Step::Extend { at, lease } => {
                    let before = calendar.get(&at.to_string(), "ada", now).cloned();
                    let after = calendar.extend(&at.to_string(), "ada", lease, now).cloned();
                    prop_assert_eq!(before.is_some(), after.is_some());
                    prop_assert!(after.is_none_or(|after| after.lease == lease.min(after.until)));
                }
                Step::Release { at } => {
                    let there = calendar.bookings().iter().any(|one| {
                        one.token == at.to_string() && one.user == "eve"
                    });
                    prop_assert_eq!(calendar.release(&at.to_string(), "eve").is_some(), there);
                }
                Step::Clock { now: set } => now = set,
                Step::Expire => {
                    calendar.expire(now);
                    prop_assert!(calendar.bookings().iter().all(|one| now < one.lease.min(one.until)));
                }
            }
            for time in 0..100 {
                let in_force = calendar.bookings().iter().filter(|one| {
                    now < one.lease.min(one.until) && (one.from..one.until).contains(&time)
                });
                let (slots, rate) =
                    in_force.fold((0, 0), |(slots, rate), one| (slots + one.slots, rate + one.rate));
                prop_assert!(slots <= 10 && rate <= 1000, "{slots} {rate} at {time}");
            }
        }
    }
}
