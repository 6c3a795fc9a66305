//! Writes past the page cache.
//!
//! If a file is larger than the amount of dirty data at which the kernel blocks writers, it is
//! written at the speed of the disk in any case. In the page cache it would only take memory from
//! other programs, and processor time to find that memory.
//!
//! There are two ways. *Uncached* writes (`RWF_DONTCACHE`) use a few pages of the cache, which are
//! sent to the disk at once and then reused. The writer does not wait for the disk, any block size
//! works, and the disk always has enough work. *Direct* writes into space that was reserved before
//! copy nothing and need the least processor time; but a thread waits for each of them, and several
//! threads are needed to keep the disk busy. If the kernel supports both, both are tried
//! ([`Trial`]), unless direct writes were requested.

mod steps;
mod trial;

use std::io::IoSlice;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{FallocateFlags, Mode, OFlags, Stat};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};
use rustix::time::{ClockId, clock_gettime};

use self::steps::Steps;
use self::trial::Trial;
use super::kinds::{EXT4, XFS, system_of};
use super::root::name_of;
use super::unwritten::leaves_cache;
use crate::DirectIo;

/// Memory, lengths and offsets of direct writes are multiples of this, in bytes. Disks with larger
/// blocks refuse such writes, and ordinary ones are used.
const ALIGNMENT: usize = 4096;
/// Smaller direct writes are slower than ordinary ones.
const LEAST: usize = 512 << 10;
/// The size of the writes to the disk.
pub(super) const CHUNK: usize = 1 << 20;
/// Releasing less space takes longer than writing it, and fragments the file.
const WORTH: u64 = 64 << 10;

/// Sending less than this to the disk at once takes longer than leaving it to the kernel.
const LEAST_UNCACHED: usize = 64 << 10;
/// `RWF_DONTCACHE`, which rustix has no name for yet.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);
/// The first kernel that has uncached writes on ext4 and XFS without their early faults: major and
/// minor number.
const UNCACHED_SINCE: (u32, u32) = (6, 16);

/// How a file is written past the cache, if at all.
#[derive(Default)]
pub(super) struct Direct(OnceLock<Way>);

enum Way {
    Uncached,
    Direct(Reserved),
    /// Also reserved; the trial decides which way is used at the moment.
    Either(Reserved, Arc<Trial>),
}

/// A second descriptor of the file, for direct writes into reserved space. For them the file has
/// its full size from the start. If the trial finds that direct writes are not wanted, the file
/// gets the size that it would have without them.
struct Reserved {
    fd: OwnedFd,
    extent: Mutex<Extent>,
}

struct Extent {
    /// The end of all bytes that were written or are being written.
    end: u64,
    reserved: bool,
    steps: Steps,
}

impl Reserved {
    fn extent(&self) -> MutexGuard<'_, Extent> {
        self.extent.lock()
    }

    /// Prepares for `length` bytes at `offset`; writes shorter than `least` need no reserved space.
    fn reach(&self, offset: u64, length: u64, least: usize, trial: Option<&Trial>) {
        let mut extent = self.extent();
        let end = offset.saturating_add(length);
        extent.end = extent.end.max(end);
        if !extent.reserved {
            return;
        }
        if trial.is_some_and(|trial| !trial.is_on() && trial.way() == trial::Way::Uncached) {
            // Best effort: space that stays reserved is released when the file gets its final size.
            extent.reserved = retry_on_intr(|| rustix::fs::ftruncate(&self.fd, extent.end)).is_err();
            return;
        }
        extent.steps.came(length);
        if length < least as u64 {
            return;
        }
        // Under the lock, because other writers to the range would have to wait in the kernel as
        // well.
        for range in extent.steps.reach(offset..end).iter() {
            let flags = FallocateFlags::KEEP_SIZE;
            let reserve = || rustix::fs::fallocate(&self.fd, flags, range.start, range.end - range.start);
            if retry_on_intr(reserve).is_err() {
                // For example because of a quota; the writes will report it.
                extent.steps.end();
                break;
            }
        }
    }

    fn free(&self, start: u64, length: u64) {
        let mut extent = self.extent();
        extent.steps.leave_out(start..start.saturating_add(length));
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = retry_on_intr(|| rustix::fs::fallocate(&self.fd, flags, start, length));
    }
}

