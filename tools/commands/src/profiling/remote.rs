//! A Ropewalk server that measures its host.

use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use ropewalk_client::{Cancel, Error, EventSink, Options, Remote};
use ropewalk_profiler::profile::{Exchange, HostProfile, RawFile, Role};
use ropewalk_protocol::url::Url;

use super::patience::Patience;
use super::ssh::{BEGINNING, ENDING, GRACE, MOST_RAW};

/// Time limit for one file. The data itself has limits of its own, and may be large.
const FETCHING: Duration = Duration::from_secs(600);

/// A session used only for a profile.
pub(crate) struct RemoteEnd {
    remote: Remote,
    pub(super) role: Role,
    /// Cancels the pending wait, and closes the session.
    own: Cancel,
    /// Set when the user wants to stop: the results so far are wanted, but the wait is shorter.
    stop: Cancel,
}

/// The request to a server.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) role: Role,
    pub(super) seconds: Option<u32>,
    pub(super) raw: bool,
}

impl RemoteEnd {
    pub(super) fn start(
        url: &Url,
        wanted: Wanted,
        options: &Options,
        events: &Arc<dyn EventSink>,
        stop: &Cancel,
    ) -> anyhow::Result<Self> {
        let own = Cancel::new();
        let begin = Patience::new(BEGINNING, stop, Duration::ZERO);
        // Connecting and logging in have limits of their own, and may wait for an answer at the
        // terminal.
        let connect = Patience::new(FETCHING, stop, Duration::ZERO);
        let remote = connect.within(&own, || Remote::connect_with(url, options, events, &own));
        let remote = remote.map_err(|error| told(error, &own, &connect))?;
        let mut end = Self { remote, role: wanted.role, own, stop: stop.clone() };
        end.ask(&begin, |remote| remote.start_profile(wanted.seconds, wanted.raw))?;
        Ok(end)
    }

    pub(super) fn name(&self) -> String {
        self.remote.addresses().0.to_string()
    }

    pub(super) fn read_clock(&mut self, patience: &Patience) -> anyhow::Result<Exchange> {
        let reading = self.ask(patience, Remote::read_clock)?;
        let (asked, theirs, had) = (reading.asked, reading.theirs, reading.had);
        Ok(Exchange { asked, heard: theirs, answered: theirs, had })
    }

    pub(super) fn finish(mut self) -> anyhow::Result<HostProfile> {
        let ending = Patience::new(ENDING, &self.stop, GRACE);
        let fetching = Patience::new(FETCHING, &self.stop, GRACE);
        let (_, names) = self.ask(&ending, Remote::stop_profile)?;
        let mut raw = Vec::new();
        for name in names.into_iter().take(MOST_RAW) {
            let bytes = self.ask(&fetching, |remote| remote.fetch_raw(&name, RawFile::LARGEST))?;
            raw.push(RawFile { name, bytes });
        }
        let bytes = self.ask(&fetching, |remote| remote.fetch_profile(HostProfile::LARGEST))?;
        let host = HostProfile::from_json(&bytes)?;
        self.remote.quit();
        // The server does not know which end it is.
        Ok(HostProfile { role: self.role, raw, ..host })
    }

    /// Sends SITE with a time limit: the client waits as long as for a checksum, far longer than
    /// any of these takes.
    fn ask<T>(
        &mut self,
        patience: &Patience,
        question: impl FnOnce(&mut Remote) -> Result<T, Error>,
    ) -> anyhow::Result<T> {
        let Self { remote, own, .. } = self;
        patience.within(own, || question(remote)).map_err(|error| told(error, own, patience))
    }
}

fn told(error: Error, own: &Cancel, patience: &Patience) -> anyhow::Error {
    if own.is_cancelled() { anyhow!(patience.words()) } else { error.into() }
}

#[cfg(test)]
mod tests;
