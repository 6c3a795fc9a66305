//! A polite transfer yields to a queue and to loss that are new on the path, not to those that it
//! always has.

#![allow(clippy::unwrap_used)]
use ropewalk_tuning::tuner::{Chunk, Connections, Decision, Fairness, Kind, Options};

const CAPACITY: f64 = 125e6;
const WINDOW: f64 = 65_536.0;

/// Returns time, streams and share of the path after each chunk, for `seconds` of a transfer that
/// is alone on the path. `path` returns the round-trip time without a queue, and the loss. When the
/// transfer fills the path, it causes a queue of 0.3 round-trip times.
fn alone(fairness: Fairness, seconds: f64, path: impl Fn(f64) -> (f64, f64)) -> Vec<(f64, u32, f64)> {
    let options = Options { connections: Connections::Kept, fairness, ..Options::default() };
    let mut tuner = Kind::Pilot.build(&options).unwrap();
    let (mut decision, mut time, mut seen): (Decision, f64, Vec<_>) = (tuner.first(), 0.0, Vec::new());
    while time < seconds {
        let (rtt, loss) = path(time);
        let streams = decision.knobs.connections();
        let could = f64::from(streams) * WINDOW / rtt;
        let rate = could.min(CAPACITY);
        let took = (decision.bytes as f64 / rate).clamp(2.0, 60.0);
        time += took;
        seen.push((time, streams, rate / CAPACITY));
        decision = tuner.chunk(&Chunk {
            rtt: Some(if could > CAPACITY { 1.3 * rtt } else { rtt }),
            min_rtt: Some(rtt),
            loss: Some(loss),
            ..Chunk::new(streams, (rate * took) as u64, took)
        });
    }
    seen
}

/// The mean share of the path from one second to another.
fn share(seen: &[(f64, u32, f64)], from: f64, until: f64) -> f64 {
    let shares: Vec<f64> = seen.iter().filter(|at| at.0 > from && at.0 <= until).map(|at| at.2).collect();
    shares.iter().sum::<f64>() / shares.len() as f64
}

#[test]
fn polite_pilot_after_rtt_rose_returns_to_full_rate() {
    let seen = alone(Fairness::Polite, 1500.0, |time| (if time < 300.0 { 0.05 } else { 0.065 }, 0.0));
    let (before, after) = (share(&seen, 200.0, 300.0), share(&seen, 900.0, 1500.0));
    assert!(before > 0.7 && after > 0.75 * before, "{before} before, {after} after");
}

#[test]
fn polite_pilot_with_lasting_loss_returns_to_full_rate() {
    let seen = alone(Fairness::Polite, 1500.0, |time| (0.05, if time < 300.0 { 0.0 } else { 1e-3 }));
    let (before, after) = (share(&seen, 200.0, 300.0), share(&seen, 1000.0, 1500.0));
    assert!(before > 0.7 && after > 0.75 * before, "{before} before, {after} after");
    // The loss may be caused by other flows, so that the tuner yields for some minutes.
    let meanwhile = share(&seen, 450.0, 590.0);
    assert!(meanwhile < 0.1, "{meanwhile}");
}

/// The increase itself causes a queue, and the tuner yields to it. It must not stay there: it adds
/// streams again until there is a queue.
#[test]
fn polite_pilot_on_idle_path_fills_it() {
    let path = |_| (0.05, 0.0);
    let polite = share(&alone(Fairness::Polite, 600.0, path), 300.0, 600.0);
    let usual = share(&alone(Options::default().fairness, 600.0, path), 300.0, 600.0);
    assert!(polite > 0.85 * usual, "{polite} and {usual}");
}
