//! The congestion controls in virtual time: how much of a path they use, how much they send again,
//! and how they share a path.

#![allow(clippy::unwrap_used)]

mod network;

use std::time::Duration;

use network::{Network, Path, agree, data, exchange};
use ropewalk_udt::congestion::{Bbr, Controller, Daimd};
use ropewalk_udt::{Config, Connection, Parameters};

type MakeController = fn(&Parameters) -> Box<dyn Controller>;

/// The share of a path of 100 Mbit/s that a transfer uses, its start included, and the share of
/// packets that are sent again.
fn utilisation(controller: MakeController, loss: f64, queue: u64) -> (f64, f64) {
    let rate = 12.5e6;
    let queue = Duration::from_millis(queue);
    let path = Path { loss, bottleneck: Some((rate, queue)), ..Path::clean(Duration::from_millis(30)) };
    let config = Config::default();
    let mut network = Network::new(path, 5, &config);
    let (now, (parameters, answer)) = (network.now, agree(&config, network.now));
    let [near, far] = parameters;
    network.ends = vec![
        Connection::connected(near, &config, controller(&near), now),
        Connection::accepted(far, &config, controller(&far), answer, now),
    ];
    let data = data(30_000_000, 1);
    let time = exchange(&mut network, [&data, b""], 1 << 20, Duration::from_secs(100));
    let stats = network.ends[0].stats();
    (data.len() as f64 / time.as_secs_f64() / rate, stats.retransmitted as f64 / stats.sent as f64)
}

fn bbr(parameters: &Parameters) -> Box<dyn Controller> {
    Box::new(Bbr::new(parameters.ropewalk))
}

fn daimd(parameters: &Parameters) -> Box<dyn Controller> {
    Box::new(Daimd::new(parameters.mss, parameters.peer_window, 1))
}

#[test]
fn bbr_fills_a_lossy_path_without_many_retransmissions() {
    // The start overflows the queue of each path.
    let paths = [(0.0, 50, 0.75, 0.1), (0.0, 10, 0.65, 0.15), (0.001, 50, 0.75, 0.1), (0.01, 50, 0.7, 0.12)];
    for (loss, queue, least, most) in paths {
        let (used, again) = utilisation(bbr, loss, queue);
        assert!(used > least && again < most, "loss {loss}: {used} of the path used, {again} sent again");
    }
}

/// How many bytes each of two senders delivers that share a path of 100 Mbit/s.
fn shares(controllers: [MakeController; 2], queue: u64) -> [u64; 2] {
    let bottleneck = Some((12.5e6, Duration::from_millis(queue)));
    let path = Path { bottleneck, ..Path::clean(Duration::from_millis(30)) };
    let config = Config::default();
    let mut network = Network::new(path, 5, &config);
    let now = network.now;
    network.ends.clear();
    for controller in controllers {
        let ([near, far], answer) = agree(&config, now);
        network.ends.push(Connection::connected(near, &config, controller(&near), now));
        network.ends.push(Connection::accepted(far, &config, controller(&far), answer, now));
    }
    let block = data(1 << 20, 1);
    let mut buffer = vec![0; 1 << 16];
    let until = now + Duration::from_secs(10);
    while network.now < until {
        let now = network.now;
        for sender in [0, 2] {
            while network.ends[sender].write(now, &block).unwrap() > 0 {}
            while network.ends[sender + 1].read(now, &mut buffer).unwrap().is_some() {}
        }
        network.step(until);
    }
    [0, 2].map(|sender| network.ends[sender].stats().acknowledged_bytes)
}

/// Neither control starves the other, nor itself.
#[test]
fn senders_that_share_a_path_all_get_a_part() {
    for other in [bbr, daimd] as [MakeController; 2] {
        let [first, second] = shares([bbr, other], 50);
        let least = first.min(second) as f64 / (first + second) as f64;
        assert!(least > 0.15, "{first} {second}");
        assert!((first + second) as f64 > 0.8 * 12.5e6 * 10.0, "{first} {second}");
    }
}

#[test]
fn daimd_uses_a_path_that_loses_nothing() {
    let (used, again) = utilisation(daimd, 0.0, 50);
    assert!(used > 0.7 && again < 0.15, "{used} of the path used, {again} sent again");
}

/// Mbit/s in each of `seconds` over a path of `rate` Mbit/s with a queue of 48 ms, and the share of
/// packets that are sent again.
fn series(
    controller: MakeController,
    ropewalk: bool,
    (rate, rtt, loss): (f64, u64, f64),
    seconds: u64,
) -> (Vec<u64>, f64) {
    let path = Path {
        loss,
        bottleneck: Some((rate / 8e-6, Duration::from_millis(48))),
        ..Path::clean(Duration::from_millis(rtt / 2))
    };
    let config = Config::default();
    let mut network = Network::new(path, 5, &config);
    let (now, (parameters, answer)) = (network.now, agree(&config, network.now));
    let [near, far] = parameters.map(|one| Parameters { ropewalk, ..one });
    network.ends = vec![
        Connection::connected(near, &config, controller(&near), now),
        Connection::accepted(far, &config, controller(&far), answer, now),
    ];
    let block = data(1 << 20, 1);
    let mut buffer = vec![0; 1 << 20];
    let mut found = Vec::new();
    for second in 1..=seconds {
        let until = now + Duration::from_secs(second);
        let mut bytes = 0;
        while network.now < until {
            let now = network.now;
            while network.ends[0].write(now, &block).unwrap() > 0 {}
            while let Some(n) = network.ends[1].read(now, &mut buffer).unwrap() {
                bytes += n as u64;
            }
            network.step(until);
        }
        found.push(8 * bytes / 1_000_000);
    }
    let stats = network.ends[0].stats();
    (found, stats.retransmitted as f64 / stats.sent as f64)
}

