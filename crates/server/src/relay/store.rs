//! The store of a log-in that may use a relay.

use std::sync::Arc;

use bstr::BStr;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_remote_store::RemoteStore;
use ropewalk_storage::checksum::Algorithm;
use ropewalk_storage::{
    Capabilities, Error, ErrorKind, Guard, Impersonation, Interrupted, ListSink, Metadata, Purpose,
    ReadHandle, Result, Store, Upload, UploadSpec, WriteHandle, WriteOptions,
};

use super::hops::Hops;
use super::name::Name;

pub(super) struct RelayStore {
    inner: Arc<dyn Store>,
    hops: Arc<Hops>,
    guard: Option<Guard>,
}

/// A path in the store that has it.
struct Found<'a> {
    store: Place<'a>,
    path: VirtualPath,
    /// Bytes of the path before it.
    prefix: usize,
}

enum Place<'a> {
    Here(&'a dyn Store),
    There(Arc<RemoteStore>),
}

impl Found<'_> {
    fn store(&self) -> &dyn Store {
        match &self.store {
            Place::Here(store) => *store,
            Place::There(store) => &**store,
        }
    }

    fn is_here(&self) -> bool {
        matches!(self.store, Place::Here(_))
    }
}

impl RelayStore {
    pub(super) fn over(inner: Arc<dyn Store>, hops: &Arc<Hops>) -> Arc<dyn Store> {
        Arc::new(Self { inner, hops: hops.clone(), guard: None })
    }

    /// The server and the path there; `None` if the path is one of the store beneath.
    fn name_of(&self, path: &VirtualPath) -> Option<std::result::Result<Name, String>> {
        Name::of(path, self.hops.relay().config.hops as usize)
    }

    fn with(&self, inner: Arc<dyn Store>, guard: Option<Guard>) -> Arc<dyn Store> {
        Arc::new(Self { inner, hops: self.hops.clone(), guard })
    }

    fn find(&self, action: &'static str, path: &VirtualPath, purpose: Purpose) -> Result<Found<'_>> {
        let Some(name) = self.name_of(path) else {
            return Ok(Found { store: Place::Here(&*self.inner), path: path.clone(), prefix: 0 });
        };
        let error = |kind| Error::new(kind, action, path.as_bytes());
        if self.guard.as_ref().is_some_and(|guard| !guard(path, purpose)) {
            return Err(error(ErrorKind::NotAllowed));
        }
        let refused = |reason| error(ErrorKind::Unsupported).with_detail(format!("{reason}."));
        let name = name.map_err(refused)?;
        let store = self.hops.store(&name).map_err(refused)?;
        Ok(Found { store: Place::There(store), path: name.path, prefix: name.prefix })
    }

    fn at<T>(
        &self,
        action: &'static str,
        path: &VirtualPath,
        purpose: Purpose,
        operation: impl FnOnce(&dyn Store, &VirtualPath) -> Result<T>,
    ) -> Result<T> {
        let found = self.find(action, path, purpose)?;
        operation(found.store(), &found.path)
    }
}

impl Store for RelayStore {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn guarded(&self, guard: Guard) -> Option<Arc<dyn Store>> {
        let inner = self.inner.guarded(guard.clone()).unwrap_or_else(|| self.inner.clone());
        Some(self.with(inner, Some(guard)))
    }

    fn without_replacing(&self) -> Option<Arc<dyn Store>> {
        self.inner.without_replacing().map(|inner| self.with(inner, self.guard.clone()))
    }

    fn near(&self, directory: &VirtualPath) -> Option<Arc<dyn Store>> {
        let here = self.name_of(directory).is_none();
        let near = self.inner.near(directory).filter(|_| here)?;
        Some(self.with(near, self.guard.clone()))
    }

    fn own_uid(&self) -> Option<u32> {
        self.inner.own_uid()
    }

    fn acting(&self) -> Result<Impersonation> {
        self.inner.acting()
    }

    fn acting_uid(&self) -> Option<u32> {
        self.inner.acting_uid()
    }

    fn stat(&self, path: &VirtualPath, follow: bool) -> Result<Metadata> {
        self.at("stat", path, Purpose::See, |store, path| store.stat(path, follow))
    }

    fn list(&self, path: &VirtualPath, sink: &mut ListSink<'_>) -> Result<()> {
        self.at("list", path, Purpose::See, |store, path| store.list(path, sink))
    }

    fn open_read(&self, path: &VirtualPath) -> Result<Arc<dyn ReadHandle>> {
        self.at("open", path, Purpose::Read, |store, path| store.open_read(path))
    }

