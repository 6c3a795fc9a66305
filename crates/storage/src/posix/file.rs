//! Open files of the local file system, including devices and FIFOs. Files with positions are read
//! and written with `pread` and `pwrite`, from any thread. FIFOs and terminals are non-blocking and
//! take bytes in order only; waiting for the other end is done with `poll`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Advice, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, retry_on_intr};

use super::close_errors;
use super::direct::Direct;
use super::metadata::Stats;
use super::modification;
use super::options::User;
use super::space::{Space, punch};
use crate::error::Context;
use crate::{
    DirectIo, DiskFile, Error, ErrorKind, Kind, Lock, Metadata, Positions, ReadHandle, Result, WriteHandle,
};

/// An open file, device or FIFO.
pub(super) struct PosixFile {
    fd: OwnedFd,
    path: VirtualPath,
    user: User,
    kind: Kind,
    /// Whether it is `/dev/null`, which takes bytes at any position.
    null: bool,
    direct: Direct,
    space: Space,
    /// The next offset, for a file that takes bytes in order only; `None` before the first write.
    next: Mutex<Option<u64>>,
    locked: AtomicBool,
}

impl Drop for PosixFile {
    fn drop(&mut self) {
        // Closing is not enough while a program that is being started (such as ssh) has a copy of
        // the descriptor.
        self.unlock();
    }
}

impl PosixFile {
    /// Makes the handle of a file that is known to be a regular one.
    pub(super) fn regular(fd: OwnedFd, path: VirtualPath, user: User) -> Self {
        Self {
            fd,
            path,
            user,
            kind: Kind::File,
            null: false,
            direct: Direct::default(),
            space: Space::default(),
            next: Mutex::default(),
            locked: AtomicBool::default(),
        }
    }

    /// For a pipe: whether a writer had opened it since this handle was opened, no writer has it
    /// open now, and all bytes were read.
    fn was_left(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        let polled = retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())));
        let now = fds[0].revents();
        // If poll fails, the result of the read decides.
        polled.is_err() || now.contains(PollFlags::HUP) && !now.contains(PollFlags::IN)
    }

    /// Determines the kind of the file. The descriptor was opened without waiting.
    fn classified(fd: OwnedFd, path: VirtualPath, user: User) -> Result<Self, Errno> {
        let stats = Stats(rustix::fs::fstat(&fd)?);
        let kind = stats.kind();
        match kind {
            Kind::Directory => return Err(Errno::ISDIR),
            Kind::BlockDevice => {
                let flags = rustix::fs::fcntl_getfl(&fd)?;
                rustix::fs::fcntl_setfl(&fd, flags - OFlags::NONBLOCK)?;
            }
            // Other kinds stay non-blocking: waiting for another program is done with `poll`, which
            // can be aborted.
            _ => {}
        }
        let null = kind == Kind::CharacterDevice && stats.0.st_rdev == rustix::fs::makedev(1, 3);
        let mut file = Self::regular(fd, path, user);
        (file.kind, file.null) = (kind, null);
        Ok(file)
    }

    pub(super) fn new(fd: OwnedFd, path: VirtualPath, user: User) -> Result<Self> {
        let name = path.clone();
        Self::classified(fd, path, user).context("open", name.as_bytes())
    }

    fn seekable(&self) -> bool {
        matches!(self.kind, Kind::File | Kind::BlockDevice)
    }

    /// Whether bytes must be written in order: a pipe, a terminal.
    fn is_sequential(&self) -> bool {
        WriteHandle::positions(self) == Positions::Sequential
    }

    /// Waits until a file that does not support seeking can be read or written.
    fn wait(&self, events: PollFlags) -> Result<(), Errno> {
        retry_on_intr(|| rustix::event::poll(&mut [PollFd::new(&self.fd, events)], None)).map(drop)
    }

    /// Locks the position of bytes that must be written in order, so that bytes of other threads do
    /// not come in between.
    fn turn(&self, offset: u64) -> Result<MutexGuard<'_, Option<u64>>> {
        let next = self.next.lock();
        if next.is_some_and(|next| next != offset) {
            let error = Error::new(ErrorKind::Unsupported, "write", self.path.as_bytes()).at(offset);
            return Err(error
                .with_detail("a pipe or a terminal takes bytes in order only, and these came out of turn"));
        }
        Ok(next)
    }

    fn seek(&self, to: SeekFrom) -> Result<u64, Errno> {
        retry_on_intr(|| rustix::fs::seek(&self.fd, to))
    }

    fn find_data(&self, start: u64, end: u64) -> Result<RangeSet, Errno> {
        // Devices return arbitrary answers: /dev/zero says that everything is at 0.
        if self.kind != Kind::File {
            return Err(Errno::INVAL);
        }
        let mut found = RangeSet::new();
        let mut at = start;
        while at < end {
            let data = match self.seek(SeekFrom::Data(at)) {
                Ok(data) => data,
                // Only a hole follows, or the file ends before.
                Err(Errno::NXIO) => break,
                Err(error) => return Err(error),
            };
            if data >= end {
                break;
            }
            let hole = match self.seek(SeekFrom::Hole(data)) {
                Ok(hole) => hole,
                // The file was truncated meanwhile.
                Err(Errno::NXIO) => break,
                Err(error) => return Err(error),
            };
            if data < at || hole <= data {
                return Err(Errno::INVAL);
            }
            found.insert(data..hole.min(end));
            at = hole;
        }
        Ok(found)
    }
}

