//! Writing past the page cache.
//!
//! A file that is larger than what the kernel keeps in memory unwritten goes to the disk while it comes in, at the disk's
//! pace. To copy each page into the cache first, only to have another thread write it from there, takes most of the
//! processor's time of a fast transfer, and threads that write one file wait for each other. Direct writes into space that
//! was reserved before do neither.

use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{FallocateFlags, Mode, OFlags, Stat};
use rustix::io::{Errno, retry_on_intr};

use super::root::name_of;
use crate::DirectIo;

/// Memory, lengths and offsets of direct writes are multiples of this, in bytes. Disks with larger blocks refuse, and
/// get ordinary writes.
const ALIGNMENT: usize = 4096;
/// Smaller direct writes are slower than ordinary ones.
const LEAST: usize = 512 << 10;
/// What is sent to the disk at a time.
const CHUNK: usize = 1 << 20;
/// To give back less takes longer than to write it, and leaves a file in shreds.
const WORTH: u64 = 64 << 10;
/// Where nothing is known of the machine's memory.
const LARGE: u64 = 1 << 30;

/// A second descriptor of a file, for direct writes.
#[derive(Default)]
pub(super) struct Direct(OnceLock<OwnedFd>);

impl Direct {
    pub(super) fn is_on(&self) -> bool {
        self.0.get().is_some()
    }

    /// Bytes to write at a time.
    pub(super) fn chunk(&self) -> Option<usize> {
        self.is_on().then_some(CHUNK)
    }

    /// `size` bytes will be written to this file, which is new or has been prepared before. Where the space cannot be
    /// reserved, or direct writes are not worth it, nothing changes.
    pub(super) fn prepare(&self, file: BorrowedFd<'_>, size: u64, when: DirectIo) {
        let wanted = match when {
            DirectIo::Auto => size > background() && gains(file),
            DirectIo::Always => size >= CHUNK as u64,
            DirectIo::Never => false,
        };
        if !wanted || self.is_on() {
            return;
        }
        let Ok(before) = rustix::fs::fstat(file) else { return };
        if !fits(file, &before, size) {
            return;
        }
        let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let Ok(fd) = rustix::fs::open(name_of(file), flags, Mode::empty()) else { return };
        if retry_on_intr(|| rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, size)).is_ok() {
            let _ = self.0.set(fd);
        } else {
            // Where there was too little (a quota, say), ext4 keeps what it got, and the size that goes with it.
            let length = u64::try_from(before.st_size).unwrap_or_default();
            let _ = retry_on_intr(|| rustix::fs::ftruncate(&fd, length));
        }
    }

    /// Writes what can be written directly, from the start of `data` on; the caller writes the rest.
    pub(super) fn write(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        let Some(fd) = self.0.get() else { return Ok(0) };
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

    /// Gives back the space that was reserved for zeros. Best effort: they read as zeros anyway.
    pub(super) fn free(&self, start: u64, length: u64) {
        if let Some(fd) = self.0.get().filter(|_| length >= WORTH) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = retry_on_intr(|| rustix::fs::fallocate(fd, flags, start, length));
        }
    }
}

/// What the kernel keeps in memory before it begins to write, in bytes.
fn background() -> u64 {
    static BACKGROUND: OnceLock<u64> = OnceLock::new();
    *BACKGROUND.get_or_init(|| {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        match number("/proc/sys/vm/dirty_background_bytes") {
            Some(bytes) if bytes > 0 => bytes,
            _ => number("/proc/sys/vm/dirty_background_ratio")
                .zip(available())
                .map_or(LARGE, |(percent, available)| available / 100 * percent),
        }
    })
}

/// Memory that programs can have without others being swapped out, in bytes.
fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? << 10)
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
    const EXT4: u64 = 0xef53;
    const XFS: u64 = 0x5846_5342;
    // The field's type is not the same on all machines.
    #[allow(clippy::cast_sign_loss)]
    rustix::fs::fstatfs(file).is_ok_and(|stat| matches!(stat.f_type as u64, EXT4 | XFS))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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
        direct.prepare(file.as_fd(), 3 * CHUNK as u64, DirectIo::Always);
        assert_eq!(file.metadata().unwrap().len(), if direct.is_on() { 3 * CHUNK as u64 } else { 0 });
        let odd = CHUNK + 5000;
        let n = direct.write(&data[..odd], CHUNK as u64).unwrap();
        assert_eq!(n, if direct.is_on() { CHUNK + 4096 } else { 0 });
        file.write_all_at(&data[n..odd], (CHUNK + n) as u64).unwrap();
        let mut back = vec![1; 3 * CHUNK];
        let n = file.read_at(&mut back, 0).unwrap();
        back.truncate(n);
        assert!(back[..CHUNK].iter().all(|b| *b == 0));
        assert!(back[CHUNK..CHUNK + odd] == data[..odd]);
        // What does not fit is left to others.
        assert_eq!(direct.write(&data[..4096], 0).unwrap(), 0);
        assert_eq!(direct.write(&data[1..odd], 0).unwrap(), 0);
        assert_eq!(direct.write(&data[..odd], 512).unwrap(), 0);
        if direct.is_on() {
            let before = file.metadata().unwrap().blocks();
            direct.free(0, 4096);
            assert_eq!(file.metadata().unwrap().blocks(), before);
            direct.free(0, CHUNK as u64);
            assert_eq!(before - file.metadata().unwrap().blocks(), CHUNK as u64 / 512);
        }
    }

    #[test]
    fn small_files_stay_in_the_cache() {
        let file = tempfile::tempfile().unwrap();
        for (when, size) in [(DirectIo::Never, u64::MAX), (DirectIo::Always, 1000), (DirectIo::Auto, 1 << 20)]
        {
            let direct = Direct::default();
            direct.prepare(file.as_fd(), size, when);
            assert!(!direct.is_on());
        }
        // More than any disk has.
        let direct = Direct::default();
        direct.prepare(file.as_fd(), 1 << 60, DirectIo::Always);
        assert!(!direct.is_on());
        assert_eq!((file.metadata().unwrap().len(), file.metadata().unwrap().blocks()), (0, 0));
        assert!(background() > 0 && available().is_none_or(|bytes| bytes > 0));
    }
}
