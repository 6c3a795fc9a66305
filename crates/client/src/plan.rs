//! Finds the files to copy while the copy is running: files are queued as they are found.

mod claims;
mod finished;
mod globs;
mod hidden;
mod linked;
mod making;
mod ordinary;
mod program;
mod removal;
mod sides;
mod tree;
mod tree_root;
mod twins;
mod whole;

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::hash::BuildHasher;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bstr::{BString, ByteSlice};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_storage::{Kind, is_temporary_name};

use crate::context::Context;
use crate::model::entry::Time;
use crate::model::filter::Filter;
use crate::model::glob::is_glob;
use crate::model::location::describe;
use crate::place::is_device;
use crate::place::{End, Place, base_name, join, parent};
use crate::report::failure;
use crate::session::Session;
use crate::side::{Side, Step, directory_of};
use crate::spelling::{self, Speller};
use crate::sync::{Verdict, compare};
use crate::task::{Task, There};
use crate::work::{Job, SAME_SUM};
use crate::{Amount, Entry, Event, FailureKind, Pair, RemoteError, SyncLevel};

use claims::{Claim, claimed_already, may_merge};
use hidden::Hidden;
pub(crate) use sides::reopen;
pub(crate) use twins::{Twins, tell_lost};

/// Pairs whose attributes are requested at once.
const BATCH: usize = 128;
/// Files that wait until their directories are made together.
const GATHERED: usize = 512;
/// The reason for skipping partial files.
const LEFT_OUT: &str = "left out by a filter";
const UNFINISHED: &str = "a partial file of an unfinished copy";
/// Parent directories that are remembered as made.
const REMEMBERED: usize = 10_000;

/// Queues a job, and starts workers as they become useful. `false`: the run was stopped.
pub(crate) trait Sink {
    fn push(&mut self, job: Job, bytes: u64, idle: &mut dyn FnMut()) -> bool;
}

/// Attributes that were requested ahead, `true` at the destination.
type Known = HashMap<(Spot, bool), Option<Entry>>;

/// A log-in (see [`Plan::key`]) and a path. The log-in matters, because a path relative to one
/// user's home is not the same as that path for another user.
type Spot = (String, BString);

/// Work to do after all transfers.
#[derive(Default)]
pub(crate) struct Late {
    /// For files that existed already.
    pub modes: Vec<(Place, u32)>,
    /// Times (seconds since 1970) and modes of directories.
    pub attributes: Vec<(Place, Option<Time>, Option<u32>)>,
    /// Local directories that are writable during the run, with their old modes.
    pub opened: Vec<(VirtualPath, u32)>,
    /// Names of one directory that differ only in case or Unicode form: of the sources, and of the
    /// destinations.
    pub twins: Vec<Twins>,
    /// Symbolic links: GCT's servers make them only if the target exists, and no file may be
    /// written through them.
    pub links: Vec<Link>,
}

impl Late {
    pub(crate) fn is_empty(&self) -> bool {
        self.modes.is_empty() && self.attributes.is_empty() && self.links.is_empty() && self.twins.is_empty()
    }
}

/// A symbolic link to make.
pub(crate) struct Link {
    pub source: Place,
    pub destination: Place,
    pub target: BString,
}

pub(crate) struct Plan<'p> {
    ctx: &'p Context,
    filter: Filter,
    /// Names of the user's list that were not found yet.
    unseen: HashSet<BString>,
    sink: &'p mut dyn Sink,
    /// One for each endpoint and purpose; index by name, `true` for the destination.
    sides: HashMap<(String, bool), Side>,
    made: HashSet<Spot>,
    /// Hashes of destinations of files and directories, with hashes of their sources; of files in
    /// directories only if several directories may be merged.
    claims: HashMap<u64, u64>,
    /// Whether a server treats the names of devices as plain names.
    ordinary: HashMap<Spot, bool>,
    speller: Speller,
    merging: bool,
    chance: RandomState,
    poured: bool,
    stopped: bool,
    /// The server reports no times of files.
    timeless: bool,
    late: Late,
}

/// A pair with its ends resolved.
struct Ends {
    source: Place,
    destination: Place,
    /// Ends with `/`: the contents of the source; into the destination.
    contents: bool,
    into: bool,
    window: Amount,
    /// A program of the server stands for the file.
    source_program: bool,
    destination_program: bool,
}

