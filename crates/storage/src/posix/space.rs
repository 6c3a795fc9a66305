//! Space that is reserved ahead of what is written through the page cache.
//!
//! ext4 chooses places when it writes pages out, and keeps account of every block until then: a third to a half of what a write
//! costs the processor. Where a file has its place before, it does not.
//!
//! The file's size stays what was written. Its last page is left out: with a page that has no place yet, ext4 still sends the
//! whole to the disk when the file takes another's name, so that a power loss leaves the one or the other.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ropewalk_protocol::range::RangeSet;
use rustix::fs::FallocateFlags;
use rustix::io::retry_on_intr;

/// The file system's blocks are this long at most, in bytes.
const PAGE: u64 = 4096;
/// For smaller files it is not worth a call, in bytes.
const LEAST: u64 = 1 << 20;
/// Reserved at a time, in bytes: little at first, since the file may prove to be full of holes. The last is what an extent of
/// ext4 can have.
const STEPS: std::ops::RangeInclusive<u64> = 8 << 20..=128 << 20;
/// Runs of zeros from here on give their space back, in bytes.
const WORTH: u64 = 64 << 10;
/// The part of a file that may be reserved for shorter runs of zeros: one in so many bytes.
const WASTE: u64 = 16;

/// What is reserved of a file. Nothing, until it is told how long the file will be.
#[derive(Default)]
pub(super) struct Space {
    /// Up to here nothing needs to be reserved (any more), in bytes.
    reached: AtomicU64,
    /// [`Books::zeros`] is not empty.
    pending: AtomicBool,
    books: OnceLock<Mutex<Books>>,
}

struct Books {
    /// Where the last page begins.
    end: u64,
    /// How much is reserved next.
    step: u64,
    /// Behind all that was ever reserved.
    reserved: u64,
    /// Bytes in short runs of zeros.
    wasted: u64,
    /// Too many of those.
    given_up: bool,
    /// Long runs of zeros whose space is not given back yet: ext4 does so within a file's size only.
    zeros: RangeSet,
}

impl Space {
    /// The file will have so many bytes. Where that is not worth it, or the file system does not gain by it, nothing changes.
    pub(super) fn plan(&self, file: BorrowedFd<'_>, size: u64) {
        if size >= LEAST && self.books.get().is_none() && gains(file, size) {
            let end = (size - 1) / PAGE * PAGE;
            let zeros = RangeSet::new();
            let books = Books { end, step: *STEPS.start(), reserved: 0, wasted: 0, given_up: false, zeros };
            let _ = self.books.set(Mutex::new(books));
        }
    }

