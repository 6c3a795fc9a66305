//! The directory behind a slow store, with its open files. All paths are relative to a descriptor
//! of the directory, so the store needs no mount of its own to reach the files. The threads of the
//! FUSE session share one [`Backing`]; the tables of nodes and open files have a lock each. Errors
//! of the underlying file system are passed to the caller unchanged.

use super::{
    attributes,
    meter::{Device, Way},
    nodes::Nodes,
};
use fuser::{FileAttr, FileHandle, FileType, INodeNo, RenameFlags, Request};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::FileExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, MutexGuard};

/// Flags of open(2) that the kernel has handled already, or that would send writes elsewhere.
const DROPPED: OFlags = OFlags::CREATE
    .union(OFlags::EXCL)
    .union(OFlags::APPEND)
    .union(OFlags::TRUNC)
    .union(OFlags::DIRECT)
    .union(OFlags::NOFOLLOW);

/// The directory behind a slow store.
pub(super) struct Backing {
    /// The directory.
    pub(super) root: OwnedFd,
    nodes: Mutex<Nodes>,
    open: Mutex<HashMap<u64, Opened>>,
    next: AtomicU64,
    device: Arc<Device>,
}

#[derive(Clone)]
pub(super) enum Opened {
    /// The file's inode number and the open file.
    File(u64, Arc<File>),
    Directory(Arc<Vec<(u64, FileType, OsString)>>),
}

/// See [`Backing::reach`].
pub(super) enum Reached {
    Open(Arc<File>),
    At(PathBuf),
}

impl Backing {
    pub(super) fn new(root: OwnedFd, device: Arc<Device>) -> Self {
        let (nodes, open) = (Mutex::new(Nodes::new()), Mutex::default());
        Self { root, nodes, open, next: AtomicU64::new(1), device }
    }

