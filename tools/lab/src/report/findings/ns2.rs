//! Results of the papers' simulations, run again with ns-2 2.35: NewReno without delayed
//! acknowledgements, windows of 43 packets of 1500 bytes, 100 Mbit/s, a drop-tail queue of 50
//! packets, 60 s including the start, means of 3 seeds.

/// One simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Simulated {
    /// Number of connections.
    pub(super) streams: u32,
    /// Packets per millisecond.
    pub(super) goodput: f64,
    /// Share of packets dropped.
    pub(super) loss: f64,
}

const fn simulated(streams: u32, goodput: f64, loss: f64) -> Simulated {
    Simulated { streams, goodput, loss }
}

const FAR: &[Simulated] = &[
    simulated(1, 0.425, 0.0),
    simulated(15, 6.360, 0.0),
    simulated(19, 8.018, 0.0001),
    simulated(20, 8.184, 0.0001),
    simulated(24, 7.943, 0.0010),
    simulated(30, 7.543, 0.0024),
    simulated(40, 7.567, 0.0045),
    simulated(50, 7.554, 0.0069),
];

const NEAR: &[Simulated] = &[
    simulated(5, 8.313, 0.0),
    simulated(10, 8.187, 0.0040),
    simulated(20, 7.892, 0.0138),
    simulated(30, 7.981, 0.0247),
    simulated(40, 8.045, 0.0357),
    simulated(50, 8.132, 0.0469),
];

/// The simulations with a two-way delay of 100 or 20 ms.
pub(super) fn simulations(round_trip_ms: u32) -> &'static [Simulated] {
    match round_trip_ms {
        100 => FAR,
        20 => NEAR,
        _ => &[],
    }
}
