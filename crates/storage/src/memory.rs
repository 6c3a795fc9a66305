//! A store in memory, for tests and small temporary files. A lock protects the tree of names, and
//! each file has its own lock. All files share one capacity.

mod file;
#[cfg(test)]
mod tests;
mod tree;
mod upload;

use std::sync::Arc;

use bstr::{BStr, BString};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use ropewalk_protocol::path::VirtualPath;

use self::file::{File, Handle, Space};
use self::tree::{Body, Tree};
use self::upload::{MemoryUpload, Uploads};
use crate::{
    Capabilities, Error, ErrorKind, Interrupted, ListSink, Metadata, ReadHandle, Result, Store, Upload,
    UploadSpec, WriteHandle, WriteOptions,
};

/// Files, directories and symbolic links in memory. Holes take memory; permissions are stored but
/// not enforced.
pub struct MemoryStore {
    tree: Arc<RwLock<Tree>>,
    space: Arc<Space>,
    uploads: Arc<Uploads>,
}

impl MemoryStore {
    /// Makes an empty store. `capacity` is the maximum number of bytes of all files together.
    pub fn new(capacity: u64) -> Self {
        Self {
            tree: Arc::new(RwLock::new(Tree::new())),
            space: Arc::new(Space::new(capacity)),
            uploads: Arc::default(),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Tree> {
        self.tree.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tree> {
        self.tree.write()
    }

    /// The path of an upload with the links to its directory resolved.
    fn upload_name(&self, path: &VirtualPath) -> Result<Vec<u8>> {
        Ok(self.read().locate(path, false).map_err(fail("open", path))?.path())
    }

    fn file(&self, path: &VirtualPath) -> Result<Arc<File>, ErrorKind> {
        let tree = self.read();
        match &tree.node(tree.existing(path, true)?).body {
            Body::File(file) => Ok(file.clone()),
            Body::Directory(_) => Err(ErrorKind::IsDirectory),
            Body::Link(_) => Err(ErrorKind::TooManyLinks),
        }
    }

    fn file_to_write(&self, path: &VirtualPath, options: WriteOptions) -> Result<Arc<File>, ErrorKind> {
        let mut tree = self.write();
        let spot = tree.locate(path, !options.exclusive)?;
        let Some(id) = spot.node else {
            if !options.create && !options.exclusive {
                return Err(ErrorKind::NotFound);
            }
            // As on a file system, a symbolic link to a missing target is not followed to create a
            // file.
            if tree.locate(path, false)?.node.is_some() {
                return Err(ErrorKind::AlreadyExists);
            }
            let file = Arc::new(File::new(self.space.clone()));
            tree.add(&spot, Body::File(file.clone()), options.mode)?;
            return Ok(file);
        };
        if options.exclusive {
            return Err(ErrorKind::AlreadyExists);
        }
        let Body::File(file) = &tree.node(id).body else { return Err(ErrorKind::IsDirectory) };
        if options.truncate {
            file.set_len(0)?;
        }
        Ok(file.clone())
    }
}

impl Store for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            keeps: true,
            rename: true,
            symlinks: true,
            random_write: true,
            outlives_name: true,
            any_name: true,
        }
    }

    fn stat(&self, path: &VirtualPath, follow: bool) -> Result<Metadata> {
        let tree = self.read();
        let id = tree.existing(path, follow).map_err(fail("stat", path))?;
        Ok(tree.node(id).metadata())
    }

    fn list(&self, path: &VirtualPath, sink: &mut ListSink<'_>) -> Result<()> {
        // The sink is called without the lock, because it may use the store.
        let entries: Vec<(BString, Metadata)> = {
            let tree = self.read();
            let id = tree.existing(path, true).map_err(fail("list", path))?;
            let Body::Directory(entries) = &tree.node(id).body else {
                return Err(fail("list", path)(ErrorKind::NotDirectory));
            };
            entries.iter().map(|(name, &id)| (name.clone(), tree.node(id).metadata())).collect()
        };
        entries.into_iter().try_for_each(|(name, metadata)| sink(BStr::new(&name), metadata))
    }

    fn open_read(&self, path: &VirtualPath) -> Result<Arc<dyn ReadHandle>> {
        let file = self.file(path).map_err(fail("open", path))?;
        Ok(Arc::new(Handle::new(file, path.clone())))
    }

    fn open_write(&self, path: &VirtualPath, options: WriteOptions) -> Result<Arc<dyn WriteHandle>> {
        let file = self.file_to_write(path, options).map_err(fail("open", path))?;
        Ok(Arc::new(Handle::new(file, path.clone())))
    }

