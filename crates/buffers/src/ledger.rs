//! A record of the buffers that were changed, so that the changes can be undone, also by a later
//! run or after this process was killed.
//!
//! A [`Ledger`] is a JSON file per network namespace, which one process at a time can lock. Each
//! change is recorded before it is made, with the state before the first change. Entries of an
//! earlier boot are dropped, because their sockets no longer exist. A [`Ledger`] that only observes
//! changes no file.

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
    /// The demand of the connection when it was last granted less, in bytes, as far as it still
    /// counts.
    pub demand: u64,
    /// The size that was set, or that was about to be set, in bytes.
    pub granted: u64,
    /// Whether the size was set. If not, the buffer may have this size or the earlier one. Files of
    /// older versions do not have this field.
    #[serde(default = "was_set")]
    pub set: bool,
    /// The resulting size, as the kernel counts. Files of older versions do not have this field.
    #[serde(default)]
    pub kernel_bytes: Option<u64>,
}

impl Entry {
    /// Whether the buffer, whose size is now `kernel_bytes`, still has the size that was set. The
    /// program may have changed it since.
    pub(crate) fn stands(&self, kernel_bytes: u64) -> bool {
        // 0 means unknown.
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
    /// The ledger was opened only for observation.
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

/// A record of the buffers that were set and not restored, in a file. Only one process can use it
/// at a time.
pub struct Ledger {
    path: PathBuf,
    boot: String,
    namespace: u64,
    entries: HashMap<(u64, Direction), Entry>,
    place: Place,
}

/// The storage of the ledger, and whether sockets may be changed.
enum Place {
    /// No storage: this process sets no buffers.
    Looked,
    /// In memory: the sockets are closed with this process.
    Here,
    /// In the file.
    File { _lock: Held },
}

/// The lock, which is held until this is dropped.
struct Held(File);

impl Drop for Held {
    fn drop(&mut self) {
        // Closing the file would not release the lock while a child process that is just being
        // started has a copy of the descriptor.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl Ledger {
    /// Opens the ledger in `directory`, which is created if it does not exist. Entries from before
    /// a reboot, or of another network namespace, are dropped, because their sockets no longer
    /// exist.
    ///
    /// # Errors
    /// The directory or the file cannot be used, or another process uses it.
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

    /// Reads the ledger in `directory` for a process that sets no buffers. This changes nothing on
    /// disk, and another process may be using the ledger.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn look(directory: &Path) -> Result<Self, LedgerError> {
        let mut ledger = Self::beneath(directory);
        ledger.read()?;
        Ok(ledger)
    }

    /// A ledger without a file, for a process that sets no buffers.
    pub fn in_memory() -> Self {
        Self {
            path: PathBuf::new(),
            boot: String::new(),
            namespace: 0,
            entries: HashMap::new(),
            place: Place::Looked,
        }
    }

    /// A ledger without a file, for sockets of the calling process only: they are closed with it.
    pub(crate) fn of_this_process() -> Self {
        Self { place: Place::Here, ..Self::in_memory() }
    }

    /// An empty ledger of this boot and network namespace, in memory.
    fn beneath(directory: &Path) -> Self {
        let boot =
            fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let namespace = fs::metadata("/proc/self/ns/net").map(|file| file.ino()).unwrap_or_default();
        // Cookies are unique in one network namespace only.
        let path = directory.join(format!("buffers-{namespace}.json"));
        Self { path, boot, namespace, ..Self::in_memory() }
    }

    fn read(&mut self) -> Result<(), LedgerError> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            // If the directory does not exist, or is a file, there is no ledger.
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

    /// Whether no buffer is left to restore.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The buffers that are left to restore, ordered by cookie.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = self.entries.values().cloned().collect();
        entries.sort_by_key(|entry| (entry.cookie, entry.direction.name()));
        entries
    }

    /// Checks that this process may change sockets: no other process uses the ledger.
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

    /// Records a buffer. The state before the first change is kept.
    pub(crate) fn note(&mut self, mut entry: Entry) {
        let key = (entry.cookie, entry.direction);
        if let Some(first) = self.entries.get(&key) {
            entry.before = first.before;
        }
        self.entries.insert(key, entry);
    }

    /// Records that a buffer was set as noted, with the resulting size in the kernel.
    pub(crate) fn confirm(&mut self, cookie: u64, direction: Direction, kernel_bytes: u64) {
        if let Some(entry) = self.entries.get_mut(&(cookie, direction)) {
            (entry.set, entry.kernel_bytes) = (true, Some(kernel_bytes));
        }
    }

    /// Records that the current size of a buffer is no longer known.
    pub(crate) fn doubt(&mut self, cookie: u64, direction: Direction) {
        if let Some(entry) = self.entries.get_mut(&(cookie, direction)) {
            entry.set = false;
        }
    }

    /// Reduces the past demand of a buffer to `demand`.
    pub(crate) fn fade(&mut self, cookie: u64, direction: Direction, demand: u64) {
        if let Some(entry) = self.entries.get_mut(&(cookie, direction)) {
            entry.demand = demand;
        }
    }

    pub(crate) fn remove(&mut self, cookie: u64, direction: Direction) {
        self.entries.remove(&(cookie, direction));
    }

    /// Removes sockets that no longer exist. An incomplete list does not show which they are.
    pub(crate) fn forget_gone(&mut self, snapshot: &Snapshot) {
        if snapshot.whole {
            let there: HashSet<u64> = snapshot.connections.iter().map(|flow| flow.cookie).collect();
            self.entries.retain(|(cookie, _), _| there.contains(cookie));
        }
    }

    /// Writes the file atomically.
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

    /// A snapshot without connections.
    fn nobody(whole: bool) -> Snapshot {
        let (time_seconds, ceilings) = (0.0, Ceilings::read().unwrap());
        Snapshot { time_seconds, interval_seconds: None, ceilings, whole, connections: Vec::new() }
    }

    /// This is the situation when another thread is just starting a program.
    #[test]
    fn ledger_dropped_with_copied_descriptor_releases_lock() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(directory.path()).unwrap();
        let Place::File { _lock: lock } = &ledger.place else { panic!("opened without a lock") };
        let _copy = lock.0.try_clone().unwrap();
        assert!(matches!(Ledger::open(directory.path()), Err(LedgerError::Busy { .. })));
        drop(ledger);
        Ledger::open(directory.path()).unwrap();
    }

