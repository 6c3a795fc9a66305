//! Records which files an interrupted copy of a tree has finished, so that the same command does
//! not send them again.
//!
//! Each command (its pairs, and the settings that determine its destinations) has one record, a
//! file in the state directory. It has 24 bytes for each file, appended when the file is finished.
//! A file is identified by its destination and by the size, time and name of its source. The plan
//! checks that the destination is still as it was written. If a record cannot be kept, the copy
//! does not fail: its files are sent again. Only one run at a time uses a record; it holds a lock
//! on the file.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use ropewalk_storage::checksum::{Algorithm, Hasher};

use crate::behind_relays::beyond_relays;
use crate::model::location::describe;
use crate::place::Place;
use crate::task::Task;
use crate::{Entry, FsyncPolicy, Location, Options, Pair};

/// The extension of the record's file name.
pub(crate) const ENDING: &str = "done";
/// The first bytes of the file.
const HEAD: &[u8; 8] = b"RWdone1\n";
const ENTRY: usize = 24;
/// The maximum number of files in a record; further ones are sent again.
const MOST: usize = 1_000_000;
/// The buffer is written when it has this many bytes, or when the last write is this long ago and
/// another file is finished.
const BUFFER: usize = 4096;
const INTERVAL: Duration = Duration::from_secs(1);
/// Servers report times in seconds, and their clocks differ a little.
const SLACK_MS: u64 = 2000;

/// The files that this command has finished.
#[derive(Default)]
pub(crate) struct Finished {
    path: Option<PathBuf>,
    /// Entries of earlier runs: by destination, the version of the source and the time at which the
    /// file was finished.
    known: HashMap<u64, (u64, u64)>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    file: Option<File>,
    buffer: Vec<u8>,
    /// The time of the last write, or of the start of the run.
    written: Option<Instant>,
    entries: usize,
    /// The record cannot be kept, or the run has ended.
    closed: bool,
}

impl Finished {
    /// Opens the record of this command in `directory`.
    pub(crate) fn open(directory: Option<PathBuf>, pairs: &[Pair], options: &Options) -> Self {
        let Some(directory) = directory.filter(|_| options.selection.recursive && !options.dry_run) else {
            return Self::default();
        };
        let path = directory.join(name(pairs, options)).with_extension(ENDING);
        if !options.recovery.resume {
            // Files that an earlier run has finished are sent again.
            let _ = fs::remove_file(&path);
        }
        let mut finished = Self { path: Some(path), ..Self::default() };
        finished.state.get_mut().written = Some(Instant::now());
        if finished.path.as_ref().is_some_and(|path| path.exists()) {
            match finished.load() {
                Ok(()) => {}
                Err(error) => {
                    tracing::debug!(%error, "the record of an interrupted copy cannot be used");
                    finished.state.lock().closed = true;
                }
            }
        }
        finished
    }

    fn load(&mut self) -> io::Result<()> {
        let mut state = self.state.lock();
        let Some(mut file) = self.path.as_ref().map(open).transpose()? else { return Ok(()) };
        let mut bytes = Vec::new();
        (&mut file).take((HEAD.len() + MOST * ENTRY) as u64).read_to_end(&mut bytes)?;
        let entries = bytes.strip_prefix(HEAD).unwrap_or_default().chunks_exact(ENTRY);
        for entry in entries {
            let mut numbers =
                entry.chunks_exact(8).map(|bytes| bytes.try_into().map_or(0, u64::from_le_bytes));
            if let (Some(to), Some(version), Some(at)) = (numbers.next(), numbers.next(), numbers.next()) {
                self.known.insert(to, (version, at));
                state.entries += 1;
            }
        }
        // The last entry may be incomplete.
        file.set_len(if bytes.starts_with(HEAD) { (HEAD.len() + state.entries * ENTRY) as u64 } else { 0 })?;
        state.file = Some(file);
        Ok(())
    }

    /// Whether an earlier run has finished any file.
    pub(crate) fn has_any(&self) -> bool {
        !self.known.is_empty()
    }

