//! The data storage interface (DSI) and its stores.
//!
//! [`Store`] is the interface. [`PosixStore`], [`MemoryStore`] and [`NullStore`] implement it, and
//! [`testing`] has the test suite that every store must pass. A file gets its name when its
//! [`Upload`] is complete; a [`PartFile`] is the upload of a store with a file system.

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
mod program;
mod remove;
mod sync;
pub mod testing;
mod upload;
mod walk;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bstr::{BStr, BString};
use checksum::Algorithm;
pub use error::{Error, ErrorKind, Result};
pub use guard::{Guard, Purpose};
pub use journal::{Journal, JournalKey};
pub use memory::MemoryStore;
pub use null::NullStore;
pub use pages::Pages;
pub use part::{
    HeldPart, PartFile, hold_part, is_temporary_name, journal_name, journal_of_part, part_name,
    target_of_part, target_of_temporary,
};
pub use posix::{Identity, Impersonation, PosixOptions, PosixStore};
pub use program::{Program, ProgramInput, ProgramOutput};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
pub use sync::sync_name;
pub use upload::{DirectIo, Interrupted, Journaling, Upload, UploadOptions, UploadSpec};
pub use walk::{Step, Visit, WalkOptions, WalkSink, walk};

/// Must be called first in threads that serve several users in turn: a new thread has the identity
/// that its creator impersonates at that moment.
pub fn thread_starts() {
    posix::thread_starts();
}

/// The features of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Written bytes can be read, and interrupted uploads can be resumed.
    pub keeps: bool,
    /// `rename` replaces the target atomically.
    pub rename: bool,
    pub symlinks: bool,
    /// Ranges can be written out of order.
    pub random_write: bool,
    /// An open file can still be used after its name was removed.
    pub outlives_name: bool,
    /// Names may contain line ends.
    pub any_name: bool,
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
    /// Time of the last change of the content or an attribute, which cannot be set: seconds since
    /// 1970 and nanoseconds.
    pub changed: (i64, u32),
    /// Permission bits, 0o7777.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub device: u64,
    pub inode: u64,
    pub links: u64,
    /// 512-byte blocks in use (less than `size` if the file is sparse).
    pub blocks: u64,
    /// The target of a symbolic link. Set by `stat` without follow and by `list`.
    pub target: Option<BString>,
    /// The access of this process (checked by the store).
    pub readable: bool,
    pub writable: bool,
    pub searchable: bool,
}

/// Options of [`Store::open_write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    pub create: bool,
    pub truncate: bool,
    /// Fail if the file exists.
    pub exclusive: bool,
    /// Permission bits of a file that is created, before the umask.
    pub mode: u32,
}

/// Locks between transfers that read or write a file. The default methods are for stores that
/// cannot lock.
pub trait Lock: Send + Sync {
    /// Locks the file exclusively for this handle, until it is dropped. Returns `false` if another
    /// handle (of any process) has a lock. The lock is advisory. Stores that cannot lock return
    /// `true`.
    ///
    /// # Errors
    /// The system fails. A lock that another handle has, or that cannot be had at all, is not an
    /// error.
    fn lock(&self) -> Result<bool> {
        Ok(true)
    }
    /// Like [`Self::lock`], but shared with other handles. A lock that this handle already has is
    /// converted; it is lost if the conversion fails.
    ///
    /// # Errors
    /// The same errors as [`Self::lock`].
    fn lock_shared(&self) -> Result<bool> {
        self.lock()
    }
    /// Releases the lock of [`Self::lock`] or [`Self::lock_shared`].
    fn unlock(&self) {}
}

/// A file open for ranged reads, from any thread.
pub trait ReadHandle: Lock {
    /// The current attributes of the file.
    ///
    /// # Errors
    /// The system cannot read the attributes of the open file, for example because a file server
    /// has lost it.
    fn metadata(&self) -> Result<Metadata>;
    /// Reads up to `buffer.len()` bytes at `offset`; returns 0 at the end.
    ///
    /// # Errors
    /// Those of the system, with the offset. The end of the file is not an error.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// The descriptor for `sendfile`.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// The descriptor for `poll`, if a read may have to wait for another program (a pipe, a
    /// terminal). [`Self::read_now`] does not wait then.
    fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Like [`Self::read_at`], but returns `None` if there is nothing to read yet.
    ///
    /// # Errors
    /// The same errors as [`Self::read_at`].
    fn read_now(&self, buffer: &mut [u8], offset: u64) -> Result<Option<usize>> {
        self.read_at(buffer, offset).map(Some)
    }
    /// Announces the ranges that will be read, all of them and from the first on.
    fn will_read(&self, _ranges: &RangeSet) {}
    /// The ranges of `[start, end)` that contain data; all of it if the store does not know about
    /// holes.
    ///
    /// # Errors
    /// Those of the system. Not to know about holes is not an error.
    fn data_ranges(&self, start: u64, end: u64) -> Result<RangeSet>;
}

