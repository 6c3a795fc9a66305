//! The link in virtual time: rates, delays, queues, and the invariants for all inputs.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use proptest::prelude::*;
use ropewalk_lab::emulator::link::{Link, Nanos};
use ropewalk_lab::emulator::{Codel, Counters, Direction, Loss, Queue, Rate, Red, Reorder};

const MS: Nanos = 1_000_000;
const END: Nanos = 1 << 60;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// All packets that arrive until `now`, with their times of arrival.
fn take_all(link: &mut Link<u64>, now: Nanos) -> Vec<(Nanos, u64)> {
    std::iter::from_fn(|| link.take(now)).map(|packet| (packet.due, packet.payload)).collect()
}

fn link(config: Direction) -> Link<u64> {
    config.validate().unwrap();
    Link::new(config, 42)
}

fn conserved(c: &Counters) -> bool {
    c.packets_in == c.packets_out + c.lost + c.dropped() + c.waiting + c.travelling
}

#[test]
fn link_with_a_rate_spaces_packets() {
    let mut link =
        link(Direction { rate: Rate::mbit(100), delay: ms(10), overhead: 38, ..Direction::default() });
    for n in 0..100 {
        link.offer(5 * MS, 1462, false, n);
    }
    // 1500 bytes take 120 us.
    let expected: Vec<(Nanos, u64)> = (0..100).map(|n| (15 * MS + (n + 1) * 120_000, n)).collect();
    assert_eq!(link.next_deadline(0), Some(expected[0].0));
    assert!(link.take(expected[0].0 - 1).is_none());
    assert_eq!(take_all(&mut link, END), expected);
    assert_eq!(link.next_deadline(0), None);
}

#[test]
fn link_at_odd_rates_does_not_drift() {
    for rate in [7_000_003, 999_999_937, 12_345] {
        let queue = Queue::DropTail { packets: 100_000 };
        let mut link = link(Direction { rate: Rate::bits_per_second(rate), queue, ..Direction::default() });
        let sizes = (0..5000u64).map(|n| 40 + n * 7919 % 1461);
        let mut bits = 0;
        for (n, size) in sizes.enumerate() {
            link.offer(0, size as u32, false, n as u64);
            bits += size * 8;
        }
        let last = take_all(&mut link, END).last().unwrap().0;
        let exact = u128::from(bits) * 1_000_000_000 / u128::from(rate);
        assert_eq!(u128::from(last), exact, "{rate}");
    }
}

#[test]
fn drop_tail_at_its_limit_does_not_count_the_packet_on_the_link() {
    let queue = Queue::DropTail { packets: 50 };
    let mut link = link(Direction { rate: Rate::mbit(12), queue, ..Direction::default() });
    for n in 0..100 {
        link.offer(0, 1500, false, n);
    }
    let counters = link.counters();
    assert_eq!(
        (counters.dropped_full, counters.waiting, counters.waiting_max, counters.travelling),
        (49, 50, 50, 1)
    );
    // After one slot of 1 ms there is room for one packet.
    link.offer(MS, 1500, false, 100);
    link.offer(MS, 1500, false, 101);
    assert_eq!(link.counters().dropped_full, 50);
    let arrived: Vec<u64> = take_all(&mut link, END).into_iter().map(|(_, n)| n).collect();
    assert_eq!(arrived, (0..51).chain([100]).collect::<Vec<_>>());
    let window = link.window();
    assert_eq!((window.queue_max, window.served, window.waited_max), (50, 52, 50 * MS));
}

#[test]
fn link_without_a_rate_queues_no_packet() {
    let mut link =
        link(Direction { delay: ms(3), queue: Queue::DropTail { packets: 1 }, ..Direction::default() });
    for n in 0..1000 {
        link.offer(n, 1500, false, n);
    }
    assert_eq!(take_all(&mut link, END), (0..1000).map(|n| (n + 3 * MS, n)).collect::<Vec<_>>());
}

#[test]
fn next_deadline_with_hold_joins_packets_due_close_together() {
    let mut link = link(Direction { rate: Rate::mbit(1200), delay: ms(1), ..Direction::default() });
    for n in 0..30 {
        link.offer(0, 1500, false, n);
    }
    link.advance(MS);
    // One packet every 10 us, from 1.01 ms on.
    assert_eq!(link.next_deadline(0), Some(MS + 10_000));
    assert_eq!(link.next_deadline(100_000), Some(MS + 110_000));
    link.take(MS + 250_000).unwrap();
    take_all(&mut link, MS + 290_000);
    assert_eq!(link.next_deadline(100_000), Some(MS + 300_000), "the last one waits for nobody");
}