    #[test]
    fn ledger_keeps_state_before_first_change() {
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
    fn ledger_keeps_directions_apart() {
        let mut ledger = Ledger::in_memory();
        ledger.note(entry(1, 100_000));
        assert_eq!(ledger.past(1, Direction::In), None);
        ledger.note(Entry { direction: Direction::In, granted: 8192, ..entry(1, 60_000) });
        let granted = |direction| ledger.past(1, direction).map(|past| (past.granted, past.requested));
        assert_eq!(granted(Direction::Out), Some((4096, 50_000)));
        assert_eq!(granted(Direction::In), Some((8192, 30_000)));
    }

    #[test]
    fn forget_gone_needs_a_complete_list() {
        let mut ledger = Ledger::in_memory();
        ledger.note(entry(1, 100_000));
        ledger.forget_gone(&nobody(false));
        assert_eq!(ledger.entries(), [entry(1, 100_000)]);
        ledger.forget_gone(&nobody(true));
        assert!(ledger.is_empty());
    }

    #[test]
    fn ledger_look_changes_nothing_on_disk() {
        let directory = tempfile::tempdir().unwrap();
        let beneath = directory.path().join("state");
        assert!(Ledger::look(&beneath).unwrap().is_empty() && !beneath.exists());
        let mut ledger = Ledger::open(&beneath).unwrap();
        ledger.note(Entry { set: false, ..entry(1, 100_000) });
        ledger.save().unwrap();
        // Another process has the ledger open.
        let mut look = Ledger::look(&beneath).unwrap();
        assert_eq!(look.entries(), [Entry { set: false, ..entry(1, 100_000) }]);
        look.remove(1, Direction::Out);
        look.save().unwrap();
        assert_eq!(Ledger::look(&beneath).unwrap().entries().len(), 1);
    }

    #[test]
    fn entry_of_older_version_counts_as_set() {
        let mut json = serde_json::to_value(entry(1, 100_000)).unwrap();
        for field in ["set", "kernel_bytes"] {
            json.as_object_mut().unwrap().remove(field).unwrap();
        }
        assert_eq!(serde_json::from_value::<Entry>(json).unwrap(), entry(1, 100_000));
    }

    #[test]
    fn ledger_with_broken_file_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = Ledger::open(directory.path()).unwrap().path.clone();
        fs::write(&path, "{").unwrap();
        assert!(matches!(Ledger::open(directory.path()), Err(LedgerError::Nonsense { .. })));
        // The file is of another boot.
        fs::write(&path, r#"{"version":1,"boot":"x","namespace":1,"buffers":[]}"#).unwrap();
        assert!(Ledger::open(directory.path()).unwrap().is_empty());
    }
}