impl ReadHandle for PosixFile {
    fn metadata(&self) -> Result<Metadata> {
        let stats = rustix::fs::fstat(&self.fd).context("stat", self.path.as_bytes())?;
        Ok(Stats(stats).metadata(&self.user))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let read = if self.seekable() {
            retry_on_intr(|| rustix::io::pread(&self.fd, &mut *buffer, offset))
        } else {
            loop {
                match retry_on_intr(|| rustix::io::read(&self.fd, &mut *buffer)) {
                    Err(Errno::AGAIN) => {}
                    read => break read,
                }
                if let Err(errno) = self.wait(PollFlags::IN) {
                    break Err(errno);
                }
            }
        };
        read.context("read", self.path.as_bytes()).map_err(|error| error.at(offset))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.seekable().then(|| self.fd.as_fd())
    }

    fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        (!self.seekable()).then(|| self.fd.as_fd())
    }

    fn read_now(&self, buffer: &mut [u8], offset: u64) -> Result<Option<usize>> {
        if self.seekable() {
            return self.read_at(buffer, offset).map(Some);
        }
        match retry_on_intr(|| rustix::io::read(&self.fd, &mut *buffer)) {
            Err(Errno::AGAIN) => Ok(None),
            // No writer has opened the pipe yet.
            Ok(0) if self.kind == Kind::Fifo && !buffer.is_empty() && !self.was_left() => Ok(None),
            read => read.map(Some).context("read", self.path.as_bytes()).map_err(|error| error.at(offset)),
        }
    }

    fn data_ranges(&self, start: u64, end: u64) -> Result<RangeSet> {
        match self.find_data(start, end) {
            // A file system or device without support for holes.
            Err(Errno::INVAL | Errno::SPIPE | Errno::NOTTY | Errno::OPNOTSUPP) => {
                Ok(RangeSet::from_range(start..end))
            }
            result => result.context("find holes", self.path.as_bytes()),
        }
    }
}

impl WriteHandle for PosixFile {
    fn metadata(&self) -> Result<Metadata> {
        ReadHandle::metadata(self)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let mut turn = None;
        if self.is_sequential() {
            let mut next = self.turn(offset)?;
            *next = Some(offset + data.len() as u64);
            turn = Some(next);
        }
        self.make_room(offset, data.len() as u64);
        let directly = self.direct.write(self.fd.as_fd(), data, offset);
        let mut done = directly.context("write", self.path.as_bytes()).map_err(|e| e.at(offset))?;
        while done < data.len() {
            let at = offset + done as u64;
            let written = if self.seekable() {
                rustix::io::pwrite(&self.fd, &data[done..], at)
            } else {
                rustix::io::write(&self.fd, &data[done..])
            };
            match written {
                Ok(0) => return Err(Error::new(ErrorKind::Io, "write", self.path.as_bytes()).at(at)),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if !self.seekable() => {
                    self.wait(PollFlags::OUT).context("write", self.path.as_bytes()).map_err(|e| e.at(at))?;
                }
                Err(errno) => return Err(errno).context("write", self.path.as_bytes()).map_err(|e| e.at(at)),
            }
        }
        drop(turn);
        Ok(())
    }

    fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.is_sequential().then(|| self.fd.as_fd())
    }

    fn write_now(&self, data: &[u8], offset: u64) -> Result<Option<usize>> {
        if data.is_empty() || !self.is_sequential() {
            return self.write_at(data, offset).map(|()| Some(data.len()));
        }
        let mut next = self.turn(offset)?;
        match retry_on_intr(|| rustix::io::write(&self.fd, data)) {
            Ok(0) => Err(Error::new(ErrorKind::Io, "write", self.path.as_bytes()).at(offset)),
            Ok(n) => {
                *next = Some(offset + n as u64);
                Ok(Some(n))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno).context("write", self.path.as_bytes()).map_err(|e| e.at(offset)),
        }
    }

    fn begin_sync(&self) {
        // The call also drops clean pages from the cache, which does no harm for a new file.
        let _ = rustix::fs::fadvise(&self.fd, 0, None, Advice::DontNeed);
    }

    fn positions(&self) -> Positions {
        match (self.null, self.seekable()) {
            (true, _) => Positions::Ignored,
            (false, true) => Positions::Any,
            (false, false) => Positions::Sequential,
        }
    }

    fn discards(&self) -> bool {
        self.null
    }

    fn disk(&self) -> Option<&dyn DiskFile> {
        Some(self)
    }

    fn set_len(&self, length: u64) -> Result<()> {
        if self.kind != Kind::File {
            return Ok(());
        }
        retry_on_intr(|| rustix::fs::ftruncate(&self.fd, length)).context("truncate", self.path.as_bytes())
    }

    fn sync(&self) -> Result<()> {
        match retry_on_intr(|| rustix::fs::fdatasync(&self.fd)) {
            // The device has no data to sync.
            Err(Errno::INVAL) if !self.seekable() => Ok(()),
            result => result.context("sync", self.path.as_bytes()),
        }
    }

    fn confirm(&self, metadata: &Metadata) -> Result<()> {
        if self.kind != Kind::File || !close_errors::may_report(self.fd.as_fd(), metadata.device) {
            return Ok(());
        }
        close_errors::close_copy(self.fd.as_fd()).context("close", self.path.as_bytes())
    }

    fn sync_system(&self) -> Result<()> {
        rustix::fs::syncfs(&self.fd).context("sync", self.path.as_bytes())
    }

    // These two operations run as the file's owner, regardless of the user that opened it.
    fn set_modified(&self, seconds: i64, nanoseconds: u32) -> Result<()> {
        let _acting = self.user.act_on("set time", &self.path)?;
        rustix::fs::futimens(&self.fd, &modification(seconds, nanoseconds))
            .context("set time", self.path.as_bytes())
    }

    fn set_mode(&self, mode: u32) -> Result<()> {
        let _acting = self.user.act_on("chmod", &self.path)?;
        rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(mode & 0o7777))
            .context("chmod", self.path.as_bytes())
    }
}

impl DiskFile for PosixFile {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        ((self.seekable() && !self.direct.is_on()) || self.null).then(|| self.fd.as_fd())
    }

    fn named_descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn prepare(&self, size: u64, direct: DirectIo, sync: bool) {
        // Direct writes use a descriptor of their own.
        if self.kind == Kind::File
            && let Ok(_acting) = self.user.act()
        {
            self.direct.prepare(self.fd.as_fd(), size, direct, sync);
        }
    }

    fn reserve_ahead(&self, size: u64) {
        if self.kind == Kind::File && !self.direct.is_reserved() {
            self.space.plan(self.fd.as_fd(), size);
        }
    }

    fn make_room(&self, start: u64, length: u64) {
        self.space.reach(self.fd.as_fd(), start, length);
    }

    fn reserves_ahead(&self) -> bool {
        self.space.is_planned()
    }

    fn punch(&self, start: u64, length: u64) -> bool {
        self.kind == Kind::File && punch(self.fd.as_fd(), start..start.saturating_add(length))
    }

    fn settle(&self, length: u64) {
        self.space.settle(self.fd.as_fd(), length);
    }

    fn chunk(&self) -> Option<usize> {
        self.direct.chunk()
    }

    fn is_reserved(&self) -> bool {
        self.direct.is_reserved()
    }

    fn leave_zero(&self, start: u64, length: u64) {
        self.direct.free(start, length);
        self.space.free(self.fd.as_fd(), start, length);
    }
}

impl Lock for PosixFile {
    fn lock(&self) -> Result<bool> {
        self.lock_as(FlockOperation::NonBlockingLockExclusive)
    }

    fn lock_shared(&self) -> Result<bool> {
        self.lock_as(FlockOperation::NonBlockingLockShared)
    }

    fn unlock(&self) {
        if self.locked.swap(false, Ordering::Relaxed) {
            let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
        }
    }
}

impl PosixFile {
    fn lock_as(&self, how: FlockOperation) -> Result<bool> {
        let flock = |how| retry_on_intr(|| rustix::fs::flock(&self.fd, how));
        let locked = match flock(how) {
            // NFS gives a shared lock only to a descriptor that can read, and an exclusive one only
            // to one that can write.
            Err(Errno::BADF) if how == FlockOperation::NonBlockingLockShared => {
                flock(FlockOperation::NonBlockingLockExclusive)
            }
            Err(Errno::BADF) => flock(FlockOperation::NonBlockingLockShared),
            locked => locked,
        };
        match locked {
            Ok(()) => {
                self.locked.store(true, Ordering::Relaxed);
                Ok(true)
            }
            Err(Errno::WOULDBLOCK) => Ok(false),
            // Some network file systems do not support locks; then locking is skipped.
            Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK | Errno::INVAL) => Ok(true),
            Err(errno) => Err(errno).context("lock", self.path.as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Simulates another thread that is starting a program.
    #[test]
    fn drop_releases_the_lock_despite_a_copied_descriptor() {
        let directory = tempfile::tempdir().unwrap();
        let open = || {
            let file = std::fs::File::create(directory.path().join("f")).unwrap();
            PosixFile::regular(file.into(), VirtualPath::root(), User::of(&crate::PosixOptions::default()))
        };
        let (first, second) = (open(), open());
        assert!(first.lock().unwrap() && !second.lock().unwrap());
        let _copy = first.fd.try_clone().unwrap();
        drop(first);
        assert!(second.lock().unwrap());
    }
}
