//! A store for tests that reports its operations to a hook, which can make them fail.

use std::sync::Arc;

use bstr::BStr;
use parking_lot::Mutex;
use ropewalk_protocol::path::VirtualPath;

use crate::{
    Capabilities, DiskFile, Error, ErrorKind, Interrupted, ListSink, Lock, Metadata, PartFile, Positions,
    ReadHandle, Result, Store, Upload, UploadSpec, WriteHandle, WriteOptions,
};

/// An operation on a store or a file that a [`Hooked`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    OpenRead,
    Sync,
    BeginSync,
    /// No more data is written.
    Confirm,
    /// Called instead of a sync of the directory that contains the file.
    SyncSystem,
    SyncDirectory,
    /// An exclusive lock.
    Lock,
    Rename,
    List,
    /// The end of a listing. The listing starts again if the hook returns an error.
    ListEnd,
}

/// The operations, and their paths.
pub type Deeds = Arc<Mutex<Vec<(Deed, VirtualPath)>>>;

type Hook = dyn Fn(Deed, &VirtualPath) -> Result<()> + Send + Sync;

/// A wrapper of another store that calls a hook before each [`Deed`]. If the hook returns an error,
/// the operation is not performed.
#[derive(Clone)]
pub struct Hooked {
    inner: Arc<dyn Store>,
    hook: Arc<Hook>,
}

impl Hooked {
    pub fn new(
        inner: Arc<dyn Store>,
        hook: impl Fn(Deed, &VirtualPath) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self { inner, hook: Arc::new(hook) }
    }

    /// A wrapper that only records the operations.
    pub fn recorded(inner: Arc<dyn Store>) -> (Self, Deeds) {
        let record = Arc::new(Mutex::new(Vec::new()));
        let deeds = Arc::clone(&record);
        let hooked = Self::new(inner, move |deed, path| {
            deeds.lock().push((deed, path.clone()));
            Ok(())
        });
        (hooked, record)
    }

    /// An error for a hook to return.
    pub fn failure(path: &VirtualPath) -> Error {
        Error::new(ErrorKind::Io, "test", path.as_bytes())
    }
}

impl Store for Hooked {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn own_uid(&self) -> Option<u32> {
        self.inner.own_uid()
    }

    fn stat(&self, path: &VirtualPath, follow: bool) -> Result<Metadata> {
        self.inner.stat(path, follow)
    }

    fn list(&self, path: &VirtualPath, sink: &mut ListSink<'_>) -> Result<()> {
        (self.hook)(Deed::List, path)?;
        loop {
            self.inner.list(path, sink)?;
            if (self.hook)(Deed::ListEnd, path).is_ok() {
                return Ok(());
            }
        }
    }

    fn open_read(&self, path: &VirtualPath) -> Result<Arc<dyn ReadHandle>> {
        (self.hook)(Deed::OpenRead, path)?;
        self.inner.open_read(path)
    }

    fn open_write(&self, path: &VirtualPath, options: WriteOptions) -> Result<Arc<dyn WriteHandle>> {
        let inner = self.inner.open_write(path, options)?;
        Ok(Arc::new(HookedFile { inner, path: path.clone(), hook: Arc::clone(&self.hook) }))
    }

    fn begin_upload(&self, path: &VirtualPath, spec: UploadSpec) -> Result<Arc<dyn Upload>> {
        let store: Arc<dyn Store> = Arc::new(self.clone());
        Ok(Arc::new(PartFile::begin(&store, path, spec.key, spec.options)?))
    }

    fn interrupted_upload(
        &self,
        path: &VirtualPath,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Option<Interrupted>> {
        PartFile::interrupted(self, path, progress)
    }

    fn make_directory(&self, path: &VirtualPath, mode: u32) -> Result<()> {
        self.inner.make_directory(path, mode)
    }

    fn remove_directory(&self, path: &VirtualPath) -> Result<()> {
        self.inner.remove_directory(path)
    }

    fn remove_file(&self, path: &VirtualPath) -> Result<()> {
        self.inner.remove_file(path)
    }

    fn rename(&self, from: &VirtualPath, to: &VirtualPath) -> Result<()> {
        (self.hook)(Deed::Rename, to)?;
        self.inner.rename(from, to)
    }

    fn rename_file(&self, from: &VirtualPath, to: &VirtualPath) -> Result<()> {
        (self.hook)(Deed::Rename, to)?;
        self.inner.rename_file(from, to)
    }

    fn symlink(&self, target: &BStr, link: &VirtualPath) -> Result<()> {
        self.inner.symlink(target, link)
    }

    fn set_modified(&self, path: &VirtualPath, seconds: i64, nanoseconds: u32) -> Result<()> {
        self.inner.set_modified(path, seconds, nanoseconds)
    }

    fn set_mode(&self, path: &VirtualPath, mode: u32) -> Result<()> {
        self.inner.set_mode(path, mode)
    }

    fn set_group(&self, path: &VirtualPath, gid: u32) -> Result<()> {
        self.inner.set_group(path, gid)
    }

    fn truncate(&self, path: &VirtualPath, length: u64) -> Result<()> {
        self.inner.truncate(path, length)
    }

    fn real_path(&self, path: &VirtualPath) -> Result<VirtualPath> {
        self.inner.real_path(path)
    }

    fn sync_directory(&self, path: &VirtualPath) -> Result<()> {
        (self.hook)(Deed::SyncDirectory, path)?;
        self.inner.sync_directory(path)
    }

    fn free_space(&self, path: &VirtualPath) -> Result<Option<u64>> {
        self.inner.free_space(path)
    }

    fn total_space(&self, path: &VirtualPath) -> Result<Option<u64>> {
        self.inner.total_space(path)
    }
}

struct HookedFile {
    inner: Arc<dyn WriteHandle>,
    path: VirtualPath,
    hook: Arc<Hook>,
}

impl Lock for HookedFile {
    fn lock(&self) -> Result<bool> {
        (self.hook)(Deed::Lock, &self.path)?;
        self.inner.lock()
    }

    fn lock_shared(&self) -> Result<bool> {
        self.inner.lock_shared()
    }

    fn unlock(&self) {
        self.inner.unlock();
    }
}

impl WriteHandle for HookedFile {
    fn metadata(&self) -> Result<Metadata> {
        self.inner.metadata()
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.inner.write_at(data, offset)
    }

    fn positions(&self) -> Positions {
        self.inner.positions()
    }

    fn disk(&self) -> Option<&dyn DiskFile> {
        self.inner.disk()
    }

    fn begin_sync(&self) {
        // This operation has no error to return.
        if (self.hook)(Deed::BeginSync, &self.path).is_ok() {
            self.inner.begin_sync();
        }
    }

    fn set_len(&self, length: u64) -> Result<()> {
        self.inner.set_len(length)
    }

    fn sync(&self) -> Result<()> {
        (self.hook)(Deed::Sync, &self.path)?;
        self.inner.sync()
    }

    fn confirm(&self, metadata: &Metadata) -> Result<()> {
        (self.hook)(Deed::Confirm, &self.path)?;
        self.inner.confirm(metadata)
    }

    fn sync_system(&self) -> Result<()> {
        (self.hook)(Deed::SyncSystem, &self.path)?;
        self.inner.sync_system()
    }

    fn set_modified(&self, seconds: i64, nanoseconds: u32) -> Result<()> {
        self.inner.set_modified(seconds, nanoseconds)
    }

    fn set_mode(&self, mode: u32) -> Result<()> {
        self.inner.set_mode(mode)
    }
}
