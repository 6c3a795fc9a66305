//! A whole copy: it runs the plan and the workers, and returns the summary.
//!
//! The calling thread runs the plan, and each worker has a thread of its own. One more thread waits
//! for cancellation, and another one starts further workers on tuned paths. All of them end before
//! [`run`] returns; a panic stops the queue, so that the others end too. Failures of single files
//! are reported in the summary.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use bstr::ByteSlice;
use rustix::event::{PollFd, PollFlags, poll};

use crate::borrowed_events::lend;
use crate::client_state::ClientState;
use crate::context::Context;
use crate::dispatch::carry_out;
use crate::done_files::DoneFiles;
use crate::finished::Finished;
use crate::local_copy::replace_link;
use crate::model::filter::Filter;
use crate::model::glob::is_glob;
use crate::model::threads::{join, spawn_in};
use crate::model::xdg::state_directory;
use crate::opening;
use crate::path_defaults::PathDefaults;
use crate::place::{Endpoint, Place, parent};
use crate::plan::{Late, Link, Plan, Sink, Twins, reopen, tell_lost};
use crate::report::failure;
use crate::session::Session;
use crate::side::Side;
use crate::spelling::{Speller, made_by};
use crate::task::Task;
use crate::tuning::drive;
use crate::work::Job;
use crate::worker::{Worker, left_over};
use crate::{Cancel, Error, EventSink, Location, Options, Pair, RemoteError, Summary};

/// The number of files that wait, or the time that passes, before a worker is started beside the
/// plan. A copy of a few files reuses the plan's own sessions instead.
const WAITING: u64 = 16;
const PATIENCE: Duration = Duration::from_millis(50);
/// How often a blocked plan keeps its idle sessions alive.
const IDLE: Duration = Duration::from_secs(5);

/// Copies all pairs.
///
/// Sources may be files, directories (with `recursive`) or globs. A destination that ends with `/`,
/// or is an existing directory, receives the source under the source's name, as with `cp`. A source
/// directory that ends with `/` stands for its contents. Files that failed are listed in the
/// summary, and do not stop the others unless the options say so.
///
/// During its transfer, a file at a local or remote destination has the name `.NAME.ropewalk-part`;
/// it gets its own name when it is complete and verified. It replaces a symbolic link of that name.
/// At servers that receive the checksum before the data, files of up to 4 MiB are written to the
/// target of the link instead. Windows ([`Pair::window`]), devices and pipes are written in place:
/// a window of a source is written at the same offset of its destination, as with
/// `globus-url-copy -off`.
///
/// # Errors
/// A filter is no valid pattern; `bandwidth` is set for data that goes directly from one server to
/// another; with `delete`, some pairs would remove the files of others; or the system cannot start
/// a thread or denies access to its files.
pub fn copy(
    pairs: Vec<Pair>,
    options: &Options,
    events: &dyn EventSink,
    cancel: &Cancel,
) -> Result<Summary, Error> {
    lend(events, |events| copy_with(pairs, options, events, cancel))
}

/// Like [`copy`], but on the calling thread, with a sink that the run keeps until it ends.
///
/// # Errors
/// Those of [`copy`].
pub fn copy_with(
    pairs: Vec<Pair>,
    options: &Options,
    events: &Arc<dyn EventSink>,
    cancel: &Cancel,
) -> Result<Summary, Error> {
    run(pairs, options, (&ClientState::of(options), None), events, cancel)
}

