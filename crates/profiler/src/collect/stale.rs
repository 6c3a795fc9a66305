//! Directories of collectors that were killed together with all that would have removed them.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

/// Held by who uses a directory. The kernel lets go of it, whatever ends them.
pub(super) struct Held {
    _directory: File,
}

impl Held {
    /// Of a directory that was just made.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`]: somebody has taken it for left behind meanwhile, and another one has to be made.
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

/// Removes directories of this user in `parent` whose names begin with `prefix` and that nobody holds.
pub(super) fn remove(parent: &Path, prefix: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)) {
            // What cannot be removed stays, as it did before.
            let _ = remove_unheld(&entry.path());
        }
    }
}

fn remove_unheld(path: &Path) -> io::Result<()> {
    let directory = open(path)?;
    let ours = directory.metadata()?.uid() == rustix::process::geteuid().as_raw();
    // Held from here on: who has just made it, makes another one.
    if ours && lock(&directory)? && is_at(&directory, path) {
        fs::remove_dir_all(path)?;
    }
    Ok(())
}

/// No link is followed.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Whether nobody else has it.
fn lock(directory: &File) -> io::Result<bool> {
    match flock(directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether it still has its name.
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
    fn what_nobody_holds_is_removed() {
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
    fn one_that_is_taken_for_left_behind_is_made_anew() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("new");
        let kind = |result: io::Result<Held>| result.err().map(|error| error.kind());
        // It has gone before its maker could hold it.
        assert_eq!(kind(Held::of(&path)), Some(ErrorKind::AlreadyExists));
        fs::create_dir(&path).unwrap();
        let remover = open(&path).unwrap();
        assert!(lock(&remover).unwrap());
        assert_eq!(kind(Held::of(&path)), Some(ErrorKind::AlreadyExists));
    }
}