#[test]
fn link_with_reordering_delays_packets_and_counts_them() {
    let reorder = Some(Reorder { probability: 0.05, by: ms(2) });
    let mut link = link(Direction { delay: ms(10), reorder, ..Direction::default() });
    let n = 20_000;
    for i in 0..n {
        link.offer(i * MS / 2, 1500, false, i);
    }
    let arrived = take_all(&mut link, END);
    let held = arrived.iter().filter(|(due, i)| *due == i * MS / 2 + 12 * MS).count() as f64;
    assert!(arrived.iter().all(|(due, i)| [10 * MS, 12 * MS].contains(&(due - i * MS / 2))));
    assert!((held / n as f64 - 0.05).abs() < 4.0 * (0.05f64 * 0.95 / n as f64).sqrt());
    assert!(arrived.is_sorted_by_key(|(due, _)| *due));
    let mut largest = 0;
    let late = arrived.iter().filter(|(_, i)| {
        largest = largest.max(*i);
        *i < largest
    });
    assert_eq!(link.counters().reordered, late.count() as u64);
    assert!(link.counters().reordered > 900);
}

#[test]
fn link_with_jitter_keeps_order_and_mean() {
    let mut link = link(Direction { delay: ms(10), jitter: ms(4), ..Direction::default() });
    let n = 100_000;
    for i in 0..n {
        link.offer(i * MS / 10, 1500, false, i);
    }
    let arrived = take_all(&mut link, END);
    assert!(arrived.iter().enumerate().all(|(place, (_, i))| place as u64 == *i));
    let delays: Vec<f64> = arrived.iter().map(|(due, i)| (due - i * MS / 10) as f64 / MS as f64).collect();
    assert!(delays.iter().all(|delay| (6.0..=14.0).contains(delay)));
    assert!(delays.iter().any(|delay| *delay < 6.5) && delays.iter().any(|delay| *delay > 13.5));
    let mean = delays.iter().sum::<f64>() / n as f64;
    assert!((mean - 10.0).abs() < 0.4, "{mean}");
    assert_eq!(link.counters().reordered, 0);
}

/// Offers `rate` bits per second in 1500-byte packets from `from` to `to`; returns the times of
/// drops or marks.
fn offer_at(link: &mut Link<u64>, rate: u64, from: Nanos, to: Nanos, ecn: bool) -> Vec<Nanos> {
    let gap = 12_000 * 1_000_000_000 / rate;
    let mut events = Vec::new();
    let mut before = link.counters();
    let mut now = from;
    while now < to {
        link.offer(now, 1500, ecn, now);
        let after = link.counters();
        if after.dropped_codel + after.marked > before.dropped_codel + before.marked {
            events.push(now);
        }
        before = after;
        now += gap;
    }
    events
}

fn codel(ecn: bool) -> Direction {
    let queue = Queue::Codel(Codel { limit: 100_000, ecn, ..Codel::default() });
    Direction { rate: Rate::mbit(12), queue, ..Direction::default() }
}

#[test]
fn codel_under_overload_drops_after_an_interval_and_then_faster() {
    let mut link = link(codel(false));
    // The load is 10 % too high. The delay exceeds 5 ms after about 50 ms, so the first drop comes
    // at 150 ms.
    let drops = offer_at(&mut link, 13_200_000, 0, 3000 * MS, false);
    assert!((145 * MS..165 * MS).contains(&drops[0]), "{}", drops[0]);
    for (n, pair) in drops.windows(2).enumerate().take(20) {
        // RFC 8289 section 5.6: the gap after the count-th drop is interval / sqrt(count).
        let expected = 100.0 / ((n + 1) as f64).sqrt();
        let gap = (pair[1] - pair[0]) as f64 / MS as f64;
        assert!((gap - expected).abs() < 2.5, "{n}: {gap} rather than {expected}");
    }
    assert!(conserved(&link.counters()));
}

#[test]
fn codel_with_a_short_burst_drops_none() {
    let mut link = link(codel(false));
    // First the offered rate equals that of the link, so there is no delay. Then comes a burst of
    // 80 ms, which is over within the interval.
    assert!(offer_at(&mut link, 12_000_000, 0, 1000 * MS, false).is_empty());
    for n in 0..80 {
        link.offer(1000 * MS, 1500, false, n);
    }
    link.advance(2000 * MS);
    assert_eq!(link.counters().dropped(), 0);
    assert!(link.window().waited_max >= 79 * MS);
}

#[test]
fn codel_with_ecn_marks_instead_of_dropping() {
    let mut link = link(codel(true));
    let marks = offer_at(&mut link, 13_200_000, 0, 3000 * MS, true);
    let counters = link.counters();
    assert_eq!((counters.marked, counters.dropped()), (marks.len() as u64, 0));
    let marked = std::iter::from_fn(|| link.take(END)).filter(|packet| packet.marked).count();
    assert_eq!(marked as u64, link.counters().marked);
    assert!(marks.len() > 20);
}

