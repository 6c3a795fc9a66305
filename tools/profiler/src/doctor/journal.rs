//! Keeps the old values of settings in a file until they are restored.
//!
//! The complete file is on the disk before the first setting is written. While its state is
//! `applying`, each of its settings may or may not have been written, and restoring writes all of
//! them. In the state `applied`, the file knows the value of each setting after the change; a
//! setting that another program has changed since is left alone unless the caller forces it.
//! Settings are lost when the machine restarts, and they belong to one network namespace, so a file
//! of another boot or namespace is not restored.
//!
//! A lock on the directory makes sure that only one process uses the journal.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use ropewalk_files::OnDisk;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::change::{Applied, Change, Changes, Refused, Sysctls};
use crate::collect::facts::Root;

const VERSION: u32 = 1;
const NAME: &str = "doctor.json";
/// Limits on the number of settings in a file, and on its size in bytes.
const MOST: usize = 1000;
const LARGEST: u64 = 1 << 20;

/// Settings could not be changed or restored.
#[derive(Debug, Error)]
pub enum JournalError {
    #[error("cannot use {path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("{path} is not what ropewalk wrote ({reason}); settings cannot be restored from it")]
    Nonsense { path: PathBuf, reason: String },
    #[error("another doctor is at work: it holds {path}")]
    Busy { path: PathBuf },
    #[error("an earlier change was interrupted: run `ropewalk doctor --restore` first ({path})")]
    Interrupted { path: PathBuf },
    #[error("{path} was written in another network namespace: restore it there, or remove the file")]
    Elsewhere { path: PathBuf },
    #[error("cannot set {name} to {value:?}: {source}")]
    Set { name: String, value: String, source: io::Error },
    #[error("{name} is {found:?} now, it was {expected:?} when it was checked: check again")]
    Moved { name: String, expected: String, found: String },
    #[error("cannot read {name}: {source}")]
    Get { name: String, source: io::Error },
    #[error("somebody else changed {name} meanwhile: it is {found:?} now, {expected:?} was expected")]
    Meanwhile { name: String, expected: String, found: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    Applying,
    Applied,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Content {
    version: u32,
    boot: String,
    namespace: u64,
    pub(super) state: State,
    pub(super) changes: Vec<Change>,
}

impl Content {
    /// Records that a setting keeps its current value. If an earlier change has set it, its old
    /// value still has to be restored.
    pub(super) fn leave(&mut self, change: &Change) {
        if let Some(at) = self.changes.iter().position(|entry| entry.name == change.name) {
            self.changes[at].after.clone_from(&change.before);
            if self.changes[at].before == change.before {
                self.changes.remove(at);
            }
        }
    }
}

/// The old values of changed settings, kept in a directory. Only one process can use it at a time.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    pub(super) settings: Sysctls,
    boot: String,
    namespace: u64,
    lock: File,
}

/// The result of restoring.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// Settings that were restored.
    pub restored: Vec<Change>,
    /// Settings that already had their old values.
    pub unchanged: Vec<Change>,
    /// Settings that another program had changed since, with their current values. They were left
    /// alone.
    pub foreign: Vec<(String, String)>,
    /// Settings that could not be written, with the reason. They stay in the file.
    pub failed: Vec<(String, String)>,
    /// The machine was restarted since the change, so its settings are those of its configuration.
    pub rebooted: bool,
}

impl Journal {
    /// Opens the journal in `directory`, which is created if it does not exist, for the settings of
    /// this host and namespace.
    ///
    /// # Errors
    /// The directory cannot be used, or another process uses the journal.
    pub fn open(directory: &Path) -> Result<Self, JournalError> {
        Self::open_at(directory, Root::default())
    }

