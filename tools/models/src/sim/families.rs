//! The scenario families: paths of the papers, random paths, and paths that change.

use super::landscape::{Curve, Ends, PACKET, Path};
use super::rng::Rng;

/// Duration of a scenario, in seconds.
pub const SECONDS: usize = 600;
/// Maximum number of streams for tuners and the oracle.
pub const MOST: u32 = 128;

/// 100 Mbit/s in packets per second.
const LINK: f64 = 1e8 / 8.0 / PACKET;
/// 64 KiB in packets.
const WINDOW: f64 = 65_536.0 / PACKET;

/// Goodput of N persistent flows (NewReno, window of 43 packets, drop-tail queue) over 100 Mbit/s
/// in ns-2. 100 ms, queue of 50 packets.
const NS2_100_50: &[(u32, f64)] = &[
    (1, 0.425),
    (2, 0.851),
    (3, 1.2763),
    (4, 1.7013),
    (6, 2.5523),
    (7, 2.9777),
    (9, 3.8233),
    (10, 4.2483),
    (12, 5.0993),
    (14, 5.941),
    (15, 6.36),
    (17, 7.1967),
    (18, 7.6117),
    (19, 8.0183),
    (20, 8.184),
    (22, 7.9943),
    (24, 7.943),
    (26, 7.739),
    (28, 7.6637),
    (30, 7.543),
    (40, 7.567),
    (45, 7.5583),
    (50, 7.5543),
];
/// 100 ms, queue of a bandwidth-delay product.
const NS2_100_833: &[(u32, f64)] = &[(1, 0.425), (10, 4.253), (19, 8.078), (20, 8.254), (50, 8.208)];
/// 20 ms, queue of 50 packets.
const NS2_20_50: &[(u32, f64)] = &[
    (1, 2.1303),
    (3, 6.3937),
    (4, 8.311),
    (5, 8.3127),
    (6, 8.313),
    (7, 8.282),
    (8, 8.2827),
    (9, 8.2867),
    (10, 8.1867),
    (12, 8.0117),
    (17, 7.9123),
    (19, 7.9057),
    (22, 7.8927),
    (24, 7.9177),
    (26, 8.081),
    (28, 8.2003),
    (30, 7.981),
    (35, 8.034),
    (40, 8.045),
    (45, 7.981),
    (50, 8.132),
];

/// A kind of scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// The model's path of 100 Mbit/s and 100 ms, with windows of 64 KiB.
    Paper100,
    /// The same with 20 ms.
    Paper20,
    /// The model with random capacity, round-trip time and window.
    Random,
    Ns2Long,
    Ns2LongDeep,
    Ns2Short,
    /// The model with random background loss.
    Lossy,
    /// A link shared with a constant number of other flows.
    FairShare,
    /// Round-trip time and capacity change in two steps.
    Steps,
    /// The round-trip time changes slowly.
    Drift,
    /// Other flows start and end.
    Cross,
    /// The disk is slower than the path.
    SlowDisk,
    /// The model with windows of few packets, which are the only limit.
    SmallWindows,
}

impl Family {
    /// The eleven families of the evaluation.
    pub const NETWORK: [Self; 11] = [
        Self::Paper100,
        Self::Paper20,
        Self::Random,
        Self::Ns2Long,
        Self::Ns2LongDeep,
        Self::Ns2Short,
        Self::Lossy,
        Self::FairShare,
        Self::Steps,
        Self::Drift,
        Self::Cross,
    ];

    /// Families that are measured separately and not included in means.
    pub const APART: [Self; 2] = [Self::SlowDisk, Self::SmallWindows];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Paper100 => "paper100",
            Self::Paper20 => "paper20",
            Self::Random => "random",
            Self::Ns2Long => "ns2-100-50",
            Self::Ns2LongDeep => "ns2-100-833",
            Self::Ns2Short => "ns2-20-50",
            Self::Lossy => "lossy",
            Self::FairShare => "fair-share",
            Self::Steps => "steps",
            Self::Drift => "drift",
            Self::Cross => "cross",
            Self::SlowDisk => "slow-disk",
            Self::SmallWindows => "small-windows",
        }
    }

    /// Makes the scenario of this seed.
    pub fn draw(self, seed: u64) -> Scenario {
        let mut rng = Rng::new(seed.wrapping_mul(64).wrapping_add(self as u64));
        let rng = &mut rng;
        let ito = |capacity, rtt| path(Curve::Ito { capacity, loss: 0.0 }, rtt, WINDOW);
        match self {
            Self::Paper100 => still(self, ito(LINK, 0.1)),
            Self::Paper20 => still(self, ito(LINK, 0.02)),
            Self::Random => still(self, within(rng, (0.3, 10.0), (0.5, 4.0), 2..=128)),
            Self::Ns2Long => still(self, path(Curve::Table(NS2_100_50), 0.1, 43.0)),
            Self::Ns2LongDeep => still(self, path(Curve::Table(NS2_100_833), 0.1, 43.0)),
            Self::Ns2Short => still(self, path(Curve::Table(NS2_20_50), 0.02, 43.0)),
            Self::Lossy => still(self, lossy(rng)),
            Self::FairShare => still(self, fair_share(rng)),
            Self::Steps => steps(rng),
            Self::Drift => drift(rng),
            Self::Cross => cross(rng),
            Self::SlowDisk => {
                let ends = Ends { rate: rng.log_uniform(0.15, 0.7) * LINK * PACKET, decline: 0.002 };
                still(self, Path { ends: Some(ends), ..ito(LINK, rng.uniform(0.02, 0.1)) })
            }
            Self::SmallWindows => still(self, within(rng, (0.1, 1.0), (0.04, 0.5), 8..=128)),
        }
    }
}

