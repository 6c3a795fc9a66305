//! Finds out what is to be copied, while it is being copied: files go to the queue as they are found.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use bstr::{BString, ByteSlice};
use ropewalk_storage::Kind;

use crate::context::Context;
use crate::filter::Filter;
use crate::glob::{Glob, is_glob};
use crate::place::{Place, base_name, join, parent};
use crate::report::failure;
use crate::session::Session;
use crate::side::{Side, Step, directory_of};
use crate::sync::{Verdict, compare};
use crate::task::Task;
use crate::worker::Job;
use crate::{Amount, Entry, Event, Location, Pair, RemoteError};

/// Pairs whose attributes are asked for at once.
const BATCH: usize = 128;
/// Files that wait until their directories are made together.
const GATHERED: usize = 512;
/// Parent directories that are remembered as made.
const REMEMBERED: usize = 10_000;

/// Puts a job into the queue, starting workers as they become worth it. `false`: the run was stopped.
pub(crate) trait Sink {
    fn push(&mut self, job: Job, bytes: u64, idle: &mut dyn FnMut()) -> bool;
}

/// Attributes that were asked for ahead: by name, `true` at the destination.
type Known = HashMap<(String, bool), Option<Entry>>;

/// Times (seconds since 1970) and modes that directories are to have when everything is there.
pub(crate) type Attributes = Vec<(Place, Option<i64>, Option<u32>)>;

pub(crate) struct Plan<'p, 'e> {
    ctx: &'p Context<'e>,
    filter: Filter,
    sink: &'p mut dyn Sink,
    /// One for each endpoint and purpose; index by name, `true` for the destination.
    sides: HashMap<(String, bool), Side<'e>>,
    made: HashSet<String>,
    stopped: bool,
}

/// A pair with its ends resolved.
struct Ends {
    source: Place,
    destination: Place,
    /// Ends with `/`: the contents of the source; into the destination.
    contents: bool,
    into: bool,
    window: Amount,
}

/// Files found and not queued yet, because their directories are not made yet.
#[derive(Default)]
struct Gathered {
    directories: Vec<BString>,
    files: Vec<Task>,
    /// Times and modes of directories, set when all is there.
    attributes: Vec<(BString, Option<i64>, Option<u32>)>,
}

impl<'p, 'e> Plan<'p, 'e> {
    pub(crate) fn new(ctx: &'p Context<'e>, filter: Filter, sink: &'p mut dyn Sink) -> Self {
        Self { ctx, filter, sink, sides: HashMap::new(), made: HashSet::new(), stopped: false }
    }

