//! Reserves space ahead of writes through the page cache.
//!
//! ext4 allocates blocks when it writes pages out, and keeps account of every block until then.
//! That is a third to a half of the processor time of a write. It is saved if the blocks were
//! allocated before. The size of the file remains that of the written bytes.
//!
//! The reserved space follows the written bytes: a sender that announces a large file and sends
//! little gets little. It helps files that are written roughly from front to back; other files are
//! written as without it.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use ropewalk_protocol::range::RangeSet;
use rustix::fs::FallocateFlags;
use rustix::io::retry_on_intr;

use super::kinds::{EXT4, system_of};

/// The file system's blocks are rarely longer, in bytes.
const PAGE: u64 = 4096;
/// For smaller files a call is not worth it, in bytes.
const LEAST: u64 = 1 << 20;
/// The first reservation in bytes. It is small, because the file may turn out to be full of holes.
const FIRST: u64 = 8 << 20;
/// The largest reservation in bytes: the maximum of an extent of ext4.
const MOST: u64 = 128 << 20;
/// Runs of zeros from this length on release their space, in bytes.
const WORTH: u64 = 64 << 10;
/// The share of a file that may stay reserved for shorter runs of zeros: one in this many bytes.
const WASTE: u64 = 16;
/// How many runs of zeros may wait to be released; further ones keep their space.
const PENDING: usize = 1024;

/// The reserved space of a file. Nothing is reserved until `plan` sets the size of the file.
#[derive(Default)]
pub(super) struct Space {
    /// Below this offset nothing needs to be reserved (any more), in bytes.
    reached: AtomicU64,
    /// The number of written bytes.
    written: AtomicU64,
    /// Whether [`Books::zeros`] is not empty.
    pending: AtomicBool,
    books: OnceLock<Mutex<Books>>,
}

struct Books {
    /// The end of the file, rounded up to a page.
    end: u64,
    /// The number of bytes reserved by this transfer.
    granted: u64,
    /// The end of everything that was ever reserved.
    reserved: u64,
    /// The number of bytes in short runs of zeros.
    wasted: u64,
    /// Whether reserving has ended.
    over: bool,
    /// Long runs of zeros whose space was not released yet, because ext4 does so only within a
    /// file's size.
    zeros: RangeSet,
}

impl Space {
    /// Announces that the file will have `size` bytes. Nothing changes if it is not worth it, or if
    /// the file system does not benefit from it.
    pub(super) fn plan(&self, file: BorrowedFd<'_>, size: u64) {
        if size < LEAST || self.is_planned() || !gains(file, size) {
            return;
        }
        let end = size.next_multiple_of(PAGE);
        // An existing file may have holes below its end, and an earlier transfer may have reserved
        // space behind it.
        let there = length(file);
        let reserved = if there > 0 { end } else { 0 };
        let books = Books { end, granted: 0, reserved, wasted: 0, over: false, zeros: RangeSet::new() };
        self.reached.store(there / PAGE * PAGE, Ordering::Relaxed);
        let _ = self.books.set(Mutex::new(books));
    }

    pub(super) fn is_planned(&self) -> bool {
        self.books.get().is_some()
    }

