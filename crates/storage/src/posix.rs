//! The local file system below a root directory, which no path and no symbolic link can leave.
//! Operations run as the process, or impersonate a user in the calling thread. A store can be used
//! from any number of threads.

mod close_errors;
mod direct;
mod file;
mod impersonation;
mod kinds;
mod list;
mod manual;
mod metadata;
mod options;
mod own;
mod remove;
mod rename_noreplace;
mod root;
mod space;
#[cfg(test)]
mod tests;
mod unwritten;
mod watch;

use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;

use bstr::BStr;
pub use impersonation::Impersonation;
pub(crate) use impersonation::thread_starts;
pub use options::{Identity, PosixOptions};
use ropewalk_protocol::path::VirtualPath;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::{Errno, retry_on_intr};

use self::file::PosixFile;
use self::metadata::Stats;
use self::options::User;
use self::root::{Near, Place, Root};
use crate::error::Context;
use crate::{
    Capabilities, Error, ErrorKind, Guard, Interrupted, ListSink, Metadata, PartFile, Purpose, ReadHandle,
    Result, Store, Upload, UploadSpec, WriteHandle, WriteOptions,
};

/// Lets the calling thread run as the process until the guard is dropped.
///
/// # Errors
/// The thread cannot change its identity.
pub(crate) fn act_as_process() -> std::result::Result<Impersonation, Errno> {
    impersonation::act(None)
}

/// The files below a directory of this machine.
///
/// The kernel resolves every path (`openat2`) as if the root directory were `/`: an absolute
/// symbolic link is relative to it, `..` does not leave it, and other processes cannot change that
/// by moving directories or swapping links meanwhile. A root of `/` is used directly, unless
/// [`PosixOptions::no_magic_links`] is set.
#[derive(Clone)]
pub struct PosixStore {
    root: Arc<Root>,
    options: Arc<PosixOptions>,
    user: User,
    guard: Option<Guard>,
    /// Whether `rename` may replace an existing entry.
    replaces: bool,
    near: Option<Arc<Near>>,
}

impl PosixStore {
    /// Opens the root directory as the user that the store impersonates.
    ///
    /// # Errors
    /// `root` does not exist, is not a directory or may not be accessed, or the process may not
    /// impersonate that user.
    pub fn new(root: &Path, options: PosixOptions) -> Result<Self> {
        let user = User::of(&options);
        let acting = user.act_on("open root", &VirtualPath::root())?;
        let root = Arc::new(Root::open(root, !options.no_magic_links)?);
        drop(acting);
        Ok(Self { root, options: Arc::new(options), user, guard: None, replaces: true, near: None })
    }

    fn file(&self, fd: rustix::fd::OwnedFd, path: &VirtualPath) -> Result<PosixFile> {
        PosixFile::new(fd, path.clone(), self.user.clone())
    }

