//! The profile: what was measured of one transfer.

mod clock;
mod connection;
mod facts;
mod failure;
mod host;
#[cfg(feature = "schema")]
mod schema;
mod system;
mod untrusted;
mod workload;

pub use clock::{Clock, Exchange};
pub use connection::{Connection, ConnectionSample};
pub use facts::{Disk, Facts, FileSystem, Interface, Rings};
pub use failure::FailureKind;
pub use host::{CollectorName, CollectorReport, CollectorState, Doing, HostProfile, Program, RawFile, Role};
#[cfg(feature = "schema")]
pub use schema::{profile_schema, schema_text};
pub use system::{
    DiskUse, FunctionShare, InterfaceUse, MemoryUse, Processor, ProfilerShares, Share, ShareKind,
    SystemSample, TcpUse,
};
pub use untrusted::ProfileError;
pub(crate) use untrusted::{Check, share, wrong};
pub use workload::{
    Baselines, EndRates, KindRate, KindShare, Outcome, RateSample, StageTime, Stages, SweepPoint, Workload,
    WorkloadKind,
};

use serde::{Deserialize, Serialize};

use crate::sweep::Sweeps;

/// Version of the JSON. It grows when a field changes its meaning or goes; new fields do not change it.
pub const SCHEMA: u32 = 1;

/// Everything that is known of one transfer, or of what there is of one that failed.
///
/// Reads from bytes by [`from_json`](Self::from_json) only: `Deserialize` alone checks no limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Profile {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Time zero, in seconds since 1970, by the clock of the host that wrote the profile.
    pub started: f64,
    /// What was moved, and how fast.
    pub workload: Workload,
    /// What the parts reach by themselves.
    #[serde(default)]
    pub baselines: Baselines,
    /// The hosts that were looked at: one or two, at most one of each role.
    #[serde(default)]
    pub hosts: Vec<HostProfile>,
    /// The same transfer with other settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweeps: Option<Sweeps>,
}

impl Profile {
    /// Reads and checks a profile. Unknown fields are left out.
    ///
    /// # Errors
    /// It is larger than [`LARGEST`](Self::LARGEST), no JSON, not of this schema, or says what cannot be.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ProfileError> {
        untrusted::read(bytes)
    }

    /// The most bytes that are read.
    pub const LARGEST: usize = untrusted::LARGEST;

    /// As JSON that can be read again: where it would be larger than [`LARGEST`](Self::LARGEST), of hosts with more than
    /// [`HostProfile::LARGEST`] bytes every other sample goes, as often as that takes.
    ///
    /// # Errors
    /// As [`serde_json::to_vec`].
    pub fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        self.to_json_of(Self::LARGEST, HostProfile::LARGEST)
    }

    fn to_json_of(&self, most: usize, of_host: usize) -> Result<Vec<u8>, serde_json::Error> {
        let bytes = serde_json::to_vec(self)?;
        if bytes.len() <= most {
            return Ok(bytes);
        }
        let mut less = self.clone();
        for host in &mut less.hosts {
            host.shrink(of_host)?;
        }
        serde_json::to_vec(&less)
    }

    /// The host that sent the data.
    pub fn source(&self) -> Option<&HostProfile> {
        self.hosts.iter().find(|host| host.role.sends())
    }

    /// The host that received it.
    pub fn destination(&self) -> Option<&HostProfile> {
        self.hosts.iter().find(|host| host.role.receives())
    }
}

impl untrusted::Check for Profile {
    fn check(&self) -> Result<(), ProfileError> {
        untrusted::schema(self.schema)?;
        self.workload.check()?;
        if self.hosts.len() > 2 {
            return Err(untrusted::wrong("hosts", "at most two", self.hosts.len()));
        }
        if self.hosts.iter().filter(|host| host.role.sends()).count() > 1
            || self.hosts.iter().filter(|host| host.role.receives()).count() > 1
        {
            return Err(untrusted::wrong("hosts", "at most one of each role", "two of the same"));
        }
        self.hosts.iter().try_for_each(untrusted::Check::check)?;
        self.sweeps.as_ref().map_or(Ok(()), untrusted::Check::check)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let host = |role, samples| HostProfile {
            schema: SCHEMA,
            role,
            system: vec![SystemSample::default(); samples],
            ..HostProfile::default()
        };
        let hosts = vec![host(Role::Source, 1000), host(Role::Destination, 10)];
        let profile = Profile { schema: SCHEMA, hosts, ..Profile::default() };
        let whole = profile.to_json().unwrap();
        assert_eq!(Profile::from_json(&whole).unwrap(), profile);
        assert_eq!(profile.to_json_of(whole.len(), 0).unwrap(), whole);
        let bytes = profile.to_json_of(whole.len() - 1, whole.len() / 3).unwrap();
        assert!(bytes.len() < whole.len() / 2);
        let less = Profile::from_json(&bytes).unwrap();
        assert!(less.hosts[0].system.len() >= 200, "{}", less.hosts[0].system.len());
        assert_eq!(less.hosts[1], profile.hosts[1]);
    }
}
