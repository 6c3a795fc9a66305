//! The decisions of a tuner and their reasons, as values that can be logged, shown, exported and
//! tested.

use std::fmt;

use super::sample::SampleError;

/// The three settings that a tuner controls. The network sees `streams * files` connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Knobs {
    /// Parallel connections per file (`OPTS RETR Parallelism`, GFD.20 section 5.1).
    pub streams: u32,
    /// Concurrent files, each on its own control connection.
    pub files: u32,
    /// Pipeline depth: transfer commands sent in advance on each control connection; 1 means no
    /// pipelining.
    pub pipeline: u32,
}

impl Knobs {
    /// One file at a time over `streams` connections.
    pub const fn streams(streams: u32) -> Self {
        Self { streams, files: 1, pipeline: 1 }
    }

    /// Total number of connections.
    pub const fn connections(self) -> u32 {
        self.streams.saturating_mul(self.files)
    }
}

/// Congestion controls that a tuner may request, by the name that `TCP_CONGESTION` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CongestionControl {
    Reno,
    Cubic,
    Bbr,
}

impl CongestionControl {
    pub const ALL: [Self; 3] = [Self::Reno, Self::Cubic, Self::Bbr];

    /// The kernel's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reno => "reno",
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        }
    }

    /// Parses the kernel's name; `None` if no tuner can use this congestion control.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|control| control.name() == name)
    }
}

/// The limit of a transfer if it is not the number of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bottleneck {
    /// Storage at this end.
    Disk,
    /// A busy core at this end.
    Cpu,
    /// The peer, which does not receive or send data any faster.
    Peer,
    /// The rate limit that is set for the program at this end.
    Limit,
    /// One of the ends, unknown which: more streams gain nothing, although the path shows neither
    /// loss nor a queue, and the windows are not full.
    Ends,
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disk => "the disk",
            Self::Cpu => "the CPU",
            Self::Peer => "the peer",
            Self::Limit => "the one that was set on the rate",
            Self::Ends => "one of the ends, not the network",
        })
    }
}

/// The reason for a decision. Rates are bytes per second, elasticities d ln(rate) / d ln(streams).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// The user requested this number.
    Fixed,
    /// Nothing is known yet.
    Start,
    /// Computed from the known capacity of the path, and the window or the loss that limits a
    /// stream.
    WarmStart { capacity: f64, window_packets: f64 },
    /// The number with which an earlier transfer over this path ended.
    Remembered { streams: u32 },
    /// The windows are full (`utilisation` is the used part of the window per round-trip time):
    /// more streams carry more.
    WindowLimited { utilisation: f64 },
    /// A short chunk with more streams gained little, and its slow start lost packets: a longer
    /// measurement follows.
    SlowStart { loss: f64 },
    /// The last increase gained enough, so the number is increased again.
    Growing { elasticity: f64 },
    /// The first increase gained nothing; fewer streams may suffice.
    LookingDown { elasticity: f64 },
    /// One stream carries `each`, and all together at most `ceiling`: this number of streams fills
    /// it.
    Knee { each: f64, ceiling: f64 },
    /// There is no sharp knee: the vertex of a parabola through the best points.
    Vertex { low: u32, high: u32 },
    /// The number stays, and is measured.
    Holding,
    /// A short trial of more streams.
    ProbeUp { from: u32 },
    /// A short trial of fewer streams.
    ProbeDown { from: u32 },
    /// A trial of more streams gained enough.
    MovedUp { elasticity: f64 },
    /// Fewer streams are as fast.
    MovedDown { elasticity: f64 },
    /// The rate at this number of streams has changed by `factor`.
    Changed { factor: f64 },
    /// The search looks for a bracket of the optimum (GridFTP-APT).
    Bracketing,
    /// Golden section search within a bracket (GridFTP-APT).
    GoldenSection { low: u32, middle: u32, high: u32 },
    /// The search has ended (GridFTP-APT).
    Settled,
    /// More streams would not help.
    Limited { by: Bottleneck },
    /// The path is crowded: there are too many streams, so that windows are this small (in
    /// packets).
    WindowTooSmall { packets: f64 },
    /// The path is crowded: the number of streams for which their window (in packets) leaves room,
    /// as other transfers of this kind have it.
    Crowded { packets: f64 },
    /// More streams would gain little, and would take it from other flows: the transfer has about
    /// this share already.
    FairShare { share: f64 },
    /// This number of streams has the requested share.
    StatedShare { share: f64 },
    /// Politeness: the path shows a queue (round-trip time above its minimum) or loss.
    Yielding { queueing: f64, loss: f64 },
    /// The maximum number.
    Capped { cap: u32 },
    /// Additional streams were not opened: this is the most that the peer grants.
    Granted { streams: u32 },
    /// No data arrived.
    PathDead,
    /// Data arrives again.
    PathReturned,
    /// The sample was invalid and is ignored.
    Ignored(SampleError),
    /// The measurement of this chunk is sufficient.
    KnowsEnough,
}

