//! What a tuner decides, and why, as values: to be logged, shown, exported and tested.

use std::fmt;

use super::sample::SampleError;

/// The three knobs of a transfer. The network sees `streams * files` connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Knobs {
    /// Parallel connections a file (`OPTS RETR Parallelism`, GFD.20 section 5.1).
    pub streams: u32,
    /// Files in flight at once, each on its own control connection.
    pub files: u32,
    /// Transfer commands sent ahead on each control connection; 1 is no pipelining.
    pub pipeline: u32,
}

impl Knobs {
    /// One file at a time over `streams` connections.
    pub const fn streams(streams: u32) -> Self {
        Self { streams, files: 1, pipeline: 1 }
    }

    /// Connections in all.
    pub const fn connections(self) -> u32 {
        self.streams.saturating_mul(self.files)
    }
}

/// Congestion controls that a tuner may ask for, by the name that `TCP_CONGESTION` takes.
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

    /// From the kernel's name; `None` for one that no tuner knows how to use.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|control| control.name() == name)
    }
}

/// What holds a transfer back when it is not the number of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bottleneck {
    /// Storage at this end.
    Disk,
    /// A core at this end is busy.
    Cpu,
    /// The other end does not take or give data any faster.
    Peer,
    /// The limit that was set on the rate of this end's program.
    Limit,
    /// One of the ends, not known which: more streams gain nothing, yet the path shows neither loss nor a
    /// queue, and the windows are not full.
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

/// Why a decision is as it is. Rates are bytes a second, elasticities d ln(rate) / d ln(streams).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// Asked for by the user.
    Fixed,
    /// Nothing is known yet.
    Start,
    /// Computed from what is known of the path: its capacity, and the window or the loss that binds a stream.
    WarmStart { capacity: f64, window_packets: f64 },
    /// Where an earlier transfer over this path ended.
    Remembered { streams: u32 },
    /// The windows are full (share of window used in a round trip): more streams carry more.
    WindowLimited { utilisation: f64 },
    /// A short chunk with more streams gained little, and its slow start lost packets: measured again, for longer.
    SlowStart { loss: f64 },
    /// Growth paid last time, so it goes on.
    Growing { elasticity: f64 },
    /// The first step gained nothing; fewer streams may do.
    LookingDown { elasticity: f64 },
    /// Each stream carries `each`, all together `ceiling`: the streams that fill it.
    Knee { each: f64, ceiling: f64 },
    /// No sharp knee: the vertex of a parabola through the best points.
    Vertex { low: u32, high: u32 },
    /// Staying, and measuring.
    Holding,
    /// A short trial of more streams.
    ProbeUp { from: u32 },
    /// A short trial of fewer streams.
    ProbeDown { from: u32 },
    /// A trial of more streams paid.
    MovedUp { elasticity: f64 },
    /// Fewer streams are as good.
    MovedDown { elasticity: f64 },
    /// The rate is not what it was at this number of streams (factor).
    Changed { factor: f64 },
    /// A bracket of the optimum is sought (GridFTP-APT).
    Bracketing,
    /// Golden section search within a bracket (GridFTP-APT).
    GoldenSection { low: u32, middle: u32, high: u32 },
    /// The search has ended (GridFTP-APT).
    Settled,
    /// More streams would not help.
    Limited { by: Bottleneck },
    /// The path is crowded: there are too many streams for windows as small as these (in packets).
    WindowTooSmall { packets: f64 },
    /// The path is crowded: as many streams as their window (in packets) leaves room for, as others like this one have.
    Crowded { packets: f64 },
    /// Further streams would gain little, and from other flows: about this share is taken already.
    FairShare { share: f64 },
    /// So many streams have the share that was asked for.
    StatedShare { share: f64 },
    /// Politeness: the path shows a queue (round trip over its least) or loss.
    Yielding { queueing: f64, loss: f64 },
    /// The most that is allowed.
    Capped { cap: u32 },
    /// More streams did not come: the most that the peer grants.
    Granted { streams: u32 },
    /// Nothing arrived.
    PathDead,
    /// Data arrives again.
    PathReturned,
    /// The sample made no sense and was left out.
    Ignored(SampleError),
    /// This chunk has told enough.
    KnowsEnough,
}

impl Reason {
    /// The streams are there to stay, as far as is known: no step of a climb, and no trial.
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

    /// More streams are not to be had.
    pub const fn bounds(&self) -> bool {
        matches!(self, Self::Capped { .. } | Self::Granted { .. })
    }

    /// More streams or fewer are tried beside those that stay.
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

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    pub knobs: Knobs,
    /// The size of the next chunk, or how much to send before asking again. At least one packet.
    pub bytes: u64,
    /// The congestion control for new connections; `None`: the host's own.
    pub congestion: Option<CongestionControl>,
    pub reason: Reason,
}

impl Decision {
    pub(crate) fn streams(streams: u32, bytes: f64, reason: Reason) -> Self {
        Self { knobs: Knobs::streams(streams), bytes: whole_bytes(bytes), congestion: None, reason }
    }
}

/// Bytes as a whole number, safe for any float.
pub(crate) fn whole_bytes(bytes: f64) -> u64 {
    // The cast saturates, and makes 0 of NaN.
    (bytes.round() as u64).clamp(1, 1 << 60)
}
