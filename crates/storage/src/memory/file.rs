//! Files of the memory store: content, attributes, locks and the shared space.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard, RwLock};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;

use crate::{Error, ErrorKind, Kind, Lock, Metadata, ReadHandle, Result, WriteHandle};

/// The space that all files of a store share, in bytes.
pub(super) struct Space {
    capacity: u64,
    used: AtomicU64,
}

impl Space {
    pub(super) fn new(capacity: u64) -> Self {
        Self { capacity, used: AtomicU64::new(0) }
    }

    pub(super) fn total(&self) -> u64 {
        self.capacity
    }

    pub(super) fn free(&self) -> u64 {
        self.capacity - self.used.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> Result<(), ErrorKind> {
        let more = |used: u64| used.checked_add(bytes).filter(|&used| used <= self.capacity);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map(drop).map_err(|_| ErrorKind::NoSpace)
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The common attributes of files, directories and links.
#[derive(Clone, Debug)]
pub(super) struct Attributes {
    pub(super) mode: u32,
    pub(super) gid: u32,
    pub(super) modified: (i64, u32),
    changed: (i64, u32),
    pub(super) inode: u64,
    pub(super) links: u64,
}

impl Attributes {
    pub(super) fn new(mode: u32, inode: u64) -> Self {
        let now = now();
        Self { mode: mode & 0o7777, gid: 0, modified: now, changed: now, inode, links: 1 }
    }

    /// Sets the times after a change of the content.
    pub(super) fn modify(&mut self) {
        self.modified = now();
        self.changed = self.modified;
    }

    pub(super) fn set_modified(&mut self, seconds: i64, nanoseconds: u32) {
        (self.modified, self.changed) = ((seconds, nanoseconds), now());
    }

    pub(super) fn set_mode(&mut self, mode: u32) {
        (self.mode, self.changed) = (mode & 0o7777, now());
    }

    pub(super) fn set_group(&mut self, gid: u32) {
        (self.gid, self.changed) = (gid, now());
    }

    pub(super) fn metadata(&self, kind: Kind, size: u64) -> Metadata {
        Metadata {
            kind,
            size,
            modified: self.modified,
            changed: self.changed,
            mode: self.mode,
            uid: 0,
            gid: self.gid,
            device: 1,
            inode: self.inode,
            links: self.links,
            blocks: size.div_ceil(512),
            target: None,
            readable: true,
            writable: true,
            searchable: kind == Kind::Directory,
        }
    }
}

fn now() -> (i64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
}

/// The lock state if one handle has an exclusive lock.
const ALONE: i32 = -1;

/// The content of a file. Handles keep it when its name is removed.
pub(super) struct File {
    content: RwLock<Vec<u8>>,
    attributes: Mutex<Attributes>,
    /// The number of handles with a shared lock, or [`ALONE`].
    locks: Mutex<i32>,
    space: Arc<Space>,
}

impl File {
    pub(super) fn new(space: Arc<Space>) -> Self {
        Self {
            content: RwLock::default(),
            attributes: Mutex::new(Attributes::new(0, 0)),
            locks: Mutex::new(0),
            space,
        }
    }

    pub(super) fn attributes(&self) -> MutexGuard<'_, Attributes> {
        self.attributes.lock()
    }

    pub(super) fn metadata(&self) -> Metadata {
        let size = self.content.read().len() as u64;
        self.attributes().metadata(Kind::File, size)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> usize {
        let content = self.content.read();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let length = buffer.len().min(content.len() - start);
        buffer[..length].copy_from_slice(&content[start..start + length]);
        length
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), ErrorKind> {
        let mut content = self.content.write();
        let end = offset.checked_add(data.len() as u64).ok_or(ErrorKind::TooLarge)?;
        if end > content.len() as u64 {
            self.resize(&mut content, end)?;
        }
        // This fits: the content is in memory, so both values are within `usize`.
        let start = end as usize - data.len();
        content[start..start + data.len()].copy_from_slice(data);
        self.attributes().modify();
        Ok(())
    }

    pub(super) fn set_len(&self, length: u64) -> Result<(), ErrorKind> {
        let mut content = self.content.write();
        self.resize(&mut content, length)?;
        self.attributes().modify();
        Ok(())
    }

    fn resize(&self, content: &mut Vec<u8>, length: u64) -> Result<(), ErrorKind> {
        let old = content.len() as u64;
        if length > old {
            self.space.take(length - old)?;
        } else {
            self.space.give_back(old - length);
        }
        let length = usize::try_from(length).map_err(|_| ErrorKind::NoSpace)?;
        content.resize(length, 0);
        Ok(())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let content = self.content.get_mut();
        self.space.give_back(content.len() as u64);
    }
}

/// A file open for reading or writing.
pub(super) struct Handle {
    file: Arc<File>,
    path: VirtualPath,
    /// This handle's share of the file's locks.
    lock: Mutex<i32>,
}

impl Handle {
    pub(super) fn new(file: Arc<File>, path: VirtualPath) -> Self {
        Self { file, path, lock: Mutex::new(0) }
    }

    /// Releases the current lock and takes another one.
    fn lock_as(&self, wanted: i32) -> bool {
        let mut held = self.lock.lock();
        let mut all = self.file.locks.lock();
        *all -= std::mem::take(&mut *held);
        let free = if wanted == ALONE { *all == 0 } else { *all >= 0 };
        if free {
            *all += wanted;
            *held = wanted;
        }
        free
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.lock_as(0);
    }
}

impl Lock for Handle {
    fn lock(&self) -> Result<bool> {
        Ok(self.lock_as(ALONE))
    }

    fn lock_shared(&self) -> Result<bool> {
        Ok(self.lock_as(1))
    }

    fn unlock(&self) {
        self.lock_as(0);
    }
}

impl ReadHandle for Handle {
    fn metadata(&self) -> Result<Metadata> {
        Ok(self.file.metadata())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        Ok(self.file.read_at(buffer, offset))
    }

    fn data_ranges(&self, start: u64, end: u64) -> Result<RangeSet> {
        Ok(RangeSet::from_range(start..end.min(self.file.metadata().size)))
    }
}

impl WriteHandle for Handle {
    fn metadata(&self) -> Result<Metadata> {
        Ok(self.file.metadata())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let written = self.file.write_at(data, offset);
        written.map_err(|kind| Error::new(kind, "write", self.path.as_bytes()).at(offset))
    }

    fn set_len(&self, length: u64) -> Result<()> {
        self.file.set_len(length).map_err(|kind| Error::new(kind, "truncate", self.path.as_bytes()))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn set_modified(&self, seconds: i64, nanoseconds: u32) -> Result<()> {
        self.file.attributes().set_modified(seconds, nanoseconds);
        Ok(())
    }

    fn set_mode(&self, mode: u32) -> Result<()> {
        self.file.attributes().set_mode(mode);
        Ok(())
    }
}
