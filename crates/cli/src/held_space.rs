//! Space at a server that is reserved together with a network path.
//!
//! The path is the part that can fail late, so the space comes first and is released if the path
//! does not come. The server ends the reservation with the time of the path in any case: a crash
//! leaves nothing for longer.

use std::ffi::OsStr;
use std::time::Duration;

use anyhow::Context;
use ropewalk_client::{Cancel, Error, Location, Remote};
use ropewalk_paths::HeldSpace;
use ropewalk_protocol::url::Url;

use crate::client::{Client, Target};
use crate::exit::usage;
use crate::output::say;
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

    /// Releases what is held. It may have ended by itself.
    pub(crate) fn release(&mut self) -> Result<(), Error> {
        self.token.take().map_or(Ok(()), |token| self.remote.release_space(&token).map(drop))
    }
}

/// Releases space of an earlier run.
///
/// # Errors
/// The log-in fails, or the server does not release it. It ends by itself.
pub(crate) fn release(held: &HeldSpace, flags: &Flags, cancel: &Cancel) -> anyhow::Result<()> {
    let released = || {
        let mut holder = SpaceHolder::connect(OsStr::new(&held.url), flags, cancel)?;
        holder.token = Some(held.token.clone());
        Ok::<_, anyhow::Error>(holder.release()?)
    };
    released().with_context(|| format!("the space in {} stays reserved until its end", held.url))
}

/// Names the command that releases space, which this program cannot do without the user's log-in.
pub(crate) fn tell_release(held: &HeldSpace) {
    let HeldSpace { url, token, .. } = held;
    say(format_args!("ropewalk: the space is not released: ropewalk space release {url} {token}"));
}
