//! Old part files make room for an upload or a reservation that would be refused otherwise.
//!
//! The host owns an [`Expiry`]. The thread that is about to refuse calls it: it searches a
//! directory for the part files of interrupted uploads, and removes the oldest. A part file that is
//! in use is locked, and stays. If all of them together would not suffice, none is removed. The
//! result of a search is used again for a while, so that refusals do not cost a search each.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_storage::{
    HeldPart, Kind, Metadata, PosixOptions, PosixStore, Result, Store, hold_part, journal_of_part,
};

/// A search stops after this time, since a client waits for it. The next one continues.
const SEARCH_TIME: Duration = Duration::from_secs(5);
/// The result of a whole search is used for this time, and not longer than a part file needs to
/// become old.
const FRESH: Duration = Duration::from_secs(60);
/// The most part files that a search remembers.
const MOST: usize = 100_000;

/// Removes part files of a certain age.
pub(crate) struct Expiry {
    /// Zero: none is removed.
    age: Duration,
    searches: Mutex<HashMap<Place, Arc<Mutex<Search>>>>,
}

/// A directory of the host that is searched, and the only file system that is.
type Place = (PathBuf, Option<u64>);

/// The room that is missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missing {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
}

/// Device and inode of a file on this host.
pub(crate) type FileId = (u64, u64);

/// The part files that may be removed.
pub(crate) struct Candidates<'a> {
    /// The store of the directory, which works as the server's own user.
    pub(crate) store: Arc<dyn Store>,
    /// The directory on this host.
    pub(crate) base: &'a Path,
    /// Only this file system is searched.
    pub(crate) device: Option<u64>,
    /// The bytes that become free.
    pub(crate) size: fn(&Metadata) -> u64,
    /// Whether the file may be removed.
    pub(crate) may: &'a dyn Fn(&VirtualPath, &Metadata) -> bool,
}

/// The part files beneath a directory, as far as they are known.
struct Search {
    /// Directories that are still to be listed.
    pending: Vec<VirtualPath>,
    found: Vec<VirtualPath>,
    /// When all directories were listed.
    ended: Option<Instant>,
}

/// A part file that is about to be removed.
struct Old {
    path: VirtualPath,
    bytes: u64,
    /// In seconds and nanoseconds since 1970.
    last_change: (i64, u32),
    file: FileId,
}

impl Expiry {
    pub(crate) fn new(age: Duration) -> Self {
        Self { age, searches: Mutex::default() }
    }

    /// Removes old part files until `missing` is free. Returns `false`, and removes none, if that
    /// is not possible.
    pub(crate) fn make_room(&self, missing: Missing, candidates: &Candidates<'_>, now: SystemTime) -> bool {
        if self.age.is_zero() {
            return false;
        }
        let made = self.remove_oldest(missing, candidates, now);
        made.unwrap_or_else(|error| {
            tracing::warn!(base = %candidates.base.display(), %error, "old uploads cannot be removed");
            false
        })
    }

    fn remove_oldest(&self, missing: Missing, candidates: &Candidates<'_>, now: SystemTime) -> Result<bool> {
        // The thread may act for the user of a session.
        let _acting = candidates.store.acting()?;
        let mut old: Vec<_> =
            self.found(candidates).into_iter().filter_map(|path| self.old(path, candidates, now)).collect();
        old.sort_unstable_by_key(|one| one.last_change);
        let mut freed = Missing { bytes: 0, files: 0 };
        let mut held: Vec<(Old, HeldPart)> = Vec::new();
        for one in old {
            if freed.covers(missing) {
                break;
            }
            // A part file that cannot be locked is in use, or was removed meanwhile.
            let Ok(Some(lock)) = hold_part(&*candidates.store, &one.path) else { continue };
            // Another upload may have begun, and have ended, before the lock was taken.
            let still = self.old(one.path.clone(), candidates, now);
            if still.is_some_and(|still| (still.file, still.last_change) == (one.file, one.last_change)) {
                freed.bytes = freed.bytes.saturating_add(one.bytes);
                freed.files += 1;
                held.push((one, lock));
            }
        }
        if !freed.covers(missing) {
            return Ok(false);
        }
        for (one, lock) in held {
            // A journal without its part file would describe the next one of that name.
            if let Some(journal) = journal_of_part(&one.path) {
                let _ = candidates.store.remove_file(&journal);
            }
            candidates.store.remove_file(&one.path)?;
            drop(lock);
            let Old { path, bytes, .. } = one;
            tracing::info!(base = %candidates.base.display(), ?path, bytes, "an old interrupted upload made room");
        }
        Ok(true)
    }

    /// The part file if it is old enough, and may be removed.
    fn old(&self, path: VirtualPath, candidates: &Candidates<'_>, now: SystemTime) -> Option<Old> {
        let metadata = candidates.store.stat(&path, false).ok()?;
        // The time of modification can be set, for instance to that of the source.
        let last_change = metadata.modified.max(metadata.changed);
        let since = SystemTime::UNIX_EPOCH + Duration::new(u64::try_from(last_change.0).ok()?, last_change.1);
        let is_old = now.duration_since(since).is_ok_and(|age| age >= self.age);
        let device = candidates.device.is_none_or(|device| metadata.device == device);
        if metadata.kind != Kind::File || metadata.links != 1 || !is_old || !device {
            return None;
        }
        (candidates.may)(&path, &metadata).then(|| Old {
            bytes: (candidates.size)(&metadata),
            last_change,
            file: (metadata.device, metadata.inode),
            path,
        })
    }

