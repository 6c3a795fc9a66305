//! The places where is measured: this host, a server, a host that ssh reaches.

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

/// Clocks are compared so often at the beginning and at the end; the shortest round trip counts.
const READINGS: usize = 5;
/// Servers close sessions of which they hear nothing.
const SIGNS_OF_LIFE: Duration = Duration::from_secs(30);
/// So long is waited for a clock; while data moves for longer, since the way may be full.
const ANSWER: Duration = Duration::from_secs(10);
const BUSY_ANSWER: Duration = Duration::from_secs(60);

/// A place where is measured.
pub(crate) enum End {
    Here { role: Role, collection: Box<Collection> },
    Server(Box<RemoteEnd>),
    Ssh(Box<SshEnd>),
}

/// What came of it.
pub(crate) struct Measured {
    pub(crate) hosts: Vec<HostProfile>,
    /// Which of them is this one.
    pub(crate) here: Option<usize>,
    /// Where and why there is less than was wanted.
    pub(crate) problems: Vec<String>,
}

/// All places of a run, measuring.
#[derive(Default)]
pub(crate) struct Ends {
    ends: Vec<(End, Vec<Exchange>)>,
    pub(crate) problems: Vec<String>,
    /// Problems are kept, not said: they were said of an earlier run.
    pub(crate) silent: bool,
    /// Servers keep their tools' files.
    pub(crate) raw: bool,
    /// Somebody wants to stop: nobody is waited for as long as else.
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

    /// A server that is asked for a profile.
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
        // What is measured until somebody breaks the transfer off is to be had: only that is broken off.
        let end = RemoteEnd::start(url, wanted, options, events, cancel);
        self.add(end.map(|end| End::Server(Box::new(end))), &url.host.clone());
    }

    /// A host that ssh reaches.
    pub(crate) fn ssh(&mut self, end: anyhow::Result<SshEnd>, host: &str) {
        self.add(end.map(|end| End::Ssh(Box::new(end))), host);
    }

    /// The server that was asked last is the other end as well.
    pub(crate) fn is_both(&mut self) {
        if let Some((End::Server(server), _)) = self.ends.last_mut() {
            server.role = Role::Both;
        }
    }

    /// This host.
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

    /// Does `work`; meanwhile servers hear of us now and then.
    pub(crate) fn during<T: Send>(&mut self, work: impl FnOnce() -> T) -> T {
        self.during_with(SIGNS_OF_LIFE, ANSWER, work)
    }

    /// `grace`: how long after the work one that was asked just then may take to answer.
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
                        // That it has gone shows at the end as well.
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

    /// Ends everywhere, and gets what was found.
    pub(crate) fn finish(mut self) -> Measured {
        let ends = std::mem::take(&mut self.ends);
        let patience = Patience::new(ANSWER, &self.stop, ANSWER);
        // Side by side: collectors take their time to end, and one that has stopped to answer keeps no other waiting.
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

    /// `None`: it is our own.
    fn read_clock(&mut self, patience: &Patience) -> anyhow::Result<Option<Exchange>> {
        match self {
            Self::Here { .. } => Ok(None),
            Self::Server(server) => server.read_clock(patience).map(Some),
            Self::Ssh(ssh) => ssh.read_clock(patience).map(Some),
        }
    }

    /// Several times; what was wrong, if something was.
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