    /// Opens an existing file for writing.
    fn open_existing(&self, path: &VirtualPath, truncate: bool) -> Result<PosixFile> {
        // Do not wait for a reader of a FIFO or the carrier of a line.
        let mut flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        // With a guard, the file is truncated only after the guard has accepted it.
        flags.set(OFlags::TRUNC, truncate && self.guard.is_none());
        let file = self.file(self.opened(path, flags, "open", Purpose::Write)?, path)?;
        if truncate && self.guard.is_some() {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Checks both names with the guard and calls `act`.
    fn renaming(
        &self,
        from: &VirtualPath,
        to: &VirtualPath,
        act: &dyn Fn(&Place<'_>, &Place<'_>) -> std::result::Result<(), Errno>,
    ) -> Result<()> {
        let _acting = self.user.act_on("rename", from)?;
        keep_root(from, "rename")?;
        keep_root(to, "rename to")?;
        let old = self.place(from, "rename", Purpose::Move)?;
        let new = if from.parent() == to.parent() {
            let new = old.sibling(to);
            self.ask_of_entry(&new, to, "rename to", Purpose::WriteTree)?;
            new
        } else {
            self.place(to, "rename to", Purpose::WriteTree)?
        };
        act(&old, &new)
            .context("rename", from.as_bytes())
            .map_err(|error| error.with_detail(format!("to {to}")))
    }

    fn file_system(&self, path: &VirtualPath) -> Result<rustix::fs::StatVfs> {
        let _acting = self.user.act_on("statvfs", path)?;
        let fd = self.root.open_at(path, OFlags::PATH, Mode::empty()).context("statvfs", path.as_bytes())?;
        rustix::fs::fstatvfs(fd).context("statvfs", path.as_bytes())
    }

    /// Creates a file, never through a symbolic link.
    fn open_new(&self, path: &VirtualPath, mode: u32) -> Result<PosixFile> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOCTTY;
        // The bits above rwx are not permissions, so the requested ones are kept.
        let bits = self.options.file_mode.map_or(mode, |fixed| fixed | (mode & 0o7000));
        let mode = Mode::from_raw_mode(bits & 0o7777);
        let made = if self.guard.is_none() && !self.is_near(path) {
            self.root.open_at(path, flags, mode)
        } else {
            let place = self.place(path, "create", Purpose::Write)?;
            let flags = flags | OFlags::CLOEXEC;
            retry_on_intr(|| rustix::fs::openat(place.directory(), place.name(), flags, mode))
        };
        let fd = made.context("create", path.as_bytes())?;
        if self.options.file_mode.is_some() {
            rustix::fs::fchmod(&fd, mode).context("create", path.as_bytes())?;
        }
        Ok(PosixFile::regular(fd, path.clone(), self.user.clone()))
    }
}

impl Store for PosixStore {
    fn name(&self) -> &'static str {
        "posix"
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

    fn guarded(&self, guard: Guard) -> Option<Arc<dyn Store>> {
        Some(Arc::new(Self { guard: Some(guard), ..self.clone() }))
    }

    fn without_replacing(&self) -> Option<Arc<dyn Store>> {
        Some(Arc::new(Self { replaces: false, ..self.clone() }))
    }

    fn near(&self, directory: &VirtualPath) -> Option<Arc<dyn Store>> {
        // If paths are used directly, the kernel resolves them fast enough.
        if self.root.is_plain() {
            return None;
        }
        let _acting = self.user.act().ok()?;
        let near = self.root.open_near(directory).ok()?;
        Some(Arc::new(Self { near: Some(Arc::new(near)), ..self.clone() }))
    }

    fn acting(&self) -> Result<Impersonation> {
        self.user.act_on("act", &VirtualPath::root())
    }

    fn acting_uid(&self) -> Option<u32> {
        self.user.acting_uid()
    }

    fn own_uid(&self) -> Option<u32> {
        Some(self.user.acting_uid().unwrap_or_else(|| rustix::process::geteuid().as_raw()))
    }

    fn stat(&self, path: &VirtualPath, follow: bool) -> Result<Metadata> {
        let _acting = self.user.act_on("stat", path)?;
        if follow {
            let stats = match &self.guard {
                None if !self.options.no_magic_links => self.root.stat(path),
                _ => rustix::fs::fstat(self.opened(path, OFlags::PATH, "stat", Purpose::See)?),
            };
            return Ok(Stats(stats.context("stat", path.as_bytes())?).metadata(&self.user));
        }
        let place = self.place(path, "stat", Purpose::See)?;
        let stats = rustix::fs::statat(place.directory(), place.name(), AtFlags::SYMLINK_NOFOLLOW)
            .context("stat", path.as_bytes())?;
        let mut metadata = Stats(stats).metadata(&self.user);
        list::fill_target(&mut metadata, place.directory(), place.name());
        Ok(metadata)
    }

