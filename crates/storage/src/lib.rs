//! Where bytes live: the data storage interface (DSI) and its stores.
//!
//! [`Store`] is the interface; [`PosixStore`], [`MemoryStore`] and [`NullStore`] implement it, and [`testing`] has the
//! suite that every store must pass. [`PartFile`] keeps uploads that are not whole yet apart from those that are.

#![forbid(unsafe_code)]

pub mod checksum;
mod error;
mod guard;
mod journal;
mod memory;
mod null;
mod pages;
mod part;
mod posix;
mod remove;
mod sync;
pub mod testing;
mod walk;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bstr::{BStr, BString};
pub use error::{Error, ErrorKind, Result};
pub use guard::{Guard, Purpose};
pub use journal::{Journal, JournalKey};
pub use memory::MemoryStore;
pub use null::NullStore;
pub use pages::Pages;
pub use part::{
    DirectIo, HeldPart, Interrupted, Journaling, PartFile, PartOptions, hold_part, is_temporary_name,
    journal_name, journal_of_part, part_name, target_of_part, target_of_temporary,
};
pub use posix::{Acting, Identity, PosixOptions, PosixStore};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
pub use sync::sync_name;
pub use walk::{Step, Visit, WalkOptions, WalkSink, walk};

/// To be called first in threads that serve one user after the other: a thread begins with the identity that its maker
/// acts for at that time.
pub fn thread_starts() {
    posix::thread_starts();
}

/// What a store can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Handles give file descriptors, for `sendfile` and `splice`.
    pub descriptors: bool,
    /// Holes stay holes, and can be asked for.
    pub sparse: bool,
    /// `rename` replaces the target atomically.
    pub rename: bool,
    pub symlinks: bool,
    /// Out-of-order ranged writes.
    pub random_write: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    BlockDevice,
    CharacterDevice,
    Fifo,
    Socket,
}

/// Attributes of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    pub kind: Kind,
    pub size: u64,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub modified: (i64, u32),
    /// When the content or an attribute was changed last, which nobody can set: seconds since 1970 and nanoseconds.
    pub changed: (i64, u32),
    /// Permission bits, 0o7777.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub device: u64,
    pub inode: u64,
    pub links: u64,
    /// 512-byte blocks in use (less than `size` where the file is sparse).
    pub blocks: u64,
    /// Where a symbolic link points to. Filled by `stat` without follow and by `list`.
    pub target: Option<BString>,
    /// What this process may do with it (access checks done by the store).
    pub readable: bool,
    pub writable: bool,
    pub searchable: bool,
}

/// How [`Store::open_write`] opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    pub create: bool,
    pub truncate: bool,
    /// Fail where the file exists.
    pub exclusive: bool,
    /// Permission bits of a file that is created, before the umask.
    pub mode: u32,
}

/// Keeps transfers to a file apart, whether they read or write it. Stores that cannot lock need nothing of their own.
pub trait Lock: Send + Sync {
    /// Takes the file for this handle alone, until it is dropped; `false` where another handle (of any process) has it.
    /// Only handles that ask are kept apart. Stores that cannot lock say `true`.
    ///
    /// # Errors
    /// The system fails. A lock that another handle has, or that cannot be had at all, is no error.
    fn lock(&self) -> Result<bool> {
        Ok(true)
    }
    /// As [`Self::lock`], but beside others who share it. A lock that this handle has becomes one of this kind, or is lost where
    /// that cannot be.
    ///
    /// # Errors
    /// As [`Self::lock`].
    fn lock_shared(&self) -> Result<bool> {
        self.lock()
    }
    /// Gives back what [`Self::lock`] or [`Self::lock_shared`] took.
    fn unlock(&self) {}
}

/// A file open for ranged reads, from any thread.
pub trait ReadHandle: Lock {
    /// The attributes of the file as it is now.
    ///
    /// # Errors
    /// The system cannot look at the open file: its server has lost it, say.
    fn metadata(&self) -> Result<Metadata>;
    /// Reads at `offset`, up to `buffer.len()` bytes; 0 at the end.
    ///
    /// # Errors
    /// As of the system, with the offset. The end of the file is no error.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// For `sendfile`.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// For `poll`, where a read may have to wait for somebody else (a pipe, a terminal); then [`Self::read_now`] does not.
    fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// As [`Self::read_at`]; `None` where there is nothing to read yet.
    ///
    /// # Errors
    /// As [`Self::read_at`].
    fn read_now(&self, buffer: &mut [u8], offset: u64) -> Result<Option<usize>> {
        self.read_at(buffer, offset).map(Some)
    }
    /// The parts of `[start, end)` that hold data; all of it where the store knows no holes.
    ///
    /// # Errors
    /// As of the system. To know no holes is no error.
    fn data_ranges(&self, start: u64, end: u64) -> Result<RangeSet>;
}

