//! The state that the plan and the workers of one run share.
//!
//! Each run makes one [`Context`] and drops it at its end; it refers to the state of the client,
//! which outlives it. All threads of the run use it at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ropewalk_protocol::path::VirtualPath;
use ropewalk_storage::checksum::{Algorithm, checksum_file};
use ropewalk_storage::{PosixOptions, PosixStore, Store};

use crate::ahead::{Ahead, Left};
use crate::client_state::ClientState;
use crate::done_files::DoneFiles;
use crate::finished::Finished;
use crate::lent::Lent;
use crate::model::backoff::pause;
use crate::path_defaults::{PathDefaults, RANGE, range_size};
use crate::place::Endpoints;
use crate::queue::Queue;
use crate::report::Report;
use crate::session::Session;
use crate::setup::Setup;
use crate::state::States;
use crate::task::Task;
use crate::tune::{Participant, Tune};
use crate::verify::{Check, choose};
use crate::work::Job;
use crate::{Cancel, ChecksumPolicy, EventSink, Options, RemoteError};
use ropewalk_protocol::feature::Features;

/// The maximum number of jobs that wait between the plan and the workers.
const QUEUE: usize = 4096;

/// The minimum number of tries for a file that another session is writing.
const BUSY_TRIES: u32 = 3;

pub(crate) struct Context {
    pub client: Arc<ClientState>,
    pub setup: Arc<Setup>,
    pub cancel: Cancel,
    pub report: Report,
    pub queue: Queue<Job>,
    /// The local file system.
    pub store: Arc<dyn Store>,
    pub endpoints: Endpoints,
    /// Journals of uploads and third-party transfers.
    pub states: States,
    /// Files that the same command need not send again after an interruption.
    pub finished: Finished,
    /// The files that the job finished before it was paused; `None` if the job cannot be paused.
    pub done_before: Option<Arc<DoneFiles>>,
    /// The number of workers, started and planned.
    pub sessions: AtomicU32,
    pub tune: Tune,
    pub lent: Lent,
}

impl Context {
    pub(crate) fn new(
        client: &Arc<ClientState>,
        options: &Options,
        events: &Arc<dyn EventSink>,
        cancel: &Cancel,
    ) -> Result<Self, RemoteError> {
        let setup = Setup::sharing(&client.shared, options, events, cancel);
        let limit = setup.shared.bandwidth.clone();
        Ok(Self {
            client: client.clone(),
            setup,
            cancel: cancel.clone(),
            report: Report::new(events.clone()),
            queue: Queue::new(QUEUE),
            store: local_store()?,
            endpoints: Endpoints::default(),
            states: States::new(options.state_directory.as_deref()),
            finished: Finished::default(),
            done_before: None,
            sessions: AtomicU32::new(0),
            tune: Tune::new(options, limit, &client.paths),
            lent: Lent::default(),
        })
    }

    /// Returns a session that this run no longer needs, so that the next job of the client can
    /// use it.
    pub(crate) fn give_back(&self, session: Session) {
        self.client.sessions.keep(session);
    }

    pub(crate) fn options(&self) -> &Options {
        &self.setup.options
    }

    /// The pause before the next try after `error`, or `None` if there is to be no further try.
    /// `first` is the time of the first failure.
    pub(crate) fn retry(&self, error: &RemoteError, failed_tries: u32, first: Instant) -> Option<Duration> {
        // A broken session of this run may still hold a file at the server until the server notices
        // the loss.
        let tries = if error.is_busy() {
            self.options().recovery.retries.max(BUSY_TRIES)
        } else {
            self.options().recovery.retries
        };
        let again = error.is_transient()
            && failed_tries <= tries
            && !self.queue.is_stopped()
            && !self.cancel.is_cancelled();
        let pause = again.then(|| pause(self.options().recovery.retry_pause, failed_tries));
        let limit = self.options().recovery.retry_limit;
        pause.filter(|pause| limit.is_none_or(|limit| first.elapsed().saturating_add(*pause) <= limit))
    }

    /// The number of streams of one session for a file of `size` bytes, or for a range of it.
    /// Sessions that work on one big file share its streams.
    pub(crate) fn streams_per_session(&self, streams: u32, size: Option<u64>) -> u32 {
        let set = matches!(self.options().tuning.streams, crate::Auto::Set(_));
        let sessions = self.sessions.load(Ordering::Relaxed).max(1);
        if set || size.is_none_or(|size| size < 2 * RANGE) { streams } else { streams.div_ceil(sessions) }
    }

    /// Streams of a session that moves a big file alone. It shares them with the sessions that move
    /// other files at the same time.
    pub(crate) fn streams_of_whole_file(&self, streams: u32) -> u32 {
        let files = self.report.left().map_or(1, |(files, _)| u32::try_from(files).unwrap_or(u32::MAX));
        let set = matches!(self.options().tuning.streams, crate::Auto::Set(_));
        if set { streams } else { whole_share(streams, self.sessions.load(Ordering::Relaxed), files) }
    }

    /// Whether sessions divide big files. Servers that serve a session with one thread need that;
    /// Ropewalk's server has a thread for each stream, and is slower with several sessions.
    pub(crate) fn divides_files(&self, session: &Session) -> bool {
        !session.quirks.has_thread_per_stream
            || !session.is_alone() && matches!(self.options().tuning.files, crate::Auto::Set(_))
    }