    /// Goes through all pairs. Gives the sessions that it has no more use for, and the attributes that directories are
    /// to have when everything is there.
    pub(crate) fn run(mut self, pairs: &[Pair]) -> (Vec<Session<'e>>, Attributes) {
        let mut attributes = Vec::new();
        for batch in pairs.chunks(BATCH) {
            let ends: Vec<Result<Ends, RemoteError>> = batch.iter().map(|pair| self.resolve(pair)).collect();
            let mut known = self.stat_all(ends.iter().flatten());
            for (pair, ends) in batch.iter().zip(ends) {
                if self.is_over() {
                    break;
                }
                let result = ends.and_then(|ends| self.pair(&ends, &mut known, &mut attributes));
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
        (sessions.collect(), attributes)
    }

    fn is_over(&self) -> bool {
        self.stopped || self.ctx.queue.is_stopped() || self.ctx.cancel.is_cancelled()
    }

    fn resolve(&self, pair: &Pair) -> Result<Ends, RemoteError> {
        let directory = |location: &Location| match location {
            Location::Local(path) => path.as_os_str().as_encoded_bytes().ends_with(b"/"),
            Location::Remote(url) => url.is_directory(),
            _ => false,
        };
        let options = self.ctx.options();
        Ok(Ends {
            source: Place::new(&pair.source, &self.ctx.endpoints, options)?,
            destination: Place::new(&pair.destination, &self.ctx.endpoints, options)?,
            contents: directory(&pair.source),
            into: directory(&pair.destination),
            window: pair.window,
        })
    }

    /// The tree that a place is in. Source and destination have sessions of their own.
    fn side(&mut self, place: &Place, destination: bool) -> Result<&mut Side<'e>, RemoteError> {
        let name = match place {
            Place::Remote(endpoint, _) => format!("{:p}", std::sync::Arc::as_ptr(endpoint)),
            _ => String::new(),
        };
        let key = (name, destination);
        if let Some(Side::Remote(session)) = self.sides.get_mut(&key)
            && session.keep_alive().is_err()
        {
            self.sides.remove(&key);
        }
        if !self.sides.contains_key(&key) {
            let side = match place {
                Place::Remote(endpoint, _) => match endpoint.lost() {
                    Some(lost) => return Err(lost),
                    None => match Session::open(endpoint, &self.ctx.setup) {
                        Ok(session) => Side::Remote(Box::new(session)),
                        Err(e) => {
                            endpoint.lose(&e);
                            return Err(e);
                        }
                    },
                },
                _ => Side::Local(self.ctx.store.clone()),
            };
            self.sides.insert(key.clone(), side);
        }
        self.sides.get_mut(&key).ok_or(RemoteError::Cancelled)
    }

    /// A session that broke is replaced when it is needed again.
    fn forget(&mut self, place: &Place, destination: bool, error: &RemoteError) {
        if let (Place::Remote(endpoint, _), true) = (place, error.breaks_session()) {
            self.sides.remove(&(format!("{:p}", std::sync::Arc::as_ptr(endpoint)), destination));
        }
    }

    /// The attributes of many ends, with one round trip for all of a server.
    fn stat_all<'x>(&mut self, ends: impl Iterator<Item = &'x Ends>) -> Known {
        let mut wanted: HashMap<(String, bool), (Place, Vec<BString>)> = HashMap::new();
        for end in ends {
            for (place, destination) in [(&end.source, false), (&end.destination, true)] {
                if let Place::Remote(endpoint, path) = place {
                    let key = (format!("{:p}", std::sync::Arc::as_ptr(endpoint)), destination);
                    wanted.entry(key).or_insert_with(|| (place.clone(), Vec::new())).1.push(path.clone());
                }
            }
        }
        let mut known = Known::new();
        for ((_, destination), (place, mut paths)) in wanted {
            paths.sort();
            paths.dedup();
            if paths.len() < 2 {
                continue;
            }
            let Ok(Side::Remote(session)) = self.side(&place, destination) else { continue };
            match session.stat_many(&paths) {
                Ok(entries) => {
                    for (path, entry) in paths.into_iter().zip(entries) {
                        let place = with_path(&place, path);
                        // Errors are met again, and told, when it is asked for alone.
                        if let Ok(entry) = entry {
                            known.insert((place.display(), destination), Some(entry));
                        }
                    }
                }
                Err(e) => self.forget(&place, destination, &e),
            }
        }
        known
    }

    fn stat(
        &mut self,
        place: &Place,
        destination: bool,
        known: &mut Known,
    ) -> Result<Option<Entry>, RemoteError> {
        if let Some(entry) = known.remove(&(place.display(), destination)) {
            return Ok(entry);
        }
        let links = self.ctx.options().preserve.links && !destination;
        let side = self.side(place, destination)?;
        let result = if links { side.stat_link(&place.path()) } else { side.stat(&place.path()) };
        result.inspect_err(|e| self.forget(place, destination, e))
    }

    fn pair(
        &mut self,
        ends: &Ends,
        known: &mut Known,
        attributes: &mut Attributes,
    ) -> Result<(), RemoteError> {
        if let Place::Standard | Place::Measure(_) = ends.source {
            if ends.into {
                let what = format!("{}: needs the name of a file", ends.destination.display());
                return Err(RemoteError::Usage(what));
            }
            let task = self.task(ends.source.clone(), ends.destination.clone(), ends.window);
            return self.file(task, None);
        }
        let Some(entry) = self.stat(&ends.source, false, known)? else {
            let path = ends.source.path();
            if is_glob(path.as_bstr()) {
                return self.glob(ends, &path, attributes);
            }
            return Err(crate::walk::missing(&path));
        };
        let there = self.destination(ends, known)?;
        self.entry(ends, &entry, there.as_ref(), attributes)
    }

    /// What there is at the destination.
    fn destination(
        &mut self,
        ends: &Ends,
        known: &mut Known,
    ) -> Result<Option<Entry>, RemoteError> {
        match ends.destination {
            Place::Standard | Place::Measure(_) => Ok(None),
            _ => self.stat(&ends.destination, true, known),
        }
    }

