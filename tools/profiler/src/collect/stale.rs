//! Removes temporary directories of collectors that were killed together with the shells that would
//! have removed them.
//!
//! A running collector holds a lock on its directory; a directory whose lock is free is stale.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

/// The lock that a collector holds on its directory. The kernel releases it however the process
/// ends.
pub(super) struct Held {
    _directory: File,
}

impl Held {
    /// Locks a directory that was just created.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`]: another process has taken the directory for stale in the
    /// meantime. The caller has to create another one.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let taken = || io::Error::from(ErrorKind::AlreadyExists);
        let directory = match open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(taken()),
            opened => opened?,
        };
        match lock(&directory)? && is_at(&directory, path) {
            true => Ok(Self { _directory: directory }),
            false => Err(taken()),
        }
    }
}

/// Removes directories of this user in `parent` whose names begin with `prefix` and that no process
/// holds.
pub(super) fn remove(parent: &Path, prefix: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)) {
            // A directory that cannot be removed stays, as it did before.
            let _ = remove_unheld(&entry.path());
        }
    }
}

fn remove_unheld(path: &Path) -> io::Result<()> {
    let directory = open(path)?;
    let ours = directory.metadata()?.uid() == rustix::process::geteuid().as_raw();
    // We hold the lock from here on: if another process has just created this directory, its
    // `Held::of` fails, and it creates another one.
    if ours && lock(&directory)? && is_at(&directory, path) {
        fs::remove_dir_all(path)?;
    }
    Ok(())
}

/// Opens a directory without following a link.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Locks the directory. Returns false if another process holds the lock.
fn lock(directory: &File) -> io::Result<bool> {
    match flock(directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether the open directory is still the one at `path`.
fn is_at(directory: &File, path: &Path) -> bool {
    let of = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let (open, named) = (directory.metadata().map(of), fs::symlink_metadata(path).map(of));
    open.is_ok_and(|open| named.is_ok_and(|named| open == named))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn remove_when_directory_is_not_held_removes_it() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for name in ["mine-held", "mine-left", "other-left"] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("file"), "x").unwrap();
        }
        fs::write(at("mine-file"), "x").unwrap();
        symlink(at("other-left"), at("mine-link")).unwrap();
        let held = Held::of(&at("mine-held")).unwrap();
        remove(place.path(), "mine-");
        let there = |names: &[&str]| names.iter().all(|name| fs::symlink_metadata(at(name)).is_ok());
        assert!(there(&["mine-held/file", "other-left/file", "mine-file", "mine-link"]));
        assert!(!at("mine-left").exists());
        drop(held);
        remove(place.path(), "mine-");
        assert!(!at("mine-held").exists());
    }

    #[test]
    fn held_when_directory_is_taken_for_stale_already_exists() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("new");
        let kind = |result: io::Result<Held>| result.err().map(|error| error.kind());
        // The directory is gone before its creator could lock it.
        assert_eq!(kind(Held::of(&path)), Some(ErrorKind::AlreadyExists));
        fs::create_dir(&path).unwrap();
        let remover = open(&path).unwrap();
        assert!(lock(&remover).unwrap());
        assert_eq!(kind(Held::of(&path)), Some(ErrorKind::AlreadyExists));
    }
}