impl Reason {
    /// Whether the number of streams is meant to stay: it is neither a step of an increase nor a
    /// trial.
    pub const fn stays(&self) -> bool {
        matches!(
            self,
            Self::WarmStart { .. }
                | Self::Remembered { .. }
                | Self::Knee { .. }
                | Self::Vertex { .. }
                | Self::Holding
                | Self::MovedUp { .. }
                | Self::MovedDown { .. }
                | Self::Settled
                | Self::Limited { .. }
                | Self::WindowTooSmall { .. }
                | Self::Crowded { .. }
                | Self::FairShare { .. }
                | Self::StatedShare { .. }
        )
    }

    /// Whether more streams are not available.
    pub const fn bounds(&self) -> bool {
        matches!(self, Self::Capped { .. } | Self::Granted { .. })
    }

    /// Whether the number of streams is a trial, different from the number that stays.
    pub const fn tries(&self) -> bool {
        matches!(self, Self::ProbeUp { .. } | Self::ProbeDown { .. })
    }

    /// A short fixed name, for metrics and snapshots.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Start => "start",
            Self::WarmStart { .. } => "warm-start",
            Self::Remembered { .. } => "remembered",
            Self::WindowLimited { .. } => "window-limited",
            Self::SlowStart { .. } => "slow-start",
            Self::Growing { .. } => "growing",
            Self::LookingDown { .. } => "looking-down",
            Self::Knee { .. } => "knee",
            Self::Vertex { .. } => "vertex",
            Self::Holding => "holding",
            Self::ProbeUp { .. } => "probe-up",
            Self::ProbeDown { .. } => "probe-down",
            Self::MovedUp { .. } => "moved-up",
            Self::MovedDown { .. } => "moved-down",
            Self::Changed { .. } => "changed",
            Self::Bracketing => "bracketing",
            Self::GoldenSection { .. } => "golden-section",
            Self::Settled => "settled",
            Self::Limited { .. } => "limited",
            Self::WindowTooSmall { .. } => "window-too-small",
            Self::Crowded { .. } => "crowded",
            Self::FairShare { .. } => "fair-share",
            Self::StatedShare { .. } => "stated-share",
            Self::Yielding { .. } => "yielding",
            Self::Capped { .. } => "capped",
            Self::Granted { .. } => "granted",
            Self::PathDead => "path-dead",
            Self::PathReturned => "path-returned",
            Self::Ignored(_) => "ignored",
            Self::KnowsEnough => "knows-enough",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Fixed => f.write_str("as asked"),
            Self::Start => f.write_str("nothing known of the path yet"),
            Self::WarmStart { capacity, window_packets } => write!(
                f,
                "from a capacity of {:.1} Mbit/s and {window_packets:.0} packets of window a stream",
                mbit(capacity)
            ),
            Self::Remembered { streams } => write!(f, "an earlier transfer ended at {streams}"),
            Self::WindowLimited { utilisation } => {
                write!(f, "windows are the limit ({:.0} % used)", 100.0 * utilisation)
            }
            Self::SlowStart { loss } => {
                write!(f, "slow start may have lost too much ({:.2} %): measuring again", 100.0 * loss)
            }
            Self::Growing { elasticity } => write!(f, "more streams still pay (elasticity {elasticity:.2})"),
            Self::LookingDown { elasticity } => {
                write!(f, "more streams do not pay (elasticity {elasticity:.2}): trying fewer")
            }
            Self::Knee { each, ceiling } => {
                write!(f, "{:.1} Mbit/s a stream fill {:.1} Mbit/s", mbit(each), mbit(ceiling))
            }
            Self::Vertex { low, high } => write!(f, "best between {low} and {high}"),
            Self::Holding => f.write_str("nothing better is known"),
            Self::ProbeUp { from } => write!(f, "trying more than {from}"),
            Self::ProbeDown { from } => write!(f, "trying fewer than {from}"),
            Self::MovedUp { elasticity } => write!(f, "more streams paid (elasticity {elasticity:.2})"),
            Self::MovedDown { elasticity } => {
                write!(f, "fewer streams are as good (elasticity {elasticity:.2})")
            }
            Self::Changed { factor } => write!(f, "the path changed: {factor:.2} times the rate expected"),
            Self::Bracketing => f.write_str("looking for a bracket"),
            Self::GoldenSection { low, middle, high } => {
                write!(f, "golden section in ({low}, {middle}, {high})")
            }
            Self::Settled => f.write_str("the search has ended"),
            Self::Limited { by } => write!(f, "more streams gain nothing: the limit is {by}"),
            Self::WindowTooSmall { packets } => {
                write!(f, "only {packets:.1} packets of window a stream")
            }
            Self::Crowded { packets } => {
                write!(f, "on a crowded path, {packets:.1} packets of window a stream leave room for so many")
            }
            Self::FairShare { share } => {
                write!(f, "others share the path, and {:.0} % of it are taken already", 100.0 * share)
            }
            Self::StatedShare { share } => {
                write!(f, "so many streams have the share that was asked for, {:.0} %", 100.0 * share)
            }
            Self::Yielding { queueing, loss } => {
                write!(f, "yielding to others (queue {:.0} ms, loss {:.2} %)", 1e3 * queueing, 100.0 * loss)
            }
            Self::Capped { cap } => write!(f, "at the most allowed, {cap}"),
            Self::Granted { streams } => {
                write!(f, "at the most that came when more were asked for, {streams}")
            }
            Self::PathDead => f.write_str("nothing arrives"),
            Self::PathReturned => f.write_str("data arrives again"),
            Self::Ignored(error) => write!(f, "sample left out: {error}"),
            Self::KnowsEnough => f.write_str("this chunk has told enough"),
        }
    }
}

fn mbit(bytes_per_second: f64) -> f64 {
    bytes_per_second * 8e-6
}

/// The settings and size of the next chunk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    pub knobs: Knobs,
    /// The size of the next chunk, or the amount of data to send before the next question. At least
    /// one packet.
    pub bytes: u64,
    /// The congestion control for new connections; `None` for the host's default.
    pub congestion: Option<CongestionControl>,
    pub reason: Reason,
}

impl Decision {
    pub(crate) fn streams(streams: u32, bytes: f64, reason: Reason) -> Self {
        Self { knobs: Knobs::streams(streams), bytes: whole_bytes(bytes), congestion: None, reason }
    }
}

/// Rounds a number of bytes; any float is allowed.
pub(crate) fn whole_bytes(bytes: f64) -> u64 {
    // The cast saturates, and converts NaN to 0.
    (bytes.round() as u64).clamp(1, 1 << 60)
}
