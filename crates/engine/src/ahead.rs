//! Whether `sendfile` has to wait for the disk, and waiting for it apart from the network.
//!
//! Data in memory is sent at once: the last byte of each range is read without waiting, which costs
//! well below a thousandth of sending it. If that byte is not in memory, the kernel is advised to
//! read what comes next, further than it reads ahead by itself, and the thread waits until the
//! range is in memory. Files of memory never wait.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use rustix::fs::{Advice, fadvise, fstatfs};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2, retry_on_intr};

/// How much is read ahead of what is sent.
const AHEAD: u64 = 4 << 20;
/// The kernel takes no more of it at a time, whatever it is asked for.
const PIECE: u64 = 128 << 10;
/// Longer than memory takes for a byte, and shorter than disks and networks do.
const DISK: Duration = Duration::from_micros(200);

/// The state of read-ahead for one file.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Not all of it was in memory.
    cold: bool,
    /// The file system cannot say whether a read would wait.
    silent: bool,
    /// It has no disk.
    memory: bool,
    /// The kernel was advised to read the file up to here.
    told: u64,
    /// Where what was seen in memory ends.
    known: u64,
}

impl Ahead {
    /// Where what may be sent from `range` without waiting for the disk ends. For data that is not
    /// in memory it waits first, and adds that to `waited`.
    pub(crate) fn ready(&mut self, file: BorrowedFd<'_>, range: Range<u64>, waited: &mut Duration) -> u64 {
        if (range.start..range.end).contains(&self.known) && self.known > range.start {
            return self.known;
        }
        self.known = range.end;
        if range.is_empty() || self.memory || !self.cold && !self.waits(file, range.end - 1, waited) {
            return range.end;
        }
        self.cold = true;
        self.tell(file, &range);
        *waited += byte(file, range.end - 1);
        range.end
    }

    /// Whether the byte is not in memory.
    fn waits(&mut self, file: BorrowedFd<'_>, at: u64, waited: &mut Duration) -> bool {
        if !self.silent {
            let mut byte = [0];
            let slices = &mut [std::io::IoSliceMut::new(&mut byte)];
            match retry_on_intr(|| preadv2(file, slices, at, ReadWriteFlags::NOWAIT)) {
                Err(Errno::AGAIN) => return true,
                Err(_) => self.silent = true,
                Ok(_) => return false,
            }
            self.memory = is_memory(file);
            if self.memory {
                return false;
            }
        }
        let before = sleeps();
        let took = byte(file, at);
        // Others may have had the processor meanwhile.
        let waits = took > DISK && sleeps() > before;
        if waits {
            *waited += took;
        }
        waits
    }

    fn tell(&mut self, file: BorrowedFd<'_>, range: &Range<u64>) {
        let end = range.end.saturating_add(AHEAD);
        // Ranges may be sent in any order.
        let mut at = if (range.start..=end).contains(&self.told) { self.told } else { range.start };
        while at < end {
            // Whether it follows is its own matter.
            let _ = fadvise(file, at, std::num::NonZeroU64::new(PIECE), Advice::WillNeed);
            at += PIECE;
        }
        self.told = at;
    }
}

/// By the numbers of linux/magic.h.
fn is_memory(file: BorrowedFd<'_>) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    const HUGETLBFS: u64 = 0x9584_58f6;
    // The field's type is not the same on all machines.
    #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast)]
    fstatfs(file).is_ok_and(|stat| matches!(stat.f_type as u64 & 0xffff_ffff, TMPFS | RAMFS | HUGETLBFS))
}

/// How many times this thread has given up the processor to wait for something.
fn sleeps() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.voluntary_context_switches())
}

/// How long it takes to have this byte in memory. Where it cannot be read, `sendfile` will say so.
fn byte(file: BorrowedFd<'_>, at: u64) -> Duration {
    let began = Instant::now();
    let _ = retry_on_intr(|| pread(file, &mut [0_u8; 1], at));
    began.elapsed()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_is_in_memory_is_not_waited_for() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 3 << 20]).unwrap();
        let (mut ahead, mut waited) = (Ahead::default(), Duration::ZERO);
        for at in 0..3 {
            let range = at << 20..(at + 1) << 20;
            assert_eq!(ahead.ready(file.as_fd(), range.clone(), &mut waited), range.end);
            // A part of it was sent.
            assert_eq!(
                ahead.ready(file.as_fd(), range.start + 5..range.end + 5, &mut waited),
                range.end,
                "what is beyond is not known"
            );
        }
        assert!(!ahead.cold && waited == Duration::ZERO, "{ahead:?} {waited:?}");
    }

    /// Such systems do not say so, and on a busy machine a byte of memory takes longer than one of
    /// a disk.
    #[test]
    fn there_is_no_disk_behind_memory() {
        let Ok(mut file) = tempfile::tempfile_in("/dev/shm") else { return };
        if !is_memory(file.as_fd()) {
            return;
        }
        file.write_all(&[7; 3 << 20]).unwrap();
        let (mut ahead, mut waited) = (Ahead::default(), Duration::ZERO);
        for at in 0..3 {
            let range = at << 20..(at + 1) << 20;
            assert_eq!(ahead.ready(file.as_fd(), range.clone(), &mut waited), range.end);
        }
        assert!(!ahead.cold && (ahead.memory || !ahead.silent) && ahead.told == 0, "{ahead:?}");
    }

    #[test]
    fn who_loses_the_processor_has_not_waited() {
        let before = sleeps();
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(1) {}
        assert_eq!(sleeps(), before);
        std::thread::sleep(Duration::from_micros(1));
        assert!(sleeps() > before);
    }

    #[test]
    fn what_is_on_the_disk_is_read_ahead() {
        // Not in /tmp, which may be memory.
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![7; 12 << 20]).unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let (mut ahead, mut waited) = (Ahead::default(), Duration::ZERO);
        ahead.ready(file.as_fd(), 0..1 << 20, &mut waited);
        if !ahead.cold {
            eprintln!("SKIPPED: this file system forgets nothing");
            return;
        }
        assert!(waited > Duration::ZERO && ahead.told >= 5 << 20, "{ahead:?}");
        // The data was read, whatever the kernel was advised.
        let mut fresh = Ahead::default();
        fresh.ready(file.as_fd(), 0..1 << 20, &mut Duration::default());
        assert!(!fresh.cold, "it is not in memory");
        // Backwards, and beyond the end.
        assert_eq!(ahead.ready(file.as_fd(), 11 << 20..12 << 20, &mut waited), 12 << 20);
        assert_eq!(ahead.ready(file.as_fd(), 2 << 20..3 << 20, &mut waited), 3 << 20);
        assert_eq!(ahead.ready(file.as_fd(), 20 << 20..21 << 20, &mut waited), 21 << 20);
    }
}
