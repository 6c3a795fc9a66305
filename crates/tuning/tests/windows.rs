//! Paths that are limited by windows only, including very small ones; wrong reports of windows and
//! rates; and end hosts that become slower with more streams.

#![allow(clippy::unwrap_used)]
use ropewalk_tuning::model::loss_of_window;
use ropewalk_tuning::tuner::{Chunk, Connections, Kind, Options, Progress, Reason};

const MARK: f64 = 1.5;
const SECONDS: f64 = 600.0;

/// A path without loss or a queue: streams add up until it is full.
#[derive(Clone, Copy, Debug)]
struct Path {
    /// Bytes per second.
    capacity: f64,
    rtt: f64,
    /// Bytes in flight of one stream.
    window: f64,
    /// The window that is reported to the tuner.
    told: Option<f64>,
    packet: f64,
    /// Fraction of the rate that each stream beyond the knee costs.
    decline: f64,
    /// If set, there are a queue and loss beyond the knee, and the rate falls with this power of
    /// the number of streams.
    falls: Option<f64>,
    /// With more than this number of streams, the total rate is multiplied by this factor.
    edge: Option<(u32, f64)>,
    /// Time in seconds until new connections reach their full rate.
    start: f64,
    /// Whether loss and minimum round-trip time are reported.
    passive: bool,
    /// Factor of the reported rates; `None` for no reports.
    reported: Option<f64>,
}

const PATH: Path = Path {
    capacity: 12.5e6,
    rtt: 0.1,
    window: 8192.0,
    told: Some(8192.0),
    packet: 1500.0,
    decline: 0.0,
    falls: None,
    edge: None,
    start: 0.4,
    passive: true,
    reported: Some(1.0),
};

impl Path {
    fn goodput(&self, n: u32) -> f64 {
        let edge = self.edge.filter(|edge| n > edge.0).map_or(1.0, |edge| edge.1);
        let n = f64::from(n);
        let knee = self.capacity * self.rtt / self.window;
        let fallen = self.falls.map_or(1.0, |power| (n / knee).max(1.0).powf(-power));
        (n * self.window / self.rtt).min(self.capacity)
            * (-self.decline * (n - knee).max(0.0)).exp()
            * edge
            * fallen
    }

    /// Round-trip time and loss of `n` streams.
    fn state(&self, n: u32) -> (f64, f64) {
        if self.falls.is_none() || f64::from(n) * self.window / self.rtt < self.capacity {
            return (self.rtt, 0.0);
        }
        let rtt = 1.3 * self.rtt;
        (rtt, loss_of_window((self.goodput(n) * rtt / f64::from(n) / self.packet).max(0.01)))
    }

    /// The largest rate of up to `most` streams.
    fn best(&self, most: u32) -> f64 {
        (1..=most).map(|n| self.goodput(n)).fold(0.0, f64::max)
    }
}

#[derive(Debug)]
struct Run {
    /// Fractions of the best rate, over the whole run and over its last third.
    all: f64,
    late: f64,
    /// Streams, seconds and reason of each chunk.
    steps: Vec<(u32, f64, Reason)>,
}

fn run(path: Path, connections: Connections, options: Options) -> Run {
    let options = Options { rtt: Some(path.rtt), packet_bytes: path.packet, connections, ..options };
    let mut tuner = Kind::Pilot.build(&options).unwrap();
    let mut decision = tuner.first();
    let (mut now, mut all, mut late, mut steps) = (0.0, 0.0, 0.0, Vec::new());
    let mut before = 0;
    while now < SECONDS {
        let n = decision.knobs.connections();
        let had = if connections == Connections::Kept { before.min(n) } else { 0 };
        let (mut age, mut sent, mut marked, mut bytes) = (0.0, 0.0, 0.0, 0.0);
        while sent < decision.bytes as f64 && now + age < SECONDS {
            age += 0.02;
            let step = 0.02 * if age < path.start { path.goodput(had) } else { path.goodput(n) };
            (sent, bytes) = (sent + step, bytes + step);
            if now + age > SECONDS * 2.0 / 3.0 {
                late += step;
            }
            if let Some(factor) = path.reported
                && age - marked >= MARK
            {
                let told = tuner.progress(&Progress { elapsed: age, rate: factor * bytes / (age - marked) });
                (marked, bytes) = (age, 0.0);
                if told.is_some() {
                    break;
                }
            }
        }
        steps.push((n, age, decision.reason));
        (now, all, before) = (now + age, all + sent, n);
        let known = |value| path.passive.then_some(value);
        let (rtt, loss) = path.state(n);
        let (rtt, min_rtt, loss) = (Some(rtt), known(path.rtt), known(loss));
        decision =
            tuner.chunk(&Chunk { rtt, min_rtt, loss, window: path.told, ..Chunk::new(n, sent as u64, age) });
    }
    let best = path.best(options.max_streams);
    Run { all: all / (best * SECONDS), late: late / (best * SECONDS / 3.0), steps }
}

const BOTH: [Connections; 2] = [Connections::Fresh, Connections::Kept];

fn most(max_streams: u32) -> Options {
    Options { max_streams, ..Options::default() }
}