impl Direct {
    pub(super) fn is_on(&self) -> bool {
        self.0.get().is_some()
    }

    /// The best size of a write now, if it matters.
    pub(super) fn chunk(&self) -> Option<usize> {
        match self.0.get()? {
            Way::Direct(_) => Some(CHUNK),
            Way::Either(_, trial) => (trial.way() == trial::Way::Direct).then_some(CHUNK),
            Way::Uncached => None,
        }
    }

    /// Whether reserved space is included in the size of the file.
    pub(super) fn is_reserved(&self) -> bool {
        match self.0.get() {
            Some(Way::Direct(_)) => true,
            Some(Way::Either(reserved, _)) => reserved.extent().reserved,
            Some(Way::Uncached) | None => false,
        }
    }

    /// Prepares for `size` bytes in this file, which is new or was prepared before. Nothing changes
    /// if it is not worth it, or if the space for direct writes cannot be reserved.
    pub(super) fn prepare(&self, file: BorrowedFd<'_>, size: u64, when: DirectIo, sync: bool) {
        if self.is_on() || !leaves_cache(when, size, sync) || (when == DirectIo::Auto && !gains(file)) {
            return;
        }
        let trial = (when == DirectIo::Auto && uncached_writes())
            .then(|| Trial::of(rustix::fs::fstat(file).map_or(0, |stat| stat.st_dev)));
        let first = size.min(steps::LEAST);
        self.prepare_with(file, size, trial, |fd| {
            retry_on_intr(|| rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, first))?;
            let length = rustix::fs::fstat(fd)?.st_size;
            // Reserving all of it could fill the disk for other programs, although the bytes may
            // never come.
            if u64::try_from(length).unwrap_or_default() < size {
                retry_on_intr(|| rustix::fs::ftruncate(fd, size))?;
            }
            Ok(first)
        });
    }

    /// Prepares for direct writes, or for both ways if there is a trial. `reserve` gives the file
    /// its size and returns how much is reserved from its start.
    fn prepare_with(
        &self,
        file: BorrowedFd<'_>,
        size: u64,
        trial: Option<Arc<Trial>>,
        reserve: impl FnOnce(&OwnedFd) -> Result<u64, Errno>,
    ) {
        let way = match trial {
            Some(trial) if trial.begin(Instant::now()) => match reserved(file, size, reserve) {
                Some(reserved) => Way::Either(reserved, trial),
                None => Way::Uncached,
            },
            Some(_) => Way::Uncached,
            None => match reserved(file, size, reserve) {
                Some(reserved) => Way::Direct(reserved),
                None => return,
            },
        };
        let _ = self.0.set(way);
    }

    /// Writes the part of `data`, from its start, that can be written past the cache. The caller
    /// writes the rest.
    pub(super) fn write(&self, file: BorrowedFd<'_>, data: &[u8], offset: u64) -> Result<usize, Errno> {
        match self.0.get() {
            Some(Way::Uncached) if data.len() >= LEAST_UNCACHED => write_uncached(file, data, offset),
            Some(Way::Direct(reserved)) => {
                reserved.reach(offset, data.len() as u64, LEAST, None);
                write_directly(&reserved.fd, data, offset)
            }
            Some(Way::Either(reserved, trial)) => {
                // Also for the bytes that the caller writes.
                reserved.reach(offset, data.len() as u64, LEAST_UNCACHED, Some(trial));
                if data.len() < LEAST_UNCACHED {
                    return Ok(0);
                }
                write_either(file, &reserved.fd, trial, data, offset)
            }
            Some(Way::Uncached) | None => Ok(0),
        }
    }

    /// Releases the space that was reserved for zeros. Best effort: the space reads as zeros
    /// anyway.
    pub(super) fn free(&self, start: u64, length: u64) {
        if let Some(Way::Direct(reserved) | Way::Either(reserved, _)) = self.0.get()
            && length >= WORTH
        {
            reserved.free(start, length);
        }
    }
}