    fn list(&self, path: &VirtualPath, sink: &mut ListSink<'_>) -> Result<()> {
        let _acting = self.user.act_on("list", path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = self.opened(path, flags, "list", Purpose::See)?;
        let guarded = match &self.guard {
            None => None,
            Some(guard) => Some((guard, self.root.path_of(directory.as_fd(), path)?)),
        };
        let shown = |name: &[u8]| {
            guarded
                .as_ref()
                .is_none_or(|(guard, real)| real.child(name).is_ok_and(|entry| guard(&entry, Purpose::See)))
        };
        list::entries(&directory, path, &self.user, &shown, sink)
    }

    fn open_read(&self, path: &VirtualPath) -> Result<Arc<dyn ReadHandle>> {
        let _acting = self.user.act_on("open", path)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = self.opened(path, flags, "open", Purpose::Read)?;
        Ok(Arc::new(self.file(fd, path)?))
    }

    fn open_write(&self, path: &VirtualPath, options: WriteOptions) -> Result<Arc<dyn WriteHandle>> {
        let _acting = self.user.act_on("open", path)?;
        if options.exclusive || (options.create && options.truncate && !self.replaces) {
            return Ok(Arc::new(self.open_new(path, options.mode)?));
        }
        // If the file appears and disappears between the two calls, try again. A dangling symbolic
        // link exists for one call and not for the other, so it fails all attempts.
        for _ in 0..8 {
            match self.open_existing(path, options.truncate) {
                Err(error) if error.is_not_found() && options.create => {}
                result => return Ok(Arc::new(result?)),
            }
            match self.open_new(path, options.mode) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                result => return Ok(Arc::new(result?)),
            }
        }
        Err(Error::new(ErrorKind::AlreadyExists, "create", path.as_bytes())
            .with_detail("a symbolic link that leads nowhere"))
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

    fn uploaded_prefix(&self, path: &VirtualPath) -> Result<Option<u64>> {
        PartFile::sequential_prefix(self, path)
    }

    fn upload_space(&self, path: &VirtualPath) -> u64 {
        PartFile::space(self, path)
    }

    fn make_directory(&self, path: &VirtualPath, mode: u32) -> Result<()> {
        let _acting = self.user.act_on("mkdir", path)?;
        if path.is_root() {
            return Err(Error::new(ErrorKind::AlreadyExists, "mkdir", path.as_bytes()));
        }
        let place = self.place(path, "mkdir", Purpose::Write)?;
        let make = || {
            let mode = Mode::from_raw_mode(self.options.directory_mode.unwrap_or(mode) & 0o7777);
            rustix::fs::mkdirat(place.directory(), place.name(), mode)?;
            if self.options.directory_mode.is_some() {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = rustix::fs::openat(place.directory(), place.name(), flags, Mode::empty())?;
                rustix::fs::fchmod(made, mode)?;
            }
            Ok(())
        };
        make().context("mkdir", path.as_bytes())
    }

    fn remove_directory(&self, path: &VirtualPath) -> Result<()> {
        let _acting = self.user.act_on("rmdir", path)?;
        keep_root(path, "rmdir")?;
        let place = self.place(path, "rmdir", Purpose::Write)?;
        rustix::fs::unlinkat(place.directory(), place.name(), AtFlags::REMOVEDIR)
            .context("rmdir", path.as_bytes())
    }

    fn remove_file(&self, path: &VirtualPath) -> Result<()> {
        let _acting = self.user.act_on("unlink", path)?;
        let place = self.place(path, "unlink", Purpose::Write)?;
        rustix::fs::unlinkat(place.directory(), place.name(), AtFlags::empty())
            .context("unlink", path.as_bytes())
    }

    fn rename(&self, from: &VirtualPath, to: &VirtualPath) -> Result<()> {
        self.renaming(from, to, &|old, new| rename(old, new, self.replaces))
    }

    fn rename_file(&self, from: &VirtualPath, to: &VirtualPath) -> Result<()> {
        self.renaming(from, to, &|old, new| rename_noreplace::rename(old, new, to, self.replaces))
    }

    fn symlink(&self, target: &BStr, link: &VirtualPath) -> Result<()> {
        let _acting = self.user.act_on("symlink", link)?;
        let place = self.place(link, "symlink", Purpose::Write)?;
        rustix::fs::symlinkat(&**target, place.directory(), place.name()).context("symlink", link.as_bytes())
    }

    fn set_modified(&self, path: &VirtualPath, seconds: i64, nanoseconds: u32) -> Result<()> {
        let _acting = self.user.act_on("set time", path)?;
        let (_open, name) = self.followed(path, "set time")?;
        rustix::fs::utimensat(CWD, name, &modification(seconds, nanoseconds), AtFlags::empty())
            .context("set time", path.as_bytes())
    }

    fn set_mode(&self, path: &VirtualPath, mode: u32) -> Result<()> {
        let _acting = self.user.act_on("chmod", path)?;
        let (_open, name) = self.followed(path, "chmod")?;
        rustix::fs::chmodat(CWD, name, Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())
            .context("chmod", path.as_bytes())
    }

    fn set_group(&self, path: &VirtualPath, gid: u32) -> Result<()> {
        let _acting = self.user.act_on("chgrp", path)?;
        let group = options::group(gid).ok_or(Errno::INVAL).context("chgrp", path.as_bytes())?;
        let (_open, name) = self.followed(path, "chgrp")?;
        rustix::fs::chownat(CWD, name, None, Some(group), AtFlags::empty()).context("chgrp", path.as_bytes())
    }

    fn truncate(&self, path: &VirtualPath, length: u64) -> Result<()> {
        let _acting = self.user.act_on("truncate", path)?;
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = self.opened(path, flags, "truncate", Purpose::Write)?;
        retry_on_intr(|| rustix::fs::ftruncate(&fd, length)).context("truncate", path.as_bytes())
    }

    fn real_path(&self, path: &VirtualPath) -> Result<VirtualPath> {
        let _acting = self.user.act_on("resolve", path)?;
        self.root.real_path(path)
    }

    fn sync_directory(&self, path: &VirtualPath) -> Result<()> {
        let _acting = self.user.act_on("sync", path)?;
        let sync = || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let fd = match self.near.as_ref().filter(|near| near.is(path)) {
                Some(near) => near.open_again(flags)?,
                None => self.root.open_at(path, flags, Mode::empty())?,
            };
            retry_on_intr(|| rustix::fs::fsync(&fd))
        };
        sync().context("sync", path.as_bytes())
    }