#[test]
fn pilot_with_small_windows_uses_enough_streams() {
    let of = |window, packet| Path { window, told: Some(window), packet, ..PATH };
    for path in [of(4096.0, 1500.0), of(8192.0, 1500.0), of(16_384.0, 1500.0), of(32_768.0, 9000.0)] {
        // The window is either reported, or only visible because there is no loss.
        for told in [path.told, None] {
            for connections in BOTH {
                let run = run(Path { told, ..path }, connections, most(1024));
                assert!(run.all > 0.95 && run.late > 0.98, "{path:?} {connections:?}: {run:?}");
            }
        }
        let few = run(path, Connections::Kept, most(128));
        assert!(few.late > 0.98, "{path:?}: {few:?}");
    }
}

/// If the start-up was shorter than computed, the corrected rate of the first chunk is too high,
/// and the following steps look flat.
#[test]
fn pilot_with_unexpected_start_up_reaches_full_rate() {
    let of = |capacity: f64, rtt: f64, knee: f64, start: f64| Path {
        capacity,
        rtt,
        window: capacity * rtt / knee,
        start: start * rtt,
        ..PATH
    };
    let quick = of(125e6, 0.1, 60.0, 2.0);
    let paths = [
        Path { told: Some(4.0 * quick.window), ..quick },
        Path { told: Some(10.0 * quick.window), ..quick },
        Path { told: None, ..of(1.25e9, 0.25, 120.0, 8.0) },
        Path { told: None, reported: None, ..of(1.25e9, 0.25, 120.0, 8.0) },
    ];
    for path in paths {
        let run = run(path, Connections::Kept, most(128));
        assert!(run.all > 0.9 && run.late > 0.95, "{path:?}: {run:?}");
    }
}

#[test]
fn pilot_with_wrong_window_report_ignores_it() {
    let path = Path { window: 65_536.0, told: Some(65_536.0 / 3.0), ..PATH };
    for connections in BOTH {
        let flat = run(path, connections, most(128));
        assert!(flat.late > 0.98 && flat.steps.last().unwrap().0 < 40, "{connections:?}: {flat:?}");
        // Surplus streams cost some rate.
        let falling = run(Path { decline: 0.01, ..path }, connections, most(128));
        assert!(falling.late > 0.85, "{connections:?}: {falling:?}");
        let full = |step: &(u32, f64, Reason)| matches!(step.2, Reason::WindowLimited { utilisation } if utilisation > 1.3);
        assert!(
            ![&flat, &falling].iter().any(|run| run.steps[2..].iter().any(full)),
            "{connections:?}: {flat:?} {falling:?}"
        );
    }
}

#[test]
fn pilot_with_exaggerated_reports_ignores_them() {
    for factor in [3.0, 100.0, 1e8] {
        let path = Path { window: 65_536.0, told: Some(65_536.0), reported: Some(factor), ..PATH };
        for connections in BOTH {
            let run = run(path, connections, most(128));
            assert!(
                run.late > 0.93 && run.steps.last().unwrap().0 <= 40,
                "{factor} {connections:?}: {run:?}"
            );
        }
    }
}

#[test]
fn pilot_with_short_path_closes_surplus_streams() {
    let path = Path { capacity: 3.75e6, rtt: 0.05, window: 31_250.0, told: None, ..PATH };
    let run = run(path, Connections::Kept, most(128));
    // Six streams fill the path.
    assert!(run.late > 0.98 && run.steps.last().unwrap().0 <= 16, "{run:?}");
}

/// If the capacity hint exceeds the rate of the maximum number of streams, the first chunk must not
/// last for minutes.
#[test]
fn pilot_with_high_capacity_hint_sends_short_first_chunk() {
    let path = Path { capacity: 1.25e9, window: 65_536.0, told: Some(65_536.0), reported: None, ..PATH };
    let hints = Options { capacity: Some(1.25e9), window: Some(65_536.0), ..most(16) };
    let first = run(path, Connections::Kept, hints).steps[0].1;
    assert!(first < 12.0, "{first} s");
}

/// Storage or a peer that becomes slower with many streams: the tuner must not assume that other
/// flows took the rest.
#[test]
fn pilot_when_end_host_thrashes_reduces_streams() {
    let path = Path { capacity: 60e6, rtt: 0.04, window: 200e3, told: Some(200e3), ..PATH };
    for edge in [(12, 0.7), (12, 0.5), (12, 0.3), (24, 0.5), (24, 0.3)] {
        for (connections, least) in [(Connections::Kept, 0.85), (Connections::Fresh, 0.8)] {
            let run = run(Path { edge: Some(edge), ..path }, connections, Options::default());
            assert!(run.all > least && run.late > least, "{edge:?} {connections:?}: {run:?}");
        }
    }
}

/// Streams that each take more from the others than they add must not lead to even more streams.
#[test]
fn pilot_with_harmful_streams_adds_no_more() {
    // Two and six streams fill the path.
    for window in [312_500.0, 104_000.0] {
        let path = Path { rtt: 0.05, window, told: Some(window), ..PATH };
        for power in [0.25, 0.5, 1.0] {
            for (first, connections) in [4, 16].into_iter().flat_map(|n| BOTH.map(|how| (n, how))) {
                let options = Options { first_streams: first, ..Options::default() };
                let run = run(Path { falls: Some(power), ..path }, connections, options);
                assert!(run.late > 0.8, "{window} {power} {first} {connections:?}: {run:?}");
            }
        }
    }
}