/// A path over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    pub family: Family,
    /// The paths, each with the second from which on it applies; the first is 0.
    pub phases: Vec<(usize, Path)>,
    pub seconds: usize,
}

impl Scenario {
    /// The index of the phase at a second.
    pub fn phase(&self, second: usize) -> usize {
        self.phases.partition_point(|phase| phase.0 <= second).saturating_sub(1)
    }
}

fn path(curve: Curve, rtt: f64, window: f64) -> Path {
    Path { curve, rtt, window, ends: None }
}

fn still(family: Family, path: Path) -> Scenario {
    Scenario { family, phases: vec![(0, path)], seconds: SECONDS }
}

/// Repeats the draw until the optimum is within `range`.
fn bounded(mut draw: impl FnMut() -> Path, range: std::ops::RangeInclusive<u32>) -> Path {
    loop {
        let path = draw();
        if range.contains(&path.best(MOST).0) {
            return path;
        }
    }
}

/// The model without loss: capacity and window are within these factors of the paper's, and the
/// optimum is within `streams`.
fn within(
    rng: &mut Rng,
    capacity: (f64, f64),
    window: (f64, f64),
    streams: std::ops::RangeInclusive<u32>,
) -> Path {
    bounded(
        || {
            let capacity = LINK * rng.log_uniform(capacity.0, capacity.1);
            let rtt = 1e-3 * rng.log_uniform(20.0, 250.0);
            path(Curve::Ito { capacity, loss: 0.0 }, rtt, WINDOW * rng.log_uniform(window.0, window.1))
        },
        streams,
    )
}

fn lossy(rng: &mut Rng) -> Path {
    bounded(
        || {
            let capacity = LINK * rng.log_uniform(0.5, 4.0);
            let loss = rng.log_uniform(5e-4, 1e-2);
            path(
                Curve::Ito { capacity, loss },
                1e-3 * rng.log_uniform(20.0, 150.0),
                WINDOW * rng.log_uniform(1.0, 8.0),
            )
        },
        4..=110,
    )
}

fn fair_share(rng: &mut Rng) -> Path {
    let others = rng.log_uniform(5.0, 40.0);
    let decline = rng.uniform(0.002, 0.008);
    path(Curve::Shared { capacity: LINK, others, decline }, 1e-3 * rng.uniform(20.0, 100.0), 4.0 * WINDOW)
}

fn steps(rng: &mut Rng) -> Scenario {
    let mut phases = Vec::new();
    for start in [0, 200, 400] {
        let jitter = if start == 0 { 0.0 } else { rng.uniform(-40.0, 40.0) };
        let capacity = LINK * rng.log_uniform(0.3, 3.0);
        let rtt = 1e-3 * rng.log_uniform(20.0, 200.0);
        let at = (start as f64 + jitter) as usize;
        phases.push((at, path(Curve::Ito { capacity, loss: 0.0 }, rtt, 2.0 * WINDOW)));
    }
    Scenario { family: Family::Steps, phases, seconds: SECONDS }
}

fn drift(rng: &mut Rng) -> Scenario {
    let (from, to) = (rng.uniform(30.0, 80.0), rng.uniform(80.0, 200.0));
    let (from, to) = if rng.uniform(0.0, 1.0) < 0.5 { (from, to) } else { (to, from) };
    let phases = (0..SECONDS)
        .map(|second| {
            let part = second as f64 / SECONDS as f64;
            let rtt = 1e-3 * (from + (to - from) * part);
            (second, path(Curve::Ito { capacity: LINK, loss: 0.0 }, rtt, WINDOW))
        })
        .collect();
    Scenario { family: Family::Drift, phases, seconds: SECONDS }
}

fn cross(rng: &mut Rng) -> Scenario {
    let rtt = 1e-3 * rng.uniform(30.0, 120.0);
    let decline = rng.uniform(0.001, 0.004);
    let always = rng.uniform(4.0, 20.0);
    let more = rng.uniform(10.0, 50.0);
    let path = |others| path(Curve::Shared { capacity: LINK, others, decline }, rtt, 2.0 * WINDOW);
    let mut phases = vec![(0, path(always))];
    for start in [100.0, 350.0] {
        let from = start + rng.uniform(0.0, 100.0);
        let until = from + rng.uniform(80.0, 150.0);
        phases.extend([(from as usize, path(always + more)), (until as usize, path(always))]);
    }
    Scenario { family: Family::Cross, phases, seconds: SECONDS }
}
