//! Stores that report only at the end what they could not keep.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};

use super::*;
use crate::testing::{Deed, Hooked};

#[test]
fn failed_confirm_removes_the_part_file() {
    for (store, _keep) in stores() {
        for at_end in [true, false] {
            for journal in EVERY {
                let hooked: Arc<dyn Store> = Arc::new(Hooked::new(Arc::clone(&store), |deed, path| {
                    if deed == Deed::Confirm { Err(Hooked::failure(path)) } else { Ok(()) }
                }));
                let part = PartFile::begin(&hooked, &path("/f"), key(100), options(journal)).unwrap();
                write(&part, &data(100), 0..100);
                let result = if at_end { part.commit(100, None, None) } else { part.suspend() };
                assert_eq!(result.unwrap_err().kind(), ErrorKind::Io);
                drop(part);
                assert!(names(&*store).is_empty(), "{journal:?}");
            }
        }
    }
}

/// A file system with one directory, whose files report on close that the disk was full.
#[derive(Default)]
struct FullAtEnd(Mutex<HashMap<std::ffi::OsString, u64>>);

const SHORT: Duration = Duration::ZERO;
const ROOT: u64 = 1;
const FILE: u64 = 2;

fn attributes(inode: u64, size: u64) -> FileAttr {
    let kind = if inode == ROOT { FileType::Directory } else { FileType::RegularFile };
    FileAttr {
        ino: INodeNo(inode),
        size,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: if inode == ROOT { 0o755 } else { 0o640 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for FullAtEnd {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.0.lock().get(name) {
            Some(&size) => reply.entry(&SHORT, &attributes(FILE, size), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let size = self.0.lock().values().next().copied().unwrap_or_default();
        reply.attr(&SHORT, &attributes(inode.0, size));
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<std::time::SystemTime>,
        _: Option<FileHandle>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let size = self.0.lock().values().next().copied().unwrap_or_default();
        reply.attr(&SHORT, &attributes(inode.0, size));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn create(&self, _: &Request, _: INodeNo, name: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        self.0.lock().insert(name.to_owned(), 0);
        reply.created(&SHORT, &attributes(FILE, 0), Generation(0), FileHandle(0), FopenFlags::empty());
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        for size in self.0.lock().values_mut() {
            *size = (*size).max(offset + data.len() as u64);
        }
        reply.written(data.len() as u32);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSPC);
    }

    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.0.lock().remove(name) {
            Some(_) => reply.ok(),
            None => reply.error(Errno::ENOENT),
        }
    }
}

/// Unmounts the file system of a test.
struct Mounted(tempfile::TempDir);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn confirm_reports_errors_of_close() {
    let mounted = Mounted(tempfile::tempdir().unwrap());
    let (ready, is_ready) = mpsc::channel();
    let directory = mounted.0.path().to_owned();
    let server = std::thread::spawn(move || {
        let session = fuser::Session::new(FullAtEnd::default(), &directory, &fuser::Config::default());
        ready.send(session.is_ok()).unwrap();
        // Ends with an error when the file system is unmounted.
        let _ = session.map(|session| session.run());
    });
    if !is_ready.recv().unwrap() {
        eprintln!("skipped: no FUSE, or no right to mount it");
        return;
    }
    let store: Arc<dyn Store> = Arc::new(PosixStore::new(mounted.0.path(), PosixOptions::default()).unwrap());
    let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Sequential)).unwrap();
    write(&part, &data(100), 0..100);
    let error = part.commit(100, None, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    for name in [path("/f"), part_name(&path("/f"))] {
        assert!(store.stat(&name, false).unwrap_err().is_not_found(), "{name}");
    }
    drop((part, store, mounted));
    server.join().unwrap();
}
