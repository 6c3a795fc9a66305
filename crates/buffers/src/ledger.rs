//! What was changed, so that it can be undone: also by a later run, or after this one was killed.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ropewalk_files::OnDisk;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::demand::Past;
use crate::flow::{Direction, Snapshot};
use crate::socket::Before;

const VERSION: u32 = 1;

/// A buffer that was set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub cookie: u64,
    pub direction: Direction,
    pub before: Before,
    /// What it asked for when it was last given less, bytes; what is left of that.
    pub demand: u64,
    /// What it has, bytes; or was about to get.
    pub granted: u64,
    /// Whether it was set to that. Until then it may be so, or as before. Files of versions that did not ask have no such
    /// field.
    #[serde(default = "was_set")]
    pub set: bool,
    /// What the kernel made of it, as it counts. Files of versions that did not ask have no such field.
    #[serde(default)]
    pub kernel_bytes: Option<u64>,
}

impl Entry {
    /// Whether the buffer, of `kernel_bytes` now, still is what it was set to: its program may have set it since.
    pub(crate) fn stands(&self, kernel_bytes: u64) -> bool {
        // 0: not told.
        self.set && (kernel_bytes == 0 || self.kernel_bytes == Some(kernel_bytes))
    }
}

fn was_set() -> bool {
    true
}

/// The file cannot be used.
#[derive(Debug, Error)]
pub enum LedgerError {
    #[error("cannot use {path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("{path} is not what ropewalk wrote: {source}; remove it if nothing needs to be given back")]
    Nonsense { path: PathBuf, source: serde_json::Error },
    #[error("another negotiator is at work: it holds {path}")]
    Busy { path: PathBuf },
    /// It was opened to look only.
    #[error("{path} was only looked at: who sets nothing gives nothing back")]
    Looked { path: PathBuf },
}

#[derive(Serialize, Deserialize)]
struct Content {
    version: u32,
    boot: String,
    namespace: u64,
    buffers: Vec<Entry>,
}

/// Buffers that were set and not given back, kept in a file. Only one process has it at a time.
pub struct Ledger {
    path: PathBuf,
    boot: String,
    namespace: u64,
    entries: HashMap<(u64, Direction), Entry>,
    place: Place,
}

/// Where, and whether sockets may be changed.
enum Place {
    /// Nowhere, for who sets nothing.
    Looked,
    /// In memory: the sockets end with this process.
    Here,
    /// In the file.
    File { _lock: Held },
}

/// The lock, until it is dropped.
struct Held(File);

impl Drop for Held {
    fn drop(&mut self) {
        // Closing is not enough while a program that is just being started has a copy of the descriptor.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl Ledger {
    /// The ledger beneath `directory`, which is made if it is not there. Entries from before a reboot, or of another
    /// network namespace's file, are gone with their sockets.
    ///
    /// # Errors
    /// The directory or file cannot be used, or another process uses it.
    pub fn open(directory: &Path) -> Result<Self, LedgerError> {
        let mut ledger = Self::beneath(directory);
        fs::create_dir_all(directory).map_err(failed(directory))?;
        let lock_path = ledger.path.with_extension("lock");
        let lock = File::create(&lock_path).map_err(failed(&lock_path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::AGAIN) => return Err(LedgerError::Busy { path: lock_path }),
            Err(error) => return Err(failed(&lock_path)(error.into())),
        }
        ledger.read()?;
        ledger.place = Place::File { _lock: Held(lock) };
        Ok(ledger)
    }

    /// What the ledger beneath `directory` says now, for who sets nothing: nothing on disk is changed, and another process may
    /// use it.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn look(directory: &Path) -> Result<Self, LedgerError> {
        let mut ledger = Self::beneath(directory);
        ledger.read()?;
        Ok(ledger)
    }

    /// One that changes nothing on disk, for who sets nothing.
    pub fn in_memory() -> Self {
        Self {
            path: PathBuf::new(),
            boot: String::new(),
            namespace: 0,
            entries: HashMap::new(),
            place: Place::Looked,
        }
    }

    /// One for sockets of the calling process only, which needs no file: they end with it.
    pub(crate) fn of_this_process() -> Self {
        Self { place: Place::Here, ..Self::in_memory() }
    }

