//! The places of measurement: this host, a server, a host that ssh reaches.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ropewalk_client::{Cancel, EventSink, Options};
use ropewalk_profiler::collect::{self, Collection};
use ropewalk_profiler::profile::{Clock, Exchange, HostProfile, Role};
use ropewalk_protocol::url::Url;

use super::patience::Patience;
use super::remote::{RemoteEnd, Wanted};
use super::ssh::SshEnd;
use crate::output::say;

/// Number of clock comparisons at the start and at the end; the one with the shortest round trip is
/// used.
const READINGS: usize = 5;
/// Servers close idle sessions.
const SIGNS_OF_LIFE: Duration = Duration::from_secs(30);
/// Time limit for a clock reading; longer while data moves, since the path may be full.
const ANSWER: Duration = Duration::from_secs(10);
const BUSY_ANSWER: Duration = Duration::from_secs(60);

/// A place of measurement.
pub(crate) enum End {
    Here { role: Role, collection: Box<Collection> },
    Server(Box<RemoteEnd>),
    Ssh(Box<SshEnd>),
}

/// The result.
pub(crate) struct Measured {
    pub(crate) hosts: Vec<HostProfile>,
    /// The index of this host among them.
    pub(crate) here: Option<usize>,
    /// Places where the measurement is incomplete, and why.
    pub(crate) problems: Vec<String>,
}

/// All places of a run, while they measure.
#[derive(Default)]
pub(crate) struct Ends {
    ends: Vec<(End, Vec<Exchange>)>,
    pub(crate) problems: Vec<String>,
    /// Problems are recorded but not printed: an earlier run has printed them.
    pub(crate) silent: bool,
    /// Whether the tools' files are kept.
    pub(crate) raw: bool,
    /// Set when the user wants to stop: waits are shorter then.
    stop: Cancel,
}

impl Ends {
    fn add(&mut self, end: anyhow::Result<End>, place: &str) {
        match end {
            Ok(end) => self.ends.push((end, Vec::new())),
            Err(error) => self.problem(format!("{place} is not measured: {}", crate::message(&error))),
        }
    }

