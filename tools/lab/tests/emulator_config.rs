//! Paths and changes in TOML and JSON, and the messages for invalid ones.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use proptest::prelude::*;
use ropewalk_lab::emulator::{
    Change, Codel, Direction, Loss, Path, Queue, Rate, Red, Reorder, check_schedule,
};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn path(text: &str) -> Path {
    toml::from_str(text).unwrap()
}

/// The message of the error, without the place in the file.
fn error(text: &str) -> String {
    toml::from_str::<Path>(text).unwrap_err().message().to_owned()
}

#[test]
fn path_in_short_form_is_read() {
    assert_eq!(path(""), Path::default());
    let found = path(
        r#"
        mtu = 9000
        round_trip = "101ms"
        both = { rate = "100Mbit/s", queue = 50, loss = "0.1%" }
        backward = { rate = "10Mbit/s", loss = "none" }
        "#,
    );
    let forward = Direction {
        rate: Rate::mbit(100),
        delay: Duration::from_micros(50_500),
        queue: Queue::DropTail { packets: 50 },
        loss: Loss::Bernoulli { p: 0.001 },
        ..Direction::default()
    };
    let backward = Direction { rate: Rate::mbit(10), loss: Loss::None, ..forward.clone() };
    assert_eq!(found, Path { mtu: 9000, forward, backward });
}

#[test]
fn path_with_all_fields_is_read() {
    let found = path(
        r#"
        [forward]
        rate = "1Gbit/s"
        delay = "20ms"
        jitter = "500us"
        reorder = { probability = "1%", by = "2ms" }
        loss = { model = "bursts", average = 0.01, length = 5 }
        queue = { kind = "red", min = 25, max = 75, limit = 200, ecn = true }
        overhead = 38
        [backward]
        loss = { model = "gilbert-elliott", enter = "1%", leave = 0.2 }
        queue = { kind = "codel", target = "10ms" }
        "#,
    );
    let red = Red {
        min: 25.0,
        max: 75.0,
        max_p: 0.1,
        weight: 0.002,
        gentle: true,
        wait: false,
        ecn: true,
        limit: 200,
    };
    assert_eq!(
        found.forward,
        Direction {
            rate: Rate::mbit(1000),
            delay: ms(20),
            jitter: Duration::from_micros(500),
            reorder: Some(Reorder { probability: 0.01, by: ms(2) }),
            loss: Loss::bursts(0.01, 5.0),
            queue: Queue::Red(red),
            overhead: 38,
        }
    );
    assert_eq!(found.backward.queue, Queue::Codel(Codel { target: ms(10), ..Codel::default() }));
    let model = Loss::GilbertElliott { enter: 0.01, leave: 0.2, good: 0.0, bad: 1.0 };
    assert_eq!(found.backward.loss, model);
}

#[test]
fn path_with_an_invalid_value_names_field_and_value() {
    for (text, expected) in [
        (
            "forward = { rate = 100 }",
            "`100` is no rate: expected a number with bit/s, kbit/s, Mbit/s or Gbit/s",
        ),
        ("forward = { delay = '20' }", "`20` is no duration: expected a number with ns, us, ms, s, min or h"),
        ("both = { loss = 1.5 }", "`1.5` is no probability: expected a number from 0 to 1, or a percentage"),
        ("both = { queue = 0 }", "forward.queue.packets: expected 1 to 10000000 packets, found 0"),
        ("both = { queue = -1 }", "queue: expected 1 to 10000000 packets, found -1"),
        ("both = { jitter = '1ms' }", "forward.jitter: expected at most the delay, 0, found 1ms"),
        ("backward = { delay = '2min' }", "backward.delay: expected at most 60s, found 120s"),
        ("mtu = 100", "mtu: expected 576 to 65535 bytes, found 100"),
        (
            "both = { queue = { kind = 'fifo' } }",
            "unknown variant `fifo`, expected one of `drop-tail`, `red`, `codel`",
        ),
        (
            "backward = { queue = { kind = 'red', min = 75, max = 25, limit = 100 } }",
            "backward.queue.max: expected more than min, 75, found 25",
        ),
        ("both = { queue = { kind = 'red', min = 5, max = 25 } }", "missing field `limit`"),
        (
            "both = { queue = { kind = 'drop-tail', packet = 5 } }",
            "unknown field `packet`, expected `packets`",
        ),
        ("both = { queue = 'long' }", "expected a number of packets, or a table with `kind`"),
        (
            "both = { loss = { model = 'bursts', average = 0.1, length = 0.5 } }",
            "a length of at least 1 and average",
        ),
        ("both = { loss = { model = 'bernoulli', q = 0.5 } }", "unknown field `q`, expected `p`"),
        (
            "round_trip = '10ms'\nboth = { delay = '1ms' }",
            "round_trip: expected no delay beside it, found 10ms",
        ),
        ("forwards = {}", "unknown field `forwards`"),
        ("both = { codel = 1 }", "unknown field `codel`"),
    ] {
        let found = error(text);
        assert!(found.contains(expected), "{text}: {found}");
    }
}

