//! Uploads: files that get their name when they are complete.
//!
//! A store makes an upload ([`Store::begin_upload`](crate::Store::begin_upload)) in its own way:
//! with a part file and a journal, in memory, or in parts that an object store joins. Several
//! threads write ranges through one writer and record them. An upload ends by commit, suspend or
//! discard; one that is dropped is suspended. A failed commit leaves the upload as it was.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;

use crate::checksum::{Algorithm, Pieces, checksum_file};
use crate::{Error, ErrorKind, JournalKey, ReadHandle, Result, WriteHandle};

/// A file that is being uploaded. Can be used from any thread.
pub trait Upload: Send + Sync {
    /// The present ranges, from earlier transfers and this one.
    fn present(&self) -> RangeSet;
    /// CRC-32C sums of the present ranges, as far as they were recorded.
    fn pieces(&self) -> Pieces;
    /// Whether the missing ranges contain nothing but zeros, so that zeros need not be written.
    fn is_blank(&self) -> bool {
        true
    }
    /// The ranges that restart markers may report, if these are not all that were recorded: those
    /// that are on the disk of another machine.
    fn stored(&self) -> Option<RangeSet> {
        None
    }
    /// Why the data of an earlier upload was not used.
    fn started_over(&self) -> Option<&str> {
        None
    }
    /// Writes ranges of the file. A range that was written has to be recorded.
    fn writer(&self) -> Arc<dyn WriteHandle>;
    /// Reads what was written.
    ///
    /// # Errors
    /// The store does not keep what was written ([`ErrorKind::Unsupported`]), or
    /// it cannot be opened.
    fn reader(&self) -> Result<Arc<dyn ReadHandle>>;
    /// The checksum of the first `length` bytes, in lower-case hexadecimal. This reads them again,
    /// unless the store can compute it where they are. `progress` is that of
    /// [`Store::checksum`](crate::Store::checksum).
    ///
    /// # Errors
    /// The same errors as [`Self::reader`]; they cannot be read; or that of `progress`.
    fn checksum(
        &self,
        algorithm: Algorithm,
        length: u64,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<String> {
        checksum_file(&*self.reader()?, algorithm, 0, Some(length), progress)
    }
    /// Records that a range was written through [`Self::writer`].
    ///
    /// # Errors
    /// The range cannot be recorded; see [`Self::keep`].
    fn record(&self, range: Range<u64>, crc32c: Option<u32>) -> Result<()>;
    /// Makes sure that all ranges recorded so far can be resumed even if this process is killed,
    /// however small the file is.
    ///
    /// # Errors
    /// The record cannot be kept, another process has removed or replaced the incomplete file
    /// ([`ErrorKind::Busy`]), or the upload has ended
    /// ([`ErrorKind::Incomplete`]).
    fn keep(&self) -> Result<()> {
        Ok(())
    }
    /// Writes all data recorded so far to stable storage, so that a crash of the machine does not
    /// lose it. On failure, the upload is discarded.
    ///
    /// # Errors
    /// The same errors as [`Self::keep`] and [`Self::sync`].
    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }
    /// Waits up to `limit` until a store that passes its data on, such as one at another server,
    /// has done so with all that was written. Call this repeatedly before [`Self::confirm`],
    /// [`Self::checkpoint`] or [`Self::commit`], which wait as long as it takes, and write nothing
    /// meanwhile. Returns whether it has.
    ///
    /// # Errors
    /// The data cannot be passed on. [`Self::present`] then has the ranges that have arrived.
    fn settle(&self, _limit: Duration) -> Result<bool> {
        Ok(true)
    }
    /// Lets the store report which data it could not keep. Call this when no more data is written
    /// for now. On failure, the upload is discarded.
    ///
    /// # Errors
    /// The same errors as [`WriteHandle::confirm`]; or the store cannot access the file.
    fn confirm(&self) -> Result<()> {
        Ok(())
    }
    /// Writes the bytes to stable storage, but not the record of ranges: for a complete file that
    /// is about to get its name. On failure, the upload is discarded.
    ///
    /// # Errors
    /// The same errors as [`WriteHandle::sync`].
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    /// Finishes a complete file: sets its length, attributes and name. Replaces an existing file.
    ///
    /// Fails with [`ErrorKind::Incomplete`] if a part of `0..length` is missing;
    /// the upload stays as it is.
    ///
    /// # Errors
    /// Incomplete, as above; the errors of [`Self::confirm`] and [`Self::sync`]; the incomplete
    /// file was removed or replaced ([`ErrorKind::Busy`]); or length, attributes
    /// or name cannot be set.
    fn commit(&self, length: u64, modified: Option<(i64, u32)>, mode: Option<u32>) -> Result<()>;
    /// Keeps the present ranges for a later upload to resume.
    ///
    /// # Errors
    /// The same errors as [`Self::confirm`] and [`Self::keep`]; if no bytes came, those of
    /// [`Self::discard`].
    fn suspend(&self) -> Result<()>;
    /// Removes everything that was written.
    ///
    /// # Errors
    /// It may not be removed. It is not an error if it is gone or was replaced.
    fn discard(&self) -> Result<()>;
}