/// A file open for ranged writes in any order, from any thread.
pub trait WriteHandle: Lock {
    /// The attributes of the file as it is now.
    ///
    /// # Errors
    /// The system cannot look at the open file: its server has lost it, say.
    fn metadata(&self) -> Result<Metadata>;
    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// No space or quota is left, the file would be too large, bytes come out of turn ([`Self::in_order`]), or as of
    /// the system; with the offset. A part of `data` may be written.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()>;
    /// For `splice`. Only where bytes written at a position through it are the file's bytes.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// True where positions mean nothing (a device such as /dev/null, a pipe): writes go in order of arrival.
    fn positionless(&self) -> bool {
        false
    }
    /// True where nothing of what is written is kept (/dev/null), so that it need not even be read.
    fn discards(&self) -> bool {
        false
    }
    /// Bytes have to be written from the first to the last: a pipe, a terminal. A write out of turn is refused.
    fn in_order(&self) -> bool {
        false
    }
    /// For `poll`, where a write may have to wait for somebody else (who reads a pipe); then [`Self::write_now`] does not.
    fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// As [`Self::write_at`], as many bytes as are taken; `None` where none are taken yet.
    ///
    /// # Errors
    /// As [`Self::write_at`].
    fn write_now(&self, data: &[u8], offset: u64) -> Result<Option<usize>> {
        self.write_at(data, offset).map(|()| Some(data.len()))
    }
    /// `size` bytes will be written to this file, in any order, which is new or was prepared before. Space may be
    /// reserved, so that the file has its size at once. `sync`: it is to be on the disk when it is complete.
    fn prepare(&self, _size: u64, _direct: DirectIo, _sync: bool) {}
    /// `size` bytes will be written to this file, and whoever writes them tells which stay zero ([`Self::leave_zero`]) and when
    /// all are there ([`Self::settle`]): space may be reserved ahead of them. The size stays what was written.
    fn reserve_ahead(&self, _size: u64) {}
    /// So many bytes are about to be written at `start` through [`Self::descriptor`].
    fn make_room(&self, _start: u64, _length: u64) {}
    /// Nothing more is written, by nobody, and the file has `length` bytes: it need not keep space for more.
    fn settle(&self, _length: u64) {}
    /// Space is reserved ahead: the kernel does not by itself write the file when it takes the name of another.
    fn reserves_ahead(&self) -> bool {
        false
    }
    /// The kernel begins to write the file. Nobody waits for the end.
    fn begin_sync(&self) {}
    /// Makes zeros of what is there within the file's size, and gives its space back; `false` where that cannot be done.
    fn punch(&self, _start: u64, _length: u64) -> bool {
        false
    }
    /// Bytes that are best written at a time, at multiples of it and from memory at a page boundary; `None` where it
    /// matters little.
    fn chunk(&self) -> Option<usize> {
        None
    }
    /// Space was reserved that the file's size counts as written: before it is synced, a power loss may make zeros of what is
    /// there.
    fn is_reserved(&self) -> bool {
        false
    }
    /// These bytes of a file that is new stay zero, or are of no use whatever they are: no space need be kept for them.
    fn leave_zero(&self, _start: u64, _length: u64) {}
    /// Cuts the file off at `length`, or fills it up with zeros to there.
    ///
    /// # Errors
    /// No space is left for it, it would be too large, or as of the system.
    fn set_len(&self, length: u64) -> Result<()>;
    /// Data and size are on stable storage.
    ///
    /// # Errors
    /// The disk fails, or has no space for bytes that were taken already. Which of them are lost is not known.
    fn sync(&self) -> Result<()>;
    /// Nothing more is written to this file, which is as `metadata` says. Where the store has taken bytes that it may be unable
    /// to keep, as those on other machines' disks do, it says so now. That does not put them on stable storage.
    ///
    /// # Errors
    /// Bytes that were taken are lost: for want of space, quota or the other machine.
    fn confirm(&self, _metadata: &Metadata) -> Result<()> {
        Ok(())
    }
    /// All that the file system of this file was told is on stable storage, names among it.
    ///
    /// # Errors
    /// Something of the file system could not be written, perhaps of another file.
    fn sync_system(&self) -> Result<()> {
        Ok(())
    }
    /// Sets the modification time: seconds since 1970 and nanoseconds.
    ///
    /// # Errors
    /// The file is another user's, or the process may not act for the store's user.
    fn set_modified(&self, seconds: i64, nanoseconds: u32) -> Result<()>;
    /// Sets the permission bits, 0o7777.
    ///
    /// # Errors
    /// The file is another user's, or the process may not act for the store's user.
    fn set_mode(&self, mode: u32) -> Result<()>;
}