/// Files that were found and not queued yet, because their directories are not made yet.
#[derive(Default)]
struct Gathered {
    directories: Vec<BString>,
    files: Vec<Task>,
    /// Directories that this run has made, and which are empty.
    new: HashSet<BString>,
    /// Local directories that are not blocked by a link.
    open: HashSet<BString>,
    /// Directories that could not be made, or that a symbolic link stands for, with the reason why
    /// nothing is sent beneath them.
    refused: HashMap<BString, (FailureKind, &'static str)>,
    /// Times and modes of directories, set after all transfers.
    attributes: Vec<(BString, Option<Time>, Option<u32>)>,
    /// Names that were found in a directory and its ancestors, folded by case and Unicode form.
    folded: HashMap<BString, HashMap<String, BString>>,
    /// The root of the source, if its server makes relative links absolute.
    absolute: Option<VirtualPath>,
}

impl<'p> Plan<'p> {
    pub(crate) fn new(ctx: &'p Context, filter: Filter, sink: &'p mut dyn Sink) -> Self {
        Self {
            ctx,
            unseen: filter.listed().cloned().unwrap_or_default(),
            filter,
            sink,
            sides: HashMap::new(),
            made: HashSet::new(),
            claims: HashMap::new(),
            ordinary: HashMap::new(),
            speller: Speller::default(),
            merging: false,
            chance: RandomState::new(),
            poured: false,
            stopped: false,
            timeless: false,
            late: Late::default(),
        }
    }

    /// Handles all pairs. Returns the sessions that it no longer needs, and the remaining work.
    pub(crate) fn run(mut self, pairs: &[Pair]) -> (Vec<Session>, Late) {
        self.merging = may_merge(pairs);
        for batch in pairs.chunks(BATCH) {
            let ends: Vec<Result<Ends, RemoteError>> = batch.iter().map(|pair| self.resolve(pair)).collect();
            if self.sides.is_empty()
                && let Some(Ok(first)) = ends.first()
            {
                self.open_both(first);
            }
            let mut known = self.stat_all(ends.iter().flatten());
            for (pair, ends) in batch.iter().zip(ends) {
                if self.is_over() {
                    break;
                }
                let result = ends.and_then(|ends| self.pair(&ends, &mut known));
                if let Err(error) = result {
                    self.fail(describe(&pair.source), describe(&pair.destination), &error);
                }
            }
        }
        self.ctx.report.plan_complete();
        let sessions = self.sides.into_values().filter_map(|side| match side {
            Side::Remote(session) => Some(*session),
            Side::Local(_) => None,
        });
        (sessions.collect(), self.late)
    }

    fn is_over(&self) -> bool {
        self.stopped || self.ctx.queue.is_stopped() || self.ctx.cancel.is_cancelled()
    }

    fn resolve(&self, pair: &Pair) -> Result<Ends, RemoteError> {
        let options = self.ctx.options();
        let source = Place::new(&pair.source, End::Source, &self.ctx.endpoints, options)?;
        let destination = Place::new(&pair.destination, End::Destination, &self.ctx.endpoints, options)?;
        for (place, end) in [(&source, &options.login.source), (&destination, &options.login.destination)] {
            if end.disk_stack.is_some() && !matches!(place, Place::Remote(..)) {
                let what = "has no server, and so no disk stack";
                return Err(RemoteError::Usage(format!("{}: {what}", place.display())));
            }
        }
        let program =
            |place: &Place, end| matches!(place, Place::Remote(..)) && options.end(Some(end)).runs_program();
        Ok(Ends {
            source_program: program(&source, End::Source),
            destination_program: program(&destination, End::Destination),
            source,
            destination,
            contents: pair.source.ends_with_slash(),
            into: pair.destination.ends_with_slash(),
            window: pair.window,
        })
    }

    fn pair(&mut self, ends: &Ends, known: &mut Known) -> Result<(), RemoteError> {
        if let Place::Measure(1..) = ends.destination {
            let what = format!("{}: is not a destination (null: is one)", ends.destination.display());
            return Err(RemoteError::Usage(what));
        }
        if ends.source_program || ends.destination_program {
            return self.program(ends, known);
        }
        if let Place::Standard | Place::Measure(_) = ends.source {
            if ends.into {
                let what = format!("{}: needs the name of a file", ends.destination.display());
                return Err(RemoteError::Usage(what));
            }
            let there = match &ends.destination {
                Place::Remote(..) => self.look(&ends.destination)?,
                _ => None,
            };
            let destination = self.linked(&ends.destination, there.as_ref())?;
            let mut task = self.task(ends.source.clone(), destination, ends.window);
            if let Place::Measure(size) = ends.source {
                task.size = Some(size);
            }
            return self.file(task, None);
        }
        let Some(entry) = self.source(ends, known)? else {
            let path = ends.source.path();
            if is_glob(path.as_bstr()) {
                return self.glob(ends, &path);
            }
            return Err(crate::walk::missing(&path));
        };
        let there = self.destination(ends, known)?;
        self.entry(ends, &entry, there.as_ref())
    }

