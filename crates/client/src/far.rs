//! Access to another server whose files this program serves to its own clients (relays, gateways).
//!
//! A [`Far`] belongs to one log-in at one server. It keeps the sessions that it has opened, with
//! their data channels, and returns them to its client when it is dropped. Any thread may use it:
//! each operation takes a session for itself. If an operation finds that an idle session was
//! closed, it is repeated with a new session.

mod data;
mod error;
mod upload;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bstr::BStr;
use parking_lot::Mutex;
use ropewalk_protocol::command::Command;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::site::SiteCommand;
use ropewalk_protocol::url::Url;
use ropewalk_storage::checksum::Algorithm;

pub use crate::credential::Delegated;
pub use crate::model::gate::Gate;
pub use crate::setup::Behalf;
pub use data::{Fetch, Outgoing, OutgoingSource};
pub use upload::{FarUpload, FarUploadSpec, ToCommit};

use crate::client_state::ClientState;
use crate::model::event::no_events;
use crate::place::Endpoint;
use crate::session::Session;
use crate::setup::Setup;
use crate::tune::HopOptions;
use crate::{Amount, Cancel, Client, Entry, Error, Options, RemoteError};

/// The maximum number of idle sessions that are kept with their data channels. Further ones return
/// to the client.
const MOST_IDLE: usize = 4;

/// A session that was idle for less than this is used without checking it.
const FRESH: Duration = Duration::from_secs(10);

/// See the head of the module.
pub struct Far {
    state: Arc<ClientState>,
    setup: Arc<Setup>,
    endpoint: Arc<Endpoint>,
    /// `None` if the number of streams is not tuned.
    tuning: Option<HopOptions>,
    /// Each with the time of its last use.
    idle: Mutex<Vec<(Session, Instant)>>,
}

impl Client {
    /// The server of `url`, whose path is not used. Nothing is connected yet.
    pub fn far(&self, url: &Url, options: &Options, behalf: Behalf) -> Far {
        let shared = &self.state().shared;
        let setup = Setup::on_behalf(shared, options, &no_events(), &Cancel::new(), behalf);
        let endpoint = Arc::new(Endpoint::new(url));
        let state = self.state().clone();
        let tuning = HopOptions::new(options, &state.shared.bandwidth, &state.paths);
        Far { state, setup, endpoint, tuning, idle: Mutex::default() }
    }
}

impl Far {
    /// `scheme://host:port` of the server.
    pub fn name(&self) -> &str {
        &self.endpoint.name
    }

    /// Connects and logs in, unless there is an idle session.
    ///
    /// # Errors
    /// The server cannot be reached, is not permitted, or refuses the log-in.
    pub fn connect(&self) -> Result<(), Error> {
        Ok(self.with(|_| Ok(()))?)
    }

    /// The attributes of an entry; links are followed.
    ///
    /// # Errors
    /// The server refuses, or the session breaks.
    pub fn stat(&self, path: &[u8]) -> Result<Entry, Error> {
        Ok(self.with(|session| session.stat(path))?)
    }

    /// Passes each entry of a directory to `each`, after the whole listing has arrived. A server
    /// may list a file by itself.
    ///
    /// # Errors
    /// The server refuses, a line cannot be parsed, or the session breaks.
    pub fn list(&self, path: &[u8], each: &mut dyn FnMut(Entry)) -> Result<(), Error> {
        let listing = self.with(|session| session.listing(path))?;
        for entry in listing {
            each(entry?);
        }
        Ok(())
    }

    /// # Errors
    /// The server refuses, or the session breaks.
    pub fn make_directory(&self, path: &[u8]) -> Result<(), Error> {
        Ok(self.call(&Command::Mkd(path.into()))?)
    }

    /// # Errors
    /// The server refuses, or the session breaks.
    pub fn remove_directory(&self, path: &[u8]) -> Result<(), Error> {
        Ok(self.call(&Command::Rmd(path.into()))?)
    }

    /// # Errors
    /// The server refuses, or the session breaks.
    pub fn remove_file(&self, path: &[u8]) -> Result<(), Error> {
        Ok(self.call(&Command::Dele(path.into()))?)
    }