#[test]
fn codel_with_a_responsive_sender_keeps_the_delay_near_its_target() {
    let mut link = link(codel(false));
    // A sender with a round trip time of 50 ms that halves its rate after a drop and increases it
    // otherwise.
    let (mut rate, mut now, mut waited, mut served) = (12e6, 0, 0, 0);
    for round in 0..400 {
        let drops = offer_at(&mut link, rate as u64, now, now + 50 * MS, false);
        now += 50 * MS;
        rate = if drops.is_empty() { rate + 0.3e6 } else { rate / 2.0 };
        let window = link.window();
        if round > 100 {
            waited += window.waited;
            served += window.served;
        }
    }
    let mean = waited as f64 / served as f64 / MS as f64;
    assert!(mean < 15.0, "mean delay {mean} ms");
    assert!(served as f64 / (300.0 * 50.0) > 0.6, "utilisation");
}

#[test]
fn red_under_steady_overload_keeps_the_queue_between_its_thresholds() {
    let red = Red {
        min: 20.0,
        max: 60.0,
        max_p: 0.1,
        weight: 0.02,
        gentle: true,
        wait: false,
        ecn: false,
        limit: 200,
    };
    let direction = Direction { rate: Rate::mbit(12), queue: Queue::Red(red), ..Direction::default() };
    let mut link = link(direction);
    offer_at(&mut link, 13_200_000, 0, 20_000 * MS, false);
    let counters = link.counters();
    // The queue has to drop 9.1 %. With gaps uniform in 1..1/p, this is a base probability of
    // 0.048, half way between the thresholds.
    let average = link.queue_average();
    assert!((33.0..47.0).contains(&average), "{average}");
    assert_eq!(counters.dropped_full, 0);
    let share = counters.dropped_red as f64 / counters.packets_in as f64;
    assert!((share - 0.0909).abs() < 0.005, "{share}");
}

#[test]
fn link_when_changed_keeps_packets_and_order() {
    let mut link = link(Direction { rate: Rate::mbit(12), delay: ms(50), ..Direction::default() });
    for n in 0..20 {
        link.offer(0, 1500, false, n);
    }
    // At 5.5 ms five packets have left, and the sixth is on the link and keeps its end. The others
    // are sent ten times as fast and have 40 ms less delay, but must not arrive before those sent
    // earlier.
    let config = Direction { rate: Rate::mbit(120), delay: ms(10), ..link.config().clone() };
    link.set(5 * MS + MS / 2, config);
    let arrived = take_all(&mut link, END);
    assert_eq!(arrived.len(), 20);
    assert!(arrived.iter().enumerate().all(|(place, (_, n))| place as u64 == *n));
    assert_eq!(arrived[5].0, 56 * MS);
    assert!(arrived[6..].iter().all(|(due, _)| *due == 56 * MS));
    assert_eq!(link.counters().reordered, 0);
    link.offer(100 * MS, 1500, false, 20);
    assert_eq!(take_all(&mut link, END), [(110 * MS + MS / 10, 20)]);
}

fn queues() -> impl Strategy<Value = Queue> {
    prop_oneof![
        (1u32..100).prop_map(|packets| Queue::DropTail { packets }),
        (1f64..20.0, 1f64..30.0, 0f64..=1.0, any::<bool>(), any::<bool>(), any::<bool>(), 1u32..100)
            .prop_map(|(min, more, max_p, gentle, wait, ecn, limit)| {
                Queue::Red(Red { min, max: min + more, max_p, weight: 0.1, gentle, wait, ecn, limit })
            }),
        (1u64..20, 1u64..200, 1u32..100, any::<bool>()).prop_map(|(target, more, limit, ecn)| {
            Queue::Codel(Codel { target: ms(target), interval: ms(target + more), limit, ecn })
        }),
    ]
}

fn losses() -> impl Strategy<Value = Loss> {
    let p = || 0f64..=1.0;
    prop_oneof![
        2 => Just(Loss::None),
        1 => p().prop_map(|p| Loss::Bernoulli { p: p / 4.0 }),
        1 => (p(), p(), p(), p())
            .prop_map(|(enter, leave, good, bad)| Loss::GilbertElliott { enter, leave, good: good / 4.0, bad }),
    ]
}