/// Sets up direct writes to this file, which gets its full size.
fn reserved(
    file: BorrowedFd<'_>,
    size: u64,
    reserve: impl FnOnce(&OwnedFd) -> Result<u64, Errno>,
) -> Option<Reserved> {
    let before = rustix::fs::fstat(file).ok().filter(|before| fits(file, before, size))?;
    let length = u64::try_from(before.st_size).unwrap_or_default();
    let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let fd = rustix::fs::open(name_of(file), flags, Mode::empty()).ok()?;
    if let Ok(first) = reserve(&fd) {
        let extent = Extent { end: length, reserved: true, steps: Steps::new(size, first) };
        return Some(Reserved { fd, extent: Mutex::new(extent) });
    }
    // If there was too little space (for example because of a quota), ext4 keeps the space it got
    // and the enlarged size.
    let _ = retry_on_intr(|| rustix::fs::ftruncate(&fd, length));
    None
}

/// Writes in the current way of the trial, or in the better one after it. Data that cannot be
/// written directly is written uncached.
fn write_either(
    file: BorrowedFd<'_>,
    fd: &OwnedFd,
    trial: &Trial,
    data: &[u8],
    offset: u64,
) -> Result<usize, Errno> {
    let before = trial.is_on().then(|| (processor_time(), Instant::now()));
    let (mut way, mut done) = (trial.way(), 0);
    if way == trial::Way::Direct {
        done = write_directly(fd, data, offset)?;
    }
    if done == 0 {
        way = trial::Way::Uncached;
        done = write_uncached(file, data, offset)?;
    }
    if let Some((used, began)) = before {
        let cpu = processor_time().saturating_sub(used);
        trial.wrote(way, done as u64, cpu, began, Instant::now());
    }
    Ok(done)
}

/// The processor time that this thread has used.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

fn write_uncached(file: BorrowedFd<'_>, data: &[u8], offset: u64) -> Result<usize, Errno> {
    match retry_on_intr(|| rustix::io::pwritev2(file, &[IoSlice::new(data)], offset, DONTCACHE)) {
        // This file system does not support them.
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Ok(0),
        result => result,
    }
}