fn mean(series: &[u64]) -> f64 {
    series.iter().sum::<u64>() as f64 / series.len() as f64
}

/// The first ACKs of a long path are of few packets, and say nothing about its rate.
#[test]
fn bbr_fills_a_long_path_within_seconds() {
    let (rates, again) = series(bbr, true, (500.0, 204, 0.0), 8);
    assert!(mean(&rates[3..]) > 400.0 && again < 0.1, "{rates:?}, {again} sent again");
    let (rates, again) = series(bbr, true, (500.0, 204, 0.001), 8);
    assert!(mean(&rates[3..]) > 400.0 && again < 0.1, "{rates:?}, {again} sent again");
}

/// The rates that the receiver reports let a sender with libudt recover from random losses, and
/// keep the queue of a slow path short.
#[test]
fn daimd_recovers_from_random_losses_and_does_not_overrun_slow_paths() {
    let paths = [
        ((500.0, 60, 0.0), 450.0, 0.02),
        ((500.0, 60, 0.001), 180.0, 0.02),
        ((500.0, 60, 0.01), 50.0, 0.02),
        ((500.0, 204, 0.001), 150.0, 0.1),
        ((20.0, 60, 0.0), 17.0, 0.04),
        ((20.0, 60, 0.01), 9.0, 0.06),
        ((20.0, 204, 0.0), 14.0, 0.06),
    ];
    for (path, least, most) in paths {
        let (rates, again) = series(daimd, false, path, 8);
        assert!(mean(&rates[2..]) > least && again < most, "{path:?}: {rates:?}, {again} sent again");
    }
}

/// A sender under a ceiling, and the bytes of data packets that it sends in each 100 ms.
fn sent_under_a_ceiling(controller: MakeController, ropewalk: bool, loss: f64, ceilings: &[u64]) -> Vec<u64> {
    const SLICE: Duration = Duration::from_millis(100);
    let path = Path {
        loss,
        bottleneck: Some((125e6, Duration::from_millis(50))),
        ..Path::clean(Duration::from_millis(10))
    };
    let config = Config { ceiling: Some(ceilings[0]), ..Config::default() };
    let mut network = Network::new(path, 5, &config);
    let (now, (parameters, answer)) = (network.now, agree(&config, network.now));
    let [near, far] = parameters.map(|one| Parameters { ropewalk, ..one });
    network.ends = vec![
        Connection::connected(near, &config, controller(&near), now),
        Connection::accepted(far, &config, controller(&far), answer, now),
    ];
    let block = data(1 << 20, 1);
    let mut buffer = vec![0; 1 << 20];
    let mut sent = Vec::new();
    let mut until = now;
    for ceiling in ceilings {
        network.ends[0].set_ceiling(Some(*ceiling).filter(|bytes| *bytes < u64::MAX));
        for _ in 0..30 {
            until += SLICE;
            let before = network.ends[0].stats().sent;
            while network.now < until {
                let now = network.now;
                while network.ends[0].write(now, &block).unwrap() > 0 {}
                while network.ends[1].read(now, &mut buffer).unwrap().is_some() {}
                network.step(until);
            }
            let packets = network.ends[0].stats().sent - before;
            sent.push(packets * near.payload() as u64);
        }
    }
    sent
}

/// The ceiling holds in each tenth of a second, also for packets that are sent again, and a new one
/// holds at once.
#[test]
fn no_congestion_control_sends_faster_than_its_ceiling() {
    let ceilings = [10_000_000, 2_000_000, 300_000, 40_000_000];
    for (controller, ropewalk) in [(bbr as MakeController, true), (bbr, false), (daimd, true), (daimd, false)]
    {
        for loss in [0.0, 0.01] {
            let sent = sent_under_a_ceiling(controller, ropewalk, loss, &ceilings);
            for (ceiling, sent) in ceilings.into_iter().zip(sent.chunks(30)) {
                // A tenth of a second, and what a late sender may make up for.
                let most = ceiling / 10 + ceiling / 250 + 4 * 1456;
                assert!(sent.iter().all(|bytes| *bytes <= most), "{ceiling}, loss {loss}: {sent:?}");
            }
            // A sender that may send 40 MB/s does not stay at the old 300 kB/s.
            assert!(sent.last() > Some(&500_000) || loss > 0.0, "{sent:?}");
            let second: u64 = sent[20..30].iter().sum();
            assert!(second > 5_000_000 || loss > 0.0, "10 MB/s are used: {sent:?}");
        }
    }
}