    /// An empty one of this boot and network namespace, in memory.
    fn beneath(directory: &Path) -> Self {
        let boot =
            fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let namespace = fs::metadata("/proc/self/ns/net").map(|file| file.ino()).unwrap_or_default();
        // Cookies are numbers of one namespace.
        let path = directory.join(format!("buffers-{namespace}.json"));
        Self { path, boot, namespace, ..Self::in_memory() }
    }

    fn read(&mut self) -> Result<(), LedgerError> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            // A directory that is not there, or is a file, holds no ledger.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(());
            }
            Err(error) => return Err(failed(&self.path)(error)),
        };
        let content: Content = serde_json::from_slice(&text)
            .map_err(|source| LedgerError::Nonsense { path: self.path.clone(), source })?;
        if content.version == VERSION && content.boot == self.boot && content.namespace == self.namespace {
            self.entries =
                content.buffers.into_iter().map(|entry| ((entry.cookie, entry.direction), entry)).collect();
        }
        Ok(())
    }

    /// Nothing is left to give back.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What is left to give back, in the order of cookies.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = self.entries.values().cloned().collect();
        entries.sort_by_key(|entry| (entry.cookie, entry.direction.name()));
        entries
    }

    /// For who changes sockets: nobody else does.
    pub(crate) fn ours(&self) -> Result<(), LedgerError> {
        match self.place {
            Place::Looked => Err(LedgerError::Looked { path: self.path.clone() }),
            Place::Here | Place::File { .. } => Ok(()),
        }
    }

    pub(crate) fn get(&self, cookie: u64, direction: Direction) -> Option<&Entry> {
        self.entries.get(&(cookie, direction))
    }

    pub(crate) fn past(&self, cookie: u64, direction: Direction) -> Option<Past> {
        let entry = self.get(cookie, direction)?;
        let requested = entry.before.kernel_bytes / 2;
        Some(Past { demand: entry.demand, granted: entry.granted, requested })
    }

    /// What was there before stays what it was before the first change.
    pub(crate) fn note(&mut self, mut entry: Entry) {
        let key = (entry.cookie, entry.direction);
        if let Some(first) = self.entries.get(&key) {
            entry.before = first.before;
        }
        self.entries.insert(key, entry);
    }

    /// A buffer was set to what was noted, of which the kernel made so much.
    pub(crate) fn confirm(&mut self, cookie: u64, direction: Direction, kernel_bytes: u64) {
        if let Some(entry) = self.entries.get_mut(&(cookie, direction)) {
            (entry.set, entry.kernel_bytes) = (true, Some(kernel_bytes));
        }
    }

    /// Whether a buffer is what it was set to can no longer be said.
    pub(crate) fn doubt(&mut self, cookie: u64, direction: Direction) {
        if let Some(entry) = self.entries.get_mut(&(cookie, direction)) {
            entry.set = false;
        }
    }

    /// What it asked for when it was given less counts for so much from now on.
    pub(crate) fn fade(&mut self, cookie: u64, direction: Direction, demand: u64) {
        if let Some(entry) = self.entries.get_mut(&(cookie, direction)) {
            entry.demand = demand;
        }
    }

    pub(crate) fn remove(&mut self, cookie: u64, direction: Direction) {
        self.entries.remove(&(cookie, direction));
    }

    /// Forgets sockets that are no more. A list that is not whole does not say which these are.
    pub(crate) fn forget_gone(&mut self, snapshot: &Snapshot) {
        if snapshot.whole {
            let there: HashSet<u64> = snapshot.connections.iter().map(|flow| flow.cookie).collect();
            self.entries.retain(|(cookie, _), _| there.contains(cookie));
        }
    }

    /// Writes the file, whole or not at all.
    pub(crate) fn save(&self) -> Result<(), LedgerError> {
        if !matches!(self.place, Place::File { .. }) {
            return Ok(());
        }
        let content = Content {
            version: VERSION,
            boot: self.boot.clone(),
            namespace: self.namespace,
            buffers: self.entries(),
        };
        let failed = failed(&self.path);
        if self.entries.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
                _ => Ok(()),
            };
        }
        serde_json::to_vec(&content)
            .map_err(io::Error::from)
            .and_then(|text| ropewalk_files::replace(&self.path, &text, 0o644, OnDisk::Later))
            .map_err(failed)
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> LedgerError {
    let path = path.to_owned();
    move |source| LedgerError::File { path, source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_transport::Ceilings;

    use super::*;

    fn entry(cookie: u64, kernel_bytes: u64) -> Entry {
        let before = Before { kernel_bytes, locked: Some(false) };
        Entry {
            cookie,
            direction: Direction::Out,
            before,
            demand: 5000,
            granted: 4096,
            set: true,
            kernel_bytes: None,
        }
    }

    /// One in which nobody is there.
    fn nobody(whole: bool) -> Snapshot {
        let (time_seconds, ceilings) = (0.0, Ceilings::read().unwrap());
        Snapshot { time_seconds, interval_seconds: None, ceilings, whole, connections: Vec::new() }
    }

    /// As when another thread is just starting a program.
    #[test]
    fn a_copy_of_the_descriptor_keeps_no_lock() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(directory.path()).unwrap();
        let Place::File { _lock: lock } = &ledger.place else { panic!("opened without a lock") };
        let _copy = lock.0.try_clone().unwrap();
        assert!(matches!(Ledger::open(directory.path()), Err(LedgerError::Busy { .. })));
        drop(ledger);
        Ledger::open(directory.path()).unwrap();
    }

    #[test]
    fn it_remembers_the_first_state() {
        let directory = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(directory.path()).unwrap();
        ledger.note(entry(1, 100_000));
        ledger.note(entry(2, 200_000));
        ledger.note(Entry { granted: 8192, ..entry(1, 8192) });
        ledger.save().unwrap();
        assert!(matches!(Ledger::open(directory.path()), Err(LedgerError::Busy { .. })));
        drop(ledger);
        let mut ledger = Ledger::open(directory.path()).unwrap();
        let past = Past { demand: 5000, granted: 8192, requested: 50_000 };
        assert_eq!(ledger.past(1, Direction::Out), Some(past));
        ledger.remove(1, Direction::Out);
        assert_eq!(ledger.entries(), [entry(2, 200_000)]);
        ledger.remove(2, Direction::Out);
        ledger.save().unwrap();
        drop(ledger);
        assert!(Ledger::open(directory.path()).unwrap().is_empty());
    }

    #[test]
    fn each_direction_has_its_past() {
        let mut ledger = Ledger::in_memory();
        ledger.note(entry(1, 100_000));
        assert_eq!(ledger.past(1, Direction::In), None);
        ledger.note(Entry { direction: Direction::In, granted: 8192, ..entry(1, 60_000) });
        let granted = |direction| ledger.past(1, direction).map(|past| (past.granted, past.requested));
        assert_eq!(granted(Direction::Out), Some((4096, 50_000)));
        assert_eq!(granted(Direction::In), Some((8192, 30_000)));
    }

    #[test]
    fn only_a_whole_list_says_who_is_gone() {
        let mut ledger = Ledger::in_memory();
        ledger.note(entry(1, 100_000));
        ledger.forget_gone(&nobody(false));
        assert_eq!(ledger.entries(), [entry(1, 100_000)]);
        ledger.forget_gone(&nobody(true));
        assert!(ledger.is_empty());
    }

    #[test]
    fn a_look_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let beneath = directory.path().join("state");
        assert!(Ledger::look(&beneath).unwrap().is_empty() && !beneath.exists());
        let mut ledger = Ledger::open(&beneath).unwrap();
        ledger.note(Entry { set: false, ..entry(1, 100_000) });
        ledger.save().unwrap();
        // While another has it.
        let mut look = Ledger::look(&beneath).unwrap();
        assert_eq!(look.entries(), [Entry { set: false, ..entry(1, 100_000) }]);
        look.remove(1, Direction::Out);
        look.save().unwrap();
        assert_eq!(Ledger::look(&beneath).unwrap().entries().len(), 1);
    }

    #[test]
    fn entries_of_earlier_versions_were_set() {
        let mut json = serde_json::to_value(entry(1, 100_000)).unwrap();
        for field in ["set", "kernel_bytes"] {
            json.as_object_mut().unwrap().remove(field).unwrap();
        }
        assert_eq!(serde_json::from_value::<Entry>(json).unwrap(), entry(1, 100_000));
    }

    #[test]
    fn a_broken_file_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = Ledger::open(directory.path()).unwrap().path.clone();
        fs::write(&path, "{").unwrap();
        assert!(matches!(Ledger::open(directory.path()), Err(LedgerError::Nonsense { .. })));
        // Of another boot.
        fs::write(&path, r#"{"version":1,"boot":"x","namespace":1,"buffers":[]}"#).unwrap();
        assert!(Ledger::open(directory.path()).unwrap().is_empty());
    }
}