#[test]
fn schedule_with_an_invalid_step_names_it() {
    #[derive(serde::Deserialize)]
    struct File {
        change: Vec<Change>,
    }
    let schedule = |text: &str| toml::from_str::<File>(text).unwrap().change;
    let start = path("round_trip = '10ms'");
    let good = schedule(
        r#"
        [[change]]
        at = "20s"
        forward = { jitter = "40ms" }
        [[change]]
        at = "10s"
        both = { delay = "50ms", loss = "1%" }
        "#,
    );
    check_schedule(&start, &good).unwrap();
    let after = good[1].applied_to(&start).unwrap();
    assert_eq!((after.forward.delay, after.backward.loss), (ms(50), Loss::Bernoulli { p: 0.01 }));
    let wrong = schedule("[[change]]\nat = '1s'\n[[change]]\nat = '2s'\nforward = { jitter = '6ms' }");
    assert_eq!(
        check_schedule(&start, &wrong).unwrap_err().to_string(),
        "change[1].forward.jitter: expected at most the delay, 5ms, found 6ms"
    );
    // A probability of 0 turns reordering off, and the queue changes its kind.
    let change: Change = serde_json::from_str(
        r#"{"forward": {"reorder": {"probability": 0, "by": "0"}, "queue": {"kind": "codel"}}}"#,
    )
    .unwrap();
    let path = path("forward = { reorder = { probability = 0.5, by = '1ms' } }");
    let after = change.applied_to(&path).unwrap().forward;
    assert_eq!((after.reorder, after.queue), (None, Queue::Codel(Codel::default())));
}

proptest! {
    #[test]
    fn path_when_written_reads_back_the_same(
        mtu in 576u32..65_535,
        rate in 1u64..10_000_000_000,
        delay in 0u64..60_000_000_000,
        millionths in 0u32..=1_000_000,
        packets in 1u32..1000,
        kind in 0..3,
    ) {
        let queue = |loss| match kind {
            0 => Queue::DropTail { packets },
            1 => Queue::Codel(Codel { limit: packets, ..Codel::default() }),
            _ => Queue::Red(Red {
                min: 1.5,
                max: 9.0,
                max_p: loss,
                weight: 0.5,
                gentle: false,
                wait: true,
                ecn: true,
                limit: packets,
            }),
        };
        // The parser of JSON may be wrong in the last bit of a long number.
        let loss = f64::from(millionths) / 1e6;
        let delay = Duration::from_nanos(delay);
        let forward = Direction {
            rate: Rate::bits_per_second(rate),
            delay,
            jitter: delay / 2,
            reorder: Some(Reorder { probability: loss, by: delay }).filter(|_| loss > 0.0),
            loss: Loss::GilbertElliott { enter: loss, leave: 0.5, good: 0.0, bad: loss },
            queue: queue(loss),
            overhead: packets,
        };
        let backward = Direction { loss: Loss::Bernoulli { p: loss }, ..Direction::default() };
        let path = Path { mtu, forward, backward };
        prop_assert_eq!(&toml::from_str::<Path>(&toml::to_string(&path).unwrap()).unwrap(), &path);
        prop_assert_eq!(&serde_json::from_str::<Path>(&serde_json::to_string(&path).unwrap()).unwrap(), &path);
    }
}