fn write_directly(fd: &OwnedFd, data: &[u8], offset: u64) -> Result<usize, Errno> {
    if data.len() < LEAST
        || !data.as_ptr().addr().is_multiple_of(ALIGNMENT)
        || !offset.is_multiple_of(ALIGNMENT as u64)
    {
        return Ok(0);
    }
    let whole = data.len() - data.len() % ALIGNMENT;
    let mut done = 0;
    while done < whole {
        match rustix::io::pwrite(fd, &data[done..whole], offset + done as u64) {
            Ok(n) if n % ALIGNMENT == 0 && n > 0 => done += n,
            Err(Errno::INTR) => {}
            // The disk's blocks are larger, or it wrote only a part: ordinary writes handle both.
            Ok(_) | Err(Errno::INVAL) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// Whether the kernel has uncached writes.
fn uncached_writes() -> bool {
    static HAS: LazyLock<bool> =
        LazyLock::new(|| is_recent(&rustix::system::uname().release().to_string_lossy()));
    *HAS
}

/// Whether a kernel release, such as `6.18.44-1-amd64`, is recent enough.
fn is_recent(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|word| word.parse().ok());
    let (Some(Some(major)), Some(Some(minor))) = (numbers.next(), numbers.next()) else { return false };
    (major, minor) >= UNCACHED_SINCE
}

/// Whether there is space for a file of `size` bytes in place of this one. Trying to reserve it
/// would leave no space for other programs meanwhile.
fn fits(file: BorrowedFd<'_>, before: &Stat, size: u64) -> bool {
    let has = u64::try_from(before.st_blocks).unwrap_or_default().saturating_mul(512);
    let free = rustix::fs::fstatvfs(file).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    size <= free.saturating_add(has)
}

/// Whether the file system reserves space at once, and lets several threads write a file.
fn gains(file: BorrowedFd<'_>) -> bool {
    system_of(file).is_some_and(|(system, _)| matches!(system, EXT4 | XFS))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    #[test]
    fn direct_and_ordinary_writes_are_combined() {
        // Not in /tmp, which may be in memory.
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let memory: Vec<u8> = (0..3 * CHUNK).map(|i| (i * 7 / 3) as u8).collect();
        let data = &memory[memory.as_ptr().align_offset(ALIGNMENT)..];
        let direct = Direct::default();
        direct.prepare(file.as_fd(), 3 * CHUNK as u64, DirectIo::Always, false);
        assert_eq!(file.metadata().unwrap().len(), if direct.is_on() { 3 * CHUNK as u64 } else { 0 });
        let odd = CHUNK + 5000;
        let n = direct.write(file.as_fd(), &data[..odd], CHUNK as u64).unwrap();
        assert_eq!(n, if direct.is_on() { CHUNK + 4096 } else { 0 });
        file.write_all_at(&data[n..odd], (CHUNK + n) as u64).unwrap();
        let mut back = vec![1; 3 * CHUNK];
        let n = file.read_at(&mut back, 0).unwrap();
        back.truncate(n);
        assert!(back[..CHUNK].iter().all(|b| *b == 0));
        assert!(back[CHUNK..CHUNK + odd] == data[..odd]);
        // Writes that do not fit are left to the caller.
        assert_eq!(direct.write(file.as_fd(), &data[..4096], 0).unwrap(), 0);
        assert_eq!(direct.write(file.as_fd(), &data[1..odd], 0).unwrap(), 0);
        assert_eq!(direct.write(file.as_fd(), &data[..odd], 512).unwrap(), 0);
        if direct.is_on() {
            let before = file.metadata().unwrap().blocks();
            direct.free(0, 4096);
            assert_eq!(file.metadata().unwrap().blocks(), before);
            direct.free(0, CHUNK as u64);
            assert_eq!(before - file.metadata().unwrap().blocks(), CHUNK as u64 / 512);
        }
    }

    #[test]
    fn uncached_and_ordinary_writes_are_combined() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let data: Vec<u8> = (0..300_000).map(|i| (i * 7 / 3) as u8).collect();
        let direct = Direct::default();
        let trial = Arc::default();
        // More than any disk has.
        direct.prepare_with(file.as_fd(), u64::MAX, Some(trial), |_| panic!("nothing is reserved"));
        assert_eq!((direct.is_on(), direct.chunk()), (true, None));
        assert_eq!(file.metadata().unwrap().len(), 0);
        // Any offset works, and small writes are left to the caller.
        for (start, end) in [(100_001, 300_000), (0, 100_000), (100_000, 100_001)] {
            let n = direct.write(file.as_fd(), &data[start..end], start as u64).unwrap();
            assert!(n == 0 || direct.is_on() && end - start >= LEAST_UNCACHED);
            file.write_all_at(&data[start + n..end], (start + n) as u64).unwrap();
        }
        let mut back = vec![1; 300_001];
        assert_eq!(file.read_at(&mut back, 0).unwrap(), 300_000);
        assert!(back[..300_000] == data);
    }

    /// A file with a trial of both ways and `chunks` reserved chunks, if the disk has space for
    /// them.
    fn tried(file: &fs::File, chunks: usize) -> (Direct, Arc<Trial>) {
        let (direct, trial) = (Direct::default(), Arc::<Trial>::default());
        let size = (chunks * CHUNK) as u64;
        direct.prepare_with(file.as_fd(), size, Some(Arc::clone(&trial)), |fd| {
            rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, size).map(|()| size)
        });
        (direct, trial)
    }

    #[test]
    fn alternating_direct_and_uncached_writes_are_combined() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (direct, trial) = tried(&file, 4);
        let memory: Vec<u8> = (0..CHUNK + ALIGNMENT + 5000).map(|i| (i * 7 / 3) as u8).collect();
        let data = &memory[memory.as_ptr().align_offset(ALIGNMENT)..][..CHUNK + 5000];
        let either = matches!(direct.0.get(), Some(Way::Either(..)));
        let mut seen = Vec::new();
        // The turns are short, because the test reports far more bytes than it writes.
        for round in 0..8 {
            let way = trial.way();
            assert_eq!(direct.chunk(), (either && way == trial::Way::Direct).then_some(CHUNK));
            let at = (round % 3) * CHUNK as u64;
            let n = direct.write(file.as_fd(), data, at).unwrap();
            file.write_all_at(&data[n..], at + n as u64).unwrap();
            if either {
                assert!(n == data.len() || way == trial::Way::Direct && n == CHUNK + 4096, "{way:?} {n}");
                seen.push(way);
            }
            for _ in 0..2 {
                trial.wrote(way, 128 << 20, Duration::from_millis(10), Instant::now(), Instant::now());
            }
            let mut back = vec![1; data.len()];
            file.read_exact_at(&mut back, at).unwrap();
            assert!(back == data);
        }
        assert!(!either || seen.contains(&trial::Way::Direct) && seen.contains(&trial::Way::Uncached));
        // Unaligned writes are uncached in the turn of either way.
        let n = direct.write(file.as_fd(), &data[1..], 7).unwrap();
        assert!(!either || n == data.len() - 1);
    }

    /// No bytes are lost, even of concurrent writers, and the file is not larger than its bytes.
    #[test]
    fn reserved_space_is_released_when_uncached_wins() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (direct, trial) = tried(&file, 64);
        if !direct.is_reserved() {
            return;
        }
        assert_eq!(file.metadata().unwrap().len(), 64 * CHUNK as u64);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (direct, file, trial) = (&direct, &file, &trial);
                scope.spawn(move || {
                    for round in 0..8 {
                        let at = ((round * 4 + thread) * CHUNK) as u64;
                        let data = vec![(at >> 20) as u8 + 1; CHUNK - 5000];
                        let n = direct.write(file.as_fd(), &data, at).unwrap();
                        file.write_all_at(&data[n..], at + n as u64).unwrap();
                        // The trial ends in favour of uncached writes while the threads write.
                        for way in [trial::Way::Uncached, trial::Way::Direct] {
                            let now = Instant::now();
                            trial.wrote(way, 30 << 20, Duration::ZERO, now, now);
                            trial.wrote(trial::Way::Uncached, 30 << 20, Duration::ZERO, now, now);
                        }
                    }
                });
            }
        });
        assert!(!trial.is_on() && trial.way() == trial::Way::Uncached && !direct.is_reserved());
        assert_eq!(file.metadata().unwrap().len(), (32 * CHUNK - 5000) as u64);
        let mut back = vec![0; CHUNK - 5000];
        for block in 0..32 {
            file.read_exact_at(&mut back, (block * CHUNK) as u64).unwrap();
            assert!(back.iter().all(|byte| *byte == block as u8 + 1), "{block}");
        }
    }

    #[test]
    fn is_recent_compares_kernel_releases() {
        for (release, recent) in [
            ("6.18.44-fc-v657", true),
            ("6.16.0", true),
            ("7.0-rc1", true),
            ("6.15.12-amd64", false),
            ("5.99", false),
            ("six", false),
            ("", false),
        ] {
            assert_eq!(is_recent(release), recent, "{release}");
        }
    }

    /// Other programs filled the disk during the reservation: the reserved part is released.
    #[test]
    fn failed_reservation_leaves_an_ordinary_file() {
        for kept in [0, 5000] {
            let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            file.write_all_at(&vec![7; kept], 0).unwrap();
            let direct = Direct::default();
            direct.prepare_with(file.as_fd(), 8 * CHUNK as u64, None, |fd| {
                rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, 4 * CHUNK as u64).unwrap();
                Err(Errno::NOSPC)
            });
            assert!(!direct.is_on());
            let metadata = file.metadata().unwrap();
            assert_eq!(metadata.len(), kept as u64);
            assert!(metadata.blocks() * 512 < CHUNK as u64, "{} blocks are kept", metadata.blocks());
            // The file can still be written.
            assert_eq!(direct.write(file.as_fd(), &[1; 100], 0).unwrap(), 0);
            file.write_all_at(&[1; 100], 0).unwrap();
        }
    }

    #[test]
    fn prepare_of_small_or_impossible_sizes_changes_nothing() {
        let file = tempfile::tempfile().unwrap();
        for (when, size) in [(DirectIo::Never, u64::MAX), (DirectIo::Always, 1000), (DirectIo::Auto, 1 << 20)]
        {
            let direct = Direct::default();
            direct.prepare(file.as_fd(), size, when, false);
            assert!(!direct.is_on());
        }
        // More than any disk has.
        let direct = Direct::default();
        direct.prepare(file.as_fd(), 1 << 60, DirectIo::Always, false);
        assert!(!direct.is_on());
        assert_eq!((file.metadata().unwrap().len(), file.metadata().unwrap().blocks()), (0, 0));
    }
}