    /// Announces a write.
    pub(super) fn reach(&self, file: BorrowedFd<'_>, start: u64, length: u64) {
        if !self.is_planned() {
            return;
        }
        let end = start.saturating_add(length);
        let written = self.written.fetch_add(length, Ordering::Relaxed).saturating_add(length);
        if end <= self.reached.load(Ordering::Relaxed) && !self.pending.load(Ordering::Relaxed) {
            return;
        }
        let Some(mut books) = self.books() else { return };
        // Bytes that were announced as zero by mistake are written after all.
        books.zeros.subtract(&RangeSet::from_range(start..end));
        let reached = self.reached.load(Ordering::Relaxed);
        // At most twice the written bytes.
        let step = (2 * written).saturating_add(FIRST).saturating_sub(books.granted).min(MOST);
        if books.over || end <= reached || step < FIRST / 2 {
            return;
        }
        // Skipped bytes may be a hole; or other threads write them, without reserved space.
        let from = if start > reached.saturating_add(step) { start / PAGE * PAGE } else { reached };
        let to = books.end.min(end.max(from.saturating_add(step)));
        let mut done = true;
        if from < to {
            books.reserved = books.reserved.max(to);
            books.granted += to - from;
            let reserve = || rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, from, to - from);
            // For example because of a quota, or because other programs were faster; the writes
            // will report it.
            done = retry_on_intr(reserve).is_ok();
        }
        if done && to < books.end {
            self.reached.store(to.max(reached), Ordering::Relaxed);
        } else {
            self.end(&mut books);
        }
    }

    /// Announces that these bytes stay zero. Best effort: they read as zeros anyway.
    pub(super) fn free(&self, file: BorrowedFd<'_>, start: u64, length: u64) {
        let Some(mut books) = self.books() else { return };
        if length == 0 || books.over && start >= books.reserved {
            return;
        }
        if length < WORTH && books.wasted <= WORTH.max(books.reserved / WASTE) {
            books.wasted += length;
            return;
        }
        if length < WORTH {
            // The file is full of short holes.
            self.end(&mut books);
        }
        if books.zeros.count() < PENDING {
            books.zeros.insert(start..start.saturating_add(length));
        }
        let size = self::length(file);
        books.punch(file, |run| run.end <= size);
        self.pending.store(!books.zeros.is_empty(), Ordering::Relaxed);
    }

    /// Announces that the file is complete and has `size` bytes: space reserved behind them is
    /// released. Best effort.
    pub(super) fn settle(&self, file: BorrowedFd<'_>, size: u64) {
        let Some(mut books) = self.books() else { return };
        self.end(&mut books);
        books.punch(file, |run| run.start < size);
        if books.reserved > size.next_multiple_of(PAGE) {
            let _ = retry_on_intr(|| rustix::fs::ftruncate(file, size));
        }
        books.reserved = 0;
    }

    fn end(&self, books: &mut Books) {
        books.over = true;
        self.reached.store(u64::MAX, Ordering::Relaxed);
    }

    fn books(&self) -> Option<MutexGuard<'_, Books>> {
        Some(self.books.get()?.lock())
    }
}

impl Books {
    fn punch(&mut self, file: BorrowedFd<'_>, which: impl Fn(&Range<u64>) -> bool) {
        let runs: RangeSet = self.zeros.iter().filter(which).collect();
        for run in runs.iter() {
            punch(file, run);
        }
        self.zeros.subtract(&runs);
    }
}

/// Makes a hole within the file's size. Returns whether that succeeded.
pub(super) fn punch(file: BorrowedFd<'_>, range: Range<u64>) -> bool {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    retry_on_intr(|| rustix::fs::fallocate(file, flags, range.start, range.end - range.start)).is_ok()
}

/// The file's size in bytes.
fn length(file: BorrowedFd<'_>) -> u64 {
    rustix::fs::fstat(file).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0))
}

