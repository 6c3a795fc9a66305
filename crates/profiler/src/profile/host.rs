//! One end of a transfer.

use serde::{Deserialize, Serialize};

use super::untrusted::{self, Check, ProfileError, ascending, share};
use super::{Clock, Connection, Facts, ProfilerShares, Stages, SystemSample};

/// What was measured at one host. A server sends this to who profiles it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostProfile {
    /// [`SCHEMA`](super::SCHEMA).
    pub schema: u32,
    pub role: Role,
    /// Time zero of its samples, in seconds since 1970, by its own clock.
    pub started: f64,
    /// Set by who fetched it.
    #[serde(default)]
    pub clock: Clock,
    #[serde(default)]
    pub facts: Facts,
    /// What was used, and what could not be.
    #[serde(default)]
    pub collectors: Vec<CollectorReport>,
    #[serde(default)]
    pub system: Vec<SystemSample>,
    #[serde(default)]
    pub connections: Vec<Connection>,
    /// Connections that were there but got no series, since there were too many.
    #[serde(default)]
    pub connections_left_out: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiler: Option<ProfilerShares>,
    /// Where our own engine's time went; absent for other programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<Stages>,
    /// The programs that moved the data.
    #[serde(default)]
    pub programs: Vec<Program>,
    /// What they did, as it was seen from outside; absent where they tell themselves (stages).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doing: Option<Doing>,
    /// Seconds that were measured. Less than the transfer took where the profile was over before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
    /// The tools' own files, where they were wanted. They are kept beside the profile.
    #[serde(skip)]
    pub raw: Vec<RawFile>,
}

/// A file as a tool wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawFile {
    pub name: String,
    pub bytes: Vec<u8>,
}

impl RawFile {
    /// The most bytes of one; larger ones are left out.
    pub const LARGEST: usize = 32 << 20;
}

/// What a host did in the transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    #[default]
    Source,
    Destination,
    /// Source and destination are the same machine.
    Both,
}

/// A program over the whole transfer. Times in seconds, summed over its threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Program {
    pub name: String,
    pub pid: u32,
    pub seconds: f64,
    pub user: f64,
    pub system: f64,
    /// Ready to run, but another had the processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_for_processor: Option<f64>,
    /// Processors that it may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<u32>,
}

/// Shares of the moments at which programs were looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Doing {
    pub samples: u32,
    /// Any of them ran.
    pub running: f64,
    /// Any was in a read of a file, waiting for it.
    pub reading: f64,
    /// Any was in a write to a file, waiting for it.
    pub writing: f64,
    /// All slept for a time of their own choice.
    pub asleep: f64,
    /// All were stopped by a signal.
    pub stopped: f64,
}

/// A way to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CollectorName {
    /// `sar` and `sadf` of sysstat.
    Sysstat,
    /// proc(5), for the same figures.
    Proc,
    Perf,
    /// TCP_INFO.
    Tcp,
    Facts,
    Programs,
}

/// How a collector fared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CollectorReport {
    pub name: CollectorName,
    pub state: CollectorState,
    /// Version, or what was wrong and what to do about it.
    #[serde(default)]
    pub detail: String,
}

/// See [`CollectorReport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CollectorState {
    Used,
    /// The program or the kernel's interface is not there.
    Missing,
    /// It is there, but we may not use it.
    Denied,
    /// It broke, or said nonsense. What it had said until then counts.
    Failed,
}

impl Role {
    pub fn sends(self) -> bool {
        self != Self::Destination
    }

    pub fn receives(self) -> bool {
        self != Self::Source
    }
}

impl HostProfile {
    /// Reads and checks what a server sent.
    ///
    /// # Errors
    /// As [`Profile::from_json`](super::Profile::from_json).
    pub fn from_json(bytes: &[u8]) -> Result<Self, ProfileError> {
        untrusted::read(bytes)
    }

    /// The most bytes of what one host sends: two of them, and what is about the transfer, make a profile that can be read.
    pub const LARGEST: usize = 24 << 20;

    /// As JSON of at most `most` bytes: where it would be more, every other sample goes, as often as that takes.
    ///
    /// # Errors
    /// As [`serde_json::to_vec`].
    pub fn to_json(mut self, most: usize) -> Result<Vec<u8>, serde_json::Error> {
        self.shrink(most)
    }

    /// The same, and is that afterwards.
    pub(super) fn shrink(&mut self, most: usize) -> Result<Vec<u8>, serde_json::Error> {
        loop {
            let bytes = serde_json::to_vec(self)?;
            if bytes.len() <= most || !self.thin() {
                return Ok(bytes);
            }
        }
    }

    /// Whether there was anything to leave out. What is in every other second stands for the one before as well.
    fn thin(&mut self) -> bool {
        let mut thinned = every_other(&mut self.system);
        for connection in &mut self.connections {
            thinned |= every_other(&mut connection.samples);
        }
        if !thinned {
            self.connections_left_out += self.connections.len() as u64;
            thinned = !std::mem::take(&mut self.connections).is_empty();
        }
        thinned
    }

    /// A time of its samples, in seconds since time zero of a profile that began at `started` by the writer's clock.
    pub fn aligned(&self, time: f64, started: f64) -> f64 {
        self.clock.align(self.started + time) - started
    }
}

/// Keeps the last one.
fn every_other<T>(samples: &mut Vec<T>) -> bool {
    let (before, odd) = (samples.len(), samples.len() % 2);
    let mut at = 0;
    samples.retain(|_| {
        at += 1;
        at % 2 == odd
    });
    samples.len() < before
}

impl Check for Doing {
    fn check(&self) -> Result<(), ProfileError> {
        let all = [self.running, self.reading, self.writing, self.asleep, self.stopped];
        all.into_iter().try_for_each(|part| share("what programs did", part))
    }
}

impl Check for HostProfile {
    fn check(&self) -> Result<(), ProfileError> {
        untrusted::schema(self.schema)?;
        ascending("system samples", self.system.iter().map(|sample| sample.time))?;
        self.system.iter().try_for_each(Check::check)?;
        self.connections.iter().try_for_each(Check::check)?;
        self.profiler.iter().try_for_each(Check::check)?;
        self.doing.iter().try_for_each(Check::check)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::profile::ConnectionSample;

    #[test]
    fn what_is_sent_is_bounded() {
        let samples: Vec<ConnectionSample> = (0..1000)
            .map(|n| ConnectionSample { time: f64::from(n), ..ConnectionSample::default() })
            .collect();
        let host = HostProfile {
            schema: 1,
            system: vec![SystemSample::default(); 100],
            connections: vec![Connection { samples, ..Connection::default() }; 3],
            ..HostProfile::default()
        };
        let whole = host.clone().to_json(usize::MAX).unwrap();
        assert_eq!(HostProfile::from_json(&whole).unwrap(), host);
        let bytes = host.clone().to_json(whole.len() / 3).unwrap();
        assert!(bytes.len() <= whole.len() / 3);
        let less = HostProfile::from_json(&bytes).unwrap();
        assert_eq!(less.connections[0].samples.last(), host.connections[0].samples.last());
        assert!(less.connections[0].samples.len() > 100);
        // What cannot be less is sent as it is.
        let least = HostProfile::from_json(&host.to_json(10).unwrap()).unwrap();
        assert_eq!((least.connections.len(), least.connections_left_out), (0, 3));
    }
}
