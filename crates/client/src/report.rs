//! The progress of a run: totals and events, and the summary at its end.
//!
//! A run owns one [`Report`]; all of its threads update it. Counters of bytes are atomic, and the
//! other totals are behind a lock that is never held while an event is sent.

mod meter;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_engine::{Progress, Stage};
use ropewalk_protocol::queue::QueuePlace;
use ropewalk_transfer::Side;
use rustix::time::{ClockId, clock_gettime};

pub(crate) use self::meter::Meter;
use crate::model::account::Account;
use crate::model::slowest::{STAGES, slowest, with_servers};
use crate::place::Place;
use crate::task::Task;
use crate::tune::PathTuner;
use crate::{
    Event, EventSink, FailureKind, FileFailure, FileId, SlowestPart, StageTimes, Summary, TunedPath,
    UsedStack,
};

/// The maximum number of failures in the summary.
const FAILURES_KEPT: usize = 100;
/// The minimum time between two progress events.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct Report {
    sink: Arc<dyn EventSink>,
    began: Instant,
    cpu_began: Duration,
    /// The number of bytes that destinations have of all files, from this run and earlier ones. It
    /// decreases when a file is restarted.
    bytes_there: AtomicI64,
    bytes_moved: AtomicU64,
    /// Files that are done but that the same command would send again.
    unrecorded: AtomicU64,
    streams: AtomicI64,
    reply_wait: AtomicU64,
    worker_time: AtomicU64,
    next_id: AtomicU64,
    /// Data goes directly from one server to another.
    elsewhere: AtomicBool,
    totals: Mutex<Totals>,
    /// Held while the totals of the plan are reported, so that older totals are not reported after
    /// newer ones.
    telling: Mutex<()>,
}

#[derive(Default)]
struct Totals {
    planned_files: u64,
    planned_bytes: u64,
    /// The sum of the squares of the planned sizes.
    planned_squares: f64,
    plan_complete: bool,
    /// The plan has changed since it was last reported.
    plan_changed: bool,
    /// The number of failed files that failed before they were planned.
    failed_early: u64,
    files_done: u64,
    files_skipped: u64,
    files_failed: u64,
    files_active: u32,
    most_sessions: u32,
    most_streams: u32,
    directories: u64,
    removed: u64,
    bytes_resumed: u64,
    bytes_done: u64,
    bytes_verified: u64,
    retries: u64,
    stages: [Duration; 5],
    /// The time that streams of servers waited for their storage, reading and writing, while this
    /// side's streams waited for the network.
    server_read: Duration,
    server_write: Duration,
    stream_time: Duration,
    failures: Vec<FileFailure>,
    /// The kind of all failures so far; `Some(None)` if they differ.
    failed_for: Option<Option<FailureKind>>,
    warned: HashSet<String>,
    last_progress: Option<Instant>,
    last_planned: Option<Instant>,
}

impl Totals {
    /// Makes the event that reports the plan.
    fn plan(&mut self) -> Event {
        self.plan_changed = false;
        Event::Planned { files: self.planned_files, bytes: self.planned_bytes, complete: self.plan_complete }
    }
}

impl Report {
    pub(crate) fn new(sink: Arc<dyn EventSink>) -> Self {
        Self {
            sink,
            began: Instant::now(),
            cpu_began: cpu_time(),
            bytes_there: AtomicI64::new(0),
            bytes_moved: AtomicU64::new(0),
            unrecorded: AtomicU64::new(0),
            streams: AtomicI64::new(0),
            reply_wait: AtomicU64::new(0),
            worker_time: AtomicU64::new(0),
            next_id: AtomicU64::new(0),
            elsewhere: AtomicBool::new(false),
            totals: Mutex::default(),
            telling: Mutex::default(),
        }
    }

    pub(crate) fn event(&self, event: Event) {
        self.sink.event(event);
    }

