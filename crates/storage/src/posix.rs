//! The local file system, beneath a root directory that no path and no symbolic link leaves.

mod file;
mod list;
mod manual;
mod metadata;
mod options;
mod remove;
mod root;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use bstr::BStr;
pub use options::{Identity, PosixOptions};
use ropewalk_protocol::path::VirtualPath;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::{Errno, retry_on_intr};

use self::file::PosixFile;
use self::metadata::Stats;
use self::root::Root;
use crate::error::Context;
use crate::{
    Capabilities, Error, ErrorKind, ListSink, Metadata, ReadHandle, Result, Store, WriteHandle, WriteOptions,
};

/// The files beneath a directory of this machine.
///
/// Every path is resolved by the kernel (`openat2`) as if the root directory were `/`: an absolute symbolic link
/// counts from it, `..` does not leave it, and nobody who moves directories or swaps links meanwhile can change that.
/// A root of `/` is used as it is.
pub struct PosixStore {
    root: Root,
    options: PosixOptions,
    identity: Arc<Identity>,
}

impl PosixStore {
    /// Fails where `root` is not a directory that can be opened.
    pub fn new(root: &Path, options: PosixOptions) -> Result<Self> {
        let identity = Arc::new(options.identity.clone().unwrap_or_else(Identity::of_process));
        Ok(Self { root: Root::open(root)?, options, identity })
    }

    fn file(&self, fd: rustix::fd::OwnedFd, path: &VirtualPath) -> Result<PosixFile> {
        PosixFile::new(fd, path.clone(), self.identity.clone())
    }

    /// Opens what exists, for writing.
    fn open_existing(&self, path: &VirtualPath, truncate: bool) -> Result<PosixFile, Errno> {
        // Not waiting for a reader of a FIFO or the carrier of a line; cleared again by `PosixFile`.
        let mut flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        flags.set(OFlags::TRUNC, truncate);
        let fd = self.root.open_at(path, flags, Mode::empty())?;
        PosixFile::classified(fd, path.clone(), self.identity.clone())
    }

    /// Makes a file, never through a symbolic link.
    fn open_new(&self, path: &VirtualPath, mode: u32) -> Result<PosixFile, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOCTTY;
        // The bits beyond rwx are not permissions, and stay as they were asked for.
        let bits = self.options.file_mode.map_or(mode, |fixed| fixed | (mode & 0o7000));
        let mode = Mode::from_raw_mode(bits & 0o7777);
        let fd = self.root.open_at(path, flags, mode)?;
        if self.options.file_mode.is_some() {
            rustix::fs::fchmod(&fd, mode)?;
        }
        Ok(PosixFile::regular(fd, path.clone(), self.identity.clone()))
    }
}

