//! What was changed, so that it can be undone: also by a later run, or after this one was killed.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::demand::Past;
use crate::flow::Direction;
use crate::socket::Before;

const VERSION: u32 = 1;

/// A buffer that was set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub cookie: u64,
    pub direction: Direction,
    pub before: Before,
    /// What it asked for when it was last given less, bytes.
    pub demand: u64,
    /// What it has, bytes.
    pub granted: u64,
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
    /// Holds the lock. `None`: kept in memory only.
    _lock: Option<File>,
}

impl Ledger {
    /// The ledger beneath `directory`, which is made if it is not there. Entries from before a reboot, or of another
    /// network namespace's file, are gone with their sockets.
    ///
    /// # Errors
    /// The directory or file cannot be used, or another process uses it.
    pub fn open(directory: &Path) -> Result<Self, LedgerError> {
        let boot =
            fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let namespace = fs::metadata("/proc/self/ns/net").map(|file| file.ino()).unwrap_or_default();
        // Cookies are numbers of one namespace.
        let path = directory.join(format!("buffers-{namespace}.json"));
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| LedgerError::File { path, source }
        };
        fs::create_dir_all(directory).map_err(failed(directory))?;
        let lock_path = path.with_extension("lock");
        let lock = File::create(&lock_path).map_err(failed(&lock_path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::AGAIN) => return Err(LedgerError::Busy { path: lock_path }),
            Err(error) => return Err(failed(&lock_path)(error.into())),
        }
        let content: Option<Content> = match fs::read(&path) {
            Ok(text) => Some(
                serde_json::from_slice(&text)
                    .map_err(|source| LedgerError::Nonsense { path: path.clone(), source })?,
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(&path)(error)),
        };
        let entries = content
            .filter(|content| {
                content.version == VERSION && content.boot == boot && content.namespace == namespace
            })
            .map(|content| content.buffers)
            .unwrap_or_default();
        let entries = entries.into_iter().map(|entry| ((entry.cookie, entry.direction), entry)).collect();
        Ok(Self { path, boot, namespace, entries, _lock: Some(lock) })
    }

    /// One that changes nothing on disk, for who sets nothing.
    pub fn in_memory() -> Self {
        Self { path: PathBuf::new(), boot: String::new(), namespace: 0, entries: HashMap::new(), _lock: None }
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

    pub(crate) fn get(&self, cookie: u64, direction: Direction) -> Option<&Entry> {
        self.entries.get(&(cookie, direction))
    }

    pub(crate) fn past(&self, cookie: u64) -> Option<Past> {
        let entry = self.get(cookie, Direction::Out).or_else(|| self.get(cookie, Direction::In))?;
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

    pub(crate) fn remove(&mut self, cookie: u64, direction: Direction) {
        self.entries.remove(&(cookie, direction));
    }

    /// Forgets sockets that are no more.
    pub(crate) fn retain(&mut self, is_there: impl Fn(u64) -> bool) {
        self.entries.retain(|&(cookie, _), _| is_there(cookie));
    }

    /// Writes the file, whole or not at all.
    pub(crate) fn save(&self) -> Result<(), LedgerError> {
        if self._lock.is_none() {
            return Ok(());
        }
        let content = Content {
            version: VERSION,
            boot: self.boot.clone(),
            namespace: self.namespace,
            buffers: self.entries(),
        };
        let failed = |source: io::Error| LedgerError::File { path: self.path.clone(), source };
        if self.entries.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
                _ => Ok(()),
            };
        }
        let text = serde_json::to_vec(&content).map_err(|error| failed(error.into()))?;
        let part = self.path.with_extension("part");
        fs::write(&part, text).and_then(|()| fs::rename(&part, &self.path)).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn entry(cookie: u64, kernel_bytes: u64) -> Entry {
        let before = Before { kernel_bytes, locked: Some(false) };
        Entry { cookie, direction: Direction::Out, before, demand: 5000, granted: 4096 }
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
        assert_eq!(ledger.past(1), Some(Past { demand: 5000, granted: 8192, requested: 50_000 }));
        ledger.retain(|cookie| cookie == 2);
        assert_eq!(ledger.entries(), [entry(2, 200_000)]);
        ledger.remove(2, Direction::Out);
        ledger.save().unwrap();
        drop(ledger);
        assert!(Ledger::open(directory.path()).unwrap().is_empty());
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