    /// Plans one source that exists.
    fn entry(&mut self, ends: &Ends, entry: &Entry, there: Option<&Entry>) -> Result<(), RemoteError> {
        let directory = there.is_some_and(Entry::is_directory);
        let into = ends.into || (directory && self.ctx.options().storage.into_directories);
        if !self.filter.fits(entry) {
            self.ctx.report.left_out(ends.source.display(), LEFT_OUT);
            return Ok(());
        }
        if entry.is_directory() {
            self.directory(ends, entry, there, into)
        } else {
            self.one_file(ends, entry, there, into)
        }
    }

    /// Plans a source that is not a directory; `into`: it goes into the destination, by its own
    /// name.
    fn one_file(
        &mut self,
        ends: &Ends,
        entry: &Entry,
        there: Option<&Entry>,
        into: bool,
    ) -> Result<(), RemoteError> {
        let source = &ends.source;
        let name: BString = base_name(&source.path()).into();
        let file_like = matches!(ends.destination, Place::Standard | Place::Measure(_));
        let (destination, there) = if into && !file_like {
            let destination = ends.destination.join(&name)?;
            // Two directories may have files of one name.
            if ends.window.is_none() && !self.is_first(source, &destination)? {
                return Ok(());
            }
            let there = if self.ctx.options().selection.sync.is_some() {
                self.stat(&destination, true, &mut Known::new())?
            } else {
                None
            };
            (destination, there)
        } else {
            let apart = ends.window.is_none() && !file_like && !is_device(&ends.destination.path());
            if apart && !self.is_first(source, &ends.destination)? {
                return Ok(());
            }
            let link = entry.kind == Kind::Symlink && self.ctx.options().preserve.links;
            let destination =
                if link { ends.destination.clone() } else { self.linked(&ends.destination, there)? };
            (destination, there.cloned())
        };
        let mut task = self.task(source.clone(), destination, ends.window);
        fill(&mut task, entry);
        self.file(task, there.as_ref())
    }

    /// Plans a single file, and makes its directory if it is missing.
    fn file(&mut self, task: Task, there: Option<&Entry>) -> Result<(), RemoteError> {
        if self.ctx.was_done_before(&task) {
            return Ok(());
        }
        if matches!(task.destination, Place::Standard) && std::mem::replace(&mut self.poured, true) {
            let what = format!(
                "{}: only one file can go to standard output (cat takes more)",
                task.source.display()
            );
            return Err(RemoteError::Usage(what));
        }
        // Pipes and devices report a size of 0, and have more data. This does not work to another
        // server, which would invent the bytes before.
        let third = matches!((&task.source, &task.destination), (Place::Remote(..), Place::Remote(..)));
        if let (Some(window), Some(size)) = (task.window, task.size.filter(|size| *size > 0 || third))
            && window.offset > size
        {
            let (source, offset) = (task.source.display(), window.offset);
            return Err(RemoteError::Usage(format!("{source}: it has {size} bytes and none at {offset}")));
        }
        let Some(mut task) = self.wanted(task, there, None)? else { return Ok(()) };
        let options = self.ctx.options();
        if options.dry_run && there.is_none() {
            task.there = There::Nothing;
        }
        if options.storage.create_directories && !options.dry_run && there.is_none() {
            self.make_parent(&task.destination)?;
        }
        self.push(task);
        Ok(())
    }

    fn make_parent(&mut self, place: &Place) -> Result<(), RemoteError> {
        let (Place::Local(_) | Place::Remote(..)) = place else { return Ok(()) };
        let path = place.path();
        let Some(directory) = parent(&path).filter(|d| *d != b"/") else { return Ok(()) };
        let directory = with_path(place, directory.into());
        if self.made.len() >= REMEMBERED {
            self.made.clear();
        }
        let spot = self.spot(&directory);
        if !self.made.contains(&spot) {
            let path = directory.path();
            self.ask(place, true, &mut |side| side.make_path(&path, true))?;
            self.made.insert(spot);
        }
        Ok(())
    }

