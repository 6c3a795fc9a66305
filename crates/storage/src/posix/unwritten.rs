//! How much of what is written the kernel keeps in memory before a disk has it (Linux's `vm.dirty_*`).

use std::fs;
use std::sync::LazyLock;

use super::direct::CHUNK;
use crate::DirectIo;

/// Where nothing is known of the machine's memory.
const BACKGROUND: u64 = 1 << 30;
const LIMIT: u64 = 2 << 30;
/// Up to this size the cache is the place for a file.
const SMALL: u64 = 64 << 20;

/// Bytes from which on the kernel begins to write.
static KEPT: LazyLock<u64> = LazyLock::new(|| setting("dirty_background", BACKGROUND));
/// Bytes from which on writers have to wait for the disk.
static LARGEST: LazyLock<u64> = LazyLock::new(|| setting("dirty", LIMIT));

impl DirectIo {
    /// Whether a file of `size` bytes is to be written past the page cache, on a file system that gains by it.
    ///
    /// Nothing is faster than the cache until the kernel makes writers wait for the disk, for which what others have
    /// written counts as well; and until then a disk has taken its part. Files that are somewhat larger than the limit are
    /// thus complete before they could be on the disk. But where they have to be there when they are complete (`sync`), the
    /// disk has to begin early.
    pub fn leaves_cache(self, size: u64, sync: bool) -> bool {
        match self {
            Self::Auto if size <= SMALL => false,
            Self::Auto if sync => size > *KEPT,
            Self::Auto => size > (*LARGEST + *LARGEST / 2).saturating_sub(unwritten()),
            Self::Always => size >= CHUNK as u64,
            Self::Never => false,
        }
    }
}

/// A limit that the system has in bytes or as a percentage of the memory that programs can have.
fn setting(name: &str, default: u64) -> u64 {
    let number = |unit: &str| {
        fs::read_to_string(format!("/proc/sys/vm/{name}_{unit}")).ok()?.trim().parse::<u64>().ok()
    };
    match number("bytes") {
        Some(bytes) if bytes > 0 => bytes,
        _ => {
            number("ratio").zip(memory("MemAvailable")).map_or(default, |(percent, all)| all / 100 * percent)
        }
    }
}

/// Bytes in memory that no disk has yet.
fn unwritten() -> u64 {
    memory("Dirty").unwrap_or(0) + memory("Writeback").unwrap_or(0)
}

/// A line of /proc/meminfo, in bytes.
fn memory(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? << 10)
}

/// A file that [`DirectIo::Auto`] takes past the cache, whatever else is unwritten.
#[cfg(test)]
pub(super) fn large() -> u64 {
    (2 * *LARGEST).max(SMALL) + CHUNK as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_keeps_stays_in_the_cache() {
        assert!(*KEPT > 0 && *LARGEST > 0 && memory("MemTotal").is_some_and(|bytes| bytes > LIMIT / 16));
        assert!(memory("MemTotals").is_none());
        for (when, size, sync, leaves) in [
            (DirectIo::Auto, SMALL, true, false),
            (DirectIo::Auto, large(), false, true),
            (DirectIo::Auto, KEPT.max(SMALL) + 1, true, true),
            (DirectIo::Auto, *KEPT, true, false),
            (DirectIo::Always, CHUNK as u64, false, true),
            (DirectIo::Always, 1000, true, false),
            (DirectIo::Never, u64::MAX, true, false),
        ] {
            assert_eq!(when.leaves_cache(size, sync), leaves, "{when:?} {size} {sync}");
        }
    }
}
