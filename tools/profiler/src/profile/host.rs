//! The measurements of one end of a transfer.

use serde::{Deserialize, Serialize};

use super::untrusted::{self, Check, ProfileError, ascending, share};
use super::{Clock, Connection, Facts, ProfilerShares, Stages, SystemSample};

/// The measurements of one host. A server sends this to the client that profiles it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostProfile {
    /// [`SCHEMA`](super::SCHEMA).
    pub schema: u32,
    pub role: Role,
    /// Time zero of the samples, in seconds since 1970, by the host's own clock.
    pub started: f64,
    /// Set by the client that fetched the profile.
    #[serde(default)]
    pub clock: Clock,
    #[serde(default)]
    pub facts: Facts,
    /// The collectors that were used, and those that could not be.
    #[serde(default)]
    pub collectors: Vec<CollectorReport>,
    #[serde(default)]
    pub system: Vec<SystemSample>,
    #[serde(default)]
    pub connections: Vec<Connection>,
    /// Number of connections without a series, because there were too many.
    #[serde(default)]
    pub connections_left_out: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiler: Option<ProfilerShares>,
    /// How Ropewalk's own engine spent its time; absent for other programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<Stages>,
    /// The programs that moved the data.
    #[serde(default)]
    pub programs: Vec<Program>,
    /// Activity of the programs, as seen from outside; absent if they report it themselves
    /// (`stages`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doing: Option<Doing>,
    /// Seconds that were measured. Less than the duration of the transfer if the measurement ended
    /// before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
    /// The tools' own files, if they were requested. They are kept beside the profile.
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
    /// The largest file that is kept, in bytes; larger ones are left out.
    pub const LARGEST: usize = 32 << 20;
}

/// The role of a host in the transfer.
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

/// A program over the whole transfer. Times are in seconds, summed over its threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Program {
    pub name: String,
    pub pid: u32,
    pub seconds: f64,
    pub user: f64,
    pub system: f64,
    /// Time in which its threads were ready to run but had no processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_for_processor: Option<f64>,
    /// Number of processors that the program may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<u32>,
}

/// The activity of programs, as shares of the moments at which they were sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Doing {
    pub samples: u32,
    /// Any program ran.
    pub running: f64,
    /// Any program waited in a read of a file.
    pub reading: f64,
    /// Any program waited in a write to a file.
    pub writing: f64,
    /// All programs slept for a time that they chose themselves.
    pub asleep: f64,
    /// All programs were stopped by a signal.
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

/// The result of a collector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CollectorReport {
    pub name: CollectorName,
    pub state: CollectorState,
    /// The version, or the problem and how to solve it.
    #[serde(default)]
    pub detail: String,
}

/// The state of a collector, see [`CollectorReport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CollectorState {
    Used,
    /// The program or the kernel's interface does not exist.
    Missing,
    /// It exists, but Ropewalk may not use it.
    Denied,
    /// It broke, or its output could not be understood. Its results until then count.
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
    /// Reads and checks the profile that a server sent.
    ///
    /// # Errors
    /// As [`Profile::from_json`](super::Profile::from_json).
    pub fn from_json(bytes: &[u8]) -> Result<Self, ProfileError> {
        untrusted::read(bytes)
    }

    /// Largest profile that one host sends, in bytes. Two of them and the data about the transfer
    /// make a profile that can be read.
    pub const LARGEST: usize = 24 << 20;

    /// Serialises to JSON of at most `most` bytes: if it would be larger, every other sample is
    /// dropped, as often as necessary.
    ///
    /// # Errors
    /// As [`serde_json::to_vec`].
    pub fn to_json(mut self, most: usize) -> Result<Vec<u8>, serde_json::Error> {
        self.shrink(most)
    }

    /// Like `to_json`, but also drops the samples from `self`.
    pub(super) fn shrink(&mut self, most: usize) -> Result<Vec<u8>, serde_json::Error> {
        loop {
            let bytes = serde_json::to_vec(self)?;
            if bytes.len() <= most || !self.thin() {
                return Ok(bytes);
            }
        }
    }

    /// Drops every other sample. A kept sample then also stands for the one before it. If there are
    /// no samples to drop, drops the connections. Returns whether there was anything to drop.
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

    /// Converts a time of a sample to seconds since time zero of a profile that began at `started`
    /// by the writer's clock.
    pub fn aligned(&self, time: f64, started: f64) -> f64 {
        self.clock.align(self.started + time) - started
    }
}

/// Drops every other sample and keeps the last one. Returns whether any was dropped.
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
    fn to_json_when_too_large_drops_samples() {
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
        // A profile that cannot be reduced further is sent as it is.
        let least = HostProfile::from_json(&host.to_json(10).unwrap()).unwrap();
        assert_eq!((least.connections.len(), least.connections_left_out), (0, 3));
    }
}