    pub(super) fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock()
    }

    pub(super) fn path(&self, number: INodeNo) -> io::Result<PathBuf> {
        self.nodes().path(number.0).ok_or_else(stale)
    }

    pub(super) fn child(&self, parent: INodeNo, name: &OsStr) -> io::Result<PathBuf> {
        self.nodes().child(parent.0, name).ok_or_else(stale)
    }

    pub(super) fn keep(&self, opened: Opened) -> FileHandle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(handle, opened);
        FileHandle(handle)
    }

    pub(super) fn file(&self, handle: FileHandle) -> io::Result<Arc<File>> {
        match self.open.lock().get(&handle.0) {
            Some(Opened::File(_, file)) => Ok(file.clone()),
            _ => Err(io::Error::from(rustix::io::Errno::BADF)),
        }
    }

    /// Returns how to reach a file: through the handle that the kernel passed with the request
    /// (which it seldom does), else by its path, or, if the file no longer has a path, through any
    /// open file of it.
    pub(super) fn reach(&self, number: INodeNo, handle: Option<FileHandle>) -> io::Result<Reached> {
        if let Some(file) = handle.and_then(|handle| self.file(handle).ok()) {
            return Ok(Reached::Open(file));
        }
        self.path(number).map(Reached::At).or_else(|stale| {
            let open = self.open.lock();
            let own = open.values().find_map(|opened| match opened {
                Opened::File(of, file) if *of == number.0 => Some(file.clone()),
                _ => None,
            });
            own.map(Reached::Open).ok_or(stale)
        })
    }

    pub(super) fn close(&self, handle: FileHandle) {
        self.open.lock().remove(&handle.0);
    }

    /// Looks up a name that exists, counts the lookup and returns the attributes.
    pub(super) fn entry(&self, parent: INodeNo, name: &OsStr) -> io::Result<FileAttr> {
        let path = self.child(parent, name)?;
        let stat = rustix::fs::statat(&self.root, &path, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(attributes::of(self.nodes().found(parent.0, name), &stat))
    }

    /// Sets the owner of a new file to the user of the request, and its mode to the requested one,
    /// independently of the umask of this process. `mode` is `None` for symbolic links.
    pub(super) fn made(&self, request: &Request, path: &Path, mode: Option<Mode>) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(request.uid()), Gid::from_raw(request.gid()));
        rustix::fs::chownat(&self.root, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        match mode {
            // Only symbolic links would be followed, and this is not one.
            Some(mode) => Ok(rustix::fs::chmodat(&self.root, path, mode, AtFlags::empty())?),
            None => Ok(()),
        }
    }

    pub(super) fn attributes(&self, number: INodeNo, handle: Option<FileHandle>) -> io::Result<FileAttr> {
        let stat = match self.reach(number, handle)? {
            Reached::Open(file) => rustix::fs::fstat(&*file)?,
            Reached::At(path) => rustix::fs::statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW)?,
        };
        Ok(attributes::of(number.0, &stat))
    }

    /// Opens a file with the flags of open(2), except those that the kernel handles itself.
    pub(super) fn open_again(&self, number: INodeNo, flags: i32) -> io::Result<FileHandle> {
        let file = self.open_file(&self.path(number)?, flags & !(DROPPED.bits() as i32), 0)?;
        Ok(self.keep(Opened::File(number.0, Arc::new(file))))
    }

    /// Whether the kernel may keep its cached data of the file, as with a real disk. Data cached
    /// before the store became slow is dropped.
    pub(super) fn stays_cached(&self, number: INodeNo) -> bool {
        self.device.is_limited() && self.nodes().opened(number.0)
    }

    /// Creates a file and opens it.
    pub(super) fn open_new(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        flags: i32,
        mode: u32,
    ) -> io::Result<(FileAttr, FileHandle)> {
        let path = self.child(parent, name)?;
        let exclusive = flags & OFlags::EXCL.bits() as i32;
        let flags = flags & !(DROPPED.bits() as i32) | exclusive | OFlags::CREATE.bits() as i32;
        let file = self.open_file(&path, flags, mode)?;
        self.made(request, &path, Some(Mode::from_raw_mode(mode & 0o7777)))?;
        let attr = self.entry(parent, name)?;
        Ok((attr, self.keep(Opened::File(attr.ino.0, Arc::new(file)))))
    }

    /// Looks up an open file or directory by its handle.
    pub(super) fn opened(&self, handle: FileHandle) -> Option<Opened> {
        self.open.lock().get(&handle.0).cloned()
    }

    pub(super) fn open_file(&self, path: &Path, flags: i32, mode: u32) -> io::Result<File> {
        let flags = OFlags::from_bits_retain(flags as u32) | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(File::from(rustix::fs::openat(&self.root, path, flags, Mode::from_raw_mode(mode & 0o7777))?))
    }

    pub(super) fn list(&self, number: INodeNo) -> io::Result<Opened> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&self.root, self.path(number)?, flags, Mode::empty())?;
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&directory)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            entries.push((entry.ino(), attributes::kind(entry.file_type()), name));
        }
        Ok(Opened::Directory(Arc::new(entries)))
    }

    pub(super) fn read_at(&self, handle: FileHandle, offset: u64, size: u32) -> io::Result<Vec<u8>> {
        let file = self.file(handle)?;
        let mut buffer = vec![0; size as usize];
        let mut length = 0;
        while length < buffer.len() {
            match file.read_at(&mut buffer[length..], offset + length as u64)? {
                0 => break,
                read => length += read,
            }
        }
        buffer.truncate(length);
        self.device.work(Way::Read, length);
        Ok(buffer)
    }

    pub(super) fn write_at(&self, handle: FileHandle, offset: u64, data: &[u8]) -> io::Result<u32> {
        self.file(handle)?.write_all_at(data, offset)?;
        self.device.work(Way::Write, data.len());
        Ok(data.len() as u32)
    }

    pub(super) fn move_to(
        &self,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> io::Result<()> {
        let (old, new) = (self.child(from.0, from.1)?, self.child(to.0, to.1)?);
        let raw = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        rustix::fs::renameat_with(&self.root, old, &self.root, new, raw)?;
        let (from, to) = ((from.0.0, from.1), (to.0.0, to.1));
        if flags.contains(RenameFlags::RENAME_EXCHANGE) {
            self.nodes().exchanged(from, to);
        } else {
            self.nodes().renamed(from, to);
        }
        Ok(())
    }

    pub(super) fn remove(&self, parent: INodeNo, name: &OsStr, flags: AtFlags) -> io::Result<()> {
        rustix::fs::unlinkat(&self.root, self.child(parent, name)?, flags)?;
        self.nodes().removed(parent.0, name);
        Ok(())
    }
}

fn stale() -> io::Error {
    rustix::io::Errno::STALE.into()
}