/// The meaning of the offset of a write to an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// Bytes can be written at any offset, in any order.
    Any,
    /// Offsets have no meaning (`/dev/null`): bytes are written in the order in which they arrive.
    Ignored,
    /// Bytes must be written from the first to the last (a pipe, a terminal). A write out of order
    /// fails.
    Sequential,
}

/// A file open for ranged writes, from any thread. All stores can implement this; what only files
/// on a local disk offer is in [`DiskFile`].
pub trait WriteHandle: Lock {
    /// The current attributes of the file.
    ///
    /// # Errors
    /// The system cannot read the attributes of the open file, for example because a file server
    /// has lost it.
    fn metadata(&self) -> Result<Metadata>;
    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// No space or quota is left, the file would be too large, bytes come out of order
    /// ([`Positions::Sequential`]), or those of the system; with the offset. A part of `data` may
    /// have been written.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()>;
    fn positions(&self) -> Positions {
        Positions::Any
    }
    /// Whether written bytes are discarded (/dev/null), so that they need not even be read.
    fn discards(&self) -> bool {
        false
    }
    /// The descriptor for `poll`, if a write may have to wait for another program (the reader of a
    /// pipe). [`Self::write_now`] does not wait then.
    fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Like [`Self::write_at`], but writes only as many bytes as are taken at once; `None` if no
    /// bytes can be taken yet.
    ///
    /// # Errors
    /// The same errors as [`Self::write_at`].
    fn write_now(&self, data: &[u8], offset: u64) -> Result<Option<usize>> {
        self.write_at(data, offset).map(|()| Some(data.len()))
    }
    /// Asks for space up to `end`, which is charged to the quotas of the file. Called before bytes
    /// are written in another way than by [`Self::write_at`], and for a size that was announced.
    ///
    /// # Errors
    /// [`ErrorKind::QuotaExceeded`] if it does not fit.
    fn admit(&self, _end: u64) -> Result<()> {
        Ok(())
    }
    /// The file on a local disk, for writes without a copy and for reserved space.
    fn disk(&self) -> Option<&dyn DiskFile> {
        None
    }
    /// Truncates the file to `length`, or extends it with zeros.
    ///
    /// # Errors
    /// No space is left, the file would be too large, or those of the system.
    fn set_len(&self, length: u64) -> Result<()>;
    /// Lets the store start to write the file to stable storage, without waiting for the end.
    fn begin_sync(&self) {}
    /// Waits until data and size are on stable storage.
    ///
    /// # Errors
    /// The disk fails, or has no space for bytes that were taken before. It is unknown which of
    /// them are lost.
    fn sync(&self) -> Result<()>;
    /// Announces that the file, whose attributes are `metadata`, is not written any more. A store
    /// that may lose bytes it has already taken, such as a network file system, reports that now.
    /// The bytes need not be on stable storage.
    ///
    /// # Errors
    /// Bytes that were taken are lost, because of space, quota or the file server.
    fn confirm(&self, _metadata: &Metadata) -> Result<()> {
        Ok(())
    }
    /// Waits until everything written to this file's file system is on stable storage, including
    /// names.
    ///
    /// # Errors
    /// Something of the file system could not be written, perhaps of another file.
    fn sync_system(&self) -> Result<()> {
        Ok(())
    }
    /// Sets the modification time: seconds since 1970 and nanoseconds. The default is for files
    /// that keep no time.
    ///
    /// # Errors
    /// The file is another user's, or the process may not impersonate the store's user.
    fn set_modified(&self, _seconds: i64, _nanoseconds: u32) -> Result<()> {
        Ok(())
    }
    /// Sets the permission bits, 0o7777. The default is for files that keep no mode.
    ///
    /// # Errors
    /// The file is another user's, or the process may not impersonate the store's user.
    fn set_mode(&self, _mode: u32) -> Result<()> {
        Ok(())
    }
}

