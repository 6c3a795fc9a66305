//! The journal of reservations: a file for each, written before every request.
//!
//! The process that owns a reservation holds a lock, which the system drops when the process ends,
//! however it ends. So an entry without a lock belongs to no living process.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use ropewalk_files::{OnDisk, replace};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::{Entry, Id, Phase};

/// No entry is as long.
const LONGEST: u64 = 64 << 10;

/// How often, and after what pause, a lock is tried again.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);

/// The journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("the journal of paths {path}: {source}")]
pub struct JournalError {
    path: PathBuf,
    source: io::Error,
}

/// The reservations of a user of this host.
#[derive(Clone, Debug)]
pub struct Journal {
    directory: PathBuf,
}

/// Entries, each with whether a living process owns it; and files that are no entries.
type Listed = (Vec<(Entry, bool)>, Vec<JournalError>);

impl Journal {
    /// The journal in the directory `paths` of this state directory.
    pub fn at(state_directory: &Path) -> Self {
        Self { directory: state_directory.join("paths") }
    }

    /// Makes an entry, which this process then owns. Nothing is written before [`Locked::write`].
    ///
    /// # Errors
    /// The directory cannot be made or written.
    pub fn create(&self, id: &Id) -> Result<Locked, JournalError> {
        let failed = |source| JournalError { path: self.directory.clone(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory).map_err(failed)?;
        let lock = self.lock_file(id).map_err(failed)?;
        let lock = lock.ok_or_else(|| failed(io::ErrorKind::AlreadyExists.into()))?;
        Ok(Locked { lock_path: self.lock_path(id), path: self.path(id), _lock: lock })
    }

    /// All entries, and whether a living process owns each. Files that are no entries are reported
    /// in the second list.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self) -> Result<Listed, JournalError> {
        let failed = |source| JournalError { path: self.directory.clone(), source };
        let files = match fs::read_dir(&self.directory) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), Vec::new())),
            Err(error) => return Err(failed(error)),
        };
        let (mut entries, mut broken) = (Vec::new(), Vec::new());
        for file in files {
            let path = file.map_err(failed)?.path();
            let id = path.file_stem().and_then(|name| name.to_str()).and_then(|name| name.parse::<Id>().ok());
            let Some(id) = id.filter(|_| path.extension().is_some_and(|kind| kind == "json")) else {
                continue;
            };
            match read(&path, &id) {
                Ok(Some(entry)) => entries.push((entry, self.is_owned(&id))),
                Ok(None) => {}
                Err(source) => broken.push(JournalError { path, source }),
            }
        }
        entries.sort_by(|(one, _), (other, _)| (one.requested, &one.id).cmp(&(other.requested, &other.id)));
        Ok((entries, broken))
    }

    /// Takes over an entry that no living process owns. `None`: there is none, or a process owns
    /// it.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn take_over(&self, id: &Id) -> Result<Option<(Entry, Locked)>, JournalError> {
        let path = self.path(id);
        let failed = |source| JournalError { path: path.clone(), source };
        if !path.exists() {
            return Ok(None);
        }
        // A process that lists the entries has the lock for a moment.
        let mut lock = self.lock_file(id).map_err(failed)?;
        for _ in 0..TRIES {
            if lock.is_none() {
                thread::sleep(PAUSE);
                lock = self.lock_file(id).map_err(failed)?;
            }
        }
        let Some(lock) = lock else { return Ok(None) };
        // Another process may have ended the entry before this one had the lock.
        let entry = read(&path, id).map_err(failed)?;
        let locked = Locked { lock_path: self.lock_path(id), path: path.clone(), _lock: lock };
        Ok(entry.map(|entry| (entry, locked)))
    }

    fn is_owned(&self, id: &Id) -> bool {
        self.lock_path(id).exists() && self.lock_file(id).is_ok_and(|lock| lock.is_none())
    }

    fn lock_file(&self, id: &Id) -> io::Result<Option<File>> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(self.lock_path(id))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn path(&self, id: &Id) -> PathBuf {
        self.directory.join(format!("{id}.json"))
    }

    fn lock_path(&self, id: &Id) -> PathBuf {
        self.directory.join(format!("{id}.lock"))
    }
}

/// `None`: there is no such file.
fn read(path: &Path, id: &Id) -> io::Result<Option<Entry>> {
    let text = match ropewalk_files::read(path, LONGEST) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let entry: Entry = serde_json::from_slice(&text)?;
    if entry.id != *id {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the ID is not that of the file's name"));
    }
    Ok(Some(entry))
}

/// An entry that this process owns.
#[derive(Debug)]
pub struct Locked {
    path: PathBuf,
    lock_path: PathBuf,
    _lock: File,
}

impl Locked {
    /// Writes the entry to disk; one that has ended is removed.
    ///
    /// # Errors
    /// Those of the system; the old entry is then unchanged.
    pub fn write(&self, entry: &Entry) -> Result<(), JournalError> {
        let failed = |source| JournalError { path: self.path.clone(), source };
        if entry.phase == Phase::Ended {
            remove(&self.path).map_err(failed)?;
            return remove(&self.lock_path).map_err(failed);
        }
        let text = serde_json::to_vec(entry).map_err(|error| failed(error.into()))?;
        replace(&self.path, &text, 0o600, OnDisk::Now).map_err(failed)
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Owner, Request};

    fn entry() -> Entry {
        let request =
            Request { from: None, until: Duration::from_secs(9), capacity: None, description: String::new() };
        Entry::new("hook:true".to_owned(), Owner::Transfer, request)
    }

    #[test]
    fn entry_is_owned_until_its_lock_is_dropped_and_then_taken_over() {
        let state = tempfile::tempdir().unwrap();
        let journal = Journal::at(state.path());
        assert_eq!(journal.list().unwrap().0, []);
        let entry = entry();
        let locked = journal.create(&entry.id).unwrap();
        locked.write(&entry).unwrap();
        assert_eq!(journal.list().unwrap().0, [(entry.clone(), true)]);
        assert!(journal.take_over(&entry.id).unwrap().is_none());
        drop(locked);
        assert_eq!(journal.list().unwrap().0, [(entry.clone(), false)]);
        let (taken, locked) = journal.take_over(&entry.id).unwrap().unwrap();
        assert_eq!(taken, entry);
        locked.write(&Entry { phase: Phase::Ended, ..entry.clone() }).unwrap();
        assert_eq!(journal.list().unwrap().0, []);
        drop(locked);
        assert!(journal.take_over(&entry.id).unwrap().is_none());
        assert_eq!(fs::read_dir(state.path().join("paths")).unwrap().count(), 0);
    }

    #[test]
    fn file_that_is_no_entry_is_reported_beside_the_others() {
        let state = tempfile::tempdir().unwrap();
        let journal = Journal::at(state.path());
        let (entry, other) = (entry(), entry());
        journal.create(&entry.id).unwrap().write(&entry).unwrap();
        let directory = state.path().join("paths");
        fs::write(directory.join("notes.json"), "").unwrap();
        fs::write(directory.join(format!("{}.json", other.id)), serde_json::to_vec(&entry).unwrap()).unwrap();
        let (entries, broken) = journal.list().unwrap();
        assert_eq!(entries, [(entry, false)]);
        assert_eq!(broken.len(), 1);
        assert!(broken[0].to_string().contains("the ID is not that"), "{}", broken[0]);
    }
}
