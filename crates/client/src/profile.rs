//! SITE PROFILE: having our server measure its host.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use ropewalk_protocol::command::Command;
use ropewalk_protocol::profiling::{ProfileAnswer, ProfileCommand};
use ropewalk_protocol::site::SiteCommand;

use crate::{Remote, RemoteError};

/// One look at a server's clock: seconds since 1970, the first and the last by ours, the one between by the server's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockReading {
    pub asked: f64,
    pub theirs: f64,
    pub had: f64,
}

impl Remote<'_> {
    /// Whether the server takes profiles. Of whom, it says when it is asked for one.
    pub fn takes_profiles(&self) -> bool {
        self.session.can.profile
    }

    /// The server begins to measure its host, for `seconds` at most (`None`: as long as it allows). Gives for how long.
    pub fn start_profile(&mut self, seconds: Option<u32>) -> Result<u32, RemoteError> {
        if !self.takes_profiles() {
            let what = "take profiles (its settings have profiling.enabled)".to_owned();
            return Err(RemoteError::Unsupported { peer: self.session.control.peer().to_owned(), what });
        }
        match self.profile(ProfileCommand::Start { seconds })? {
            ProfileAnswer::Started { seconds } => Ok(seconds),
            other => Err(self.unexpected(other)),
        }
    }

    /// Looks at the server's clock.
    pub fn read_clock(&mut self) -> Result<ClockReading, RemoteError> {
        let asked = now();
        match self.profile(ProfileCommand::Clock)? {
            ProfileAnswer::Clock(theirs) => Ok(ClockReading { asked, theirs, had: now() }),
            other => Err(self.unexpected(other)),
        }
    }

    /// The server ends to measure, and has so many bytes to be fetched.
    pub fn stop_profile(&mut self) -> Result<u64, RemoteError> {
        match self.profile(ProfileCommand::Stop)? {
            ProfileAnswer::Stopped { bytes } => Ok(bytes),
            other => Err(self.unexpected(other)),
        }
    }

    /// What the server has found, as it sent it: nothing in it is to be believed yet.
    ///
    /// # Errors
    /// It has more than `most` bytes.
    pub fn fetch_profile(&mut self, most: usize) -> Result<Vec<u8>, RemoteError> {
        let mut sink = Bounded { bytes: Vec::new(), most, full: false };
        let command = Command::Site(SiteCommand::Profile(ProfileCommand::Fetch));
        let fetched = self.session.fetch(std::slice::from_ref(&command), &mut sink);
        if sink.full {
            let reason = format!("it sends a profile of more than {most} bytes, which is not read");
            return Err(RemoteError::Nonsense { peer: self.session.control.peer().to_owned(), reason });
        }
        fetched.map(|_| sink.bytes)
    }

    /// The addresses of the server and of this host on the control connection.
    pub fn addresses(&self) -> (std::net::SocketAddr, std::net::SocketAddr) {
        (self.session.control.remote_addr(), self.session.control.local_addr())
    }

    fn profile(&mut self, command: ProfileCommand) -> Result<ProfileAnswer, RemoteError> {
        let reply = self.session.call(&Command::Site(SiteCommand::Profile(command)))?;
        ProfileAnswer::from_reply(&reply).ok_or_else(|| self.session.nonsense("SITE PROFILE", &reply))
    }

    fn unexpected(&self, answer: ProfileAnswer) -> RemoteError {
        self.session.nonsense("SITE PROFILE", &answer.to_reply())
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Takes so many bytes and no more.
struct Bounded {
    bytes: Vec<u8>,
    most: usize,
    full: bool,
}

impl Write for Bounded {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if data.len() > self.most - self.bytes.len() {
            self.full = true;
            return Err(io::Error::other("enough"));
        }
        self.bytes.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
