//! The paper's figures.

/// A row of Table 1, for one buffer size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Per cent.
    pub(super) peak: f64,
    /// Transfers to I/O devices per second.
    pub(super) transfers: f64,
    /// Packets per second.
    pub(super) received: f64,
    pub(super) sent: f64,
}

const fn load(peak: f64, transfers: f64, received: f64, sent: f64) -> Load {
    Load { peak, transfers, received, sent }
}

/// Table 1: the buffer's name in the paper and in the lab, with old and with new TCP settings.
pub(super) const BUFFERS: [(&str, &str, Load, Load); 6] = [
    ("auto", "default", load(23.7, 4.85, 11675.0, 15529.0), load(34.9, 9.43, 45372.0, 61977.0)),
    ("bdp", "BDP", load(20.6, 2.11, 5734.0, 7664.0), load(20.4, 10.78, 38332.0, 52539.0)),
    ("4M", "4 MB", load(20.5, 2.87, 7271.0, 9673.0), load(28.2, 11.63, 38725.0, 53191.0)),
    ("8M", "8 MB", load(20.6, 3.40, 8352.0, 11083.0), load(34.5, 12.00, 39021.0, 53618.0)),
    ("16M", "16 MB", load(21.4, 3.99, 9524.0, 12635.0), load(34.5, 10.51, 33798.0, 46433.0)),
    ("32M", "32 MB", load(20.1, 4.49, 10527.0, 13947.0), load(34.0, 10.92, 34483.0, 47385.0)),
];

/// The size to which Breadboard's net.core.rmem_max and wmem_max limited all requested buffers.
pub(super) const CLIPPED: &str = "128K";

/// Table 3, from Breadboard to Pople: streams, MB/s, peak processor use in per cent, kernel load in
/// per cent.
pub(super) const STREAMS: [(u64, f64, f64, f64); 5] = [
    (1, 45.86, 22.2, 45.22),
    (2, 58.36, 39.1, 48.60),
    (4, 59.06, 41.7, 46.73),
    (8, 47.01, 38.7, 53.94),
    (16, 58.33, 36.4, 59.26),
];

/// Between two nodes of Breadboard: kind, MB/s.
pub(super) const KINDS: [(&str, f64); 4] =
    [("mem-mem", 112.0), ("mem-disk", 50.0), ("disk-mem", 80.0), ("disk-disk", 60.0)];