/// How a file on a local disk is written without a copy, past the page cache, and into space that
/// was reserved before. A store in which all of this means nothing has no such object, and each
/// default method is for a disk without that feature.
pub trait DiskFile: Send + Sync {
    /// The descriptor for `splice`, if bytes written through it at a position are the file's bytes.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// The descriptor of the open file, by which the system knows its current name.
    fn named_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor()
    }
    /// Announces that `size` bytes will be written in any order. The file is new or was prepared
    /// before. Space may be reserved, so that the file has its full size at once: the caller has
    /// asked for it ([`WriteHandle::admit`]). `sync` means that the file must be on the disk when
    /// it is complete.
    fn prepare(&self, _size: u64, _direct: DirectIo, _sync: bool) {}
    /// Announces that `size` bytes will be written. The writer reports which bytes stay zero
    /// ([`Self::leave_zero`]) and when all are written ([`Self::settle`]), so space may be reserved
    /// ahead of the writes. The size of the file remains that of the written bytes.
    fn reserve_ahead(&self, _size: u64) {}
    /// Announces that `length` bytes will be written at `start` through [`Self::descriptor`].
    fn make_room(&self, _start: u64, _length: u64) {}
    /// Announces that no writer writes any more, and that the file has `length` bytes. Space
    /// reserved beyond them can be released.
    fn settle(&self, _length: u64) {}
    /// Whether space is reserved ahead. The kernel then does not start to write the file by itself
    /// when it replaces another one by rename.
    fn reserves_ahead(&self) -> bool {
        false
    }
    /// Whether reserved space is included in the file's size, as if it were written. Until a sync,
    /// a power loss may replace written bytes by zeros.
    fn is_reserved(&self) -> bool {
        false
    }
    /// Announces that these bytes of a new file stay zero, or that their content does not matter:
    /// no space need be reserved for them.
    fn leave_zero(&self, _start: u64, _length: u64) {}
    /// Makes a range within the file's size zero and releases its space. Returns `false` if that is
    /// impossible.
    fn punch(&self, _start: u64, _length: u64) -> bool {
        false
    }
    /// The best size of a write in bytes. Such writes should be at multiples of it, from memory at
    /// a page boundary. `None` if the size makes little difference.
    fn chunk(&self) -> Option<usize> {
        None
    }
}

/// The callback of [`Store::list`]. It gets the name and attributes of each entry (symbolic links
/// not followed).
pub type ListSink<'a> = dyn FnMut(&BStr, Metadata) -> Result<()> + 'a;