    pub(crate) fn problem(&mut self, text: String) {
        if !self.silent {
            say(format_args!("ropewalk: {text}"));
        }
        self.problems.push(text);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Adds a server that is asked for a profile.
    pub(crate) fn server(
        &mut self,
        url: &Url,
        role: Role,
        seconds: Option<u32>,
        options: &Options,
        events: &Arc<dyn EventSink>,
        cancel: &Cancel,
    ) {
        if cancel.is_cancelled() {
            return self.problem(format!("{} is not measured: interrupted", url.host));
        }
        self.stop = cancel.clone();
        let wanted = Wanted { role, seconds, raw: self.raw };
        // If the user cancels the transfer, the measurement up to then is still wanted. So only the
        // transfer is cancelled.
        let end = RemoteEnd::start(url, wanted, options, events, cancel);
        self.add(end.map(|end| End::Server(Box::new(end))), &url.host.clone());
    }

    /// Adds a host that ssh reaches.
    pub(crate) fn ssh(&mut self, end: anyhow::Result<SshEnd>, host: &str) {
        self.add(end.map(|end| End::Ssh(Box::new(end))), host);
    }

    /// Records that the last server is the other end as well.
    pub(crate) fn is_both(&mut self) {
        if let Some((End::Server(server), _)) = self.ends.last_mut() {
            server.role = Role::Both;
        }
    }

    /// Adds this host.
    pub(crate) fn here(&mut self, options: &collect::Options) {
        let collection = Box::new(Collection::start(options));
        self.add(Ok(End::Here { role: options.role, collection }), "this host");
    }

    /// Compares clocks.
    pub(crate) fn read_clocks(&mut self) {
        let patience = Patience::new(ANSWER, &self.stop, ANSWER);
        let failed: Vec<String> =
            self.ends.iter_mut().filter_map(|(end, readings)| end.read_clocks(readings, &patience)).collect();
        failed.into_iter().for_each(|text| self.problem(text));
    }

    /// Runs `work`, and meanwhile keeps the sessions with servers alive.
    pub(crate) fn during<T: Send>(&mut self, work: impl FnOnce() -> T) -> T {
        self.during_with(SIGNS_OF_LIFE, ANSWER, work)
    }

    /// `grace`: how long a request that is pending at the end of the work may still take.
    pub(super) fn during_with<T: Send>(
        &mut self,
        signs: Duration,
        grace: Duration,
        work: impl FnOnce() -> T,
    ) -> T {
        let over = Cancel::new();
        thread::scope(|scope| {
            let (done, ended) = mpsc::channel::<()>();
            let ends = &mut self.ends;
            let patience = Patience::new(BUSY_ANSWER, &over, grace);
            scope.spawn(move || {
                while ended.recv_timeout(signs) == Err(RecvTimeoutError::Timeout) {
                    for (end, readings) in ends.iter_mut() {
                        // If the server has gone, the end reports it as well.
                        if let Ok(Some(reading)) = end.read_clock(&patience) {
                            readings.push(reading);
                        }
                    }
                }
            });
            let result = work();
            over.cancel();
            drop(done);
            result
        })
    }

    /// Stops all measurements, and returns the results.
    pub(crate) fn finish(mut self) -> Measured {
        let ends = std::mem::take(&mut self.ends);
        let patience = Patience::new(ANSWER, &self.stop, ANSWER);
        // In parallel: collectors need time to finish, and one that no longer answers must not
        // delay the others.
        let results: Vec<_> = thread::scope(|scope| {
            let running: Vec<_> = ends
                .into_iter()
                .map(|(mut end, mut readings)| {
                    let name = end.name();
                    let here = matches!(end, End::Here { .. });
                    let patience = &patience;
                    let thread = scope.spawn(move || {
                        let failed = end.read_clocks(&mut readings, patience);
                        (failed, end.finish().map(|host| (host, readings)))
                    });
                    (name, here, thread)
                })
                .collect();
            running.into_iter().map(|(name, here, thread)| (name, here, thread.join())).collect()
        });
        let (mut hosts, mut own) = (Vec::new(), None);
        for (name, here, result) in results {
            let result = result.map(|(failed, result)| {
                failed.into_iter().for_each(|text| self.problem(text));
                result
            });
            match result {
                Ok(Ok((mut host, readings))) => {
                    host.clock = Clock::measured(&readings).unwrap_or_default();
                    own = own.or(here.then_some(hosts.len()));
                    hosts.push(host);
                }
                Ok(Err(error)) => {
                    self.problem(format!("{name} gave no profile: {}", crate::message(&error)));
                }
                Err(_) => {
                    self.problem(format!("{name} gave no profile: its thread broke"));
                }
            }
        }
        Measured { hosts, here: own, problems: self.problems }
    }
}

impl End {
    fn name(&self) -> String {
        match self {
            Self::Here { .. } => "this host".to_owned(),
            Self::Server(server) => server.name(),
            Self::Ssh(ssh) => ssh.name().to_owned(),
        }
    }

    /// Returns `None` for the clock of this host.
    fn read_clock(&mut self, patience: &Patience) -> anyhow::Result<Option<Exchange>> {
        match self {
            Self::Here { .. } => Ok(None),
            Self::Server(server) => server.read_clock(patience).map(Some),
            Self::Ssh(ssh) => ssh.read_clock(patience).map(Some),
        }
    }

    /// Reads the clock several times. Returns the error, if there was one.
    fn read_clocks(&mut self, readings: &mut Vec<Exchange>, patience: &Patience) -> Option<String> {
        for _ in 0..READINGS {
            match self.read_clock(patience) {
                Ok(Some(reading)) => readings.push(reading),
                Ok(None) => break,
                Err(error) => {
                    return Some(format!("the clock of {}: {}", self.name(), crate::message(&error)));
                }
            }
        }
        None
    }

    fn finish(self) -> anyhow::Result<HostProfile> {
        match self {
            Self::Here { role, collection } => Ok(HostProfile { role, ..collection.finish() }),
            Self::Server(server) => server.finish(),
            Self::Ssh(ssh) => ssh.finish(),
        }
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