    /// Sessions that share the path while a file of this size is moved.
    pub(crate) fn sessions_on_file(&self, size: Option<u64>) -> u32 {
        if size.is_none_or(|size| size < 2 * RANGE) { 1 } else { self.sessions.load(Ordering::Relaxed) }
    }

    /// How much of a file with `left` remaining bytes one session takes at a time; `None` means all
    /// of it.
    pub(crate) fn range_size(
        &self,
        left: u64,
        participant: Option<&Participant>,
        streams: u32,
    ) -> Option<u64> {
        let sessions = self.sessions.load(Ordering::Relaxed);
        // On a tuned path, other sessions may join later.
        let several =
            sessions > 1 || participant.is_some() && self.options().tuning.files == crate::Auto::Auto;
        several.then(|| range_size(left, sessions, participant.map(|participant| participant.pace(streams))))
    }

    /// Limits on what a session on this path may request ahead. `streams` is the number of streams
    /// of its data channel, 0 before there is a channel.
    pub(crate) fn ahead(&self, path: PathDefaults, participant: Option<&Participant>, streams: u32) -> Ahead {
        let sessions = self.sessions.load(Ordering::Relaxed);
        let left = self.report.left().map(|(files, bytes)| Left { files, bytes, sessions });
        Ahead::new(path, self.options(), left, participant.map(|participant| participant.ahead(streams)))
    }

    /// How files from or to this server are verified.
    pub(crate) fn check(&self, session: &Session) -> Result<Check, RemoteError> {
        let (options, can) = (self.options(), &session.can);
        if options.data.ascii {
            // Line ends are translated, so the two sides have different bytes.
            if let ChecksumPolicy::Require(_) = options.integrity.checksum {
                let what = "have the sum of text whose line ends are translated (--ascii)".to_owned();
                return Err(RemoteError::Unsupported { peer: session.control.peer().to_owned(), what });
            }
            return Ok(Check::Size);
        }
        let peer = session.control.peer();
        let check = choose(options.integrity.checksum, &|a| can.knows(a), can.inline_checksum, peer)?;
        if check == Check::Size && options.integrity.checksum != ChecksumPolicy::None {
            let name = &session.endpoint.name;
            self.report.warn_once(format!("{name} computes no checksums: only sizes are compared"));
        }
        Ok(check)
    }

    /// Whether the job finished this file before it was paused.
    pub(crate) fn was_done_before(&self, task: &Task) -> bool {
        self.done_before.as_ref().is_some_and(|done| done.has(task))
    }

    /// Records that a file has arrived complete and verified.
    pub(crate) fn done(&self, task: &Task, bytes: u64, took: Duration, proof: Option<String>) {
        if let Some(done) = &self.done_before {
            done.add(task);
        }
        if task.found && !self.finished.add(task) {
            self.report.unrecorded();
        }
        self.report.done(task.id, bytes, took, proof);
    }

    /// Warns if times are to be preserved and the server cannot set them.
    pub(crate) fn tell_of_times(&self, session: &Session) {
        if self.options().preserve.times && !session.can.set_time && !session.can.extended {
            let name = &session.endpoint.name;
            self.report.warn_once(format!("{name} sets no times: copies there are as old as they are"));
        }
    }

    /// The algorithm by which `sync` compares files: one that all of these servers support.
    pub(crate) fn comparison(&self, servers: &[&Features]) -> Option<Algorithm> {
        let known = |a: Algorithm| servers.iter().all(|can| can.knows(a));
        let policy = match self.options().integrity.checksum {
            ChecksumPolicy::Require(algorithm) => ChecksumPolicy::Require(algorithm),
            _ => ChecksumPolicy::Default,
        };
        choose(policy, &known, false, "").ok()?.algorithm()
    }

    pub(crate) fn local_sum(&self, path: &VirtualPath, algorithm: Algorithm) -> Result<String, RemoteError> {
        let local = |e| RemoteError::local(path.as_bytes(), e);
        let handle = self.store.open_read(path).map_err(local)?;
        checksum_file(&*handle, algorithm, 0, None, &mut |_| Ok(())).map_err(local)
    }
}

/// A store of the whole local file system; the kernel checks permissions.
pub(crate) fn local_store() -> Result<Arc<dyn Store>, RemoteError> {
    let store = PosixStore::new(std::path::Path::new("/"), PosixOptions::default());
    Ok(Arc::new(store.map_err(|e| RemoteError::local("/", e))?))
}

/// The share of these streams for each session if `sessions` sessions move whole files, of which
/// `files` are left.
fn whole_share(streams: u32, sessions: u32, files: u32) -> u32 {
    streams.div_ceil(sessions.min(files).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_cut_up_has_the_streams_of_sessions_without_work() {
        assert_eq!(whole_share(16, 8, 1), 16);
        assert_eq!(whole_share(16, 8, 3), 6);
        assert_eq!(whole_share(16, 8, 100), 2);
        assert_eq!((whole_share(4, 8, 100), whole_share(8, 0, 0)), (1, 8));
    }
}