/// Whether the file is on ext4 and there is space for all of it.
fn gains(file: BorrowedFd<'_>, size: u64) -> bool {
    system_of(file).is_some_and(|(system, free)| system == EXT4 && size <= free)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::File;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A new file that will have `size` bytes; `None` if the file system does not benefit from
    /// reservation.
    fn planned(size: u64) -> Option<(File, Space)> {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let space = Space::default();
        space.plan(file.as_fd(), size);
        if space.books.get().is_none() {
            eprintln!("skipped: not ext4, or little space");
            return None;
        }
        Some((file, space))
    }

    fn write(file: &File, space: &Space, start: u64, length: u64) {
        space.reach(file.as_fd(), start, length);
        file.write_all_at(&vec![7; usize::try_from(length).unwrap()], start).unwrap();
    }

    /// The bytes used on the disk.
    fn kept(file: &File) -> u64 {
        file.metadata().unwrap().blocks() * 512
    }

    #[test]
    fn reach_reserves_in_steps_and_keeps_the_size() {
        let Some((file, space)) = planned(40 * MIB) else { return };
        for (start, length, least, most) in [
            (0, 1000, 8 * MIB, 9 * MIB),
            (1000, MIB, 8 * MIB, 9 * MIB),
            // A writer that has written little gets no more space.
            (8 * MIB - 5, 10, 8 * MIB, 9 * MIB),
            (8 * MIB + 5, 4 * MIB, 18 * MIB, 19 * MIB),
            (12 * MIB + 5, 10 * MIB, 38 * MIB, 39 * MIB),
            (37 * MIB, 2 * MIB, 40 * MIB, 41 * MIB),
        ] {
            write(&file, &space, start, length);
            assert_eq!(file.metadata().unwrap().len(), start + length);
            let kept = kept(&file);
            assert!((least..most).contains(&kept), "{kept} after {length} bytes at {start}");
        }
    }

    #[test]
    fn settle_releases_space_of_missing_bytes() {
        for earlier in [false, true] {
            let Some((file, mut space)) = planned(40 * MIB) else { return };
            write(&file, &space, 0, 3 * MIB);
            if earlier {
                // A transfer was killed, and another one resumes it.
                space = Space::default();
                space.plan(file.as_fd(), 40 * MIB);
                write(&file, &space, 3 * MIB, 10);
            }
            let size = file.metadata().unwrap().len();
            space.settle(file.as_fd(), size);
            assert!((3 * MIB..4 * MIB).contains(&kept(&file)), "{}", kept(&file));
            assert_eq!(file.metadata().unwrap().len(), size);
            // Also for a writer without a reservation.
            write(&file, &space, 5 * MIB, 10);
            assert!((3 * MIB..4 * MIB).contains(&kept(&file)), "{}", kept(&file));
        }
    }

    #[test]
    fn plan_on_an_existing_file_keeps_its_holes() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.set_len(30 * MIB + 5).unwrap();
        let space = Space::default();
        space.plan(file.as_fd(), 40 * MIB);
        write(&file, &space, 6 * MIB, 10);
        space.free(file.as_fd(), 10 * MIB, 10 * MIB);
        write(&file, &space, 20 * MIB, 10);
        assert!(kept(&file) <= MIB, "{}", kept(&file));
    }

    #[test]
    fn reach_far_ahead_skips_the_gap() {
        let Some((file, space)) = planned(1 << 30) else { return };
        write(&file, &space, 512 * MIB + 5, 10);
        assert!(kept(&file) <= 9 * MIB, "{}", kept(&file));
        // A write there gets no reserved space.
        write(&file, &space, 0, 10);
        assert!(kept(&file) <= 9 * MIB, "{}", kept(&file));
    }

    #[test]
    fn free_releases_long_and_many_short_runs() {
        let Some((file, space)) = planned(32 * MIB) else { return };
        write(&file, &space, 0, MIB);
        space.free(file.as_fd(), MIB, MIB);
        space.free(file.as_fd(), 2 * MIB, 2 * MIB);
        // Released with the next run or at the end, because holes can be made only within the file.
        file.set_len(4 * MIB).unwrap();
        space.free(file.as_fd(), 3 * MIB, WORTH);
        assert!((7 * MIB..8 * MIB).contains(&kept(&file)), "{}", kept(&file));
        // Space that is reserved after that is released, too.
        space.free(file.as_fd(), 10 * MIB, 5 * MIB);
        write(&file, &space, 4 * MIB, PAGE);
        // Every other page is zero.
        for page in (4 * MIB / PAGE..10 * MIB / PAGE).chain(15 * MIB / PAGE..32 * MIB / PAGE).step_by(2) {
            write(&file, &space, page * PAGE, PAGE);
            space.free(file.as_fd(), (page + 1) * PAGE, PAGE);
        }
        file.sync_data().unwrap();
        file.set_len(32 * MIB).unwrap();
        space.settle(file.as_fd(), 32 * MIB);
        let least = MIB + 3 * MIB + 8 * MIB;
        assert!((least..least + least / WASTE + MIB).contains(&kept(&file)), "{}", kept(&file));
        let mut back = vec![1; 32 << 20];
        assert_eq!(file.read_at(&mut back, 0).unwrap() as u64, 32 * MIB);
        for (page, bytes) in back.chunks(PAGE as usize).enumerate() {
            let page = page as u64 * PAGE;
            let short = page >= 4 * MIB && (page / PAGE).is_multiple_of(2);
            let written = page < MIB || short && !(10 * MIB..15 * MIB).contains(&page);
            assert!(bytes.iter().all(|byte| *byte == if written { 7 } else { 0 }), "page at {page}");
        }
    }

    #[test]
    fn reach_after_free_keeps_the_written_bytes() {
        let Some((file, space)) = planned(4 * MIB) else { return };
        write(&file, &space, 0, 10);
        space.free(file.as_fd(), MIB, MIB);
        write(&file, &space, MIB + 10, 10);
        space.settle(file.as_fd(), 2 * MIB);
        let mut back = [0; 10];
        file.read_exact_at(&mut back, MIB + 10).unwrap();
        assert_eq!(back, [7; 10]);
    }

    #[test]
    fn plan_of_small_or_impossible_sizes_changes_nothing() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let space = Space::default();
        for size in [0, 1, LEAST - 1, u64::MAX] {
            space.plan(file.as_fd(), size);
        }
        assert!(space.books().is_none());
        space.reach(file.as_fd(), 0, 10);
        space.free(file.as_fd(), 0, 10);
        space.settle(file.as_fd(), 0);
        assert_eq!(kept(&file), 0);
    }
}