/// The source of an upload, and how it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadSpec {
    /// The source of the data: ranges of another source or version are not resumed.
    pub key: JournalKey,
    pub options: UploadOptions,
}

/// When an upload gets a journal, if the store keeps one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Journaling {
    /// Never, because the file is written from front to back: its size says what is present.
    ///
    /// While the file is unfinished, the sticky bit of its mode marks it as written in this way.
    Sequential,
    /// For a file that is written in any order. If its size is known and greater than this number
    /// of bytes, it gets a journal from the first byte. If its size is unknown, it gets one as soon
    /// as more than this number of bytes (at most 1 MiB) were written. If the process is killed
    /// before, the file starts from the beginning, unless [`Upload::keep`] was called. If
    /// the transfer is abandoned, a journal is written then.
    Above(u64),
}

impl Default for Journaling {
    /// Above 4 MiB: sending that much again takes no noticeable time.
    fn default() -> Self {
        Self::Above(4 << 20)
    }
}

/// How an upload is written. Stores without files ignore what has no meaning for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadOptions {
    /// Permission bits of the file while it is incomplete, before the umask.
    pub mode: u32,
    /// Resume an interrupted transfer; otherwise its data is removed.
    pub resume: bool,
    pub journal: Journaling,
    /// Write the file and its name to stable storage before the upload counts as done.
    pub sync: bool,
    pub direct: DirectIo,
    /// Reserve space ahead of writes through the page cache, if that saves processor time. Not for
    /// writers that do not report which bytes stay zero.
    pub reserve: bool,
}

/// When to write past the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// If a file is too large for the page cache and the file system benefits from it (ext4, XFS).
    /// Before Linux 6.16 this uses direct writes; later it uses uncached or direct writes,
    /// whichever is found to be better there.
    ///
    /// A file is too large if it has more than 64 MiB, and also more than `vm.dirty_ratio` and
    /// `vm.dirty_background_ratio` together, less the bytes that are unwritten already; or more
    /// than the latter alone, if it must be on the disk in the end; or more than half of the memory
    /// that programs can have.
    #[default]
    Auto,
    /// Direct writes wherever they are possible.
    Always,
    Never,
}

impl Default for UploadOptions {
    fn default() -> Self {
        Self {
            mode: 0o666,
            resume: true,
            journal: Journaling::default(),
            sync: false,
            direct: DirectIo::default(),
            reserve: true,
        }
    }
}

/// The state of an interrupted upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupted {
    pub present: RangeSet,
    /// The source of the data; `None` for a file that was written from front to back without a
    /// journal.
    pub key: Option<JournalKey>,
    /// The time of the last write to it: seconds since 1970 and nanoseconds.
    pub modified: (i64, u32),
    /// The time of the last change of its content or attributes, which cannot be set.
    pub changed: (i64, u32),
}

/// The recorded ranges of an upload that exist in this process alone.
pub(crate) struct Ranges(Mutex<(RangeSet, Pieces)>);

impl Default for Ranges {
    fn default() -> Self {
        Self::new(RangeSet::new(), Pieces::new(Algorithm::Crc32c))
    }
}

impl Ranges {
    pub(crate) fn new(present: RangeSet, pieces: Pieces) -> Self {
        Self(Mutex::new((present, pieces)))
    }

    pub(crate) fn present(&self) -> RangeSet {
        self.0.lock().0.clone()
    }

    pub(crate) fn pieces(&self) -> Pieces {
        self.0.lock().1.clone()
    }

    pub(crate) fn record(&self, range: Range<u64>, crc32c: Option<u32>) {
        if range.start >= range.end {
            return;
        }
        let (present, pieces) = &mut *self.0.lock();
        present.insert(range.clone());
        match crc32c {
            Some(sum) => pieces.insert(range, sum),
            None => pieces.forget(range),
        }
    }

    /// # Errors
    /// [`ErrorKind::Incomplete`] if a part of `0..length` is missing.
    pub(crate) fn check_complete(&self, length: u64, path: &VirtualPath) -> Result<()> {
        check_complete(&self.0.lock().0, length, path)
    }
}

/// # Errors
/// [`ErrorKind::Incomplete`] if a part of `0..length` is missing.
pub(crate) fn check_complete(present: &RangeSet, length: u64, path: &VirtualPath) -> Result<()> {
    let missing = present.complement(0..length);
    if missing.is_empty() {
        return Ok(());
    }
    let detail = format!("{} of {length} bytes are missing, {}", missing.len(), first_few(&missing));
    Err(Error::new(ErrorKind::Incomplete, "finish", path.as_bytes()).with_detail(detail))
}

fn first_few(ranges: &RangeSet) -> String {
    let few: RangeSet = ranges.iter().take(3).collect();
    if ranges.count() > 3 { format!("{few},...") } else { few.to_string() }
}
