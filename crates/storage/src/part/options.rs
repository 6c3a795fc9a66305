//! Options of part files.

use ropewalk_protocol::range::RangeSet;

use crate::JournalKey;

/// When a [`super::PartFile`] gets a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Journaling {
    /// Never, because the file is written from front to back: its size says what is present.
    ///
    /// While the file is unfinished, the sticky bit of its mode marks it as written in this way.
    Sequential,
    /// For a file that is written in any order. If its size is known and greater than this number
    /// of bytes, it gets a journal from the first byte. If its size is unknown, it gets one as soon
    /// as more than this number of bytes (at most 1 MiB) were written. If the process is killed
    /// before, the file starts from the beginning, unless [`super::PartFile::keep`] was called. If
    /// the transfer is abandoned, a journal is written then.
    Above(u64),
}

impl Default for Journaling {
    /// Above 4 MiB: sending that much again takes no noticeable time.
    fn default() -> Self {
        Self::Above(4 << 20)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartOptions {
    /// Permission bits of the created file, before the umask.
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

impl Default for PartOptions {
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

/// The state of an interrupted transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupted {
    pub present: RangeSet,
    /// The source of the data; `None` for a file that was written from front to back without a
    /// journal.
    pub key: Option<JournalKey>,
}