    /// The part files that a search finds.
    fn found(&self, candidates: &Candidates<'_>) -> Vec<VirtualPath> {
        let fresh = FRESH.min(self.age);
        let search = {
            let mut searches = self.searches.lock();
            // Those that other threads hold are under way.
            searches.retain(|_, search| Arc::strong_count(search) > 1 || search.lock().is_fresh(fresh));
            Arc::clone(searches.entry((candidates.base.to_owned(), candidates.device)).or_default())
        };
        let mut search = search.lock();
        if !search.is_fresh(fresh) {
            *search = Search::default();
        }
        search.proceed(candidates, Instant::now() + SEARCH_TIME);
        search.found.clone()
    }
}

impl Missing {
    fn covers(self, other: Self) -> bool {
        self.bytes >= other.bytes && self.files >= other.files
    }
}

impl Default for Search {
    fn default() -> Self {
        Self { pending: vec![VirtualPath::root()], found: Vec::new(), ended: None }
    }
}

impl Search {
    /// Whether it is under way, or has ended less than `time` ago.
    fn is_fresh(&self, time: Duration) -> bool {
        self.ended.is_none_or(|at| at.elapsed() < time)
    }

    /// Lists directories until all are listed, or the time has come.
    fn proceed(&mut self, candidates: &Candidates<'_>, until: Instant) {
        while let Some(directory) = self.pending.pop() {
            let Self { pending, found, .. } = self;
            // A directory that is gone, or cannot be read, has nothing to remove.
            let _ = candidates.store.list(&directory, &mut |name, metadata| {
                let Ok(child) = directory.child(name) else { return Ok(()) };
                let here = candidates.device.is_none_or(|device| metadata.device == device);
                match metadata.kind {
                    Kind::Directory if here => pending.push(child),
                    Kind::File if journal_of_part(&child).is_some() && found.len() < MOST => {
                        found.push(child);
                    }
                    _ => {}
                }
                Ok(())
            });
            if Instant::now() >= until {
                break;
            }
        }
        if self.pending.is_empty() && self.ended.is_none() {
            self.ended = Some(Instant::now());
        }
    }
}

/// A store of a directory of this host that works as the server's own user.
pub(crate) fn own_store(base: &Path) -> Result<Arc<dyn Store>> {
    let options = PosixOptions { no_magic_links: true, ..PosixOptions::default() };
    Ok(Arc::new(PosixStore::new(base, options)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use ropewalk_storage::{JournalKey, PartFile, Upload as _, UploadOptions};

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    struct Place {
        directory: tempfile::TempDir,
        expiry: Expiry,
    }

    impl Place {
        /// Directories `a` and `a/b` with a part file of 100 and one of 1000 bytes; the first is
        /// older.
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            fs::create_dir_all(directory.path().join("a/b")).unwrap();
            let place = Self { directory, expiry: Expiry::new(DAY) };
            for (name, bytes) in [("a/.x.ropewalk-part", 100), ("a/b/.y.ropewalk-part", 1000)] {
                fs::write(place.path(name), vec![1; bytes]).unwrap();
            }
            fs::write(place.path("a/.x.ropewalk-journal"), "").unwrap();
            fs::write(place.path("a/whole"), [1; 5000]).unwrap();
            place
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        fn make_room(&self, bytes: u64, files: u64, age: Duration) -> bool {
            let base = self.directory.path();
            let candidates = Candidates {
                store: own_store(base).unwrap(),
                base,
                device: None,
                size: |metadata| metadata.size,
                may: &|path, _| path.as_bytes() != b"/.reserved.ropewalk-part",
            };
            self.expiry.make_room(Missing { bytes, files }, &candidates, SystemTime::now() + age)
        }

        fn left(&self) -> Vec<&'static str> {
            let all = ["a/.x.ropewalk-part", "a/.x.ropewalk-journal", "a/b/.y.ropewalk-part", "a/whole"];
            all.into_iter().filter(|name| self.path(name).exists()).collect()
        }
    }

    #[test]
    fn oldest_part_files_are_removed_until_there_is_room() {
        let place = Place::new();
        assert!(place.make_room(100, 0, DAY));
        assert_eq!(place.left(), ["a/b/.y.ropewalk-part", "a/whole"]);
        assert!(place.make_room(0, 1, DAY));
        assert_eq!(place.left(), ["a/whole"]);
        assert!(!place.make_room(1, 0, DAY));
    }

    #[test]
    fn part_files_that_are_young_too_few_or_protected_stay() {
        let place = Place::new();
        fs::write(place.path(".reserved.ropewalk-part"), [1; 9000]).unwrap();
        fs::hard_link(place.path("a/whole"), place.path(".linked.ropewalk-part")).unwrap();
        assert!(!place.make_room(100, 0, Duration::ZERO));
        assert!(!place.make_room(1101, 0, DAY));
        assert!(!place.make_room(0, 3, DAY));
        assert_eq!(place.left().len(), 4);
        let never = Place { expiry: Expiry::new(Duration::ZERO), ..place };
        assert!(!never.make_room(100, 0, 400 * DAY));
        let place = Place { expiry: Expiry::new(DAY), ..never };
        assert!(place.make_room(1100, 2, DAY));
        assert_eq!(place.left(), ["a/whole"]);
        assert!(place.path(".reserved.ropewalk-part").exists());
    }

    #[test]
    fn part_file_that_an_upload_writes_stays() {
        let place = Place::new();
        let store = own_store(&place.path("a")).unwrap();
        let options = UploadOptions { resume: false, ..UploadOptions::default() };
        let target = VirtualPath::parse(b"/x").unwrap();
        let part = PartFile::begin(&store, &target, JournalKey::default(), options).unwrap();
        part.writer().write_at(&[2; 100], 0).unwrap();
        assert!(!place.make_room(1001, 0, DAY));
        assert!(place.make_room(1000, 0, DAY));
        assert!(place.path("a/.x.ropewalk-part").exists() && !place.path("a/b/.y.ropewalk-part").exists());
    }
}
