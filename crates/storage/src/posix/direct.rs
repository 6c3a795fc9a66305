//! Writing past the page cache.
//!
//! A file that is larger than what the kernel takes before writers have to wait goes to the disk while it comes in, at the
//! disk's pace. In the page cache it would take memory from everything else, and the processor's time to find it.
//!
//! There are two ways. *Uncached* writes (`RWF_DONTCACHE`) go through a few pages of the cache that are sent to the disk at
//! once and then used again: the writer does not wait for the disk, any block will do, and the disk always has enough to
//! do. *Direct* writes, into space that was reserved before, copy nothing and take the least of the processor's time; but a
//! thread waits for each, and it takes several of them to keep the disk busy. Where the kernel has both, they are tried
//! ([`Trial`]), unless direct ones were asked for.

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

/// Memory, lengths and offsets of direct writes are multiples of this, in bytes. Disks with larger blocks refuse, and
/// get ordinary writes.
const ALIGNMENT: usize = 4096;
/// Smaller direct writes are slower than ordinary ones.
const LEAST: usize = 512 << 10;
/// What is sent to the disk at a time.
pub(super) const CHUNK: usize = 1 << 20;
/// To give back less takes longer than to write it, and leaves a file in shreds.
const WORTH: u64 = 64 << 10;

/// To send less than this to the disk at once takes longer than to leave it to the kernel.
const LEAST_UNCACHED: usize = 64 << 10;
/// `RWF_DONTCACHE`, which rustix does not name yet.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);
/// The kernel that has uncached writes on ext4 and XFS, and their early faults behind it: major and minor number.
const UNCACHED_SINCE: (u32, u32) = (6, 16);

/// How a file is written past the cache, if it is.
#[derive(Default)]
pub(super) struct Direct(OnceLock<Way>);

enum Way {
    Uncached,
    Direct(Reserved),
    /// The same, and which way is to be gone now.
    Either(Reserved, Arc<Trial>),
}

/// A second descriptor of the file, for direct writes into space that is reserved, for which the file has its size from the
/// beginning. Where it is found that direct writes are not wanted, the file gets the size that it would have without.
struct Reserved {
    fd: OwnedFd,
    extent: Mutex<Extent>,
}

struct Extent {
    /// Behind all that was or is just being written.
    end: u64,
    reserved: bool,
    steps: Steps,
}

impl Reserved {
    fn extent(&self) -> MutexGuard<'_, Extent> {
        self.extent.lock()
    }

    /// Before `length` bytes are written at `offset`; shorter writes than `least` need no space.
    fn reach(&self, offset: u64, length: u64, least: usize, trial: Option<&Trial>) {
        let mut extent = self.extent();
        let end = offset.saturating_add(length);
        extent.end = extent.end.max(end);
        if !extent.reserved {
            return;
        }
        if trial.is_some_and(|trial| !trial.is_on() && trial.way() == trial::Way::Uncached) {
            // Best effort: what stays reserved is given up with the file's last size.
            extent.reserved = retry_on_intr(|| rustix::fs::ftruncate(&self.fd, extent.end)).is_err();
            return;
        }
        extent.steps.came(length);
        if length < least as u64 {
            return;
        }
        // Under the lock: those who write there meanwhile would have to wait in the kernel as well.
        for range in extent.steps.reach(offset..end).iter() {
            let flags = FallocateFlags::KEEP_SIZE;
            let reserve = || rustix::fs::fallocate(&self.fd, flags, range.start, range.end - range.start);
            if retry_on_intr(reserve).is_err() {
                // A quota, say: the writes will tell.
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

    /// Bytes to write at a time, where it matters: now, that is.
    pub(super) fn chunk(&self) -> Option<usize> {
        match self.0.get()? {
            Way::Direct(_) => Some(CHUNK),
            Way::Either(_, trial) => (trial.way() == trial::Way::Direct).then_some(CHUNK),
            Way::Uncached => None,
        }
    }

    /// Space was reserved that the file's size counts as written.
    pub(super) fn is_reserved(&self) -> bool {
        match self.0.get() {
            Some(Way::Direct(_)) => true,
            Some(Way::Either(reserved, _)) => reserved.extent().reserved,
            Some(Way::Uncached) | None => false,
        }
    }

    /// `size` bytes will be written to this file, which is new or has been prepared before. Where it is not worth it, or the
    /// space for direct writes cannot be reserved, nothing changes.
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
            // All of it could make the disk full for everybody, and never come.
            if u64::try_from(length).unwrap_or_default() < size {
                retry_on_intr(|| rustix::fs::ftruncate(fd, size))?;
            }
            Ok(first)
        });
    }

    /// By direct writes, or as the trial finds. `reserve` gives the file its size, and says how much is reserved from its start on.
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

    /// Writes what can be written past the cache, from the start of `data` on; the caller writes the rest.
    pub(super) fn write(&self, file: BorrowedFd<'_>, data: &[u8], offset: u64) -> Result<usize, Errno> {
        match self.0.get() {
            Some(Way::Uncached) if data.len() >= LEAST_UNCACHED => write_uncached(file, data, offset),
            Some(Way::Direct(reserved)) => {
                reserved.reach(offset, data.len() as u64, LEAST, None);
                write_directly(&reserved.fd, data, offset)
            }
            Some(Way::Either(reserved, trial)) => {
                // Also for what the caller writes.
                reserved.reach(offset, data.len() as u64, LEAST_UNCACHED, Some(trial));
                if data.len() < LEAST_UNCACHED {
                    return Ok(0);
                }
                write_either(file, &reserved.fd, trial, data, offset)
            }
            Some(Way::Uncached) | None => Ok(0),
        }
    }

    /// Gives back the space that was reserved for zeros. Best effort: they read as zeros anyway.
    pub(super) fn free(&self, start: u64, length: u64) {
        if let Some(Way::Direct(reserved) | Way::Either(reserved, _)) = self.0.get()
            && length >= WORTH
        {
            reserved.free(start, length);
        }
    }
}

