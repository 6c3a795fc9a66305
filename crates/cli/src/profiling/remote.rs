//! A server of ours that measures its host.

use ropewalk_client::Remote;
use ropewalk_profiler::profile::{Exchange, HostProfile, RawFile, Role};

use super::ssh::MOST_RAW;

/// A session that does nothing but have a profile taken.
pub(crate) struct RemoteEnd<'e> {
    remote: Remote<'e>,
    pub(super) role: Role,
}

impl<'e> RemoteEnd<'e> {
    pub(super) fn start(
        mut remote: Remote<'e>,
        role: Role,
        seconds: Option<u32>,
        raw: bool,
    ) -> anyhow::Result<Self> {
        remote.start_profile(seconds, raw)?;
        Ok(Self { remote, role })
    }

    pub(super) fn name(&self) -> String {
        self.remote.addresses().0.to_string()
    }

    pub(super) fn read_clock(&mut self) -> anyhow::Result<Exchange> {
        let reading = self.remote.read_clock()?;
        let (asked, theirs, had) = (reading.asked, reading.theirs, reading.had);
        Ok(Exchange { asked, heard: theirs, answered: theirs, had })
    }

    pub(super) fn finish(mut self) -> anyhow::Result<HostProfile> {
        let (_, names) = self.remote.stop_profile()?;
        let mut raw = Vec::new();
        for name in names.into_iter().take(MOST_RAW) {
            let bytes = self.remote.fetch_raw(&name, RawFile::LARGEST)?;
            raw.push(RawFile { name, bytes });
        }
        let bytes = self.remote.fetch_profile(HostProfile::LARGEST)?;
        let host = HostProfile::from_json(&bytes)?;
        self.remote.quit();
        // Which end it is, it does not know.
        Ok(HostProfile { role: self.role, raw, ..host })
    }
}
