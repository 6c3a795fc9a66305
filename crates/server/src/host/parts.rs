//! Part files that several sessions write at the same time.
//!
//! A client may send the ranges of one file over several control connections (ESTO), and one
//! journal has to record them all. The registry belongs to the host. A lock for each part file
//! makes sure that two sessions that arrive at once share it.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_storage::{ErrorKind, Metadata, PartFile, Result, Store, Upload as _, WriteOptions};

/// The time that the last holder of a part file may need to bring its journal up to date before
/// others can lock the file.
pub(crate) const RELEASE_TIME: Duration = Duration::from_secs(1);

/// A place for a file: device and inode of its directory, and its name. It stays the same if the
/// file is removed and created again.
type Place = (u64, u64, Vec<u8>);

/// Locked while a part file is opened, so that the second of two sessions finds it.
type Slot = Mutex<Open>;

#[derive(Default)]
struct Open {
    part: Weak<PartFile>,
    /// The modification time of the source, if a client has reported it.
    version: Option<i64>,
}

/// Part files that this session has uploaded completely and that have not been renamed yet: the
/// session's path, and the metadata after the upload.
#[derive(Debug, Default)]
pub(crate) struct CompletedParts(HashMap<VirtualPath, Metadata>);

impl CompletedParts {
    /// More than a client has uploads whose names are still to come.
    const MOST: usize = 1024;

    pub(crate) fn insert(&mut self, part: VirtualPath, whole: Metadata) {
        if self.0.len() >= Self::MOST {
            self.0.clear();
        }
        self.0.insert(part, whole);
    }

    pub(crate) fn get(&self, part: &VirtualPath) -> Option<&Metadata> {
        self.0.get(part)
    }

    pub(crate) fn remove(&mut self, part: &VirtualPath) {
        self.0.remove(part);
    }
}

/// Files that are appended to, by device and inode.
#[derive(Default)]
pub(crate) struct Appends(Mutex<HashSet<(u64, u64)>>);

/// No other session appends to the file until this is dropped.
pub(crate) struct Appending<'a>(&'a Appends, (u64, u64));

impl Appends {
    /// `None` if another session appends to the file.
    pub(crate) fn begin(&self, file: (u64, u64)) -> Option<Appending<'_>> {
        let first = self.0.lock().insert(file);
        first.then(|| Appending(self, file))
    }
}

impl Drop for Appending<'_> {
    fn drop(&mut self) {
        self.0.0.lock().remove(&self.1);
    }
}

#[derive(Default)]
pub(crate) struct SharedParts(Mutex<HashMap<Place, Arc<Slot>>>);