    fn task(&self, source: Place, destination: Place, window: Amount) -> Task {
        Task { window, ..Task::new(self.ctx.report.next_id(), source, destination) }
    }

    /// Completes the task; returns `None` if the destination has the file. `relative`: its name in
    /// a tree.
    fn wanted(
        &mut self,
        mut task: Task,
        there: Option<&Entry>,
        relative: Option<&BString>,
    ) -> Result<Option<Task>, RemoteError> {
        let options = self.ctx.options();
        let Some(there) = there else { return Ok(Some(task)) };
        // Local listings do not follow links, those of servers do.
        let followed = if there.kind == Kind::Symlink && task.link.is_none() {
            let target = there.target.clone();
            self.look(&task.destination.clone())?.map(|there| Entry { target, ..there })
        } else {
            None
        };
        let there = followed.as_ref().unwrap_or(there);
        let is_link = there.target.is_some();
        let remote = matches!(task.destination, Place::Remote(..));
        if remote && is_link && !there.is_directory() && task.link.is_none() && options.preserve.links {
            // A server may write to the link's target.
            self.remove(&task.destination.clone(), false)?;
            return Ok(Some(task));
        }
        let mut verdict = compare(options.selection.sync, &task, there);
        if verdict == Verdict::Copy
            && options.selection.sync == Some(SyncLevel::Time)
            && task.size.is_some()
            && task.size == there.size
        {
            if task.modified.is_none() {
                task.modified = self.exact(&task.source, false)?.and_then(|exact| exact.modified);
            }
            let exact = self.exact(&task.destination, true)?;
            verdict = compare(options.selection.sync, &task, exact.as_ref().unwrap_or(there));
        }
        match verdict {
            Verdict::Copy => {}
            Verdict::CompareSums if options.dry_run => {
                if self.have_one_sum(&task)? {
                    self.ctx.report.left_out(task.source.display(), SAME_SUM);
                    return Ok(None);
                }
            }
            Verdict::CompareSums => {
                self.keep_mode(&task, there);
                task.there = There::SameSize;
            }
            Verdict::Same(reason) => {
                self.ctx.report.left_out(task.source.display(), reason);
                self.keep_mode(&task, there);
                return Ok(None);
            }
        }
        let options = self.ctx.options();
        // A link replaces a link; a file does not replace a link to a directory.
        if there.is_directory() && !(is_link && task.link.is_some()) {
            if !options.selection.delete || options.selection.sync.is_none() {
                let what = format!("{}: is a directory at the destination", task.destination.display());
                return Err(RemoteError::Usage(what));
            }
            if !is_link && !self.filter.is_empty() {
                let goes = match relative {
                    Some(relative) => self.remove_what_passes(&task.destination.clone(), relative)?,
                    None => false,
                };
                if !goes {
                    let what = format!(
                        "{}: is a directory at the destination, and contains entries that a filter \
                         excludes",
                        task.destination.display()
                    );
                    return Err(RemoteError::Usage(what));
                }
                return Ok(Some(task));
            }
            self.remove(&task.destination.clone(), !is_link)?;
        }
        Ok(Some(task))
    }

    /// The permissions of an unchanged file may have changed.
    fn keep_mode(&mut self, task: &Task, there: &Entry) {
        const PERMISSIONS: u32 = 0o777;
        let (options, plain) = (self.ctx.options(), there.kind == Kind::File && there.target.is_none());
        if let (Some(mode), Some(now)) = (task.mode, there.mode)
            && plain
            && options.preserve.modes
            && !options.dry_run
            && (mode ^ now) & PERMISSIONS != 0
        {
            self.late.modes.push((task.destination.clone(), mode));
        }
    }

    /// Requests one file's exact time, because listings have it to the minute or day only (LIST).
    fn exact(&mut self, place: &Place, destination: bool) -> Result<Option<Entry>, RemoteError> {
        let path = place.path();
        self.ask(place, destination, &mut |side| match side {
            Side::Remote(session) if !session.can.facts => match session.stat(&path) {
                Err(e) if e.breaks_session() => Err(e),
                found => Ok(found.ok()),
            },
            Side::Local(_) | Side::Remote(_) => Ok(None),
        })
    }