    /// The time at which an earlier run finished this file, in milliseconds since 1970.
    pub(crate) fn when(&self, task: &Task) -> Option<u64> {
        let (to, version) = entry(task)?;
        self.known.get(&to).filter(|(known, _)| *known == version).map(|(_, at)| *at)
    }

    /// Whether the entry at the destination, as its server or this host reports it, is the file
    /// that an earlier run finished `at` that time.
    pub(crate) fn is_still_there(task: &Task, there: &Entry, at: u64, keeps_times: bool) -> bool {
        let plain = there.kind == ropewalk_storage::Kind::File && there.target.is_none();
        let Some(seconds) = there.modified.filter(|_| plain && there.size == task.size) else {
            return false;
        };
        if keeps_times && task.modified == Some(seconds) {
            return true;
        }
        let slack = if matches!(task.destination, Place::Remote(..)) { SLACK_MS } else { 0 };
        let changed = u64::try_from(seconds).unwrap_or(0).saturating_mul(1000);
        changed.saturating_add(u64::from(there.nanoseconds / 1_000_000)) <= at.saturating_add(slack)
    }

    /// Records that this file is finished. Returns `false` if the same command would send it again.
    pub(crate) fn add(&self, task: &Task) -> bool {
        let Some((to, version)) = entry(task) else { return false };
        let Some(path) = &self.path else { return false };
        let mut state = self.state.lock();
        if state.closed || state.entries >= MOST {
            return false;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for number in [to, version, u64::try_from(now.as_millis()).unwrap_or(u64::MAX)] {
            state.buffer.extend_from_slice(&number.to_le_bytes());
        }
        state.entries += 1;
        let due = state.written.is_none_or(|written| written.elapsed() >= INTERVAL);
        if (due || state.buffer.len() >= BUFFER)
            && let Err(error) = state.write(path)
        {
            tracing::debug!(%error, "cannot record what is finished: an interrupted copy will send it again");
            state.closed = true;
        }
        !state.closed
    }

    /// Ends the run. If `all` files are done, the record is removed.
    pub(crate) fn end(&self, all: bool) {
        let Some(path) = &self.path else { return };
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        let result = match all {
            true if state.file.is_some() => fs::remove_file(path),
            true => Ok(()),
            false => state.write(path),
        };
        if let Err(error) = result {
            tracing::debug!(%error, "the record of a copy");
        }
        state.closed = true;
    }
}

impl State {
    fn write(&mut self, path: &PathBuf) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        if self.file.is_none() {
            if let Some(directory) = path.parent() {
                fs::create_dir_all(directory)?;
            }
            self.file = Some(open(path)?);
        }
        if let Some(file) = &mut self.file {
            if file.metadata()?.len() == 0 {
                file.write_all(HEAD)?;
            }
            file.write_all(&self.buffer)?;
        }
        self.buffer.clear();
        self.written = Some(Instant::now());
        Ok(())
    }
}

/// Opens and locks a record; it is an error if another run uses it.
fn open(path: &PathBuf) -> io::Result<File> {
    let mut options = File::options();
    // A reader could test guesses of a user's locations with it, so the file is private.
    let file = options.read(true).append(true).create(true).mode(0o600).open(path)?;
    file.try_lock().map_err(|error| io::Error::other(error.to_string()))?;
    Ok(file)
}

/// The identity of a file: its destination, and the version of its source.
fn entry(task: &Task) -> Option<(u64, u64)> {
    let (Some(size), Some(modified)) = (task.size, task.modified) else { return None };
    let version = [task.identity().as_bytes(), &size.to_le_bytes(), &modified.to_le_bytes()].concat();
    Some((short(&task.destination.far_key()), short(&version)))
}

fn short(bytes: &[u8]) -> u64 {
    u64::from_str_radix(&digest(bytes)[..16], 16).unwrap_or_default()
}

fn digest(bytes: &[u8]) -> String {
    let mut hasher = Hasher::new(Algorithm::Sha256);
    hasher.update(bytes);
    hasher.finish()
}

