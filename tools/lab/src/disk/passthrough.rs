//! The FUSE file system that passes requests through to a directory.

use super::{
    attributes,
    backing::{Backing, Opened, Reached},
};
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{AtFlags, FallocateFlags, Gid, Mode, OFlags, Uid};
use std::{
    ffi::OsStr,
    io,
    os::fd::AsFd,
    path::Path,
    time::{Duration, SystemTime},
};

/// Time for which the kernel may cache attributes and names. It is long because the directory
/// changes only through this file system.
const VALID: Duration = Duration::from_secs(60);
/// Sends the result of a request as its reply.
macro_rules! answer {
    ($reply:ident, $result:expr, $value:pat => $answer:expr) => {
        let result: io::Result<_> = $result;
        match result {
            Ok($value) => $answer,
            Err(error) => $reply.error(Errno::from(error)),
        }
    };
}

impl Filesystem for Backing {
    fn init(&mut self, _: &Request, config: &mut fuser::KernelConfig) -> io::Result<()> {
        // Requests of up to 1 MiB. A kernel with a lower limit keeps its own value.
        let _ = config.set_max_write(1 << 20);
        let _ = config.set_max_readahead(1 << 20);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer!(reply, self.entry(parent, name), attr => reply.entry(&VALID, &attr, Generation(0)));
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.nodes().forget(number.0, lookups);
    }

    fn getattr(&self, _: &Request, number: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        answer!(reply, self.attributes(number, handle), attr => reply.attr(&VALID, &attr));
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let result = || {
            let reached = self.reach(number, handle)?;
            if let Some(mode) = mode {
                let mode = Mode::from_raw_mode(mode & 0o7777);
                match &reached {
                    Reached::Open(file) => rustix::fs::fchmod(file, mode)?,
                    Reached::At(path) => rustix::fs::chmodat(&self.root, path, mode, AtFlags::empty())?,
                }
            }
            if uid.is_some() || gid.is_some() {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                match &reached {
                    Reached::Open(file) => rustix::fs::fchown(file, uid, gid)?,
                    Reached::At(path) => {
                        rustix::fs::chownat(&self.root, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
                    }
                }
            }
            if let Some(size) = size {
                match &reached {
                    Reached::Open(file) => file.set_len(size)?,
                    Reached::At(path) => {
                        self.open_file(path, OFlags::WRONLY.bits() as i32, 0)?.set_len(size)?;
                    }
                }
            }
            if atime.is_some() || mtime.is_some() {
                let times = attributes::timestamps(atime, mtime);
                match &reached {
                    Reached::Open(file) => rustix::fs::futimens(file, &times)?,
                    Reached::At(path) => {
                        rustix::fs::utimensat(&self.root, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
                    }
                }
            }
            self.attributes(number, handle)
        };
        answer!(reply, result(), attr => reply.attr(&VALID, &attr));
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        let result = || Ok(rustix::fs::readlinkat(&self.root, self.path(number)?, Vec::new())?);
        answer!(reply, result(), target => reply.data(target.as_bytes()));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let result = || {
            let path = self.child(parent, name)?;
            let mode = Mode::from_raw_mode(mode & !umask & 0o7777);
            rustix::fs::mkdirat(&self.root, &path, mode)?;
            self.made(request, &path, Some(mode))?;
            self.entry(parent, name)
        };
        answer!(reply, result(), attr => reply.entry(&VALID, &attr, Generation(0)));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let result = || {
            let path = self.child(parent, name)?;
            let kind = rustix::fs::FileType::from_raw_mode(mode);
            let mode = Mode::from_raw_mode(mode & !umask & 0o7777);
            rustix::fs::mknodat(&self.root, &path, kind, mode, device.into())?;
            self.made(request, &path, Some(mode))?;
            self.entry(parent, name)
        };
        answer!(reply, result(), attr => reply.entry(&VALID, &attr, Generation(0)));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer!(reply, self.remove(parent, name, AtFlags::empty()), () => reply.ok());
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer!(reply, self.remove(parent, name, AtFlags::REMOVEDIR), () => reply.ok());
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let result = || {
            let path = self.child(parent, name)?;
            rustix::fs::symlinkat(target, &self.root, &path)?;
            self.made(request, &path, None)?;
            self.entry(parent, name)
        };
        answer!(reply, result(), attr => reply.entry(&VALID, &attr, Generation(0)));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        answer!(reply, self.move_to((parent, name), (new_parent, new_name), flags), () => reply.ok());
    }

    fn link(&self, _: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let result = || {
            let (old, new) = (self.path(number)?, self.child(parent, name)?);
            rustix::fs::linkat(&self.root, old, &self.root, new, AtFlags::empty())?;
            self.entry(parent, name)
        };
        answer!(reply, result(), attr => reply.entry(&VALID, &attr, Generation(0)));
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let kept = if self.stays_cached(number) { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
        let manner = FopenFlags::FOPEN_NOFLUSH | kept;
        answer!(reply, self.open_again(number, flags.0), handle => reply.opened(handle, manner));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let result = self.open_new(request, (parent, name), flags, mode & !umask);
        answer!(
            reply,
            result,
            (attr, handle) => reply.created(&VALID, &attr, Generation(0), handle, FopenFlags::FOPEN_NOFLUSH)
        );
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        answer!(reply, self.read_at(handle, offset, size), data => reply.data(&data));
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        answer!(reply, self.write_at(handle, offset, data), written => reply.written(written));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // Every write has already waited for the device.
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.close(handle);
        reply.ok();
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        answer!(reply, self.list(number), list => reply.opened(self.keep(list), FopenFlags::empty()));
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some(Opened::Directory(entries)) = self.opened(handle) else {
            return reply.error(Errno::from(io::Error::from(rustix::io::Errno::BADF)));
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (place, (number, kind, name)) in entries.iter().enumerate().skip(from) {
            if reply.add(INodeNo(*number), place as u64 + 1, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.close(handle);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let result = rustix::fs::fstatvfs(self.root.as_fd()).map_err(io::Error::from);
        answer!(reply, result, stat => reply.statfs(
            stat.f_blocks,
            stat.f_bfree,
            stat.f_bavail,
            stat.f_files,
            stat.f_ffree,
            stat.f_bsize as u32,
            stat.f_namemax as u32,
            stat.f_frsize as u32,
        ));
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let flags = FallocateFlags::from_bits_retain(mode as u32);
        let result = || Ok(rustix::fs::fallocate(&*self.file(handle)?, flags, offset, length)?);
        answer!(reply, result(), () => reply.ok());
    }
}