/// What [`Store::list`] gives for each entry: name and attributes (symbolic links not followed).
pub type ListSink<'a> = dyn FnMut(&BStr, Metadata) -> Result<()> + 'a;

/// A storage system. All paths are absolute within it and cannot leave it, whatever symbolic links say.
///
/// Symbolic links are followed, also at the end of a path; but names are made, removed and renamed as they stand, and
/// a file is never made where a link leads.
pub trait Store: Send + Sync {
    fn name(&self) -> &'static str;
    fn capabilities(&self) -> Capabilities;
    /// The same store for somebody who may not use all of it: before anything is done, `guard` is asked about the
    /// place that a path leads to at that very moment, whoever swaps directories for symbolic links meanwhile
    /// ([`ErrorKind::NotAllowed`] where it refuses). `real_path`, `free_space` and `sync_directory` are not guarded.
    /// `None` where the store cannot do that.
    fn guarded(&self, _guard: Guard) -> Option<Arc<dyn Store>> {
        None
    }
    /// The same store, in which [`Self::rename`] replaces nothing: [`ErrorKind::AlreadyExists`] where the new name is there at
    /// that very moment; and files that [`Self::open_write`] is to make anew must not be there either. Where the file system cannot do that in one step (NFS before 4.2, some FUSE), it looks first,
    /// and who makes the name in between is replaced. `None` where the store cannot do it at all.
    fn without_replacing(&self) -> Option<Arc<dyn Store>> {
        None
    }
    /// The same store, which keeps `directory` open for who does several things there: its entries are looked at, made, removed
    /// and renamed in this very directory, even where it is moved meanwhile. `None` where that gains nothing, or it
    /// cannot be opened.
    fn near(&self, _directory: &VirtualPath) -> Option<Arc<dyn Store>> {
        None
    }
    /// Has the calling thread act for the store's user until the guard is dropped. Each call does so by itself; around
    /// several of them it saves changing back and forth.
    ///
    /// # Errors
    /// The process may not act for that user.
    fn acting(&self) -> Result<Acting> {
        Ok(Acting::default())
    }
    /// The user that files are worked with as, where the store acts for another one than the process's.
    fn acting_uid(&self) -> Option<u32> {
        None
    }
    /// The user whose files are our own: [`Self::acting_uid`], or that of the process; `None` where there are no owners.
    fn own_uid(&self) -> Option<u32> {
        self.acting_uid()
    }
    /// The attributes of an entry; with `follow`, of what a symbolic link leads to.
    ///
    /// # Errors
    /// Nothing is there, with `follow` also where a link leads nowhere, or the way to it may not be taken.
    fn stat(&self, path: &VirtualPath, follow: bool) -> Result<Metadata>;
    /// The entries of a directory in no order, without `.` and `..`. An error of `sink` ends the walk.
    ///
    /// # Errors
    /// It is not there, is no directory or may not be read; or the error of `sink`.
    fn list(&self, path: &VirtualPath, sink: &mut ListSink<'_>) -> Result<()>;
    /// Opens what exists, for reading.
    ///
    /// # Errors
    /// It is not there, is a directory, or may not be read.
    fn open_read(&self, path: &VirtualPath) -> Result<Arc<dyn ReadHandle>>;
    /// Opens a file for writing, as `options` say.
    ///
    /// # Errors
    /// It is a directory, may not be written, or is neither there nor to be made. [`ErrorKind::AlreadyExists`] where it
    /// is not to be there, or is a symbolic link that leads nowhere.
    fn open_write(&self, path: &VirtualPath, options: WriteOptions) -> Result<Arc<dyn WriteHandle>>;
    /// Makes a directory. `mode` are its permission bits before the umask.
    ///
    /// # Errors
    /// The name is there already, its parent is not there or may not be written, or no space is left.
    fn make_directory(&self, path: &VirtualPath, mode: u32) -> Result<()>;
    /// Removes an empty directory.
    ///
    /// # Errors
    /// It is not there, is no directory, is not empty, is the root ([`ErrorKind::Busy`]), or may not be removed.
    fn remove_directory(&self, path: &VirtualPath) -> Result<()>;
    /// Removes what is no directory.
    ///
    /// # Errors
    /// It is not there, is a directory, or may not be removed.
    fn remove_file(&self, path: &VirtualPath) -> Result<()>;
    /// Replaces `to` where it exists.
    ///
    /// # Errors
    /// `from` is not there or `to` is beneath it, what is at `to` cannot be replaced by it (a directory that is not
    /// empty, say), they are on two file systems ([`ErrorKind::CrossDevice`]), or may not be changed.
    fn rename(&self, from: &VirtualPath, to: &VirtualPath) -> Result<()>;
    /// As [`Self::rename`], but never of a directory, whatever others do meanwhile. [`ErrorKind::Unsupported`] where nobody can
    /// make sure of that.
    ///
    /// # Errors
    /// As [`Self::rename`]; `from` is a directory, or cannot have a second name for a moment.
    fn rename_file(&self, from: &VirtualPath, _to: &VirtualPath) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "rename", from.as_bytes()))
    }
    /// Makes a symbolic link that says `target`, be that there or not.
    ///
    /// # Errors
    /// The name is there already, the directory is not there or may not be written, or there are no links in this file
    /// system.
    fn symlink(&self, target: &BStr, link: &VirtualPath) -> Result<()>;
    /// Sets the modification time: seconds since 1970 and nanoseconds.
    ///
    /// # Errors
    /// It is not there, or is another user's.
    fn set_modified(&self, path: &VirtualPath, seconds: i64, nanoseconds: u32) -> Result<()>;
    /// Sets the permission bits, 0o7777.
    ///
    /// # Errors
    /// It is not there, or is another user's.
    fn set_mode(&self, path: &VirtualPath, mode: u32) -> Result<()>;
    /// Gives it to another group.
    ///
    /// # Errors
    /// It is not there, is another user's, or may not be given to that group.
    fn set_group(&self, path: &VirtualPath, gid: u32) -> Result<()>;
    /// Cuts a file off at `length`, or fills it up with zeros to there.
    ///
    /// # Errors
    /// It is not there, is a directory, may not be written, or would be too large.
    fn truncate(&self, path: &VirtualPath, length: u64) -> Result<()>;
    /// The path with every symbolic link resolved, within the store: what access rules are checked against.
    ///
    /// # Errors
    /// It is not there, the way to it may not be taken, or it is outside by now ([`ErrorKind::Outside`]).
    fn real_path(&self, path: &VirtualPath) -> Result<VirtualPath>;
    /// The entries of a directory (names made, renamed, removed) are on stable storage.
    ///
    /// # Errors
    /// It is no directory, may not be read ([`ErrorKind::PermissionDenied`]), or the disk fails.
    fn sync_directory(&self, _path: &VirtualPath) -> Result<()> {
        Ok(())
    }
    /// Bytes that can still be written there; `None` where the store has no such figure.
    ///
    /// # Errors
    /// It is not there, or its file system does not answer.
    fn free_space(&self, _path: &VirtualPath) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Removes a directory with all that is beneath it, or a file. Symbolic links are removed, not followed, even
    /// where somebody puts them in the place of a directory meanwhile (stores in which that can happen do not use the
    /// implementation that is given here). Stops at the first error.
    ///
    /// # Errors
    /// It is not there, is the root ([`ErrorKind::Busy`]), or something of it may not be removed.
    fn remove_tree(&self, path: &VirtualPath) -> Result<()> {
        self.remove_tree_while(path, &mut || Ok(()))
    }

    /// As [`Self::remove_tree`]; `go_on` is asked now and then, and stops it by an error. What is left is a tree that can be
    /// removed as well.
    ///
    /// # Errors
    /// As [`Self::remove_tree`], or the error of `go_on`.
    fn remove_tree_while(&self, path: &VirtualPath, go_on: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        remove::by_path(self, path, go_on)
    }
}