    fn begin_upload(&self, path: &VirtualPath, spec: UploadSpec) -> Result<Arc<dyn Upload>> {
        let name = self.upload_name(path)?;
        let file = || Arc::new(File::new(self.space.clone()));
        Ok(Arc::new(MemoryUpload::begin(&self.tree, &self.uploads, name, path, spec, file)?))
    }

    fn interrupted_upload(
        &self,
        path: &VirtualPath,
        _progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Option<Interrupted>> {
        self.uploads.interrupted(&self.upload_name(path)?, path)
    }

    fn uploaded_prefix(&self, path: &VirtualPath) -> Result<Option<u64>> {
        self.uploads.prefix(&self.upload_name(path)?, path)
    }

    fn upload_space(&self, path: &VirtualPath) -> u64 {
        self.upload_name(path).map_or(0, |name| self.uploads.space(&name))
    }

    fn make_directory(&self, path: &VirtualPath, mode: u32) -> Result<()> {
        let mut tree = self.write();
        let spot = tree.locate(path, false).map_err(fail("mkdir", path))?;
        if spot.node.is_some() {
            return Err(fail("mkdir", path)(ErrorKind::AlreadyExists));
        }
        tree.add(&spot, Body::Directory(Default::default()), mode).map_err(fail("mkdir", path))
    }

    fn remove_directory(&self, path: &VirtualPath) -> Result<()> {
        self.write().remove(path, true).map_err(fail("rmdir", path))
    }

    fn remove_file(&self, path: &VirtualPath) -> Result<()> {
        self.write().remove(path, false).map_err(fail("unlink", path))
    }

    fn rename(&self, from: &VirtualPath, to: &VirtualPath) -> Result<()> {
        self.write()
            .rename(from, to)
            .map_err(fail("rename", from))
            .map_err(|e| e.with_detail(format!("to {to}")))
    }

    fn symlink(&self, target: &BStr, link: &VirtualPath) -> Result<()> {
        let mut tree = self.write();
        let spot = tree.locate(link, false).map_err(fail("symlink", link))?;
        if spot.node.is_some() {
            return Err(fail("symlink", link)(ErrorKind::AlreadyExists));
        }
        tree.add(&spot, Body::Link(target.into()), 0o777).map_err(fail("symlink", link))
    }

    fn set_modified(&self, path: &VirtualPath, seconds: i64, nanoseconds: u32) -> Result<()> {
        let tree = self.read();
        let id = tree.existing(path, true).map_err(fail("set time", path))?;
        tree.node(id).attributes().set_modified(seconds, nanoseconds);
        Ok(())
    }

    fn set_mode(&self, path: &VirtualPath, mode: u32) -> Result<()> {
        let tree = self.read();
        let id = tree.existing(path, true).map_err(fail("chmod", path))?;
        tree.node(id).attributes().set_mode(mode);
        Ok(())
    }

    fn set_group(&self, path: &VirtualPath, gid: u32) -> Result<()> {
        let tree = self.read();
        let id = tree.existing(path, true).map_err(fail("chgrp", path))?;
        tree.node(id).attributes().set_group(gid);
        Ok(())
    }

    fn truncate(&self, path: &VirtualPath, length: u64) -> Result<()> {
        self.file(path).and_then(|file| file.set_len(length)).map_err(fail("truncate", path))
    }

    fn real_path(&self, path: &VirtualPath) -> Result<VirtualPath> {
        let tree = self.read();
        let spot = tree.locate(path, true).map_err(fail("resolve", path))?;
        if spot.node.is_none() {
            return Err(fail("resolve", path)(ErrorKind::NotFound));
        }
        VirtualPath::parse(&spot.path()).map_err(|_| fail("resolve", path)(ErrorKind::Invalid))
    }

    fn remove_tree_while(&self, path: &VirtualPath, go_on: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        // The whole tree is removed in one step, because that takes no time.
        go_on()?;
        self.write().remove_tree(path).map_err(fail("remove", path))
    }

    fn free_space(&self, _path: &VirtualPath) -> Result<Option<u64>> {
        Ok(Some(self.space.free()))
    }

    fn total_space(&self, _path: &VirtualPath) -> Result<Option<u64>> {
        Ok(Some(self.space.total()))
    }
}

fn fail(action: &'static str, path: &VirtualPath) -> impl Fn(ErrorKind) -> Error {
    move |kind| Error::new(kind, action, path.as_bytes())
}