/// Runs a job once, on this thread. `done_before` has the files that earlier runs of the job have
/// finished, and collects those of this run.
pub(crate) fn run(
    pairs: Vec<Pair>,
    options: &Options,
    (client, done_before): (&Arc<ClientState>, Option<&Arc<DoneFiles>>),
    events: &Arc<dyn EventSink>,
    cancel: &Cancel,
) -> Result<Summary, Error> {
    let filter = Filter::new(options)?;
    if options.selection.delete && options.selection.sync.is_some() {
        spare_each_other(&pairs, &filter)?;
    }
    let shared = &client.shared;
    if shared.bandwidth.is_limited() && !options.data.through_here && !options.dry_run {
        limit_here(&pairs)?;
    }
    let held = || shared.bandwidth.held();
    let held_before = held();
    let mut ctx = Context::new(client, options, events, cancel)?;
    let directory = state_directory(options.state_directory.as_deref());
    ctx.finished = Finished::open(directory, &pairs, options);
    ctx.done_before = done_before.cloned();
    let ctx = ctx;
    let ended = Cancel::new();
    let late = std::thread::scope(|scope| {
        let _end = End { ctx: &ctx, ended: &ended };
        spawn_in(scope, || stop_when_cancelled(&ctx, &ended))?;
        spawn_in(scope, || {
            drive(&ctx, &|| spawn_in(scope, || Worker::new(&ctx, Vec::new()).run(carry_out)).is_ok());
        })?;
        let mut crew = Crew::new(scope, &ctx);
        let (sessions, late) = Plan::new(&ctx, filter, &mut crew).run(&pairs);
        ctx.queue.close();
        crew.finish(sessions, !late.is_empty());
        Ok::<_, RemoteError>(late)
    })?;
    finish(&ctx, late);
    ctx.lent.take_all().into_iter().for_each(|session| ctx.give_back(session));
    let interrupted = cancel.is_cancelled();
    for job in ctx.queue.drain() {
        left_over(&ctx, &job, interrupted);
    }
    let stacks = ctx.setup.stacks.lock().values().cloned().collect();
    let summary =
        ctx.report.finish(interrupted, ctx.tune.found(), stacks, held().saturating_sub(held_before));
    ctx.finished.end(!interrupted && summary.files_failed == 0);
    Ok(summary)
}

/// Ends the threads that serve a run when it is over, also after a panic, for example of the
/// caller's event sink.
struct End<'a> {
    ctx: &'a Context,
    ended: &'a Cancel,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.ctx.queue.stop();
        }
        self.ended.cancel();
        self.ctx.tune.finish();
    }
}

/// Refuses a bandwidth limit for pairs whose data goes directly from one server to another: it does
/// not pass through this process, which therefore cannot limit it.
fn limit_here(pairs: &[Pair]) -> Result<(), RemoteError> {
    let between = |pair: &&Pair| {
        matches!((&pair.source, &pair.destination), (Location::Remote(_), Location::Remote(_)))
    };
    let Some(Pair { source: Location::Remote(source), .. }) = pairs.iter().find(between) else {
        return Ok(());
    };
    Err(RemoteError::Usage(format!(
        "{source}: --bandwidth limits what passes this machine, and between two servers nothing does: let the data come \
         through here (--through-here), or leave --bandwidth out"
    )))
}

/// Refuses pairs that would remove each other's files. With `delete`, a directory gets exactly the
/// entries of its source, so everything that other sources put into it or beneath it would be
/// removed.
fn spare_each_other(pairs: &[Pair], filter: &Filter) -> Result<(), RemoteError> {
    let whole = || pairs.iter().filter(|pair| pair.window.is_none());
    let (mut to, mut from) = (Speller::default(), Speller::default());
    let mut spelled = |pair: &Pair| made_by(pair, &mut to).zip(from.spell(&pair.source));
    let mut made: Vec<(Vec<u8>, Vec<u8>)> = whole().filter_map(&mut spelled).collect();
    made.sort_unstable();
    // A source with a pattern is checked later, when its matches are known.
    for pair in whole().filter(|pair| pair.source.ends_with_slash() || !is_glob(pair.source.path())) {
        let Some((directory, source)) = spelled(pair) else { continue };
        let first = made.partition_point(|(name, _)| *name < directory);
        let mut beneath = made[first..].iter().map_while(|(name, other)| {
            name.strip_prefix(&*directory).map(|rest| (rest.trim_with(|c| c == '/'), other))
        });
        // Entries that a filter excludes are not removed.
        if beneath.any(|(rest, other)| *other != source && !filter.hides(rest.as_bstr())) {
            let what = format!(
                "{}: several sources go there, of which each would remove what the others bring (--delete)",
                directory.as_bstr()
            );
            return Err(RemoteError::Usage(what));
        }
    }
    Ok(())
}

