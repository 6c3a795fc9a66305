//! Tuners of parallelism: they measure a transfer and decide how its next chunk is sent.
//!
//! A driver asks for the [`first`](Tuner::first) decision, sends that much data, reports what it
//! measured, and gets the next decision. While a chunk runs the driver reports progress, and the
//! tuner may answer that the chunk should end at once. Tuners do no I/O and read no clock, so that
//! the same code runs in transfers, in a simulator and in tests.

pub mod apt;
mod climb;
mod decision;
mod fixed;
mod guard;
mod meter;
mod options;
mod pilot;
mod sample;
mod track;

use std::fmt;

pub use decision::{Bottleneck, CongestionControl, Decision, Knobs, Reason};
pub use options::{Connections, Fairness, MAX_STREAMS, Options, OptionsError, Prior};
pub use sample::{Chunk, Pressure, Progress, SampleError, Work};

/// A method of choosing the settings of a transfer.
pub trait Tuner: fmt::Debug + Send {
    /// The first decision.
    fn first(&mut self) -> Decision;

    /// A chunk ended; returns the next decision.
    fn chunk(&mut self, chunk: &Chunk) -> Decision;

    /// Reports the progress of the current chunk. If the result is a reason, the chunk should end
    /// now.
    fn progress(&mut self, progress: &Progress) -> Option<Reason>;

    /// The current chunk and its progress reports do not count: the same decision is carried out
    /// again.
    fn lost(&mut self) {}
}

/// The available tuners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Always `first_streams`.
    Fixed,
    /// GridFTP-APT with its step as printed.
    Apt,
    /// GridFTP-APT with the step that preserves the golden section.
    AptGolden,
    /// GridFTP-APT with the step as printed; after it has settled, chunks are six times as long.
    AptLong,
    /// Hill climbing on a utility with a cost per stream (after Falcon, SC21).
    Climb,
    /// Search by elasticity, a computed knee, then tracking by probes; it controls only the
    /// streams.
    Track,
    /// Ropewalk's own tuner, and the default.
    #[default]
    Pilot,
}

impl Kind {
    pub const ALL: [Self; 7] =
        [Self::Fixed, Self::Apt, Self::AptGolden, Self::AptLong, Self::Climb, Self::Track, Self::Pilot];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Apt => "apt",
            Self::AptGolden => "apt-golden",
            Self::AptLong => "apt-long",
            Self::Climb => "climb",
            Self::Track => "track",
            Self::Pilot => "pilot",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Builds a tuner that answers any sample with a decision within the options.
    ///
    /// # Errors
    /// An option is not valid.
    pub fn build(self, options: &Options) -> Result<Box<dyn Tuner>, OptionsError> {
        options.check()?;
        Ok(match self {
            Self::Fixed => guard::Guard::boxed(fixed::Fixed::new(options), options),
            Self::Apt => guard::Guard::boxed(apt::Apt::new(apt::Rule::Printed, 1.0, options), options),
            Self::AptGolden => guard::Guard::boxed(apt::Apt::new(apt::Rule::Golden, 1.0, options), options),
            Self::AptLong => guard::Guard::boxed(apt::Apt::new(apt::Rule::Printed, 6.0, options), options),
            Self::Climb => guard::Guard::boxed(climb::Climb::new(options), options),
            Self::Track => guard::Guard::boxed(track::Track::new(options), options),
            Self::Pilot => guard::Guard::boxed(pilot::Pilot::new(options), options),
        })
    }
}

/// The size of the first chunk, so that it takes about `seconds`: the windows of `streams` per
/// round-trip time.
fn first_bytes(options: &Options, streams: u32, seconds: f64) -> f64 {
    const WINDOW: f64 = 65_536.0;
    const RTT: f64 = 0.1;
    let windows = f64::from(streams) * options.window.unwrap_or(WINDOW) / options.rtt.unwrap_or(RTT);
    seconds * options.capacity.map_or(windows, |capacity| capacity.min(windows))
}