    /// # Errors
    /// The server refuses, or the session breaks.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), Error> {
        Ok(self.with(|session| session.rename(from, to))?)
    }

    /// # Errors
    /// The server has no symbolic links, refuses, or the session breaks.
    pub fn symlink(&self, target: &BStr, link: &[u8]) -> Result<(), Error> {
        Ok(self.with(|session| session.symlink(target, link))?)
    }

    /// Makes an empty file, or empties the one that is there.
    ///
    /// # Errors
    /// The server refuses, or the session breaks.
    pub fn create(&self, path: &[u8]) -> Result<(), Error> {
        Ok(self.with(|session| {
            let source = OutgoingSource::InOrder(0, &mut std::io::empty());
            let (cancel, mut stored) = (Cancel::new(), |_: &RangeSet| {});
            let outgoing =
                Outgoing { path: path.into(), source, most_streams: 1, cancel: &cancel, stored: &mut stored };
            session.send_data(self, &[Command::Stor(path.into())], outgoing, Some(0))
        })?)
    }

    /// Sets the modification time (seconds since 1970) and the permission bits.
    ///
    /// # Errors
    /// The server cannot set them, refuses, or the session breaks.
    pub fn set_attributes(&self, path: &[u8], modified: Option<i64>, mode: Option<u32>) -> Result<(), Error> {
        Ok(self.with(|session| session.set_attributes(path, modified, mode))?)
    }

    /// # Errors
    /// The server refuses, or the session breaks.
    pub fn set_group(&self, path: &[u8], gid: u32) -> Result<(), Error> {
        let group = gid.to_string().into();
        Ok(self.call(&Command::Site(SiteCommand::Chgrp { group, path: path.into() }))?)
    }

    /// # Errors
    /// The server refuses, or the session breaks.
    pub fn truncate(&self, path: &[u8], length: u64) -> Result<(), Error> {
        Ok(self.call(&Command::Site(SiteCommand::Truncate { length, path: path.into() }))?)
    }

    /// The checksum that the server computes, in lower-case hexadecimal. `waiting` gets the number
    /// of bytes that the server has reported as summed: before the command is sent, for each
    /// marker, and at least four times a second.
    ///
    /// # Errors
    /// The server does not know the algorithm, refuses, `waiting` breaks off (the session with the
    /// server ends), or the session breaks.
    pub fn checksum(
        &self,
        path: &[u8],
        algorithm: Algorithm,
        window: Amount,
        waiting: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<String, Error> {
        Ok(self.with(|session| session.checksum_while(path, algorithm, window, None, waiting))?)
    }

    /// The ranges that an interrupted upload to this path has left, if the server reports them.
    ///
    /// # Errors
    /// Another session writes the file, or the session breaks.
    pub fn interrupted(&self, path: &[u8]) -> Result<RangeSet, Error> {
        Ok(self.with(|session| if session.can.ranges { session.ranges(path) } else { Ok(RangeSet::new()) })?)
    }

    /// The size of a file. Some servers return the size of an interrupted upload that was written
    /// in order, if there is no file.
    ///
    /// # Errors
    /// The server refuses, or the session breaks.
    pub fn size(&self, path: &[u8]) -> Result<u64, Error> {
        Ok(self.with(|session| session.size(path))?)
    }

    fn call(&self, command: &Command) -> Result<(), RemoteError> {
        self.with(|session| session.call(command).map(drop))
    }

    /// Runs an operation in a session of its own.
    fn with<T>(
        &self,
        mut operation: impl FnMut(&mut Session) -> Result<T, RemoteError>,
    ) -> Result<T, RemoteError> {
        loop {
            let (mut session, used) = self.take()?;
            let result = operation(&mut session);
            let broken = result.as_ref().is_err_and(RemoteError::breaks_session);
            if !broken {
                self.keep(session);
                return result;
            }
            // The server may have closed a session that was idle.
            if !(used && matches!(result, Err(RemoteError::Closed { .. } | RemoteError::Control { .. }))) {
                return result;
            }
            self.idle.lock().clear();
        }
    }

    /// An idle session (`true`), or a new one.
    fn take(&self) -> Result<(Session, bool), RemoteError> {
        loop {
            let Some((mut session, since)) = self.idle.lock().pop() else { break };
            // The server may have closed a session that was idle for long.
            if since.elapsed() < FRESH || session.control.answers().unwrap_or(false) {
                return Ok((session, true));
            }
        }
        self.state.sessions.open(&self.endpoint, &self.setup).map(|session| (session, false))
    }

    fn keep(&self, session: Session) {
        let mut idle = self.idle.lock();
        if idle.len() < MOST_IDLE {
            return idle.push((session, Instant::now()));
        }
        drop(idle);
        self.state.sessions.keep(session);
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        for (session, _) in std::mem::take(self.idle.get_mut()) {
            self.state.sessions.keep(session);
        }
    }
}

impl Session {
    pub(crate) fn set_attributes(
        &mut self,
        path: &[u8],
        modified: Option<i64>,
        mode: Option<u32>,
    ) -> Result<(), RemoteError> {
        let commands = self.attributes(&path.into(), modified, mode);
        if commands.is_empty() {
            let what = "set modification times".to_owned();
            return Err(RemoteError::Unsupported { peer: self.control.peer().to_owned(), what });
        }
        for command in commands {
            self.call(&command)?;
        }
        Ok(())
    }
}