    /// One source that exists.
    fn entry(
        &mut self,
        ends: &Ends,
        entry: &Entry,
        there: Option<&Entry>,
        attributes: &mut Attributes,
    ) -> Result<(), RemoteError> {
        let source = &ends.source;
        let name: BString = base_name(&source.path()).into();
        let into = ends.into || there.is_some_and(Entry::is_directory);
        let file_like = matches!(ends.destination, Place::Standard | Place::Measure(_));
        if entry.is_directory() {
            if !self.ctx.options().recursive {
                return Err(RemoteError::Usage(format!("{}: is a directory (copy it with -r)", source.display())));
            }
            let into = into && !ends.contents && !name.is_empty();
            let destination = if into { ends.destination.join(&name)? } else { ends.destination.clone() };
            if matches!(destination, Place::Standard) {
                return Err(RemoteError::Usage("a tree cannot go to standard output".to_owned()));
            }
            let exists = if into && !matches!(destination, Place::Measure(_)) {
                self.stat(&destination, true, &mut Known::new())?.is_some()
            } else {
                there.is_some()
            };
            return self.tree(source, &destination, exists, attributes);
        }
        let (destination, there) = if into && !file_like {
            let destination = ends.destination.join(&name)?;
            let there = if self.ctx.options().sync.is_some() {
                self.stat(&destination, true, &mut Known::new())?
            } else {
                None
            };
            (destination, there)
        } else {
            (ends.destination.clone(), there.cloned())
        };
        let mut task = self.task(source.clone(), destination, ends.window);
        fill(&mut task, entry);
        self.file(task, there.as_ref())
    }