    /// Bytes are about to be written there.
    pub(super) fn reach(&self, file: BorrowedFd<'_>, start: u64, length: u64) {
        let end = start.saturating_add(length);
        if end <= self.reached.load(Ordering::Relaxed) && !self.pending.load(Ordering::Relaxed) {
            return;
        }
        let Some(mut books) = self.books() else { return };
        // What was zero once may have been wrong, and come again.
        books.zeros.subtract(&RangeSet::from_range(start..end));
        let reached = self.reached.load(Ordering::Relaxed);
        if end <= reached {
            return;
        }
        // What is left out on the way may be a hole; or others write it, without a place.
        let from = if start > reached.saturating_add(books.step) { start / PAGE * PAGE } else { reached };
        let to = books.end.min(end.max(from.saturating_add(books.step)));
        books.step = (2 * books.step).min(*STEPS.end());
        let mut done = true;
        if from < to {
            books.reserved = books.reserved.max(to);
            let reserve = || rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, from, to - from);
            // A quota, say, or others were faster: the writes will tell.
            done = retry_on_intr(reserve).is_ok();
        }
        self.reached.store(if done && to < books.end { to } else { u64::MAX }, Ordering::Relaxed);
    }

    /// These bytes stay zero. Best effort: they read as zeros anyway.
    pub(super) fn free(&self, file: BorrowedFd<'_>, start: u64, length: u64) {
        let Some(mut books) = self.books() else { return };
        if length == 0 {
            return;
        }
        if length < WORTH && !books.given_up {
            books.wasted += length;
            if books.wasted > WORTH.max(books.reserved / WASTE) {
                books.given_up = true;
                self.reached.store(u64::MAX, Ordering::Relaxed);
            }
            return;
        }
        books.zeros.insert(start..start + length);
        let size = rustix::fs::fstat(file).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
        books.punch(file, |run| run.end <= size);
        self.pending.store(!books.zeros.is_empty(), Ordering::Relaxed);
    }

    /// Nothing more is written, and the file has so many bytes: what is reserved behind them is given back. Best effort.
    pub(super) fn settle(&self, file: BorrowedFd<'_>, size: u64) {
        let Some(mut books) = self.books() else { return };
        books.punch(file, |run| run.start < size);
        if books.reserved > size.next_multiple_of(PAGE) {
            let _ = retry_on_intr(|| rustix::fs::ftruncate(file, size));
        }
    }

    fn books(&self) -> Option<MutexGuard<'_, Books>> {
        Some(self.books.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Books {
    fn punch(&mut self, file: BorrowedFd<'_>, which: impl Fn(&Range<u64>) -> bool) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let runs: RangeSet = self.zeros.iter().filter(which).collect();
        for run in runs.iter() {
            let _ = retry_on_intr(|| rustix::fs::fallocate(file, flags, run.start, run.end - run.start));
        }
        self.zeros.subtract(&runs);
    }
}

/// ext4, with space for all of the file.
fn gains(file: BorrowedFd<'_>, size: u64) -> bool {
    const EXT4: u64 = 0xef53;
    // The fields' types are not the same on all machines.
    #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast)]
    rustix::fs::fstatfs(file).is_ok_and(|stat| {
        stat.f_type as u64 == EXT4 && size <= (stat.f_bavail as u64).saturating_mul(stat.f_bsize as u64)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::File;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A new file that will have so many bytes; `None` where the file system does not gain.
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

    /// Bytes of the disk.
    fn kept(file: &File) -> u64 {
        file.metadata().unwrap().blocks() * 512
    }

    #[test]
    fn space_is_reserved_in_steps_and_the_size_is_what_was_written() {
        let Some((file, space)) = planned(40 * MIB) else { return };
        for (start, length, least, most) in [
            (0, 1000, 8 * MIB, 9 * MIB),
            (1000, MIB, 8 * MIB, 9 * MIB),
            (8 * MIB - 5, 10, 24 * MIB, 25 * MIB),
            // All but the last page.
            (30 * MIB, 10, 40 * MIB - PAGE, 40 * MIB),
        ] {
            write(&file, &space, start, length);
            assert_eq!(file.metadata().unwrap().len(), start + length);
            let kept = kept(&file);
            assert!((least..most).contains(&kept), "{kept} after {length} bytes at {start}");
        }
        // Nothing more comes.
        space.settle(file.as_fd(), 30 * MIB + 10);
        assert!((30 * MIB..32 * MIB).contains(&kept(&file)), "{}", kept(&file));
        assert_eq!(file.metadata().unwrap().len(), 30 * MIB + 10);
    }

    #[test]
    fn far_away_nothing_is_reserved_on_the_way() {
        let Some((file, space)) = planned(1 << 30) else { return };
        write(&file, &space, 512 * MIB + 5, 10);
        assert!(kept(&file) <= 9 * MIB, "{}", kept(&file));
        // Who writes there does so without.
        write(&file, &space, 0, 10);
        assert!(kept(&file) <= 9 * MIB, "{}", kept(&file));
    }

    #[test]
    fn long_runs_of_zeros_and_many_short_ones_keep_no_space() {
        let Some((file, space)) = planned(32 * MIB) else { return };
        write(&file, &space, 0, MIB);
        space.free(file.as_fd(), MIB, MIB);
        space.free(file.as_fd(), 2 * MIB, 2 * MIB);
        // With the next run, or at the end: they have to be within the file.
        file.set_len(4 * MIB).unwrap();
        space.free(file.as_fd(), 3 * MIB, WORTH);
        assert!((5 * MIB..6 * MIB).contains(&kept(&file)), "{}", kept(&file));
        // What is reserved after that is given back, too.
        space.free(file.as_fd(), 10 * MIB, 5 * MIB);
        // Every other page is zero.
        for page in (4 * MIB / PAGE..10 * MIB / PAGE).chain(15 * MIB / PAGE..32 * MIB / PAGE).step_by(2) {
            write(&file, &space, page * PAGE, PAGE);
            space.free(file.as_fd(), (page + 1) * PAGE, PAGE);
        }
        file.sync_data().unwrap();
        space.settle(file.as_fd(), 32 * MIB - PAGE);
        let least = MIB + 3 * MIB + 8 * MIB;
        assert!((least..least + least / WASTE + MIB).contains(&kept(&file)), "{}", kept(&file));
        let mut back = vec![1; 32 << 20];
        assert_eq!(file.read_at(&mut back, 0).unwrap() as u64, 32 * MIB - PAGE);
        for (page, bytes) in
            back.chunks(PAGE as usize).enumerate().take(32 * MIB as usize / PAGE as usize - 1)
        {
            let page = page as u64 * PAGE;
            let short = page >= 4 * MIB && (page / PAGE).is_multiple_of(2);
            let written = page < MIB || short && !(10 * MIB..15 * MIB).contains(&page);
            assert!(bytes.iter().all(|byte| *byte == if written { 7 } else { 0 }), "page at {page}");
        }
    }

    #[test]
    fn what_was_zero_by_mistake_may_come_again() {
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
    fn what_is_short_is_left_alone() {
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