impl SharedParts {
    /// Returns the part file at `place`, which other sessions may have open already. If none has,
    /// `begin` opens it. After a crash of the machine that may read the whole file; only sessions
    /// that want the same file wait for it.
    ///
    /// `version` is the modification time of the caller's source, and on return that of the part
    /// file's source if it is known. `begin` sets it to what it finds.
    pub(crate) fn open(
        &self,
        store: &Arc<dyn Store>,
        place: &VirtualPath,
        version: &Cell<Option<i64>>,
        begin: impl Fn() -> Result<PartFile>,
    ) -> Result<Arc<PartFile>> {
        let slot = self.slot(place_of(&**store, place));
        let mut slot = slot.lock();
        // Opened here, since the second session may have other rights than the first.
        let write = WriteOptions { create: false, truncate: false, exclusive: false, mode: 0 };
        match store.open_write(place, write) {
            Ok(handle) => {
                let found = handle.metadata()?;
                if let Some(part) = slot.part.upgrade() {
                    let open = part.writer().metadata()?;
                    if (open.device, open.inode) == (found.device, found.inode) {
                        slot.version = slot.version.or(version.get());
                        version.set(slot.version);
                        return Ok(part);
                    }
                }
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        // The last holder may be about to release the part file, and can no longer be joined.
        let until = (!Weak::ptr_eq(&slot.part, &Weak::new())).then(|| Instant::now() + RELEASE_TIME);
        let part = loop {
            match begin() {
                Err(error)
                    if error.kind() == ErrorKind::Busy && until.is_some_and(|end| Instant::now() < end) =>
                {
                    std::thread::sleep(RELEASE_TIME / 200);
                }
                begun => break Arc::new(begun?),
            }
        };
        *slot = Open { part: Arc::downgrade(&part), version: version.get() };
        Ok(part)
    }

    fn slot(&self, place: Place) -> Arc<Slot> {
        let mut slots = self.0.lock();
        // Entries that other threads hold are being opened. The last holder of this one has to be
        // known, even if it has released the file.
        slots.retain(|other, slot| {
            *other == place || Arc::strong_count(slot) > 1 || slot.lock().part.strong_count() > 0
        });
        Arc::clone(slots.entry(place).or_default())
    }
}

fn place_of(store: &dyn Store, path: &VirtualPath) -> Place {
    match (store.stat(&path.parent().unwrap_or_else(VirtualPath::root), true), path.file_name()) {
        (Ok(directory), Some(name)) => (directory.device, directory.inode, name.to_vec()),
        // A user who may write a file is not necessarily allowed to look at its directory.
        _ => (0, 0, path.as_bytes().to_vec()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;
    use std::thread;

    use ropewalk_storage::{JournalKey, MemoryStore, UploadOptions};

    use super::*;

    fn path(name: &str) -> VirtualPath {
        VirtualPath::parse(name.as_bytes()).unwrap()
    }

    fn open(parts: &SharedParts, store: &Arc<dyn Store>, name: &str) -> Arc<PartFile> {
        let begin = || PartFile::begin(store, &path(name), JournalKey::default(), UploadOptions::default());
        parts.open(store, &path(name), &Cell::default(), begin).unwrap()
    }

    #[test]
    fn part_file_while_open_is_shared_by_sessions() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(1 << 20));
        let parts = SharedParts::default();
        let first = open(&parts, &store, "/.f.ropewalk-part");
        assert!(Arc::ptr_eq(&first, &open(&parts, &store, "/.f.ropewalk-part")));
        let other = open(&parts, &store, "/.g.ropewalk-part");
        assert!(!Arc::ptr_eq(&first, &other));
        first.discard().unwrap();
        // Another file has this name now.
        let anew = open(&parts, &store, "/.f.ropewalk-part");
        assert!(!Arc::ptr_eq(&first, &anew));
        drop((first, anew));
        open(&parts, &store, "/.f.ropewalk-part");
        assert!(parts.0.lock().len() <= 2);
    }

    #[test]
    fn part_file_being_released_is_waited_for() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(1 << 20));
        let parts = SharedParts::default();
        let name = path("/.f.ropewalk-part");
        let first = open(&parts, &store, "/.f.ropewalk-part");
        first.writer().write_at(b"abc", 0).unwrap();
        first.record(0..3, None).unwrap();
        // The handle keeps the lock, as the journal's last entry does on its way to the disk.
        let held = first.writer();
        drop(first);
        let tries = AtomicU32::new(0);
        let held = Mutex::new(Some(held));
        let options = UploadOptions { resume: true, ..UploadOptions::default() };
        let begin = || {
            if tries.fetch_add(1, Ordering::Relaxed) == 2 {
                held.lock().take();
            }
            PartFile::begin(&store, &name, JournalKey::default(), options)
        };
        parts.open(&store, &name, &Cell::default(), begin).unwrap();
        assert!(tries.load(Ordering::Relaxed) >= 3);
    }

    #[test]
    fn part_file_being_verified_blocks_no_other() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(1 << 20));
        let parts = SharedParts::default();
        let (begun, waits) = channel();
        let both = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                let begin = || {
                    begun.send(()).unwrap();
                    both.wait();
                    PartFile::begin(
                        &store,
                        &path("/.f.ropewalk-part"),
                        JournalKey::default(),
                        UploadOptions::default(),
                    )
                };
                parts.open(&store, &path("/.f.ropewalk-part"), &Cell::default(), begin).unwrap();
            });
            waits.recv().unwrap();
            // This would never return if it waited for the first one.
            open(&parts, &store, "/.g.ropewalk-part");
            both.wait();
        });
    }
}