    pub(crate) fn next_id(&self) -> FileId {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Records one more file to copy, of `bytes`.
    pub(crate) fn planned(&self, bytes: u64) {
        let mut totals = self.totals.lock();
        totals.planned_files += 1;
        // Servers may report any size, so the sum saturates.
        totals.planned_bytes = totals.planned_bytes.saturating_add(bytes);
        totals.planned_squares += (bytes as f64).powi(2);
        let now = Instant::now();
        if totals.last_planned.is_none_or(|at| now - at >= PROGRESS_INTERVAL) {
            totals.last_planned = Some(now);
            let plan = totals.plan();
            drop(totals);
            self.event(plan);
        }
    }

    /// Removes a planned file that turned out to be at the destination already.
    pub(crate) fn needless(&self, task: &Task, reason: &str) {
        let bytes = task.account.planned();
        {
            let mut totals = self.totals.lock();
            totals.planned_files = totals.planned_files.saturating_sub(1);
            totals.planned_bytes = totals.planned_bytes.saturating_sub(bytes);
            totals.planned_squares = (totals.planned_squares - (bytes as f64).powi(2)).max(0.0);
            totals.plan_changed = true;
        }
        self.left_out(task.source.display(), reason);
    }

    pub(crate) fn plan_complete(&self) {
        self.tell_plan(|totals| {
            totals.plan_complete = true;
            true
        });
    }

    /// Reports the totals of the plan if `whether` returns `true`.
    fn tell_plan(&self, whether: impl FnOnce(&mut Totals) -> bool) {
        let _telling = self.telling.lock();
        let mut totals = self.totals.lock();
        let plan = whether(&mut totals).then(|| totals.plan());
        drop(totals);
        if let Some(plan) = plan {
            self.event(plan);
        }
    }

    /// Records that a file is started, perhaps again; then the bytes of the earlier try no longer
    /// count.
    pub(crate) fn anew(&self, task: &mut Task) {
        let again = task.began.is_some();
        task.began.get_or_insert_with(Instant::now);
        let account = task.account.anew(again);
        let before = std::mem::replace(&mut task.account, account.into()).close();
        self.bytes_there.fetch_sub(before, Ordering::Relaxed);
    }

    /// Reports that a server has the transfer of a file in a queue.
    pub(crate) fn queued(&self, task: &Task, side: Side, place: QueuePlace) {
        let server = match side {
            Side::Source => "source",
            Side::Destination => "destination",
        };
        let QueuePlace { position, waiting } = place;
        self.event(Event::Queued { id: task.id, server: server.into(), position, waiting });
    }

    /// Reports that a relay still passes a file on, of which the last server has `stored` bytes.
    pub(crate) fn forwarding(&self, task: &Task, stored: u64) {
        if let Some(size) = task.size {
            self.event(Event::Forwarding { id: task.id, stored, size });
        }
    }

    /// Records that a file has started, with `resumed` bytes at its destination.
    pub(crate) fn started(&self, task: &Task, resumed: u64) {
        {
            let mut totals = self.totals.lock();
            totals.files_active += 1;
            // Bytes of an earlier try of this run were not resumed from an earlier run.
            let earlier = if task.account.is_again() { 0 } else { resumed };
            totals.bytes_resumed = totals.bytes_resumed.saturating_add(earlier);
        }
        self.there(&task.account, signed(resumed));
        self.event(Event::FileStarted {
            id: task.id,
            source: task.source.display(),
            destination: task.destination.display(),
            size: task.length(),
            resumed_from: resumed,
        });
    }

    /// Adds to the bytes that are known to be at a file's destination; `bytes` may be negative.
    pub(crate) fn there(&self, account: &Account, bytes: i64) {
        if account.add(bytes) {
            self.bytes_there.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Files and bytes that are planned and not done, as far as the plan is known; `None` if there
    /// are none.
    pub(crate) fn left(&self) -> Option<(u64, u64)> {
        let totals = self.totals.lock();
        let done = (totals.files_done + totals.files_failed).saturating_sub(totals.failed_early);
        let there = u64::try_from(self.bytes_there.load(Ordering::Relaxed)).unwrap_or_default();
        let left = (totals.planned_files.saturating_sub(done), totals.planned_bytes.saturating_sub(there));
        (left.0 > 0).then_some(left)
    }

    /// Like [`Report::left`], but counts files of a typical size: that of the file in which the
    /// average byte of the plan lies. A few big files among many small ones count as few.
    pub(crate) fn left_alike(&self) -> Option<(u64, u64)> {
        let (files, bytes) = self.left()?;
        let totals = self.totals.lock();
        let typical = totals.planned_squares / totals.planned_bytes as f64;
        // No big file is left; or, if this is not a number, no bytes are left.
        let alike = bytes as f64 / typical;
        Some((if alike >= 0.5 { files.min(alike.ceil() as u64) } else { files }, bytes))
    }

    /// Records that a file is done. With a checksum, its bytes count as verified.
    pub(crate) fn done(&self, id: FileId, bytes: u64, time: Duration, checksum: Option<String>) {
        {
            let mut totals = self.totals.lock();
            totals.files_active = totals.files_active.saturating_sub(1);
            totals.files_done += 1;
            totals.bytes_done += bytes;
            if checksum.is_some() {
                totals.bytes_verified += bytes;
            }
        }
        self.event(Event::FileDone { id, bytes, seconds: time.as_secs_f64(), checksum });
        self.progress();
    }

    /// Records that a file is done that the same command would send again.
    pub(crate) fn unrecorded(&self) {
        self.unrecorded.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the plan is complete.
    pub(crate) fn knows_all(&self) -> bool {
        self.totals.lock().plan_complete
    }

    /// Records a file that is skipped, and that is not or no longer planned.
    pub(crate) fn left_out(&self, source: String, reason: &str) {
        self.totals.lock().files_skipped += 1;
        self.event(Event::FileSkipped { source, reason: reason.to_owned() });
    }

    /// Like [`Report::failed`], for a file that was not planned.
    pub(crate) fn failed_early(&self, id: FileId, failure: FileFailure) {
        self.totals.lock().failed_early += 1;
        self.failed(id, false, failure);
    }

    /// Records that a try failed and another one follows.
    pub(crate) fn will_retry(
        &self,
        id: FileId,
        active: bool,
        source: String,
        error: String,
        pause: Duration,
    ) {
        {
            let mut totals = self.totals.lock();
            totals.retries += 1;
            if active {
                totals.files_active = totals.files_active.saturating_sub(1);
            }
        }
        self.event(Event::FileFailed { id, source, error, retry_in: Some(pause.as_secs_f64()) });
    }

    /// Records that a file that was started returns to the queue without a failure of its own.
    pub(crate) fn put_back(&self) {
        let mut totals = self.totals.lock();
        totals.files_active = totals.files_active.saturating_sub(1);
    }

    /// Records that a file failed for good.
    pub(crate) fn failed(&self, id: FileId, active: bool, failure: FileFailure) {
        let known = if failure.source.is_empty() { &failure.destination } else { &failure.source };
        let (source, error) = (known.clone(), failure.error.clone());
        {
            let mut totals = self.totals.lock();
            if active {
                totals.files_active = totals.files_active.saturating_sub(1);
            }
            totals.files_failed += 1;
            // Files that were not started say nothing about the reason of the failures.
            if failure.kind != FailureKind::Interrupted {
                let kind = Some(failure.kind);
                totals.failed_for =
                    Some(kind.filter(|_| totals.failed_for.is_none_or(|known| known == kind)));
            }
            if totals.failures.len() < FAILURES_KEPT {
                totals.failures.push(failure);
            }
        }
        self.event(Event::FileFailed { id, source, error, retry_in: None });
    }

    /// Records that a symbolic link was made.
    pub(crate) fn linked(&self, task: &Task) {
        self.started(&Task { size: Some(0), ..task.clone() }, 0);
        self.done(task.id, 0, Duration::ZERO, None);
    }

    /// Records the number of sessions, or pairs of them, that work on files.
    pub(crate) fn sessions(&self, number: u32) {
        let mut totals = self.totals.lock();
        totals.most_sessions = totals.most_sessions.max(number);
    }

    pub(crate) fn directory_made(&self) {
        self.totals.lock().directories += 1;
    }

    pub(crate) fn removed(&self, path: String) {
        self.totals.lock().removed += 1;
        self.event(Event::Removed { path });
    }

    /// Sends a warning once in a run.
    pub(crate) fn warn_once(&self, message: String) {
        self.warn_once_of(message.clone(), message);
    }

    /// Like [`Report::warn_once`], for messages that differ in numbers: messages with the same
    /// `key` are sent once.
    pub(crate) fn warn_once_of(&self, key: String, message: String) {
        let fresh = self.totals.lock().warned.insert(key);
        if fresh {
            self.event(Event::Warning { message });
        }
    }

    /// Warns that times or modes of an entry could not be set. A server that refuses this for one
    /// file refuses it for others, too, so there is one warning for a server and reply code.
    pub(crate) fn not_preserved(&self, place: &Place, code: Option<u16>, why: &str) {
        let (key, name) = (server_of(place), place.display());
        self.warn_once_of(
            format!("{key} attributes {code:?}"),
            format!("{name}: times or modes could not be set, perhaps of others neither: {why}"),
        );
    }

    /// Warns that the server of `place` does not report the sizes of its files.
    pub(crate) fn not_compared(&self, place: &Place) {
        let (key, name) = (server_of(place), place.display());
        self.warn_once_of(
            format!("{key} sizes"),
            format!(
                "{name}: the server does not tell what it has, perhaps of others neither; nothing is compared"
            ),
        );
    }

    /// Warns if a file that was copied had changed during an earlier try.
    pub(crate) fn tell_growth(&self, task: &Task) {
        if let (true, Some(size)) = (task.grows, task.size) {
            let name = task.source.display();
            let message =
                format!("{name}: it was written to meanwhile; copied are the {size} bytes that it had");
            self.event(Event::Warning { message });
        }
    }

    /// Adds time that was spent waiting for control replies while no data moved.
    pub(crate) fn waited(&self, time: Duration) {
        self.reply_wait.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn worked(&self, time: Duration) {
        self.worker_time.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Adds the time that the streams of one transfer have waited for the server's storage. `total`
    /// is their time so far, of which `counted` has been added before.
    pub(crate) fn server_storage(&self, stage: Stage, counted: &mut Duration, total: Duration) {
        let more = total.saturating_sub(*counted);
        *counted = total.max(*counted);
        let mut totals = self.totals.lock();
        let sum = match stage {
            Stage::Source => &mut totals.server_read,
            _ => &mut totals.server_write,
        };
        *sum = sum.saturating_add(more);
    }

    /// Records that data goes directly from one server to another, so that the time of its stages
    /// is not known here.
    pub(crate) fn goes_elsewhere(&self) {
        self.elsewhere.store(true, Ordering::Relaxed);
    }

    fn stages(&self, progress: &Progress) {
        let mut totals = self.totals.lock();
        for (sum, stage) in totals.stages.iter_mut().zip(STAGES) {
            *sum += progress.time(stage);
        }
        totals.stream_time += progress.stream_time();
    }

    /// Reports the totals if the last report was long enough ago.
    fn progress(&self) {
        let now = Instant::now();
        let streams = self.streams.load(Ordering::Relaxed).max(0) as u32;
        let mut totals = self.totals.lock();
        totals.most_streams = totals.most_streams.max(streams);
        if totals.last_progress.is_some_and(|at| now - at < PROGRESS_INTERVAL) {
            return;
        }
        totals.last_progress = Some(now);
        let (files_done, files_active) = (totals.files_done, totals.files_active);
        drop(totals);
        // Until the plan is complete, the planning thread reports it.
        self.tell_plan(|totals| totals.plan_changed && totals.plan_complete);
        let bytes = self.bytes_there.load(Ordering::Relaxed).max(0) as u64;
        self.event(Event::Progress { bytes, files_done, files_active, streams });
    }

    /// Ends the run. `held` is the time that streams waited for the rate limit.
    pub(crate) fn finish(
        &self,
        interrupted: bool,
        tuned: Vec<TunedPath>,
        stacks: Vec<UsedStack>,
        held: Duration,
    ) -> Summary {
        let wall = self.began.elapsed();
        let cpu = cpu_time().saturating_sub(self.cpu_began);
        let bytes_there = self.bytes_there.load(Ordering::Relaxed).max(0) as u64;
        let mut totals = self.totals.lock();
        let stages = with_servers(totals.stages, totals.server_read, totals.server_write);
        let slowest = slowest(
            stages,
            (held, totals.stream_time),
            Duration::from_nanos(self.reply_wait.load(Ordering::Relaxed)),
            Duration::from_nanos(self.worker_time.load(Ordering::Relaxed)),
            cpu,
            wall,
        );
        let slowest = match slowest {
            SlowestPart::Unknown if self.elsewhere.load(Ordering::Relaxed) => SlowestPart::NotVisible,
            seen => seen,
        };
        let summary = Summary {
            files_done: totals.files_done,
            files_skipped: totals.files_skipped,
            files_failed: totals.files_failed,
            directories: totals.directories,
            removed: totals.removed,
            bytes: self.bytes_moved.load(Ordering::Relaxed),
            bytes_resumed: totals.bytes_resumed,
            seconds: wall.as_secs_f64(),
            bytes_done: totals.bytes_done,
            bytes_verified: totals.bytes_verified,
            streams: totals.most_streams,
            files_in_flight: totals.most_sessions,
            retries: totals.retries,
            tuned,
            stacks,
            cpu_seconds: cpu.as_secs_f64(),
            slowest,
            stages: StageTimes::new(stages, totals.stream_time),
            interrupted,
            unrecorded: self.unrecorded.load(Ordering::Relaxed),
            failures: std::mem::take(&mut totals.failures),
            failed_for: totals.failed_for.flatten(),
        };
        let (files_done, files_active) = (totals.files_done, totals.files_active);
        drop(totals);
        self.tell_plan(|totals| totals.plan_changed);
        self.event(Event::Progress { bytes: bytes_there, files_done, files_active, streams: 0 });
        self.event(Event::Finished(Box::new(summary.clone())));
        summary
    }
}

/// Converts a number of bytes, which may come from a server, and saturates.
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// CPU time of this process, user and system.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)
}

/// Makes the summary's entry for a failed file.
pub(crate) fn failure(source: String, destination: String, kind: FailureKind, error: String) -> FileFailure {
    FileFailure { source, destination, kind, error }
}

/// The server of a place; some warnings are sent once for each server.
fn server_of(place: &Place) -> &str {
    match place {
        Place::Remote(endpoint, _) => &endpoint.name,
        _ => "",
    }
}

#[cfg(test)]
mod tests;
