//! Space at a server that is reserved together with a network path.
//!
//! The path is the part that can fail late, so the space comes first and is released if the path
//! does not come. The server ends the reservation with the time of the path in any case: a crash
//! leaves nothing for longer.

use std::ffi::OsStr;
use std::time::Duration;

use anyhow::bail;
use ropewalk_client::{Cancel, Location, Remote};
use ropewalk_paths::HeldSpace;
use ropewalk_protocol::url::Url;

use crate::client::{Client, Target};
use crate::exit::usage;
use crate::settings::Flags;

/// A session with the server, and what it holds.
pub(crate) struct SpaceHolder {
    remote: Remote,
    url: Url,
    token: Option<String>,
}

impl SpaceHolder {
    /// Logs in at the server of the directory `at`.
    pub(crate) fn connect(at: &OsStr, flags: &Flags, cancel: &Cancel) -> anyhow::Result<Self> {
        let mut target = Target::parse(at)?;
        let client = Client::quiet(flags, [&mut target], cancel)?;
        let Location::Remote(url) = target.location else {
            return Err(usage("--at: expected the URL of a directory of a server"));
        };
        let remote = Remote::connect_with(&url, &client.options, &client.events, &client.cancel)?;
        Ok(Self { remote, url, token: None })
    }

    pub(crate) fn reserve(&mut self, bytes: u64, time: Duration) -> anyhow::Result<HeldSpace> {
        let path = self.remote.path_of(&self.url);
        let reserved = self.remote.reserve_space(&path, bytes, time)?;
        self.token = Some(reserved.token.clone());
        Ok(HeldSpace { url: self.url.to_string(), token: reserved.token, bytes: reserved.bytes })
    }

    pub(crate) fn release(&mut self) -> anyhow::Result<()> {
        if let Some(token) = self.token.take() {
            self.remote.release_space(&token)?;
        }
        Ok(())
    }
}

/// Releases space of an earlier run.
///
/// # Errors
/// The log-in fails, or the server does not release it. It ends by itself.
pub(crate) fn release(held: &HeldSpace, flags: &Flags, cancel: &Cancel) -> anyhow::Result<()> {
    let mut holder = SpaceHolder::connect(OsStr::new(&held.url), flags, cancel)?;
    holder.token = Some(held.token.clone());
    match holder.release() {
        // It has ended by itself, or its files have drawn it all.
        Err(error) if error.to_string().contains("no reservation") => Ok(()),
        Err(error) => bail!("the space in {} stays reserved until its end: {error:#}", held.url),
        Ok(()) => Ok(()),
    }
}