/// Completes what had to wait until all files are in place: links, then times and modes of
/// directories, the deepest first.
fn finish(ctx: &Context, late: Late) {
    let mut sides = Sides { ctx, open: None };
    for Link { source, destination, target } in late.links {
        let task =
            Task { link: Some(Box::new(target)), ..Task::new(ctx.report.next_id(), source, destination) };
        if ctx.queue.is_stopped() {
            left_over(ctx, &Job::File(task), ctx.cancel.is_cancelled());
            continue;
        }
        let target = *task.link.clone().unwrap_or_default();
        let made = sides.ask(&task.destination, &mut |side| match (side, &task.destination) {
            (Side::Remote(session), place) => session.replace_link(&target, &place.path()),
            (Side::Local(store), Place::Local(link)) => replace_link(&**store, &target, link),
            (Side::Local(_), _) => Ok(()),
        });
        match made {
            Ok(()) => ctx.report.linked(&task),
            Err(e) => {
                let (source, destination) = (task.source.display(), task.destination.display());
                ctx.report.failed(task.id, false, failure(source, destination, e.kind(), e.to_string()));
            }
        }
    }
    find_lost(ctx, &mut sides, &late.twins);
    set_modes(ctx, &mut sides, &late.modes);
    for (place, modified, mode) in late.attributes.into_iter().rev() {
        if ctx.cancel.is_cancelled() {
            break;
        }
        let set = sides.ask(&place, &mut |side| side.set_attributes(&place.path(), modified, mode));
        if let Err(e) = set {
            ctx.report.not_preserved(&place, e.reply_code(), &e.to_string());
        }
    }
    if ctx.cancel.is_cancelled() {
        for (path, mode) in late.opened.into_iter().rev() {
            // Best effort: if this fails, the next run sets the mode.
            let _ = ctx.store.set_mode(&path, mode);
        }
    }
    sides.close();
}

/// Checks whether names that differ only in case or Unicode normalization all exist at the
/// destination.
fn find_lost(ctx: &Context, sides: &mut Sides<'_>, twins: &[Twins]) {
    let directory = |twins: &Twins| parent(twins.second.display().as_bytes()).map(<[u8]>::to_vec);
    for of_one in twins.chunk_by(|one, other| directory(one) == directory(other)) {
        let path = of_one[0].second.path();
        let directory = parent(&path).unwrap_or(b".");
        if ctx.cancel.is_cancelled() {
            return;
        }
        let mut names = HashSet::new();
        let listed = sides.ask(&of_one[0].second, &mut |side| {
            names.clear();
            side.list(directory, &mut |entry| {
                names.insert(entry.name);
                Ok(true)
            })
        });
        match listed {
            Ok(()) => of_one.iter().for_each(|twins| tell_lost(&ctx.report, twins, &names)),
            Err(e) => ctx.report.warn_once(format!(
                "{}: nobody knows whether it is another file than {}: {e}",
                of_one[0].second.display(),
                of_one[0].first.display()
            )),
        }
    }
}

/// Sets the modes of files, many in one round trip, until a server refuses one.
fn set_modes(ctx: &Context, sides: &mut Sides<'_>, modes: &[(Place, u32)]) {
    const AT_ONCE: usize = 100;
    let server = |place: &Place| match place {
        Place::Remote(endpoint, _) => Some(Arc::as_ptr(endpoint)),
        _ => None,
    };
    for of_one in modes.chunk_by(|(one, _), (other, _)| server(one) == server(other)) {
        for some in of_one.chunks(AT_ONCE) {
            if ctx.cancel.is_cancelled() {
                return;
            }
            let place = &some[0].0;
            if let Err(e) = sides.ask(place, &mut |side| side.set_modes(some)) {
                ctx.report.not_preserved(place, e.reply_code(), &e.to_string());
                break;
            }
        }
    }
}

/// The most recently used side of the copy, which stays open.
struct Sides<'c> {
    ctx: &'c Context,
    open: Option<(Option<Arc<Endpoint>>, Side)>,
}

impl Sides<'_> {
    /// Runs `ask` on the side that has `place`; if its session breaks, `ask` is repeated in a new
    /// one.
    fn ask<T>(
        &mut self,
        place: &Place,
        ask: &mut dyn FnMut(&mut Side) -> Result<T, RemoteError>,
    ) -> Result<T, RemoteError> {
        let reopened = reopen(self.ctx);
        let answer = self.at(place)?.ask(Some(&reopened), ask);
        if answer.as_ref().is_err_and(RemoteError::breaks_session) {
            self.open = None;
        }
        answer
    }

    fn close(&mut self) {
        if let Some((_, Side::Remote(session))) = self.open.take() {
            self.ctx.give_back(*session);
        }
    }

    fn at(&mut self, place: &Place) -> Result<&mut Side, RemoteError> {
        let endpoint = match place {
            Place::Remote(endpoint, _) => Some(endpoint.clone()),
            _ => None,
        };
        let same = match (&self.open, &endpoint) {
            (Some((Some(a), _)), Some(b)) => Arc::ptr_eq(a, b),
            (Some((None, _)), None) => true,
            _ => false,
        };
        if !same {
            self.close();
            let side = match &endpoint {
                Some(endpoint) => Side::Remote(Box::new(match self.ctx.lent.take_last(endpoint) {
                    Some(session) => session,
                    None => opening::open(self.ctx, endpoint)?,
                })),
                None => Side::Local(self.ctx.store.clone()),
            };
            self.open = Some((endpoint, side));
        }
        match &mut self.open {
            Some((_, side)) => Ok(side),
            None => Err(RemoteError::Cancelled),
        }
    }
}

