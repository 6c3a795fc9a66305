//! The profile: the measurements of one transfer.
//!
//! [`Profile`] and its parts are plain data that are stored as JSON. A profile of another host is
//! untrusted: [`Profile::from_json`] checks its limits and its meaning.

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

/// Version of the JSON. It increases when a field changes its meaning or is removed; new fields do
/// not change it.
pub const SCHEMA: u32 = 1;

/// All measurements of one transfer. A profile of a failed transfer has the measurements until the
/// failure.
///
/// Read it from bytes only with [`from_json`](Self::from_json): `Deserialize` alone checks no
/// limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Profile {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Time zero, in seconds since 1970, by the clock of the host that wrote the profile.
    pub started: f64,
    /// The transfer itself: the kind, the amount of data, and the rates.
    pub workload: Workload,
    /// The rates that the disks, the path and the processors reach without the transfer.
    #[serde(default)]
    pub baselines: Baselines,
    /// The measured hosts: one or two, at most one of each role.
    #[serde(default)]
    pub hosts: Vec<HostProfile>,
    /// The same transfer with other settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweeps: Option<Sweeps>,
}

impl Profile {
    /// Reads and checks a profile. Unknown fields are ignored.
    ///
    /// # Errors
    /// The profile is larger than [`LARGEST`](Self::LARGEST), is no JSON, has another schema, or
    /// contains impossible values.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ProfileError> {
        untrusted::read(bytes)
    }

    /// The largest profile that is read, in bytes.
    pub const LARGEST: usize = untrusted::LARGEST;

    /// Serialises to JSON that can be read again. If it would be larger than
    /// [`LARGEST`](Self::LARGEST), hosts with more than [`HostProfile::LARGEST`] bytes lose every
    /// other sample, as often as necessary.
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

    /// The host that received the data.
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
    fn to_json_when_too_large_thins_and_can_be_read() {
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
