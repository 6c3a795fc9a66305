//! Measurements of a server's host (SITE PROFILE) and of the path to it, by way of a Ropewalk
//! server.
//!
//! They are methods of [`Remote`] and use its control session. The server decides whether the user
//! may start them. The amount of data that is accepted from the server is limited, but its content
//! is not checked here.

use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ropewalk_protocol::command::Command;
use ropewalk_protocol::profiling::{Baseline, ProfileAnswer, ProfileCommand};
use ropewalk_protocol::site::SiteCommand;
use ropewalk_transport::TcpInfo;

use crate::{Error, Remote, RemoteError};

/// One reading of a server's clock, in seconds since 1970: the time here before the question, the
/// time at the server, and the time here after the answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockReading {
    pub asked: f64,
    pub theirs: f64,
    pub had: f64,
}

/// The result of a few small exchanges over a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathProbe {
    /// The shortest round trip.
    pub rtt: Duration,
    /// The number of exchanges; in each, this side sends at least one segment.
    pub probes: u32,
    /// Segments that this side sent again.
    pub lost: u32,
}

impl Remote {
    /// Whether the server supports profiles. Whether it permits them to this user is known only
    /// after a request.
    pub fn takes_profiles(&self) -> bool {
        self.session.can.profile
    }

    /// Starts the measurement of the server's host, for at most `seconds` (`None`: as long as the
    /// server permits). With `raw`, the output files of the tools are kept. Returns the duration in
    /// seconds.
    ///
    /// # Errors
    /// The server takes no profiles or refuses, its answer has another form, or the session breaks.
    pub fn start_profile(&mut self, seconds: Option<u32>, raw: bool) -> Result<u32, Error> {
        self.must_take_profiles()?;
        match self.profile(ProfileCommand::Start { seconds, raw })? {
            ProfileAnswer::Started { seconds } => Ok(seconds),
            other => Err(self.unexpected(other).into()),
        }
    }

    /// Reads the server's clock.
    ///
    /// # Errors
    /// The server refuses, reports no time, or the session breaks.
    pub fn read_clock(&mut self) -> Result<ClockReading, Error> {
        let asked = now();
        match self.profile(ProfileCommand::Clock)? {
            ProfileAnswer::Clock(theirs) => Ok(ClockReading { asked, theirs, had: now() }),
            other => Err(self.unexpected(other).into()),
        }
    }

    /// Stops the measurement. Returns the number of bytes of the profile to fetch, and the names of
    /// the tools' output files, which are checked to be plain names.
    ///
    /// # Errors
    /// The server refuses, its answer has another form, or the session breaks.
    pub fn stop_profile(&mut self) -> Result<(u64, Vec<String>), Error> {
        match self.profile(ProfileCommand::Stop)? {
            ProfileAnswer::Stopped { bytes, raw } => Ok((bytes, raw)),
            other => Err(self.unexpected(other).into()),
        }
    }

    /// Has the server measure a component of its host, which takes some seconds.
    ///
    /// # Errors
    /// The server does not support the measurement, or refuses.
    pub fn baseline(&mut self, part: Baseline) -> Result<ProfileAnswer, Error> {
        self.must_take_profiles()?;
        Ok(self.profile(ProfileCommand::Baseline(part))?)
    }

    /// Sends `probes` NOOP commands one after the other, for at most `time`, and returns the TCP
    /// statistics of the control connection: the path while this client has no other traffic on it.
    /// `None` if TCP reports none.
    ///
    /// # Errors
    /// The control connection breaks, or an answer does not arrive in time.
    pub fn probe_path(&mut self, probes: u32, time: Duration) -> Result<Option<PathProbe>, Error> {
        let look = |remote: &Self| TcpInfo::of(remote.session.control.as_fd());
        let (before, began) = (look(self), Instant::now());
        let mut answered = 0;
        while answered < probes && began.elapsed() < time {
            // Any answer will do, because some servers do not know the command.
            self.session.control.call(&Command::Noop)?;
            answered += 1;
        }
        let (Some(before), Some(after)) = (before, look(self)) else { return Ok(None) };
        // The kernel's largest value means that there is none yet.
        let shortest = after.min_rtt.filter(|rtt| *rtt < Duration::from_secs(60));
        let rtt = shortest.unwrap_or(after.rtt);
        let lost = after.retransmitted.saturating_sub(before.retransmitted);
        Ok((answered > 0).then_some(PathProbe { rtt, probes: answered, lost }))
    }

    fn must_take_profiles(&self) -> Result<(), RemoteError> {
        if self.takes_profiles() {
            return Ok(());
        }
        let what = "take profiles (its settings have profiling.enabled)".to_owned();
        Err(RemoteError::Unsupported { peer: self.session.control.peer().to_owned(), what })
    }

    /// Fetches the profile as the server sent it. Its content is not checked.
    ///
    /// # Errors
    /// The profile has more than `most` bytes, or the transfer fails.
    pub fn fetch_profile(&mut self, most: usize) -> Result<Vec<u8>, Error> {
        Ok(self.fetch_bounded(None, most)?)
    }

    /// Fetches the output file of a tool. It has to be fetched before the profile.
    ///
    /// # Errors
    /// The file has more than `most` bytes, or the transfer fails.
    pub fn fetch_raw(&mut self, name: &str, most: usize) -> Result<Vec<u8>, Error> {
        Ok(self.fetch_bounded(Some(name), most)?)
    }

    fn fetch_bounded(&mut self, name: Option<&str>, most: usize) -> Result<Vec<u8>, RemoteError> {
        let mut sink = Bounded { bytes: Vec::new(), most, full: false };
        let command = ProfileCommand::Fetch(name.map(Into::into));
        let command = Command::Site(SiteCommand::Profile(command));
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

/// Accepts at most `most` bytes.
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