/// Stops the queue when the run is cancelled, so that no worker waits for further jobs. Returns at
/// the end of the run.
fn stop_when_cancelled(ctx: &Context, ended: &Cancel) {
    while !ctx.cancel.is_cancelled() && !ended.is_cancelled() {
        let descriptors = [&ctx.cancel, ended].into_iter().filter_map(Cancel::descriptor);
        let mut fds: Vec<_> = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        // An interrupted wait is repeated.
        let _ = poll(&mut fds, ctx.cancel.longest_wait().or(ended.longest_wait()).as_ref());
    }
    if ctx.cancel.is_cancelled() {
        ctx.queue.stop();
    }
}

/// The workers. Their number grows with the work that the plan finds.
struct Crew<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    ctx: &'env Context,
    workers: Vec<ScopedJoinHandle<'scope, ()>>,
    files: u64,
    bytes: u64,
    began: Option<Instant>,
    /// The system cannot start another thread.
    full: bool,
}

impl<'scope, 'env> Crew<'scope, 'env> {
    fn new(scope: &'scope Scope<'scope, 'env>, ctx: &'env Context) -> Self {
        Self { scope, ctx, workers: Vec::new(), files: 0, bytes: 0, began: None, full: false }
    }

    /// The longest round trip to a server of this run.
    fn path(&self) -> PathDefaults {
        PathDefaults::new(self.ctx.endpoints.longest_rtt())
    }

    fn grow(&mut self, first: Vec<Session>) {
        let begun = self.workers.len() as u32;
        let worth = match self.full {
            true => begun,
            false => self.path().useful_sessions(self.ctx.options(), self.files, self.bytes).max(1),
        };
        self.ctx.sessions.fetch_add(worth.saturating_sub(begun), Ordering::Relaxed);
        let mut sessions = Some(first);
        while self.workers.len() < worth as usize {
            let ctx = self.ctx;
            // The worker takes its first job only when it is certain that it has a thread.
            let (give, take) = channel::<Worker<'env>>();
            match spawn_in(self.scope, move || take.recv().map_or((), |worker| worker.run(carry_out))) {
                Ok(thread) => {
                    let worker = Worker::new(ctx, sessions.take().unwrap_or_default());
                    worker.begin_at_once();
                    // The thread waits for this message.
                    let _ = give.send(worker);
                    self.workers.push(thread);
                }
                Err(e) => {
                    self.full = true;
                    self.no_more(&e, worth);
                    break;
                }
            }
            self.ctx.report.sessions(self.workers.len() as u32);
        }
        for session in sessions.into_iter().flatten().filter_map(|session| self.ctx.lent.leave(session)) {
            self.ctx.give_back(session);
        }
    }

    /// Continues with the workers that have started. If there are none, the run fails.
    fn no_more(&self, error: &RemoteError, worth: u32) {
        let begun = self.workers.len() as u32;
        self.ctx.sessions.fetch_sub(worth.saturating_sub(begun.max(1)), Ordering::Relaxed);
        if begun > 0 {
            return self.ctx.report.warn_once(format!("{error}; going on with fewer"));
        }
        let entry = failure(String::new(), String::new(), error.kind(), error.to_string());
        self.ctx.report.failed_early(self.ctx.report.next_id(), entry);
        self.ctx.queue.stop();
    }

    /// Starts workers for the remaining jobs if there are any, and waits for all workers.
    fn finish(mut self, sessions: Vec<Session>, late: bool) {
        let sessions = self.ctx.lent.give(sessions, late);
        if self.files > 0 {
            self.grow(sessions);
        } else {
            sessions
                .into_iter()
                .filter_map(|session| self.ctx.lent.leave(session))
                .for_each(|session| self.ctx.give_back(session));
        }
        self.workers.into_iter().for_each(join);
    }
}

impl Sink for Crew<'_, '_> {
    fn push(&mut self, job: Job, bytes: u64, idle: &mut dyn FnMut()) -> bool {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        let began = *self.began.get_or_insert_with(Instant::now);
        if self.files > WAITING || began.elapsed() > PATIENCE {
            self.grow(Vec::new());
        }
        let pushed = self.ctx.queue.push(job.group(), job, IDLE, idle);
        pushed.map_err(|job| left_over(self.ctx, &job, self.ctx.cancel.is_cancelled())).is_ok()
    }
}