    fn open_write(&self, path: &VirtualPath, options: WriteOptions) -> Result<Arc<dyn WriteHandle>> {
        self.at("open", path, Purpose::Write, |store, path| store.open_write(path, options))
    }

    fn begin_upload(&self, path: &VirtualPath, spec: UploadSpec) -> Result<Arc<dyn Upload>> {
        self.at("open", path, Purpose::Write, |store, path| store.begin_upload(path, spec))
    }

    fn interrupted_upload(
        &self,
        path: &VirtualPath,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Option<Interrupted>> {
        self.at("open", path, Purpose::Write, |store, path| store.interrupted_upload(path, progress))
    }

    fn uploaded_prefix(&self, path: &VirtualPath) -> Result<Option<u64>> {
        self.at("stat", path, Purpose::See, |store, path| store.uploaded_prefix(path))
    }

    fn upload_space(&self, path: &VirtualPath) -> u64 {
        self.at("stat", path, Purpose::See, |store, path| Ok(store.upload_space(path))).unwrap_or(0)
    }

    fn make_directory(&self, path: &VirtualPath, mode: u32) -> Result<()> {
        self.at("mkdir", path, Purpose::Write, |store, path| store.make_directory(path, mode))
    }

    fn remove_directory(&self, path: &VirtualPath) -> Result<()> {
        self.at("rmdir", path, Purpose::Write, |store, path| store.remove_directory(path))
    }

    fn remove_file(&self, path: &VirtualPath) -> Result<()> {
        self.at("unlink", path, Purpose::Write, |store, path| store.remove_file(path))
    }

    fn rename(&self, from: &VirtualPath, to: &VirtualPath) -> Result<()> {
        let (source, target) =
            (self.find("rename", from, Purpose::WriteTree)?, self.find("rename", to, Purpose::WriteTree)?);
        if source.is_here() && target.is_here() {
            return self.inner.rename(from, to);
        }
        let same = source.prefix == target.prefix
            && from.as_bytes()[..source.prefix] == to.as_bytes()[..target.prefix];
        if !same {
            return Err(Error::new(ErrorKind::CrossDevice, "rename", from.as_bytes()));
        }
        source.store().rename(&source.path, &target.path)
    }

    fn rename_file(&self, from: &VirtualPath, to: &VirtualPath) -> Result<()> {
        let here = |path| self.name_of(path).is_none();
        if here(from) && here(to) { self.inner.rename_file(from, to) } else { self.rename(from, to) }
    }

    fn symlink(&self, target: &BStr, link: &VirtualPath) -> Result<()> {
        self.at("symlink", link, Purpose::Write, |store, link| store.symlink(target, link))
    }

    fn set_modified(&self, path: &VirtualPath, seconds: i64, nanoseconds: u32) -> Result<()> {
        self.at("utimes", path, Purpose::Write, |store, path| store.set_modified(path, seconds, nanoseconds))
    }

    fn set_mode(&self, path: &VirtualPath, mode: u32) -> Result<()> {
        self.at("chmod", path, Purpose::Write, |store, path| store.set_mode(path, mode))
    }

    fn set_group(&self, path: &VirtualPath, gid: u32) -> Result<()> {
        self.at("chown", path, Purpose::Write, |store, path| store.set_group(path, gid))
    }

    fn truncate(&self, path: &VirtualPath, length: u64) -> Result<()> {
        self.at("truncate", path, Purpose::Write, |store, path| store.truncate(path, length))
    }

    fn real_path(&self, path: &VirtualPath) -> Result<VirtualPath> {
        // Links beyond are the business of the other server.
        match self.name_of(path) {
            None => self.inner.real_path(path),
            Some(_) => Ok(path.clone()),
        }
    }

    fn checksum(
        &self,
        path: &VirtualPath,
        algorithm: Algorithm,
        offset: u64,
        length: Option<u64>,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Option<Result<String>> {
        match self.find("checksum", path, Purpose::Read) {
            Ok(found) => found.store().checksum(&found.path, algorithm, offset, length, progress),
            Err(error) => Some(Err(error)),
        }
    }

    fn sync_directory(&self, path: &VirtualPath) -> Result<()> {
        self.at("sync", path, Purpose::See, |store, path| store.sync_directory(path))
    }

    fn free_space(&self, path: &VirtualPath) -> Result<Option<u64>> {
        self.at("stat", path, Purpose::See, |store, path| store.free_space(path))
    }

    fn total_space(&self, path: &VirtualPath) -> Result<Option<u64>> {
        self.at("stat", path, Purpose::See, |store, path| store.total_space(path))
    }

    fn remove_tree_while(&self, path: &VirtualPath, go_on: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.at("remove", path, Purpose::WriteTree, |store, path| store.remove_tree_while(path, go_on))
    }
}
