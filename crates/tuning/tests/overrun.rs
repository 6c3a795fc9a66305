//! New connections whose slow start overruns a short queue, as drop-tail and RED queues of 100
//! packets do in ns-2.

#![allow(clippy::unwrap_used)]
use ropewalk_tuning::tuner::{Chunk, Connections, Kind, Options, Progress, Reason};

const RTT: f64 = 0.04;
const WINDOW: f64 = 64_500.0;
const CAPACITY: f64 = 12.25e6;
const PACKET: f64 = 1500.0;
/// Time in seconds for which streams carry less after they overran the queue.
const RECOVERY: f64 = 5.0;
const MARK: f64 = 1.5;
const SECONDS: f64 = 400.0;

/// Rate of `n` streams `age` seconds after they were requested, in bytes per second.
fn rate(n: u32, age: f64) -> f64 {
    let wanted = f64::from(n) * WINDOW / RTT;
    match age {
        _ if age < 6.0 * RTT => 0.0,
        _ if age < RECOVERY && wanted > CAPACITY => 0.6 * CAPACITY,
        _ => wanted.min(CAPACITY),
    }
}

fn loss(n: u32, bytes: f64) -> f64 {
    let overruns = f64::from(n) * WINDOW / RTT > CAPACITY;
    if overruns { 20.0 * f64::from(n) * PACKET / bytes } else { 0.0 }
}

/// Start time, streams and reason of each chunk, and the mean rate.
fn run() -> (Vec<(f64, u32, Reason)>, f64) {
    let options = Options {
        rtt: Some(RTT),
        window: Some(WINDOW),
        connections: Connections::Fresh,
        ..Options::default()
    };
    let mut tuner = Kind::Pilot.build(&options).unwrap();
    let mut decision = tuner.first();
    let (mut now, mut all, mut steps) = (0.0, 0.0, Vec::new());
    while now < SECONDS {
        let n = decision.knobs.connections();
        let (mut age, mut sent, mut marked, mut bytes) = (0.0, 0.0, 0.0, 0.0);
        while sent < decision.bytes as f64 {
            age += 0.01;
            let step = 0.01 * rate(n, age);
            (sent, bytes) = (sent + step, bytes + step);
            if age - marked >= MARK {
                let told = tuner.progress(&Progress { elapsed: age, rate: bytes / (age - marked) });
                (marked, bytes) = (age, 0.0);
                if told.is_some() {
                    break;
                }
            }
        }
        steps.push((now, n, decision.reason));
        (now, all) = (now + age, all + sent);
        let rtt = Some(RTT);
        let loss = Some(loss(n, sent));
        let window = Some(WINDOW);
        decision = tuner.chunk(&Chunk { rtt, min_rtt: rtt, loss, window, ..Chunk::new(n, sent as u64, age) });
    }
    (steps, all / now)
}

#[test]
fn pilot_after_slow_start_overran_queue_measures_again() {
    let (steps, rate) = run();
    // Eight streams fill the path; each change costs a second, and a wrong one costs five.
    assert!(rate > 0.9 * CAPACITY, "{rate}: {steps:?}");
    let late: Vec<u32> = steps.iter().filter(|step| step.0 > 100.0).map(|step| step.1).collect();
    assert!(late.iter().all(|&n| n >= 8), "{steps:?}");
    assert!(steps.iter().any(|step| matches!(step.2, Reason::SlowStart { .. })), "{steps:?}");
    // The tuner keeps its decision instead of repeating the same trials.
    assert!(late.len() < 12, "{steps:?}");
}