fn directions(reorder: bool) -> impl Strategy<Value = Direction> {
    let rate =
        prop_oneof![Just(Rate::UNLIMITED), (1u64..2000).prop_map(|r| Rate::bits_per_second(r * 100_000))];
    let held = (0f64..0.3, 0u64..30).prop_map(|(probability, by)| Some(Reorder { probability, by: ms(by) }));
    let held = if reorder { held.boxed() } else { Just(None).boxed() };
    (rate, 0u64..100, 0u64..100, held, losses(), queues(), 0u32..100).prop_map(
        |(rate, delay, jitter, reorder, loss, queue, overhead)| Direction {
            rate,
            delay: ms(delay),
            jitter: ms(jitter.min(delay)),
            reorder,
            loss,
            queue,
            overhead,
        },
    )
}

#[derive(Debug, Clone)]
enum Step {
    Offer { gap: u64, bytes: u32, ecn: bool, burst: u8 },
    Take { gap: u64 },
    Change(Box<Direction>),
}

fn steps(reorder: bool) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u64..2_000_000, 20u32..9000, any::<bool>(), 1u8..20)
            .prop_map(|(gap, bytes, ecn, burst)| Step::Offer { gap, bytes, ecn, burst }),
        3 => (0u64..20_000_000).prop_map(|gap| Step::Take { gap }),
        1 => directions(reorder).prop_map(|direction| Step::Change(Box::new(direction))),
    ];
    prop::collection::vec(step, 1..120)
}

/// Plays the steps and then follows the deadlines until the link is empty; returns the arrivals and
/// the link.
fn play(config: &Direction, steps: &[Step], take: bool) -> (Vec<(Nanos, u64, bool)>, Link<u64>) {
    let mut link = link(config.clone());
    let (mut now, mut number, mut arrived) = (0, 0, Vec::new());
    for step in steps {
        match step {
            Step::Offer { gap, bytes, ecn, burst } => {
                now += gap;
                for _ in 0..*burst {
                    link.offer(now, *bytes, *ecn, number);
                    number += 1;
                }
            }
            Step::Take { gap } => {
                now += gap;
                while take && let Some(packet) = link.take(now) {
                    assert!(packet.due <= now);
                    arrived.push((packet.due, packet.payload, packet.marked));
                }
            }
            Step::Change(config) => link.set(now, (**config).clone()),
        }
        let counters = link.counters();
        assert!(conserved(&counters), "{counters:?}");
        let idle = counters.waiting + counters.travelling == 0;
        assert_eq!(link.next_deadline(0).is_none(), idle, "a deadline while packets are there");
    }
    // Following the deadlines alone delivers all packets.
    let mut rounds = 0;
    while let Some(deadline) = link.next_deadline(0) {
        now = now.max(deadline);
        while let Some(packet) = link.take(now) {
            arrived.push((packet.due, packet.payload, packet.marked));
        }
        rounds += 1;
        assert!(rounds < 100_000, "deadlines lead nowhere");
    }
    (arrived, link)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn link_with_any_steps_counts_all_packets_and_keeps_order(config in directions(false), steps in steps(false)) {
        let (arrived, link) = play(&config, &steps, true);
        let counters = link.counters();
        prop_assert_eq!(counters.packets_out, arrived.len() as u64);
        prop_assert_eq!((counters.waiting, counters.travelling, counters.reordered), (0, 0, 0));
        prop_assert!(arrived.windows(2).all(|w| w[0].1 < w[1].1 && w[0].0 <= w[1].0));
        let marked = arrived.iter().filter(|(_, _, marked)| *marked).count() as u64;
        prop_assert!(marked <= counters.marked);
    }

    #[test]
    fn link_when_called_late_has_the_same_arrivals(config in directions(true), steps in steps(true)) {
        let (mut often, a) = play(&config, &steps, true);
        let (mut late, b) = play(&config, &steps, false);
        often.sort();
        late.sort();
        prop_assert_eq!(often, late);
        let (a, b) = (a.counters(), b.counters());
        prop_assert_eq!(Counters { reordered: 0, ..a }, Counters { reordered: 0, ..b });
    }

    #[test]
    fn link_with_any_packets_does_not_exceed_its_rate(
        rate in 100_000u64..1_000_000_000,
        sizes in prop::collection::vec((0u64..1_000_000, 20u32..9000), 2..200),
    ) {
        let mut link = link(Direction { rate: Rate::bits_per_second(rate), ..Direction::default() });
        let mut now = 0;
        for (n, (gap, bytes)) in sizes.iter().enumerate() {
            now += gap;
            link.offer(now, *bytes, false, n as u64);
        }
        let arrived = take_all(&mut link, END);
        for pair in arrived.windows(2) {
            let slot = u128::from(sizes[pair[1].1 as usize].1) * 8_000_000_000 / u128::from(rate);
            prop_assert!(u128::from(pair[1].0 - pair[0].0) >= slot.saturating_sub(1));
        }
    }
}
