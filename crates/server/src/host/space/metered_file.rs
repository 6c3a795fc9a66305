//! An open file whose growth is charged to its accounts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ropewalk_space::Inode;
use ropewalk_storage::{DiskFile, Lock, Metadata, Result, WriteHandle};

use super::{Space, now, refused};

pub(super) struct MeteredFile {
    inner: Arc<dyn WriteHandle>,
    space: Arc<Space>,
    file: Inode,
    path: Vec<u8>,
    /// The file is charged for at least these bytes, unless it was cut since.
    charged: AtomicU64,
}

impl MeteredFile {
    /// `file` is open in the accounts once for this handle.
    pub(super) fn new(inner: Arc<dyn WriteHandle>, space: &Arc<Space>, file: Inode, path: &[u8]) -> Self {
        let (space, path) = (Arc::clone(space), path.to_owned());
        Self { inner, space, file, path, charged: AtomicU64::new(0) }
    }
}

impl Drop for MeteredFile {
    fn drop(&mut self) {
        let metadata = self.inner.metadata();
        let mut book = self.space.book();
        if metadata.as_ref().is_ok_and(|metadata| metadata.links == 0) {
            book.remove(self.file, now());
        }
        let size = metadata.map_or_else(|_| book.charged(self.file).unwrap_or(0), |metadata| metadata.size);
        book.close(self.file, size, now());
    }
}

impl Lock for MeteredFile {
    fn lock(&self) -> Result<bool> {
        self.inner.lock()
    }

    fn lock_shared(&self) -> Result<bool> {
        self.inner.lock_shared()
    }

    fn unlock(&self) {
        self.inner.unlock();
    }
}

impl WriteHandle for MeteredFile {
    fn metadata(&self) -> Result<Metadata> {
        self.inner.metadata()
    }

    fn admit(&self, end: u64) -> Result<()> {
        if end <= self.charged.load(Ordering::Relaxed) {
            return Ok(());
        }
        let grown = self.space.with_room(|book| book.grow(self.file, end, now()));
        grown.map_err(|refusal| refused(&refusal, "write", &self.path))?;
        self.charged.fetch_max(end, Ordering::Relaxed);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.admit(offset.saturating_add(data.len() as u64))?;
        self.inner.write_at(data, offset)
    }

    fn disk(&self) -> Option<&dyn DiskFile> {
        self.inner.disk()
    }

    fn write_now(&self, data: &[u8], offset: u64) -> Result<Option<usize>> {
        self.admit(offset.saturating_add(data.len() as u64))?;
        self.inner.write_now(data, offset)
    }

    fn begin_sync(&self) {
        self.inner.begin_sync();
    }

    fn set_len(&self, length: u64) -> Result<()> {
        self.admit(length)?;
        self.inner.set_len(length)?;
        self.charged.fetch_min(length, Ordering::Relaxed);
        self.space.book().shrink(self.file, length, now());
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn confirm(&self, metadata: &Metadata) -> Result<()> {
        self.inner.confirm(metadata)
    }

    fn sync_system(&self) -> Result<()> {
        self.inner.sync_system()
    }

    fn set_modified(&self, seconds: i64, nanoseconds: u32) -> Result<()> {
        self.inner.set_modified(seconds, nanoseconds)
    }

    fn set_mode(&self, mode: u32) -> Result<()> {
        self.inner.set_mode(mode)
    }
}
