use ropewalk_protocol::range::RangeSet;

use crate::JournalKey;

/// When a [`super::PartFile`] gets a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Journaling {
    /// Never, because the file is written from front to back: its size says what is there.
    ///
    /// While it is unfinished, the sticky bit of its mode says so to whoever finds it.
    Sequential,
    /// From the first byte where the file is to have more than so many bytes, written in any order; where its size is
    /// not known, as soon as more than so many (1 MiB at most) are written. If the process is killed before, the file
    /// begins anew, unless it was to be kept ([`super::PartFile::keep`]); if it is abandoned, a journal is written then.
    Above(u64),
}

impl Default for Journaling {
    /// Above 4 MiB: to send as much again takes less time than anybody notices.
    fn default() -> Self {
        Self::Above(4 << 20)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartOptions {
    /// Permission bits of the file when it is made, before the umask.
    pub mode: u32,
    /// Go on with what an interrupted transfer left; otherwise it is removed.
    pub resume: bool,
    pub journal: Journaling,
    /// Have the file, and its name, on stable storage before it counts as done.
    pub sync: bool,
    pub direct: DirectIo,
    /// Reserve space ahead of what is written through the page cache, where that saves the processor's time. Not for who does
    /// not tell which bytes stay zero.
    pub reserve: bool,
}

/// When to write past the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// Where a file is too large for the page cache and the file system is one that gains by it (ext4, XFS): by uncached or
    /// direct writes, whichever is found to be better there; before Linux 6.16 by direct writes.
    ///
    /// Too large is what has more than 64 MiB and more than `vm.dirty_ratio` and `vm.dirty_background_ratio` together, less what
    /// is unwritten already; or more than the latter alone, where it is to be on the disk in the end; or more than half of the
    /// memory that programs can have.
    #[default]
    Auto,
    /// By direct writes wherever they can be done.
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

/// What an interrupted transfer left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupted {
    pub present: RangeSet,
    /// What it is a copy of; `None` for a file that was written from front to back without a journal.
    pub key: Option<JournalKey>,
}
