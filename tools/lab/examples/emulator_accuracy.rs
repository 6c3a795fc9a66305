//! Measures how exactly the emulator keeps delays and rates on this machine: `cargo run --release
//! -p ropewalk-lab --example emulator_accuracy`.
//!
//! Needs root. Fails if the minimum or the median of a round trip is more than 0.3 ms from the
//! delay that was asked for, or a rate more than 1 %. Other load on the machine can only make times
//! worse, so one good measurement out of three is sufficient.
#![allow(clippy::unwrap_used)]

#[path = "../tests/emulator_net/mod.rs"]
mod net;

use std::process::ExitCode;
use std::time::Duration;

use net::{Net, probe};
use ropewalk_lab::emulator::{Direction, Options, Path, Queue, Rate};

fn main() -> ExitCode {
    let delays = [(0, 0), (1, 1), (7, 3), (50, 50)].map(|(forward, backward)| {
        one_of_three(&format!("round trip of {} ms", forward + backward), || delay(forward, backward))
    });
    let rates = [(1500, 100, 0, 9000), (1500, 20, 38, 1500), (9000, 500, 0, 6000)].map(
        |(mtu, mbit, overhead, count)| {
            one_of_three(&format!("{mbit} Mbit/s, {mtu} bytes"), || rate(mtu, mbit, overhead, count))
        },
    );
    if delays.iter().chain(&rates).all(|good| *good) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn one_of_three(what: &str, measure: impl Fn() -> (String, bool)) -> bool {
    (0..3).any(|_| {
        let (found, good) = measure();
        println!("{what}: {found}{}", if good { "" } else { "  (outside of the tolerance)" });
        good
    })
}

fn net(mtu: u32, forward: Direction, backward: Direction) -> Net {
    let options = Options { path: Path { mtu, forward, backward }, ..Options::default() };
    Net::new(options, true).expect("network namespaces need root")
}

fn delay(forward: u64, backward: u64) -> (String, bool) {
    let direction = |delay| Direction {
        delay: Duration::from_millis(delay),
        rate: Rate::mbit(1000),
        ..Direction::default()
    };
    let net = net(1500, direction(forward), direction(backward));
    let times = probe::ping(&net.left, false, 100, Duration::from_millis(3));
    let asked = Duration::from_millis(forward + backward);
    let (least, median) = (times[0], times[times.len() / 2]);
    net.emulator.stop();
    let good = [least, median].iter().all(|time| time.abs_diff(asked) <= Duration::from_micros(300));
    (format!("min {least:?}, median {median:?}, max {:?}", times[times.len() - 1]), good)
}

fn rate(mtu: u32, mbit: u64, overhead: u32, count: u64) -> (String, bool) {
    let forward = Direction {
        rate: Rate::mbit(mbit),
        delay: Duration::from_millis(2),
        overhead,
        queue: Queue::DropTail { packets: 200 },
        ..Direction::default()
    };
    let net = net(mtu, forward, Direction::default());
    let offered = mbit as f64 * 1.3e6;
    let flood = probe::flood(&net.left, &net.right, count, mtu as usize, offered, Duration::from_millis(300));
    let packets = flood.received.len() as f64 - 1.0;
    let received = packets * f64::from(mtu + overhead) * 8.0 / flood.time.as_secs_f64() / 1e6;
    let report = net.emulator.stop();
    let busy: Vec<f64> = report.series.iter().map(|s| s.forward.rate).filter(|r| *r > 0.0).collect();
    let mut middle = busy[1..busy.len() - 1].to_vec();
    middle.sort_by(f64::total_cmp);
    let share = f64::from(mtu) / f64::from(mtu + overhead);
    let series = middle[middle.len() / 2] / share / 1e6;
    let good = [received, series].iter().all(|rate| (rate / mbit as f64 - 1.0).abs() < 0.01);
    (format!("received {received:.3}, series {series:.3} Mbit/s"), good)
}
