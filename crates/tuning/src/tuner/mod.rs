//! Tuners of parallelism: they see what transfers reached and decide how the next part is sent.
//!
//! A driver asks for the [`first`](Tuner::first) decision, sends that much, tells what it measured, and gets
//! the next decision. While a chunk runs it reports progress, and may be told to end the chunk at once.
//! Tuners do no I/O and read no clock: the same code runs live, in a simulator and in tests.

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

/// One way to choose.
pub trait Tuner: fmt::Debug + Send {
    /// How to begin.
    fn first(&mut self) -> Decision;

    /// A chunk ended: how to go on.
    fn chunk(&mut self, chunk: &Chunk) -> Decision;

    /// A chunk fares so. A reason means: end it now.
    fn progress(&mut self, progress: &Progress) -> Option<Reason>;

    /// The chunk that ran does not count, and what was reported of it neither: the same decision is carried out again.
    fn lost(&mut self) {}
}

/// The tuners there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Always `first_streams`.
    Fixed,
    /// GridFTP-APT with its step as printed.
    Apt,
    /// GridFTP-APT with the step that keeps the golden section.
    AptGolden,
    /// GridFTP-APT as printed, with chunks of six times the length once it has settled.
    AptLong,
    /// Hill climbing on a utility that charges for each stream (after Falcon, SC21).
    Climb,
    /// Search by elasticity, a computed knee, then tracking by probes; one knob.
    Track,
    /// Ropewalk's own, and the default.
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

    /// A tuner that answers any sample with a decision within the options.
    ///
    /// # Errors
    /// When an option makes no sense.
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

/// How much to send first, so that it takes about `seconds`: windows of `streams` a round trip.
fn first_bytes(options: &Options, streams: u32, seconds: f64) -> f64 {
    const WINDOW: f64 = 65_536.0;
    const RTT: f64 = 0.1;
    let windows = f64::from(streams) * options.window.unwrap_or(WINDOW) / options.rtt.unwrap_or(RTT);
    seconds * options.capacity.map_or(windows, |capacity| capacity.min(windows))
}