    /// Opens the journal only if the directory exists; creates nothing.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_existing(directory: &Path) -> Result<Option<Self>, JournalError> {
        match fs::metadata(directory) {
            Ok(_) => Self::lock(directory, Root::default()).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(JournalError::File { path: directory.to_owned(), source }),
        }
    }

    /// Opens the journal for settings beneath `root`, which is laid out as `/`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_at(directory: &Path, root: Root) -> Result<Self, JournalError> {
        let fail = |source| JournalError::File { path: directory.to_owned(), source };
        if let Some(parent) = directory.parent() {
            fs::create_dir_all(parent).map_err(fail)?;
        }
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(fail)?;
        Self::lock(directory, root)
    }

    fn lock(directory: &Path, root: Root) -> Result<Self, JournalError> {
        let fail = |source| JournalError::File { path: directory.to_owned(), source };
        // The lock is on the directory, because the file in it is replaced on each change.
        let lock = File::open(directory).map_err(fail)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(JournalError::Busy { path: directory.to_owned() });
            }
            Err(error) => return Err(fail(error.into())),
        }
        let boot = root.word("proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = fs::metadata(root.path("proc/self/ns/net")).map_or(0, |metadata| metadata.ino());
        Ok(Self { directory: directory.to_owned(), settings: Sysctls::at(root), boot, namespace, lock })
    }

    /// The path of the file with the old values.
    pub fn path(&self) -> PathBuf {
        self.directory.join(NAME)
    }

    /// Writes the old values to the disk and then sets the new ones. If a setting that is not
    /// optional cannot be set, the settings before it are restored.
    ///
    /// # Errors
    /// Nothing was changed, unless restoring failed too: then the file still has the old values.
    pub fn apply(&self, changes: &Changes) -> Result<Applied, JournalError> {
        let mut content = self.merged(changes)?;
        self.save(&content)?;
        let mut done: Vec<Change> = Vec::new();
        let mut refused: Vec<Refused> = Vec::new();
        for change in &changes.0 {
            match self.settings.set(&change.name, &change.after) {
                Ok(after) => done.push(Change { after, ..change.clone() }),
                Err(source) => {
                    if let Some(left) = self.settings.refused(change, &source) {
                        content.leave(change);
                        refused.push(left);
                        continue;
                    }
                    self.take_back(&done, content)?;
                    let (name, value) = (change.name.clone(), change.after.clone());
                    return Err(JournalError::Set { name, value, source });
                }
            }
        }
        // The kernel may limit a value. Keeping the resulting value makes it possible to recognise
        // later changes by other programs.
        for change in &done {
            let entry = content.changes.iter_mut().find(|entry| entry.name == change.name);
            entry.into_iter().for_each(|entry| entry.after.clone_from(&change.after));
        }
        content.state = State::Applied;
        self.keep(&content)?;
        Ok(Applied { changes: done, refused })
    }

    /// Restores the old values; with `force` also those of settings that other programs have
    /// changed since. Does nothing if there is no file.
    ///
    /// # Errors
    /// The file cannot be used, or it belongs to another namespace. Settings that cannot be written
    /// are reported in the result.
    pub fn restore(&self, force: bool) -> Result<Restored, JournalError> {
        let mut result = Restored::default();
        let Some(content) = self.load()? else { return Ok(result) };
        if content.boot != self.boot {
            result.rebooted = true;
            self.remove()?;
            return Ok(result);
        }
        self.check_namespace(&content)?;
        let mut left = Vec::new();
        for change in &content.changes {
            let fail = |error: io::Error| (change.name.clone(), error.to_string());
            match self.settings.get(&change.name) {
                Ok(now) if now == change.before => result.unchanged.push(change.clone()),
                Ok(now) if now == change.after || force || content.state == State::Applying => {
                    match self.settings.set(&change.name, &change.before) {
                        Ok(_) => result.restored.push(change.clone()),
                        Err(error) => {
                            result.failed.push(fail(error));
                            left.push(change.clone());
                        }
                    }
                }
                Ok(now) => {
                    result.foreign.push((change.name.clone(), now));
                    left.push(change.clone());
                }
                Err(error) => {
                    result.failed.push(fail(error));
                    left.push(change.clone());
                }
            }
        }
        if left.is_empty() {
            self.remove()?;
        } else {
            self.save(&Content { changes: left, ..content })?;
        }
        Ok(result)
    }

    /// The settings that were changed and not restored.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn pending(&self) -> Result<Vec<Change>, JournalError> {
        let content = self.load()?.filter(|content| content.boot == self.boot);
        Ok(content.map(|content| content.changes).unwrap_or_default())
    }

    /// Checks that settings can be changed: no earlier change was interrupted or belongs to another
    /// network namespace.
    ///
    /// # Errors
    /// Those that [`apply`](Self::apply) would return.
    pub fn is_idle(&self) -> Result<(), JournalError> {
        self.merged(&Changes::default()).map(drop)
    }

    pub(super) fn get(&self, name: &str) -> Result<String, JournalError> {
        self.settings.get(name).map_err(|source| JournalError::Get { name: name.to_owned(), source })
    }

    /// Merges the changes with earlier ones. If a setting was changed before, its first old value
    /// is kept.
    pub(super) fn merged(&self, changes: &Changes) -> Result<Content, JournalError> {
        let earlier = self.load()?.filter(|content| content.boot == self.boot);
        let mut content = match earlier {
            Some(content) => {
                self.check_namespace(&content)?;
                if content.state == State::Applying {
                    return Err(JournalError::Interrupted { path: self.path() });
                }
                content
            }
            None => Content {
                version: VERSION,
                boot: self.boot.clone(),
                namespace: self.namespace,
                state: State::Applying,
                changes: Vec::new(),
            },
        };
        content.state = State::Applying;
        for change in &changes.0 {
            let set =
                |source| JournalError::Set { name: change.name.clone(), value: change.after.clone(), source };
            let now = self.settings.get(&change.name).map_err(set)?;
            if now != change.before {
                let (name, expected) = (change.name.clone(), change.before.clone());
                return Err(JournalError::Moved { name, expected, found: now });
            }
            match content.changes.iter_mut().find(|entry| entry.name == change.name) {
                Some(entry) => entry.after.clone_from(&change.after),
                None => content.changes.push(change.clone()),
            }
        }
        Ok(content)
    }

    /// Undoes a failed attempt: the settings get the values that they had before it.
    fn take_back(&self, done: &[Change], mut content: Content) -> Result<(), JournalError> {
        for change in done {
            self.settings.set(&change.name, &change.before).map_err(|source| JournalError::Set {
                name: change.name.clone(),
                value: change.before.clone(),
                source,
            })?;
        }
        // Settings that have their very first value again need not be restored.
        content.changes.retain(|entry| self.settings.get(&entry.name).is_ok_and(|now| now != entry.before));
        for entry in &mut content.changes {
            entry.after = self.settings.get(&entry.name).unwrap_or_default();
        }
        content.state = State::Applied;
        self.keep(&content)
    }

    /// Saves the file, or removes it if it has no changes.
    pub(super) fn keep(&self, content: &Content) -> Result<(), JournalError> {
        if content.changes.is_empty() { self.remove() } else { self.save(content) }
    }

    fn check_namespace(&self, content: &Content) -> Result<(), JournalError> {
        if content.namespace == self.namespace {
            Ok(())
        } else {
            Err(JournalError::Elsewhere { path: self.path() })
        }
    }

    fn load(&self) -> Result<Option<Content>, JournalError> {
        let path = self.path();
        let fail = |source| JournalError::File { path: path.clone(), source };
        let nonsense = |reason: String| JournalError::Nonsense { path: path.clone(), reason };
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fail(error)),
        };
        // Any user who can write this file controls what root writes to the kernel.
        if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
            return Err(nonsense("others may write it".into()));
        }
        if metadata.len() > LARGEST {
            return Err(nonsense(format!("{} bytes, expected at most {LARGEST}", metadata.len())));
        }
        let content: Content = serde_json::from_slice(&fs::read(&path).map_err(fail)?)
            .map_err(|error| nonsense(error.to_string()))?;
        if content.version != VERSION {
            return Err(nonsense(format!("version {}, expected {VERSION}", content.version)));
        }
        if content.changes.len() > MOST {
            return Err(nonsense(format!("{} settings, expected at most {MOST}", content.changes.len())));
        }
        Ok(Some(content))
    }

    /// Writes the file atomically and synchronises it to the disk.
    pub(super) fn save(&self, content: &Content) -> Result<(), JournalError> {
        let fail = |source| JournalError::File { path: self.path(), source };
        let text = serde_json::to_vec_pretty(content).map_err(|error| fail(error.into()))?;
        ropewalk_files::replace(&self.path(), &text, 0o600, OnDisk::Now).map_err(fail)
    }

    pub(super) fn remove(&self) -> Result<(), JournalError> {
        let fail = |source| JournalError::File { path: self.path(), source };
        fs::remove_file(self.path()).map_err(fail)?;
        File::open(&self.directory).and_then(|directory| directory.sync_all()).map_err(fail)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Closing the descriptor does not release the lock while a program that is just being
        // started has a copy of it.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests;