/// A storage system. All paths are absolute within it and cannot leave it, also not by symbolic
/// links.
///
/// Symbolic links are followed, also at the end of a path. But operations that create, remove or
/// rename a name apply to the link itself, and a file is never created at the target of a link.
pub trait Store: Send + Sync {
    fn name(&self) -> &'static str;
    fn capabilities(&self) -> Capabilities;
    /// Returns this store with access rules: before each operation, `guard` is called with the
    /// place to which the path leads at that moment, even if other processes swap directories for
    /// symbolic links meanwhile. If it refuses, the operation fails with [`ErrorKind::NotAllowed`].
    /// `real_path`, `free_space` and `sync_directory` are not guarded. Returns `None` if the store
    /// does not support this.
    fn guarded(&self, _guard: Guard) -> Option<Arc<dyn Store>> {
        None
    }
    /// Returns this store with a [`Self::rename`] that replaces nothing: it fails with
    /// [`ErrorKind::AlreadyExists`] if the new name exists at that moment. Files that
    /// [`Self::open_write`] is to create must not exist either. If the file system cannot rename
    /// without replacing in one step (NFS before 4.2, some FUSE file systems), the store checks
    /// first, and a name that another process creates in between is replaced. Returns `None` if the
    /// store does not support this at all.
    fn without_replacing(&self) -> Option<Arc<dyn Store>> {
        None
    }
    /// Returns this store with `directory` kept open, for several operations there. The entries are
    /// accessed, created, removed and renamed in this very directory, even if it is moved
    /// meanwhile. Returns `None` if there is no advantage, or the directory cannot be opened.
    fn near(&self, _directory: &VirtualPath) -> Option<Arc<dyn Store>> {
        None
    }
    /// Lets the calling thread impersonate the store's user until the guard is dropped. Each
    /// operation does this by itself; around several operations the guard avoids repeated switches.
    ///
    /// # Errors
    /// The process may not impersonate that user.
    fn acting(&self) -> Result<Impersonation> {
        Ok(Impersonation::default())
    }
    /// The user that the store impersonates, if it is another one than that of the process.
    fn acting_uid(&self) -> Option<u32> {
        None
    }
    /// The user who owns the files of this store's user: [`Self::acting_uid`], or the user of the
    /// process. `None` if the store has no owners.
    fn own_uid(&self) -> Option<u32> {
        self.acting_uid()
    }
    /// The attributes of an entry; with `follow`, those of the target of a symbolic link.
    ///
    /// # Errors
    /// The entry (with `follow`, also the target of a link) does not exist, or the path may not be
    /// searched.
    fn stat(&self, path: &VirtualPath, follow: bool) -> Result<Metadata>;
    /// Lists a directory in no particular order, without `.` and `..`. An error of `sink` stops the
    /// listing.
    ///
    /// # Errors
    /// It does not exist, is not a directory or may not be read; or the error of `sink`.
    fn list(&self, path: &VirtualPath, sink: &mut ListSink<'_>) -> Result<()>;
    /// Opens an existing file for reading.
    ///
    /// # Errors
    /// It does not exist, is a directory, or may not be read.
    fn open_read(&self, path: &VirtualPath) -> Result<Arc<dyn ReadHandle>>;
    /// Opens a file for writing with these options.
    ///
    /// # Errors
    /// It is a directory, may not be written, does not exist and `create` is not set, or cannot be
    /// created. [`ErrorKind::AlreadyExists`] if it must not exist but does, or is a symbolic link
    /// to a missing target.
    fn open_write(&self, path: &VirtualPath, options: WriteOptions) -> Result<Arc<dyn WriteHandle>>;
    /// Opens a file that gets its name when it is complete, or resumes an interrupted upload to
    /// this path if the options ask for that. Another upload to the path is locked out.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if another upload writes the file; or it cannot be created here.
    fn begin_upload(&self, path: &VirtualPath, spec: UploadSpec) -> Result<Arc<dyn Upload>>;
    /// Returns the state of an interrupted upload to this path; `None` if there is nothing to
    /// resume.
    ///
    /// After a crash of the machine this may read the present ranges, which takes time. `progress`
    /// is called with the number of bytes read, and its error stops the work. A later
    /// [`Self::begin_upload`] need not read them again.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if another upload writes it; a failure to read; or the error of
    /// `progress`.
    fn interrupted_upload(
        &self,
        _path: &VirtualPath,
        _progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Option<Interrupted>> {
        Ok(None)
    }
    /// Returns the number of bytes from the start that an interrupted upload in order
    /// ([`Journaling::Sequential`]) has left. No content is read.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if another upload writes it; or the store cannot access it.
    fn uploaded_prefix(&self, _path: &VirtualPath) -> Result<Option<u64>> {
        Ok(None)
    }
    /// The space that an interrupted upload to this path takes, in bytes.
    fn upload_space(&self, _path: &VirtualPath) -> u64 {
        0
    }
    /// Creates a directory. `mode` are its permission bits before the umask.
    ///
    /// # Errors
    /// The name exists, its parent does not exist or may not be written, or no space is left.
    fn make_directory(&self, path: &VirtualPath, mode: u32) -> Result<()>;
    /// Removes an empty directory.
    ///
    /// # Errors
    /// It does not exist, is not a directory, is not empty, is the root ([`ErrorKind::Busy`]), or
    /// may not be removed.
    fn remove_directory(&self, path: &VirtualPath) -> Result<()>;
    /// Removes an entry that is not a directory.
    ///
    /// # Errors
    /// It does not exist, is a directory, or may not be removed.
    fn remove_file(&self, path: &VirtualPath) -> Result<()>;
    /// Renames an entry; replaces `to` if it exists.
    ///
    /// # Errors
    /// `from` does not exist or `to` is below it, the entry at `to` cannot be replaced by it (for
    /// example a directory that is not empty), they are on two file systems
    /// ([`ErrorKind::CrossDevice`]), or the names may not be changed.
    fn rename(&self, from: &VirtualPath, to: &VirtualPath) -> Result<()>;
    /// Like [`Self::rename`], but never renames a directory, even if another process replaces
    /// `from` meanwhile. [`ErrorKind::Unsupported`] if the store cannot ensure that.
    ///
    /// # Errors
    /// The same errors as [`Self::rename`]; or `from` is a directory, or cannot have a second name
    /// for a moment.
    fn rename_file(&self, from: &VirtualPath, _to: &VirtualPath) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "rename", from.as_bytes()))
    }
    /// Creates a symbolic link to `target`, which need not exist.
    ///
    /// # Errors
    /// The name exists, the directory does not exist or may not be written, or the file system has
    /// no symbolic links.
    fn symlink(&self, target: &BStr, link: &VirtualPath) -> Result<()>;
    /// Sets the modification time: seconds since 1970 and nanoseconds.
    ///
    /// # Errors
    /// It does not exist, or is another user's.
    fn set_modified(&self, path: &VirtualPath, seconds: i64, nanoseconds: u32) -> Result<()>;
    /// Sets the permission bits, 0o7777.
    ///
    /// # Errors
    /// It does not exist, or is another user's.
    fn set_mode(&self, path: &VirtualPath, mode: u32) -> Result<()>;
    /// Changes the group.
    ///
    /// # Errors
    /// It does not exist, is another user's, or may not be given to that group.
    fn set_group(&self, path: &VirtualPath, gid: u32) -> Result<()>;
    /// Truncates a file to `length`, or extends it with zeros.
    ///
    /// # Errors
    /// It does not exist, is a directory, may not be written, or would be too large.
    fn truncate(&self, path: &VirtualPath, length: u64) -> Result<()>;
    /// The path with every symbolic link resolved, within the store. Access rules are checked
    /// against it.
    ///
    /// # Errors
    /// It does not exist, the path may not be searched, or it is outside of the store by now
    /// ([`ErrorKind::Outside`]).
    fn real_path(&self, path: &VirtualPath) -> Result<VirtualPath>;
    /// The checksum of a file or of a part of it, in lower-case hexadecimal, if the store can
    /// compute it without passing the bytes to this process; otherwise `None`. `progress` gets the
    /// number of bytes that are known to be summed: before the work begins, and at least once a
    /// second while it lasts. Its error stops the work and is returned.
    fn checksum(
        &self,
        _path: &VirtualPath,
        _algorithm: Algorithm,
        _offset: u64,
        _length: Option<u64>,
        _progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Option<Result<String>> {
        None
    }
    /// Waits until the entries of a directory (names created, renamed, removed) are on stable
    /// storage.
    ///
    /// # Errors
    /// It is not a directory, may not be read ([`ErrorKind::PermissionDenied`]), or the disk fails.
    fn sync_directory(&self, _path: &VirtualPath) -> Result<()> {
        Ok(())
    }
    /// How many bytes can still be written there; `None` if the store does not know.
    ///
    /// # Errors
    /// It does not exist, or its file system does not answer.
    fn free_space(&self, _path: &VirtualPath) -> Result<Option<u64>> {
        Ok(None)
    }
    /// The size of the file system there in bytes; `None` if the store does not know.
    ///
    /// # Errors
    /// The same errors as [`Self::free_space`].
    fn total_space(&self, _path: &VirtualPath) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Removes a file, or a directory with everything below it. Symbolic links are removed and not
    /// followed, even if another process replaces a directory by a link meanwhile (stores in which
    /// that can happen do not use this default implementation). Stops at the first error.
    ///
    /// # Errors
    /// It does not exist, is the root ([`ErrorKind::Busy`]), or a part of it may not be removed.
    fn remove_tree(&self, path: &VirtualPath) -> Result<()> {
        self.remove_tree_while(path, &mut || Ok(()))
    }

    /// Like [`Self::remove_tree`], but calls `go_on` regularly, whose error stops the removal. The
    /// rest is a tree that can be removed as well.
    ///
    /// # Errors
    /// The same errors as [`Self::remove_tree`], or the error of `go_on`.
    fn remove_tree_while(&self, path: &VirtualPath, go_on: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        remove::by_path(self, path, go_on)
    }
}
