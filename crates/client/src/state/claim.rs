//! Names of part files at servers that do not keep two uploads to one name apart. Each upload gets
//! a name of its own there, which a later run finds again.
//!
//! An upload with a journal records its tag there, and holds a lock file beside it for its whole
//! life. A process that finds the lock held uses another tag and no journal. All other uploads of a
//! run use the run's tag. It is the first one in the state directory that no living run holds, so
//! the next run overwrites the files that a killed run has left.

use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parking_lot::Mutex;
use ropewalk_storage::checksum::{Algorithm, Hasher};

use crate::model::random::unique;

/// The maximum number of simultaneous runs whose tags are found again.
const RUNS: u32 = 256;

/// The tags and locks that a run holds.
#[derive(Default)]
pub(super) struct Claims {
    run: OnceLock<(u64, Option<File>)>,
    /// By journal, the tag, and the lock if this run holds it.
    held: Mutex<HashMap<PathBuf, (Option<File>, u64)>>,
}

impl Claims {
    /// The tag of uploads without a journal.
    pub(super) fn of_run(&self, directory: Option<&Path>) -> u64 {
        let find = || directory.and_then(|directory| find_run(directory).ok().flatten());
        self.run.get_or_init(|| find().unwrap_or_else(|| (unique(), None))).0
    }

    /// The tag of the upload with this journal. `known` reads its earlier tag; it is called while
    /// this run holds the lock.
    pub(super) fn of_journal(&self, journal: &Path, known: impl FnOnce() -> Option<u64>) -> u64 {
        let mut held = self.held.lock();
        if let Some((_, tag)) = held.get(journal) {
            return *tag;
        }
        let lock = lock(&journal.with_extension("lock")).unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot lock a journal: an interrupted upload will begin anew");
            None
        });
        let tag = lock.as_ref().and_then(|_| known()).unwrap_or_else(unique);
        held.insert(journal.to_owned(), (lock, tag));
        tag
    }

    /// Whether this run holds the lock of the journal.
    pub(super) fn has(&self, journal: &Path) -> bool {
        matches!(self.held.lock().get(journal), Some((Some(_), _)))
    }

    /// Releases the lock of an upload that failed. The files that a later run needs to resume it
    /// stay.
    pub(super) fn let_go(&self, journal: &Path) {
        self.held.lock().remove(journal);
    }

    /// Releases the lock of an upload that is complete, whose journal was removed.
    pub(super) fn release(&self, journal: &Path) {
        if let Some((Some(_lock), _)) = self.held.lock().remove(journal) {
            // Removed before it is unlocked: a process that has opened it in the meantime sees that
            // it is gone.
            let _ = fs::remove_file(journal.with_extension("lock"));
        }
    }
}

/// Locks a file, which is created if it is missing. `None` means that another process holds the
/// lock.
fn lock(path: &Path) -> io::Result<Option<File>> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    loop {
        let file =
            File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // The process that held the lock may have removed the file.
        let same = |there: fs::Metadata| file.metadata().is_ok_and(|own| own.ino() == there.ino());
        if fs::metadata(path).is_ok_and(same) {
            return Ok(Some(file));
        }
    }
}

/// A lock that no other process holds; `None` if that fails.
pub(super) fn take(path: &Path) -> Option<File> {
    lock(path).ok().flatten()
}

/// The first tag that no living run holds.
fn find_run(directory: &Path) -> io::Result<Option<(u64, Option<File>)>> {
    for n in 0..RUNS {
        let Some(mut file) = lock(&directory.join(format!("run-{n}.lock")))? else { continue };
        let mut secret = [0; 8];
        if file.read_exact(&mut secret).is_err() {
            secret = unique().to_le_bytes();
            file.set_len(0)?;
            file.write_all(&secret)?;
        }
        // A home directory may be copied to another host, so the tag depends on the host name.
        let mut hasher = Hasher::new(Algorithm::Sha256);
        hasher.update(&secret);
        hasher.update(rustix::system::uname().nodename().to_bytes());
        let tag = u64::from_str_radix(&hasher.finish()[..16], 16).unwrap_or_else(|_| unique());
        return Ok(Some((tag, Some(file))));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn runs_that_live_at_the_same_time_have_tags_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let tag = |claims: &Claims| claims.of_run(Some(dir.path()));
        let (one, other) = (Claims::default(), Claims::default());
        let (first, second) = (tag(&one), tag(&other));
        assert_ne!(first, second);
        assert_eq!(tag(&one), first);
        drop(one);
        // The next run finds the tag again.
        assert_eq!(tag(&Claims::default()), first);
        // Without a directory the tag is not found again.
        assert_ne!(Claims::default().of_run(None), Claims::default().of_run(None));
    }

    #[test]
    fn a_journal_is_of_one_run_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("a.json");
        let one = Claims::default();
        assert_eq!(one.of_journal(&journal, || Some(7)), 7);
        assert_eq!(one.of_journal(&journal, || Some(8)), 7);
        let other = Claims::default();
        assert_ne!(other.of_journal(&journal, || Some(7)), 7);
        assert!(one.has(&journal) && !other.has(&journal));
        // The lock stays with its holder, however the other run ends.
        other.release(&journal);
        assert!(one.has(&journal) && dir.path().join("a.lock").exists());
        one.let_go(&journal);
        assert!(!one.has(&journal) && dir.path().join("a.lock").exists());
        let third = Claims::default();
        assert_eq!(third.of_journal(&journal, || Some(7)), 7);
        third.release(&journal);
        assert!(!third.has(&journal) && !dir.path().join("a.lock").exists());
    }

    #[test]
    fn a_lock_that_was_removed_meanwhile_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        for _ in 0..50 {
            std::thread::scope(|scope| {
                let take = || {
                    let Some(file) = lock(&path).unwrap() else { return 0 };
                    // No other thread holds the lock, whether the file exists or not.
                    let alone = lock(&path).unwrap().is_none();
                    fs::remove_file(&path).unwrap();
                    drop(file);
                    u32::from(!alone)
                };
                let both = [scope.spawn(take), scope.spawn(take)];
                assert_eq!(both.map(|one| one.join().unwrap()), [0, 0]);
            });
        }
    }
}