impl Store for PosixStore {
    fn name(&self) -> &'static str {
        "posix"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { descriptors: true, sparse: true, rename: true, symlinks: true, random_write: true }
    }

    fn stat(&self, path: &VirtualPath, follow: bool) -> Result<Metadata> {
        if follow {
            let stats = self.root.stat(path).context("stat", path.as_bytes())?;
            return Ok(Stats(stats).metadata(&self.identity));
        }
        let place = self.root.place(path).context("stat", path.as_bytes())?;
        let stats = rustix::fs::statat(place.directory(), place.name(), AtFlags::SYMLINK_NOFOLLOW)
            .context("stat", path.as_bytes())?;
        let mut metadata = Stats(stats).metadata(&self.identity);
        list::fill_target(&mut metadata, place.directory(), place.name());
        Ok(metadata)
    }

    fn list(&self, path: &VirtualPath, sink: &mut ListSink<'_>) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = self.root.open_at(path, flags, Mode::empty()).context("list", path.as_bytes())?;
        list::entries(&directory, path, &self.identity, sink)
    }

    fn open_read(&self, path: &VirtualPath) -> Result<Arc<dyn ReadHandle>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = self.root.open_at(path, flags, Mode::empty()).context("open", path.as_bytes())?;
        Ok(Arc::new(self.file(fd, path)?))
    }

    fn open_write(&self, path: &VirtualPath, options: WriteOptions) -> Result<Arc<dyn WriteHandle>> {
        if options.exclusive {
            return Ok(Arc::new(self.open_new(path, options.mode).context("create", path.as_bytes())?));
        }
        // A file that comes and goes between the two calls is tried again; a symbolic link that leads nowhere
        // "exists" for the one and not for the other for ever.
        for _ in 0..8 {
            match self.open_existing(path, options.truncate) {
                Err(Errno::NOENT) if options.create => {}
                result => return Ok(Arc::new(result.context("open", path.as_bytes())?)),
            }
            match self.open_new(path, options.mode) {
                Err(Errno::EXIST) => {}
                result => return Ok(Arc::new(result.context("create", path.as_bytes())?)),
            }
        }
        Err(Error::new(ErrorKind::AlreadyExists, "create", path.as_bytes())
            .with_detail("a symbolic link that leads nowhere"))
    }

    fn make_directory(&self, path: &VirtualPath, mode: u32) -> Result<()> {
        let make = || {
            let place = self.root.place(path)?;
            let mode = Mode::from_raw_mode(self.options.directory_mode.unwrap_or(mode) & 0o7777);
            rustix::fs::mkdirat(place.directory(), place.name(), mode)?;
            if self.options.directory_mode.is_some() {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = rustix::fs::openat(place.directory(), place.name(), flags, Mode::empty())?;
                rustix::fs::fchmod(made, mode)?;
            }
            Ok(())
        };
        if path.is_root() {
            return Err(Error::new(ErrorKind::AlreadyExists, "mkdir", path.as_bytes()));
        }
        make().context("mkdir", path.as_bytes())
    }

    fn remove_directory(&self, path: &VirtualPath) -> Result<()> {
        keep_root(path, "rmdir")?;
        let place = self.root.place(path).context("rmdir", path.as_bytes())?;
        rustix::fs::unlinkat(place.directory(), place.name(), AtFlags::REMOVEDIR)
            .context("rmdir", path.as_bytes())
    }

    fn remove_file(&self, path: &VirtualPath) -> Result<()> {
        let place = self.root.place(path).context("unlink", path.as_bytes())?;
        rustix::fs::unlinkat(place.directory(), place.name(), AtFlags::empty())
            .context("unlink", path.as_bytes())
    }

    fn rename(&self, from: &VirtualPath, to: &VirtualPath) -> Result<()> {
        keep_root(from, "rename")?;
        keep_root(to, "rename to")?;
        let old = self.root.place(from).context("rename", from.as_bytes())?;
        let new = if from.parent() == to.parent() {
            old.sibling(to)
        } else {
            self.root.place(to).context("rename to", to.as_bytes())?
        };
        rustix::fs::renameat(old.directory(), old.name(), new.directory(), new.name())
            .context("rename", from.as_bytes())
            .map_err(|error| error.with_detail(format!("to {to}")))
    }

    fn symlink(&self, target: &BStr, link: &VirtualPath) -> Result<()> {
        let place = self.root.place(link).context("symlink", link.as_bytes())?;
        rustix::fs::symlinkat(&**target, place.directory(), place.name()).context("symlink", link.as_bytes())
    }

    fn set_modified(&self, path: &VirtualPath, seconds: i64, nanoseconds: u32) -> Result<()> {
        let set = || {
            let (_open, name) = self.root.followed(path)?;
            rustix::fs::utimensat(CWD, name, &modification(seconds, nanoseconds), AtFlags::empty())
        };
        set().context("set time", path.as_bytes())
    }

    fn set_mode(&self, path: &VirtualPath, mode: u32) -> Result<()> {
        let set = || {
            let (_open, name) = self.root.followed(path)?;
            rustix::fs::chmodat(CWD, name, Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())
        };
        set().context("chmod", path.as_bytes())
    }

    fn set_group(&self, path: &VirtualPath, gid: u32) -> Result<()> {
        let set = || {
            let (_open, name) = self.root.followed(path)?;
            let group = options::group(gid).ok_or(Errno::INVAL)?;
            rustix::fs::chownat(CWD, name, None, Some(group), AtFlags::empty())
        };
        set().context("chgrp", path.as_bytes())
    }

    fn truncate(&self, path: &VirtualPath, length: u64) -> Result<()> {
        let set = || {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
            let fd = self.root.open_at(path, flags, Mode::empty())?;
            retry_on_intr(|| rustix::fs::ftruncate(&fd, length))
        };
        set().context("truncate", path.as_bytes())
    }

    fn real_path(&self, path: &VirtualPath) -> Result<VirtualPath> {
        self.root.real_path(path)
    }

    fn sync_directory(&self, path: &VirtualPath) -> Result<()> {
        let sync = || {
            let fd = self.root.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
            retry_on_intr(|| rustix::fs::fsync(&fd))
        };
        sync().context("sync", path.as_bytes())
    }

    fn free_space(&self, path: &VirtualPath) -> Result<Option<u64>> {
        let fd = self.root.open_at(path, OFlags::PATH, Mode::empty()).context("statvfs", path.as_bytes())?;
        let stats = rustix::fs::fstatvfs(fd).context("statvfs", path.as_bytes())?;
        Ok(Some(stats.f_bavail.saturating_mul(stats.f_frsize)))
    }

    fn remove_tree(&self, path: &VirtualPath) -> Result<()> {
        keep_root(path, "remove")?;
        let place = self.root.place(path).context("remove", path.as_bytes())?;
        remove::tree(place.directory(), place.name(), path)
    }
}

/// The root directory can be neither removed nor renamed.
fn keep_root(path: &VirtualPath, action: &'static str) -> Result<()> {
    if path.is_root() { Err(Error::new(ErrorKind::Busy, action, path.as_bytes())) } else { Ok(()) }
}

fn modification(seconds: i64, nanoseconds: u32) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
    }
}