/// For direct writes to this file, which has so many bytes from now on.
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
    // Where there was too little (a quota, say), ext4 keeps what it got, and the size that goes with it.
    let _ = retry_on_intr(|| rustix::fs::ftruncate(&fd, length));
    None
}

/// The way whose turn it is, or that was found to be better. What cannot be written directly is written uncached.
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

/// Of a processor, that this thread has used.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

fn write_uncached(file: BorrowedFd<'_>, data: &[u8], offset: u64) -> Result<usize, Errno> {
    match retry_on_intr(|| rustix::io::pwritev2(file, &[IoSlice::new(data)], offset, DONTCACHE)) {
        // Not with this file system.
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
            // The disk's blocks are larger, or it wrote a part: the ordinary way knows what to do.
            Ok(_) | Err(Errno::INVAL) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// Whether the kernel has them.
fn uncached_writes() -> bool {
    static HAS: LazyLock<bool> =
        LazyLock::new(|| is_recent(&rustix::system::uname().release().to_string_lossy()));
    *HAS
}

/// Of a kernel's release, such as `6.18.44-1-amd64`.
fn is_recent(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|word| word.parse().ok());
    let (Some(Some(major)), Some(Some(minor))) = (numbers.next(), numbers.next()) else { return false };
    (major, minor) >= UNCACHED_SINCE
}

/// Whether there is space for a file of `size` bytes in place of this one: to find that out by reserving it would leave
/// none to others meanwhile.
fn fits(file: BorrowedFd<'_>, before: &Stat, size: u64) -> bool {
    let has = u64::try_from(before.st_blocks).unwrap_or_default().saturating_mul(512);
    let free = rustix::fs::fstatvfs(file).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    size <= free.saturating_add(has)
}

/// File systems that reserve space at once, and let several threads write it.
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
    fn direct_and_ordinary_writes_make_one_file() {
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
        // What does not fit is left to others.
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
    fn uncached_and_ordinary_writes_make_one_file() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let data: Vec<u8> = (0..300_000).map(|i| (i * 7 / 3) as u8).collect();
        let direct = Direct::default();
        let trial = Arc::default();
        // More than any disk has.
        direct.prepare_with(file.as_fd(), u64::MAX, Some(trial), |_| panic!("nothing is reserved"));
        assert_eq!((direct.is_on(), direct.chunk()), (true, None));
        assert_eq!(file.metadata().unwrap().len(), 0);
        // Any offset will do, and what is small goes the ordinary way.
        for (start, end) in [(100_001, 300_000), (0, 100_000), (100_000, 100_001)] {
            let n = direct.write(file.as_fd(), &data[start..end], start as u64).unwrap();
            assert!(n == 0 || direct.is_on() && end - start >= LEAST_UNCACHED);
            file.write_all_at(&data[start + n..end], (start + n) as u64).unwrap();
        }
        let mut back = vec![1; 300_001];
        assert_eq!(file.read_at(&mut back, 0).unwrap(), 300_000);
        assert!(back[..300_000] == data);
    }

    /// A file that both ways are tried on, with so many chunks reserved; as far as the disk here has space for them.
    fn tried(file: &fs::File, chunks: usize) -> (Direct, Arc<Trial>) {
        let (direct, trial) = (Direct::default(), Arc::<Trial>::default());
        let size = (chunks * CHUNK) as u64;
        direct.prepare_with(file.as_fd(), size, Some(Arc::clone(&trial)), |fd| {
            rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, size).map(|()| size)
        });
        (direct, trial)
    }

    #[test]
    fn both_ways_in_turns_make_one_file() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (direct, trial) = tried(&file, 4);
        let memory: Vec<u8> = (0..CHUNK + ALIGNMENT + 5000).map(|i| (i * 7 / 3) as u8).collect();
        let data = &memory[memory.as_ptr().align_offset(ALIGNMENT)..][..CHUNK + 5000];
        let either = matches!(direct.0.get(), Some(Way::Either(..)));
        let mut seen = Vec::new();
        // Small turns: what was written counts as far more than it is.
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
        // What is not aligned goes uncached, whoever's turn it is.
        let n = direct.write(file.as_fd(), &data[1..], 7).unwrap();
        assert!(!either || n == data.len() - 1);
    }

    /// Nothing is lost by it, whoever writes at that moment, and the file does not look larger than what is there.
    #[test]
    fn space_that_is_not_wanted_after_all_is_given_back() {
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
                        // Found to be hopeless on the way.
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
    fn kernels_are_told_apart() {
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

    /// The disk was filled by others while the space was being reserved: what was got is given back.
    #[test]
    fn a_disk_that_gets_full_meanwhile_leaves_an_ordinary_file() {
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
            // It can be written all the same.
            assert_eq!(direct.write(file.as_fd(), &[1; 100], 0).unwrap(), 0);
            file.write_all_at(&[1; 100], 0).unwrap();
        }
    }

    #[test]
    fn small_files_stay_in_the_cache() {
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