    fn glob(
        &mut self,
        ends: &Ends,
        path: &BString,
        attributes: &mut Attributes,
    ) -> Result<(), RemoteError> {
        let glob = Glob::new(path.as_bstr()).map_err(|e| RemoteError::Usage(e.to_string()))?;
        let base = with_path(&ends.source, glob.base.clone());
        let links = self.ctx.options().preserve.links;
        let mut found = Vec::new();
        self.side(&base, false)?.walk(&base.path(), links, &mut |_, entry| {
            let verdict = glob.judge(entry.name.as_bstr());
            let enter = verdict.enter && !verdict.matches;
            if verdict.matches {
                found.push(entry);
            }
            Ok(if enter { Step::Into } else { Step::Over })
        })?;
        if found.is_empty() {
            return Err(crate::walk::missing(path));
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in found {
            if self.is_over() {
                break;
            }
            if entry.is_directory() && !self.ctx.options().recursive {
                self.ctx.report.skipped(base.join(&entry.name)?.display(), "is a directory");
                continue;
            }
            let one = Ends {
                source: base.join(&entry.name)?,
                destination: ends.destination.clone(),
                contents: false,
                into: true,
                window: ends.window,
            };
            if let Err(e) = self.entry(&one, &entry, None, attributes) {
                self.fail(one.source.display(), one.destination.display(), &e);
            }
        }
        Ok(())
    }

    /// A single file: its directory is made, where it is missing.
    fn file(&mut self, task: Task, there: Option<&Entry>) -> Result<(), RemoteError> {
        let Some(task) = self.wanted(task, there)? else { return Ok(()) };
        let options = self.ctx.options();
        if options.create_directories && !options.dry_run && there.is_none() {
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
        if self.made.insert(directory.display()) {
            let made = self.side(place, true)?.make_path(&directory.path());
            made.inspect_err(|e| self.forget(place, true, e))?;
        }
        Ok(())
    }

    fn task(&self, source: Place, destination: Place, window: Amount) -> Task {
        Task { window, ..Task::new(self.ctx.report.next_id(), source, destination) }
    }

    /// The task as it is to be done; `None` where the destination has the file.
    fn wanted(&mut self, mut task: Task, there: Option<&Entry>) -> Result<Option<Task>, RemoteError> {
        let options = self.ctx.options();
        let Some(there) = there else { return Ok(Some(task)) };
        match compare(options.sync, &task, there) {
            Verdict::Copy => {}
            Verdict::CompareSums => task.compare = true,
            Verdict::Same(reason) => {
                self.ctx.report.skipped(task.source.display(), reason);
                return Ok(None);
            }
        }
        if there.is_directory() {
            if !options.delete || options.sync.is_none() {
                let what = format!("{}: is a directory at the destination", task.destination.display());
                return Err(RemoteError::Usage(what));
            }
            self.remove(&task.destination.clone(), true)?;
        }
        Ok(Some(task))
    }

    /// What is in a directory, recursively.
    fn tree(
        &mut self,
        source: &Place,
        destination: &Place,
        exists: bool,
        attributes: &mut Attributes,
    ) -> Result<(), RemoteError> {
        let options = self.ctx.options().clone();
        let discards = matches!(destination, Place::Measure(_));
        if !options.dry_run && !discards {
            if options.create_directories {
                self.side(destination, true)?.make_path(&destination.path())?;
            } else if !exists {
                self.side(destination, true)?.make_directories(&[destination.path()])?.pop().unwrap_or(Ok(true))?;
            }
        }
        let mut gathered = Gathered::default();
        // The side is taken out while it lists: what is found is worked on with the others.
        let key = self.key(source);
        self.side(source, false)?;
        let Some(mut from) = self.sides.remove(&(key.clone(), false)) else { return Ok(()) };
        let whole = options.sync.is_none()
            && matches!(&from, Side::Remote(session) if session.can.recursive && session.can.facts);
        let mut synced = Synced::default();
        if exists && options.sync.is_some() {
            synced.waiting.insert(Vec::new());
        }
        let result = if whole {
            self.whole_tree(&mut from, source, destination, &mut gathered)
        } else {
            from.walk(&source.path(), options.preserve.links, &mut |_, entry| {
                self.found(source, destination, entry, &mut gathered, &mut synced)
            })
        };
        if result.as_ref().err().is_none_or(|e| !e.breaks_session()) {
            self.sides.insert((key, false), from);
        }
        let complete = result.is_ok() && !self.is_over();
        self.flush(destination, &mut gathered)?;
        if complete && options.delete && options.sync.is_some() {
            // Directories that are empty at the source were not come to.
            for directory in std::mem::take(&mut synced.waiting) {
                synced.waiting.insert(directory.clone());
                self.visit(destination, directory.as_bstr(), &mut synced)?;
            }
            self.leave_directory(destination, &mut synced)?;
        }
        attributes.extend(
            gathered.attributes.into_iter().map(|(path, time, mode)| (with_path(destination, path), time, mode)),
        );
        result
    }

    fn key(&self, place: &Place) -> String {
        match place {
            Place::Remote(endpoint, _) => format!("{:p}", std::sync::Arc::as_ptr(endpoint)),
            _ => String::new(),
        }
    }

    /// A tree that comes in one listing; symbolic links are told as such there.
    fn whole_tree(
        &mut self,
        from: &mut Side<'e>,
        source: &Place,
        destination: &Place,
        gathered: &mut Gathered,
    ) -> Result<(), RemoteError> {
        let links = self.ctx.options().preserve.links;
        let Side::Remote(session) = from else { return Ok(()) };
        let mut left_out: Option<BString> = None;
        let mut followed = Vec::new();
        for entry in session.tree(&source.path())? {
            if left_out.as_ref().is_some_and(|directory| entry.name.starts_with(directory)) {
                continue;
            }
            if entry.kind == Kind::Symlink && !links {
                followed.push(entry.name);
                continue;
            }
            let name = entry.name.clone();
            match self.found(source, destination, entry, gathered, &mut Synced::default())? {
                Step::Into => {}
                Step::Over => left_out = Some([name.as_slice(), b"/"].concat().into()),
                Step::Stop => return Ok(()),
            }
        }
        for name in followed {
            let path = join(&source.path(), &name);
            let target = from.stat(&path)?;
            match target {
                Some(entry) if entry.is_directory() => {
                    let (inner, there) = (source.join(&name)?, destination.join(&name)?);
                    let top = Entry { name: name.clone(), target: None, ..entry };
                    if self.found(source, destination, top, gathered, &mut Synced::default())? == Step::Into {
                        // One by one, so that links that lead in a circle are noticed.
                        from.walk(&path, links, &mut |_, entry| {
                            self.found(&inner, &there, entry, gathered, &mut Synced::default())
                        })?;
                    }
                }
                Some(entry) => {
                    let entry = Entry { name, target: None, ..entry };
                    self.found(source, destination, entry, gathered, &mut Synced::default())?;
                }
                None => self.fail(
                    source.join(&name)?.display(),
                    destination.join(&name)?.display(),
                    &RemoteError::Usage(format!("{path}: a dangling symbolic link")),
                ),
            }
        }
        Ok(())
    }

    /// An entry of a tree; its name is relative to `source`.
    fn found(
        &mut self,
        source: &Place,
        destination: &Place,
        entry: Entry,
        gathered: &mut Gathered,
        synced: &mut Synced,
    ) -> Result<Step, RemoteError> {
        if self.is_over() {
            return Ok(Step::Stop);
        }
        let name = entry.name.clone();
        let (from, to) = (source.join(&name), destination_of(destination, &name));
        let (from, to) = match (from, to) {
            (Ok(from), Ok(to)) => (from, to),
            (Err(e), _) | (_, Err(e)) => {
                self.fail(name.to_string(), destination.display(), &e);
                return Ok(Step::Over);
            }
        };
        if !self.filter.passes(name.as_bstr(), entry.is_directory()) {
            if !entry.is_directory() {
                self.ctx.report.skipped(from.display(), "left out by a filter");
            }
            return Ok(Step::Over);
        }
        if let Some(error) = &entry.error {
            self.fail(from.display(), to.display(), &RemoteError::Usage(error.clone()));
            synced.incomplete = true;
            synced.waiting.remove(name.as_slice());
            return Ok(Step::Over);
        }
        let options = self.ctx.options().clone();
        let there = if options.sync.is_some() { self.there(destination, name.as_bstr(), synced)? } else { None };
        if entry.is_directory() {
            if there.as_ref().is_some_and(|t| !t.is_directory()) {
                if !options.delete {
                    let e = RemoteError::Usage(format!("{}: is no directory", to.display()));
                    self.fail(from.display(), to.display(), &e);
                    return Ok(Step::Over);
                }
                self.remove(&to, false)?;
            }
            if there.is_some() {
                synced.waiting.insert(name.to_vec());
            }
            if there.is_none() && !matches!(to, Place::Measure(_)) {
                gathered.directories.push(to.path());
            }
            if options.preserve.times || options.preserve.modes {
                let (time, mode) = (
                    entry.modified.filter(|_| options.preserve.times),
                    entry.mode.filter(|_| options.preserve.modes),
                );
                gathered.attributes.push((to.path(), time, mode));
            }
            return Ok(Step::Into);
        }
        if !matches!(entry.kind, Kind::File | Kind::Symlink) {
            self.ctx.report.skipped(from.display(), "neither a file nor a directory");
            return Ok(Step::Over);
        }
        let mut task = self.task(from, to, None);
        fill(&mut task, &entry);
        let (source_name, destination_name) = (task.source.display(), task.destination.display());
        match self.wanted(task, there.as_ref()) {
            Ok(Some(task)) => gathered.files.push(task),
            Ok(None) => {}
            Err(e) if e.breaks_session() => return Err(e),
            Err(e) => self.fail(source_name, destination_name, &e),
        }
        if gathered.files.len() >= GATHERED || gathered.directories.len() >= GATHERED {
            self.flush(destination, gathered)?;
        }
        Ok(Step::Over)
    }

    /// What the destination has of this name. Its directories are listed as the walk comes to them.
    fn there(&mut self, destination: &Place, name: &bstr::BStr, synced: &mut Synced) -> Result<Option<Entry>, RemoteError> {
        self.visit(destination, directory_of(name), synced)?;
        Ok(synced.names.remove(base_name(name)))
    }

    /// The walk has come to a directory: its counterpart is listed, the one before is left.
    fn visit(&mut self, destination: &Place, directory: &bstr::BStr, synced: &mut Synced) -> Result<(), RemoteError> {
        if synced.directory.as_ref().is_some_and(|current| current.as_bstr() == directory) {
            return Ok(());
        }
        self.leave_directory(destination, synced)?;
        synced.directory = Some(directory.into());
        synced.incomplete = false;
        if !synced.waiting.remove(directory.as_bytes()) {
            // It is new: there is nothing to compare with.
            return Ok(());
        }
        let path = if directory.is_empty() { destination.path() } else { join(&destination.path(), directory) };
        let names = &mut synced.names;
        let listed = self.side(destination, true)?.list(&path, &mut |entry| {
            names.insert(entry.name.clone(), entry);
            Ok(true)
        });
        match listed {
            Err(e) if !crate::side::is_missing(&e) && !self.ctx.options().dry_run => Err(e),
            _ => Ok(()),
        }
    }

    /// Removes what the source has not, in the directory that the walk was in.
    fn leave_directory(&mut self, destination: &Place, synced: &mut Synced) -> Result<(), RemoteError> {
        let names = std::mem::take(&mut synced.names);
        let (Some(directory), true, false) = (&synced.directory, self.ctx.options().delete, synced.incomplete) else {
            return Ok(());
        };
        for (name, entry) in names {
            let relative = if directory.is_empty() { name } else { join(directory, &name) };
            if !self.filter.passes(relative.as_bstr(), entry.is_directory()) {
                continue;
            }
            let place = destination.join(&relative)?;
            let tree = entry.is_directory() && entry.target.is_none();
            if let Err(e) = self.remove(&place, tree) {
                if e.breaks_session() {
                    return Err(e);
                }
                self.fail(String::new(), place.display(), &e);
            }
        }
        Ok(())
    }

    fn remove(&mut self, place: &Place, tree: bool) -> Result<(), RemoteError> {
        self.ctx.report.event(Event::WouldRemove { path: place.display() });
        if self.ctx.options().dry_run {
            return Ok(());
        }
        self.side(place, true)?.remove(&place.path(), tree)?;
        self.ctx.report.removed();
        Ok(())
    }

    /// Makes the directories that were found, and queues the files in them.
    fn flush(&mut self, destination: &Place, gathered: &mut Gathered) -> Result<(), RemoteError> {
        let directories = std::mem::take(&mut gathered.directories);
        if !directories.is_empty() && !self.ctx.options().dry_run {
            let results = self.side(destination, true)?.make_directories(&directories)?;
            for (path, result) in directories.into_iter().zip(results) {
                match result {
                    Ok(true) => self.ctx.report.directory_made(),
                    Ok(false) => {}
                    Err(e) => self.fail(String::new(), with_path(destination, path).display(), &e),
                }
            }
        }
        for task in std::mem::take(&mut gathered.files) {
            self.push(task);
        }
        Ok(())
    }

    fn push(&mut self, task: Task) {
        if self.ctx.options().dry_run {
            let (source, destination) = (task.source.display(), task.destination.display());
            return self.ctx.report.event(Event::WouldCopy { source, destination, size: task.length() });
        }
        let bytes = task.length().unwrap_or_default();
        self.ctx.report.planned(bytes);
        let sides = &mut self.sides;
        let mut last = Instant::now();
        let mut idle = || {
            // Only idle sessions are here; each looks after itself.
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
        self.ctx.report.failed(id, false, failure(source, destination, error.kind(), error.to_string()));
        if self.ctx.options().stop_on_failure {
            self.ctx.queue.stop();
        }
    }
}

/// The destination's side of a walk with `sync`.
#[derive(Default)]
struct Synced {
    /// The directory whose names are known.
    directory: Option<BString>,
    /// What it has and the source did not show yet.
    names: HashMap<BString, Entry>,
    /// Directories that exist at both sides and that the walk has not come to.
    waiting: HashSet<Vec<u8>>,
    /// Not all of the directory could be read at the source: nothing is to be removed from it.
    incomplete: bool,
}

fn fill(task: &mut Task, entry: &Entry) {
    task.size = entry.size;
    task.modified = entry.modified;
    task.mode = entry.mode;
    if entry.kind == Kind::Symlink {
        task.link = entry.target.clone();
    }
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
        Place::Local(_) => match ropewalk_protocol::path::VirtualPath::parse(&path) {
            Ok(path) => Place::Local(path),
            Err(_) => place.clone(),
        },
        other => other.clone(),
    }
}

fn describe(location: &Location) -> String {
    match location {
        Location::Local(path) => path.to_string_lossy().into_owned(),
        Location::Remote(url) => url.to_string(),
        Location::Standard => "-".to_owned(),
        Location::Measure { size } => format!("measure:{size}"),
    }
}