/// The name of the record, which differs for commands with other results.
fn name(pairs: &[Pair], options: &Options) -> String {
    let mut text = format!("{:?} {} {:?} ", options.preserve, options.data.ascii, options.integrity.checksum);
    let mut local = false;
    let place = |location| describe(&beyond_relays(location, &options.login.hops));
    for pair in pairs {
        text.push_str(&format!("{}\n{}\n{:?}\n", place(&pair.source), place(&pair.destination), pair.window));
        local |= matches!(pair.destination, Location::Local(_));
    }
    if let Ok(directory) = std::env::current_dir() {
        text.push_str(&directory.to_string_lossy());
    }
    if local && options.integrity.fsync == FsyncPolicy::None {
        // Data that was only in the page cache may be lost after a reboot.
        text.push_str(&fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default());
    }
    digest(text.as_bytes())[..32].to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_protocol::path::VirtualPath;
    use ropewalk_storage::Kind;

    use super::*;

    fn task(name: &str, size: u64) -> Task {
        let place = |path: String| Place::Local(VirtualPath::parse(path.as_bytes()).unwrap());
        let task = Task::new(0, place(format!("/from/{name}")), place(format!("/to/{name}")));
        Task { size: Some(size), modified: Some(7), ..task }
    }

    fn pairs(to: &str) -> Vec<Pair> {
        let destination = Location::Local(to.into());
        vec![Pair { source: Location::Local("/from".into()), destination, window: None }]
    }

    #[test]
    fn a_later_run_of_the_same_command_knows_what_was_finished() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options::default().with(|o| o.selection.recursive = true);
        let again =
            |to, options: &Options| Finished::open(Some(directory.path().into()), &pairs(to), options);
        let first = again("/to", &options);
        assert!(first.add(&task("a", 1)) && first.add(&task("b", 2)));
        assert!(!first.add(&Task { modified: None, ..task("c", 3) }));
        first.end(false);
        // The program was killed while it wrote an entry.
        let record = fs::read_dir(directory.path()).unwrap().next().unwrap().unwrap().path();
        fs::OpenOptions::new().append(true).open(&record).unwrap().write_all(b"half").unwrap();
        drop(first);
        let second = again("/to", &options);
        assert!(second.when(&task("a", 1)).is_some() && second.when(&task("b", 2)).is_some());
        assert_eq!((second.when(&task("a", 2)), second.when(&task("c", 3))), (None, None));
        assert_eq!(second.when(&Task { stamp: 1, ..task("a", 1) }), None);
        assert!(second.add(&task("c", 3)));
        // A second run at the same time has no record.
        let beside = again("/to", &options);
        assert!(!beside.has_any() && !beside.add(&task("d", 4)));
        beside.end(true);
        second.end(false);
        drop(second);
        // Other commands have other records.
        let preserve = crate::Preserve { times: true, ..crate::Preserve::default() };
        assert!(!again("/to", &options.clone().with(|o| o.preserve = preserve)).has_any());
        assert!(!again("/other", &options).has_any());
        let third = again("/to", &options);
        assert!(third.when(&task("c", 3)).is_some());
        third.end(true);
        assert!(!record.exists());
        drop(third);
        let last = again("/to", &options);
        assert!(last.add(&task("a", 1)));
        last.end(false);
        drop(last);
        assert!(!again("/to", &options.with(|o| o.recovery.resume = false)).has_any());
    }

    #[test]
    fn a_destination_that_was_changed_is_not_what_was_finished() {
        let at = 10_000;
        let there = |size, modified, nanoseconds| Entry {
            size: Some(size),
            modified: Some(modified),
            nanoseconds,
            ..Entry::new("a", Kind::File)
        };
        let still = |entry: &Entry, times| Finished::is_still_there(&task("a", 1), entry, at, times);
        assert!(still(&there(1, 9, 0), false) && still(&there(1, 10, 999_999), false));
        assert!(!still(&there(1, 10, 1_000_000), false) && !still(&there(2, 9, 0), false));
        assert!(!still(&Entry { modified: None, ..there(1, 9, 0) }, false));
        assert!(!still(&Entry { kind: Kind::Symlink, ..there(1, 9, 0) }, false));
        let late = Task { modified: Some(20), ..task("a", 1) };
        assert!(Finished::is_still_there(&late, &there(1, 20, 0), at, true));
        assert!(!Finished::is_still_there(&late, &there(1, 20, 0), at, false));
    }
}