    /// The time and the mode that the copy of a directory gets.
    fn preserved(&self, entry: &Entry) -> (Option<Time>, Option<u32>) {
        let preserve = self.ctx.options().preserve;
        let time = entry.modified.map(|seconds| (seconds, entry.nanoseconds));
        (time.filter(|_| preserve.times), entry.mode.filter(|_| preserve.modes))
    }

    fn push(&mut self, mut task: Task) {
        if self.ctx.options().dry_run {
            let (source, destination) = (task.source.display(), task.destination.display());
            let (size, modified, mode) = (task.length(), task.modified, task.mode);
            let replaces = self.ctx.options().selection.sync.is_some() && task.there != There::Nothing;
            let would = Event::WouldCopy { source, destination, size, modified, mode, replaces };
            return self.ctx.report.event(would);
        }
        if task.there == There::Unknown && self.is_ordinary(&task.destination) {
            task.there = There::Ordinary;
        }
        let bytes = if task.link.is_some() { 0 } else { task.length().unwrap_or_default() };
        task.account.plan(bytes);
        self.ctx.report.planned(bytes);
        // Local links are made at the end, too, so that no file is written through one.
        if task.link.is_some() {
            let target = *task.link.unwrap_or_default();
            return self.late.links.push(Link { source: task.source, destination: task.destination, target });
        }
        let sides = &mut self.sides;
        let mut last = Instant::now();
        let mut idle = || {
            // Only idle sessions are here; each checks its own time.
            if last.elapsed() > Duration::from_secs(1) {
                last = Instant::now();
                sides.retain(|_, side| match side {
                    Side::Remote(session) => session.keep_alive().is_ok(),
                    Side::Local(_) => true,
                });
            }
        };
        self.stopped |= !self.sink.push(Job::File(task), bytes, &mut idle);
    }

    fn fail(&mut self, source: String, destination: String, error: &RemoteError) {
        if matches!(error, RemoteError::Cancelled) {
            return;
        }
        let id = self.ctx.report.next_id();
        self.ctx.report.failed_early(id, failure(source, destination, error.kind(), error.to_string()));
        // Files that were found before are still copied.
        self.stopped |= self.ctx.options().recovery.stop_on_failure;
    }
}

/// The destination's side of a walk with `sync`.
#[derive(Default)]
struct Synced {
    /// The directory whose names are known.
    directory: Option<BString>,
    /// Entries of the destination that the source has not shown yet.
    names: HashMap<BString, Entry>,
    /// Entries of the destination that its listings of directories may omit.
    hidden: Hidden,
    /// Directories that exist on both sides and that the walk has not visited.
    waiting: HashSet<Vec<u8>>,
    /// The source's directory could not be read completely: nothing is removed from it.
    incomplete: bool,
    /// The directory could not be listed at the destination.
    unknown: bool,
    /// Links of the source that its listings of directories may omit.
    links: HashSet<BString>,
    /// These links are not known.
    links_unknown: bool,
    /// The source, if it is at a server: its listings may be incomplete or wrong.
    source: Option<Place>,
    /// An entry in the listing of the directory, and whether it is a directory.
    told: Option<(BString, bool)>,
    /// Its listings do not match its files: nothing more is removed.
    distrusted: bool,
}

fn fill(task: &mut Task, entry: &Entry) {
    task.size = entry.size;
    task.modified = entry.modified;
    task.mode = entry.mode;
    task.stamp = entry.stamp();
    if entry.kind == Kind::Symlink {
        task.link = entry.target.clone().map(Box::new);
    }
}

/// The relative form of a link that leads within its tree: servers that make links absolute hide
/// whether it was relative.
fn kept_within(root: &VirtualPath, link: &[u8], target: &BString) -> Option<BString> {
    let (link, to) = (VirtualPath::parse(link).ok()?, VirtualPath::parse(target).ok()?);
    let within = target.starts_with(b"/") && to.starts_with(root);
    Some(to.way_from(&link.parent()?)).filter(|_| within)
}

fn destination_of(destination: &Place, name: &[u8]) -> Result<Place, RemoteError> {
    match destination {
        Place::Measure(_) => Ok(destination.clone()),
        place => place.join(name),
    }
}

fn with_path(place: &Place, path: BString) -> Place {
    match place {
        Place::Remote(endpoint, _) => Place::Remote(endpoint.clone(), path),
        Place::Local(_) => match VirtualPath::parse(&path) {
            Ok(path) => Place::Local(path),
            Err(_) => place.clone(),
        },
        other => other.clone(),
    }
}