    fn free_space(&self, path: &VirtualPath) -> Result<Option<u64>> {
        let stats = self.file_system(path)?;
        Ok(Some(stats.f_bavail.saturating_mul(stats.f_frsize)))
    }

    fn total_space(&self, path: &VirtualPath) -> Result<Option<u64>> {
        let stats = self.file_system(path)?;
        Ok(Some(stats.f_blocks.saturating_mul(stats.f_frsize)))
    }

    fn remove_tree_while(&self, path: &VirtualPath, go_on: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let _acting = self.user.act_on("remove", path)?;
        keep_root(path, "remove")?;
        let place = self.place(path, "remove", Purpose::WriteTree)?;
        remove::tree(place.directory(), place.name(), path, go_on)
    }
}

fn rename(old: &Place<'_>, new: &Place<'_>, replaces: bool) -> std::result::Result<(), Errno> {
    let (from, to) = (old.directory(), new.directory());
    if !replaces {
        match rustix::fs::renameat_with(from, old.name(), to, new.name(), RenameFlags::NOREPLACE) {
            // Some file systems do not support the flag, and filters of containers may refuse it.
            Err(Errno::INVAL | Errno::NOSYS | Errno::PERM) => {}
            result => return result,
        }
        match rustix::fs::statat(to, new.name(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            Ok(_) => return Err(Errno::EXIST),
            Err(errno) => return Err(errno),
        }
    }
    rustix::fs::renameat(from, old.name(), to, new.name())
}

/// Refuses to remove or rename the root directory.
fn keep_root(path: &VirtualPath, action: &'static str) -> Result<()> {
    if path.is_root() { Err(Error::new(ErrorKind::Busy, action, path.as_bytes())) } else { Ok(()) }
}

fn modification(seconds: i64, nanoseconds: u32) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
    }
}
